/* SPDX-License-Identifier: MIT */
/* The C part of tmesh.engine: contexts of engines. */
#include "engine_types.h"
#include "paging.h"

#include <tmesh/placement.h>

/* Drop the GIL: closing an engine takes long. */
static void context_release(struct tmesh_engine_context *context)
{
	if (!context)
		return;
	WITHOUT_GIL(tmesh_engine_context_unref(context));
}

/* Return a new context. An exception is set if @rc is not 0, perhaps although a context was @made.
 * Take over @made. */
static PyObject *context_made(PyTypeObject *type, int rc, struct tmesh_engine_context *made)
{
	struct engine_context *self = NULL;

	if (!rc)
		self = (struct engine_context *)PyType_GenericAlloc(type, 0);
	if (self)
		self->context = made;
	else
		context_release(made);
	return (PyObject *)self;
}

static PyObject *context_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct tmesh_engine_context_opts opts = {.size = sizeof(opts)};
	struct state *st = PyType_GetModuleState(type);
	struct tmesh_engine_context *context_;
	PyObject *library = NULL;
	struct engine_call call;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	const char *backend;
	bool made = false;
	int cuda, rc;

	if (!PyArg_ParseTuple(args, "sO&pO&O&:EngineContext", &backend, PyUnicode_FSConverter,
			      &library, &cuda, uint_argument, &opts.threads, uint_argument,
			      &opts.sessions))
		return NULL;
	ctx = context(st);
	if (!ctx) {
		Py_XDECREF(library);
		return NULL;
	}
	opts.library = PyBytes_AsString(library);
	if (!*opts.library)
		opts.library = NULL;
	opts.device_type = cuda ? TMESH_DEVICE_CUDA : TMESH_DEVICE_CPU;
	rc = engine_call_begin(st, &call);
	if (!rc) {
		rc = tmesh_engine_context_create(ctx, backend, &opts, &context_, &err);
		made = !rc;
		rc = engine_call_end(st, &call, rc, &err);
	}
	Py_DECREF(library);
	return context_made(type, rc, made ? context_ : NULL);
}

static PyObject *connect_to(PyObject *type, PyObject *args)
{
	struct tmesh_engine_connect_opts opts = {.size = sizeof(opts)};
	struct state *st = PyType_GetModuleState((PyTypeObject *)type);
	struct tmesh_engine_context *made;
	struct engine_call call;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	const char *name;
	PyObject *timeout;
	int64_t ns;
	int rc;

	if (!PyArg_ParseTuple(args, "sOO&:connect", &name, &timeout, uint_argument,
			      &opts.sessions) ||
	    timeout_from_object(st, timeout, &ns))
		return NULL;
	if (!ns)
		return raise_code(st, EINVAL, "timeout is None or more than 0 seconds");
	ctx = context(st);
	if (!ctx)
		return NULL;
	opts.timeout_ns = ns < 0 ? 0 : (uint64_t)ns;
	if (engine_call_begin(st, &call))
		return NULL;
	rc = tmesh_engine_connect(ctx, name, &opts, &made, &err);
	if (rc)
		made = NULL;
	rc = engine_call_end(st, &call, rc, &err);
	return context_made((PyTypeObject *)type, rc, made);
}

static PyObject *pid(PyObject *object, PyObject *unused)
{
	struct engine_context *self = (struct engine_context *)object;

	return PyLong_FromUnsignedLong(tmesh_engine_context_pid(self->context));
}

static void context_dealloc(PyObject *object)
{
	context_release(((struct engine_context *)object)->context);
	object_free(object);
}

static PyObject *names(PyObject *object, PyObject *unused)
{
	struct engine_context *self = (struct engine_context *)object;

	return Py_BuildValue("(ss)", tmesh_engine_context_backend(self->context),
			     tmesh_engine_context_version(self->context));
}

static PyObject *stats(PyObject *object, PyObject *unused)
{
	struct engine_context *self = (struct engine_context *)object;
	struct tmesh_engine_stats stats = {.size = sizeof(stats)};
	struct tmesh_error err;

	if (tmesh_engine_stats(self->context, &stats, &err))
		return raise_error(PyType_GetModuleState(Py_TYPE(object)), &err);
	/* clang-format off */
	return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}",
			     "sessions", (unsigned long long)stats.sessions,
			     "sessions_opened", (unsigned long long)stats.sessions_opened,
			     "session_hits", (unsigned long long)stats.session_hits,
			     "sessions_evicted", (unsigned long long)stats.sessions_evicted,
			     "dispatches", (unsigned long long)stats.dispatches,
			     "bindings", (unsigned long long)stats.bindings,
			     "reads", (unsigned long long)stats.reads,
			     "bytes_read", (unsigned long long)stats.bytes_read,
			     "writes", (unsigned long long)stats.writes,
			     "bytes_written", (unsigned long long)stats.bytes_written,
			     "outputs_of_engine", (unsigned long long)stats.outputs_of_engine,
			     "bytes_of_engine", (unsigned long long)stats.bytes_of_engine);
	/* clang-format on */
}

