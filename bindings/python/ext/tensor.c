/* SPDX-License-Identifier: MIT */
/* The Tensor type: its lifetime, the count of its views, its properties. */
#include "binding.h"

#include <stddef.h>
#include <structmember.h>

/* Unmapping this much takes long enough to drop the GIL for it. */
#define SLOW_UNMAP_BYTES (1u << 20)

PyObject *tensor_new(struct state *st, struct tmesh_tensor *tensor, struct tensor *root,
		     uint32_t rights)
{
	const struct tmesh_layout *layout;
	struct tensor *self;

	if (!tensor)
		return NULL;
	Py_XINCREF((PyObject *)root);
	self = (struct tensor *)PyType_GenericAlloc(st->tensor_type, 0);
	if (!self) {
		Py_XDECREF((PyObject *)root);
		tmesh_tensor_unref(tensor);
		return NULL;
	}
	layout = tmesh_tensor_layout(tensor);
	self->tensor = tensor;
	self->root = root ? root : self;
	self->rights = rights;
	self->ndim = layout->ndim;
	self->itemsize = tmesh_dtype_bits(layout->dtype) / 8;
	for (int i = 0; i < layout->ndim; i++) {
		self->shape[i] = layout->shape[i];
		/* The stride of a dimension of size 1 may be any number, so the product may
		 * wrap. */
		self->strides[i] =
			(Py_ssize_t)((size_t)layout->strides[i] * (size_t)self->itemsize);
	}
	return (PyObject *)self;
}

PyObject *tensor_lost(struct state *st, const struct tmesh_error *err)
{
	struct tmesh_error *lost = malloc(sizeof(*lost));
	struct tensor *self;

	if (!lost)
		return PyErr_NoMemory();
	self = (struct tensor *)PyType_GenericAlloc(st->tensor_type, 0);
	if (!self) {
		free(lost);
		return NULL;
	}
	*lost = *err;
	self->root = self;
	self->lost = lost;
	return (PyObject *)self;
}

/* Drop a reference. Dropping the GIL costs as much as receiving a tensor, and milliseconds beside a
 * busy thread. So drop it only if a large region may be unmapped; the tensor may be a small part of
 * it. */
static void unref(struct tmesh_tensor *tensor)
{
	if (!tmesh_tensor_try_unref(tensor))
		return;
	if (tmesh_region_bytes(tmesh_tensor_region(tensor)) < SLOW_UNMAP_BYTES) {
		tmesh_tensor_unref(tensor);
		return;
	}
	WITHOUT_GIL(tmesh_tensor_unref(tensor));
}

static void drop(struct tensor *self)
{
	struct tmesh_tensor *tensor = self->tensor;

	self->tensor = NULL;
	if (tensor)
		unref(tensor);
}

static void tensor_dealloc(PyObject *object)
{
	struct tensor *self = (struct tensor *)object;

	if (self->weak)
		PyObject_ClearWeakRefs(object);
	if (self->tensor)
		unref(self->tensor);
	if (self->inherited)
		unref(self->inherited);
	if (self->root != self)
		Py_DECREF(self->root);
	Py_XDECREF(self->id);
	Py_XDECREF(self->label);
	Py_XDECREF(self->model);
	free(self->lost);
	object_free(object);
}

/* The type is final, so a Tensor's type is the one that the module made. */
struct state *state_of(struct tensor *self)
{
	return PyType_GetModuleState(Py_TYPE((PyObject *)self));
}

struct tmesh_tensor *tensor_get(struct tensor *self)
{
	if (self->lost && !self->left)
		return raise_error(state_of(self), self->lost);
	if (!self->tensor || self->left)
		return raise_named(state_of(self), "ReleasedError", EBADF,
				   "this tensor was released, or its \"with\" has ended: open its "
				   "ref again, or use it before");
	return self->tensor;
}

int tensor_layout(struct tensor *self, struct tmesh_layout *layout)
{
	struct tmesh_tensor *tensor = tensor_get(self);

	if (!tensor)
		return -1;
	*layout = *tmesh_tensor_layout(tensor);
	return 0;
}

bool tensor_is_sealed(struct tensor *self)
{
	if (!self->root->sealed)
		self->root->sealed = tmesh_region_is_sealed(tmesh_tensor_region(self->tensor));
	return self->root->sealed;
}

