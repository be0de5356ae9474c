// SPDX-License-Identifier: MIT
/*
 * Graphs as JSON:
 *
 *   {"tmesh_graph": 1, "name": "g",
 *    "nodes": [{"name": "x", "op": "input", "dtype": "float32", "shape": [1, 4]}, ...,
 *              {"name": "h", "op": "matmul", "inputs": ["x", "w"]}],
 *    "outputs": {"y": "h"}}
 */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph_internal.h"

#define VERSION 1

static int malformed(struct tmesh_error *err, const char *node, const char *member)
{
	return tmesh_fail(
		err, -EPROTO,
		"node \"%.63s\": the value of \"%.32s\" has a wrong type or is out of range", node,
		member);
}

static bool read_ints(json_t *value, int64_t least, int64_t most, int64_t *out, int32_t *count)
{
	size_t i;
	json_t *item;

	if (!json_is_array(value) || json_array_size(value) > TMESH_MAX_DIMS)
		return false;
	json_array_foreach(value, i, item) {
		if (!json_is_integer(item) || json_integer_value(item) < least ||
		    json_integer_value(item) > most)
			return false;
		out[i] = json_integer_value(item);
	}
	*count = (int32_t)json_array_size(value);
	return true;
}

static bool read_float(json_t *value, float *out)
{
	double number = json_number_value(value);

	*out = (float)number;
	return json_is_number(value) && isfinite(*out);
}

static bool read_int(json_t *value, int64_t most, int64_t *out)
{
	*out = json_integer_value(value);
	return json_is_integer(value) && *out >= 0 && *out <= most;
}

static int read_inputs(json_t *value, struct draft_node *draft, struct tmesh_error *err)
{
	size_t i;
	json_t *item;

	if (!json_is_array(value) || json_array_size(value) > TMESH_GRAPH_MAX_INPUTS)
		return malformed(err, draft->node.name, "inputs");
	json_array_foreach(value, i, item) {
		if (!json_is_string(item))
			return malformed(err, draft->node.name, "inputs");
		draft->inputs[i] = strdup(json_string_value(item));
		if (!draft->inputs[i])
			return tmesh_fail(err, -ENOMEM, "no memory for a graph");
		draft->node.input_count++;
	}
	return 0;
}

static int read_member(const char *key, json_t *value, struct draft_node *draft,
		       struct tmesh_error *err)
{
	struct tmesh_graph_node *node = &draft->node;
	const char *text = json_string_value(value);
	int64_t number = 0, list[TMESH_MAX_DIMS] = {0};
	int32_t count = 0;
	bool good = true;

	if (!strcmp(key, "name")) {
		good = true;
	} else if (!strcmp(key, "op")) {
		node->op = tmesh_graph_op_from_name(text);
		if (!node->op)
			return tmesh_fail(err, -EPROTO,
					  "node \"%.63s\": there is no operator \"%.32s\"",
					  node->name, text ?: "");
	} else if (!strcmp(key, "inputs")) {
		return read_inputs(value, draft, err);
	} else if (!strcmp(key, "dtype")) {
		node->dtype = graph_dtype(text);
		good = node->dtype;
	} else if (!strcmp(key, "shape")) {
		good = read_ints(value, 1, GRAPH_MAX_ELEMENTS, node->shape, &node->ndim);
	} else if (!strcmp(key, "axes")) {
		good = read_ints(value, 0, TMESH_MAX_DIMS - 1, list, &count);
		for (int i = 0; i < count; i++)
			node->axes[i] = (int32_t)list[i];
	} else if (!strcmp(key, "axis")) {
		good = read_int(value, TMESH_MAX_DIMS - 1, &number);
		node->axis = (int32_t)number;
	} else if (!strcmp(key, "dims")) {
		good = read_int(value, UINT32_MAX, &number);
		node->dims = (uint32_t)number;
	} else if (!strcmp(key, "halves")) {
		good = json_is_boolean(value);
		node->halves = json_is_true(value);
	} else if (!strcmp(key, "eps")) {
		good = read_float(value, &node->eps);
	} else if (!strcmp(key, "scale")) {
		good = read_float(value, &node->scale);
	} else if (!strcmp(key, "base")) {
		good = read_float(value, &node->base);
	} else if (!strcmp(key, "quant")) {
		node->quant = graph_quant(text) ? graph_quant(text)->name : NULL;
		good = node->quant;
	} else if (!strcmp(key, "cache")) {
		good = graph_cache(text) >= 0;
		node->cache = good ? (enum tmesh_graph_cache)graph_cache(text) : 0;
	} else {
		return tmesh_fail(err, -EPROTO, "node \"%.63s\": there is no member \"%.32s\"",
				  node->name, key);
	}
	return good ? 0 : malformed(err, node->name, key);
}

static int read_node(json_t *value, struct draft *draft, struct tmesh_error *err)
{
	const char *name = json_string_value(json_object_get(value, "name"));
	struct draft_node *node;
	const char *key;
	json_t *member;
	int rc;

	if (!json_is_object(value) || !graph_name_ok(name))
		return tmesh_fail(err, -EPROTO,
				  "node %zu is not an object with a name of 1 to %d "
				  "letters, digits and \"_.-/\"",
				  draft->node_count, TMESH_GRAPH_NAME_LEN);
	node = draft_add(draft, err);
	if (!node)
		return err->code;
	node->node.name = strdup(name);
	if (!node->node.name)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph");
	json_object_foreach(value, key, member) {
		rc = read_member(key, member, node, err);
		if (rc)
			return rc;
	}
	return node->node.op ? 0 : tmesh_fail(err, -EPROTO, "node \"%s\" has no \"op\"", name);
}

static int read_root(json_t *root, struct draft *draft, struct tmesh_error *err)
{
	json_t *nodes = json_object_get(root, "nodes"), *outputs = json_object_get(root, "outputs");
	const char *name = json_string_value(json_object_get(root, "name"));
	json_t *version = json_object_get(root, "tmesh_graph"), *value;
	const char *key;
	size_t i;
	int rc = 0;

	if (!json_is_integer(version) || json_integer_value(version) != VERSION)
		return tmesh_fail(err, -EPROTO, "this is not a graph: it needs \"tmesh_graph\": %d",
				  VERSION);
	if (!name || !json_is_array(nodes) || !json_is_object(outputs) ||
	    json_object_size(root) != 4)
		return tmesh_fail(err, -EPROTO,
				  "a graph has \"tmesh_graph\", \"name\", \"nodes\", a "
				  "list, and \"outputs\", an object, and no more");
	draft->name = strdup(name);
	if (!draft->name)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph");
	json_array_foreach(nodes, i, value) {
		rc = read_node(value, draft, err);
		if (rc)
			return rc;
	}
	json_object_foreach(outputs, key, value) {
		if (!json_is_string(value))
			return tmesh_fail(err, -EPROTO,
					  "output \"%.63s\" does not name a node: write "
					  "{\"output\": \"node\"}",
					  key);
		rc = draft_add_output(draft, key, json_string_value(value), err);
		if (rc)
			return rc;
	}
	return 0;
}

int graph_read_json(const char *text, size_t bytes, struct draft *draft, struct tmesh_error *err)
{
	json_error_t where;
	json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
	int rc;

	if (!root)
		return tmesh_fail(err, -EPROTO, "line %d: %.160s", where.line, where.text);
	rc = read_root(root, draft, err);
	json_decref(root);
	return rc;
}

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
