/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The fence of a region.
 */
#ifndef TMESH_FENCE_H
#define TMESH_FENCE_H

#include "tmesh.h"

void tmesh_fence_init(struct tmesh_fence *fence);
u64 tmesh_fence_look(struct tmesh_region *region, u32 *state);
bool tmesh_fence_produces(const struct tmesh_claim *claim);
void tmesh_fence_abandon_lapsed(struct tmesh_region *region);
void tmesh_fence_abandon(const struct tmesh_claim *claim);
int tmesh_ioctl_signal(struct tmesh_ucmd *ucmd);
int tmesh_ioctl_wait(struct tmesh_ucmd *ucmd);

#endif /* TMESH_FENCE_H */
