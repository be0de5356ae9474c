// SPDX-License-Identifier: GPL-2.0-only
/*
 * The end of leases. Leases lapse in a work of their uid, or are revoked with their region. Those
 * of a region lapse together, in one walk over its claims.
 */
#include <linux/list_sort.h>
#include <linux/poll.h>
#include <linux/sched.h>

#include "account.h"
#include "claim.h"
#include "fence.h"
#include "lease.h"
#include "lease_end.h"
#include "lease_expiry.h"
#include "map.h"
#include "mem.h"
#include "region.h"
#include "trace.h"

/* The number of passes over a region that ended leases; for debugfs. */
static atomic_long_t tmesh_passes;

/* The most leases that end under one hold of claims_lock */
#define TMESH_LAPSE_PIECE 256

/* The delay before another try at regions whose cut_lock was contended */
#define TMESH_LAPSE_AGAIN msecs_to_jiffies(10)

static struct tmesh_region *tmesh_lease_region(struct tmesh_lease_obj *lease)
{
	struct tmesh_region *region;

	rcu_read_lock();
	region = rcu_dereference(lease->region);
	if (region && !kref_get_unless_zero(&region->ref))
		region = NULL;
	rcu_read_unlock();
	return region;
}

/**
 * struct tmesh_lapsing - leases of a region that lapse together in one pass
 * @leases:  the leases
 * @mem:     the region's memory; reference
 * @claims:  number of claims that share them
 * @writers: number of their writable mappings, which are uncounted once they are gone
 */
struct tmesh_lapsing {
	struct list_head leases;
	struct tmesh_mem *mem;
	unsigned int claims;
	int writers;
};

/* Let leases lapse. From now on their claims cannot map anything. */
static void tmesh_lapse_begin(struct tmesh_region *region, struct tmesh_lapsing *lapsing)
{
	struct tmesh_lease_obj *lease;

	lockdep_assert_held(&region->claims_lock);
	if (list_empty(&lapsing->leases))
		return;
	down_write(&region->lock);
	lapsing->mem = tmesh_mem_hold(region->mem);
	list_for_each_entry(lease, &lapsing->leases, ending) {
		tmesh_lease_end(lease, TMESH_LEASE_LAPSED);
		lapsing->writers += atomic_read(&lease->writers);
		lapsing->claims += lease->nr_claims;
	}
	up_write(&region->lock);

	list_for_each_entry(lease, &lapsing->leases, ending)
		tmesh_lease_expiry_stop(lease);
}

static void tmesh_lapse_claim(struct tmesh_claim *claim)
{
	claim->ops->cut(claim);
}

/*
 * Take away the mappings of all claims of the leases. The mappings count as writers until they are
 * gone.
 */
static void tmesh_lapse_cut(struct tmesh_region *region, struct tmesh_lapsing *lapsing)
{
	struct tmesh_lease_obj *lease;

	lockdep_assert_held(&region->cut_lock);
	if (!lapsing->mem)
		return;
	tmesh_fence_abandon_lapsed(region);
	tmesh_flush_faults(region, lapsing->mem);
	list_for_each_entry(lease, &lapsing->leases, ending) {
		tmesh_claims_each(region, lease, READ_ONCE(lease->nr_claims), tmesh_lapse_claim);
		trace_tmesh_lapse(region->id, lease->period_ns, lease->pid);
	}
	mutex_lock(&region->claims_lock);
	atomic_sub(lapsing->writers, &region->writers);
	region->nr_live -= lapsing->claims;
	mutex_unlock(&region->claims_lock);
	atomic_long_inc(&tmesh_passes);
}

static void tmesh_leases_wake(struct tmesh_region *region)
{
	/* A remaining holder may now be the only one. */
	tmesh_wake(&region->wait, EPOLLHUP | EPOLLERR | EPOLLOUT);
}

