/* SPDX-License-Identifier: MIT */
/* The C part of tmesh.load_model(): files of tensors, by libtmesh-model. */
#include "binding.h"

#include <stdio.h>
#include <tmesh/model.h>
#include <unistd.h>

#include "common/shown.h"

#define MODEL "tmesh.model"

/* The progress of a load, and the thread that waits for it. */
struct watch {
	PyThreadState *thread;
	PyObject *progress; /* NULL: no callback */
};

static int watch_progress(void *data, const struct tmesh_model_progress *progress)
{
	struct watch *watch = data;
	PyObject *result = NULL;
	int stop;

	PyEval_RestoreThread(watch->thread);
	/* Ctrl-C, or another exception of a signal's handler. */
	stop = PyErr_CheckSignals();
	if (!stop && watch->progress) {
		result = PyObject_CallFunction(watch->progress, "KKO",
					       (unsigned long long)progress->bytes_done,
					       (unsigned long long)progress->bytes_total,
					       progress->waiting ? Py_True : Py_False);
		stop = !result;
		Py_XDECREF(result);
	}
	watch->thread = PyEval_SaveThread();
	return stop;
}

/*
 * Keep the library's object while a tensor of it exists, so that other processes find the loaded
 * model. A child of fork() must not unref it: the object's locks are the parent's, and an unref
 * would unlock them there.
 */
static void capsule_free(PyObject *capsule)
{
	struct tmesh_model *model = PyCapsule_GetPointer(capsule, MODEL);

	if ((intptr_t)PyCapsule_GetContext(capsule) != (intptr_t)getpid())
		return;
	WITHOUT_GIL(tmesh_model_unref(model));
}

/* Takes over @model. */
static PyObject *capsule_new(struct tmesh_model *model)
{
	PyObject *capsule = PyCapsule_New(model, MODEL, capsule_free);

	if (!capsule)
		tmesh_model_unref(model);
	else if (PyCapsule_SetContext(capsule, (void *)(intptr_t)getpid()))
		Py_CLEAR(capsule);
	return capsule;
}

static PyObject *report(const struct tmesh_model *model, bool hashed, struct state *st)
{
	struct tmesh_model_report report = {.size = sizeof(report)};
	const char *method;
	struct tmesh_error err;
	char hash[33] = "";

	if (tmesh_model_report(model, &report, &err))
		return raise_error(st, &err);
	method = tmesh_model_method_name(report.method);
	for (int i = 0; i < 16; i++)
		snprintf(hash + 2 * i, 3, "%02x", report.hash[i]);
	return DICT_SHOW(Py_BuildValue("{s:s,s:z,s:z}", "format",
				       tmesh_model_format_name(tmesh_model_format(model)), "method",
				       method, "hash", hashed ? hash : NULL),
			 shown_model_report, &report);
}

/* Return (name, type as the file spells it, dtype or None, shape, place, bytes) of each tensor. */
static PyObject *described(const struct tmesh_model *model, struct state *st)
{
	PyObject *list = PyList_New(0);

	for (size_t i = 0; list && i < tmesh_model_tensors(model); i++) {
		struct tmesh_model_tensor tensor = {.size = sizeof(tensor)};
		PyObject *shape, *entry = NULL;
		struct tmesh_error err;

		if (tmesh_model_tensor(model, i, &tensor, &err)) {
			Py_DECREF(list);
			return raise_error(st, &err);
		}
		shape = tuple_from_ints(tensor.shape, tensor.ndim);
		if (shape)
			entry = Py_BuildValue("sszNKK", tensor.name, tensor.type,
					      tensor.dtype ? tmesh_dtype_name(tensor.dtype) : NULL,
					      shape, (unsigned long long)tensor.file_offset,
					      (unsigned long long)tensor.bytes);
		list_add(&list, entry);
	}
	return list;
}

