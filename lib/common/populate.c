// SPDX-License-Identifier: MIT
#include "populate.h"

#include <errno.h>
#include <sys/mman.h>

/* About a millisecond's pages; a multiple of what huge pages have. */
#define PIECE (UINT64_C(4) << 20)

int tmesh_populate(void *start, uint64_t bytes, int advice)
{
	uint8_t *at = start;

	while (bytes) {
		uint64_t piece = PIECE - (uintptr_t)at % PIECE;

		if (piece > bytes)
			piece = bytes;
		if (madvise(at, piece, advice))
			return -errno;
		at += piece;
		bytes -= piece;
	}
	return 0;
}
