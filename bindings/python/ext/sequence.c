/* SPDX-License-Identifier: MIT */
/*
 * The C part of tmesh.Sequence, by libtmesh-model. Programs see its memory through spans, which
 * hold the sequence and are counted. A page with a span is not given back, and a page with a
 * writable span is not shared.
 */
#include "paging.h"

struct sequence {
	PyObject_HEAD struct tmesh_seq *seq; /* NULL once released */
	struct tmesh_pages *pages;
	Py_ssize_t spans;
	Py_ssize_t writable_spans;
	Py_ssize_t page_spans; /* of single pages; a view always shows the current pages */
	uint32_t *replaced;    /* pages that the sequence no longer has, but these may still show */
	size_t replaced_count;
	bool busy; /* a call is running without the GIL */
};

struct span {
	PyObject_HEAD struct sequence *of;
	void *addr;
	Py_ssize_t bytes;
	bool writable;
	bool of_page;
};

static struct state *state_of_object(PyObject *object)
{
	return PyType_GetModuleState(Py_TYPE(object));
}

PyObject *sequence_new(struct state *st, struct tmesh_pages *pages, struct tmesh_seq *seq)
{
	struct sequence *self;

	tmesh_pages_ref(pages);
	self = (struct sequence *)PyType_GenericAlloc(st->sequence_type, 0);
	if (self) {
		self->seq = seq;
		self->pages = pages;
	} else {
		tmesh_seq_free(seq);
		tmesh_pages_unref(pages);
	}
	return (PyObject *)self;
}

static struct tmesh_seq *seq_get(PyObject *object)
{
	struct sequence *self = (struct sequence *)object;

	if (!self->seq)
		return raise_named(state_of_object(object), "ReleasedError", EBADF,
				   "this sequence was released");
	if (self->busy)
		return raise_code(state_of_object(object), EBUSY,
				  "another thread uses this sequence: one at a time");
	return self->seq;
}

/* Return the sequence for a call that gives pages back: it must have no spans. */
static struct tmesh_seq *seq_unseen(PyObject *object)
{
	if (((struct sequence *)object)->spans)
		return raise_code(
			state_of_object(object), EBUSY,
			"arrays of this sequence's memory still exist: delete them first");
	return seq_get(object);
}

/* Return the sequence for a call that shares pages: no array may write to them. */
static struct tmesh_seq *seq_unwritten(PyObject *object)
{
	if (((struct sequence *)object)->writable_spans)
		return raise_code(
			state_of_object(object), EBUSY,
			"writable arrays of this sequence's memory still exist: delete them "
			"before its pages are shared");
	return seq_get(object);
}

static PyObject *none_or_error(PyObject *object, int rc, const struct tmesh_error *err)
{
	if (rc)
		return raise_error(state_of_object(object), err);
	Py_RETURN_NONE;
}

/* Make the call without the GIL. No other call of the sequence may run meanwhile. */
#define ALONE(object, call)                                  \
	do {                                                 \
		((struct sequence *)(object))->busy = true;  \
		Py_BEGIN_ALLOW_THREADS;                      \
		call;                                        \
		Py_END_ALLOW_THREADS;                        \
		((struct sequence *)(object))->busy = false; \
	} while (0)

/* A write replaces a page that other sequences share. They may then give the old page back, so
 * arrays that show it need a hold, which is taken before the write. */
static int hold_shown(struct sequence *self, uint32_t index)
{
	const int32_t *table;
	struct tmesh_error err;
	uint32_t *more, count;
	int rc;

	table = tmesh_seq_table(self->seq, &count);
	/* If this fails, the following call fails for the same reason. */
	if (!self->page_spans || index >= count || tmesh_seq_alone(self->seq, index, NULL))
		return 0;
	more = PyMem_Realloc(self->replaced, (self->replaced_count + 1) * sizeof(*more));
	if (!more) {
		PyErr_NoMemory();
		return -1;
	}
	self->replaced = more;
	rc = tmesh_pages_get(self->pages, (uint32_t)table[index], &err);
	if (rc) {
		raise_error(state_of_object((PyObject *)self), &err);
		return -1;
	}
	more[self->replaced_count++] = (uint32_t)table[index];
	return 1;
}

