/* SPDX-License-Identifier: MIT */
/*
 * The Channel type. The library allows one thread at a time in a handle. Short calls, and the first
 * moment of a busy wait, keep the GIL. A longer wait for a message, or for the peer whose region is
 * opened, drops the GIL and marks the handle as busy.
 */
#include "binding.h"

#include <math.h>

#define BATCH 64
/* A peer that also waits busily answers before this thread could drop the GIL and take it again. */
#define GLANCE_NS 2000

struct channel {
	PyObject_HEAD struct tmesh_channel *channel; /* NULL once closed */
	enum tmesh_channel_role role;
	int64_t glance_ns; /* 0: it never waits busily */
	bool busy;	   /* a thread waits in it without the GIL, or a task for its descriptor */
	PyObject *token;   /* other processes join with it */
};

static struct state *state_of_channel(struct channel *self)
{
	return PyType_GetModuleState(Py_TYPE((PyObject *)self));
}

static struct tmesh_channel *channel_get(struct channel *self)
{
	if (!self->channel)
		return raise_named(state_of_channel(self), "ReleasedError", EBADF,
				   "this channel was closed");
	if (self->busy)
		return raise_code(state_of_channel(self), EBUSY,
				  "another thread or task waits at this channel: open one for "
				  "each");
	return self->channel;
}

/* Making and joining */

/* "O&" */
static int role_argument(PyObject *object, void *role)
{
	enum tmesh_channel_role *to = role;

	if (PyUnicode_Check(object) && !PyUnicode_CompareWithASCIIString(object, "send"))
		*to = TMESH_CHANNEL_SEND;
	else if (PyUnicode_Check(object) && !PyUnicode_CompareWithASCIIString(object, "recv"))
		*to = TMESH_CHANNEL_RECV;
	else
		PyErr_Format(PyExc_ValueError, "a channel's role is \"send\" or \"recv\", not %R",
			     object);
	return !PyErr_Occurred();
}

/* The arguments that making and joining have in common. */
struct channel_args {
	int writable;
	unsigned int max_regions;
	unsigned long long max_bytes;
	double spin;
	unsigned int limit;
};

/* Return the context and fill in @opts; NULL with an exception. */
static struct tmesh_ctx *prepare(struct state *st, const struct channel_args *args,
				 struct tmesh_channel_opts *opts)
{
	if (!(args->spin >= 0 && args->spin <= 1))
		return raise_code(st, EINVAL, "spin must be seconds, at least 0 and at most 1");
	opts->spin_ns = (uint64_t)ceil(args->spin * 1e9);
	opts->rights = args->writable ? TMESH_READ | TMESH_WRITE : TMESH_READ;
	opts->max_regions = args->max_regions;
	opts->max_bytes = args->max_bytes;
	opts->limit = args->limit;
	opts->flags = TMESH_CHANNEL_NO_OPEN;
	return context(st);
}

static PyObject *channel_over(PyTypeObject *type, struct tmesh_channel *channel,
			      enum tmesh_channel_role role, uint64_t spin_ns, PyObject *token)
{
	struct channel *self = token ? (struct channel *)PyType_GenericAlloc(type, 0) : NULL;

	if (!self) {
		Py_XDECREF(token);
		tmesh_channel_unref(channel);
		return NULL;
	}
	self->channel = channel;
	self->role = role;
	self->glance_ns = spin_ns < GLANCE_NS ? (int64_t)spin_ns : GLANCE_NS;
	self->token = token;
	return (PyObject *)self;
}

