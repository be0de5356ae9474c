/* SPDX-License-Identifier: MIT */
/* Refs of Tensors, and tmesh.open() with all kinds of arguments. */
#include "binding.h"

#include <stdio.h>
#include <unistd.h>

static PyObject *list_from_ints(const int64_t *values, int32_t count)
{
	PyObject *tuple = tuple_from_ints(values, count);
	PyObject *list = tuple ? PySequence_List(tuple) : NULL;

	Py_XDECREF(tuple);
	return list;
}

static PyObject *dict_from_ref(struct state *st, const struct tmesh_ref *ref)
{
	const struct tmesh_layout *layout = &ref->layout;
	PyObject *dict = PyDict_New();
	PyObject *values[REF_KEYS] = {
		[REF_V] = PyLong_FromLong(1),
		[REF_ID] = text_from_id(ref->id),
		[REF_TOKEN] = PyUnicode_FromString(ref->token),
		[REF_OFFSET] = PyLong_FromUnsignedLongLong(layout->offset),
		[REF_BYTE_SIZE] = PyLong_FromUnsignedLongLong(ref->byte_size),
		[REF_SHAPE] = list_from_ints(layout->shape, layout->ndim),
		[REF_DTYPE] = PyUnicode_FromString(tmesh_dtype_name(layout->dtype)),
		[REF_STRIDES] = list_from_ints(layout->strides, layout->ndim),
		[REF_DEVICE] = text_from_device(layout),
	};

	for (int i = 0; i < REF_KEYS; i++) {
		if (dict && (!values[i] || PyDict_SetItem(dict, st->keys[i], values[i])))
			Py_CLEAR(dict);
		Py_XDECREF(values[i]);
	}
	return dict;
}

int hold_from_object(struct state *st, PyObject *object, uint64_t *ns)
{
	double seconds;

	*ns = 0;
	if (object == Py_None)
		return 0;
	seconds = PyBool_Check(object) ? -1 : PyFloat_AsDouble(object);
	if (seconds == -1 && PyErr_Occurred())
		return -1;
	if (!(seconds > 0 && seconds <= TMESH_HOLD_MAX_NS / 1e9)) {
		raise_code(st, EINVAL, "hold is None, or more than 0 seconds and at most a day");
		return -1;
	}
	*ns = (uint64_t)(seconds * 1e9);
	*ns += !*ns;
	return 0;
}

/* Make a ref that holds the memory for @hold ns; 0: no hold. */
static int ref_of(struct tensor *self, uint32_t rights, uint64_t hold, struct tmesh_ref *ref)
{
	struct tmesh_region *region;
	struct tmesh_error err;

	if (!tensor_get(self))
		return -1;
	region = tmesh_tensor_region(self->tensor);
	if (rights & TMESH_WRITE && tmesh_region_is_sealed(region)) {
		char id[17];

		/* PyErr_Format() of Python 3.11 has no width beside "ll". */
		snprintf(id, sizeof(id), "%016llx", (unsigned long long)tmesh_region_id(region));
		raise_named(state_of(self), "SealedError", EPERM,
			    "ref: region %s is sealed, and its receiver could not write to it; "
			    "give it for reading",
			    id);
		return -1;
	}
	ref->id = tmesh_region_id(region);
	ref->byte_size = tmesh_tensor_bytes(self->tensor);
	ref->layout = *tmesh_tensor_layout(self->tensor);
	if (hold ? !tmesh_region_hold(region, rights, hold, ref->token, &err)
		 : !tmesh_region_token(region, rights, ref->token, &err))
		return 0;
	raise_region_error(state_of(self), region, &err);
	return -1;
}

PyObject *tensor_ref(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"writable", "hold", NULL};
	struct tensor *self = (struct tensor *)object;
	struct state *st = state_of(self);
	PyObject *hold = Py_None;
	struct tmesh_ref ref;
	int writable = 0;
	uint64_t ns;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$pO:ref", names, &writable, &hold) ||
	    hold_from_object(st, hold, &ns))
		return NULL;
	if (ref_of(self, writable ? TMESH_READ | TMESH_WRITE : TMESH_READ, ns, &ref))
		return NULL;
	return dict_from_ref(st, &ref);
}

