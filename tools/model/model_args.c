// SPDX-License-Identifier: MIT
/* Functions that tmeshctl-load and tmeshctl-model share. */
#include "model_args.h"

static json_t *tensor_json(const struct tmesh_model_tensor *tensor)
{
	json_t *shape = json_array(), *json;

	for (int32_t i = 0; i < tensor->ndim; i++)
		json_array_append_new(shape, json_integer(tensor->shape[i]));
	json = json_pack("{s:o, s:s, s:s?, s:o, s:I, s:i, s:I}", "name", json_text(tensor->name),
			 "type", tensor->type, "dtype", tmesh_dtype_name(tensor->dtype), "shape",
			 shape, "byte_size", (json_int_t)tensor->bytes, "file", (int)tensor->file,
			 "file_offset", (json_int_t)tensor->file_offset);
	if (tensor->dtype == TMESH_DTYPE_INVALID)
		json_object_set_new(
			json, "block",
			json_pack("[i, i]", (int)tensor->block_elements, (int)tensor->block_bytes));
	return json;
}

json_t *model_json(const struct tmesh_model *model)
{
	json_t *tensors = json_array(), *files = json_array(), *metadata = NULL;
	uint64_t total = 0, bytes;
	char *text;

	for (size_t i = 0; i < tmesh_model_files(model); i++) {
		const char *path = tmesh_model_file(model, i, &bytes);

		json_array_append_new(files, json_pack("{s:o, s:I}", "path", json_text(path),
						       "bytes", (json_int_t)bytes));
	}
	for (size_t i = 0; i < tmesh_model_tensors(model); i++) {
		struct tmesh_model_tensor tensor = {.size = sizeof(tensor)};

		if (tmesh_model_tensor(model, i, &tensor, NULL))
			continue;
		total += tensor.bytes;
		json_array_append_new(tensors, tensor_json(&tensor));
	}
	if (!tmesh_model_metadata_json(model, 0, &text, NULL)) {
		metadata = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
		free(text);
	}
	return json_pack("{s:s, s:o, s:I, s:o?, s:o}", "format",
			 tmesh_model_format_name(tmesh_model_format(model)), "files", files,
			 "byte_size", (json_int_t)total, "metadata", metadata, "tensors", tensors);
}
