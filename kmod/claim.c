// SPDX-License-Identifier: GPL-2.0-only
/*
 * Claims: who holds a region. The list of them decides what a revocation may do and what it
 * takes away, and it is what TMESH_HOLDERS shows.
 */
#include <linux/cred.h>
#include <linux/ktime.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "tmesh.h"

/**
 * tmesh_claim_init() - fill a claim in
 * @claim:  zeroed, part of a handle or an export
 * @region: which it will hold
 * @kind:   TMESH_HOLDER_*
 * @rights: TMESH_RIGHT_*
 * @inode:  of its file; NULL for a view, which has files of its own
 *
 * Shows the whole region; a slice narrows @first and @nr_pages afterwards.
 */
void tmesh_claim_init(struct tmesh_claim *claim, struct tmesh_region *region, u32 kind,
		      u32 rights, struct inode *inode)
{
	kref_get(&region->ref);
	if (inode)
		ihold(inode);
	INIT_LIST_HEAD(&claim->node);
	claim->region = region;
	claim->kind = kind;
	claim->rights = rights;
	claim->inode = inode;
	claim->nr_pages = region->nr_pages;
	claim->pid = get_task_pid(current, PIDTYPE_TGID);
	claim->uid = current_euid();
	get_task_comm(claim->comm, current->group_leader);
	claim->since_ns = ktime_get_ns();
	tmesh_zeros_init(claim);
}

static u32 *tmesh_claim_count(const struct tmesh_claim *claim)
{
	struct tmesh_region *region = claim->region;

	switch (claim->kind) {
	case TMESH_HOLDER_EXPORT:
		return &region->nr_exports;
	case TMESH_HOLDER_GATHER:
		return &region->nr_gathers;
	default:
		return &region->nr_handles;
	}
}

/* A handle writes by its mappings alone; what devices and views do cannot be seen. */
static bool tmesh_claim_writes(const struct tmesh_claim *claim)
{
	return claim->rights & TMESH_RIGHT_WRITE &&
	       (claim->kind == TMESH_HOLDER_EXPORT || claim->kind == TMESH_HOLDER_GATHER);
}

static int tmesh_claim_check(const struct tmesh_claim *claim, const struct tmesh_claim *through)
{
	const struct tmesh_region *region = claim->region;

	lockdep_assert_held_read(&region->lock);
	if (region->state & TMESH_STATE_REVOKED || (through && tmesh_claim_lapsed(through)))
		return -ESTALE;
	switch (claim->kind) {
	case TMESH_HOLDER_PINNING:
		if (region->backing == TMESH_BACKING_GATHER)
			return -EOPNOTSUPP;
		if (region->flags & TMESH_CREATE_NOPIN || (through && through->lease))
			return -EPERM;
		if (!(region->state & TMESH_STATE_SEALED))
			return -EINVAL;
		break;
	case TMESH_HOLDER_GATHER:
		if (region->nr_gathers == TMESH_GATHER_VIEWS)
			return -EDQUOT;
		break;
	}
	if (tmesh_claim_writes(claim) && tmesh_region_sealed(region))
		return -EPERM;
	return 0;
}

/**
 * tmesh_claim_add() - let a claim count
 * @claim:   complete
 * @through: of the handle that it is made through, whose lease it will share; or NULL
 *
 * From here on it is zapped by revocations, counted as a writer if it is a writable export
 * or view and forbids revocations if it is a pinning handle.
 *
 * Context: takes claims_lock and the region's lock.
 * Return: 0; -ESTALE; -EPERM for a writable export or view of a sealed region, or a pinning
 * handle where its owner or a lease allows none; -EINVAL for a pinning handle on a region that
 * is not sealed, -EOPNOTSUPP for one on a view; -EDQUOT for one view too many; -EINTR.
 */
int tmesh_claim_add(struct tmesh_claim *claim, const struct tmesh_claim *through)
{
	struct tmesh_region *region = claim->region;
	bool first;
	int rc;

	if (mutex_lock_killable(&region->claims_lock))
		return -EINTR;
	first = list_empty(&region->claims);
	rc = first ? tmesh_kept_hold(region) : 0;
	if (rc)
		goto unlock;
	down_read(&region->lock);
	rc = tmesh_claim_check(claim, through);
	if (!rc && tmesh_claim_writes(claim))
		atomic_inc(&region->writers);
	up_read(&region->lock);
	if (rc) {
		if (first)
			tmesh_kept_release(region);
		goto unlock;
	}
	list_add_tail(&claim->node, &region->claims);
	region->nr_live++;
	if (through && through->lease)
		tmesh_lease_join(through->lease, claim);
	++*tmesh_claim_count(claim);
	if (claim->kind == TMESH_HOLDER_PINNING)
		region->nr_pinning++;
unlock:
	mutex_unlock(&region->claims_lock);
	return rc;
}

/**
 * tmesh_claim_fini() - end a claim
 * @claim: initialised, added or not, without mappings
 *
 * Context: takes claims_lock; may free the region.
 */
