/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Calls for kept regions.
 */
#ifndef TMESH_KEEP_CALLS_H
#define TMESH_KEEP_CALLS_H

#include "tmesh.h"

int tmesh_ioctl_keep(struct tmesh_ucmd *ucmd);
int tmesh_ioctl_kept_open(struct tmesh_ucmd *ucmd);
int tmesh_ioctl_kept_list(struct tmesh_ucmd *ucmd);
int tmesh_ioctl_kept_drop(struct tmesh_ucmd *ucmd);

#endif /* TMESH_KEEP_CALLS_H */
