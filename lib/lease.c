// SPDX-License-Identifier: MIT
/*
 * Leases as callers see them. On the module a lease is two pages that the kernel shares with us: a
 * counter that we increment and a state that the kernel sets. On memfd no process can take memory
 * away, and a lease is a time that this library keeps.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DEFAULT_NS UINT64_C(5000000000)
#define MIN_NS UINT64_C(10000000)
#define MAX_NS UINT64_C(3600000000000)

struct tmesh_client_lease {
	struct tmesh_lease_pages pages; /* module */
	uint64_t ns;			/* memfd */
	atomic_uint_fast64_t touched;	/* memfd: when last */
	atomic_bool lapsed;		/* memfd */
};

/* The value of region->lease once it is known that the region has no lease. */
static struct tmesh_client_lease none;

int tmesh_check_taken(enum tmesh_taken taken, struct tmesh_error *err)
{
	if (taken != TMESH_TAKEN_SIGBUS && taken != TMESH_TAKEN_ZERO)
		return tmesh_fail(err, -EINVAL, "unknown policy %d for memory that is taken away",
				  (int)taken);
	return 0;
}

/* Set a lease that this library keeps, on memfd. */
static int set_cooperative(struct tmesh_region *region, uint64_t ns, struct tmesh_error *err)
{
	struct tmesh_client_lease *lease = calloc(1, sizeof(*lease)), *old;
	int rc = 0;

	if (!lease)
		return tmesh_fail(err, -ENOMEM, "no memory for a lease");
	lease->ns = ns;
	lease->touched = tmesh_now_ns();
	tmesh_region_set_shared(region);
	tmesh_region_lock(region);
	old = atomic_load(&region->lease);
	if (!old)
		atomic_store(&region->lease, lease);
	else
		rc = tmesh_fail(err, -EBUSY, "lease: this handle has one already");
	tmesh_region_unlock(region);
	if (rc)
		free(lease);
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

/* Return the region's lease, looked up once. NULL: that failed, and the next touch tries again. */
static struct tmesh_client_lease *lease_of(struct tmesh_region *region)
{
	const struct tmesh_backend_ops *ops = region->ctx->ops;
	struct tmesh_client_lease *lease =
		atomic_load_explicit(&region->lease, memory_order_acquire);
	struct tmesh_lease_pages pages;
	int rc;

	if (lease)
		return lease;
	if (!ops->lease_map)
		return &none;
	tmesh_region_lock(region);
	lease = atomic_load(&region->lease);
	if (!lease) {
		rc = ops->lease_map(region, &pages, NULL);
		if (rc == -ENODATA) {
			lease = &none;
		} else if (!rc) {
			lease = calloc(1, sizeof(*lease));
			if (lease)
				lease->pages = pages;
			else
				tmesh_lease_unmap(&pages);
		}
		atomic_store_explicit(&region->lease, lease, memory_order_release);
	}
	tmesh_region_unlock(region);
	return lease;
}

static enum tmesh_lease_status state_of(struct tmesh_client_lease *lease)
{
	uint64_t touched;

	if (lease == &none)
		return TMESH_LEASE_NONE;
	if (lease->pages.state)
		return (enum tmesh_lease_status)__atomic_load_n(lease->pages.state,
								__ATOMIC_ACQUIRE);
	/* Read it before the time: another thread's touch may come in between. */
	touched = lease->touched;
	if (!lease->lapsed && tmesh_now_ns() - touched > lease->ns)
		lease->lapsed = true;
	return lease->lapsed ? TMESH_LEASE_HAS_LAPSED : TMESH_LEASE_IS_LIVE;
}

/* Count a use. Two threads may lose one of two increments: it is enough that the number changes. */
static void touch(struct tmesh_client_lease *lease)
{
	uint64_t *counter = lease->pages.touch;

	if (counter)
		__atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + 1,
				 __ATOMIC_RELAXED);
	else
		lease->touched = tmesh_now_ns();
}

enum tmesh_lease_status tmesh_lease_state(struct tmesh_region *region)
{
	struct tmesh_client_lease *lease = lease_of(region);

	/* A region whose lease cannot even be asked for was taken back. */
	return lease ? state_of(lease) : TMESH_LEASE_IS_REVOKED;
}

int tmesh_lease_touch(struct tmesh_region *region)
{
	struct tmesh_client_lease *lease;

	if (TMESH_NEED(NULL, region))
		return -EINVAL;
	if (tmesh_region_inherited(region))
		return -EPERM;
	/* The caller's reads come before the look at the state. */
	atomic_thread_fence(memory_order_acquire);
	lease = lease_of(region);
	if (lease == &none)
		return 0;
	if (!lease || state_of(lease) != TMESH_LEASE_IS_LIVE)
		return -ESTALE;
	touch(lease);
	return 0;
}

bool tmesh_lease_lapsed_here(struct tmesh_region *region)
{
	struct tmesh_client_lease *lease = atomic_load(&region->lease);

	return lease && lease != &none && state_of(lease) != TMESH_LEASE_IS_LIVE;
}

uint64_t tmesh_lease_period_ns(const struct tmesh_region *region)
{
	const struct tmesh_client_lease *lease = atomic_load(&region->lease);

	return lease ? lease->ns : 0;
}

void tmesh_lease_unmap(struct tmesh_lease_pages *pages)
{
	munmap(pages->touch, tmesh_page_bytes());
	munmap((void *)pages->state, tmesh_page_bytes());
}

void tmesh_lease_forget(struct tmesh_region *region)
{
	struct tmesh_client_lease *lease = atomic_load(&region->lease);

	if (!lease || lease == &none)
		return;
	if (lease->pages.touch)
		tmesh_lease_unmap(&lease->pages);
	free(lease);
	atomic_store(&region->lease, NULL);
}
