/* SPDX-License-Identifier: MIT */
/* The C part of tmesh.placed: graphs over several engines, and the places that a graph has by
 * leases. */
#include "engine_types.h"

#include <tmesh/placement.h>

#include "common/shown.h"

#define PLACES "tmesh.places"
#define PLACED "tmesh.placed"
#define BINDING "tmesh.placed_binding"

/* @placed knows values by numbers; the graph has their names. */
struct placed_graph {
	struct tmesh_placed *placed;
	struct tmesh_graph *graph;
};

static void release_places(PyObject *capsule)
{
	struct tmesh_places *places = PyCapsule_GetPointer(capsule, PLACES);

	/* Drop the GIL: this waits for a thread, which may be closing parts in another process. */
	WITHOUT_GIL(tmesh_places_unref(places));
}

static void free_placed(struct placed_graph *own)
{
	Py_BEGIN_ALLOW_THREADS;
	tmesh_placed_unref(own->placed);
	tmesh_graph_unref(own->graph);
	Py_END_ALLOW_THREADS;
	PyMem_Free(own);
}

static void release_placed(PyObject *capsule)
{
	free_placed(PyCapsule_GetPointer(capsule, PLACED));
}

static void let_binding_go(struct tmesh_placed_binding *binding)
{
	if (!binding)
		return;
	WITHOUT_GIL(tmesh_placed_binding_unref(binding));
}

static void release_binding(PyObject *capsule)
{
	let_binding_go(PyCapsule_GetPointer(capsule, BINDING));
}

static struct tmesh_engine_context *context_of(struct state *st, PyObject *object)
{
	if (Py_TYPE(object) != st->engine_types[ENGINE_CONTEXT]) {
		PyErr_Format(PyExc_TypeError, "a place is an EngineContext, not %R", object);
		return NULL;
	}
	return ((struct engine_context *)object)->context;
}

/* engine_places_create(places, idle_ns) -> capsule. Each place is (context, memory, node). */
PyObject *engine_places_create(PyObject *module, PyObject *args)
{
	struct tmesh_places_place all[TMESH_PLACEMENT_MAX_PLACES];
	struct tmesh_places_opts opts = {.size = sizeof(opts), .places = all};
	struct state *st = PyModule_GetState(module);
	PyObject *list, *capsule;
	struct tmesh_places *places;
	struct tmesh_error err;
	unsigned long long idle;

	if (!PyArg_ParseTuple(args, "O!K:engine_places_create", &PyTuple_Type, &list, &idle))
		return NULL;
	opts.idle_ns = idle;
	opts.place_count = (size_t)PyTuple_Size(list);
	if (opts.place_count > TMESH_PLACEMENT_MAX_PLACES)
		return raise_code(st, EINVAL, "at most %d places", TMESH_PLACEMENT_MAX_PLACES);
	for (size_t i = 0; i < opts.place_count; i++) {
		PyObject *object;
		size_t memory;
		int node;

		if (!PyArg_ParseTuple(PyTuple_GetItem(list, (Py_ssize_t)i), "OO&i", &object,
				      size_argument, &memory, &node))
			return NULL;
		all[i] = (struct tmesh_places_place){
			.context = context_of(st, object), .memory = memory, .node = node};
		if (!all[i].context)
			return NULL;
	}
	if (tmesh_places_create(&opts, &places, &err))
		return raise_error(st, &err);
	capsule = PyCapsule_New(places, PLACES, release_places);
	if (!capsule)
		tmesh_places_unref(places);
	return capsule;
}

/* engine_places_sweep(places) -> number of graphs that were closed */
PyObject *engine_places_sweep(PyObject *module, PyObject *capsule)
{
	struct tmesh_places *places = PyCapsule_GetPointer(capsule, PLACES);
	struct state *st = PyModule_GetState(module);
	struct engine_call call;
	struct tmesh_error err;
	uint32_t count;
	int rc;

	if (!places)
		return NULL;
	if (engine_call_begin(st, &call))
		return NULL;
	rc = tmesh_places_sweep(places, &count, &err);
	return engine_call_end(st, &call, rc, &err) ? NULL : PyLong_FromUnsignedLong(count);
}

