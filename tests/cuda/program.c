// SPDX-License-Identifier: MIT
/* A program that cannot be changed. It says what each call returned; its argument is how it
 * allocates. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <tmesh/cuda.h>

#include "driver_api.h"

int cudaMalloc(void **pointer, size_t bytes);
int cudaFree(void *pointer);
int cudaMallocAsync(void **pointer, size_t bytes, cu_stream stream);
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
	int made;

	cuInit(0);
	cuDevicePrimaryCtxRetain(&context, 1);
	cuCtxPushCurrent_v2(context);
	if (!strcmp(argv[1], "large"))
		made = cudaMalloc(&pointer, (size_t)1 << 40);
	else if (!strcmp(argv[1], "async"))
		made = cudaMallocAsync(&pointer, 1000, NULL);
	else
		made = cudaMalloc(&pointer, 1000);
	printf("%d", made);
	if (!made && !tmesh_cuda_default(&cuda, NULL) &&
	    !tmesh_cuda_find(cuda, (uintptr_t)pointer, &memory, &offset, NULL)) {
		struct tmesh_cuda_info info = {.size = sizeof(info)};

		tmesh_cuda_info(memory, &info, NULL);
		tmesh_cuda_memory_unref(memory);
		printf(" shareable on %d", info.device);
	}
	if (!made)
		printf(" %d", cudaFree(pointer));
	printf(" %d\n", cudaFree(NULL));
	return 0;
}
