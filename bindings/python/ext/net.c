/* SPDX-License-Identifier: MIT */
/*
 * libtmesh-net, which is loaded at the first call, for tmesh.fetcher. It has a libtmesh of its own,
 * so a region passes from one to the other as a handle, by a socket.
 */
#include "binding.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/net_api.h"

/* The interval between two checks for signals, and between two reports of progress. */
#define SLICE_NS 50000000
/* The most nets of a process. Each takes a port, a thread and descriptors, which are limited. */
#define MOST 4096

struct handle {
	PyObject_HEAD struct tmesh_net *net; /* NULL once closed */
	struct tmesh_ctx *ctx;		     /* of libtmesh-net's libtmesh */
	pid_t owner;
};

static struct tmesh_net_api calls;

/* Load the library. A failed load is tried again at the next call, as the library may be installed
 * meanwhile. */
static int load(struct state *st)
{
	static bool loaded;
	struct tmesh_error err;

	if (!loaded && tmesh_net_api_load(&calls, secure_getenv("TMESH_NET_LIBRARY"), &err)) {
		raise_error(st, &err);
		return -1;
	}
	loaded = true;
	return 0;
}

static struct state *state_of_handle(PyObject *object)
{
	return PyType_GetModuleState(Py_TYPE(object));
}

static PyObject *module_net_open(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx_opts ctx_opts = {.size = sizeof(ctx_opts)};
	struct tmesh_net_opts opts = {
		.size = sizeof(opts),
		.max_offers = MOST,
		.max_keys = MOST,
		.max_keys_per_peer = MOST,
		.max_fetches = MOST,
		.max_fetches_per_address = MOST,
	};
	struct tmesh_ctx *ctx = context(st), *theirs = NULL;
	struct tmesh_net *net = NULL;
	struct tmesh_error err;
	struct handle *self;
	int rc;

	if (!ctx || !PyArg_ParseTuple(args, "sz:net_open", &opts.address, &opts.provider) ||
	    load(st))
		return NULL;
	ctx_opts.backend = tmesh_ctx_backend(ctx);
	Py_BEGIN_ALLOW_THREADS;
	rc = calls.ctx_open(&ctx_opts, &theirs, &err);
	if (!rc)
		rc = calls.net_open(theirs, &opts, &net, &err);
	if (rc && theirs)
		calls.ctx_unref(theirs);
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(st, &err);
	self = (struct handle *)PyType_GenericAlloc(st->net_type, 0);
	if (!self) {
		calls.net_unref(net);
		calls.ctx_unref(theirs);
		return NULL;
	}
	self->net = net;
	self->ctx = theirs;
	self->owner = getpid();
	return (PyObject *)self;
}

/* Take a reference on the net for the caller; NULL with an exception. */
static struct tmesh_net *get_net(PyObject *object)
{
	struct handle *self = (struct handle *)object;

	if (!self->net)
		return raise_code(state_of_handle(object), EBADF, "the fetcher is closed");
	if (self->owner != getpid())
		return raise_code(state_of_handle(object), EACCES,
				  "a fetcher belongs to the process that made it, and this is a "
				  "child of that by fork(): make another one here");
	return calls.net_ref(self->net);
}

static void net_handle_end(struct handle *self)
{
	struct tmesh_net *net = self->net;

	self->net = NULL;
	if (!net || self->owner != getpid())
		return;
	WITHOUT_GIL(calls.net_unref(net));
}

static PyObject *handle_close(PyObject *object, PyObject *unused)
{
	net_handle_end((struct handle *)object);
	Py_RETURN_NONE;
}

static void handle_dealloc(PyObject *object)
{
	struct handle *self = (struct handle *)object;

	net_handle_end(self);
	if (self->owner == getpid())
		calls.ctx_unref(self->ctx);
	object_free(object);
}

typedef int send_call(struct tmesh_region *region, int socket, uint32_t rights,
		      struct tmesh_error *err);
typedef int recv_call(struct tmesh_ctx *ctx, int socket, struct tmesh_region **out,
		      struct tmesh_error *err);

