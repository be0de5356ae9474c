/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What devices and the kernel have mapped, and how memory is given back.
 */
#ifndef TMESH_DRAIN_H
#define TMESH_DRAIN_H

#include "tmesh.h"

struct tmesh_mem *tmesh_use_begin(struct tmesh_region *region, struct tmesh_use *use,
				  unsigned long first, unsigned long nr_pages);
void tmesh_use_end(struct tmesh_region *region, struct tmesh_use *use);
void tmesh_drain_init(struct tmesh_region *region);
void tmesh_drain_init_view(struct tmesh_region *region);
void tmesh_drain(struct tmesh_region *region);
void tmesh_drain_begin(struct tmesh_region *region, struct tmesh_mem *mem);
int tmesh_drain_wait(struct tmesh_region *region, u64 timeout_ns);
void tmesh_drain_end(struct tmesh_region *region);
int tmesh_pinned_bytes(struct tmesh_region *region, u64 *bytes);
unsigned long tmesh_drain_unheld(struct tmesh_region *region, bool drop);

#endif /* TMESH_DRAIN_H */
