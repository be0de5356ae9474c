// SPDX-License-Identifier: MIT
/* An unchanged program. It prints the result of each call; its argument is how it allocates. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <tmesh/cuda.h>

#include "driver_api.h"

int cudaMalloc(void **pointer, size_t bytes);
int cudaFree(void *pointer);
int cudaMallocAsync(void **pointer, size_t bytes, cu_stream stream);
int cudaFreeAsync(void *pointer, cu_stream stream);
int cudaMallocAsync_ptsz(void **pointer, size_t bytes, cu_stream stream);
int cudaFreeAsync_ptsz(void *pointer, cu_stream stream);
int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height);
int cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags);
cu_result cuMemAlloc_v2(cu_ptr *ptr, size_t bytes);
cu_result cuInit(unsigned int flags);
cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device);
cu_result cuCtxPushCurrent_v2(cu_context context);

int main(int argc, char **argv)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_cuda *cuda;
	cu_context context;
	void *pointer = NULL;
	uint64_t offset;
	size_t pitch = 0;
	int made, freed;
	cu_ptr other;

	cuInit(0);
	if (strcmp(argv[1], "current")) {
		cuDevicePrimaryCtxRetain(&context, 1);
		cuCtxPushCurrent_v2(context);
	}
	if (!strcmp(argv[1], "large"))
		made = cudaMalloc(&pointer, (size_t)1 << 40);
	else if (!strcmp(argv[1], "async"))
		made = cudaMallocAsync(&pointer, 1000, NULL);
	else if (!strcmp(argv[1], "asyncthread"))
		made = cudaMallocAsync_ptsz(&pointer, 1000, NULL);
	else if (!strcmp(argv[1], "pitch"))
		made = cudaMallocPitch(&pointer, &pitch, 1000, 3);
	else if (!strcmp(argv[1], "managed"))
		made = cudaMallocManaged(&pointer, 1000, 1);
	else
		made = cudaMalloc(&pointer, 1000);
	printf("%d", made);
	if (pitch)
		printf(" pitch %zu", pitch);
	if (!strcmp(argv[1], "current"))
		printf(" then %d", cuMemAlloc_v2(&other, 1000));
	if (!made && !tmesh_cuda_default(&cuda, NULL) &&
	    !tmesh_cuda_find(cuda, (uintptr_t)pointer, &memory, &offset, NULL)) {
		struct tmesh_cuda_info info = {.size = sizeof(info)};

		tmesh_cuda_info(memory, &info, NULL);
		tmesh_cuda_memory_unref(memory);
		printf(" shareable on %d", info.device);
	}
	if (!strcmp(argv[1], "inside"))
		printf(" inside %d", cudaFree((char *)pointer + 512));
	freed = made				 ? -1
		: !strcmp(argv[1], "freeasync")	 ? cudaFreeAsync(pointer, NULL)
		: !strcmp(argv[1], "freethread") ? cudaFreeAsync_ptsz(pointer, NULL)
						 : cudaFree(pointer);
	if (!made)
		printf(" %d", freed);
	printf(" %d\n", cudaFree(NULL));
	return 0;
}
