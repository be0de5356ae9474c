// SPDX-License-Identifier: GPL-2.0-only
/*
 * Uses of a region by devices and the kernel, and the drain, which frees the memory of a revoked
 * region while some of it is still in use.
 *
 * A use is a part of the memory that a device or the kernel has mapped through an export. A pin
 * shows as an extra reference on a folio. The drain frees all other memory of a revoked region at
 * once. tmesh_use_end() starts the drain when a use ends. The end of a pin gives no notification,
 * so the drain polls pinned folios.
 */
#include <linux/list_sort.h>
#include <linux/sched/signal.h>

#include "account.h"
#include "drain.h"
#include "main.h"
#include "mem.h"
#include "trace.h"

/* The delay between two looks at pinned memory. It doubles each time. */
#define TMESH_DRAIN_MIN msecs_to_jiffies(10)
#define TMESH_DRAIN_MAX HZ

/**
 * tmesh_use_begin() - let a device or the kernel use a part of a region
 * @region:   held by the caller until tmesh_use_end()
 * @use:      filled in
 * @first:    first page of the part
 * @nr_pages: number of pages
 *
 * Return: the memory, whose pages in this part stay until tmesh_use_end(). As a pointer: -ESTALE if
 * the region was revoked, -ENOMEM if a view has too many uses.
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

/* Take or drop the references of a use: one for each run of pages of the same folio. */
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
 * tmesh_use_end() - end a use
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

	cond_resched();
	return x->first > y->first;
}

/**
 * struct tmesh_cover - walks uses in order of their first page
 * @region: the region
 * @next:   the first use that the walk has not reached
 * @end:    the furthest end of the uses that it has reached
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

/* Test whether a use covers a page from @first up to @last. Calls must come in ascending order. */
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

/* Count the pages that uses cover, for memory that is freed as a whole. */
static unsigned long tmesh_count_uses(struct tmesh_region *region)
{
	unsigned long pinned = 0, end = 0, first;
	struct tmesh_use *use;

	lockdep_assert_held(&region->uses_lock);
	list_sort(NULL, &region->uses, tmesh_use_cmp);
	list_for_each_entry(use, &region->uses, node) {
		cond_resched();
		first = max(end, use->first);
		end = max(end, use->first + use->nr_pages);
		pinned += end - first;
	}
	return pinned;
}

/**
 * struct tmesh_sweep - a walk over a region's memory, in pieces
 * @next:       first page of the next piece. The list of pages keeps an entry there: the page, or a
 *              length.
 * @pinned:     pages found so far in folios that are in use or pinned
 * @referenced: those among them that no use covers; their release gives no notification
 */
struct tmesh_sweep {
	unsigned long next;
	unsigned long pinned;
	unsigned long referenced;
};

/*
 * Test whether a folio is pinned. Some kernels keep a reference on a page with a memory error for
 * ever. That page is lost, so after the end of its region do not charge the owner for it.
 */
static bool tmesh_folio_pinned(const struct tmesh_region *region, struct tmesh_mem *mem,
			       struct folio *folio)
{
	return mem->ops->in_use(mem, folio) && (region || !tmesh_folio_poisoned(folio));
}

/*
 * Count the pages in folios that are in use or pinned, looking at up to @most folios. With @drop,
 * drop the others. Without a region there are no uses. Return true if there is more to look at.
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
	if (region)
		tmesh_cover_begin(&cover, region);
	for (i = sweep->next; i < mem->nr_pages && most; i += nr, most--) {
		if (xa_is_value(mem->pages[i])) {
			nr = xa_to_value(mem->pages[i]);
		} else {
			cond_resched();
			folio = page_folio(mem->pages[i]);
			nr = folio_nr_pages(folio);
			if (region && tmesh_cover_reaches(&cover, i, i + nr)) {
				sweep->pinned += nr;
				continue;
			}
			if (tmesh_folio_pinned(region, mem, folio)) {
				sweep->pinned += nr;
				sweep->referenced += nr;
				continue;
			}
			if (!drop)
				continue;
			tmesh_release_page(&release, &folio->page);
			dropped += nr;
			/* Keep the length: another sweep may continue at this entry. */
			mem->pages[i] = xa_mk_value(nr);
		}
		/*
		 * Merge adjacent gaps into one length, so that the next sweep skips them in one
		 * step.
		 */
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
 * Schedule the next look at folios that are pinned. Folios that only uses cover need none:
 * tmesh_use_end() starts the work.
 */
