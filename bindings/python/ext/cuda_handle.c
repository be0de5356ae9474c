/* SPDX-License-Identifier: MIT */
/*
 * The C part of tmesh.cuda.Array: memory of libtmesh-cuda with the layout of the array in it. Each
 * call takes a reference of its own on the memory, since another thread may release it meanwhile.
 */
#include "cuda_handle.h"

/* The interval between two checks for Ctrl-C. */
#define SLICE_NS 100000000

static void cuda_memory_release(struct tmesh_cuda_memory *memory)
{
	WITHOUT_GIL(cuda_calls.cuda_memory_unref(memory));
}

PyObject *cuda_handle_new(struct state *st, struct tmesh_cuda_memory *memory,
			  const struct tmesh_layout *layout)
{
	PyObject *object = PyType_GenericAlloc(st->cuda_type, 0);
	struct cuda_handle *self = (struct cuda_handle *)object;

	if (!self) {
		cuda_memory_release(memory);
		return NULL;
	}
	self->memory = memory;
	self->layout = *layout;
	return object;
}

int stream_argument(PyObject *object, void *stream)
{
	*(void **)stream = PyLong_AsVoidPtr(object);
	return !PyErr_Occurred();
}

static struct state *state_of_handle(PyObject *object)
{
	return PyType_GetModuleState(Py_TYPE(object));
}

/* Run a call without the GIL, and give the reference back there, too. */
#define ON_MEMORY(memory, ...) WITHOUT_GIL(__VA_ARGS__; cuda_calls.cuda_memory_unref(memory))

/* Take a reference on the memory for the caller; NULL with an exception. */
static struct tmesh_cuda_memory *get_memory(PyObject *object)
{
	struct cuda_handle *self = (struct cuda_handle *)object;

	if (self->memory)
		return cuda_calls.cuda_memory_ref(self->memory);
	return raise_code(state_of_handle(object), EBADF, "the array was released");
}

/* Take the same reference and convert the number of a stream. */
static struct tmesh_cuda_memory *get_memory_and_stream(PyObject *object, PyObject *number,
						       struct CUstream_st **stream)
{
	return stream_argument(number, stream) ? get_memory(object) : NULL;
}

static PyObject *done(PyObject *object, int rc, const struct tmesh_error *err)
{
	if (rc)
		return raise_error(state_of_handle(object), err);
	Py_RETURN_NONE;
}

static PyObject *handle_release(PyObject *object, PyObject *unused)
{
	struct cuda_handle *self = (struct cuda_handle *)object;
	struct tmesh_cuda_memory *memory = self->memory;

	self->memory = NULL;
	if (memory)
		cuda_memory_release(memory);
	Py_RETURN_NONE;
}

static void handle_dealloc(PyObject *object)
{
	if (((struct cuda_handle *)object)->memory)
		cuda_memory_release(((struct cuda_handle *)object)->memory);
	object_free(object);
}

static PyObject *handle_info(PyObject *object, PyObject *unused)
{
	static const char *const kinds[] = {
		[TMESH_CUDA_HOST] = "host", [TMESH_CUDA_STAGED] = "staged",
		[TMESH_CUDA_OWN] = "own",   [TMESH_CUDA_IMPORTED] = "imported",
		[TMESH_CUDA_IPC] = "ipc",   [TMESH_CUDA_EXTERNAL] = "external",
	};
	const struct tmesh_layout *layout = &((struct cuda_handle *)object)->layout;
	struct tmesh_cuda_info info = {.size = sizeof(info)};
	struct tmesh_cuda_memory *memory = get_memory(object);
	struct tmesh_error err;
	const char *kind;
	int rc;

	if (!memory)
		return NULL;
	ON_MEMORY(memory, rc = cuda_calls.cuda_info(memory, &info, &err));
	if (rc)
		return raise_error(state_of_handle(object), &err);
	/* A newer library may have more kinds. */
	kind = (size_t)info.kind < sizeof(kinds) / sizeof(kinds[0]) ? kinds[info.kind] : NULL;
	return Py_BuildValue(
		"(siOOK)", kind ? kind : "unknown", info.resident < 0 ? info.device : info.resident,
		info.rights & TMESH_WRITE ? Py_True : Py_False, info.taken ? Py_True : Py_False,
		(unsigned long long)(info.pointer + layout->offset));
}

