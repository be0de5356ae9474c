/* SPDX-License-Identifier: MIT */
/* cc placement.c $(pkg-config --cflags --libs libtmesh-engine) -o placement */
/* Decide where the nodes of a graph run. The costs are assumptions. */
#include <stdio.h>
#include <string.h>
#include <tmesh/placement.h>

static const char text[] = "graph small\n"
			   "token = input : int32[1]\n"
			   "table = weight : float32[32000,4096]\n"
			   "matrix = weight : float32[4096,4096]\n"
			   "head = weight : float32[32000,4096]\n"
			   "embed = get_rows(table, token)\n"
			   "layers = matmul(embed, matrix)\n"
			   "logits = matmul(layers, head)\n"
			   "output logits = logits\n";

int main(void)
{
	enum {
		CPU,
		GPU,
		PLACES
	};
	/* The table and the head, of 500 MiB each, do not fit into the GPU's memory. */
	const struct tmesh_placement_place places[PLACES] = {
		[CPU] = {.node = 1e-6, .flops = 1e11, .bandwidth = 2e10},
		[GPU] = {.node = 1e-5, .flops = 1e13, .bandwidth = 1e12, .memory = 256 << 20},
	};
	const struct tmesh_placement_link bus = {.bandwidth = 16e9, .latency = 1e-5};
	const struct tmesh_placement_link links[] = {bus, bus, bus, bus};
	const struct tmesh_placement_opts opts = {
		.size = sizeof(opts), .places = places, .place_count = PLACES, .links = links};
	struct tmesh_placement found = {.size = sizeof(found)};
	struct tmesh_graph_node node = {.size = sizeof(node)};
	struct tmesh_graph *graph;
	struct tmesh_error err;
	uint32_t at[7];

	if (tmesh_graph_parse(text, strlen(text), &graph, &err) ||
	    tmesh_placement_find(graph, &opts, at, &found, &err)) {
		fprintf(stderr, "placement: %s\n", err.message);
		return 1;
	}
	for (size_t i = 0; i < tmesh_graph_nodes(graph); i++)
		if (at[i] != TMESH_PLACEMENT_NOWHERE && !tmesh_graph_node(graph, i, &node, &err))
			printf("%s: %s\n", node.name, at[i] == GPU ? "GPU" : "CPU");
	printf("%.4f s, %llu bytes moved\n", found.seconds, (unsigned long long)found.bytes_moved);
	tmesh_graph_unref(graph);
	return 0;
}
