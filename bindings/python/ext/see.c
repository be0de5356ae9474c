/* SPDX-License-Identifier: MIT */
/* Seeing: counters, capabilities, regions and their holders, as plain dicts. */
#include "binding.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Steals @value. */
static int set(PyObject *dict, const char *name, PyObject *value)
{
	int rc = value ? PyDict_SetItemString(dict, name, value) : -1;

	Py_XDECREF(value);
	return rc;
}

PyObject *module_trim(PyObject *module, PyObject *unused)
{
	struct tmesh_ctx *ctx = context(PyModule_GetState(module));
	uint64_t bytes;

	if (!ctx)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	bytes = tmesh_ctx_trim(ctx);
	Py_END_ALLOW_THREADS;
	return PyLong_FromUnsignedLongLong(bytes);
}

PyObject *dict_from_stats(const struct tmesh_stats *stats)
{
	static const struct {
		const char *name;
		size_t offset;
	} counters[] = {
#define COUNTER(name) {#name, offsetof(struct tmesh_stats, name)}
		COUNTER(bytes_copied),	     COUNTER(copies),
		COUNTER(regions_created),    COUNTER(regions_opened),
		COUNTER(regions_live),	     COUNTER(bytes_live),
		COUNTER(pool_hits),	     COUNTER(pool_misses),
		COUNTER(pool_bytes),	     COUNTER(tokens_served),
		COUNTER(opens_without_wake), COUNTER(sent_alone),
#undef COUNTER
	};
	PyObject *dict = PyDict_New();

	for (size_t i = 0; dict && i < sizeof(counters) / sizeof(*counters); i++) {
		uint64_t value = *(const uint64_t *)((const char *)stats + counters[i].offset);

		if (set(dict, counters[i].name, PyLong_FromUnsignedLongLong(value)))
			Py_CLEAR(dict);
	}
	return dict;
}

PyObject *module_stats(PyObject *module, PyObject *unused)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct tmesh_ctx *ctx = context(st);
	int rc;

	if (!ctx)
		return NULL;
	rc = tmesh_stats(ctx, &stats);
	return rc ? raise_code(st, -rc, "the counters cannot be read") : dict_from_stats(&stats);
}

PyObject *module_caps(PyObject *module, PyObject *unused)
{
	static const char *const levels[] = {
		[TMESH_CAP_NO] = "no",
		[TMESH_CAP_COOPERATIVE] = "cooperative",
		[TMESH_CAP_ENFORCED] = "enforced",
	};
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	const struct tmesh_cap *caps;
	PyObject *list;
	size_t count;
	int rc;

	if (!ctx)
		return NULL;
	rc = tmesh_caps(ctx, &caps, &count);
	if (rc)
		return raise_code(st, -rc, "the capabilities cannot be read");
	list = PyList_New(0);
	for (size_t i = 0; list && i < count; i++) {
		PyObject *cap = Py_BuildValue("{ssssss}", "name", caps[i].name, "level",
					      levels[caps[i].level], "reason", caps[i].reason);

		if (!cap || PyList_Append(list, cap))
			Py_CLEAR(list);
		Py_XDECREF(cap);
	}
	return list;
}

PyObject *module_backend(PyObject *module, PyObject *unused)
{
	struct tmesh_ctx *ctx = context(PyModule_GetState(module));

	return ctx ? PyUnicode_FromString(tmesh_backend_name(tmesh_ctx_backend(ctx))) : NULL;
}

PyObject *foreign_text(const char *text, size_t size)
{
	return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strnlen(text, size), "replace");
}

/* What the library wrote of a tensor; None for anything else. */
static PyObject *tensor_of_text(const char *text, size_t size)
{
	struct tmesh_ref ref;

	if (tmesh_ref_decode(text, strnlen(text, size), &ref, NULL))
		Py_RETURN_NONE;
	return Py_BuildValue("{sssNsNsKsK}", "dtype", tmesh_dtype_name(ref.layout.dtype), "shape",
			     tuple_from_ints(ref.layout.shape, ref.layout.ndim), "strides",
			     tuple_from_ints(ref.layout.strides, ref.layout.ndim), "offset",
			     (unsigned long long)ref.layout.offset, "byte_size",
			     (unsigned long long)ref.byte_size);
}

static PyObject *number_or_none(uint64_t number, bool is_known)
{
	return is_known ? PyLong_FromUnsignedLongLong(number) : Py_NewRef(Py_None);
}

static const char *fence_text(const struct tmesh_region_info *info)
{
	return info->fence_dead ? "dead" : info->fence_producer ? "producer" : "idle";
}

