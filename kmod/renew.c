// SPDX-License-Identifier: GPL-2.0-only
/*
 * TMESH_RENEW: check that a region's memory can be reused for other data.
 */
#include <linux/mm.h>
#include <linux/sched/signal.h>

#include "claim.h"
#include "registry.h"
#include "renew.h"

/**
 * struct tmesh_renewal - a look at all pages of a region, in pieces
 * @joined: the region's @nr_joined at the first piece
 * @next:   first page of the next piece
 */
struct tmesh_renewal {
	u64 joined;
	unsigned long next;
};

/* Check that a claim is the only one of its region. */
static int tmesh_renew_check(const struct tmesh_claim *claim, struct tmesh_renewal *renewal)
{
	struct tmesh_region *region = claim->region;

	lockdep_assert_held(&region->claims_lock);
	if (region->state & TMESH_STATE_REVOKED || tmesh_claim_lapsed(claim))
		return -ESTALE;
	if (region->state & TMESH_STATE_SEALED)
		return -EPERM;
	tmesh_names_remove(region);
	if (!renewal->next)
		renewal->joined = region->nr_joined;
	/*
	 * A claim that existed between two pieces may have pinned a page that was looked at before.
	 * An attachment holds the export's claim. Memory that is kept is sealed.
	 */
	if (renewal->joined != region->nr_joined || !list_is_singular(&region->claims))
		return -EBUSY;
	return 0;
}

/*
 * Check that a piece of the memory is not in use: a pin may outlive its claim. Return 1 if there is
 * more to look at. Work in pieces, because exiting processes need claims_lock.
 */
static int tmesh_renew_piece(const struct tmesh_claim *claim, struct tmesh_renewal *renewal)
{
	struct tmesh_region *region = claim->region;
	struct tmesh_mem *mem = region->mem;
	struct folio *folio;
	unsigned int looks;
	int rc;

	rc = tmesh_renew_check(claim, renewal);
	for (looks = 0; !rc && renewal->next < mem->nr_pages; looks++) {
		if (looks == TMESH_PIECE)
			return 1;
		folio = page_folio(mem->pages[renewal->next]);
		if (mem->ops->in_use(mem, folio))
			return -EBUSY;
		renewal->next += folio_nr_pages(folio);
		cond_resched();
	}
	return rc;
}

/**
 * tmesh_ioctl_renew() - TMESH_RENEW
 * @ucmd: the call
 *
 * The tokens are removed first. A concurrent TMESH_OPEN either has added its claim before, and the
 * check sees that, or finds afterwards that the token is dead (tmesh_name_stands()).
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_renew(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	struct tmesh_region *region = claim->region;
	struct tmesh_renewal renewal = { };
	int rc;

	rc = tmesh_claim_allows(claim, TMESH_RIGHT_WRITE | TMESH_RIGHT_MANAGE);
	if (rc)
		return rc;
	if (region->backing != TMESH_BACKING_PAGES)
		return -EOPNOTSUPP;
	do {
		if (fatal_signal_pending(current) || mutex_lock_killable(&region->claims_lock))
			return -EINTR;
		rc = tmesh_renew_piece(claim, &renewal);
		mutex_unlock(&region->claims_lock);
		cond_resched();
	} while (rc > 0);
	return rc;
}
