/* SPDX-License-Identifier: MIT */
/* Converters of arguments: shapes, dtypes and the options of a region. */
#include "binding.h"

#include <limits.h>
#include <time.h>

#define ID_DIGITS 16

int size_argument(PyObject *object, void *value)
{
	unsigned long long number = PyLong_AsUnsignedLongLong(object);

	if (number == (unsigned long long)-1 && PyErr_Occurred())
		return 0;
	*(unsigned long long *)value = number;
	return 1;
}

int uint_argument(PyObject *object, void *value)
{
	unsigned long long number;

	if (!size_argument(object, &number))
		return 0;
	if (number > UINT_MAX) {
		PyErr_SetString(PyExc_OverflowError, "the number does not fit 32 bits");
		return 0;
	}
	*(unsigned int *)value = (unsigned int)number;
	return 1;
}

int timeout_from_object(struct state *st, PyObject *object, int64_t *ns)
{
	double seconds;

	*ns = -1;
	if (!object || object == Py_None)
		return 0;
	seconds = PyFloat_AsDouble(object);
	if (seconds == -1 && PyErr_Occurred())
		return -1;
	if (!(seconds >= 0)) {
		raise_code(st, EINVAL, "timeout is None or at least 0 seconds");
		return -1;
	}
	*ns = seconds < 9e9 ? (int64_t)(seconds * 1e9) : -1;
	return 0;
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

int64_t deadline_after(int64_t timeout_ns)
{
	int64_t end;

	return timeout_ns < 0 || __builtin_add_overflow(now_ns(), timeout_ns, &end) ? -1 : end;
}

int64_t left_until(int64_t end)
{
	int64_t left = end < 0 ? -1 : end - now_ns();

	return end < 0 || left > 0 ? left : 0;
}

/* Convert one dimension. Truth values and floats are refused. */
static int dimension(struct state *st, PyObject *object, int64_t *value)
{
	PyObject *index = PyBool_Check(object) ? NULL : PyNumber_Index(object);

	if (!index) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_TypeError, "a shape is made of integers");
		return -1;
	}
	*value = PyLong_AsLongLong(index);
	Py_DECREF(index);
	if (*value == -1 && PyErr_Occurred()) {
		PyErr_Clear();
		raise_code(st, EOVERFLOW, "a dimension does not fit 64 bits");
		return -1;
	}
	return 0;
}

int shape_from_object(struct state *st, PyObject *object, int32_t *ndim, int64_t *shape)
{
	PyObject *tuple;
	Py_ssize_t count;

	if (PyIndex_Check(object)) {
		*ndim = 1;
		return dimension(st, object, &shape[0]);
	}
	if (PyUnicode_Check(object) || PyBytes_Check(object)) {
		PyErr_SetString(PyExc_TypeError, "a shape is an integer or a sequence of integers");
		return -1;
	}
	tuple = PySequence_Tuple(object);
	if (!tuple) {
		if (PyErr_ExceptionMatches(PyExc_TypeError))
			PyErr_Format(PyExc_TypeError,
				     "a shape is an integer or a sequence of integers, not %R",
				     object);
		return -1;
	}
	count = PyTuple_Size(tuple);
	if (count > TMESH_MAX_DIMS) {
		raise_code(st, EINVAL, "%zd dimensions: a tensor has at most %d", count,
			   TMESH_MAX_DIMS);
		goto fail;
	}
	for (Py_ssize_t i = 0; i < count; i++)
		if (dimension(st, PyTuple_GetItem(tuple, i), &shape[i]))
			goto fail;
	*ndim = (int32_t)count;
	Py_DECREF(tuple);
	return 0;
fail:
	Py_DECREF(tuple);
	return -1;
}

PyObject *tuple_from_ints(const int64_t *values, int32_t count)
{
	PyObject *tuple = PyTuple_New(count);

	for (int32_t i = 0; tuple && i < count; i++) {
		PyObject *value = PyLong_FromLongLong(values[i]);

		if (!value || PyTuple_SetItem(tuple, i, value)) {
			Py_DECREF(tuple);
			return NULL;
		}
	}
	return tuple;
}

