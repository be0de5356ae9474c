/* SPDX-License-Identifier: MIT */
/*
 * Arena: many small tensors in few regions, so that neither descriptors nor memory are spent on a
 * region for each, and a receiver opens a region once for all of them. See tmesh/tmesh.h for the
 * conventions of all calls. Since 0.1.
 *
 * Tensors of a region share what is the region's: its rights, its seal, its revocation, its end.
 * Room is given out once and never again, for a receiver may still read what its sender has
 * released: the arena goes on in a new region when one is full, or when others have taken it back
 * or sealed it, and each region goes with the last of its tensors.
 *
 * A tensor lies in the arena that its tmesh_region_opts name, which is one of the same context
 * (-EINVAL): of tmesh_tensor_create(), where it is zeroed unless the arena's regions are
 * UNINITIALIZED, of tmesh_tensor_put(), and of the imports from DLPack. One that is larger than a
 * quarter of the arena's regions gets a region of its own, made as those are.
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
