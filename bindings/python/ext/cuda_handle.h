/* SPDX-License-Identifier: MIT */
/* Declarations that cuda.c and cuda_handle.c share. */
#ifndef TMESH_BINDING_CUDA_HANDLE_H
#define TMESH_BINDING_CUDA_HANDLE_H

#include "binding.h"

/* region_unref is that of the libtmesh inside libtmesh-cuda. */
/* clang-format off */
#define TMESH_CUDA_API_MORE(X) \
	X(cuda_zero) X(cuda_record) X(cuda_wait) X(cuda_slice) X(cuda_find) X(cuda_share_ipc) \
	X(cuda_touch) X(cuda_reclaim) X(cuda_keep) X(cuda_kept_open) X(cuda_to_dlpack) \
	X(cuda_to_dlpack_versioned) X(cuda_trim) X(cuda_stats) X(region_unref) \
	X(cuda_capture_begin) X(cuda_capture_end) X(cuda_stage)
/* clang-format on */

#include "common/cuda_api.h"

/* The library's calls. They are valid once one of them has returned an object. Drop the GIL for
 * each: it may wait for a GPU, or for a thread that gives an array back and needs the GIL. */
extern struct tmesh_cuda_api cuda_calls;

/* Memory and the array in it. The layout stays valid after the memory is released. */
struct cuda_handle {
	PyObject_HEAD struct tmesh_cuda_memory *memory; /* NULL once released */
	struct tmesh_layout layout;
};

/* cuda_handle.c */
/* Take over @memory, also on failure. */
PyObject *cuda_handle_new(struct state *st, struct tmesh_cuda_memory *memory,
			  const struct tmesh_layout *layout);
/* Convert a number into a stream, for "O&". */
int stream_argument(PyObject *object, void *stream);
extern PyType_Spec cuda_handle_spec;

#endif /* TMESH_BINDING_CUDA_HANDLE_H */