/* Drop the replaced pages after the first @wanted. */
static void let_replaced_go(struct sequence *self, size_t wanted)
{
	while (self->replaced_count > wanted)
		tmesh_pages_put(self->pages, self->replaced[--self->replaced_count], NULL);
}

/* After the call, drop the hold on a page that the call has not replaced: the sequence still has
 * it. */
static void held_shown(struct sequence *self, int held, uint32_t index)
{
	const int32_t *table = tmesh_seq_table(self->seq, NULL);

	if (held && (uint32_t)table[index] == self->replaced[self->replaced_count - 1])
		let_replaced_go(self, self->replaced_count - 1);
	if (!self->page_spans)
		let_replaced_go(self, 0);
}

static PyObject *seq_append(PyObject *object, PyObject *number)
{
	unsigned long long tokens;
	struct tmesh_error err;
	struct tmesh_seq *seq;
	uint32_t count;
	int rc, held;

	if (!size_argument(number, &tokens))
		return NULL;
	seq = seq_get(object);
	if (!seq)
		return NULL;
	/* An empty sequence gives a number that no block has. */
	tmesh_seq_table(seq, &count);
	held = hold_shown((struct sequence *)object, count - 1);
	if (held < 0)
		return NULL;
	ALONE(object, rc = tmesh_seq_append(seq, tokens, &err));
	held_shown((struct sequence *)object, held, count - 1);
	return none_or_error(object, rc, &err);
}

static PyObject *seq_truncate(PyObject *object, PyObject *number)
{
	unsigned long long tokens;
	struct tmesh_error err;
	struct tmesh_seq *seq;
	int rc;

	if (!size_argument(number, &tokens))
		return NULL;
	seq = seq_unseen(object);
	if (!seq)
		return NULL;
	ALONE(object, rc = tmesh_seq_truncate(seq, tokens, &err));
	return none_or_error(object, rc, &err);
}

static PyObject *seq_fork(PyObject *object, PyObject *unused)
{
	struct tmesh_seq *seq = seq_unwritten(object), *other;
	struct tmesh_error err;
	int rc;

	if (!seq)
		return NULL;
	ALONE(object, rc = tmesh_seq_fork(seq, &other, &err));
	return rc ? raise_error(state_of_object(object), &err)
		  : sequence_new(state_of_object(object), ((struct sequence *)object)->pages,
				 other);
}

static PyObject *seq_share(PyObject *object, PyObject *unused)
{
	struct tmesh_seq *seq = seq_unwritten(object);
	char ticket[TMESH_PAGES_TICKET_SIZE];
	struct tmesh_error err;
	int rc;

	if (!seq)
		return NULL;
	ALONE(object, rc = tmesh_seq_share(seq, ticket, &err));
	return rc ? raise_error(state_of_object(object), &err) : PyUnicode_FromString(ticket);
}

static PyObject *seq_cache(PyObject *object, PyObject *hashes)
{
	struct tmesh_error err;
	struct tmesh_seq *seq;
	Py_buffer view;
	int rc;

	if (PyObject_GetBuffer(hashes, &view, PyBUF_SIMPLE))
		return NULL;
	seq = seq_unwritten(object);
	if (!seq) {
		PyBuffer_Release(&view);
		return NULL;
	}
	ALONE(object, rc = tmesh_seq_cache(seq, view.buf, (uint32_t)(view.len / HASH_BYTES), &err));
	PyBuffer_Release(&view);
	return none_or_error(object, rc, &err);
}

