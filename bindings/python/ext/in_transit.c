/* SPDX-License-Identifier: MIT */
/*
 * The InTransit type: tensors that this process has sent by ref and no receiver has opened yet. A
 * ref does not hold memory, so the sender does. The receiver writes the tensor's number into its
 * entry of a small region, and the sender then lets go. Each end makes one call into C, because
 * this is on the path of every new tensor and runs with cold caches.
 */
#include "binding.h"

#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ENTRIES_MAX 4096
/* The number of entries that are checked at a time. */
#define LOOKS 8
/* The number of senders whose entries stay mapped. */
#define SENDERS 16
/* In seconds, as long as a pickle's ref holds. */
#define PATIENCE 60.0
#define READ_WRITE (TMESH_READ | TMESH_WRITE)

/* "TM0T" and the version of the record. Both ends are on one machine. */
#define PARCEL_MAGIC 0x0000000154304d54ull

/* The message: a tensor's ref, and the entry in which its sender expects the answer. */
struct parcel {
	uint64_t magic;
	struct tmesh_ref ref;
	uint32_t rights;
	uint32_t entry;
	int64_t number;
	char entries[TMESH_TOKEN_SIZE];
};

struct way {
	int64_t number;
	int64_t since; /* seconds of the monotonic clock */
	PyObject *tensor;
};

/* This process's own entries. Each is a number in the region. */
struct sender {
	struct tmesh_tensor *entries;
	int64_t *taken;
	char token[TMESH_TOKEN_SIZE];
	int64_t number;
	uint32_t free_count;
	uint16_t free[ENTRIES_MAX];
	uint32_t first, count; /* the entries in use, least recently checked first */
	uint16_t order[ENTRIES_MAX];
	struct way way[ENTRIES_MAX];
};

/* The entries of another process. They are only mapped, so a sender that has ended keeps no
 * descriptor in this process. */
struct known {
	char token[TMESH_TOKEN_SIZE];
	int64_t *taken; /* NULL: none */
	uint64_t count;
};

struct sent {
	PyObject_HEAD uint32_t entries;
	double patience; /* in seconds; if all entries are in use, entries older than this are given
			  * up */
	uint64_t given_up;
	pid_t pid;
	struct sender *sender; /* NULL until something is sent */
	struct known known[SENDERS];
	uint32_t oldest;
};

static struct state *state_of_sent(struct sent *self)
{
	return PyType_GetModuleState(Py_TYPE((PyObject *)self));
}

static void sender_free(struct sender *sender)
{
	if (!sender)
		return;
	for (uint32_t i = 0; i < ENTRIES_MAX; i++)
		Py_XDECREF(sender->way[i].tensor);
	tmesh_tensor_unref(sender->entries);
	free(sender);
}

static void known_drop(struct known *known)
{
	if (known->taken)
		munmap(known->taken, known->count * sizeof(*known->taken));
	known->taken = NULL;
}

static void forget(struct sent *self)
{
	struct sender *sender = self->sender;

	self->sender = NULL;
	for (int i = 0; i < SENDERS; i++)
		known_drop(&self->known[i]);
	sender_free(sender);
}

/* Reset the state in a forked child. It may write neither to its parent's entries nor to those that
 * the parent has opened. */
static void here(struct sent *self)
{
	pid_t pid = getpid();

	if (self->pid == pid)
		return;
	self->pid = pid;
	forget(self);
}

static PyObject *sent_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"entries", "patience", NULL};
	unsigned int entries = ENTRIES_MAX;
	double patience = PATIENCE;
	struct sent *self;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O&d:InTransit", names, uint_argument,
					 &entries, &patience))
		return NULL;
	if (!entries || entries > ENTRIES_MAX)
		return raise_code(PyType_GetModuleState(type), EINVAL, "entries: 1 to %d",
				  ENTRIES_MAX);
	self = (struct sent *)PyType_GenericAlloc(type, 0);
	if (self) {
		self->entries = entries;
		self->patience = patience;
		self->pid = getpid();
	}
	return (PyObject *)self;
}

static void sent_dealloc(PyObject *object)
{
	forget((struct sent *)object);
	object_free(object);
}