static int map(struct tensor *self, bool writable, void **data, struct tmesh_error *err)
{
	return tmesh_tensor_data(self->tensor, writable ? TMESH_READ | TMESH_WRITE : TMESH_READ,
				 data, err);
}

/* Explain why writing is refused. As in the library, the handle's rights are checked first, then
 * the memory's state. */
static int refuse_write(struct tensor *self)
{
	if (self->rights & TMESH_WRITE)
		raise_named(state_of(self), "SealedError", EPERM,
			    "the tensor is sealed: no process can write to it any more; "
			    "tmesh.put(tensor, seal=False) is a copy for writing");
	else if (tensor_is_sealed(self))
		raise_code(state_of(self), EACCES,
			   "the tensor is read-only here, and sealed: no process can write to it; "
			   "tmesh.put(tensor, seal=False) is a copy for writing");
	else
		raise_code(state_of(self), EACCES,
			   "the tensor is read-only here: open it with writable=True and a "
			   "token from ref(writable=True)");
	return -1;
}

/* If fork() brought the tensor here, take a handle of this process's own, by which it can write. */
static bool take_over(struct tensor *self)
{
	struct tmesh_tensor *inherited = self->tensor, *own;
	struct tmesh_layout layout = *tmesh_tensor_layout(inherited);
	struct tmesh_region *region;
	int rc;

	if (self->inherited || tmesh_region_is_sealed(tmesh_tensor_region(inherited)) ||
	    tmesh_region_derive(tmesh_tensor_region(inherited), TMESH_READ | TMESH_WRITE, &region,
				NULL))
		return false;
	rc = tmesh_tensor_wrap(region, &layout, &own, NULL);
	tmesh_region_unref(region);
	if (rc)
		return false;
	self->tensor = own;
	self->inherited = inherited;
	return true;
}

int tensor_view_begin(struct tensor *self, enum view_kind kind, void **data, bool *writable)
{
	struct tensor *root = self->root;
	struct tmesh_error err;
	int rc;

	if (!tensor_get(self))
		return -1;
	*writable = kind != VIEW_READ && (self->rights & TMESH_WRITE) && !root->sealed;
	if (kind == VIEW_WRITE && !*writable)
		return refuse_write(self);
	if (*writable && root->sealing) {
		raise_code(state_of(self), EBUSY, "the tensor is being sealed by another thread");
		return -1;
	}
	rc = map(self, *writable, data, &err);
	if (rc == -EPERM && *writable && take_over(self))
		rc = map(self, true, data, &err);
	/* Another process has sealed it. It can still be read. */
	if (rc == -EPERM && *writable && kind == VIEW_ANY) {
		*writable = false;
		rc = map(self, false, data, &err);
	}
	if (rc) {
		raise_region_error(state_of(self), tmesh_tensor_region(self->tensor), &err);
		return -1;
	}
	self->views++;
	root->writers += *writable;
	Py_INCREF((PyObject *)self);
	return 0;
}

void tensor_view_end(struct tensor *self, bool writable)
{
	self->views--;
	self->root->writers -= writable;
	if (self->left && !self->views)
		drop(self);
	Py_DECREF(self);
}

static PyObject *tensor_seal(PyObject *object, PyObject *unused)
{
	struct tensor *self = (struct tensor *)object, *root = self->root;
	struct tmesh_tensor *tensor;
	struct tmesh_error err;
	int rc;

	gil_run_late();
	tensor = tensor_get(self);
	if (!tensor)
		return NULL;
	if (root->in_arena)
		return raise_code(state_of(self), EINVAL,
				  "this tensor lies in an arena: its neighbours would be sealed "
				  "too");
	if (root->writers)
		return raise_code(state_of(self), EBUSY,
				  "%zd writable view%s of this memory (arrays, memoryviews, DLPack "
				  "consumers) would still write: delete them before the seal",
				  root->writers, root->writers == 1 ? "" : "s");
	if (root->sealing)
		return raise_code(state_of(self), EBUSY,
				  "the tensor is being sealed by another thread");
	root->sealing = true;
	tmesh_tensor_ref(tensor);
	WITHOUT_GIL(rc = tmesh_region_seal(tmesh_tensor_region(tensor), &err));
	root->sealing = false;
	root->sealed |= !rc;
	if (rc)
		raise_region_error(state_of(self), tmesh_tensor_region(tensor), &err);
	unref(tensor);
	if (rc)
		return NULL;
	Py_INCREF(object);
	return object;
}

