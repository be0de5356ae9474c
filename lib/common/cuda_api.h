/* SPDX-License-Identifier: MIT */
/*
 * libtmesh-cuda for programs that load it when GPU memory is asked for, and need no CUDA otherwise.
 *
 * That library brings a libtmesh and a context of its own. The two exchange only the text of refs,
 * never an object.
 *
 * A program that needs more calls defines TMESH_CUDA_API_MORE(X), a list of the same kind, before
 * it includes this file. The list may name calls of the libtmesh that libtmesh-cuda brings.
 */
#ifndef TMESH_COMMON_CUDA_API_H
#define TMESH_COMMON_CUDA_API_H

#include <tmesh/cuda.h>

#include "loaded.h"

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
 * Load the library for as long as the process runs. Return: 0; -EOPNOTSUPP with @err filled and
 * @api as it was, if it is not installed or is another version.
 */
static inline int tmesh_cuda_api_load(struct tmesh_cuda_api *api, const char *name,
				      struct tmesh_error *err)
{
	struct tmesh_cuda_api found;
#define TMESH_CUDA_FIND(symbol) {"tmesh_" #symbol, (void **)&found.symbol},
	const struct tmesh_loaded_call calls[] = {TMESH_CUDA_API(TMESH_CUDA_FIND)
							  TMESH_CUDA_API_MORE(TMESH_CUDA_FIND)};
#undef TMESH_CUDA_FIND
	int rc = tmesh_loaded_find(name, "GPU memory needs libtmesh-cuda",
				   "libtmesh-cuda0 (Debian), or run make cuda install-cuda", calls,
				   sizeof(calls) / sizeof(*calls), err);

	if (!rc)
		*api = found;
	return rc;
}

#endif /* TMESH_COMMON_CUDA_API_H */