static PyObject *channel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"role",	   "capacity", "producers",   "regions",
				"layouts", "writable", "max_regions", "max_bytes",
				"spin",	   "limit",    "poll",	      NULL};
	struct tmesh_channel_opts opts = {.size = sizeof(opts)};
	struct state *st = PyType_GetModuleState(type);
	int poll = true;
	struct channel_args common = {0};
	char token[TMESH_TOKEN_SIZE];
	enum tmesh_channel_role role;
	struct tmesh_channel *channel;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(
		    args, kwargs, "O&|$O&O&O&O&pO&O&dO&p:Channel", names, role_argument, &role,
		    uint_argument, &opts.capacity, uint_argument, &opts.producers, uint_argument,
		    &opts.regions, uint_argument, &opts.layouts, &common.writable, uint_argument,
		    &common.max_regions, size_argument, &common.max_bytes, &common.spin,
		    uint_argument, &common.limit, &poll))
		return NULL;
	ctx = prepare(st, &common, &opts);
	if (!poll)
		opts.flags |= TMESH_CHANNEL_NO_POLL;
	if (!ctx)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_channel_create(ctx, role, &opts, &channel, &err);
	if (!rc && tmesh_channel_token(channel, token, &err)) {
		tmesh_channel_unref(channel);
		rc = err.code;
	}
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(st, &err);
	return channel_over(type, channel, role, opts.spin_ns, PyUnicode_FromString(token));
}

static PyObject *channel_open(PyObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"token",     "role", "writable", "max_regions",
				"max_bytes", "spin", "limit",	 NULL};
	struct tmesh_channel_opts opts = {.size = sizeof(opts)};
	struct state *st = PyType_GetModuleState((PyTypeObject *)type);
	struct channel_args common = {0};
	enum tmesh_channel_role role;
	struct tmesh_channel *channel;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	const char *token;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO&|$pO&O&dO&:open", names, &token,
					 role_argument, &role, &common.writable, uint_argument,
					 &common.max_regions, size_argument, &common.max_bytes,
					 &common.spin, uint_argument, &common.limit))
		return NULL;
	ctx = prepare(st, &common, &opts);
	if (!ctx)
		return NULL;
	WITHOUT_GIL(rc = tmesh_channel_open(ctx, token, role, &opts, &channel, &err));
	if (rc == -EACCES || rc == -EPROTO)
		return raise_code(
			st, -rc,
			"%s. A channel is joined by its token, channel.token; a tensor's token "
			"is for tmesh.open()",
			err.message);
	if (rc)
		return raise_error(st, &err);
	return channel_over((PyTypeObject *)type, channel, role, opts.spin_ns,
			    PyUnicode_FromString(token));
}

/* Drop the GIL: regions may have to be unmapped. */
static void channel_release(struct channel *self)
{
	struct tmesh_channel *channel = self->channel;

	self->channel = NULL;
	WITHOUT_GIL(tmesh_channel_unref(channel));
}

static void channel_dealloc(PyObject *object)
{
	struct channel *self = (struct channel *)object;

	channel_release(self);
	Py_XDECREF(self->token);
	object_free(object);
}

static PyObject *channel_close(PyObject *object, PyObject *unused)
{
	struct channel *self = (struct channel *)object;

	if (self->channel && !channel_get(self))
		return NULL;
	channel_release(self);
	Py_RETURN_NONE;
}

static PyObject *channel_enter(PyObject *object, PyObject *unused)
{
	return channel_get((struct channel *)object) ? Py_NewRef(object) : NULL;
}

static PyObject *channel_exit(PyObject *object, PyObject *args)
{
	return channel_close(object, NULL);
}

/* Waiting */

/* Parse a vectorcall whose last argument, by position or by name, is "timeout". */
static int parse_last(struct state *st, const char *function, PyObject *const *args,
		      Py_ssize_t count, PyObject *names, Py_ssize_t before, int64_t *ns)
{
	Py_ssize_t named = names ? PyTuple_Size(names) : 0;

	*ns = -1;
	if (count + named < before || count < before || count + named > before + 1 ||
	    (named && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "timeout"))) {
		PyErr_Format(PyExc_TypeError, "%s() takes %sone argument called timeout", function,
			     before ? "what it is about, and " : "at most ");
		return -1;
	}
	return count + named > before ? timeout_from_object(st, args[before], ns) : 0;
}

struct wait {
	struct tmesh_message *messages;
	uint32_t count; /* 0: flush, or open the memory of the next message */
	int64_t timeout_ns;
};

static int act(struct channel *self, const struct wait *wait, int64_t timeout_ns,
	       struct tmesh_error *err)
{
	int rc;

