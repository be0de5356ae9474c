/* SPDX-License-Identifier: MIT */
/*
 * Graphs on places, as their tests have them: on the engine "fake", with a clock of the test's own.
 * The places are an engine with any memory, and engines with that of NUMA node 0. On most machines
 * both are the same, but copies between them are made as if they were not.
 */
#ifndef TMESH_TEST_PLACES_H
#define TMESH_TEST_PLACES_H

#include <stdatomic.h>

#include "placed_internal.h"
#include "unit.h"

/* Each test uses some of what stands here. */
#pragma GCC diagnostic ignored "-Wunused-function"

#define SECOND 1000000000ull
#define NOWHERE 63 /* a NUMA node that no machine has */
#define BYTES 48   /* of x and b below */

static char folder[] = "/tmp/tmesh-places-XXXXXX";
static struct tmesh_ctx *ctx;
static struct tmesh_graph *graph;
static struct tmesh_engine_context *context;
static atomic_ullong now;
static const uint32_t at[][3] = {{0, 0, 0}, {0, 0, 1}, {0, 0, 2}, {0, 0, 3}};

static struct tmesh_places *watched; /* place 0, when the clock is asked */
static uint64_t seen;
static uint64_t passes; /* each time that it is asked */

static uint64_t clock_of_the_test(void *data)
{
	now += passes;
	if (watched)
		tmesh_places_used(watched, 0, &seen, NULL);
	return now;
}

static struct tmesh_places *make_places(uint64_t memory)
{
	const struct tmesh_places_place all[] = {
		{.context = context, .memory = memory, .node = -1},
		{.context = context, .memory = memory, .node = 0},
		{.context = context, .memory = memory, .node = NOWHERE},
	};
	struct tmesh_places_opts opts = {
		.size = sizeof(opts), .places = all, .place_count = 3, .now_ns = clock_of_the_test};
	struct tmesh_places *places;

	assert_ok(tmesh_places_create(&opts, &places, err));
	return places;
}

static struct tmesh_placed *place(struct tmesh_places *places, const uint32_t *where)
{
	struct tmesh_placed_opts opts = {
		.size = sizeof(opts), .at = where, .folder = folder, .places = places};
	struct tmesh_placed *placed;

	assert_ok(tmesh_placed_create(graph, &opts, &placed, err));
	return placed;
}

/* A binding whose b is its own, and its y. */
struct bound {
	struct tmesh_placed_binding *binding;
	struct tmesh_tensor *x, *y;
};

static struct tmesh_tensor *tensor(int32_t ndim, const int64_t *shape)
{
	struct tmesh_tensor *made;

	assert_ok(tmesh_tensor_create(ctx, TMESH_FLOAT32, ndim, shape, NULL, &made, err));
	return made;
}

static float *data_of(struct tmesh_tensor *of)
{
	void *data;

	assert_ok(tmesh_tensor_data(of, TMESH_READ | TMESH_WRITE, &data, err));
	return data;
}

static struct bound bind_placed(struct tmesh_placed *placed)
{
	const int64_t shape[] = {2, 4};
	struct bound bound = {.x = tensor(2, shape), .y = tensor(2, shape)};
	struct tmesh_placed_value inputs[] = {{"x", bound.x}, {"b", NULL}}, y = {"y", bound.y};

	assert_ok(tmesh_placed_bind(placed, ctx, inputs, 2, &y, 1, &bound.binding, err));
	return bound;
}

static void unbind(struct bound *bound)
{
	tmesh_placed_binding_unref(bound->binding);
	tmesh_tensor_unref(bound->x);
	tmesh_tensor_unref(bound->y);
}

/* The own b: set, when @value is not 0, or looked at. Return: its region. */
static uint64_t own(struct bound *bound, float set, float expected)
{
	struct tmesh_tensor *b;
	uint64_t region;

	assert_ok(tmesh_placed_binding_tensor(bound->binding, "b", &b, err));
	if (set != 0)
		data_of(b)[1] = set;
	assert_true(data_of(b)[1] == expected);
	region = tmesh_region_id(tmesh_tensor_region(b));
	tmesh_tensor_unref(b);
	return region;
}

static void run(struct bound *bound, float x, float expected)
{
	data_of(bound->x)[5] = x;
	assert_ok(tmesh_placed_dispatch(bound->binding, NULL, err));
	assert_true(data_of(bound->y)[5] == expected);
}

static struct tmesh_places_stats stats_of(struct tmesh_places *places)
{
	struct tmesh_places_stats stats = {.size = sizeof(stats)};

	assert_ok(tmesh_places_stats(places, &stats, err));
	return stats;
}

static uint64_t copied(void)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	assert_ok(tmesh_stats(ctx, &stats));
	return stats.bytes_copied;
}

static uint64_t used(struct tmesh_places *places, size_t index)
{
	uint64_t bytes;

	assert_ok(tmesh_places_used(places, index, &bytes, err));
	return bytes;
}

static uint32_t sweep(struct tmesh_places *places)
{
	uint32_t count;

	assert_ok(tmesh_places_sweep(places, &count, err));
	return count;
}

static int files(void)
{
	DIR *dir = opendir(folder);
	int count = 0;

	while (readdir(dir))
		count++;
	closedir(dir);
	return count - 2;
}

static uint64_t sessions(void)
{
	struct tmesh_engine_stats stats = {.size = sizeof(stats)};

	assert_ok(tmesh_engine_stats(context, &stats, err));
	return stats.sessions;
}

static void assert_at(struct tmesh_placed *placed, uint32_t place)
{
	uint32_t got[3];

	assert_ok(tmesh_placed_at(placed, got, 3, err));
	assert_int_equal(got[2], place);
}

static int setup(void **state)
{
	const char *text = "graph plain\n"
			   "x = input : float32[2,4]\n"
			   "b = input cache=reuse : float32[4]\n"
			   "y = add(x, b)\n"
			   "output y = y\n";

	return !mkdtemp(folder) || tmesh_ctx_open(NULL, &ctx, NULL) ||
	       tmesh_engine_context_create(ctx, "fake", NULL, &context, NULL) ||
	       tmesh_graph_parse(text, strlen(text), &graph, NULL);
}

static int teardown(void **state)
{
	tmesh_graph_unref(graph);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(ctx);
	return rmdir(folder);
}

#endif /* TMESH_TEST_PLACES_H */
