/* SPDX-License-Identifier: MIT */
/*
 * NumPy arrays over a tensor, made by calling numpy.ndarray. This needs no NumPy headers, so one
 * build works with every NumPy.
 *
 * ndarray(buffer=...) keeps its buffer's owner, but not the buffer, so an array would not be
 * counted as a view. Its owner is therefore an Export, which is the view.
 */
#include "binding.h"

#include <stddef.h>

struct export
{
	PyObject_HEAD struct tensor *tensor; /* NULL until it has a view */
	void *start;			     /* of the bytes that the elements span */
	Py_ssize_t bytes;
	bool writable;
	struct place place;
};

static int export_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
	struct export *self = (struct export *)object;

	return PyBuffer_FillInfo(view, object, self->start, self->bytes, !self->writable, flags);
}

static void export_dealloc(PyObject *object)
{
	struct export *self = (struct export *)object;

	if (self->tensor) {
		place_unlist(&self->place);
		tensor_view_end(self->tensor, self->writable);
	}
	object_free(object);
}

static PyType_Slot slots[] = {
	{Py_tp_doc, "The base of a NumPy array over a Tensor."},
	{Py_tp_dealloc, export_dealloc},
	{Py_bf_getbuffer, export_getbuffer},
	{0},
};

TYPE_SPEC(export_spec, "tmesh._tmesh.Export", struct export, Py_TPFLAGS_DISALLOW_INSTANTIATION,
	  slots);

/* Return NumPy's name for the dtype, NULL if there is none. */
static const char *numpy_name(enum tmesh_dtype dtype)
{
	bool has = dtype <= TMESH_FLOAT64 || dtype == TMESH_COMPLEX64 || dtype == TMESH_COMPLEX128;

	return has ? tmesh_dtype_name(dtype) : NULL;
}

static bool is_half(enum tmesh_dtype dtype)
{
	return dtype == TMESH_INT4 || dtype == TMESH_UINT4 || dtype == TMESH_FLOAT4_E2M1FN;
}

static void *refuse_dtype(struct state *st, enum tmesh_dtype dtype)
{
	if (is_half(dtype))
		return raise_code(
			st, EOPNOTSUPP,
			"NumPy has no %s with two elements in each byte: "
			"view(\"uint8\").numpy() shows the bytes, the first element in the "
			"low half",
			tmesh_dtype_name(dtype));
	return raise_code(
		st, EOPNOTSUPP,
		"NumPy has no %s without the package ml_dtypes: install it; or "
		"view(\"uint8\").numpy() shows the bytes, and DLPack hands the elements to "
		"others",
		tmesh_dtype_name(dtype));
}

/* Return the type of ml_dtypes, if it is installed. NULL with an exception. */
static PyObject *extended(struct state *st, enum tmesh_dtype dtype)
{
	PyObject *name = PyUnicode_FromString(tmesh_dtype_name(dtype));
	PyObject *found = name ? call_python("tmesh.elements", "numpy_type", name) : NULL;

	Py_XDECREF(name);
	if (found != Py_None)
		return found;
	Py_DECREF(found);
	return refuse_dtype(st, dtype);
}

/* Return numpy.ndarray and the dtype object, borrowed. They are looked up once. */
static int load(struct state *st, enum tmesh_dtype dtype, PyObject **ndarray, PyObject **object)
{
	PyObject *numpy;

	*ndarray = st->ndarray;
	*object = st->numpy_dtypes[dtype];
	if (*object)
		return 0;
	numpy = PyImport_ImportModule("numpy");
	if (!numpy)
		return -1;
	if (!st->ndarray)
		st->ndarray = PyObject_GetAttrString(numpy, "ndarray");
	if (st->ndarray)
		st->numpy_dtypes[dtype] =
			numpy_name(dtype)
				? PyObject_CallMethod(numpy, "dtype", "s", numpy_name(dtype))
				: extended(st, dtype);
	Py_DECREF(numpy);
	*ndarray = st->ndarray;
	*object = st->numpy_dtypes[dtype];
	return *object ? 0 : -1;
}

/* Return the bytes from the lowest element to the one with all indices 0, and the bytes from there
 * to the end of the highest. */
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

