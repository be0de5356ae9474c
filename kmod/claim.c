// SPDX-License-Identifier: GPL-2.0-only
/*
 * Claims: the holders of a region. A region's list of claims decides whether a revocation is
 * allowed and what it takes away. holders.c shows the list to user space.
 */
#include <linux/cred.h>
#include <linux/ktime.h>
#include <linux/pid.h>
#include <linux/sched.h>

#include "claim.h"
#include "fence.h"
#include "keep.h"
#include "lease.h"
#include "hold.h"
#include "region.h"
#include "seal.h"
#include "zeros.h"

static void tmesh_claim_release(struct kref *ref)
{
	struct tmesh_claim *claim = container_of(ref, struct tmesh_claim, ref);
	struct tmesh_region *region = claim->region;

	tmesh_lease_drop(claim);
	tmesh_zeros_free(claim);
	iput(claim->inode);
	put_pid(claim->pid);
	claim->ops->free(claim);
	tmesh_region_put(region);
}

/**
 * tmesh_claim_init() - initialise a claim
 * @claim:  zeroed, part of a handle, an export or a view
 * @ops:    operations of its kind
 * @region: the region that it will hold
 * @kind:   TMESH_HOLDER_*
 * @rights: TMESH_RIGHT_*
 * @inode:  inode of its file; NULL for a view, which has files of its own
 *
 * The claim covers the whole region. The caller narrows @first and @nr_pages for a slice.
 */
void tmesh_claim_init(struct tmesh_claim *claim, const struct tmesh_claim_ops *ops,
		      struct tmesh_region *region, u32 kind, u32 rights, struct inode *inode)
{
	kref_get(&region->ref);
	if (inode)
		ihold(inode);
	kref_init(&claim->ref);
	claim->release = tmesh_claim_release;
	INIT_LIST_HEAD(&claim->node);
	claim->ops = ops;
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

static bool tmesh_claim_writes(const struct tmesh_claim *claim)
{
	return claim->ops->writes && claim->rights & TMESH_RIGHT_WRITE;
}

static int tmesh_claim_check(const struct tmesh_claim *claim, const struct tmesh_claim *through)
{
	const struct tmesh_region *region = claim->region;
	int rc;

	lockdep_assert_held_read(&region->lock);
	if (region->state & TMESH_STATE_REVOKED || (through && tmesh_claim_lapsed(through)))
		return -ESTALE;
	rc = claim->ops->check ? claim->ops->check(claim, through) : 0;
	if (rc)
		return rc;
	if (tmesh_claim_writes(claim) && tmesh_region_sealed(region))
		return -EPERM;
	return 0;
}

/**
 * tmesh_claim_add() - add a claim to its region
 * @claim:   initialised
 * @through: claim of the handle that it is made through, whose lease it will share; or NULL
 *
 * From now on a revocation takes its mappings away. A writable export or view counts as a writer. A
 * pinning handle forbids revocations.
 *
 * Context: takes claims_lock and the region's lock.
 * Return: 0; -ESTALE if the region was revoked or the lease has lapsed; -EPERM for a writable
 * export or view of a sealed region, and for a pinning handle that the owner or a lease forbids;
 * -EINVAL for a pinning handle on a region that is not sealed; -EOPNOTSUPP for a pinning handle on
 * a view; -EDQUOT for one view too many; -EINTR.
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
	if (!rc && tmesh_claim_writes(claim)) {
		atomic_inc(&region->writers);
		atomic64_inc(&region->wrote);
	}
	up_read(&region->lock);
	if (rc) {
		if (first)
			tmesh_kept_release(region);
		goto unlock;
	}
	list_add_tail(&claim->node, &region->claims);
	region->nr_live++;
	region->nr_joined++;
	if (through && through->lease)
		tmesh_lease_join(through->lease, claim);
	claim->ops->counted(claim, 1);
	if (claim->kind == TMESH_HOLDER_PINNING)
		region->nr_pinning++;
unlock:
	mutex_unlock(&region->claims_lock);
	return rc;
}

/**
 * tmesh_claim_fini() - remove a claim from its region
 * @claim: initialised, added or not, without mappings
 *
 * Drops the reference of its file, dma-buf or view.
 *
 * Context: takes claims_lock; may free the region.
 */
void tmesh_claim_fini(struct tmesh_claim *claim)
{
	struct tmesh_region *region = claim->region;
	bool alone = false, left = false;

	tmesh_fence_abandon(claim);
	mutex_lock(&region->claims_lock);
	if (!list_empty(&claim->node)) {
		list_del_init(&claim->node);
		if (!tmesh_claim_lapsed(claim))
			alone = --region->nr_live == 1;
		left = tmesh_lease_leave(claim);
		claim->ops->counted(claim, -1);
		if (claim->kind == TMESH_HOLDER_PINNING)
			region->nr_pinning--;
		if (tmesh_claim_writes(claim))
			atomic_dec(&region->writers);
		if (list_empty(&region->claims)) {
			tmesh_hold_begin(region);
			tmesh_kept_release(region);
		}
	}
	mutex_unlock(&region->claims_lock);
	if (alone)
		tmesh_wake(&region->wait, EPOLLOUT);
	if (left)
		tmesh_lease_wake(claim);
	tmesh_claim_put(claim);
}

