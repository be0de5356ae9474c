/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Leases.
 */
#ifndef TMESH_LEASE_H
#define TMESH_LEASE_H

#include "tmesh.h"

int tmesh_ioctl_lease(struct tmesh_ucmd *ucmd);
void tmesh_lease_due(struct tmesh_tenure *lease);
void tmesh_leases_revoke(struct tmesh_region *region);
void tmesh_lease_join(struct tmesh_tenure *lease, struct tmesh_claim *claim);
void tmesh_lease_leave(struct tmesh_claim *claim);
void tmesh_lease_drop(struct tmesh_claim *claim);
void tmesh_lease_times(const struct tmesh_claim *claim, u64 *period_ns, u64 *left_ns);
long tmesh_lease_count(void);

#endif /* TMESH_LEASE_H */
