/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Claims: the common part of handles, exports and views.
 */
#ifndef TMESH_CLAIM_H
#define TMESH_CLAIM_H

#include "cuts.h"
#include "tmesh.h"

void tmesh_claim_init(struct tmesh_claim *claim, const struct tmesh_claim_ops *ops,
		      struct tmesh_region *region, u32 kind, u32 rights, struct inode *inode);
int tmesh_claim_add(struct tmesh_claim *claim, const struct tmesh_claim *through);
void tmesh_claim_fini(struct tmesh_claim *claim);

/**
 * tmesh_claim_lapsed() - test whether the lease of a claim has lapsed
 * @claim: the claim
 *
 * The answer is stable under the region's lock. Once true, it stays true.
 *
 * Return: true if the claim has a lease that has lapsed.
 */
static inline bool tmesh_claim_lapsed(const struct tmesh_claim *claim)
{
	/* Pairs with tmesh_lease_join(). */
	const struct tmesh_lease_obj *lease = smp_load_acquire(&claim->lease);

	return lease && READ_ONCE(lease->state) == TMESH_LEASE_LAPSED;
}

/**
 * tmesh_claim_allows() - check whether a claim may make a call
 * @claim:  claim of the handle that the call was made on
 * @rights: TMESH_RIGHT_* that the call needs
 *
 * -ESTALE takes precedence over -EACCES. A caller that needs a stable answer checks again under the
 * region's lock.
 *
 * Return: 0, -ESTALE or -EACCES.
 */
static inline int tmesh_claim_allows(const struct tmesh_claim *claim, u32 rights)
{
	if (READ_ONCE(claim->region->state) & TMESH_STATE_REVOKED || tmesh_claim_lapsed(claim))
		return -ESTALE;
	return rights & ~claim->rights ? -EACCES : 0;
}

#endif /* TMESH_CLAIM_H */
