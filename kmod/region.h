/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Regions: their end and description.
 */
#ifndef TMESH_REGION_H
#define TMESH_REGION_H

#include "tmesh.h"

void tmesh_region_put(struct tmesh_region *region);
bool tmesh_region_sealed(const struct tmesh_region *region);
int tmesh_ioctl_renew(struct tmesh_ucmd *ucmd);
int tmesh_ioctl_desc_set(struct tmesh_ucmd *ucmd);

#endif /* TMESH_REGION_H */
