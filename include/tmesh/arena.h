/* SPDX-License-Identifier: MIT */
/*
 * Arena: many small tensors in few regions. A region for each tensor would cost a descriptor and
 * a page; a receiver opens an arena's region once for all its tensors. See tmesh/tmesh.h for the
 * conventions of all calls. Since 0.1.
 * Maturity: stable.
 *
 * Tensors of one region share its rights, its seal, its revocation and its end. Room is not
 * reused, because a receiver may still read a tensor that its sender has released. When a region
 * is full, or others have taken it back or sealed it, the arena continues in a new region. Each
 * region is freed with the last of its tensors.
 *
 * To place a tensor in an arena of the same context (else -EINVAL), name the arena in the
 * tmesh_region_opts of a call. The calls are tmesh_tensor_create(), tmesh_tensor_put() and imports
 * from DLPack. tmesh_tensor_create() zeroes the tensor unless the arena's regions are
 * UNINITIALIZED. A tensor that is larger than a quarter of the arena's regions gets a region of its
 * own, made with the same options.
 */
#ifndef TMESH_ARENA_H
#define TMESH_ARENA_H

#include <tmesh/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_arena;

/*
 * An arena whose regions have @bytes each (0: 1 MiB), made with @opts as for
 * tmesh_region_create() when they are needed.
 * Return: 0; -EINVAL (opts), -ENOMEM.
 */
int tmesh_arena_create(struct tmesh_ctx *ctx, uint64_t bytes, const struct tmesh_region_opts *opts,
		       struct tmesh_arena **out, struct tmesh_error *err);

struct tmesh_arena *tmesh_arena_ref(struct tmesh_arena *arena);
/* Its tensors stay. */
void tmesh_arena_unref(struct tmesh_arena *arena);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_ARENA_H */
