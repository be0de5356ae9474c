/* SPDX-License-Identifier: MIT */
/* Device tensors of engines: memory of regions with rights. */
#include "nif.h"

#include <tmesh/engine.h>

static bool get_flags(ErlNifEnv *env, ERL_NIF_TERM term, uint32_t *flags, struct tmesh_error *err)
{
	unsigned int value;

	if (!enif_get_uint(env, term, &value))
		return refuse(err, -EINVAL, "flags are a number") == 0;
	*flags = value;
	return true;
}

/* engine_tensor(engine, shape, dtype, flags) -> {ok, tensor} */
NIF(engine_tensor)
{
	struct tmesh_engine_tensor *made;
	int64_t shape[TMESH_MAX_DIMS];
	enum tmesh_dtype dtype;
	struct object *engine;
	struct tmesh_error err;
	uint32_t flags = 0;
	int32_t ndim;

	if (!find_object(env, argv[0], &context_kind, &engine, &err) ||
	    !get_dims(env, argv[1], "shape", shape, &ndim, &err) ||
	    !get_dtype(env, argv[2], &dtype, &err) || !get_flags(env, argv[3], &flags, &err) ||
	    tmesh_engine_tensor_create(engine->object, dtype, ndim, shape, flags, &made, &err))
		return make_error(env, &err);
	return make_ok_object(env, engine->context, &tensor_kind, made);
}

/* engine_tensor_wrap(engine, handle, writable, flags) -> {ok, tensor} */
NIF(engine_tensor_wrap)
{
	struct tmesh_engine_tensor *made;
	struct tmesh_tensor *tensor;
	struct object *engine;
	struct handle *handle;
	struct tmesh_error err;
	ERL_NIF_TERM term;
	uint32_t flags = 0;
	bool writable;

	if (!find_object(env, argv[0], &context_kind, &engine, &err) ||
	    !get_bool(env, argv[2], "rights", &writable, &err) ||
	    !get_flags(env, argv[3], &flags, &err))
		return make_error(env, &err);
	tensor = get_tensor(env, argv[1], &handle, &err);
	if (!tensor)
		return make_error(env, &err);
	if (tmesh_engine_tensor_wrap(engine->object, tensor,
				     TMESH_READ | (writable ? TMESH_WRITE : 0), flags, &made, &err))
		term = make_region_error(env, tmesh_tensor_region(tensor), &err);
	else
		term = make_ok_object(env, engine->context, &tensor_kind, made);
	tmesh_tensor_unref(tensor);
	return term;
}

/* engine_tensor_info(tensor) -> {ok, %{}} */
NIF(engine_tensor_info)
{
	struct tmesh_engine_tensor_info info = {.size = sizeof(info)};
	struct tmesh_error err;
	struct object *tensor;
	ERL_NIF_TERM device = atoms.cpu;

	if (!find_object(env, argv[0], &tensor_kind, &tensor, &err) ||
	    tmesh_engine_tensor_info(tensor->object, &info, &err))
		return make_error(env, &err);
	if (info.device_type == TMESH_DEVICE_CUDA)
		device = enif_make_tuple2(env, make_word(env, "cuda"),
					  enif_make_int(env, info.device_id));

	const struct member members[] = {
		{"dtype", atoms.dtypes[info.dtype]},
		{"shape", make_dims(env, info.shape, info.ndim)},
		{"byte_size", enif_make_uint64(env, info.bytes)},
		{"device", device},
		{"backend", make_string(env, info.backend)},
		{"flags", enif_make_uint(env, info.flags)},
		{"rights", make_word(env, info.rights & TMESH_WRITE ? "write" : "read")},
	};
	return make_ok(env, MAKE_MAP(env, members));
}

/* engine_tensor_read(tensor) -> {ok, binary} */
NIF(engine_tensor_read)
{
	struct tmesh_engine_tensor_info info = {.size = sizeof(info)};
	struct tmesh_error err;
	struct object *tensor;
	ErlNifBinary binary;
	uint64_t limit;

	if (!find_object(env, argv[0], &tensor_kind, &tensor, &err) ||
	    tmesh_engine_tensor_info(tensor->object, &info, &err))
		return make_error(env, &err);
	limit = atomic_load(&tensor->context->max_bytes);
	if (limit && info.bytes > limit)
		refuse(&err, -EDQUOT,
		       "a copy of %llu bytes is more than the limit max_shared_memory_mb",
		       (unsigned long long)info.bytes);
	else if (!enif_alloc_binary(info.bytes, &binary))
		refuse(&err, -ENOMEM, "no memory for a copy of %llu bytes",
		       (unsigned long long)info.bytes);
	else if (!tmesh_engine_tensor_read(tensor->object, binary.data, info.bytes, &err))
		return make_ok(env, enif_make_binary(env, &binary));
	else
		enif_release_binary(&binary);
	return make_error(env, &err);
}

/* engine_tensor_write(tensor, binary) -> ok */
NIF(engine_tensor_write)
{
	struct tmesh_error err;
	struct object *tensor;
	ErlNifBinary binary;

	if (!find_object(env, argv[0], &tensor_kind, &tensor, &err))
		return make_error(env, &err);
	if (!enif_inspect_binary(env, argv[1], &binary))
		return make_refusal(env, -EINVAL, "a device tensor is written from a binary");
	/* If the tensor may be written, EPERM comes from the seal. */
	if (tmesh_engine_tensor_write(tensor->object, binary.data, binary.size, &err))
		return make_open_error(env, TMESH_WRITE, &err);
	return atoms.ok;
}

/* engine_tensor_export(tensor) -> {ok, {handle, ref}} */
NIF(engine_tensor_export)
{
	struct tmesh_tensor *exported;
	struct tmesh_error err;
	struct object *tensor;
	ERL_NIF_TERM term;

	if (!find_object(env, argv[0], &tensor_kind, &tensor, &err) ||
	    tmesh_engine_tensor_export(tensor->object, &exported, &err) ||
	    !make_handle(env, tensor->context, exported, &term, &err))
		return make_error(env, &err);
	return make_ok(env, term);
}

/* engine_tensor_destroy(tensor) -> ok */
NIF(engine_tensor_destroy)
{
	struct tmesh_error err;
	struct object *tensor;

	if (!find_object(env, argv[0], &tensor_kind, &tensor, &err))
		return make_error(env, &err);
	tmesh_engine_tensor_destroy(tensor->object);
	return atoms.ok;
}
