/* SPDX-License-Identifier: MIT */
/* The members of tensors that channels use beyond the public calls, some of them for every message.
 */
#ifndef TMESH_TENSOR_INTERNAL_H
#define TMESH_TENSOR_INTERNAL_H

#include "internal.h"

struct tmesh_tensor {
	atomic_uint refs;
	struct tmesh_region *region;
	struct tmesh_layout layout;
	uint64_t bytes;
	/* Unique in this process and never reused: a channel's notes about a tensor do not apply to
	 * another one that later has its address. */
	uint64_t serial;
	/* Which of the region's mappings this tensor holds: read-only, writable. */
	atomic_bool mapped[2];
};

/* Return whether the caller holds the only reference. */
static inline bool tmesh_tensor_alone(const struct tmesh_tensor *tensor)
{
	return atomic_load_explicit(&tensor->refs, memory_order_acquire) == 1;
}

/* Take a further reference on a tensor. If the caller's is the only one, no other thread can reach
 * the tensor, and this costs no locked instruction. */
static inline struct tmesh_tensor *tmesh_tensor_ref_own(struct tmesh_tensor *tensor)
{
	if (!tmesh_tensor_alone(tensor))
		return tmesh_tensor_ref(tensor);
	atomic_store_explicit(&tensor->refs, 2, memory_order_relaxed);
	return tensor;
}

/*
 * Make a tensor that only the caller holds another one, instead of a new object. @layout and its
 * @bytes have been checked. False: something else holds it, and nothing has changed.
 */
bool tmesh_tensor_reuse(struct tmesh_tensor *tensor, struct tmesh_region *region,
			const struct tmesh_layout *layout, uint64_t bytes);

/* Copy the elements of @layout, the first of which is at @src, to @dst in C order. None of its
 * dimensions is 0. */
void tmesh_pack(void *dst, const void *src, const struct tmesh_layout *layout);

/* arena.c */

/* Return whether a tensor of so many bytes gets a region of its own, made with these options. */
bool tmesh_arena_is_large(const struct tmesh_arena *arena, uint64_t bytes);
const struct tmesh_region_opts *tmesh_arena_opts(const struct tmesh_arena *arena);
/* Return room for a tensor that is not large, as a reference on its region. */
int tmesh_arena_place(struct tmesh_arena *arena, struct tmesh_ctx *ctx, uint64_t bytes,
		      struct tmesh_region **out, uint64_t *offset, struct tmesh_error *err);
/* Drop the region from the arena: it can no longer be written. */
void tmesh_arena_leave(struct tmesh_arena *arena, const struct tmesh_region *region);

#endif /* TMESH_TENSOR_INTERNAL_H */
