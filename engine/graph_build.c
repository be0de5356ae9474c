// SPDX-License-Identifier: MIT
/* Build a graph node by node, and inspect it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/siphash.h"
#include "graph_internal.h"

#define NAME_RULE "1 to 63 letters, digits and \"_.-/\""

int graph_grow(void **list, size_t count, size_t *room, size_t item, size_t most,
	       struct tmesh_error *err)
{
	size_t wanted = *room ? *room * 2 : 16;
	void *grown;

	if (count < *room)
		return 0;
	if (count >= most)
		return tmesh_fail(err, -E2BIG,
				  "the graph has too many nodes, inputs or outputs: at most %zu",
				  most);
	grown = realloc(*list, wanted * item);
	if (!grown)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph");
	*list = grown;
	*room = wanted;
	return 0;
}

int tmesh_graph_create(const char *name, struct tmesh_graph **out, struct tmesh_error *err)
{
	struct tmesh_graph *graph;

	if (!graph_name_ok(name))
		return tmesh_fail(err, -EINVAL, "a graph's name is " NAME_RULE);
	graph = calloc(1, sizeof(*graph));
	if (graph)
		graph->name = strdup(name);
	if (!graph || !graph->name) {
		free(graph);
		return tmesh_fail(err, -ENOMEM, "no memory for a graph");
	}
	graph->refs = 1;
	*out = graph;
	return 0;
}

struct tmesh_graph *tmesh_graph_ref(struct tmesh_graph *graph)
{
	atomic_fetch_add(&graph->refs, 1);
	return graph;
}

void tmesh_graph_unref(struct tmesh_graph *graph)
{
	if (!graph || atomic_fetch_sub(&graph->refs, 1) > 1)
		return;
	for (size_t i = 0; i < graph->node_count; i++)
		free((char *)graph->nodes[i].name);
	for (size_t i = 0; i < graph->output_count; i++)
		free(graph->outputs[i].name);
	free(graph->nodes);
	free(graph->outputs);
	free(graph->names);
	free(graph->name);
	free(graph);
}

/* Return the index where a name is or would be. The hash key is this object's address, because
 * names may come from strangers. */
static size_t place(const struct tmesh_graph *graph, const char *name)
{
	const uint64_t key[2] = {(uintptr_t)graph, (uintptr_t)graph->name};
	size_t at = tmesh_siphash(key, name, strlen(name)) & (graph->name_room - 1);

	while (graph->names[at] && strcmp(graph->nodes[graph->names[at] - 1].name, name))
		at = (at + 1) & (graph->name_room - 1);
	return at;
}

static int more_names(struct tmesh_graph *graph, struct tmesh_error *err)
{
	size_t room = graph->name_room ? graph->name_room * 2 : 64;
	uint32_t *names;

	if (graph->node_count * 2 < graph->name_room)
		return 0;
	names = calloc(room, sizeof(*names));
	if (!names)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph");
	free(graph->names);
	graph->names = names;
	graph->name_room = room;
	for (uint32_t i = 0; i < graph->node_count; i++)
		graph->names[place(graph, graph->nodes[i].name)] = i + 1;
	return 0;
}

int tmesh_graph_find(const struct tmesh_graph *graph, const char *name, uint32_t *index,
		     struct tmesh_error *err)
{
	uint32_t found = graph->name_room && name ? graph->names[place(graph, name)] : 0;

	if (!found)
		return tmesh_fail(err, -ENOENT, "the graph has no node \"%.63s\"",
				  name ? name : "");
	*index = found - 1;
	return 0;
}