static PyObject *tensor_release(PyObject *object, PyObject *unused)
{
	struct tensor *self = (struct tensor *)object;

	gil_run_late();
	if (self->left)
		Py_RETURN_NONE;
	if (self->views)
		return raise_code(
			state_of(self), EBUSY,
			"%zd view%s of this tensor (arrays, memoryviews, DLPack consumers) "
			"%s alive: delete them before the release",
			self->views, self->views == 1 ? "" : "s", self->views == 1 ? "is" : "are");
	if (self->tensor)
		self->left_by = PyThread_get_thread_ident();
	drop(self);
	self->left = self->left || self->lost;
	Py_RETURN_NONE;
}

static PyObject *tensor_enter(PyObject *object, PyObject *unused)
{
	if (!tensor_get((struct tensor *)object))
		return NULL;
	Py_INCREF(object);
	return object;
}

/* End "with". Views of the tensor stay valid, and the last of them gives back the memory: an array
 * that is still a local variable is no reason to fail. */
static PyObject *tensor_exit(PyObject *object, PyObject *args)
{
	struct tensor *self = (struct tensor *)object;

	if (!self->left && self->tensor)
		self->left_by = PyThread_get_thread_ident();
	self->left = true;
	if (!self->views)
		drop(self);
	Py_RETURN_NONE;
}

/* Return the thread that released the tensor, or None. */
PyObject *module_released_by(PyObject *module, PyObject *object)
{
	struct state *st = PyModule_GetState(module);

	if (Py_TYPE(object) != st->tensor_type)
		return PyErr_Format(PyExc_TypeError, "released_by() takes a Tensor, not %R",
				    object);
	if (!((struct tensor *)object)->left_by)
		Py_RETURN_NONE;
	return PyLong_FromUnsignedLong(((struct tensor *)object)->left_by);
}

static PyObject *tensor_copy(PyObject *object, PyObject *unused)
{
	return call_python("tmesh.in_transit", "copied", object);
}

/* Copy the memory too, and seal the copy if this one is sealed. */
static PyObject *tensor_deepcopy(PyObject *object, PyObject *memo)
{
	struct tensor *self = (struct tensor *)object;
	struct tmesh_tensor *copy;
	PyObject *made, *sealed;
	bool seal;

	/* Another thread may release the tensor while it is copied, so take all of it first. */
	if (!tensor_get(self))
		return NULL;
	seal = tensor_is_sealed(self);
	copy = put_tensor(state_of(self), self, &unsealed);
	made = tensor_new(state_of(self), copy, NULL, ALL_RIGHTS);
	if (!made || !seal)
		return made;
	sealed = tensor_seal(made, NULL);
	Py_DECREF(made);
	return sealed;
}

/* Properties */

static PyObject *get_shape(PyObject *object, void *unused)
{
	struct tmesh_layout layout;

	return tensor_layout((struct tensor *)object, &layout)
		       ? NULL
		       : tuple_from_ints(layout.shape, layout.ndim);
}

static PyObject *get_strides(PyObject *object, void *unused)
{
	struct tmesh_layout layout;

	return tensor_layout((struct tensor *)object, &layout)
		       ? NULL
		       : tuple_from_ints(layout.strides, layout.ndim);
}

static PyObject *get_dtype(PyObject *object, void *unused)
{
	struct tmesh_layout layout;

	return tensor_layout((struct tensor *)object, &layout)
		       ? NULL
		       : PyUnicode_FromString(tmesh_dtype_name(layout.dtype));
}

static PyObject *get_ndim(PyObject *object, void *unused)
{
	struct tmesh_layout layout;

	return tensor_layout((struct tensor *)object, &layout) ? NULL
							       : PyLong_FromLong(layout.ndim);
}

