// SPDX-License-Identifier: MIT
/* Arenas: tensors one after the other in a region, then in the next one. */
#include "tensor_internal.h"

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
	int rc = TMESH_NEED(err, ctx, out);

	if (!rc)
		rc = tmesh_read_region_opts(opts, &o, err);
	if (rc)
		return rc;
	arena = calloc(1, sizeof(*arena));
	if (!arena)
		return tmesh_fail(err, -ENOMEM, "no memory for an arena");
	atomic_init(&arena->refs, 1);
	arena->ctx = tmesh_ctx_ref(ctx);
	arena->bytes = bytes ? bytes : PRESET_BYTES;
	arena->opts = o;
	strcpy(arena->label, o.label);
	arena->opts.label = arena->label;
	*out = arena;
	return 0;
}

bool tmesh_arena_is_large(const struct tmesh_arena *arena, uint64_t bytes)
{
	return bytes > arena->bytes / 4;
}

const struct tmesh_region_opts *tmesh_arena_opts(const struct tmesh_arena *arena)
{
	return &arena->opts;
}

/* Return whether the region has room. After fork() an inherited region is the parent's to fill. */
static bool has_room(const struct tmesh_arena *arena, uint64_t bytes)
{
	return arena->region && !tmesh_region_inherited(arena->region) && !arena->region->sealed &&
	       bytes <= arena->bytes - arena->used;
}

static struct tmesh_region *take_room(struct tmesh_arena *arena, uint64_t bytes, uint64_t *offset)
{
	*offset = arena->used;
	/* Not beyond the region's end, so that the room that is left never wraps. */
	bytes = (bytes + TMESH_ALIGN - 1) & ~(uint64_t)(TMESH_ALIGN - 1);
	arena->used = bytes < arena->bytes - arena->used ? arena->used + bytes : arena->bytes;
	return tmesh_region_ref(arena->region);
}

/* Make the region for the next tensors. Its pages hold many tensors, so a memfd is mapped and
 * filled rather than written by a system call for each. The module's memory may be taken back
 * meanwhile. There the kernel copies, and reports an error instead of ending the process. */
static int next_region(const struct tmesh_arena *arena, struct tmesh_region **out,
		       struct tmesh_error *err)
{
	const uint32_t rights = TMESH_READ | TMESH_WRITE;
	int rc = tmesh_region_create(arena->ctx, arena->bytes, &arena->opts, out, err);
	void *addr;

	if (rc || tmesh_ctx_backend(arena->ctx) != TMESH_BACKEND_MEMFD)
		return rc;
	/* Huge pages come with the first mapping: now, so that no small tensor waits for one. */
	if ((*out)->memfd.align_huge && !tmesh_region_map(*out, rights, &addr, NULL))
		tmesh_region_unmap(*out, rights);
	(*out)->warm = true;
	return 0;
}

int tmesh_arena_place(struct tmesh_arena *arena, struct tmesh_ctx *ctx, uint64_t bytes,
		      struct tmesh_region **out, uint64_t *offset, struct tmesh_error *err)
{
	struct tmesh_region *fresh = NULL, *old = NULL, *region = NULL;
	int rc = 0;

	if (ctx != arena->ctx)
		return tmesh_fail(err, -EINVAL, "the arena belongs to another context");
	while (!rc && !region) {
		/* The context's lock, because that is free in a child after fork(). */
		pthread_mutex_lock(&ctx->lock);
		if (fresh && !has_room(arena, bytes)) {
			old = arena->region;
			arena->region = fresh;
			arena->used = 0;
			fresh = NULL;
		}
		if (has_room(arena, bytes))
			region = take_room(arena, bytes, offset);
		pthread_mutex_unlock(&ctx->lock);
		tmesh_region_unref(old);
		old = NULL;
		if (!region && !fresh)
			rc = next_region(arena, &fresh, err);
	}
	/* Another thread was first. */
	tmesh_region_unref(fresh);
	if (!rc)
		*out = region;
	return rc;
}

void tmesh_arena_leave(struct tmesh_arena *arena, const struct tmesh_region *region)
{
	pthread_mutex_lock(&arena->ctx->lock);
	if (arena->region == region)
		arena->used = arena->bytes;
	pthread_mutex_unlock(&arena->ctx->lock);
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
