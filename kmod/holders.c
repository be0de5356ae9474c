// SPDX-License-Identifier: GPL-2.0-only
/*
 * Who holds a region, written down: TMESH_HOLDERS, and what a revocation tells.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/slab.h>

#include "claim.h"
#include "fence.h"
#include "holders.h"
#include "lease.h"
#include "query.h"
#include "region.h"
#include "ucmd.h"

/**
 * tmesh_holders_alloc() - make room to write down who holds a region
 * @region:  the region
 * @room:    how many the caller has room for; lowered to as many as there may be
 * @holders: set to an array that the caller frees with kvfree(), or NULL for none
 *
 * The array is made so that no user memory is touched under the lock.
 *
 * Context: claims_lock is held.
 * Return: 0 or -ENOMEM.
 */
int tmesh_holders_alloc(struct tmesh_region *region, u32 *room, struct tmesh_holder **holders)
{
	lockdep_assert_held(&region->claims_lock);
	*room = min(*room, region->nr_handles + region->nr_exports + region->nr_gathers +
			   atomic_read(&region->attachments));
	*holders = NULL;
	if (*room)
		*holders = kvcalloc(*room, sizeof(**holders), TMESH_GFP);
	return *room && !*holders ? -ENOMEM : 0;
}

static void tmesh_holder_describe(const struct tmesh_claim *claim, struct tmesh_holder *holder)
{
	holder->size = sizeof(*holder);
	holder->kind = claim->kind;
	holder->pid = pid_nr_ns(claim->pid, task_active_pid_ns(current));
	holder->uid = from_kuid_munged(current_user_ns(), claim->uid);
	holder->rights = claim->rights;
	holder->mappings = atomic_read(&claim->mappings);
	holder->since_ns = tmesh_time_here(claim->since_ns);
	holder->offset = (u64)claim->first << PAGE_SHIFT;
	holder->bytes = (u64)claim->nr_pages << PAGE_SHIFT;
	memcpy(holder->comm, claim->comm, sizeof(holder->comm));
	if (claim->ops->describe)
		claim->ops->describe(claim, holder);
	if (tmesh_fence_produces(claim))
		holder->flags |= TMESH_HOLDER_FLAG_PRODUCER;
	tmesh_lease_times(claim, &holder->lease_ns, &holder->lease_left_ns);
	if (tmesh_claim_lapsed(claim))
		holder->flags |= TMESH_HOLDER_FLAG_LAPSED;
}

/**
 * tmesh_holders_describe() - write down who holds a region
 * @region:  the region
 * @kind:    TMESH_HOLDER_PINNING for those alone; TMESH_HOLDER_DEVICE for devices, the exports
 *           that they are attached to, and views that devices have mapped; 0 for all
 * @holders: zeroed
 * @room:    how many entries it has room for
 * @total:   set to how many there are
 *
 * Context: claims_lock is held.
 * Return: how many were written.
 */
u32 tmesh_holders_describe(struct tmesh_region *region, u32 kind, struct tmesh_holder *holders,
			   u32 room, u32 *total)
{
	struct tmesh_claim *claim;
	u32 at = 0, devices;

	lockdep_assert_held(&region->claims_lock);
	list_for_each_entry(claim, &region->claims, node) {
		if (kind == TMESH_HOLDER_PINNING && claim->kind != kind)
			continue;
		devices = 0;
		if (claim->ops->devices)
			devices = claim->ops->devices(claim, holders + min(at + 1, room),
						      room - min(at + 1, room));
		if (kind == TMESH_HOLDER_DEVICE && !devices &&
		    !(claim->ops->in_use && claim->ops->in_use(claim)))
			continue;
		if (at < room) {
			tmesh_holder_describe(claim, &holders[at]);
			holders[at].attachments = devices;
		}
		at += 1 + devices;
	}
	*total = at;
	return min(at, room);
}

/**
 * tmesh_holders_put() - write an array of holders
 * @entries: where the caller's array is
 * @stride:  bytes from one entry to the next
 * @holders: what to write
 * @count:   how many
 *
 * Context: may fault.
 * Return: 0 or -EFAULT.
 */
int tmesh_holders_put(u64 entries, u32 stride, struct tmesh_holder *holders, u32 count)
{
	int rc = 0;
	u32 i;

	for (i = 0; i < count && !rc; i++)
		rc = tmesh_put_entry(entries, stride, i, &holders[i], sizeof(holders[i]));
	return rc;
}

/**
 * tmesh_ioctl_holders() - TMESH_HOLDERS
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_holders(struct tmesh_ucmd *ucmd)
{
	struct tmesh_holders *cmd = ucmd->cmd;
	struct tmesh_holder *holders = NULL;
	struct tmesh_region *region;
	u32 room = cmd->count;
	int rc;

	if (cmd->pad)
		return -EINVAL;
	rc = tmesh_check_stride(room, cmd->entry_bytes, offsetofend(struct tmesh_holder, comm));
	if (rc)
		return rc;
	region = tmesh_get_named(ucmd, cmd->id);
	if (IS_ERR(region))
		return PTR_ERR(region);
	rc = -EPERM;
	if (!uid_eq(current_euid(), region->uid) && !capable(CAP_SYS_ADMIN))
		goto put;
	rc = -EINTR;
	if (mutex_lock_killable(&region->claims_lock))
		goto put;
	rc = tmesh_holders_alloc(region, &room, &holders);
	if (!rc)
		cmd->count = tmesh_holders_describe(region, 0, holders, room, &cmd->total);
	mutex_unlock(&region->claims_lock);
put:
	/* Before user memory is touched: whose fault takes its time holds no region. */
	tmesh_region_put(region);
	if (!rc)
		rc = tmesh_holders_put(cmd->entries, cmd->entry_bytes, holders, cmd->count);
	kvfree(holders);
	return rc ? rc : tmesh_respond(ucmd, sizeof(*cmd));
}
