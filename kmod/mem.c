// SPDX-License-Identifier: GPL-2.0-only
/*
 * The common part of all backings: the list of pages and its charge.
 */
#include <linux/fdtable.h>
#include <linux/pagemap.h>
#include <linux/slab.h>

#include "account.h"
#include "mem.h"

/**
 * tmesh_mem_init() - charge memory and make room for its pages
 * @mem:      zeroed, part of a backing's own object
 * @ops:      operations of that backing
 * @user:     the user charged
 * @nr_pages: number of pages
 *
 * Borrowed pages are already charged to the owner of the source. Only the list of pages is charged,
 * because a view may list a page any number of times.
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
	/* Root may set the limits so high that the array itself is too long. */
	mem->pages = kvcalloc(nr_pages, sizeof(*mem->pages), TMESH_GFP);
	if (!mem->pages) {
		tmesh_uncharge(user, TMESH_BYTES, charge << PAGE_SHIFT);
		return -ENOMEM;
	}
	kref_init(&mem->ref);
	tmesh_user_hold(user);
	mem->user = user;
	mem->ops = ops;
	mem->nr_pages = nr_pages;
	mem->charged = charge;
	return 0;
}

/*
 * Return the size of a descriptor table of twice the length if the next descriptor needs one, else
 * 0.
 */
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
 * tmesh_memory_left() - check that there is memory for a new file and its descriptor
 *
 * The core charges these to the caller's memory control group, and invokes the OOM killer if that
 * is full. So allocate as much with TMESH_GFP first, and free it at once. The core then finds that
 * memory, unless another process of the group takes it.
 *
 * Context: may sleep; before the descriptor is reserved.
 * Return: 0 or -ENOMEM.
 */
int tmesh_memory_left(void)
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

/* The number of consecutive looks at a mapped folio that must agree */
#define TMESH_FOLIO_LOOKS 8

/**
 * tmesh_folio_referenced() - test whether a folio has references that are not accounted for
 * @folio: the folio; the caller has a reference
 * @known: number of references accounted for, without those of page table entries
 *
 * A page table entry takes its reference before it counts as a mapping and drops it afterwards, so
 * there are never fewer references than mappings. One look is enough for a folio without mappings.
 * For a mapped folio the two counts are read one after the other. A mapping that goes away between
 * the two reads and returns before the next look would hide a plain reference. This does not happen
 * eight times in a row.
 *
 * Return: true if so, and also if mappings change too fast to tell.
 */
bool tmesh_folio_referenced(struct folio *folio, int known)
{
	int mapped = tmesh_folio_mapcount(folio), good = 0, looks, again, refs;

	for (looks = 0; looks < 4 * TMESH_FOLIO_LOOKS; looks++) {
		/*
		 * Read the map count before the reference count. The writers' atomics order their
		 * side.
		 */
		smp_rmb();
		refs = folio_ref_count(folio);
		/* Read the reference count before the map count. */
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
 * tmesh_release_page() - add a reference to a batch of references to drop
 * @release: the batch, empty at first
 * @page:    the page; any page of a large folio
 *
 * Freeing pages together costs less, because locks are taken and control groups uncharged once for
 * all of them. A large folio with a bad page is never freed, because the core would hand that page
 * out again. The core sets a bad single page aside by itself.
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
 * tmesh_release_end() - drop the references of a batch
 * @release: the batch, empty afterwards
 */
void tmesh_release_end(struct tmesh_release *release)
{
	release_pages(release->pages, release->nr);
	release->nr = 0;
}

/**
 * tmesh_mem_fini() - undo tmesh_mem_init()
 * @mem: memory whose pages have been freed
 */
void tmesh_mem_fini(struct tmesh_mem *mem)
{
	kvfree(mem->pages);
	tmesh_uncharge(mem->user, TMESH_BYTES, (u64)mem->charged << PAGE_SHIFT);
	tmesh_user_put(mem->user);
}

/**
 * tmesh_mem_hold() - take one more reference
 * @mem: memory that a lock or a reference of the caller keeps
 *
 * Return: @mem.
 */
struct tmesh_mem *tmesh_mem_hold(struct tmesh_mem *mem)
{
	kref_get(&mem->ref);
	return mem;
}

static void tmesh_mem_release(struct kref *ref)
{
	struct tmesh_mem *mem = container_of(ref, struct tmesh_mem, ref);

	mem->ops->release(mem);
}

/**
 * tmesh_mem_put() - drop a reference
 * @mem: the memory
 *
 * Context: process context, may sleep; no lock of tmesh is held.
 */
void tmesh_mem_put(struct tmesh_mem *mem)
{
	kref_put(&mem->ref, tmesh_mem_release);
}

/**
 * tmesh_folio_poisoned() - test whether a folio has a page with a memory error
 * @folio: the folio
 *
 * Looks at each page: the core's flag for the whole folio is missing if its handler gave up early.
 *
 * Return: true if it has.
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
 * tmesh_clean_pages() - count the leading pages without a memory error
 * @pages: the first page
 * @nr:    number of pages to look at
 *
 * Return: @nr, or the number of pages before the first bad one.
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
