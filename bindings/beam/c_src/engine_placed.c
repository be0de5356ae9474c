/* SPDX-License-Identifier: MIT */
/* Graphs over several engines, and the places that they get by leases. */
#include "jobs.h"

#include <tmesh/placement.h>

#include "common/shown.h"

/* Return the contexts of a list of engines, or NULL with @err filled. The caller frees the array
 * with enif_free(). */
static struct tmesh_engine_context **get_contexts(ErlNifEnv *env, ERL_NIF_TERM list,
						  unsigned int *count, struct engine **first,
						  struct tmesh_error *err)
{
	struct tmesh_engine_context **contexts;
	unsigned int i = 0;
	ERL_NIF_TERM head;

	if (!enif_get_list_length(env, list, count) || !*count || *count > MAX_VALUES) {
		refuse(err, -EINVAL, "a graph is placed on a list of engines, of at most %d",
		       MAX_VALUES);
		return NULL;
	}
	contexts = enif_alloc(*count * sizeof(*contexts));
	while (enif_get_list_cell(env, list, &head, &list)) {
		struct engine *engine;

		if (!get_engine(env, head, CONTEXT, &engine, err)) {
			enif_free(contexts);
			return NULL;
		}
		if (!i)
			*first = engine;
		contexts[i++] = engine->object;
	}
	return contexts;
}

/* Read [{name of a node, number of a context}]. Other nodes have no place. The caller frees the
 * array with enif_free(). */
static uint32_t *get_places(ErlNifEnv *env, ERL_NIF_TERM list, const struct tmesh_graph *graph,
			    struct tmesh_error *err)
{
	uint32_t *at = enif_alloc((tmesh_graph_nodes(graph) + 1) * sizeof(*at));
	char name[TMESH_GRAPH_NAME_LEN + 1];
	const ERL_NIF_TERM *field;
	unsigned int place;
	ERL_NIF_TERM head;
	uint32_t node;
	int arity;

	memset(at, 0xff, tmesh_graph_nodes(graph) * sizeof(*at));
	while (enif_get_list_cell(env, list, &head, &list)) {
		if (!enif_get_tuple(env, head, &arity, &field) || arity != 2 ||
		    !get_text(env, field[0], name, sizeof(name)) ||
		    !enif_get_uint(env, field[1], &place)) {
			refuse(err, -EINVAL, "places are of nodes, by their names");
			enif_free(at);
			return NULL;
		}
		if (tmesh_graph_find(graph, name, &node, err)) {
			enif_free(at);
			return NULL;
		}
		at[node] = place;
	}
	return at;
}

static int place_graph(ErlNifEnv *env, const ERL_NIF_TERM argv[], struct tmesh_graph *graph,
		       struct tmesh_placed_opts *opts, struct engine *first,
		       struct tmesh_placed **placed, struct tmesh_error *err)
{
	struct tmesh_engine_weight *weights;
	struct named *named;
	unsigned int count;
	uint32_t *at;
	int rc;

	at = get_places(env, argv[2], graph, err);
	if (!at)
		return err->code;
	named = get_named(env, argv[3], TENSORS, &count, err);
	if (!named) {
		enif_free(at);
		return err->code;
	}
	weights = enif_alloc((count + (size_t)1) * sizeof(*weights));
	for (unsigned int i = 0; i < count; i++)
		weights[i] = (struct tmesh_engine_weight){.name = named[i].name,
							  .tensor = named[i].tensor};
	opts->at = at;
	opts->weights = weights;
	opts->weight_count = count;
	rc = tmesh_placed_create(graph, opts, placed, err);
	enif_free(weights);
	free_named(named, count);
	enif_free(at);
	return rc;
}

/* {engine, memory, node} */
static bool get_place(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_places_place *place,
		      struct engine **engine, struct tmesh_error *err)
{
	const ERL_NIF_TERM *field;
	ErlNifUInt64 memory;
	int arity, node;

	if (!enif_get_tuple(env, term, &arity, &field) || arity != 3 ||
	    !enif_get_uint64(env, field[1], &memory) || !enif_get_int(env, field[2], &node))
		return refuse(err, -EINVAL, "a place is an engine, bytes, and a node or -1") == 0;
	if (!get_engine(env, field[0], CONTEXT, engine, err))
		return false;
	*place = (struct tmesh_places_place){
		.context = (*engine)->object, .memory = memory, .node = node};
	return true;
}