/* Pass a region from one libtmesh to the other, to be read: the same memory with another handle. */
static int hand_over(send_call *send, struct tmesh_region *region, recv_call *receive,
		     struct tmesh_ctx *ctx, struct tmesh_region **out, struct tmesh_error *err)
{
	int ends[2], rc;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
		err->code = -errno;
		snprintf(err->message, sizeof(err->message),
			 "making a socket, to hand memory to libtmesh-net: %s", strerror(errno));
		return err->code;
	}
	rc = send(region, ends[0], TMESH_READ, err);
	if (!rc)
		rc = receive(ctx, ends[1], out, err);
	close(ends[0]);
	close(ends[1]);
	return rc;
}

static PyObject *handle_offer(PyObject *object, PyObject *tensor)
{
	struct tmesh_net_offer_info info = {.size = sizeof(info)};
	struct handle *self = (struct handle *)object;
	struct state *st = state_of_handle(object);
	struct tmesh_region *region, *theirs;
	char key[TMESH_NET_KEY_SIZE], address[TMESH_NET_ADDRESS_SIZE];
	struct tmesh_tensor *inner;
	struct tmesh_error err;
	struct tmesh_net *net;
	int rc;

	if (Py_TYPE(tensor) != st->tensor_type)
		return PyErr_Format(PyExc_TypeError,
				    "a Tensor is offered, not %R: tmesh.put() makes one",
				    (PyObject *)Py_TYPE(tensor));
	inner = tensor_get((struct tensor *)tensor);
	net = inner ? get_net(object) : NULL;
	if (!net)
		return NULL;
	region = tmesh_region_ref(tmesh_tensor_region(inner));
	Py_BEGIN_ALLOW_THREADS;
	rc = hand_over(tmesh_region_send, region, calls.region_recv, self->ctx, &theirs, &err);
	tmesh_region_unref(region);
	if (!rc) {
		rc = calls.net_offer(net, theirs, &info, &err);
		calls.region_unref(theirs);
	}
	if (!rc) {
		rc = calls.net_grant(net, info.id, "all", key, address, &err);
		/* Withdraw the offer: no other process knows it yet. */
		if (rc)
			calls.net_withdraw(net, info.id, NULL);
	}
	calls.net_unref(net);
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(st, &err);
	return Py_BuildValue("(ssssK)", info.id, address, key, info.checksum,
			     (unsigned long long)info.bytes);
}

static PyObject *handle_withdraw(PyObject *object, PyObject *id)
{
	const char *text = PyUnicode_Check(id) ? PyUnicode_AsUTF8AndSize(id, NULL) : "";
	struct tmesh_net *net = text ? get_net(object) : NULL;
	struct tmesh_error err;
	int rc;

	if (!net)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	rc = calls.net_withdraw(net, text, &err);
	calls.net_unref(net);
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(state_of_handle(object), &err);
	Py_RETURN_NONE;
}

/* The progress of a fetch, written by its thread. */
struct fetching {
	PyObject *object;
	PyObject *progress; /* None, or called with the number of bytes that have arrived */
	PyThreadState *thread;
	int64_t next;
};

/* An exception of the callback cancels the fetch. */
static int report_progress(void *data, uint64_t bytes)
{
	struct fetching *fetching = data;
	PyObject *said = Py_None;

	if (left_until(fetching->next))
		return 0;
	PyEval_RestoreThread(fetching->thread);
	if (PyErr_CheckSignals())
		said = NULL;
	else if (!((struct handle *)fetching->object)->net)
		said = raise_code(state_of_handle(fetching->object), EBADF,
				  "the fetcher was closed meanwhile");
	else if (fetching->progress != Py_None)
		said = PyObject_CallFunction(fetching->progress, "K", (unsigned long long)bytes);
	if (said && said != Py_None)
		Py_DECREF(said);
	fetching->next = deadline_after(SLICE_NS);
	fetching->thread = PyEval_SaveThread();
	return !said;
}

