/* SPDX-License-Identifier: MIT */
/* Two beds, a producer and a consumer, for tests that look at what is left of a failure. */
#ifndef TMESH_CUDA_BEDS_H
#define TMESH_CUDA_BEDS_H

#include "cuda_unit.h"

static struct bed a, b;

/* The server of a token closes its copies and the connection a moment later. */
static void settle(void)
{
	eventually(stats_of(&a).bytes_used == 0);
	tmesh_cuda_trim(a.cuda);
}

static void watched(struct bed *bed)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;

	assert_ok(tmesh_region_create(bed->ctx, 4096, NULL, &region, err));
	assert_ok(tmesh_cuda_register(bed->cuda, region, 0, RW, 0, &memory, err));
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(region);
}

static int beds_open(void **state)
{
	bed_open(&a, 8 * MIB);
	bed_open(&b, 8 * MIB);
	/* The thread that releases memory later has descriptors, and stays. */
	watched(&a);
	watched(&b);
	return 0;
}

static int beds_close(void **state)
{
	tmesh_cuda_unref(a.cuda);
	tmesh_ctx_unref(a.ctx);
	tmesh_cuda_unref(b.cuda);
	tmesh_ctx_unref(b.ctx);
	return 0;
}

#define beds_test(f)                                            \
	{                                                       \
		"stand-in: " #f, f, beds_open, beds_close, NULL \
	}

#endif /* TMESH_CUDA_BEDS_H */
