// SPDX-License-Identifier: GPL-2.0-only
/*
 * Revocation: take a region away from all of its holders.
 */
#include <linux/cred.h>
#include <linux/dma-fence.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/nsproxy.h>

#include "claim.h"
#include "drain.h"
#include "holders.h"
#include "keep.h"
#include "lease_end.h"
#include "map.h"
#include "region.h"
#include "registry.h"
#include "revoke.h"
#include "trace.h"
#include "ucmd.h"

/* The longest time that a revocation waits for work that devices had queued */
#define TMESH_DEVICE_WAIT HZ

/**
 * struct tmesh_revocation - the objects that a revocation visits after it has dropped claims_lock
 * @claims: number of claims
 * @leases: number of leases
 * @group: the group that kept the region, or NULL
 */
struct tmesh_revocation {
	unsigned long claims;
	unsigned long leases;
	struct tmesh_group *group;
};

/* Set TMESH_STATE_REVOKED, so that no new use begins, and take the memory off the region. */
static struct tmesh_mem *tmesh_revoke_flag(struct tmesh_region *region,
					   struct tmesh_revocation *revocation)
{
	struct tmesh_mem *mem = NULL;
	int rc;

	lockdep_assert_held(&region->claims_lock);
	down_write(&region->lock);
	if (region->state & TMESH_STATE_REVOKED)
		rc = -ESTALE;
	else if (region->mem && atomic_read(&region->mem->escaped))
		rc = -EOPNOTSUPP;
	else if (region->nr_pinning)
		rc = -EBUSY;
	else
		rc = tmesh_kept_revoke(region, &revocation->group);
	if (!rc) {
		/* Lease holders must see the new state before they lose mappings. */
		revocation->leases = tmesh_leases_revoke(region);
		mem = region->mem;
		region->mem = NULL;
		WRITE_ONCE(region->freeing, mem);
	}
	up_write(&region->lock);
	return rc ? ERR_PTR(rc) : mem;
}

static struct tmesh_mem *tmesh_revoke_begin(struct tmesh_region *region,
					    struct tmesh_revocation *revocation)
{
	struct tmesh_mem *mem;

	mutex_lock(&region->claims_lock);
	mem = tmesh_revoke_flag(region, revocation);
	if (!IS_ERR_OR_NULL(mem)) {
		tmesh_names_remove(region);
		revocation->claims = tmesh_claims_count(region);
	}
	mutex_unlock(&region->claims_lock);
	return mem;
}

/*
 * Wake pollers without claims_lock: a user may have made many, and exiting processes need the lock.
 */
static void tmesh_revoke_tell(struct tmesh_region *region,
			      const struct tmesh_revocation *revocation)
{
	tmesh_leases_tell(region, revocation->leases);
	if (revocation->group) {
		tmesh_group_wake(revocation->group);
		tmesh_group_put_later(revocation->group);
	}
}

/* Take away the mappings of a claim and notify importers. This does not wait for devices. */
static void tmesh_revoke_claim(struct tmesh_claim *claim)
{
	claim->ops->cut(claim);
}

/**
 * tmesh_revoke_all() - revoke a region
 * @region: the region
 *
 * Hands the memory to the drain. The caller calls tmesh_drain() afterwards.
 *
 * Context: cut_lock is held; takes the cut_lock of views.
 * Return: 0; -ESTALE if it was revoked before; -EBUSY if a pinning handle forbids it; -EOPNOTSUPP
 * if it has mappings that belong to another file; -ENOENT if reclaim has taken it.
 */
