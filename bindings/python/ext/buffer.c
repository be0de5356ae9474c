/* SPDX-License-Identifier: MIT */
/* The buffer protocol in both directions: buffers of a Tensor, and put() of an object that has a
 * buffer. */
#include "binding.h"

#include "common/dlpack_tensor.h"

/* The formats by which NumPy names its own types, so that its arrays have the canonical dtypes. */
static const char *const formats[DTYPES] = {
	[TMESH_BOOL] = "?",	  [TMESH_INT8] = "b",	     [TMESH_INT16] = "h",
	[TMESH_INT32] = "i",	  [TMESH_INT64] = "l",	     [TMESH_UINT8] = "B",
	[TMESH_UINT16] = "H",	  [TMESH_UINT32] = "I",	     [TMESH_UINT64] = "L",
	[TMESH_FLOAT16] = "e",	  [TMESH_FLOAT32] = "f",     [TMESH_FLOAT64] = "d",
	[TMESH_COMPLEX64] = "Zf", [TMESH_COMPLEX128] = "Zd",
};
_Static_assert(sizeof(long) == 8, "l and L are 64 bits on the platforms that tmesh serves");

/* Whether the tensor is contiguous in C or in Fortran order. The strides of dimensions of size 0 or
 * 1 do not matter. */
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
	/* Types of 4 bits are always contiguous. */
	refusal = self->itemsize ? layout_refusal(self, flags) : NULL;
	if (refusal) {
		raise_code(state_of(self), EOPNOTSUPP,
			   "the consumer wants %s, and this tensor is not: take numpy()", refusal);
		return -1;
	}
	if (tensor_view_begin(self, flags & PyBUF_WRITABLE ? VIEW_WRITE : VIEW_ANY, &data,
			      &writable))
		return -1;

	/* tensor_view_begin() took a reference on the Tensor, which now belongs to the exporter. */
	*view = (Py_buffer){
		.buf = data,
		.obj = object,
		.len = (Py_ssize_t)tmesh_tensor_bytes(tensor),
		.readonly = !writable,
		.itemsize = format ? self->itemsize : 1,
		.format = flags & PyBUF_FORMAT ? (char *)format : NULL,
		/* A consumer that asks for no shape gets a row of bytes. */
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

	/* PyBuffer_Release() drops the reference itself. */
	Py_INCREF(object);
	tensor_view_end(self, view->internal != NULL);
}

/*
 * Return the DLPack type of one element in a format string of struct or NumPy. The size comes from
 * the buffer, since "l" means 4 or 8 bytes, depending on its prefix. Structures are refused.
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

/* Return the remedy for a format that is refused. NumPy makes arrays even of text, None and
 * dicts. */
