// SPDX-License-Identifier: MIT
/*
 * Placement on machines that are made up: beside the best of all placements, found by trying each,
 * by a simulation that shares no line with the library's; what does not fit; what is refused.
 */
#include <errno.h>
#include <math.h>
#include <tmesh/placement.h>

#include "unit.h"

#define NODES 200
#define INPUTS 3

struct machine {
	struct tmesh_placement_device devices[64];
	struct tmesh_placement_link links[64 * 64];
	struct tmesh_placement_node nodes[NODES];
	uint32_t inputs[NODES][INPUTS];
	double seconds[NODES][64];
	struct tmesh_placement_problem problem;
};

static double draw(unsigned int *seed, double least, double most)
{
	return least + (most - least) * rand_r(seed) / RAND_MAX;
}

/* Devices of speeds up to 4 to 1, links up to 10 to 1, some nodes that not every device runs. */
static struct machine *make(unsigned int seed, size_t nodes, size_t devices)
{
	struct machine *m = calloc(1, sizeof(*m));

	for (size_t d = 0; d < devices; d++)
		m->devices[d] = (struct tmesh_placement_device){1 << 30, draw(&seed, 1e-6, 1e-5)};
	for (size_t i = 0; i < devices * devices; i++)
		m->links[i] = (struct tmesh_placement_link){draw(&seed, 1e9, 1e10),
							    draw(&seed, 1e-6, 2e-5)};
	for (size_t i = 0; i < nodes; i++) {
		double work = draw(&seed, 1e-4, 1e-3);
		struct tmesh_placement_node *node = &m->nodes[i];

		node->memory = (uint64_t)draw(&seed, 1 << 20, 32 << 20);
		node->bytes = (uint64_t)draw(&seed, 1 << 14, 1 << 20);
		node->inputs = m->inputs[i];
		node->input_count = i ? (uint32_t)rand_r(&seed) % INPUTS : 0;
		for (uint32_t k = 0; k < node->input_count; k++)
			m->inputs[i][k] = (uint32_t)((size_t)rand_r(&seed) % i);
		for (size_t d = 0; d < devices; d++)
			m->seconds[i][d] =
				d && rand_r(&seed) % 8 == 0 ? -1 : work * draw(&seed, 0.5, 2);
		node->seconds = m->seconds[i];
	}
	m->problem = (struct tmesh_placement_problem){
		.size = sizeof(m->problem),
		.devices = m->devices,
		.device_count = devices,
		.links = m->links,
		.nodes = m->nodes,
		.node_count = nodes,
		.time_ns = 60000000000,
	};
	return m;
}

/* By the header's words; -1: it does not fit, or a device does not run a node. */
static double simulate(const struct machine *m, const uint32_t *at)
{
	double done[NODES], busy[64] = {0}, last = 0;
	uint64_t used[64] = {0};

	for (size_t i = 0; i < m->problem.node_count; i++) {
		const struct tmesh_placement_node *node = &m->nodes[i];
		uint32_t d = at[i];
		double begin = busy[d];

		used[d] += node->memory;
		if (used[d] > m->devices[d].memory || node->seconds[d] < 0)
			return -1;
		for (uint32_t k = 0; k < node->input_count; k++) {
			uint32_t from = node->inputs[k];
			const struct tmesh_placement_link *link =
				&m->links[at[from] * m->problem.device_count + d];
			double sent = done[from];

			if (at[from] != d)
				sent += link->latency +
					(double)m->nodes[from].bytes / link->bandwidth;
			begin = fmax(begin, sent);
		}
		done[i] = busy[d] = begin + m->devices[d].latency + node->seconds[d];
		last = fmax(last, done[i]);
	}
	return last;
}

