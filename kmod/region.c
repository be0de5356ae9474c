// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lifetime of regions.
 */
#include <linux/lockdep.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "account.h"
#include "drain.h"
#include "main.h"
#include "poison.h"
#include "region.h"
#include "registry.h"
#include "trace.h"

#ifdef CONFIG_LOCKDEP
/* A lockdep map for waking pollers. A user may make many of them, so a wake-up may take long. */
struct lockdep_map tmesh_pollers = STATIC_LOCKDEP_MAP_INIT("tmesh_pollers", &tmesh_pollers);
#endif

/**
 * tmesh_region_teach() - teach lockdep what must not happen under the locks of a region
 * @region: new
 *
 * close() and the exit of other processes need these locks. From now on lockdep reports three
 * things under them, even if they do not block. These are an allocation that may wait, a fault on
 * user memory, and a wake-up of pollers.
 */
void tmesh_region_teach(struct tmesh_region *region)
{
#ifdef CONFIG_LOCKDEP
	fs_reclaim_acquire(GFP_KERNEL);
	might_lock(&region->claims_lock);
	might_lock(&region->uses_lock);
	might_lock(&region->lock);
	fs_reclaim_release(GFP_KERNEL);
	rwsem_acquire_read(&current->mm->mmap_lock.dep_map, 0, 0, _RET_IP_);
	might_lock(&region->claims_lock);
	might_lock(&region->uses_lock);
	rwsem_release(&current->mm->mmap_lock.dep_map, _RET_IP_);
	lock_map_acquire(&tmesh_pollers);
	might_lock(&region->claims_lock);
	might_lock(&region->uses_lock);
	might_lock(&region->lock);
	lock_map_release(&tmesh_pollers);
#endif
}

/**
 * tmesh_region_close() - keep new revocations and claims from a region that ends
 * @region: a region without references, or one that refuses claims already
 *
 * A region without references has no holders that could revoke it. But a source could still revoke
 * a view, until the view has freed its links.
 */
void tmesh_region_close(struct tmesh_region *region)
{
	mutex_lock(&region->claims_lock);
	down_write(&region->lock);
	WRITE_ONCE(region->state, region->state | TMESH_STATE_REVOKED);
	up_write(&region->lock);
	mutex_unlock(&region->claims_lock);
}

static void tmesh_region_free(struct tmesh_region *region)
{
	trace_tmesh_free(region->id);
	tmesh_region_close(region);
	tmesh_names_remove(region);
	tmesh_registry_remove(region);
	tmesh_drain_end(region);
	tmesh_poison_end(region);
	kfree(region->desc);
	tmesh_uncharge(region->user, TMESH_REGIONS, 1);
	tmesh_user_put(region->user);
	kfree_rcu(region, rcu);
}

static void tmesh_region_release(struct kref *ref)
{
	tmesh_region_free(container_of(ref, struct tmesh_region, ref));
}

/* Regions without references, for a work to free. */
static LLIST_HEAD(regions_dead);

static void tmesh_regions_reap(struct work_struct *work)
{
	struct llist_node *dead = llist_del_all(&regions_dead);
	struct tmesh_region *region, *next;

	llist_for_each_entry_safe(region, next, dead, dead) {
		tmesh_region_free(region);
		cond_resched();
	}
}

static DECLARE_WORK(reap_work, tmesh_regions_reap);

static void tmesh_region_release_later(struct kref *ref)
{
	struct tmesh_region *region = container_of(ref, struct tmesh_region, ref);

	llist_add(&region->dead, &regions_dead);
	queue_work(tmesh_wq, &reap_work);
}

/**
 * tmesh_region_put_later() - drop a reference; let a work free the region
 * @region: the region
 *
 * Context: any process context, also with locks held.
 */
void tmesh_region_put_later(struct tmesh_region *region)
{
	kref_put(&region->ref, tmesh_region_release_later);
}

/**
 * tmesh_region_put() - drop a reference
 * @region: the region
 *
 * Context: process context; frees the memory with the last reference.
 */
void tmesh_region_put(struct tmesh_region *region)
{
	kref_put(&region->ref, tmesh_region_release);
}

