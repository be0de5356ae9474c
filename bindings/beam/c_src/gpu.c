/* SPDX-License-Identifier: MIT */
/* GPU memory, by libtmesh-cuda. The first use of such memory loads it. */
#include "nif.h"

#include "common/cuda_api.h"

static struct {
	pthread_mutex_t lock; /* guards the loading; a loaded library stays */
	bool loaded;
	struct tmesh_cuda_api calls;
} api = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct gpu {
	pthread_mutex_t lock;		  /* guards memory */
	struct tmesh_cuda_memory *memory; /* NULL: released */
	struct tmesh_layout layout;
	struct garbage *garbage;
};

static void drop_memory(void *object)
{
	api.calls.cuda_memory_unref(object);
}

void gpu_dtor(ErlNifEnv *env, void *object)
{
	struct gpu *gpu = object;

	if (gpu->memory)
		garbage_put(env, gpu->garbage, gpu->memory);
	else
		garbage_free(gpu->garbage);
	pthread_mutex_destroy(&gpu->lock);
}

/* Return this process's libtmesh-cuda. A driver or device may appear later: the next call tries
 * again. */
static int get_cuda(struct tmesh_cuda **cuda, struct tmesh_error *err)
{
	char name[256] = TMESH_CUDA_LIBRARY;
	size_t size = sizeof(name);
	int rc = 0;

	pthread_mutex_lock(&api.lock);
	if (!api.loaded) {
		if (enif_getenv("TMESH_CUDA_LIBRARY", name, &size))
			strcpy(name, TMESH_CUDA_LIBRARY);
		rc = tmesh_cuda_api_load(&api.calls, name, err);
	}
	api.loaded = api.loaded || !rc;
	pthread_mutex_unlock(&api.lock);
	return rc ? rc : api.calls.cuda_default(cuda, err);
}

/* Return the caller's reference on the memory of a handle, or NULL with @err filled. */
static struct tmesh_cuda_memory *get_memory(ErlNifEnv *env, ERL_NIF_TERM term, struct gpu **gpu,
					    struct tmesh_error *err)
{
	struct tmesh_cuda_memory *memory = NULL;

	if (enif_get_resource(env, term, gpu_type, (void **)gpu)) {
		pthread_mutex_lock(&(*gpu)->lock);
		if ((*gpu)->memory)
			memory = api.calls.cuda_memory_ref((*gpu)->memory);
		pthread_mutex_unlock(&(*gpu)->lock);
	}
	if (!memory)
		refuse(err, -EBADF, "no GPU memory: it was released, or was never here");
	return memory;
}

/* Make a handle without memory yet, or return NULL with @err filled. */
static struct gpu *gpu_new(struct tmesh_error *err)
{
	struct gpu *gpu = enif_alloc_resource(gpu_type, sizeof(*gpu));

	*gpu = (struct gpu){.garbage = garbage_alloc(drop_memory)};
	pthread_mutex_init(&gpu->lock, NULL);
	if (gpu->garbage)
		return gpu;
	refuse(err, -ENOMEM, "no memory for a handle");
	enif_release_resource(gpu);
	return NULL;
}

/* {ok, {gpu, ref}}; the ref has no id and no token: gpu_ref() makes them. */
static ERL_NIF_TERM make_gpu(ErlNifEnv *env, struct gpu *gpu)
{
	struct tmesh_ref ref = {.layout = gpu->layout};
	struct tmesh_error err;

	if (tmesh_layout_check(&gpu->layout, INT64_MAX, &ref.byte_size, &err))
		return make_error(env, &err);
	return make_ok(env,
		       enif_make_tuple2(env, enif_make_resource(env, gpu), make_ref(env, &ref)));
}

/* gpu_alloc(device, shape, dtype, alone) -> {ok, {gpu, ref}} */
NIF(gpu_alloc)
{
	int64_t shape[TMESH_MAX_DIMS];
	struct tmesh_cuda *cuda;
	struct tmesh_error err;
	enum tmesh_dtype dtype;
	ERL_NIF_TERM term;
	struct gpu *gpu;
	uint64_t bytes;
	int32_t ndim;
	int device;
	bool alone;

	if (!enif_get_int(env, argv[0], &device))
		return make_refusal(env, -ENODEV, "no GPU has such a number");
	if (!get_dims(env, argv[1], "shape", shape, &ndim, &err) ||
	    !get_dtype(env, argv[2], &dtype, &err) ||
	    !get_bool(env, argv[3], "alone", &alone, &err))
		return make_error(env, &err);
	gpu = gpu_new(&err);
	if (!gpu)
		return make_error(env, &err);
	if (tmesh_layout_contiguous(&gpu->layout, dtype, ndim, shape, &err) ||
	    tmesh_layout_check(&gpu->layout, INT64_MAX, &bytes, &err) || get_cuda(&cuda, &err) ||
	    api.calls.cuda_alloc(cuda, device, bytes ? bytes : 1, alone ? TMESH_CUDA_ALONE : 0,
				 &gpu->memory, &err)) {
		term = make_error(env, &err);
	} else {
		gpu->layout.device_type = TMESH_DEVICE_CUDA;
		gpu->layout.device_id = device;
		term = make_gpu(env, gpu);
	}
	enif_release_resource(gpu);
	return term;
}

