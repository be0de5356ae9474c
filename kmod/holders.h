/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lists of a region's holders.
 */
#ifndef TMESH_HOLDERS_H
#define TMESH_HOLDERS_H

#include "tmesh.h"

bool tmesh_holders_allowed(const struct tmesh_region *region);
int tmesh_holders_alloc(struct tmesh_region *region, u32 *room, struct tmesh_holder **holders);
u32 tmesh_holders_describe(struct tmesh_region *region, u32 kind, struct tmesh_holder *holders,
			   u32 room, u32 *total);
int tmesh_holders_put(u64 entries, u32 stride, struct tmesh_holder *holders, u32 count);
int tmesh_ioctl_holders(struct tmesh_ucmd *ucmd);

#endif /* TMESH_HOLDERS_H */
