/* SPDX-License-Identifier: MIT */
/*
 * Lease: the time a handle stays good without use. See tmesh/tmesh.h for the conventions of
 * all calls. Since 0.1.
 * Maturity: stable.
 *
 * With the module a lease is enforced: when it lapses, the mappings of its handle and everything
 * made through the handle are taken away. On memfd it is cooperative and covers its handle alone:
 * calls of this library with the handle give -ESTALE, and the memory stays readable until it is
 * unmapped. Handles, exports and tokens made from the handle have no lease.
 *
 * How to read under a lease:
 *
 *	if (!tmesh_lease_touch(region)) {
 *		use(addr);
 *		if (tmesh_lease_touch(region))
 *			what was read is to be thrown away
 *	}
 *
 * A touch never stops a lease from lapsing: memory that goes away in the middle raises SIGBUS, or
 * with TMESH_TAKEN_ZERO reads as zeros, and the second touch tells.
 */
#ifndef TMESH_LEASE_H
#define TMESH_LEASE_H

#include <tmesh/region.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tmesh_lease_status {
	TMESH_LEASE_NONE = 0, /* this handle has no lease */
	TMESH_LEASE_IS_LIVE = 1,
	TMESH_LEASE_HAS_LAPSED = 2,
	TMESH_LEASE_IS_REVOKED = 3, /* the region was taken back */
};

/*
 * Put a lease of @ns (0: 5 s; else 10 ms to 1 h) on this handle, for good. With the module, derived
 * handles, sent handles and exports share the lease, and the handle gives no more tokens. Set the
 * lease on the handle that you will send. The lease lapses when it has not been touched for 1 to
 * 1.25 @ns (to 2 @ns if the machine has tens of thousands of leases).
 *
 * Return: 0; -EINVAL (@ns; a pinning handle); -EBUSY (it has one); -EPERM (inherited);
 * -EOPNOTSUPP (its mappings belong to a memfd or another exporter); -ESTALE; -EDQUOT; -ENOMEM.
 */
int tmesh_lease_set(struct tmesh_region *region, uint64_t ns, enum tmesh_taken taken,
		    struct tmesh_error *err);

/*
 * The same, and the lease ends with the process of @pidfd too. With @ns 0 it needs no touch.
 * Return: also -ESRCH (it has ended), -EBADF, -EINVAL (no pidfd of a process), -EOPNOTSUPP (memfd);
 * -EDQUOT also if 4,096 leases of this user end with that process already.
 */
int tmesh_lease_bind(struct tmesh_region *region, int pidfd, uint64_t ns, enum tmesh_taken taken,
		     struct tmesh_error *err);

/*
 * Touch the lease, without a system call: the module's kernel looks at a counter.
 * Return: 0, also for a handle without a lease; -ESTALE (not live: data read since the last touch
 * may be anything); -EPERM (inherited).
 */
int tmesh_lease_touch(struct tmesh_region *region);

/* Without a touch. */
enum tmesh_lease_status tmesh_lease_state(struct tmesh_region *region);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_LEASE_H */
