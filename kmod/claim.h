/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What handles, exports and views have in common.
 */
#ifndef TMESH_CLAIM_H
#define TMESH_CLAIM_H

#include "tmesh.h"

void tmesh_claim_init(struct tmesh_claim *claim, const struct tmesh_claim_ops *ops,
		      struct tmesh_region *region, u32 kind, u32 rights, struct inode *inode);
int tmesh_claim_add(struct tmesh_claim *claim, const struct tmesh_claim *through);
void tmesh_claim_fini(struct tmesh_claim *claim);

/**
 * tmesh_claim_lapsed() - has the lease of a claim lapsed?
 * @claim: the claim
 *
 * The answer stays so under the region's lock, and once it is true.
 *
 * Return: true when it has one and it has.
 */
static inline bool tmesh_claim_lapsed(const struct tmesh_claim *claim)
{
	/* Pairs with tmesh_lease_join(). */
	const struct tmesh_tenure *lease = smp_load_acquire(&claim->lease);

	return lease && READ_ONCE(lease->state) == TMESH_LEASE_LAPSED;
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
static inline int tmesh_claim_allows(const struct tmesh_claim *claim, u32 rights)
{
	if (READ_ONCE(claim->region->state) & TMESH_STATE_REVOKED || tmesh_claim_lapsed(claim))
		return -ESTALE;
	return rights & ~claim->rights ? -EACCES : 0;
}

#endif /* TMESH_CLAIM_H */
