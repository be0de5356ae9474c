/* SPDX-License-Identifier: MIT */
/* Measured costs, of a machine that another process has looked at: no engine is loaded here. */
#include "engine_object.h"

#include <errno.h>
#include <stdlib.h>
#include <tmesh/costs.h>

/* {ok, {costs, JSON}} */
static ERL_NIF_TERM make_costs(ErlNifEnv *env, struct context *context, struct tmesh_costs *costs)
{
	char *json = tmesh_costs_to_json(costs);
	const ERL_NIF_TERM *field;
	struct tmesh_error err;
	ERL_NIF_TERM text, made;
	int arity;

	if (!json) {
		tmesh_costs_unref(costs);
		refuse(&err, -ENOMEM, "no memory for costs as JSON");
		return make_error(env, &err);
	}
	text = make_string(env, json);
	free(json);
	made = make_engine(env, context, COSTS, costs);
	if (!enif_get_tuple(env, made, &arity, &field) || !enif_is_identical(field[0], atoms.ok))
		return made;
	return make_ok(env, enif_make_tuple2(env, field[1], text));
}

/* The list of devices that tmeshctl devices --json printed. */
static bool get_devices(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_devices **devices,
			struct tmesh_error *err)
{
	ErlNifBinary text;

	if (!enif_inspect_binary(env, term, &text))
		return refuse(err, -EINVAL, "devices are given as JSON") == 0;
	return !tmesh_devices_parse((const char *)text.data, text.size, devices, err);
}

/* costs_parse(context, JSON of devices, JSON of costs) -> {ok, {costs, JSON}} */
NIF(costs_parse)
{
	struct tmesh_devices *devices;
	struct tmesh_costs *costs;
	struct context *context;
	struct tmesh_error err;
	ErlNifBinary text;
	int rc;

	if (!get_context(env, argv[0], &context, &err) ||
	    !get_devices(env, argv[1], &devices, &err))
		return make_error(env, &err);
	if (enif_inspect_binary(env, argv[2], &text))
		rc = tmesh_costs_parse(devices, (const char *)text.data, text.size, &costs, &err);
	else
		rc = refuse(&err, -EINVAL, "costs are given as JSON");
	tmesh_devices_unref(devices);
	return rc ? make_error(env, &err) : make_costs(env, context, costs);
}

/* costs_read(context, JSON of devices, path | nil) -> {ok, {costs, JSON}} */
NIF(costs_read)
{
	bool own = enif_is_identical(argv[2], atoms.nil);
	struct tmesh_devices *devices;
	struct tmesh_costs *costs;
	struct context *context;
	struct tmesh_error err;
	char path[4096];
	int rc;

	if (!get_context(env, argv[0], &context, &err) ||
	    !get_devices(env, argv[1], &devices, &err))
		return make_error(env, &err);
	if (own || get_text(env, argv[2], path, sizeof(path)))
		rc = tmesh_costs_read(devices, own ? NULL : path, &costs, &err);
	else
		rc = refuse(&err, -EINVAL, "costs have a path of at most 4095 bytes");
	tmesh_devices_unref(devices);
	return rc ? make_error(env, &err) : make_costs(env, context, costs);
}

/* {engine, memory} */
static bool get_place(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_costs_place *place,
		      struct tmesh_error *err)
{
	const ERL_NIF_TERM *field;
	struct engine *engine;
	ErlNifUInt64 memory;
	int arity;

	if (!enif_get_tuple(env, term, &arity, &field) || arity != 2 ||
	    !enif_get_uint64(env, field[1], &memory))
		return refuse(err, -EINVAL, "a place is an engine and bytes") == 0;
	if (!get_engine(env, field[0], CONTEXT, &engine, err))
		return false;
	*place = (struct tmesh_costs_place){.engine = tmesh_engine_context_backend(engine->object),
					    .served = true,
					    .memory = memory};
	return true;
}

/* costs_find(costs, text of a graph, [{engine, memory}]) -> {ok, [number of a place]} */
NIF(costs_find)
{
	struct tmesh_costs_place places[TMESH_PLACEMENT_MAX_DEVICES];
	ERL_NIF_TERM list = argv[2], head, found;
	struct tmesh_graph *graph;
	struct tmesh_error err;
	struct engine *costs;
	ErlNifBinary text;
	unsigned int count = 0;
	uint32_t *at;
	int rc;

	if (!get_engine(env, argv[0], COSTS, &costs, &err))
		return make_error(env, &err);
	if (!enif_inspect_binary(env, argv[1], &text) || !enif_get_list_length(env, list, &count) ||
	    count > TMESH_PLACEMENT_MAX_DEVICES) {
		refuse(&err, -EINVAL, "a graph is placed on at most %d engines",
		       TMESH_PLACEMENT_MAX_DEVICES);
		return make_error(env, &err);
	}
	for (unsigned int i = 0; enif_get_list_cell(env, list, &head, &list); i++)
		if (!get_place(env, head, &places[i], &err))
			return make_error(env, &err);
	if (tmesh_graph_parse((const char *)text.data, text.size, &graph, &err))
		return make_error(env, &err);
	at = enif_alloc((tmesh_graph_nodes(graph) + 1) * sizeof(*at));
	rc = at ? tmesh_costs_find(costs->object, graph, places, count, NULL, at, NULL, &err)
		: refuse(&err, -ENOMEM, "no memory for a placement");
	found = enif_make_list(env, 0);
	for (size_t i = rc ? 0 : tmesh_graph_nodes(graph); i--;)
		found = enif_make_list_cell(env, enif_make_uint(env, at[i]), found);
	enif_free(at);
	tmesh_graph_unref(graph);
	return rc ? make_error(env, &err) : make_ok(env, found);
}
