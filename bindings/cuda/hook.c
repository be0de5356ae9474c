// SPDX-License-Identifier: MIT
/*
 * LD_PRELOAD=libtmesh-cuda-hook.so makes cudaMalloc() of an unchanged program return memory that
 * can be shared. If the program can be changed, prefer PyTorch's allocator, which leaves other
 * memory alone.
 *
 * The hook sees calls that the dynamic linker resolves, and those of hook_driver.c. Memory of
 * cudaMallocAsync() and cudaMallocManaged() stays the runtime's. A call that the hook cannot serve
 * goes to the runtime; the reason is printed once on stderr.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "hook.h"

#pragma GCC visibility push(default)
int cudaMalloc(void **pointer, size_t bytes);
int cudaFree(void *pointer);
int cudaMallocAsync(void **pointer, size_t bytes, struct CUstream_st *stream);
int cudaFreeAsync(void *pointer, struct CUstream_st *stream);
int cudaMallocAsync_ptsz(void **pointer, size_t bytes, struct CUstream_st *stream);
int cudaFreeAsync_ptsz(void *pointer, struct CUstream_st *stream);
int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height);
int cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags);
#pragma GCC visibility pop

#define PITCH 512 /* a multiple of what any device asks for */

static atomic_bool seen;

static void say_once(atomic_flag *said, const char *what, const char *why)
{
	if (!atomic_flag_test_and_set(said))
		fprintf(stderr, "tmesh hook: %s%s\n", what, why);
}

struct search {
	const char *name;
	char path[4096];
};

/* Return whether the path is of the library, also if a wheel that carries it has put a hash behind
 * its name: libcudart-0123abcd.so.12. */
static bool is_named(const char *path, const char *name)
{
	const char *last = strrchr(path, '/');
	size_t length = strlen(name);

	if (!last || strncmp(last + 1, name, length))
		return false;
	last += 1 + length;
	return !strncmp(last, ".so", 3) || (*last == '-' && strstr(last, ".so"));
}

static int hook_library(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *search = data;

	if (!is_named(info->dlpi_name, search->name))
		return 0;
	snprintf(search->path, sizeof(search->path), "%s", info->dlpi_name);
	return 1;
}

static bool is_loaded(struct search *search)
{
	return dl_iterate_phdr(hook_library, search);
}

/* Find the runtime's own function, wherever the runtime was loaded from: RTLD_NEXT does not find a
 * runtime that a Python module loaded. */
static void *real(const char *name)
{
	struct search runtime = {.name = "libcudart"};
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

/* Make the device's context current, as the runtime's calls do: some programs go on with the
 * driver's calls. cudaFree(NULL) does nothing else. */
static void make_current(void)
{
	int (*call)(void *pointer);

	*(void **)&call = real("cudaFree");
	if (call)
		call(NULL);
}

int hook_allocate(int device, size_t bytes, uint64_t *pointer)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	struct tmesh_cuda_memory *memory;
	struct tmesh_error err;
	struct tmesh_cuda *cuda;
	int rc = tmesh_cuda_default(&cuda, &err);

	if (!rc)
		rc = tmesh_cuda_alloc(cuda, device, bytes, 0, &memory, &err);
	if (!rc)
		*pointer = tmesh_cuda_pointer(memory);
	else if (rc != -ENOMEM)
		say_once(&said, "memory is not shareable: ", err.message);
	return rc;
}

int cudaMalloc(void **pointer, size_t bytes)
{
	uint64_t at;
	int rc;

	seen = true;
	if (!pointer || !bytes)
		return real_malloc(pointer, bytes);
	make_current();
	rc = hook_allocate(current_device(), bytes, &at);
	if (rc == -ENOMEM)
		return CUDA_OUT_OF_MEMORY;
	if (rc)
		return real_malloc(pointer, bytes);
	*pointer = (void *)(uintptr_t)at;
	return 0;
}