/* Sending */

static int sender_open(struct tmesh_ctx *ctx, struct sender *sender, uint32_t entries,
		       struct tmesh_error *err)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .label = "tmesh.in_transit"};
	int64_t count = entries;
	void *data = NULL;
	int rc = tmesh_tensor_create(ctx, TMESH_INT64, 1, &count, &opts, &sender->entries, err);

	if (!rc)
		rc = tmesh_region_token(tmesh_tensor_region(sender->entries), READ_WRITE,
					sender->token, err);
	if (!rc)
		rc = tmesh_tensor_data(sender->entries, READ_WRITE, &data, err);
	sender->taken = data;
	while (sender->free_count < entries) {
		sender->free[sender->free_count] = (uint16_t)(entries - 1 - sender->free_count);
		sender->free_count++;
	}
	return rc;
}

static struct sender *sender_of(struct sent *self)
{
	struct state *st = state_of_sent(self);
	struct tmesh_ctx *ctx = context(st);
	struct sender *sender;
	struct tmesh_error err;

	if (!ctx || self->sender)
		return ctx ? self->sender : NULL;
	sender = calloc(1, sizeof(*sender));
	if (!sender) {
		PyErr_NoMemory();
		return NULL;
	}
	if (sender_open(ctx, sender, self->entries, &err)) {
		sender_free(sender);
		return raise_error(st, &err);
	}
	self->sender = sender;
	return sender;
}

/* Let go of the tensors that receivers have taken, among the @most least recently checked entries.
 * Drop the references last: this frees memory and runs other code. */
static void sender_look(struct sender *sender, uint32_t most)
{
	uint32_t looks = sender->count < most ? sender->count : most, count = 0;
	PyObject *taken[ENTRIES_MAX];

	while (looks--) {
		uint16_t entry = sender->order[sender->first];
		struct way *way = &sender->way[entry];

		sender->first = (sender->first + 1) % ENTRIES_MAX;
		sender->count--;
		if (__atomic_load_n(&sender->taken[entry], __ATOMIC_ACQUIRE) == way->number) {
			taken[count++] = way->tensor;
			way->tensor = NULL;
			sender->free[sender->free_count++] = entry;
		} else {
			sender->order[(sender->first + sender->count++) % ENTRIES_MAX] = entry;
		}
	}
	while (count--)
		Py_DECREF(taken[count]);
}

static int64_t now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

/*
 * Free an entry when all are in use. Nothing reports that a message was lost with its pipe or its
 * process, so the oldest entry is given up if it is older than the patience. Return its tensor,
 * whose reference passes to the caller; NULL if it is too recent.
 */
static PyObject *make_room(struct sent *self, struct sender *sender)
{
	uint32_t oldest = 0;
	struct way *way;
	uint16_t entry;
	PyObject *tensor;

	for (uint32_t i = 1; i < sender->count; i++) {
		uint16_t this = sender->order[(sender->first + i) % ENTRIES_MAX];
		uint16_t other = sender->order[(sender->first + oldest) % ENTRIES_MAX];

		if (sender->way[this].number < sender->way[other].number)
			oldest = i;
	}
	entry = sender->order[(sender->first + oldest) % ENTRIES_MAX];
	way = &sender->way[entry];
	if ((double)(now_s() - way->since) < self->patience)
		return NULL;
	for (uint32_t i = oldest; i + 1 < sender->count; i++)
		sender->order[(sender->first + i) % ENTRIES_MAX] =
			sender->order[(sender->first + i + 1) % ENTRIES_MAX];
	sender->count--;
	sender->free[sender->free_count++] = entry;
	tensor = way->tensor;
	way->tensor = NULL;
	self->given_up++;
	return tensor;
}

/* Warn once. A filter may turn the warning into an exception; there is no caller to raise it in, so
 * print it. */
static void warn_of_given_up(struct sent *self)
{
	if (self->given_up == 1 &&
	    PyErr_WarnFormat(
		    PyExc_RuntimeWarning, 1,
		    "%u tensors were sent and no process has opened them. From now on those "
		    "that were sent first, over %d s ago, are given up, and arrive as lost. "
		    "Their receivers have ended, or do not read what they were sent",
		    (unsigned int)self->entries, (int)self->patience))
		PyErr_WriteUnraisable((PyObject *)self);
}

