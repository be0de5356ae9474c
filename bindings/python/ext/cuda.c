/* SPDX-License-Identifier: MIT */
/* libtmesh-cuda, which is loaded at the first call, and the functions of tmesh.cuda that make
 * arrays and refs. */
#include "cuda_handle.h"

#include <unistd.h>

#include "common/dlpack_tensor.h"

#define REGION_CAPSULE "tmesh.cuda.region"

struct tmesh_cuda_api cuda_calls;

/* Return this process's libtmesh-cuda object; NULL with an exception. A failed load is tried again
 * at the next call, as a library may be installed meanwhile. A forked child cannot use the parent's
 * driver. It gets the driver's error, or a driver of its own if the parent has not begun with one.
 */
static struct tmesh_cuda *get_cuda(struct state *st)
{
	static struct tmesh_cuda *cuda;
	static pid_t owner;
	static bool loaded;
	struct tmesh_cuda *opened = NULL;
	struct tmesh_error err;
	const char *name;
	int rc = 0;

	if (cuda && owner == getpid())
		return cuda;
	if (!loaded) {
		name = secure_getenv("TMESH_CUDA_LIBRARY");
		rc = tmesh_cuda_api_load(&cuda_calls, name ? name : TMESH_CUDA_LIBRARY, &err);
	}
	if (rc)
		return raise_error(st, &err);
	loaded = true;
	WITHOUT_GIL(rc = cuda_calls.cuda_default(&opened, &err));
	if (rc)
		return raise_error(st, &err);
	cuda = opened;
	owner = getpid();
	return cuda;
}

static int dtype_from_text(struct state *st, PyObject *object, enum tmesh_dtype *dtype)
{
	Py_ssize_t length;
	const char *text =
		PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &length) : NULL;

	PyErr_Clear();
	*dtype = text && (Py_ssize_t)strlen(text) == length ? tmesh_dtype_from_name(text)
							    : TMESH_DTYPE_INVALID;
	/* Types of 4 bits are refused: strides count elements of whole bytes. */
	if (*dtype != TMESH_DTYPE_INVALID && tmesh_dtype_bits(*dtype) >= 8)
		return 0;
	raise_code(st, EINVAL, "%R is no dtype of an array on a GPU", object);
	return -1;
}

/* @strides: None for a contiguous layout. */
static int layout_from_objects(struct state *st, PyObject *dtype_object, PyObject *shape_object,
			       PyObject *strides_object, struct tmesh_layout *layout)
{
	int64_t shape[TMESH_MAX_DIMS], strides[TMESH_MAX_DIMS];
	enum tmesh_dtype dtype;
	struct tmesh_error err;
	int32_t ndim, count;

	if (dtype_from_text(st, dtype_object, &dtype) ||
	    shape_from_object(st, shape_object, &ndim, shape))
		return -1;
	if (tmesh_layout_contiguous(layout, dtype, ndim, shape, &err)) {
		raise_error(st, &err);
		return -1;
	}
	if (strides_object == Py_None)
		return 0;
	if (shape_from_object(st, strides_object, &count, strides))
		return -1;
	if (count != ndim) {
		raise_code(st, EINVAL, "%d strides for %d dimensions", (int)count, (int)ndim);
		return -1;
	}
	memcpy(layout->strides, strides, (size_t)ndim * sizeof(*strides));
	return 0;
}

