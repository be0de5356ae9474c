/* SPDX-License-Identifier: MIT */
/* The module: its state, the context, and the functions that make tensors. */
#include "binding.h"

#include <stdio.h>
#include <unistd.h>

#include "common/file_size.h"

/* Where this thread keeps a warning while it opens a context; NULL at all other times. */
static _Thread_local struct warning {
	char text[256];
} * warning;

/*
 * A warning of the library while it chooses a backend becomes a Python warning. Later warnings, for
 * example of lost messages, may come from a thread that Python does not know, or after the
 * interpreter has ended. Write those to standard error, as the library does.
 */
static void keep_warning(void *data, enum tmesh_log_level level, const char *message)
{
	if (level > TMESH_LOG_WARN)
		return;
	if (warning)
		snprintf(warning->text, sizeof(warning->text), "%s", message);
	else
		tmesh_dprintf(STDERR_FILENO, "tmesh: process %d: %s\n", (int)getpid(), message);
}

static int open_context(struct state *st, struct tmesh_ctx_opts *opts)
{
	struct warning kept = {""};
	struct tmesh_error err;
	int rc;

	opts->size = sizeof(*opts);
	opts->log = keep_warning;
	/* If memory is taken back, arrays on it read zeros. A fault would end the process, since no
	 * check can guard an array. */
	opts->taken = TMESH_TAKEN_ZERO;
	warning = &kept;
	rc = tmesh_ctx_open(opts, &st->ctx, &err);
	warning = NULL;
	if (rc) {
		raise_error(st, &err);
		return -1;
	}
	return kept.text[0] ? PyErr_WarnEx(PyExc_RuntimeWarning, kept.text, 1) : 0;
}

struct tmesh_ctx *context(struct state *st)
{
	if (!st->ctx && open_context(st, &(struct tmesh_ctx_opts){0}))
		return NULL;
	return st->ctx;
}

static int backend_from_name(struct state *st, const char *name, enum tmesh_backend *backend)
{
	*backend = TMESH_BACKEND_AUTO;
	if (!name || !strcmp(name, "auto"))
		return 0;
	for (*backend = TMESH_BACKEND_KERNEL; *backend <= TMESH_BACKEND_MEMFD; ++*backend)
		if (!strcmp(name, tmesh_backend_name(*backend)))
			return 0;
	raise_code(st, EINVAL, "unknown backend \"%s\": it is auto, kernel or memfd", name);
	return -1;
}

/* Convert None or a path, for "O&". Python calls this with NULL to clean up. */
static int path_argument(PyObject *object, void *bytes)
{
	return object == Py_None ? 1 : PyUnicode_FSConverter(object, bytes);
}

static PyObject *module_configure(PyObject *module, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"backend",     "region_pool_bytes", "max_bytes",
				"runtime_dir", "timeout",	    NULL};
	struct state *st = PyModule_GetState(module);
	unsigned long long region_pool_bytes = 0, max_bytes = 0;
	PyObject *pool = Py_None;
	struct tmesh_ctx_opts opts = {0};
	const char *backend = NULL;
	PyObject *dir = NULL;
	double timeout = 2;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$zOO&O&d:configure", names, &backend,
					 &pool, size_argument, &max_bytes, path_argument, &dir,
					 &timeout))
		return NULL;
	if (pool != Py_None && !size_argument(pool, &region_pool_bytes)) {
		Py_XDECREF(dir);
		return NULL;
	}
	if (!(timeout > 0 && timeout <= 3600)) {
		Py_XDECREF(dir);
		return raise_code(st, EINVAL, "timeout is more than 0 and at most 3600 seconds");
	}
	rc = backend_from_name(st, backend, &opts.backend);
	if (!rc && st->ctx) {
		raise_code(st, EBUSY, "tmesh is in use already: configure() comes first");
		rc = -1;
	}
	if (!rc) {
		if (pool != Py_None)
			opts.region_pool_bytes =
				region_pool_bytes ? region_pool_bytes : TMESH_NO_REGION_POOL;
		opts.max_bytes = max_bytes;
		opts.timeout_ns = (uint64_t)(timeout * 1e9);
		opts.runtime_dir = dir ? PyBytes_AsString(dir) : NULL;
		rc = open_context(st, &opts);
	}
	Py_XDECREF(dir);
	if (rc)
		return NULL;
	Py_RETURN_NONE;
}

