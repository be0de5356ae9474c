// SPDX-License-Identifier: MIT
/*
 * LD_PRELOAD=libtmesh-cuda-hook.so: cudaMalloc() of a program that cannot be changed gives memory
 * that can be shared. For what can be changed there is PyTorch's allocator, which leaves the rest
 * alone.
 *
 * It sees calls that the dynamic linker resolves: not those of a CUDA runtime that was linked
 * statically, not the driver's own calls, and not cudaMallocAsync(). What it does not see, or
 * cannot serve, goes on as without it; each is said once on stderr.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <tmesh/cuda.h>

#define CUDA_OUT_OF_MEMORY 2
#define CUDA_UNKNOWN 999

#pragma GCC visibility push(default)
int cudaMalloc(void **pointer, size_t bytes);
int cudaFree(void *pointer);
int cudaMallocAsync(void **pointer, size_t bytes, struct CUstream_st *stream);
#pragma GCC visibility pop

static atomic_bool seen;

static void say_once(atomic_flag *said, const char *what, const char *why)
{
	if (!atomic_flag_test_and_set(said))
		fprintf(stderr, "tmesh hook: %s%s\n", what, why);
}

struct search {
	const char *part;
	char path[4096];
};

static int look(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *search = data;

	if (!strstr(info->dlpi_name, search->part))
		return 0;
	snprintf(search->path, sizeof(search->path), "%s", info->dlpi_name);
	return 1;
}

static bool is_loaded(struct search *search)
{
	return dl_iterate_phdr(look, search);
}

/* The runtime's own function, wherever the runtime was loaded from: RTLD_NEXT would not find what
 * a Python module brought along. */
static void *real(const char *name)
{
	struct search runtime = {.part = "/libcudart.so"};
	void *library, *symbol = NULL;

	if (is_loaded(&runtime)) {
		library = dlopen(runtime.path, RTLD_NOW | RTLD_NOLOAD);
		symbol = library ? dlsym(library, name) : NULL;
		if (library)
			dlclose(library);
	}
	return symbol;
}

static int real_malloc(void **pointer, size_t bytes)
{
	int (*call)(void **pointer, size_t bytes);

	*(void **)&call = real("cudaMalloc");
	return call ? call(pointer, bytes) : CUDA_UNKNOWN;
}

static int current_device(void)
{
	int (*call)(int *device);
	int device = 0;

	*(void **)&call = real("cudaGetDevice");
	return call && !call(&device) ? device : 0;
}

int cudaMalloc(void **pointer, size_t bytes)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	struct tmesh_cuda_memory *memory;
	struct tmesh_error err;
	struct tmesh_cuda *cuda;
	int rc;

	seen = true;
	if (!pointer || !bytes)
		return real_malloc(pointer, bytes);
	rc = tmesh_cuda_default(&cuda, &err);
	if (!rc)
		rc = tmesh_cuda_alloc(cuda, current_device(), bytes, 0, &memory, &err);
	if (rc == -ENOMEM)
		return CUDA_OUT_OF_MEMORY;
	if (rc) {
		say_once(&said, "memory is not shareable: ", err.message);
		return real_malloc(pointer, bytes);
	}
	*pointer = (void *)(uintptr_t)tmesh_cuda_pointer(memory);
	return 0;
}

/* cudaFree(NULL), by which programs start the runtime, is the runtime's. */
int cudaFree(void *pointer)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_cuda *cuda;
	int (*call)(void *pointer);
	uint64_t offset;

	if (pointer && !tmesh_cuda_default(&cuda, NULL) &&
	    !tmesh_cuda_find(cuda, (uintptr_t)pointer, &memory, &offset, NULL)) {
		/* The one of looking for it, and the one that cudaMalloc() left behind. */
		tmesh_cuda_memory_unref(memory);
		tmesh_cuda_memory_unref(memory);
		return 0;
	}
	*(void **)&call = real("cudaFree");
	return call ? call(pointer) : CUDA_UNKNOWN;
}

int cudaMallocAsync(void **pointer, size_t bytes, struct CUstream_st *stream)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	int (*call)(void **pointer, size_t bytes, struct CUstream_st *stream);

	seen = true;
	say_once(&said, "memory of cudaMallocAsync() is not shareable", "");
	*(void **)&call = real("cudaMallocAsync");
	return call ? call(pointer, bytes, stream) : CUDA_UNKNOWN;
}

__attribute__((destructor)) static void say_what_was_missed(void)
{
	struct search driver = {.part = "/libcuda.so"}, runtime = {.part = "/libcudart.so"};

	if (!seen && is_loaded(&driver) && !is_loaded(&runtime))
		fprintf(stderr,
			"tmesh hook: the program uses CUDA without libcudart.so: its runtime is "
			"linked statically, or it calls the driver itself; nothing was "
			"shareable\n");
}
