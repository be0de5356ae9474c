// SPDX-License-Identifier: MIT
/* A stand-in for libcudart.so, of which the hook takes two functions over. */
#include "driver_api.h"

cu_result cuMemAlloc_v2(cu_ptr *ptr, size_t bytes);
cu_result cuMemFree_v2(cu_ptr ptr);
cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device);
cu_result cuCtxPushCurrent_v2(cu_context context);
int cudaGetDevice(int *device);
int cudaMalloc(void **pointer, size_t bytes);
int cudaFree(void *pointer);
int cudaMallocAsync(void **pointer, size_t bytes, cu_stream stream);
int cudaFreeAsync(void *pointer, cu_stream stream);
int cudaMallocAsync_ptsz(void **pointer, size_t bytes, cu_stream stream);
int cudaFreeAsync_ptsz(void *pointer, cu_stream stream);
int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height);
int cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags);

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

int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
	*pitch = width;
	return cuMemAlloc_v2((cu_ptr *)pointer, width * height);
}

int cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags)
{
	return cuMemAlloc_v2((cu_ptr *)pointer, bytes);
}

int cudaFreeAsync(void *pointer, cu_stream stream)
{
	return cuMemFree_v2((cu_ptr)pointer);
}

/* For programs that were compiled with a default stream per thread. */
int cudaMallocAsync_ptsz(void **pointer, size_t bytes, cu_stream stream)
{
	return cudaMallocAsync(pointer, bytes, stream);
}

int cudaFreeAsync_ptsz(void *pointer, cu_stream stream)
{
	return cudaFreeAsync(pointer, stream);
}

int cudaFree(void *pointer)
{
	static __thread int current;
	cu_context context;

	if (!current && !cuDevicePrimaryCtxRetain(&context, 1))
		current = !cuCtxPushCurrent_v2(context);
	return pointer ? cuMemFree_v2((cu_ptr)pointer) : 0;
}