static PyObject *get_size(PyObject *object, void *unused)
{
	struct tmesh_layout layout;
	int64_t count = 1;

	if (tensor_layout((struct tensor *)object, &layout))
		return NULL;
	for (int i = 0; i < layout.ndim; i++)
		count *= layout.shape[i];
	return PyLong_FromLongLong(count);
}

static PyObject *get_device(PyObject *object, void *unused)
{
	struct tmesh_layout layout;

	return tensor_layout((struct tensor *)object, &layout) ? NULL : text_from_device(&layout);
}

static PyObject *get_nbytes(PyObject *object, void *unused)
{
	struct tmesh_tensor *tensor = tensor_get((struct tensor *)object);

	return tensor ? PyLong_FromUnsignedLongLong(tmesh_tensor_bytes(tensor)) : NULL;
}

/* Make id and label once: they never change. */
static PyObject *get_id(PyObject *object, void *unused)
{
	struct tensor *self = (struct tensor *)object;
	struct tmesh_tensor *tensor = tensor_get(self);

	if (!tensor)
		return NULL;
	if (!self->root->id)
		self->root->id = text_from_id(tmesh_region_id(tmesh_tensor_region(tensor)));
	return Py_XNewRef(self->root->id);
}

static PyObject *get_label(PyObject *object, void *unused)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tensor *self = (struct tensor *)object;
	struct tmesh_tensor *tensor = tensor_get(self);
	struct tmesh_error err;

	if (!tensor)
		return NULL;
	if (!self->root->label) {
		if (tmesh_region_info(tmesh_tensor_region(tensor), &info, &err))
			return raise_error(state_of(self), &err);
		self->root->label = foreign_text(info.label, sizeof(info.label));
	}
	return Py_XNewRef(self->root->label);
}

static PyObject *get_token(PyObject *object, void *unused)
{
	struct tensor *self = (struct tensor *)object;
	struct tmesh_tensor *tensor = tensor_get(self);
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_error err;

	if (!tensor)
		return NULL;
	if (tmesh_region_token(tmesh_tensor_region(tensor), TMESH_READ, token, &err))
		return raise_error(state_of(self), &err);
	return PyUnicode_FromString(token);
}

static PyObject *get_sealed(PyObject *object, void *unused)
{
	struct tensor *self = (struct tensor *)object;

	return tensor_get(self) ? PyBool_FromLong(tensor_is_sealed(self)) : NULL;
}

static PyObject *get_writable(PyObject *object, void *unused)
{
	struct tensor *self = (struct tensor *)object;

	if (!tensor_get(self))
		return NULL;
	return PyBool_FromLong((self->rights & TMESH_WRITE) && !tensor_is_sealed(self));
}

static PyObject *get_released(PyObject *object, void *unused)
{
	struct tensor *self = (struct tensor *)object;

	return PyBool_FromLong((!self->tensor && !self->lost) || self->left);
}

static PyObject *get_lost(PyObject *object, void *unused)
{
	return PyBool_FromLong(((struct tensor *)object)->lost != NULL);
}

static PyObject *tensor_repr(PyObject *object)
{
	struct tensor *self = (struct tensor *)object;
	PyObject *shape, *label, *text;
	struct tmesh_layout layout;
	bool has_label, sealed;

	if (self->lost && !self->left)
		return PyUnicode_FromString("<tmesh.Tensor, lost>");
	if (!self->tensor || self->left)
		return PyUnicode_FromString("<tmesh.Tensor, released>");
	/* Copy these first: the code below may let another thread run, which may release the
	 * tensor. */
	layout = *tmesh_tensor_layout(self->tensor);
	sealed = tensor_is_sealed(self);
	shape = tuple_from_ints(layout.shape, layout.ndim);
	if (!shape)
		return NULL;
	label = get_label(object, NULL);
	has_label = label && PyUnicode_GetLength(label) > 0;
	if (!label)
		PyErr_Clear(); /* some memory has none, for example memory that was taken back */
	text = PyUnicode_FromFormat("<tmesh.Tensor %s %R%s%s%V%s>", tmesh_dtype_name(layout.dtype),
				    shape,
				    sealed			 ? ", sealed"
				    : self->rights & TMESH_WRITE ? ""
								 : ", read-only",
				    has_label ? ", \"" : "", label, "", has_label ? "\"" : "");
	Py_XDECREF(label);
	Py_DECREF(shape);
	return text;
}

