// SPDX-License-Identifier: MIT
/* A graph's plan: its parts, written to files that their engines read, and opened. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "placed_internal.h"

/* Make a new file and return its path. The name may exist: from a process with the same number in
 * another PID namespace, or from one that was killed. */
static int make_file(const char *folder, char **path, int *fd, struct tmesh_error *err)
{
	static atomic_uint made;
	int rc;

	do {
		free(*path);
		if (asprintf(path, "%s/placed-%d-%u.graph", folder, (int)getpid(),
			     atomic_fetch_add(&made, 1)) < 0) {
			*path = NULL;
			return tmesh_fail(err, -ENOMEM, "no memory for a part of a graph");
		}
		*fd = open(*path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	} while (*fd < 0 && errno == EEXIST);
	if (*fd >= 0)
		return 0;
	rc = tmesh_fail_errno(err, *path);
	free(*path);
	*path = NULL;
	return rc;
}

static int write_part(const struct tmesh_graph *graph, const char *folder, char **path,
		      struct tmesh_error *err)
{
	char *text = tmesh_graph_to_text(graph);
	FILE *file;
	int fd = -1, rc;

	if (!text)
		return tmesh_fail(err, -ENOMEM, "no memory for a part of a graph");
	rc = make_file(folder, path, &fd, err);
	file = rc ? NULL : fdopen(fd, "w");
	if (file) {
		bool good = fputs(text, file) >= 0;

		if (fclose(file) || !good)
			rc = tmesh_fail_errno(err, *path);
	} else if (!rc) {
		rc = tmesh_fail_errno(err, *path);
		close(fd);
	}
	free(text);
	return rc;
}

static int open_part(const struct tmesh_placed *placed, const struct graph_part *of,
		     struct placed_part *part, struct tmesh_error *err)
{
	struct tmesh_engine_graph_opts given = {.size = sizeof(given)};
	struct tmesh_engine_weight *weights = calloc(placed->weight_count + 1, sizeof(*weights));
	uint32_t index;
	int rc;

	if (!weights)
		return tmesh_fail(err, -ENOMEM, "no memory for a part of a graph");
	for (size_t i = 0; i < placed->weight_count; i++)
		if (!tmesh_graph_find(of->graph, placed->weights[i].name, &index, NULL))
			weights[given.weight_count++] = placed->weights[i];
	given.weights = weights;
	part->context = tmesh_engine_context_ref(placed->places->all[of->place].context);
	rc = write_part(of->graph, placed->folder, &part->path, err);
	if (!rc)
		rc = tmesh_engine_graph_open(part->context, part->path, &given, &part->graph, err);
	if (!rc)
		engine_session_once(part->graph);
	free(weights);
	return rc;
}

static bool computes(const struct tmesh_graph_node *node)
{
	return node->op != TMESH_GRAPH_INPUT && node->op != TMESH_GRAPH_WEIGHT &&
	       node->op != TMESH_GRAPH_RESHAPE;
}

static void find_readers(const struct tmesh_graph *graph, struct placed_plan *plan)
{
	memset(plan->reader, 0xff, graph->node_count * sizeof(*plan->reader));
	for (size_t i = 0; i < graph->node_count; i++) {
		const struct tmesh_graph_node *node = &graph->nodes[i];

		for (uint32_t n = 0; computes(node) && n < node->input_count; n++) {
			uint32_t from = placement_behind(graph, node->inputs[n]);

			if (!computes(&graph->nodes[from]) && plan->reader[from] == UINT32_MAX)
				plan->reader[from] = plan->at[i];
		}
	}
}

int plan_make(const struct tmesh_placed *placed, const uint32_t *at, struct placed_plan *out,
	      struct tmesh_error *err)
{
	size_t nodes = placed->graph->node_count;
	struct placed_plan plan = {.at = calloc(nodes + 1, sizeof(*at)),
				   .reader = calloc(nodes + 1, sizeof(*plan.reader))};
	int rc = 0;

	if (!plan.at || !plan.reader)
		rc = tmesh_fail(err, -ENOMEM, "no memory for a graph in parts");
	/* At its present places, or those that it gave up, the graph has the same parts. */
	if (!rc && placed->plan.split && !memcmp(placed->plan.at, at, nodes * sizeof(*at)))
		plan.split = tmesh_graph_partitions_ref(placed->plan.split);
	else if (!rc)
		rc = tmesh_graph_split(placed->graph, at, (uint32_t)placed->places->count,
				       &plan.split, err);
	if (rc) {
		plan_close(&plan);
		return rc;
	}
	memcpy(plan.at, at, nodes * sizeof(*at));
	find_readers(placed->graph, &plan);
	*out = plan;
	return 0;
}

int plan_open(const struct tmesh_placed *placed, struct placed_plan *plan, struct tmesh_error *err)
{
	int rc = 0;

	plan->parts = calloc(plan->split->count + 1, sizeof(*plan->parts));
	if (!plan->parts)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph in parts");
	for (size_t i = 0; !rc && i < plan->split->count; i++)
		rc = open_part(placed, &plan->split->all[i], &plan->parts[i], err);
	return rc;
}

void plan_give_up(struct placed_plan *plan)
{
	for (size_t i = 0; plan->parts && i < plan->split->count; i++) {
		struct placed_part *part = &plan->parts[i];

		/* In a forked child the file belongs to the parent. */
		if (part->path && !engine_enter(part->context, NULL))
			unlink(part->path);
		tmesh_engine_graph_unref(part->graph);
		tmesh_engine_context_unref(part->context);
		free(part->path);
	}
	free(plan->parts);
	plan->parts = NULL;
}

void plan_close(struct placed_plan *plan)
{
	plan_give_up(plan);
	tmesh_graph_partitions_unref(plan->split);
	free(plan->at);
	free(plan->reader);
	*plan = (struct placed_plan){0};
}

/* Count each value at the place of its first reader. */
void plan_needs(const struct placed_plan *plan, size_t bindings, uint64_t *needs, size_t places)
{
	const struct tmesh_graph *graph = plan->split->graph;

	memset(needs, 0, places * sizeof(*needs));
	for (size_t i = 0; i < graph->node_count; i++) {
		bool weight = graph->nodes[i].op == TMESH_GRAPH_WEIGHT;
		uint32_t at = plan->reader[i];
		uint64_t bytes;

		if (at >= places)
			continue;
		if (__builtin_mul_overflow(placement_bytes(&graph->nodes[i]), weight ? 1 : bindings,
					   &bytes) ||
		    __builtin_add_overflow(needs[at], bytes, &needs[at]))
			needs[at] = UINT64_MAX;
	}
}