static PyObject *module_cuda_load(PyObject *module, PyObject *unused)
{
	if (!get_cuda(PyModule_GetState(module)))
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *module_cuda_alloc(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	PyObject *shape, *dtype;
	struct tmesh_cuda_memory *memory;
	int device, alone, or_host, rc;
	struct tmesh_layout layout;
	struct tmesh_error err;
	struct tmesh_cuda *cuda;
	uint64_t bytes;

	if (!PyArg_ParseTuple(args, "OOipp:cuda_alloc", &shape, &dtype, &device, &alone,
			      &or_host) ||
	    layout_from_objects(st, dtype, shape, Py_None, &layout))
		return NULL;
	if (tmesh_layout_check(&layout, INT64_MAX, &bytes, &err))
		return raise_error(st, &err);
	cuda = get_cuda(st);
	if (!cuda)
		return NULL;
	WITHOUT_GIL(rc = cuda_calls.cuda_alloc(cuda, device, bytes ? bytes : 1,
					       (alone ? TMESH_CUDA_ALONE : 0) |
						       (or_host ? TMESH_CUDA_OR_HOST : 0),
					       &memory, &err));
	return rc ? raise_error(st, &err) : cuda_handle_new(st, memory, &layout);
}

static PyObject *module_cuda_open(PyObject *module, PyObject *args)
{
	struct tmesh_cuda_import_opts opts = {.size = sizeof(opts)};
	struct state *st = PyModule_GetState(module);
	struct tmesh_cuda_memory *memory;
	unsigned long long lease_ns;
	struct tmesh_layout layout;
	struct CUstream_st *stream;
	struct tmesh_error err;
	struct tmesh_cuda *cuda;
	const char *text;
	Py_ssize_t size;
	int writable, or_copy = 0, rc;

	if (!PyArg_ParseTuple(args, "s#piO&O&|p:cuda_open", &text, &size, &writable, &opts.device,
			      stream_argument, &stream, size_argument, &lease_ns, &or_copy))
		return NULL;
	opts.flags = or_copy ? TMESH_CUDA_OR_STAGE : 0;
	opts.rights = writable ? TMESH_READ | TMESH_WRITE : TMESH_READ;
	opts.lease_ns = lease_ns;
	cuda = get_cuda(st);
	if (!cuda)
		return NULL;
	WITHOUT_GIL(rc = cuda_calls.cuda_open_ref(cuda, text, (size_t)size, &opts, stream, &memory,
						  &layout, &err));
	return rc ? raise_error(st, &err) : cuda_handle_new(st, memory, &layout);
}

static PyObject *module_cuda_open_kept(PyObject *module, PyObject *args)
{
	struct tmesh_cuda_import_opts opts = {.size = sizeof(opts)};
	struct state *st = PyModule_GetState(module);
	PyObject *name_object, *uid_object;
	struct tmesh_cuda_memory *memory;
	unsigned long long lease_ns;
	struct tmesh_layout layout;
	struct tmesh_error err;
	struct tmesh_cuda *cuda;
	const char *name;
	int writable, rc;
	uid_t uid;

	if (!PyArg_ParseTuple(args, "OOpiO&:cuda_open_kept", &name_object, &uid_object, &writable,
			      &opts.device, size_argument, &lease_ns) ||
	    kept_name(st, name_object, uid_object, &name, &uid))
		return NULL;
	opts.rights = writable ? TMESH_READ | TMESH_WRITE : TMESH_READ;
	opts.lease_ns = lease_ns;
	cuda = get_cuda(st);
	if (!cuda)
		return NULL;
	WITHOUT_GIL(rc = cuda_calls.cuda_kept_open(cuda, name, uid, &opts, &memory, &layout, &err));
	return rc ? raise_error(st, &err) : cuda_handle_new(st, memory, &layout);
}

/* Return the bytes from the lowest element to the end of the last one. @low: the place of the
 * lowest element, counted from the element with all indices 0. */
static int span_of(struct state *st, const struct tmesh_layout *layout, int64_t *low,
		   uint64_t *bytes)
{
	int64_t item = tmesh_dtype_bits(layout->dtype) / 8, high = 0, step, size;
	bool over = false;

	*low = 0;
	for (int i = 0; i < layout->ndim; i++) {
		int64_t *end = layout->strides[i] < 0 ? low : &high;

		if (!layout->shape[i])
			continue;
		over |= __builtin_mul_overflow(layout->shape[i] - 1, layout->strides[i], &step);
		over |= __builtin_add_overflow(*end, step, end);
	}
	over |= __builtin_sub_overflow(high, *low, &size) ||
		__builtin_add_overflow(size, 1, &size) ||
		__builtin_mul_overflow(size, item, &size) ||
		__builtin_mul_overflow(*low, item, low);
	if (over) {
		raise_code(st, EOVERFLOW, "the strides lead further than 64 bits");
		return -1;
	}
	*bytes = (uint64_t)size;
	return 0;
}

/* Give the array back when the last user of its memory is done. Any thread may call this, even
 * after the interpreter has ended. */
static void give_back(void *array)
{
	PyGILState_STATE gil;

	if (!Py_IsInitialized())
		return;
	gil = PyGILState_Ensure();
	Py_DECREF((PyObject *)array);
	PyGILState_Release(gil);
}

static PyObject *module_cuda_lend(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	PyObject *array, *shape, *dtype, *strides;
	struct tmesh_cuda_memory *whole, *part;
	unsigned long long pointer;
	struct tmesh_layout layout;
	struct tmesh_error err;
	struct tmesh_cuda *cuda;
	uint64_t offset, bytes;
	int64_t low;
	int rc;

	if (!PyArg_ParseTuple(args, "OO&OOO:cuda_lend", &array, size_argument, &pointer, &shape,
			      &dtype, &strides) ||
	    layout_from_objects(st, dtype, shape, strides, &layout) ||
	    span_of(st, &layout, &low, &bytes))
		return NULL;
	cuda = get_cuda(st);
	if (!cuda)
		return NULL;
	Py_INCREF(array);
	Py_BEGIN_ALLOW_THREADS;
	rc = cuda_calls.cuda_find(cuda, pointer, &whole, &offset, &err);
	if (!rc) {
		/* A start before the memory wraps around to a large number, so the library refuses
		 * it. */
		rc = cuda_calls.cuda_slice(whole, offset + (uint64_t)low, bytes, give_back, array,
					   &part, &err);
		cuda_calls.cuda_memory_unref(whole);
	}
	Py_END_ALLOW_THREADS;
	if (rc) {
		Py_DECREF(array);
		return raise_error(st, &err);
	}
	layout.offset = 0 - (uint64_t)low;
	return cuda_handle_new(st, part, &layout);
}

static void region_free(PyObject *capsule)
{
	struct tmesh_region *region = PyCapsule_GetPointer(capsule, REGION_CAPSULE);

	WITHOUT_GIL(cuda_calls.region_unref(region));
}

/* Return (@text, a capsule that keeps its token valid, or None). Take over @region, also on
 * failure. */
static PyObject *shared(const char *text, struct tmesh_region *region)
{
	PyObject *capsule;

	if (!region)
		return Py_BuildValue("(sO)", text, Py_None);
	capsule = PyCapsule_New(region, REGION_CAPSULE, region_free);
	if (capsule)
		return Py_BuildValue("(sN)", text, capsule);
	WITHOUT_GIL(cuda_calls.region_unref(region));
	return NULL;
}

static PyObject *module_cuda_share(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	PyObject *shape, *dtype, *strides;
	struct tmesh_region *region = NULL;
	struct tmesh_cuda_memory *memory;
	unsigned long long pointer;
	struct tmesh_layout layout;
	struct CUstream_st *stream;
	char text[TMESH_REF_SIZE];
	struct tmesh_error err;
	struct tmesh_cuda *cuda;
	int rc;

	if (!PyArg_ParseTuple(args, "O&OOOO&:cuda_share", size_argument, &pointer, &shape, &dtype,
			      &strides, stream_argument, &stream) ||
	    layout_from_objects(st, dtype, shape, strides, &layout))
		return NULL;
	cuda = get_cuda(st);
	if (!cuda)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	rc = cuda_calls.cuda_find(cuda, pointer, &memory, &layout.offset, &err);
	if (!rc) {
		rc = cuda_calls.cuda_share(memory, &layout, stream, text, sizeof(text), &err);
		cuda_calls.cuda_memory_unref(memory);
	} else if (rc == -ENOENT) {
		layout.offset = 0;
		rc = cuda_calls.cuda_share_ipc(cuda, pointer, &layout, stream, text, sizeof(text),
					       &region, &err);
	}
	Py_END_ALLOW_THREADS;
	return rc ? raise_error(st, &err) : shared(text, region);
}

/* Read an array's capsule without consuming it: the caller keeps the array. */
static PyObject *module_cuda_look(PyObject *module, PyObject *capsule)
{
	struct state *st = PyModule_GetState(module);
	struct DLManagedTensor *managed = plain_of_capsule(st, capsule);
	PyObject *shape, *strides;
	const struct dl_tensor *dl;
	size_t dtype;

	if (!managed)
		return NULL;
	dl = &managed->dl_tensor;
	if (dl->ndim < 0 || dl->ndim > TMESH_MAX_DIMS)
		return raise_code(st, EINVAL, "%d dimensions: a tensor has at most %d",
				  (int)dl->ndim, TMESH_MAX_DIMS);
	for (dtype = 0; dtype < DL_TYPES; dtype++)
		if (dl_types[dtype].lanes && dl_types[dtype].code == dl->dtype.code &&
		    dl_types[dtype].bits == dl->dtype.bits &&
		    dl_types[dtype].lanes == dl->dtype.lanes)
			break;
	if (dtype == DL_TYPES)
		return raise_code(st, EINVAL,
				  "no dtype of a tensor: DLPack's code %d, %d bits, %d lanes",
				  dl->dtype.code, dl->dtype.bits, dl->dtype.lanes);
	shape = tuple_from_ints(dl->shape, dl->ndim);
	if (!shape)
		return NULL;
	strides = dl->strides ? tuple_from_ints(dl->strides, dl->ndim) : Py_BuildValue("");
	if (!strides) {
		Py_DECREF(shape);
		return NULL;
	}
	return Py_BuildValue("(KNsN)",
			     (unsigned long long)((uint64_t)(uintptr_t)dl->data + dl->byte_offset),
			     shape, tmesh_dtype_name((enum tmesh_dtype)dtype), strides);
}

static PyObject *module_cuda_trim(PyObject *module, PyObject *unused)
{
	struct tmesh_cuda *cuda = get_cuda(PyModule_GetState(module));

	if (!cuda)
		return NULL;
	WITHOUT_GIL(cuda_calls.cuda_trim(cuda));
	Py_RETURN_NONE;
}

static PyObject *module_cuda_capture(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_cuda *cuda;
	struct tmesh_error err;
	int device, begin, rc;

	if (!PyArg_ParseTuple(args, "ip:cuda_capture", &device, &begin))
		return NULL;
	cuda = get_cuda(st);
	if (!cuda)
		return NULL;
	WITHOUT_GIL(rc = begin ? cuda_calls.cuda_capture_begin(cuda, device, &err)
			       : cuda_calls.cuda_capture_end(cuda, device, &err));
	if (rc)
		return raise_error(st, &err);
	Py_RETURN_NONE;
}

static PyObject *module_cuda_stats(PyObject *module, PyObject *number)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_cuda_stats stats = {.size = sizeof(stats)};
	struct tmesh_cuda *cuda;
	int device, rc;

	if (!PyArg_Parse(number, "i", &device))
		return NULL;
	cuda = get_cuda(st);
	if (!cuda)
		return NULL;
	WITHOUT_GIL(rc = cuda_calls.cuda_stats(cuda, device, &stats));
	if (rc)
		return raise_code(st, -rc, "there is no device %d", device);
	return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsKsKsKsKsKsK}", "bytes_used", stats.bytes_used,
			     "bytes_reserved", stats.bytes_reserved, "bytes_pending_free",
			     stats.bytes_pending_free, "blocks", stats.blocks, "allocs",
			     stats.allocs, "reused", stats.reused, "imported_bytes",
			     stats.imported_bytes, "registered_bytes", stats.registered_bytes,
			     "staged_copies", stats.staged_copies, "staged_bytes",
			     stats.staged_bytes, "host_fallbacks", stats.host_fallbacks,
			     "host_waits", stats.host_waits, "taken", stats.taken, "bytes_waiting",
			     stats.bytes_waiting, "writable_instead", stats.writable_instead);
}

