// SPDX-License-Identifier: MIT
/* Descriptions of regions and their contents, for people and for programs. */
#include "tmeshctl.h"

static json_t *json_list(const int64_t *numbers, int32_t count)
{
	json_t *list = json_array();

	for (int32_t i = 0; i < count; i++)
		json_array_append_new(list, json_integer(numbers[i]));
	return list;
}

/* Return the tensor that the library described; null for any other description. */
static json_t *tensor_json(const char *description)
{
	struct tmesh_ref ref;

	if (tmesh_ref_decode(description, strlen(description), &ref, NULL))
		return json_null();
	return json_pack("{s:s, s:o, s:o, s:I, s:I}", "dtype", tmesh_dtype_name(ref.layout.dtype),
			 "shape", json_list(ref.layout.shape, ref.layout.ndim), "strides",
			 json_list(ref.layout.strides, ref.layout.ndim), "offset",
			 (json_int_t)ref.layout.offset, "byte_size", (json_int_t)ref.byte_size);
}

const char *info_state(const struct tmesh_region_info *info)
{
	if (info->revoked)
		return "revoked";
	if (info->poisoned)
		return "poisoned";
	if (info->kept)
		return "kept";
	return info->sealed ? "sealed" : "open";
}

json_t *info_json(const struct tmesh_region_info *info)
{
	json_t *value = json_object();

	json_object_set_new(value, "id", json_id(info->id));
	json_object_set_new(value, "backend", json_string(tmesh_backend_name(info->backend)));
	json_object_set_new(value, "label", json_text(info->label));
	json_object_set_new(value, "bytes", json_integer((json_int_t)info->bytes));
	json_object_set_new(value, "alloc_bytes", json_integer((json_int_t)info->alloc_bytes));
	json_object_set_new(value, "huge_bytes", json_integer((json_int_t)info->huge_bytes));
	json_object_set_new(value, "sealed", json_boolean(info->sealed));
	json_object_set_new(value, "revoked", json_boolean(info->revoked));
	json_object_set_new(value, "poisoned", json_boolean(info->poisoned));
	json_object_set_new(value, "kept", json_boolean(info->kept));
	json_object_set_new(value, "uid", json_integer(info->uid));
	json_object_set_new(value, "gid", json_integer(info->gid));
	json_object_set_new(value, "mode", json_integer(info->mode));
	json_object_set_new(value, "node", info->node < 0 ? json_null() : json_integer(info->node));
	json_object_set_new(value, "handles", json_integer(info->handles));
	json_object_set_new(value, "pinning_handles", json_integer(info->pinning_handles));
	json_object_set_new(value, "exports", json_integer(info->exports));
	json_object_set_new(value, "attachments", json_integer(info->attachments));
	json_object_set_new(value, "hold_ms", json_integer(info->hold_ms));
	json_object_set_new(value, "created_ns", json_integer((json_int_t)info->created_ns));
	json_object_set_new(value, "backing", json_string(tmesh_backing_name(info->backing)));
	json_object_set_new(value, "views", json_integer(info->views));
	json_object_set_new(value, "pinned_bytes", json_integer((json_int_t)info->pinned_bytes));
	json_object_set_new(value, "fence_value", json_integer((json_int_t)info->fence_value));
	json_object_set_new(value, "fence",
			    json_string(info->fence_dead       ? "dead"
					: info->fence_producer ? "producer"
							       : "idle"));
	json_object_set_new(value, "cgroup_id", json_integer((json_int_t)info->cgroup_id));
	json_object_set_new(value, "tensor", tensor_json(info->description));
	json_object_set_new(value, "description", json_text(info->description));
	return value;
}

char *contents_text(const char *description)
{
	json_int_t tensors = bundle_tensors(description);
	const struct tmesh_layout *layout;
	struct tmesh_ref ref;
	char *text = NULL;
	size_t bytes;
	FILE *to;

	if (tensors >= 0) {
		if (asprintf(&text, "bundle of %lld tensor%s", (long long)tensors,
			     tensors == 1 ? "" : "s") < 0)
			abort();
		return text;
	}
	if (tmesh_ref_decode(description, strlen(description), &ref, NULL))
		return strdup(description);
	layout = &ref.layout;
	to = open_memstream(&text, &bytes);
	if (!to)
		abort();
	fprintf(to, "%s [", tmesh_dtype_name(layout->dtype));
	for (int32_t i = 0; i < layout->ndim; i++)
		fprintf(to, "%s%" PRId64, i ? ", " : "", layout->shape[i]);
	fputc(']', to);
	fclose(to);
	return text;
}
