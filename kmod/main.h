/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where calls come in, and where work waits.
 */
#ifndef TMESH_MAIN_H
#define TMESH_MAIN_H

#include "tmesh.h"

long tmesh_ioctl(struct tmesh_handle *handle, unsigned int cmd, unsigned long arg);
extern struct workqueue_struct *tmesh_wq;

#endif /* TMESH_MAIN_H */
