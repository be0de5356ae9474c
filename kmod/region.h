/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lifetime of regions.
 */
#ifndef TMESH_REGION_H
#define TMESH_REGION_H

#include "tmesh.h"

void tmesh_region_close(struct tmesh_region *region);
void tmesh_region_teach(struct tmesh_region *region);
void tmesh_region_put(struct tmesh_region *region);
void tmesh_region_put_later(struct tmesh_region *region);

#endif /* TMESH_REGION_H */