static int describe(struct state *st, struct tensor *self, uint32_t rights, struct parcel *parcel)
{
	struct tmesh_tensor *tensor = tensor_get(self);
	struct tmesh_region *region;
	struct tmesh_error err;
	int rc;

	if (!tensor)
		return -1;
	region = tmesh_tensor_region(tensor);
	parcel->magic = PARCEL_MAGIC;
	parcel->rights = rights;
	parcel->ref.id = tmesh_region_id(region);
	parcel->ref.byte_size = tmesh_tensor_bytes(tensor);
	parcel->ref.layout = *tmesh_tensor_layout(tensor);
	rc = tmesh_region_token(region, rights, parcel->ref.token, &err);
	/* Another process sealed it meanwhile. Send it as a sealed tensor. */
	if (rc == -EPERM && rights != TMESH_READ) {
		parcel->rights = TMESH_READ;
		rc = tmesh_region_token(region, TMESH_READ, parcel->ref.token, &err);
	}
	if (!rc)
		return 0;
	raise_region_error(st, region, &err);
	return -1;
}

static PyObject *sent_send(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
	struct sent *self = (struct sent *)object;
	struct state *st = state_of_sent(self);
	PyObject *bytes, *given_up = NULL;
	struct sender *sender;
	struct parcel parcel;
	int writable;

	if (count != 2 || Py_TYPE(args[0]) != st->tensor_type) {
		PyErr_SetString(PyExc_TypeError, "send() takes a tmesh.Tensor and whether others "
						 "may write");
		return NULL;
	}
	writable = PyObject_IsTrue(args[1]);
	if (writable < 0)
		return NULL;
	here(self);
	memset(&parcel, 0, sizeof(parcel));
	sender = sender_of(self);
	if (!sender ||
	    describe(st, (struct tensor *)args[0], writable ? READ_WRITE : TMESH_READ, &parcel))
		return NULL;
	if (!sender->free_count) {
		sender_look(sender, ENTRIES_MAX);
		/* Dropping tensors ran code which may have forked: this process may be the child.
		 */
		here(self);
		sender = sender_of(self);
		if (!sender)
			return NULL;
	}
	if (!sender->free_count)
		given_up = make_room(self, sender);
	if (!sender->free_count)
		return raise_code(
			st, EDQUOT,
			"%u tensors were sent and not yet taken out: wait until some were",
			(unsigned int)self->entries);
	parcel.entry = sender->free[sender->free_count - 1];
	parcel.number = sender->number + 1;
	memcpy(parcel.entries, sender->token, sizeof(parcel.entries));
	bytes = PyBytes_FromStringAndSize((char *)&parcel, sizeof(parcel));
	if (bytes) {
		sender->free_count--;
		sender->number++;
		sender->order[(sender->first + sender->count++) % ENTRIES_MAX] =
			(uint16_t)parcel.entry;
		sender->way[parcel.entry] =
			(struct way){parcel.number, now_s(), Py_NewRef(args[0])};
	}
	Py_XDECREF(given_up);
	if (given_up && bytes)
		warn_of_given_up(self);
	return bytes;
}

static PyObject *sent_look(PyObject *object, PyObject *unused)
{
	struct sent *self = (struct sent *)object;

	here(self);
	if (self->sender)
		sender_look(self->sender, LOOKS);
	Py_RETURN_NONE;
}

static PyObject *sent_under_way(PyObject *object, PyObject *unused)
{
	struct sent *self = (struct sent *)object;

	here(self);
	if (self->sender)
		sender_look(self->sender, ENTRIES_MAX);
	/* Read the pointer again: other code may have run. */
	return PyLong_FromUnsignedLong(self->sender ? self->sender->count : 0);
}

/* Receiving */