/* places_open([{engine, memory, node}], idle_ns) -> {ok, places} */
NIF(places_open)
{
	struct tmesh_places_place all[TMESH_PLACEMENT_MAX_PLACES];
	struct tmesh_places_opts opts = {.size = sizeof(opts), .places = all};
	ERL_NIF_TERM list = argv[0], head;
	struct engine *first = NULL, *engine;
	struct tmesh_places *places;
	struct tmesh_error err;
	unsigned int count;
	ErlNifUInt64 idle;

	if (!enif_get_list_length(env, list, &count) || !count ||
	    count > TMESH_PLACEMENT_MAX_PLACES || !enif_get_uint64(env, argv[1], &idle))
		return make_refusal(env, -EINVAL, "1 to %d places are given, and a time",
				    TMESH_PLACEMENT_MAX_PLACES);
	while (enif_get_list_cell(env, list, &head, &list)) {
		if (!get_place(env, head, &all[opts.place_count++], &engine, &err))
			return make_error(env, &err);
		if (!first)
			first = engine;
	}
	opts.idle_ns = idle;
	return tmesh_places_create(&opts, &places, &err)
		       ? make_error(env, &err)
		       : make_engine(env, first->context, PLACES, places);
}

/* (places) -> {ok, how many graphs were closed} */
static ERL_NIF_TERM sweep_now(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
	struct engine *places;
	struct tmesh_error err;
	uint32_t count;

	if (!get_engine(env, argv[0], PLACES, &places, &err) ||
	    tmesh_places_sweep(places->object, &count, &err))
		return make_error(env, &err);
	return make_ok(env, enif_make_uint(env, count));
}

/* places_sweep(tag, places) -> ok, and {tag, result} to the caller */
NIF(places_sweep)
{
	return job_start(env, argc, argv, sweep_now, NULL);
}

/* places_used(places, index) -> {ok, bytes} */
NIF(places_used)
{
	struct engine *places;
	struct tmesh_error err;
	unsigned int index;
	uint64_t bytes;

	if (!get_engine(env, argv[0], PLACES, &places, &err))
		return make_error(env, &err);
	if (!enif_get_uint(env, argv[1], &index))
		return make_refusal(env, -EINVAL, "a place has a number");
	if (tmesh_places_used(places->object, index, &bytes, &err))
		return make_error(env, &err);
	return make_ok(env, enif_make_uint64(env, bytes));
}

/* places_stats(places) -> {ok, map} */
NIF(places_stats)
{
	struct tmesh_places_stats stats = {.size = sizeof(stats)};
	struct engine *places;
	struct tmesh_error err;

	if (!get_engine(env, argv[0], PLACES, &places, &err) ||
	    tmesh_places_stats(places->object, &stats, &err))
		return make_error(env, &err);
	return make_ok(env, SHOW(env, enif_make_new_map(env), shown_places_stats, &stats));
}

/* ([engine] or places, text of a graph, [{node, number}], [{name, handle}], folder)
 * -> {ok, placed} */
static ERL_NIF_TERM open_now(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
	struct tmesh_placed_opts opts = {.size = sizeof(opts)};
	struct tmesh_engine_context **contexts = NULL;
	struct engine *first = NULL;
	struct tmesh_placed *placed;
	struct tmesh_graph *graph;
	struct tmesh_error err;
	ErlNifBinary text;
	unsigned int count;
	char folder[4096];
	int rc;

	if (!enif_inspect_binary(env, argv[1], &text) ||
	    !get_text(env, argv[4], folder, sizeof(folder)))
		return make_refusal(env, -EINVAL,
				    "a graph is placed by its text, and a folder's path");
	if (enif_is_list(env, argv[0])) {
		contexts = get_contexts(env, argv[0], &count, &first, &err);
		if (!contexts)
			return make_error(env, &err);
		opts.contexts = contexts;
		opts.context_count = count;
	} else if (get_engine(env, argv[0], PLACES, &first, &err)) {
		opts.places = first->object;
	} else {
		return make_error(env, &err);
	}
	rc = tmesh_graph_parse((const char *)text.data, text.size, &graph, &err);
	if (!rc) {
		opts.folder = folder;
		rc = place_graph(env, argv, graph, &opts, first, &placed, &err);
		tmesh_graph_unref(graph);
	}
	enif_free(contexts);
	return rc ? make_error(env, &err) : make_engine(env, first->context, PLACED, placed);
}

/* placed_open(tag, [engine] or places, text of a graph, [{node, number}], [{name, handle}], folder)
 * -> ok, and {tag, result} to the caller */
NIF(placed_open)
{
	return job_start(env, argc, argv, open_now, NULL);
}

/* placed_partitions(placed) -> {ok, [number of a context]} */
NIF(placed_partitions)
{
	const struct tmesh_graph_partitions *parts;
	struct tmesh_error err;
	struct engine *placed;
	ERL_NIF_TERM list;
	size_t i;

	if (!get_engine(env, argv[0], PLACED, &placed, &err))
		return make_error(env, &err);
	parts = tmesh_placed_partitions(placed->object);
	list = enif_make_list(env, 0);
	for (i = tmesh_graph_partitions_count(parts); i--;) {
		const struct tmesh_graph *graph;
		uint32_t place;

		if (tmesh_graph_partition(parts, i, &place, &graph, &err))
			return make_error(env, &err);
		list = enif_make_list_cell(env, enif_make_uint(env, place), list);
	}
	return make_ok(env, list);
}

