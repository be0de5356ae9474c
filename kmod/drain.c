// SPDX-License-Identifier: GPL-2.0-only
/*
 * What devices and the kernel have of a region, and how a revoked region's memory is given
 * back while they still have some of it.
 *
 * A use is a part of the memory that a device or the kernel has mapped through an export. What
 * others have pinned shows in the references of a folio. The rest of a revoked region is freed
 * at once. The end of a use is told; where a pin holds memory somebody has to look again and again,
 * since nobody tells when it ends.
 */
#include <linux/list_sort.h>
#include <linux/sched/signal.h>

#include "account.h"
#include "drain.h"
#include "main.h"
#include "mem.h"
#include "trace.h"

/* Between two looks at memory that somebody has pinned: twice as long each time. */
#define TMESH_DRAIN_MIN msecs_to_jiffies(10)
#define TMESH_DRAIN_MAX HZ

/*
 * References that the uses of a view may come to need of a folio. A source has no more than
 * TMESH_GATHER_VIEWS of them, so that nobody can make its count wrap.
 */
#define TMESH_VIEW_REFS (2UL * TMESH_GATHER_MAX)

/**
 * tmesh_use_begin() - let a device or the kernel have a part of a region
 * @region:   held by the caller until tmesh_use_end()
 * @use:      filled in
 * @first:    first page of the part
 * @nr_pages: how many
 *
 * Return: the memory, whose pages in this part stay until tmesh_use_end(); as a pointer -ESTALE
 * when the region was revoked, -ENOMEM when too much of a view is mapped too often.
 */
struct tmesh_mem *tmesh_use_begin(struct tmesh_region *region, struct tmesh_use *use,
				  unsigned long first, unsigned long nr_pages)
{
	struct tmesh_mem *mem;

	use->first = first;
	use->nr_pages = nr_pages;
	use->owns = false;
	mutex_lock(&region->uses_lock);
	down_read(&region->lock);
	mem = region->mem;
	up_read(&region->lock);
	if (!mem) {
		mem = ERR_PTR(-ESTALE);
	} else if (mem->ops->borrowed && region->nr_uses >= TMESH_VIEW_REFS / mem->named) {
		mem = ERR_PTR(-ENOMEM);
	} else {
		list_add(&use->node, &region->uses);
		region->nr_uses++;
	}
	mutex_unlock(&region->uses_lock);
	return mem;
}

/* One reference for all pages of a folio that follow each other. */
static void tmesh_use_own(struct tmesh_region *region, struct tmesh_use *use, bool own)
{
	struct page **page = region->gone->pages + use->first, **end = page + use->nr_pages;
	struct folio *folio;

	lockdep_assert_held(&region->uses_lock);
	while (page < end) {
		folio = page_folio(*page);
		for (page++; page < end && page_folio(*page) == folio; page++)
			;
		if (own)
			folio_get(folio);
		else
			folio_put(folio);
		cond_resched();
	}
	use->owns = own;
}

/**
 * tmesh_use_end() - it is mapped no more
 * @region: the region
 * @use:    begun
 */
void tmesh_use_end(struct tmesh_region *region, struct tmesh_use *use)
{
	mutex_lock(&region->uses_lock);
	list_del(&use->node);
	region->nr_uses--;
	if (use->owns)
		tmesh_use_own(region, use, false);
	if (region->gone)
		mod_delayed_work(tmesh_wq, &region->drain, 0);
	mutex_unlock(&region->uses_lock);
}

static int tmesh_use_cmp(void *priv, const struct list_head *a, const struct list_head *b)
{
	const struct tmesh_use *x = list_entry(a, struct tmesh_use, node);
	const struct tmesh_use *y = list_entry(b, struct tmesh_use, node);

	return x->first > y->first;
}

/**
 * struct tmesh_cover - walks uses in order of their first page
 * @region: whose
 * @next:   the first use that was not reached yet
 * @end:    where the furthest of those that were reached ends
 */
struct tmesh_cover {
	struct tmesh_region *region;
	struct tmesh_use *next;
	unsigned long end;
};

