// SPDX-License-Identifier: MIT
/* A graph whose places were taken by others meanwhile: measured costs find it another place. */
#include "costs_internal.h"
#include "places.h"

/* Of the engine "fake", on this machine: any numbers. */
static struct tmesh_costs *make_costs(struct tmesh_costs_engine **engine)
{
	struct tmesh_devices_opts opts = {.size = sizeof(opts)};
	struct tmesh_devices *devices;
	struct tmesh_costs *costs;
	size_t fake = 0;

	assert_ok(tmesh_devices_find(&opts, &devices, err));
	while (strcmp(devices->engines[fake].name, "fake") != 0)
		assert_true(++fake < devices->engine_count);
	strcpy(devices->engines[fake].reads, "graph");
	devices->engines[fake].operators[TMESH_GRAPH_ADD] = UINT64_MAX;
	costs = costs_new(devices, NULL);
	tmesh_devices_unref(devices);
	*engine = &costs->engines[fake];
	**engine = (struct tmesh_costs_engine){.launch = 1e-6, .node = 1e-7};
	for (size_t i = 0; i < TMESH_COSTS_RATES; i++)
		(*engine)->rates[i] = (struct tmesh_costs_rate){1, 1, 1, 1e9};
	for (size_t i = 0; i < sizeof(costs->links) / sizeof(*costs->links); i++)
		costs->links[i] = (struct tmesh_placement_link){.bandwidth = 1e9, .latency = 1e-6};
	return costs;
}

/* Others have its room: measured costs find it another place, where one has room. */
static void test_elsewhere(void **state)
{
	const struct tmesh_places_place all[] = {
		{.context = context, .memory = 60, .node = -1},
		{.context = context, .memory = 60, .node = 0},
	};
	struct tmesh_places_opts opts = {
		.size = sizeof(opts), .places = all, .place_count = 2, .now_ns = clock_of_the_test};
	struct tmesh_costs_engine *engine;
	struct tmesh_costs *costs = make_costs(&engine);
	struct tmesh_placed *first, *second, *third;
	struct bound one, two, three;
	struct tmesh_places *places;

	opts.costs = costs;
	assert_ok(tmesh_places_create(&opts, &places, err));
	first = place(places, at[0]);
	one = bind(first);
	own(&one, 4, 4);
	run(&one, 3, 7);
	now += 5 * SECOND;
	assert_int_equal(sweep(places), 1);
	second = place(places, at[0]);
	two = bind(second);
	run(&two, 1, 1);
	/* What is not known of the engine is said, and the graph waits. */
	engine->launch = 0;
	assert_refused(tmesh_placed_dispatch(one.binding, NULL, err), -EOPNOTSUPP, "no costs");
	assert_int_equal(stats_of(places).elsewhere, 0);
	engine->launch = 1e-6;
	run(&one, 3, 7);
	assert_at(first, 1);
	assert_at(second, 0);
	assert_int_equal(stats_of(places).taken, 1);
	assert_int_equal(stats_of(places).elsewhere, 1);
	assert_int_equal(stats_of(places).copies, 1);
	assert_int_equal(used(places, 0), BYTES);
	assert_int_equal(used(places, 1), BYTES);
	/* Both places are others': the numbers, and everything as it was. */
	now += 5 * SECOND;
	run(&two, 1, 1);
	assert_int_equal(sweep(places), 1);
	third = place(places, at[1]);
	three = bind(third);
	assert_refused(tmesh_placed_dispatch(one.binding, NULL, err), -ENOSPC, "need");
	assert_at(first, 1);
	own(&one, 0, 4);
	assert_int_equal(stats_of(places).held, 2);
	assert_int_equal(used(places, 0), BYTES);
	assert_int_equal(used(places, 1), BYTES);
	/* The one that goes leaves its place to it. */
	unbind(&two);
	tmesh_placed_unref(second);
	run(&one, 3, 7);
	assert_at(first, 0);
	assert_int_equal(stats_of(places).elsewhere, 2);
	/* What is idle is given up before anything goes elsewhere. */
	now += 5 * SECOND;
	assert_int_equal(sweep(places), 2);
	run(&one, 3, 7);
	assert_at(first, 0);
	assert_int_equal(stats_of(places).elsewhere, 2);
	unbind(&one);
	unbind(&three);
	tmesh_placed_unref(first);
	tmesh_placed_unref(third);
	tmesh_costs_unref(costs);
	tmesh_places_unref(places);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_elsewhere)};

	return cmocka_run_group_tests_name("elsewhere", tests, setup, teardown);
}
