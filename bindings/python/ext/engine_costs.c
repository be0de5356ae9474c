// SPDX-License-Identifier: MIT
/* Measured costs, as a capsule that tmesh.costs.Costs has. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <tmesh/costs.h>

#include "engine_types.h"

#define NAME "tmesh.costs"
#define SERVED_MAX 16

static void release(PyObject *capsule)
{
	tmesh_costs_unref(PyCapsule_GetPointer(capsule, NAME));
}

static PyObject *capsule_of(struct tmesh_costs *costs)
{
	PyObject *capsule = PyCapsule_New(costs, NAME, release);

	if (!capsule)
		tmesh_costs_unref(costs);
	return capsule;
}

PyObject *engine_costs_measure(PyObject *module, PyObject *args)
{
	struct tmesh_costs_served served[SERVED_MAX];
	struct tmesh_costs_opts opts = {.size = sizeof(opts), .served = served};
	struct state *st = PyModule_GetState(module);
	size_t bytes;
	struct tmesh_devices *devices;
	PyObject *libraries, *list;
	struct tmesh_costs *costs;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int rc;

	if (!PyArg_ParseTuple(args, "O!O!O&O&:engine_costs_measure", &PyTuple_Type, &libraries,
			      &PyTuple_Type, &list, uint_argument, &opts.samples, size_argument,
			      &bytes))
		return NULL;
	opts.bytes = bytes;
	opts.served_count = (size_t)PyTuple_Size(list);
	if (opts.served_count > SERVED_MAX)
		return raise_code(st, EINVAL, "at most %d served engines", SERVED_MAX);
	for (size_t i = 0; i < opts.served_count; i++)
		if (!PyArg_ParseTuple(PyTuple_GetItem(list, (Py_ssize_t)i), "sss",
				      &served[i].engine, &served[i].name, &served[i].folder))
			return NULL;
	ctx = context(st);
	devices = ctx ? engine_find_devices(st, libraries, NULL) : NULL;
	if (!devices)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_costs_measure(ctx, devices, &opts, &costs, &err);
	Py_END_ALLOW_THREADS;
	tmesh_devices_unref(devices);
	return rc ? raise_error(st, &err) : capsule_of(costs);
}

PyObject *engine_costs_read(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_devices *devices;
	struct tmesh_costs *costs;
	struct tmesh_error err;
	PyObject *libraries;
	const char *path;
	int rc;

	if (!PyArg_ParseTuple(args, "O!z:engine_costs_read", &PyTuple_Type, &libraries, &path))
		return NULL;
	devices = engine_find_devices(st, libraries, NULL);
	if (!devices)
		return NULL;
	rc = tmesh_costs_read(devices, path, &costs, &err);
	tmesh_devices_unref(devices);
	return rc ? raise_error(st, &err) : capsule_of(costs);
}

PyObject *engine_costs_write(PyObject *module, PyObject *args)
{
	struct tmesh_costs *costs;
	struct tmesh_error err;
	PyObject *capsule;
	const char *path;

	if (!PyArg_ParseTuple(args, "Oz:engine_costs_write", &capsule, &path))
		return NULL;
	costs = PyCapsule_GetPointer(capsule, NAME);
	if (!costs)
		return NULL;
	if (tmesh_costs_write(costs, path, &err))
		return raise_error(PyModule_GetState(module), &err);
	Py_RETURN_NONE;
}

PyObject *engine_costs_json(PyObject *module, PyObject *capsule)
{
	struct tmesh_costs *costs = PyCapsule_GetPointer(capsule, NAME);
	PyObject *text;
	char *json;

	if (!costs)
		return NULL;
	json = tmesh_costs_to_json(costs);
	if (!json)
		return PyErr_NoMemory();
	text = PyUnicode_DecodeUTF8(json, (Py_ssize_t)strlen(json), "replace");
	free(json);
	return text;
}

struct tmesh_costs *engine_costs_get(PyObject *capsule)
{
	return PyCapsule_GetPointer(capsule, NAME);
}

PyObject *engine_name_places(const struct tmesh_graph *graph, const uint32_t *at)
{
	PyObject *names = PyDict_New();

	for (size_t i = 0; names && i < tmesh_graph_nodes(graph); i++) {
		struct tmesh_graph_node node = {.size = sizeof(node)};
		PyObject *place;

		if (at[i] == TMESH_COSTS_NOWHERE || tmesh_graph_node(graph, i, &node, NULL))
			continue;
		place = PyLong_FromUnsignedLong(at[i]);
		if (!place || PyDict_SetItemString(names, node.name, place))
			Py_CLEAR(names);
		Py_XDECREF(place);
	}
	return names;
}

static PyObject *found(const struct tmesh_graph *graph, const uint32_t *at,
		       const struct tmesh_placement *out)
{
	PyObject *names = engine_name_places(graph, at);

	return names ? Py_BuildValue("NdK", names, out->seconds,
				     (unsigned long long)out->bytes_moved)
		     : NULL;
}

PyObject *engine_costs_find(PyObject *module, PyObject *args)
{
	struct tmesh_costs_place places[TMESH_PLACEMENT_MAX_DEVICES];
	struct tmesh_placement out = {.size = sizeof(out)};
	struct state *st = PyModule_GetState(module);
	PyObject *capsule, *list, *result = NULL;
	struct tmesh_graph *graph;
	struct tmesh_costs *costs;
	struct tmesh_error err;
	Py_ssize_t length;
	const char *text;
	uint32_t *at;
	size_t count;
	int rc;

	if (!PyArg_ParseTuple(args, "Os#O!:engine_costs_find", &capsule, &text, &length,
			      &PyTuple_Type, &list))
		return NULL;
	costs = PyCapsule_GetPointer(capsule, NAME);
	if (!costs)
		return NULL;
	count = (size_t)PyTuple_Size(list);
	if (count > TMESH_PLACEMENT_MAX_DEVICES)
		return raise_code(st, EINVAL, "at most %d places", TMESH_PLACEMENT_MAX_DEVICES);
	for (size_t i = 0; i < count; i++) {
		size_t memory;
		int served;

		places[i] = (struct tmesh_costs_place){0};
		if (!PyArg_ParseTuple(PyTuple_GetItem(list, (Py_ssize_t)i), "sO&pO&",
				      &places[i].engine, uint_argument, &places[i].device, &served,
				      size_argument, &memory))
			return NULL;
		places[i].served = served;
		places[i].memory = memory;
	}
	if (tmesh_graph_parse(text, (size_t)length, &graph, &err))
		return raise_error(st, &err);
	at = PyMem_Calloc(tmesh_graph_nodes(graph) + 1, sizeof(*at));
	if (!at) {
		tmesh_graph_unref(graph);
		return PyErr_NoMemory();
	}
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_costs_find(costs, graph, places, count, NULL, at, &out, &err);
	Py_END_ALLOW_THREADS;
	result = rc ? raise_error(st, &err) : found(graph, at, &out);
	PyMem_Free(at);
	tmesh_graph_unref(graph);
	return result;
}
