// SPDX-License-Identifier: MIT
/*
 * An unchanged program that finds the driver as a statically linked CUDA runtime does: dlopen(),
 * dlsym() of cuGetProcAddress(), and that for all other functions. It prints the result of each
 * call; its argument is how.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <tmesh/cuda.h>

#include "driver_api.h"

typedef int proc_v1_fn(const char *name, void **function, int version, unsigned long long flags);
typedef int proc_v2_fn(const char *name, void **function, int version, unsigned long long flags,
		       int *status);

static void *library;
static const char *how;

/* As the runtime of CUDA 13 asks; "old": of 11.3; "older": from before cuGetProcAddress(). */
static void *find(const char *name, const char *symbol, int version)
{
	proc_v1_fn *v1;
	proc_v2_fn *v2;
	void *function = NULL;

	if (!strcmp(how, "older"))
		return dlsym(library, symbol);
	*(void **)&v1 = dlsym(library, "cuGetProcAddress");
	*(void **)&v2 = dlsym(library, "cuGetProcAddress_v2");
	if (!strcmp(how, "old"))
		v1(name, &function, version, 0);
	else
		v2(name, &function, version, !strcmp(how, "thread") ? 2 : 0, NULL);
	return function;
}

static bool is_shareable(cu_ptr pointer, int *device)
{
	struct tmesh_cuda_info info = {.size = sizeof(info)};
	struct tmesh_cuda_memory *memory;
	struct tmesh_cuda *cuda;
	uint64_t offset;

	if (tmesh_cuda_default(&cuda, NULL) ||
	    tmesh_cuda_find(cuda, pointer, &memory, &offset, NULL))
		return false;
	tmesh_cuda_info(memory, &info, NULL);
	tmesh_cuda_memory_unref(memory);
	*device = info.device;
	return true;
}

int main(int argc, char **argv)
{
	cu_result (*init)(unsigned int flags);
	cu_result (*retain)(cu_context * context, cu_device device);
	cu_result (*push)(cu_context context);
	cu_result (*alloc)(cu_ptr * ptr, size_t bytes);
	cu_result (*give_back)(cu_ptr ptr);
	cu_result (*give_back_on)(cu_ptr ptr, cu_stream stream);
	cu_context context;
	cu_ptr pointer = 0;
	int device;

	how = argv[1];
	library = dlopen("libcuda.so.1", RTLD_NOW);
	*(void **)&init = find("cuInit", "cuInit", 2000);
	*(void **)&retain = find("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000);
	*(void **)&push = find("cuCtxPushCurrent", "cuCtxPushCurrent_v2", 4000);
	*(void **)&alloc = find("cuMemAlloc", "cuMemAlloc_v2", 3020);
	*(void **)&give_back = find("cuMemFree", "cuMemFree_v2", 3020);
	*(void **)&give_back_on = find("cuMemFreeAsync", "cuMemFreeAsync", 11020);
	printf("%d", init(0));
	printf(" no context %d", alloc(&pointer, 1000));
	retain(&context, 1);
	push(context);
	printf(" %d", alloc(&pointer, strcmp(how, "large") ? 1000 : (size_t)1 << 40));
	if (pointer && is_shareable(pointer, &device))
		printf(" shareable on %d", device);
	if (pointer)
		printf(" %d", strcmp(how, "async") && strcmp(how, "thread")
				      ? give_back(pointer)
				      : give_back_on(pointer, NULL));
	/* RTLD_NEXT searches behind this program, and not behind the hook. */
	printf(" %s\n",
	       dlsym(RTLD_NEXT, "dlsym") == dlsym(RTLD_DEFAULT, "dlsym") ? "next" : "not next");
	return 0;
}