static PyObject *handle_fetch(PyObject *object, PyObject *args)
{
	struct fetching fetching = {.object = object};
	struct tmesh_net_source source = {.size = sizeof(source)};
	struct tmesh_net_fetch_opts opts = {
		.size = sizeof(opts),
		.label = "net",
		.progress = report_progress,
		.data = &fetching,
	};
	struct state *st = state_of_handle(object);
	struct tmesh_region *region = NULL, *mine = NULL;
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_error err;
	struct tmesh_net *net;
	unsigned long long bytes;
	PyObject *timeout;
	int64_t ns;
	int rc;

	if (!ctx ||
	    !PyArg_ParseTuple(args, "sssO&OO:fetch", &source.address, &source.key, &source.checksum,
			      size_argument, &bytes, &timeout, &fetching.progress) ||
	    timeout_from_object(st, timeout, &ns))
		return NULL;
	if (ns <= 0)
		return raise_code(st, EINVAL, "timeout is more than 0 seconds");
	net = get_net(object);
	if (!net)
		return NULL;
	source.bytes = bytes;
	opts.timeout_ns = (uint64_t)ns;
	fetching.thread = PyEval_SaveThread();
	rc = calls.net_fetch(net, &source, &opts, &region, &err);
	if (!rc) {
		rc = hand_over(calls.region_send, region, tmesh_region_recv, ctx, &mine, &err);
		calls.region_unref(region);
	}
	calls.net_unref(net);
	PyEval_RestoreThread(fetching.thread);
	if (PyErr_Occurred()) { /* a signal's handler or the progress callback raised it */
		if (!rc)
			tmesh_region_unref(mine);
		return NULL;
	}
	return rc ? raise_error(st, &err) : tensor_as_described(st, mine);
}

static PyObject *handle_stats(PyObject *object, PyObject *unused)
{
	struct tmesh_net_stats stats = {.size = sizeof(stats)};
	struct tmesh_net *net = get_net(object);

	if (!net)
		return NULL;
	calls.net_stats(net, &stats);
	calls.net_unref(net);
	return Py_BuildValue(
		"{sKsKsKsKsKsKsK}", "offers", (unsigned long long)stats.offers, "keys",
		(unsigned long long)stats.keys, "fetches", (unsigned long long)stats.fetches,
		"fetched", (unsigned long long)stats.fetched, "failed",
		(unsigned long long)stats.failed, "resumed", (unsigned long long)stats.resumed,
		"bytes_fetched", (unsigned long long)stats.bytes_fetched);
}

static PyMethodDef methods[] = {
	{"offer", handle_offer, METH_O,
	 "offer($self, tensor, /)\n--\n\n"
	 "Its region, with a key: (id, address, key, checksum, bytes)."},
	{"withdraw", handle_withdraw, METH_O,
	 "withdraw($self, id, /)\n--\n\nAn offer and its key."},
	{"fetch", handle_fetch, METH_VARARGS,
	 "fetch($self, address, key, checksum, bytes, timeout, progress, /)\n--\n\n"
	 "A sealed region, as a Tensor of bytes. An exception of progress(bytes) ends the fetch."},
	{"stats", handle_stats, METH_NOARGS, "stats($self, /)\n--\n\nA dict."},
	{"close", handle_close, METH_NOARGS, "close($self, /)\n--\n\nAgain and again."},
	{NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_dealloc, handle_dealloc},
	{Py_tp_methods, methods},
	{Py_tp_doc, "The native part of tmesh.fetcher.Fetcher."},
	{0},
};

static TYPE_SPEC(spec, "tmesh._tmesh.NetHandle", struct handle, Py_TPFLAGS_DISALLOW_INSTANTIATION,
		 slots);

static PyMethodDef functions[] = {
	{"net_open", module_net_open, METH_VARARGS,
	 "net_open(address, provider, /)\n--\n\nA NetHandle, by libtmesh-net."},
	{NULL},
};

int net_add(PyObject *module, struct state *st)
{
	st->net_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
	if (!st->net_type || PyModule_AddType(module, st->net_type))
		return -1;
	return PyModule_AddFunctions(module, functions);
}
