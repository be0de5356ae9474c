/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The call for leases.
 */
#ifndef TMESH_LEASE_CALLS_H
#define TMESH_LEASE_CALLS_H

#include "tmesh.h"

int tmesh_ioctl_lease(struct tmesh_ucmd *ucmd);

#endif /* TMESH_LEASE_CALLS_H */