/* By the names of docs/vocabulary.md. */
static PyObject *dict_from_info(const void *item)
{
	const struct tmesh_region_info *info = item;
	static const struct {
		const char *name;
		size_t offset;
		bool is_wide;
	} numbers[] = {
#define WIDE(name) {#name, offsetof(struct tmesh_region_info, name), true}
#define NARROW(name)                                                   \
	{                                                              \
#name, offsetof(struct tmesh_region_info, name), false \
	}
		WIDE(bytes),	  WIDE(alloc_bytes),   WIDE(huge_bytes),  NARROW(uid),
		NARROW(gid),	  NARROW(mode),	       NARROW(handles),	  NARROW(pinning_handles),
		NARROW(exports),  NARROW(attachments), NARROW(views),	  NARROW(linger_ms),
		WIDE(created_ns), WIDE(pinned_bytes),  WIDE(fence_value), WIDE(cgroup_id),
#undef WIDE
#undef NARROW
	};
	PyObject *dict = Py_BuildValue(
		"{sNssszsNsNsNsNsNsNsNsNss}", "id", text_from_id(info->id), "backend",
		tmesh_backend_name(info->backend), "backing", tmesh_backing_name(info->backing),
		"label", foreign_text(info->label, sizeof(info->label)), "description",
		foreign_text(info->description, sizeof(info->description)), "tensor",
		tensor_of_text(info->description, sizeof(info->description)), "sealed",
		PyBool_FromLong(info->sealed), "revoked", PyBool_FromLong(info->revoked),
		"poisoned", PyBool_FromLong(info->poisoned), "kept", PyBool_FromLong(info->kept),
		"node", number_or_none((uint64_t)info->node, info->node >= 0), "fence",
		fence_text(info));

	for (size_t i = 0; dict && i < sizeof(numbers) / sizeof(*numbers); i++) {
		const void *at = (const char *)info + numbers[i].offset;
		uint64_t number =
			numbers[i].is_wide ? *(const uint64_t *)at : *(const uint32_t *)at;

		if (set(dict, numbers[i].name, PyLong_FromUnsignedLongLong(number)))
			Py_CLEAR(dict);
	}
	return dict;
}

PyObject *module_regions(PyObject *module, PyObject *unused)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_region_info *infos;
	struct tmesh_error err;
	size_t count;
	int rc;

	if (!ctx)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_list(ctx, &infos, &count, &err);
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(st, &err);
	return list_of_items(infos, count, sizeof(*infos), dict_from_info);
}

static PyObject *rights_text(uint32_t rights)
{
	return PyUnicode_FromFormat("%s%s%s", rights & TMESH_READ ? "r" : "",
				    rights & TMESH_WRITE ? "w" : "",
				    rights & TMESH_MANAGE ? "m" : "");
}

static PyObject *dict_from_holder(const void *item)
{
	const struct tmesh_holder_info *holder = item;
	bool is_device = holder->kind == TMESH_HOLDER_IS_DEVICE;

	return Py_BuildValue(
		"{sssNsNsIsNsIsIsKsKsNsNsNsKsKsNsNsN}", "kind",
		tmesh_holder_kind_name(holder->kind), "pid",
		number_or_none((uint64_t)holder->pid, holder->pid > 0), "command",
		foreign_text(holder->command, sizeof(holder->command)), "uid", holder->uid,
		"rights", rights_text(holder->rights), "mappings", holder->mappings, "attachments",
		holder->attachments, "offset", (unsigned long long)holder->offset, "bytes",
		(unsigned long long)holder->bytes, "device",
		is_device ? foreign_text(holder->device, sizeof(holder->device))
			  : Py_NewRef(Py_None),
		"mapped", PyBool_FromLong(holder->mapped), "view",
		holder->view ? text_from_id(holder->view) : Py_NewRef(Py_None), "lease_ns",
		(unsigned long long)holder->lease_ns, "lease_left_ns",
		(unsigned long long)holder->lease_left_ns, "lapsed",
		PyBool_FromLong(holder->lapsed), "producer", PyBool_FromLong(holder->producer),
		"since_ns", number_or_none(holder->since_ns, holder->since_ns));
}

static PyObject *holders_of(struct state *st, struct tmesh_ctx *ctx, uint64_t id)
{
	struct tmesh_holder_info *holders;
	struct tmesh_error err;
	size_t count;
	int rc;

	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_holders(ctx, id, &holders, &count, &err);
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(st, &err);
	return list_of_items(holders, count, sizeof(*holders), dict_from_holder);
}

PyObject *module_holders(PyObject *module, PyObject *object)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	const char *text;
	uint64_t id;

	if (!ctx)
		return NULL;
	if (Py_TYPE(object) == st->tensor_type) {
		struct tmesh_tensor *tensor = tensor_get((struct tensor *)object);

		return tensor ? holders_of(st, ctx, tmesh_region_id(tmesh_tensor_region(tensor)))
			      : NULL;
	}
	if (!PyUnicode_Check(object))
		return PyErr_Format(PyExc_TypeError,
				    "holders() takes a Tensor or a region's id, a str of 16 hex "
				    "digits; not %R",
				    object);
	text = PyUnicode_AsUTF8AndSize(object, NULL);
	if (!text)
		return NULL;
	if (id_from_text(text, &id))
		return raise_code(st, EINVAL, "a region's id is 16 hex digits, not %R", object);
	return holders_of(st, ctx, id);
}
