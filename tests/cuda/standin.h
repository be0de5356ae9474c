/* SPDX-License-Identifier: MIT */
/*
 * What tests say to the stand-in driver, beyond the driver's own calls. They find these in the
 * library that they loaded; other processes are told by TMESH_STANDIN (standin.c).
 */
#ifndef TMESH_STANDIN_H
#define TMESH_STANDIN_H

#include <stdbool.h>
#include <stddef.h>

/* The call of this symbol after @skip more fails with @code; 0 ends that. */
typedef void standin_fail_fn(const char *symbol, int code, unsigned int skip);
/* The next call of this symbol calls @during first. */
typedef void standin_during_fn(const char *symbol, void (*during)(void *data), void *data);
/* What TMESH_STANDIN says (standin.c), from now on; NULL: nothing. */
typedef void standin_set_up_fn(const char *words);
/* How often it was called. */
typedef unsigned long standin_calls_fn(const char *symbol);
/* What this process has of the driver's objects and not given back: handles, mappings,
 * reservations, registrations, allocations, events, contexts, imports. */
typedef unsigned long standin_live_fn(void);
/* A kernel on @device that reads or writes: false when it may not. */
typedef bool standin_access_fn(int device, unsigned long long ptr, void *data, size_t bytes,
			       bool write);
/* Destroy a device's primary context under everybody. Who uses a handle of it afterwards is
 * aborted: what a driver does then is anybody's guess. */
typedef void standin_reset_fn(int device);

#endif /* TMESH_STANDIN_H */