static PyMethodDef functions[] = {
	{"cuda_load", module_cuda_load, METH_NOARGS,
	 "cuda_load()\n--\n\nLoad libtmesh-cuda and its driver, or say why not."},
	{"cuda_alloc", module_cuda_alloc, METH_VARARGS,
	 "cuda_alloc(shape, dtype, device, alone, or_host, /)\n--\n\nA CudaHandle."},
	{"cuda_open", module_cuda_open, METH_VARARGS,
	 "cuda_open(ref, writable, device, stream, lease_ns, or_copy=False, /)\n--\n\nA "
	 "CudaHandle."},
	{"cuda_open_kept", module_cuda_open_kept, METH_VARARGS,
	 "cuda_open_kept(name, uid, writable, device, lease_ns, /)\n--\n\nA CudaHandle."},
	{"cuda_lend", module_cuda_lend, METH_VARARGS,
	 "cuda_lend(array, pointer, shape, dtype, strides, /)\n--\n\n"
	 "A CudaHandle of the array's memory, which keeps the array."},
	{"cuda_share", module_cuda_share, METH_VARARGS,
	 "cuda_share(pointer, shape, dtype, strides, stream, /)\n--\n\n"
	 "(ref as JSON, what keeps its token good or None)."},
	{"cuda_capture", module_cuda_capture, METH_VARARGS,
	 "cuda_capture(device, begin, /)\n--\n\nA capture begins, or has ended."},
	{"cuda_trim", module_cuda_trim, METH_NOARGS,
	 "cuda_trim()\n--\n\nGive the driver the blocks in which no array lies."},
	{"cuda_stats", module_cuda_stats, METH_O,
	 "cuda_stats(device, /)\n--\n\nThe counters of libtmesh-cuda; -1: of all devices."},
	{"cuda_look", module_cuda_look, METH_O,
	 "cuda_look(capsule, /)\n--\n\n"
	 "(pointer, shape, dtype, strides or None) of what an unversioned DLPack capsule holds."},
	{NULL},
};

int cuda_add(PyObject *module, struct state *st)
{
	st->cuda_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &cuda_handle_spec, NULL);
	if (!st->cuda_type || PyModule_AddType(module, st->cuda_type))
		return -1;
	return PyModule_AddFunctions(module, functions);
}
