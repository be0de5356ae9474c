/* SPDX-License-Identifier: MIT */
/* Declarations that the files of tmesh.engine's types share. */
#ifndef TMESH_BINDING_ENGINE_TYPES_H
#define TMESH_BINDING_ENGINE_TYPES_H

#include "binding.h"

#include <tmesh/engine.h>

struct engine_context {
	PyObject_HEAD struct tmesh_engine_context *context;
};

/*
 * A device tensor on a Tensor's memory. It is a view of that Tensor until it is destroyed and the
 * last dispatch with it has ended.
 */
struct engine_tensor {
	PyObject_HEAD struct tmesh_engine_tensor *tensor;
	struct tensor *of; /* NULL: not on a Tensor, or the view has ended */
	bool writable;	   /* whether the view is */
	bool destroyed;
	Py_ssize_t running; /* dispatches that use it */
};

/* engine_tensor.c */
/* Take over @tensor, also on failure. */
PyObject *engine_tensor_new(struct state *st, struct tmesh_engine_tensor *tensor);
PyObject *engine_tensor_wrap(struct state *st, struct tmesh_engine_context *context,
			     struct tensor *of, bool writable, uint32_t flags);
void engine_tensor_begin(struct engine_tensor *self);
void engine_tensor_end(struct engine_tensor *self);
extern PyType_Spec engine_tensor_spec;

/* engine_cancel.c: around a call to an engine. It runs without the GIL, as it may wait for another
 * process. An exception of a signal's handler ends the call. */
struct engine_call {
	struct tmesh_engine_cancellable *cancellable, *before;
};
int engine_call_begin(struct state *st, struct engine_call *call);
/* Return 0, or -1 with an exception set: that of @rc and @err, or one of a signal's handler, which
 * may have come after the call was done. */
int engine_call_end(struct state *st, struct engine_call *call, int rc,
		    const struct tmesh_error *err);
/* The same around a dispatch. @given: a Cancellable or None. */
struct engine_dispatch {
	struct tmesh_engine_cancellable *cancellable;
};
int engine_dispatch_begin(struct state *st, PyObject *given, struct engine_dispatch *dispatch);
/* Return 0, or -1 with an exception set: that of @rc and @err, or one of a signal's handler. */
int engine_dispatch_end(struct state *st, struct engine_dispatch *dispatch, int rc,
			const struct tmesh_error *err);
extern PyType_Spec engine_cancellable_spec;

/* engine.c */
extern PyType_Spec engine_context_spec;

/* engine_graph.c */
PyObject *engine_graph_open(struct state *st, struct tmesh_engine_context *context, PyObject *path,
			    PyObject *weights, bool prepack);
extern PyType_Spec engine_graph_spec;
extern PyType_Spec engine_binding_spec;

#endif /* TMESH_BINDING_ENGINE_TYPES_H */
