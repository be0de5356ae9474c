/* SPDX-License-Identifier: MIT */
/* Kept regions: memory under a name, which outlives every process. */
#include "binding.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tmesh/keep.h>

/* NULL with an exception; the library says what else a name must be. */
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

/* The region of a tensor that has nothing else in it, with a reference. */
static struct tmesh_region *region_of_whole(struct state *st, PyObject *object)
{
	struct tmesh_tensor *tensor = tensor_get((struct tensor *)object);

	if (tensor && tensor_is_whole(tensor))
		return tmesh_region_ref(tmesh_tensor_region(tensor));
	return tensor ? raise_code(
				st, EINVAL,
				"a region is kept as its maker described it, and this is a part or "
				"another view of one: keep the whole, or a bundle of it, as in "
				"tmesh.keep({\"x\": t}, name)")
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

/* As its maker described it. */
static bool is_index(struct tmesh_region *region)
{
	struct tmesh_region_info info = {.size = sizeof(info)};

	return !tmesh_region_info(region, &info, NULL) &&
	       strstr(info.description, "\"kind\":\"bundle\"");
}

/* Of libtmesh-cuda's, as it describes them. */
static bool is_gpu_memory(struct tmesh_region *region)
{
	struct tmesh_region_info info = {.size = sizeof(info)};

	return !tmesh_region_info(region, &info, NULL) && info.backing == TMESH_BACKED_BY_OPAQUE &&
	       strstr(info.description, ",\"cuda\":{");
}

/* All of them as Tensors. Takes over their references. */
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
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_kept_open(ctx, name, uid, TMESH_READ, &regions, &count, &err);
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(st, &err);
	if (is_gpu_memory(regions[0])) {
		result = raise_code(st, EOPNOTSUPP,
				    "what is kept as \"%s\" is GPU memory: tmesh.cuda.open_kept "
				    "opens it",
				    name);
		while (count)
			tmesh_region_unref(regions[--count]);
	} else {
		result = is_index(regions[0]) ? held_of_regions(st, ctx, regions, count)
					      : tensors_of(st, regions, count);
	}
	free(regions);
	return result;
}

/* The region kept under a name, of so many bytes; NULL where there is none such. Without the GIL.
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

/* What an offer says of one region: under which name its bytes are kept here, and how many there
 * are. False: it is no offer. */
static bool shard_name(struct state *st, PyObject *shard, char name[SHARD_NAME],
		       unsigned long long *bytes)
{
	bool dict = PyDict_Check(shard);
	PyObject *sum = dict ? PyDict_GetItem(shard, st->keys[OFFER_CHECKSUM]) : NULL;
	PyObject *count = sum ? PyDict_GetItem(shard, st->keys[OFFER_REGION_BYTES]) : NULL;
	const char *text;
	Py_ssize_t length;

	if (!count || !PyUnicode_Check(sum) || !PyLong_CheckExact(count))
		return false;
	text = PyUnicode_AsUTF8AndSize(sum, &length);
	*bytes = text ? PyLong_AsUnsignedLongLong(count) : 0;
	if (PyErr_Occurred()) {
		PyErr_Clear();
		return false;
	}
	if (length != 32 || strspn(text, "0123456789abcdef") != 32)
		return false;
	memcpy(stpcpy(name, "net-"), text, SHARD_NAME - 4);
	return true;
}

/* All of an offer's regions or none. Return: how many; 0: it is no offer, or not all are here. */
static Py_ssize_t fetched_regions(struct state *st, struct tmesh_ctx *ctx, PyObject *shards,
				  struct tmesh_region **regions)
{
	Py_ssize_t opened = 0, count = PyList_Check(shards) ? PyList_Size(shards) : 1;
	bool good = count > 0 && count <= 1 + TMESH_KEPT_MAX_REGIONS;

	while (good && opened < count) {
		PyObject *shard = PyList_Check(shards) ? PyList_GetItem(shards, opened) : shards;
		struct tmesh_region *region = NULL;
		char name[SHARD_NAME];
		unsigned long long bytes;

		good = shard && shard_name(st, shard, name, &bytes);
		if (good) {
			Py_BEGIN_ALLOW_THREADS;
			region = fetched_region(ctx, name, bytes);
			Py_END_ALLOW_THREADS;
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
	shards = bundle ? PyDict_GetItemString(offer, "shards") : offer;
	count = shards ? fetched_regions(st, ctx, shards, regions) : 0;
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

/* A time that there may not be. */
static PyObject *time_or_none(uint64_t ns)
{
	if (!ns)
		Py_RETURN_NONE;
	return PyLong_FromUnsignedLongLong(ns);
}

static PyObject *dict_from_kept(const void *item)
{
	const struct tmesh_kept_info *info = item;

	/* clang-format off */
	return Py_BuildValue("{s:N,s:N,s:s,s:I,s:I,s:K,s:N,s:N,s:N,s:I,s:I,s:I,s:I,s:K}",
			     "name", foreign_text(info->name, sizeof(info->name)),
			     "id", text_from_id(info->id),
			     "backend", tmesh_backend_name(info->backend),
			     "regions", info->count,
			     "held", info->held,
			     "bytes", (unsigned long long)info->bytes,
			     "kept_ns", time_or_none(info->kept_ns),
			     "used_ns", time_or_none(info->used_ns),
			     "expires_ns", time_or_none(info->expires_ns),
			     "uid", (unsigned int)info->uid,
			     "gid", (unsigned int)info->gid,
			     "mode", info->mode,
			     "handles", info->handles,
			     "cgroup_id", (unsigned long long)info->cgroup_id);
	/* clang-format on */
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
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_kept_list(ctx, &infos, &count, &err);
	Py_END_ALLOW_THREADS;
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
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_kept_drop(ctx, name, &err);
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(st, &err);
	Py_RETURN_NONE;
}
