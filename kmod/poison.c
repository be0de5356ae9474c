// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages with an uncorrectable memory error.
 *
 * The core marks such a page and tells us nothing. It can neither unmap it nor split its folio,
 * since our folios belong to no mapping: one folio is mapped by way of many inodes, and the list of
 * pages relies on its size. So whoever gives pages out looks at them first, and the first to come
 * upon a bad one has everything unmapped that shows it.
 */
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/xarray.h>

#include "map.h"
#include "mem.h"
#include "poison.h"

/**
 * struct tmesh_poison_look - a look at all pages of a region, in pieces
 * @next: page that the next piece begins with: the first of a folio, or its length in its place
 * @nr:   bad ones so far
 */
struct tmesh_poison_look {
	unsigned long next;
	unsigned long nr;
};

/* Is there more? Of a region that was taken back, or is about to go, nothing is mapped. */
static bool tmesh_poison_piece(struct tmesh_region *region, struct tmesh_poison_look *look)
{
	unsigned long i = look->next, end = i + TMESH_PIECE;
	const struct tmesh_mem *mem;
	struct folio *folio;

	lockdep_assert_held(&region->uses_lock);
	/* A revocation may begin meanwhile; the memory stays until our lock is free. */
	down_read(&region->lock);
	mem = region->state & TMESH_STATE_REVOKED ? NULL : region->mem;
	up_read(&region->lock);
	if (!mem)
		return false;
	while (i < mem->nr_pages && i < end) {
		if (xa_is_value(mem->pages[i])) {
			i += xa_to_value(mem->pages[i]);
			continue;
		}
		folio = page_folio(mem->pages[i]);
		do {
			look->nr += PageHWPoison(mem->pages[i]);
		} while (++i < mem->nr_pages && !xa_is_value(mem->pages[i]) &&
			 page_folio(mem->pages[i]) == folio);
	}
	look->next = i;
	return i < mem->nr_pages;
}

/* Faults may be under way that saw no mark. None comes after them that does not see it. */
static void tmesh_poison_unmap(struct tmesh_region *region)
{
	struct tmesh_claim *claim;

	/* Without a claim the pages may go at any moment. With one there is no revocation now. */
	if (list_empty(&region->claims))
		return;
	down_write(&region->lock);
	up_write(&region->lock);
	tmesh_flush_faults(region->mem);
	list_for_each_entry(claim, &region->claims, node) {
		if (claim->ops->poisoned)
			claim->ops->poisoned(claim);
		else
			tmesh_zap(claim);
	}
}

/*
 * Unmaps a region where more bad pages were found than were known, and tells its holders. They are
 * told when it is done: what they touch then is mapped anew, or refused.
 */
static void tmesh_poison_tell(struct tmesh_region *region, unsigned long nr)
{
	bool more;

	lockdep_assert_held(&region->claims_lock);
	if (region->state & TMESH_STATE_REVOKED)
		return;
	mutex_lock(&region->uses_lock);
	more = nr > region->poisoned;
	if (more)
		region->poisoned = nr;
	if (more && region->mem->ops->poisoned)
		region->mem->ops->poisoned(region->mem);
	mutex_unlock(&region->uses_lock);
	if (!more)
		return;
	tmesh_poison_unmap(region);
	down_write(&region->lock);
	WRITE_ONCE(region->state, region->state | TMESH_STATE_POISONED);
	up_write(&region->lock);
	wake_up_all(&region->wait);
}

/**
 * tmesh_poison_look() - look for bad pages of a region
 * @region: the region
 *
 * What is mapped is unmapped once for each; what is mapped anew is without them. Looks at every
 * page, a piece at a time. The sources of a view look for themselves, later, and so do the views
 * of a source.
 *
 * Context: may sleep, and long; takes claims_lock.
 * Return: 0; -EINTR for a fatal signal.
 */
int tmesh_poison_look(struct tmesh_region *region)
{
	struct tmesh_poison_look look = { };
	bool more;

	do {
		if (fatal_signal_pending(current) || mutex_lock_killable(&region->uses_lock))
			return -EINTR;
		more = tmesh_poison_piece(region, &look);
		mutex_unlock(&region->uses_lock);
		cond_resched();
	} while (more);
	if (!look.nr)
		return 0;
	if (mutex_lock_killable(&region->claims_lock))
		return -EINTR;
	tmesh_poison_tell(region, look.nr);
	mutex_unlock(&region->claims_lock);
	return 0;
}

static void tmesh_poison_work(struct work_struct *work)
{
	tmesh_poison_look(container_of(work, struct tmesh_region, poison));
}

/**
 * tmesh_poison_init() - prepare a new region
 * @region: the region
 */
void tmesh_poison_init(struct tmesh_region *region)
{
	INIT_WORK(&region->poison, tmesh_poison_work);
}

/**
 * tmesh_poison_end() - nobody looks any more
 * @region: without references, and unlinked from those whose pages it shows
 */
void tmesh_poison_end(struct tmesh_region *region)
{
	cancel_work_sync(&region->poison);
}

/**
 * tmesh_poison_check() - may a device or the kernel have a part of a region?
 * @region:   the region
 * @mem:      its memory, of which the caller has a use
 * @first:    first page
 * @nr_pages: how many
 *
 * Return: 0, or -EHWPOISON where a page of it is bad.
 */
int tmesh_poison_check(struct tmesh_region *region, struct tmesh_mem *mem, unsigned long first,
		       unsigned long nr_pages)
{
	if (tmesh_clean_pages(mem->pages + first, nr_pages) == nr_pages)
		return 0;
	tmesh_poison_found(region);
	return -EHWPOISON;
}