	if (self->role == TMESH_CHANNEL_SEND)
		return wait->count ? tmesh_channel_send_batch(self->channel, wait->messages,
							      wait->count, timeout_ns, err)
				   : tmesh_channel_flush(self->channel, timeout_ns, err);
	if (!wait->count)
		return tmesh_channel_prepare(self->channel, err);
	rc = tmesh_channel_recv_batch(self->channel, wait->messages, wait->count, timeout_ns, err);
	if (rc == -EINPROGRESS)
		rc = tmesh_channel_prepare(self->channel, err) ? err->code : -EINTR;
	return rc;
}

/* Wait without the GIL. After a signal run Python's handlers, which may raise. After act() has
 * opened the next message's memory, receive again. */
static int wait_for(struct channel *self, const struct wait *wait, struct tmesh_error *err)
{
	int64_t end = deadline_after(wait->timeout_ns), left = wait->timeout_ns;
	int rc;

	self->busy = true;
	do {
		WITHOUT_GIL(rc = act(self, wait, left, err));
		if (rc == -EINTR && PyErr_CheckSignals())
			break;
		left = left_until(end);
	} while (rc == -EINTR);
	self->busy = false;
	return rc;
}

static PyObject *raise_rc(struct channel *self, const struct tmesh_error *err)
{
	/* A signal's handler has already raised. */
	return PyErr_Occurred() ? NULL : raise_error(state_of_channel(self), err);
}

/* Whether the channel is open in this role. Call this last: converting arguments may run Python
 * code that closes the channel. */
static bool may(struct channel *self, enum tmesh_channel_role role)
{
	if (!channel_get(self))
		return false;
	if (self->role == role)
		return true;
	raise_code(state_of_channel(self), EINVAL, "this end of the channel is for %s",
		   self->role == TMESH_CHANNEL_SEND ? "sending" : "receiving");
	return false;
}

/* Sending */

static PyObject *channel_try_send(PyObject *object, PyObject *what)
{
	struct channel *self = (struct channel *)object;
	struct tmesh_message message;
	struct tmesh_error err;
	int rc;

	if (message_from_object(state_of_channel(self), what, &message) ||
	    !may(self, TMESH_CHANNEL_SEND))
		return NULL;
	rc = tmesh_channel_try_send(self->channel, &message, &err);
	if (rc && rc != -EAGAIN)
		return raise_rc(self, &err);
	return PyBool_FromLong(!rc);
}

static PyObject *channel_send(PyObject *object, PyObject *const *args, Py_ssize_t count,
			      PyObject *names)
{
	struct channel *self = (struct channel *)object;
	struct state *st = state_of_channel(self);
	struct tmesh_message message;
	struct wait wait = {.messages = &message, .count = 1};
	struct tmesh_error err;
	int rc;

	if (parse_last(st, "send", args, count, names, 1, &wait.timeout_ns) ||
	    message_from_object(st, args[0], &message) || !may(self, TMESH_CHANNEL_SEND))
		return NULL;
	rc = tmesh_channel_try_send(self->channel, &message, &err);
	if (rc == -EAGAIN) {
		/* Hold a reference: another thread may release the Tensor meanwhile. */
		struct tmesh_tensor *held =
			message.tensor ? tmesh_tensor_ref(message.tensor) : NULL;

		rc = wait_for(self, &wait, &err);
		tmesh_tensor_unref(held);
	}
	if (rc < 0)
		return raise_rc(self, &err);
	Py_RETURN_NONE;
}