static void tmesh_drain_later(struct tmesh_region *region, const struct tmesh_sweep *sweep,
			      bool again)
{
	lockdep_assert_held(&region->uses_lock);
	if (!sweep->referenced)
		return;
	if (again) {
		region->drain_delay = min(region->drain_delay * 2, 0UL + TMESH_DRAIN_MAX);
		/* Do not delay the work if the end of a use has just queued it. */
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
			/* Leave the rest to the work. */
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
				WRITE_ONCE(region->gone, NULL);
			}
		}
		mutex_unlock(&region->uses_lock);
		cond_resched();
	} while (more);
	if (!mem)
		return;
	tmesh_mem_put(mem);
	/* Pairs with tmesh_drained(): the waiter sees the memory freed. */
	smp_store_release(&region->freeing, false);
	tmesh_wake(&region->wait, TMESH_WAKE_NO_POLL);
}

/**
 * tmesh_drain() - free the memory of a revoked region that is neither in use nor pinned
 * @region: revoked
 *
 * The work looks at the rest again later.
 *
 * Context: may sleep for long; neither the region's lock nor claims_lock is held.
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

/* Give each use references on its folios. The region that lends the pages counts them as pins. */
static void tmesh_uses_own(struct tmesh_region *region)
{
	struct tmesh_use *use;

	list_for_each_entry(use, &region->uses, node)
		tmesh_use_own(region, use, true);
}

/**
 * tmesh_drain_begin() - hand a revoked region's memory over to the drain
 * @region: revoked, so that no use begins
 * @mem:    its memory, not mapped any more; the drain takes the reference
 *
 * The revoker calls tmesh_drain() after it has dropped claims_lock: freeing much memory takes long,
 * and the former holders must not wait for it.
 *
 * A view that is revoked with its source has no such caller. Releasing its memory takes the
 * claims_lock of each source, so the work does that. From now on its uses have references on their
 * pages.
 */
void tmesh_drain_begin(struct tmesh_region *region, struct tmesh_mem *mem)
{
	mutex_lock(&region->uses_lock);
	WRITE_ONCE(region->gone, mem);
	/* Set the delay now: the end of a use may start the work at once. */
	region->drain_delay = TMESH_DRAIN_MIN;
	if (mem->ops->borrowed) {
		tmesh_uses_own(region);
		mod_delayed_work(tmesh_wq, &region->drain, 0);
	}
	mutex_unlock(&region->uses_lock);
}

static bool tmesh_drained(const struct tmesh_region *region)
{
	/* Pairs with the release in tmesh_drain_step(). */
	return !smp_load_acquire(&region->freeing);
}

/**
 * tmesh_drain_wait() - wait until the memory of a revoked region is free
 * @region:     revoked
 * @timeout_ns: the longest time to wait
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
 * tmesh_pinned_bytes() - count the memory of a region that is in use or pinned
 * @region: the region
 * @bytes:  set to the number of bytes, in whole folios
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
		/*
		 * A revocation may begin meanwhile, but the memory stays while uses_lock is held.
		 */
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
 * tmesh_drain_look() - test whether memory of a region without claims is in use, pinned or mapped
 * @region: the region; the caller has a reference
 *
 * Context: may be memory reclaim, so locks are only tried and nothing is allocated.
 * Return: 1 if so, if a lock is contended, or if a hold is pending; else 0; -EINTR if the caller
 * has a fatal signal.
 */
int tmesh_drain_look(struct tmesh_region *region)
{
	struct tmesh_sweep sweep = { };
	struct tmesh_mem *mem;
	bool more, mapped;

	if (delayed_work_pending(&region->hold))
		return 1;
	do {
		/* The process that reclaims memory may have been killed. */
		if (fatal_signal_pending(current))
			return -EINTR;
		if (!mutex_trylock(&region->uses_lock))
			return 1;
		/*
		 * A revocation may take the memory off the region, but frees nothing without
		 * uses_lock.
		 */
		mem = READ_ONCE(region->mem);
		mapped = mem && mem->ops->mapped && mem->ops->mapped(mem);
		more = mem && !mapped && tmesh_sweep(region, mem, &sweep, false, TMESH_PIECE);
		mutex_unlock(&region->uses_lock);
		cond_resched();
	} while (more && !sweep.pinned);
	return mapped || sweep.pinned;
}

/**
 * tmesh_drain_unheld() - free the unpinned memory of a region without claims
 * @region: the region, which refuses new claims; the caller has a reference
 *
 * Only memory of TMESH_BACKING_PAGES is freed here; the end of the region frees the rest.
 *
 * Context: as tmesh_drain_look().
 * Return: number of pages freed.
 */
