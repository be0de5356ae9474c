/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pages and their charge.
 */
#ifndef TMESH_MEM_H
#define TMESH_MEM_H

#include "tmesh.h"

int tmesh_mem_init(struct tmesh_mem *mem, const struct tmesh_backing_ops *ops,
		   struct tmesh_user *user, unsigned long nr_pages);
void tmesh_mem_fini(struct tmesh_mem *mem);
struct tmesh_mem *tmesh_mem_hold(struct tmesh_mem *mem);
void tmesh_mem_put(struct tmesh_mem *mem);

/* Pages that the core may allocate for a file: struct file, dentry, inode and dma-buf. */
#define TMESH_ROOM_PAGES 8

int tmesh_memory_left(void);
bool tmesh_folio_referenced(struct folio *folio, int known);
bool tmesh_folio_poisoned(struct folio *folio);
unsigned long tmesh_clean_pages(struct page **pages, unsigned long nr);

/**
 * struct tmesh_release - references that are dropped together
 * @nr:    number of @pages
 * @pages: a page of each folio
 */
struct tmesh_release {
	unsigned int nr;
	struct page *pages[32];
};

void tmesh_release_page(struct tmesh_release *release, struct page *page);
void tmesh_release_end(struct tmesh_release *release);

#endif /* TMESH_MEM_H */
