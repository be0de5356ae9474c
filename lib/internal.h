/* SPDX-License-Identifier: MIT */
/*
 * What the files of the library share. Nothing here is seen outside libtmesh.
 */
#ifndef TMESH_INTERNAL_H
#define TMESH_INTERNAL_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The library is built with hidden visibility; what the public headers declare is seen. */
#pragma GCC visibility push(default)
#include <tmesh/tmesh.h>
#pragma GCC visibility pop

/* Fill @err (may be NULL) and return @code, a negative errno. */
int tmesh_fail(struct tmesh_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4), cold));

/* Account one copy of tensor bytes that the library itself made. */
void tmesh_count_copy(struct tmesh_ctx *ctx, uint64_t bytes);

/* The region's context, good while the region lives. */
struct tmesh_ctx *tmesh_region_ctx(const struct tmesh_region *region);

/* The region's length as asked at its creation, and its id; neither makes a system call. */
uint64_t tmesh_region_bytes(const struct tmesh_region *region);
uint64_t tmesh_region_id(const struct tmesh_region *region);

/* memcpy() that goes past the caches when @n is large. */
void tmesh_copy(void *dst, const void *src, size_t n);

#endif /* TMESH_INTERNAL_H */
