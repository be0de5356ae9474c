// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory as all backings have it: pages, and who is charged for them.
 */
#include <linux/fdtable.h>
#include <linux/pagemap.h>
#include <linux/slab.h>

#include "account.h"
#include "mem.h"

/**
 * tmesh_mem_init() - charge memory and make room for its pages
 * @mem:      zeroed, part of a backing's own object
 * @ops:      that backing
 * @user:     who is charged
 * @nr_pages: how much
 *
 * Borrowed pages are charged already where they come from, but the list of them is not: it may
 * name a page as often as one likes.
 *
 * Return: 0, or -EDQUOT or -ENOMEM and nothing is charged.
 */
int tmesh_mem_init(struct tmesh_mem *mem, const struct tmesh_backing_ops *ops,
		   struct tmesh_user *user, unsigned long nr_pages)
{
	u64 charge = nr_pages;
	int rc;

	if (ops->borrowed)
		charge = DIV_ROUND_UP_ULL(charge, PAGE_SIZE / sizeof(*mem->pages));
	rc = tmesh_charge(user, TMESH_BYTES, charge << PAGE_SHIFT);
	if (rc)
		return rc;
	/* The limits may be set so high that the array itself is too long. */
	mem->pages = kvcalloc(nr_pages, sizeof(*mem->pages), TMESH_GFP);
	if (!mem->pages) {
		tmesh_uncharge(user, TMESH_BYTES, charge << PAGE_SHIFT);
		return -ENOMEM;
	}
	tmesh_user_hold(user);
	mem->user = user;
	mem->ops = ops;
	mem->nr_pages = nr_pages;
	mem->charged = charge;
	return 0;
}

/* What the core may allocate for a file: itself, dentry, inode, dma-buf. */
#define TMESH_ROOM_PAGES 8

/* How much a table of twice as many descriptors takes, where the next one needs it. */
static size_t tmesh_room_for_descriptors(struct files_struct *files)
{
	const struct fdtable *fdt;
	size_t bytes = 0;

	rcu_read_lock();
	fdt = files_fdtable(files);
	if (find_next_zero_bit(fdt->open_fds, fdt->max_fds, READ_ONCE(files->next_fd)) >=
	    fdt->max_fds)
		bytes = 2UL * fdt->max_fds * (sizeof(struct file *) + 1);
	rcu_read_unlock();
	return bytes;
}

/**
 * tmesh_room() - is there room for what the core allocates for a new file and its descriptor?
 *
 * It charges the caller's memory control group as well, but where that is full it kills. What is
 * had for a moment and given back is there a moment later, unless others of the group take it.
 *
 * Context: may sleep; before the descriptor is reserved.
 * Return: 0 or -ENOMEM.
 */
int tmesh_room(void)
{
	size_t bytes = tmesh_room_for_descriptors(current->files);
	void *table = bytes ? kvmalloc(bytes, TMESH_GFP) : NULL;
	struct page *pages[TMESH_ROOM_PAGES];
	unsigned int nr = 0;

	while (nr < TMESH_ROOM_PAGES) {
		pages[nr] = alloc_page(TMESH_GFP);
		if (!pages[nr])
			break;
		nr++;
	}
	release_pages(pages, nr);
	kvfree(table);
	return nr == TMESH_ROOM_PAGES && (table || !bytes) ? 0 : -ENOMEM;
}

/* Of a folio that is mapped so many looks in a row have to say the same. */
#define TMESH_FOLIO_LOOKS 8

/**
 * tmesh_folio_referenced() - has anybody a reference on a folio that nothing explains?
 * @folio: on which the caller has a reference
 * @known: references that are accounted for, those of page table entries apart
 *
 * An entry has its reference before it counts as a mapping and until after that, so that there are
 * never fewer references than mappings: of a folio without mappings one look tells. The two
 * numbers of a mapped one are read one after the other. A mapping that goes between the two and is
 * back when they are read again would hide a plain reference: not eight times in a row.
 *
 * Return: true if so, and also when mappings come and go too fast to tell.
 */
bool tmesh_folio_referenced(struct folio *folio, int known)
{
	int mapped = tmesh_folio_mapcount(folio), good = 0, looks, again, refs;

	for (looks = 0; looks < 4 * TMESH_FOLIO_LOOKS; looks++) {
		/* One after the other. The counts change with atomics, which order them. */
		smp_rmb();
		refs = folio_ref_count(folio);
		/* Likewise. */
		smp_rmb();
		again = tmesh_folio_mapcount(folio);
		if (again != mapped)
			good = 0;
		else if (refs != known + mapped)
			return true;
		else if (!mapped || ++good == TMESH_FOLIO_LOOKS)
			return false;
		mapped = again;
	}
	return true;
}

/**
 * tmesh_release_page() - drop a reference soon
 * @release: with nothing in it at first
 * @page:    the page; of a large folio any one
 *
 * Pages that are freed together cost less: locks are taken and control groups
 * uncharged once for all of them. A large folio with a bad page is never freed, for the core would
 * hand that page out again; a single one it puts aside itself.
 */
void tmesh_release_page(struct tmesh_release *release, struct page *page)
{
	if (PageCompound(page) && tmesh_folio_poisoned(page_folio(page)))
		return;
	release->pages[release->nr++] = page;
	if (release->nr == ARRAY_SIZE(release->pages))
		tmesh_release_end(release);
}

/**
 * tmesh_release_end() - drop all references that were not dropped yet
 * @release: with nothing in it afterwards
 */
void tmesh_release_end(struct tmesh_release *release)
{
	release_pages(release->pages, release->nr);
	release->nr = 0;
}

/**
 * tmesh_mem_fini() - undo tmesh_mem_init()
 * @mem: whose pages were given back
 */
void tmesh_mem_fini(struct tmesh_mem *mem)
{
	kvfree(mem->pages);
	tmesh_uncharge(mem->user, TMESH_BYTES, (u64)mem->charged << PAGE_SHIFT);
	tmesh_user_put(mem->user);
}

/**
 * tmesh_folio_poisoned() - has a folio a page with a memory error?
 * @folio: the folio
 *
 * The core's own mark on the folio as a whole is missing where it gave up early.
 *
 * Return: true when it has.
 */
bool tmesh_folio_poisoned(struct folio *folio)
{
	unsigned long i, nr = folio_nr_pages(folio);

	for (i = 0; i < nr; i++) {
		if (PageHWPoison(folio_page(folio, i)))
			return true;
	}
	return false;
}

/**
 * tmesh_clean_pages() - how many pages follow each other without a memory error?
 * @pages: the first of them
 * @nr:    how many to look at
 *
 * Return: @nr, or how many come before a bad one.
 */
unsigned long tmesh_clean_pages(struct page **pages, unsigned long nr)
{
	unsigned long i;

	for (i = 0; i < nr && !PageHWPoison(pages[i]); i++) {
		if (!((i + 1) % 4096))
			cond_resched();
	}
	return i;
}
