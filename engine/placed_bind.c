// SPDX-License-Identifier: MIT
/* Inputs, outputs and what goes between the parts of a graph: bound, and run. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "placed_internal.h"

struct tmesh_placed_binding {
	atomic_uint refs;
	struct tmesh_placed *placed;
	struct tmesh_engine_binding **bindings; /* one for each part */
};

/* Where each node's value lies, with references; NULL: nowhere that others see. */
struct places {
	struct tmesh_tensor **of;
	size_t count;
};

static int take(struct places *places, uint32_t node, struct tmesh_tensor *tensor, const char *name,
		struct tmesh_error *err)
{
	if (places->of[node] && places->of[node] != tensor)
		return tmesh_fail(
			err, -EINVAL,
			"output \"%.80s\" lies in the memory of another output, or of its "
			"past: give that tensor",
			name);
	if (!places->of[node])
		places->of[node] = tmesh_tensor_ref(tensor);
	return 0;
}

static int take_inputs(const struct tmesh_graph *graph, struct places *places,
		       const struct tmesh_placed_value *inputs, size_t count,
		       struct tmesh_error *err)
{
	for (size_t i = 0; i < count; i++) {
		uint32_t node;

		if (!inputs[i].name || !inputs[i].tensor ||
		    tmesh_graph_find(graph, inputs[i].name, &node, NULL) ||
		    graph->nodes[node].op != TMESH_GRAPH_INPUT)
			return tmesh_fail(err, -ENOENT, "the graph has no input \"%.80s\"",
					  inputs[i].name ?: "");
		if (places->of[node])
			return tmesh_fail(err, -EINVAL, "input \"%.80s\" was given twice",
					  inputs[i].name);
		places->of[node] = tmesh_tensor_ref(inputs[i].tensor);
	}
	for (uint32_t i = 0; i < graph->node_count; i++) {
		const struct tmesh_graph_node *node = &graph->nodes[i];

		if (node->op == TMESH_GRAPH_INPUT && !places->of[i])
			return tmesh_fail(err, -EINVAL, "input \"%s\" was not given", node->name);
		if (node->op == TMESH_GRAPH_SET_ROWS)
			places->of[i] = tmesh_tensor_ref(places->of[node->inputs[0]]);
	}
	return 0;
}

static int take_outputs(const struct tmesh_graph *graph, struct places *places,
			const struct tmesh_placed_value *outputs, size_t count,
			struct tmesh_error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < count; i++) {
		size_t n = 0;

		while (n < graph->output_count &&
		       (!outputs[i].name || strcmp(graph->outputs[n].name, outputs[i].name) != 0))
			n++;
		if (n == graph->output_count || !outputs[i].tensor)
			return tmesh_fail(err, -ENOENT, "the graph has no output \"%.80s\"",
					  outputs[i].name ?: "");
		rc = take(places, graph->outputs[n].node, outputs[i].tensor, outputs[i].name, err);
	}
	return rc;
}

/* Values that have no place so far. */
static int make_rest(const struct tmesh_placed *placed, struct tmesh_ctx *ctx,
		     struct places *places, struct tmesh_error *err)
{
	const struct tmesh_region_opts opts = {.size = sizeof(opts), .label = "between engines"};
	int rc = 0;

	for (size_t i = 0; !rc && i < places->count; i++) {
		const struct tmesh_graph_node *node = &placed->split->graph->nodes[i];

		if (placed->split->wanted[i] && !places->of[i])
			rc = tmesh_tensor_create(ctx, node->dtype, node->ndim, node->shape, &opts,
						 &places->of[i], err);
	}
	return rc;
}

/* The operand of this part whose memory a "set_rows" has. */
static const char *past_of(const struct tmesh_graph *graph, const struct graph_part *part,
			   uint32_t node)
{
	while (graph->nodes[node].op == TMESH_GRAPH_SET_ROWS && part->has[node] == PART_NODE)
		node = graph->nodes[node].inputs[0];
	return graph->nodes[node].name;
}

