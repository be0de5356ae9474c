// SPDX-License-Identifier: MIT
/*
 * PyTorch's pluggable allocator: tensors made inside torch.cuda.use_mem_pool() lie in memory that
 * other processes can be given.
 *
 *	allocator = torch.cuda.memory.CUDAPluggableAllocator(
 *	    "libtmesh-cuda-torch.so", "tmesh_torch_malloc", "tmesh_torch_free")
 *	pool = torch.cuda.MemPool(allocator.allocator())
 */
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include <tmesh/cuda.h>

#pragma GCC visibility push(default)
void *tmesh_torch_malloc(ssize_t bytes, int device, struct CUstream_st *stream);
void tmesh_torch_free(void *pointer, ssize_t bytes, int device, struct CUstream_st *stream);
#pragma GCC visibility pop

/* PyTorch makes its own error of NULL, without a reason: this is the only place to say it. */
void *tmesh_torch_malloc(ssize_t bytes, int device, struct CUstream_st *stream)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_error err;
	struct tmesh_cuda *cuda;

	if (bytes <= 0)
		return NULL;
	if (tmesh_cuda_default(&cuda, &err) ||
	    tmesh_cuda_alloc_on(cuda, device, (uint64_t)bytes, 0, stream, &memory, &err)) {
		fprintf(stderr, "tmesh: %zd bytes on GPU %d: %s\n", bytes, device, err.message);
		return NULL;
	}
	return (void *)(uintptr_t)tmesh_cuda_pointer(memory);
}

/* Gives back the reference that malloc left behind, and the one of looking for it. What PyTorch let
 * other streams do with it is done: it waits for their events itself. */
void tmesh_torch_free(void *pointer, ssize_t bytes, int device, struct CUstream_st *stream)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_error err;
	struct tmesh_cuda *cuda;
	uint64_t offset;

	if (!pointer)
		return;
	if (tmesh_cuda_default(&cuda, &err) ||
	    tmesh_cuda_find(cuda, (uintptr_t)pointer, &memory, &offset, &err)) {
		fprintf(stderr, "tmesh: %zd bytes on GPU %d are not given back: %s\n", bytes,
			device, err.message);
		return;
	}
	tmesh_cuda_memory_unref(memory);
	tmesh_cuda_memory_unref_on(memory, stream);
}