/* Return a new tensor of this process as a Tensor. Take over @tensor, which may be NULL. */
static PyObject *made(struct state *st, struct tmesh_tensor *tensor,
		      const struct tmesh_region_opts *opts)
{
	struct tensor *object = (struct tensor *)tensor_new(st, tensor, NULL, ALL_RIGHTS);

	/* A large tensor has a region of its own. */
	if (object && opts->arena)
		object->in_arena = tmesh_region_bytes(tmesh_tensor_region(tensor)) >
				   tmesh_tensor_bytes(tensor);
	return (PyObject *)object;
}

static PyObject *create(PyObject *module, PyObject *args, PyObject *kwargs, const char *format,
			bool zeroed)
{
	static char *names[] = {"shape", "dtype",   "label", "huge",  "node", "mode",
				"gid",	 "hold_ms", "pin",   "arena", NULL};
	struct state *st = PyModule_GetState(module);
	struct region_args region = REGION_ARGS_INIT;
	PyObject *shape_object, *dtype_object;
	int64_t shape[TMESH_MAX_DIMS];
	struct tmesh_region_opts opts;
	struct tmesh_tensor *tensor;
	enum tmesh_dtype dtype;
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int32_t ndim;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, names, &shape_object, &dtype_object,
					 &region.label, &region.huge, &region.node, uint_argument,
					 &region.mode, &region.gid, uint_argument, &region.hold_ms,
					 &region.pin, &region.arena))
		return NULL;
	if (shape_from_object(st, shape_object, &ndim, shape) ||
	    dtype_from_object(st, dtype_object, &dtype) ||
	    region_opts_from_args(st, &region, &opts))
		return NULL;
	/* Only processes of the same user may see uninitialized memory; others get zeros. */
	if (!zeroed && !opts.arena && !(opts.mode & 077) && !(opts.flags & TMESH_REGION_GID))
		opts.flags |= TMESH_REGION_UNINITIALIZED;
	ctx = context(st);
	if (!ctx)
		return NULL;
	WITHOUT_GIL(rc = tmesh_tensor_create(ctx, dtype, ndim, shape, &opts, &tensor, &err));
	return rc ? raise_error(st, &err) : made(st, tensor, &opts);
}

static PyObject *module_empty(PyObject *module, PyObject *args, PyObject *kwargs)
{
	return create(module, args, kwargs, "OO|$OOOO&OO&pO:empty", false);
}

static PyObject *module_zeros(PyObject *module, PyObject *args, PyObject *kwargs)
{
	return create(module, args, kwargs, "OO|$OOOO&OO&pO:zeros", true);
}

/* Convert lists, and other objects that NumPy can make an array of. */
static struct tmesh_tensor *put_through_numpy(struct state *st, PyObject *object,
					      const struct tmesh_region_opts *opts)
{
	PyObject *numpy = PyImport_ImportModule("numpy");
	struct tmesh_tensor *tensor = NULL;
	PyObject *array;

	if (!numpy) {
		if (PyErr_ExceptionMatches(PyExc_ImportError))
			PyErr_Format(PyExc_TypeError,
				     "put() takes objects with the buffer protocol or __dlpack__; "
				     "%R has neither, and NumPy, which might convert it, is not "
				     "installed",
				     Py_TYPE(object));
		return NULL;
	}
	array = PyObject_CallMethod(numpy, "asarray", "(O)", object);
	Py_DECREF(numpy);
	if (array)
		tensor = put_buffer(st, array, opts);
	Py_XDECREF(array);
	return tensor;
}

/* Whether an object is a NumPy array with masked elements, which its buffer does not show; -1 with
 * an exception of the object's own code. */
static int is_masked(PyObject *object)
{
	PyObject *mask = NULL, *any = NULL;
	int masked = 0;

	if (!PyObject_HasAttrString(object, "fill_value"))
		return 0;
	mask = PyObject_GetAttrString(object, "mask");
	if (mask)
		any = PyObject_CallMethod(mask, "any", NULL);
	if (any)
		masked = PyObject_IsTrue(any);
	Py_XDECREF(any);
	Py_XDECREF(mask);
	if (any || !PyErr_ExceptionMatches(PyExc_AttributeError))
		return any ? masked : -1;
	/* This is another kind of array. */
	PyErr_Clear();
	return 0;
}

