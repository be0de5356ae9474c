// SPDX-License-Identifier: MIT
/* Arenas: tensors one behind the other in a region, then in the next one. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define PRESET_BYTES (1u << 20)

struct tmesh_arena {
	atomic_uint refs;
	struct tmesh_ctx *ctx;
	uint64_t bytes; /* of a region */
	struct tmesh_region_opts opts;
	char label[TMESH_LABEL_LEN + 1];
	struct tmesh_region *region; /* the one with room; NULL: none yet */
	uint64_t used;
};

int tmesh_arena_create(struct tmesh_ctx *ctx, uint64_t bytes, const struct tmesh_region_opts *opts,
		       struct tmesh_arena **out, struct tmesh_error *err)
{
	struct tmesh_region_opts o;
	struct tmesh_arena *arena;
	int rc = tmesh_read_region_opts(opts, &o, err);

	if (rc)
		return rc;
	arena = calloc(1, sizeof(*arena));
	if (!arena)
		return tmesh_fail(err, -ENOMEM, "no memory for an arena");
	atomic_init(&arena->refs, 1);
	arena->ctx = tmesh_ctx_ref(ctx);
	arena->bytes = bytes ? bytes : PRESET_BYTES;
	arena->opts = o;
	arena->opts.size = sizeof(arena->opts);
	strcpy(arena->label, o.label);
	arena->opts.label = arena->label;
	*out = arena;
	return 0;
}

/* What was inherited through fork() is the parent's to fill. */
static bool has_room(const struct tmesh_arena *arena, uint64_t bytes)
{
	return arena->region && !tmesh_region_inherited(arena->region) &&
	       bytes <= arena->bytes - arena->used;
}

int tmesh_arena_tensor(struct tmesh_arena *arena, enum tmesh_dtype dtype, int32_t ndim,
		       const int64_t *shape, struct tmesh_tensor **out, struct tmesh_error *err)
{
	struct tmesh_layout layout;
	struct tmesh_region *region;
	uint64_t bytes;
	int rc = tmesh_layout_contiguous(&layout, dtype, ndim, shape, err);

	if (!rc)
		rc = tmesh_layout_check(&layout, INT64_MAX, &bytes, err);
	if (rc)
		return rc;
	if (bytes > arena->bytes / 4)
		return tmesh_tensor_create(arena->ctx, dtype, ndim, shape, &arena->opts, out, err);
	if (!has_room(arena, bytes)) {
		rc = tmesh_region_create(arena->ctx, arena->bytes, &arena->opts, &region, err);
		if (rc)
			return rc;
		tmesh_region_unref(arena->region);
		arena->region = region;
		arena->used = 0;
	}
	layout.offset = arena->used;
	rc = tmesh_tensor_wrap(arena->region, &layout, out, err);
	if (rc)
		return rc;
	/* Not beyond the region's end, so that the room that is left never wraps. */
	bytes = (bytes + TMESH_ALIGN - 1) & ~(uint64_t)(TMESH_ALIGN - 1);
	arena->used = bytes < arena->bytes - arena->used ? arena->used + bytes : arena->bytes;
	return 0;
}

struct tmesh_arena *tmesh_arena_ref(struct tmesh_arena *arena)
{
	atomic_fetch_add_explicit(&arena->refs, 1, memory_order_relaxed);
	return arena;
}

void tmesh_arena_unref(struct tmesh_arena *arena)
{
	if (!arena || atomic_fetch_sub_explicit(&arena->refs, 1, memory_order_acq_rel) != 1)
		return;
	tmesh_region_unref(arena->region);
	tmesh_ctx_unref(arena->ctx);
	free(arena);
}
