// SPDX-License-Identifier: MIT
/* The list of devices and engines: found, read, written as JSON. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cuda_api.h"
#include "devices_internal.h"

static const char *library_of(const struct tmesh_devices_opts *opts, const char *engine)
{
	for (size_t i = 0; i < opts->library_count; i++)
		if (!strcmp(opts->libraries[i].engine, engine))
			return opts->libraries[i].library;
	return NULL;
}

/* Return whether the engine starts on a device, and its description if it does. */
static int try_engine(const struct tmesh_engine_plugin *plugin, const char *library,
		      enum tmesh_device_type type, int32_t id, struct tmesh_devices_engine *found,
		      struct tmesh_error *err)
{
	struct plugin_open opts = {
		.library = library, .device_type = type, .device_id = id, .threads = 1};
	struct plugin_description told = {0};
	void *engine;
	int rc = plugin->open(&opts, &engine, err);

	if (rc)
		return rc;
	if (found) {
		snprintf(found->version, sizeof(found->version), "%s", plugin->version(engine));
		if (plugin->describe)
			plugin->describe(engine, &told);
		snprintf(found->library, sizeof(found->library), "%s", told.library ?: "");
		snprintf(found->reads, sizeof(found->reads), "%s", told.reads ?: "");
		found->dtypes = told.dtypes;
		if (!strcmp(found->reads, "graph"))
			devices_probe(plugin, engine, found);
	}
	plugin->close(engine);
	return 0;
}

static void find_gpus(struct tmesh_devices *devices)
{
	struct tmesh_cuda_api calls = {0};
	struct tmesh_cuda *cuda;
	struct tmesh_error err;

	if (tmesh_cuda_api_load(&calls, TMESH_CUDA_LIBRARY, &err) ||
	    calls.cuda_default(&cuda, &err))
		return;
	for (int i = 0; i < calls.cuda_device_count(cuda) && devices->device_count < DEVICES_MAX;
	     i++) {
		struct tmesh_cuda_device_info info = {.size = sizeof(info)};
		struct tmesh_devices_device *device = &devices->devices[devices->device_count];

		if (calls.cuda_device_info(cuda, i, &info, &err))
			continue;
		*device = (struct tmesh_devices_device){
			.device_type = TMESH_DEVICE_CUDA,
			.device_id = i,
			.node = -1,
			.memory = info.bytes,
			.memory_free = TMESH_DEVICES_UNKNOWN,
		};
		snprintf(device->id, sizeof(device->id), "cuda:%d", i % 100000);
		snprintf(device->name, sizeof(device->name), "%s", info.name);
		devices->device_count++;
	}
}

/* Return the device types that the engine supports but has never run on. No GPU has run an engine
 * so far: docs/reference/engines.md. */
static uint64_t never_seen(const char *engine)
{
	return !strcmp(engine, "onnx") || !strcmp(engine, "ggml") ? 1ull << TMESH_DEVICE_CUDA : 0;
}

struct finding {
	struct tmesh_devices *devices;
	const struct tmesh_devices_opts *opts;
};

static void find_engine(const char *name, void *data)
{
	struct finding *finding = data;
	struct tmesh_devices *devices = finding->devices;
	struct tmesh_devices_engine *found = &devices->engines[devices->engine_count];
	const char *library = library_of(finding->opts, name);
	const struct tmesh_engine_plugin *plugin;
	struct tmesh_error err;

	for (size_t i = 0; i < devices->engine_count; i++)
		if (!strcmp(devices->engines[i].name, name))
			return;
	if (devices->engine_count == TMESH_DEVICES_MAX_ENGINES)
		return;
	*found = (struct tmesh_devices_engine){0};
	snprintf(found->name, sizeof(found->name), "%s", name);
	found->never_seen = never_seen(name);
	if (engine_plugin_find(name, &plugin, &err) ||
	    try_engine(plugin, library, TMESH_DEVICE_CPU, 0, found, &err)) {
		snprintf(found->reason, sizeof(found->reason), "%s", err.message);
		devices->engine_count++;
		return;
	}
	for (size_t i = 0; i < devices->device_count; i++) {
		struct tmesh_devices_device *device = &devices->devices[i];

		/* An engine on the CPU uses all processors: device 0 stands for all nodes. */
		if (device->device_type == TMESH_DEVICE_CPU ||
		    !try_engine(plugin, library, device->device_type, device->device_id, NULL,
				&err))
			device->engines |= 1ull << devices->engine_count;
		else
			snprintf(device->reason, sizeof(device->reason), "%.159s", err.message);
	}
	devices->engine_count++;
}

static int check_opts(const struct tmesh_devices_opts *opts, struct tmesh_error *err)
{
	if (opts->library_count && !opts->libraries)
		return tmesh_fail(err, -EINVAL, "%zu libraries, and no list of them",
				  opts->library_count);
	for (size_t i = 0; i < opts->library_count; i++)
		if (!opts->libraries[i].engine || !opts->libraries[i].library)
			return tmesh_fail(err, -EINVAL, "library %zu has no engine or no file", i);
	return 0;
}

int tmesh_devices_find(const struct tmesh_devices_opts *given, struct tmesh_devices **out,
		       struct tmesh_error *err)
{
	struct tmesh_devices_opts opts;
	struct tmesh_devices *devices;
	int rc = tmesh_read_sized(&opts, sizeof(opts), given, err);

