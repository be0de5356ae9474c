/* SPDX-License-Identifier: MIT */
/* The C part of tmesh.Bundle: the library's bundle with its tensors by number. */
#include "binding.h"

#include <poll.h>
#include <tmesh/bundle.h>

struct held {
	PyObject_HEAD struct tmesh_bundle *bundle; /* NULL once released */
	uint32_t rights;			   /* on its data regions */
	/* A list with one Tensor for each data region. It counts the region's writable views. */
	PyObject *roots;
};

static struct state *state_of_held(struct held *self)
{
	return PyType_GetModuleState(Py_TYPE((PyObject *)self));
}

static struct tmesh_bundle *held_get(struct held *self)
{
	if (!self->bundle)
		return raise_named(state_of_held(self), "ReleasedError", EBADF,
				   "this bundle was released");
	return self->bundle;
}

static void bundle_release(struct tmesh_bundle *bundle)
{
	if (!bundle)
		return;
	WITHOUT_GIL(tmesh_bundle_unref(bundle));
}

/* References for one call, so that another thread may release the Held meanwhile. */
struct use {
	struct tmesh_bundle *bundle;
	PyObject *roots;
};

static int use_begin(PyObject *object, struct use *use)
{
	struct held *self = (struct held *)object;

	if (!held_get(self))
		return -1;
	use->bundle = tmesh_bundle_ref(self->bundle);
	use->roots = Py_NewRef(self->roots);
	return 0;
}

static void use_end(struct use *use)
{
	Py_DECREF(use->roots);
	bundle_release(use->bundle);
}

/* Make a tensor of all bytes of a region. It holds a reference on the region. */
static PyObject *whole(struct state *st, struct tmesh_region *region, uint32_t rights)
{
	int64_t bytes = (int64_t)tmesh_region_bytes(region);
	struct tmesh_tensor *tensor = NULL;
	struct tmesh_layout layout;
	struct tmesh_error err;

	if (tmesh_layout_contiguous(&layout, TMESH_UINT8, 1, &bytes, &err) ||
	    tmesh_tensor_wrap(region, &layout, &tensor, &err))
		return raise_error(st, &err);
	return tensor_new(st, tensor, NULL, rights);
}

/* Find the Tensor of @pairs that has @region, and return its root, borrowed. */
static PyObject *root_among(PyObject *pairs, struct tmesh_region *region)
{
	for (Py_ssize_t i = 0; pairs && i < PyTuple_Size(pairs); i++) {
		struct tensor *tensor =
			(struct tensor *)PyTuple_GetItem(PyTuple_GetItem(pairs, i), 1);

		if (tensor->tensor && tmesh_tensor_region(tensor->tensor) == region)
			return (PyObject *)tensor->root;
	}
	return NULL;
}

static int add_roots(struct state *st, struct held *self, PyObject *pairs)
{
	size_t count;
	struct tmesh_region *const *regions = tmesh_bundle_regions(self->bundle, &count);

	self->roots = PyList_New(0);
	for (size_t i = 0; self->roots && i < count; i++) {
		PyObject *root = Py_XNewRef(root_among(pairs, regions[i]));

		if (!root)
			root = whole(st, regions[i], self->rights);
		list_add(&self->roots, root);
	}
	return self->roots ? 0 : -1;
}

/* Take over @bundle. @pairs are the tensors that it was made of; NULL if it was opened. */
static PyObject *held_new(struct state *st, struct tmesh_bundle *bundle, uint32_t rights,
			  PyObject *pairs)
{
	struct held *self = (struct held *)PyType_GenericAlloc(st->held_type, 0);

	if (!self) {
		tmesh_bundle_unref(bundle);
		return NULL;
	}
	self->bundle = bundle;
	self->rights = rights;
	if (add_roots(st, self, pairs)) {
		Py_DECREF(self);
		return NULL;
	}
	return (PyObject *)self;
}

