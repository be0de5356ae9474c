/* SPDX-License-Identifier: MIT */
/* Kept regions: memory under a name, which outlives every process. */
#include "binding.h"

#include <stdio.h>
#include <tmesh/keep.h>

#include "common/shown.h"

/* Read a name; NULL with an exception. The library checks the other rules for names. */
static const char *name_from_object(struct state *st, PyObject *object)
{
	const char *text;
	Py_ssize_t length;

	if (!PyUnicode_Check(object)) {
		PyErr_Format(PyExc_TypeError, "name is a str, not %R", object);
		return NULL;
	}
	text = PyUnicode_AsUTF8AndSize(object, &length);
	if (text && (Py_ssize_t)strlen(text) != length)
		return raise_code(st, EINVAL, "the name is not UTF-8 without control characters");
	return text;
}

static int lifetime_from_object(struct state *st, PyObject *object, uint64_t *ns)
{
	double seconds;

	*ns = 0;
	if (object == Py_None)
		return 0;
	seconds = PyFloat_AsDouble(object);
	if (seconds == -1 && PyErr_Occurred())
		return -1;
	if (seconds * 1e9 >= 1 && seconds < 9e9) {
		*ns = (uint64_t)(seconds * 1e9);
		return 0;
	}
	raise_code(st, EINVAL, "lifetime is None, which is for ever, or more than 0 seconds");
	return -1;
}

int keep_options(struct state *st, PyObject *name_object, PyObject *lifetime, PyObject *gid,
		 struct tmesh_keep_opts *opts, const char **name)
{
	unsigned int number;

	if (lifetime_from_object(st, lifetime, &opts->lifetime_ns))
		return -1;
	*name = name_from_object(st, name_object);
	if (!*name || (gid != Py_None && !uint_argument(gid, &number)))
		return -1;
	if (gid != Py_None) {
		opts->flags |= TMESH_KEEPING_GID;
		opts->gid = (gid_t)number;
	}
	return 0;
}

int kept_name(struct state *st, PyObject *name_object, PyObject *uid_object, const char **name,
	      uid_t *uid)
{
	unsigned int number = (unsigned int)TMESH_KEPT_OWN;

	*name = name_from_object(st, name_object);
	if (!*name || (uid_object != Py_None && !uint_argument(uid_object, &number)))
		return -1;
	*uid = (uid_t)number;
	return 0;
}

/* Return the region of a tensor that fills all of it, with a reference. */
static struct tmesh_region *region_of_whole(struct state *st, PyObject *object)
{
	struct tmesh_tensor *tensor = tensor_get((struct tensor *)object);

	if (tensor && tensor_is_whole(tensor))
		return tmesh_region_ref(tmesh_tensor_region(tensor));
	return tensor ? raise_code(st, EINVAL,
				   "cannot keep a part of a tensor or another view of it: keep "
				   "the whole tensor, or a bundle, as in tmesh.keep({\"x\": t}, "
				   "name)")
		      : NULL;
}

PyObject *module_keep(PyObject *module, PyObject *args)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts)};
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	PyObject *what, *name_object, *lifetime, *gid;
	struct tmesh_bundle *bundle = NULL;
	struct tmesh_region *region = NULL;
	struct tmesh_error err;
	const char *name;
	int replace, rc;

	if (!ctx ||
	    !PyArg_ParseTuple(args, "OOpOO&O:keep", &what, &name_object, &replace, &lifetime,
			      uint_argument, &opts.mode, &gid) ||
	    keep_options(st, name_object, lifetime, gid, &opts, &name))
		return NULL;
	opts.flags |= replace ? TMESH_KEEPING_REPLACE : 0;
	if (Py_TYPE(what) == st->tensor_type)
		region = region_of_whole(st, what);
	else
		bundle = bundle_of_held(st, what);
	if (!region && !bundle)
		return NULL;
	if (bundle)
		tmesh_bundle_ref(bundle);
	Py_BEGIN_ALLOW_THREADS;
	rc = bundle ? tmesh_keep_bundle(ctx, name, bundle, &opts, &err)
		    : tmesh_keep(ctx, name, &region, 1, &opts, &err);
	tmesh_bundle_unref(bundle);
	tmesh_region_unref(region);
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(st, &err);
	Py_RETURN_NONE;
}

/* Whether the region's description says that it is the index of a bundle. */
static bool is_index(struct tmesh_region *region)
{
	struct tmesh_region_info info = {.size = sizeof(info)};

	return !tmesh_region_info(region, &info, NULL) &&
	       strstr(info.description, "\"kind\":\"bundle\"");
}

