/* SPDX-License-Identifier: MIT */
/*
 * Descriptions of graphs (tmesh/graph.h). In Elixir such a graph is a value: a term consists of a
 * resource and the number of nodes and outputs that belong to the term. The newest term of a
 * resource adds in place; an older term adds to a copy of its part.
 */
#include "nif.h"

#include <tmesh/graph.h>

/* More than a name may have, so that the library reports a long name. */
#define NAME_SIZE 256

struct graph {
	pthread_mutex_t lock; /* guards what follows: processes share the term */
	struct tmesh_graph *graph;
	struct garbage *garbage;
};

/* The part of a graph that belongs to a term. */
struct seen {
	struct graph *graph;
	size_t nodes, outputs;
};

static void drop_graph(void *object)
{
	tmesh_graph_unref(object);
}

void graph_dtor(ErlNifEnv *env, void *object)
{
	struct graph *graph = object;

	pthread_mutex_destroy(&graph->lock);
	if (graph->garbage)
		garbage_put(env, graph->garbage, graph->graph);
	else
		tmesh_graph_unref(graph->graph);
}

/* Return {graph, name, nodes, outputs}. Take @made over. */
static ERL_NIF_TERM make_graph(ErlNifEnv *env, struct tmesh_graph *made)
{
	struct graph *graph = enif_alloc_resource(graph_type, sizeof(*graph));
	ERL_NIF_TERM term;

	*graph = (struct graph){.graph = made, .garbage = garbage_alloc(drop_graph)};
	pthread_mutex_init(&graph->lock, NULL);
	term = enif_make_tuple4(env, enif_make_resource(env, graph),
				make_string(env, tmesh_graph_name(made)),
				enif_make_uint64(env, tmesh_graph_nodes(made)),
				enif_make_uint64(env, tmesh_graph_outputs(made)));
	enif_release_resource(graph);
	return make_ok(env, term);
}

static bool get_graph(ErlNifEnv *env, const ERL_NIF_TERM argv[], struct seen *seen,
		      struct tmesh_error *err)
{
	ErlNifUInt64 nodes, outputs;

	if (!enif_get_resource(env, argv[0], graph_type, (void **)&seen->graph) ||
	    !enif_get_uint64(env, argv[1], &nodes) || !enif_get_uint64(env, argv[2], &outputs))
		return refuse(err, -EBADF, "not a graph of this VM") == 0;
	seen->nodes = nodes;
	seen->outputs = outputs;
	return true;
}

/* Return whether the term is the newest. The caller holds the lock. */
static bool is_newest(const struct seen *seen)
{
	return seen->nodes == tmesh_graph_nodes(seen->graph->graph) &&
	       seen->outputs == tmesh_graph_outputs(seen->graph->graph);
}

static int copy_parts(const struct seen *seen, struct tmesh_graph *to, struct tmesh_error *err)
{
	const struct tmesh_graph *from = seen->graph->graph;
	const char *name;
	uint32_t index;
	int rc = 0;

	for (size_t i = 0; !rc && i < seen->nodes; i++) {
		struct tmesh_graph_node node = {.size = sizeof(node)};

		rc = tmesh_graph_node(from, i, &node, err);
		if (!rc)
			rc = tmesh_graph_add(to, &node, NULL, err);
	}
	for (size_t i = 0; !rc && i < seen->outputs; i++) {
		rc = tmesh_graph_output(from, i, &index, &name, err);
		if (!rc)
			rc = tmesh_graph_add_output(to, name, index, err);
	}
	return rc;
}

/* Return a reference on the graph of a newest term, or on a copy for an older one. The caller
 * holds the lock. */
static int graph_make(const struct seen *seen, struct tmesh_graph **out, struct tmesh_error *err)
{
	int rc;

	if (is_newest(seen)) {
		*out = tmesh_graph_ref(seen->graph->graph);
		return 0;
	}
	rc = tmesh_graph_create(tmesh_graph_name(seen->graph->graph), out, err);
	if (rc)
		return rc;
	rc = copy_parts(seen, *out, err);
	if (rc)
		tmesh_graph_unref(*out);
	return rc;
}

