/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_SIZED_H
#define TMESH_COMMON_SIZED_H

#include "public.h"

/*
 * Read a sized structure of the caller's into ours. Members that an older caller does not have
 * become zero. Members that a newer caller sets beyond ours are refused.
 */
int tmesh_read_sized(void *dst, size_t dst_bytes, const void *src, struct tmesh_error *err);
/* Write as much of ours as the caller has room for; @dst begins with its size. -EINVAL: no version
 * of the structure has that size. */
int tmesh_write_sized(void *dst, const void *src, size_t src_bytes, struct tmesh_error *err);
/*
 * Convert the @count elements of @array, of malloc(), from our @have bytes each to the caller's
 * @want. Members that we do not have become zero. @begins: the elements begin with their size,
 * which becomes the caller's. On failure the array is as it was.
 */
int tmesh_resize_elements(void **array, size_t count, size_t have, size_t want, bool begins,
			  struct tmesh_error *err);
/* Check that a caller's elements may have @want bytes if ours have @have. */
int tmesh_check_element(size_t have, size_t want, struct tmesh_error *err);

#endif /* TMESH_COMMON_SIZED_H */