/* engine_places_used(places, index) -> bytes */
PyObject *engine_places_used(PyObject *module, PyObject *args)
{
	struct tmesh_places *places;
	struct tmesh_error err;
	PyObject *capsule;
	uint64_t bytes;
	size_t index;

	if (!PyArg_ParseTuple(args, "OO&:engine_places_used", &capsule, size_argument, &index))
		return NULL;
	places = PyCapsule_GetPointer(capsule, PLACES);
	if (!places)
		return NULL;
	if (tmesh_places_used(places, index, &bytes, &err))
		return raise_error(PyModule_GetState(module), &err);
	return PyLong_FromUnsignedLongLong(bytes);
}

/* engine_places_stats(places) -> dict */
PyObject *engine_places_stats(PyObject *module, PyObject *capsule)
{
	struct tmesh_places *places = PyCapsule_GetPointer(capsule, PLACES);
	struct tmesh_places_stats stats = {.size = sizeof(stats)};
	struct tmesh_error err;

	if (!places)
		return NULL;
	if (tmesh_places_stats(places, &stats, &err))
		return raise_error(PyModule_GetState(module), &err);
	return DICT_SHOW(PyDict_New(), shown_places_stats, &stats);
}

/* Read a dict of {node: place}. A node that is missing from it has no place. Free the result with
 * PyMem_Free(). */
static uint32_t *read_at(const struct tmesh_graph *graph, PyObject *given)
{
	uint32_t *at = PyMem_Calloc(tmesh_graph_nodes(graph) + 1, sizeof(*at));

	if (!at)
		PyErr_NoMemory();
	else if (!engine_read_places(graph, given, at))
		return at;
	PyMem_Free(at);
	return NULL;
}

struct weights {
	struct tmesh_engine_weight *list;
	size_t count;
};

static void free_weights(struct weights *weights)
{
	while (weights->count)
		tmesh_tensor_unref(weights->list[--weights->count].tensor);
	PyMem_Free(weights->list);
}

/* Read a tuple of (name, Tensor) and take references, as other threads may release a Tensor
 * meanwhile. */
static int take_weights(struct state *st, PyObject *given, struct weights *weights)
{
	size_t count = (size_t)PyTuple_Size(given);

	*weights = (struct weights){PyMem_Calloc(count + 1, sizeof(*weights->list)), 0};
	if (!weights->list) {
		PyErr_NoMemory();
		return -1;
	}
	for (size_t i = 0; i < count; i++) {
		struct tmesh_engine_weight *weight = &weights->list[i];
		struct tmesh_tensor *own = NULL;
		PyObject *tensor;

		if (PyArg_ParseTuple(PyTuple_GetItem(given, (Py_ssize_t)i), "sO!", &weight->name,
				     st->tensor_type, &tensor))
			own = tensor_get((struct tensor *)tensor);
		if (!own) {
			free_weights(weights);
			return -1;
		}
		weight->tensor = tmesh_tensor_ref(own);
		weights->count++;
	}
	return 0;
}

/* Read a tuple of EngineContexts, or a capsule of places. */
static int take_contexts(struct state *st, PyObject *given, struct tmesh_placed_opts *opts,
			 struct tmesh_engine_context ***list)
{
	*list = NULL;
	if (!PyTuple_Check(given)) {
		opts->places = PyCapsule_GetPointer(given, PLACES);
		return opts->places ? 0 : -1;
	}
	opts->context_count = (size_t)PyTuple_Size(given);
	*list = PyMem_Calloc(opts->context_count + 1, sizeof(**list));
	if (!*list) {
		PyErr_NoMemory();
		return -1;
	}
	for (size_t i = 0; i < opts->context_count; i++) {
		(*list)[i] = context_of(st, PyTuple_GetItem(given, (Py_ssize_t)i));
		if (!(*list)[i])
			return -1;
	}
	opts->contexts = *list;
	return 0;
}

static int create(struct state *st, PyObject *given[3], const char *folder,
		  struct placed_graph *own)
{
	struct tmesh_placed_opts opts = {.size = sizeof(opts), .folder = folder};
	struct tmesh_engine_context **contexts = NULL;
	struct weights weights = {0};
	struct engine_call call;
	struct tmesh_error err;
	uint32_t *at = read_at(own->graph, given[0]);
	int rc = -1;

