// SPDX-License-Identifier: GPL-2.0-only
/*
 * Revocation: a region is taken back from everybody.
 */
#include <linux/dma-fence.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "claim.h"
#include "drain.h"
#include "holders.h"
#include "keep.h"
#include "lease.h"
#include "map.h"
#include "registry.h"
#include "revoke.h"
#include "trace.h"
#include "ucmd.h"

/* How long a revocation waits in all for work that importers had already queued. */
#define TMESH_DEVICE_WAIT HZ

/* Flags the region, so that nobody starts anew, and takes its memory off it. */
static struct tmesh_mem *tmesh_revoke_begin(struct tmesh_region *region)
{
	struct tmesh_mem *mem;

	lockdep_assert_held(&region->claims_lock);
	down_write(&region->lock);
	if (region->state & TMESH_STATE_REVOKED) {
		mem = ERR_PTR(-ESTALE);
	} else if (region->mem && atomic_read(&region->mem->escaped)) {
		mem = ERR_PTR(-EOPNOTSUPP);
	} else if (region->nr_pinning) {
		mem = ERR_PTR(-EBUSY);
	} else {
		WRITE_ONCE(region->state, region->state | TMESH_STATE_REVOKED);
		/* They are told before anything is taken away. */
		tmesh_leases_revoke(region);
		mem = region->mem;
		region->mem = NULL;
	}
	up_write(&region->lock);
	return mem;
}

/* Takes every mapping away and tells importers. Nothing here waits for a device. */
static void tmesh_revoke_claims(struct tmesh_region *region)
{
	struct tmesh_claim *claim;

	list_for_each_entry(claim, &region->claims, node)
		claim->ops->cut(claim);
}

/**
 * tmesh_region_revoke() - take a region back from everybody
 * @region: the region
 *
 * Its memory is the drain's afterwards: the caller is to call tmesh_drain().
 *
 * Context: claims_lock is held; takes that of views.
 * Return: 0; -ESTALE when it was revoked before; -EBUSY when a pinning handle forbids it;
 * -EOPNOTSUPP when its mappings are not ours to take away.
 */
int tmesh_region_revoke(struct tmesh_region *region)
{
	struct tmesh_mem *mem = tmesh_revoke_begin(region);

	if (IS_ERR(mem))
		return PTR_ERR(mem);
	/* A view may lose a source before it has anything itself. */
	if (!mem)
		return 0;
	tmesh_kept_revoked(region);
	tmesh_names_remove(region);
	tmesh_flush_faults(mem);
	tmesh_revoke_claims(region);
	trace_tmesh_revoke(region->id);
	wake_up_all(&region->wait);
	tmesh_drain_begin(region, mem);
	return 0;
}

/* What devices have queued on the next claim, in one fence. */
static struct dma_fence *tmesh_devices_next_fence(struct tmesh_region *region)
{
	struct dma_fence *fence = NULL;
	struct tmesh_claim *claim;

	mutex_lock(&region->claims_lock);
	list_for_each_entry(claim, &region->claims, node) {
		if (!claim->ops->pending)
			continue;
		fence = claim->ops->pending(claim);
		if (fence)
			break;
		cond_resched();
	}
	mutex_unlock(&region->claims_lock);
	return fence;
}

/*
 * Waits for work that devices had queued on a revoked region: for all of them together no longer
 * than TMESH_DEVICE_WAIT, and a signal ends it. Nothing depends on it but how much of the work is
 * over when TMESH_REVOKE returns.
 */
static void tmesh_devices_wait(struct tmesh_region *region)
{
	unsigned long end = jiffies + TMESH_DEVICE_WAIT;
	struct dma_fence *fence;
	long left = TMESH_DEVICE_WAIT;

	while (left > 0) {
		fence = tmesh_devices_next_fence(region);
		if (!fence)
			return;
		left = dma_fence_wait_timeout(fence, true, left);
		dma_fence_put(fence);
		/* Looking for the next one takes time too, and anybody may have made many. */
		if (left > 0)
			left = end - jiffies;
	}
}

/* Tells what still pins memory, and who may. */
static int tmesh_revoke_report(struct tmesh_ucmd *ucmd, u32 kind, struct tmesh_holder *holders,
			       u32 room)
{
	struct tmesh_region *region = ucmd->handle->claim.region;
	struct tmesh_revoke *cmd = ucmd->cmd;

	mutex_lock(&region->claims_lock);
	cmd->count = tmesh_holders_describe(region, kind, holders, room, &cmd->total);
	cmd->exports = region->nr_exports;
	cmd->attachments = atomic_read(&region->attachments);
	mutex_unlock(&region->claims_lock);
	if (tmesh_pinned_bytes(region, &cmd->pinned_bytes))
		return -EINTR;
	if (tmesh_holders_put(cmd->entries, cmd->entry_bytes, holders, cmd->count))
		return -EFAULT;
	return tmesh_respond(ucmd, sizeof(*cmd));
}

/**
 * tmesh_ioctl_revoke() - TMESH_REVOKE
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_revoke(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	struct tmesh_region *region = claim->region;
	struct tmesh_revoke *cmd = ucmd->cmd;
	bool wait = cmd->flags & TMESH_REVOKE_WAIT, lapsed;
	struct tmesh_holder *holders = NULL;
	u32 room = cmd->count;
	int rc, told;

	if (cmd->pad || (cmd->timeout_ns && !wait))
		return -EINVAL;
	rc = tmesh_check_stride(room, cmd->entry_bytes, offsetofend(struct tmesh_holder, comm));
	if (rc)
		return rc;
	rc = tmesh_claim_allows(claim, TMESH_RIGHT_MANAGE);
	/* To wait on is the one thing that may still be asked. */
	if (rc == -ESTALE && wait && claim->rights & TMESH_RIGHT_MANAGE &&
	    !tmesh_claim_lapsed(claim))
		rc = 0;
	if (rc)
		return rc;

	cmd->count = 0;
	cmd->total = 0;
	/* Once the region is revoked there is no way back. */
	rc = tmesh_respond(ucmd, sizeof(*cmd));
	if (rc)
		return rc;
	if (mutex_lock_killable(&region->claims_lock))
		return -EINTR;
	/* The answer's page fault may have taken its time. */
	lapsed = tmesh_claim_lapsed(claim);
	rc = lapsed ? -ESTALE : tmesh_holders_alloc(region, &room, &holders);
	if (!rc)
		rc = tmesh_region_revoke(region);
	mutex_unlock(&region->claims_lock);
	if (rc == -ESTALE && wait && !lapsed)
		rc = 0;
	if (!rc) {
		tmesh_drain(region);
		/* What devices worked on may be free by then. */
		tmesh_devices_wait(region);
		tmesh_drain(region);
		if (wait)
			rc = tmesh_drain_wait(region, cmd->timeout_ns);
	}
	if (!rc || rc == -ETIMEDOUT || rc == -EINTR || rc == -EBUSY) {
		told = tmesh_revoke_report(ucmd, rc == -EBUSY ? TMESH_HOLDER_PINNING :
							      TMESH_HOLDER_DEVICE, holders, room);
		if (told)
			rc = told;
	}
	kvfree(holders);
	return rc;
}