static PyObject *channel_send_batch(PyObject *object, PyObject *const *args, Py_ssize_t count,
				    PyObject *names)
{
	struct channel *self = (struct channel *)object;
	struct state *st = state_of_channel(self);
	struct tmesh_message messages[BATCH];
	struct wait wait = {.messages = messages};
	struct tmesh_error err;
	Py_ssize_t most = 0;
	PyObject *tuple;
	int rc = 0;

	if (parse_last(st, "send_batch", args, count, names, 1, &wait.timeout_ns))
		return NULL;
	tuple = PySequence_Tuple(args[0]);
	if (!tuple)
		return NULL;
	most = PyTuple_Size(tuple);
	if (most > BATCH)
		most = BATCH;
	for (; wait.count < most && !rc; wait.count += !rc) {
		rc = message_from_object(st, PyTuple_GetItem(tuple, wait.count),
					 &messages[wait.count]);
		if (!rc && messages[wait.count].tensor)
			tmesh_tensor_ref(messages[wait.count].tensor);
	}
	/* Report an exception from Python code as one of a signal's handler. */
	if (!rc && !may(self, TMESH_CHANNEL_SEND))
		rc = -1;
	if (!rc && wait.count)
		rc = wait_for(self, &wait, &err);
	for (uint32_t i = 0; i < wait.count; i++)
		tmesh_tensor_unref(messages[i].tensor);
	Py_DECREF(tuple);
	return rc < 0 ? raise_rc(self, &err) : PyLong_FromLong(rc);
}

static PyObject *channel_flush(PyObject *object, PyObject *const *args, Py_ssize_t count,
			       PyObject *names)
{
	struct channel *self = (struct channel *)object;
	struct wait wait = {0};
	struct tmesh_error err;

	if (parse_last(state_of_channel(self), "flush", args, count, names, 0, &wait.timeout_ns) ||
	    !may(self, TMESH_CHANNEL_SEND))
		return NULL;
	if (wait_for(self, &wait, &err))
		return raise_rc(self, &err);
	Py_RETURN_NONE;
}

/* Receiving */

/* Convert the result of one attempt: a message, None, or an exception. */
static PyObject *tried(struct channel *self, int rc, struct tmesh_message *message,
		       const struct tmesh_error *err)
{
	if (rc == -EAGAIN)
		Py_RETURN_NONE;
	return rc < 0 ? raise_rc(self, err) : object_from_message(state_of_channel(self), message);
}

static PyObject *channel_try_recv(PyObject *object, PyObject *unused)
{
	struct channel *self = (struct channel *)object;
	struct tmesh_message message;
	struct tmesh_error err;
	int rc;

	if (!may(self, TMESH_CHANNEL_RECV))
		return NULL;
	do
		rc = tmesh_channel_try_recv(self->channel, &message, &err);
	while (rc == -EINPROGRESS && !(rc = wait_for(self, &(struct wait){0}, &err)));
	return tried(self, rc, &message, &err);
}

/* Two halves of try_recv() for event loops, whose thread must not wait for a message's owner. */
static PyObject *channel_poll(PyObject *object, PyObject *unused)
{
	struct channel *self = (struct channel *)object;
	struct tmesh_message message;
	struct tmesh_error err;
	int rc;

	if (!may(self, TMESH_CHANNEL_RECV))
		return NULL;
	rc = tmesh_channel_try_recv(self->channel, &message, &err);
	if (rc == -EINPROGRESS)
		Py_RETURN_FALSE;
	return tried(self, rc, &message, &err);
}

static PyObject *channel_prepare(PyObject *object, PyObject *unused)
{
	struct channel *self = (struct channel *)object;
	struct tmesh_error err;

	if (!may(self, TMESH_CHANNEL_RECV))
		return NULL;
	if (wait_for(self, &(struct wait){0}, &err))
		return raise_rc(self, &err);
	Py_RETURN_NONE;
}

static PyObject *recv_for(struct channel *self, int64_t timeout_ns)
{
	struct tmesh_message message;
	struct wait wait = {&message, 1, timeout_ns};
	struct tmesh_error err;
	int rc;

	if (self->glance_ns && (timeout_ns < 0 || timeout_ns >= self->glance_ns))
		rc = tmesh_channel_recv(self->channel, &message, self->glance_ns, &err);
	else
		rc = tmesh_channel_try_recv(self->channel, &message, &err);
	if (rc == -EAGAIN || rc == -ETIMEDOUT || rc == -EINPROGRESS)
		rc = wait_for(self, &wait, &err);
	return rc < 0 ? raise_rc(self, &err)
		      : object_from_message(state_of_channel(self), &message);
}

static PyObject *channel_recv(PyObject *object, PyObject *const *args, Py_ssize_t count,
			      PyObject *names)
{
	struct channel *self = (struct channel *)object;
	int64_t timeout_ns;

	if (parse_last(state_of_channel(self), "recv", args, count, names, 0, &timeout_ns) ||
	    !may(self, TMESH_CHANNEL_RECV))
		return NULL;
	return recv_for(self, timeout_ns);
}

