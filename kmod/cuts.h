/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Walks over a region's claims.
 */
#ifndef TMESH_CUTS_H
#define TMESH_CUTS_H

#include "tmesh.h"

void tmesh_claim_put(struct tmesh_claim *claim);
int tmesh_cuts_wait(struct tmesh_region *region);
unsigned long tmesh_claims_count(const struct tmesh_region *region);
void tmesh_claims_each(struct tmesh_region *region, struct tmesh_lease_obj *lease,
		       unsigned long most, void (*work)(struct tmesh_claim *claim));

#endif /* TMESH_CUTS_H */