static PyObject *tensor(PyObject *object, PyObject *args)
{
	struct engine_context *self = (struct engine_context *)object;
	struct state *st = PyType_GetModuleState(Py_TYPE(object));
	struct tmesh_engine_tensor *made;
	int64_t shape[TMESH_MAX_DIMS];
	PyObject *dims, *type;
	enum tmesh_dtype dtype;
	struct tmesh_error err;
	unsigned int flags;
	int32_t ndim;
	int rc;

	if (!PyArg_ParseTuple(args, "OOO&:tensor", &dims, &type, uint_argument, &flags) ||
	    shape_from_object(st, dims, &ndim, shape) || dtype_from_object(st, type, &dtype))
		return NULL;
	WITHOUT_GIL(rc = tmesh_engine_tensor_create(self->context, dtype, ndim, shape, flags, &made,
						    &err));
	return rc ? raise_error(st, &err) : engine_tensor_new(st, made);
}

static PyObject *wrap(PyObject *object, PyObject *args)
{
	struct engine_context *self = (struct engine_context *)object;
	struct state *st = PyType_GetModuleState(Py_TYPE(object));
	unsigned int flags;
	PyObject *of;
	int writable;

	if (!PyArg_ParseTuple(args, "O!pO&:wrap", st->tensor_type, &of, &writable, uint_argument,
			      &flags))
		return NULL;
	return engine_tensor_wrap(st, self->context, (struct tensor *)of, writable, flags);
}

static PyObject *graph(PyObject *object, PyObject *args)
{
	struct engine_context *self = (struct engine_context *)object;
	struct state *st = PyType_GetModuleState(Py_TYPE(object));
	PyObject *path = NULL, *weights, *made;
	int prepack;

	if (!PyArg_ParseTuple(args, "O&O!p:graph", PyUnicode_FSConverter, &path, &PyTuple_Type,
			      &weights, &prepack))
		return NULL;
	made = engine_graph_open(st, self->context, path, weights, prepack);
	Py_DECREF(path);
	return made;
}

/* keep(PagesHandle) */
static PyObject *lifeline(PyObject *object, PyObject *given)
{
	struct engine_context *self = (struct engine_context *)object;
	struct state *st = PyType_GetModuleState(Py_TYPE(object));
	struct tmesh_region *line;
	struct tmesh_pages *pages;
	struct tmesh_error err;
	int rc;

	if (Py_TYPE(given) != st->pages_type)
		return PyErr_Format(PyExc_TypeError, "Pages are kept, not %R", given);
	pages = ((struct pages *)given)->pages;
	if (!pages)
		return raise_named(st, "ReleasedError", EBADF, "these pages were closed");
	tmesh_pages_ref(pages);
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_pages_lifeline(pages, &line, &err);
	if (!rc) {
		rc = tmesh_engine_context_lifeline(self->context, line, &err);
		tmesh_region_unref(line);
	}
	tmesh_pages_unref(pages);
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(st, &err);
	Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
	{"lifeline", lifeline, METH_O,
	 "lifeline(pages, /)\n--\n\nUntil the engine has stopped to write there."},
	{"connect", connect_to, METH_VARARGS | METH_CLASS,
	 "connect(name, timeout, sessions, /)\n--\n\nConnect to an engine in a process of its "
	 "own."},
	{"pid", pid, METH_NOARGS, "pid()\n--\n\nThat process, 0: this one."},
	{"names", names, METH_NOARGS, "names()\n--\n\n(backend, version)."},
	{"stats", stats, METH_NOARGS, "stats()\n--\n\nThe engine's counters, a dict."},
	{"tensor", tensor, METH_VARARGS, "tensor(shape, dtype, flags, /)\n--\n\nAn EngineTensor."},
	{"wrap", wrap, METH_VARARGS,
	 "wrap(tensor, writable, flags, /)\n--\n\nAn EngineTensor on a Tensor's memory."},
	{"graph", graph, METH_VARARGS,
	 "graph(path, weights, prepack, /)\n--\n\nAn EngineGraph; weights are (name, Tensor)."},
	{NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_new, context_new},
	{Py_tp_doc, "EngineContext(backend, library, cuda, threads, sessions, /)\n--\n\n"
		    "An engine; tmesh.engine.Context is made of it."},
	{Py_tp_dealloc, context_dealloc},
	{Py_tp_methods, methods},
	{0},
};

