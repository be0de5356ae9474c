/* SPDX-License-Identifier: MIT */
/*
 * NumPy arrays over a tensor, made by calling numpy.ndarray: no NumPy headers, so that one
 * build serves every NumPy.
 *
 * ndarray(buffer=...) keeps its buffer's owner, but not the buffer, so an array would not be
 * counted as a view. Its owner is therefore an Export, which is the view.
 */
#include "binding.h"

#include <errno.h>
#include <stddef.h>

struct export
{
	PyObject_HEAD struct tensor *tensor; /* NULL until it holds a view */
	void *start;			     /* of the bytes that the elements span */
	Py_ssize_t bytes;
	bool writable;
};

static int export_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
	struct export *self = (struct export *)object;

	return PyBuffer_FillInfo(view, object, self->start, self->bytes, !self->writable, flags);
}

static void export_dealloc(PyObject *object)
{
	struct export *self = (struct export *)object;
	PyTypeObject *type = Py_TYPE(object);

	if (self->tensor)
		tensor_view_end(self->tensor, self->writable);
	PyObject_Free(self);
	Py_DECREF(type);
}

static PyType_Slot slots[] = {
	{Py_tp_doc, "What a NumPy array over a Tensor has as its base."},
	{Py_tp_dealloc, export_dealloc},
	{Py_bf_getbuffer, export_getbuffer},
	{0},
};

PyType_Spec export_spec = {
	.name = "tmesh._tmesh.Export",
	.basicsize = sizeof(struct export),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};

/* NumPy's name for the dtype, NULL where it has none. */
static const char *numpy_name(enum tmesh_dtype dtype)
{
	bool has = dtype <= TMESH_FLOAT64 || dtype == TMESH_COMPLEX64 || dtype == TMESH_COMPLEX128;

	return has ? tmesh_dtype_name(dtype) : NULL;
}

/* numpy.ndarray and the dtype object, looked up once; borrowed. */
static int load(struct state *st, enum tmesh_dtype dtype, PyObject **ndarray, PyObject **object)
{
	PyObject *numpy;

	*ndarray = st->ndarray;
	*object = st->numpy_dtypes[dtype];
	if (*object)
		return 0;
	if (!numpy_name(dtype)) {
		raise_code(st, EOPNOTSUPP,
			   "NumPy has no %s: view(\"uint8\").numpy() shows the bytes, DLPack hands "
			   "the elements to others",
			   tmesh_dtype_name(dtype));
		return -1;
	}
	numpy = PyImport_ImportModule("numpy");
	if (!numpy)
		return -1;
	if (!st->ndarray)
		st->ndarray = PyObject_GetAttrString(numpy, "ndarray");
	if (st->ndarray)
		st->numpy_dtypes[dtype] =
			PyObject_CallMethod(numpy, "dtype", "s", numpy_name(dtype));
	Py_DECREF(numpy);
	*ndarray = st->ndarray;
	*object = st->numpy_dtypes[dtype];
	return *object ? 0 : -1;
}

/* Bytes from the lowest element to the one with all indices 0, and to the highest's end. */
static void span(const struct tensor *self, Py_ssize_t *before, Py_ssize_t *after)
{
	*before = 0;
	*after = self->itemsize;
	for (int i = 0; i < self->ndim; i++) {
		Py_ssize_t reach = (self->shape[i] - 1) * self->strides[i];

		if (!self->shape[i]) {
			*before = *after = 0;
			return;
		}
		if (reach < 0)
			*before -= reach;
		else
			*after += reach;
	}
}

static PyObject *strides_of(const struct tensor *self)
{
	int64_t strides[TMESH_MAX_DIMS];

	for (int i = 0; i < self->ndim; i++)
		strides[i] = self->strides[i];
	return tuple_from_ints(strides, self->ndim);
}

static PyObject *array_new(struct tensor *self, enum view_kind kind)
{
	const struct tmesh_layout *layout = tmesh_tensor_layout(self->tensor);
	struct state *st = state_of(self);
	PyObject *ndarray, *dtype, *array = NULL, *args = NULL, *strides;
	Py_ssize_t before, after;
	struct export *export;
	void *data;

	if (load(st, layout->dtype, &ndarray, &dtype))
		return NULL;
	export = (struct export *)PyType_GenericAlloc(st->export_type, 0);
	if (!export)
		return NULL;
	if (tensor_view_begin(self, kind, &data, &export->writable))
		goto out;
	export->tensor = self;
	span(self, &before, &after);
	export->start = (char *)data - before;
	export->bytes = before + after;

	/* Without strides NumPy has less to check, and most tensors are contiguous. */
	if (tmesh_layout_is_contiguous(layout)) {
		strides = Py_None;
		Py_INCREF(strides);
	} else {
		strides = strides_of(self);
	}
	if (strides)
		args = Py_BuildValue("NOOnN", tuple_from_ints(layout->shape, layout->ndim), dtype,
				     export, before, strides);
	if (args)
		array = PyObject_CallObject(ndarray, args);
	Py_XDECREF(args);
out:
	Py_DECREF(export);
	return array;
}

PyObject *tensor_numpy(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"writable", NULL};
	enum view_kind kind = VIEW_ANY;
	PyObject *writable = Py_None;

	if (kwargs && !PyArg_ParseTupleAndKeywords(args, kwargs, "|$O:numpy", names, &writable))
		return NULL;
	if (!kwargs && PyTuple_Size(args)) {
		PyErr_SetString(PyExc_TypeError, "numpy() takes no positional arguments");
		return NULL;
	}
	if (!tensor_get((struct tensor *)object))
		return NULL;
	if (writable != Py_None) {
		int yes = PyObject_IsTrue(writable);

		if (yes < 0)
			return NULL;
		kind = yes ? VIEW_WRITE : VIEW_READ;
	}
	return array_new((struct tensor *)object, kind);
}

/* numpy.array(@array, dtype=@dtype, copy=@copy) */
static PyObject *convert(PyObject *array, PyObject *dtype, PyObject *copy)
{
	PyObject *numpy = PyImport_ImportModule("numpy");
	PyObject *function = numpy ? PyObject_GetAttrString(numpy, "array") : NULL;
	PyObject *args = Py_BuildValue("(O)", array);
	/* NumPy before 2 knows no copy=None. */
	PyObject *names =
		Py_BuildValue(copy == Py_None ? "{sO}" : "{sOsO}", "dtype", dtype, "copy", copy);
	PyObject *result = function && args && names ? PyObject_Call(function, args, names) : NULL;

	Py_XDECREF(names);
	Py_XDECREF(args);
	Py_XDECREF(function);
	Py_XDECREF(numpy);
	return result;
}

/* Where the buffer protocol cannot serve, NumPy would else make an array of objects. */
PyObject *tensor_array(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"dtype", "copy", NULL};
	PyObject *dtype = Py_None, *copy = Py_None, *array, *result;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:__array__", names, &dtype, &copy) ||
	    !tensor_get((struct tensor *)object))
		return NULL;
	array = array_new((struct tensor *)object, VIEW_ANY);
	if (!array || (dtype == Py_None && copy != Py_True))
		return array;
	result = convert(array, dtype, copy);
	Py_DECREF(array);
	return result;
}