/* graph_create(name) -> {ok, {graph, name, nodes, outputs}} */
NIF(graph_create)
{
	struct tmesh_graph *made;
	struct tmesh_error err;
	char name[NAME_SIZE];

	if (!get_text(env, argv[0], name, sizeof(name)))
		return make_refusal(env, -EINVAL, "a graph's name is a text of 1 to %d bytes",
				    TMESH_GRAPH_NAME_LEN);
	return tmesh_graph_create(name, &made, &err) ? make_error(env, &err)
						     : make_graph(env, made);
}

/* graph_parse(text) -> as graph_create() */
NIF(graph_parse)
{
	struct tmesh_graph *made;
	struct tmesh_error err;
	ErlNifBinary text;

	if (!enif_inspect_binary(env, argv[0], &text))
		return make_refusal(env, -EINVAL, "a graph is read from a binary of text");
	return tmesh_graph_parse((const char *)text.data, text.size, &made, &err)
		       ? make_error(env, &err)
		       : make_graph(env, made);
}

/* graph_read(path) -> as graph_create() */
NIF(graph_read)
{
	struct tmesh_graph *made;
	struct tmesh_error err;
	char path[4096];

	if (!get_text(env, argv[0], path, sizeof(path)))
		return make_refusal(env, -EINVAL, "a graph has a path of at most 4095 bytes");
	return tmesh_graph_read(path, &made, &err) ? make_error(env, &err) : make_graph(env, made);
}

static bool get_float(ErlNifEnv *env, ERL_NIF_TERM term, float *out)
{
	ErlNifSInt64 whole;
	double number;

	if (enif_get_int64(env, term, &whole))
		number = (double)whole;
	else if (!enif_get_double(env, term, &number))
		return false;
	*out = (float)number;
	return true;
}

static bool get_axes(ErlNifEnv *env, ERL_NIF_TERM term, int32_t *axes)
{
	int64_t dims[TMESH_MAX_DIMS];
	struct tmesh_error err;
	int32_t count;

	if (!get_dims(env, term, "axes", dims, &count, &err))
		return false;
	for (int32_t i = 0; i < count; i++) {
		if (dims[i] < 0 || dims[i] >= TMESH_MAX_DIMS)
			return false;
		axes[i] = (int32_t)dims[i];
	}
	return true;
}

static bool get_cache(ErlNifEnv *env, ERL_NIF_TERM term, enum tmesh_graph_cache *out)
{
	static const struct {
		const char *name;
		enum tmesh_graph_cache cache;
	} caches[] = {{"none", TMESH_GRAPH_CACHE_NONE},
		      {"reuse", TMESH_GRAPH_CACHE_REUSE},
		      {"stream", TMESH_GRAPH_CACHE_STREAM}};
	char name[16];

	if (!enif_get_atom(env, term, name, sizeof(name), ERL_NIF_LATIN1))
		return false;
	for (size_t i = 0; i < sizeof(caches) / sizeof(caches[0]); i++) {
		*out = caches[i].cache;
		if (!strcmp(caches[i].name, name))
			return true;
	}
	return false;
}

/* A node, with space for its texts. */
struct given {
	struct tmesh_graph_node node;
	char name[NAME_SIZE], quant[16];
};

static bool get_attribute(ErlNifEnv *env, const char *key, ERL_NIF_TERM value, struct given *given,
			  struct tmesh_error *err)
{
	struct tmesh_graph_node *node = &given->node;
	bool good = false;