static int parcel_from_object(struct state *st, PyObject *object, struct parcel *parcel)
{
	Py_buffer view;
	bool good;

	if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE))
		return -1;
	good = view.len == sizeof(*parcel);
	if (good)
		memcpy(parcel, view.buf, sizeof(*parcel));
	PyBuffer_Release(&view);
	if (good && parcel->magic == PARCEL_MAGIC &&
	    (parcel->rights == TMESH_READ || parcel->rights == READ_WRITE))
		return 0;
	raise_code(st, EPROTO, "this is nothing that this version of tmesh has sent");
	return -1;
}

static int map_entries(struct tmesh_region *region, struct known *known, struct tmesh_error *err)
{
	int fd = tmesh_region_fd(region);
	void *at;

	known->count = tmesh_region_bytes(region) / sizeof(*known->taken);
	at = fd < 0 || !known->count ? MAP_FAILED
				     : mmap(NULL, known->count * sizeof(*known->taken),
					    PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at != MAP_FAILED) {
		known->taken = at;
		return 0;
	}
	err->code = fd < 0 ? fd : !known->count ? -EPROTO : -errno;
	snprintf(err->message, sizeof(err->message),
		 "cannot map the page that reports openings to the sender: %s",
		 strerror(-err->code));
	return err->code;
}

/* Return the sender's entries; map them if needed. */
static int open_entries(struct sent *self, struct tmesh_ctx *ctx, const char *token,
			struct known **out, struct tmesh_error *err)
{
	struct tmesh_region *region = NULL;
	struct known known = {.taken = NULL};
	int rc;

	for (int i = 0; i < SENDERS; i++) {
		*out = &self->known[i];
		if ((*out)->taken && !memcmp((*out)->token, token, TMESH_TOKEN_SIZE))
			return 0;
	}
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_region_open(ctx, token, READ_WRITE, &region, err);
	if (!rc)
		rc = map_entries(region, &known, err);
	tmesh_region_unref(region);
	Py_END_ALLOW_THREADS;
	if (rc)
		return rc;
	memcpy(known.token, token, TMESH_TOKEN_SIZE);
	*out = &self->known[self->oldest++ % SENDERS];
	known_drop(*out);
	**out = known;
	return 0;
}

/* Numbers of an entry only grow, so a late receiver does not overwrite the answer about a newer
 * tensor in the same entry. */
