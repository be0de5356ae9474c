// SPDX-License-Identifier: MIT
/*
 * An unchanged program with the toolkit's own static CUDA runtime. It prints the results of
 * cudaMalloc() and cudaFree(), and whether the preload's library has the memory. On the stand-in
 * cudaMalloc() fails: the stand-in lacks the private tables that the runtime asks for.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

#include <tmesh/cuda.h>

int cudaMalloc(void **pointer, size_t bytes);
int cudaFree(void *pointer);

static bool is_shareable(void *pointer)
{
	__typeof__(&tmesh_cuda_default) get;
	__typeof__(&tmesh_cuda_find) find;
	struct tmesh_cuda_memory *memory;
	struct tmesh_cuda *cuda;
	uint64_t offset;

	*(void **)&get = dlsym(RTLD_DEFAULT, "tmesh_cuda_default");
	*(void **)&find = dlsym(RTLD_DEFAULT, "tmesh_cuda_find");
	/* The reference that is found stays: the process ends soon. */
	return get && find && !get(&cuda, NULL) &&
	       !find(cuda, (uintptr_t)pointer, &memory, &offset, NULL);
}

int main(void)
{
	void *pointer = NULL;
	int rc = cudaMalloc(&pointer, 1000);

	printf("%d", rc);
	if (!rc)
		printf(" %s %d", is_shareable(pointer) ? "shareable" : "not shareable",
		       cudaFree(pointer));
	printf("\n");
	return 0;
}
