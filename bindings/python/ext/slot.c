/* SPDX-License-Identifier: MIT */
/* The C part of tmesh.Slot and tmesh.SlotReader, by libtmesh-model. */
#include "binding.h"

#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <tmesh/slot.h>

#define VALUE "tmesh.slot_value"

struct slot {
	PyObject_HEAD struct tmesh_slot *slot; /* NULL once closed */
};

struct reader {
	PyObject_HEAD struct tmesh_slot_reader *reader; /* NULL once closed */
	struct tmesh_slot_value *value;			/* of this reader; @held belongs to it */
	uint64_t generation;
	PyObject *held;
	bool busy;			 /* a call is running without the GIL */
	Py_ssize_t waits;		 /* threads in poll() */
	struct tmesh_slot_reader *ended; /* closed while threads wait; the last frees it */
};

static struct state *state_of_object(PyObject *object)
{
	return PyType_GetModuleState(Py_TYPE(object));
}

/* Publishing */

static struct tmesh_slot *slot_get(PyObject *object)
{
	struct slot *self = (struct slot *)object;

	if (!self->slot)
		return raise_named(state_of_object(object), "ReleasedError", EBADF,
				   "this slot was closed");
	return self->slot;
}

PyObject *module_make_slot(PyObject *module, PyObject *args)
{
	struct tmesh_slot_opts opts = {.size = sizeof(opts)};
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_slot *slot;
	struct tmesh_error err;
	struct slot *self;
	int rc;

	if (!ctx || !PyArg_ParseTuple(args, "zO&z:make_slot", &opts.label, uint_argument,
				      &opts.max_ref, &opts.name))
		return NULL;
	WITHOUT_GIL(rc = tmesh_slot_create(ctx, &opts, &slot, &err));
	if (rc)
		return raise_error(st, &err);
	self = (struct slot *)PyType_GenericAlloc(st->slot_type, 0);
	if (self)
		self->slot = slot;
	else
		tmesh_slot_unref(slot);
	return (PyObject *)self;
}

static void slot_end(struct slot *self)
{
	struct tmesh_slot *slot = self->slot;

	self->slot = NULL;
	WITHOUT_GIL(tmesh_slot_unref(slot));
}

static void slot_dealloc(PyObject *object)
{
	slot_end((struct slot *)object);
	object_free(object);
}

static PyObject *slot_close(PyObject *object, PyObject *unused)
{
	slot_end((struct slot *)object);
	Py_RETURN_NONE;
}

static PyObject *slot_publish(PyObject *object, PyObject *value)
{
	struct tmesh_slot *slot = slot_get(object);
	struct state *st = state_of_object(object);
	struct tmesh_bundle *bundle = NULL;
	struct tmesh_error err;
	uint64_t generation;
	int rc;

	if (slot && value != Py_None)
		bundle = bundle_of_held(st, value);
	if (!slot || (value != Py_None && !bundle))
		return NULL;
	/* Take references: other threads may drop both meanwhile. */
	tmesh_slot_ref(slot);
	if (bundle)
		tmesh_bundle_ref(bundle);
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_slot_publish(slot, bundle, &generation, &err);
	tmesh_bundle_unref(bundle);
	tmesh_slot_unref(slot);
	Py_END_ALLOW_THREADS;
	return rc ? raise_error(st, &err) : PyLong_FromUnsignedLongLong(generation);
}

static PyObject *slot_token(PyObject *object, void *unused)
{
	struct tmesh_slot *slot = slot_get(object);
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_error err;

	if (!slot)
		return NULL;
	if (tmesh_slot_token(slot, token, &err))
		return raise_error(state_of_object(object), &err);
	return PyUnicode_FromString(token);
}

static PyObject *slot_generation(PyObject *object, void *unused)
{
	struct tmesh_slot *slot = slot_get(object);

	return slot ? PyLong_FromUnsignedLongLong(tmesh_slot_generation(slot)) : NULL;
}

static PyObject *slot_closed(PyObject *object, void *unused)
{
	return PyBool_FromLong(!((struct slot *)object)->slot);
}

static PyMethodDef slot_methods[] = {
	{"publish", slot_publish, METH_O,
	 "publish($self, value, /)\n--\n\nA Held or None. The new generation."},
	{"close", slot_close, METH_NOARGS,
	 "close($self, /)\n--\n\nReaders that wait get GoneError."},
	{NULL},
};

static PyGetSetDef slot_properties[] = {
	{"token", slot_token, NULL, "The token by which a reader opens the slot.", NULL},
	{"generation", slot_generation, NULL, "The newest value's number; 0: none yet.", NULL},
	{"closed", slot_closed, NULL, "Whether it was closed here.", NULL},
	{NULL},
};

