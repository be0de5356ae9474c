/* SPDX-License-Identifier: MIT */
/* DLPack in both directions: capsules of a Tensor, which count as its views, and import of other
 * capsules. */
#include "binding.h"

#include "common/dlpack_tensor.h"

#define UNVERSIONED "dltensor"
#define VERSIONED "dltensor_versioned"

/* A wrapper of the library's managed tensor. The end of its use ends a view. */
struct shell {
	union {
		struct DLManagedTensor plain;
		struct DLManagedTensorVersioned versioned;
	};
	union {
		struct DLManagedTensor *inner;
		struct DLManagedTensorVersioned *inner_versioned;
	};
	struct late late;
	PyInterpreterState *home;
	struct tensor *tensor;
	void *data;
	bool writable;
	bool is_versioned;
	struct place place;
};

static void shell_late(struct late *late)
{
	struct shell *shell = (struct shell *)((char *)late - offsetof(struct shell, late));

	place_unlist(&shell->place);
	tensor_view_end(shell->tensor, shell->writable);
	free(shell);
}

/*
 * End a view. A consumer may call this in any thread, and even after the interpreter has ended. A
 * shell that ends while the interpreter shuts down stays in its list with its view, because Python
 * code still runs then and reads that list.
 */
static void shell_end_view(struct shell *shell)
{
	gil_run(&shell->late, shell->home);
}

static void delete_plain(struct DLManagedTensor *managed)
{
	struct shell *shell = managed->manager_ctx;

	shell->inner->deleter(shell->inner);
	shell_end_view(shell);
}

static void delete_versioned(struct DLManagedTensorVersioned *managed)
{
	struct shell *shell = managed->manager_ctx;

	shell->inner_versioned->deleter(shell->inner_versioned);
	shell_end_view(shell);
}

/* End a consumed tensor. Other libraries may wait for a GPU, so they are called without the GIL.
 * Ours needs the GIL and keeps it. */
static void end_plain(struct DLManagedTensor *managed)
{
	bool before;

	if (managed->deleter == delete_plain) {
		before = gil_hold();
		managed->deleter(managed);
		gil_unhold(before);
		return;
	}
	WITHOUT_GIL(managed->deleter(managed));
}

void end_versioned(struct DLManagedTensorVersioned *managed)
{
	bool before;

	if (managed->deleter == delete_versioned) {
		before = gil_hold();
		managed->deleter(managed);
		gil_unhold(before);
		return;
	}
	WITHOUT_GIL(managed->deleter(managed));
}

/* A capsule that was consumed has another name, and the consumer frees its tensor. */
static void capsule_free(PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, UNVERSIONED))
		end_plain(PyCapsule_GetPointer(capsule, UNVERSIONED));
	else if (PyCapsule_IsValid(capsule, VERSIONED))
		end_versioned(PyCapsule_GetPointer(capsule, VERSIONED));
}

PyObject *capsule_of_plain(struct DLManagedTensor *managed)
{
	PyObject *capsule = PyCapsule_New(managed, UNVERSIONED, capsule_free);

	if (!capsule)
		end_plain(managed);
	return capsule;
}

PyObject *capsule_of_versioned(struct DLManagedTensorVersioned *managed)
{
	PyObject *capsule = PyCapsule_New(managed, VERSIONED, capsule_free);

	if (!capsule)
		end_versioned(managed);
	return capsule;
}

struct DLManagedTensor *plain_of_capsule(struct state *st, PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, UNVERSIONED))
		return PyCapsule_GetPointer(capsule, UNVERSIONED);
	return raise_code(st, EINVAL, "%R is no DLPack capsule, or was used before", capsule);
}

/* The options of a capsule. */
struct request {
	uint32_t major; /* highest version that the consumer knows; 0: unversioned */
	bool allow_readonly;
	bool torch;  /* PyTorch: ignores READ_ONLY, and aborts on negative strides */
	bool copied; /* the tensor is a copy made for this consumer */
};

static int wrap(struct shell *shell, const struct request *request, struct tmesh_error *err)
{
	uint32_t rights = shell->writable ? TMESH_READ | TMESH_WRITE : TMESH_READ;
	struct tmesh_tensor *tensor = shell->tensor->tensor;
	int rc;

	if (!request->major) {
		rc = tmesh_tensor_to_dlpack(
			tensor, rights, request->allow_readonly ? TMESH_DLPACK_ALLOW_READONLY : 0,
			&shell->inner, err);
		if (rc)
			return rc;
		shell->plain = *shell->inner;
		shell->plain.manager_ctx = shell;
		shell->plain.deleter = delete_plain;
		return 0;
	}
	shell->is_versioned = true;
	rc = tmesh_tensor_to_dlpack_versioned(tensor, rights, request->major,
					      &shell->inner_versioned, err);
	if (rc)
		return rc;
	shell->versioned = *shell->inner_versioned;
	shell->versioned.manager_ctx = shell;
	shell->versioned.deleter = delete_versioned;
	if (request->copied)
		shell->versioned.flags |= DL_FLAG_IS_COPIED;
	return 0;
}

