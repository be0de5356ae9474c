// SPDX-License-Identifier: MIT
/* Structures of callers that were compiled with another version of the headers. */
#include "sized.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

/* The most by which a later version's structure may be larger: its further members must be zero. */
#define GROWTH 4096

static int wrong_size(size_t size, struct tmesh_error *err)
{
	return tmesh_fail(err, -EINVAL,
			  "the structure's size is %zu; set it to sizeof the structure", size);
}

int tmesh_read_sized(void *dst, size_t dst_bytes, const void *src, struct tmesh_error *err)
{
	const uint8_t *from = src;
	size_t size;

	memset(dst, 0, dst_bytes);
	if (!src)
		return 0;
	memcpy(&size, src, sizeof(size));
	if (size < sizeof(size) || size > GROWTH)
		return wrong_size(size, err);
	for (size_t i = dst_bytes; i < size; i++)
		if (from[i])
			return tmesh_fail(err, -EINVAL,
					  "the structure sets members that this version of "
					  "libtmesh does not know");
	memcpy(dst, src, size < dst_bytes ? size : dst_bytes);
	return 0;
}

int tmesh_write_sized(void *dst, const void *src, size_t src_bytes, struct tmesh_error *err)
{
	size_t size;

	if (!dst)
		return tmesh_fail(err, -EINVAL, "no structure to write to");
	memcpy(&size, dst, sizeof(size));
	if (size < sizeof(size) || size > src_bytes + GROWTH)
		return wrong_size(size, err);
	if (size > src_bytes) {
		memset((uint8_t *)dst + src_bytes, 0, size - src_bytes);
		size = src_bytes;
	}
	/* The caller's own size stays: it is the number of bytes it has. */
	memcpy((uint8_t *)dst + sizeof(size), (const uint8_t *)src + sizeof(size),
	       size - sizeof(size));
	return 0;
}

int tmesh_check_element(size_t have, size_t want, struct tmesh_error *err)
{
	return want < sizeof(want) || want > have + GROWTH ? wrong_size(want, err) : 0;
}

int tmesh_resize_elements(void **array, size_t count, size_t have, size_t want, bool begins,
			  struct tmesh_error *err)
{
	size_t both = have < want ? have : want, bytes;
	uint8_t *at = *array;
	int rc = tmesh_check_element(have, want, err);

	if (rc || !count)
		return rc;
	if (__builtin_mul_overflow(count, want, &bytes))
		return tmesh_fail(err, -ENOMEM, "no memory for a list");
	if (want > have) {
		at = realloc(at, bytes);
		if (!at)
			return tmesh_fail(err, -ENOMEM, "no memory for a list");
		*array = at;
	}
	for (size_t n = 0; n < count && want != have; n++) {
		size_t i = want > have ? count - 1 - n : n;

		memmove(at + i * want, at + i * have, both);
		memset(at + i * want + both, 0, want - both);
	}
	for (size_t i = 0; i < count && begins; i++)
		memcpy(at + i * want, &want, sizeof(want));
	return 0;
}
