// SPDX-License-Identifier: GPL-2.0-only
/*
 * Idle groups of kept regions, in order of last use: one list of all of them, and a tree by memory
 * control group. reclaim.c takes groups from both.
 */
#include <linux/ktime.h>

#include "keep.h"

DEFINE_SPINLOCK(tmesh_kept_lock);
LIST_HEAD(tmesh_kept_idle);
unsigned long tmesh_kept_idle_pages;
u64 tmesh_kept_turn;
unsigned long tmesh_kept_going_pages;

/* Idle groups by control group and turn. The limit of a control group concerns only its own. */
static struct rb_root peers = RB_ROOT;

static u64 tmesh_peer_cgroup(const struct tmesh_group *group)
{
	return group->regions[0]->cgroup_id;
}

static bool tmesh_peer_before(const struct tmesh_group *group, u64 cgroup, u64 turn)
{
	u64 own = tmesh_peer_cgroup(group);

	return own != cgroup ? own < cgroup : group->turn < turn;
}

static void tmesh_idle_add(struct tmesh_group *group)
{
	struct rb_node **link = &peers.rb_node, *parent = NULL;
	struct tmesh_group *other;

	while (*link) {
		parent = *link;
		other = rb_entry(parent, struct tmesh_group, peer);
		if (tmesh_peer_before(other, tmesh_peer_cgroup(group), group->turn))
			link = &parent->rb_right;
		else
			link = &parent->rb_left;
	}
	rb_link_node(&group->peer, parent, link);
	rb_insert_color(&group->peer, &peers);
	tmesh_kept_idle_pages += tmesh_group_pages(group);
}

/* Test whether the end of a group would free memory. */
static bool tmesh_group_counts(const struct tmesh_group *group)
{
	return tmesh_group_linked(group) && group->nr_pages;
}

static void tmesh_idle_add_last(struct tmesh_group *group)
{
	if (!tmesh_group_counts(group))
		return;
	group->turn = ++tmesh_kept_turn;
	list_add_tail(&group->idle, &tmesh_kept_idle);
	tmesh_idle_add(group);
}

/**
 * tmesh_idle_remove() - remove a group from the idle ones
 * @group: the group, idle or not
 *
 * Context: tmesh_kept_lock is held.
 */
void tmesh_idle_remove(struct tmesh_group *group)
{
	lockdep_assert_held(&tmesh_kept_lock);
	if (list_empty(&group->idle))
		return;
	list_del_init(&group->idle);
	rb_erase(&group->peer, &peers);
	tmesh_kept_idle_pages -= tmesh_group_pages(group);
}

/**
 * tmesh_group_busy() - count a holder of a group; it is not idle any more
 * @group: a group with a name
 *
 * Context: tmesh_kept_lock is held.
 */
void tmesh_group_busy(struct tmesh_group *group)
{
	group->held++;
	group->came++;
	tmesh_idle_remove(group);
}

/**
 * tmesh_group_look() - count a look at a group in @held; it is not idle meanwhile
 * @group: a group with a name
 *
 * A look is no use: it does not count in @came.
 *
 * Context: tmesh_kept_lock is held.
 */
void tmesh_group_look(struct tmesh_group *group)
{
	group->held++;
	tmesh_idle_remove(group);
}

/**
 * tmesh_group_idle() - undo tmesh_group_busy()
 * @group: held
 *
 * Context: tmesh_kept_lock is held.
 */
void tmesh_group_idle(struct tmesh_group *group)
{
	lockdep_assert_held(&tmesh_kept_lock);
	group->used_ns = ktime_get_ns();
	if (!--group->held)
		tmesh_idle_add_last(group);
}

/**
 * tmesh_group_looked() - undo tmesh_group_look()
 * @group: held
 * @whole:  the look is complete; else the group is the next to be looked at
 *
 * Context: tmesh_kept_lock is held.
 */
void tmesh_group_looked(struct tmesh_group *group, bool whole)
{
	lockdep_assert_held(&tmesh_kept_lock);
	if (--group->held)
		return;
	if (whole) {
		tmesh_idle_add_last(group);
	} else if (tmesh_group_counts(group)) {
		list_add(&group->idle, &tmesh_kept_idle);
		tmesh_idle_add(group);
	}
}

/**
 * tmesh_group_peer() - find the next idle group that a control group is charged for
 * @cgroup: the control group
 * @after: the turn of the group before
 * @last:  the latest turn to find
 *
 * Context: tmesh_kept_lock is held.
 * Return: the group without a reference, or NULL.
 */
struct tmesh_group *tmesh_group_peer(u64 cgroup, u64 after, u64 last)
{
	struct tmesh_group *group, *found = NULL;
	struct rb_node *node = peers.rb_node;

	lockdep_assert_held(&tmesh_kept_lock);
	while (node) {
		group = rb_entry(node, struct tmesh_group, peer);
		if (tmesh_peer_before(group, cgroup, after + 1)) {
			node = node->rb_right;
		} else {
			found = group;
			node = node->rb_left;
		}
	}
	if (found && (tmesh_peer_cgroup(found) != cgroup || found->turn > last))
		found = NULL;
	return found;
}
