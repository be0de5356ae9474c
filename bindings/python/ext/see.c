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

PyObject *module_stats(PyObject *module, PyObject *unused)
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
		COUNTER(opens_without_wake),
#undef COUNTER
	};
	struct state *st = PyModule_GetState(module);
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct tmesh_ctx *ctx = context(st);
	PyObject *dict;
	int rc;

	if (!ctx)
		return NULL;
	rc = tmesh_stats(ctx, &stats);
	if (rc)
		return raise_code(st, -rc, "the counters cannot be read");
	dict = PyDict_New();
	for (size_t i = 0; dict && i < sizeof(counters) / sizeof(*counters); i++) {
		uint64_t value = *(uint64_t *)((char *)&stats + counters[i].offset);

		if (set(dict, counters[i].name, PyLong_FromUnsignedLongLong(value)))
			Py_CLEAR(dict);
	}
	return dict;
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
	PyObject *dict;
	size_t count;
	int rc;

	if (!ctx)
		return NULL;
	rc = tmesh_caps(ctx, &caps, &count);
	if (rc)
		return raise_code(st, -rc, "the capabilities cannot be read");
	dict = PyDict_New();
	for (size_t i = 0; dict && i < count; i++)
		if (set(dict, caps[i].name,
			Py_BuildValue("{sssz}", "level", levels[caps[i].level], "reason",
				      caps[i].reason)))
			Py_CLEAR(dict);
	return dict;
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

static PyObject *dict_from_info(const struct tmesh_region_info *info)
{
	return Py_BuildValue(
		"{sNsKsKsKsssIsIsIsisNsNsIsIsIsIsNsN}", "id", text_from_id(info->id), "bytes",
		(unsigned long long)info->bytes, "alloc_bytes",
		(unsigned long long)info->alloc_bytes, "created_ns",
		(unsigned long long)info->created_ns, "backend", tmesh_backend_name(info->backend),
		"mode", info->mode, "uid", info->uid, "gid", info->gid, "node", info->node,
		"sealed", PyBool_FromLong(info->sealed), "revoked", PyBool_FromLong(info->revoked),
		"handles", info->handles, "pinning_handles", info->pinning_handles, "exports",
		info->exports, "attachments", info->attachments, "label",
		foreign_text(info->label, sizeof(info->label)), "desc",
		foreign_text(info->desc, sizeof(info->desc)));
}

PyObject *module_list(PyObject *module, PyObject *unused)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_region_info *infos;
	struct tmesh_error err;
	PyObject *list;
	size_t count;
	int rc;

	if (!ctx)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_list(ctx, &infos, &count, &err);
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(st, &err);
	list = PyList_New(0);
	for (size_t i = 0; list && i < count; i++) {
		PyObject *dict = dict_from_info(&infos[i]);

		if (!dict || PyList_Append(list, dict))
			Py_CLEAR(list);
		Py_XDECREF(dict);
	}
	free(infos);
	return list;
}

static PyObject *rights_text(uint32_t rights)
{
	return PyUnicode_FromFormat("%s%s%s", rights & TMESH_READ ? "r" : "",
				    rights & TMESH_WRITE ? "w" : "",
				    rights & TMESH_MANAGE ? "m" : "");
}

static PyObject *dict_from_holder(const struct tmesh_holder_info *holder)
{
	static const char *const kinds[] = {
		[TMESH_HOLDER_IS_HANDLE] = "handle", [TMESH_HOLDER_IS_PINNING] = "pinning",
		[TMESH_HOLDER_IS_EXPORT] = "export", [TMESH_HOLDER_IS_MAPPING] = "mapping",
		[TMESH_HOLDER_IS_GATHER] = "view",   [TMESH_HOLDER_IS_DEVICE] = "device",
	};

	return Py_BuildValue(
		"{sssisIsNsIsIsKsKsKsNsKsKsNsNsN}", "kind", kinds[holder->kind], "pid",
		(int)holder->pid, "uid", holder->uid, "rights", rights_text(holder->rights),
		"mappings", holder->mappings, "attachments", holder->attachments, "since_ns",
		(unsigned long long)holder->since_ns, "offset", (unsigned long long)holder->offset,
		"bytes", (unsigned long long)holder->bytes, "comm",
		foreign_text(holder->comm, sizeof(holder->comm)), "lease_ns",
		(unsigned long long)holder->lease_ns, "lease_left_ns",
		(unsigned long long)holder->lease_left_ns, "lapsed",
		PyBool_FromLong(holder->lapsed), "view",
		holder->view ? text_from_id(holder->view) : Py_NewRef(Py_None), "device",
		foreign_text(holder->device, sizeof(holder->device)));
}

PyObject *module_holders(PyObject *module, PyObject *object)
{
	struct state *st = PyModule_GetState(module);
	struct tmesh_ctx *ctx = context(st);
	struct tmesh_holder_info *holders;
	struct tmesh_error err;
	PyObject *list;
	const char *text;
	size_t count;
	uint64_t id;
	int rc;

	if (!ctx)
		return NULL;
	if (!PyUnicode_Check(object))
		return PyErr_Format(PyExc_TypeError, "a region's id is a str of 16 hex digits, not %R",
				    object);
	text = PyUnicode_AsUTF8AndSize(object, NULL);
	if (!text)
		return NULL;
	if (id_from_text(text, &id))
		return raise_code(st, EINVAL, "a region's id is 16 hex digits, not %R", object);
	Py_BEGIN_ALLOW_THREADS;
	rc = tmesh_holders(ctx, id, &holders, &count, &err);
	Py_END_ALLOW_THREADS;
	if (rc)
		return raise_error(st, &err);
	list = PyList_New(0);
	for (size_t i = 0; list && i < count; i++) {
		PyObject *dict = dict_from_holder(&holders[i]);

		if (!dict || PyList_Append(list, dict))
			Py_CLEAR(list);
		Py_XDECREF(dict);
	}
	free(holders);
	return list;
}
