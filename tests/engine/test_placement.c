// SPDX-License-Identifier: MIT
/*
 * Placement: beside a simulation by the header's words, which shares no line with the library's;
 * memory, the step back, and what is refused.
 */
#include <math.h>
#include <tmesh/placement.h>

#include "unit.h"

#define NODES 40
static struct tmesh_placement_place places[64];
static struct tmesh_placement_link links[64 * 64];
static struct tmesh_placement_opts opts;
static uint32_t at[2 * NODES];

static int fill(void **state)
{
	opts = (struct tmesh_placement_opts){
		.size = sizeof(opts), .places = places, .place_count = 3, .links = links};
	for (size_t i = 0; i < 64; i++)
		places[i] = (struct tmesh_placement_place){
			.node = 1e-6 * (double)(i + 1), .flops = 1e9, .bandwidth = 1e9};
	for (size_t i = 0; i < 64 * 64; i++)
		links[i] = (struct tmesh_placement_link){.bandwidth = 1e9, .latency = 1e-5};
	return 0;
}

static struct tmesh_graph *parsed(const char *text)
{
	struct tmesh_graph *graph;

	assert_ok(tmesh_graph_parse(text, strlen(text), &graph, err));
	return graph;
}

static struct tmesh_placement find(const struct tmesh_graph *graph)
{
	struct tmesh_placement found = {.size = sizeof(found)};

	assert_ok(tmesh_placement_find(graph, &opts, at, &found, err));
	return found;
}

/* The graph has additions of float32[rows[i]], and its first node is an input. */
static double simulate(const uint32_t (*inputs)[2], const uint32_t *size, uint32_t nodes)
{
	double done[NODES] = {0}, busy[64] = {0}, last = 0;

	for (uint32_t i = 1; i < nodes; i++) {
		double begin = busy[at[i]];

		for (int k = 0; k < 2; k++) {
			uint32_t from = inputs[i][k];
			const struct tmesh_placement_link *link;

			if (!from)
				continue;
			link = &links[at[from] * opts.place_count + at[i]];
			begin = fmax(begin,
				     done[from] +
					     (at[from] == at[i]
						      ? 0
						      : link->latency +
								4 * size[from] / link->bandwidth));
		}
		done[i] = busy[at[i]] =
			begin + places[at[i]].node + 12 * size[i] / places[at[i]].bandwidth;
		last = fmax(last, done[i]);
	}
	return last;
}

/* Random additions on places of different speeds: it says what the placement takes. */
UNIT_ADD(test_simulated, fill, NULL)
{
	for (unsigned int seed = 1; seed <= 20; seed++) {
		unsigned int random = seed;
		uint32_t inputs[NODES][2], size[NODES], used = 0;
		struct tmesh_graph *graph;
		char text[NODES * 96];
		double seconds;
		int length = sprintf(text, "graph g\nn0 = input : float32[64]\n");

		for (uint32_t i = 0; i < NODES; i++)
			size[i] = 64;
		for (uint32_t i = 1; i < NODES; i++) {
			for (int k = 0; k < 2; k++)
				inputs[i][k] = (uint32_t)rand_r(&random) % i;
			length += sprintf(text + length, "n%u = add(n%u, n%u)\n", i, inputs[i][0],
					  inputs[i][1]);
		}
		for (uint32_t i = 1; i < NODES; i++)
			length += sprintf(text + length, "output n%u = n%u\n", i, i);
		for (size_t i = 0; i < 3; i++)
			places[i].bandwidth = 1e7 * (1 + rand_r(&random) % 4);
		for (size_t i = 0; i < 9; i++)
			links[i].latency = 1e-6 * (rand_r(&random) % 20);
		graph = parsed(text);
		seconds = find(graph).seconds;
		assert_float_equal(seconds, simulate(inputs, size, NODES), 1e-12);
		assert_int_equal(at[0], TMESH_PLACEMENT_NOWHERE);
		for (uint32_t i = 1; i < NODES; i++)
			used |= 1u << at[i];
		assert_true(used & (used - 1));
		tmesh_graph_unref(graph);
	}
}

/* A chain over slow links stays at one place; a value that two nodes of a place read moves once;
 * a reshape is its input's memory. */
