/* SPDX-License-Identifier: MIT */
/* The C part of tmesh.PagePool and tmesh.Pages, by libtmesh-model. Sequences are in sequence.c. */
#include "paging.h"

#include "common/shown.h"

struct pool {
	PyObject_HEAD struct tmesh_page_pool *pool; /* NULL once closed */
};

static struct state *state_of_object(PyObject *object)
{
	return PyType_GetModuleState(Py_TYPE(object));
}

/* The pool */

static struct tmesh_page_pool *pool_get(PyObject *object)
{
	struct pool *self = (struct pool *)object;

	if (!self->pool)
		return raise_named(state_of_object(object), "ReleasedError", EBADF,
				   "this pool of pages was closed");
	return self->pool;
}

PyObject *module_make_page_pool(PyObject *module, PyObject *args)
{
	struct tmesh_page_pool_opts opts = {.size = sizeof(opts)};
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_page_pool *pool;
	unsigned long long bytes;
	struct tmesh_error err;
	struct pool *self;
	int rc;

	if (!ctx || !PyArg_ParseTuple(args, "O&O&O&O&O&O&:make_page_pool", size_argument, &bytes,
				      uint_argument, &opts.page_tokens, uint_argument,
				      &opts.slab_pages, uint_argument, &opts.max_pages,
				      uint_argument, &opts.devices, uint_argument, &opts.heads))
		return NULL;
	opts.page_bytes = bytes;
	WITHOUT_GIL(rc = tmesh_page_pool_create(ctx, &opts, &pool, &err));
	if (rc)
		return raise_error(st, &err);
	self = (struct pool *)PyType_GenericAlloc(st->pool_type, 0);
	if (self)
		self->pool = pool;
	else
		tmesh_page_pool_unref(pool);
	return (PyObject *)self;
}

static PyObject *pool_close(PyObject *object, PyObject *unused)
{
	struct pool *self = (struct pool *)object;
	struct tmesh_page_pool *pool = self->pool;

	self->pool = NULL;
	WITHOUT_GIL(tmesh_page_pool_unref(pool));
	Py_RETURN_NONE;
}

static void pool_dealloc(PyObject *object)
{
	Py_DECREF(pool_close(object, NULL));
	object_free(object);
}

static PyObject *pool_tenant(PyObject *object, PyObject *number)
{
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_page_pool *pool;
	unsigned int max_pages;
	struct tmesh_error err;
	int rc;

	if (!uint_argument(number, &max_pages))
		return NULL;
	pool = pool_get(object);
	if (!pool)
		return NULL;
	tmesh_page_pool_ref(pool);
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_page_pool_tenant(pool, max_pages, token, &err);
	tmesh_page_pool_unref(pool);
	Py_END_ALLOW_THREADS;
	return rc ? raise_error(state_of_object(object), &err) : PyUnicode_FromString(token);
}

static PyObject *pool_info(PyObject *object, PyObject *unused)
{
	struct tmesh_page_pool_info info = {.size = sizeof(info)};
	struct tmesh_page_pool *pool = pool_get(object);
	struct tmesh_error err;
	int rc;

	if (!pool)
		return NULL;
	tmesh_page_pool_ref(pool);
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_page_pool_info(pool, &info, &err);
	tmesh_page_pool_unref(pool);
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(state_of_object(object), &err);
	return DICT_SHOW(PyDict_New(), shown_page_pool_info, &info);
}

static PyObject *pool_closed(PyObject *object, void *unused)
{
	return PyBool_FromLong(!((struct pool *)object)->pool);
}

static PyMethodDef pool_methods[] = {
	{"tenant", pool_tenant, METH_O, "tenant($self, max_pages, /)\n--\n\nIts token."},
	{"info", pool_info, METH_NOARGS, "info($self, /)\n--\n\nA dict of numbers."},
	{"close", pool_close, METH_NOARGS,
	 "close($self, /)\n--\n\nHandles get GoneError for more."},
	{NULL},
};

static PyGetSetDef pool_properties[] = {
	{"closed", pool_closed, NULL, "Whether it was closed here.", NULL},
	{NULL},
};

static PyType_Slot pool_slots[] = {
	{Py_tp_dealloc, pool_dealloc},
	{Py_tp_methods, pool_methods},
	{Py_tp_getset, pool_properties},
	{Py_tp_doc, "The native part of tmesh.PagePool."},
	{0},
};

TYPE_SPEC(pool_spec, "tmesh._tmesh.PagePoolHandle", struct pool, Py_TPFLAGS_DISALLOW_INSTANTIATION,
	  pool_slots);

/* Handles of a tenant */

static struct tmesh_pages *pages_get(PyObject *object)
{
	struct pages *self = (struct pages *)object;

	if (!self->pages)
		return raise_named(state_of_object(object), "ReleasedError", EBADF,
				   "these pages were closed");
	return self->pages;
}

