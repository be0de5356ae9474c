/* SPDX-License-Identifier: MIT */
/*
 * Sharing with other processes and devices: taking memory back, leases, fences, gather views,
 * dma-bufs, and hand-over by a Unix socket.
 */
#include "binding.h"

#include <limits.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct tmesh_region *region_of(struct tensor *self)
{
	struct tmesh_tensor *tensor = tensor_get(self);

	return tensor ? tmesh_tensor_region(tensor) : NULL;
}

/* Return None, or raise the exception of @rc. */
static PyObject *none_or_error(struct tensor *self, struct tmesh_region *region, int rc,
			       const struct tmesh_error *err)
{
	if (rc)
		return raise_region_error(state_of(self), region, err);
	Py_RETURN_NONE;
}

/* Taking back */

PyObject *tensor_revoke(PyObject *object, PyObject *unused)
{
	struct tensor *self = (struct tensor *)object;
	struct tmesh_region *region = region_of(self);
	struct tmesh_error err;
	PyObject *result;
	int rc;

	if (!region)
		return NULL;
	tmesh_region_ref(region);
	WITHOUT_GIL(rc = tmesh_region_revoke(region, &err));
	result = none_or_error(self, region, rc, &err);
	tmesh_region_unref(region);
	return result;
}

/* Raise PeerTimeoutError with the report. */
static PyObject *raise_in_use(struct state *st, const struct tmesh_reclaim_report *report,
			      const struct tmesh_error *err)
{
	PyObject *type, *value, *traceback, *dict;

	raise_error(st, err);
	PyErr_Fetch(&type, &value, &traceback);
	PyErr_NormalizeException(&type, &value, &traceback);
	dict = Py_BuildValue("{sKsIsI}", "pinned_bytes", (unsigned long long)report->pinned_bytes,
			     "exports", report->exports, "attachments", report->attachments);
	if (!dict || PyObject_SetAttrString(value, "report", dict))
		PyErr_Clear(); /* keep the exception itself */
	Py_XDECREF(dict);
	PyErr_Restore(type, value, traceback);
	return NULL;
}

PyObject *tensor_reclaim(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"timeout", NULL};
	struct tmesh_reclaim_report report = {.size = sizeof(report)};
	struct tensor *self = (struct tensor *)object;
	struct state *st = state_of(self);
	struct tmesh_region *region;
	PyObject *timeout = Py_None;
	struct tmesh_error err;
	int64_t end, left;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:reclaim", names, &timeout) ||
	    timeout_from_object(st, timeout, &left))
		return NULL;
	region = region_of(self);
	if (!region)
		return NULL;
	tmesh_region_ref(region);
	end = deadline_after(left);
	do {
		WITHOUT_GIL(rc = tmesh_region_reclaim(region, left, &report, &err));
		left = left_until(end);
	} while (rc == -EINTR && !PyErr_CheckSignals());
	if (rc == -ETIMEDOUT)
		raise_in_use(st, &report, &err);
	else if (rc && !PyErr_Occurred())
		raise_region_error(st, region, &err);
	tmesh_region_unref(region);
	if (rc)
		return NULL;
	Py_RETURN_NONE;
}

/* Leases */

static int taken_from_object(struct state *st, PyObject *object, enum tmesh_taken *taken)
{
	*taken = TMESH_TAKEN_ZERO;
	if (object == Py_None)
		return 0;
	if (PyUnicode_Check(object)) {
		if (!PyUnicode_CompareWithASCIIString(object, "zeros"))
			return 0;
		*taken = TMESH_TAKEN_SIGBUS;
		if (!PyUnicode_CompareWithASCIIString(object, "sigbus"))
			return 0;
	}
	raise_code(st, EINVAL, "taken is \"zeros\" or \"sigbus\", not %R", object);
	return -1;
}

/* Return a descriptor of a process. For a number, open one and store it in @own; otherwise use the
 * object's fileno(). */
static int process_from_object(struct state *st, PyObject *object, int *own)
{
	long pid;

	*own = -1;
	if (!PyLong_Check(object))
		return PyObject_AsFileDescriptor(object);
	pid = PyLong_AsLong(object);
	if (pid == -1 && PyErr_Occurred())
		return -1;
	if (pid <= 0 || pid > INT_MAX) {
		raise_code(st, EINVAL, "process must be the number of a process, not %ld", pid);
		return -1;
	}
	*own = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
	if (*own < 0)
		raise_code(st, errno == ESRCH ? ENOENT : errno,
			   errno == ESRCH ? "there is no process %ld"
					  : "process %ld cannot be watched",
			   pid);
	return *own;
}