static void drop(struct held *self)
{
	struct tmesh_bundle *bundle = self->bundle;

	self->bundle = NULL;
	Py_CLEAR(self->roots);
	bundle_release(bundle);
}

static void held_dealloc(PyObject *object)
{
	drop((struct held *)object);
	object_free(object);
}

static PyObject *held_release(PyObject *object, PyObject *unused)
{
	drop((struct held *)object);
	Py_RETURN_NONE;
}

static PyObject *held_names(PyObject *object, PyObject *unused)
{
	PyObject *list;
	struct use use;

	if (use_begin(object, &use))
		return NULL;
	list = PyList_New(0);
	for (size_t i = 0; list && i < tmesh_bundle_count(use.bundle); i++)
		list_add(&list, PyUnicode_FromString(tmesh_bundle_name(use.bundle, i)));
	use_end(&use);
	return list;
}

static PyObject *held_types(PyObject *object, PyObject *unused)
{
	PyObject *list;
	struct use use;

	if (use_begin(object, &use))
		return NULL;
	list = PyList_New(0);
	for (size_t i = 0; list && i < tmesh_bundle_count(use.bundle); i++) {
		struct tmesh_bundle_entry entry;
		PyObject *shape, *pair = NULL;

		/* The i-th entry exists: @i was checked. */
		tmesh_bundle_entry(use.bundle, i, &entry, NULL);
		shape = tuple_from_ints(entry.type_shape, entry.type ? entry.type_ndim : 0);
		if (shape)
			pair = Py_BuildValue("zN", entry.type, shape);
		list_add(&list, pair);
	}
	use_end(&use);
	return list;
}

/* Return the root of @region, borrowed from the list. */
static struct tensor *root_of(const struct use *use, struct tmesh_region *region)
{
	size_t count;
	struct tmesh_region *const *regions = tmesh_bundle_regions(use->bundle, &count);

	for (size_t i = 0; i < count; i++)
		if (regions[i] == region)
			return ((struct tensor *)PyList_GetItem(use->roots, (Py_ssize_t)i))->root;
	return NULL;
}

static PyObject *held_tensor(PyObject *object, PyObject *number)
{
	struct held *self = (struct held *)object;
	struct tmesh_region *region;
	struct tmesh_tensor *tensor;
	unsigned long long i;
	PyObject *made = NULL;
	struct tmesh_error err;
	struct use use;

	if (!size_argument(number, &i) || use_begin(object, &use))
		return NULL;
	if (tmesh_bundle_tensor(use.bundle, i, &tensor, &err)) {
		raise_error(state_of_held(self), &err);
	} else {
		region = tmesh_tensor_region(tensor);
		made = tensor_new(state_of_held(self), tensor, root_of(&use, region),
				  tmesh_region_rights(region) & self->rights);
	}
	use_end(&use);
	return made;
}

/* Return the private view of @region in @roots, borrowed. Make it at the first request. */
static struct tensor *private_of(struct state *st, const struct use *use, struct tensor **roots,
				 struct tmesh_region *region)
{
	size_t count;
	struct tmesh_region *const *regions = tmesh_bundle_regions(use->bundle, &count);

	for (size_t i = 0; i < count; i++) {
		if (regions[i] != region)
			continue;
		if (!roots[i])
			roots[i] = (struct tensor *)private_root(st, region, root_of(use, region));
		return roots[i];
	}
	return NULL;
}

static PyObject *private_tensor(struct state *st, const struct use *use, struct tensor **roots,
				size_t i)
{
	struct tmesh_tensor *shared, *mine;
	struct tmesh_error err;
	struct tensor *root;
	int rc;

	if (tmesh_bundle_tensor(use->bundle, i, &shared, &err))
		return raise_error(st, &err);
	root = private_of(st, use, roots, tmesh_tensor_region(shared));
	if (!root) {
		tmesh_tensor_unref(shared);
		return NULL;
	}
	rc = tmesh_tensor_wrap(tmesh_tensor_region(root->tensor), tmesh_tensor_layout(shared),
			       &mine, &err);
	tmesh_tensor_unref(shared);
	return rc ? raise_error(st, &err) : tensor_new(st, mine, root, TMESH_READ | TMESH_WRITE);
}

