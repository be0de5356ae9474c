// SPDX-License-Identifier: MIT
/* The engine "onnx": ONNX Runtime on the CPU, or on a GPU by its builds for CUDA. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include "onnx_internal.h"

static int errno_of(int code)
{
	switch (code) {
	case ORT_CODE_NO_SUCHFILE:
		return -ENOENT;
	case ORT_CODE_INVALID_ARGUMENT:
		return -EINVAL;
	case ORT_CODE_NO_MODEL:
	case ORT_CODE_INVALID_PROTOBUF:
	case ORT_CODE_INVALID_GRAPH:
		return -EPROTO;
	case ORT_CODE_NOT_IMPLEMENTED:
		return -EOPNOTSUPP;
	default:
		return -EIO;
	}
}

int onnx_check(const struct onnx_engine *engine, struct ort_status *status, const char *what,
	       struct tmesh_error *err)
{
	int code;

	if (!status)
		return 0;
	code = errno_of(engine->ort.error_code(status));
	tmesh_fail(err, code, "ONNX Runtime, %s: %s", what, engine->ort.error_message(status));
	engine->ort.release_status(status);
	return code;
}

int onnx_value(const struct onnx_engine *engine, const struct ort_memory_info *memory,
	       const struct plugin_array *array, struct ort_value **out, struct tmesh_error *err)
{
	int element = onnx_element(array->dtype);

	if (!element)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "\"%.100s\" has a dtype that ONNX Runtime does not have",
				  array->name);
	return onnx_check(engine,
			  engine->ort.create_value(memory, array->data, array->bytes, array->shape,
						   (size_t)array->ndim, element, out),
			  array->name, err);
}

static void onnx_close(void *data)
{
	struct onnx_engine *engine = data;

	if (engine->memory)
		engine->ort.release_memory_info(engine->memory);
	if (engine->host_memory)
		engine->ort.release_memory_info(engine->host_memory);
	if (engine->env)
		engine->ort.release_env(engine->env);
	free(engine);
}

static int onnx_open(const struct plugin_open *opts, void **out, struct tmesh_error *err)
{
	struct onnx_engine *engine;
	int rc;

	if (opts->device_type == TMESH_DEVICE_CPU ? opts->device_id : opts->device_id < 0)
		return tmesh_fail(
			err, -EOPNOTSUPP,
			"the engine \"onnx\" has no device %d: the CPU is 0, GPUs count from 0",
			opts->device_id);
	engine = calloc(1, sizeof(*engine));
	if (!engine)
		return tmesh_fail(err, -ENOMEM, "no memory for an engine");
	engine->threads = opts->threads;
	engine->on_gpu = opts->device_type == TMESH_DEVICE_CUDA;
	engine->device = opts->device_id;
	rc = onnx_library(opts->library, &engine->ort, &engine->version, err);
	if (rc) {
		free(engine);
		return rc;
	}
	/* Log fatal errors only: each call returns its error, so stderr stays clean. */
	rc = onnx_check(engine, engine->ort.create_env(ORT_LOG_FATAL, "tmesh", &engine->env),
			"start", err);
	if (!rc && engine->on_gpu)
		rc = onnx_gpu_open(engine, err);
	else if (!rc)
		rc = onnx_check(engine,
				engine->ort.create_cpu_memory(ORT_DEVICE_ALLOCATOR,
							      ORT_MEMORY_DEFAULT, &engine->memory),
				"start", err);
	if (!rc)
		rc = onnx_check(engine, engine->ort.default_allocator(&engine->allocator), "start",
				err);
	if (rc)
		onnx_close(engine);
	else
		*out = engine;
	return rc;
}

static const char *onnx_version(void *engine)
{
	return ((struct onnx_engine *)engine)->version;
}

static void onnx_describe(void *data, struct plugin_description *out)
{
	struct onnx_engine *engine = data;
	Dl_info info;

	out->reads = "onnx";
	for (int i = 1; i < 64; i++)
		if (onnx_element((enum tmesh_dtype)i))
			out->dtypes |= 1ull << i;
	if (dladdr(*(void *const *)&engine->ort.create_env, &info))
		out->library = info.dli_fname;
}

__attribute__((visibility("default"))) extern const struct tmesh_engine_plugin tmesh_engine_plugin;
const struct tmesh_engine_plugin tmesh_engine_plugin = {
	.abi = TMESH_ENGINE_PLUGIN_ABI,
	.alignment = 1,
	.open = onnx_open,
	.close = onnx_close,
	.version = onnx_version,
	.session_open = onnx_session_open,
	.session_close = onnx_session_close,
	.bind = onnx_bind,
	.run = onnx_run,
	.result = onnx_result,
	.release = onnx_release,
	.unbind = onnx_unbind,
	.rebind = onnx_rebind,
	.describe = onnx_describe,
	.cancel = onnx_cancel,
};
