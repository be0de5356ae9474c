// SPDX-License-Identifier: MIT
/* Keep a region that stands for a descriptor, of a length that no machine has in memory:
 * kept_device NAME. */
#include <stdio.h>
#include <tmesh/import.h>
#include <tmesh/keep.h>
#include <tmesh/tmesh.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct tmesh_region *region;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int ends[2];

	if (argc != 2 || pipe(ends))
		return 2;
	if (tmesh_ctx_open(NULL, &ctx, &err) ||
	    tmesh_region_from_fd(ctx, ends[0], UINT64_C(1) << 42, NULL, &region, &err) ||
	    tmesh_keep(ctx, argv[1], &region, 1, NULL, &err)) {
		fprintf(stderr, "%s\n", err.message);
		return 1;
	}
	return 0;
}