PyObject *tensor_lease(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"seconds", "process", "taken", NULL};
	PyObject *seconds = Py_None, *process = Py_None, *taken = Py_None;
	struct tensor *self = (struct tensor *)object;
	struct state *st = state_of(self);
	struct tmesh_region *region;
	enum tmesh_taken then;
	struct tmesh_error err;
	int64_t ns;
	int rc, fd = -1, own = -1;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$OO:lease", names, &seconds, &process,
					 &taken) ||
	    timeout_from_object(st, seconds, &ns) || taken_from_object(st, taken, &then))
		return NULL;
	if (seconds != Py_None && ns <= 0)
		return raise_code(st, EINVAL, "a lease is of 10 ms to an hour");
	if (process != Py_None) {
		fd = process_from_object(st, process, &own);
		if (fd < 0)
			return NULL;
	}
	region = region_of(self);
	if (!region) {
		if (own >= 0)
			close(own);
		return NULL;
	}
	/* Without a time the library uses its default, or no time for a lease of a process. */
	ns = ns < 0 ? 0 : ns;
	rc = fd < 0 ? tmesh_lease_set(region, (uint64_t)ns, then, &err)
		    : tmesh_lease_bind(region, fd, (uint64_t)ns, then, &err);
	if (own >= 0)
		close(own);
	return none_or_error(self, region, rc, &err);
}

PyObject *tensor_touch(PyObject *object, PyObject *unused)
{
	struct tensor *self = (struct tensor *)object;
	struct tmesh_region *region = region_of(self);
	int rc = region ? tmesh_lease_touch(region) : 0;

	if (!region)
		return NULL;
	if (rc == -ESTALE)
		return raise_code(state_of(self), ESTALE,
				  "the lease has lapsed, or the region was taken back");
	if (rc)
		return raise_code(
			state_of(self), -rc,
			"this handle was inherited through fork(): its lease is its parent's");
	Py_RETURN_NONE;
}

PyObject *get_lease_state(PyObject *object, void *unused)
{
	static const char *const words[] = {
		[TMESH_LEASE_NONE] = "none",
		[TMESH_LEASE_IS_LIVE] = "live",
		[TMESH_LEASE_HAS_LAPSED] = "lapsed",
		[TMESH_LEASE_IS_REVOKED] = "revoked",
	};
	struct tmesh_region *region = region_of((struct tensor *)object);

	return region ? PyUnicode_FromString(words[tmesh_lease_state(region)]) : NULL;
}

/* Fences */

PyObject *tensor_signal(PyObject *object, PyObject *number)
{
	struct tensor *self = (struct tensor *)object;
	struct tmesh_region *region;
	unsigned long long value;
	struct tmesh_error err;

	if (!size_argument(number, &value))
		return NULL;
	region = region_of(self);
	return region ? none_or_error(self, region, tmesh_fence_signal(region, value, &err), &err)
		      : NULL;
}

PyObject *tensor_wait(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"value", "timeout", NULL};
	struct tensor *self = (struct tensor *)object;
	struct state *st = state_of(self);
	struct tmesh_region *region;
	PyObject *timeout = Py_None;
	unsigned long long value;
	uint64_t reached = 0;
	struct tmesh_error err;
	int64_t end, left;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|O:wait", names, size_argument, &value,
					 &timeout) ||
	    timeout_from_object(st, timeout, &left))
		return NULL;
	region = region_of(self);
	if (!region)
		return NULL;
	tmesh_region_ref(region);
	end = deadline_after(left);
	do {
		WITHOUT_GIL(rc = tmesh_fence_wait(region, value, left, &reached, &err));
		left = left_until(end);
	} while (rc == -EINTR && !PyErr_CheckSignals());
	if (rc && !PyErr_Occurred())
		raise_region_error(st, region, &err);
	tmesh_region_unref(region);
	return rc ? NULL : PyLong_FromUnsignedLongLong(reached);
}

/* Regions that become tensors */

/* The layout that a caller requests for a region. Without one, the tensor is the bytes. */
struct wanted {
	PyObject *shape, *dtype;
	unsigned long long offset;
	bool is_given;
	struct tmesh_layout layout;
};

