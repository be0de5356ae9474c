/* SPDX-License-Identifier: MIT */
/* Channels' names for the XLA in this VM, by libtmesh-xla. The first use loads it. */
#include "nif.h"

#define TMESH_XLA_API_MORE(X) X(xla_register)
#include "common/xla_api.h"

#define NAME_BYTES (TMESH_XLA_NAME_MAX + 2)

static struct {
	pthread_mutex_t lock; /* guards the loading; a loaded library stays */
	bool loaded;
	struct tmesh_xla_api calls;
} api = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Load the library. A missing one may be installed later: the next call tries again. */
static bool load(struct tmesh_error *err)
{
	char name[256];
	size_t size = sizeof(name);
	bool own;

	pthread_mutex_lock(&api.lock);
	if (!api.loaded) {
		own = !enif_getenv("TMESH_XLA_LIBRARY", name, &size);
		api.loaded = !tmesh_xla_api_load(&api.calls, own ? name : NULL, err);
	}
	pthread_mutex_unlock(&api.lock);
	return api.loaded;
}

static ERL_NIF_TERM answer(ErlNifEnv *env, int rc, struct tmesh_error *err)
{
	return rc ? make_error(env, err) : enif_make_atom(env, "ok");
}

static bool get_name(ErlNifEnv *env, ERL_NIF_TERM term, char *name, struct tmesh_error *err)
{
	if (get_text(env, term, name, NAME_BYTES))
		return true;
	refuse(err, -EINVAL, "a name has 1 to %d bytes of UTF-8 without control characters",
	       TMESH_XLA_NAME_MAX);
	return false;
}

NIF(xla_register)
{
	struct tmesh_error err;
	char library[4096];
	bool own = !enif_is_atom(env, argv[0]); /* nil */

	if (own && !get_text(env, argv[0], library, sizeof(library)))
		return make_refusal(env, -EINVAL, "a library is a file's name");
	return answer(env, !load(&err) || api.calls.xla_register(own ? library : NULL, &err), &err);
}

/* xla_bind(context, name, token, send | recv) -> ok. The context limits the calls that wait. */
NIF(xla_bind)
{
	char name[NAME_BYTES], token[TMESH_TOKEN_SIZE];
	struct context *context;
	struct tmesh_error err;
	char role[8];
	bool failed;

	if (!get_context(env, argv[0], &context, &err) || !get_name(env, argv[1], name, &err))
		return make_error(env, &err);
	if (!get_text(env, argv[2], token, sizeof(token)))
		return make_refusal(env, -EPROTO,
				    "a channel's token is a string as its maker has it");
	if (!enif_get_atom(env, argv[3], role, sizeof(role), ERL_NIF_LATIN1) ||
	    (strcmp(role, "send") && strcmp(role, "recv")))
		return make_refusal(env, -EINVAL, "a role is :send or :recv");
	if (!begin_opening(context, &err))
		return make_error(env, &err);
	failed = !load(&err) ||
		 api.calls.xla_bind(name, token,
				    strcmp(role, "send") ? TMESH_CHANNEL_RECV : TMESH_CHANNEL_SEND,
				    &err);
	end_opening(context);
	return answer(env, failed, &err);
}

NIF(xla_unbind)
{
	struct tmesh_error err;
	char name[NAME_BYTES];

	return answer(env,
		      !get_name(env, argv[0], name, &err) || !load(&err) ||
			      api.calls.xla_unbind(name, &err),
		      &err);
}

NIF(xla_cancel)
{
	struct tmesh_error err;
	char name[NAME_BYTES];

	return answer(env,
		      !get_name(env, argv[0], name, &err) || !load(&err) ||
			      api.calls.xla_cancel(name, &err),
		      &err);
}

/* Elixir waits in slices, so that a call does not hold a dirty scheduler for longer. */
NIF(xla_flush)
{
	struct tmesh_error err;
	char name[NAME_BYTES];
	ErlNifSInt64 ns;

	if (!enif_get_int64(env, argv[1], &ns))
		return make_refusal(env, -EINVAL, "a time is a number of nanoseconds below 2**63");
	return answer(env,
		      !get_name(env, argv[0], name, &err) || !load(&err) ||
			      api.calls.xla_flush(name, ns, &err),
		      &err);
}

NIF(xla_limit)
{
	struct tmesh_error err;
	ErlNifUInt64 bytes;

	if (!enif_get_uint64(env, argv[0], &bytes))
		return make_refusal(env, -EINVAL, "max_bytes is a number from 0 to 2**64 - 1");
	if (!load(&err))
		return make_error(env, &err);
	api.calls.xla_limit(bytes);
	return enif_make_atom(env, "ok");
}