int tmesh_revoke_all(struct tmesh_region *region)
{
	struct tmesh_revocation revocation = { };
	struct tmesh_mem *mem;

	lockdep_assert_held(&region->cut_lock);
	mem = tmesh_revoke_begin(region, &revocation);
	if (IS_ERR(mem))
		return PTR_ERR(mem);
	tmesh_revoke_tell(region, &revocation);
	/* A source may be revoked before its view has any memory. */
	if (!mem)
		return 0;
	tmesh_flush_faults(region, mem);
	tmesh_claims_each(region, NULL, revocation.claims, tmesh_revoke_claim);
	trace_tmesh_revoke(region->id);
	tmesh_wakes();
	wake_up_all(&region->wait);
	tmesh_drain_begin(region, mem);
	return 0;
}

/*
 * Return the next claim that devices may have queued work on, with a reference. The region is
 * revoked, so no claims are added and no other walk reorders the list.
 */
static struct tmesh_claim *tmesh_devices_next(struct tmesh_region *region)
{
	struct tmesh_claim *claim;

	mutex_lock(&region->claims_lock);
	while ((claim = list_first_entry_or_null(&region->claims, struct tmesh_claim, node))) {
		if (claim->waited) {
			claim = NULL;
			break;
		}
		claim->waited = true;
		list_move_tail(&claim->node, &region->claims);
		if (claim->ops->pending) {
			kref_get(&claim->ref);
			break;
		}
	}
	mutex_unlock(&region->claims_lock);
	return claim;
}

/* Return one fence for the work that devices have queued on the next claim. */
static struct dma_fence *tmesh_devices_next_fence(struct tmesh_region *region)
{
	struct dma_fence *fence = NULL;
	struct tmesh_claim *claim;

	while (!fence && (claim = tmesh_devices_next(region))) {
		fence = claim->ops->pending(claim);
		tmesh_claim_put(claim);
		cond_resched();
	}
	return fence;
}

/*
 * Wait until importers have been notified, and for work that devices had queued on a revoked
 * region. All of this takes at most TMESH_DEVICE_WAIT, and a signal ends it. Correctness does not
 * depend on it: it only lets more of the memory be free when TMESH_REVOKE returns.
 */
static void tmesh_devices_wait(struct tmesh_region *region)
{
	unsigned long end = jiffies + TMESH_DEVICE_WAIT;
	struct dma_fence *fence;
	long left;

	left = wait_event_interruptible_timeout(region->wait, !atomic_read(&region->telling),
						TMESH_DEVICE_WAIT);
	while (left > 0) {
		fence = tmesh_devices_next_fence(region);
		if (!fence)
			return;
		left = dma_fence_wait_timeout(fence, true, left);
		dma_fence_put(fence);
		/* Looking for the next one takes time too, and a user may have made many. */
		if (left > 0)
			left = end - jiffies;
	}
}

/* Write the number of pinned bytes and the holders that may pin them to user memory. */
static int tmesh_revoke_report(struct tmesh_ucmd *ucmd, struct tmesh_region *region, u32 kind,
			       struct tmesh_holder_list *list)
{
	struct tmesh_revoke *cmd = ucmd->cmd;

	mutex_lock(&region->claims_lock);
	cmd->count = tmesh_holders_describe(region, kind, list->entries, list->room, &cmd->total);
	cmd->exports = region->nr_exports;
	cmd->attachments = atomic_read(&region->attachments);
	mutex_unlock(&region->claims_lock);
	if (tmesh_pinned_bytes(region, &cmd->pinned_bytes))
		return -EINTR;
	if (tmesh_holders_put(cmd->entries, cmd->entry_bytes, list->entries, cmd->count))
		return -EFAULT;
	return tmesh_respond(ucmd, sizeof(*cmd));
}

/*
 * Check whether the caller may revoke a region. On the device only its owner may. On a handle
 * TMESH_RIGHT_MANAGE is needed.
 */