static void tmesh_cover_begin(struct tmesh_cover *cover, struct tmesh_region *region)
{
	lockdep_assert_held(&region->uses_lock);
	list_sort(NULL, &region->uses, tmesh_use_cmp);
	cover->region = region;
	cover->next = list_first_entry(&region->uses, struct tmesh_use, node);
	cover->end = 0;
}

/* Does a use reach into the pages from @first up to @last? To be asked in ascending order. */
static bool tmesh_cover_reaches(struct tmesh_cover *cover, unsigned long first,
				unsigned long last)
{
	while (!list_entry_is_head(cover->next, &cover->region->uses, node) &&
	       cover->next->first < last) {
		cover->end = max(cover->end, cover->next->first + cover->next->nr_pages);
		cover->next = list_next_entry(cover->next, node);
	}
	return first < cover->end;
}

/* Memory that is given back as a whole: what counts is what uses cover. */
static unsigned long tmesh_count_uses(struct tmesh_region *region)
{
	unsigned long pinned = 0, end = 0, first;
	struct tmesh_use *use;

	lockdep_assert_held(&region->uses_lock);
	list_sort(NULL, &region->uses, tmesh_use_cmp);
	list_for_each_entry(use, &region->uses, node) {
		first = max(end, use->first);
		end = max(end, use->first + use->nr_pages);
		pinned += end - first;
	}
	return pinned;
}

/**
 * struct tmesh_sweep - a walk over a region's memory, in pieces
 * @next:       page that the next piece begins with; each page where one ended stays in the list
 *              of pages, or its length in its place
 * @pinned:     pages in folios that somebody has, as far as it came
 * @referenced: those of them that no use covers, so that nobody tells when they are let go
 */
struct tmesh_sweep {
	unsigned long next;
	unsigned long pinned;
	unsigned long referenced;
};

/*
 * Counts pages in folios that somebody has, in at most so many folios; drops the others when told
 * to. Is there more?
 */
static bool tmesh_sweep(struct tmesh_region *region, struct tmesh_mem *mem,
			struct tmesh_sweep *sweep, bool drop, unsigned long most)
{
	unsigned long dropped = 0, gap = 0, gap_end = 0, i, nr;
	struct tmesh_release release = { };
	struct tmesh_cover cover;
	struct folio *folio;

	if (!mem->ops->in_use) {
		sweep->pinned = tmesh_count_uses(region);
		return false;
	}
	tmesh_cover_begin(&cover, region);
	for (i = sweep->next; i < mem->nr_pages && most; i += nr, most--) {
		if (xa_is_value(mem->pages[i])) {
			nr = xa_to_value(mem->pages[i]);
		} else {
			cond_resched();
			folio = page_folio(mem->pages[i]);
			nr = folio_nr_pages(folio);
			if (tmesh_cover_reaches(&cover, i, i + nr)) {
				sweep->pinned += nr;
				continue;
			}
			if (mem->ops->in_use(mem, folio)) {
				sweep->pinned += nr;
				sweep->referenced += nr;
				continue;
			}
			if (!drop)
				continue;
			tmesh_release_page(&release, &folio->page);
			dropped += nr;
			/* Another sweep may have stopped here. */
			mem->pages[i] = xa_mk_value(nr);
		}
		/* One length for all that follow each other: the next look passes by at once. */
		if (gap_end != i)
			gap = i;
		gap_end = i + nr;
		mem->pages[gap] = xa_mk_value(gap_end - gap);
	}
	tmesh_release_end(&release);
	mem->charged -= dropped;
	tmesh_uncharge(mem->user, TMESH_BYTES, (u64)dropped << PAGE_SHIFT);
	sweep->next = i;
	return i < mem->nr_pages;
}

/*
 * All was looked at. Of what only uses cover the end of the last one tells, which starts the work;
 * for the rest it looks again.
 */
static void tmesh_drain_later(struct tmesh_region *region, const struct tmesh_sweep *sweep,
			      bool again)
{
	lockdep_assert_held(&region->uses_lock);
	if (!sweep->referenced)
		return;
	if (again) {
		region->drain_delay = min(region->drain_delay * 2, 0UL + TMESH_DRAIN_MAX);
		/* Not later than the end of a use, between two pieces, has asked for. */
		queue_delayed_work(tmesh_wq, &region->drain, region->drain_delay);
	} else {
		region->drain_delay = TMESH_DRAIN_MIN;
		mod_delayed_work(tmesh_wq, &region->drain, region->drain_delay);
	}
}

