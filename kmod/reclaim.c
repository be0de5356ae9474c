// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reclaim of idle kept groups when the machine or a control group needs memory.
 *
 * The kernel asks each shrinker for a few pages at a time. A group is freed as a whole, so the
 * requests add up in @wanted until they reach the size of a group. After that the kernel must see
 * whether it still needs memory before the next group is taken.
 */
#include <linux/mm.h>
#include <linux/shrinker.h>

#include "account.h"
#include "drain.h"
#include "keep.h"
#include "reclaim.h"

static struct shrinker *shrinker;

/* Pages that were requested and not freed yet; guarded by tmesh_kept_lock. */
static unsigned long wanted;

static unsigned long tmesh_kept_count(struct shrinker *s, struct shrink_control *sc)
{
	unsigned long pages = READ_ONCE(tmesh_kept_idle_pages);

	return pages ? pages : SHRINK_EMPTY;
}

/* The result of a look at an idle group */
enum tmesh_reclaim_look { TMESH_RECLAIM_FREE, TMESH_RECLAIM_PINNED, TMESH_RECLAIM_CUT };

/* Hold a group while it is looked at. Return how many have come to use it so far. */
static u32 tmesh_reclaim_hold(struct tmesh_group *group)
{
	kref_get(&group->ref);
	tmesh_group_look(group);
	return group->came;
}

/* Return the group used longest ago if enough pages are wanted for it, held for a look. */
static struct tmesh_group *tmesh_reclaim_begin(u32 *came)
{
	struct tmesh_group *group;

	lockdep_assert_held(&tmesh_kept_lock);
	group = list_first_entry_or_null(&tmesh_kept_idle, struct tmesh_group, idle);
	if (!group || tmesh_group_pages(group) > wanted)
		return NULL;
	wanted -= tmesh_group_pages(group);
	*came = tmesh_reclaim_hold(group);
	return group;
}

/*
 * Test whether memory of a group is in use or pinned, or a hold is pending for one of its regions.
 */
static enum tmesh_reclaim_look tmesh_reclaim_look(const struct tmesh_group *group)
{
	int pinned;
	u32 i;

	for (i = 0; i < group->nr_regions; i++) {
		pinned = tmesh_drain_look(group->regions[i]);
		if (pinned)
			return pinned < 0 ? TMESH_RECLAIM_CUT : TMESH_RECLAIM_PINNED;
		cond_resched();
	}
	return TMESH_RECLAIM_FREE;
}

/*
 * End the look at a group. Take the group if it is free and no other user has come since the look
 * began. A user that has left again may have pinned a page that was looked at already.
 */
static bool tmesh_reclaim_end(struct tmesh_group *group, enum tmesh_reclaim_look look, u32 came)
{
	bool take;

	lockdep_assert_held(&tmesh_kept_lock);
	take = look == TMESH_RECLAIM_FREE && group->held == 1 && group->came == came &&
	       tmesh_group_linked(group);
	if (take) {
		group->held = 0;
		tmesh_group_take(group);
	} else {
		tmesh_group_looked(group, look != TMESH_RECLAIM_CUT);
	}
	return take;
}

/*
 * Free the pages of a group at once. Locks are only tried, because the process that holds one may
 * itself be waiting for memory. A work frees the rest of the regions.
 */
static void tmesh_reclaim_pages(struct tmesh_group *group)
{
	unsigned long freed = 0;
	u32 i;

	for (i = 0; i < group->nr_regions; i++) {
		freed += tmesh_drain_unheld(group->regions[i]);
		cond_resched();
	}
	spin_lock(&tmesh_kept_lock);
	group->going -= freed;
	tmesh_kept_going_pages -= freed;
	spin_unlock(&tmesh_kept_lock);
}

/*
 * Free idle groups. Memory that a work is about to free counts as freed. No other group is taken
 * before the work is done, because the kernel cannot see yet that it has enough.
 */
