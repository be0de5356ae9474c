// SPDX-License-Identifier: GPL-2.0-only
/*
 * Regions: how they are described, lent again and freed.
 */
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "account.h"
#include "claim.h"
#include "drain.h"
#include "lease.h"
#include "poison.h"
#include "region.h"
#include "registry.h"
#include "revoke.h"
#include "trace.h"

static void tmesh_region_release(struct kref *ref)
{
	struct tmesh_region *region = container_of(ref, struct tmesh_region, ref);

	trace_tmesh_free(region->id);
	tmesh_region_close(region);
	tmesh_names_remove(region);
	tmesh_registry_remove(region);
	tmesh_drain_end(region);
	tmesh_poison_end(region);
	kfree(region->desc);
	tmesh_uncharge(region->user, TMESH_REGIONS, 1);
	tmesh_user_put(region->user);
	kfree_rcu(region, rcu);
}

/**
 * tmesh_region_put() - drop a reference
 * @region: the region
 *
 * Context: process context; frees the memory with the last reference.
 */
void tmesh_region_put(struct tmesh_region *region)
{
	kref_put(&region->ref, tmesh_region_release);
}

/**
 * tmesh_region_sealed() - may nothing begin to write to a region?
 * @region: not revoked
 *
 * Context: the region's lock is held.
 * Return: true when it is sealed, or its memory was by others.
 */
bool tmesh_region_sealed(const struct tmesh_region *region)
{
	const struct tmesh_mem *mem = region->mem;

	lockdep_assert_held(&region->lock);
	return region->state & TMESH_STATE_SEALED || (mem->ops->sealed && mem->ops->sealed(mem));
}

/* Has nobody but the holder of a claim any of the memory? */
static int tmesh_region_alone(const struct tmesh_claim *claim)
{
	struct tmesh_region *region = claim->region;
	struct tmesh_mem *mem = region->mem;
	struct folio *folio;
	unsigned long i;

	lockdep_assert_held(&region->claims_lock);
	if (!list_is_singular(&region->claims) || atomic_read(&region->attachments) ||
	    READ_ONCE(region->kept))
		return -EBUSY;
	/* Neither a revocation nor a seal goes on now. Pages may stay behind without a claim. */
	for (i = 0; i < mem->nr_pages; i += folio_nr_pages(folio)) {
		folio = page_folio(mem->pages[i]);
		if (mem->ops->in_use(mem, folio))
			return -EBUSY;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}

/**
 * tmesh_ioctl_renew() - TMESH_RENEW
 * @ucmd: the call
 *
 * The tokens go first: who redeems one meanwhile adds a claim before, which is seen here, or looks
 * at the names after.
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_renew(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	struct tmesh_region *region = claim->region;
	int rc;

	rc = tmesh_claim_allows(claim, TMESH_RIGHT_WRITE | TMESH_RIGHT_MANAGE);
	if (rc)
		return rc;
	if (region->backing != TMESH_BACKING_PAGES)
		return -EOPNOTSUPP;
	if (mutex_lock_killable(&region->claims_lock))
		return -EINTR;
	if (region->state & TMESH_STATE_REVOKED || tmesh_claim_lapsed(claim)) {
		rc = -ESTALE;
	} else if (region->state & TMESH_STATE_SEALED) {
		rc = -EPERM;
	} else {
		tmesh_names_remove(region);
		rc = tmesh_region_alone(claim);
	}
	mutex_unlock(&region->claims_lock);
	return rc;
}

/**
 * tmesh_ioctl_desc_set() - TMESH_DESC_SET
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_desc_set(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	struct tmesh_region *region = claim->region;
	struct tmesh_desc *cmd = ucmd->cmd;
	void *desc = NULL;
	int rc;

	if (cmd->pad || cmd->id || cmd->bytes > TMESH_DESC_MAX)
		return -EINVAL;
	rc = tmesh_claim_allows(claim, TMESH_RIGHT_MANAGE);
	if (rc)
		return rc;
	if (cmd->bytes) {
		desc = kmalloc(cmd->bytes, TMESH_GFP);
		if (!desc)
			return -ENOMEM;
		if (copy_from_user(desc, u64_to_user_ptr(cmd->data), cmd->bytes)) {
			kfree(desc);
			return -EFAULT;
		}
	}
	down_write(&region->lock);
	if (region->state & TMESH_STATE_REVOKED || tmesh_claim_lapsed(claim)) {
		rc = -ESTALE;
	} else if (region->state & TMESH_STATE_SEALED) {
		rc = -EPERM;
	} else {
		swap(region->desc, desc);
		WRITE_ONCE(region->desc_bytes, cmd->bytes);
	}
	up_write(&region->lock);
	kfree(desc);
	return rc;
}
