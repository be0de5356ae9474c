/* SPDX-License-Identifier: MIT */
/*
 * The tests' own calls to the stand-in driver, beside the driver's calls. A test finds these in the
 * library that it loaded; other processes read TMESH_STANDIN (standin.c).
 */
#ifndef TMESH_STANDIN_H
#define TMESH_STANDIN_H

#include <stdbool.h>
#include <stddef.h>

/* The call of this symbol after @skip more fails with @code; 0 ends that. */
typedef void standin_fail_fn(const char *symbol, int code, unsigned int skip);
/* The next call of this symbol calls @during first. */
typedef void standin_during_fn(const char *symbol, void (*during)(void *data), void *data);
/* Set the stand-in up as TMESH_STANDIN would (standin.c), from now on. NULL resets it. */
typedef void standin_set_up_fn(const char *words);
/* Let this process, which was forked, count as a new program. A child of one that has called
 * cuInit() gets CUDA_ERROR_NOT_INITIALIZED from each call. */
typedef void standin_start_fn(void);
/* How often it was called. */
typedef unsigned long standin_calls_fn(const char *symbol);
/* Return how many of the driver's objects this process holds: handles, mappings, reservations,
 * registrations, allocations, events, contexts, imports. */
typedef unsigned long standin_live_fn(void);
/* A kernel on @device that reads or writes: false when it may not. */
typedef bool standin_access_fn(int device, unsigned long long ptr, void *data, size_t bytes,
			       bool write);
/* Destroy a device's primary context under all its users. A later use of one of its handles aborts:
 * a driver's behaviour is undefined there. */
typedef void standin_reset_fn(int device);

/* Return how many bytes of private mappings of files the kernel would have copied for the driver.
 * These are sources of copies that are mapped for writing, because a copy on unified memory faults
 * them as a write. Registered memory counts too. */
typedef unsigned long long standin_copied_on_write_fn(void);

#endif /* TMESH_STANDIN_H */
