/* SPDX-License-Identifier: MIT */
/* Elements as Python's own numbers: item(), tolist(), and conversions of a tensor with one
 * element. */
#include "binding.h"

#include <math.h>

/* A small float: a sign, @exponent bits of an exponent and @mantissa bits below them. */
enum small_kind {
	WITH_INFINITY, /* the highest exponent is infinity and NaN, as in IEEE 754 */
	WITH_NAN,      /* only the value with all bits set is NaN */
	FINITE,
};

static double from_small(uint32_t bits, int exponent, int mantissa, enum small_kind kind)
{
	uint32_t fraction = bits & ((1u << mantissa) - 1), top = (1u << exponent) - 1;
	uint32_t power = (bits >> mantissa) & top;
	int bias = (1 << (exponent - 1)) - 1;
	double value;

	if (kind == WITH_INFINITY && power == top)
		value = fraction ? NAN : INFINITY;
	else if (kind == WITH_NAN && power == top && fraction == (1u << mantissa) - 1)
		value = NAN;
	else if (power)
		value = ldexp((double)(fraction | 1u << mantissa), (int)power - bias - mantissa);
	else
		value = ldexp((double)fraction, 1 - bias - mantissa);
	return bits >> (exponent + mantissa) & 1 ? -value : value;
}

#define LOAD(type)                                   \
	({                                           \
		type loaded;                         \
		memcpy(&loaded, at, sizeof(loaded)); \
		loaded;                              \
	})

static PyObject *from_bytes(enum tmesh_dtype dtype, const void *at)
{
	switch (dtype) {
	case TMESH_BOOL:
		return PyBool_FromLong(LOAD(uint8_t));
	case TMESH_INT8:
		return PyLong_FromLong(LOAD(int8_t));
	case TMESH_INT16:
		return PyLong_FromLong(LOAD(int16_t));
	case TMESH_INT32:
		return PyLong_FromLong(LOAD(int32_t));
	case TMESH_INT64:
		return PyLong_FromLongLong(LOAD(int64_t));
	case TMESH_UINT8:
		return PyLong_FromLong(LOAD(uint8_t));
	case TMESH_UINT16:
		return PyLong_FromLong(LOAD(uint16_t));
	case TMESH_UINT32:
		return PyLong_FromUnsignedLong(LOAD(uint32_t));
	case TMESH_UINT64:
		return PyLong_FromUnsignedLongLong(LOAD(uint64_t));
	case TMESH_FLOAT16:
		return PyFloat_FromDouble(from_small(LOAD(uint16_t), 5, 10, WITH_INFINITY));
	case TMESH_FLOAT32:
		return PyFloat_FromDouble((double)LOAD(float));
	case TMESH_FLOAT64:
		return PyFloat_FromDouble(LOAD(double));
	case TMESH_BFLOAT16:
		return PyFloat_FromDouble(from_small(LOAD(uint16_t), 8, 7, WITH_INFINITY));
	case TMESH_FLOAT8_E4M3FN:
		return PyFloat_FromDouble(from_small(LOAD(uint8_t), 4, 3, WITH_NAN));
	case TMESH_FLOAT8_E5M2:
		return PyFloat_FromDouble(from_small(LOAD(uint8_t), 5, 2, WITH_INFINITY));
	case TMESH_COMPLEX64: {
		struct {
			float real, imag;
		} value = LOAD(typeof(value));

		return PyComplex_FromDoubles((double)value.real, (double)value.imag);
	}
	case TMESH_COMPLEX128: {
		struct {
			double real, imag;
		} value = LOAD(typeof(value));

		return PyComplex_FromDoubles(value.real, value.imag);
	}
	default:
		PyErr_SetString(PyExc_SystemError, "an element type without values");
		return NULL;
	}
}

/* Read one of two values in a byte. The low half is the first. */
static PyObject *from_nibble(enum tmesh_dtype dtype, const uint8_t *data, int64_t index)
{
	uint32_t bits = (uint32_t)(data[index / 2] >> (index % 2 * 4)) & 15;

	if (dtype == TMESH_UINT4)
		return PyLong_FromLong((long)bits);
	if (dtype == TMESH_INT4)
		return PyLong_FromLong((long)(bits ^ 8) - 8);
	return PyFloat_FromDouble(from_small(bits, 2, 1, FINITE));
}