	if (!rc)
		rc = check_opts(&opts, err);
	if (rc)
		return rc;
	devices = calloc(1, sizeof(*devices));
	if (!devices)
		return tmesh_fail(err, -ENOMEM, "no memory for a list of devices");
	devices->refs = 1;
	devices->root = strdup(opts.root ?: "");
	rc = devices->root ? devices_find_host(devices, devices->root, err)
			   : tmesh_fail(err, -ENOMEM, "no memory for a list of devices");
	if (rc) {
		tmesh_devices_unref(devices);
		return rc;
	}
	find_gpus(devices);
	engine_plugin_names(find_engine, &(struct finding){devices, &opts});
	for (size_t i = 0; i < devices->device_count; i++) {
		struct tmesh_devices_device *device = &devices->devices[i];

		if (device->engines)
			*device->reason = '\0';
		else if (!*device->reason)
			strcpy(device->reason, "no engine was found that works");
	}
	*out = devices;
	return 0;
}

struct tmesh_devices *tmesh_devices_ref(struct tmesh_devices *devices)
{
	atomic_fetch_add(&devices->refs, 1);
	return devices;
}

void tmesh_devices_unref(struct tmesh_devices *devices)
{
	if (!devices || atomic_fetch_sub(&devices->refs, 1) != 1)
		return;
	free(devices->root);
	free(devices);
}

size_t tmesh_devices_count(const struct tmesh_devices *devices)
{
	return devices->device_count;
}

int tmesh_devices_device(const struct tmesh_devices *devices, size_t index,
			 struct tmesh_devices_device *out, struct tmesh_error *err)
{
	if (index >= devices->device_count)
		return tmesh_fail(err, -EINVAL, "there is no device %zu of %zu", index,
				  devices->device_count);
	return tmesh_write_sized(out, &devices->devices[index], sizeof(*out), err);
}

size_t tmesh_devices_engines(const struct tmesh_devices *devices)
{
	return devices->engine_count;
}

int tmesh_devices_engine(const struct tmesh_devices *devices, size_t index,
			 struct tmesh_devices_engine *out, struct tmesh_error *err)
{
	if (index >= devices->engine_count)
		return tmesh_fail(err, -EINVAL, "there is no engine %zu of %zu", index,
				  devices->engine_count);
	return tmesh_write_sized(out, &devices->engines[index], sizeof(*out), err);
}

static json_t *dtypes_json(uint64_t dtypes)
{
	json_t *list = json_array();

	for (int i = 1; i < 64; i++)
		if (dtypes >> i & 1 && tmesh_dtype_name((enum tmesh_dtype)i))
			json_array_append_new(list,
					      json_string(tmesh_dtype_name((enum tmesh_dtype)i)));
	return list;
}

/* Return null for "". */
static json_t *text_json(const char *text)
{
	return *text ? json_stringn_nocheck(text, strlen(text)) : json_null();
}

static json_t *bytes_json(uint64_t bytes)
{
	return bytes == TMESH_DEVICES_UNKNOWN ? json_null() : json_integer((json_int_t)bytes);
}

static const char *kind_name(enum tmesh_device_type type)
{
	return type == TMESH_DEVICE_CPU ? "cpu" : "cuda";
}

static json_t *device_json(const struct tmesh_devices *devices,
			   const struct tmesh_devices_device *device)
{
	json_t *engines = json_array(), *never_seen = json_array();

	for (size_t i = 0; i < devices->engine_count; i++) {
		const struct tmesh_devices_engine *engine = &devices->engines[i];

		if (device->engines >> i & 1)
			json_array_append_new(engines, json_string(engine->name));
		if (engine->never_seen >> device->device_type & 1)
			json_array_append_new(never_seen, json_string(engine->name));
	}
	return json_pack("{s:s, s:s, s:o, s:o, s:i, s:o, s:o, s:o, s:o, s:o}", "id", device->id,
			 "kind", kind_name(device->device_type), "name", text_json(device->name),
			 "node", device->node < 0 ? json_null() : json_integer(device->node),
			 "processors", (int)device->processors, "memory",
			 bytes_json(device->memory), "memory_free", bytes_json(device->memory_free),
			 "engines", engines, "never_seen", never_seen, "reason",
			 text_json(device->reason));
}

static json_t *engine_json(const struct tmesh_devices_engine *engine)
{
	json_t *operators = json_object(), *never_seen = json_array();

	for (int kind = TMESH_DEVICE_CPU; kind <= TMESH_DEVICE_CUDA; kind++)
		if (engine->never_seen >> kind & 1)
			json_array_append_new(never_seen, json_string(kind_name(kind)));
	for (int op = 0; op < TMESH_DEVICES_OPERATORS; op++)
		if (engine->operators[op])
			json_object_set_new(operators, tmesh_graph_op_name((enum tmesh_graph_op)op),
					    dtypes_json(engine->operators[op]));
	return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", engine->name,
			 "version", text_json(engine->version), "library",
			 text_json(engine->library), "reads", text_json(engine->reads), "dtypes",
			 dtypes_json(engine->dtypes), "operators", operators, "never_seen",
			 never_seen, "reason", text_json(engine->reason));
}

char *tmesh_devices_to_json(const struct tmesh_devices *devices)
{
	json_t *list = json_array(), *engines = json_array(), *all;
	char *text;

	for (size_t i = 0; i < devices->device_count; i++)
		json_array_append_new(list, device_json(devices, &devices->devices[i]));
	for (size_t i = 0; i < devices->engine_count; i++)
		json_array_append_new(engines, engine_json(&devices->engines[i]));
	all = json_pack("{s:o, s:o}", "devices", list, "engines", engines);
	text = all ? json_dumps(all, JSON_INDENT(1)) : NULL;
	json_decref(all);
	return text;
}