static int tmesh_revoke_allows(const struct tmesh_ucmd *ucmd, const struct tmesh_region *region,
			       bool wait)
{
	const struct tmesh_claim *claim;
	int rc;

	if (!ucmd->handle) {
		if (!uid_eq(current_euid(), region->uid) ||
		    region->ipc_ns != current->nsproxy->ipc_ns)
			return -EPERM;
		return !wait && READ_ONCE(region->state) & TMESH_STATE_REVOKED ? -ESTALE : 0;
	}
	claim = &ucmd->handle->claim;
	rc = tmesh_claim_allows(claim, TMESH_RIGHT_MANAGE);
	/* A handle of a revoked region may still wait for the memory. */
	if (rc == -ESTALE && wait && claim->rights & TMESH_RIGHT_MANAGE &&
	    !tmesh_claim_lapsed(claim))
		rc = 0;
	return rc;
}

/* Revoke a region and wait for devices. The region stays revoked if the wait fails. */
static int tmesh_revoke(struct tmesh_ucmd *ucmd, struct tmesh_region *region)
{
	struct tmesh_revoke *cmd = ucmd->cmd;
	bool wait = cmd->flags & TMESH_REVOKE_WAIT, lapsed;
	int rc;

	if (mutex_lock_killable(&region->cut_lock))
		return -EINTR;
	/* Check the lease again: writing the answer may have taken any time. */
	lapsed = ucmd->handle && tmesh_claim_lapsed(&ucmd->handle->claim);
	rc = lapsed ? -ESTALE : tmesh_revoke_all(region);
	mutex_unlock(&region->cut_lock);
	if (rc == -ESTALE && wait && !lapsed)
		rc = 0;
	if (rc)
		return rc;
	tmesh_drain(region);
	/* Memory that devices were working on may be free by now. */
	tmesh_devices_wait(region);
	tmesh_drain(region);
	return wait ? tmesh_drain_wait(region, cmd->timeout_ns) : 0;
}

static int tmesh_revoke_region(struct tmesh_ucmd *ucmd, struct tmesh_region *region)
{
	struct tmesh_revoke *cmd = ucmd->cmd;
	struct tmesh_holder_list list;
	u32 room = cmd->count;
	int rc, told;

	rc = tmesh_revoke_allows(ucmd, region, cmd->flags & TMESH_REVOKE_WAIT);
	if (rc)
		return rc;
	cmd->count = 0;
	cmd->total = 0;
	/* Write the answer before the revocation, which cannot be undone. */
	rc = tmesh_respond(ucmd, sizeof(*cmd));
	if (rc)
		return rc;
	/* TMESH_RIGHT_MANAGE may be another user's. */
	if (!tmesh_holders_allowed(region))
		room = 0;
	rc = tmesh_holders_alloc(region, room, &list);
	/* An owner at the limit can still revoke. */
	if (rc == -EDQUOT)
		rc = tmesh_holders_alloc(region, TMESH_HOLDERS_FREE, &list);
	if (rc)
		return rc;
	rc = tmesh_revoke(ucmd, region);
	if (!rc || rc == -ETIMEDOUT || rc == -EINTR || rc == -EBUSY) {
		told = tmesh_revoke_report(ucmd, region,
					   rc == -EBUSY ? TMESH_HOLDER_PINNING :
							  TMESH_HOLDER_DEVICE, &list);
		if (told)
			rc = told;
	}
	tmesh_holders_free(&list);
	return rc;
}

/**
 * tmesh_ioctl_revoke() - TMESH_REVOKE
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_revoke(struct tmesh_ucmd *ucmd)
{
	struct tmesh_revoke *cmd = ucmd->cmd;
	struct tmesh_region *region;
	int rc;

	if (cmd->pad || (cmd->timeout_ns && !(cmd->flags & TMESH_REVOKE_WAIT)))
		return -EINVAL;
	rc = tmesh_check_stride(cmd->count, cmd->entry_bytes,
				offsetofend(struct tmesh_holder, comm));
	if (rc)
		return rc;
	region = tmesh_get_named(ucmd, cmd->id);
	if (IS_ERR(region))
		return PTR_ERR(region);
	rc = tmesh_revoke_region(ucmd, region);
	tmesh_region_put(region);
	return rc;
}