void tmesh_claim_fini(struct tmesh_claim *claim)
{
	struct tmesh_region *region = claim->region;
	bool alone;

	tmesh_fence_abandon(claim);
	mutex_lock(&region->claims_lock);
	if (!list_empty(&claim->node)) {
		list_del_init(&claim->node);
		if (!tmesh_claim_lapsed(claim))
			region->nr_live--;
		tmesh_lease_leave(claim);
		--*tmesh_claim_count(claim);
		if (claim->kind == TMESH_HOLDER_PINNING)
			region->nr_pinning--;
		if (tmesh_claim_writes(claim))
			atomic_dec(&region->writers);
		if (list_empty(&region->claims)) {
			tmesh_linger_begin(region);
			tmesh_kept_release(region);
		}
	}
	alone = region->nr_live == 1;
	mutex_unlock(&region->claims_lock);
	if (alone)
		wake_up_all(&region->wait);
	tmesh_lease_drop(claim);
	tmesh_zeros_free(claim);
	iput(claim->inode);
	put_pid(claim->pid);
	tmesh_region_put(region);
}

/**
 * tmesh_claim_allows() - may a call go on?
 * @claim:  of the handle that it was made on
 * @rights: that it needs
 *
 * That the region was revoked or the lease has lapsed counts before missing rights. Where it
 * matters the caller looks again under the region's lock.
 *
 * Return: 0, -ESTALE or -EACCES.
 */
int tmesh_claim_allows(const struct tmesh_claim *claim, u32 rights)
{
	if (READ_ONCE(claim->region->state) & TMESH_STATE_REVOKED || tmesh_claim_lapsed(claim))
		return -ESTALE;
	return rights & ~claim->rights ? -EACCES : 0;
}

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
		*holders = kvcalloc(*room, sizeof(**holders), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	return *room && !*holders ? -ENOMEM : 0;
}

static void tmesh_claim_describe(struct tmesh_claim *claim, struct tmesh_holder *holder)
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
	if (claim->kind == TMESH_HOLDER_GATHER)
		holder->view = tmesh_gather_view(claim);
	if (tmesh_fence_produces(claim))
		holder->flags |= TMESH_HOLDER_FLAG_PRODUCER;
	tmesh_lease_times(claim, &holder->lease_ns, &holder->lease_left_ns);
	if (tmesh_claim_lapsed(claim))
		holder->flags |= TMESH_HOLDER_FLAG_LAPSED;
}

/**
 * tmesh_claims_describe() - write down who holds a region
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
u32 tmesh_claims_describe(struct tmesh_region *region, u32 kind, struct tmesh_holder *holders,
			  u32 room, u32 *total)
{
	struct tmesh_claim *claim;
	u32 at = 0, devices;

	lockdep_assert_held(&region->claims_lock);
	list_for_each_entry(claim, &region->claims, node) {
		if (kind == TMESH_HOLDER_PINNING && claim->kind != kind)
			continue;
		devices = 0;
		if (claim->kind == TMESH_HOLDER_EXPORT)
			devices = tmesh_export_devices(claim, holders + min(at + 1, room),
						       room - min(at + 1, room));
		if (kind == TMESH_HOLDER_DEVICE && !devices && !tmesh_gather_in_use(claim))
			continue;
		if (at < room) {
			tmesh_claim_describe(claim, &holders[at]);
			holders[at].attachments = devices;
		}
		at += 1 + devices;
	}
	*total = at;
	return min(at, room);
}

/**
 * tmesh_check_stride() - is the stride of a caller's array good?
 * @count:    how many entries there is room for
 * @stride:   bytes from one to the next
 * @min_size: of an entry as first published
 *
 * Return: 0; -EINVAL when it is too short; -E2BIG when it is longer than a page.
 */
int tmesh_check_stride(u32 count, u32 stride, size_t min_size)
{
	if (!count)
		return 0;
	if (stride < min_size || stride % 8)
		return -EINVAL;
	return stride > PAGE_SIZE ? -E2BIG : 0;
}

/**
 * tmesh_put_entry() - write one entry of a caller's array
 * @entries: where the array is
 * @stride:  bytes from one entry to the next
 * @index:   of the entry
 * @entry:   what to write; begins with its size
 * @size:    of it; a longer stride is filled with zeros, a shorter one cuts it
 *
 * Context: may fault.
 * Return: 0 or -EFAULT.
 */
int tmesh_put_entry(u64 entries, u32 stride, u32 index, const void *entry, size_t size)
{
	void __user *to = u64_to_user_ptr(entries + (u64)index * stride);
	u32 len = min_t(size_t, stride, size);

	if (copy_to_user(to, entry, len) || clear_user(to + len, stride - len) ||
	    put_user(len, (u32 __user *)to))
		return -EFAULT;
	return 0;
}

/**
 * tmesh_put_holders() - write an array of holders
 * @entries: where the caller's array is
 * @stride:  bytes from one entry to the next
 * @holders: what to write
 * @count:   how many
 *
 * Context: may fault.
 * Return: 0 or -EFAULT.
 */
int tmesh_put_holders(u64 entries, u32 stride, struct tmesh_holder *holders, u32 count)
{
	int rc = 0;
	u32 i;

	for (i = 0; i < count && !rc; i++)
		rc = tmesh_put_entry(entries, stride, i, &holders[i], sizeof(holders[i]));
	return rc;
}