	if (!strcmp(key, "dtype"))
		return get_dtype(env, value, &node->dtype, err);
	if (!strcmp(key, "shape"))
		return get_dims(env, value, "shape", node->shape, &node->ndim, err);
	if (!strcmp(key, "eps"))
		good = get_float(env, value, &node->eps);
	else if (!strcmp(key, "scale"))
		good = get_float(env, value, &node->scale);
	else if (!strcmp(key, "base"))
		good = get_float(env, value, &node->base);
	else if (!strcmp(key, "dims"))
		good = enif_get_uint(env, value, &node->dims);
	else if (!strcmp(key, "halves"))
		return get_bool(env, value, "halves", &node->halves, err);
	else if (!strcmp(key, "axis"))
		good = enif_get_int(env, value, &node->axis);
	else if (!strcmp(key, "axes"))
		good = get_axes(env, value, node->axes);
	else if (!strcmp(key, "quant"))
		good = get_text(env, value, given->quant, sizeof(given->quant));
	else if (!strcmp(key, "cache"))
		good = get_cache(env, value, &node->cache);
	if (*given->quant)
		node->quant = given->quant;
	return good || refuse(err, -EINVAL,
			      "node \"%s\": the value of %s has a wrong type or is "
			      "out of range",
			      given->name, key) == 0;
}

static bool get_attributes(ErlNifEnv *env, ERL_NIF_TERM list, struct given *given,
			   struct tmesh_error *err)
{
	const ERL_NIF_TERM *pair;
	ERL_NIF_TERM head;
	char key[16];
	int arity;

	while (enif_get_list_cell(env, list, &head, &list)) {
		if (!enif_get_tuple(env, head, &arity, &pair) || arity != 2 ||
		    !enif_get_atom(env, pair[0], key, sizeof(key), ERL_NIF_LATIN1))
			return refuse(err, -EINVAL, "node \"%s\": attributes are a keyword list",
				      given->name) == 0;
		if (!get_attribute(env, key, pair[1], given, err))
			return false;
	}
	return true;
}

static bool get_inputs(ErlNifEnv *env, ERL_NIF_TERM list, const struct tmesh_graph *graph,
		       struct given *given, struct tmesh_error *err)
{
	struct tmesh_graph_node *node = &given->node;
	char name[NAME_SIZE];
	struct tmesh_error why;
	ERL_NIF_TERM head;

	while (enif_get_list_cell(env, list, &head, &list)) {
		if (node->input_count == TMESH_GRAPH_MAX_INPUTS)
			return refuse(err, -EINVAL, "node \"%s\" has more than %d inputs",
				      given->name, TMESH_GRAPH_MAX_INPUTS) == 0;
		if (!get_text(env, head, name, sizeof(name)))
			return refuse(err, -EINVAL, "node \"%s\": inputs are names of nodes",
				      given->name) == 0;
		if (tmesh_graph_find(graph, name, &node->inputs[node->input_count], &why))
			return refuse(err, -EINVAL, "node \"%s\": %s", given->name, why.message) ==
			       0;
		node->input_count++;
	}
	return enif_is_empty_list(env, list) ||
	       refuse(err, -EINVAL, "node \"%s\": inputs are a list", given->name) == 0;
}

/* {name, op, inputs, attributes} */
static bool get_node(ErlNifEnv *env, ERL_NIF_TERM term, const struct tmesh_graph *graph,
		     struct given *given, struct tmesh_error *err)
{
	const ERL_NIF_TERM *field;
	char op[32] = "";
	int arity;

	*given = (struct given){.node = {.size = sizeof(given->node), .name = given->name}};
	if (!enif_get_tuple(env, term, &arity, &field) || arity != 4 ||
	    !get_text(env, field[0], given->name, sizeof(given->name)))
		return refuse(err, -EINVAL, "a node's name is a text of 1 to %d bytes",
			      TMESH_GRAPH_NAME_LEN) == 0;
	if (enif_get_atom(env, field[1], op, sizeof(op), ERL_NIF_LATIN1))
		given->node.op = tmesh_graph_op_from_name(op);
	if (!given->node.op)
		return refuse(err, -EINVAL, "node \"%s\": there is no operator \"%s\"", given->name,
			      op) == 0;
	return get_inputs(env, field[2], graph, given, err) &&
	       get_attributes(env, field[3], given, err);
}