/* Whether the region's description names it as memory of libtmesh-cuda. */
static bool is_gpu_memory(struct tmesh_region *region)
{
	struct tmesh_region_info info = {.size = sizeof(info)};

	return !tmesh_region_info(region, &info, NULL) && info.backing == TMESH_BACKED_BY_OPAQUE &&
	       strstr(info.description, ",\"cuda\":{");
}

/* Return all regions as Tensors. Take over their references. */
static PyObject *tensors_of(struct state *st, struct tmesh_region **regions, size_t count)
{
	PyObject *list = PyList_New(0);

	for (size_t i = 0; i < count; i++) {
		PyObject *tensor = NULL;

		if (list)
			tensor = tensor_as_described(st, regions[i]);
		else
			tmesh_region_unref(regions[i]);
		if (list && (!tensor || PyList_Append(list, tensor)))
			Py_CLEAR(list);
		Py_XDECREF(tensor);
	}
	return list;
}

static PyObject *held_of_regions(struct state *st, struct tmesh_ctx *ctx,
				 struct tmesh_region **regions, size_t count)
{
	struct tmesh_bundle *bundle;
	struct tmesh_error err;
	int rc = tmesh_bundle_from_regions(ctx, regions[0], regions + 1, count - 1, &bundle, &err);

	for (size_t i = 0; i < count; i++)
		tmesh_region_unref(regions[i]);
	return rc ? raise_error(st, &err) : held_of_bundle(st, bundle);
}

PyObject *module_open_kept(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	PyObject *name_object, *uid_object, *result;
	struct tmesh_region **regions;
	struct tmesh_error err;
	const char *name;
	size_t count;
	uid_t uid;
	int rc;

	if (!ctx || !PyArg_ParseTuple(args, "OO:open_kept", &name_object, &uid_object) ||
	    kept_name(st, name_object, uid_object, &name, &uid))
		return NULL;
	WITHOUT_GIL(rc = tmesh_kept_open(ctx, name, uid, TMESH_READ, &regions, &count, &err));
	if (rc)
		return raise_error(st, &err);
	if (is_gpu_memory(regions[0])) {
		result = raise_code(st, EOPNOTSUPP,
				    "\"%s\" keeps GPU memory: tmesh.cuda.open_kept opens it", name);
		while (count)
			tmesh_region_unref(regions[--count]);
	} else {
		result = is_index(regions[0]) ? held_of_regions(st, ctx, regions, count)
					      : tensors_of(st, regions, count);
	}
	free(regions);
	return result;
}

/* Return the region kept under a name if it has that many bytes, else NULL. Drop the GIL.
 */
static struct tmesh_region *fetched_region(struct tmesh_ctx *ctx, const char *name,
					   unsigned long long bytes)
{
	struct tmesh_region **regions, *region = NULL;
	size_t count;

	if (tmesh_kept_open(ctx, name, TMESH_KEPT_OWN, TMESH_READ, &regions, &count, NULL))
		return NULL;
	if (count == 1 && tmesh_region_bytes(regions[0]) == bytes &&
	    tmesh_region_is_sealed(regions[0]))
		region = tmesh_region_ref(regions[0]);
	while (count)
		tmesh_region_unref(regions[--count]);
	free(regions);
	return region;
}

#define SHARD_NAME sizeof("net-0123456789abcdef0123456789abcdef")

/* Read one region of an offer: the name under which this machine keeps its bytes, and their number.
 * Return false if this is no offer. */
static bool shard_name(struct state *st, PyObject *shard, char name[SHARD_NAME],
		       unsigned long long *bytes)
{
	bool dict = PyDict_Check(shard), good;
	/* Take a reference: the second look-up may run code of a key in the dict. */
	PyObject *sum = Py_XNewRef(dict ? PyDict_GetItem(shard, st->keys[OFFER_CHECKSUM]) : NULL);
	PyObject *count = sum ? PyDict_GetItem(shard, st->keys[OFFER_REGION_BYTES]) : NULL;
	const char *text = NULL;
	Py_ssize_t length = 0;

	if (count && PyUnicode_Check(sum) && PyLong_CheckExact(count))
		text = PyUnicode_AsUTF8AndSize(sum, &length);
	*bytes = text ? PyLong_AsUnsignedLongLong(count) : 0;
	good = text && !PyErr_Occurred() && length == 32 && strspn(text, "0123456789abcdef") == 32;
	PyErr_Clear();
	if (good)
		memcpy(stpcpy(name, "net-"), text, SHARD_NAME - 4);
	Py_XDECREF(sum);
	return good;
}

