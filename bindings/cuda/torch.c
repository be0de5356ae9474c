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

/* Allocate for PyTorch. PyTorch reports NULL as its own error without a reason, so print the
 * reason. */
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

/* Drop the reference that malloc kept and the one that tmesh_cuda_find() returned. PyTorch itself
 * waits for the events of other streams before it frees the memory. */
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
