/* SPDX-License-Identifier: MIT */
/*
 * Events: what happens to a region that this process holds. See tmesh/tmesh.h for the conventions
 * of all calls. Since 0.1.
 */
#ifndef TMESH_EVENT_H
#define TMESH_EVENT_H

#include <tmesh/region.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What may happen to a region that this process holds. */
enum tmesh_region_event {
	TMESH_EVENT_TAKEN = 1 << 0,    /* it was taken back, or this handle's lease has lapsed */
	TMESH_EVENT_ALONE = 1 << 1,    /* nobody else holds it */
	TMESH_EVENT_ORPHANED = 1 << 2, /* memfd: who made it is gone, its holders keep it */
};

/*
 * How to wait for any of @events, TAKEN or ALONE: poll() the returned descriptor, which stays the
 * library's, for @wait; when it returns, tmesh_region_events() says what is so now. On memfd this
 * is for regions of tmesh_region_from_fd(): their maker waits for ALONE, their holders for TAKEN,
 * and poll() returns for ORPHANED too, once and for all. What was ALONE may be opened by a token
 * the moment after; only after a revocation it stays so.
 *
 * Return: the descriptor; -EINVAL (@events); -EPERM (inherited); -EOPNOTSUPP (other regions on
 * memfd; an event that this process cannot wait for).
 */
int tmesh_region_poll_fd(struct tmesh_region *region, uint32_t events, short *wait,
			 struct tmesh_error *err);
uint32_t tmesh_region_events(struct tmesh_region *region);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_EVENT_H */