unsigned long tmesh_drain_unheld(struct tmesh_region *region)
{
	struct tmesh_sweep sweep = { };
	unsigned long charged, dropped = 0;
	struct tmesh_mem *mem;
	bool more;

	if (region->backing != TMESH_BACKING_PAGES)
		return 0;
	do {
		if (fatal_signal_pending(current) || !mutex_trylock(&region->uses_lock))
			break;
		/* As in tmesh_drain_look(). */
		mem = READ_ONCE(region->mem);
		more = false;
		if (mem) {
			charged = mem->charged;
			more = tmesh_sweep(region, mem, &sweep, true, TMESH_PIECE);
			dropped += charged - mem->charged;
		}
		mutex_unlock(&region->uses_lock);
		cond_resched();
	} while (more);
	return dropped;
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
 * tmesh_drain_init_view() - prepare a view, which borrows its pages
 * @region: new, and not linked to any source
 *
 * The work of a view may drop the last reference to a source, which waits for the source's own
 * work. This second call site gives lockdep a different class for it.
 */
void tmesh_drain_init_view(struct tmesh_region *region)
{
	INIT_DELAYED_WORK(&region->drain, tmesh_drain_work);
}

static LIST_HEAD(orphans);
static DEFINE_SPINLOCK(orphans_lock);

/* Free the pages that are not pinned any more. Return true if some still are. */
static bool tmesh_orphan_sweep(struct tmesh_mem *mem)
{
	struct tmesh_sweep sweep = { };

	while (tmesh_sweep(NULL, mem, &sweep, true, TMESH_PIECE))
		cond_resched();
	return sweep.pinned;
}

static void tmesh_orphan_work(struct work_struct *work)
{
	struct tmesh_mem *mem = container_of(to_delayed_work(work), struct tmesh_mem, orphan);
	bool pinned = tmesh_orphan_sweep(mem), ours;

	spin_lock(&orphans_lock);
	ours = !list_empty(&mem->orphan_node);
	if (ours && pinned) {
		mem->orphan_delay = min(mem->orphan_delay * 2, 0UL + TMESH_DRAIN_MAX);
		queue_delayed_work(tmesh_orphan_wq, &mem->orphan, mem->orphan_delay);
		ours = false;
	} else if (ours) {
		list_del_init(&mem->orphan_node);
	}
	spin_unlock(&orphans_lock);
	if (ours)
		tmesh_mem_put(mem);
}

/*
 * Release the memory of a region that has ended. The owner stays charged for pinned pages until
 * they are free. Otherwise limits would mean nothing: one page in a pipe pins a folio of 2 MiB.
 */
static void tmesh_orphan(struct tmesh_mem *mem)
{
	if (mem->ops->backing != TMESH_BACKING_PAGES || !tmesh_orphan_sweep(mem)) {
		tmesh_mem_put(mem);
		return;
	}
	INIT_DELAYED_WORK(&mem->orphan, tmesh_orphan_work);
	mem->orphan_delay = TMESH_DRAIN_MIN;
	spin_lock(&orphans_lock);
	list_add(&mem->orphan_node, &orphans);
	queue_delayed_work(tmesh_orphan_wq, &mem->orphan, mem->orphan_delay);
	spin_unlock(&orphans_lock);
}

/**
 * tmesh_drain_exit() - give up the pinned pages of regions that have ended
 *
 * The pages are freed when their pins end.
 *
 * Context: process context, may sleep; no region ends any more.
 */
void tmesh_drain_exit(void)
{
	struct tmesh_mem *mem;

	spin_lock(&orphans_lock);
	while ((mem = list_first_entry_or_null(&orphans, struct tmesh_mem, orphan_node))) {
		list_del_init(&mem->orphan_node);
		spin_unlock(&orphans_lock);
		/* Off the list, its reference belongs to this function. */
		cancel_delayed_work_sync(&mem->orphan);
		tmesh_mem_put(mem);
		spin_lock(&orphans_lock);
	}
	spin_unlock(&orphans_lock);
}

/**
 * tmesh_drain_end() - release the memory of a region that ends
 * @region: closed, without claims and therefore without uses
 *
 * Pinned pages are freed and uncharged when their pins end. Pages with memory errors are uncharged
 * at once.
 */
void tmesh_drain_end(struct tmesh_region *region)
{
	struct tmesh_mem *mem;

	cancel_delayed_work_sync(&region->drain);
	/*
	 * Wait for a look at the pages that is under way. No new one begins, because the region is
	 * closed.
	 */
	mutex_lock(&region->uses_lock);
	mutex_unlock(&region->uses_lock);
	mem = region->mem ? region->mem : region->gone;
	if (mem)
		tmesh_orphan(mem);
}
