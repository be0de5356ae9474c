// SPDX-License-Identifier: MIT
/* Turn nodes in any order, with inputs by name, into a graph. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph_internal.h"

struct draft_node *draft_add(struct draft *draft, struct tmesh_error *err)
{
	if (graph_grow((void **)&draft->nodes, draft->node_count, &draft->node_room,
		       sizeof(*draft->nodes), TMESH_GRAPH_MAX_NODES, err))
		return NULL;
	draft->nodes[draft->node_count] =
		(struct draft_node){.node.size = sizeof(struct tmesh_graph_node)};
	return &draft->nodes[draft->node_count++];
}

int draft_add_output(struct draft *draft, const char *name, const char *node,
		     struct tmesh_error *err)
{
	struct draft_output *output;
	int rc = graph_grow((void **)&draft->outputs, draft->output_count, &draft->output_room,
			    sizeof(*draft->outputs), TMESH_GRAPH_MAX_OUTPUTS, err);

	if (rc)
		return rc;
	output = &draft->outputs[draft->output_count++];
	output->name = strdup(name);
	output->node = strdup(node);
	if (!output->name || !output->node)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph");
	return 0;
}

static void draft_free(struct draft *draft)
{
	for (size_t i = 0; i < draft->node_count; i++) {
		free((char *)draft->nodes[i].node.name);
		for (int n = 0; n < TMESH_GRAPH_MAX_INPUTS; n++)
			free(draft->nodes[i].inputs[n]);
	}
	for (size_t i = 0; i < draft->output_count; i++) {
		free(draft->outputs[i].name);
		free(draft->outputs[i].node);
	}
	free(draft->nodes);
	free(draft->outputs);
	free(draft->name);
}

static int by_name(const void *a, const void *b)
{
	const struct draft_node *const *one = a, *const *two = b;

	return strcmp((*one)->node.name, (*two)->node.name);
}

enum {
	NEW,
	OPEN, /* its inputs are being added */
	DONE
};

struct order {
	struct draft_node *nodes;
	struct draft_node **sorted;
	size_t count;
	uint8_t *state;
	uint32_t *next; /* by node on the way: the next input to visit */
	uint32_t *path;
};

static struct draft_node *draft_find_node(const struct order *order, const char *name)
{
	struct draft_node key = {.node.name = name}, *wanted = &key, **found;

	found = bsearch(&wanted, order->sorted, order->count, sizeof(wanted), by_name);
	return found ? *found : NULL;
}

/* Add a node. Its inputs are in the graph already. */
static int add(const struct order *order, struct draft_node *from, struct tmesh_graph *graph,
	       struct tmesh_error *err)
{
	for (uint32_t i = 0; i < from->node.input_count; i++)
		if (tmesh_graph_find(graph, from->inputs[i], &from->node.inputs[i], err))
			return -EPROTO;
	order->state[from - order->nodes] = DONE;
	return tmesh_graph_add(graph, &from->node, NULL, err);
}

/* Visit depth first, without recursion: the depth of a graph is limited only by its file's
 * length. */
static int visit(const struct order *order, uint32_t start, struct tmesh_graph *graph,
		 struct tmesh_error *err)
{
	size_t depth = 1;

	order->path[0] = start;
	while (depth) {
		uint32_t at = order->path[depth - 1];
		struct draft_node *node = &order->nodes[at], *input;
		int rc;

		if (order->state[at] == DONE) {
			depth--;
			continue;
		}
		order->state[at] = OPEN;
		if (order->next[at] == node->node.input_count) {
			rc = add(order, node, graph, err);
			if (rc)
				return rc;
			continue;
		}
		input = draft_find_node(order, node->inputs[order->next[at]++]);
		if (!input)
			return tmesh_fail(err, -EPROTO,
					  "node \"%.63s\": there is no node \"%.63s\"",
					  node->node.name, node->inputs[order->next[at] - 1]);
		if (order->state[input - order->nodes] == OPEN)
			return tmesh_fail(
				err, -EPROTO,
				"the graph has a cycle: node \"%.63s\" needs its own result",
				input->node.name);
		if (order->state[input - order->nodes] == NEW)
			order->path[depth++] = (uint32_t)(input - order->nodes);
	}
	return 0;
}