/* (placed, [number of a context], one for each node) -> ok */
static ERL_NIF_TERM move_now(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
	struct tmesh_error err;
	struct engine *placed;
	unsigned int count;
	ERL_NIF_TERM list = argv[1], head;
	uint32_t *at, i = 0;
	int rc = 0;

	if (!get_engine(env, argv[0], PLACED, &placed, &err))
		return make_error(env, &err);
	if (!enif_get_list_length(env, list, &count) || count > TMESH_GRAPH_MAX_NODES)
		return make_refusal(env, -EINVAL, "a graph moves to a list of places");
	at = enif_alloc((count + (size_t)1) * sizeof(*at));
	if (!at)
		return make_refusal(env, -ENOMEM, "no memory for %u places", count);
	/* This call refuses a list that is not as long as the graph. */
	rc = tmesh_placed_at(placed->object, at, count, &err);
	while (!rc && enif_get_list_cell(env, list, &head, &list)) {
		unsigned int place;

		if (!enif_get_uint(env, head, &place))
			rc = refuse(&err, -EINVAL, "places are numbers");
		else
			at[i++] = place;
	}
	if (!rc)
		rc = tmesh_placed_move(placed->object, at, &err);
	enif_free(at);
	return rc ? make_error(env, &err) : atoms.ok;
}

/* placed_move(tag, placed, [number of a context], one for each node) -> ok, and {tag, result} to
 * the caller */
NIF(placed_move)
{
	return job_start(env, argc, argv, move_now, NULL);
}

/* placed_at(placed, nodes of its graph) -> {ok, [number of a context]} */
NIF(placed_at)
{
	struct tmesh_error err;
	struct engine *placed;
	unsigned int count;
	ERL_NIF_TERM list;
	uint32_t *at;
	int rc;

	if (!get_engine(env, argv[0], PLACED, &placed, &err))
		return make_error(env, &err);
	if (!enif_get_uint(env, argv[1], &count) || count > TMESH_GRAPH_MAX_NODES)
		return make_refusal(env, -EINVAL, "a graph has a number of nodes");
	at = enif_alloc((count + (size_t)1) * sizeof(*at));
	if (!at)
		return make_refusal(env, -ENOMEM, "no memory for %u places", count);
	rc = tmesh_placed_at(placed->object, at, count, &err);
	list = enif_make_list(env, 0);
	while (!rc && count--)
		list = enif_make_list_cell(env, enif_make_uint(env, at[count]), list);
	enif_free(at);
	return rc ? make_error(env, &err) : make_ok(env, list);
}

/* (placed, [{name, handle | nil}], [{name, handle}]) -> {ok, binding} */
static ERL_NIF_TERM bind_now(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
	struct tmesh_placed_binding *binding;
	struct named *sides[2] = {0};
	struct tmesh_placed_value *values[2] = {0};
	unsigned int counts[2] = {0};
	struct engine *placed;
	struct tmesh_error err;
	int rc = 0;

	if (!get_engine(env, argv[0], PLACED, &placed, &err))
		return make_error(env, &err);
	for (int side = 0; !rc && side < 2; side++) {
		sides[side] = get_named(env, argv[1 + side], side ? TENSORS : NIL_TOO,
					&counts[side], &err);
		if (!sides[side]) {
			rc = err.code;
			break;
		}
		values[side] = enif_alloc((counts[side] + (size_t)1) * sizeof(**values));
		for (unsigned int i = 0; i < counts[side]; i++)
			values[side][i] = (struct tmesh_placed_value){
				.name = sides[side][i].name, .tensor = sides[side][i].tensor};
	}
	if (!rc)
		rc = tmesh_placed_bind(placed->object, placed->context->ctx, values[0], counts[0],
				       values[1], counts[1], &binding, &err);
	for (int side = 0; side < 2; side++) {
		if (sides[side])
			free_named(sides[side], counts[side]);
		enif_free(values[side]);
	}
	return rc ? make_error(env, &err)
		  : make_engine(env, placed->context, PLACED_BINDING, binding);
}

/* placed_bind(tag, placed, [{name, handle | nil}], [{name, handle}]) -> ok, and {tag, result} to
 * the caller */
NIF(placed_bind)
{
	return job_start(env, argc, argv, bind_now, NULL);
}

/* placed_tensor(binding, name) -> {ok, {handle, ref}} */
NIF(placed_tensor)
{
	struct tmesh_tensor *tensor;
	struct tmesh_error err;
	struct engine *binding;
	char name[NAME_SIZE];
	ERL_NIF_TERM term;

	if (!get_engine(env, argv[0], PLACED_BINDING, &binding, &err))
		return make_error(env, &err);
	if (!get_text(env, argv[1], name, sizeof(name)))
		return make_refusal(env, -EINVAL, "an input has a name of at most %d bytes",
				    NAME_SIZE - 1);
	if (tmesh_placed_binding_tensor(binding->object, name, &tensor, &err) ||
	    !make_handle(env, binding->context, tensor, &term, &err))
		return make_error(env, &err);
	return make_ok(env, term);
}