/* gpu_open(context, json, device or nil, writable) -> {ok, {gpu, ref}}. The context limits the
 * calls that wait. */
NIF(gpu_open)
{
	struct tmesh_cuda_import_opts opts = {.size = sizeof(opts), .device = -1};
	struct context *context;
	struct tmesh_cuda *cuda;
	struct tmesh_error err;
	ErlNifBinary text;
	ERL_NIF_TERM term;
	struct gpu *gpu;
	bool writable;

	if (!get_context(env, argv[0], &context, &err))
		return make_error(env, &err);
	if (!enif_inspect_binary(env, argv[1], &text))
		return make_refusal(env, -EPROTO, "a ref's JSON must be a string");
	if (!enif_is_identical(argv[2], atoms.nil) &&
	    (!enif_get_int(env, argv[2], &opts.device) || opts.device < 0))
		return make_refusal(env, -ENODEV, "no GPU has such a number");
	if (!get_bool(env, argv[3], "writable", &writable, &err))
		return make_error(env, &err);
	opts.rights = writable ? TMESH_READ | TMESH_WRITE : TMESH_READ;
	gpu = gpu_new(&err);
	if (!gpu)
		return make_error(env, &err);
	if (begin_opening(context, &err)) {
		if (get_cuda(&cuda, &err) ||
		    api.calls.cuda_open_ref(cuda, (const char *)text.data, text.size, &opts, NULL,
					    &gpu->memory, &gpu->layout, &err))
			gpu->memory = NULL;
		end_opening(context);
	}
	term = gpu->memory ? make_gpu(env, gpu) : make_error(env, &err);
	enif_release_resource(gpu);
	return term;
}

/* gpu_ref(gpu) -> {ok, json}. Its opener waits for the work in the default stream up to now. */
NIF(gpu_ref)
{
	struct tmesh_cuda_memory *memory;
	char text[TMESH_REF_SIZE];
	struct tmesh_error err;
	struct gpu *gpu;
	int rc;

	memory = get_memory(env, argv[0], &gpu, &err);
	if (!memory)
		return make_error(env, &err);
	rc = api.calls.cuda_share(memory, &gpu->layout, NULL, text, sizeof(text), &err);
	api.calls.cuda_memory_unref(memory);
	return rc ? make_error(env, &err) : make_ok(env, make_string(env, text));
}

static ERL_NIF_TERM make_device(ErlNifEnv *env, int device)
{
	if (device < 0)
		return enif_make_atom(env, "cpu");
	return enif_make_tuple2(env, enif_make_atom(env, "cuda"), enif_make_int(env, device));
}

/* gpu_info(gpu) -> {ok, #{kind => own, ...}} */
NIF(gpu_info)
{
	static const char *const kinds[] = {
		[TMESH_CUDA_HOST] = "host", [TMESH_CUDA_STAGED] = "staged",
		[TMESH_CUDA_OWN] = "own",   [TMESH_CUDA_IMPORTED] = "imported",
		[TMESH_CUDA_IPC] = "ipc",   [TMESH_CUDA_EXTERNAL] = "external",
	};
	struct tmesh_cuda_info info = {.size = sizeof(info)};
	struct tmesh_cuda_memory *memory;
	struct tmesh_error err;
	struct gpu *gpu;
	int rc;

	memory = get_memory(env, argv[0], &gpu, &err);
	if (!memory)
		return make_error(env, &err);
	rc = api.calls.cuda_info(memory, &info, &err);
	api.calls.cuda_memory_unref(memory);
	if (rc)
		return make_error(env, &err);

	const struct {
		const char *name;
		ERL_NIF_TERM value;
	} members[] = {
		{"kind", make_word(env, WORD_OF(kinds, info.kind))},
		{"device", make_device(env, info.device)},
		{"resident", make_device(env, info.resident)},
		{"writable", enif_make_atom(env, info.rights & TMESH_WRITE ? "true" : "false")},
		{"taken", enif_make_atom(env, info.taken ? "true" : "false")},
		{"pointer", enif_make_uint64(env, info.pointer + gpu->layout.offset)},
	};
	ERL_NIF_TERM map = enif_make_new_map(env);

	for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++)
		enif_make_map_put(env, map, enif_make_atom(env, members[i].name), members[i].value,
				  &map);
	return make_ok(env, map);
}

/* gpu_release(gpu) -> ok, also when repeated. Calls in progress keep their memory. */
NIF(gpu_release)
{
	struct tmesh_cuda_memory *memory;
	struct gpu *gpu;

	if (!enif_get_resource(env, argv[0], gpu_type, (void **)&gpu))
		return make_refusal(env, -EBADF,
				    "nothing to release: the ref has no GPU memory of this VM");
	pthread_mutex_lock(&gpu->lock);
	memory = gpu->memory;
	gpu->memory = NULL;
	pthread_mutex_unlock(&gpu->lock);
	if (memory)
		api.calls.cuda_memory_unref(memory);
	return atoms.ok;
}