PyObject *text_from_device(const struct tmesh_layout *layout)
{
	if (layout->device_type == TMESH_DEVICE_CPU)
		return PyUnicode_FromString("cpu");
	return PyUnicode_FromFormat("cuda:%d", (int)layout->device_id);
}

void object_free(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	PyObject_Free(object);
	Py_DECREF(type);
}

void list_add(PyObject **list, PyObject *item)
{
	if (!item || PyList_Append(*list, item))
		Py_CLEAR(*list);
	Py_XDECREF(item);
}

PyObject *list_of_items(void *items, size_t count, size_t size, PyObject *(*make)(const void *))
{
	PyObject *list = PyList_New(0);

	for (size_t i = 0; list && i < count; i++)
		list_add(&list, make((const char *)items + i * size));
	free(items);
	return list;
}

PyObject *text_from_id(uint64_t id)
{
	char text[ID_DIGITS];

	for (int i = ID_DIGITS; i--; id >>= 4)
		text[i] = "0123456789abcdef"[id & 15];
	return PyUnicode_FromStringAndSize(text, ID_DIGITS);
}

int id_from_text(const char *text, uint64_t *id)
{
	if (strlen(text) != ID_DIGITS || strspn(text, "0123456789abcdefABCDEF") != ID_DIGITS)
		return -1;
	*id = strtoull(text, NULL, 16);
	return 0;
}

/* Forget an exception which only says that an object has another type. Return -1 and keep any other
 * exception, such as an interrupt or a lack of memory. */
static int forget_unfit(void)
{
	if (!PyErr_Occurred())
		return 0;
	if (!PyErr_ExceptionMatches(PyExc_AttributeError) &&
	    !PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_ValueError))
		return -1;
	PyErr_Clear();
	return 0;
}

/* Return 0 if @object has no such attribute or a value other than @want, 1 if it is @want, -1 with
 * an exception. */
static int attribute_is(PyObject *object, const char *name, PyObject *want)
{
	PyObject *value = PyObject_GetAttrString(object, name);
	int is = value == want;

	Py_XDECREF(value);
	return forget_unfit() ? -1 : is;
}

/* Map the names that NumPy and Python have for types beside ours. */
static enum tmesh_dtype dtype_from_numpy(const char *name)
{
	static const struct {
		const char *name;
		enum tmesh_dtype dtype;
	} others[] = {
		{"b1", TMESH_BOOL},
		{"?", TMESH_BOOL},
		{"bool_", TMESH_BOOL},
		{"i1", TMESH_INT8},
		{"i2", TMESH_INT16},
		{"i4", TMESH_INT32},
		{"i8", TMESH_INT64},
		{"u1", TMESH_UINT8},
		{"u2", TMESH_UINT16},
		{"u4", TMESH_UINT32},
		{"u8", TMESH_UINT64},
		{"f2", TMESH_FLOAT16},
		{"f4", TMESH_FLOAT32},
		{"f8", TMESH_FLOAT64},
		{"c8", TMESH_COMPLEX64},
		{"c16", TMESH_COMPLEX128},
		{"int", TMESH_INT64},
		{"float", TMESH_FLOAT64},
		{"complex", TMESH_COMPLEX128},
		{"half", TMESH_FLOAT16},
		{"single", TMESH_FLOAT32},
		{"double", TMESH_FLOAT64},
		{"longlong", TMESH_INT64},
		{"ulonglong", TMESH_UINT64},
	};

	/* All machines that tmesh supports are little-endian, so ">" is refused. */
	if (*name && strchr("<=|", *name))
		name++;
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
		if (!strcmp(name, others[i].name))
			return others[i].dtype;
	return TMESH_DTYPE_INVALID;
}

/*
 * Return the name of an object that people pass as a dtype: "float32", float or numpy.float32 (a
 * class), numpy.dtype("float32") (its name), torch.float32 (which prints as its name).
 */
