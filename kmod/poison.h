/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pages with memory errors.
 */
#ifndef TMESH_POISON_H
#define TMESH_POISON_H

#include "tmesh.h"

bool tmesh_folio_poisoned(struct folio *folio);
unsigned long tmesh_clean_pages(struct page **pages, unsigned long nr);
int tmesh_poison_look(struct tmesh_region *region);
void tmesh_poison_found(struct tmesh_region *region);
int tmesh_poison_check(struct tmesh_region *region, struct tmesh_mem *mem, unsigned long first,
		       unsigned long nr_pages);
void tmesh_poison_init(struct tmesh_region *region);
void tmesh_poison_end(struct tmesh_region *region);

#endif /* TMESH_POISON_H */
