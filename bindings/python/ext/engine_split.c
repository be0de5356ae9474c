/* SPDX-License-Identifier: MIT */
/* The C part of tmesh.placed that divides graphs into parts. */
#include "engine_types.h"

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

/* Read a dict of {node: place}. A node that is missing from it has no place. */
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

PyObject *engine_list_partitions(const struct tmesh_graph_partitions *parts)
{
	PyObject *list = PyList_New(0);

	for (size_t i = 0; list && i < tmesh_graph_partitions_count(parts); i++) {
		const struct tmesh_graph *part;
		uint32_t place = 0;
		PyObject *made = NULL;

		if (!tmesh_graph_partition(parts, i, &place, &part, NULL))
			made = part_of(part, place);
		list_add(&list, made);
	}
	return list;
}

/* engine_graph_check(text) */
PyObject *engine_graph_check(PyObject *module, PyObject *text)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_graph *graph;
	struct tmesh_error err;
	const char *bytes;
	Py_ssize_t length;

	bytes = PyUnicode_AsUTF8AndSize(text, &length);
	if (!bytes)
		return NULL;
	if (tmesh_graph_parse(bytes, (size_t)length, &graph, &err))
		return raise_error(st, &err);
	tmesh_graph_unref(graph);
	Py_RETURN_NONE;
}

/* engine_quants() -> [name] */
PyObject *engine_quants(PyObject *module, PyObject *args)
{
	PyObject *list = PyList_New(0);
	const char *name;

	for (size_t i = 0; list && (name = tmesh_graph_quant(i, NULL, NULL)); i++)
		list_add(&list, PyUnicode_FromString(name));
	return list;
}