/* Implement __reduce__(). The ref in it holds the memory, since a receiver may unpickle late. The
 * pickle of a lost tensor is lost. */
PyObject *tensor_reduce(PyObject *object, PyObject *unused)
{
	struct tensor *self = (struct tensor *)object;
	PyObject *value, *function;

	if (!self->lost || self->left)
		return tensor_get(self) ? call_python("tmesh.in_transit", "reduce_stored", object)
					: NULL;
	value = Py_BuildValue("(iN)", self->lost->code,
			      foreign_text(self->lost->message, sizeof(self->lost->message)));
	if (!value)
		return NULL;
	function = PyObject_GetAttrString(PyType_GetModule(Py_TYPE(object)), "unpickle");
	if (function)
		return Py_BuildValue("N(N)", function, value);
	Py_DECREF(value);
	return NULL;
}

/*
 * Refs as dicts. Their members are read one by one, since a detour through JSON would cost as much
 * as the open itself. This checks only the types; tmesh_ref_from_members() checks the values.
 */

static int bad_member(struct state *st, enum ref_key key, const char *want)
{
	PyErr_Clear(); /* of a conversion that failed */
	raise_code(st, EPROTO, "the ref's \"%U\" is %s", st->keys[key], want);
	return -1;
}

/* Return a member, borrowed. NULL if it is missing, or with an exception. */
static PyObject *member(struct state *st, PyObject *dict, enum ref_key key)
{
	return PyDict_GetItemWithError(dict, st->keys[key]);
}

/* References on the texts of a dict: looking up the next member may run code that changes the
 * dict. */
struct texts {
	PyObject *of[REF_KEYS];
};

/* Return characters that are valid as long as @texts; NULL if the member is missing. */
static int text_member(struct state *st, PyObject *dict, enum ref_key key, struct texts *texts,
		       const char **text)
{
	PyObject *value = Py_XNewRef(member(st, dict, key));
	Py_ssize_t length;

	*text = NULL;
	if (!value)
		return PyErr_Occurred() ? -1 : 0;
	texts->of[key] = value;
	*text = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, &length) : NULL;
	if (*text && (Py_ssize_t)strlen(*text) == length)
		return 0;
	return bad_member(st, key, "not a string of plain characters");
}

static int uint_member(struct state *st, PyObject *dict, enum ref_key key, uint64_t *number)
{
	PyObject *value = member(st, dict, key);
	long long signed_number;

	if (!value)
		return PyErr_Occurred() ? -1 : bad_member(st, key, "missing");
	if (!PyLong_CheckExact(value))
		return bad_member(st, key, "not an integer");
	signed_number = PyLong_AsLongLong(value);
	if (signed_number < 0)
		return bad_member(st, key, "out of range");
	*number = (uint64_t)signed_number;
	return 0;
}

/* @numbers has room for TMESH_MAX_DIMS. */
static int ints_member(struct state *st, PyObject *dict, enum ref_key key, int64_t *numbers,
		       size_t *count)
{
	PyObject *value = member(st, dict, key);
	bool list = value && PyList_Check(value);
	Py_ssize_t size;

	if (!value)
		return PyErr_Occurred() ? -1 : bad_member(st, key, "missing");
	if (!list && !PyTuple_Check(value))
		return bad_member(st, key, "not a list");
	size = list ? PyList_Size(value) : PyTuple_Size(value);
	*count = (size_t)size;
	for (Py_ssize_t i = 0; i < size && i < TMESH_MAX_DIMS; i++) {
		PyObject *item = list ? PyList_GetItem(value, i) : PyTuple_GetItem(value, i);

		if (!item || !PyLong_CheckExact(item))
			return bad_member(st, key, "not a list of integers");
		numbers[i] = PyLong_AsLongLong(item);
		if (numbers[i] == -1 && PyErr_Occurred())
			return bad_member(st, key, "out of range");
	}
	return 0;
}