static int wanted_layout(struct state *st, struct wanted *wanted)
{
	int64_t shape[TMESH_MAX_DIMS];
	enum tmesh_dtype dtype;
	struct tmesh_error err;
	int32_t ndim;

	wanted->is_given = wanted->shape != Py_None;
	if (!wanted->is_given) {
		if (wanted->dtype == Py_None && !wanted->offset)
			return 0;
		PyErr_SetString(PyExc_TypeError, "a dtype and an offset go with a shape");
		return -1;
	}
	if (wanted->dtype == Py_None) {
		PyErr_SetString(PyExc_TypeError, "a shape goes with a dtype");
		return -1;
	}
	if (shape_from_object(st, wanted->shape, &ndim, shape) ||
	    dtype_from_object(st, wanted->dtype, &dtype))
		return -1;
	if (tmesh_layout_contiguous(&wanted->layout, dtype, ndim, shape, &err)) {
		raise_error(st, &err);
		return -1;
	}
	wanted->layout.offset = wanted->offset;
	return 0;
}

/* Read the layout from the region's description. Return false if it describes no tensor. */
static bool described_layout(struct tmesh_region *region, struct tmesh_layout *layout)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_ref ref;

	if (tmesh_region_info(region, &info, NULL) ||
	    tmesh_ref_decode(info.description, strnlen(info.description, sizeof(info.description)),
			     &ref, NULL))
		return false;
	*layout = ref.layout;
	return true;
}

/* Make a Tensor over a region. Take over @region. */
static PyObject *tensor_over(struct state *st, struct tmesh_region *region,
			     const struct wanted *wanted, bool described)
{
	int64_t bytes = (int64_t)tmesh_region_bytes(region);
	uint32_t rights = tmesh_region_rights(region);
	struct tmesh_layout layout = wanted->layout;
	struct tmesh_tensor *tensor = NULL;
	struct tmesh_error err;
	int rc = 0;

	if (!wanted->is_given && !(described && described_layout(region, &layout)))
		rc = tmesh_layout_contiguous(&layout, TMESH_UINT8, 1, &bytes, &err);
	if (!rc)
		rc = tmesh_tensor_wrap(region, &layout, &tensor, &err);
	tmesh_region_unref(region);
	return rc ? raise_error(st, &err) : tensor_new(st, tensor, NULL, rights);
}

PyObject *tensor_as_described(struct state *st, struct tmesh_region *region)
{
	return tensor_over(st, region, &(struct wanted){.shape = Py_None, .dtype = Py_None}, true);
}

/* Gather views */

/* Read a part: a Tensor, for its bytes, or (Tensor, offset, bytes), for a range of its region. */
static int extent_from_object(struct state *st, PyObject *object,
			      struct tmesh_gather_extent *extent)
{
	unsigned long long offset, bytes;
	PyObject *part = object;
	struct tmesh_tensor *tensor;

	if (PyTuple_Check(object) &&
	    !PyArg_ParseTuple(object, "OO&O&;a part is a Tensor or (Tensor, offset, bytes)", &part,
			      size_argument, &offset, size_argument, &bytes))
		return -1;
	if (Py_TYPE(part) != st->tensor_type) {
		PyErr_Format(PyExc_TypeError,
			     "a part is a Tensor or (Tensor, offset, bytes), not %R", object);
		return -1;
	}
	tensor = tensor_get((struct tensor *)part);
	if (!tensor)
		return -1;
	if (part == object && !tmesh_layout_is_contiguous(tmesh_tensor_layout(tensor))) {
		raise_code(st, EINVAL, "a part is contiguous");
		return -1;
	}
	if (part == object) {
		offset = tmesh_tensor_layout(tensor)->offset;
		bytes = tmesh_tensor_bytes(tensor);
	}
	*extent = (struct tmesh_gather_extent){
		.region = tmesh_region_ref(tmesh_tensor_region(tensor)),
		.offset = offset,
		.bytes = bytes,
	};
	return 0;
}

static void extents_free(struct tmesh_gather_extent *extents, Py_ssize_t count)
{
	while (count--)
		tmesh_region_unref(extents[count].region);
	free(extents);
}

/* Read all parts and take a reference on each; NULL with an exception. */
static struct tmesh_gather_extent *extents_from_object(struct state *st, PyObject *parts,
						       Py_ssize_t *count)
{
	/* A Tensor alone would be read as a sequence of its rows, which is a mistake. */
	PyObject *tuple = Py_TYPE(parts) == st->tensor_type ? NULL : PySequence_Tuple(parts);
	struct tmesh_gather_extent *extents;

	if (!tuple && !PyErr_Occurred())
		PyErr_SetString(PyExc_TypeError,
				"gather() takes a sequence of parts, not one Tensor");
	if (!tuple)
		return NULL;
	extents = calloc((size_t)PyTuple_Size(tuple) + 1, sizeof(*extents));
	if (!extents)
		PyErr_NoMemory();
	for (*count = 0; extents && *count < PyTuple_Size(tuple); ++*count) {
		if (extent_from_object(st, PyTuple_GetItem(tuple, *count), &extents[*count])) {
			extents_free(extents, *count);
			extents = NULL;
		}
	}
	Py_DECREF(tuple);
	return extents;
}