bool refuse_masked(PyObject *object)
{
	int masked = is_masked(object);

	if (masked > 0)
		PyErr_SetString(PyExc_TypeError,
				"a masked array would lose its mask: put() its filled(), and its "
				"mask beside that");
	return masked;
}

static struct tmesh_tensor *put_any(struct state *st, PyObject *object,
				    const struct tmesh_region_opts *opts)
{
	if (Py_TYPE(object) == st->tensor_type)
		return put_tensor(st, (struct tensor *)object, opts);
	if (refuse_masked(object))
		return NULL;
	if (PyObject_CheckBuffer(object))
		return put_buffer(st, object, opts);
	if (PyObject_HasAttrString(object, "__dlpack__"))
		return put_dlpack(st, object, opts);
	return put_through_numpy(st, object, opts);
}

static PyObject *module_put(PyObject *module, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"",    "seal",	  "label", "huge",  "node", "mode",
				"gid", "hold_ms", "pin",   "arena", NULL};
	struct state *st = PyModule_GetState(module);
	struct region_args region = REGION_ARGS_INIT;
	struct tmesh_region_opts opts;
	PyObject *object, *tensor, *sealed, *wanted = Py_None;
	int seal;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OOOOO&OO&pO:put", names, &object,
					 &wanted, &region.label, &region.huge, &region.node,
					 uint_argument, &region.mode, &region.gid, uint_argument,
					 &region.hold_ms, &region.pin, &region.arena) ||
	    region_opts_from_args(st, &region, &opts))
		return NULL;
	seal = wanted == Py_None ? !opts.arena : PyObject_IsTrue(wanted);
	if (seal < 0)
		return NULL;
	if (seal && opts.arena)
		return raise_code(st, EINVAL,
				  "what lies in an arena cannot be sealed: its neighbours would be "
				  "too");
	/* Seal it below, where no other thread can take a view meanwhile. */
	opts.flags |= TMESH_REGION_UNSEALED;
	tensor = made(st, put_any(st, object, &opts), &opts);
	if (!tensor || !seal)
		return tensor;
	sealed = PyObject_CallMethod(tensor, "seal", NULL);
	Py_DECREF(tensor);
	return sealed;
}

