/* SPDX-License-Identifier: MIT */
/* Declarations that the files of the preload share. */
#ifndef TMESH_CUDA_HOOK_H
#define TMESH_CUDA_HOOK_H

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>

#include <tmesh/cuda.h>

#define CUDA_OUT_OF_MEMORY 2
#define CUDA_UNKNOWN 999
#define CU_STREAM_PER_THREAD ((struct CUstream_st *)2)

/* hook.c */

/* Allocate memory of this library. Otherwise return the error, and print its reason once. */
int hook_allocate(int device, size_t bytes, uint64_t *pointer);
/* Free memory of this library. False: it is not. */
bool hook_give_back(uint64_t pointer, struct CUstream_st *stream);

/* hook_driver.c */

/* Return whether the program asked the driver for a function that the hook takes over. */
bool hook_driver_was_asked(void);
/* Return whether the hook does so. */
bool hook_driver_is_on(void);

#endif /* TMESH_CUDA_HOOK_H */
