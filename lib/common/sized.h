/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_SIZED_H
#define TMESH_COMMON_SIZED_H

#include "public.h"

/*
 * Read a sized structure of the caller's into ours: what an older caller does not know
 * reads as zero, what a newer one sets beyond us is refused.
 */
int tmesh_read_sized(void *dst, size_t dst_bytes, const void *src, struct tmesh_error *err);
/* Write as much of ours as the caller has room for; @dst begins with its size. */
int tmesh_write_sized(void *dst, const void *src, size_t src_bytes, struct tmesh_error *err);

#endif /* TMESH_COMMON_SIZED_H */
