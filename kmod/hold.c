// SPDX-License-Identifier: GPL-2.0-only
/*
 * Holds: a region without claims stays for a time, so that a token already sent can still be
 * redeemed.
 *
 * The pending work owns a reference on the region. A region with pending work is in its owner's
 * list @holds. All of these holds end when the owner closes its last /dev/tmesh. The owner's lock
 * guards the list and the state of the work.
 */
#include "hold.h"
#include "main.h"
#include "region.h"

static void tmesh_hold_work(struct work_struct *work)
{
	struct tmesh_region *region = container_of(to_delayed_work(work), struct tmesh_region,
						   hold);
	struct tmesh_user *user = region->user;

	spin_lock(&user->lock);
	/* Another hold may have begun since this work left the queue. */
	if (!delayed_work_pending(&region->hold))
		list_del_init(&region->hold_node);
	spin_unlock(&user->lock);
	tmesh_region_put(region);
}

/**
 * tmesh_hold_init() - prepare a new region
 * @region: the region
 */
void tmesh_hold_init(struct tmesh_region *region)
{
	INIT_DELAYED_WORK(&region->hold, tmesh_hold_work);
	INIT_LIST_HEAD(&region->hold_node);
}

/* Test whether a region has a token. Without one no process could open it. */
static bool tmesh_has_name(const struct tmesh_region *region)
{
	unsigned int i;

	lockdep_assert_held(&region->claims_lock);
	for (i = 0; i < TMESH_NAMES; i++) {
		if (region->names[i].rights)
			return true;
	}
	return false;
}

/**
 * tmesh_hold_begin() - hold a region that has lost its last claim
 * @region: the region; the caller has a reference
 *
 * Does nothing for a region without tokens, such as a revoked one.
 *
 * Context: claims_lock is held; takes the owner's lock.
 */
void tmesh_hold_begin(struct tmesh_region *region)
{
	struct tmesh_user *user = region->user;

	if (!region->hold_ms || !tmesh_has_name(region))
		return;
	spin_lock(&user->lock);
	if (user->files) {
		if (!mod_delayed_work(tmesh_wq, &region->hold,
				      msecs_to_jiffies(region->hold_ms)))
			kref_get(&region->ref);
		if (list_empty(&region->hold_node))
			list_add(&region->hold_node, &user->holds);
	}
	spin_unlock(&user->lock);
}

/**
 * tmesh_device_opened() - count an open /dev/tmesh
 * @user: the user that opened it
 */
void tmesh_device_opened(struct tmesh_user *user)
{
	spin_lock(&user->lock);
	user->files++;
	spin_unlock(&user->lock);
}

/**
 * tmesh_device_closed() - uncount a /dev/tmesh; with a user's last one, end its holds
 * @user: the user that opened it
 *
 * Context: process context; frees regions.
 */
void tmesh_device_closed(struct tmesh_user *user)
{
	struct tmesh_region *region;
	bool cancelled;

	spin_lock(&user->lock);
	user->files--;
	while (!user->files &&
	       (region = list_first_entry_or_null(&user->holds, struct tmesh_region,
						  hold_node))) {
		list_del_init(&region->hold_node);
		/* If the work is running already, it drops the reference itself. */
		cancelled = cancel_delayed_work(&region->hold);
		spin_unlock(&user->lock);
		if (cancelled)
			tmesh_region_put(region);
		cond_resched();
		spin_lock(&user->lock);
	}
	spin_unlock(&user->lock);
}