static PyObject *tensor_html(PyObject *object, PyObject *unused)
{
	return call_python("tmesh.notebook", "tensor_html", object);
}

#define KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
	{"numpy", KEYWORDS(tensor_numpy), METH_VARARGS | METH_KEYWORDS,
	 "numpy($self, /, *, writable=None)\n--\n\n"
	 "The tensor as a NumPy array over the same memory; nothing is copied.\n\n"
	 "The array is writable where the tensor is; writable=False makes it read-only and\n"
	 "writable=True insists (AccessError, SealedError). It keeps the tensor alive, and\n"
	 "release() and, if it is writable, seal() raise BusyError while it lives. NumPy has\n"
	 "no bfloat16, 8-bit and 4-bit floats or 4-bit integers: those give UnsupportedError;\n"
	 "view(\"uint8\").numpy() shows their bytes."},
	{"__array__", KEYWORDS(tensor_array), METH_VARARGS | METH_KEYWORDS,
	 "__array__($self, dtype=None, copy=None)\n--\n\nNumPy's door, where the buffer "
	 "protocol cannot serve."},
	{"ref", KEYWORDS(tensor_ref), METH_VARARGS | METH_KEYWORDS,
	 "ref($self, /, *, writable=False, hold=None)\n--\n\n"
	 "The ref by which another process opens this tensor: a dict of plain values for JSON\n"
	 "or pickle. It opens the memory for reading, with writable=True also for writing. It\n"
	 "keeps nothing alive: without the kernel module it is good while this tensor or a\n"
	 "view made from it lives. With hold, in seconds (at most a day), the memory is held\n"
	 "until a process has opened it, or so long; LimitError where too much is held. Strides "
	 "are in "
	 "elements, offset and byte_size in bytes."},
	{"seal", tensor_seal, METH_NOARGS,
	 "seal($self, /)\n--\n\n"
	 "Make the memory immutable, for all processes and for ever; return the tensor.\n\n"
	 "BusyError while writable views made here, or writers elsewhere, exist; then nothing\n"
	 "has changed. The GIL is released meanwhile."},
	{"private", tensor_private, METH_NOARGS,
	 "private($self, /)\n--\n\n"
	 "A tensor over the same sealed memory that may be written to, copy-on-write.\n\n"
	 "A page that is written becomes this process's own; others keep the sealed bytes. Such\n"
	 "a tensor has no ref and cannot be sealed or sent: put() it to share what was written.\n"
	 "InvalidError: it is not sealed; ReleasedError: it was released."},
	{"torch", KEYWORDS(tensor_torch), METH_VARARGS | METH_KEYWORDS,
	 "torch($self, /, *, private=False)\n--\n\n"
	 "The tensor as PyTorch's, over the same memory.\n\n"
	 "private=True: of a private() view, as a sealed tensor needs, for PyTorch has no\n"
	 "read-only tensors; without it a tensor that cannot be written to is refused.\n"
	 "AccessError: that; InvalidError: private=True, and it is not sealed; ReleasedError."},
	{"release", tensor_release, METH_NOARGS,
	 "release($self, /)\n--\n\n"
	 "Let the memory go now instead of when the tensor is collected.\n\n"
	 "BusyError while views of it (arrays, memoryviews, DLPack consumers) live. Later use\n"
	 "of the tensor raises ReleasedError; releasing twice is fine."},
	{"view", tensor_view, METH_O,
	 "view($self, dtype, /)\n--\n\n"
	 "The same memory as another dtype. A dtype of another size needs a contiguous tensor\n"
	 "and changes the last dimension. InvalidError: it is not; ReleasedError: it was "
	 "released."},
	{"reshape", tensor_reshape, METH_VARARGS,
	 "reshape($self, /, *shape)\n--\n\n"
	 "The same memory in another shape; one dimension may be -1. Only for contiguous\n"
	 "tensors: nothing is ever copied.\n"
	 "InvalidError: it is not, or the elements do not fit; ReleasedError: it was released."},
	{"revoke", tensor_revoke, METH_NOARGS,
	 "revoke($self, /)\n--\n\n"
	 "Take the region back from all who hold it, here and elsewhere, as only its maker may;\n"
	 "with the module. Arrays then read zeros, calls raise StaleError. BusyError while it is\n"
	 "pinned."},
	{"reclaim", KEYWORDS(tensor_reclaim), METH_VARARGS | METH_KEYWORDS,
	 "reclaim($self, /, timeout=None)\n--\n\n"
	 "revoke(), and wait until the memory is really free, which devices may delay.\n"
	 "PeerTimeoutError after timeout seconds; its report says what still uses the memory:\n"
	 "pinned_bytes, exports, attachments."},
	{"lease", KEYWORDS(tensor_lease), METH_VARARGS | METH_KEYWORDS,
	 "lease($self, /, seconds=None, *, process=None, taken=\"zeros\")\n--\n\n"
	 "Put a lease on this handle, for good. It lapses if touch() is not called for this\n"
	 "time, 10 ms to an hour (5 s if None). It also ends with a process: its number, or\n"
	 "an object with the fileno() of a pidfd. With that it needs no time. Then calls raise "
	 "StaleError, "
	 "and "
	 "with the module memory is\n"
	 "taken away: arrays read zeros, or with taken=\"sigbus\" end the process. Without the "
	 "module a\n"
	 "lease is this handle's alone and takes no memory away."},
	{"touch", tensor_touch, METH_NOARGS,
	 "touch($self, /)\n--\n\n"
	 "Use the lease, so that it does not lapse; no system call. StaleError when it has."},
	{"signal", tensor_signal, METH_O,
	 "signal($self, value, /)\n--\n\n"
	 "Say that the producer has come to value, which only grows; with the module. The\n"
	 "process that signals first is the producer while it holds the tensor (else\n"
	 "BusyError)."},
	{"wait", KEYWORDS(tensor_wait), METH_VARARGS | METH_KEYWORDS,
	 "wait($self, /, value, timeout=None)\n--\n\n"
	 "Wait until the producer has come to value, and return how far it is; with the module.\n"
	 "GoneError when it has ended and will not come there, PeerTimeoutError after timeout\n"
	 "seconds. The GIL is released meanwhile."},
	{"export_dmabuf", KEYWORDS(tensor_export_dmabuf), METH_VARARGS | METH_KEYWORDS,
	 "export_dmabuf($self, /, *, offset=0, bytes=0, writable=False)\n--\n\n"
	 "A dma-buf of the region, or of a part in whole pages (0: to its end): a descriptor, the\n"
	 "caller's to close. Without the module only writable ones, of what is not sealed.\n"
	 "UnsupportedError: this memory cannot be exported here; AccessError: writable=True "
	 "without "
	 "the\n"
	 "right to write; InvalidError: that is no part of it."},
	{"send", KEYWORDS(tensor_send), METH_VARARGS | METH_KEYWORDS,
	 "send($self, socket, /, *, writable=False, timeout=None)\n--\n\n"
	 "Hand the tensor over by a connected Unix socket (or its descriptor), for recv() in any\n"
	 "of tmesh's languages. The receiver holds it from then on, without a token. GoneError "
	 "when\n"
	 "the other end is closed; SealedError: writable, and it is sealed."},
	{"item", tensor_element, METH_NOARGS,
	 "item($self, /)\n--\n\n"
	 "The value of a tensor of one element, as a Python number. InvalidError: it has more, or\n"
	 "none; ReleasedError: it was released."},
	{"tolist", tensor_tolist, METH_NOARGS,
	 "tolist($self, /)\n--\n\n"
	 "All elements as Python numbers, in lists nested as deep as the tensor has dimensions.\n"
	 "ReleasedError: it was released; StaleError: its memory was taken back."},
	{"__complex__", tensor_complex, METH_NOARGS,
	 "__complex__($self, /)\n--\n\nThe value of a tensor without dimensions."},
	{"dlpack", KEYWORDS(tensor_dlpack), METH_FASTCALL | METH_KEYWORDS,
	 "dlpack($self, /, *, allow_readonly=False)\n--\n\n"
	 "An unversioned DLPack capsule, for one use by a consumer that takes capsules, as\n"
	 "torch.from_dlpack() does.\n\n"
	 "Such capsules cannot say that memory is read-only, so read-only tensors give\n"
	 "AccessError unless allow_readonly=True. The caller then ensures that no code\n"
	 "writes, because a write kills the process (SIGSEGV). Negative strides, over which\n"
	 "PyTorch aborts the process, give UnsupportedError."},
	{"__dlpack__", KEYWORDS(tensor_dunder_dlpack), METH_VARARGS | METH_KEYWORDS,
	 "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n"
	 "--\n\n"
	 "DLPack, as the array API standard has it; versioned where max_version allows. A\n"
	 "read-only tensor is refused (AccessError, a BufferError) to consumers that would not\n"
	 "honour that: those that ask for no version, and PyTorch. copy=True gives a copy,\n"
	 "counted by tmesh.stats()."},
	{"__dlpack_device__", tensor_dlpack_device, METH_NOARGS,
	 "__dlpack_device__($self, /)\n--\n\nDLPack's device type and number."},
	{"__enter__", tensor_enter, METH_NOARGS, "__enter__($self, /)\n--\n\nThe tensor."},
	{"__exit__", tensor_exit, METH_VARARGS,
	 "__exit__($self, /, *args)\n--\n\n"
	 "Let go of the tensor. Views made of it live on, and the memory with the last of them."},
	{"__arrow_c_array__", KEYWORDS(tensor_arrow), METH_VARARGS | METH_KEYWORDS,
	 "__arrow_c_array__($self, requested_schema=None)\n--\n\n"
	 "Arrow's PyCapsules: the same memory as an array of numbers, or of lists of a fixed size\n"
	 "where there are more dimensions. Arrow takes memory for immutable: seal it first, or do\n"
	 "not write."},
	{"__arrow_c_schema__", tensor_arrow_schema, METH_NOARGS,
	 "__arrow_c_schema__($self, /)\n--\n\nThe schema alone of __arrow_c_array__()."},
	{"_repr_html_", tensor_html, METH_NOARGS,
	 "_repr_html_($self, /)\n--\n\nThe text that a notebook shows."},
	{"__copy__", tensor_copy, METH_NOARGS, "__copy__($self, /)\n--\n\nThe same memory."},
	{"__deepcopy__", tensor_deepcopy, METH_O,
	 "__deepcopy__($self, memo, /)\n--\n\nput() of the tensor, sealed if it is."},
	{"__reduce__", tensor_reduce, METH_NOARGS,
	 "__reduce__($self, /)\n--\n\n"
	 "pickle stores the elements: unpickling makes a new tensor. multiprocessing sends a\n"
	 "ref, and the memory is held until it is taken. A tensor that can no longer be opened\n"
	 "arrives with lost set to True, and its use raises NotFoundError."},
	{NULL},
};

