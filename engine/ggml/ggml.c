// SPDX-License-Identifier: MIT
/* The engine "ggml": graphs of tmesh/graph.h on the CPU, or on a GPU by builds for CUDA. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ggml_internal.h"

static void ggml_close(void *data)
{
	struct ggml_engine *engine = data;

	if (engine->on_gpu)
		engine->api.backend_buffer_free(engine->on_gpu);
	if (engine->memory)
		engine->api.backend_buffer_free(engine->memory);
	free(engine);
}

/*
 * Find where a tensor of ggml stores its address. ggml can set a tensor's address once, and has no
 * call to change it. Its structure is private, so look for the word that holds the address and that
 * ggml itself reads. Return 0 if there is none: inputs cannot be replaced then.
 */
static size_t find_address(const struct ggml_engine *engine)
{
	const struct ggml_api *api = &engine->api;
	size_t found = 0, bytes = api->tensor_overhead();
	struct ggml_context *context =
		api->init((struct ggml_params){.mem_size = 4 * bytes, .no_alloc = true});
	const uintptr_t first = 0x5a5a5a5a5a40, second = 0x3c3c3c3c3c40;
	struct ggml_tensor *tensor;

	if (!context)
		return 0;
	tensor = api->new_tensor_4d(context, GGML_F32, 4, 1, 1, 1);
	if (api->backend_tensor_alloc(engine->memory, tensor, (void *)first) != GGML_SUCCESS)
		bytes = 0;
	for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
		uintptr_t word;

		memcpy(&word, (char *)tensor + at, sizeof(word));
		if (word != first)
			continue;
		memcpy((char *)tensor + at, &second, sizeof(second));
		if (api->get_data(tensor) == (void *)second)
			found = at;
		memcpy((char *)tensor + at, &first, sizeof(first));
	}
	api->free(context);
	return found;
}

int ggml_place(const struct ggml_engine *engine, struct ggml_tensor *tensor, void *data,
	       const char *name, struct tmesh_error *err)
{
	if (engine->gpu)
		ggml_gpu_place(engine, tensor, data);
	else if (engine->api.backend_tensor_alloc(engine->memory, tensor, data) != GGML_SUCCESS)
		return tmesh_fail(err, -EIO, "ggml refused the memory of \"%s\"", name);
	return 0;
}

static int ggml_open(const struct plugin_open *opts, void **out, struct tmesh_error *err)
{
	struct ggml_engine *engine;
	int rc;

	if (opts->device_type == TMESH_DEVICE_CPU && opts->device_id)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the engine \"ggml\" has no device %d: the CPU is 0",
				  opts->device_id);
	engine = calloc(1, sizeof(*engine));
	if (!engine)
		return tmesh_fail(err, -ENOMEM, "no memory for an engine");
	engine->threads = opts->threads;
	rc = ggml_library(opts->library, &engine->api, err);
	if (!rc) {
		engine->memory = engine->api.backend_cpu_buffer_from_ptr(
			(void *)(uintptr_t)4096, (size_t)PTRDIFF_MAX - 4096);
		if (!engine->memory)
			rc = tmesh_fail(err, -ENOMEM, "no memory for an engine");
		else
			engine->address_at = find_address(engine);
	}
	if (!rc && opts->device_type == TMESH_DEVICE_CUDA)
		rc = ggml_gpu_open(engine, opts->device_id, err);
	if (rc)
		ggml_close(engine);
	else
		*out = engine;
	return rc;
}

static const char *ggml_version(void *engine)
{
	return ((struct ggml_engine *)engine)->api.version();
}

/* Types of inputs and weights. */
static const enum tmesh_dtype dtypes[] = {TMESH_FLOAT32, TMESH_FLOAT16, TMESH_BFLOAT16, TMESH_INT32,
					  TMESH_INT64};

static void ggml_describe(void *data, struct plugin_description *out)
{
	struct ggml_engine *engine = data;
	Dl_info info;

	out->reads = "graph";
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++)
		out->dtypes |= 1ull << dtypes[i];
	if (dladdr(*(void *const *)&engine->api.backend_init_by_type, &info))
		out->library = info.dli_fname;
}

__attribute__((visibility("default"))) extern const struct tmesh_engine_plugin tmesh_engine_plugin;
const struct tmesh_engine_plugin tmesh_engine_plugin = {
	.abi = TMESH_ENGINE_PLUGIN_ABI,
	.alignment = GGML_ALIGN,
	.behind = GGML_BEHIND,
	.captures = true, /* builds with GGML_CUDA_GRAPHS */
	.open = ggml_open,
	.close = ggml_close,
	.version = ggml_version,
	.session_open = ggml_session_open,
	.session_close = ggml_session_close,
	.bind = ggml_bind,
	.run = ggml_run,
	.result = ggml_result,
	.release = ggml_release,
	.unbind = ggml_unbind,
	.rebind = ggml_rebind,
	.describe = ggml_describe,
	.cancel = ggml_cancel,
};
