// SPDX-License-Identifier: MIT
/*
 * Split a graph into parts, each for one place. Nodes are assigned in their order. Each goes to the
 * first part of its place that does not precede a part whose values it reads. A reshape shares its
 * input's memory, so each part that reads one has a node of its own for it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "graph_internal.h"

static bool is_given(const struct tmesh_graph_node *node)
{
	return node->op == TMESH_GRAPH_INPUT || node->op == TMESH_GRAPH_WEIGHT;
}

static bool is_view(const struct tmesh_graph_node *node)
{
	return node->op == TMESH_GRAPH_RESHAPE;
}

static bool reads(const struct tmesh_graph_node *node, uint32_t inputs, uint32_t value)
{
	for (uint32_t n = 0; n < inputs; n++)
		if (node->inputs[n] == value)
			return true;
	return false;
}

static int shared_rows(const struct tmesh_graph *graph, uint32_t index, struct tmesh_error *err)
{
	uint32_t rows = graph->nodes[index].inputs[0], reader = 0;

	while (reader == index ||
	       !reads(&graph->nodes[reader], graph->nodes[reader].input_count, rows))
		reader++;
	return tmesh_fail(
		err, -EINVAL,
		"\"%s\", whose rows \"%s\" replaces, is read by \"%s\" too: it can read \"%s\"",
		graph->nodes[rows].name, graph->nodes[index].name, graph->nodes[reader].name,
		graph->nodes[index].name);
}

/* Check the places and the replaced rows before anything is made. */
static int check_nodes(const struct tmesh_graph *graph, const uint32_t *at, uint32_t places,
		       struct tmesh_error *err)
{
	uint32_t *readers = calloc(graph->node_count + 1, sizeof(*readers));
	int rc = readers ? 0
			 : tmesh_fail(err, -ENOMEM, "no memory for %zu nodes", graph->node_count);

	for (uint32_t i = 0; !rc && i < graph->node_count; i++) {
		const struct tmesh_graph_node *node = &graph->nodes[i];

		if (!is_given(node) && !is_view(node) && at[i] >= places)
			rc = tmesh_fail(err, -EINVAL,
					"node \"%s\" is at place %u, and there are %u", node->name,
					at[i], places);
		for (uint32_t n = 0; n < node->input_count; n++)
			readers[node->inputs[n]] += !reads(node, n, node->inputs[n]);
	}
	for (uint32_t i = 0; !rc && i < graph->node_count; i++)
		if (graph->nodes[i].op == TMESH_GRAPH_SET_ROWS &&
		    readers[graph->nodes[i].inputs[0]] > 1)
			rc = shared_rows(graph, i, err);
	free(readers);
	return rc;
}

static int parts_put(struct tmesh_graph_partitions *parts, uint32_t index, uint32_t place,
		     int64_t least, struct tmesh_error *err)
{
	size_t i = least < 0 ? 0 : (size_t)least;
	struct graph_part *more;

	while (i < parts->count && parts->all[i].place != place)
		i++;
	if (i == parts->count) {
		if (i == TMESH_GRAPH_MAX_PARTITIONS)
			return tmesh_fail(
				err, -E2BIG,
				"the places split the graph into more than %d partitions: "
				"give neighbouring nodes the same place",
				TMESH_GRAPH_MAX_PARTITIONS);
		more = reallocarray(parts->all, i + 1, sizeof(*more));
		if (!more)
			return tmesh_fail(err, -ENOMEM, "no memory for a part of a graph");
		parts->all = more;
		parts->all[parts->count++] = (struct graph_part){.place = place};
	}
	parts->part[index] = (int64_t)i;
	return 0;
}

/* Assign each node that computes. Then assign outputs that are views, to the last part whose values
 * they need. */
static int put_all(struct tmesh_graph_partitions *parts, const uint32_t *at,
		   struct tmesh_error *err)
{
	const struct tmesh_graph *graph = parts->graph;
	int64_t *last = malloc((graph->node_count + 1) * sizeof(*last));
	int rc = last ? 0 : tmesh_fail(err, -ENOMEM, "no memory for %zu nodes", graph->node_count);

	for (uint32_t i = 0; !rc && i < graph->node_count; i++) {
		const struct tmesh_graph_node *node = &graph->nodes[i];

		last[i] = -1;
		for (uint32_t n = 0; n < node->input_count; n++)
			if (last[node->inputs[n]] > last[i])
				last[i] = last[node->inputs[n]];
		parts->part[i] = -1;
		if (is_given(node) || is_view(node))
			continue;
		rc = parts_put(parts, i, at[i], last[i], err);
		last[i] = parts->part[i];
	}
	for (size_t i = 0; !rc && i < graph->output_count; i++) {
		uint32_t node = graph->outputs[i].node;

		if (parts->part[node] < 0)
			rc = parts_put(parts, node,
				       last[node] < 0 ? 0 : parts->all[last[node]].place,
				       last[node], err);
	}
	free(last);
	return rc;
}

/* Set the role of each node in part @number. The loop runs backwards, so that readers of a node
 * come before it. */
