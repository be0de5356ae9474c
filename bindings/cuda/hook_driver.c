// SPDX-License-Identifier: MIT
/*
 * Memory of CUDA runtimes that were linked statically. Such a runtime finds each function of the
 * driver by dlsym() and cuGetProcAddress(). With TMESH_CUDA_HOOK_DRIVER=1 the hook answers these
 * with functions of its own for cuMemAlloc(), cuMemFree() and cuMemFreeAsync().
 *
 * This is not done without the variable, because it reaches every library of the program. One that
 * hands over memory by cuIpc, as NCCL may, would get memory for which the driver has no handle.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "hook.h"

#define PER_THREAD_FLAG 2 /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */

__attribute__((visibility("default"))) void *dlsym(void *restrict handle,
						   const char *restrict name);

typedef void *dlsym_fn(void *restrict handle, const char *restrict name);
typedef int proc_v1_fn(const char *name, void **function, int version, uint64_t flags);
typedef int proc_v2_fn(const char *name, void **function, int version, uint64_t flags, int *status);

enum function {
	PROC_V1,
	PROC_V2,
	ALLOC,
	FREE,
	FREE_ASYNC,
	FREE_ASYNC_PER_THREAD,
};

static int proc_v1(const char *name, void **function, int version, uint64_t flags);
static int proc_v2(const char *name, void **function, int version, uint64_t flags, int *status);
static int alloc(uint64_t *pointer, size_t bytes);
static int free_now(uint64_t pointer);
static int free_async(uint64_t pointer, struct CUstream_st *stream);
static int free_async_per_thread(uint64_t pointer, struct CUstream_st *stream);

/* The driver's functions that the hook takes over. */
static struct taken {
	const char *symbol; /* of the library */
	const char *name;   /* by which cuGetProcAddress() knows it, */
	int from, before;   /* in these versions */
	uint64_t flags;
	void *ours;
	_Atomic(void *) real;
} taken[] = {
	[PROC_V1] = {"cuGetProcAddress", "cuGetProcAddress", 11030, 12000, 0, (void *)proc_v1},
	[PROC_V2] = {"cuGetProcAddress_v2", "cuGetProcAddress", 12000, INT32_MAX, 0,
		     (void *)proc_v2},
	[ALLOC] = {"cuMemAlloc_v2", "cuMemAlloc", 3020, INT32_MAX, 0, (void *)alloc},
	[FREE] = {"cuMemFree_v2", "cuMemFree", 3020, INT32_MAX, 0, (void *)free_now},
	[FREE_ASYNC] = {"cuMemFreeAsync", "cuMemFreeAsync", 11020, INT32_MAX, 0,
			(void *)free_async},
	[FREE_ASYNC_PER_THREAD] = {"cuMemFreeAsync_ptsz", "cuMemFreeAsync", 11020, INT32_MAX,
				   PER_THREAD_FLAG, (void *)free_async_per_thread},
};
#define TAKEN (sizeof(taken) / sizeof(taken[0]))

static atomic_bool asked;

bool hook_driver_was_asked(void)
{
	return asked;
}

bool hook_driver_is_on(void)
{
	static _Atomic enum {
		UNREAD,
		OFF,
		ON
	} state;
	const char *value;

	/* Read it once: another thread may call setenv() later. */
	if (state == UNREAD) {
		value = secure_getenv("TMESH_CUDA_HOOK_DRIVER");
		state = value && !strcmp(value, "1") ? ON : OFF;
	}
	return state == ON;
}

/* Return the C library's dlsym(), by the versions that it has on x86-64 and aarch64. */
static dlsym_fn *real_dlsym(void)
{
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
	static _Atomic(void *) found;
	void *symbol = found;
	dlsym_fn *call;

	for (size_t i = 0; !symbol && i < sizeof(versions) / sizeof(versions[0]); i++)
		symbol = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	if (!symbol)
		abort();
	found = symbol;
	*(void **)&call = symbol;
	return call;
}

static bool same_library(const void *a, const void *b)
{
	Dl_info of_a, of_b;

	return dladdr(a, &of_a) && dladdr(b, &of_b) && of_a.dli_fbase == of_b.dli_fbase;
}

static bool is_of_driver(const void *symbol)
{
	Dl_info info;

	return dladdr(symbol, &info) && info.dli_fname && strstr(info.dli_fname, "libcuda.so");
}