static bool has_negative_stride(const struct tensor *self)
{
	for (int i = 0; i < self->ndim; i++)
		if (self->strides[i] < 0)
			return true;
	return false;
}

static struct shell *shell_new(struct tensor *self, const struct request *request)
{
	struct state *st = state_of(self);
	struct shell *shell = calloc(1, sizeof(*shell));
	struct tmesh_error err;

	if (!shell) {
		PyErr_NoMemory();
		return NULL;
	}
	if (tensor_view_begin(self, VIEW_ANY, &shell->data, &shell->writable)) {
		free(shell);
		return NULL;
	}
	shell->tensor = self;
	shell->home = PyInterpreterState_Get();
	shell->late.run = shell_late;
	if (!shell->writable && !request->allow_readonly && (!request->major || request->torch)) {
		raise_code(st, EACCES,
			   "this consumer would not know that the memory is read-only, and a write "
			   "would kill the process. For PyTorch take t.torch(private=True), "
			   "torch.tensor(t.numpy()) for a copy, or "
			   "torch.from_dlpack(t.dlpack(allow_readonly=True)) if no code writes; "
			   "for "
			   "JAX jax.device_put(t.numpy()); else t.numpy(), or a copy by "
			   "tmesh.put(t, seal=False)");
		goto fail;
	}
	if (request->torch && has_negative_stride(self)) {
		raise_code(st, EOPNOTSUPP,
			   "PyTorch has no negative strides and aborts the process over them: "
			   "take a copy (tmesh.put), or index forwards");
		goto fail;
	}
	if (wrap(shell, request, &err)) {
		raise_error(st, &err);
		goto fail;
	}
	place_list(&shell->place, self, shell->data);
	return shell;

fail:
	tensor_view_end(self, shell->writable);
	free(shell);
	return NULL;
}

static PyObject *capsule_new(struct tensor *self, const struct request *request)
{
	struct shell *shell = shell_new(self, request);

	if (!shell)
		return NULL;
	return request->major ? capsule_of_versioned(&shell->versioned)
			      : capsule_of_plain(&shell->plain);
}

struct DLManagedTensorVersioned *tensor_to_managed(struct tensor *self)
{
	struct shell *shell = shell_new(self, &(struct request){.major = DLPACK_MAJOR});

	return shell ? &shell->versioned : NULL;
}

PyObject *tensor_dlpack(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
	Py_ssize_t named = names ? PyTuple_Size(names) : 0;
	int allow;

	if (count || named > 1 ||
	    (named &&
	     PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "allow_readonly"))) {
		PyErr_SetString(PyExc_TypeError, "dlpack() takes allow_readonly=, by name");
		return NULL;
	}
	allow = named ? PyObject_IsTrue(args[0]) : 0;
	if (allow < 0)
		return NULL;
	return capsule_new((struct tensor *)object,
			   &(struct request){.allow_readonly = allow, .torch = true});
}

/*
 * Whether PyTorch calls. PyTorch has no read-only tensors. Since version 2.9 it asks for DLPack 1
 * but ignores the flag, so treat it as a consumer that does not know the flag. A C function has no
 * frame of its own: the globals are those of the calling module.
 */
static bool caller_is_torch(void)
{
	PyObject *globals = PyEval_GetGlobals();
	PyObject *name = globals ? PyDict_GetItemString(globals, "__name__") : NULL;

	return name && PyUnicode_Check(name) &&
	       !PyUnicode_CompareWithASCIIString(name, "torch.utils.dlpack");
}

static int major_of(PyObject *max_version, uint32_t *major)
{
	unsigned int minor;

	*major = 0;
	if (max_version == Py_None)
		return 0;
	if (!PyTuple_Check(max_version)) {
		PyErr_SetString(PyExc_TypeError, "max_version is None or a tuple of two integers");
		return -1;
	}
	return PyArg_ParseTuple(max_version, "II", major, &minor) ? 0 : -1;
}