static int gather(struct tmesh_graph_partitions *parts, size_t number, struct tmesh_error *err)
{
	const struct tmesh_graph *graph = parts->graph;
	struct graph_part *part = &parts->all[number];

	part->has = calloc(graph->node_count + 1, 1);
	if (!part->has)
		return tmesh_fail(err, -ENOMEM, "no memory for a part of a graph");
	for (size_t i = graph->node_count; i--;) {
		const struct tmesh_graph_node *node = &graph->nodes[i];

		if (parts->part[i] == (int64_t)number)
			part->has[i] = PART_NODE;
		if (part->has[i] != PART_NODE)
			continue;
		for (uint32_t n = 0; n < node->input_count; n++) {
			uint32_t needed = node->inputs[n];
			const struct tmesh_graph_node *source = &graph->nodes[needed];

			if (parts->part[needed] == (int64_t)number || is_view(source))
				part->has[needed] = PART_NODE;
			else
				part->has[needed] = PART_GIVEN;
			if (part->has[needed] == PART_GIVEN && parts->part[needed] >= 0)
				parts->wanted[needed] = true;
		}
	}
	return 0;
}

/* Build the part's graph. Inputs, weights and values of other parts keep the positions of their
 * nodes, so that indices grow. */
static int build(struct tmesh_graph_partitions *parts, size_t number, struct tmesh_error *err)
{
	struct graph_part *part = &parts->all[number];
	const struct tmesh_graph *graph = parts->graph;
	uint32_t *to = calloc(graph->node_count + 1, sizeof(*to));
	int rc = to ? tmesh_graph_create(graph->name, &part->graph, err)
		    : tmesh_fail(err, -ENOMEM, "no memory for a part of a graph");

	for (size_t i = 0; !rc && i < graph->node_count; i++) {
		struct tmesh_graph_node node = graph->nodes[i];

		if (part->has[i] == PART_NONE)
			continue;
		node.size = sizeof(node);
		if (part->has[i] == PART_GIVEN && !is_given(&node))
			node = (struct tmesh_graph_node){.size = sizeof(node),
							 .name = node.name,
							 .op = TMESH_GRAPH_INPUT,
							 .dtype = node.dtype,
							 .ndim = node.ndim};
		memcpy(node.shape, graph->nodes[i].shape, sizeof(node.shape));
		for (uint32_t n = 0; n < node.input_count; n++)
			node.inputs[n] = to[node.inputs[n]];
		rc = tmesh_graph_add(part->graph, &node, &to[i], err);
	}
	for (size_t i = 0; !rc && i < graph->node_count; i++)
		if (parts->wanted[i] && parts->part[i] == (int64_t)number)
			rc = tmesh_graph_add_output(part->graph, graph->nodes[i].name, to[i], err);
	free(to);
	return rc;
}

static void parts_free(struct tmesh_graph_partitions *parts)
{
	for (size_t i = 0; i < parts->count; i++) {
		tmesh_graph_unref(parts->all[i].graph);
		free(parts->all[i].has);
	}
	tmesh_graph_unref(parts->graph);
	free(parts->all);
	free(parts->part);
	free(parts->wanted);
	free(parts);
}

int tmesh_graph_split(struct tmesh_graph *graph, const uint32_t *at, uint32_t places,
		      struct tmesh_graph_partitions **out, struct tmesh_error *err)
{
	struct tmesh_graph_partitions *parts;
	int rc = check_nodes(graph, at, places, err);

	if (rc)
		return rc;
	parts = calloc(1, sizeof(*parts));
	if (!parts)
		return tmesh_fail(err, -ENOMEM, "no memory for parts of a graph");
	parts->refs = 1;
	parts->graph = tmesh_graph_ref(graph);
	parts->part = calloc(graph->node_count + 1, sizeof(*parts->part));
	parts->wanted = calloc(graph->node_count + 1, sizeof(*parts->wanted));
	if (!parts->part || !parts->wanted)
		rc = tmesh_fail(err, -ENOMEM, "no memory for parts of a graph");
	if (!rc)
		rc = put_all(parts, at, err);
	for (size_t i = 0; !rc && i < graph->output_count; i++)
		parts->wanted[graph->outputs[i].node] = true;
	for (size_t i = 0; !rc && i < parts->count; i++)
		rc = gather(parts, i, err);
	for (size_t i = 0; !rc && i < parts->count; i++)
		rc = build(parts, i, err);
	if (rc)
		parts_free(parts);
	else
		*out = parts;
	return rc;
}

struct tmesh_graph_partitions *tmesh_graph_partitions_ref(struct tmesh_graph_partitions *parts)
{
	atomic_fetch_add(&parts->refs, 1);
	return parts;
}

void tmesh_graph_partitions_unref(struct tmesh_graph_partitions *parts)
{
	if (parts && atomic_fetch_sub(&parts->refs, 1) == 1)
		parts_free(parts);
}

size_t tmesh_graph_partitions_count(const struct tmesh_graph_partitions *parts)
{
	return parts->count;
}

int tmesh_graph_partition(const struct tmesh_graph_partitions *parts, size_t index, uint32_t *place,
			  const struct tmesh_graph **graph, struct tmesh_error *err)
{
	if (index >= parts->count)
		return tmesh_fail(err, -EINVAL, "there is no part %zu, there are %zu", index,
				  parts->count);
	*place = parts->all[index].place;
	*graph = parts->all[index].graph;
	return 0;
}