/* Open all regions of an offer or none. Return their number; 0 if this is no offer or a region is
 * missing here. */
static Py_ssize_t fetched_regions(struct state *st, struct tmesh_ctx *ctx, PyObject *shards,
				  struct tmesh_region **regions)
{
	Py_ssize_t opened = 0, count = PyList_Check(shards) ? PyList_Size(shards) : 1;
	bool good = count > 0 && count <= 1 + TMESH_KEPT_MAX_REGIONS;

	while (good && opened < count) {
		PyObject *shard =
			Py_XNewRef(PyList_Check(shards) ? PyList_GetItem(shards, opened) : shards);
		struct tmesh_region *region = NULL;
		char name[SHARD_NAME];
		unsigned long long bytes;

		good = shard && shard_name(st, shard, name, &bytes);
		Py_XDECREF(shard);
		if (good) {
			WITHOUT_GIL(region = fetched_region(ctx, name, bytes));
		}
		good = region != NULL;
		if (good)
			regions[opened++] = region;
	}
	while (!good && opened)
		tmesh_region_unref(regions[--opened]);
	PyErr_Clear(); /* the list became shorter meanwhile */
	return opened;
}

PyObject *module_open_fetched(PyObject *module, PyObject *offer)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_region *regions[1 + TMESH_KEPT_MAX_REGIONS];
	struct tmesh_tensor *tensor;
	PyObject *kind, *shards;
	struct tmesh_error err;
	struct tmesh_ref ref;
	Py_ssize_t count;
	bool bundle;
	int rc;

	if (!ctx)
		return NULL;
	if (!PyDict_Check(offer))
		return raise_code(st, EPROTO, "an offer is a dict");
	kind = PyDict_GetItemString(offer, "kind");
	bundle = kind && PyUnicode_Check(kind) && !PyUnicode_CompareWithASCIIString(kind, "bundle");
	shards = Py_XNewRef(bundle ? PyDict_GetItemString(offer, "shards") : offer);
	count = shards ? fetched_regions(st, ctx, shards, regions) : 0;
	Py_XDECREF(shards);
	if (!count)
		Py_RETURN_NONE;
	if (bundle)
		return held_of_regions(st, ctx, regions, (size_t)count);
	if (ref_from_dict(st, offer, &ref)) {
		tmesh_region_unref(regions[0]);
		return NULL;
	}
	rc = tmesh_tensor_wrap(regions[0], &ref.layout, &tensor, &err);
	tmesh_region_unref(regions[0]);
	return rc ? raise_error(st, &err) : tensor_new(st, tensor, NULL, TMESH_READ);
}

static PyObject *dict_from_kept(const void *item)
{
	const struct tmesh_kept_info *info = item;

	return DICT_SHOW(Py_BuildValue("{s:s,s:I}", "backend", tmesh_backend_name(info->backend),
				       "regions", info->count),
			 shown_kept_info, info);
}

PyObject *module_kept(PyObject *module, PyObject *unused)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_kept_info *infos;
	struct tmesh_error err;
	size_t count;
	int rc;

	if (!ctx)
		return NULL;
	WITHOUT_GIL(rc = tmesh_kept_list(ctx, &infos, &count, &err));
	if (rc)
		return raise_error(st, &err);
	return list_of_items(infos, count, sizeof(*infos), dict_from_kept);
}

PyObject *module_drop(PyObject *module, PyObject *object)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	const char *name = ctx ? name_from_object(st, object) : NULL;
	struct tmesh_error err;
	int rc;

	if (!name)
		return NULL;
	WITHOUT_GIL(rc = tmesh_kept_drop(ctx, name, &err));
	if (rc)
		return raise_error(st, &err);
	Py_RETURN_NONE;
}

/* The progress of reading a folder, and the thread that waits for it. */
struct reading {
	PyThreadState *thread;
	PyObject *progress; /* NULL: no callback */
};

static int tell_reading(void *data, uint64_t done, uint64_t total)
{
	struct reading *reading = data;
	PyObject *result = NULL;
	int stop;

	PyEval_RestoreThread(reading->thread);
	/* Ctrl-C, or another exception of a signal's handler. */
	stop = PyErr_CheckSignals();
	if (!stop && reading->progress) {
		result = PyObject_CallFunction(reading->progress, "KK", (unsigned long long)done,
					       (unsigned long long)total);
		stop = !result;
		Py_XDECREF(result);
	}
	reading->thread = PyEval_SaveThread();
	return stop;
}

