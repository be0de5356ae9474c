/* SPDX-License-Identifier: MIT */
/* Graphs in parts: what tmesh.placed stands on. */
#include "engine_types.h"

#include <stdlib.h>
#include <tmesh/graph.h>

/* (place, text, {name of a node: its operator}, [names of outputs]) */
static PyObject *part_of(const struct tmesh_graph *graph, uint32_t place)
{
	PyObject *nodes = PyDict_New(), *outputs = PyList_New(0), *part = NULL;
	char *text = tmesh_graph_to_text(graph);
	bool good = nodes && outputs && text;

	for (size_t i = 0; good && i < tmesh_graph_nodes(graph); i++) {
		struct tmesh_graph_node node = {.size = sizeof(node)};
		PyObject *op = NULL;

		if (!tmesh_graph_node(graph, i, &node, NULL))
			op = PyUnicode_FromString(tmesh_graph_op_name(node.op));
		good = op && !PyDict_SetItemString(nodes, node.name, op);
		Py_XDECREF(op);
	}
	for (size_t i = 0; good && i < tmesh_graph_outputs(graph); i++) {
		PyObject *output = NULL;
		const char *name;
		uint32_t node;

		if (!tmesh_graph_output(graph, i, &node, &name, NULL))
			output = PyUnicode_FromString(name);
		good = output && !PyList_Append(outputs, output);
		Py_XDECREF(output);
	}
	if (good)
		part = Py_BuildValue("(IsOO)", place, text, nodes, outputs);
	else if (!PyErr_Occurred())
		PyErr_NoMemory();
	Py_XDECREF(nodes);
	Py_XDECREF(outputs);
	free(text);
	return part;
}

/* Of a dict by names of nodes; those that are not there are at no place. */
int engine_read_places(const struct tmesh_graph *graph, PyObject *given, uint32_t *at)
{
	for (size_t i = 0; i < tmesh_graph_nodes(graph); i++) {
		struct tmesh_graph_node node = {.size = sizeof(node)};
		PyObject *number;
		unsigned int place;

		at[i] = UINT32_MAX;
		if (tmesh_graph_node(graph, i, &node, NULL))
			continue;
		number = PyDict_GetItemString(given, node.name);
		if (number && !uint_argument(number, &place))
			return -1;
		if (number)
			at[i] = place;
	}
	return 0;
}

PyObject *engine_list_parts(const struct tmesh_graph_parts *parts)
{
	PyObject *list = PyList_New(0);

	for (size_t i = 0; list && i < tmesh_graph_parts_count(parts); i++) {
		const struct tmesh_graph *part;
		uint32_t place = 0;
		PyObject *made = NULL;

		if (!tmesh_graph_part(parts, i, &place, &part, NULL))
			made = part_of(part, place);
		if (!made || PyList_Append(list, made))
			Py_CLEAR(list);
		Py_XDECREF(made);
	}
	return list;
}

/* engine_graph_split(text, {name: place}, places) -> [part] */
PyObject *engine_graph_split(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	PyObject *given, *result = NULL;
	struct tmesh_graph_parts *parts;
	struct tmesh_graph *graph;
	struct tmesh_error err;
	unsigned int places;
	Py_ssize_t length;
	const char *text;
	uint32_t *at;

	if (!PyArg_ParseTuple(args, "s#O!O&:engine_graph_split", &text, &length, &PyDict_Type,
			      &given, uint_argument, &places))
		return NULL;
	if (tmesh_graph_parse(text, (size_t)length, &graph, &err))
		return raise_error(st, &err);
	at = PyMem_Calloc(tmesh_graph_nodes(graph) + 1, sizeof(*at));
	if (!at) {
		PyErr_NoMemory();
	} else if (!engine_read_places(graph, given, at)) {
		if (tmesh_graph_split(graph, at, places, &parts, &err)) {
			raise_error(st, &err);
		} else {
			result = engine_list_parts(parts);
			tmesh_graph_parts_unref(parts);
		}
	}
	PyMem_Free(at);
	tmesh_graph_unref(graph);
	return result;
}
