// SPDX-License-Identifier: MIT
/* Choose the tensors' places in the region. */
#include "model_internal.h"

#include <string.h>

static bool align_up(uint64_t *value)
{
	if (__builtin_add_overflow(*value, (uint64_t)TMESH_ALIGN - 1, value))
		return false;
	*value &= ~(uint64_t)(TMESH_ALIGN - 1);
	return true;
}

int model_plan(struct tmesh_model *model, struct tmesh_error *err)
{
	struct model_run *run = NULL;
	uint64_t end = 0; /* of the region so far */

	model->runs = calloc(model->entry_count + 1, sizeof(*model->runs));
	if (!model->runs)
		return tmesh_fail(err, -ENOMEM, "no memory for the places of %zu tensors",
				  model->entry_count);
	for (size_t i = 0; i < model->entry_count; i++) {
		struct model_entry *entry = &model->entries[i];
		const struct table_tensor *tensor = entry->tensor;

		if (tensor->file_offset % TMESH_ALIGN)
			model->report.tensors_moved++;
		if (!align_up(&end))
			return tmesh_fail(err, -EOVERFLOW, "the model's size overflows");
		entry->offset = end;
		if (!tensor->bytes)
			continue;
		/* It follows the tensor before it as in the file. */
		if (run && run->file == entry->file &&
		    tensor->file_offset - run->file_offset == end - run->offset) {
			run->bytes = end - run->offset + tensor->bytes;
		} else {
			run = &model->runs[model->run_count++];
			*run = (struct model_run){entry->file, tensor->file_offset, end,
						  tensor->bytes, 0};
		}
		if (__builtin_add_overflow(end, tensor->bytes, &end))
			return tmesh_fail(err, -EOVERFLOW, "the model's size overflows");
	}
	for (size_t i = 0; i < model->run_count; i++) {
		model->runs[i].begin = model->run_bytes;
		model->run_bytes += model->runs[i].bytes;
	}
	model->region_bytes = end ? end : 1;
	return 0;
}
