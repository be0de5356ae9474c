/* SPDX-License-Identifier: MIT */
/* Memory on its way: held for the process that opens its ref. */
#include "nif.h"

#include <tmesh/hold.h>

bool get_hold(ErlNifEnv *env, ERL_NIF_TERM term, uint64_t *ns, struct tmesh_error *err)
{
	ErlNifUInt64 value = 0;

	if (!enif_is_identical(term, atoms.nil) &&
	    (!enif_get_uint64(env, term, &value) || !value)) {
		refuse(err, -EINVAL, "hold: a ref holds for a time of more than 0");
		return false;
	}
	*ns = value;
	return true;
}

/* context_flush(context) -> {ok, {held, held_bytes, messages}}, at once */
NIF(context_flush)
{
	struct tmesh_flushed left = {.size = sizeof(left)};
	struct context *context;
	struct tmesh_error err;
	int rc;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	rc = tmesh_ctx_flush(context->ctx, 0, &left, &err);
	if (rc && rc != -ETIMEDOUT)
		return make_error(env, &err);
	return make_ok(env, enif_make_tuple3(env, enif_make_uint64(env, left.held),
					     enif_make_uint64(env, left.held_bytes),
					     enif_make_uint64(env, left.messages)));
}
