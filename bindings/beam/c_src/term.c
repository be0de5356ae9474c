/* SPDX-License-Identifier: MIT */
#include "nif.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>

#include "common/shown.h"

struct atoms atoms;

void make_atoms(ErlNifEnv *env)
{
	atoms = (struct atoms){
		.ok = enif_make_atom(env, "ok"),
		.nil = enif_make_atom(env, "nil"),
		.cpu = enif_make_atom(env, "cpu"),
		.eagain = enif_make_atom(env, "eagain"),
		.again = enif_make_atom(env, "again"),
		.given = enif_make_atom(env, "given"),
		.undefined = enif_make_atom(env, "undefined"),
	};
	for (int i = 1; i <= TMESH_FLOAT4_E2M1FN; i++)
		atoms.dtypes[i] = enif_make_atom(env, tmesh_dtype_name((enum tmesh_dtype)i));
}

ERL_NIF_TERM make_ok(ErlNifEnv *env, ERL_NIF_TERM term)
{
	return enif_make_tuple2(env, atoms.ok, term);
}

ERL_NIF_TERM make_string(ErlNifEnv *env, const char *text)
{
	size_t length = strlen(text);
	ERL_NIF_TERM term;

	memcpy(enif_make_new_binary(env, length, &term), text, length);
	return term;
}

/* Make the atom of a kind or level. NULL comes from a newer module or library. */
ERL_NIF_TERM make_word(ErlNifEnv *env, const char *word)
{
	return enif_make_atom(env, word ? word : "unknown");
}

/* Return {error, {enoent, <<"why">>}}. */
ERL_NIF_TERM make_error(ErlNifEnv *env, const struct tmesh_error *err)
{
	const char *name = strerrorname_np(-err->code);
	char atom[32] = "eunknown";

	/* Do not use tolower(): in a Turkish locale an I has no small letter of one byte. */
	for (size_t i = 0; name && i < sizeof(atom) - 1; i++) {
		atom[i] = name[i];
		if (name[i] >= 'A' && name[i] <= 'Z')
			atom[i] += 'a' - 'A';
		if (!name[i])
			break;
	}
	return enif_make_tuple2(
		env, enif_make_atom(env, "error"),
		enif_make_tuple2(env, enif_make_atom(env, atom), make_string(env, err->message)));
}

static ERL_NIF_TERM make_sealed(ErlNifEnv *env, const struct tmesh_error *err)
{
	return enif_make_tuple2(env, enif_make_atom(env, "error"),
				enif_make_tuple2(env, enif_make_atom(env, "sealed"),
						 make_string(env, err->message)));
}

/* Return the error of an operation on @region. EPERM of a sealed region comes from the seal, and
 * else from missing permission. */
ERL_NIF_TERM make_region_error(ErlNifEnv *env, struct tmesh_region *region,
			       const struct tmesh_error *err)
{
	if (err->code != -EPERM || !tmesh_region_is_sealed(region))
		return make_error(env, err);
	return make_sealed(env, err);
}

/* Return the error of an open or a ref. Only the seal refuses a ref for writing with EPERM. */
ERL_NIF_TERM make_open_error(ErlNifEnv *env, uint32_t rights, const struct tmesh_error *err)
{
	return err->code == -EPERM && rights & TMESH_WRITE ? make_sealed(env, err)
							   : make_error(env, err);
}

/* Fill @err as the library would. Return: @code. */
int refuse(struct tmesh_error *err, int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	err->code = code;
	vsnprintf(err->message, sizeof(err->message), format, args);
	va_end(args);
	return code;
}

ERL_NIF_TERM make_refusal(ErlNifEnv *env, int code, const char *format, ...)
{
	struct tmesh_error err = {.code = code};
	va_list args;

	va_start(args, format);
	vsnprintf(err.message, sizeof(err.message), format, args);
	va_end(args);
	return make_error(env, &err);
}

bool get_dtype(ErlNifEnv *env, ERL_NIF_TERM term, enum tmesh_dtype *dtype, struct tmesh_error *err)
{
	char name[32];

	*dtype = TMESH_DTYPE_INVALID;
	if (enif_get_atom(env, term, name, sizeof(name), ERL_NIF_LATIN1))
		*dtype = tmesh_dtype_from_name(name);
	if (*dtype == TMESH_DTYPE_INVALID)
		refuse(err, -EINVAL, "unknown dtype: give an atom such as :float32");
	return *dtype != TMESH_DTYPE_INVALID;
}

/* Read a proper list of at most TMESH_MAX_DIMS integers of 64 bits. */
bool get_dims(ErlNifEnv *env, ERL_NIF_TERM term, const char *what, int64_t *dims, int32_t *ndim,
	      struct tmesh_error *err)
{
	ERL_NIF_TERM head;
	ErlNifSInt64 dim;

