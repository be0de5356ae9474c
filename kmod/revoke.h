/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Revocation.
 */
#ifndef TMESH_REVOKE_H
#define TMESH_REVOKE_H

#include "tmesh.h"

int tmesh_revoke_all(struct tmesh_region *region);
int tmesh_ioctl_revoke(struct tmesh_ucmd *ucmd);

#endif /* TMESH_REVOKE_H */