int ref_from_dict(struct state *st, PyObject *dict, struct tmesh_ref *ref)
{
	int64_t shape[TMESH_MAX_DIMS], strides[TMESH_MAX_DIMS];
	struct tmesh_ref_members m = {.size = sizeof(m), .shape = shape, .strides = strides};
	struct texts texts = {0};
	struct tmesh_error err;
	int rc;

	rc = uint_member(st, dict, REF_V, &m.v) || text_member(st, dict, REF_ID, &texts, &m.id) ||
	     text_member(st, dict, REF_TOKEN, &texts, &m.token) ||
	     uint_member(st, dict, REF_OFFSET, &m.offset) ||
	     uint_member(st, dict, REF_BYTE_SIZE, &m.byte_size) ||
	     ints_member(st, dict, REF_SHAPE, shape, &m.shape_count) ||
	     text_member(st, dict, REF_DTYPE, &texts, &m.dtype) ||
	     ints_member(st, dict, REF_STRIDES, strides, &m.strides_count) ||
	     text_member(st, dict, REF_DEVICE, &texts, &m.device);
	if (!rc && tmesh_ref_from_members(&m, ref, &err)) {
		raise_error(st, &err);
		rc = -1;
	}
	for (int i = 0; i < REF_KEYS; i++)
		Py_XDECREF(texts.of[i]);
	return rc ? -1 : 0;
}

PyObject *tensor_open(struct state *st, struct tmesh_ctx *ctx, const struct tmesh_ref *ref,
		      uint32_t rights)
{
	struct tmesh_tensor *tensor;
	struct tmesh_error err;
	int rc;

	WITHOUT_GIL(rc = tmesh_tensor_open(ctx, ref, rights, &tensor, &err));
	return rc ? raise_open_error(st, rights, &err) : tensor_new(st, tensor, NULL, rights);
}

static PyObject *lost_from_tuple(struct state *st, PyObject *tuple)
{
	struct tmesh_error err = {0};
	const char *text;

	if (!PyArg_ParseTuple(tuple, "is:unpickle", &err.code, &text))
		return NULL;
	snprintf(err.message, sizeof(err.message), "%s", text);
	return tensor_lost(st, &err);
}

/* Unpickle a tensor. If it cannot be opened, return a lost one: an exception here would break pools
 * and queues, which cannot handle it. */
PyObject *module_unpickle(PyObject *module, PyObject *value)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_tensor *tensor;
	struct tmesh_error err;
	struct tmesh_ref ref;
	int rc;

	if (!ctx)
		return NULL;
	if (PyTuple_Check(value))
		return lost_from_tuple(st, value);
	if (!PyDict_Check(value)) {
		PyErr_SetString(PyExc_TypeError, "unpickle() takes what __reduce__() gave");
		return NULL;
	}
	if (ref_from_dict(st, value, &ref))
		return NULL;
	WITHOUT_GIL(rc = tmesh_tensor_open(ctx, &ref, TMESH_READ, &tensor, &err));
	return rc ? tensor_lost(st, &err) : tensor_new(st, tensor, NULL, TMESH_READ);
}

/* Open a token's region as bytes, since a token does not describe elements. Drop the GIL. */
static int open_bytes(struct tmesh_ctx *ctx, const char *token, uint32_t rights,
		      struct tmesh_tensor **tensor, struct tmesh_error *err)
{
	struct tmesh_region *region;
	struct tmesh_layout layout;
	int64_t bytes;
	int rc = tmesh_region_open(ctx, token, rights, &region, err);

