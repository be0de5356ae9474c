// SPDX-License-Identifier: MIT
/* A stand-in for libcudart.so, of which the hook takes two functions over. */
#include "driver_api.h"

cu_result cuMemAlloc_v2(cu_ptr *ptr, size_t bytes);
cu_result cuMemFree_v2(cu_ptr ptr);
int cudaGetDevice(int *device);
int cudaMalloc(void **pointer, size_t bytes);
int cudaFree(void *pointer);
int cudaMallocAsync(void **pointer, size_t bytes, cu_stream stream);

int cudaGetDevice(int *device)
{
	*device = 1;
	return 0;
}

int cudaMalloc(void **pointer, size_t bytes)
{
	return cuMemAlloc_v2((cu_ptr *)pointer, bytes);
}

int cudaMallocAsync(void **pointer, size_t bytes, cu_stream stream)
{
	return cuMemAlloc_v2((cu_ptr *)pointer, bytes);
}

int cudaFree(void *pointer)
{
	return pointer ? cuMemFree_v2((cu_ptr)pointer) : 0;
}
