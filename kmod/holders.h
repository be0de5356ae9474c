/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lists of a region's holders.
 */
#ifndef TMESH_HOLDERS_H
#define TMESH_HOLDERS_H

#include "tmesh.h"

/*
 * Entries that are not charged, so that an owner at its limit can still list holders. They need
 * about as much memory as the stack of the calling thread.
 */
#define TMESH_HOLDERS_FREE 128

/**
 * struct tmesh_holder_list - room for the holders of a region, in the kernel's memory
 * @entries: the array, or NULL
 * @room:    its length
 * @user:    the user charged for it; reference; or NULL
 * @charged: number of bytes charged
 */
struct tmesh_holder_list {
	struct tmesh_holder *entries;
	u32 room;
	struct tmesh_user *user;
	u64 charged;
};

bool tmesh_holders_allowed(const struct tmesh_region *region);
int tmesh_holders_alloc(struct tmesh_region *region, u32 room, struct tmesh_holder_list *list);
void tmesh_holders_free(struct tmesh_holder_list *list);
u32 tmesh_holders_describe(struct tmesh_region *region, u32 kind, struct tmesh_holder *holders,
			   u32 room, u32 *total);
int tmesh_holders_put(u64 entries, u32 stride, struct tmesh_holder *holders, u32 count);
int tmesh_ioctl_holders(struct tmesh_ucmd *ucmd);

#endif /* TMESH_HOLDERS_H */
