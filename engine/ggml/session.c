// SPDX-License-Identifier: MIT
/* Sessions: a graph's file, its weights in place, and its inputs and outputs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ggml_internal.h"

static void free_operands(struct plugin_operand *operands, size_t count)
{
	for (size_t i = 0; operands && i < count; i++)
		free(operands[i].name);
	free(operands);
}

void ggml_session_close(void *data, struct plugin_session *session)
{
	struct ggml_session *own = session->handle;
	struct ggml_engine *engine = data;

	if (own->context)
		engine->api.free(own->context);
	free_operands(session->inputs, session->input_count);
	free_operands(session->outputs, session->output_count);
	tmesh_graph_unref(own->graph);
	free(own->weights);
	free(own);
	*session = (struct plugin_session){0};
}

static int describe(const struct tmesh_graph_node *node, const char *name,
		    struct plugin_operand *operand, struct tmesh_error *err)
{
	operand->name = strdup(name);
	if (!operand->name)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph's description");
	operand->dtype = node->dtype;
	operand->ndim = node->ndim;
	memcpy(operand->shape, node->shape, sizeof(operand->shape));
	return 0;
}

static int read_operands(const struct tmesh_graph *graph, struct plugin_session *session,
			 struct tmesh_error *err)
{
	int rc = 0;

	session->inputs = calloc(graph->node_count + 1, sizeof(*session->inputs));
	session->outputs = calloc(graph->output_count + 1, sizeof(*session->outputs));
	if (!session->inputs || !session->outputs)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph's description");
	for (size_t i = 0; !rc && i < graph->node_count; i++)
		if (graph->nodes[i].op == TMESH_GRAPH_INPUT)
			rc = describe(&graph->nodes[i], graph->nodes[i].name,
				      &session->inputs[session->input_count++], err);
	for (size_t i = 0; !rc && i < graph->output_count; i++)
		rc = describe(&graph->nodes[graph->outputs[i].node], graph->outputs[i].name,
			      &session->outputs[session->output_count++], err);
	return rc;
}

uint32_t ggml_past(const struct tmesh_graph *graph, uint32_t node)
{
	while (graph->nodes[node].op == TMESH_GRAPH_SET_ROWS)
		node = graph->nodes[node].inputs[0];
	return node;
}

/* Mark in @needed the nodes that @writer needs, which all precede it. */
static void find_needed(const struct tmesh_graph *graph, uint32_t writer, bool *needed)
{
	memset(needed, 0, writer + 1);
	needed[writer] = true;
	for (uint32_t i = writer + 1; i-- > 0;)
		for (uint32_t n = 0; needed[i] && n < graph->nodes[i].input_count; n++)
			needed[graph->nodes[i].inputs[n]] = true;
}

/* Return whether a node is a view. A reader of a view reads the memory of the view's input. */
static bool is_view(const struct tmesh_graph_node *node)
{
	return node->op == TMESH_GRAPH_RESHAPE || node->op == TMESH_GRAPH_TRANSPOSE;
}

/*
 * Check that all readers of the old rows have run when a set_rows replaces them. An input may have
 * no reader but the set_rows. The value of a set_rows may have those that the next set_rows needs.
 */
static int check_writer(const struct tmesh_graph *graph, uint32_t writer, bool *needed, bool *same,
			struct tmesh_error *err)
{
	uint32_t past = graph->nodes[writer].inputs[0];
	bool input = graph->nodes[past].op == TMESH_GRAPH_INPUT;

	find_needed(graph, writer, needed);
	memset(same, 0, graph->node_count);
	same[past] = true;
	for (uint32_t i = past + 1; i < graph->node_count; i++) {
		const struct tmesh_graph_node *node = &graph->nodes[i];

		for (uint32_t n = 0; n < node->input_count; n++) {
			if (!same[node->inputs[n]] || (i == writer && !n))
				continue;
			if (!input && i != writer && i < writer && needed[i]) {
				same[i] |= is_view(node);
				continue;
			}
			if (!input && is_view(node)) {
				same[i] = true;
				continue;
			}
			return tmesh_fail(err, -EOPNOTSUPP,
					  "node \"%s\" reads \"%s\", whose rows \"%s\" replaces: "
					  "let it read the result of that node",
					  node->name, graph->nodes[past].name,
					  graph->nodes[writer].name);
		}
	}
	for (size_t i = 0; !input && i < graph->output_count; i++)
		if (same[graph->outputs[i].node])
			return tmesh_fail(err, -EOPNOTSUPP,
					  "output \"%s\" is \"%s\", whose rows \"%s\" replaces",
					  graph->outputs[i].name, graph->nodes[past].name,
					  graph->nodes[writer].name);
	return 0;
}

#define MAX_WRITERS 4096

static int check_pasts(const struct tmesh_graph *graph, struct tmesh_error *err)
{
	bool *marks = calloc(2 * graph->node_count + 1, sizeof(*marks));
	size_t writers = 0;
	int rc = 0;

	if (!marks)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph");
	for (uint32_t i = 0; !rc && i < graph->node_count; i++) {
		if (graph->nodes[i].op != TMESH_GRAPH_SET_ROWS)
			continue;
		if (++writers > MAX_WRITERS)
			rc = tmesh_fail(err, -EOPNOTSUPP, "more than %d nodes replace rows",
					MAX_WRITERS);
		else
			rc = check_writer(graph, i, marks, marks + graph->node_count, err);
	}
	free(marks);
	return rc;
}

