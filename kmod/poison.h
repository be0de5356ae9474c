/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pages with memory errors.
 */
#ifndef TMESH_POISON_H
#define TMESH_POISON_H

#include "main.h"
#include "tmesh.h"

int tmesh_poison_look(struct tmesh_region *region);
int tmesh_poison_check(struct tmesh_region *region, struct tmesh_mem *mem, unsigned long first,
		       unsigned long nr_pages);
void tmesh_poison_init(struct tmesh_region *region);
void tmesh_poison_end(struct tmesh_region *region);

/**
 * tmesh_poison_found() - somebody came upon a bad page
 * @region: where; the caller has a reference, or keeps it from being unlinked
 *
 * Context: any that may queue work, under whatever lock.
 */
static inline void tmesh_poison_found(struct tmesh_region *region)
{
	queue_work(tmesh_wq, &region->poison);
}

#endif /* TMESH_POISON_H */