static PyObject *held_private(PyObject *object, PyObject *unused)
{
	struct state *st = state_of_held((struct held *)object);
	struct tensor **roots = NULL;
	PyObject *list;
	struct use use;
	size_t count;

	if (use_begin(object, &use))
		return NULL;
	tmesh_bundle_regions(use.bundle, &count);
	roots = calloc(count + 1, sizeof(*roots));
	list = roots ? PyList_New(0) : PyErr_NoMemory();
	for (size_t i = 0; list && i < tmesh_bundle_count(use.bundle); i++)
		list_add(&list, private_tensor(st, &use, roots, i));
	for (size_t i = 0; roots && i < count; i++)
		Py_XDECREF((PyObject *)roots[i]);
	free(roots);
	use_end(&use);
	return list;
}

static PyObject *held_regions(PyObject *object, PyObject *unused)
{
	struct state *st = state_of_held((struct held *)object);
	struct tmesh_region *const *regions;
	PyObject *list;
	struct use use;
	size_t count;

	if (use_begin(object, &use))
		return NULL;
	regions = tmesh_bundle_regions(use.bundle, &count);
	list = PyList_New(0);
	for (size_t i = 0; list && i <= count; i++)
		list_add(&list, whole(st, i ? regions[i - 1] : tmesh_bundle_index(use.bundle),
				      TMESH_READ));
	use_end(&use);
	return list;
}

/* Tell the reasons for -EPERM on a request to write apart: a seal if the region is sealed, else a
 * fork() of this process. */
static PyObject *refuse_gift(struct state *st, struct tmesh_bundle *bundle, uint32_t rights,
			     const struct tmesh_error *err)
{
	size_t count;
	struct tmesh_region *const *regions = tmesh_bundle_regions(bundle, &count);

	for (size_t i = 0; rights & TMESH_WRITE && i < count; i++)
		if (tmesh_region_is_sealed(regions[i]))
			return raise_region_error(st, regions[i], err);
	return raise_error(st, err);
}

static PyObject *held_ref(PyObject *object, PyObject *args)
{
	struct held *self = (struct held *)object;
	PyObject *hold, *result;
	struct tmesh_error err;
	uint32_t rights;
	size_t size;
	char *text;
	uint64_t ns;
	int write, rc;

	if (!PyArg_ParseTuple(args, "pO:ref", &write, &hold) ||
	    hold_from_object(state_of_held(self), hold, &ns) || !held_get(self))
		return NULL;
	rights = write ? TMESH_READ | TMESH_WRITE : TMESH_READ;
	size = tmesh_bundle_ref_size(self->bundle);
	text = malloc(size);
	if (!text)
		return PyErr_NoMemory();
	rc = ns ? tmesh_bundle_ref_hold(self->bundle, rights, ns, text, size, &err)
		: tmesh_bundle_ref_encode(self->bundle, rights, text, size, &err);
	if (rc)
		result = refuse_gift(state_of_held(self), self->bundle, rights, &err);
	else
		result = PyUnicode_FromString(text);
	free(text);
	return result;
}