/* Whether the consumer accepts the memory on its device, the CPU. */
static int check_device(struct state *st, PyObject *device)
{
	int type, number;

	if (device == Py_None)
		return 0;
	if (!PyTuple_Check(device)) {
		PyErr_SetString(PyExc_TypeError, "dl_device is None or a tuple of two integers");
		return -1;
	}
	if (!PyArg_ParseTuple(device, "ii", &type, &number))
		return -1;
	if (type == DL_DEVICE_CPU && !number)
		return 0;
	raise_code(st, EOPNOTSUPP, "the tensor lies on the CPU, not on DLPack device (%d, %d)",
		   type, number);
	return -1;
}

PyObject *tensor_dunder_dlpack(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
	PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
	struct tensor *self = (struct tensor *)object;
	struct state *st = state_of(self);
	struct request request = {0};
	struct tmesh_tensor *tensor;
	PyObject *copied, *capsule;
	int copies;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO:__dlpack__", names, &stream,
					 &version, &device, &copy))
		return NULL;
	copies = PyObject_IsTrue(copy);
	if (copies < 0)
		return NULL;
	if (stream != Py_None)
		return raise_code(st, EOPNOTSUPP, "memory on the CPU has no streams");
	if (major_of(version, &request.major) || check_device(st, device) || !tensor_get(self))
		return NULL;
	/* None leaves the choice to us: no copy. */
	request.copied = copies;
	if (!copies) {
		request.torch = caller_is_torch();
		return capsule_new(self, &request);
	}
	tensor = put_tensor(st, self, &unsealed);
	copied = tensor_new(st, tensor, NULL, TMESH_READ | TMESH_WRITE | TMESH_MANAGE);
	if (!copied)
		return NULL;
	capsule = capsule_new((struct tensor *)copied, &request);
	Py_DECREF(copied);
	return capsule;
}

PyObject *tensor_dlpack_device(PyObject *object, PyObject *unused)
{
	if (!tensor_get((struct tensor *)object))
		return NULL;
	return Py_BuildValue("ii", DL_DEVICE_CPU, 0);
}

struct tmesh_tensor *put_tensor(struct state *st, struct tensor *self,
				const struct tmesh_region_opts *opts)
{
	/* A managed tensor that is not recognised as ours is copied. */
	struct DLManagedTensor anonymous, *managed;
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_tensor *tensor = NULL;
	struct tmesh_error err;
	bool writable;
	void *data;
	int rc;

	if (!ctx || tensor_view_begin(self, VIEW_READ, &data, &writable))
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_tensor_to_dlpack(self->tensor, TMESH_READ, TMESH_DLPACK_ALLOW_READONLY, &managed,
				    &err);
	if (!rc) {
		anonymous = (struct DLManagedTensor){.dl_tensor = managed->dl_tensor};
		rc = tmesh_tensor_from_dlpack(ctx, &anonymous, opts, &tensor, &err);
		managed->deleter(managed);
	}
	Py_END_ALLOW_THREADS;
	tensor_view_end(self, writable);
	return rc ? raise_error(st, &err) : tensor;
}

/* Resolve a view of PyTorch's that negates: DLPack would pass its elements without the sign, and
 * without an error. */
static PyObject *negated(PyObject *object)
{
	PyObject *is = NULL;
	int negates = 0;

	if (PyObject_HasAttrString(object, "resolve_neg")) {
		is = PyObject_CallMethod(object, "is_neg", NULL);
		negates = is ? PyObject_IsTrue(is) : -1;
		Py_XDECREF(is);
	}
	if (negates < 0)
		return NULL;
	return negates ? PyObject_CallMethod(object, "resolve_neg", NULL) : Py_NewRef(object);
}

/* Call object.__dlpack__(), with a version if it accepts versions. */
static PyObject *ask_capsule(PyObject *object)
{
	PyObject *asked = negated(object), *capsule = NULL, *method, *none, *names;

	if (!asked)
		return NULL;
	method = PyObject_GetAttrString(asked, "__dlpack__");
	none = PyTuple_New(0);
	names = Py_BuildValue("{s(ii)}", "max_version", DLPACK_MAJOR, DLPACK_MINOR);
	if (method && none && names)
		capsule = PyObject_Call(method, none, names);
	if (!capsule && method && none && PyErr_ExceptionMatches(PyExc_TypeError)) {
		PyErr_Clear();
		capsule = PyObject_CallObject(method, none);
	}
	Py_XDECREF(names);
	Py_XDECREF(none);
	Py_XDECREF(method);
	Py_XDECREF(asked);
	return capsule;
}

/*
 * Copy the contents of @capsule into a tensor. The capsule keeps its name, so it still owns its
 * managed tensor, which is not needed after the copy.
 */
