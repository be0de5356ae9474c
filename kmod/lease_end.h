/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The end of leases.
 */
#ifndef TMESH_LEASE_END_H
#define TMESH_LEASE_END_H

#include "tmesh.h"

void tmesh_lease_lapse(struct tmesh_lease_obj *lease);
void tmesh_lease_work(struct work_struct *work);
unsigned long tmesh_leases_revoke(struct tmesh_region *region);
void tmesh_leases_tell(struct tmesh_region *region, unsigned long nr);
long tmesh_lease_passes(void);

#endif /* TMESH_LEASE_END_H */