static PyObject *held_send(PyObject *object, PyObject *args)
{
	struct held *self = (struct held *)object;
	struct state *st = state_of_held(self);
	PyObject *socket, *timeout;
	struct tmesh_bundle *bundle;
	struct tmesh_error err;
	int fd, writable, rc;
	uint32_t rights;

	if (!PyArg_ParseTuple(args, "OpO:send", &socket, &writable, &timeout))
		return NULL;
	fd = PyObject_AsFileDescriptor(socket);
	if (fd < 0 || wait_for_socket(st, fd, POLLOUT, timeout) || !held_get(self))
		return NULL;
	bundle = tmesh_bundle_ref(self->bundle);
	rights = writable ? TMESH_READ | TMESH_WRITE : TMESH_READ;
	WITHOUT_GIL(rc = tmesh_bundle_send(bundle, fd, rights, &err));
	if (rc)
		refuse_gift(st, bundle, rights, &err);
	bundle_release(bundle);
	if (rc)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *get_metadata(PyObject *object, void *unused)
{
	struct tmesh_bundle *bundle = held_get((struct held *)object);
	const char *text;
	size_t bytes;

	if (!bundle)
		return NULL;
	text = tmesh_bundle_metadata(bundle, &bytes);
	return PyUnicode_DecodeUTF8(text, (Py_ssize_t)bytes, NULL);
}

static PyObject *get_nbytes(PyObject *object, void *unused)
{
	struct tmesh_bundle *bundle = held_get((struct held *)object);

	return bundle ? PyLong_FromUnsignedLongLong(tmesh_bundle_bytes(bundle)) : NULL;
}

static PyObject *get_id(PyObject *object, void *unused)
{
	struct tmesh_bundle *bundle = held_get((struct held *)object);

	return bundle ? text_from_id(tmesh_region_id(tmesh_bundle_index(bundle))) : NULL;
}

static PyMethodDef methods[] = {
	{"names", held_names, METH_NOARGS, "names($self, /)\n--\n\nIn their order."},
	{"types", held_types, METH_NOARGS,
	 "types($self, /)\n--\n\n"
	 "(type, shape in its elements) of each; (None, ()) where the dtype says it all."},
	{"tensor", held_tensor, METH_O, "tensor($self, number, /)\n--\n\nThat one, from 0."},
	{"regions", held_regions, METH_NOARGS,
	 "regions($self, /)\n--\n\nThe index and the data regions, as bytes."},
	{"private", held_private, METH_NOARGS,
	 "private($self, /)\n--\n\nAll tensors, in one private view of each region."},
	{"send", held_send, METH_VARARGS,
	 "send($self, socket, writable, timeout, /)\n--\n\nAs recv_bundle() takes it."},
	{"ref", held_ref, METH_VARARGS, "ref($self, writable, hold, /)\n--\n\nAs JSON."},
	{"release", held_release, METH_NOARGS, "release($self, /)\n--\n\nTensors of it stay."},
	{NULL},
};

static PyGetSetDef properties[] = {
	{"metadata", get_metadata, NULL, "As given, \"\" where there is none.", NULL},
	{"nbytes", get_nbytes, NULL, "Bytes of all tensors' elements.", NULL},
	{"id", get_id, NULL, "The index region's.", NULL},
	{NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_dealloc, held_dealloc},
	{Py_tp_methods, methods},
	{Py_tp_getset, properties},
	{Py_tp_doc, "The native part of tmesh.Bundle."},
	{0},
};

TYPE_SPEC(held_spec, "tmesh._tmesh.Held", struct held, Py_TPFLAGS_DISALLOW_INSTANTIATION, slots);

/* Take over @bundle. */
static PyObject *bundle_object(struct state *st, struct tmesh_bundle *bundle, uint32_t rights)
{
	PyObject *held = held_new(st, bundle, rights, NULL);
	PyObject *result = held ? call_python("tmesh.bundles", "Bundle", held) : NULL;

	Py_XDECREF(held);
	return result;
}

PyObject *bundle_open(struct state *st, struct tmesh_ctx *ctx, const char *text, size_t bytes,
		      uint32_t rights)
{
	struct tmesh_bundle *bundle;
	struct tmesh_error err;
	int rc;

	WITHOUT_GIL(rc = tmesh_bundle_open(ctx, text, bytes, rights, &bundle, &err));
	return rc ? raise_open_error(st, rights, &err) : bundle_object(st, bundle, rights);
}

PyObject *module_recv_bundle(PyObject *module, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"", "timeout", NULL};
	struct state *st = PyModule_GetState(module);
	PyObject *socket, *timeout = Py_None;
	struct tmesh_bundle *bundle;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int fd, rc;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O:recv_bundle", names, &socket,
					 &timeout))
		return NULL;
	fd = PyObject_AsFileDescriptor(socket);
	ctx = fd < 0 ? NULL : context(st);
	if (!ctx || wait_for_socket(st, fd, POLLIN, timeout))
		return NULL;
	WITHOUT_GIL(rc = tmesh_bundle_recv(ctx, fd, &bundle, &err));
	/* Its tensors have at most the rights that came with the region. */
	return rc ? raise_error(st, &err) : bundle_object(st, bundle, TMESH_READ | TMESH_WRITE);
}