/**
 * tmesh_lease_lapse() - let a lease lapse at once
 * @lease: the lease; the caller has a reference
 *
 * Context: may sleep for long; no locks are held.
 */
void tmesh_lease_lapse(struct tmesh_lease_obj *lease)
{
	struct tmesh_region *region = tmesh_lease_region(lease);
	struct tmesh_lapsing lapsing = { .leases = LIST_HEAD_INIT(lapsing.leases) };

	if (!region)
		return;
	mutex_lock(&region->cut_lock);
	mutex_lock(&region->claims_lock);
	if (lease->state == TMESH_LEASE_LIVE)
		list_add(&lease->ending, &lapsing.leases);
	tmesh_lapse_begin(region, &lapsing);
	mutex_unlock(&region->claims_lock);
	tmesh_lapse_cut(region, &lapsing);
	mutex_unlock(&region->cut_lock);
	if (lapsing.mem)
		tmesh_mem_put(lapsing.mem);
	tmesh_wakes();
	wake_up_all(&lease->wait);
	tmesh_leases_wake(region);
	tmesh_region_put(region);
}

/* Test whether a lease is one of this region and still live. */
static bool tmesh_lease_ends(const struct tmesh_lease_obj *lease, const struct tmesh_region *region)
{
	lockdep_assert_held(&region->claims_lock);
	return rcu_access_pointer(lease->region) == region && lease->state == TMESH_LEASE_LIVE;
}

/* Move the leases of a busy region to @busy: a walk over its claims may take long. */
static void tmesh_leases_put_off(struct tmesh_region *region, struct list_head *due,
				 struct list_head *busy)
{
	struct tmesh_lease_obj *lease, *next;

	list_for_each_entry_safe(lease, next, due, due) {
		if (lease->id != region->id)
			return;
		list_move_tail(&lease->due, busy);
		cond_resched();
	}
}

/*
 * End some leases of a region from the head of @due, and move them to @over. End only
 * TMESH_LAPSE_PIECE of them at a time, because exiting processes need claims_lock. If cut_lock is
 * contended, move them to @busy, so that one region does not delay the leases of others. Return
 * true if there are more.
 */
static bool tmesh_leases_lapse_piece(struct tmesh_region *region, struct list_head *due,
				     struct list_head *over, struct list_head *busy)
{
	struct tmesh_lapsing lapsing = { .leases = LIST_HEAD_INIT(lapsing.leases) };
	struct tmesh_lease_obj *lease, *next;
	unsigned int looks = 0;

	if (!mutex_trylock(&region->cut_lock)) {
		tmesh_leases_put_off(region, due, busy);
		return false;
	}
	mutex_lock(&region->claims_lock);
	list_for_each_entry_safe(lease, next, due, due) {
		if (lease->id != region->id || looks++ == TMESH_LAPSE_PIECE)
			break;
		list_move_tail(&lease->due, over);
		if (tmesh_lease_ends(lease, region))
			list_add_tail(&lease->ending, &lapsing.leases);
	}
	tmesh_lapse_begin(region, &lapsing);
	mutex_unlock(&region->claims_lock);
	tmesh_lapse_cut(region, &lapsing);
	mutex_unlock(&region->cut_lock);
	if (lapsing.mem)
		tmesh_mem_put(lapsing.mem);
	cond_resched();
	return looks > TMESH_LAPSE_PIECE;
}

static int tmesh_lease_cmp(void *priv, const struct list_head *a, const struct list_head *b)
{
	const struct tmesh_lease_obj *x = list_entry(a, struct tmesh_lease_obj, due);
	const struct tmesh_lease_obj *y = list_entry(b, struct tmesh_lease_obj, due);

	cond_resched();
	return x->id > y->id;
}

/*
 * End leases and drop their references: those of a region together. Those of busy regions move to
 * @busy.
 */
