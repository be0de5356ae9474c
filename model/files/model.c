// SPDX-License-Identifier: MIT
/* A model: the tables of its files as one, and what callers ask of it. */
#include "model_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *tmesh_model_format_name(enum tmesh_model_format format)
{
	return format == TMESH_MODEL_SAFETENSORS ? "safetensors"
	       : format == TMESH_MODEL_GGUF	 ? "gguf"
						 : NULL;
}

struct tmesh_model *model_new(size_t files)
{
	struct tmesh_model *model = calloc(1, sizeof(*model));

	if (!model)
		return NULL;
	model->files = calloc(files ? files : 1, sizeof(*model->files));
	if (!model->files) {
		free(model);
		return NULL;
	}
	atomic_init(&model->refs, 1);
	model->file_count = files;
	for (size_t i = 0; i < files; i++)
		model->files[i].fd = -1;
	return model;
}

void model_close_files(struct tmesh_model *model)
{
	for (size_t i = 0; i < model->file_count; i++) {
		if (model->files[i].fd >= 0)
			close(model->files[i].fd);
		model->files[i].fd = -1;
	}
}

struct tmesh_model *tmesh_model_ref(struct tmesh_model *model)
{
	atomic_fetch_add_explicit(&model->refs, 1, memory_order_relaxed);
	return model;
}

void tmesh_model_unref(struct tmesh_model *model)
{
	if (!model || atomic_fetch_sub_explicit(&model->refs, 1, memory_order_acq_rel) > 1)
		return;
	shared_load_leave(model->shared);
	tmesh_region_unref(model->region);
	free(model->runs);
	model_close_files(model);
	for (size_t i = 0; i < model->file_count; i++) {
		tmesh_region_unref(model->files[i].region);
		table_free(model->files[i].table);
		free(model->files[i].path);
	}
	free(model->files);
	free(model->entries);
	free(model->sorted);
	free(model->values);
	free(model);
}

static int by_name(const void *left, const void *right, void *data)
{
	const struct model_entry *entries = data;
	const uint32_t *a = left, *b = right;

	return strcmp(entries[*a].tensor->name, entries[*b].tensor->name);
}

/* A value, and its place in the order of the files. */
struct keyed {
	const struct table_value *value;
	size_t at;
};

static int by_key(const void *left, const void *right)
{
	const struct keyed *a = left, *b = right;
	int order = strcmp(a->value->key, b->value->key);

	return order ? order : (a->at > b->at) - (a->at < b->at);
}

/* Keep the first value of each key, in the order of the files. */
static int drop_repeated(struct tmesh_model *model, struct tmesh_error *err)
{
	size_t count = model->value_count, kept = 0;
	struct keyed *sorted = calloc(count + 1, sizeof(*sorted));

	if (!sorted)
		return tmesh_fail(err, -ENOMEM, "no memory for the metadata");
	for (size_t i = 0; i < count; i++)
		sorted[i] = (struct keyed){model->values[i], i};
	qsort(sorted, count, sizeof(*sorted), by_key);
	for (size_t i = 1; i < count; i++)
		if (!strcmp(sorted[i].value->key, sorted[i - 1].value->key))
			model->values[sorted[i].at] = NULL;
	for (size_t i = 0; i < count; i++)
		if (model->values[i])
			model->values[kept++] = model->values[i];
	model->value_count = kept;
	free(sorted);
	return 0;
}

/* Join the files' metadata. For GGUF, a split model's first file has it. For safetensors, all files
 * may have some. */
static int join_values(struct tmesh_model *model, struct tmesh_error *err)
{
	size_t files = model->format == TMESH_MODEL_GGUF ? 1 : model->file_count;
	size_t count = 0;

	for (size_t i = 0; i < files; i++)
		count += model->files[i].table->value_count;
	model->values = calloc(count + 1, sizeof(struct table_value *));
	if (!model->values)
		return tmesh_fail(err, -ENOMEM, "no memory for the metadata");
	for (size_t i = 0; i < files; i++) {
		const struct table *table = model->files[i].table;

		for (size_t k = 0; k < table->value_count; k++)
			model->values[model->value_count++] = &table->values[k];
	}
	return files > 1 ? drop_repeated(model, err) : 0;
}

int model_too_many(uint64_t tensors, struct tmesh_error *err)
{
	return tmesh_fail(err, -EOPNOTSUPP, "the model has %llu tensors; %u are the most",
			  (unsigned long long)tensors, TMESH_BUNDLE_MAX_TENSORS);
}

