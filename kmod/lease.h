/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Leases.
 */
#ifndef TMESH_LEASE_H
#define TMESH_LEASE_H

#include "tmesh.h"

int tmesh_ioctl_lease(struct tmesh_ucmd *ucmd);
void tmesh_lease_due(struct tmesh_lease_obj *lease);
void tmesh_lease_work(struct work_struct *work);
unsigned long tmesh_leases_revoke(struct tmesh_region *region);
void tmesh_lease_join(struct tmesh_lease_obj *lease, struct tmesh_claim *claim);
bool tmesh_lease_leave(struct tmesh_claim *claim);
void tmesh_lease_wake(struct tmesh_claim *claim);
void tmesh_leases_tell(struct tmesh_region *region, unsigned long nr);
void tmesh_lease_drop(struct tmesh_claim *claim);
void tmesh_lease_times(const struct tmesh_claim *claim, u64 *period_ns, u64 *left_ns);
long tmesh_lease_count(void);
long tmesh_lease_passes(void);

#endif /* TMESH_LEASE_H */
