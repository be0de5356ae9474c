// SPDX-License-Identifier: MIT
/* A graph over several engines: its parts, written where their engines read them, and opened. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "placed_internal.h"

static int write_part(const struct tmesh_graph *graph, const char *path, struct tmesh_error *err)
{
	char *text = tmesh_graph_to_text(graph);
	FILE *file;
	int fd, rc = 0;

	if (!text)
		return tmesh_fail(err, -ENOMEM, "no memory for a part of a graph");
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	file = fd < 0 ? NULL : fdopen(fd, "w");
	if (!file) {
		rc = tmesh_fail_errno(err, path);
		if (fd >= 0)
			close(fd);
	} else {
		bool good = fputs(text, file) >= 0;

		if (fclose(file) || !good)
			rc = tmesh_fail_errno(err, path);
	}
	free(text);
	return rc;
}

static int open_part(struct tmesh_placed *placed, size_t number,
		     const struct tmesh_placed_opts *opts, struct tmesh_error *err)
{
	static atomic_uint made;
	const struct graph_part *of = &placed->split->all[number];
	struct placed_part *part = &placed->parts[number];
	struct tmesh_engine_graph_opts given = {.size = sizeof(given)};
	struct tmesh_engine_weight *weights = calloc(opts->weight_count + 1, sizeof(*weights));
	uint32_t index;
	int rc;

	if (!weights || asprintf(&part->path, "%s/placed-%d-%u.graph", opts->folder, (int)getpid(),
				 atomic_fetch_add(&made, 1)) < 0) {
		free(weights);
		part->path = NULL;
		return tmesh_fail(err, -ENOMEM, "no memory for a part of a graph");
	}
	for (size_t i = 0; i < opts->weight_count; i++)
		if (!tmesh_graph_find(of->graph, opts->weights[i].name, &index, NULL))
			weights[given.weight_count++] = opts->weights[i];
	given.weights = weights;
	part->context = tmesh_engine_context_ref(opts->contexts[of->place]);
	rc = write_part(of->graph, part->path, err);
	if (!rc)
		rc = tmesh_engine_graph_open(part->context, part->path, &given, &part->graph, err);
	free(weights);
	return rc;
}

static int check_weights(const struct tmesh_graph *graph, const struct tmesh_placed_opts *opts,
			 struct tmesh_error *err)
{
	for (size_t n = 0; n < opts->weight_count; n++)
		if (!opts->weights[n].name)
			return tmesh_fail(err, -EINVAL, "weight %zu has no name", n);
	for (size_t i = 0; i < graph->node_count; i++) {
		size_t n = 0;

		if (graph->nodes[i].op != TMESH_GRAPH_WEIGHT)
			continue;
		while (n < opts->weight_count &&
		       strcmp(opts->weights[n].name, graph->nodes[i].name) != 0)
			n++;
		if (n == opts->weight_count)
			return tmesh_fail(err, -EINVAL, "weight \"%s\" was not given",
					  graph->nodes[i].name);
	}
	return 0;
}

int tmesh_placed_create(struct tmesh_graph *graph, const struct tmesh_placed_opts *opts,
			struct tmesh_placed **out, struct tmesh_error *err)
{
	struct tmesh_placed_opts given;
	struct tmesh_placed *placed;
	int rc = tmesh_read_sized(&given, sizeof(given), opts, err);

	if (rc)
		return rc;
	if (!given.contexts || !given.context_count || given.context_count > UINT32_MAX ||
	    !given.at || !given.folder || (given.weight_count && !given.weights))
		return tmesh_fail(err, -EINVAL,
				  "contexts, at and folder are given, and weights where there are");
	rc = check_weights(graph, &given, err);
	if (rc)
		return rc;
	placed = calloc(1, sizeof(*placed));
	if (!placed)
		return tmesh_fail(err, -ENOMEM, "no memory for a graph in parts");
	placed->refs = 1;
	rc = tmesh_graph_split(graph, given.at, (uint32_t)given.context_count, &placed->split, err);
	if (!rc) {
		placed->parts = calloc(placed->split->count + 1, sizeof(*placed->parts));
		if (!placed->parts)
			rc = tmesh_fail(err, -ENOMEM, "no memory for a graph in parts");
	}
	for (size_t i = 0; !rc && i < placed->split->count; i++)
		rc = open_part(placed, i, &given, err);
	if (rc)
		tmesh_placed_unref(placed);
	else
		*out = placed;
	return rc;
}

struct tmesh_placed *tmesh_placed_ref(struct tmesh_placed *placed)
{
	atomic_fetch_add(&placed->refs, 1);
	return placed;
}

void tmesh_placed_unref(struct tmesh_placed *placed)
{
	if (!placed || atomic_fetch_sub(&placed->refs, 1) > 1)
		return;
	for (size_t i = 0; placed->parts && i < placed->split->count; i++) {
		struct placed_part *part = &placed->parts[i];

		/* In a forked child the file is the parent's. */
		if (part->context && !engine_enter(part->context, NULL))
			unlink(part->path);
		tmesh_engine_graph_unref(part->graph);
		tmesh_engine_context_unref(part->context);
		free(part->path);
	}
	tmesh_graph_parts_unref(placed->split);
	free(placed->parts);
	free(placed);
}

const struct tmesh_graph_parts *tmesh_placed_parts(const struct tmesh_placed *placed)
{
	return placed->split;
}
