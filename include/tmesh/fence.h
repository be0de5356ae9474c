/* SPDX-License-Identifier: MIT */
/*
 * Fence: a number of a region that only grows, from 0, and tells how far its producer is. Needs
 * the module. See tmesh/tmesh.h for the conventions of all calls. Since 0.1.
 * Maturity: stable.
 */
#ifndef TMESH_FENCE_H
#define TMESH_FENCE_H

#include <tmesh/region.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Announce that @value has been reached. Needs WRITE. The first handle that signals is the
 * region's producer until it is released.
 *
 * Return: 0; -EINVAL (not greater than the last value); -EBUSY (another producer is alive);
 * -EACCES; -EPERM (inherited); -ESTALE; -EOPNOTSUPP (memfd).
 */
int tmesh_fence_signal(struct tmesh_region *region, uint64_t value, struct tmesh_error *err);

/*
 * Wait until the fence has reached @value, at most @timeout_ns (0: do not wait; negative: no
 * limit). On success and on -ETIMEDOUT, -EOWNERDEAD and -EINTR @reached (may be NULL) is set to the
 * present value.
 *
 * Return: 0; -ETIMEDOUT; -EOWNERDEAD (the producer is gone, so @value will not be reached); -EINTR;
 * -ESTALE; -EOPNOTSUPP (memfd).
 */
int tmesh_fence_wait(struct tmesh_region *region, uint64_t value, int64_t timeout_ns,
		     uint64_t *reached, struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_FENCE_H */