PyObject *module_gather(PyObject *module, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"",	"shape", "dtype",   "writable", "label",
				"mode", "gid",	 "hold_ms", NULL};
	struct state *st = PyModule_GetState(module);
	struct wanted wanted = {.shape = Py_None, .dtype = Py_None};
	struct region_args about = REGION_ARGS_INIT;
	struct tmesh_gather_extent *extents;
	struct tmesh_region_opts opts;
	struct tmesh_region *region;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	PyObject *parts;
	Py_ssize_t count;
	Py_ssize_t sealed = 0;
	int writable = 0, rc;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO$pOO&OO&:gather", names, &parts,
					 &wanted.shape, &wanted.dtype, &writable, &about.label,
					 uint_argument, &about.mode, &about.gid, uint_argument,
					 &about.hold_ms) ||
	    region_opts_from_args(st, &about, &opts) || wanted_layout(st, &wanted))
		return NULL;
	ctx = context(st);
	extents = ctx ? extents_from_object(st, parts, &count) : NULL;
	if (!extents)
		return NULL;
	WITHOUT_GIL(rc = tmesh_region_gather(ctx, extents, (size_t)count,
					     writable ? TMESH_READ | TMESH_WRITE : TMESH_READ,
					     &opts, &region, &err));
	while (rc && sealed < count && !tmesh_region_is_sealed(extents[sealed].region))
		sealed++;
	if (rc && sealed < count)
		raise_region_error(st, extents[sealed].region, &err);
	else if (rc)
		raise_error(st, &err);
	extents_free(extents, count);
	return rc ? NULL : tensor_over(st, region, &wanted, false);
}

/* dma-bufs */

PyObject *tensor_export_dmabuf(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"offset", "bytes", "writable", NULL};
	struct tensor *self = (struct tensor *)object;
	unsigned long long offset = 0, bytes = 0;
	struct tmesh_region *region;
	struct tmesh_error err;
	int writable = 0, fd;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$O&O&p:export_dmabuf", names,
					 size_argument, &offset, size_argument, &bytes, &writable))
		return NULL;
	region = region_of(self);
	if (!region)
		return NULL;
	if (tmesh_region_export_dmabuf(region, offset, bytes,
				       writable ? TMESH_READ | TMESH_WRITE : TMESH_READ, &fd, &err))
		return raise_region_error(state_of(self), region, &err);
	return PyLong_FromLong(fd);
}

PyObject *module_from_dmabuf(PyObject *module, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"", "shape", "dtype", "label", "mode", "gid", "hold_ms", NULL};
	struct state *st = PyModule_GetState(module);
	struct wanted wanted = {.shape = Py_None, .dtype = Py_None};
	struct region_args about = REGION_ARGS_INIT;
	struct tmesh_region_opts opts;
	struct tmesh_region *region;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	PyObject *descriptor;
	int fd, rc;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO$OO&OO&:from_dmabuf", names,
					 &descriptor, &wanted.shape, &wanted.dtype, &about.label,
					 uint_argument, &about.mode, &about.gid, uint_argument,
					 &about.hold_ms) ||
	    region_opts_from_args(st, &about, &opts) || wanted_layout(st, &wanted))
		return NULL;
	fd = PyObject_AsFileDescriptor(descriptor);
	ctx = fd < 0 ? NULL : context(st);
	if (!ctx)
		return NULL;
	WITHOUT_GIL(rc = tmesh_region_from_dmabuf(ctx, fd, &opts, &region, &err));
	return rc ? raise_error(st, &err) : tensor_over(st, region, &wanted, false);
}

/* Make an export that holds the pages. Drop the region itself: no process can map it. */
PyObject *module_export_memory(PyObject *module, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"", "writable", NULL};
	struct state *st = PyModule_GetState(module);
	int writable = 0, rc, fd = -1;
	struct tmesh_region *region;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	PyObject *object;
	uint32_t rights;
	Py_buffer view;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$p:export_memory", names, &object,
					 &writable))
		return NULL;
	ctx = context(st);
	if (!ctx || PyObject_GetBuffer(object, &view, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO))
		return NULL;
	rights = writable ? TMESH_READ | TMESH_WRITE : TMESH_READ;
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_region_from_user(ctx, view.buf, (uint64_t)view.len, rights, NULL, &region, &err);
	if (!rc) {
		rc = tmesh_region_export_dmabuf(region, 0, 0, rights, &fd, &err);
		tmesh_region_unref(region);
	}
	Py_END_ALLOW_THREADS;
	PyBuffer_Release(&view);
	return rc ? raise_error(st, &err) : PyLong_FromLong(fd);
}

