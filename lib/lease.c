// SPDX-License-Identifier: MIT
/*
 * Leases as callers see them. On the module a lease is two pages that its kernel shares with
 * us: a counter that we increment and a state that it sets. On memfd nobody can take memory
 * away, and a lease is a time that this library keeps.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DEFAULT_NS UINT64_C(5000000000)
#define MIN_NS UINT64_C(10000000)
#define MAX_NS UINT64_C(3600000000000)

struct tmesh_lease_keeper {
	struct tmesh_lease_pages pages; /* module */
	uint64_t ns;			/* memfd */
	atomic_uint_fast64_t touched;	/* memfd: when last */
	atomic_bool lapsed;		/* memfd */
};

/* What region->lease points to once it is known that there is none. */
static struct tmesh_lease_keeper none;

int tmesh_check_taken(enum tmesh_taken taken, struct tmesh_error *err)
{
	if (taken != TMESH_TAKEN_SIGBUS && taken != TMESH_TAKEN_ZERO)
		return tmesh_fail(err, -EINVAL, "unknown policy %d for memory that is taken away",
				  (int)taken);
	return 0;
}

/* memfd: a lease that this library keeps. */
static int set_cooperative(struct tmesh_region *region, uint64_t ns, struct tmesh_error *err)
{
	struct tmesh_lease_keeper *keeper = calloc(1, sizeof(*keeper)), *old;
	int rc = 0;

	if (!keeper)
		return tmesh_fail(err, -ENOMEM, "no memory for a lease");
	keeper->ns = ns;
	keeper->touched = tmesh_now_ns();
	tmesh_region_set_shared(region);
	tmesh_region_lock(region);
	old = atomic_load(&region->lease);
	if (!old)
		atomic_store(&region->lease, keeper);
	else
		rc = tmesh_fail(err, -EBUSY, "lease: this handle has one already");
	tmesh_region_unlock(region);
	if (rc)
		free(keeper);
	return rc;
}

static int set(struct tmesh_region *region, int pidfd, uint64_t ns, enum tmesh_taken taken,
	       struct tmesh_error *err)
{
	const struct tmesh_backend_ops *ops = region->ctx->ops;
	int rc = tmesh_region_may(region, TMESH_READ, "lease", err);

	if (!rc)
		rc = tmesh_check_taken(taken, err);
	if (rc)
		return rc;
	if (ns && (ns < MIN_NS || ns > MAX_NS))
		return tmesh_fail(err, -EINVAL, "lease: a period is 10 ms to 1 h, not %llu ns",
				  (unsigned long long)ns);
	if (region->pinning)
		return tmesh_fail(err, -EINVAL, "lease: a pinning handle cannot have one");
	if (!ops->lease_set)
		return set_cooperative(region, ns ? ns : DEFAULT_NS, err);
	rc = ops->lease_set(region, ns, pidfd, err);
	if (rc)
		return rc;
	tmesh_region_set_shared(region);
	tmesh_region_lock(region);
	if (atomic_load(&region->lease) == &none)
		atomic_store(&region->lease, NULL);
	tmesh_region_unlock(region);
	rc = ops->when_taken(region, taken, err);
	if (!rc)
		region->zeros = taken == TMESH_TAKEN_ZERO;
	return rc;
}

int tmesh_lease_set(struct tmesh_region *region, uint64_t ns, enum tmesh_taken taken,
		    struct tmesh_error *err)
{
	if (TMESH_NEED(err, region))
		return -EINVAL;
	return set(region, -1, ns, taken, err);
}

int tmesh_lease_bind(struct tmesh_region *region, int pidfd, uint64_t ns, enum tmesh_taken taken,
		     struct tmesh_error *err)
{
	if (TMESH_NEED(err, region))
		return -EINVAL;
	if (!region->ctx->ops->lease_set)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "lease: only the module ends a lease with a process");
	if (pidfd < 0)
		return tmesh_fail(err, -EBADF, "lease: descriptor %d is not a pidfd", pidfd);
	return set(region, pidfd, ns, taken, err);
}