/* Return NULL with an exception if @object is no text, or has a zero in it. */
static const char *plain_text(struct state *st, PyObject *object, const char *what)
{
	const char *text;
	Py_ssize_t length;

	if (!PyUnicode_Check(object)) {
		PyErr_Format(PyExc_TypeError, "%s is a str, not %R", what, object);
		return NULL;
	}
	text = PyUnicode_AsUTF8AndSize(object, &length);
	if (text && (Py_ssize_t)strlen(text) != length)
		return raise_code(st, EPROTO, "%s holds a zero", what);
	return text;
}

PyObject *module_open_pages(PyObject *module, PyObject *object)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	const char *token = ctx ? plain_text(st, object, "a tenant's token") : NULL;
	struct tmesh_pages *pages;
	struct tmesh_error err;
	struct pages *self;
	int rc;

	if (!token)
		return NULL;
	WITHOUT_GIL(rc = tmesh_pages_open(ctx, token, &pages, &err));
	if (rc)
		return raise_error(st, &err);
	self = (struct pages *)PyType_GenericAlloc(st->pages_type, 0);
	if (self)
		self->pages = pages;
	else
		tmesh_pages_unref(pages);
	return (PyObject *)self;
}

static PyObject *pages_close(PyObject *object, PyObject *unused)
{
	struct pages *self = (struct pages *)object;
	struct tmesh_pages *pages = self->pages;

	self->pages = NULL;
	WITHOUT_GIL(tmesh_pages_unref(pages));
	Py_RETURN_NONE;
}

static void pages_dealloc(PyObject *object)
{
	Py_DECREF(pages_close(object, NULL));
	object_free(object);
}

static PyObject *pages_info(PyObject *object, PyObject *unused)
{
	struct tmesh_pages_info info = {.size = sizeof(info)};
	struct tmesh_pages *pages = pages_get(object);
	struct tmesh_error err;

	if (!pages)
		return NULL;
	if (tmesh_pages_info(pages, &info, &err))
		return raise_error(state_of_object(object), &err);
	return DICT_SHOW(PyDict_New(), shown_pages_info, &info);
}

static PyObject *pages_head(PyObject *object, PyObject *number)
{
	struct tmesh_pages *pages;
	uint32_t device, place;
	struct tmesh_error err;
	unsigned int head;

	if (!uint_argument(number, &head))
		return NULL;
	pages = pages_get(object);
	if (!pages)
		return NULL;
	if (tmesh_pages_head(pages, head, &device, &place, &err))
		return raise_error(state_of_object(object), &err);
	return Py_BuildValue("II", device, place);
}

static PyObject *pages_base(PyObject *object, PyObject *number)
{
	struct tmesh_pages *pages;
	unsigned int device;
	void *base;

	if (!uint_argument(number, &device))
		return NULL;
	pages = pages_get(object);
	if (!pages)
		return NULL;
	base = tmesh_pages_base(pages, device);
	if (!base)
		return raise_code(state_of_object(object), EINVAL, "the pool has no device %u",
				  device);
	return PyLong_FromVoidPtr(base);
}

static PyObject *pages_slab(PyObject *object, PyObject *args)
{
	struct tmesh_region *region;
	struct tmesh_pages *pages;
	unsigned int slab, device;
	struct tmesh_error err;

	if (!PyArg_ParseTuple(args, "O&O&:slab", uint_argument, &slab, uint_argument, &device))
		return NULL;
	pages = pages_get(object);
	if (!pages)
		return NULL;
	if (tmesh_pages_slab(pages, slab, device, &region, &err))
		return raise_error(state_of_object(object), &err);
	return tensor_as_described(state_of_object(object), region);
}

static PyObject *pages_trim(PyObject *object, PyObject *unused)
{
	struct tmesh_pages *pages = pages_get(object);

	if (!pages)
		return NULL;
	tmesh_pages_ref(pages);
	Py_BEGIN_ALLOW_THREADS;
	tmesh_pages_trim(pages);
	tmesh_pages_unref(pages);
	Py_END_ALLOW_THREADS;
	Py_RETURN_NONE;
}

static PyObject *pages_sequence(PyObject *object, PyObject *unused)
{
	struct tmesh_pages *pages = pages_get(object);
	struct tmesh_error err;
	struct tmesh_seq *seq;

	if (!pages)
		return NULL;
	if (tmesh_seq_create(pages, &seq, &err))
		return raise_error(state_of_object(object), &err);
	return sequence_new(state_of_object(object), pages, seq);
}

/* hash(tokens, parent): tokens is an int32 buffer, parent 16 bytes or None */
static PyObject *pages_hash(PyObject *object, PyObject *args)
{
	uint64_t parent[2], hash[2];
	struct tmesh_pages *pages;
	const char *before;
	Py_ssize_t bytes;
	Py_buffer tokens;

	if (!PyArg_ParseTuple(args, "y*z#:hash", &tokens, &before, &bytes))
		return NULL;
	pages = pages_get(object);
	if (pages && (tokens.len % 4 || (before && bytes != sizeof(parent))))
		pages = raise_code(state_of_object(object), EINVAL,
				   "tokens are int32, and a hash has 16 bytes");
	if (!pages) {
		PyBuffer_Release(&tokens);
		return NULL;
	}
	if (before)
		memcpy(parent, before, sizeof(parent));
	tmesh_pages_hash(pages, before ? parent : NULL, tokens.buf, (size_t)tokens.len / 4, hash);
	PyBuffer_Release(&tokens);
	return PyBytes_FromStringAndSize((char *)hash, sizeof(hash));
}

