/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Calls that query.
 */
#ifndef TMESH_QUERY_H
#define TMESH_QUERY_H

#include "tmesh.h"

u64 tmesh_time_here(u64 ns);
int tmesh_ioctl_caps(struct tmesh_ucmd *ucmd);
int tmesh_ioctl_info(struct tmesh_ucmd *ucmd);
int tmesh_ioctl_list(struct tmesh_ucmd *ucmd);
int tmesh_ioctl_desc_get(struct tmesh_ucmd *ucmd);
int tmesh_ioctl_desc_set(struct tmesh_ucmd *ucmd);

#endif /* TMESH_QUERY_H */
