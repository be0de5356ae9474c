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

/**
 * tmesh_poison_found() - queue a look for bad pages
 * @region: the region; the caller has a reference, or keeps it from being unlinked
 *
 * Context: any that may queue work, with any lock held.
 */
static inline void tmesh_poison_found(struct tmesh_region *region)
{
	queue_work(tmesh_wq, &region->poison);
}

/**
 * tmesh_poison_end() - cancel the look for bad pages
 * @region: a region without references, unlinked from its sources
 */
static inline void tmesh_poison_end(struct tmesh_region *region)
{
	cancel_work_sync(&region->poison);
}

#endif /* TMESH_POISON_H */
