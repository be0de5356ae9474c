/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Uses by devices and the kernel, and the freeing of memory.
 */
#ifndef TMESH_DRAIN_H
#define TMESH_DRAIN_H

#include "tmesh.h"

/*
 * The most references that the uses of a view may need on a folio, and the most page table entries
 * that its mappings may have of a page. A source has at most TMESH_GATHER_VIEWS views. So a user
 * cannot make a folio's count wrap, nor make a revocation take long.
 */
#define TMESH_VIEW_REFS (2UL * TMESH_GATHER_MAX)

struct tmesh_mem *tmesh_use_begin(struct tmesh_region *region, struct tmesh_use *use,
				  unsigned long first, unsigned long nr_pages);
void tmesh_use_end(struct tmesh_region *region, struct tmesh_use *use);
void tmesh_drain_init(struct tmesh_region *region);
void tmesh_drain_init_view(struct tmesh_region *region);
void tmesh_drain(struct tmesh_region *region);
void tmesh_drain_begin(struct tmesh_region *region, struct tmesh_mem *mem);
int tmesh_drain_wait(struct tmesh_region *region, u64 timeout_ns);
void tmesh_drain_end(struct tmesh_region *region);
void tmesh_drain_exit(void);
int tmesh_pinned_bytes(struct tmesh_region *region, u64 *bytes);
int tmesh_drain_look(struct tmesh_region *region);
unsigned long tmesh_drain_unheld(struct tmesh_region *region);

#endif /* TMESH_DRAIN_H */
