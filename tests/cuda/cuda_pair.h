/* SPDX-License-Identifier: MIT */
/* Helpers of the tests in which memory goes from a producer to a consumer. */
#ifndef TMESH_CUDA_PAIR_H
#define TMESH_CUDA_PAIR_H

#include "cuda_unit.h"

__attribute__((unused)) static struct tmesh_cuda_memory *alloc(struct bed *bed, int device,
							       uint64_t bytes, char first)
{
	struct tmesh_cuda_memory *memory;

	assert_ok(tmesh_cuda_alloc(bed->cuda, device, bytes, 0, &memory, err));
	assert_true(standin_access(device, tmesh_cuda_pointer(memory), &first, 1, true));
	return memory;
}

__attribute__((unused)) static char first_of(struct tmesh_cuda_memory *memory)
{
	char byte = 'E';

	standin_access(info_of(memory).resident, tmesh_cuda_pointer(memory), &byte, 1, false);
	return byte;
}

__attribute__((unused)) static void share(struct tmesh_cuda_memory *memory,
					  char text[TMESH_REF_SIZE])
{
	struct tmesh_layout layout = bytes_layout((int64_t)info_of(memory).bytes);

	assert_ok(tmesh_cuda_share(memory, &layout, NULL, text, TMESH_REF_SIZE, err));
}

/* Helpers are started before this process has a driver, whose threads they would lack. */
#define ALONE_SET_UP(bed, ...)                   \
	struct helper helpers[] = {__VA_ARGS__}; \
	struct bed bed_ = {0}, *bed = &bed_;     \
                                                 \
	bed_open(bed, 8 * MIB)

/* A second driver object of this process imports as another process would. */
struct pair {
	struct bed a, b;
};

__attribute__((unused)) static void pair_open(struct pair *pair)
{
	memset(pair, 0, sizeof(*pair));
	bed_open(&pair->a, 8 * MIB);
	bed_open(&pair->b, 8 * MIB);
}

__attribute__((unused)) static void pair_close(struct pair *pair)
{
	tmesh_cuda_unref(pair->a.cuda);
	tmesh_ctx_unref(pair->a.ctx);
	bed_close(&pair->b);
}

#endif /* TMESH_CUDA_PAIR_H */