static PyGetSetDef properties[] = {
	{"shape", get_shape, NULL, "Dimensions, a tuple of at most 8.", NULL},
	{"strides", get_strides, NULL, "Strides in elements, as DLPack and PyTorch count.", NULL},
	{"dtype", get_dtype, NULL, "The element type's name, e.g. \"float32\".", NULL},
	{"size", get_size, NULL, "Number of elements.", NULL},
	{"ndim", get_ndim, NULL, "Number of dimensions.", NULL},
	{"nbytes", get_nbytes, NULL, "Bytes of the elements.", NULL},
	{"T", tensor_transposed, NULL,
	 "The same memory with the dimensions in reverse order, as NumPy's T.", NULL},
	{"device", get_device, NULL, "\"cpu\" or \"cuda:N\".", NULL},
	{"id", get_id, NULL, "The region's identity, 16 hex digits; opens nothing.", NULL},
	{"label", get_label, NULL, "The region's name for people.", NULL},
	{"token", get_token, NULL, "The token that opens the region for reading. See ref().", NULL},
	{"lease_state", get_lease_state, NULL,
	 "\"none\", \"live\", \"lapsed\", or \"revoked\" where the region was taken back.", NULL},
	{"sealed", get_sealed, NULL, "Whether the memory is immutable.", NULL},
	{"writable", get_writable, NULL, "Whether one may write here.", NULL},
	{"__array_interface__", get_array_interface, NULL,
	 "NumPy's older protocol; its data is an object with the buffer protocol.", NULL},
	{"released", get_released, NULL, "Whether release() was called.", NULL},
	{"lost", get_lost, NULL,
	 "Whether it was unpickled too late: its memory is gone, and any use raises the error.",
	 NULL},
	{NULL},
};