static struct tmesh_tensor *capsule_copy(struct state *st, PyObject *capsule,
					 const struct tmesh_region_opts *opts)
{
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_tensor *tensor;
	struct tmesh_error err;
	int rc;

	if (!ctx)
		return NULL;
	if (PyCapsule_IsValid(capsule, VERSIONED)) {
		struct DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, VERSIONED);

		if (managed->version.major == DLPACK_MAJOR &&
		    put_in_pieces(st, &managed->dl_tensor, opts, &tensor))
			return tensor;
		WITHOUT_GIL(
			rc = tmesh_tensor_from_dlpack_versioned(ctx, managed, opts, &tensor, &err));
	} else if (PyCapsule_IsValid(capsule, UNVERSIONED)) {
		struct DLManagedTensor *managed = PyCapsule_GetPointer(capsule, UNVERSIONED);

		if (put_in_pieces(st, &managed->dl_tensor, opts, &tensor))
			return tensor;
		WITHOUT_GIL(rc = tmesh_tensor_from_dlpack(ctx, managed, opts, &tensor, &err));
	} else {
		return raise_code(st, EINVAL, "%R is no DLPack capsule, or was used before",
				  capsule);
	}
	return rc ? raise_error(st, &err) : tensor;
}

static struct tmesh_tensor *take_from(struct state *st, PyObject *object,
				      const struct tmesh_region_opts *opts)
{
	PyObject *capsule = ask_capsule(object);
	struct tmesh_tensor *tensor = capsule ? capsule_copy(st, capsule, opts) : NULL;

	Py_XDECREF(capsule);
	return tensor;
}

/* Make a tensor of (bytes, the dtype's name, the shape). */
static struct tmesh_tensor *put_as(struct state *st, PyObject *plain,
				   const struct tmesh_region_opts *opts)
{
	PyObject *bytes, *name, *dims;
	struct tmesh_tensor *tensor, *made;
	int64_t shape[TMESH_MAX_DIMS];
	struct tmesh_layout layout;
	enum tmesh_dtype dtype;
	struct tmesh_error err;
	int32_t ndim;
	int rc;

	if (!PyArg_ParseTuple(plain, "OOO", &bytes, &name, &dims) ||
	    dtype_from_object(st, name, &dtype) || shape_from_object(st, dims, &ndim, shape))
		return NULL;
	tensor = put_buffer(st, bytes, opts);
	if (!tensor)
		return NULL;
	rc = tmesh_layout_contiguous(&layout, dtype, ndim, shape, &err);
	/* In an arena the bytes begin behind those of other tensors. */
	layout.offset = tmesh_tensor_layout(tensor)->offset;
	if (!rc)
		rc = tmesh_tensor_wrap(tmesh_tensor_region(tensor), &layout, &made, &err);
	tmesh_tensor_unref(tensor);
	return rc ? raise_error(st, &err) : made;
}

/* Try other ways to read an object that refused DLPack. If there is none, restore the exception of
 * the refusal. */
static struct tmesh_tensor *put_refused(struct state *st, PyObject *object,
					const struct tmesh_region_opts *opts)
{
	PyObject *type, *value, *traceback, *plain;
	struct tmesh_tensor *tensor;

	PyErr_Fetch(&type, &value, &traceback);
	plain = call_python("tmesh.elements", "plain_of", object);
	if (plain == Py_None) {
		Py_DECREF(plain);
		PyErr_Restore(type, value, traceback);
		return NULL;
	}
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(traceback);
	if (!plain)
		return NULL;
	if (PyTuple_Check(plain))
		tensor = put_as(st, plain, opts);
	else
		tensor = PyObject_CheckBuffer(plain) ? put_buffer(st, plain, opts)
						     : take_from(st, plain, opts);
	Py_DECREF(plain);
	return tensor;
}

struct tmesh_tensor *put_dlpack(struct state *st, PyObject *object,
				const struct tmesh_region_opts *opts)
{
	PyObject *capsule = ask_capsule(object);
	struct tmesh_tensor *tensor;

	if (!capsule)
		return PyErr_ExceptionMatches(PyExc_RuntimeError) ||
				       PyErr_ExceptionMatches(PyExc_BufferError)
			       ? put_refused(st, object, opts)
			       : NULL;
	tensor = capsule_copy(st, capsule, opts);
	Py_DECREF(capsule);
	return tensor;
}

/* Return the Tensor of a managed tensor that this extension made, NULL for all others. */
static struct tensor *tensor_of_managed(const struct DLManagedTensorVersioned *managed)
{
	if (managed->deleter == delete_versioned)
		return ((struct shell *)managed->manager_ctx)->tensor;
	return NULL;
}