PyObject *module_keep_folder(PyObject *module, PyObject *args)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts), .progress = tell_reading};
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	PyObject *path = NULL, *name_object, *lifetime, *gid, *progress;
	struct reading reading = {0};
	struct tmesh_error err;
	const char *name;
	int replace, rc;

	if (!ctx || !PyArg_ParseTuple(args, "O&OpOO&OO:keep_folder", PyUnicode_FSConverter, &path,
				      &name_object, &replace, &lifetime, uint_argument, &opts.mode,
				      &gid, &progress))
		return NULL;
	if (keep_options(st, name_object, lifetime, gid, &opts, &name)) {
		Py_DECREF(path);
		return NULL;
	}
	opts.flags |= replace ? TMESH_KEEPING_REPLACE : 0;
	reading.progress = progress == Py_None ? NULL : progress;
	opts.progress_data = &reading;
	reading.thread = PyEval_SaveThread();
	rc = tmesh_keep_folder(ctx, name, PyBytes_AsString(path), &opts, &err);
	PyEval_RestoreThread(reading.thread);
	Py_DECREF(path);
	if (rc)
		/* An exception of the callback or of a signal's handler takes precedence over the
		 * error that it caused. */
		return PyErr_Occurred() ? NULL : raise_error(st, &err);
	Py_RETURN_NONE;
}

PyObject *module_kept_path(PyObject *module, PyObject *args)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	PyObject *name_object, *path_object, *path = NULL, *result;
	struct tmesh_error err;
	const char *name;
	char *text;
	int rc;

	if (!ctx || !PyArg_ParseTuple(args, "OO:kept_path", &name_object, &path_object) ||
	    !(name = name_from_object(st, name_object)) ||
	    (path_object != Py_None && !PyUnicode_FSConverter(path_object, &path)))
		return NULL;
	WITHOUT_GIL(
		rc = tmesh_kept_path(ctx, name, path ? PyBytes_AsString(path) : NULL, &text, &err));
	Py_XDECREF(path);
	if (rc)
		return raise_error(st, &err);
	result = PyUnicode_DecodeFSDefault(text);
	free(text);
	return result;
}

static PyObject *dict_from_file(const void *item)
{
	const struct tmesh_kept_file *file = item;

	return Py_BuildValue("{s:N,s:K,s:L}", "path", PyUnicode_DecodeFSDefault(file->path),
			     "bytes", (unsigned long long)file->bytes, "mtime_ns",
			     (long long)file->mtime_ns);
}

PyObject *module_kept_files(PyObject *module, PyObject *object)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	const char *name = ctx ? name_from_object(st, object) : NULL;
	struct tmesh_kept_file *files;
	struct tmesh_error err;
	size_t count;
	int rc;

	if (!name)
		return NULL;
	WITHOUT_GIL(rc = tmesh_kept_files(ctx, name, TMESH_KEPT_OWN, &files, &count, &err));
	if (rc)
		return raise_error(st, &err);
	return list_of_items(files, count, sizeof(*files), dict_from_file);
}

/* Return the bytes of one kept file as a Tensor of uint8. */
PyObject *module_open_kept_file(PyObject *module, PyObject *args)
{
	struct tmesh_layout layout = {.dtype = TMESH_UINT8, .ndim = 1, .strides = {1}};
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	PyObject *name_object, *path = NULL;
	struct tmesh_tensor *tensor;
	struct tmesh_kept_file file;
	struct tmesh_region *region;
	struct tmesh_error err;
	const char *name;
	int rc;

	if (!ctx || !PyArg_ParseTuple(args, "OO&:open_kept_file", &name_object,
				      PyUnicode_FSConverter, &path))
		return NULL;
	name = name_from_object(st, name_object);
	if (!name) {
		Py_DECREF(path);
		return NULL;
	}
	WITHOUT_GIL(rc = tmesh_kept_open_file(ctx, name, TMESH_KEPT_OWN, PyBytes_AsString(path),
					      &region, &file, &err));
	Py_DECREF(path);
	if (rc)
		return raise_error(st, &err);
	layout.shape[0] = (int64_t)file.bytes;
	layout.offset = file.offset;
	rc = tmesh_tensor_wrap(region, &layout, &tensor, &err);
	tmesh_region_unref(region);
	return rc ? raise_error(st, &err) : tensor_new(st, tensor, NULL, TMESH_READ);
}
