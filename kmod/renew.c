// SPDX-License-Identifier: GPL-2.0-only
/*
 * May a region's memory be used for something else?
 */
#include <linux/mm.h>
#include <linux/sched/signal.h>

#include "claim.h"
#include "registry.h"
#include "renew.h"

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
