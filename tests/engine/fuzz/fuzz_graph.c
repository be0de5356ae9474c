// SPDX-License-Identifier: MIT
/* Any bytes: refused, or a graph that survives being written and read again. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tmesh/graph.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void again(char *text, const char *wanted)
{
	struct tmesh_graph *graph;
	char *json;

	if (!text || tmesh_graph_parse(text, strlen(text), &graph, NULL))
		abort();
	json = tmesh_graph_to_json(graph);
	if (!json || strcmp(json, wanted))
		abort();
	free(json);
	tmesh_graph_unref(graph);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_error err = {0};
	struct tmesh_graph *graph;
	char *json, *text;

	if (tmesh_graph_parse((const char *)data, size, &graph, &err)) {
		if ((err.code != -EPROTO && err.code != -E2BIG) || !err.message[0])
			abort();
		return 0;
	}
	json = tmesh_graph_to_json(graph);
	text = tmesh_graph_to_text(graph);
	free(tmesh_graph_to_dot(graph));
	tmesh_graph_unref(graph);
	again(text, json);
	free(text);
	free(json);
	return 0;
}
