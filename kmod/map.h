/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory mappings.
 */
#ifndef TMESH_MAP_H
#define TMESH_MAP_H

#include "tmesh.h"

int tmesh_mmap(struct tmesh_claim *claim, struct vm_area_struct *vma);
void tmesh_zap(struct tmesh_claim *claim);
void tmesh_flush_faults(struct tmesh_region *region, struct tmesh_mem *mem);

#endif /* TMESH_MAP_H */