int tmesh_graph_add(struct tmesh_graph *graph, const struct tmesh_graph_node *given,
		    uint32_t *index, struct tmesh_error *err)
{
	struct tmesh_graph_node node;
	uint32_t there;
	char *name;
	int rc = tmesh_read_sized(&node, sizeof(node), given, err);

	if (rc)
		return rc;
	if (!graph_name_ok(node.name))
		return tmesh_fail(err, -EINVAL, "a node's name is " NAME_RULE);
	if (node.reserved)
		return tmesh_fail(err, -EINVAL, "node \"%s\": reserved is not 0", node.name);
	if (!graph_op(node.op))
		return tmesh_fail(err, -EINVAL, "node \"%s\": there is no such operator",
				  node.name);
	if (!tmesh_graph_find(graph, node.name, &there, NULL))
		return tmesh_fail(err, -EINVAL, "there are two nodes \"%s\"", node.name);
	rc = graph_infer(graph, &node, err);
	if (!rc)
		rc = graph_grow((void **)&graph->nodes, graph->node_count, &graph->node_room,
				sizeof(*graph->nodes), TMESH_GRAPH_MAX_NODES, err);
	if (!rc)
		rc = more_names(graph, err);
	if (rc)
		return rc;
	name = strdup(node.name);
	if (!name)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph");
	node.size = sizeof(node);
	node.name = name;
	if (node.quant)
		node.quant = graph_quant(node.quant)->name;
	for (uint32_t i = node.input_count; i < TMESH_GRAPH_MAX_INPUTS; i++)
		node.inputs[i] = 0;
	graph->nodes[graph->node_count] = node;
	graph->names[place(graph, name)] = (uint32_t)graph->node_count + 1;
	if (index)
		*index = (uint32_t)graph->node_count;
	graph->node_count++;
	return 0;
}

int tmesh_graph_add_output(struct tmesh_graph *graph, const char *name, uint32_t index,
			   struct tmesh_error *err)
{
	int rc;

	if (!graph_name_ok(name))
		return tmesh_fail(err, -EINVAL, "an output's name is " NAME_RULE);
	if (index >= graph->node_count)
		return tmesh_fail(err, -EINVAL, "output \"%s\": there is no node %u", name, index);
	if (!graph->nodes[index].input_count)
		return tmesh_fail(err, -EINVAL,
				  "output \"%s\": node \"%s\" computes nothing: an input or a "
				  "weight cannot be an output",
				  name, graph->nodes[index].name);
	for (size_t i = 0; i < graph->output_count; i++)
		if (!strcmp(graph->outputs[i].name, name))
			return tmesh_fail(err, -EINVAL, "there are two outputs \"%s\"", name);
	rc = graph_grow((void **)&graph->outputs, graph->output_count, &graph->output_room,
			sizeof(*graph->outputs), TMESH_GRAPH_MAX_OUTPUTS, err);
	if (rc)
		return rc;
	graph->outputs[graph->output_count].name = strdup(name);
	if (!graph->outputs[graph->output_count].name)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph");
	graph->outputs[graph->output_count++].node = index;
	return 0;
}

const char *tmesh_graph_name(const struct tmesh_graph *graph)
{
	return graph->name;
}

size_t tmesh_graph_nodes(const struct tmesh_graph *graph)
{
	return graph->node_count;
}

size_t tmesh_graph_outputs(const struct tmesh_graph *graph)
{
	return graph->output_count;
}

int tmesh_graph_node(const struct tmesh_graph *graph, size_t index, struct tmesh_graph_node *out,
		     struct tmesh_error *err)
{
	if (index >= graph->node_count)
		return tmesh_fail(err, -EINVAL, "there is no node %zu, there are %zu", index,
				  graph->node_count);
	return tmesh_write_sized(out, &graph->nodes[index], sizeof(*graph->nodes), err);
}

int tmesh_graph_output(const struct tmesh_graph *graph, size_t index, uint32_t *node,
		       const char **name, struct tmesh_error *err)
{
	if (index >= graph->output_count)
		return tmesh_fail(err, -EINVAL, "there is no output %zu, there are %zu", index,
				  graph->output_count);
	*node = graph->outputs[index].node;
	if (name)
		*name = graph->outputs[index].name;
	return 0;
}
