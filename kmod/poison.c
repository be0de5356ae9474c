// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages with an uncorrectable memory error.
 *
 * The core marks such a page and does not notify tmesh. It can neither unmap the page nor split its
 * folio, because our folios belong to no address_space. They cannot: several inodes map a folio,
 * and the list of pages relies on its size. So code that maps pages or passes them to a device
 * checks them first. When it finds a bad page, the work unmaps all mappings of the region.
 */
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/xarray.h>

#include "claim.h"
#include "map.h"
#include "mem.h"
#include "poison.h"
#include "region.h"

/**
 * struct tmesh_poison_look - a look at all pages of a region, in pieces
 * @next: first page of the next piece: the first page of a folio, or an entry that holds a length
 * @nr:   number of bad pages so far
 */
struct tmesh_poison_look {
	unsigned long next;
	unsigned long nr;
};

/*
 * Count the bad pages of a piece. Return true if there is more to look at. A region that is revoked
 * or ending has no mappings, so stop there.
 *
 * A folio is looked at as a whole: if it is dropped, only its first entry shows that. Borrowed
 * pages are not dropped, and a view may show one folio any number of times.
 */
static bool tmesh_poison_piece(struct tmesh_region *region, struct tmesh_poison_look *look)
{
	unsigned long i = look->next, end = i + TMESH_PIECE;
	const struct tmesh_mem *mem;
	struct folio *folio;

	lockdep_assert_held(&region->uses_lock);
	/* A revocation may begin meanwhile, but the memory stays while uses_lock is held. */
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
			 page_folio(mem->pages[i]) == folio && (i < end || !mem->ops->borrowed));
	}
	look->next = i;
	return i < mem->nr_pages;
}

static void tmesh_poison_zap(struct tmesh_claim *claim)
{
	if (claim->ops->poisoned)
		claim->ops->poisoned(claim);
	else
		tmesh_zap(claim);
}

/* Return the memory with a reference if it has more bad pages than were known, else NULL. */
static struct tmesh_mem *tmesh_poison_begin(struct tmesh_region *region, unsigned long nr,
					    unsigned long *claims)
{
	struct tmesh_mem *mem = NULL;

	lockdep_assert_held(&region->claims_lock);
	if (region->state & TMESH_STATE_REVOKED)
		return NULL;
	mutex_lock(&region->uses_lock);
	if (nr > region->poisoned) {
		region->poisoned = nr;
		mem = tmesh_mem_hold(region->mem);
	}
	mutex_unlock(&region->uses_lock);
	if (!mem)
		return NULL;
	/* Wait for faults under way that did not see the mark. Later ones see it. */
	down_write(&region->lock);
	up_write(&region->lock);
	*claims = tmesh_claims_count(region);
	return mem;
}

/*
 * Unmap a region if more bad pages were found than were known, then notify its holders by EPOLLPRI.
 * A touch after that maps good pages anew and fails for bad ones.
 */
static void tmesh_poison_tell(struct tmesh_region *region, unsigned long nr)
{
	struct tmesh_mem *mem;
	unsigned long claims;

	lockdep_assert_held(&region->cut_lock);
	mutex_lock(&region->claims_lock);
	mem = tmesh_poison_begin(region, nr, &claims);
	mutex_unlock(&region->claims_lock);
	if (!mem)
		return;
	if (mem->ops->poisoned)
		mem->ops->poisoned(mem);
	tmesh_flush_faults(region, mem);
	tmesh_claims_each(region, NULL, claims, tmesh_poison_zap);
	tmesh_mem_put(mem);
	down_write(&region->lock);
	WRITE_ONCE(region->state, region->state | TMESH_STATE_POISONED);
	up_write(&region->lock);
	tmesh_wake(&region->wait, EPOLLPRI);
}

/**
 * tmesh_poison_look() - look for bad pages of a region
 * @region: the region
 *
 * Looks at every page, a piece at a time. If there are new bad pages, unmaps the region; new faults
 * skip the bad pages. The sources of a view, and the views of a source, are looked at later by
 * their own works.
 *
 * Context: may sleep for long; takes cut_lock.
 * Return: 0; -EINTR for a fatal signal.
 */
int tmesh_poison_look(struct tmesh_region *region)
{
	struct tmesh_poison_look look = { };
	bool more;
	int rc;

	do {
		if (fatal_signal_pending(current) || mutex_lock_killable(&region->uses_lock))
			return -EINTR;
		more = tmesh_poison_piece(region, &look);
		mutex_unlock(&region->uses_lock);
		cond_resched();
	} while (more);
	if (!look.nr)
		return 0;
	/* The work has no reference, and the last claim may end while it runs. */
	if (!kref_get_unless_zero(&region->ref))
		return 0;
	rc = mutex_lock_killable(&region->cut_lock);
	if (!rc) {
		tmesh_poison_tell(region, look.nr);
		mutex_unlock(&region->cut_lock);
	}
	tmesh_region_put_later(region);
	return rc;
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
 * tmesh_poison_check() - check a part of a region for bad pages
 * @region:   the region
 * @mem:      its memory; the caller has a use
 * @first:    first page
 * @nr_pages: number of pages
 *
 * Return: 0, or -EHWPOISON if one of the pages is bad.
 */
int tmesh_poison_check(struct tmesh_region *region, struct tmesh_mem *mem, unsigned long first,
		       unsigned long nr_pages)
{
	if (tmesh_clean_pages(mem->pages + first, nr_pages) == nr_pages)
		return 0;
	tmesh_poison_found(region);
	return -EHWPOISON;
}