	if (rc)
		return rc;
	bytes = (int64_t)tmesh_region_bytes(region);
	if (rights & TMESH_WRITE && tmesh_region_is_sealed(region)) {
		err->code = rc = -EPERM;
		snprintf(err->message, sizeof(err->message),
			 "open: the region is sealed, and no process can write to it any more; "
			 "open it for reading");
	}
	if (!rc)
		rc = tmesh_layout_contiguous(&layout, TMESH_UINT8, 1, &bytes, err);
	if (!rc)
		rc = tmesh_tensor_wrap(region, &layout, tensor, err);
	tmesh_region_unref(region);
	return rc;
}

static PyObject *open_token(struct state *st, struct tmesh_ctx *ctx, const char *token,
			    uint32_t rights)
{
	struct tmesh_tensor *tensor;
	struct tmesh_error err;
	int rc;

	WITHOUT_GIL(rc = open_bytes(ctx, token, rights, &tensor, &err));
	return rc ? raise_open_error(st, rights, &err) : tensor_new(st, tensor, NULL, rights);
}

static PyObject *open_text(struct state *st, struct tmesh_ctx *ctx, const char *text,
			   Py_ssize_t length, uint32_t rights)
{
	const char *start = text + strspn(text, " \t\r\n");
	struct tmesh_error err;
	struct tmesh_ref ref;

	if (*start == '{' && start[1] == '\'')
		return raise_code(st, EPROTO,
				  "the ref is a dict as Python prints it, which is not JSON: take "
				  "json.dumps(ref), or the dict itself");
	if (*start != '{' && length == 16 && strspn(text, "0123456789abcdef") == 16)
		return raise_code(st, EPROTO,
				  "an id only names a region and gives no access: open it by "
				  "ref() of its tensor, or by a token");
	if (*start != '{' && strncmp(text, "tm1", 3))
		return raise_code(st, EPROTO,
				  "neither a ref, which is a dict or JSON text and begins with {, "
				  "nor a token, which begins with tm1");
	if (*start != '{')
		return open_token(st, ctx, text, rights);
	if (tmesh_ref_decode(text, (size_t)length, &ref, &err)) {
		/* A tensor's ref has no member "kind". */
		if (strstr(text, "\"kind\""))
			return bundle_open(st, ctx, text, (size_t)length, rights);
		return raise_error(st, &err);
	}
	return tensor_open(st, ctx, &ref, rights);
}

static bool is_bundle(PyObject *dict)
{
	PyObject *kind = PyDict_GetItemString(dict, "kind");

	return kind && PyUnicode_Check(kind) && !PyUnicode_CompareWithASCIIString(kind, "bundle");
}

static PyObject *open_bundle(struct state *st, struct tmesh_ctx *ctx, PyObject *dict,
			     uint32_t rights)
{
	PyObject *text = call_python("json", "dumps", dict), *bundle = NULL;
	const char *utf8;
	Py_ssize_t length;

	if (!text)
		return NULL;
	utf8 = PyUnicode_AsUTF8AndSize(text, &length);
	if (utf8)
		bundle = bundle_open(st, ctx, utf8, (size_t)length, rights);
	Py_DECREF(text);
	return bundle;
}

static PyObject *open_any(struct state *st, PyObject *object, uint32_t rights)
{
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_ref ref;
	const char *text;
	Py_ssize_t length;

	if (!ctx)
		return NULL;
	if (Py_TYPE(object) == st->tensor_type)
		return ref_of((struct tensor *)object, rights, 0, &ref)
			       ? NULL
			       : tensor_open(st, ctx, &ref, rights);
	if (PyDict_Check(object) && is_bundle(object))
		return open_bundle(st, ctx, object, rights);
	if (PyDict_Check(object))
		return ref_from_dict(st, object, &ref) ? NULL : tensor_open(st, ctx, &ref, rights);
	if (PyUnicode_Check(object)) {
		text = PyUnicode_AsUTF8AndSize(object, &length);
		if (!text)
			return NULL;
	} else if (PyBytes_Check(object)) {
		text = PyBytes_AsString(object);
		length = PyBytes_Size(object);
	} else {
		PyErr_Format(
			PyExc_TypeError,
			"open() takes a ref (a dict or JSON text), a token or a Tensor, not %R",
			object);
		return NULL;
	}
	if ((Py_ssize_t)strlen(text) != length)
		return raise_code(st, EPROTO, "neither a token nor a ref: it holds a zero");
	return open_text(st, ctx, text, length, rights);
}