	if (at && !take_contexts(st, given[1], &opts, &contexts) &&
	    !take_weights(st, given[2], &weights)) {
		opts.at = at;
		opts.weights = weights.list;
		opts.weight_count = weights.count;
		rc = engine_call_begin(st, &call);
		if (!rc) {
			rc = tmesh_placed_create(own->graph, &opts, &own->placed, &err);
			if (rc)
				own->placed = NULL;
			rc = engine_call_end(st, &call, rc, &err);
		}
		free_weights(&weights);
	}
	PyMem_Free(contexts);
	PyMem_Free(at);
	return rc;
}

/* engine_placed_create(text, at, contexts or places, weights, folder) -> capsule */
PyObject *engine_placed_create(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	PyObject *given[3], *folder, *capsule = NULL;
	struct placed_graph *own;
	struct tmesh_error err;
	Py_ssize_t length;
	const char *text;

	if (!PyArg_ParseTuple(args, "s#O!OO!O&:engine_placed_create", &text, &length, &PyDict_Type,
			      &given[0], &given[1], &PyTuple_Type, &given[2], PyUnicode_FSConverter,
			      &folder))
		return NULL;
	own = PyMem_Calloc(1, sizeof(*own));
	if (!own)
		PyErr_NoMemory();
	else if (tmesh_graph_parse(text, (size_t)length, &own->graph, &err))
		raise_error(st, &err);
	else if (!create(st, given, PyBytes_AsString(folder), own))
		capsule = PyCapsule_New(own, PLACED, release_placed);
	if (own && !capsule)
		free_placed(own);
	Py_DECREF(folder);
	return capsule;
}

/* engine_placed_partitions(placed) -> [part] */
PyObject *engine_placed_partitions(PyObject *module, PyObject *capsule)
{
	struct placed_graph *own = PyCapsule_GetPointer(capsule, PLACED);

	return own ? engine_list_partitions(tmesh_placed_partitions(own->placed)) : NULL;
}

/* Return {name: place} of the nodes that have a place. */
static PyObject *name_places(const struct tmesh_graph *graph, const uint32_t *at)
{
	PyObject *names = PyDict_New();

	for (size_t i = 0; names && i < tmesh_graph_nodes(graph); i++) {
		struct tmesh_graph_node node = {.size = sizeof(node)};
		PyObject *place;

		if (at[i] == UINT32_MAX || tmesh_graph_node(graph, i, &node, NULL))
			continue;
		place = PyLong_FromUnsignedLong(at[i]);
		if (!place || PyDict_SetItemString(names, node.name, place))
			Py_CLEAR(names);
		Py_XDECREF(place);
	}
	return names;
}

/* engine_placed_at(placed) -> {name: place} of the nodes that have a place */
PyObject *engine_placed_at(PyObject *module, PyObject *capsule)
{
	struct placed_graph *own = PyCapsule_GetPointer(capsule, PLACED);
	struct state *st = PyModule_GetState(module);
	PyObject *names = NULL;
	struct engine_call call;
	struct tmesh_error err;
	uint32_t *at;
	size_t nodes;
	int rc;

	if (!own)
		return NULL;
	nodes = tmesh_graph_nodes(own->graph);
	at = PyMem_Calloc(nodes + 1, sizeof(*at));
	if (!at)
		return PyErr_NoMemory();
	rc = engine_call_begin(st, &call);
	if (!rc) {
		rc = tmesh_placed_at(own->placed, at, nodes, &err);
		rc = engine_call_end(st, &call, rc, &err);
	}
	if (!rc)
		names = name_places(own->graph, at);
	PyMem_Free(at);
	return names;
}

/* engine_placed_move(placed, {name: place}) */
PyObject *engine_placed_move(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	struct placed_graph *own;
	PyObject *capsule, *given;
	struct engine_call call;
	struct tmesh_error err;
	uint32_t *at;
	int rc;

	if (!PyArg_ParseTuple(args, "OO!:engine_placed_move", &capsule, &PyDict_Type, &given))
		return NULL;
	own = PyCapsule_GetPointer(capsule, PLACED);
	at = own ? read_at(own->graph, given) : NULL;
	if (!at)
		return NULL;
	rc = engine_call_begin(st, &call);
	if (!rc) {
		rc = tmesh_placed_move(own->placed, at, &err);
		rc = engine_call_end(st, &call, rc, &err);
	}
	PyMem_Free(at);
	if (rc)
		return NULL;
	Py_RETURN_NONE;
}

struct placed_values {
	struct tmesh_placed_value *list;
	size_t count;
};