static struct tensor *tensor_of(PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, VERSIONED)) {
		return tensor_of_managed(PyCapsule_GetPointer(capsule, VERSIONED));
	} else if (PyCapsule_IsValid(capsule, UNVERSIONED)) {
		struct DLManagedTensor *managed = PyCapsule_GetPointer(capsule, UNVERSIONED);

		if (managed->deleter == delete_plain)
			return ((struct shell *)managed->manager_ctx)->tensor;
	}
	return NULL;
}

PyObject *tensor_from_managed(struct state *st, struct DLManagedTensorVersioned *managed)
{
	struct tensor *ours = tensor_of_managed(managed);
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_tensor *tensor;
	struct tmesh_error err;
	int rc;

	if (!ctx)
		return NULL;
	if (ours)
		return tensor_again(ours);
	WITHOUT_GIL(
		rc = tmesh_tensor_from_dlpack_versioned(ctx, managed, &unsealed, &tensor, &err));
	return rc ? raise_error(st, &err)
		  : tensor_new(st, tensor, NULL, TMESH_READ | TMESH_WRITE | TMESH_MANAGE);
}

/* Return the tensor in @capsule, which still owns it; NULL for any other object. In another major
 * version only the version, the context and the deleter are at the same places. */
static const struct dl_tensor *shown(PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, VERSIONED)) {
		struct DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, VERSIONED);

		return managed->version.major == DLPACK_MAJOR ? &managed->dl_tensor : NULL;
	} else if (PyCapsule_IsValid(capsule, UNVERSIONED)) {
		struct DLManagedTensor *managed = PyCapsule_GetPointer(capsule, UNVERSIONED);

		return &managed->dl_tensor;
	}
	return NULL;
}

/* Whether a capsule says that its consumer must not write. */
static bool is_read_only(PyObject *capsule)
{
	struct DLManagedTensorVersioned *managed;

	if (!PyCapsule_IsValid(capsule, VERSIONED))
		return false;
	managed = PyCapsule_GetPointer(capsule, VERSIONED);
	return managed->flags & DL_FLAG_READ_ONLY;
}

/* Make a Tensor over our memory of a consumer's view, with at most @rights. NULL without an
 * exception: the memory is not ours. */
static PyObject *view_of_ours(struct state *st, const struct dl_tensor *view, uint32_t rights)
{
	struct tmesh_layout layout;
	struct tmesh_tensor *tensor;
	enum tmesh_dtype dtype;
	struct place *place;
	struct tmesh_error err;
	uintptr_t data;

	if (view->device.type != DL_DEVICE_CPU || !view->data || view->dtype.lanes != 1 ||
	    view->ndim < 0 || view->ndim > TMESH_MAX_DIMS)
		return NULL;
	data = (uintptr_t)view->data + view->byte_offset;
	place = place_around(st, data);
	if (!place)
		return NULL;
	/* A consumer rarely changes the type. If it does, copy. */
	dtype = tmesh_tensor_layout(place->tensor->tensor)->dtype;
	if (memcmp(&view->dtype, &dl_types[dtype], sizeof(view->dtype)))
		return NULL;
	if (tmesh_layout_contiguous(&layout, dtype, view->ndim, view->shape, &err))
		return NULL;
	for (int i = 0; view->strides && i < view->ndim; i++)
		layout.strides[i] = view->strides[i];
	layout.offset = tmesh_tensor_layout(place->tensor->tensor)->offset +
			(data - (uintptr_t)place->data);
	if (tmesh_tensor_wrap(tmesh_tensor_region(place->tensor->tensor), &layout, &tensor, &err))
		return NULL;
	return tensor_new(st, tensor, place->tensor->root, place->tensor->rights & rights);
}

PyObject *module_from_dlpack(PyObject *module, PyObject *object)
{
	struct state *st = PyModule_GetState(module);
	struct tensor *ours;
	PyObject *capsule, *result = NULL;

	if (PyCapsule_CheckExact(object)) {
		Py_INCREF(object);
		capsule = object;
	} else {
		capsule = refuse_masked(object) ? NULL : ask_capsule(object);
	}
	if (!capsule)
		return NULL;
	ours = tensor_of(capsule);
	if (ours)
		result = tensor_again(ours);
	else if (shown(capsule))
		result = view_of_ours(st, shown(capsule),
				      is_read_only(capsule) ? TMESH_READ : ALL_RIGHTS);
	if (!result && !PyErr_Occurred())
		result = tensor_new(st, capsule_copy(st, capsule, &unsealed), NULL,
				    TMESH_READ | TMESH_WRITE | TMESH_MANAGE);
	Py_DECREF(capsule);
	return result;
}