static void tmesh_drain_step(struct tmesh_region *region, bool again)
{
	struct tmesh_sweep sweep = { };
	struct tmesh_mem *mem;
	bool more;

	do {
		mutex_lock(&region->uses_lock);
		mem = region->gone;
		more = mem && tmesh_sweep(region, mem, &sweep, true, TMESH_PIECE);
		if (more && fatal_signal_pending(current)) {
			/* The work does the rest. */
			mod_delayed_work(tmesh_wq, &region->drain, 0);
			more = false;
			mem = NULL;
		} else if (mem && !more) {
			WRITE_ONCE(region->pinned, sweep.pinned);
			trace_tmesh_drain(region->id, (u64)region->pinned << PAGE_SHIFT);
			if (region->pinned) {
				tmesh_drain_later(region, &sweep, again);
				mem = NULL;
			} else {
				WRITE_ONCE(region->freeing, true);
				/* For tmesh_drain_wait(), which looks at both. */
				smp_store_release(&region->gone, NULL);
			}
		}
		mutex_unlock(&region->uses_lock);
		cond_resched();
	} while (more);
	if (!mem)
		return;
	mem->ops->release(mem);
	WRITE_ONCE(region->freeing, false);
	wake_up_all(&region->wait);
}

/**
 * tmesh_drain() - give back what nobody has any more of a revoked region's memory
 * @region: revoked
 *
 * What is left is looked at again later, without anybody's help.
 *
 * Context: may sleep, and long; neither the region's lock nor the claims_lock may be held.
 */
void tmesh_drain(struct tmesh_region *region)
{
	lockdep_assert_not_held(&region->claims_lock);
	tmesh_drain_step(region, false);
}

static void tmesh_drain_work(struct work_struct *work)
{
	struct tmesh_region *region = container_of(to_delayed_work(work), struct tmesh_region,
						   drain);

	tmesh_drain_step(region, true);
}

/* The region that lends the pages counts these references as it counts any pin. */
static void tmesh_uses_own(struct tmesh_region *region)
{
	struct tmesh_use *use;

	list_for_each_entry(use, &region->uses, node)
		tmesh_use_own(region, use, true);
}

/**
 * tmesh_drain_begin() - hand a revoked region's memory over to the drain
 * @region: revoked, so that no use begins
 * @mem:    what it had; not mapped any more, and the drain's from here on
 *
 * The revoker calls tmesh_drain() once it has let go of the claims_lock: giving much memory back
 * takes long, and those whom the region was taken from shall not wait for it. Nobody calls it for
 * a view that goes with its source, and giving back what it borrowed takes the claims_lock of
 * each lender, so that is left to the work; its uses keep the pages by themselves from here on.
 */
void tmesh_drain_begin(struct tmesh_region *region, struct tmesh_mem *mem)
{
	mutex_lock(&region->uses_lock);
	WRITE_ONCE(region->gone, mem);
	/* The end of a use may start the work before anybody else looks. */
	region->drain_delay = TMESH_DRAIN_MIN;
	if (mem->ops->borrowed) {
		tmesh_uses_own(region);
		mod_delayed_work(tmesh_wq, &region->drain, 0);
	}
	mutex_unlock(&region->uses_lock);
}

static bool tmesh_drained(const struct tmesh_region *region)
{
	/* Pairs with tmesh_drain_step(). */
	return !smp_load_acquire(&region->gone) && !READ_ONCE(region->freeing);
}

/**
 * tmesh_drain_wait() - wait until the memory of a revoked region is free
 * @region:     revoked
 * @timeout_ns: how long
 *
 * Return: 0, -ETIMEDOUT, or -EINTR.
 */
int tmesh_drain_wait(struct tmesh_region *region, u64 timeout_ns)
{
	int rc;

	tmesh_drain(region);
	rc = wait_event_interruptible_hrtimeout(region->wait, tmesh_drained(region),
						min_t(u64, timeout_ns, KTIME_MAX));
	if (!rc)
		return 0;
	return rc == -ETIME ? -ETIMEDOUT : -EINTR;
}

