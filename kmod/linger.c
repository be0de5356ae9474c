// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lingering: a region without holders lives on for a moment, for a token that is on its way.
 *
 * A pending work owns a reference to the region. Regions whose work is pending are in their
 * owner's list, so that all of them can be let go when the owner has no /dev/tmesh open any
 * more. The user's lock makes each step whole.
 */
#include "linger.h"
#include "main.h"
#include "region.h"

static void tmesh_linger_work(struct work_struct *work)
{
	struct tmesh_region *region = container_of(to_delayed_work(work), struct tmesh_region,
						   linger);
	struct tmesh_user *user = region->user;

	spin_lock(&user->lock);
	/* It may have begun again since this work was taken from the queue. */
	if (!delayed_work_pending(&region->linger))
		list_del_init(&region->linger_node);
	spin_unlock(&user->lock);
	tmesh_region_put(region);
}

/**
 * tmesh_linger_init() - prepare a new region
 * @region: the region
 */
void tmesh_linger_init(struct tmesh_region *region)
{
	INIT_DELAYED_WORK(&region->linger, tmesh_linger_work);
	INIT_LIST_HEAD(&region->linger_node);
}

/* Without a token nobody could come. */
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
 * tmesh_linger_begin() - the last claim of a region has gone
 * @region: which the caller has a reference of
 *
 * A revoked region has no tokens left.
 *
 * Context: claims_lock is held; takes the owner's lock.
 */
void tmesh_linger_begin(struct tmesh_region *region)
{
	struct tmesh_user *user = region->user;

	if (!region->linger_ms || !tmesh_has_name(region))
		return;
	spin_lock(&user->lock);
	if (user->files) {
		if (!mod_delayed_work(tmesh_wq, &region->linger,
				      msecs_to_jiffies(region->linger_ms)))
			kref_get(&region->ref);
		if (list_empty(&region->linger_node))
			list_add(&region->linger_node, &user->lingering);
	}
	spin_unlock(&user->lock);
}

/**
 * tmesh_device_opened() - count an open /dev/tmesh
 * @user: whose
 */
void tmesh_device_opened(struct tmesh_user *user)
{
	spin_lock(&user->lock);
	user->files++;
	spin_unlock(&user->lock);
}

/**
 * tmesh_device_closed() - with a user's last /dev/tmesh, lingering ends
 * @user: whose
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
	       (region = list_first_entry_or_null(&user->lingering, struct tmesh_region,
						  linger_node))) {
		list_del_init(&region->linger_node);
		/* Where this comes too late, the work is about to drop its reference. */
		cancelled = cancel_delayed_work(&region->linger);
		spin_unlock(&user->lock);
		if (cancelled)
			tmesh_region_put(region);
		spin_lock(&user->lock);
	}
	spin_unlock(&user->lock);
}