#define KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef functions[] = {
	{"configure", KEYWORDS(module_configure), METH_VARARGS | METH_KEYWORDS,
	 "configure(*, backend=None, region_pool_bytes=None, max_bytes=0, runtime_dir=None, "
	 "timeout=2.0)\n"
	 "--\n\n"
	 "Open this process's context with options of its own, before another call uses it\n"
	 "(else BusyError).\n\n"
	 "backend: \"auto\", \"kernel\" or \"memfd\"; an explicit one is never replaced by\n"
	 "another. region_pool_bytes: the most released memory that stays ready for reuse, for 10 "
	 "s;\n"
	 "0: none. None: TMESH_REGION_POOL, in MiB, else 256 MiB, or a 64th of the memory if that "
	 "is\n"
	 "less. max_bytes: the most that this process may create (LimitError beyond); 0: no\n"
	 "limit. runtime_dir: the folder of sockets and names. None: TMESH_RUNTIME_DIR, else\n"
	 "tmesh in XDG_RUNTIME_DIR, else tmesh-UID in TMPDIR or /tmp. timeout: longest wait for a "
	 "peer, in seconds."},
	{"empty", KEYWORDS(module_empty), METH_VARARGS | METH_KEYWORDS,
	 "empty(shape, dtype, *, label=None, huge=False, node=None, mode=0o600, gid=None,\n"
	 "      hold_ms=0, pin=True, arena=None)\n--\n\n"
	 "Make a writable tensor in C order, with unspecified contents: zeros, or old bytes of\n"
	 "this process itself. If other users may open it (mode, gid), they are zeros;\n"
	 "zeros() promises zeros.\n\n"
	 "shape: an integer or at most 8 of them. dtype: a name (\"float32\", \"bfloat16\"),\n"
	 "or one of NumPy's (\"f4\"), a NumPy or PyTorch dtype, float, int, bool or complex.\n"
	 "label: a name for people. huge: True for 2 MiB pages or OutOfMemoryError, \"try\"\n"
	 "for such pages if there are any. node: a NUMA node. mode, gid: the users that may\n"
	 "open its token, as for files (memfd: only 0o600). hold_ms: the time for which it\n"
	 "outlives its last holder, at most 1000 (memfd: only 0). pin: False refuses pinning\n"
	 "handles. arena: an Arena that gives the memory; its own options then count, and\n"
	 "only shape and dtype are given."},
	{"zeros", KEYWORDS(module_zeros), METH_VARARGS | METH_KEYWORDS,
	 "zeros(shape, dtype, *, label=None, huge=False, node=None, mode=0o600, gid=None,\n"
	 "      hold_ms=0, pin=True, arena=None)\n--\n\n"
	 "A new tensor of zeros, in C order, writable. The arguments are those of empty().\n"
	 "Errors as of empty()."},
	{"put", KEYWORDS(module_put), METH_VARARGS | METH_KEYWORDS,
	 "put(array, /, *, seal=None, label=None, huge=False, node=None, mode=0o600, gid=None,\n"
	 "    hold_ms=0, pin=True, arena=None)\n--\n\n"
	 "A new tensor with the contents of array, contiguous in C order.\n\n"
	 "array: anything with the buffer protocol (NumPy arrays, bytes, memoryviews), with\n"
	 "__dlpack__ (PyTorch and JAX tensors on the CPU), or a list that NumPy understands.\n"
	 "The bytes are copied once, which tmesh.stats() counts. The result is sealed: no\n"
	 "process writes to it any more. seal=False leaves it writable. A tensor in an arena is "
	 "never\n"
	 "sealed. The other arguments are those of empty(). The GIL is released while it copies.\n"
	 "UnsupportedError: its elements have no dtype here; other errors as of empty()."},
	{"open", KEYWORDS(module_open), METH_FASTCALL | METH_KEYWORDS,
	 "open(ref, /, writable=False)\n--\n\n"
	 "Open a tensor of another process (or of this one): the same memory, not a\n"
	 "copy.\n\nref: a ref of Tensor.ref() or Bundle.ref(), as a dict or as JSON. A token\n"
	 "opens the whole region as uint8, and a Tensor gives another one with a handle of\n"
	 "its own. NotFoundError: the token is dead, foreign or guessed.\n"
	 "AccessError: writable=True needs a token from ref(writable=True). SealedError: the\n"
	 "region is sealed by now. ProtocolError: the ref is malformed. PeerTimeoutError: the\n"
	 "producer hangs. The call releases the GIL."},
	{"unpickle", module_unpickle, METH_O,
	 "unpickle(value, /)\n--\n\nThe tensor of what its __reduce__() gave, which may be lost."},
	{"flush_held", module_flush_held, METH_O,
	 "flush_held(timeout, /)\n--\n\n"
	 "Wait for at most timeout seconds until each held ref was opened or its time is over,\n"
	 "and each message of a channel was received. Return the numbers of refs not opened\n"
	 "and of messages not received."},
	{"exit_wait", module_exit_wait, METH_O,
	 "exit_wait(timeout, /)\n--\n\n"
	 "Wait for at most timeout seconds for held refs and sent messages, and report lost ones, "
	 "as exit() does:\nfor a process that ends by os._exit()."},
	{"released_by", module_released_by, METH_O,
	 "released_by(tensor, /)\n--\n\n"
	 "The thread (threading.get_ident()) that released it or ended its \"with\", or None."},
	{"layout", module_layout, METH_O,
	 "layout(tensor, /)\n--\n\n"
	 "Return its dtype, shape, strides and offset in its region, as part() takes them."},
	{"part", KEYWORDS(module_part), METH_FASTCALL,
	 "part(tensor, dtype, shape, strides, offset, /)\n--\n\n"
	 "Another tensor of the same region, which lies where layout() says: a view of the first.\n"
	 "InvalidError: it would not lie in the region."},
	{"from_dlpack", module_from_dlpack, METH_O,
	 "from_dlpack(object, /)\n--\n\n"
	 "A tensor from an object with __dlpack__ or a capsule. Memory of tmesh itself is\n"
	 "shared. So is a part of a contiguous tensor that keeps its dtype, such as a slice\n"
	 "made by PyTorch; it is read-only if the object says so. Other memory is copied once, as\n"
	 "put(object, seal=False) does.\n"
	 "AttributeError: it has no __dlpack__; other errors as of put()."},
	{"from_address", module_from_address, METH_O,
	 "from_address(address, /)\n--\n\n"
	 "The tensor whose memory a DLPack consumer or a NumPy array has at that address, or\n"
	 "None. Use it for libraries that give only an address, such as PyTorch's data_ptr().\n"
	 "One that begins there comes first, then the largest contiguous one around the address.\n"
	 "TypeError: it is no number."},
	{"begins_at", module_begins_at, METH_O,
	 "begins_at(address, /)\n--\n\n"
	 "from_address(), but None for an address that is not of a tensor's first element."},
	{"containing", module_containing, METH_O,
	 "containing(address, /)\n--\n\n"
	 "The largest contiguous tensor that a DLPack consumer or a NumPy array has around\n"
	 "that address, and the number of its bytes before the address; or None."},
	{"link_name", module_link_name, METH_O,
	 "link_name(name, /)\n--\n\n"
	 "The file name that stands for a block's name, which may begin with a slash."},
	{"runtime_dir", module_runtime_dir, METH_NOARGS,
	 "runtime_dir()\n--\n\n"
	 "A new descriptor of the runtime directory, which is made if it does not exist."},
	{"open_link", KEYWORDS(module_open_link), METH_FASTCALL,
	 "open_link(folder, name, /)\n--\n\n"
	 "Return the token in a symbolic link's target, in an open folder, and the memory that\n"
	 "it opens, to read and write. The link is called link_name(name)."},
	{"find", KEYWORDS(module_find), METH_FASTCALL,
	 "find(address, dtype, shape, strides, /)\n--\n\n"
	 "from_address(), but None for a tensor of another layout, or without elements."},
	{"gather", KEYWORDS(module_gather), METH_VARARGS | METH_KEYWORDS,
	 "gather(parts, /, shape=None, dtype=None, *, writable=False, label=None, mode=0o600,\n"
	 "       gid=None, hold_ms=0)\n--\n\n"
	 "Show parts of regions, one behind the other, as one tensor, without a copy; with the\n"
	 "module. A part is a Tensor, or (Tensor, offset, bytes) of its region, in whole\n"
	 "pages. Without a shape and dtype the tensor is of uint8.\n"
	 "UnsupportedError: there is no module; InvalidError: a part is not whole pages of its\n"
	 "region, or they do not fit the shape; ReleasedError: one was released."},
	{"from_dmabuf", KEYWORDS(module_from_dmabuf), METH_VARARGS | METH_KEYWORDS,
	 "from_dmabuf(descriptor, /, shape=None, dtype=None, *, label=None, mode=0o600, gid=None,\n"
	 "            hold_ms=0)\n--\n\n"
	 "Another exporter's dma-buf as a tensor; with the module. The descriptor stays the\n"
	 "caller's.\n"
	 "UnsupportedError: there is no module; InvalidError: it is no dma-buf, or too small for "
	 "the\n"
	 "shape."},
	{"recv", KEYWORDS(module_recv), METH_VARARGS | METH_KEYWORDS,
	 "recv(socket, /, shape=None, dtype=None, *, offset=0, timeout=None)\n--\n\n"
	 "Receive the next tensor that Tensor.send() sent by a connected Unix socket, or its\n"
	 "descriptor. It has its maker's shape and dtype, unless the call names others.\n"
	 "GoneError: the peer has closed the socket. ProtocolError: something else came."},
	{"export_memory", KEYWORDS(module_export_memory), METH_VARARGS | METH_KEYWORDS,
	 "export_memory(buffer, /, *, writable=False)\n--\n\n"
	 "A new descriptor of a dma-buf of this process's own memory, in whole pages, without a\n"
	 "copy; with the module. The pages stay while the descriptor or a driver holds them, and "
	 "count\n"
	 "against RLIMIT_MEMLOCK. Drivers import the descriptor; mmap() of it is EOPNOTSUPP, for "
	 "the\n"
	 "memory is mapped here already. The descriptor is the caller's.\n"
	 "UnsupportedError: there is no module; InvalidError: these are not whole pages."},
	{"recv_bundle", KEYWORDS(module_recv_bundle), METH_VARARGS | METH_KEYWORDS,
	 "recv_bundle(socket, /, *, timeout=None)\n--\n\n"
	 "The bundle that comes next by a connected Unix socket, or its descriptor, as\n"
	 "Bundle.send() sends it. GoneError when the other end is closed, ProtocolError when "
	 "something\n"
	 "else came, or less than a bundle: close the socket then."},
	{"plan_bundle", module_plan_bundle, METH_O,
	 "plan_bundle(pairs, /)\n--\n\n"
	 "Places in one region for a tuple of (dtype, shape), and its bytes."},
	{"make_bundle", module_make_bundle, METH_VARARGS,
	 "make_bundle(pairs, metadata, seal, label, /)\n--\n\nMake a Held of a tuple of (name, "
	 "Tensor)."},
	{"keep", module_keep, METH_VARARGS,
	 "keep(what, name, replace, lifetime, mode, gid, /)\n--\n\nKeep a Tensor or a Held."},
	{"keep_folder", module_keep_folder, METH_VARARGS,
	 "keep_folder(path, name, replace, lifetime, mode, gid, progress, /)\n--\n\n"
	 "A folder's files, or one file."},
	{"kept_path", module_kept_path, METH_VARARGS, "kept_path(name, path, /)\n--\n\nA str."},
	{"open_kept_file", module_open_kept_file, METH_VARARGS,
	 "open_kept_file(name, path, /)\n--\n\nA Tensor of uint8."},
	{"kept_files", module_kept_files, METH_O,
	 "kept_files(name, /)\n--\n\n"
	 "The files that are kept under a name of this user's, sorted with slashes first: a dict\n"
	 "each, of path, bytes and mtime_ns. NotFoundError when nothing is kept under it, or no "
	 "file."},
	{"open_kept", module_open_kept, METH_VARARGS,
	 "open_kept(name, uid, /)\n--\n\nA Held, or a list of Tensors."},
	{"open_fetched", module_open_fetched, METH_O,
	 "open_fetched(offer, /)\n--\n\n"
	 "Return the fetched and kept Tensor or Held of an offer of Tmesh.Net, or None if a\n"
	 "part of it is missing here."},
	{"kept", module_kept, METH_NOARGS,
	 "kept()\n--\n\nList the kept names that this user may open, a dict each, the oldest\n"
	 "first; tmeshctl kept --json prints the same. Without a keeper the list is empty.\n"
	 "Errors as of backend()."},
	{"drop", module_drop, METH_O,
	 "drop(name, /)\n--\n\n"
	 "Give up a name of this user's. Memory without holders is free when the call returns;\n"
	 "holders keep theirs. NotFoundError: no memory is kept under the name."},
	{"make_slot", module_make_slot, METH_VARARGS,
	 "make_slot(label, max_ref, name, /)\n--\n\nA SlotHandle."},
	{"open_slot", module_open_slot, METH_O, "open_slot(token, /)\n--\n\nA SlotReaderHandle."},
	{"open_named_slot", module_open_named_slot, METH_O,
	 "open_named_slot(name, /)\n--\n\nA SlotReaderHandle."},
	{"make_page_pool", module_make_page_pool, METH_VARARGS,
	 "make_page_pool(page_bytes, page_tokens, slab_pages, max_pages, devices, heads, /)\n--\n\n"
	 "A PagePoolHandle."},
	{"open_pages", module_open_pages, METH_O, "open_pages(token, /)\n--\n\nA PagesHandle."},
	{"sequence_tables", module_sequence_tables, METH_VARARGS,
	 "sequence_tables(sequences, width, /)\n--\n\n"
	 "(bytes of int32, width, bytes of int32): tables and lengths of a list of "
	 "SequenceHandles."},
	{"load_model", module_load_model, METH_VARARGS,
	 "load_model(path, keep, alone, hash, lenient, progress, /)\n--\n\n"
	 "(Held, report, [(name, type, dtype, shape, place in the file, bytes), ...])."},
	{"describe_model", module_describe_model, METH_O,
	 "describe_model(path, /)\n--\n\n(format, list as load_model()'s, metadata as JSON)."},
	{"parse_model", module_parse_model, METH_O,
	 "parse_model(data, /)\n--\n\n(format, list as load_model()'s, metadata as JSON)."},
	{"write", module_write, METH_VARARGS,
	 "write(tensor, buffer, /)\n--\n\nFill a contiguous tensor; one copy, which is counted."},
	{"stats", module_stats, METH_NOARGS,
	 "stats()\n--\n\nThis process's counters, a dict: copies made, regions, pool. Errors as of "
	 "backend()."},
	{"trim", module_trim, METH_NOARGS,
	 "trim()\n--\n\n"
	 "Give back at once the memory that is kept ready for new tensors "
	 "(stats()[\"region_pool_bytes\"]);\n"
	 "return the number of bytes. Memory that was not reused for 10 s goes by itself.\n"
	 "Errors as of backend()."},
	{"caps", module_caps, METH_NOARGS,
	 "caps()\n--\n\n"
	 "What works here, a list of {\"name\": what, \"level\": \"no\", \"cooperative\" or\n"
	 "\"enforced\", \"reason\": why}.\n"
	 "Errors as of backend()."},
	{"backend", module_backend, METH_NOARGS,
	 "backend()\n--\n\n\"kernel\" or \"memfd\". NotFoundError, AccessError: the one that "
	 "TMESH_BACKEND or\n"
	 "configure() asks for cannot be used; ProtocolError: the module is of another version."},
	{"raise_error", module_raise_error, METH_O,
	 "raise_error(report, /)\n--\n\n"
	 "Raise what a struct tmesh_error says, which another library of ours filled."},
	{"raise_word", module_raise_word, METH_VARARGS,
	 "raise_word(word, sealed, message, /)\n--\n\nRaise the error that is called \"EINVAL\" or "
	 "the like."},
	{"regions", module_regions, METH_NOARGS,
	 "regions()\n--\n\nThe regions that this user may open, a dict each. tests/vocabulary.md\n"
	 "says what the members mean; tmeshctl ls --json prints the same.\n"
	 "Errors as of backend()."},
	{"holders", module_holders, METH_O,
	 "holders(region, /)\n--\n\n"
	 "List the holders of a Tensor's region, or of the region with that id (Tensor.id), a\n"
	 "dict each. tests/vocabulary.md describes the members.\n"
	 "NotFoundError: no process that this user may see holds it; InvalidError: that is no id."},
	{NULL},
};