PyObject *held_of_bundle(struct state *st, struct tmesh_bundle *bundle)
{
	return held_new(st, bundle, TMESH_READ, NULL);
}

struct tmesh_bundle *bundle_of_held(struct state *st, PyObject *object)
{
	if (Py_TYPE(object) == st->held_type)
		return held_get((struct held *)object);
	PyErr_Format(PyExc_TypeError, "%R is not what tmesh.Bundle stands on", object);
	return NULL;
}

PyObject *bundle_of_model(struct state *st, struct tmesh_bundle *bundle, PyObject *model)
{
	struct held *held = (struct held *)held_new(st, bundle, TMESH_READ, NULL);

	for (Py_ssize_t i = 0; held && i < PyList_Size(held->roots); i++)
		((struct tensor *)PyList_GetItem(held->roots, i))->model = Py_NewRef(model);
	return (PyObject *)held;
}

/* Refuse all tensors that Tensor.seal() would refuse. */
static int may_seal(struct state *st, struct tensor *tensor)
{
	if (tensor->root->in_arena)
		raise_code(
			st, EINVAL,
			"a tensor in an arena cannot be sealed, nor a bundle with it: seal=False");
	else if (tensor->root->writers || tensor->root->sealing)
		raise_code(
			st, EBUSY,
			"writable views of a tensor (arrays, memoryviews, DLPack consumers) would "
			"still write: delete them before it is sealed in a bundle");
	else
		return 0;
	return -1;
}

static int entry_from_pair(struct state *st, PyObject *pair, bool seal,
			   struct tmesh_bundle_entry *entry)
{
	PyObject *name = PyTuple_GetItem(pair, 0), *tensor = PyTuple_GetItem(pair, 1);
	Py_ssize_t length;

	if (!name || !tensor)
		return -1;
	if (!PyUnicode_Check(name) || Py_TYPE(tensor) != st->tensor_type) {
		PyErr_SetString(PyExc_TypeError, "a bundle is made of names and Tensors");
		return -1;
	}
	entry->name = PyUnicode_AsUTF8AndSize(name, &length);
	entry->tensor = tensor_get((struct tensor *)tensor);
	if (!entry->name || !entry->tensor || (seal && may_seal(st, (struct tensor *)tensor)))
		return -1;
	if ((Py_ssize_t)strlen(entry->name) != length) {
		raise_code(st, EINVAL, "a tensor's name has no control characters");
		return -1;
	}
	return 0;
}

