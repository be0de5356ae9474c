/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Seals.
 */
#ifndef TMESH_SEAL_H
#define TMESH_SEAL_H

#include "tmesh.h"

bool tmesh_region_sealed(const struct tmesh_region *region);
int tmesh_ioctl_seal(struct tmesh_ucmd *ucmd);

#endif /* TMESH_SEAL_H */