PyObject *call_python(const char *module, const char *function, PyObject *argument)
{
	PyObject *loaded = PyImport_ImportModule(module);
	PyObject *result = loaded ? PyObject_CallMethod(loaded, function, "(O)", argument) : NULL;

	Py_XDECREF(loaded);
	return result;
}

/* Add the types of libtmesh-model. */
static int add_model_types(PyObject *module, struct state *st)
{
	const struct {
		PyTypeObject **type;
		PyType_Spec *spec;
	} types[] = {
		{&st->slot_type, &slot_spec},	      {&st->slot_reader_type, &slot_reader_spec},
		{&st->pool_type, &pool_spec},	      {&st->pages_type, &pages_spec},
		{&st->sequence_type, &sequence_spec}, {&st->span_type, &span_spec},
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
		*types[i].type =
			(PyTypeObject *)PyType_FromModuleAndSpec(module, types[i].spec, NULL);
		if (!*types[i].type || PyModule_AddType(module, *types[i].type))
			return -1;
	}
	return 0;
}

static int add_types(PyObject *module, struct state *st)
{
	PyTypeObject *sent =
		(PyTypeObject *)PyType_FromModuleAndSpec(module, &in_transit_spec, NULL);
	int rc = sent ? PyModule_AddType(module, sent) : -1;

	Py_XDECREF((PyObject *)sent);
	st->tensor_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &tensor_spec, NULL);
	st->export_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &export_spec, NULL);
	st->channel_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &channel_spec, NULL);
	st->arena_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &arena_spec, NULL);
	st->held_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &held_spec, NULL);
	if (!st->tensor_type || !st->export_type || !st->channel_type || !st->arena_type ||
	    !st->held_type)
		return -1;
	if (rc || exchange_add(st->tensor_type))
		return -1;
	if (add_model_types(module, st) || engine_add_types(module, st) || cuda_add(module, st) ||
	    xla_add(module) || net_add(module, st))
		return -1;
	return PyModule_AddType(module, st->tensor_type) ||
			       PyModule_AddType(module, st->channel_type) ||
			       PyModule_AddType(module, st->arena_type) ||
			       PyModule_AddType(module, st->held_type)
		       ? -1
		       : 0;
}

