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
int tmesh_claim_allows(const struct tmesh_claim *claim, u32 rights);

#endif /* TMESH_CLAIM_H */
