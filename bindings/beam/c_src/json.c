/* SPDX-License-Identifier: MIT */
/*
 * Messages of workers (docs/reference/worker.md) as terms. Strings become binaries, never atoms:
 * text from another process must not fill the atom table.
 */
#include "nif.h"

#include <jansson.h>

#define MAX_DEPTH 64

/* Reading more bytes takes too long for a normal scheduler. */
#define SLOW_BYTES 16384

static ERL_NIF_TERM make_bytes(ErlNifEnv *env, const char *bytes, size_t size)
{
	ERL_NIF_TERM term;

	memcpy(enif_make_new_binary(env, size, &term), bytes, size);
	return term;
}

static bool make_value(ErlNifEnv *env, json_t *value, int depth, ERL_NIF_TERM *term);

static bool make_map(ErlNifEnv *env, json_t *object, int depth, ERL_NIF_TERM *term)
{
	ERL_NIF_TERM member;
	const char *key;
	json_t *value;

	*term = enif_make_new_map(env);
	json_object_foreach(object, key, value) {
		if (!make_value(env, value, depth + 1, &member))
			return false;
		enif_make_map_put(env, *term, make_string(env, key), member, term);
	}
	return true;
}

static bool make_list(ErlNifEnv *env, json_t *array, int depth, ERL_NIF_TERM *term)
{
	ERL_NIF_TERM item;

	*term = enif_make_list(env, 0);
	for (size_t i = json_array_size(array); i--;) {
		if (!make_value(env, json_array_get(array, i), depth + 1, &item))
			return false;
		*term = enif_make_list_cell(env, item, *term);
	}
	return true;
}

/* Return false if the value is nested too deeply. */
static bool make_value(ErlNifEnv *env, json_t *value, int depth, ERL_NIF_TERM *term)
{
	switch (json_typeof(value)) {
	case JSON_OBJECT:
		return depth < MAX_DEPTH && make_map(env, value, depth, term);
	case JSON_ARRAY:
		return depth < MAX_DEPTH && make_list(env, value, depth, term);
	case JSON_STRING:
		*term = make_bytes(env, json_string_value(value), json_string_length(value));
		return true;
	case JSON_INTEGER:
		*term = enif_make_int64(env, json_integer_value(value));
		return true;
	case JSON_REAL:
		*term = enif_make_double(env, json_real_value(value));
		return true;
	case JSON_TRUE:
		*term = enif_make_atom(env, "true");
		return true;
	case JSON_FALSE:
		*term = enif_make_atom(env, "false");
		return true;
	case JSON_NULL:
		break;
	}
	*term = atoms.nil;
	return true;
}

static NIF(json_decode_now)
{
	struct tmesh_error err;
	json_error_t why;
	ErlNifBinary text;
	ERL_NIF_TERM term;
	json_t *message;

	if (!enif_inspect_binary(env, argv[0], &text))
		return make_refusal(env, -EINVAL, "JSON is a binary");
	message = json_loadb((const char *)text.data, text.size,
			     JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
	if (!message)
		refuse(&err, -EPROTO, "not JSON: %s", why.text);
	else if (!json_is_object(message))
		refuse(&err, -EPROTO, "not a JSON object");
	else if (!make_value(env, message, 0, &term))
		refuse(&err, -EPROTO, "JSON is nested deeper than %d levels", MAX_DEPTH);
	else
		err.code = 0;
	json_decref(message);
	return err.code ? make_error(env, &err) : make_ok(env, term);
}

/* json_decode(text) -> {ok, #{<<"key">> => value}} */
NIF(json_decode)
{
	ErlNifBinary text;

	if (enif_inspect_binary(env, argv[0], &text) && text.size > SLOW_BYTES)
		return enif_schedule_nif(env, "json_decode", ERL_NIF_DIRTY_JOB_CPU_BOUND,
					 json_decode_now, argc, argv);
	return json_decode_now(env, argc, argv);
}