/* Return the hook's function in place of the driver's, which it calls for other memory. */
static void *take(struct taken *what, void *symbol)
{
	if (!symbol || symbol == what->ours)
		return symbol;
	asked = true;
	if (!hook_driver_is_on())
		return symbol;
	what->real = symbol;
	return what->ours;
}

static struct taken *by_symbol(const char *symbol)
{
	for (size_t i = 0; i < TAKEN; i++)
		if (!strcmp(taken[i].symbol, symbol))
			return &taken[i];
	return NULL;
}

/*
 * Find a symbol. The C library's dlsym() is called last, as a jump, because RTLD_NEXT means the
 * library that comes after the caller. libtmesh-cuda itself gets the driver's own functions.
 */
void *dlsym(void *restrict handle, const char *restrict name)
{
	dlsym_fn *real = real_dlsym();
	struct taken *what;
	void *symbol;

	what = handle == RTLD_NEXT || strncmp(name, "cu", 2) ? NULL : by_symbol(name);
	if (!what || same_library(__builtin_return_address(0), (void *)tmesh_cuda_default))
		return real(handle, name);
	symbol = real(handle, name);
	return symbol && is_of_driver(symbol) ? take(what, symbol) : symbol;
}

/* Replace what cuGetProcAddress() has found. */
static void replace(const char *name, void **function, int version, uint64_t flags)
{
	for (size_t i = 0; name && function && i < TAKEN; i++)
		if (!strcmp(taken[i].name, name) && version >= taken[i].from &&
		    version < taken[i].before &&
		    (strcmp(name, "cuMemFreeAsync") || (flags & PER_THREAD_FLAG) == taken[i].flags))
			*function = take(&taken[i], *function);
}

static int proc_v1(const char *name, void **function, int version, uint64_t flags)
{
	proc_v1_fn *call;
	int rc;

	*(void **)&call = taken[PROC_V1].real;
	rc = call(name, function, version, flags);
	if (!rc)
		replace(name, function, version, flags);
	return rc;
}

static int proc_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	proc_v2_fn *call;
	int rc;

	*(void **)&call = taken[PROC_V2].real;
	rc = call(name, function, version, flags, status);
	if (!rc)
		replace(name, function, version, flags);
	return rc;
}

/* Return the device of the current context; negative: there is none. */
static int current_device(void)
{
	int (*call)(int *device);
	Dl_info driver;
	void *library, *symbol;
	int device;

	if (!dladdr(taken[ALLOC].real, &driver))
		return -1;
	library = dlopen(driver.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	symbol = library ? real_dlsym()(library, "cuCtxGetDevice") : NULL;
	if (library)
		dlclose(library);
	*(void **)&call = symbol;
	return call && !call(&device) ? device : -1;
}

static int alloc(uint64_t *pointer, size_t bytes)
{
	int (*call)(uint64_t * pointer, size_t bytes);
	int device = current_device(), rc;

	/* The driver's own call has the errors. */
	rc = !pointer || !bytes || device < 0 ? -1 : hook_allocate(device, bytes, pointer);
	if (rc == -ENOMEM)
		return CUDA_OUT_OF_MEMORY;
	*(void **)&call = taken[ALLOC].real;
	return rc ? call(pointer, bytes) : 0;
}

static int free_now(uint64_t pointer)
{
	int (*call)(uint64_t pointer);

	*(void **)&call = taken[FREE].real;
	return hook_give_back(pointer, TMESH_CUDA_NO_STREAM) ? 0 : call(pointer);
}

static int free_async(uint64_t pointer, struct CUstream_st *stream)
{
	int (*call)(uint64_t pointer, struct CUstream_st * stream);

	*(void **)&call = taken[FREE_ASYNC].real;
	return hook_give_back(pointer, stream) ? 0 : call(pointer, stream);
}

static int free_async_per_thread(uint64_t pointer, struct CUstream_st *stream)
{
	int (*call)(uint64_t pointer, struct CUstream_st * stream);

	*(void **)&call = taken[FREE_ASYNC_PER_THREAD].real;
	return hook_give_back(pointer, stream ? stream : CU_STREAM_PER_THREAD)
		       ? 0
		       : call(pointer, stream);
}
