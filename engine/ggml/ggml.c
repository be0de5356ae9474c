// SPDX-License-Identifier: MIT
/* The engine "ggml": graphs of tmesh/graph.h on the CPU. */
#include <errno.h>
#include <stdlib.h>

#include "ggml_internal.h"

static void ggml_close(void *data)
{
	struct ggml_engine *engine = data;

	if (engine->memory)
		engine->api.backend_buffer_free(engine->memory);
	free(engine);
}

static int ggml_open(const struct plugin_open *opts, void **out, struct tmesh_error *err)
{
	struct ggml_engine *engine;
	int rc;

	if (opts->device_type != TMESH_DEVICE_CPU || opts->device_id)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the engine \"ggml\" runs on the CPU (device 0) alone, so far");
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
	}
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

__attribute__((visibility("default"))) extern const struct tmesh_engine_plugin tmesh_engine_plugin;
const struct tmesh_engine_plugin tmesh_engine_plugin = {
	.abi = TMESH_ENGINE_PLUGIN_ABI,
	.alignment = GGML_ALIGN,
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
};
