// SPDX-License-Identifier: MIT
/* Graphs: an open session and its operands. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine_internal.h"

int tmesh_engine_graph_open(struct tmesh_engine_context *context, const char *path,
			    const struct tmesh_engine_graph_opts *opts,
			    struct tmesh_engine_graph **out, struct tmesh_error *err)
{
	struct tmesh_engine_graph_opts given;
	struct tmesh_engine_graph *graph;
	int rc = tmesh_read_sized(&given, sizeof(given), opts, err);

	if (!rc)
		rc = engine_enter(context, err);
	if (rc)
		return rc;
	if (!path || given.flags & ~TMESH_ENGINE_PREPACK ||
	    given.weight_count > ENGINE_MAX_WEIGHTS || (given.weight_count && !given.weights))
		return tmesh_fail(err, -EINVAL,
				  "a graph is opened by a path, with at most %d weights and no "
				  "other flag than TMESH_ENGINE_PREPACK",
				  ENGINE_MAX_WEIGHTS);
	graph = calloc(1, sizeof(*graph));
	if (!graph)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph");
	rc = engine_session_get(context, path, &given, &graph->session, err);
	if (rc) {
		free(graph);
		return rc;
	}
	graph->refs = 1;
	graph->context = tmesh_engine_context_ref(context);
	*out = graph;
	return 0;
}

struct tmesh_engine_graph *tmesh_engine_graph_ref(struct tmesh_engine_graph *graph)
{
	atomic_fetch_add(&graph->refs, 1);
	return graph;
}

void tmesh_engine_graph_unref(struct tmesh_engine_graph *graph)
{
	if (!graph || atomic_fetch_sub(&graph->refs, 1) > 1)
		return;
	if (graph->context->life == engine_life())
		engine_session_put(graph->context, graph->session);
	tmesh_engine_context_unref(graph->context);
	free(graph);
}

size_t tmesh_engine_graph_inputs(const struct tmesh_engine_graph *graph)
{
	return graph->session->plugin.input_count;
}

size_t tmesh_engine_graph_outputs(const struct tmesh_engine_graph *graph)
{
	return graph->session->plugin.output_count;
}

static int describe(const struct plugin_operand *operands, size_t count, size_t index,
		    struct tmesh_engine_operand *out, struct tmesh_error *err)
{
	struct tmesh_engine_operand operand = {0};

	if (index >= count)
		return tmesh_fail(err, -EINVAL, "there is no operand %zu, there are %zu", index,
				  count);
	operand.name = operands[index].name;
	operand.dtype = operands[index].dtype;
	operand.ndim = operands[index].ndim;
	memcpy(operand.shape, operands[index].shape, sizeof(operand.shape));
	for (int i = 0; i < TMESH_MAX_DIMS; i++)
		operand.dims[i] = operands[index].dims[i];
	return tmesh_write_sized(out, &operand, sizeof(operand), err);
}

int tmesh_engine_graph_input(const struct tmesh_engine_graph *graph, size_t index,
			     struct tmesh_engine_operand *out, struct tmesh_error *err)
{
	const struct plugin_session *session = &graph->session->plugin;

	return describe(session->inputs, session->input_count, index, out, err);
}

int tmesh_engine_graph_output(const struct tmesh_engine_graph *graph, size_t index,
			      struct tmesh_engine_operand *out, struct tmesh_error *err)
{
	const struct plugin_session *session = &graph->session->plugin;

	return describe(session->outputs, session->output_count, index, out, err);
}