/* @index: elements from the one with all indices 0. */
static PyObject *element(const struct tensor *self, const void *data, int64_t index)
{
	enum tmesh_dtype dtype = tmesh_tensor_layout(self->tensor)->dtype;

	if (!self->itemsize)
		return from_nibble(dtype, data, index);
	return from_bytes(dtype, (const char *)data + index * self->itemsize);
}

static PyObject *nested(const struct tensor *self, const void *data, int dimension, int64_t index)
{
	const struct tmesh_layout *layout = tmesh_tensor_layout(self->tensor);
	PyObject *list;

	if (dimension == layout->ndim)
		return element(self, data, index);
	if (Py_EnterRecursiveCall(" in tolist()"))
		return NULL;
	list = PyList_New((Py_ssize_t)layout->shape[dimension]);
	for (int64_t i = 0; list && i < layout->shape[dimension]; i++) {
		PyObject *item =
			nested(self, data, dimension + 1, index + i * layout->strides[dimension]);

		if (!item || PyList_SetItem(list, (Py_ssize_t)i, item))
			Py_CLEAR(list);
	}
	Py_LeaveRecursiveCall();
	return list;
}

PyObject *tensor_tolist(PyObject *object, PyObject *unused)
{
	struct tensor *self = (struct tensor *)object;
	PyObject *list;
	bool writable;
	void *data;

	if (tensor_view_begin(self, VIEW_READ, &data, &writable))
		return NULL;
	list = nested(self, data, 0, 0);
	tensor_view_end(self, false);
	return list;
}

PyObject *tensor_element(PyObject *object, PyObject *unused)
{
	struct tensor *self = (struct tensor *)object;
	PyObject *number;
	bool writable;
	void *data;

	if (!tensor_get(self))
		return NULL;
	for (int i = 0; i < self->ndim; i++)
		if (self->shape[i] != 1)
			return raise_code(state_of(self), EINVAL,
					  "item() is for a tensor of one element; tolist() gives "
					  "all of them");
	if (tensor_view_begin(self, VIEW_READ, &data, &writable))
		return NULL;
	number = element(self, data, 0);
	tensor_view_end(self, false);
	return number;
}

/* Return the element of a tensor without dimensions. Larger tensors are refused: it would be
 * unclear which number is meant. */
static PyObject *scalar(PyObject *object, const char *what)
{
	struct tensor *self = (struct tensor *)object;

	if (!tensor_get(self))
		return NULL;
	if (self->ndim)
		return PyErr_Format(
			PyExc_TypeError,
			"only a tensor without dimensions is %s; item() gives the value of "
			"one element, tolist() all of them",
			what);
	return tensor_element(object, NULL);
}

static PyObject *as(PyTypeObject *type, PyObject *object, const char *what)
{
	PyObject *value = scalar(object, what);
	PyObject *number =
		value ? PyObject_CallFunctionObjArgs((PyObject *)type, value, NULL) : NULL;

	Py_XDECREF(value);
	return number;
}

PyObject *tensor_int(PyObject *object)
{
	return as(&PyLong_Type, object, "an integer");
}

PyObject *tensor_float(PyObject *object)
{
	return as(&PyFloat_Type, object, "a float");
}

PyObject *tensor_complex(PyObject *object, PyObject *unused)
{
	return as(&PyComplex_Type, object, "a complex number");
}

/* Convert an integer. Truth values are refused: they are a mistake as an index. */
PyObject *tensor_index(PyObject *object)
{
	PyObject *value = scalar(object, "an index");

	if (value && (!PyLong_Check(value) || PyBool_Check(value))) {
		Py_DECREF(value);
		PyErr_SetString(PyExc_TypeError, "only a tensor of integers is an index");
		return NULL;
	}
	return value;
}

int tensor_bool(PyObject *object)
{
	struct tensor *self = (struct tensor *)object;
	PyObject *value;
	int truth;

	if (!tensor_get(self))
		return -1;
	if (self->ndim) {
		raise_code(state_of(self), EINVAL,
			   "whether a tensor is true is not defined where it has dimensions: ask "
			   "\"is None\", len(), size, or numpy().any() or .all()");
		return -1;
	}
	value = tensor_element(object, NULL);
	truth = value ? PyObject_IsTrue(value) : -1;
	Py_XDECREF(value);
	return truth;
}