bool hook_give_back(uint64_t pointer, struct CUstream_st *stream)
{
	struct tmesh_cuda_memory *memory;
	struct tmesh_cuda *cuda;
	uint64_t offset;

	if (!pointer || tmesh_cuda_default(&cuda, NULL) ||
	    tmesh_cuda_find(cuda, pointer, &memory, &offset, NULL))
		return false;
	/* Drop the reference of the search, and the one that cudaMalloc() left. The runtime refuses
	 * an address inside the memory. */
	tmesh_cuda_memory_unref(memory);
	if (!offset)
		tmesh_cuda_memory_unref_on(memory, stream);
	return !offset;
}

/* Free memory. cudaFree(NULL), by which programs start the runtime, goes to the runtime. */
int cudaFree(void *pointer)
{
	int (*call)(void *pointer);

	if (hook_give_back((uintptr_t)pointer, TMESH_CUDA_NO_STREAM))
		return 0;
	*(void **)&call = real("cudaFree");
	return call ? call(pointer) : CUDA_UNKNOWN;
}

static int malloc_async(const char *name, void **pointer, size_t bytes, struct CUstream_st *stream)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	int (*call)(void **pointer, size_t bytes, struct CUstream_st *stream);

	seen = true;
	say_once(&said, "memory of cudaMallocAsync() is not shareable", "");
	*(void **)&call = real(name);
	return call ? call(pointer, bytes, stream) : CUDA_UNKNOWN;
}

int cudaMallocAsync(void **pointer, size_t bytes, struct CUstream_st *stream)
{
	return malloc_async("cudaMallocAsync", pointer, bytes, stream);
}

/* The functions with this ending are for programs compiled with a default stream per thread. */
int cudaMallocAsync_ptsz(void **pointer, size_t bytes, struct CUstream_st *stream)
{
	return malloc_async("cudaMallocAsync_ptsz", pointer, bytes, stream);
}

static int free_async(const char *name, void *pointer, struct CUstream_st *stream)
{
	int (*call)(void *pointer, struct CUstream_st *stream);

	*(void **)&call = real(name);
	return call ? call(pointer, stream) : CUDA_UNKNOWN;
}

/* Free memory in a stream's order, also that of cudaMalloc(), as programs may. */
int cudaFreeAsync(void *pointer, struct CUstream_st *stream)
{
	return hook_give_back((uintptr_t)pointer, stream)
		       ? 0
		       : free_async("cudaFreeAsync", pointer, stream);
}

int cudaFreeAsync_ptsz(void *pointer, struct CUstream_st *stream)
{
	return hook_give_back((uintptr_t)pointer, stream ? stream : CU_STREAM_PER_THREAD)
		       ? 0
		       : free_async("cudaFreeAsync_ptsz", pointer, stream);
}

int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
	int (*call)(void **pointer, size_t *pitch, size_t width, size_t height);
	size_t row, bytes;

	if (pointer && pitch && width && height &&
	    !__builtin_add_overflow(width, PITCH - 1, &row) &&
	    !__builtin_mul_overflow(row & ~(size_t)(PITCH - 1), height, &bytes)) {
		*pitch = row & ~(size_t)(PITCH - 1);
		return cudaMalloc(pointer, bytes);
	}
	*(void **)&call = real("cudaMallocPitch");
	return call ? call(pointer, pitch, width, height) : CUDA_UNKNOWN;
}

int cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	int (*call)(void **pointer, size_t bytes, unsigned int flags);

	seen = true;
	say_once(&said, "memory of cudaMallocManaged() is not shareable", "");
	*(void **)&call = real("cudaMallocManaged");
	return call ? call(pointer, bytes, flags) : CUDA_UNKNOWN;
}

__attribute__((destructor)) static void say_what_was_missed(void)
{
	struct search driver = {.name = "libcuda"}, runtime = {.name = "libcudart"};

	if (seen || (hook_driver_was_asked() && hook_driver_is_on()))
		return;
	if ((hook_driver_was_asked() || is_loaded(&driver)) && !is_loaded(&runtime))
		fprintf(stderr,
			"tmesh hook: the program uses CUDA without libcudart.so: its runtime is "
			"linked statically, or it calls the driver itself; nothing was "
			"shareable: set TMESH_CUDA_HOOK_DRIVER=1\n");
}