/* Names of methods that arrays have and a tensor does not. The error names the call that makes the
 * array. */
static bool is_of_arrays(PyObject *name)
{
	static const char *const names[] = {
		"all",	     "any",	 "argmax",   "argmin", "argsort", "astype",  "clip",
		"copy",	     "cumsum",	 "diagonal", "dot",    "fill",	  "flat",    "flatten",
		"imag",	     "max",	 "mean",     "min",    "nonzero", "permute", "prod",
		"ravel",     "real",	 "repeat",   "round",  "sort",	  "squeeze", "std",
		"sum",	     "swapaxes", "take",     "to",     "tobytes", "tofile",  "transpose",
		"unsqueeze", "var",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!PyUnicode_CompareWithASCIIString(name, names[i]))
			return true;
	return false;
}

static PyObject *tensor_getattr(PyObject *object, PyObject *name)
{
	PyObject *found = PyObject_GenericGetAttr(object, name);

	if (!found && PyErr_ExceptionMatches(PyExc_AttributeError) && is_of_arrays(name))
		PyErr_Format(PyExc_AttributeError,
			     "a tmesh.Tensor has no %U: its arrays have, NumPy's by numpy() and "
			     "PyTorch's by torch(), which are the same memory",
			     name);
	return found;
}

static bool is_operand(PyObject *object, PyTypeObject *type)
{
	return Py_TYPE(object) == type || PyLong_CheckExact(object) || PyFloat_CheckExact(object);
}