/* The region's lease, looked up once; NULL when that fails, which the next touch tries again. */
static struct tmesh_lease_keeper *lease_of(struct tmesh_region *region)
{
	const struct tmesh_backend_ops *ops = region->ctx->ops;
	struct tmesh_lease_keeper *keeper =
		atomic_load_explicit(&region->lease, memory_order_acquire);
	struct tmesh_lease_pages pages;
	int rc;

	if (keeper)
		return keeper;
	if (!ops->lease_map)
		return &none;
	tmesh_region_lock(region);
	keeper = atomic_load(&region->lease);
	if (!keeper) {
		rc = ops->lease_map(region, &pages, NULL);
		if (rc == -ENODATA) {
			keeper = &none;
		} else if (!rc) {
			keeper = calloc(1, sizeof(*keeper));
			if (keeper)
				keeper->pages = pages;
			else
				tmesh_lease_unmap(&pages);
		}
		atomic_store_explicit(&region->lease, keeper, memory_order_release);
	}
	tmesh_region_unlock(region);
	return keeper;
}

static enum tmesh_lease_status state_of(struct tmesh_lease_keeper *keeper)
{
	uint64_t touched;

	if (keeper == &none)
		return TMESH_LEASE_NONE;
	if (keeper->pages.state)
		return (enum tmesh_lease_status)__atomic_load_n(keeper->pages.state,
								__ATOMIC_ACQUIRE);
	/* Before the time is asked: another thread's touch may come in between. */
	touched = keeper->touched;
	if (!keeper->lapsed && tmesh_now_ns() - touched > keeper->ns)
		keeper->lapsed = true;
	return keeper->lapsed ? TMESH_LEASE_HAS_LAPSED : TMESH_LEASE_IS_LIVE;
}

/* Two threads may lose one of two increments: what counts is that the number changes. */
static void touch(struct tmesh_lease_keeper *keeper)
{
	uint64_t *counter = keeper->pages.touch;

	if (counter)
		__atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + 1,
				 __ATOMIC_RELAXED);
	else
		keeper->touched = tmesh_now_ns();
}

enum tmesh_lease_status tmesh_lease_state(struct tmesh_region *region)
{
	struct tmesh_lease_keeper *keeper = lease_of(region);

	/* What cannot even be asked for any more was taken back. */
	return keeper ? state_of(keeper) : TMESH_LEASE_IS_REVOKED;
}

int tmesh_lease_touch(struct tmesh_region *region)
{
	struct tmesh_lease_keeper *keeper;

	if (TMESH_NEED(NULL, region))
		return -EINVAL;
	if (tmesh_region_inherited(region))
		return -EPERM;
	/* What was read was read before the state is. */
	atomic_thread_fence(memory_order_acquire);
	keeper = lease_of(region);
	if (keeper == &none)
		return 0;
	if (!keeper || state_of(keeper) != TMESH_LEASE_IS_LIVE)
		return -ESTALE;
	touch(keeper);
	return 0;
}

bool tmesh_lease_lapsed_here(struct tmesh_region *region)
{
	struct tmesh_lease_keeper *keeper = atomic_load(&region->lease);

	return keeper && keeper != &none && state_of(keeper) != TMESH_LEASE_IS_LIVE;
}

uint64_t tmesh_lease_kept_ns(const struct tmesh_region *region)
{
	const struct tmesh_lease_keeper *keeper = atomic_load(&region->lease);

	return keeper ? keeper->ns : 0;
}

void tmesh_lease_unmap(struct tmesh_lease_pages *pages)
{
	munmap(pages->touch, tmesh_page_bytes());
	munmap((void *)pages->state, tmesh_page_bytes());
}

void tmesh_lease_forget(struct tmesh_region *region)
{
	struct tmesh_lease_keeper *keeper = atomic_load(&region->lease);

	if (!keeper || keeper == &none)
		return;
	if (keeper->pages.touch)
		tmesh_lease_unmap(&keeper->pages);
	free(keeper);
	atomic_store(&region->lease, NULL);
}