static PyObject *seq_release(PyObject *object, PyObject *unused)
{
	struct sequence *self = (struct sequence *)object;
	struct tmesh_pages *pages = self->pages;
	struct tmesh_seq *seq = self->seq;

	if (seq && !seq_unseen(object))
		return NULL;
	self->seq = NULL;
	self->pages = NULL;
	Py_BEGIN_ALLOW_THREADS;
	tmesh_seq_free(seq);
	tmesh_pages_unref(pages);
	Py_END_ALLOW_THREADS;
	Py_RETURN_NONE;
}

/* Spans hold the sequence, so there are none now, and no call is running. */
static void seq_dealloc(PyObject *object)
{
	struct sequence *self = (struct sequence *)object;

	Py_XDECREF(seq_release(object, NULL));
	PyMem_Free(self->replaced);
	object_free(object);
}

/* Return the block table as bytes of int32. The Python part makes an array of it. */
static PyObject *seq_table(PyObject *object, PyObject *unused)
{
	struct tmesh_seq *seq = seq_get(object);
	const int32_t *table;
	uint32_t count;

	if (!seq)
		return NULL;
	table = tmesh_seq_table(seq, &count);
	return PyByteArray_FromStringAndSize((const char *)table,
					     (Py_ssize_t)(count * sizeof(*table)));
}

/* Return the sequences of a list as C pointers, and the number of blocks of the longest one. */
static struct tmesh_seq **seqs_of_list(struct state *st, PyObject *list, uint32_t *longest)
{
	Py_ssize_t count = PyList_Size(list);
	struct tmesh_seq **seqs;
	uint32_t blocks;

	if ((size_t)count > UINT32_MAX)
		return raise_code(st, EINVAL, "%zd sequences do not go into one table", count);
	seqs = PyMem_New(struct tmesh_seq *, count ? count : 1);
	if (!seqs)
		return (void *)PyErr_NoMemory();
	*longest = 0;
	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *object = PyList_GetItem(list, i);

		if (Py_TYPE(object) != st->sequence_type) {
			PyErr_SetString(PyExc_TypeError, "not a sequence of pages");
			seqs[i] = NULL;
		} else {
			seqs[i] = seq_get(object);
		}
		if (!seqs[i]) {
			PyMem_Free(seqs);
			return NULL;
		}
		tmesh_seq_table(seqs[i], &blocks);
		if (blocks > *longest)
			*longest = blocks;
	}
	return seqs;
}

/* sequence_tables(list, width or None) -> (bytes of int32 [count, width], width, bytes of int32
 * [count]). It keeps the GIL, so that no other thread changes the sequences meanwhile. */
PyObject *module_sequence_tables(PyObject *module, PyObject *args)
{
	PyObject *list, *width_object, *tables, *lens = NULL, *result = NULL;
	struct state *st = PyModule_GetState(module);
	struct tmesh_error err;
	struct tmesh_seq **seqs;
	unsigned int width;
	uint32_t longest = 0;
	Py_ssize_t bytes;

	if (!PyArg_ParseTuple(args, "O!O:sequence_tables", &PyList_Type, &list, &width_object) ||
	    (width_object != Py_None && !uint_argument(width_object, &width)))
		return NULL;
	seqs = seqs_of_list(st, list, &longest);
	if (!seqs)
		return NULL;
	if (width_object == Py_None)
		width = longest;
	if (__builtin_mul_overflow(PyList_Size(list), (Py_ssize_t)width, &bytes) ||
	    __builtin_mul_overflow(bytes, (Py_ssize_t)sizeof(int32_t), &bytes)) {
		raise_code(st, EOVERFLOW, "a table of %zd sequences and %u blocks is too large",
			   PyList_Size(list), width);
		goto out;
	}
	tables = PyByteArray_FromStringAndSize(NULL, bytes);
	if (tables)
		lens = PyByteArray_FromStringAndSize(NULL, PyList_Size(list) *
								   (Py_ssize_t)sizeof(int32_t));
	if (lens && tmesh_seq_tables(seqs, (uint32_t)PyList_Size(list),
				     (int32_t *)PyByteArray_AsString(tables), width,
				     (int32_t *)PyByteArray_AsString(lens), &err))
		raise_error(st, &err);
	else if (lens)
		result = Py_BuildValue("(OIO)", tables, width, lens);
	Py_XDECREF(tables);
	Py_XDECREF(lens);
out:
	PyMem_Free(seqs);
	return result;
}

