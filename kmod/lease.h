/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Leases, and the claims that share them.
 */
#ifndef TMESH_LEASE_H
#define TMESH_LEASE_H

#include "tmesh.h"

void tmesh_lease_put(struct tmesh_lease_obj *lease);
void tmesh_lease_due(struct tmesh_lease_obj *lease);
void tmesh_lease_end(struct tmesh_lease_obj *lease, u32 state);
void tmesh_lease_join(struct tmesh_lease_obj *lease, struct tmesh_claim *claim);
bool tmesh_lease_leave(struct tmesh_claim *claim);
void tmesh_lease_wake(struct tmesh_claim *claim);
void tmesh_lease_drop(struct tmesh_claim *claim);
void tmesh_lease_times(const struct tmesh_claim *claim, u64 *period_ns, u64 *left_ns);
long tmesh_lease_count(void);
struct tmesh_lease_obj *tmesh_lease_new(const struct tmesh_lease *cmd);

#endif /* TMESH_LEASE_H */