static PyType_Slot slot_slots[] = {
	{Py_tp_dealloc, slot_dealloc},
	{Py_tp_methods, slot_methods},
	{Py_tp_getset, slot_properties},
	{Py_tp_doc, "The native part of tmesh.Slot."},
	{0},
};

TYPE_SPEC(slot_spec, "tmesh._tmesh.SlotHandle", struct slot, Py_TPFLAGS_DISALLOW_INSTANTIATION,
	  slot_slots);

/* Reading */

/* Return the reader for one call. Only one thread at a time may use the library's reader. */
static struct tmesh_slot_reader *reader_get(PyObject *object)
{
	struct reader *self = (struct reader *)object;

	if (!self->reader)
		return raise_named(state_of_object(object), "ReleasedError", EBADF,
				   "this slot's reader was closed");
	if (self->busy)
		return raise_code(state_of_object(object), EBUSY,
				  "another thread reads the slot by this reader: each takes one of "
				  "its own");
	return self->reader;
}

/* The two calls that find a slot by a text. */
typedef int (*open_fn)(struct tmesh_ctx *ctx, const char *text, struct tmesh_slot_reader **out,
		       struct tmesh_error *err);

static PyObject *open_by(PyObject *module, PyObject *object, open_fn open, const char *what,
			 int zero)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_slot_reader *reader;
	struct tmesh_error err;
	struct reader *self;
	const char *text;
	Py_ssize_t length;
	int rc;

	if (!ctx)
		return NULL;
	if (!PyUnicode_Check(object)) {
		PyErr_Format(PyExc_TypeError, "a slot's %s is a str, not %R", what, object);
		return NULL;
	}
	text = PyUnicode_AsUTF8AndSize(object, &length);
	if (!text)
		return NULL;
	if ((Py_ssize_t)strlen(text) != length)
		return raise_code(st, zero, "not a %s: it holds a zero", what);
	WITHOUT_GIL(rc = open(ctx, text, &reader, &err));
	if (rc)
		return raise_error(st, &err);
	self = (struct reader *)PyType_GenericAlloc(st->slot_reader_type, 0);
	if (self)
		self->reader = reader;
	else
		tmesh_slot_close(reader);
	return (PyObject *)self;
}

PyObject *module_open_slot(PyObject *module, PyObject *token)
{
	return open_by(module, token, tmesh_slot_open, "token", EPROTO);
}

PyObject *module_open_named_slot(PyObject *module, PyObject *name)
{
	return open_by(module, name, tmesh_slot_open_named, "name", EINVAL);
}

/* Close a reader. Closing its descriptor would not wake the threads that wait for it, and another
 * file could get its number. So end the connection, and let the last waiting thread close the
 * descriptor. */
static void reader_end(struct reader *self)
{
	struct tmesh_slot_reader *reader = self->reader;
	int fd = reader && self->waits ? tmesh_slot_poll_fd(reader, NULL) : -1;

	self->reader = NULL;
	self->value = NULL;
	Py_CLEAR(self->held);
	if (fd >= 0) {
		shutdown(fd, SHUT_RDWR);
		self->ended = reader;
		return;
	}
	WITHOUT_GIL(tmesh_slot_close(reader));
}

static void reader_dealloc(PyObject *object)
{
	reader_end((struct reader *)object);
	object_free(object);
}

static PyObject *reader_close(PyObject *object, PyObject *unused)
{
	struct reader *self = (struct reader *)object;

	if (self->reader && !reader_get(object))
		return NULL;
	reader_end(self);
	Py_RETURN_NONE;
}

static void capsule_free(PyObject *capsule)
{
	struct tmesh_slot_value *value = PyCapsule_GetPointer(capsule, VALUE);

	WITHOUT_GIL(tmesh_slot_value_unref(value));
}

/* Return a Held whose tensors keep the value. If the same bundle comes back, it is not opened
 * again. */
static PyObject *held_of_value(struct state *st, struct tmesh_slot_value *value)
{
	PyObject *capsule, *held;

	tmesh_slot_value_ref(value);
	capsule = PyCapsule_New(value, VALUE, capsule_free);
	if (!capsule) {
		tmesh_slot_value_unref(value);
		return NULL;
	}
	held = bundle_of_model(st, tmesh_bundle_ref(tmesh_slot_value_bundle(value)), capsule);
	Py_DECREF(capsule);
	return held;
}

