// SPDX-License-Identifier: MIT
/* Any file in the place of a producer's index: refused, or looked up without a step outside. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_index_view view;
	struct tmesh_index_hit hit;
	uint8_t secret[TMESH_SECRET_BYTES] = {0};
	int fd;

	if (size < sizeof(secret))
		return 0;
	memcpy(secret, data, sizeof(secret));
	data += sizeof(secret);
	size -= sizeof(secret);

	fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	/* The head, then the buckets on a page of their own: the bytes after 256 are buckets. */
	if (ftruncate(fd, 2 * TMESH_INDEX_HEAD) || pwrite(fd, data, size < 256 ? size : 256, 0) < 0)
		abort();
	if (size > 256 &&
	    pwrite(fd, data + 256, size - 256 < 4096 ? size - 256 : 4096, TMESH_INDEX_HEAD) < 0)
		abort();
	if (!tmesh_index_view_open(&view, fd)) {
		if (tmesh_index_view_find(&view, secret, &hit))
			tmesh_index_hit_holds(&hit);
		tmesh_index_view_closed(&view);
		tmesh_index_view_close(&view);
	}
	close(fd);
	return 0;
}