/* Convert the result of a look-up; drop the call's reference on @pages. */
static PyObject *found(struct state *st, struct tmesh_pages *pages, int rc, struct tmesh_seq *seq,
		       const struct tmesh_error *err)
{
	PyObject *made = rc ? raise_error(st, err) : sequence_new(st, pages, seq);

	WITHOUT_GIL(tmesh_pages_unref(pages));
	return made;
}

static PyObject *pages_find(PyObject *object, PyObject *hashes)
{
	struct tmesh_pages *pages;
	struct tmesh_error err;
	struct tmesh_seq *seq;
	Py_buffer view;
	int rc;

	if (PyObject_GetBuffer(hashes, &view, PyBUF_SIMPLE))
		return NULL;
	pages = pages_get(object);
	if (!pages) {
		PyBuffer_Release(&view);
		return NULL;
	}
	tmesh_pages_ref(pages);
	WITHOUT_GIL(rc = tmesh_pages_find(pages, view.buf, (uint32_t)(view.len / HASH_BYTES), &seq,
					  &err));
	PyBuffer_Release(&view);
	return found(state_of_object(object), pages, rc, seq, &err);
}

static PyObject *pages_open_sequence(PyObject *object, PyObject *text)
{
	struct tmesh_pages *pages = pages_get(object);
	struct state *st = state_of_object(object);
	const char *ticket = pages ? plain_text(st, text, "a ticket") : NULL;
	struct tmesh_error err;
	struct tmesh_seq *seq;
	int rc;

	if (!ticket)
		return NULL;
	tmesh_pages_ref(pages);
	WITHOUT_GIL(rc = tmesh_seq_open(pages, ticket, &seq, &err));
	return found(st, pages, rc, seq, &err);
}

static PyObject *pages_unshare(PyObject *object, PyObject *text)
{
	struct tmesh_pages *pages = pages_get(object);
	struct state *st = state_of_object(object);
	const char *ticket = pages ? plain_text(st, text, "a ticket") : NULL;
	struct tmesh_error err;
	int rc;

	if (!ticket)
		return NULL;
	tmesh_pages_ref(pages);
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_pages_unshare(pages, ticket, &err);
	tmesh_pages_unref(pages);
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(st, &err);
	Py_RETURN_NONE;
}

static PyObject *pages_closed(PyObject *object, void *unused)
{
	return PyBool_FromLong(!((struct pages *)object)->pages);
}

static PyMethodDef pages_methods[] = {
	{"info", pages_info, METH_NOARGS, "info($self, /)\n--\n\nA dict of numbers."},
	{"head", pages_head, METH_O, "head($self, head, /)\n--\n\n(device, place there)."},
	{"base", pages_base, METH_O, "base($self, device, /)\n--\n\nThe address of page 0."},
	{"slab", pages_slab, METH_VARARGS,
	 "slab($self, slab, device, /)\n--\n\nA Tensor of bytes."},
	{"trim", pages_trim, METH_NOARGS, "trim($self, /)\n--\n\nGive back what is kept ready."},
	{"sequence", pages_sequence, METH_NOARGS, "sequence($self, /)\n--\n\nWithout tokens."},
	{"hash", pages_hash, METH_VARARGS, "hash($self, tokens, parent, /)\n--\n\n16 bytes."},
	{"find", pages_find, METH_O,
	 "find($self, hashes, /)\n--\n\nFind the longest cached prefix."},
	{"open_sequence", pages_open_sequence, METH_O,
	 "open_sequence($self, ticket, /)\n--\n\nA SequenceHandle."},
	{"unshare", pages_unshare, METH_O, "unshare($self, ticket, /)\n--\n\nEnd a ticket."},
	{"close", pages_close, METH_NOARGS, "close($self, /)\n--\n\nSequences go on."},
	{NULL},
};

static PyGetSetDef pages_properties[] = {
	{"closed", pages_closed, NULL, "Whether they were closed here.", NULL},
	{NULL},
};

static PyType_Slot pages_slots[] = {
	{Py_tp_dealloc, pages_dealloc},
	{Py_tp_methods, pages_methods},
	{Py_tp_getset, pages_properties},
	{Py_tp_doc, "The native part of tmesh.Pages."},
	{0},
};

TYPE_SPEC(pages_spec, "tmesh._tmesh.PagesHandle", struct pages, Py_TPFLAGS_DISALLOW_INSTANTIATION,
	  pages_slots);