static PyObject *channel_recv_batch(PyObject *object, PyObject *const *args, Py_ssize_t count,
				    PyObject *names)
{
	struct channel *self = (struct channel *)object;
	struct state *st = state_of_channel(self);
	struct tmesh_message messages[BATCH];
	struct wait wait = {.messages = messages, .count = BATCH};
	struct tmesh_error err;
	PyObject *list;
	int got;

	if (parse_last(st, "recv_batch", args, count, names, 0, &wait.timeout_ns) ||
	    !may(self, TMESH_CHANNEL_RECV))
		return NULL;
	got = wait_for(self, &wait, &err);
	if (got < 0)
		return raise_rc(self, &err);
	list = PyList_New(got);
	for (int i = 0; i < got; i++) {
		PyObject *message = NULL;

		if (list)
			message = object_from_message(st, &messages[i]);
		else
			tmesh_tensor_unref(messages[i].tensor);
		if (message)
			PyList_SetItem(list, i, message);
		else
			Py_CLEAR(list);
	}
	return list;
}

static PyObject *channel_next(PyObject *object)
{
	struct channel *self = (struct channel *)object;
	PyObject *message, *gone, *type, *value, *traceback;

	if (!may(self, TMESH_CHANNEL_RECV))
		return NULL;
	message = recv_for(self, -1);
	if (message)
		return message;
	/* The look-up may clear a pending exception. */
	PyErr_Fetch(&type, &value, &traceback);
	gone = PyObject_GetAttrString(state_of_channel(self)->errors, "GoneError");
	PyErr_Restore(type, value, traceback);
	if (gone && PyErr_ExceptionMatches(gone))
		PyErr_Clear();
	Py_XDECREF(gone);
	return NULL;
}

/* Event loops */

static PyObject *channel_fileno(PyObject *object, PyObject *unused)
{
	struct channel *self = (struct channel *)object;
	struct tmesh_channel *channel = channel_get(self);
	struct tmesh_error err;
	int fd = channel ? tmesh_channel_poll_fd(channel, &err) : 0;

	if (!channel)
		return NULL;
	return fd < 0 ? raise_error(state_of_channel(self), &err) : PyLong_FromLong(fd);
}

/* Another thread may wait in the handle meanwhile. A thread that closes it has the GIL then. */
static PyObject *channel_level(PyObject *object, PyObject *unused)
{
	struct channel *self = (struct channel *)object;
	struct tmesh_error err;
	uint64_t waiting;
	uint32_t room;

	if (!self->channel) {
		channel_get(self);
		return NULL;
	}
	if (tmesh_channel_level(self->channel, &waiting, &room, &err))
		return raise_error(state_of_channel(self), &err);
	return Py_BuildValue("(KI)", (unsigned long long)waiting, (unsigned int)room);
}

static PyObject *channel_begin_wait(PyObject *object, PyObject *unused)
{
	struct channel *self = (struct channel *)object;

	if (!channel_get(self))
		return NULL;
	self->busy = true;
	Py_RETURN_NONE;
}

static PyObject *channel_end_wait(PyObject *object, PyObject *unused)
{
	((struct channel *)object)->busy = false;
	Py_RETURN_NONE;
}

static PyObject *channel_recv_async(PyObject *object, PyObject *unused)
{
	return call_python("tmesh.channel", "recv", object);
}

static PyObject *channel_send_async(PyObject *object, PyObject *message)
{
	PyObject *module = PyImport_ImportModule("tmesh.channel");
	PyObject *coroutine =
		module ? PyObject_CallMethod(module, "send", "(OO)", object, message) : NULL;

	Py_XDECREF(module);
	return coroutine;
}

static PyObject *channel_aiter(PyObject *object)
{
	return call_python("tmesh.channel", "iterate", object);
}

static PyObject *get_token(PyObject *object, void *unused)
{
	return Py_NewRef(((struct channel *)object)->token);
}

