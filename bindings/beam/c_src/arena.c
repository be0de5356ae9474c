/* SPDX-License-Identifier: MIT */
/* Arenas, which the options of new tensors may name. Several processes may use a library's arena
 * at once. */
#include "nif.h"

#define QUICK_REGION (1u << 20)
#define QUICK_COPY (64u << 10)

static void drop_arena(void *object)
{
	tmesh_arena_unref(object);
}

void arena_dtor(ErlNifEnv *env, void *object)
{
	struct arena *arena = object;

	if (arena->arena)
		garbage_put(env, arena->garbage, arena->arena);
	else
		garbage_free(arena->garbage);
}

/* A tensor with a region of its own is not quick: the kernel clears the pages of a new region. */
bool is_quick(ErlNifEnv *env, ERL_NIF_TERM opts, uint64_t bytes, size_t copied)
{
	struct arena *arena;

	return enif_get_resource(env, opts, arena_type, (void **)&arena) &&
	       arena->bytes <= QUICK_REGION && bytes <= QUICK_REGION && copied <= QUICK_COPY;
}

/* arena_create(context, bytes, region_opts) -> {ok, arena} */
NIF(arena_create)
{
	char label[TMESH_LABEL_LEN + 1];
	struct tmesh_region_opts opts;
	struct context *context;
	struct tmesh_error err;
	struct arena *arena;
	ErlNifUInt64 bytes;
	ERL_NIF_TERM term;

	if (!get_context(env, argv[0], &context, &err) ||
	    !get_region_opts(env, argv[2], &opts, label, &err))
		return make_error(env, &err);
	if (!enif_get_uint64(env, argv[1], &bytes))
		return make_refusal(env, -EINVAL, "bytes must be a number of at least 0");
	arena = enif_alloc_resource(arena_type, sizeof(*arena));
	*arena = (struct arena){.bytes = bytes, .garbage = garbage_alloc(drop_arena)};
	if (!arena->garbage) {
		refuse(&err, -ENOMEM, "no memory for an arena");
		term = make_error(env, &err);
	} else if (tmesh_arena_create(context->ctx, bytes, &opts, &arena->arena, &err)) {
		term = make_error(env, &err);
	} else {
		term = make_ok(env, enif_make_resource(env, arena));
	}
	enif_release_resource(arena);
	return term;
}
