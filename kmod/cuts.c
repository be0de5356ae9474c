// SPDX-License-Identifier: GPL-2.0-only
/*
 * Walks over a region's claims that take mappings away, for revocations, lapses and memory errors.
 * A walk holds cut_lock and a reference on the claim that it is at. It holds no lock that close()
 * or the exit of a process takes.
 */
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/sched.h>

#include "cuts.h"

/**
 * tmesh_claim_put() - drop a reference
 * @claim: the claim
 *
 * Context: process context, may sleep; none of its region's locks but cut_lock is held.
 */
void tmesh_claim_put(struct tmesh_claim *claim)
{
	kref_put(&claim->ref, claim->release);
}

/**
 * tmesh_cuts_wait() - wait until nothing is being taken away from a region's claims
 * @region: the region
 *
 * Return: 0; -EINTR for a fatal signal.
 */
int tmesh_cuts_wait(struct tmesh_region *region)
{
	if (mutex_lock_killable(&region->cut_lock))
		return -EINTR;
	mutex_unlock(&region->cut_lock);
	return 0;
}

/**
 * tmesh_claims_count() - count the claims of a region
 * @region: the region
 *
 * Context: claims_lock is held.
 * Return: their number.
 */
unsigned long tmesh_claims_count(const struct tmesh_region *region)
{
	lockdep_assert_held(&region->claims_lock);
	return (unsigned long)region->nr_handles + region->nr_exports + region->nr_gathers;
}

/* Return the next claim with a reference, and move it to the end of its list. */
static struct tmesh_claim *tmesh_claims_next(struct tmesh_region *region,
					     struct tmesh_lease_obj *lease)
{
	struct tmesh_claim *claim;

	mutex_lock(&region->claims_lock);
	if (lease) {
		claim = list_first_entry_or_null(&lease->claims, struct tmesh_claim, lease_node);
		if (claim)
			list_move_tail(&claim->lease_node, &lease->claims);
	} else {
		claim = list_first_entry_or_null(&region->claims, struct tmesh_claim, node);
		if (claim)
			list_move_tail(&claim->node, &region->claims);
	}
	if (claim)
		kref_get(&claim->ref);
	mutex_unlock(&region->claims_lock);
	return claim;
}

/**
 * tmesh_claims_each() - call a function for each claim of a region
 * @region: the region; the caller has a reference
 * @lease:  restricts the walk to the claims of a lease; NULL for all
 * @most:   number of claims when the caller decided on the walk, under claims_lock
 * @work:   the function
 *
 * A claim that is removed meanwhile may be skipped. So may one that is added meanwhile. claims_lock
 * is not held while @work runs, because exiting processes need it.
 *
 * Context: cut_lock is held, so that there is one walk at a time; may sleep for long.
 */
void tmesh_claims_each(struct tmesh_region *region, struct tmesh_lease_obj *lease,
		       unsigned long most, void (*work)(struct tmesh_claim *claim))
{
	struct tmesh_claim *claim;

	lockdep_assert_held(&region->cut_lock);
	while (most--) {
		claim = tmesh_claims_next(region, lease);
		if (!claim)
			return;
		work(claim);
		tmesh_claim_put(claim);
		cond_resched();
	}
}