/* {output, node} */
static int add_output(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_graph *graph,
		      struct tmesh_error *err)
{
	char name[NAME_SIZE], node[NAME_SIZE];
	const ERL_NIF_TERM *field;
	struct tmesh_error why;
	uint32_t index;
	int arity;

	if (!enif_get_tuple(env, term, &arity, &field) || arity != 2 ||
	    !get_text(env, field[0], name, sizeof(name)) ||
	    !get_text(env, field[1], node, sizeof(node)))
		return refuse(err, -EINVAL, "an output has a name, and the name of a node");
	if (tmesh_graph_find(graph, node, &index, &why))
		return refuse(err, -EINVAL, "output \"%s\": %s", name, why.message);
	return tmesh_graph_add_output(graph, name, index, err);
}

static int add_to(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_graph *graph,
		  struct tmesh_error *err)
{
	const ERL_NIF_TERM *field;
	struct given given;
	int arity;

	if (enif_get_tuple(env, term, &arity, &field) && arity == 2)
		return add_output(env, term, graph, err);
	if (!get_node(env, term, graph, &given, err))
		return err->code;
	return tmesh_graph_add(graph, &given.node, NULL, err);
}

/* graph_add(graph, nodes, outputs, {name, op, inputs, attributes} | {output, node}) -> as
 * graph_create(), with the same resource or a copy. */
NIF(graph_add)
{
	struct tmesh_graph *graph;
	struct tmesh_error err;
	struct seen seen;
	bool newest;
	int rc;

	if (!get_graph(env, argv, &seen, &err))
		return make_error(env, &err);
	pthread_mutex_lock(&seen.graph->lock);
	newest = is_newest(&seen);
	rc = graph_make(&seen, &graph, &err);
	if (!rc && newest) {
		rc = add_to(env, argv[3], graph, &err);
		seen.nodes = tmesh_graph_nodes(graph);
		seen.outputs = tmesh_graph_outputs(graph);
		tmesh_graph_unref(graph);
	}
	pthread_mutex_unlock(&seen.graph->lock);
	if (!rc && newest)
		return make_ok(
			env, enif_make_tuple4(env, argv[0],
					      make_string(env, tmesh_graph_name(seen.graph->graph)),
					      enif_make_uint64(env, seen.nodes),
					      enif_make_uint64(env, seen.outputs)));
	if (rc)
		return make_error(env, &err);
	rc = add_to(env, argv[3], graph, &err);
	if (!rc)
		return make_graph(env, graph);
	tmesh_graph_unref(graph);
	return make_error(env, &err);
}

/* graph_write(graph, nodes, outputs, json | text | dot) -> {ok, text} */
NIF(graph_write)
{
	struct tmesh_graph *graph;
	struct tmesh_error err;
	struct seen seen;
	char form[8] = "", *text = NULL;
	ERL_NIF_TERM term;
	int rc;

	if (!get_graph(env, argv, &seen, &err))
		return make_error(env, &err);
	enif_get_atom(env, argv[3], form, sizeof(form), ERL_NIF_LATIN1);
	pthread_mutex_lock(&seen.graph->lock);
	rc = graph_make(&seen, &graph, &err);
	if (!rc) {
		text = !strcmp(form, "json")  ? tmesh_graph_to_json(graph)
		       : !strcmp(form, "dot") ? tmesh_graph_to_dot(graph)
					      : tmesh_graph_to_text(graph);
		tmesh_graph_unref(graph);
		if (!text)
			rc = refuse(&err, -ENOMEM, "no memory for a graph's text");
	}
	pthread_mutex_unlock(&seen.graph->lock);
	if (rc)
		return make_error(env, &err);
	term = make_string(env, text);
	free(text);
	return make_ok(env, term);
}
