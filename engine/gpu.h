/* SPDX-License-Identifier: MIT */
/* GPU memory for contexts on GPUs. */
#ifndef TMESH_ENGINE_GPU_H
#define TMESH_ENGINE_GPU_H

#include "engine_internal.h"

struct tmesh_cuda_memory;

/* In a forked child: who had the lock is not here. */
void gpu_forked(void);
/* -EOPNOTSUPP: no libtmesh-cuda; -ENODEV: no driver, or no such GPU. */
int gpu_check(int32_t device, struct tmesh_error *err);
/* Zeros. @alone: others may be given it. */
int gpu_memory_alloc(int32_t device, uint64_t bytes, bool alone, struct tmesh_cuda_memory **out,
		     struct tmesh_error *err);
void *gpu_address(const struct tmesh_cuda_memory *memory);
void gpu_unref(struct tmesh_cuda_memory *memory);
/* From its beginning; done when they return. */
int gpu_read(struct tmesh_cuda_memory *memory, void *data, uint64_t bytes, struct tmesh_error *err);
int gpu_write(struct tmesh_cuda_memory *memory, const void *data, uint64_t bytes,
	      struct tmesh_error *err);
int gpu_ref_encode(struct tmesh_cuda_memory *memory, const struct tmesh_layout *layout, char *text,
		   size_t size, struct tmesh_error *err);

#endif /* TMESH_ENGINE_GPU_H */
