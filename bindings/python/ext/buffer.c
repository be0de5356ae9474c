/* SPDX-License-Identifier: MIT */
/* The buffer protocol: a Tensor shown through it, and anything that has it put into one. */
#include "binding.h"

#include <errno.h>
#include <string.h>

#include "common/dlpack_abi.h"

/* As NumPy names its own types, so that its arrays come out with the canonical dtypes. */
static const char *const formats[DTYPES] = {
	[TMESH_BOOL] = "?",	  [TMESH_INT8] = "b",	     [TMESH_INT16] = "h",
	[TMESH_INT32] = "i",	  [TMESH_INT64] = "l",	     [TMESH_UINT8] = "B",
	[TMESH_UINT16] = "H",	  [TMESH_UINT32] = "I",	     [TMESH_UINT64] = "L",
	[TMESH_FLOAT16] = "e",	  [TMESH_FLOAT32] = "f",     [TMESH_FLOAT64] = "d",
	[TMESH_COMPLEX64] = "Zf", [TMESH_COMPLEX128] = "Zd",
};
_Static_assert(sizeof(long) == 8, "l and L are 64 bits on the platforms that tmesh serves");

/* Contiguous in C or in Fortran order; dimensions of 0 or 1 say nothing. */
static bool is_contiguous(const struct tensor *self, bool fortran)
{
	Py_ssize_t want = self->itemsize;

	for (int i = 0; i < self->ndim; i++)
		if (!self->shape[i])
			return true;
	for (int i = 0; i < self->ndim; i++) {
		int dim = fortran ? i : self->ndim - 1 - i;

		if (self->shape[dim] != 1 && self->strides[dim] != want)
			return false;
		want *= self->shape[dim];
	}
	return true;
}

static const char *layout_refusal(const struct tensor *self, int flags)
{
	bool c = is_contiguous(self, false), fortran = is_contiguous(self, true);

	if ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS)
		return c || fortran ? NULL : "contiguous memory";
	if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS)
		return fortran ? NULL : "memory in Fortran order";
	if ((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS)
		return c ? NULL : "memory in C order";
	if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES)
		return c ? NULL : "memory without strides";
	return NULL;
}

int tensor_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
	struct tensor *self = (struct tensor *)object;
	struct tmesh_tensor *tensor = tensor_get(self);
	const char *format, *refusal;
	bool writable;
	void *data;

	view->obj = NULL;
	if (!tensor)
		return -1;
	format = formats[tmesh_tensor_layout(tensor)->dtype];
	if ((flags & (PyBUF_FORMAT | PyBUF_ND)) && !format) {
		raise_code(state_of(self), EOPNOTSUPP,
			   "Python's buffers have no %s: take view(\"uint8\"), or DLPack",
			   tmesh_dtype_name(tmesh_tensor_layout(tensor)->dtype));
		return -1;
	}
	/* Types of 4 bits are contiguous always. */
	refusal = self->itemsize ? layout_refusal(self, flags) : NULL;
	if (refusal) {
		raise_code(state_of(self), EOPNOTSUPP,
			   "the consumer wants %s, and this tensor is not: take numpy()", refusal);
		return -1;
	}
	if (tensor_view_begin(self, flags & PyBUF_WRITABLE ? VIEW_WRITE : VIEW_ANY, &data,
			      &writable))
		return -1;

	/* The view's reference on the Tensor, from tensor_view_begin(), is the exporter's. */
	*view = (Py_buffer){
		.buf = data,
		.obj = object,
		.len = (Py_ssize_t)tmesh_tensor_bytes(tensor),
		.readonly = !writable,
		.itemsize = format ? self->itemsize : 1,
		.format = flags & PyBUF_FORMAT ? (char *)format : NULL,
		/* Who asks for no shape sees a row of bytes. */
		.ndim = flags & PyBUF_ND ? self->ndim : 1,
		.shape = flags & PyBUF_ND ? self->shape : NULL,
		.strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->strides : NULL,
		.internal = (void *)(intptr_t)writable,
	};
	return 0;
}

void tensor_releasebuffer(PyObject *object, Py_buffer *view)
{
	struct tensor *self = (struct tensor *)object;

	/* The reference itself is dropped by PyBuffer_Release(). */
	Py_INCREF(object);
	tensor_view_end(self, view->internal != NULL);
}

/*
 * The DLPack type of one element of struct's and NumPy's format strings. Sizes come from the
 * buffer, since "l" means 4 or 8 bytes by its prefix; structures are refused.
 */
