// SPDX-License-Identifier: GPL-2.0-only
/*
 * Regions and their end.
 */
#include <linux/slab.h>

#include "account.h"
#include "drain.h"
#include "poison.h"
#include "region.h"
#include "registry.h"
#include "trace.h"

/**
 * tmesh_region_close() - from now on nobody begins to revoke a region
 * @region: without references
 *
 * It is not revocable by its holders any more, but a view may be by its sources, until it has
 * unlinked itself.
 */
void tmesh_region_close(struct tmesh_region *region)
{
	mutex_lock(&region->claims_lock);
	down_write(&region->lock);
	WRITE_ONCE(region->state, region->state | TMESH_STATE_REVOKED);
	up_write(&region->lock);
	mutex_unlock(&region->claims_lock);
}

static void tmesh_region_release(struct kref *ref)
{
	struct tmesh_region *region = container_of(ref, struct tmesh_region, ref);

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

