/* SPDX-License-Identifier: MIT */
/* Inspection: counters, capabilities, regions and their holders, as plain dicts. */
#include "binding.h"

#include "common/shown.h"

/* Set an entry. Steal the reference to @value. */
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
	WITHOUT_GIL(bytes = tmesh_ctx_trim(ctx));
	return PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *value_of(const struct shown *member, const void *of)
{
	const char *at = (const char *)of + member->offset;
	uint64_t wide = member->size == sizeof(wide) ? *(const uint64_t *)at : 0;

	switch (member->kind) {
	case SHOWN_U64:
		return PyLong_FromUnsignedLongLong(wide);
	case SHOWN_U64_OR_NONE:
		return wide ? PyLong_FromUnsignedLongLong(wide) : Py_NewRef(Py_None);
	case SHOWN_U32:
		return PyLong_FromUnsignedLong(*(const uint32_t *)at);
	case SHOWN_BOOL:
		return PyBool_FromLong(*(const bool *)at);
	case SHOWN_ID:
		return text_from_id(wide);
	case SHOWN_TEXT_OR_NONE:
		if (!*at)
			return Py_NewRef(Py_None);
		break;
	case SHOWN_TEXT:
		break;
	}
	return foreign_text(at, member->size);
}

PyObject *dict_show(PyObject *dict, const struct shown *members, size_t count, const void *of)
{
	for (size_t i = 0; dict && i < count; i++)
		if (set(dict, members[i].name, value_of(&members[i], of)))
			Py_CLEAR(dict);
	return dict;
}

PyObject *dict_from_stats(const struct tmesh_stats *stats)
{
	return DICT_SHOW(PyDict_New(), shown_stats, stats);
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
	for (size_t i = 0; list && i < count; i++)
		list_add(&list, Py_BuildValue("{ssssss}", "name", caps[i].name, "level",
					      levels[caps[i].level], "reason", caps[i].reason));
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

/* Parse the library's description of a tensor; None if it is none. */
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

/* Make a dict with the names of tests/vocabulary.md. */
static PyObject *dict_from_info(const void *item)
{
	const struct tmesh_region_info *info = item;

	return DICT_SHOW(Py_BuildValue("{sssssNsNss}", "backend", tmesh_backend_name(info->backend),
				       "backing", tmesh_backing_name(info->backing), "tensor",
				       tensor_of_text(info->description, sizeof(info->description)),
				       "node",
				       number_or_none((uint64_t)info->node, info->node >= 0),
				       "fence", fence_text(info)),
			 shown_region_info, info);
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
	WITHOUT_GIL(rc = tmesh_list(ctx, &infos, &count, &err));
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

	return DICT_SHOW(
		Py_BuildValue("{sssNsNsNsN}", "kind", tmesh_holder_kind_name(holder->kind), "pid",
			      number_or_none((uint64_t)holder->pid, holder->pid > 0), "rights",
			      rights_text(holder->rights), "device",
			      is_device ? foreign_text(holder->device, sizeof(holder->device))
					: Py_NewRef(Py_None),
			      "view",
			      holder->view ? text_from_id(holder->view) : Py_NewRef(Py_None)),
		shown_holder_info, holder);
}

static PyObject *holders_of(struct state *st, struct tmesh_ctx *ctx, uint64_t id)
{
	struct tmesh_holder_info *holders;
	struct tmesh_error err;
	size_t count;
	int rc;

	/* The library takes 0 for the holders of all regions. */
	if (!id)
		return raise_code(st, ENOENT, "no region has the id 0");
	WITHOUT_GIL(rc = tmesh_holders(ctx, id, &holders, &count, &err));
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