static int check_weight(const struct tmesh_graph_node *node, const struct plugin_array *array,
			struct tmesh_error *err)
{
	const struct graph_quant *quant = graph_quant(node->quant);
	uint64_t elements = 1;

	if ((uintptr_t)array->data % GGML_WEIGHT_ALIGN)
		return tmesh_fail(err, -EINVAL,
				  "weight \"%s\" does not begin at a multiple of %d bytes: copy it "
				  "to memory that does",
				  node->name, GGML_WEIGHT_ALIGN);
	for (int i = 0; i < node->ndim; i++)
		elements *= (uint64_t)node->shape[i];
	if (quant ? array->dtype != TMESH_UINT8 ||
			    array->bytes != elements / quant->block_elements * quant->block_bytes
		  : array->dtype != node->dtype || array->ndim != node->ndim ||
			    memcmp(array->shape, node->shape,
				   sizeof(node->shape[0]) * (size_t)node->ndim))
		return tmesh_fail(err, -EINVAL,
				  "weight \"%s\": the graph's weight has another dtype or shape",
				  node->name);
	return 0;
}

/* Check that the bytes which GPU kernels read after a weight exist. */
static int check_behind(const struct ggml_engine *engine, const struct ggml_tensor *weight,
			const struct tmesh_graph_node *node, struct tmesh_error *err)
{
	const struct ggml_api *api = &engine->api;
	size_t bytes;

	if (!engine->gpu)
		return 0;
	bytes = api->backend_buft_get_alloc_size(api->backend_dev_buffer_type(engine->gpu), weight);
	if (bytes > api->nbytes(weight) + GGML_BEHIND)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "weight \"%s\": this ggml reads %zu bytes behind it, and %d are "
				  "there: it cannot run on a GPU",
				  node->name, bytes - api->nbytes(weight), GGML_BEHIND);
	return 0;
}

static int place_weights(const struct ggml_engine *engine, struct ggml_session *own,
			 const struct plugin_session_opts *opts, struct tmesh_error *err)
{
	const struct tmesh_graph *graph = own->graph;
	const struct ggml_api *api = &engine->api;
	uint32_t at;
	int rc;

	own->weights = calloc(graph->node_count + 1, sizeof(*own->weights));
	if (!own->weights)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu weights", opts->weight_count);
	own->context = api->init((struct ggml_params){
		.mem_size = api->tensor_overhead() * (opts->weight_count + 1),
		.no_alloc = true,
	});
	if (!own->context)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu weights", opts->weight_count);
	for (size_t i = 0; i < opts->weight_count; i++) {
		const struct plugin_array *array = &opts->weights[i];
		const struct tmesh_graph_node *node;

		if (tmesh_graph_find(graph, array->name, &at, NULL) ||
		    graph->nodes[at].op != TMESH_GRAPH_WEIGHT)
			return tmesh_fail(err, -ENOENT,
					  "weight \"%.100s\": the graph has no weight of that name",
					  array->name);
		node = &graph->nodes[at];
		if (node->ndim > GGML_DIMS)
			return tmesh_fail(err, -EOPNOTSUPP,
					  "node \"%s\": ggml has at most 4 dimensions", node->name);
		rc = check_weight(node, array, err);
		if (!rc)
			rc = ggml_check_quant(engine, node, err);
		if (rc)
			return rc;
		own->weights[at] = ggml_tensor_of(engine, own->context, node);
		rc = ggml_place(engine, own->weights[at], array->data, node->name, err);
		if (!rc)
			rc = check_behind(engine, own->weights[at], node, err);
		if (rc)
			return rc;
	}
	for (size_t i = 0; i < graph->node_count; i++)
		if (graph->nodes[i].op == TMESH_GRAPH_WEIGHT && !own->weights[i])
			return tmesh_fail(
				err, -EINVAL,
				"weight \"%s\" is missing: give it when the graph is opened",
				graph->nodes[i].name);
	return 0;
}

/* Check once, here, that this ggml runs the whole graph. */
static int try_it(const struct ggml_engine *engine, const struct ggml_session *own,
		  struct tmesh_error *err)
{
	struct ggml_lowered lowered = {0};
	int rc = ggml_lowered_open(&lowered, engine, own, err);

	ggml_lowered_close(&lowered);
	return rc;
}

int ggml_session_open(void *data, const struct plugin_session_opts *opts,
		      struct plugin_session *session, struct tmesh_error *err)
{
	struct ggml_engine *engine = data;
	struct ggml_session *own = calloc(1, sizeof(*own));
	int rc;

	if (!own)
		return tmesh_fail(err, -ENOMEM, "no memory for a session");
	session->handle = own;
	if (opts->prepack)
		rc = tmesh_fail(err, -EOPNOTSUPP,
				"the engine \"ggml\" uses weights in place: open the graph without "
				"TMESH_ENGINE_PREPACK");
	else
		rc = tmesh_graph_read(opts->path, &own->graph, err);
	if (!rc && !own->graph->output_count)
		rc = tmesh_fail(err, -EPROTO, "the graph has no outputs");
	if (!rc)
		rc = check_pasts(own->graph, err);
	if (!rc)
		rc = place_weights(engine, own, opts, err);
	if (!rc)
		rc = try_it(engine, own, err);
	if (!rc)
		rc = read_operands(own->graph, session, err);
	if (rc)
		ggml_session_close(engine, session);
	return rc;
}