/* Refuse to compute. Arrays, and other types that compute, read a tensor's memory by themselves. */
static PyObject *refuse_to_compute(PyObject *left, PyObject *right)
{
	PyTypeObject *type = PyType_GetSlot(Py_TYPE(left), Py_nb_add) == (void *)refuse_to_compute
				     ? Py_TYPE(left)
				     : Py_TYPE(right);

	if (!is_operand(left, type) || !is_operand(right, type))
		Py_RETURN_NOTIMPLEMENTED;
	PyErr_SetString(PyExc_TypeError,
			"a tensor does not compute: numpy() and torch() do, on the same memory");
	return NULL;
}

static PyObject *refuse_power(PyObject *left, PyObject *right, PyObject *modulus)
{
	return refuse_to_compute(left, right);
}

static PyMemberDef members[] = {
	{"__weaklistoffset__", T_PYSSIZET, offsetof(struct tensor, weak), READONLY, NULL},
	{NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, "A tensor in shared memory. Made by tmesh.empty(), put() and open().\n\n"
		    "All methods are safe to call from several threads; the caller orders the\n"
		    "writes of two threads to the memory itself."},
	{Py_tp_dealloc, tensor_dealloc},
	{Py_tp_repr, tensor_repr},
	{Py_tp_getattro, tensor_getattr},
	{Py_tp_iter, PySeqIter_New},
	{Py_tp_methods, methods},
	{Py_tp_getset, properties},
	{Py_tp_members, members},
	{Py_mp_length, tensor_length},
	{Py_mp_subscript, tensor_getitem},
	{Py_sq_length, tensor_length},
	{Py_sq_item, tensor_item},
	{Py_mp_ass_subscript, tensor_assign},
	{Py_sq_contains, tensor_contains},
	{Py_nb_add, refuse_to_compute},
	{Py_nb_subtract, refuse_to_compute},
	{Py_nb_multiply, refuse_to_compute},
	{Py_nb_true_divide, refuse_to_compute},
	{Py_nb_matrix_multiply, refuse_to_compute},
	{Py_nb_power, refuse_power},
	{Py_nb_bool, tensor_bool},
	{Py_nb_int, tensor_int},
	{Py_nb_float, tensor_float},
	{Py_nb_index, tensor_index},
	{Py_bf_getbuffer, tensor_getbuffer},
	{Py_bf_releasebuffer, tensor_releasebuffer},
	{0},
};

TYPE_SPEC(tensor_spec, "tmesh.Tensor", struct tensor, Py_TPFLAGS_DISALLOW_INSTANTIATION, slots);