UNIT_ADD(test_shapes, fill, NULL)
{
	struct tmesh_graph *graph = parsed("graph g\nx = input : float32[256]\na = silu(x)\n"
					   "v = reshape(a) : float32[16,16]\nb = silu(v)\n"
					   "c = gelu(v)\noutput b = b\noutput c = c\n");
	const uint32_t nowhere = TMESH_PLACEMENT_NOWHERE;

	for (size_t i = 0; i < 9; i++)
		links[i].latency = 1;
	assert_int_equal(find(graph).bytes_moved, 0);
	assert_memory_equal(at, ((uint32_t[]){nowhere, 0, nowhere, 0, 0}), 5 * sizeof(*at));
	opts.place_count = 2;
	places[0].operators = 1ull << TMESH_GRAPH_SILU;
	places[1].operators = 1ull << TMESH_GRAPH_GELU;
	assert_int_equal(find(graph).bytes_moved, 1024);
	assert_memory_equal(at, ((uint32_t[]){nowhere, 0, nowhere, 0, 1}), 5 * sizeof(*at));
	tmesh_graph_unref(graph);
}

/* The product has room only if the sum gives way; with a byte less, the message has the numbers. */
UNIT_ADD(test_memory, fill, NULL)
{
	struct tmesh_graph *graph = parsed("graph g\nx = input : float32[4,4]\n"
					   "b = weight : float32[4]\nw = weight : float32[6,4]\n"
					   "a = add(x, b)\nwide = matmul(a, w)\noutput y = wide\n");

	opts.place_count = 2;
	places[0].memory = 100;
	places[1].memory = 80;
	find(graph);
	assert_int_equal(at[3], 1);
	assert_int_equal(at[4], 0);
	places[1].memory = 79;
	at[4] = 7;
	assert_refused(tmesh_placement_find(graph, &opts, at, NULL, err), -ENOSPC,
		       "\"wide\" of 96 bytes: all nodes need 176 bytes, the 2 places have 179");
	assert_int_equal(at[4], 7);
	tmesh_graph_unref(graph);
}

/* Products of matrices take their operations, by what reads and writes least. */
UNIT_ADD(test_work, fill, NULL)
{
	struct tmesh_graph *graph = parsed("graph g\nx = input : float32[2,8]\n"
					   "w = weight : float32[4,8]\nh = matmul(x, w)\n"
					   "output y = h\n");

	opts.place_count = 1;
	places[0] = (struct tmesh_placement_place){.flops = 1, .bandwidth = 1e9};
	assert_true(find(graph).seconds == 128);
	places[0] = (struct tmesh_placement_place){.flops = 1e12, .bandwidth = 1};
	assert_true(find(graph).seconds == 224);
	tmesh_graph_unref(graph);
}

UNIT_ADD(test_refused, fill, NULL)
{
	struct tmesh_graph *graph = parsed("graph g\nx = input : float32[4]\nodd = silu(x)\n"
					   "output y = odd\n");

#define WITH(change, code, words)                                                               \
	do {                                                                                    \
		fill(NULL);                                                                     \
		change;                                                                         \
		assert_refused(tmesh_placement_find(graph, &opts, at, NULL, err), code, words); \
	} while (0)
	WITH(opts.place_count = 0, -EINVAL, "1 to 64 places");
	WITH(opts.place_count = 65, -EINVAL, "1 to 64 places");
	WITH(opts.places = NULL, -EINVAL, "1 to 64 places");
	WITH(opts.links = NULL, -EINVAL, "1 to 64 places");
	WITH(places[1].node = -1, -EINVAL, "place 1: flops");
	WITH(places[1].node = NAN, -EINVAL, "place 1: flops");
	WITH(places[2].flops = 0, -EINVAL, "place 2: flops");
	WITH(places[2].bandwidth = INFINITY, -EINVAL, "place 2: flops");
	WITH(links[1].bandwidth = 0, -EINVAL, "from place 0 to 1");
	WITH(links[1].bandwidth = NAN, -EINVAL, "from place 0 to 1");
	WITH(links[3].latency = INFINITY, -EINVAL, "from place 1 to 0");
	WITH(for (int i = 0; i < 3; i++) places[i].operators = 1ull << TMESH_GRAPH_ADD, -EOPNOTSUPP,
	     "no place runs node \"odd\"");
	tmesh_graph_unref(graph);
}

UNIT_MAIN("tests", NULL, NULL)