TYPE_SPEC(engine_context_spec, "tmesh._tmesh.EngineContext", struct engine_context, 0, slots);

#define LIBRARIES_MAX 16

/* engine_devices(libraries, root) -> JSON. Drop the GIL: engines are loaded. */
static PyObject *devices(PyObject *module, PyObject *args)
{
	struct tmesh_devices_library libraries[LIBRARIES_MAX];
	struct tmesh_devices_opts opts = {.size = sizeof(opts), .libraries = libraries};
	struct state *st = PyModule_GetState(module);
	struct tmesh_devices *found;
	struct tmesh_error err;
	PyObject *list, *text;
	char *json;
	int rc;

	if (!PyArg_ParseTuple(args, "O!z:engine_devices", &PyTuple_Type, &list, &opts.root))
		return NULL;
	opts.library_count = (size_t)PyTuple_Size(list);
	if (opts.library_count > LIBRARIES_MAX)
		return raise_code(st, EINVAL, "libraries of at most 16 engines");
	for (size_t i = 0; i < opts.library_count; i++) {
		PyObject *item = PyTuple_GetItem(list, (Py_ssize_t)i);

		if (!PyTuple_Check(item)) {
			PyErr_SetString(PyExc_TypeError, "libraries are (engine, file)");
			return NULL;
		}
		if (!PyArg_ParseTuple(item, "ss", &libraries[i].engine, &libraries[i].library))
			return NULL;
	}
	WITHOUT_GIL(rc = tmesh_devices_find(&opts, &found, &err));
	if (rc)
		return raise_error(st, &err);
	json = tmesh_devices_to_json(found);
	tmesh_devices_unref(found);
	if (!json)
		return PyErr_NoMemory();
	text = PyUnicode_DecodeUTF8(json, (Py_ssize_t)strlen(json), "replace");
	free(json);
	return text;
}

/* engine_graph_check(text) */
static PyObject *graph_check(PyObject *module, PyObject *text)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_graph *graph;
	struct tmesh_error err;
	const char *bytes;
	Py_ssize_t length;

	bytes = PyUnicode_AsUTF8AndSize(text, &length);
	if (!bytes)
		return NULL;
	if (tmesh_graph_parse(bytes, (size_t)length, &graph, &err))
		return raise_error(st, &err);
	tmesh_graph_unref(graph);
	Py_RETURN_NONE;
}

/* engine_quants() -> [name] */
static PyObject *quants(PyObject *module, PyObject *args)
{
	PyObject *list = PyList_New(0);
	const char *name;

	for (size_t i = 0; list && (name = tmesh_graph_quant(i, NULL, NULL)); i++)
		list_add(&list, PyUnicode_FromString(name));
	return list;
}

static PyMethodDef functions[] = {
	{"engine_devices", devices, METH_VARARGS,
	 "engine_devices(libraries, root, /)\n--\n\nDevices and engines, as JSON."},
	{"engine_graph_check", graph_check, METH_O,
	 "engine_graph_check(text, /)\n--\n\nRaise what an engine would say of the text."},
	{"engine_quants", quants, METH_NOARGS,
	 "engine_quants()\n--\n\nNames of the types of blocks that weights may have."},
	{NULL},
};

int engine_add_types(PyObject *module, struct state *st)
{
	PyType_Spec *const specs[ENGINE_TYPES] = {
		[ENGINE_CONTEXT] = &engine_context_spec,
		[ENGINE_TENSOR] = &engine_tensor_spec,
		[ENGINE_GRAPH] = &engine_graph_spec,
		[ENGINE_BINDING] = &engine_binding_spec,
		[ENGINE_CANCELLABLE] = &engine_cancellable_spec,
	};

	for (int i = 0; i < ENGINE_TYPES; i++) {
		st->engine_types[i] =
			(PyTypeObject *)PyType_FromModuleAndSpec(module, specs[i], NULL);
		if (!st->engine_types[i] || PyModule_AddType(module, st->engine_types[i]))
			return -1;
	}
	return PyModule_AddFunctions(module, functions);
}