static PyObject *get_role(PyObject *object, void *unused)
{
	return PyUnicode_FromString(
		((struct channel *)object)->role == TMESH_CHANNEL_SEND ? "send" : "recv");
}

static PyObject *get_closed(PyObject *object, void *unused)
{
	return PyBool_FromLong(!((struct channel *)object)->channel);
}

static PyObject *channel_repr(PyObject *object)
{
	struct channel *self = (struct channel *)object;

	return PyUnicode_FromFormat("<tmesh.Channel, %s%s>",
				    self->role == TMESH_CHANNEL_SEND ? "sending" : "receiving",
				    self->channel ? "" : ", closed");
}

static PyObject *channel_reduce(PyObject *object, PyObject *unused)
{
	(void)object;
	(void)unused;
	PyErr_SetString(PyExc_TypeError,
			"a channel is not pickled: send its token, and let the other "
			"process join by Channel.open(token, role)");
	return NULL;
}

#define KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
	{"open", KEYWORDS(channel_open), METH_VARARGS | METH_KEYWORDS | METH_CLASS,
	 "open(token, role, *, writable=False, max_regions=0, max_bytes=0, spin=0.0,\n     "
	 "limit=0)\n--\n\n"
	 "Join a channel by its token. NotFoundError: there is none any more; BusyError: all\n"
	 "places of that role are taken."},
	{"send", KEYWORDS(channel_send), METH_FASTCALL | METH_KEYWORDS,
	 "send($self, message, /, timeout=None)\n--\n\n"
	 "Send bytes (at most 56), a Tensor, or a tuple of a Tensor and bytes (at most 24). The\n"
	 "message has only a tensor's description, so the tensor may be released at once. Waits "
	 "while the\n"
	 "channel is full: PeerTimeoutError after timeout seconds, GoneError when no\n"
	 "receiver is left, ReleasedError when this end was closed, BusyError when another thread\n"
	 "uses it. TypeError: it is no message; InvalidError: it is too long."},
	{"try_send", channel_try_send, METH_O,
	 "try_send($self, message, /)\n--\n\n"
	 "send() without waiting: False when the channel is full. Errors as of send()."},
	{"send_batch", KEYWORDS(channel_send_batch), METH_FASTCALL | METH_KEYWORDS,
	 "send_batch($self, messages, /, timeout=None)\n--\n\n"
	 "Send the first of several messages and as many more as there is room for, at most\n"
	 "64; how many went. Less than half the price of sending each. Errors as of send()."},
	{"flush", KEYWORDS(channel_flush), METH_FASTCALL | METH_KEYWORDS,
	 "flush($self, /, timeout=None)\n--\n\n"
	 "Wait until all that was sent here was received. Errors as of send()."},
	{"recv", KEYWORDS(channel_recv), METH_FASTCALL | METH_KEYWORDS,
	 "recv($self, /, timeout=None)\n--\n\n"
	 "Return the next message, an object as send() got it. PeerTimeoutError: no message\n"
	 "came within timeout seconds. GoneError: the channel is empty and has no sender\n"
	 "left. NotFoundError: a message's tensor is gone with its owner; the next call\n"
	 "returns the message after it. ReleasedError\n"
	 "when this end was closed, BusyError when another thread uses it."},
	{"try_recv", channel_try_recv, METH_NOARGS,
	 "try_recv($self, /)\n--\n\n"
	 "recv() without waiting: None when there is nothing. Errors as of recv()."},
	{"recv_batch", KEYWORDS(channel_recv_batch), METH_FASTCALL | METH_KEYWORDS,
	 "recv_batch($self, /, timeout=None)\n--\n\n"
	 "A list of the messages that are there, at most 64; waits for the first. Errors as of\n"
	 "recv()."},
	{"recv_async", channel_recv_async, METH_NOARGS,
	 "recv_async($self, /)\n--\n\n"
	 "recv() for asyncio, for one task at a time. While a task waits the channel cannot be\n"
	 "closed (BusyError). async for goes on until no sender is left. If it raises for one\n"
	 "message, such as NotFoundError, the next step returns the message after it."},
	{"send_async", channel_send_async, METH_O,
	 "send_async($self, message, /)\n--\n\n"
	 "send() for asyncio, for one task at a time. While a task waits the channel cannot be\n"
	 "closed (BusyError). Errors as of send(), and UnsupportedError when it has to\n"
	 "wait for room where several may send."},
	{"fileno", channel_fileno, METH_NOARGS,
	 "fileno($self, /)\n--\n\n"
	 "A descriptor for select and asyncio: readable when it is worth to try. Try until\n"
	 "there is nothing (or no room), which arms it again. UnsupportedError: sending, where\n"
	 "several may send; ReleasedError: this end was closed."},
	{"_level", channel_level, METH_NOARGS,
	 "_level($self, /)\n--\n\n"
	 "Messages of all senders that no receiver has taken, and the number that this end may "
	 "still send."},
	{"_poll", channel_poll, METH_NOARGS,
	 "_poll($self, /)\n--\n\n"
	 "try_recv(), but False where _prepare() has to open a region first."},
	{"_prepare", channel_prepare, METH_NOARGS,
	 "_prepare($self, /)\n--\n\nOpen the region that the next message needs."},
	{"_begin_wait", channel_begin_wait, METH_NOARGS,
	 "_begin_wait($self, /)\n--\n\nA task waits for the descriptor: BusyError for all others."},
	{"_end_wait", channel_end_wait, METH_NOARGS,
	 "_end_wait($self, /)\n--\n\nIt does not any more."},
	{"close", channel_close, METH_NOARGS,
	 "close($self, /)\n--\n\n"
	 "Leave the channel. Others can still receive what was sent. Where its maker closes it\n"
	 "and no handle has joined, one may do so for five seconds (TMESH_EXIT_WAIT).\n"
	 "Closing twice is fine. BusyError: a thread or task waits in it."},
	{"__reduce__", channel_reduce, METH_NOARGS,
	 "__reduce__($self, /)\n--\n\nTypeError: send the token instead."},
	{"__enter__", channel_enter, METH_NOARGS, "__enter__($self, /)\n--\n\nThe channel."},
	{"__exit__", channel_exit, METH_VARARGS, "__exit__($self, /, *args)\n--\n\nclose()."},
	{NULL},
};