static PyObject *reader_read(PyObject *object, PyObject *unused)
{
	struct reader *self = (struct reader *)object;
	struct tmesh_slot_reader *reader = reader_get(object);
	struct state *st = state_of_object(object);
	struct tmesh_slot_value *value;
	struct tmesh_error err;
	PyObject *held, *old;
	uint64_t generation;
	int rc;

	if (!reader)
		return NULL;
	self->busy = true;
	WITHOUT_GIL(rc = tmesh_slot_read(reader, &value, &err));
	self->busy = false;
	if (rc)
		return raise_error(st, &err);
	generation = tmesh_slot_value_generation(value);
	if (self->held && value == self->value && generation == self->generation)
		return Py_BuildValue("KN", (unsigned long long)generation, Py_NewRef(self->held));
	held = held_of_value(st, value);
	if (!held)
		return NULL;
	/* Code that ran meanwhile may have closed the reader. Then keep no value. */
	if (self->reader == reader) {
		old = self->held;
		self->held = Py_NewRef(held);
		self->value = value;
		self->generation = generation;
		Py_XDECREF(old);
	}
	return Py_BuildValue("KN", (unsigned long long)generation, held);
}

static PyObject *reader_changed(PyObject *object, PyObject *unused)
{
	struct tmesh_slot_reader *reader = reader_get(object);
	int rc = reader ? tmesh_slot_changed(reader) : 0;

	if (!reader)
		return NULL;
	if (rc >= 0)
		return PyBool_FromLong(rc);
	return raise_code(state_of_object(object), -rc,
			  rc == -EPIPE
				  ? "the slot's publisher is gone"
				  : "the reader was inherited through fork(): open one in this "
				    "process");
}

static PyObject *reader_fileno(PyObject *object, PyObject *unused)
{
	struct tmesh_slot_reader *reader = reader_get(object);
	struct tmesh_error err;
	int fd = reader ? tmesh_slot_poll_fd(reader, &err) : 0;

	if (!reader)
		return NULL;
	return fd < 0 ? raise_error(state_of_object(object), &err) : PyLong_FromLong(fd);
}

/* Wait until a value is available, the reader is closed, or the milliseconds have passed.
 */
static PyObject *reader_poll(PyObject *object, PyObject *limit)
{
	struct reader *self = (struct reader *)object;
	double ms = limit != Py_None ? PyFloat_AsDouble(limit) : -1;
	struct tmesh_slot_reader *reader, *ended;
	struct pollfd fd = {.events = POLLIN};
	struct tmesh_error err;
	int code;

	if (ms == -1 && PyErr_Occurred())
		return NULL;
	reader = reader_get(object);
	if (!reader)
		return NULL;
	fd.fd = tmesh_slot_poll_fd(reader, &err);
	if (fd.fd < 0)
		return raise_error(state_of_object(object), &err);
	self->waits++;
	WITHOUT_GIL(/* Round up, so that a rest below 1 ms does not make poll() return at once again
		       and * again. */
		    code = poll(&fd, 1,
				limit == Py_None   ? -1
				: ms < INT_MAX - 1 ? (int)ms + 1
						   : INT_MAX) < 0
				   ? errno
				   : 0);
	if (!--self->waits && self->ended) {
		ended = self->ended;
		self->ended = NULL;
		WITHOUT_GIL(tmesh_slot_close(ended));
	}
	if (code == EINTR ? PyErr_CheckSignals() : code)
		return PyErr_Occurred()
			       ? NULL
			       : raise_code(state_of_object(object), code, "waiting for a slot");
	Py_RETURN_NONE;
}

static PyObject *reader_closed(PyObject *object, void *unused)
{
	return PyBool_FromLong(!((struct reader *)object)->reader);
}

static PyMethodDef reader_methods[] = {
	{"read", reader_read, METH_NOARGS,
	 "read($self, /)\n--\n\n(generation, Held), the same Held while nothing is new."},
	{"changed", reader_changed, METH_NOARGS,
	 "changed($self, /)\n--\n\nWhether there is a newer one."},
	{"fileno", reader_fileno, METH_NOARGS, "fileno($self, /)\n--\n\nFor select."},
	{"poll", reader_poll, METH_O,
	 "poll($self, milliseconds, /)\n--\n\nUntil changed() may say something else; None: "
	 "always."},
	{"close", reader_close, METH_NOARGS, "close($self, /)\n--\n\nValues stay."},
	{NULL},
};

static PyGetSetDef reader_properties[] = {
	{"closed", reader_closed, NULL, "Whether it was closed here.", NULL},
	{NULL},
};

static PyType_Slot reader_slots[] = {
	{Py_tp_dealloc, reader_dealloc},
	{Py_tp_methods, reader_methods},
	{Py_tp_getset, reader_properties},
	{Py_tp_doc, "The native part of tmesh.SlotReader."},
	{0},
};

TYPE_SPEC(slot_reader_spec, "tmesh._tmesh.SlotReaderHandle", struct reader,
	  Py_TPFLAGS_DISALLOW_INSTANTIATION, reader_slots);