/* Hand-over by a socket. First wait for the peer, as long as the caller allows. Once a message has
 * begun, the library waits for the rest of it as long as the context allows. */

int wait_for_socket(struct state *st, int fd, short events, PyObject *timeout)
{
	struct pollfd poller = {.fd = fd, .events = events};
	int64_t end, left;
	int rc;

	if (timeout_from_object(st, timeout, &left))
		return -1;
	end = deadline_after(left);
	do {
		int ms = left < 0 || left / 1000000 >= INT_MAX ? -1
							       : (int)((left + 999999) / 1000000);

		Py_BEGIN_ALLOW_THREADS;
		rc = poll(&poller, 1, ms);
		rc = rc < 0 ? -errno : rc;
		Py_END_ALLOW_THREADS;
		left = left_until(end);
		if (rc == -EINTR && PyErr_CheckSignals())
			return -1;
	} while (rc == -EINTR);
	if (rc > 0)
		return 0;
	raise_code(st, rc ? -rc : ETIMEDOUT,
		   rc		      ? "the socket cannot be waited for"
		   : events & POLLOUT ? "the socket is full: its peer did not receive in time"
				      : "no message came at the socket in time");
	return -1;
}

bool tensor_is_whole(struct tmesh_tensor *tensor)
{
	const struct tmesh_layout *layout = tmesh_tensor_layout(tensor);
	struct tmesh_region *region = tmesh_tensor_region(tensor);
	struct tmesh_layout described;

	if (!described_layout(region, &described))
		return !layout->offset && tmesh_layout_is_contiguous(layout) &&
		       tmesh_tensor_bytes(tensor) == tmesh_region_bytes(region);
	return layout->dtype == described.dtype && layout->ndim == described.ndim &&
	       layout->offset == described.offset &&
	       !memcmp(layout->shape, described.shape,
		       (size_t)layout->ndim * sizeof(*layout->shape)) &&
	       !memcmp(layout->strides, described.strides,
		       (size_t)layout->ndim * sizeof(*layout->strides));
}

PyObject *tensor_send(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"", "writable", "timeout", NULL};
	struct tensor *self = (struct tensor *)object;
	PyObject *socket, *timeout = Py_None, *result;
	struct state *st = state_of(self);
	struct tmesh_tensor *tensor;
	struct tmesh_region *region;
	struct tmesh_error err;
	int writable = 0, fd, rc;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$pO:send", names, &socket, &writable,
					 &timeout))
		return NULL;
	fd = PyObject_AsFileDescriptor(socket);
	if (fd < 0 || wait_for_socket(st, fd, POLLOUT, timeout))
		return NULL;
	tensor = tensor_get(self);
	if (!tensor)
		return NULL;
	if (!tensor_is_whole(tensor))
		return raise_code(
			st, EINVAL,
			"send() hands over a region as its maker described it, and this is a "
			"part or another view of one: send the whole, or the ref");
	region = tmesh_region_ref(tmesh_tensor_region(tensor));
	WITHOUT_GIL(rc = tmesh_region_send(region, fd,
					   writable ? TMESH_READ | TMESH_WRITE : TMESH_READ, &err));
	result = none_or_error(self, region, rc, &err);
	tmesh_region_unref(region);
	return result;
}

PyObject *module_recv(PyObject *module, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"", "shape", "dtype", "offset", "timeout", NULL};
	struct state *st = PyModule_GetState(module);
	struct wanted wanted = {.shape = Py_None, .dtype = Py_None};
	PyObject *socket, *timeout = Py_None;
	struct tmesh_region *region;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int fd, rc;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO$O&O:recv", names, &socket,
					 &wanted.shape, &wanted.dtype, size_argument,
					 &wanted.offset, &timeout) ||
	    wanted_layout(st, &wanted))
		return NULL;
	fd = PyObject_AsFileDescriptor(socket);
	ctx = fd < 0 ? NULL : context(st);
	if (!ctx || wait_for_socket(st, fd, POLLIN, timeout))
		return NULL;
	WITHOUT_GIL(rc = tmesh_region_recv(ctx, fd, &region, &err));
	return rc ? raise_error(st, &err) : tensor_over(st, region, &wanted, true);
}
