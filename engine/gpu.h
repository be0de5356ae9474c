/* SPDX-License-Identifier: MIT */
/* GPU memory for contexts on GPUs. */
#ifndef TMESH_ENGINE_GPU_H
#define TMESH_ENGINE_GPU_H

#include "engine_internal.h"

struct tmesh_cuda_memory;

/* Reset the lock in a forked child: the thread that held it does not exist there. */
void gpu_forked(void);
/* Return -EOPNOTSUPP (no libtmesh-cuda) or -ENODEV (no driver, or no such GPU). */
int gpu_check(int32_t device, struct tmesh_error *err);
/* Allocate zeros. @alone: in a block of its own, which can be shown to other processes. */
int gpu_memory_alloc(int32_t device, uint64_t bytes, bool alone, struct tmesh_cuda_memory **out,
		     struct tmesh_error *err);
void *gpu_address(const struct tmesh_cuda_memory *memory);
void gpu_unref(struct tmesh_cuda_memory *memory);
/* Copy from or to the beginning of the memory. The copy is complete on return. */
int gpu_read(struct tmesh_cuda_memory *memory, void *data, uint64_t bytes, struct tmesh_error *err);
int gpu_write(struct tmesh_cuda_memory *memory, const void *data, uint64_t bytes,
	      struct tmesh_error *err);
/* Announce a run of an engine that captures graphs. Until gpu_run_end() no thread waits for the
 * device: copies wait for the run's end, and memory that is released is freed after it. */
int gpu_run_begin(int32_t device, struct tmesh_error *err);
void gpu_run_end(int32_t device);
int gpu_ref_encode(struct tmesh_cuda_memory *memory, const struct tmesh_layout *layout, char *text,
		   size_t size, struct tmesh_error *err);

#endif /* TMESH_ENGINE_GPU_H */