/* slots(first, count): bytes of int64 */
static PyObject *seq_slot_mapping(PyObject *object, PyObject *args)
{
	unsigned long long first, count;
	struct tmesh_error err;
	struct tmesh_seq *seq;
	PyObject *bytes;

	if (!PyArg_ParseTuple(args, "O&O&:slots", size_argument, &first, size_argument, &count))
		return NULL;
	seq = seq_get(object);
	if (!seq)
		return NULL;
	if (count > tmesh_seq_tokens(seq))
		return raise_code(state_of_object(object), EINVAL,
				  "the sequence has %llu tokens, not %llu behind token %llu",
				  (unsigned long long)tmesh_seq_tokens(seq), count, first);
	bytes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(int64_t)));
	if (bytes && tmesh_seq_slot_mapping(seq, first, count,
					    (int64_t *)PyByteArray_AsString(bytes), &err)) {
		Py_DECREF(bytes);
		return raise_error(state_of_object(object), &err);
	}
	return bytes;
}

static PyObject *span_new(PyObject *object, const void *addr, uint64_t bytes, bool writable,
			  bool of_page)
{
	struct sequence *of = (struct sequence *)object;
	struct span *self =
		(struct span *)PyType_GenericAlloc(state_of_object(object)->span_type, 0);

	if (!self)
		return NULL;
	self->of = (struct sequence *)Py_NewRef(object);
	self->addr = (void *)addr;
	self->bytes = (Py_ssize_t)bytes;
	self->writable = writable;
	self->of_page = of_page;
	of->spans++;
	of->page_spans += of_page;
	of->writable_spans += writable;
	return (PyObject *)self;
}

/* page(index, device, writable, bytes of a page) */
static PyObject *seq_page(PyObject *object, PyObject *args)
{
	unsigned int index, device;
	unsigned long long bytes;
	struct tmesh_error err;
	struct tmesh_seq *seq;
	int writable, rc, held = 0;
	void *addr;

	if (!PyArg_ParseTuple(args, "O&O&pO&:page", uint_argument, &index, uint_argument, &device,
			      &writable, size_argument, &bytes))
		return NULL;
	seq = seq_get(object);
	if (!seq)
		return NULL;
	if (writable)
		held = hold_shown((struct sequence *)object, index);
	if (held < 0)
		return NULL;
	ALONE(object,
	      rc = tmesh_seq_page(seq, index, device,
				  writable ? TMESH_READ | TMESH_WRITE : TMESH_READ, &addr, &err));
	held_shown((struct sequence *)object, held, index);
	return rc ? raise_error(state_of_object(object), &err)
		  : span_new(object, addr, bytes, writable, true);
}

/* view(device, max_tokens, bytes of a page) */
static PyObject *seq_view(PyObject *object, PyObject *args)
{
	unsigned long long max_tokens, bytes;
	struct tmesh_error err;
	struct tmesh_seq *seq;
	unsigned int device;
	const void *addr;
	uint32_t count;
	int rc;

	if (!PyArg_ParseTuple(args, "O&O&O&:view", uint_argument, &device, size_argument,
			      &max_tokens, size_argument, &bytes))
		return NULL;
	seq = seq_get(object);
	if (!seq)
		return NULL;
	ALONE(object, rc = tmesh_seq_view(seq, device, max_tokens, &addr, &err));
	if (rc)
		return raise_error(state_of_object(object), &err);
	tmesh_seq_table(seq, &count);
	return span_new(object, addr, count * bytes, false, false);
}

