/* SPDX-License-Identifier: MIT */
#include "nif.h"

#include "common/shown.h"

/* Descriptors that regions leave free. Without a free one the VM reads no file and opens no
 * socket; unless it is a release, it loads no module either. */
#define SPARE_FILES 128

static void drop_context(void *object)
{
	tmesh_ctx_unref(object);
}

void context_dtor(ErlNifEnv *env, void *object)
{
	struct context *context = object;

	if (context->ctx)
		garbage_put(env, context->garbage, context->ctx);
	else
		garbage_free(context->garbage);
}

bool get_context(ErlNifEnv *env, ERL_NIF_TERM term, struct context **context,
		 struct tmesh_error *err)
{
	if (enif_get_resource(env, term, context_type, (void **)context))
		return true;
	refuse(err, -ESRCH,
	       "the :tmesh application is not started, or its NIFs were "
	       "unloaded since: start it again");
	return false;
}

/* context_open({backend, max_bytes, region_pool_bytes, timeout_ns, max_opening}) -> {ok, context}
 */
NIF(context_open)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts),
				      .log = log_keep,
				      .taken = TMESH_TAKEN_ZERO,
				      .spare_files = SPARE_FILES};
	ErlNifUInt64 max_bytes, region_pool_bytes, timeout_ns;
	unsigned int max_opening;
	const ERL_NIF_TERM *field;
	struct context *context;
	struct tmesh_error err;
	ERL_NIF_TERM term;
	char backend[16];
	int arity;

	if (!enif_get_tuple(env, argv[0], &arity, &field) || arity != 5 ||
	    !enif_get_atom(env, field[0], backend, sizeof(backend), ERL_NIF_LATIN1) ||
	    !enif_get_uint64(env, field[1], &max_bytes) ||
	    !enif_get_uint64(env, field[2], &region_pool_bytes) ||
	    !enif_get_uint64(env, field[3], &timeout_ns) ||
	    !enif_get_uint(env, field[4], &max_opening))
		return enif_make_badarg(env);
	opts.max_bytes = max_bytes;
	opts.region_pool_bytes = region_pool_bytes;
	opts.timeout_ns = timeout_ns;
	if (enif_is_identical(field[0], enif_make_atom(env, "kernel")))
		opts.backend = TMESH_BACKEND_KERNEL;
	else if (enif_is_identical(field[0], enif_make_atom(env, "memfd")))
		opts.backend = TMESH_BACKEND_MEMFD;
	else if (!enif_is_identical(field[0], enif_make_atom(env, "auto")))
		return enif_make_badarg(env);

	context = enif_alloc_resource(context_type, sizeof(*context));
	*context = (struct context){.max_bytes = max_bytes,
				    .max_opening = max_opening,
				    .garbage = garbage_alloc(drop_context)};
	if (!context->garbage)
		refuse(&err, -ENOMEM, "no memory for a context");
	if (context->garbage && !tmesh_ctx_open(&opts, &context->ctx, &err))
		term = make_ok(env, enif_make_resource(env, context));
	else
		term = make_error(env, &err);
	enif_release_resource(context);
	return term;
}

/* context_limit(context, max_bytes) -> ok. Replaces max_bytes of context_open. */
NIF(context_limit)
{
	struct context *context;
	struct tmesh_error err;
	ErlNifUInt64 max_bytes;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	if (!enif_get_uint64(env, argv[1], &max_bytes))
		return make_refusal(env, -EINVAL, "a limit is a number of bytes");
	atomic_store(&context->max_bytes, max_bytes);
	tmesh_ctx_limit(context->ctx, max_bytes);
	return atoms.ok;
}

/* context_backend(context) -> {ok, kernel | memfd} */
NIF(context_backend)
{
	struct context *context;
	struct tmesh_error err;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	return make_ok(env,
		       enif_make_atom(env, tmesh_backend_name(tmesh_ctx_backend(context->ctx))));
}

/* context_caps(context) -> {ok, [{name, no | cooperative | enforced, reason}]} */
NIF(context_caps)
{
	static const char *const levels[] = {"no", "cooperative", "enforced"};
	ERL_NIF_TERM list = enif_make_list(env, 0);
	const struct tmesh_cap *caps;
	struct context *context;
	struct tmesh_error err;
	size_t count;
	int rc;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	rc = tmesh_caps(context->ctx, &caps, &count);
	if (rc)
		return make_refusal(env, rc, "capabilities could not be read");
	while (count--) {
		const struct tmesh_cap *cap = &caps[count];

		list = enif_make_list_cell(
			env,
			enif_make_tuple3(env, make_string(env, cap->name),
					 make_word(env, WORD_OF(levels, cap->level)),
					 make_string(env, cap->reason)),
			list);
	}
	return make_ok(env, list);
}

/* context_stats(context) -> {ok, #{bytes_copied => 0, ...}} */
NIF(context_trim)
{
	struct context *context;
	struct tmesh_error err;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	return make_ok(env, enif_make_uint64(env, tmesh_ctx_trim(context->ctx)));
}

NIF(context_stats)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct context *context;
	struct tmesh_error err;
	int rc;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	rc = tmesh_stats(context->ctx, &stats);
	if (rc)
		return make_refusal(env, rc, "statistics could not be read");
	return make_ok(env, SHOW(env, enif_make_new_map(env), shown_stats, &stats));
}
