/* SPDX-License-Identifier: MIT */
/* What channels need of tensors beyond the public calls, some of it for every message. */
#ifndef TMESH_TENSOR_INTERNAL_H
#define TMESH_TENSOR_INTERNAL_H

#include "internal.h"

struct tmesh_tensor {
	atomic_uint refs;
	struct tmesh_region *region;
	struct tmesh_layout layout;
	uint64_t bytes;
	/* Of this process's tensors, never used twice: what was worked out for one of them is not
	 * taken for another's that came to lie in its place. */
	uint64_t serial;
	/* Which of the region's mappings this tensor holds: read-only, writable. */
	atomic_bool mapped[2];
};

/* The caller holds the only reference. */
static inline bool tmesh_tensor_alone(const struct tmesh_tensor *tensor)
{
	return atomic_load_explicit(&tensor->refs, memory_order_acquire) == 1;
}

/* A further reference on a tensor which, while the caller's is the only one, no other thread can
 * reach: then it costs no locked instruction. */
static inline struct tmesh_tensor *tmesh_tensor_ref_own(struct tmesh_tensor *tensor)
{
	if (!tmesh_tensor_alone(tensor))
		return tmesh_tensor_ref(tensor);
	atomic_store_explicit(&tensor->refs, 2, memory_order_relaxed);
	return tensor;
}

/*
 * Make a tensor that only the caller holds another one instead of a new one; @layout and its @bytes
 * have been checked. False: somebody else holds it, and nothing has changed.
 */
bool tmesh_tensor_reuse(struct tmesh_tensor *tensor, struct tmesh_region *region,
			const struct tmesh_layout *layout, uint64_t bytes);

/* Copy the elements of @layout, of which the first lies at @src, to @dst in C order. None of its
 * dimensions is 0. */
void tmesh_pack(void *dst, const void *src, const struct tmesh_layout *layout);

/* arena.c */

/* Whether a tensor of so many bytes gets a region of its own, made with these options. */
bool tmesh_arena_is_large(const struct tmesh_arena *arena, uint64_t bytes);
const struct tmesh_region_opts *tmesh_arena_opts(const struct tmesh_arena *arena);
/* Room for one that is not: a reference on its region. */
int tmesh_arena_place(struct tmesh_arena *arena, struct tmesh_ctx *ctx, uint64_t bytes,
		      struct tmesh_region **out, uint64_t *offset, struct tmesh_error *err);
/* Nobody can write to that region any more: there is no room in it. */
void tmesh_arena_leave(struct tmesh_arena *arena, const struct tmesh_region *region);

#endif /* TMESH_TENSOR_INTERNAL_H */