static int build(const struct draft *draft, const struct order *order, struct tmesh_graph *graph,
		 struct tmesh_error *err)
{
	uint32_t index;
	int rc = 0;

	for (size_t i = 0; i < draft->node_count; i++)
		order->sorted[i] = &draft->nodes[i];
	qsort(order->sorted, order->count, sizeof(*order->sorted), by_name);
	for (size_t i = 1; i < order->count; i++)
		if (!by_name(&order->sorted[i - 1], &order->sorted[i]))
			return tmesh_fail(err, -EPROTO, "there are two nodes \"%.63s\"",
					  order->sorted[i]->node.name);
	for (uint32_t i = 0; !rc && i < draft->node_count; i++)
		rc = visit(order, i, graph, err);
	for (size_t i = 0; !rc && i < draft->output_count; i++) {
		rc = tmesh_graph_find(graph, draft->outputs[i].node, &index, err);
		if (!rc)
			rc = tmesh_graph_add_output(graph, draft->outputs[i].name, index, err);
	}
	return rc;
}

static int draft_build(const struct draft *draft, struct tmesh_graph **out, struct tmesh_error *err)
{
	size_t room = draft->node_count + 1;
	struct order order = {
		.nodes = draft->nodes,
		.count = draft->node_count,
		.sorted = calloc(room, sizeof(*order.sorted)),
		.state = calloc(room, sizeof(*order.state)),
		.next = calloc(room, sizeof(*order.next)),
		.path = calloc(room, sizeof(*order.path)),
	};
	struct tmesh_graph *graph = NULL;
	int rc;

	if (!order.sorted || !order.state || !order.next || !order.path)
		rc = tmesh_fail(err, -ENOMEM, "no memory for a graph");
	else
		rc = tmesh_graph_create(draft->name, &graph, err);
	if (!rc)
		rc = build(draft, &order, graph, err);
	free(order.sorted);
	free(order.state);
	free(order.next);
	free(order.path);
	if (rc)
		tmesh_graph_unref(graph);
	else
		*out = graph;
	return rc;
}

int tmesh_graph_parse(const char *text, size_t bytes, struct tmesh_graph **out,
		      struct tmesh_error *err)
{
	struct tmesh_error own;
	struct draft draft = {0};
	int rc;

	if (!err)
		err = &own;
	if (bytes > GRAPH_MAX_BYTES)
		return tmesh_fail(err, -E2BIG, "a graph has at most %d MiB", GRAPH_MAX_BYTES >> 20);
	rc = graph_read_text(text, bytes, &draft, err);
	if (!rc)
		rc = draft_build(&draft, out, err);
	draft_free(&draft);
	/* These errors of tmesh_graph_add() mean a malformed file here. */
	if (rc && rc != -ENOMEM && rc != -E2BIG)
		rc = err->code = -EPROTO;
	return rc;
}

int tmesh_graph_read(const char *path, struct tmesh_graph **out, struct tmesh_error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	size_t done = 0;
	ssize_t got = 1;
	char *text;
	int rc;

	if (fd < 0)
		return tmesh_fail_errno(err, path);
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size > GRAPH_MAX_BYTES) {
		close(fd);
		return tmesh_fail(err, -E2BIG, "%.200s is not a regular file of at most %d MiB",
				  path, GRAPH_MAX_BYTES >> 20);
	}
	text = malloc((size_t)st.st_size + 1);
	while (text && got > 0 && done < (size_t)st.st_size) {
		got = read(fd, text + done, (size_t)st.st_size - done);
		if (got > 0)
			done += (size_t)got;
		else if (got < 0 && errno == EINTR)
			got = 1;
	}
	if (!text)
		rc = tmesh_fail(err, -ENOMEM, "no memory for a graph");
	else if (got < 0)
		rc = tmesh_fail_errno(err, path);
	else
		rc = tmesh_graph_parse(text, done, out, err);
	free(text);
	close(fd);
	return rc;
}