int model_join(struct tmesh_model *model, struct tmesh_error *err)
{
	size_t count = 0;

	model->format = model->files[0].table->format;
	for (size_t i = 0; i < model->file_count; i++)
		count += model->files[i].table->tensor_count;
	if (count > TMESH_BUNDLE_MAX_TENSORS)
		return model_too_many(count, err);
	model->entries = calloc(count + 1, sizeof(*model->entries));
	model->sorted = calloc(count + 1, sizeof(*model->sorted));
	if (!model->entries || !model->sorted)
		return tmesh_fail(err, -ENOMEM, "no memory for the tensors' table");
	for (size_t i = 0; i < model->file_count; i++) {
		const struct table *table = model->files[i].table;

		for (size_t k = 0; k < table->tensor_count; k++) {
			model->sorted[model->entry_count] = (uint32_t)model->entry_count;
			model->entries[model->entry_count++] =
				(struct model_entry){&table->tensors[k], (uint32_t)i, 0};
		}
	}
	qsort_r(model->sorted, count, sizeof(*model->sorted), by_name, model->entries);
	for (size_t i = 1; i < count; i++) {
		const struct model_entry *one = &model->entries[model->sorted[i - 1]];
		const struct model_entry *two = &model->entries[model->sorted[i]];
		char quoted[MODEL_QUOTE], first[MODEL_QUOTE], second[MODEL_QUOTE];

		if (!strcmp(one->tensor->name, two->tensor->name))
			return tmesh_fail(err, -EPROTO, "the tensor \"%s\" is in %s and in %s",
					  model_quote(quoted, one->tensor->name),
					  model_quote(first, model->files[one->file].name),
					  model_quote(second, model->files[two->file].name));
	}
	return join_values(model, err);
}

int tmesh_model_parse(const void *header, size_t bytes, uint64_t file_bytes,
		      struct tmesh_model **out, uint64_t *need, struct tmesh_error *err)
{
	struct tmesh_model *model;
	struct opening opening = {0};
	uint64_t wanted = 0;
	int rc = TMESH_NEED(err, out);

	if (!rc && bytes)
		rc = TMESH_NEED(err, header);
	if (rc)
		return rc;
	model = model_new(1);
	if (!model)
		return tmesh_fail(err, -ENOMEM, "no memory for the model");
	model->files[0].bytes = file_bytes;
	rc = table_parse(&opening, header, bytes, file_bytes, &model->files[0].table, &wanted, err);
	if (!rc)
		rc = model_join(model, err);
	if (rc) {
		tmesh_model_unref(model);
		if (rc != -EAGAIN)
			return rc;
		if (need)
			*need = wanted;
		return tmesh_fail(err, rc, "%llu bytes of the file are needed",
				  (unsigned long long)wanted);
	}
	*out = model;
	return 0;
}

enum tmesh_model_format tmesh_model_format(const struct tmesh_model *model)
{
	return model->format;
}

size_t tmesh_model_tensors(const struct tmesh_model *model)
{
	return model->entry_count;
}

int tmesh_model_tensor(const struct tmesh_model *model, size_t index,
		       struct tmesh_model_tensor *out, struct tmesh_error *err)
{
	struct tmesh_model_tensor info = {0};
	const struct table_tensor *tensor;

	if (TMESH_NEED(err, model, out))
		return -EINVAL;
	if (index >= model->entry_count)
		return tmesh_fail(err, -EINVAL,
				  "the model has %zu tensors, none with the number %zu",
				  model->entry_count, index);
	tensor = model->entries[index].tensor;
	info.name = tensor->name;
	info.type = tensor->type->name;
	info.dtype = tensor->type->dtype;
	info.ndim = tensor->ndim;
	memcpy(info.shape, tensor->shape, sizeof(info.shape));
	info.block_elements = tensor->type->block_elements;
	info.block_bytes = tensor->type->block_bytes;
	info.bytes = tensor->bytes;
	info.file = model->entries[index].file;
	info.file_offset = tensor->file_offset;
	return tmesh_write_sized(out, &info, sizeof(info), err);
}

int tmesh_model_find(const struct tmesh_model *model, const char *name, size_t *index,
		     struct tmesh_error *err)
{
	size_t low = 0, high;
	char quoted[MODEL_QUOTE];

	if (TMESH_NEED(err, model, name, index))
		return -EINVAL;
	high = model->entry_count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(model->entries[model->sorted[middle]].tensor->name, name);

		if (!order) {
			*index = model->sorted[middle];
			return 0;
		}
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return tmesh_fail(err, -ENOENT, "the model has no tensor \"%s\"",
			  model_quote(quoted, name));
}

size_t tmesh_model_files(const struct tmesh_model *model)
{
	return model->file_count;
}

const char *tmesh_model_file(const struct tmesh_model *model, size_t index, uint64_t *bytes)
{
	if (index >= model->file_count)
		return NULL;
	if (bytes)
		*bytes = model->files[index].bytes;
	return model->files[index].path ? model->files[index].path : "";
}

size_t tmesh_model_values(const struct tmesh_model *model)
{
	return model->value_count;
}

int tmesh_model_value(const struct tmesh_model *model, size_t index, struct tmesh_model_value *out,
		      struct tmesh_error *err)
{
	struct tmesh_model_value info = {0};
	const struct table_value *value;

	if (TMESH_NEED(err, model, out))
		return -EINVAL;
	if (index >= model->value_count)
		return tmesh_fail(err, -EINVAL,
				  "the model has %zu pieces of metadata, none with the number %zu",
				  model->value_count, index);
	value = model->values[index];
	info.key = value->key;
	info.type = (enum tmesh_model_type)value->type;
	info.item = (enum tmesh_model_type)value->item;
	info.count = value->count;
	info.data = value->data;
	info.bytes = value->bytes;
	return tmesh_write_sized(out, &info, sizeof(info), err);
}