static PyObject *dtype_name(PyObject *object)
{
	PyObject *name;

	if (PyUnicode_Check(object)) {
		Py_INCREF(object);
		return object;
	}
	name = PyObject_GetAttrString(object, PyType_Check(object) ? "__name__" : "name");
	if (!name && !forget_unfit())
		name = PyObject_Str(object);
	return name;
}

int dtype_from_object(struct state *st, PyObject *object, enum tmesh_dtype *dtype)
{
	int foreign = attribute_is(object, "isnative", Py_False);
	PyObject *name;
	const char *text;

	if (foreign < 0)
		return -1;
	/* A big-endian NumPy dtype has the same name. */
	if (foreign) {
		raise_code(st, EINVAL, "%R has a foreign byte order; tensors are little-endian",
			   object);
		return -1;
	}
	name = dtype_name(object);
	text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
	if (text && !strncmp(text, "torch.", 6))
		text += 6;
	*dtype = text ? tmesh_dtype_from_name(text) : TMESH_DTYPE_INVALID;
	if (text && *dtype == TMESH_DTYPE_INVALID)
		*dtype = dtype_from_numpy(text);
	Py_XDECREF(name);
	if (forget_unfit())
		return -1;
	if (*dtype == TMESH_DTYPE_INVALID) {
		raise_code(st, EINVAL,
			   "unknown dtype %R; names are as in \"float32\", \"bfloat16\", \"f4\"",
			   object);
		return -1;
	}
	return 0;
}

/* Read None or an integer from 0 to @max. Return 1 if an integer was given. */
static int optional_int(struct state *st, const char *name, PyObject *object, long max, long *value)
{
	if (object == Py_None)
		return 0;
	*value = PyLong_AsLong(object);
	if (*value == -1 && PyErr_Occurred()) {
		if (!PyErr_ExceptionMatches(PyExc_OverflowError))
			return -1;
		PyErr_Clear();
	}
	if (*value < 0 || *value > max) {
		raise_code(st, EINVAL, "%s is out of range", name);
		return -1;
	}
	return 1;
}

static int huge_flag(PyObject *huge, uint32_t *flags)
{
	if (huge == Py_True) {
		*flags |= TMESH_REGION_HUGE;
	} else if (PyUnicode_Check(huge) && !PyUnicode_CompareWithASCIIString(huge, "try")) {
		*flags |= TMESH_REGION_TRY_HUGE;
	} else if (huge != Py_False) {
		PyErr_Format(PyExc_TypeError, "huge is False, True or \"try\", not %R", huge);
		return -1;
	}
	return 0;
}

int region_opts_from_args(struct state *st, const struct region_args *args,
			  struct tmesh_region_opts *opts)
{
	long value;
	int given;

	*opts = (struct tmesh_region_opts){
		.size = sizeof(*opts),
		.mode = args->mode,
		.hold_ms = args->hold_ms,
		.flags = args->pin ? 0 : TMESH_REGION_NO_PIN,
	};
	if (args->arena && arena_from_object(st, args->arena, &opts->arena))
		return -1;
	if (huge_flag(args->huge, &opts->flags))
		return -1;
	given = optional_int(st, "node", args->node, INT32_MAX, &value);
	if (given < 0)
		return -1;
	if (given) {
		opts->flags |= TMESH_REGION_NODE;
		opts->node = (int)value;
	}
	given = optional_int(st, "gid", args->gid, UINT32_MAX - 1l, &value);
	if (given < 0)
		return -1;
	if (given) {
		opts->flags |= TMESH_REGION_GID;
		opts->gid = (gid_t)value;
	}
	if (args->label != Py_None) {
		Py_ssize_t length;

		if (!PyUnicode_Check(args->label)) {
			PyErr_Format(PyExc_TypeError, "label is a str or None, not %R",
				     args->label);
			return -1;
		}
		opts->label = PyUnicode_AsUTF8AndSize(args->label, &length);
		if (!opts->label)
			return -1;
		if ((Py_ssize_t)strlen(opts->label) != length) {
			raise_code(st, EINVAL, "a label has no control characters");
			return -1;
		}
	}
	return 0;
}
