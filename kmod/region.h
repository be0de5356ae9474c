/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Regions and their end.
 */
#ifndef TMESH_REGION_H
#define TMESH_REGION_H

#include "tmesh.h"

void tmesh_region_close(struct tmesh_region *region);
void tmesh_region_put(struct tmesh_region *region);

#endif /* TMESH_REGION_H */