static void tmesh_leases_lapse(struct list_head *due, struct list_head *busy)
{
	struct tmesh_lease_obj *lease, *next;
	struct tmesh_region *region;
	LIST_HEAD(over);

	list_sort(NULL, due, tmesh_lease_cmp);
	while ((lease = list_first_entry_or_null(due, struct tmesh_lease_obj, due))) {
		region = tmesh_lease_region(lease);
		/* The lease has no claim any more, or none yet. */
		if (!region)
			list_move(&lease->due, &over);
		else
			while (tmesh_leases_lapse_piece(region, due, &over, busy))
				;
		list_for_each_entry_safe(lease, next, &over, due) {
			list_del(&lease->due);
			tmesh_wakes();
			wake_up_all(&lease->wait);
			tmesh_lease_put(lease);
			cond_resched();
		}
		if (region) {
			tmesh_leases_wake(region);
			tmesh_region_put(region);
		}
	}
}

/**
 * tmesh_lease_work() - end the leases of a uid that are due
 * @work: the work of a struct tmesh_due
 */
void tmesh_lease_work(struct work_struct *work)
{
	struct tmesh_due *due = container_of(work, struct tmesh_due, work);
	struct tmesh_user *user = NULL;
	LIST_HEAD(leases);
	LIST_HEAD(busy);

	while (!user) {
		if (!list_empty(&busy))
			schedule_timeout_uninterruptible(TMESH_LAPSE_AGAIN);
		list_splice_init(&busy, &leases);
		spin_lock_irq(&due->lock);
		list_splice_init(&due->leases, &leases);
		if (list_empty(&leases)) {
			due->queued = false;
			swap(user, due->user);
		}
		spin_unlock_irq(&due->lock);
		tmesh_leases_lapse(&leases, &busy);
	}
	/* This may free @due, unless the work was queued anew. */
	tmesh_user_put(user);
}

/**
 * tmesh_leases_revoke() - end all leases of a region that is being revoked
 * @region: the region
 *
 * Context: claims_lock is held, and the region's lock for writing.
 * Return: number of leases, for tmesh_leases_tell().
 */
unsigned long tmesh_leases_revoke(struct tmesh_region *region)
{
	struct tmesh_lease_obj *lease;
	unsigned long nr = 0;

	lockdep_assert_held_write(&region->lock);
	list_for_each_entry(lease, &region->leases, node) {
		nr++;
		cond_resched();
		if (lease->state != TMESH_LEASE_LIVE)
			continue;
		tmesh_lease_end(lease, TMESH_LEASE_REVOKED);
		tmesh_lease_expiry_stop(lease);
	}
	return nr;
}

static struct tmesh_lease_obj *tmesh_leases_next(struct tmesh_region *region)
{
	struct tmesh_lease_obj *lease;

	mutex_lock(&region->claims_lock);
	lease = list_first_entry_or_null(&region->leases, struct tmesh_lease_obj, node);
	if (lease) {
		list_move_tail(&lease->node, &region->leases);
		kref_get(&lease->ref);
	}
	mutex_unlock(&region->claims_lock);
	return lease;
}

/**
 * tmesh_leases_tell() - wake pollers of the leases of a revoked region
 * @region: revoked
 * @nr:     number of leases when it was revoked
 *
 * claims_lock is not held across the wake-ups: a user may have made many pollers, and exiting
 * processes need the lock.
 *
 * Context: cut_lock is held, so that there is one walk at a time; may sleep.
 */
void tmesh_leases_tell(struct tmesh_region *region, unsigned long nr)
{
	struct tmesh_lease_obj *lease;

	lockdep_assert_held(&region->cut_lock);
	while (nr-- && (lease = tmesh_leases_next(region))) {
		tmesh_wakes();
		wake_up_all(&lease->wait);
		tmesh_lease_put(lease);
		cond_resched();
	}
}

/**
 * tmesh_lease_passes() - count the passes in which leases have lapsed
 *
 * Return: number of passes since the module was loaded.
 */
long tmesh_lease_passes(void)
{
	return atomic_long_read(&tmesh_passes);
}
