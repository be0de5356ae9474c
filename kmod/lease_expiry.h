/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Expiry of leases.
 */
#ifndef TMESH_LEASE_EXPIRY_H
#define TMESH_LEASE_EXPIRY_H

#include "tmesh.h"

void tmesh_lease_expiry_setup(void);
int tmesh_lease_expiry_init(struct tmesh_lease_obj *lease);
void tmesh_lease_expiry_start(struct tmesh_lease_obj *lease);
void tmesh_lease_expiry_stop(struct tmesh_lease_obj *lease);
void tmesh_lease_expiry_fini(struct tmesh_lease_obj *lease);
u64 tmesh_lease_expiry_left(struct tmesh_lease_obj *lease);
void tmesh_lease_expiry_show(struct seq_file *m);
void tmesh_lease_expiry_exit(void);

#endif /* TMESH_LEASE_EXPIRY_H */
