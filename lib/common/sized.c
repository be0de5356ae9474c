// SPDX-License-Identifier: MIT
/* Structures of callers that were compiled with another version of the headers. */
#include "sized.h"

#include <errno.h>
#include <string.h>

#include "error.h"

int tmesh_read_sized(void *dst, size_t dst_bytes, const void *src, struct tmesh_error *err)
{
	const uint8_t *from = src;
	size_t size;

	memset(dst, 0, dst_bytes);
	if (!src)
		return 0;
	memcpy(&size, src, sizeof(size));
	if (size < sizeof(size) || size > 4096)
		return tmesh_fail(err, -EINVAL,
				  "the structure's size is %zu; set it to sizeof the structure",
				  size);
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
	if (size < sizeof(size))
		return tmesh_fail(err, -EINVAL,
				  "the structure's size is %zu; set it to sizeof the structure",
				  size);
	if (size > src_bytes) {
		memset((uint8_t *)dst + src_bytes, 0, size - src_bytes);
		size = src_bytes;
	}
	/* The caller's own size stays: it says how much is there. */
	memcpy((uint8_t *)dst + sizeof(size), (const uint8_t *)src + sizeof(size),
	       size - sizeof(size));
	return 0;
}
