// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lists of a region's holders, for TMESH_HOLDERS and for the answer of TMESH_REVOKE.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/slab.h>

#include "account.h"
#include "claim.h"
#include "fence.h"
#include "holders.h"
#include "lease.h"
#include "query.h"
#include "region.h"
#include "ucmd.h"

/* Spare entries for holders that come while the array is allocated. Any more are only counted. */
#define TMESH_HOLDERS_SPARE 64

/**
 * tmesh_holders_allowed() - test whether the caller may see the holders of a region
 * @region: the region
 *
 * Return: true for its owner and for CAP_SYS_ADMIN.
 */
bool tmesh_holders_allowed(const struct tmesh_region *region)
{
	return uid_eq(current_euid(), region->uid) || capable(CAP_SYS_ADMIN);
}

static int tmesh_holders_charge(struct tmesh_holder_list *list)
{
	struct tmesh_user *user;
	u64 bytes;
	int rc;

	if (list->room <= TMESH_HOLDERS_FREE)
		return 0;
	user = tmesh_user_get(current_euid());
	if (IS_ERR(user))
		return PTR_ERR(user);
	bytes = PAGE_ALIGN((list->room - TMESH_HOLDERS_FREE) * sizeof(*list->entries));
	rc = tmesh_charge(user, TMESH_BYTES, bytes);
	if (rc) {
		tmesh_user_put(user);
		return rc;
	}
	list->user = user;
	list->charged = bytes;
	return 0;
}

/**
 * tmesh_holders_alloc() - allocate an array for the holders of a region
 * @region: the region
 * @room:   entries that the caller has room for
 * @list:   filled in, with room for no more entries than may be needed; to be freed with
 *          tmesh_holders_free()
 *
 * The array exists so that user memory is not touched under claims_lock. It is allocated before
 * that lock is taken, because the allocation may wait for any time: other processes of the caller's
 * control group may use up its memory. The caller's own memory may stall the call for ever while it
 * has the array, so a long one is charged.
 *
 * Context: may sleep; no lock of tmesh is held.
 * Return: 0, -ENOMEM, or -EDQUOT.
 */
int tmesh_holders_alloc(struct tmesh_region *region, u32 room, struct tmesh_holder_list *list)
{
	int rc;

	lockdep_assert_not_held(&region->claims_lock);
	*list = (struct tmesh_holder_list) {
		.room = min(room, TMESH_HOLDERS_SPARE + READ_ONCE(region->nr_handles) +
				  READ_ONCE(region->nr_exports) + READ_ONCE(region->nr_gathers) +
				  atomic_read(&region->attachments)),
	};
	if (!list->room)
		return 0;
	rc = tmesh_holders_charge(list);
	if (rc)
		return rc;
	list->entries = kvcalloc(list->room, sizeof(*list->entries), TMESH_GFP);
	if (list->entries)
		return 0;
	tmesh_holders_free(list);
	return -ENOMEM;
}

/**
 * tmesh_holders_free() - free an array and its charge
 * @list: of tmesh_holders_alloc(), or zeroed
 *
 * Context: may sleep; no lock of tmesh is held.
 */
void tmesh_holders_free(struct tmesh_holder_list *list)
{
	kvfree(list->entries);
	if (list->user) {
		tmesh_uncharge(list->user, TMESH_BYTES, list->charged);
		tmesh_user_put(list->user);
	}
	*list = (struct tmesh_holder_list) { };
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
 * tmesh_holders_describe() - fill an array with the holders of a region
 * @region:  the region
 * @kind:    TMESH_HOLDER_PINNING for pinning handles; TMESH_HOLDER_DEVICE for devices, the exports
 *           that they are attached to, and views that devices have mapped; 0 for all
 * @holders: zeroed
 * @room:    number of entries in @holders
 * @total:   set to the number of holders
 *
 * Context: claims_lock is held.
 * Return: number of entries written.
 */
u32 tmesh_holders_describe(struct tmesh_region *region, u32 kind, struct tmesh_holder *holders,
			   u32 room, u32 *total)
{
	struct tmesh_claim *claim;
	u32 at = 0, devices;

	lockdep_assert_held(&region->claims_lock);
	list_for_each_entry(claim, &region->claims, node) {
		cond_resched();
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
 * tmesh_holders_put() - write an array of holders to user memory
 * @entries: address of the caller's array
 * @stride:  bytes from one entry to the next
 * @holders: the entries
 * @count:   number of entries
 *
 * Context: may fault.
 * Return: 0 or -EFAULT.
 */
int tmesh_holders_put(u64 entries, u32 stride, struct tmesh_holder *holders, u32 count)
{
	int rc = 0;
	u32 i;

	for (i = 0; i < count && !rc; i++) {
		rc = tmesh_put_entry(entries, stride, i, &holders[i], sizeof(holders[i]));
		cond_resched();
	}
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
	struct tmesh_holder_list list = { };
	struct tmesh_region *region;
	int rc;

	if (cmd->pad)
		return -EINVAL;
	rc = tmesh_check_stride(cmd->count, cmd->entry_bytes,
				offsetofend(struct tmesh_holder, comm));
	if (rc)
		return rc;
	region = tmesh_get_named(ucmd, cmd->id);
	if (IS_ERR(region))
		return PTR_ERR(region);
	rc = -EPERM;
	if (!tmesh_holders_allowed(region))
		goto put;
	rc = tmesh_holders_alloc(region, cmd->count, &list);
	if (rc)
		goto put;
	/* Wait for a revocation or lapse under way, whose mappings would be shown otherwise. */
	rc = tmesh_cuts_wait(region);
	if (rc)
		goto put;
	rc = -EINTR;
	if (mutex_lock_killable(&region->claims_lock))
		goto put;
	rc = 0;
	cmd->count = tmesh_holders_describe(region, 0, list.entries, list.room, &cmd->total);
	mutex_unlock(&region->claims_lock);
put:
	/*
	 * Drop the region before touching user memory, so that a slow page fault does not keep it
	 * alive.
	 */
	tmesh_region_put(region);
	if (!rc)
		rc = tmesh_holders_put(cmd->entries, cmd->entry_bytes, list.entries, cmd->count);
	tmesh_holders_free(&list);
	return rc ? rc : tmesh_respond(ucmd, sizeof(*cmd));
}
