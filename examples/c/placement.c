/* SPDX-License-Identifier: MIT */
/* cc placement.c $(pkg-config --cflags --libs libtmesh-engine) -o placement */
/*
 * Where the nodes of a graph had best run, and what other placements would come to. The costs are
 * assumed here; tmesh_costs_measure() measures them.
 */
#include <stdio.h>
#include <tmesh/placement.h>

int main(void)
{
	enum {
		CPU,
		GPU,
		DEVICES
	};
	const struct tmesh_placement_device devices[DEVICES] = {
		[CPU] = {.memory = 64ull << 30, .latency = 1e-6},
		[GPU] = {.memory = 8ull << 30, .latency = 10e-6},
	};
	const struct tmesh_placement_link bus = {.bandwidth = 16e9, .latency = 10e-6};
	const struct tmesh_placement_link links[] = {bus, bus, bus, bus};
	/* Seconds on the CPU and on the GPU; the tokenizer has no kernel for a GPU. */
	const double tokenize[] = {1e-4, -1}, layers[] = {0.2, 0.01}, sample[] = {1e-4, 1e-3};
	const uint32_t after_tokenize[] = {0}, after_layers[] = {1};
	const struct tmesh_placement_node nodes[] = {
		{.name = "tokenize", .bytes = 4096, .seconds = tokenize},
		{.name = "layers",
		 .memory = 6ull << 30,
		 .bytes = 128 << 10,
		 .inputs = after_tokenize,
		 .input_count = 1,
		 .seconds = layers},
		{.name = "sample",
		 .bytes = 4,
		 .inputs = after_layers,
		 .input_count = 1,
		 .seconds = sample},
	};
	const struct tmesh_placement_problem problem = {
		.size = sizeof(problem),
		.devices = devices,
		.device_count = DEVICES,
		.links = links,
		.nodes = nodes,
		.node_count = sizeof(nodes) / sizeof(*nodes),
	};
	const uint32_t all_on_the_cpu[] = {CPU, CPU, CPU};
	struct tmesh_placement best = {.size = sizeof(best)}, cpu = {.size = sizeof(cpu)};
	uint32_t at[sizeof(nodes) / sizeof(*nodes)];
	struct tmesh_error err;

	if (tmesh_placement_find(&problem, at, &best, &err) ||
	    tmesh_placement_cost(&problem, all_on_the_cpu, &cpu, &err)) {
		fprintf(stderr, "placement: %s\n", err.message);
		return 1;
	}
	for (size_t i = 0; i < problem.node_count; i++)
		printf("%s: %s\n", nodes[i].name, at[i] == GPU ? "GPU" : "CPU");
	printf("%.4f s, all on the CPU %.4f s\n", best.seconds, cpu.seconds);
	return 0;
}
