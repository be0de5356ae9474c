/* SPDX-License-Identifier: MIT */
/* Cancelling dispatches, and handling signals while a dispatch waits. */
#include "engine_types.h"

struct cancellable {
	PyObject_HEAD struct tmesh_engine_cancellable *cancellable;
};

/* The thread state of this thread's dispatch, which has released the GIL. */
static _Thread_local PyThreadState *waiting;

/* Run Python's signal handlers. An exception cancels the dispatch. */
static int interrupted(void *data)
{
	int rc;

	PyEval_RestoreThread(waiting);
	rc = PyErr_CheckSignals();
	waiting = PyEval_SaveThread();
	return rc;
}

int engine_dispatch_begin(struct state *st, PyObject *given, struct engine_dispatch *dispatch)
{
	const struct tmesh_engine_cancellable_opts opts = {.size = sizeof(opts),
							   .interrupted = interrupted};
	struct tmesh_error err;

	if (given != Py_None) {
		if (Py_TYPE(given) != st->engine_types[ENGINE_CANCELLABLE]) {
			PyErr_SetString(PyExc_TypeError, "cancellable is a Cancellable or None");
			return -1;
		}
		dispatch->cancellable =
			tmesh_engine_cancellable_ref(((struct cancellable *)given)->cancellable);
	} else if (tmesh_engine_cancellable_create(&opts, &dispatch->cancellable, &err)) {
		raise_error(st, &err);
		return -1;
	}
	waiting = PyEval_SaveThread();
	return 0;
}

int engine_dispatch_end(struct state *st, struct engine_dispatch *dispatch, int rc,
			const struct tmesh_error *err)
{
	PyThreadState *own = waiting;

	waiting = NULL;
	PyEval_RestoreThread(own);
	tmesh_engine_cancellable_unref(dispatch->cancellable);
	if (PyErr_Occurred()) /* a signal's handler raised it */
		return -1;
	if (rc)
		raise_error(st, err);
	return rc ? -1 : 0;
}

int engine_call_begin(struct state *st, struct engine_call *call)
{
	struct engine_dispatch dispatch;

	if (engine_dispatch_begin(st, Py_None, &dispatch))
		return -1;
	call->cancellable = dispatch.cancellable;
	call->before = tmesh_engine_cancellable_enter(call->cancellable);
	return 0;
}

int engine_call_end(struct state *st, struct engine_call *call, int rc,
		    const struct tmesh_error *err)
{
	struct engine_dispatch dispatch = {call->cancellable};

	tmesh_engine_cancellable_enter(call->before);
	return engine_dispatch_end(st, &dispatch, rc, err);
}

static PyObject *new (PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	const struct tmesh_engine_cancellable_opts opts = {.size = sizeof(opts),
							   .interrupted = interrupted};
	struct tmesh_engine_cancellable *made;
	struct cancellable *self;
	struct tmesh_error err;

	if (!PyArg_ParseTuple(args, ":Cancellable"))
		return NULL;
	if (tmesh_engine_cancellable_create(&opts, &made, &err))
		return raise_error(PyType_GetModuleState(type), &err);
	self = (struct cancellable *)PyType_GenericAlloc(type, 0);
	if (self)
		self->cancellable = made;
	else
		tmesh_engine_cancellable_unref(made);
	return (PyObject *)self;
}

static void dealloc(PyObject *object)
{
	tmesh_engine_cancellable_unref(((struct cancellable *)object)->cancellable);
	object_free(object);
}

static PyObject *cancel(PyObject *object, PyObject *unused)
{
	WITHOUT_GIL(tmesh_engine_cancel(((struct cancellable *)object)->cancellable));
	Py_RETURN_NONE;
}

static PyObject *cancelled(PyObject *object, PyObject *unused)
{
	return PyBool_FromLong(tmesh_engine_cancelled(((struct cancellable *)object)->cancellable));
}

static PyMethodDef methods[] = {
	{"cancel", cancel, METH_NOARGS,
	 "cancel()\n--\n\nCall off all dispatches that have it, those to come too. From any "
	 "thread."},
	{"cancelled", cancelled, METH_NOARGS, "cancelled()\n--\n\nWhether cancel() was called."},
	{NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_new, new},
	{Py_tp_doc, "Cancellable()\n--\n\nGiven to dispatch(), which raises CancelledError once "
		    "it is cancelled."},
	{Py_tp_dealloc, dealloc},
	{Py_tp_methods, methods},
	{0},
};

TYPE_SPEC(engine_cancellable_spec, "tmesh._tmesh.Cancellable", struct cancellable, 0, slots);