	*ndim = 0;
	while (*ndim < TMESH_MAX_DIMS && enif_get_list_cell(env, term, &head, &term)) {
		if (!enif_get_int64(env, head, &dim))
			goto wrong;
		dims[(*ndim)++] = dim;
	}
	if (enif_is_empty_list(env, term))
		return true;
wrong:
	refuse(err, -EINVAL,
	       "%s must be a list, such as Tuple.to_list/1 makes of a tuple, of at most %d "
	       "integers "
	       "of 64 bits",
	       what, TMESH_MAX_DIMS);
	return false;
}

static bool is_atom(ErlNifEnv *env, ERL_NIF_TERM term, const char *name)
{
	return enif_is_identical(term, enif_make_atom(env, name));
}

bool get_rights(ErlNifEnv *env, ERL_NIF_TERM term, uint32_t *rights, struct tmesh_error *err)
{
	if (is_atom(env, term, "read"))
		*rights = TMESH_READ;
	else if (is_atom(env, term, "write"))
		*rights = TMESH_READ | TMESH_WRITE;
	else
		return refuse(err, -EINVAL, "rights must be :read or :write") == 0;
	return true;
}

bool get_bool(ErlNifEnv *env, ERL_NIF_TERM term, const char *what, bool *value,
	      struct tmesh_error *err)
{
	*value = is_atom(env, term, "true");
	if (*value || is_atom(env, term, "false"))
		return true;
	refuse(err, -EINVAL, "%s must be true or false", what);
	return false;
}

bool get_text(ErlNifEnv *env, ERL_NIF_TERM term, char *text, size_t size)
{
	ErlNifBinary binary;

	if (!enif_inspect_binary(env, term, &binary) || binary.size >= size ||
	    memchr(binary.data, 0, binary.size))
		return false;
	memcpy(text, binary.data, binary.size);
	text[binary.size] = 0;
	return true;
}

static bool get_device(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_layout *layout)
{
	const ERL_NIF_TERM *pair;
	int arity, id;

	if (is_atom(env, term, "cpu")) {
		layout->device_type = TMESH_DEVICE_CPU;
		layout->device_id = 0;
		return true;
	}
	if (!enif_get_tuple(env, term, &arity, &pair) || arity != 2 ||
	    !is_atom(env, pair[0], "cuda") || !enif_get_int(env, pair[1], &id) || id < 0)
		return false;
	layout->device_type = TMESH_DEVICE_CUDA;
	layout->device_id = id;
	return true;
}

static ERL_NIF_TERM make_device(ErlNifEnv *env, const struct tmesh_layout *layout)
{
	if (layout->device_type == TMESH_DEVICE_CPU)
		return atoms.cpu;
	return enif_make_tuple2(env, enif_make_atom(env, "cuda"),
				enif_make_int(env, layout->device_id));
}

ERL_NIF_TERM make_members(ErlNifEnv *env, const struct member *members, size_t count)
{
	ERL_NIF_TERM map = enif_make_new_map(env);

	for (size_t i = 0; i < count; i++)
		enif_make_map_put(env, map, enif_make_atom(env, members[i].name), members[i].value,
				  &map);
	return map;
}

static ERL_NIF_TERM value_of(ErlNifEnv *env, const struct shown *member, const void *of)
{
	const char *at = (const char *)of + member->offset;
	uint64_t wide = member->size == sizeof(wide) ? *(const uint64_t *)at : 0;

	switch (member->kind) {
	case SHOWN_U64:
		return enif_make_uint64(env, wide);
	case SHOWN_U64_OR_NONE:
		return wide ? enif_make_uint64(env, wide) : atoms.nil;
	case SHOWN_U32:
		return enif_make_uint(env, *(const uint32_t *)at);
	case SHOWN_BOOL:
		return enif_make_atom(env, *(const bool *)at ? "true" : "false");
	case SHOWN_ID:
		return make_id(env, wide);
	case SHOWN_TEXT_OR_NONE:
		if (!*at)
			return atoms.nil;
		break;
	case SHOWN_TEXT:
		break;
	}
	return make_string(env, at);
}

ERL_NIF_TERM show(ErlNifEnv *env, ERL_NIF_TERM map, const struct shown *members, size_t count,
		  const void *of)
{
	for (size_t i = 0; i < count; i++)
		enif_make_map_put(env, map, enif_make_atom(env, members[i].name),
				  value_of(env, &members[i], of), &map);
	return map;
}