/**
 * tmesh_pinned_bytes() - how much of a region's memory devices or the kernel have
 * @region: the region
 * @bytes:  told, in whole folios
 *
 * Looks at every folio, a piece at a time.
 *
 * Return: 0; -EINTR for a fatal signal.
 */
int tmesh_pinned_bytes(struct tmesh_region *region, u64 *bytes)
{
	struct tmesh_sweep sweep = { };
	struct tmesh_mem *mem;
	bool more;

	do {
		if (fatal_signal_pending(current) || mutex_lock_killable(&region->uses_lock))
			return -EINTR;
		/* A revocation may begin meanwhile; the memory stays until our lock is free. */
		down_read(&region->lock);
		mem = region->mem ? region->mem : region->gone;
		up_read(&region->lock);
		more = mem && tmesh_sweep(region, mem, &sweep, false, TMESH_PIECE);
		mutex_unlock(&region->uses_lock);
		cond_resched();
	} while (more);
	*bytes = mem ? (u64)sweep.pinned << PAGE_SHIFT : 0;
	return 0;
}

/**
 * tmesh_drain_unheld() - look at the memory of a region that nobody holds, or give it back
 * @region: without claims, and refused new ones where @drop is set; the caller has a reference
 * @drop:   give back what nobody has pinned
 *
 * What has pages is given back here. Other memory is left to the region's end.
 *
 * Context: may be memory reclaim: locks are only tried, and nothing is allocated.
 * Return: with @drop the pages that were freed. Else those that somebody has pinned, in the first
 * piece with any; at least one where a lock is taken, the region lingers, or the caller is to end.
 */
unsigned long tmesh_drain_unheld(struct tmesh_region *region, bool drop)
{
	struct tmesh_sweep sweep = { };
	unsigned long charged, dropped = 0;
	struct tmesh_mem *mem;
	bool more = false;

	if (drop && region->backing != TMESH_BACKING_PAGES)
		return 0;
	if (!drop && delayed_work_pending(&region->linger))
		return 1;
	do {
		/* Whoever needs memory may be the one that is to end. */
		if (fatal_signal_pending(current) || !mutex_trylock(&region->uses_lock))
			return drop ? dropped : 1;
		/* Without a claim nobody can revoke it. */
		mem = READ_ONCE(region->mem);
		if (mem) {
			charged = mem->charged;
			more = tmesh_sweep(region, mem, &sweep, drop, TMESH_PIECE);
			dropped += charged - mem->charged;
		}
		mutex_unlock(&region->uses_lock);
		cond_resched();
	} while (mem && more && (drop || !sweep.pinned));
	return drop ? dropped : sweep.pinned;
}

/**
 * tmesh_drain_init() - prepare a new region
 * @region: the region
 */
void tmesh_drain_init(struct tmesh_region *region)
{
	mutex_init(&region->uses_lock);
	INIT_LIST_HEAD(&region->uses);
	INIT_DELAYED_WORK(&region->drain, tmesh_drain_work);
}

/**
 * tmesh_drain_init_view() - prepare a region that will borrow its pages
 * @region: new, and not known to any lender
 *
 * Its work may drop the last reference to a lender, which waits for that one's own work. To
 * lockdep the two are different here.
 */
void tmesh_drain_init_view(struct tmesh_region *region)
{
	INIT_DELAYED_WORK(&region->drain, tmesh_drain_work);
}

/**
 * tmesh_drain_end() - give back what there is of a region's memory
 * @region: closed, without holders, and so without uses
 *
 * Pages that are pinned still belong to who pinned them from here on.
 */
void tmesh_drain_end(struct tmesh_region *region)
{
	struct tmesh_mem *mem;

	cancel_delayed_work_sync(&region->drain);
	/* Who looks at pages has this lock; nobody begins to, since the region is closed. */
	mutex_lock(&region->uses_lock);
	mutex_unlock(&region->uses_lock);
	mem = region->mem ? region->mem : region->gone;
	if (mem)
		mem->ops->release(mem);
}