static PyObject *loaded(struct state *st, struct tmesh_ctx *ctx, struct tmesh_model *model,
			bool hashed)
{
	PyObject *held = NULL, *said, *list = NULL, *capsule = capsule_new(model);
	struct tmesh_bundle *bundle;
	struct tmesh_error err;

	if (!capsule)
		return NULL;
	said = report(model, hashed, st);
	if (said)
		list = described(model, st);
	if (list) {
		if (tmesh_model_bundle(ctx, model, &bundle, &err))
			raise_error(st, &err);
		else
			held = bundle_of_model(st, bundle, capsule);
	}
	Py_DECREF(capsule);
	if (held)
		return Py_BuildValue("NNN", held, said, list);
	Py_XDECREF(said);
	Py_XDECREF(list);
	return NULL;
}

PyObject *module_load_model(PyObject *module, PyObject *args)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .progress = watch_progress};
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	PyObject *path = NULL, *progress;
	struct tmesh_model *model;
	struct watch watch = {0};
	struct tmesh_error err;
	int keep, alone, hash, lenient, rc;

	if (!ctx || !PyArg_ParseTuple(args, "O&ppppO:load_model", PyUnicode_FSConverter, &path,
				      &keep, &alone, &hash, &lenient, &progress))
		return NULL;
	watch.progress = progress == Py_None ? NULL : progress;
	opts.progress_data = &watch;
	opts.flags = (keep ? TMESH_MODEL_KEEP : 0) | (alone ? TMESH_MODEL_ALONE : 0) |
		     (hash ? TMESH_MODEL_HASH : 0) | (lenient ? TMESH_MODEL_LENIENT : 0);
	watch.thread = PyEval_SaveThread();
	rc = tmesh_model_load(ctx, PyBytes_AsString(path), &opts, &model, &err);
	PyEval_RestoreThread(watch.thread);
	Py_DECREF(path);
	if (rc)
		/* An exception of the callback or of a signal's handler takes precedence over the
		 * error that it caused. */
		return PyErr_Occurred() ? NULL : raise_error(st, &err);
	return loaded(st, ctx, model, hash);
}

/* Return (format, list of tensors, metadata), and drop the model. */
static PyObject *said(struct state *st, struct tmesh_model *model)
{
	PyObject *list = described(model, st), *result = NULL;
	struct tmesh_error err;
	char *metadata;

	if (list && tmesh_model_metadata_json(model, 0, &metadata, &err)) {
		raise_error(st, &err);
	} else if (list) {
		result = Py_BuildValue("sOs", tmesh_model_format_name(tmesh_model_format(model)),
				       list, metadata);
		free(metadata);
	}
	Py_XDECREF(list);
	tmesh_model_unref(model);
	return result;
}

PyObject *module_describe_model(PyObject *module, PyObject *given)
{
	struct watch watch = {0};
	const struct tmesh_model_describe_opts opts = {
		.size = sizeof(opts), .progress = watch_progress, .progress_data = &watch};
	struct state *st = PyModule_GetState(module);
	struct tmesh_model *model;
	struct tmesh_error err;
	PyObject *path;
	int rc;

	if (!PyUnicode_FSConverter(given, &path))
		return NULL;
	watch.thread = PyEval_SaveThread();
	rc = tmesh_model_describe(PyBytes_AsString(path), &opts, &model, &err);
	PyEval_RestoreThread(watch.thread);
	Py_DECREF(path);
	if (rc)
		return PyErr_Occurred() ? NULL : raise_error(st, &err);
	return said(st, model);
}

PyObject *module_parse_model(PyObject *module, PyObject *data)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_model *model;
	struct tmesh_error err;
	uint64_t need;
	Py_buffer view;
	int rc;

	if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE))
		return NULL;
	rc = tmesh_model_parse(view.buf, (size_t)view.len, (uint64_t)view.len, &model, &need, &err);
	PyBuffer_Release(&view);
	if (rc == -EAGAIN)
		return raise_code(st, EPROTO, "the header ends behind the data's end");
	if (rc)
		return raise_error(st, &err);
	return said(st, model);
}
