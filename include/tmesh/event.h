/* SPDX-License-Identifier: MIT */
/*
 * Events of a region that this process holds. See tmesh/tmesh.h for the conventions of all calls.
 * Since 0.1.
 * Maturity: stable.
 */
#ifndef TMESH_EVENT_H
#define TMESH_EVENT_H

#include <tmesh/region.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The events that a region of this process may have. */
enum tmesh_region_event {
	TMESH_EVENT_TAKEN = 1 << 0,    /* it was taken back, or this handle's lease has lapsed */
	TMESH_EVENT_ALONE = 1 << 1,    /* there is no other holder */
	TMESH_EVENT_ORPHANED = 1 << 2, /* memfd: its maker is gone, its holders keep it */
	TMESH_EVENT_POISONED = 1 << 3, /* module: a process found a memory error in it */
};

/*
 * To wait for any of @events, TAKEN, ALONE or POISONED, poll() the returned descriptor for @wait.
 * The descriptor stays the library's. When poll() returns, tmesh_region_events() gives the present
 * state. On memfd this works for regions of tmesh_region_from_fd(): their maker waits for ALONE,
 * their holders for TAKEN, and poll() also returns for ORPHANED, which is final. A region that was
 * ALONE may be opened by a token the moment after; only after a revocation it stays ALONE. One that
 * is POISONED stays so: to touch the page with the error raises SIGBUS, to copy it gives
 * -EIO, and its other pages are good.
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