/* Refuse a free-threaded Python whose options keep its lock off. By default it turns the lock on
 * when it imports an extension that needs it. */
static int refuse_without_gil(void)
{
	PyObject *ask = PySys_GetObject("_is_gil_enabled"), *has;
	int truth;

	if (!ask)
		return 0;
	has = PyObject_CallObject(ask, NULL);
	truth = has ? PyObject_IsTrue(has) : -1;
	Py_XDECREF(has);
	if (!truth)
		PyErr_SetString(PyExc_ImportError,
				"tmesh needs the global interpreter lock, and this Python runs "
				"without it: unset PYTHON_GIL and drop -X gil=0; Python then "
				"takes the lock when tmesh is imported");
	return truth == 1 ? 0 : -1;
}

static int module_exec(PyObject *module)
{
	static const char *const keys[KEYS] = {
		[REF_V] = "v",
		[REF_ID] = "id",
		[REF_TOKEN] = "token",
		[REF_OFFSET] = "offset",
		[REF_BYTE_SIZE] = "byte_size",
		[REF_SHAPE] = "shape",
		[REF_DTYPE] = "dtype",
		[REF_STRIDES] = "strides",
		[REF_DEVICE] = "device",
		[OFFER_CHECKSUM] = "checksum",
		[OFFER_REGION_BYTES] = "region_bytes",
	};
	struct state *st = PyModule_GetState(module);

	if (refuse_without_gil())
		return -1;
	for (int i = 0; i < KEYS; i++) {
		st->keys[i] = PyUnicode_InternFromString(keys[i]);
		if (!st->keys[i])
			return -1;
	}
	st->errors = PyImport_ImportModule("tmesh.errors");
	if (!st->errors || add_types(module, st))
		return -1;
	if (PyModule_AddIntConstant(module, "ERROR_BYTES", sizeof(struct tmesh_error)))
		return -1;
	return PyModule_AddStringConstant(module, "__version__", tmesh_version());
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
	struct state *st = PyModule_GetState(module);

	Py_VISIT(st->errors);
	Py_VISIT(st->tensor_type);
	Py_VISIT(st->export_type);
	Py_VISIT(st->channel_type);
	Py_VISIT(st->arena_type);
	Py_VISIT(st->held_type);
	Py_VISIT(st->slot_type);
	Py_VISIT(st->slot_reader_type);
	Py_VISIT(st->pool_type);
	Py_VISIT(st->pages_type);
	Py_VISIT(st->sequence_type);
	Py_VISIT(st->span_type);
	for (int i = 0; i < ENGINE_TYPES; i++)
		Py_VISIT(st->engine_types[i]);
	Py_VISIT(st->cuda_type);
	Py_VISIT(st->net_type);
	Py_VISIT(st->ndarray);
	for (int i = 0; i < DTYPES; i++)
		Py_VISIT(st->numpy_dtypes[i]);
	return 0;
}

