// SPDX-License-Identifier: MIT
/*
 * The index of a sharded safetensors model, model.safetensors.index.json: which file has which
 * tensor. https://huggingface.co/docs/hub/safetensors and the loaders of transformers are its
 * definition. Files are names in the index's own folder, never paths.
 */
#include "model_internal.h"

#include <string.h>

#define INDEX_MAX ((size_t)64 << 20)

static int by_name(const void *left, const void *right)
{
	return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static bool is_file_name(const json_t *value)
{
	const char *name = json_string_value(value);

	return name && *name && strlen(name) == json_string_length(value) && !strchr(name, '/') &&
	       strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strlen(name) <= 255;
}

int shard_index_parse(struct opening *opening, const char *text, size_t bytes,
		      struct shard_index *index, struct tmesh_error *err)
{
	char quoted[MODEL_QUOTE];
	const char *name;
	json_t *value;
	size_t count = 0;

	memset(index, 0, sizeof(*index));
	if (bytes > INDEX_MAX)
		return tmesh_fail(err, -EPROTO, "the index has %zu bytes; %zu are the most", bytes,
				  INDEX_MAX);
	index->root = opening_json(opening, text, bytes, "the index", 0, err);
	if (!index->root)
		return opening->cancelled ? -ECANCELED : -EPROTO;
	index->map = json_object_get(index->root, "weight_map");
	if (!json_is_object(index->map) || !json_object_size(index->map))
		return tmesh_fail(err, -EPROTO, "the index has no weight_map with names and files");
	index->files = calloc(json_object_size(index->map), sizeof(*index->files));
	if (!index->files)
		return tmesh_fail(err, -ENOMEM, "no memory for the index");
	json_object_foreach(index->map, name, value) {
		if (!is_file_name(value))
			return tmesh_fail(
				err, -EPROTO,
				"the index puts \"%s\" into what is not the name of a file in the "
				"same folder",
				model_quote(quoted, name));
		index->files[count++] = json_string_value(value);
	}
	qsort(index->files, count, sizeof(*index->files), by_name);
	for (size_t i = 0; i < count; i++) {
		if (!i || strcmp(index->files[i], index->files[i - 1]))
			index->files[index->file_count++] = index->files[i];
	}
	return 0;
}

void shard_index_free(struct shard_index *index)
{
	free(index->files);
	json_decref(index->root);
	memset(index, 0, sizeof(*index));
}