static void free_values(struct placed_values *values)
{
	while (values->count) {
		struct tmesh_tensor *tensor = values->list[--values->count].tensor;

		if (tensor)
			tmesh_tensor_unref(tensor);
	}
	PyMem_Free(values->list);
	values->list = NULL;
}

/* Read a tuple of (name, Tensor or None) and take references. */
static int take_values(struct state *st, PyObject *given, struct placed_values *values)
{
	size_t count = (size_t)PyTuple_Size(given);

	*values = (struct placed_values){PyMem_Calloc(count + 1, sizeof(*values->list)), 0};
	if (!values->list) {
		PyErr_NoMemory();
		return -1;
	}
	for (size_t i = 0; i < count; i++) {
		struct tmesh_placed_value *value = &values->list[i];
		struct tmesh_tensor *own = NULL;
		PyObject *tensor;

		if (!PyArg_ParseTuple(PyTuple_GetItem(given, (Py_ssize_t)i), "sO", &value->name,
				      &tensor))
			return -1;
		if (tensor != Py_None && Py_TYPE(tensor) != st->tensor_type) {
			PyErr_Format(PyExc_TypeError, "\"%s\" is a Tensor, not %R", value->name,
				     tensor);
			return -1;
		}
		if (tensor != Py_None) {
			own = tensor_get((struct tensor *)tensor);
			if (!own)
				return -1;
			value->tensor = tmesh_tensor_ref(own);
		}
		values->count++;
	}
	return 0;
}

/* engine_placed_bind(placed, inputs, outputs) -> capsule */
PyObject *engine_placed_bind(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	struct placed_values values[2] = {0};
	PyObject *capsule, *in, *out, *made = NULL;
	struct tmesh_placed_binding *binding = NULL;
	struct placed_graph *own;
	struct engine_call call;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int rc;

	if (!PyArg_ParseTuple(args, "OO!O!:engine_placed_bind", &capsule, &PyTuple_Type, &in,
			      &PyTuple_Type, &out))
		return NULL;
	own = PyCapsule_GetPointer(capsule, PLACED);
	ctx = own ? context(st) : NULL;
	if (ctx && !take_values(st, in, &values[0]) && !take_values(st, out, &values[1])) {
		rc = engine_call_begin(st, &call);
		if (!rc) {
			rc = tmesh_placed_bind(own->placed, ctx, values[0].list, values[0].count,
					       values[1].list, values[1].count, &binding, &err);
			if (rc)
				binding = NULL;
			rc = engine_call_end(st, &call, rc, &err);
		}
		if (!rc)
			made = PyCapsule_New(binding, BINDING, release_binding);
		if (!made)
			let_binding_go(binding);
	}
	free_values(&values[0]);
	free_values(&values[1]);
	return made;
}

/* engine_placed_dispatch(binding, cancellable) */
PyObject *engine_placed_dispatch(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_placed_binding *binding;
	struct engine_dispatch dispatch;
	PyObject *capsule, *given;
	struct tmesh_error err;
	int rc;

	if (!PyArg_ParseTuple(args, "OO:engine_placed_dispatch", &capsule, &given))
		return NULL;
	binding = PyCapsule_GetPointer(capsule, BINDING);
	if (!binding || engine_dispatch_begin(st, given, &dispatch))
		return NULL;
	rc = tmesh_placed_dispatch(binding, dispatch.cancellable, &err);
	if (engine_dispatch_end(st, &dispatch, rc, &err))
		return NULL;
	Py_RETURN_NONE;
}

/* engine_placed_tensor(binding, name) -> Tensor */
PyObject *engine_placed_tensor(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_placed_binding *binding;
	struct tmesh_tensor *tensor;
	struct engine_call call;
	struct tmesh_error err;
	PyObject *capsule;
	const char *name;
	int rc;

	if (!PyArg_ParseTuple(args, "Os:engine_placed_tensor", &capsule, &name))
		return NULL;
	binding = PyCapsule_GetPointer(capsule, BINDING);
	if (!binding)
		return NULL;
	if (engine_call_begin(st, &call))
		return NULL;
	rc = tmesh_placed_binding_tensor(binding, name, &tensor, &err);
	if (rc)
		tensor = NULL;
	if (!engine_call_end(st, &call, rc, &err))
		return tensor_new(st, tensor, NULL, TMESH_READ | TMESH_WRITE);
	tmesh_tensor_unref(tensor);
	return NULL;
}