static int module_clear(PyObject *module)
{
	struct state *st = PyModule_GetState(module);

	Py_CLEAR(st->errors);
	Py_CLEAR(st->tensor_type);
	Py_CLEAR(st->export_type);
	Py_CLEAR(st->channel_type);
	Py_CLEAR(st->arena_type);
	Py_CLEAR(st->held_type);
	Py_CLEAR(st->slot_type);
	Py_CLEAR(st->slot_reader_type);
	Py_CLEAR(st->pool_type);
	Py_CLEAR(st->pages_type);
	Py_CLEAR(st->sequence_type);
	Py_CLEAR(st->span_type);
	for (int i = 0; i < ENGINE_TYPES; i++)
		Py_CLEAR(st->engine_types[i]);
	Py_CLEAR(st->cuda_type);
	Py_CLEAR(st->net_type);
	Py_CLEAR(st->ndarray);
	for (int i = 0; i < DTYPES; i++)
		Py_CLEAR(st->numpy_dtypes[i]);
	for (int i = 0; i < KEYS; i++)
		Py_CLEAR(st->keys[i]);
	return 0;
}

static void module_free(void *module)
{
	struct state *st = PyModule_GetState(module);

	module_clear(module);
	tmesh_ctx_unref(st->ctx);
}

static PyModuleDef_Slot slots[] = {
	{Py_mod_exec, module_exec},
	{0},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,		.m_name = "tmesh._tmesh", .m_doc = "The C part of tmesh.",
	.m_size = sizeof(struct state), .m_methods = functions,	  .m_slots = slots,
	.m_traverse = module_traverse,	.m_clear = module_clear,  .m_free = module_free,
};

PyMODINIT_FUNC PyInit__tmesh(void)
{
	return PyModuleDef_Init(&definition);
}