static unsigned long tmesh_kept_scan(struct shrinker *s, struct shrink_control *sc)
{
	enum tmesh_reclaim_look look = TMESH_RECLAIM_FREE;
	unsigned long freed = 0, all;
	struct tmesh_group *group;
	bool take = false;
	u32 came;

	spin_lock(&tmesh_kept_lock);
	if (tmesh_kept_going_pages) {
		spin_unlock(&tmesh_kept_lock);
		return SHRINK_STOP;
	}
	all = tmesh_kept_idle_pages;
	wanted = min(wanted + sc->nr_to_scan, all);
	while (!take && look != TMESH_RECLAIM_CUT && (group = tmesh_reclaim_begin(&came))) {
		spin_unlock(&tmesh_kept_lock);
		look = tmesh_reclaim_look(group);
		spin_lock(&tmesh_kept_lock);
		take = tmesh_reclaim_end(group, look, came);
		if (take)
			wanted = 0;
		spin_unlock(&tmesh_kept_lock);
		if (take) {
			freed = tmesh_group_pages(group);
			tmesh_reclaim_pages(group);
			/* Report so many pages as scanned that the kernel's loop ends. */
			sc->nr_scanned = max(sc->nr_to_scan, 2 * all);
			/* Drop the reference of the name. */
			tmesh_group_put_later(group);
		}
		tmesh_group_put_later(group);
		spin_lock(&tmesh_kept_lock);
	}
	spin_unlock(&tmesh_kept_lock);
	tmesh_reclaimed(freed);
	return freed;
}

/**
 * tmesh_reclaim_cgroup() - make room below the limit of the caller's memory control group
 * @most: number of pages that may be taken; lowered by those that were
 *
 * The kernel calls a shrinker without per-cgroup lists when the machine is short of memory, but not
 * when a control group is. So the creator of a region takes one idle group that its control group
 * is charged for: the one used longest ago. Its memory is free when this function returns.
 *
 * Context: process context, may sleep; no lock of tmesh is held.
 * Return: true if a group was taken, so that another try makes sense.
 */
bool tmesh_reclaim_cgroup(unsigned long *most)
{
	enum tmesh_reclaim_look look = TMESH_RECLAIM_FREE;
	u64 cgroup = tmesh_cgroup_id(), turn = 0, last;
	struct tmesh_group *group;
	bool take = false;
	u32 came;

	if (!cgroup || !*most)
		return false;
	spin_lock(&tmesh_kept_lock);
	last = tmesh_kept_turn;
	while (!take && look != TMESH_RECLAIM_CUT &&
	       (group = tmesh_group_peer(cgroup, turn, last))) {
		turn = group->turn;
		came = tmesh_reclaim_hold(group);
		spin_unlock(&tmesh_kept_lock);
		look = tmesh_reclaim_look(group);
		spin_lock(&tmesh_kept_lock);
		take = tmesh_reclaim_end(group, look, came);
		spin_unlock(&tmesh_kept_lock);
		if (take) {
			*most -= min(*most, tmesh_group_pages(group));
			tmesh_reclaim_pages(group);
			/* Drop the reference of the name. */
			tmesh_group_put(group);
			tmesh_group_put_now(group);
		} else {
			tmesh_group_put(group);
		}
		spin_lock(&tmesh_kept_lock);
	}
	spin_unlock(&tmesh_kept_lock);
	return take;
}

/**
 * tmesh_reclaim_init() - register the shrinker
 *
 * Return: 0 or -ENOMEM.
 */
int __init tmesh_reclaim_init(void)
{
	shrinker = tmesh_shrinker_new("tmesh-kept", tmesh_kept_count, tmesh_kept_scan);
	return PTR_ERR_OR_ZERO(shrinker);
}

/**
 * tmesh_reclaim_exit() - unregister the shrinker
 *
 * Context: waits until the shrinker is not running.
 */
void tmesh_reclaim_exit(void)
{
	tmesh_shrinker_free(shrinker);
}
