// SPDX-License-Identifier: GPL-2.0-only
/*
 * Kept memory that nobody holds goes back when the machine needs it.
 *
 * The kernel asks for a few pages at a time and means everybody's share. A bundle goes as a
 * whole, so what was asked for adds up until it is worth one. Then the kernel is to look whether it
 * needs more, before the next one goes.
 */
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/shrinker.h>

#include "account.h"
#include "drain.h"
#include "keep.h"
#include "reclaim.h"

static struct shrinker *shrinker;

/* Pages that were asked for and not given yet; guarded by tmesh_kept_lock. */
static unsigned long wanted;

static unsigned long tmesh_kept_count(struct shrinker *s, struct shrink_control *sc)
{
	unsigned long pages = READ_ONCE(tmesh_kept_idle_pages);

	return pages ? pages : SHRINK_EMPTY;
}

/* The one that was used longest ago, if enough is wanted for it; held while it is looked at. */
static struct tmesh_bundle *tmesh_reclaim_begin(void)
{
	struct tmesh_bundle *bundle;

	lockdep_assert_held(&tmesh_kept_lock);
	bundle = list_first_entry_or_null(&tmesh_kept_idle, struct tmesh_bundle, idle);
	if (!bundle || bundle->nr_pages > wanted)
		return NULL;
	wanted -= bundle->nr_pages;
	kref_get(&bundle->ref);
	tmesh_bundle_busy(bundle);
	return bundle;
}

/* Does a device or the kernel have some of it, or is a token of it on its way? */
static bool tmesh_bundle_pinned(const struct tmesh_bundle *bundle)
{
	u32 i;

	for (i = 0; i < bundle->nr_regions; i++) {
		if (tmesh_drain_unheld(bundle->regions[i], false))
			return true;
		cond_resched();
	}
	return false;
}

/* Ends the look at a bundle, and takes it unless somebody wants it by now. */
static bool tmesh_reclaim_end(struct tmesh_bundle *bundle, bool pinned)
{
	bool take;

	lockdep_assert_held(&tmesh_kept_lock);
	take = !pinned && bundle->held == 1 && !hlist_unhashed(&bundle->node);
	if (take) {
		bundle->held = 0;
		tmesh_bundle_take(bundle);
	} else {
		tmesh_bundle_idle(bundle);
	}
	return take;
}

/*
 * Pages go back here and now, under locks that are only tried: whoever has one may be the very
 * one that waits for memory. What is left of the regions goes with a work.
 */
static unsigned long tmesh_reclaim_pages(const struct tmesh_bundle *bundle)
{
	unsigned long freed = 0;
	u32 i;

	for (i = 0; i < bundle->nr_regions; i++) {
		freed += tmesh_drain_unheld(bundle->regions[i], true);
		cond_resched();
	}
	return freed;
}

static unsigned long tmesh_kept_scan(struct shrinker *s, struct shrink_control *sc)
{
	unsigned long freed = 0, all;
	struct tmesh_bundle *bundle;
	bool pinned, take = false;

	spin_lock(&tmesh_kept_lock);
	all = tmesh_kept_idle_pages;
	wanted = min(wanted + sc->nr_to_scan, all);
	while (!take && (bundle = tmesh_reclaim_begin())) {
		spin_unlock(&tmesh_kept_lock);
		pinned = tmesh_bundle_pinned(bundle);
		spin_lock(&tmesh_kept_lock);
		take = tmesh_reclaim_end(bundle, pinned);
		if (take)
			wanted = 0;
		spin_unlock(&tmesh_kept_lock);
		if (take) {
			freed = tmesh_reclaim_pages(bundle);
			/* More than it asks for in one go, which ends that. */
			sc->nr_scanned = max(sc->nr_to_scan, 2 * all);
			/* The name's. */
			tmesh_bundle_put_later(bundle);
		}
		tmesh_bundle_put_later(bundle);
		spin_lock(&tmesh_kept_lock);
	}
	spin_unlock(&tmesh_kept_lock);
	tmesh_reclaimed(freed);
	return freed;
}

/* Of those that a group is charged for, the one that was used longest ago, before a time. */
static struct tmesh_bundle *tmesh_reclaim_of(u64 group, u64 before)
{
	struct tmesh_bundle *bundle;

	lockdep_assert_held(&tmesh_kept_lock);
	list_for_each_entry(bundle, &tmesh_kept_idle, idle) {
		if (bundle->used_ns >= before)
			break;
		if (bundle->regions[0]->cgroup_id != group)
			continue;
		kref_get(&bundle->ref);
		tmesh_bundle_busy(bundle);
		return bundle;
	}
	return NULL;
}

/**
 * tmesh_reclaim_group() - make room below the limit of the caller's memory control group
 *
 * The kernel asks shrinkers that have no list for each group when the machine is short of memory,
 * not when a group is. So who makes a region takes what the group is charged for, and nobody holds.
 * One bundle at a time, each at most once.
 *
 * Context: process context, may sleep; no locks of ours are held.
 * Return: pages that went back, 0: there was nothing.
 */
unsigned long tmesh_reclaim_group(void)
{
	u64 group = tmesh_cgroup_id(), now = ktime_get_ns();
	struct tmesh_bundle *bundle;
	unsigned long freed = 0;
	bool pinned, take;

	if (!group)
		return 0;
	spin_lock(&tmesh_kept_lock);
	while (!freed && (bundle = tmesh_reclaim_of(group, now))) {
		spin_unlock(&tmesh_kept_lock);
		pinned = tmesh_bundle_pinned(bundle);
		spin_lock(&tmesh_kept_lock);
		take = tmesh_reclaim_end(bundle, pinned);
		spin_unlock(&tmesh_kept_lock);
		if (take) {
			freed = tmesh_reclaim_pages(bundle);
			/* The name's. */
			tmesh_bundle_put_later(bundle);
		}
		tmesh_bundle_put_later(bundle);
		spin_lock(&tmesh_kept_lock);
	}
	spin_unlock(&tmesh_kept_lock);
	return freed;
}

/**
 * tmesh_reclaim_init() - let the kernel ask for kept memory
 *
 * Return: 0 or -ENOMEM.
 */
int __init tmesh_reclaim_init(void)
{
	shrinker = tmesh_shrinker_new("tmesh-kept", tmesh_kept_count, tmesh_kept_scan);
	return PTR_ERR_OR_ZERO(shrinker);
}

/**
 * tmesh_reclaim_exit() - the kernel asks no more
 *
 * Context: waits until nobody is asking.
 */
void tmesh_reclaim_exit(void)
{
	tmesh_shrinker_free(shrinker);
}