static void mark_opened(int64_t *taken, int64_t number)
{
	int64_t last = __atomic_load_n(taken, __ATOMIC_RELAXED);

	while (last < number && !__atomic_compare_exchange_n(taken, &last, number, false,
							     __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

/* Tell the sender that the tensor is open, or not wanted. If the sender has ended, it holds
 * nothing, so that is no error. */
static int parcel_open(struct sent *self, struct tmesh_ctx *ctx, const struct parcel *parcel)
{
	struct state *st = state_of_sent(self);
	struct tmesh_error err;
	struct known *known;
	int rc = open_entries(self, ctx, parcel->entries, &known, &err);

	if (rc == -ENOENT)
		return 0;
	if (rc)
		raise_error(st, &err);
	else if (parcel->entry >= known->count)
		raise_code(st, EPROTO, "the sender has no entry %u", (unsigned int)parcel->entry);
	else
		mark_opened(&known->taken[parcel->entry], parcel->number);
	return PyErr_Occurred() ? -1 : 0;
}

enum opening {
	OPEN_TAKES,
	OPEN_HELD, /* its sender keeps holding it */
	OPEN_LATE, /* a tensor that cannot be opened arrives as lost, without an exception */
};

static PyObject *open_parcel(PyObject *object, PyObject *bytes, enum opening how)
{
	struct sent *self = (struct sent *)object;
	struct state *st = state_of_sent(self);
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_tensor *opened;
	struct tmesh_error err;
	struct parcel parcel;
	struct tmesh_error why;
	PyObject *tensor;
	int rc;

	if (!ctx || parcel_from_object(st, bytes, &parcel))
		return NULL;
	here(self);
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_tensor_open(ctx, &parcel.ref, parcel.rights, &opened, &err);
	/* It was sealed on its way. Open it as a sealed tensor. */
	if (rc == -EPERM && parcel.rights != TMESH_READ) {
		parcel.rights = TMESH_READ;
		rc = tmesh_tensor_open(ctx, &parcel.ref, TMESH_READ, &opened, &err);
	}
	Py_END_ALLOW_THREADS;
	if (rc == -ENOENT) {
		why = err;
		snprintf(err.message, sizeof(err.message),
			 "this tensor is lost, because its sender ended before a receiver took "
			 "it: call get() before join(): %.150s",
			 why.message);
	}
	if (rc && how == OPEN_LATE)
		return tensor_lost(st, &err);
	tensor = rc ? raise_error(st, &err) : tensor_new(st, opened, NULL, parcel.rights);
	if (tensor && how != OPEN_HELD && parcel_open(self, ctx, &parcel))
		Py_CLEAR(tensor);
	return tensor;
}

static PyObject *sent_open(PyObject *object, PyObject *bytes)
{
	return open_parcel(object, bytes, OPEN_TAKES);
}

static PyObject *sent_open_held(PyObject *object, PyObject *bytes)
{
	return open_parcel(object, bytes, OPEN_HELD);
}

static PyObject *sent_unpickle(PyObject *object, PyObject *bytes)
{
	return open_parcel(object, bytes, OPEN_LATE);
}

static PyObject *sent_give_up(PyObject *object, PyObject *bytes)
{
	struct sent *self = (struct sent *)object;
	struct state *st = state_of_sent(self);
	struct tmesh_ctx *ctx = context(st);
	struct parcel parcel;

	if (!ctx || parcel_from_object(st, bytes, &parcel))
		return NULL;
	here(self);
	if (self->sender && !memcmp(self->sender->token, parcel.entries, sizeof(parcel.entries)) &&
	    parcel.entry < self->entries) {
		/* The tensor is this process's own: let go of it at once. */
		mark_opened(&self->sender->taken[parcel.entry], parcel.number);
		sender_look(self->sender, ENTRIES_MAX);
	} else if (parcel_open(self, ctx, &parcel)) {
		return NULL;
	}
	Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
	{"send", (PyCFunction)(void (*)(void))sent_send, METH_FASTCALL,
	 "send($self, tensor, writable, /)\n--\n\n"
	 "The text that opens the tensor in another process, once; the tensor is held until then. "
	 "Where all entries are taken\n"
	 "the tensor that was sent first is given up, if that is over a minute ago. LimitError: "
	 "it\n"
	 "is not."},
	{"look", sent_look, METH_NOARGS,
	 "look($self, /)\n--\n\nLet go of a few that were opened, which may give back memory."},
	{"open", sent_open, METH_O,
	 "open($self, parcel, /)\n--\n\n"
	 "The tensor that another's send() gave, whose sender need not hold it any more."},
	{"open_held", sent_open_held, METH_O,
	 "open_held($self, parcel, /)\n--\n\nopen(), but its sender holds it until give_up()."},
	{"unpickle", sent_unpickle, METH_O,
	 "unpickle($self, parcel, /)\n--\n\n"
	 "open(), but what cannot be opened is a tensor that is lost: an exception in the middle\n"
	 "of another's unpickling would break it."},
	{"give_up", sent_give_up, METH_O,
	 "give_up($self, parcel, /)\n--\n\nNo process will open it: its sender need not hold it."},
	{"under_way", sent_under_way, METH_NOARGS,
	 "under_way($self, /)\n--\n\n"
	 "The number of tensors sent here that no process has opened; the others are let go."},
	{NULL},
};

static PyType_Slot type_slots[] = {
	{Py_tp_new, sent_new},
	{Py_tp_dealloc, sent_dealloc},
	{Py_tp_methods, methods},
	{Py_tp_doc,
	 "InTransit(entries=4096, patience=60.0)\n--\n\n"
	 "Tensors that this process sent by ref and no receiver has opened yet, and those of\n"
	 "other processes that it opens.\n\nentries: the most that are under way; more are\n"
	 "accepted once the oldest are patience seconds old. A forked child begins anew."},
	{0},
};

TYPE_SPEC(in_transit_spec, "tmesh._tmesh.InTransit", struct sent, 0, type_slots);