/* plan_bundle(((dtype, shape), ...)): return their places in one region, and its size in bytes. */
PyObject *module_plan_bundle(PyObject *module, PyObject *pairs)
{
	struct state *st = PyModule_GetState(module);
	PyObject *dtype, *shape, *offsets, *result = NULL;
	struct tmesh_bundle_entry *entries;
	struct tmesh_error err;
	uint64_t bytes;
	size_t count;

	if (!PyTuple_Check(pairs)) {
		PyErr_SetString(PyExc_TypeError, "plan_bundle() takes a tuple");
		return NULL;
	}
	count = (size_t)PyTuple_Size(pairs);
	entries = calloc(count + 1, sizeof(*entries));
	if (!entries)
		return PyErr_NoMemory();
	for (size_t i = 0; i < count; i++) {
		struct tmesh_layout *layout = &entries[i].layout;

		if (!PyArg_ParseTuple(PyTuple_GetItem(pairs, (Py_ssize_t)i), "OO:plan_bundle",
				      &dtype, &shape) ||
		    dtype_from_object(st, dtype, &layout->dtype) ||
		    shape_from_object(st, shape, &layout->ndim, layout->shape))
			goto out;
	}
	if (tmesh_bundle_plan(entries, count, 0, &bytes, &err)) {
		raise_error(st, &err);
		goto out;
	}
	offsets = PyList_New(0);
	for (size_t i = 0; offsets && i < count; i++)
		list_add(&offsets, PyLong_FromUnsignedLongLong(entries[i].layout.offset));
	if (offsets)
		result = Py_BuildValue("NK", offsets, (unsigned long long)bytes);
out:
	free(entries);
	return result;
}

/* make_bundle([(name, Tensor), ...], metadata, seal, label) */
PyObject *module_make_bundle(PyObject *module, PyObject *args)
{
	struct tmesh_bundle_opts opts = {.size = sizeof(opts)};
	struct state *st = PyModule_GetState(module);
	struct tmesh_bundle_entry *entries;
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_bundle *bundle;
	const char *metadata;
	struct tmesh_error err;
	Py_ssize_t bytes;
	PyObject *pairs;
	int seal, rc;
	size_t count;

	if (!ctx || !PyArg_ParseTuple(args, "O!z#pz:make_bundle", &PyTuple_Type, &pairs, &metadata,
				      &bytes, &seal, &opts.label))
		return NULL;
	count = (size_t)PyTuple_Size(pairs);
	entries = calloc(count + 1, sizeof(*entries));
	if (!entries)
		return PyErr_NoMemory();
	for (size_t i = 0; i < count; i++) {
		if (entry_from_pair(st, PyTuple_GetItem(pairs, (Py_ssize_t)i), seal, &entries[i])) {
			free(entries);
			return NULL;
		}
	}
	opts.flags = seal ? 0 : TMESH_BUNDLE_UNSEALED;
	opts.metadata = metadata;
	opts.metadata_bytes = metadata ? (size_t)bytes : 0;
	/* Keep the GIL, so that no other thread releases a tensor meanwhile. */
	rc = tmesh_bundle_create(ctx, entries, count, &opts, &bundle, &err);
	free(entries);
	return rc ? raise_error(st, &err) : held_new(st, bundle, TMESH_READ | TMESH_WRITE, pairs);
}

/* write(tensor, buffer): write all of a contiguous tensor, as one counted copy. */
PyObject *module_write(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_tensor *tensor;
	struct tmesh_region *region;
	struct tmesh_error err;
	PyObject *object;
	uint64_t offset;
	Py_buffer view;
	int rc;

	if (!PyArg_ParseTuple(args, "O!y*:write", st->tensor_type, &object, &view))
		return NULL;
	tensor = tensor_get((struct tensor *)object);
	if (tensor && (!tmesh_layout_is_contiguous(tmesh_tensor_layout(tensor)) ||
		       (uint64_t)view.len != tmesh_tensor_bytes(tensor))) {
		raise_code(st, EINVAL, "the buffer is not as long as the tensor");
		tensor = NULL;
	}
	if (!tensor) {
		PyBuffer_Release(&view);
		return NULL;
	}
	region = tmesh_region_ref(tmesh_tensor_region(tensor));
	offset = tmesh_tensor_layout(tensor)->offset;
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_region_write(region, offset, view.buf, (uint64_t)view.len, &err);
	tmesh_region_unref(region);
	Py_END_ALLOW_THREADS;
	PyBuffer_Release(&view);
	if (rc)
		return raise_error(st, &err);
	Py_RETURN_NONE;
}