/* Read {id, token, offset, byte_size, shape, dtype, strides, device}, as in Tmesh.Native. */
bool get_ref(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_ref *ref, struct tmesh_error *err)
{
	ErlNifUInt64 id, offset, byte_size;
	const ERL_NIF_TERM *field;
	int32_t nstrides;
	int arity;

	memset(ref, 0, sizeof(*ref));
	if (!enif_get_tuple(env, term, &arity, &field) || arity != 8 ||
	    !enif_get_uint64(env, field[0], &id) ||
	    !get_text(env, field[1], ref->token, sizeof(ref->token)) ||
	    !enif_get_uint64(env, field[2], &offset) ||
	    !enif_get_uint64(env, field[3], &byte_size) ||
	    !get_device(env, field[7], &ref->layout)) {
		refuse(err, -EPROTO, "not a ref: a member is missing or of another type");
		return false;
	}
	if (!get_dims(env, field[4], "shape", ref->layout.shape, &ref->layout.ndim, err) ||
	    !get_dtype(env, field[5], &ref->layout.dtype, err) ||
	    !get_dims(env, field[6], "strides", ref->layout.strides, &nstrides, err))
		return false;
	if (nstrides != ref->layout.ndim) {
		refuse(err, -EPROTO, "not a ref: shape and strides differ in length");
		return false;
	}
	ref->id = id;
	ref->byte_size = byte_size;
	ref->layout.offset = offset;
	return true;
}

ERL_NIF_TERM make_dims(ErlNifEnv *env, const int64_t *dims, int32_t ndim)
{
	ERL_NIF_TERM terms[TMESH_MAX_DIMS];

	for (int32_t i = 0; i < ndim; i++)
		terms[i] = enif_make_int64(env, dims[i]);
	return enif_make_list_from_array(env, terms, (unsigned int)ndim);
}

ERL_NIF_TERM make_ref(ErlNifEnv *env, const struct tmesh_ref *ref)
{
	const struct tmesh_layout *layout = &ref->layout;

	return enif_make_tuple8(
		env, enif_make_uint64(env, ref->id), make_string(env, ref->token),
		enif_make_uint64(env, layout->offset), enif_make_uint64(env, ref->byte_size),
		make_dims(env, layout->shape, layout->ndim), atoms.dtypes[layout->dtype],
		make_dims(env, layout->strides, layout->ndim), make_device(env, layout));
}

/* Read nil, or a number of at least 0, for which @flag is set. */
static bool get_given(ErlNifEnv *env, ERL_NIF_TERM term, uint32_t flag, unsigned int *value,
		      uint32_t *flags)
{
	if (is_atom(env, term, "nil"))
		return true;
	*flags |= flag;
	return enif_get_uint(env, term, value) && *value <= INT_MAX;
}

/* Read {label, huge, mode, node, gid, hold_ms, pin}, where opts->label points to @label, or read
 * an arena. */
bool get_region_opts(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_region_opts *opts,
		     char label[TMESH_LABEL_LEN + 1], struct tmesh_error *err)
{
	const ERL_NIF_TERM *field;
	unsigned int node = 0, gid = 0;
	struct arena *arena;
	bool pin;
	int arity;

	*opts = (struct tmesh_region_opts){.size = sizeof(*opts)};
	if (enif_get_resource(env, term, arena_type, (void **)&arena)) {
		opts->arena = arena->arena;
		return true;
	}
	opts->label = label;
	if (!enif_get_tuple(env, term, &arity, &field) || arity != 7)
		return refuse(err, -EINVAL, "a region has seven options") == 0;
	if (!get_text(env, field[0], label, TMESH_LABEL_LEN + 1))
		return refuse(err, -EINVAL, "label must be a string of at most %d bytes",
			      TMESH_LABEL_LEN) == 0;
	if (is_atom(env, field[1], "true"))
		opts->flags |= TMESH_REGION_HUGE;
	else if (is_atom(env, field[1], "try"))
		opts->flags |= TMESH_REGION_TRY_HUGE;
	else if (!is_atom(env, field[1], "false"))
		return refuse(err, -EINVAL, "huge must be true, false or :try") == 0;
	if (!enif_get_uint(env, field[2], &opts->mode))
		return refuse(err, -EINVAL, "mode must be permission bits such as 0o600") == 0;
	if (!get_given(env, field[3], TMESH_REGION_NODE, &node, &opts->flags))
		return refuse(err, -EINVAL, "node must be nil or the number of a NUMA node") == 0;
	if (!get_given(env, field[4], TMESH_REGION_GID, &gid, &opts->flags))
		return refuse(err, -EINVAL, "gid must be nil or the number of a group") == 0;
	if (!enif_get_uint(env, field[5], &opts->hold_ms))
		return refuse(err, -EINVAL, "hold_ms must be milliseconds, at most 1000") == 0;
	if (!get_bool(env, field[6], "pin", &pin, err))
		return false;
	opts->node = (int)node;
	opts->gid = gid;
	opts->flags |= pin ? 0 : TMESH_REGION_NO_PIN;
	return true;
}