static int type_of_format(const char *format, Py_ssize_t itemsize, struct dl_data_type *type)
{
	static const char *const kinds[] = {
		[DL_INT] = "bhilqn",
		[DL_UINT] = "BHILQN",
		[DL_FLOAT] = "efd",
		[DL_BOOL] = "?",
	};
	bool big = false;

	if (!format)
		format = "B";
	if (*format && strchr("@=<>!", *format)) {
		big = (*format == '>' || *format == '!') && itemsize > 1;
		format++;
	}
	if (big || itemsize > 16)
		return -1;
	*type = (struct dl_data_type){.bits = (uint8_t)(itemsize * 8), .lanes = 1};
	if (!strcmp(format, "Zf") || !strcmp(format, "Zd")) {
		type->code = DL_COMPLEX;
		return 0;
	}
	if (strlen(format) != 1)
		return -1;
	for (uint8_t code = 0; code < sizeof(kinds) / sizeof(*kinds); code++) {
		if (kinds[code] && strchr(kinds[code], *format)) {
			type->code = code;
			return 0;
		}
	}
	return -1;
}

/* NumPy makes something of whatever it is given: of text, of None and of a dict too. */
static const char *way_out(const char *format)
{
	if (strchr(format, 'O'))
		return "Python objects are not shared: put() takes arrays and lists of numbers, "
		       "integers of at most 64 bits (list() a set or generator), and bundle() a "
		       "dict of arrays";
	if (strchr(format, 'w'))
		return "this is text; put() its bytes, which encode() gives";
	return "convert them, or view them as uint8";
}

/* Describe @view in @managed; @strides receives them in elements. */
static int describe(struct state *st, const Py_buffer *view, struct DLManagedTensor *managed,
		    int64_t *shape, int64_t *strides)
{
	struct dl_tensor *dl = &managed->dl_tensor;

	*managed = (struct DLManagedTensor){
		.dl_tensor =
			{
				.data = view->buf,
				.device = {.type = DL_DEVICE_CPU},
				.ndim = view->ndim,
				.shape = shape,
				.strides = strides,
			},
	};
	if (type_of_format(view->format, view->itemsize, &dl->dtype)) {
		raise_code(st, EOPNOTSUPP, "elements of format \"%s\" are no dtype of tmesh: %s",
			   view->format, way_out(view->format));
		return -1;
	}
	if (view->ndim > TMESH_MAX_DIMS) {
		raise_code(st, EINVAL, "%d dimensions: a tensor has at most %d", view->ndim,
			   TMESH_MAX_DIMS);
		return -1;
	}
	/* Contiguous exporters may leave strides out even where they were asked for: ctypes. */
	if (!view->strides)
		dl->strides = NULL;
	for (int i = 0; i < view->ndim; i++) {
		shape[i] = view->shape[i];
		if (!view->strides)
			continue;
		strides[i] = view->strides[i] / view->itemsize;
		if (view->strides[i] % view->itemsize && shape[i] > 1) {
			raise_code(st, EOPNOTSUPP,
				   "strides that are no multiple of the element size cannot be "
				   "described: make the array contiguous first");
			return -1;
		}
	}
	return 0;
}

/*
 * Buffers have no bfloat16 and the like. JAX's arrays of these have DLPack all the same, and
 * NumPy's may have.
 */
static struct tmesh_tensor *put_without_buffer(struct state *st, PyObject *object,
					       const struct tmesh_region_opts *opts)
{
	bool is_refused = PyErr_ExceptionMatches(PyExc_BufferError) ||
			  PyErr_ExceptionMatches(PyExc_ValueError);
	PyObject *type, *value, *traceback;
	struct tmesh_tensor *tensor;

	PyErr_Fetch(&type, &value, &traceback);
	if (!is_refused || !PyObject_HasAttrString(object, "__dlpack__")) {
		PyErr_Restore(type, value, traceback);
		return NULL;
	}
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(traceback);
	tensor = put_dlpack(st, object, opts);
	if (tensor || !PyErr_ExceptionMatches(PyExc_BufferError))
		return tensor;
	PyErr_Fetch(&type, &value, &traceback);
	raise_code(
		st, EOPNOTSUPP,
		"neither the buffer protocol nor DLPack gives these elements (%S): convert them, "
		"or view them as integers of their size",
		value ? value : type);
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(traceback);
	return NULL;
}

struct tmesh_tensor *put_buffer(struct state *st, PyObject *object,
				const struct tmesh_region_opts *opts)
{
	int64_t shape[TMESH_MAX_DIMS], strides[TMESH_MAX_DIMS];
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_tensor *tensor = NULL;
	struct DLManagedTensor managed;
	struct tmesh_error err;
	Py_buffer view;
	int rc;

	if (!ctx)
		return NULL;
	if (PyObject_GetBuffer(object, &view, PyBUF_RECORDS_RO))
		return put_without_buffer(st, object, opts);
	if (!describe(st, &view, &managed, shape, strides)) {
		Py_BEGIN_ALLOW_THREADS;
		rc = tmesh_tensor_from_dlpack(ctx, &managed, opts, &tensor, &err);
		Py_END_ALLOW_THREADS;
		if (rc)
			raise_error(st, &err);
	}
	PyBuffer_Release(&view);
	return tensor;
}
