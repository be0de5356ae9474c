// SPDX-License-Identifier: MIT
/*
 * Graphs written as JSON:
 *
 *   {"tmesh_graph": 1, "name": "g",
 *    "nodes": [{"name": "x", "op": "input", "dtype": "float32", "shape": [1, 4]}, ...,
 *              {"name": "h", "op": "matmul", "inputs": ["x", "w"]}],
 *    "outputs": {"y": "h"}}
 */
#include <jansson.h>

#include "graph_internal.h"

#define VERSION 1

/* Set a member, unless @object or @value is NULL; then @object becomes NULL. */
static void set(json_t **object, const char *key, json_t *value)
{
	if (*object && json_object_set_new(*object, key, value)) {
		json_decref(*object);
		*object = NULL;
	}
}

static json_t *ints64(const int64_t *list, int count)
{
	json_t *array = json_array();

	for (int i = 0; array && i < count; i++)
		json_array_append_new(array, json_integer(list[i]));
	return array;
}

static json_t *ints32(const int32_t *list, int count)
{
	json_t *array = json_array();

	for (int i = 0; array && i < count; i++)
		json_array_append_new(array, json_integer(list[i]));
	return array;
}

static json_t *write_node(const struct tmesh_graph *graph, const struct tmesh_graph_node *node)
{
	uint32_t attrs = graph_op(node->op)->attrs;
	json_t *object = json_object(), *inputs;

	set(&object, "name", json_string(node->name));
	set(&object, "op", json_string(graph_op(node->op)->name));
	if (node->input_count) {
		inputs = json_array();
		for (uint32_t i = 0; inputs && i < node->input_count; i++)
			json_array_append_new(inputs,
					      json_string(graph->nodes[node->inputs[i]].name));
		set(&object, "inputs", inputs);
	}
	set(&object, "dtype", json_string(graph_dtype_name(node->dtype)));
	set(&object, "shape", ints64(node->shape, node->ndim));
	if (attrs & ATTR_EPS)
		set(&object, "eps", json_real((double)node->eps));
	if (attrs & ATTR_SCALE)
		set(&object, "scale", json_real((double)node->scale));
	if (attrs & ATTR_BASE)
		set(&object, "base", json_real((double)node->base));
	if (attrs & ATTR_DIMS)
		set(&object, "dims", json_integer(node->dims));
	if (attrs & ATTR_HALVES)
		set(&object, "halves", json_boolean(node->halves));
	if (attrs & ATTR_AXIS)
		set(&object, "axis", json_integer(node->axis));
	if (attrs & ATTR_AXES)
		set(&object, "axes", ints32(node->axes, node->ndim));
	if (node->quant)
		set(&object, "quant", json_string(node->quant));
	if (node->cache)
		set(&object, "cache", json_string(graph_cache_name(node->cache)));
	return object;
}

char *tmesh_graph_to_json(const struct tmesh_graph *graph)
{
	json_t *root = json_object(), *nodes = json_array(), *outputs = json_object();
	char *text = NULL;

	for (size_t i = 0; nodes && i < graph->node_count; i++)
		if (json_array_append_new(nodes, write_node(graph, &graph->nodes[i]))) {
			json_decref(nodes);
			nodes = NULL;
		}
	for (size_t i = 0; i < graph->output_count; i++)
		set(&outputs, graph->outputs[i].name,
		    json_string(graph->nodes[graph->outputs[i].node].name));
	set(&root, "tmesh_graph", json_integer(VERSION));
	set(&root, "name", json_string(graph->name));
	set(&root, "nodes", nodes);
	set(&root, "outputs", outputs);
	if (root)
		text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
	json_decref(root);
	return text;
}
