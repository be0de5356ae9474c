/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where work waits.
 */
#ifndef TMESH_MAIN_H
#define TMESH_MAIN_H

#include "tmesh.h"

extern struct workqueue_struct *tmesh_wq;

#endif /* TMESH_MAIN_H */