static int bind_part(const struct tmesh_placed *placed, const struct places *places, size_t number,
		     struct tmesh_engine_binding **out, struct tmesh_error *err)
{
	const struct placed_part *part = &placed->parts[number];
	const struct graph_part *of = &placed->split->all[number];
	const struct tmesh_graph *graph = placed->split->graph;
	struct tmesh_engine_value *values = calloc(2 * places->count + 1, sizeof(*values));
	size_t input_count = 0, output_count = 0, at;
	int rc = 0;

	if (!values)
		return tmesh_fail(err, -ENOMEM, "no memory for %zu values", places->count);
	for (size_t i = 0; !rc && i < places->count; i++) {
		if (of->has[i] != PART_GIVEN || graph->nodes[i].op == TMESH_GRAPH_WEIGHT)
			continue;
		at = input_count++;
		values[at].name = graph->nodes[i].name;
		rc = tmesh_engine_tensor_wrap(part->context, places->of[i], TMESH_READ, 0,
					      &values[at].tensor, err);
	}
	for (uint32_t i = 0; !rc && i < places->count; i++) {
		if (!placed->split->wanted[i] || placed->split->part[i] != (int64_t)number)
			continue;
		at = input_count + output_count++;
		values[at].name = graph->nodes[i].name;
		if (graph->nodes[i].op == TMESH_GRAPH_SET_ROWS)
			values[at].in_place = past_of(graph, of, i);
		rc = tmesh_engine_tensor_wrap(part->context, places->of[i],
					      TMESH_READ | TMESH_WRITE, 0, &values[at].tensor, err);
	}
	if (!rc)
		rc = tmesh_engine_bind(part->graph, values, input_count, values + input_count,
				       output_count, out, err);
	for (at = 0; at < input_count + output_count; at++)
		tmesh_engine_tensor_unref(values[at].tensor);
	free(values);
	return rc;
}

int tmesh_placed_bind(struct tmesh_placed *placed, struct tmesh_ctx *ctx,
		      const struct tmesh_placed_value *inputs, size_t input_count,
		      const struct tmesh_placed_value *outputs, size_t output_count,
		      struct tmesh_placed_binding **out, struct tmesh_error *err)
{
	struct places places = {.count = placed->split->graph->node_count};
	struct tmesh_placed_binding *binding = calloc(1, sizeof(*binding));
	int rc = 0;

	places.of = calloc(places.count + 1, sizeof(*places.of));
	if (binding)
		binding->bindings = calloc(placed->split->count + 1, sizeof(*binding->bindings));
	if (!binding || !binding->bindings || !places.of)
		rc = tmesh_fail(err, -ENOMEM, "no memory for a binding of %zu parts",
				placed->split->count);
	if (!rc)
		rc = take_inputs(placed->split->graph, &places, inputs, input_count, err);
	if (!rc)
		rc = take_outputs(placed->split->graph, &places, outputs, output_count, err);
	if (!rc)
		rc = make_rest(placed, ctx, &places, err);
	if (binding) {
		binding->refs = 1;
		binding->placed = tmesh_placed_ref(placed);
	}
	for (size_t i = 0; !rc && i < placed->split->count; i++)
		rc = bind_part(placed, &places, i, &binding->bindings[i], err);
	for (size_t i = 0; places.of && i < places.count; i++)
		tmesh_tensor_unref(places.of[i]);
	free(places.of);
	if (rc)
		tmesh_placed_binding_unref(binding);
	else
		*out = binding;
	return rc;
}

int tmesh_placed_dispatch(struct tmesh_placed_binding *binding,
			  struct tmesh_engine_cancellable *cancellable, struct tmesh_error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < binding->placed->split->count; i++)
		rc = tmesh_engine_binding_dispatch_cancellable(binding->bindings[i], cancellable,
							       err);
	return rc;
}

struct tmesh_placed_binding *tmesh_placed_binding_ref(struct tmesh_placed_binding *binding)
{
	atomic_fetch_add(&binding->refs, 1);
	return binding;
}

void tmesh_placed_binding_unref(struct tmesh_placed_binding *binding)
{
	if (!binding || atomic_fetch_sub(&binding->refs, 1) > 1)
		return;
	for (size_t i = 0; binding->bindings && i < binding->placed->split->count; i++)
		tmesh_engine_binding_unref(binding->bindings[i]);
	tmesh_placed_unref(binding->placed);
	free(binding->bindings);
	free(binding);
}
