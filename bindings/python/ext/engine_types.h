/* SPDX-License-Identifier: MIT */
/* What the files of tmesh.engine's types share. */
#ifndef TMESH_BINDING_ENGINE_TYPES_H
#define TMESH_BINDING_ENGINE_TYPES_H

#include "binding.h"

#include <tmesh/engine.h>

struct engine_context {
	PyObject_HEAD struct tmesh_engine_context *context;
};

/*
 * A device tensor on a Tensor's memory is a view of that Tensor, until it is destroyed and no
 * dispatch has it any more.
 */
struct engine_tensor {
	PyObject_HEAD struct tmesh_engine_tensor *tensor;
	struct tensor *of; /* NULL: not of a Tensor, or no view any more */
	bool writable;	   /* the view */
	bool destroyed;
	Py_ssize_t running; /* dispatches that have it */
};

/* engine_tensor.c */
/* Takes over @tensor, also on failure. */
PyObject *engine_tensor_new(struct state *st, struct tmesh_engine_tensor *tensor);
PyObject *engine_tensor_wrap(struct state *st, struct tmesh_engine_context *context,
			     struct tensor *of, bool writable, uint32_t flags);
void engine_tensor_begin(struct engine_tensor *self);
void engine_tensor_end(struct engine_tensor *self);
extern PyType_Spec engine_tensor_spec;

/* engine_cancel.c: around a dispatch, which runs without the GIL. @given: a Cancellable or None. */
struct engine_dispatch {
	struct tmesh_engine_cancellable *cancellable;
};
int engine_dispatch_begin(struct state *st, PyObject *given, struct engine_dispatch *dispatch);
/* Return: 0; -1 with an exception set: what @rc and @err say, or a signal's handler raised. */
int engine_dispatch_end(struct state *st, struct engine_dispatch *dispatch, int rc,
			const struct tmesh_error *err);
extern PyType_Spec engine_cancellable_spec;

/* engine_costs.c */
PyObject *engine_costs_measure(PyObject *module, PyObject *args);
PyObject *engine_costs_read(PyObject *module, PyObject *args);
PyObject *engine_costs_write(PyObject *module, PyObject *args);
PyObject *engine_costs_json(PyObject *module, PyObject *capsule);
PyObject *engine_costs_find(PyObject *module, PyObject *args);
struct tmesh_costs;
struct tmesh_graph;
/* Borrowed; NULL with an exception. */
struct tmesh_costs *engine_costs_get(PyObject *capsule);
/* {name: place} of the nodes that are at one. */
PyObject *engine_name_places(const struct tmesh_graph *graph, const uint32_t *at);

/* engine_split.c */
struct tmesh_graph_parts;
PyObject *engine_graph_split(PyObject *module, PyObject *args);
/* (place, text, operators by nodes, outputs) of each. */
PyObject *engine_list_parts(const struct tmesh_graph_parts *parts);
/* Of a dict by names of nodes; those that are not there are at no place. -1 with an exception. */
int engine_read_places(const struct tmesh_graph *graph, PyObject *given, uint32_t *at);

/* engine_placed.c */
PyObject *engine_places_create(PyObject *module, PyObject *args);
PyObject *engine_places_sweep(PyObject *module, PyObject *capsule);
PyObject *engine_places_used(PyObject *module, PyObject *args);
PyObject *engine_places_stats(PyObject *module, PyObject *capsule);
PyObject *engine_placed_create(PyObject *module, PyObject *args);
PyObject *engine_placed_parts(PyObject *module, PyObject *capsule);
PyObject *engine_placed_at(PyObject *module, PyObject *capsule);
PyObject *engine_placed_move(PyObject *module, PyObject *args);
PyObject *engine_placed_bind(PyObject *module, PyObject *args);
PyObject *engine_placed_dispatch(PyObject *module, PyObject *args);
PyObject *engine_placed_tensor(PyObject *module, PyObject *args);

/* engine.c */
struct tmesh_devices;
/* @list: a tuple of (engine, file). NULL with an exception. */
struct tmesh_devices *engine_find_devices(struct state *st, PyObject *list, const char *root);
extern PyType_Spec engine_context_spec;

/* engine_graph.c */
PyObject *engine_graph_open(struct state *st, struct tmesh_engine_context *context, PyObject *path,
			    PyObject *weights, bool prepack);
extern PyType_Spec engine_graph_spec;
extern PyType_Spec engine_binding_spec;

#endif /* TMESH_BINDING_ENGINE_TYPES_H */