static PyObject *handle_share(PyObject *object, PyObject *number)
{
	struct cuda_handle *self = (struct cuda_handle *)object;
	struct tmesh_cuda_memory *memory;
	struct CUstream_st *stream;
	char text[TMESH_REF_SIZE];
	struct tmesh_error err;
	int rc;

	memory = get_memory_and_stream(object, number, &stream);
	if (!memory)
		return NULL;
	ON_MEMORY(memory, rc = cuda_calls.cuda_share(memory, &self->layout, stream, text,
						     sizeof(text), &err));
	return rc ? raise_error(state_of_handle(object), &err) : PyUnicode_FromString(text);
}

static PyObject *handle_keep(PyObject *object, PyObject *args)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts)};
	struct cuda_handle *self = (struct cuda_handle *)object;
	struct state *st = state_of_handle(object);
	PyObject *name_object, *lifetime, *gid;
	struct tmesh_cuda_memory *memory;
	struct CUstream_st *stream;
	struct tmesh_error err;
	const char *name;
	int replace, rc;

	if (!PyArg_ParseTuple(args, "OpOO&OO&:keep", &name_object, &replace, &lifetime,
			      uint_argument, &opts.mode, &gid, stream_argument, &stream) ||
	    keep_options(st, name_object, lifetime, gid, &opts, &name))
		return NULL;
	opts.flags |= replace ? TMESH_KEEPING_REPLACE : 0;
	memory = get_memory(object);
	if (!memory)
		return NULL;
	ON_MEMORY(memory,
		  rc = cuda_calls.cuda_keep(memory, name, &self->layout, stream, &opts, &err));
	return done(object, rc, &err);
}

static PyObject *handle_zero(PyObject *object, PyObject *number)
{
	struct tmesh_cuda_memory *memory;
	struct CUstream_st *stream;
	struct tmesh_error err;
	int rc;

	memory = get_memory_and_stream(object, number, &stream);
	if (!memory)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	rc = cuda_calls.cuda_zero(memory, stream, &err);
	/* New memory has no event, so the host waits. */
	if (!rc)
		rc = cuda_calls.cuda_record(memory, stream, &err);
	cuda_calls.cuda_memory_unref(memory);
	Py_END_ALLOW_THREADS;
	return done(object, rc, &err);
}

static PyObject *handle_wait(PyObject *object, PyObject *number)
{
	struct tmesh_cuda_memory *memory;
	struct CUstream_st *stream;
	struct tmesh_error err;
	int rc;

	memory = get_memory_and_stream(object, number, &stream);
	if (!memory)
		return NULL;
	ON_MEMORY(memory, rc = cuda_calls.cuda_wait(memory, stream, &err));
	return done(object, rc, &err);
}

static PyObject *handle_reclaim(PyObject *object, PyObject *timeout)
{
	struct state *st = state_of_handle(object);
	struct tmesh_cuda_memory *memory;
	struct tmesh_error err;
	int64_t end, left;
	int rc;

	if (timeout_from_object(st, timeout, &left))
		return NULL;
	memory = get_memory(object);
	if (!memory)
		return NULL;
	end = deadline_after(left);
	do {
		bool last = left >= 0 && left <= SLICE_NS;

		WITHOUT_GIL(rc = cuda_calls.cuda_reclaim(memory, last ? left : SLICE_NS, &err));
		if (rc != -ETIMEDOUT || last)
			break;
		left = left_until(end);
	} while (!PyErr_CheckSignals());
	cuda_memory_release(memory);
	return PyErr_Occurred() ? NULL : done(object, rc, &err);
}

static PyObject *handle_touch(PyObject *object, PyObject *unused)
{
	struct tmesh_cuda_info info = {.size = sizeof(info)};
	struct tmesh_cuda_memory *memory = get_memory(object);
	struct tmesh_error err;
	bool taken;
	int rc;

	if (!memory)
		return NULL;
	/* Call this first: it reports other errors of the memory. */
	Py_BEGIN_ALLOW_THREADS;
	rc = cuda_calls.cuda_info(memory, &info, &err);
	taken = !rc && cuda_calls.cuda_touch(memory);
	cuda_calls.cuda_memory_unref(memory);
	Py_END_ALLOW_THREADS;
	if (taken)
		return raise_code(state_of_handle(object), ESTALE, "the memory was taken back");
	return done(object, rc, &err);
}