PyObject *module_open(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
	Py_ssize_t named = names ? PyTuple_Size(names) : 0;
	uint32_t rights = TMESH_READ;

	/* Parse by hand: this call takes microseconds, and a parser would add to them. */
	if (count < 1 || count > 2 || named > 1 || count + named > 2 ||
	    (named && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "writable"))) {
		PyErr_SetString(PyExc_TypeError, "open() takes a ref or token, and writable=");
		return NULL;
	}
	if (count + named == 2) {
		/* "r" would be true too. */
		if (!PyBool_Check(args[1])) {
			PyErr_Format(PyExc_TypeError, "writable is True or False, not %R", args[1]);
			return NULL;
		}
		rights |= args[1] == Py_True ? TMESH_WRITE : 0;
	}
	return open_any(PyModule_GetState(module), args[0], rights);
}

/* Return the file name of a block's name, or NULL. It is looked up in a folder, so it must not
 * leave that folder. */
static const char *link_name(struct state *st, PyObject *name)
{
	const char *text;
	Py_ssize_t length;

	if (!PyUnicode_Check(name)) {
		PyErr_Format(PyExc_TypeError, "'name' is a str, not %R", name);
		return NULL;
	}
	text = PyUnicode_AsUTF8AndSize(name, &length);
	if (!text)
		return NULL;
	if ((Py_ssize_t)strlen(text) == length) {
		text += *text == '/';
		if (*text && !strchr(text, '/') && strcmp(text, ".") && strcmp(text, ".."))
			return text;
	}
	return raise_code(st, EINVAL,
			  "%R is no name: it is not empty, \".\" or \"..\", and it has no zero and "
			  "no slash but a first one",
			  name);
}

PyObject *module_link_name(PyObject *module, PyObject *name)
{
	const char *text = link_name(PyModule_GetState(module), name);

	return text ? PyUnicode_DecodeFSDefault(text) : NULL;
}

/* Attach by a name in one call. The same steps in Python take as long as all the rest. */
PyObject *module_open_link(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	const uint32_t rights = TMESH_READ | TMESH_WRITE;
	char token[TMESH_TOKEN_SIZE + 1];
	PyObject *object, *memory;
	struct tmesh_tensor *tensor;
	struct tmesh_error err;
	const char *name;
	ssize_t length;
	int rc = 0;
	long folder;

	if (!ctx)
		return NULL;
	if (count != 2) {
		PyErr_SetString(PyExc_TypeError, "open_link() takes a folder and a name");
		return NULL;
	}
	folder = PyLong_AsLong(args[0]);
	if (folder == -1 && PyErr_Occurred())
		return NULL;
	if (folder != (int)folder)
		return raise_code(st, EBADF, "open_link(): no descriptor has that number");
	name = link_name(st, args[1]);
	if (!name)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	length = readlinkat((int)folder, name, token, sizeof(token) - 1);
	if (length >= 0) {
		token[length] = '\0';
		rc = open_bytes(ctx, token, rights, &tensor, &err);
	}
	Py_END_ALLOW_THREADS;
	if (length < 0)
		return PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, args[1]);
	object = rc ? raise_error(st, &err) : tensor_new(st, tensor, NULL, rights);
	if (!object)
		return NULL;
	memory = PyMemoryView_FromObject(object);
	Py_DECREF(object);
	return memory ? Py_BuildValue("sN", token, memory) : NULL;
}

PyObject *module_runtime_dir(PyObject *module, PyObject *unused)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_error err;
	int fd, rc;

	if (!ctx)
		return NULL;
	WITHOUT_GIL(rc = tmesh_ctx_runtime_dir(ctx, &fd, &err));
	return rc ? raise_error(st, &err) : PyLong_FromLong(fd);
}