static const char *way_out(const char *format)
{
	if (strchr(format, 'O'))
		return "Python objects are not shared: give put() an array or a list of "
		       "numbers (integers of at most 64 bits; list() of a set), or bundle() a "
		       "dict";
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
	/* An exporter of contiguous memory may omit strides although they were requested: ctypes
	 * does. */
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
 * Buffers cannot describe bfloat16 and similar types. JAX's arrays of these types have DLPack, and
 * NumPy's may have it.
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

/* Copy large contents in pieces, and check for signals between two of them. */
#define PIECES_FROM (64u << 20)
#define PIECE_BYTES (16u << 20)
/* The size of a piece whose elements are not contiguous; they are packed into a buffer first. */
#define PACKED_BYTES (1u << 20)

/* The contents in C order, from the outermost dimension on. One step of dimension i has @bytes[i]
 * bytes. */
struct pieces {
	const struct dl_tensor *dl;
	size_t item;
	int64_t step[TMESH_MAX_DIMS]; /* of the source, in bytes */
	uint64_t bytes[TMESH_MAX_DIMS + 1];
	char *packed; /* NULL: they are contiguous */
	uint64_t most;
	struct tmesh_region *region;
	uint64_t done; /* of the region */
};

/* Describe @dl. Return false if it is small, or if the library has to check it as a whole. */
static bool describe_pieces(const struct dl_tensor *dl, struct pieces *pieces)
{
	uint64_t total;
	int64_t step;

	if (dl->device.type != DL_DEVICE_CPU || dl->ndim < 1 || dl->ndim > TMESH_MAX_DIMS ||
	    dl->dtype.lanes != 1 || dl->dtype.bits % 8 || !dl->data || !dl->shape)
		return false;
	pieces->dl = dl;
	pieces->item = total = dl->dtype.bits / 8;
	for (int i = dl->ndim - 1; i >= 0; i--) {
		pieces->bytes[i + 1] = total;
		step = (int64_t)total;
		if (dl->shape[i] <= 0 ||
		    __builtin_mul_overflow(total, (uint64_t)dl->shape[i], &total) ||
		    total > INT64_MAX ||
		    (dl->strides && dl->shape[i] > 1 &&
		     __builtin_mul_overflow(dl->strides[i], (int64_t)pieces->item, &step)))
			return false;
		pieces->step[i] = step;
	}
	pieces->bytes[0] = total;
	pieces->most = PIECE_BYTES;
	for (int i = 0; i < dl->ndim; i++)
		if (dl->shape[i] > 1 && pieces->step[i] != (int64_t)pieces->bytes[i + 1])
			pieces->most = PACKED_BYTES;
	return total >= PIECES_FROM;
}

/* Copy @count steps of dimension @dim so that their bytes are contiguous. */
static void pack(const struct pieces *pieces, int dim, int64_t count, const char *from, char *to)
{
	int last = pieces->dl->ndim - 1;
	size_t each = (size_t)pieces->bytes[dim + 1];

	while (last > dim && pieces->step[last] == (int64_t)pieces->bytes[last + 1])
		last--;
	if (last == dim && pieces->step[dim] == (int64_t)each) {
		memcpy(to, from, (size_t)count * each);
		return;
	}
	for (int64_t i = 0; i < count; i++, from += pieces->step[dim], to += each) {
		if (last > dim)
			pack(pieces, dim + 1, pieces->dl->shape[dim + 1], from, to);
		else
			memcpy(to, from, each);
	}
}

static int write_piece(struct state *st, struct pieces *pieces, int dim, int64_t count,
		       const char *from)
{
	uint64_t bytes = (uint64_t)count * pieces->bytes[dim + 1];
	struct tmesh_error err;
	int rc;

	Py_BEGIN_ALLOW_THREADS;
	if (pieces->packed)
		pack(pieces, dim, count, from, pieces->packed);
	rc = tmesh_region_write(pieces->region, pieces->done,
				pieces->packed ? pieces->packed : from, bytes, &err);
	Py_END_ALLOW_THREADS;
	pieces->done += bytes;
	if (rc)
		raise_error(st, &err);
	return rc || PyErr_CheckSignals() ? -1 : 0;
}

/* Copy dimension @dim and those within it; check for signals between two pieces. */
static int fill(struct state *st, struct pieces *pieces, int dim, const char *from)
{
	int64_t shape = pieces->dl->shape[dim], count;
	uint64_t each = pieces->bytes[dim + 1];
	int rc = 0;

	for (int64_t i = 0; !rc && i < shape; i += count) {
		count = each >= pieces->most ? 1 : (int64_t)(pieces->most / each);
		count = count < shape - i ? count : shape - i;
		rc = each > pieces->most ? fill(st, pieces, dim + 1, from)
					 : write_piece(st, pieces, dim, count, from);
		from += count * pieces->step[dim];
	}
	return rc;
}

static int seal_put(struct state *st, struct tmesh_tensor *tensor,
		    const struct tmesh_region_opts *opts)
{
	struct tmesh_error err;
	int rc;

	if (opts->flags & (TMESH_REGION_UNSEALED | TMESH_REGION_REUSE))
		return 0;
	WITHOUT_GIL(rc = tmesh_region_seal(tmesh_tensor_region(tensor), &err));
	if (rc)
		raise_error(st, &err);
	return rc;
}

static struct tmesh_tensor *put_pieces(struct state *st, struct pieces *pieces, unsigned int dtype,
				       const struct tmesh_region_opts *opts)
{
	const struct dl_tensor *dl = pieces->dl;
	struct tmesh_region_opts uninitialized = *opts;
	struct tmesh_tensor *tensor = NULL;
	struct tmesh_error err;
	int rc;

	uninitialized.flags |= TMESH_REGION_UNINITIALIZED;
	WITHOUT_GIL(rc = tmesh_tensor_create(context(st), dtype, dl->ndim, dl->shape,
					     &uninitialized, &tensor, &err));
	if (rc)
		return raise_error(st, &err);
	pieces->region = tmesh_tensor_region(tensor);
	pieces->done = tmesh_tensor_layout(tensor)->offset;
	rc = fill(st, pieces, 0, (const char *)dl->data + dl->byte_offset);
	if (!rc)
		rc = seal_put(st, tensor, opts);
	if (!rc)
		return tensor;
	WITHOUT_GIL(tmesh_tensor_unref(tensor));
	return NULL;
}

bool put_in_pieces(struct state *st, const struct dl_tensor *dl,
		   const struct tmesh_region_opts *opts, struct tmesh_tensor **out)
{
	struct pieces pieces;
	unsigned int dtype = 0;

	if (opts->arena || !describe_pieces(dl, &pieces))
		return false;
	while (dtype < DL_TYPES && memcmp(&dl_types[dtype], &dl->dtype, sizeof(dl->dtype)))
		dtype++;
	if (dtype == DL_TYPES)
		return false;
	pieces.packed = pieces.most == PACKED_BYTES ? malloc(PACKED_BYTES) : NULL;
	if (pieces.most == PACKED_BYTES && !pieces.packed)
		*out = (struct tmesh_tensor *)PyErr_NoMemory();
	else
		*out = put_pieces(st, &pieces, dtype, opts);
	free(pieces.packed);
	return true;
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
	if (describe(st, &view, &managed, shape, strides)) {
		PyBuffer_Release(&view);
		return NULL;
	}
	if (!put_in_pieces(st, &managed.dl_tensor, opts, &tensor)) {
		WITHOUT_GIL(rc = tmesh_tensor_from_dlpack(ctx, &managed, opts, &tensor, &err));
		if (rc)
			raise_error(st, &err);
	}
	PyBuffer_Release(&view);
	return tensor;
}
