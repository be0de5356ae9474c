/* SPDX-License-Identifier: MIT */
/* libtmesh-xla, which is loaded at the first call, for tmesh.xla. */
#include "binding.h"

#include <pthread.h>

#define TMESH_XLA_API_MORE(X) X(xla_push) X(xla_pop) X(xla_ask) X(xla_stats)
#include "common/xla_api.h"

static struct tmesh_xla_api calls;
static bool loaded;

/* The only thread in which Python runs signal handlers, between instructions of Python. */
static pthread_t handling;

/* Whether Ctrl-C has come and Python has not handled it yet, for a call that waits in that thread.
 * The flag is taken and set again, as Python has no way to only read it. */
static bool is_interrupted(void)
{
	PyGILState_STATE state;
	bool came;

	if (!pthread_equal(pthread_self(), handling) || !Py_IsInitialized())
		return false;
	state = PyGILState_Ensure();
	came = PyOS_InterruptOccurred();
	if (came)
		PyErr_SetInterrupt();
	PyGILState_Release(state);
	return came;
}

/* xla_load(main thread): return the handlers of push and pop, in capsules as jax.ffi.pycapsule()
 * makes them. */
static PyObject *module_xla_load(PyObject *module, PyObject *thread)
{
	struct tmesh_error err;

	handling = (pthread_t)PyLong_AsUnsignedLong(thread);
	if (PyErr_Occurred())
		return NULL;
	/* A failed load is tried again at the next call, as the library may be installed
	 * meanwhile. */
	if (!loaded && tmesh_xla_api_load(&calls, secure_getenv("TMESH_XLA_LIBRARY"), &err))
		return raise_error(PyModule_GetState(module), &err);
	loaded = true;
	/* If Ctrl-C comes before a call sleeps, or in another thread, only Python notices it.
	 */
	calls.xla_ask(is_interrupted);
	return Py_BuildValue("(NN)", PyCapsule_New((void *)calls.xla_push, NULL, NULL),
			     PyCapsule_New((void *)calls.xla_pop, NULL, NULL));
}

/* tmesh.xla loads the library before it makes other calls. */
static bool is_loaded(void)
{
	if (!loaded)
		PyErr_SetString(PyExc_RuntimeError, "xla_load() comes first");
	return loaded;
}

static PyObject *none_or_error(PyObject *module, int rc, const struct tmesh_error *err)
{
	if (rc)
		return raise_error(PyModule_GetState(module), err);
	Py_RETURN_NONE;
}

static PyObject *module_xla_bind(PyObject *module, PyObject *args)
{
	const char *name, *token;
	struct tmesh_error err;
	int send, rc;

	if (!is_loaded() || !PyArg_ParseTuple(args, "ssp:xla_bind", &name, &token, &send))
		return NULL;
	WITHOUT_GIL(rc = calls.xla_bind(name, token, send ? TMESH_CHANNEL_SEND : TMESH_CHANNEL_RECV,
					&err));
	return none_or_error(module, rc, &err);
}

static PyObject *with_name(PyObject *module, PyObject *args,
			   int (*call)(const char *name, struct tmesh_error *err))
{
	struct tmesh_error err;
	const char *name;
	int rc;

	if (!PyArg_ParseTuple(args, "s", &name))
		return NULL;
	WITHOUT_GIL(rc = call(name, &err));
	return none_or_error(module, rc, &err);
}

static PyObject *module_xla_unbind(PyObject *module, PyObject *args)
{
	return is_loaded() ? with_name(module, args, calls.xla_unbind) : NULL;
}

static PyObject *module_xla_cancel(PyObject *module, PyObject *args)
{
	return is_loaded() ? with_name(module, args, calls.xla_cancel) : NULL;
}

static PyObject *module_xla_flush(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_error err;
	PyObject *timeout;
	const char *name;
	int64_t ns;
	int rc;

	if (!is_loaded() || !PyArg_ParseTuple(args, "sO:xla_flush", &name, &timeout) ||
	    timeout_from_object(st, timeout, &ns))
		return NULL;
	WITHOUT_GIL(rc = calls.xla_flush(name, ns, &err));
	return none_or_error(module, rc, &err);
}

static PyObject *module_xla_limit(PyObject *module, PyObject *number)
{
	unsigned long long bytes;

	if (!is_loaded() || !size_argument(number, &bytes))
		return NULL;
	calls.xla_limit(bytes);
	Py_RETURN_NONE;
}

static PyObject *module_xla_stats(PyObject *module, PyObject *unused)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct state *st = PyModule_GetState(module);
	struct tmesh_error err;

	if (!is_loaded())
		return NULL;
	return calls.xla_stats(&stats, &err) ? raise_error(st, &err) : dict_from_stats(&stats);
}

static PyMethodDef functions[] = {
	{"xla_load", module_xla_load, METH_O,
	 "xla_load(main_thread, /)\n--\n\nLoad libtmesh-xla: its handlers, (push, pop)."},
	{"xla_bind", module_xla_bind, METH_VARARGS, "xla_bind(name, token, send, /)\n--\n\n"},
	{"xla_unbind", module_xla_unbind, METH_VARARGS, "xla_unbind(name, /)\n--\n\n"},
	{"xla_cancel", module_xla_cancel, METH_VARARGS, "xla_cancel(name, /)\n--\n\n"},
	{"xla_flush", module_xla_flush, METH_VARARGS, "xla_flush(name, timeout, /)\n--\n\n"},
	{"xla_limit", module_xla_limit, METH_O, "xla_limit(max_bytes, /)\n--\n\n"},
	{"xla_stats", module_xla_stats, METH_NOARGS, "xla_stats()\n--\n\nAs stats()."},
	{NULL},
};

int xla_add(PyObject *module)
{
	return PyModule_AddFunctions(module, functions);
}