static PyGetSetDef properties[] = {
	{"token", get_token, NULL,
	 "The token by which other processes join, while the channel's maker lives.", NULL},
	{"role", get_role, NULL, "\"send\" or \"recv\".", NULL},
	{"closed", get_closed, NULL, "Whether close() was called.", NULL},
	{NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc,
	 "Channel(role, *, capacity=0, producers=0, regions=0, layouts=0, writable=False,\n"
	 "        max_regions=0, max_bytes=0, spin=0.0, limit=0, poll=True)\n--\n\n"
	 "One end, \"send\" or \"recv\", of a new bounded queue in shared memory that carries\n"
	 "tensors' descriptions and small messages one way. Others join by its token.\n\n"
	 "capacity: messages under way, a power of two (64). producers: ends that send (1).\n"
	 "regions, layouts: of tensors under way (16). writable: whether receivers may write\n"
	 "what is sent here. max_regions, max_bytes: the most that a receiver keeps open (64, 1 "
	 "GiB).\n"
	 "spin: seconds of busy waiting, the first two microseconds with the GIL, before\n"
	 "sleeping. limit: messages that this end has under way at most, if it may not use all "
	 "capacity.\n"
	 "poll: whether ends have a fileno(), which costs each three descriptors.\n"
	 "InvalidError: a number is out of its range; ValueError: the role is no role; "
	 "LimitError,\n"
	 "OutOfMemoryError: there is no descriptor, or no memory."},
	{Py_tp_new, channel_new},
	{Py_tp_dealloc, channel_dealloc},
	{Py_tp_repr, channel_repr},
	{Py_tp_iter, PyObject_SelfIter},
	{Py_tp_iternext, channel_next},
	{Py_am_aiter, channel_aiter},
	{Py_tp_methods, methods},
	{Py_tp_getset, properties},
	{0},
};

TYPE_SPEC(channel_spec, "tmesh.Channel", struct channel, 0, slots);