/* @before: bytes from its start to the element with all indices 0. */
static PyObject *export_new(struct tensor *self, enum view_kind kind, Py_ssize_t *before)
{
	struct export *export =
		(struct export *)PyType_GenericAlloc(state_of(self)->export_type, 0);
	Py_ssize_t after;
	void *data;

	if (!export)
		return NULL;
	if (tensor_view_begin(self, kind, &data, &export->writable)) {
		Py_DECREF(export);
		return NULL;
	}
	export->tensor = self;
	span(self, before, &after);
	export->start = (char *)data - *before;
	export->bytes = *before + after;
	place_list(&export->place, self, data);
	return (PyObject *)export;
}

/* Most tensors are contiguous, and without strides NumPy has less to check. */
static PyObject *strides_or_none(const struct tensor *self)
{
	if (!tmesh_layout_is_contiguous(tmesh_tensor_layout(self->tensor)))
		return strides_of(self);
	return Py_NewRef(Py_None);
}

static PyObject *array_new(struct tensor *self, enum view_kind kind)
{
	const struct tmesh_layout *layout = tmesh_tensor_layout(self->tensor);
	PyObject *ndarray, *dtype, *array = NULL, *args = NULL, *strides, *export;
	Py_ssize_t before;

	if (load(state_of(self), layout->dtype, &ndarray, &dtype))
		return NULL;
	export = export_new(self, kind, &before);
	if (!export)
		return NULL;
	strides = strides_or_none(self);
	if (strides)
		args = Py_BuildValue("NOOnN", tuple_from_ints(layout->shape, layout->ndim), dtype,
				     export, before, strides);
	if (args)
		array = PyObject_CallObject(ndarray, args);
	Py_XDECREF(args);
	Py_DECREF(export);
	return array;
}

/* The names are the protocol's. The data is an Export rather than an address, so that it counts as
 * a view. */
PyObject *get_array_interface(PyObject *object, void *unused)
{
	struct tensor *self = (struct tensor *)object;
	const struct tmesh_layout *layout;
	PyObject *export, *strides;
	Py_ssize_t before;
	const char *name;

	if (!tensor_get(self))
		return NULL;
	layout = tmesh_tensor_layout(self->tensor);
	name = numpy_name(layout->dtype);
	if (!name) {
		/* After this exception NumPy asks __array__(). */
		PyErr_Format(PyExc_AttributeError, "the array interface has no %s",
			     tmesh_dtype_name(layout->dtype));
		return NULL;
	}
	export = export_new(self, VIEW_ANY, &before);
	strides = export ? strides_or_none(self) : NULL;
	if (!strides) {
		Py_XDECREF(export);
		return NULL;
	}
	/* The kind is the first letter of the name: bool, int, uint, float, complex. */
	return Py_BuildValue("{sisNsNsNsnsN}", "version", 3, "shape",
			     tuple_from_ints(layout->shape, layout->ndim), "typestr",
			     PyUnicode_FromFormat("%c%c%d", self->itemsize > 1 ? '<' : '|', name[0],
						  (int)self->itemsize),
			     "data", export, "offset", before, "strides", strides);
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
	if (writable != Py_None) {
		int yes = PyObject_IsTrue(writable);

		if (yes < 0)
			return NULL;
		kind = yes ? VIEW_WRITE : VIEW_READ;
	}
	if (!tensor_get((struct tensor *)object))
		return NULL;
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

/* Implement __array__(). Without it NumPy would make an array of objects of elements that the
 * buffer protocol cannot describe. */
PyObject *tensor_array(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"dtype", "copy", NULL};
	PyObject *dtype = Py_None, *copy = Py_None, *array, *result;
	int copies;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:__array__", names, &dtype, &copy))
		return NULL;
	/* None counts as no: NumPy leaves the choice to us. */
	copies = PyObject_IsTrue(copy);
	if (copies < 0 || !tensor_get((struct tensor *)object))
		return NULL;
	array = array_new((struct tensor *)object, VIEW_ANY);
	if (!array || (dtype == Py_None && !copies))
		return array;
	result = convert(array, dtype, copy);
	Py_DECREF(array);
	return result;
}
