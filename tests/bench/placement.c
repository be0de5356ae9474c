// SPDX-License-Identifier: MIT
/*
 * Placement of 40 nodes on 12 devices, 20 made-up machines: the time of one call with its defaults,
 * and the run time of what it found beside that of a search of SECONDS (argument, 2) on the same
 * machine. That is no proof of the best: none is known at this size.
 */
#include <stdio.h>
#include <stdlib.h>
#include <tmesh/placement.h>

#include "harness.h"

#define NODES 40
#define DEVICES 12
#define MACHINES 20

static struct tmesh_placement_device devices[DEVICES];
static struct tmesh_placement_link links[DEVICES * DEVICES];
static struct tmesh_placement_node nodes[NODES];
static uint32_t inputs[NODES][2];
static double times[NODES][DEVICES];

static double draw(unsigned int *seed, double least, double most)
{
	return least + (most - least) * rand_r(seed) / RAND_MAX;
}

static void make(unsigned int seed)
{
	for (size_t d = 0; d < DEVICES; d++)
		devices[d] = (struct tmesh_placement_device){1ull << 30, draw(&seed, 1e-6, 1e-5)};
	for (size_t i = 0; i < DEVICES * DEVICES; i++)
		links[i] = (struct tmesh_placement_link){draw(&seed, 1e9, 2e10),
							 draw(&seed, 1e-6, 2e-5)};
	for (size_t i = 0; i < NODES; i++) {
		double work = draw(&seed, 1e-4, 1e-3);

		nodes[i] = (struct tmesh_placement_node){
			.memory = (uint64_t)draw(&seed, 64 << 20, 256 << 20),
			.bytes = (uint64_t)draw(&seed, 1 << 14, 1 << 20),
			.inputs = inputs[i],
			.input_count = i ? 1 + (uint32_t)rand_r(&seed) % 2 : 0,
			.seconds = times[i],
		};
		for (uint32_t k = 0; k < nodes[i].input_count; k++)
			inputs[i][k] = (uint32_t)((size_t)rand_r(&seed) % i);
		for (size_t d = 0; d < DEVICES; d++)
			times[i][d] = work * draw(&seed, 0.5, 2);
	}
}

static uint64_t find(struct tmesh_placement_problem *problem, struct tmesh_placement *found)
{
	uint64_t start = now_ns();
	struct tmesh_error err;
	uint32_t at[NODES];

	must(tmesh_placement_find(problem, at, found, &err), &err);
	return now_ns() - start;
}

int main(int argc, char **argv)
{
	static struct series call = {.name = "call"}, run = {.name = "found"},
			     longer = {.name = "long-search"}, list = {.name = "list-alone"};

	for (unsigned int seed = 1; seed <= MACHINES; seed++) {
		struct tmesh_placement_problem problem = {
			.size = sizeof(problem),
			.devices = devices,
			.device_count = DEVICES,
			.links = links,
			.nodes = nodes,
			.node_count = NODES,
		};
		struct tmesh_placement found = {.size = sizeof(found)}, best = found;

		make(seed);
		series_add(&call, find(&problem, &found));
		problem.restarts = UINT32_MAX;
		problem.time_ns = (uint64_t)(atof(argc > 1 ? argv[1] : "2") * 1e9);
		problem.seed = 99;
		find(&problem, &best);
		series_add(&run, (uint64_t)(found.seconds * 1e9));
		series_add(&list, (uint64_t)(found.greedy * 1e9));
		series_add(&longer, (uint64_t)(best.seconds * 1e9));
	}
	series_print("placement", &call);
	series_print("placement", &run);
	series_print("placement", &list);
	series_print("placement", &longer);
	return 0;
}