static PyObject *seq_gather(PyObject *object, PyObject *number)
{
	struct tmesh_region *region;
	struct tmesh_error err;
	struct tmesh_seq *seq;
	unsigned int device;
	int rc;

	if (!uint_argument(number, &device))
		return NULL;
	seq = seq_get(object);
	if (!seq)
		return NULL;
	ALONE(object, rc = tmesh_seq_gather(seq, device, &region, &err));
	return rc ? raise_error(state_of_object(object), &err)
		  : tensor_as_described(state_of_object(object), region);
}

static PyObject *seq_tokens(PyObject *object, void *unused)
{
	struct tmesh_seq *seq = seq_get(object);

	return seq ? PyLong_FromUnsignedLongLong(tmesh_seq_tokens(seq)) : NULL;
}

static PyObject *seq_id(PyObject *object, void *unused)
{
	struct tmesh_seq *seq = seq_get(object);

	return seq ? PyLong_FromUnsignedLongLong(tmesh_seq_id(seq)) : NULL;
}

static PyObject *seq_released(PyObject *object, void *unused)
{
	return PyBool_FromLong(!((struct sequence *)object)->seq);
}

static PyMethodDef methods[] = {
	{"append", seq_append, METH_O, "append($self, tokens, /)\n--\n\nRoom for more."},
	{"truncate", seq_truncate, METH_O, "truncate($self, tokens, /)\n--\n\nThe first stay."},
	{"fork", seq_fork, METH_NOARGS, "fork($self, /)\n--\n\nAnother one."},
	{"share", seq_share, METH_NOARGS, "share($self, /)\n--\n\nA ticket."},
	{"cache", seq_cache, METH_O, "cache($self, hashes, /)\n--\n\nThe first blocks."},
	{"table", seq_table, METH_NOARGS, "table($self, /)\n--\n\nBytes of int32."},
	{"slot_mapping", seq_slot_mapping, METH_VARARGS,
	 "slot_mapping($self, first, count, /)\n--\n\nBytes of int64."},
	{"page", seq_page, METH_VARARGS,
	 "page($self, index, device, writable, page_bytes, /)\n--\n\nA buffer."},
	{"view", seq_view, METH_VARARGS,
	 "view($self, device, max_tokens, page_bytes, /)\n--\n\nA buffer, to be read."},
	{"gather", seq_gather, METH_O, "gather($self, device, /)\n--\n\nA Tensor of bytes."},
	{"release", seq_release, METH_NOARGS, "release($self, /)\n--\n\nLet its pages go."},
	{NULL},
};

static PyGetSetDef properties[] = {
	{"tokens", seq_tokens, NULL, "How many it has.", NULL},
	{"id", seq_id, NULL, "Its number in this handle.", NULL},
	{"released", seq_released, NULL, "Whether it was released.", NULL},
	{NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_dealloc, seq_dealloc},
	{Py_tp_methods, methods},
	{Py_tp_getset, properties},
	{Py_tp_doc, "The native part of tmesh.Sequence."},
	{0},
};

TYPE_SPEC(sequence_spec, "tmesh._tmesh.SequenceHandle", struct sequence,
	  Py_TPFLAGS_DISALLOW_INSTANTIATION, slots);

static void span_dealloc(PyObject *object)
{
	struct span *self = (struct span *)object;

	if (self->of) {
		self->of->spans--;
		self->of->writable_spans -= self->writable;
		self->of->page_spans -= self->of_page;
		if (!self->of->page_spans && !self->of->busy)
			let_replaced_go(self->of, 0);
	}
	Py_XDECREF((PyObject *)self->of);
	object_free(object);
}

static int span_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
	struct span *self = (struct span *)object;

	return PyBuffer_FillInfo(view, object, self->addr, self->bytes, !self->writable, flags);
}

static PyType_Slot span_slots[] = {
	{Py_tp_dealloc, span_dealloc},
	{Py_bf_getbuffer, span_getbuffer},
	{Py_tp_doc, "Memory of a sequence, which it holds."},
	{0},
};

TYPE_SPEC(span_spec, "tmesh._tmesh.Span", struct span, Py_TPFLAGS_DISALLOW_INSTANTIATION,
	  span_slots);
