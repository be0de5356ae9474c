/* SPDX-License-Identifier: MIT */
/* Exceptions: each negative errno of the library, with its message, becomes a subclass of
 * tmesh.Error. */
#include "binding.h"

#include <stdarg.h>

#include "common/error_names.h"

static const struct {
	int code;
	const char *name; /* in tmesh.errors */
	const char *word; /* "EINVAL" */
} classes[] = {
#define X(code, name) {code, #name, #code},
	TMESH_ERROR_NAMES(X)
#undef X
};

static const char *class_of(int code)
{
	for (size_t i = 0; i < sizeof(classes) / sizeof(*classes); i++)
		if (classes[i].code == code)
			return classes[i].name;
	return "Error";
}

static void *raise_text(struct state *st, const char *name, int code, PyObject *text)
{
	PyObject *type = NULL, *error = NULL;

	if (text)
		type = PyObject_GetAttrString(st->errors, name);
	if (type)
		error = PyObject_CallFunction(type, "iO", code < 0 ? -code : code, text);
	if (error)
		PyErr_SetObject(type, error);
	Py_XDECREF(error);
	Py_XDECREF(type);
	Py_XDECREF(text);
	return NULL;
}

static void *raise_library(struct state *st, const char *name, const struct tmesh_error *err)
{
	PyObject *text = foreign_text(err->message, sizeof(err->message)), *more;

	/* Most messages already name the limit. */
	if (text && err->code == -EMFILE && !strstr(err->message, "RLIMIT_NOFILE")) {
		more = PyUnicode_FromFormat(
			"%U: release what is not needed, put small tensors into "
			"an Arena, or raise RLIMIT_NOFILE (ulimit -n)",
			text);
		Py_DECREF(text);
		text = more;
	}
	return raise_text(st, name, err->code, text);
}

void *raise_error(struct state *st, const struct tmesh_error *err)
{
	return raise_library(st, class_of(-err->code), err);
}

void *raise_region_error(struct state *st, struct tmesh_region *region,
			 const struct tmesh_error *err)
{
	/* A seal does not refuse reading. If reading is refused, fork() is the reason. */
	if (err->code == -EPERM && tmesh_region_is_sealed(region) &&
	    tmesh_region_read(region, 0, NULL, 0, NULL) != -EPERM)
		return raise_library(st, "SealedError", err);
	return raise_error(st, err);
}

void *raise_open_error(struct state *st, uint32_t rights, const struct tmesh_error *err)
{
	if (err->code == -EPERM && rights & TMESH_WRITE)
		return raise_library(st, "SealedError", err);
	return raise_error(st, err);
}

void *raise_code(struct state *st, int code, const char *format, ...)
{
	va_list args;
	PyObject *text;

	va_start(args, format);
	text = PyUnicode_FromFormatV(format, args);
	va_end(args);
	return raise_text(st, class_of(code), code, text);
}

void *raise_named(struct state *st, const char *name, int code, const char *format, ...)
{
	va_list args;
	PyObject *text;

	va_start(args, format);
	text = PyUnicode_FromFormatV(format, args);
	va_end(args);
	return raise_text(st, name, code, text);
}

PyObject *module_raise_error(PyObject *module, PyObject *report)
{
	struct tmesh_error err;
	Py_buffer buffer;

	if (PyObject_GetBuffer(report, &buffer, PyBUF_SIMPLE))
		return NULL;
	if (buffer.len == sizeof(err))
		memcpy(&err, buffer.buf, sizeof(err));
	PyBuffer_Release(&buffer);
	if (buffer.len != sizeof(err))
		return PyErr_Format(PyExc_ValueError, "a report has %zu bytes, not %zd",
				    sizeof(err), buffer.len);
	return raise_error(PyModule_GetState(module), &err);
}

PyObject *module_raise_word(PyObject *module, PyObject *args)
{
	const char *word, *name = "Error";
	PyObject *message;
	int sealed, code = EIO;

	if (!PyArg_ParseTuple(args, "spU:raise_word", &word, &sealed, &message))
		return NULL;
	for (size_t i = 0; i < sizeof(classes) / sizeof(*classes); i++) {
		if (strcmp(classes[i].word, word) != 0)
			continue;
		code = classes[i].code;
		name = sealed ? "SealedError" : classes[i].name;
	}
	return raise_text(PyModule_GetState(module), name, code, Py_NewRef(message));
}