static double best_of_all(const struct machine *m)
{
	size_t nodes = m->problem.node_count, devices = m->problem.device_count;
	uint32_t at[NODES] = {0};
	double best = INFINITY;

	for (;;) {
		double seconds = simulate(m, at);
		size_t i = 0;

		if (seconds >= 0 && seconds < best)
			best = seconds;
		while (i < nodes && ++at[i] == devices)
			at[i++] = 0;
		if (i == nodes)
			return best;
	}
}

static struct tmesh_placement place(const struct machine *m, uint32_t *at)
{
	struct tmesh_placement found = {.size = sizeof(found)};

	assert_ok(tmesh_placement_find(&m->problem, at, &found, err));
	assert_float_equal(simulate(m, at), found.seconds, 1e-12);
	assert_true(found.seconds <= found.greedy);
	return found;
}

/* Within 3 % of the best of all, on 40 machines; with half of the memory that all need on one
 * device, too. */
static void test_best(void **state)
{
	int exact = 0;

	for (unsigned int seed = 1; seed <= 40; seed++) {
		struct machine *m = make(seed, 9, 3);
		uint64_t all = 0;
		uint32_t at[NODES];
		double best;

		for (size_t i = 0; i < 9; i++)
			all += m->nodes[i].memory;
		for (size_t d = 0; seed % 2 && d < 3; d++)
			m->devices[d].memory = all / 2;
		best = best_of_all(m);
		exact += place(m, at).seconds <= best * (1 + 1e-9);
		assert_true(simulate(m, at) <= 1.03 * best);
		free(m);
	}
	print_message("# the best of all in %d of 40\n", exact);
	assert_true(exact >= 36);
}

/* 2 to 64 devices, up to 200 nodes; the same seed finds the same; a cost is what it was. */
static void test_sizes(void **state)
{
	static const size_t sizes[][2] = {{1, 1}, {5, 2}, {40, 12}, {100, 32}, {200, 64}};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct machine *m = make((unsigned int)i + 7, sizes[i][0], sizes[i][1]);
		struct tmesh_placement found, again = {.size = sizeof(again)};
		uint32_t at[NODES], twice[NODES];

		m->problem.restarts = 2;
		m->problem.time_ns = 60000000000;
		if (i > 3)
			m->problem.time_ns = 1;
		found = place(m, at);
		if (i <= 3) {
			place(m, twice);
			assert_memory_equal(at, twice, sizes[i][0] * sizeof(*at));
			assert_int_equal(found.searches, 3);
		}
		assert_ok(tmesh_placement_cost(&m->problem, at, &again, err));
		assert_float_equal(again.seconds, found.seconds, 1e-12);
		assert_int_equal(again.bytes_moved, found.bytes_moved);
		free(m);
	}
}

/* A chain over slow links stays where it is; what is independent is spread; one value that two
 * nodes of a device read moves once. */
static void test_shapes(void **state)
{
	struct machine *m = make(3, 12, 3);
	struct tmesh_placement found;
	uint32_t at[NODES];

	for (size_t i = 0; i < 12; i++) {
		m->nodes[i].input_count = i > 0;
		m->inputs[i][0] = (uint32_t)i - 1;
		for (size_t d = 0; d < 3; d++)
			m->seconds[i][d] = 1e-3;
	}
	for (size_t i = 0; i < 9; i++)
		m->links[i].latency = 1;
	found = place(m, at);
	for (size_t i = 1; i < 12; i++)
		assert_int_equal(at[i], at[0]);
	assert_int_equal(found.bytes_moved, 0);
	for (size_t i = 0; i < 12; i++)
		m->nodes[i].input_count = 0;
	assert_true(place(m, at).seconds < 4.1e-3);
	m->problem.node_count = 3;
	m->nodes[1].input_count = m->nodes[2].input_count = 1;
	m->inputs[2][0] = 0;
	m->seconds[0][0] = m->seconds[0][2] = m->seconds[1][1] = m->seconds[1][2] = -1;
	m->seconds[0][1] = 1e-3;
	m->seconds[2][1] = m->seconds[2][2] = -1;
	assert_int_equal(place(m, at).bytes_moved, m->nodes[0].bytes);
	free(m);
}

