// SPDX-License-Identifier: MIT
/* A list of devices and engines from JSON: as another process has found it. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "devices_internal.h"

/* A text, or null for "". false: it is none, or has no room. */
static bool read_text(const json_t *value, char *out, size_t bytes)
{
	const char *text = json_is_null(value) ? "" : json_string_value(value);

	return text && (size_t)snprintf(out, bytes, "%s", text) < bytes;
}

/* A number of at least 0, or null for @none. */
static bool read_bytes(const json_t *value, uint64_t none, uint64_t *out)
{
	*out = json_is_null(value) ? none : (uint64_t)json_integer_value(value);
	return json_is_null(value) || (json_is_integer(value) && json_integer_value(value) >= 0);
}

static bool read_dtypes(const json_t *list, uint64_t *out)
{
	const json_t *item;
	size_t i;

	*out = 0;
	json_array_foreach(list, i, item) {
		const char *name = json_string_value(item);
		enum tmesh_dtype dtype = name ? tmesh_dtype_from_name(name) : 0;

		if (!dtype)
			return false;
		*out |= 1ull << dtype;
	}
	return json_is_array(list);
}

static bool read_kind(const char *name, enum tmesh_device_type *out)
{
	*out = strcmp(name, "cuda") ? TMESH_DEVICE_CPU : TMESH_DEVICE_CUDA;
	return !strcmp(name, "cuda") || !strcmp(name, "cpu");
}

/* By name: an operator that this library has not is none of its graphs'. */
static bool read_operators(json_t *operators, uint64_t *out)
{
	json_t *dtypes;
	const char *name;

	json_object_foreach(operators, name, dtypes) {
		enum tmesh_graph_op op = tmesh_graph_op_from_name(name);
		uint64_t bits;

		if (!read_dtypes(dtypes, &bits))
			return false;
		if (op && op < TMESH_DEVICES_OPERATORS)
			out[op] = bits;
	}
	return json_is_object(operators);
}

static bool read_engine(json_t *item, struct tmesh_devices_engine *engine)
{
	json_t *name, *version, *library, *reads, *dtypes, *operators, *unseen, *reason, *kind;
	size_t i;

	if (json_unpack(item, "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", &name, "version",
			&version, "library", &library, "reads", &reads, "dtypes", &dtypes,
			"operators", &operators, "never_seen", &unseen, "reason", &reason))
		return false;
	json_array_foreach(unseen, i, kind) {
		enum tmesh_device_type type;

		if (!read_kind(json_string_value(kind) ?: "", &type))
			return false;
		engine->never_seen |= 1ull << type;
	}
	return read_text(name, engine->name, sizeof(engine->name)) && *engine->name &&
	       read_text(version, engine->version, sizeof(engine->version)) &&
	       read_text(library, engine->library, sizeof(engine->library)) &&
	       read_text(reads, engine->reads, sizeof(engine->reads)) &&
	       read_text(reason, engine->reason, sizeof(engine->reason)) &&
	       read_dtypes(dtypes, &engine->dtypes) && json_is_array(unseen) &&
	       read_operators(operators, engine->operators);
}

/* The engines that run there, by their index. */
static bool read_names(const json_t *names, const struct tmesh_devices *list, uint64_t *out)
{
	const json_t *item;
	size_t i, at;

	json_array_foreach(names, i, item) {
		const char *name = json_string_value(item) ?: "";

		for (at = 0; at < list->engine_count; at++)
			if (!strcmp(list->engines[at].name, name))
				break;
		if (at == list->engine_count)
			return false;
		*out |= 1ull << at;
	}
	return json_is_array(names);
}

static bool read_device(json_t *item, const struct tmesh_devices *list,
			struct tmesh_devices_device *device)
{
	json_t *name, *node, *memory, *memory_free, *engines, *reason;
	const char *id, *kind;
	uint64_t number;
	int processors;
	char end;

	if (json_unpack(item, "{s:s, s:s, s:o, s:o, s:i, s:o, s:o, s:o, s:o}", "id", &id, "kind",
			&kind, "name", &name, "node", &node, "processors", &processors, "memory",
			&memory, "memory_free", &memory_free, "engines", &engines, "reason",
			&reason))
		return false;
	if (processors < 0 || !read_bytes(node, 0, &number) || number > INT_MAX ||
	    !read_kind(kind, &device->device_type) || strncmp(id, kind, strlen(kind)) != 0 ||
	    sscanf(id + strlen(kind), ":%5d%c", &device->device_id, &end) != 1 ||
	    device->device_id < 0)
		return false;
	snprintf(device->id, sizeof(device->id), "%s:%d", kind, device->device_id);
	device->node = json_is_null(node) ? -1 : (int32_t)number;
	device->processors = (uint32_t)processors;
	return read_text(name, device->name, sizeof(device->name)) &&
	       read_text(reason, device->reason, sizeof(device->reason)) &&
	       read_bytes(memory, TMESH_DEVICES_UNKNOWN, &device->memory) &&
	       read_bytes(memory_free, TMESH_DEVICES_UNKNOWN, &device->memory_free) &&
	       read_names(engines, list, &device->engines);
}

static int read_list(struct tmesh_devices *list, json_t *devices, json_t *engines,
		     struct tmesh_error *err)
{
	json_t *item;
	size_t i;

	if (!json_array_size(devices) || json_array_size(devices) > DEVICES_MAX ||
	    !json_is_array(engines) || json_array_size(engines) > TMESH_DEVICES_MAX_ENGINES)
		return tmesh_fail(err, -EPROTO, "no list of 1 to %d devices and %d engines at most",
				  DEVICES_MAX, TMESH_DEVICES_MAX_ENGINES);
	json_array_foreach(engines, i, item) {
		if (!read_engine(item, &list->engines[i]))
			return tmesh_fail(err, -EPROTO, "engine %zu of the list is none", i);
		list->engine_count++;
	}
	json_array_foreach(devices, i, item) {
		if (!read_device(item, list, &list->devices[i]))
			return tmesh_fail(err, -EPROTO, "device %zu of the list is none", i);
		list->device_count++;
	}
	return 0;
}

int tmesh_devices_parse(const char *text, size_t bytes, struct tmesh_devices **out,
			struct tmesh_error *err)
{
	struct tmesh_devices *list = calloc(1, sizeof(*list));
	json_t *whole = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
	int rc;

	if (list)
		list->root = strdup("");
	if (!list || !list->root)
		rc = tmesh_fail(err, -ENOMEM, "no memory for a list of devices");
	else
		rc = read_list(list, json_object_get(whole, "devices"),
			       json_object_get(whole, "engines"), err);
	json_decref(whole);
	if (list)
		list->refs = 1;
	if (rc)
		tmesh_devices_unref(list);
	else
		*out = list;
	return rc;
}