static PyObject *handle_stage(PyObject *object, PyObject *back)
{
	struct tmesh_cuda_memory *memory;
	int backwards = PyObject_IsTrue(back), rc;
	struct tmesh_error err;

	memory = backwards < 0 ? NULL : get_memory(object);
	if (!memory)
		return NULL;
	ON_MEMORY(memory, rc = cuda_calls.cuda_stage(memory, backwards, &err));
	return done(object, rc, &err);
}

static PyObject *handle_dlpack(PyObject *object, PyObject *versioned)
{
	struct cuda_handle *self = (struct cuda_handle *)object;
	struct DLManagedTensorVersioned *managed;
	struct tmesh_cuda_memory *memory;
	struct DLManagedTensor *plain;
	struct tmesh_error err;
	int major = PyObject_IsTrue(versioned), rc;

	memory = major < 0 ? NULL : get_memory(object);
	if (!memory)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	if (major)
		rc = cuda_calls.cuda_to_dlpack_versioned(memory, &self->layout, 1, &managed, &err);
	else
		rc = cuda_calls.cuda_to_dlpack(memory, &self->layout, &plain, &err);
	cuda_calls.cuda_memory_unref(memory);
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(state_of_handle(object), &err);
	return major ? capsule_of_versioned(managed) : capsule_of_plain(plain);
}

static PyObject *get_shape(PyObject *object, void *unused)
{
	const struct tmesh_layout *layout = &((struct cuda_handle *)object)->layout;

	return tuple_from_ints(layout->shape, layout->ndim);
}

static PyObject *get_strides(PyObject *object, void *unused)
{
	const struct tmesh_layout *layout = &((struct cuda_handle *)object)->layout;

	return tuple_from_ints(layout->strides, layout->ndim);
}

static PyObject *get_dtype(PyObject *object, void *unused)
{
	return PyUnicode_FromString(tmesh_dtype_name(((struct cuda_handle *)object)->layout.dtype));
}

static PyObject *get_itemsize(PyObject *object, void *unused)
{
	return PyLong_FromLong(tmesh_dtype_bits(((struct cuda_handle *)object)->layout.dtype) / 8);
}

static PyObject *get_released(PyObject *object, void *unused)
{
	return PyBool_FromLong(!((struct cuda_handle *)object)->memory);
}

static PyMethodDef methods[] = {
	{"info", handle_info, METH_NOARGS,
	 "info($self, /)\n--\n\n(kind, GPU, writable, taken, pointer of the first element)."},
	{"share", handle_share, METH_O, "share($self, stream, /)\n--\n\nA ref, as JSON."},
	{"keep", handle_keep, METH_VARARGS,
	 "keep($self, name, replace, lifetime, mode, gid, stream, /)\n--\n\nUnder a name."},
	{"zero", handle_zero, METH_O, "zero($self, stream, /)\n--\n\nThe zeros are there then."},
	{"wait", handle_wait, METH_O,
	 "wait($self, stream, /)\n--\n\nLet the stream wait for the work that made the array."},
	{"reclaim", handle_reclaim, METH_O, "reclaim($self, timeout, /)\n--\n\nAs Array's."},
	{"touch", handle_touch, METH_NOARGS, "touch($self, /)\n--\n\nKeep the lease."},
	{"stage", handle_stage, METH_O, "stage($self, back, /)\n--\n\nAs Array's."},
	{"dlpack", handle_dlpack, METH_O, "dlpack($self, versioned, /)\n--\n\nA capsule."},
	{"release", handle_release, METH_NOARGS, "release($self, /)\n--\n\nAgain and again."},
	{NULL},
};

static PyGetSetDef properties[] = {
	{"shape", get_shape, NULL, "A tuple.", NULL},
	{"strides", get_strides, NULL, "In elements.", NULL},
	{"dtype", get_dtype, NULL, "Its name.", NULL},
	{"itemsize", get_itemsize, NULL, "Bytes of an element.", NULL},
	{"released", get_released, NULL, "Whether it was released here.", NULL},
	{NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_dealloc, handle_dealloc},
	{Py_tp_methods, methods},
	{Py_tp_getset, properties},
	{Py_tp_doc, "The native part of tmesh.cuda.Array."},
	{0},
};

TYPE_SPEC(cuda_handle_spec, "tmesh._tmesh.CudaHandle", struct cuda_handle,
	  Py_TPFLAGS_DISALLOW_INSTANTIATION, slots);