/* The second node has room only when the first gives way; a byte less, and the numbers are said. */
static void test_memory(void **state)
{
	struct machine *m = make(5, 2, 2);
	struct tmesh_placement found = {.size = sizeof(found)};
	uint32_t at[NODES] = {7, 7};

	m->devices[0].memory = 100;
	m->devices[1].memory = 60;
	m->nodes[0].memory = 60;
	m->nodes[1].memory = 100;
	m->nodes[1].name = "wide";
	m->nodes[1].input_count = 0;
	m->seconds[0][0] = 1e-3;
	m->seconds[0][1] = m->seconds[1][1] = 1;
	m->seconds[1][0] = 1;
	place(m, at);
	assert_int_equal(at[0], 1);
	assert_int_equal(at[1], 0);
	assert_refused(tmesh_placement_cost(&m->problem, (uint32_t[]){0, 0}, &found, err), -ENOSPC,
		       "node 1 of 100 bytes does not fit on device 0: 60 of 100 are used");
	m->devices[1].memory = 59;
	at[0] = 7;
	assert_refused(tmesh_placement_find(&m->problem, at, NULL, err), -ENOSPC,
		       "\"wide\" of 100 bytes: all 2 nodes need 160 bytes, the 2 devices have 159");
	assert_int_equal(at[0], 7);
	free(m);
}

static void refused(struct machine *m, int code, const char *words)
{
	uint32_t at[NODES];

	assert_refused(tmesh_placement_find(&m->problem, at, NULL, err), code, words);
	free(m);
}

static void test_refused(void **state)
{
	struct tmesh_placement found = {.size = sizeof(found)};
	struct machine *m;

#define WITH(change, code, words)        \
	do {                             \
		m = make(1, 4, 2);       \
		change;                  \
		refused(m, code, words); \
	} while (0)
	WITH(m->problem.device_count = 0, -EINVAL, "1 to 64 devices");
	WITH(m->problem.device_count = 65, -EINVAL, "1 to 64 devices");
	WITH(m->problem.node_count = 0, -EINVAL, "1 to 4096 nodes");
	WITH(m->problem.node_count = 4097, -EINVAL, "1 to 4096 nodes");
	WITH(m->problem.links = NULL, -EINVAL, "1 to 64 devices");
	WITH(m->devices[1].latency = -1, -EINVAL, "device 1: its latency");
	WITH(m->devices[1].latency = NAN, -EINVAL, "device 1: its latency");
	WITH(m->links[1].bandwidth = 0, -EINVAL, "from device 0 to 1");
	WITH(m->links[2].latency = INFINITY, -EINVAL, "from device 1 to 0");
	WITH(m->nodes[2].seconds = NULL, -EINVAL, "node 2 has no times");
	WITH(m->seconds[2][1] = NAN, -EINVAL, "node 2: its time on device 1");
	WITH((m->nodes[1].input_count = 1, m->inputs[1][0] = 1), -EINVAL, "which is not before");
	WITH((m->nodes[1].input_count = 1, m->nodes[1].inputs = NULL), -EINVAL, "or no inputs");
	WITH((m->seconds[3][0] = m->seconds[3][1] = -1, m->nodes[3].name = "odd"), -EOPNOTSUPP,
	     "no device runs node 3 \"odd\"");
	m = make(1, 2, 2);
	m->seconds[0][1] = -1;
	assert_refused(tmesh_placement_cost(&m->problem, (uint32_t[]){0, 2}, &found, err), -EINVAL,
		       "no device 2");
	assert_refused(tmesh_placement_cost(&m->problem, (uint32_t[]){1, 0}, &found, err),
		       -EOPNOTSUPP, "device 1 does not run node 0");
	free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_best),	cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_shapes),	cmocka_unit_test(test_memory),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
