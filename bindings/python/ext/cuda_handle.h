/* SPDX-License-Identifier: MIT */
/* What cuda.c and cuda_handle.c share. */
#ifndef TMESH_BINDING_CUDA_HANDLE_H
#define TMESH_BINDING_CUDA_HANDLE_H

#include "binding.h"

/* region_unref is that of the libtmesh which libtmesh-cuda brings. */
/* clang-format off */
#define TMESH_CUDA_API_MORE(X) \
	X(cuda_zero) X(cuda_record) X(cuda_wait) X(cuda_part) X(cuda_find) X(cuda_share_ipc) \
	X(cuda_touch) X(cuda_reclaim) X(cuda_keep) X(cuda_kept_open) X(cuda_to_dlpack) \
	X(cuda_to_dlpack_versioned) X(cuda_trim) X(cuda_stats) X(region_unref)
/* clang-format on */

#include "common/cuda_api.h"

/* The library's calls, which are there as soon as something was made by one of them. None is called
 * with the GIL: each may wait for a GPU, or for a thread that gives an array back and needs the
 * GIL. */
extern struct tmesh_cuda_api cuda_calls;

/* Memory and the array in it. The layout stays when the memory is released. */
struct cuda_handle {
	PyObject_HEAD struct tmesh_cuda_memory *memory; /* NULL once released */
	struct tmesh_layout layout;
};

/* cuda_handle.c */
/* Takes over @memory, also on failure. */
PyObject *cuda_handle_new(struct state *st, struct tmesh_cuda_memory *memory,
			  const struct tmesh_layout *layout);
/* For "O&": a number into a stream. */
int stream_argument(PyObject *object, void *stream);
extern PyType_Spec cuda_handle_spec;

#endif /* TMESH_BINDING_CUDA_HANDLE_H */
