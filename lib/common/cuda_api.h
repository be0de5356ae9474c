/* SPDX-License-Identifier: MIT */
/*
 * libtmesh-cuda for those who load it when somebody asks for GPU memory, and need no CUDA
 * otherwise.
 *
 * That library brings a libtmesh and a context of its own. What goes between the two is the text of
 * refs, never an object.
 *
 * Who needs more calls than these defines TMESH_CUDA_API_MORE(X), a list of the same kind, before
 * this file is included. It may name calls of the libtmesh that libtmesh-cuda brings.
 */
#ifndef TMESH_COMMON_CUDA_API_H
#define TMESH_COMMON_CUDA_API_H

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <tmesh/cuda.h>

#define TMESH_CUDA_LIBRARY "libtmesh-cuda.so.0"

/* clang-format off */
#define TMESH_CUDA_API(X) \
	X(cuda_default) X(cuda_device_count) X(cuda_device_info) X(cuda_caps_sized) X(cuda_alloc) \
	X(cuda_open_ref) X(cuda_share) X(cuda_info) X(cuda_memory_ref) X(cuda_memory_unref)
/* clang-format on */

#ifndef TMESH_CUDA_API_MORE
#define TMESH_CUDA_API_MORE(X)
#endif

struct tmesh_cuda_api {
#define TMESH_CUDA_MEMBER(name) __typeof__(tmesh_##name) *name;
	TMESH_CUDA_API(TMESH_CUDA_MEMBER)
	TMESH_CUDA_API_MORE(TMESH_CUDA_MEMBER)
#undef TMESH_CUDA_MEMBER
};

/*
 * Load it for as long as the process runs. Return: 0; -EOPNOTSUPP with @err filled and @api as it
 * was: it is not installed, or another version.
 */
static inline int tmesh_cuda_api_load(struct tmesh_cuda_api *api, const char *name,
				      struct tmesh_error *err)
{
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	const char *missing = NULL;
	struct tmesh_cuda_api found;

	err->code = -EOPNOTSUPP;
	if (!library) {
		snprintf(err->message, sizeof(err->message), "GPU memory needs libtmesh-cuda: %s",
			 dlerror());
		return err->code;
	}
	/* dlsym() gives a pointer to data, which POSIX lets be one to a function. */
#define TMESH_CUDA_FIND(symbol)                                     \
	*(void **)&found.symbol = dlsym(library, "tmesh_" #symbol); \
	if (!found.symbol)                                          \
		missing = #symbol;
	TMESH_CUDA_API(TMESH_CUDA_FIND)
	TMESH_CUDA_API_MORE(TMESH_CUDA_FIND)
#undef TMESH_CUDA_FIND
	if (missing) {
		dlclose(library);
		snprintf(err->message, sizeof(err->message), "%s has no tmesh_%s", name, missing);
		return err->code;
	}
	*api = found;
	return 0;
}

#endif /* TMESH_COMMON_CUDA_API_H */
