// SPDX-License-Identifier: MIT
/*
 * The header of a safetensors file. The rules are those of "Format" in the README of
 * https://github.com/huggingface/safetensors:
 *
 *  u64 little-endian N <= 100,000,000; N bytes of JSON that begin with '{'; then the tensors'
 *  bytes, each of which belongs to exactly one tensor. Offsets count from the first byte after
 *  the JSON.
 *
 * This reader also refuses duplicate keys, members that the format does not know, and names with a
 * zero in them, which the reference accepts. docs/reference/models.md lists all differences.
 */
#include "model_internal.h"

#include <string.h>

#define TENSOR_WORK 128

/* Look for a negative number, which no header has; the JSON reader takes "-0" for 0. */
static bool has_minus(const uint8_t *text, size_t bytes)
{
	bool inside = false;

	for (size_t i = 0; i < bytes; i++) {
		if (inside && text[i] == '\\')
			i++;
		else if (text[i] == '"')
			inside = !inside;
		else if (!inside && text[i] == '-')
			return true;
	}
	return false;
}

static int read_shape(struct table_tensor *tensor, const json_t *shape, const char *quoted,
		      struct tmesh_error *err)
{
	size_t ndim = json_array_size(shape);

	if (!json_is_array(shape))
		return tmesh_fail(err, -EPROTO, "the tensor \"%s\" has no shape", quoted);
	if (ndim > TMESH_MAX_DIMS)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the tensor \"%s\" has %zu dimensions; %d are the most", quoted,
				  ndim, TMESH_MAX_DIMS);
	tensor->ndim = (int32_t)ndim;
	for (size_t i = 0; i < ndim; i++) {
		const json_t *dim = json_array_get(shape, i);

		if (!json_is_integer(dim) || json_integer_value(dim) < 0)
			return tmesh_fail(err, -EPROTO,
					  "dimension %zu of the tensor \"%s\" is not a number >= 0",
					  i, quoted);
		tensor->shape[i] = json_integer_value(dim);
	}
	return 0;
}

int safetensors_tensor_bytes(struct table_tensor *tensor, struct tmesh_error *err)
{
	char quoted[MODEL_QUOTE];
	bool even;

	if (!model_type_bytes(tensor->type, tensor->ndim, tensor->shape, &tensor->bytes, &even))
		return tmesh_fail(err, -EPROTO, "the size of the tensor \"%s\" overflows",
				  model_quote(quoted, tensor->name));
	/* A type of less than a byte must fill whole bytes, not whole groups of them. */
	if (!even) {
		uint64_t count = 1, bits = tensor->type->block_bytes * 8u;

		for (int32_t i = 0; i < tensor->ndim; i++)
			count *= (uint64_t)tensor->shape[i];
		bits /= tensor->type->block_elements;
		if (count % tensor->type->block_elements * bits % 8)
			return tmesh_fail(
				err, -EPROTO,
				"the elements of the tensor \"%s\" do not fill whole bytes",
				model_quote(quoted, tensor->name));
		tensor->bytes += count % tensor->type->block_elements * bits / 8;
	}
	return 0;
}

static int read_tensor(struct table_tensor *tensor, const char *name, const json_t *value,
		       struct tmesh_error *err)
{
	const json_t *dtype = json_object_get(value, "dtype");
	const json_t *offsets = json_object_get(value, "data_offsets");
	const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
	char quoted[MODEL_QUOTE], word[MODEL_QUOTE];
	int rc;

	model_quote(quoted, name);
	tensor->name = name;
	if (!json_is_object(value))
		return tmesh_fail(err, -EPROTO, "the tensor \"%s\" is not described by an object",
				  quoted);
	if (!json_is_string(dtype))
		return tmesh_fail(err, -EPROTO, "the tensor \"%s\" has no dtype", quoted);
	tensor->type = model_type_safetensors(json_string_value(dtype));
	if (!tensor->type || strlen(tensor->type->name) != json_string_length(dtype))
		return tmesh_fail(err, -EPROTO, "the tensor \"%s\" has the unknown dtype \"%s\"",
				  quoted, model_quote(word, json_string_value(dtype)));
	rc = read_shape(tensor, json_object_get(value, "shape"), quoted, err);
	if (rc)
		return rc;
	if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !json_is_integer(begin) ||
	    !json_is_integer(end) || json_integer_value(begin) < 0 ||
	    json_integer_value(end) < json_integer_value(begin))
		return tmesh_fail(
			err, -EPROTO,
			"data_offsets of the tensor \"%s\" are not two numbers, the end not "
			"before the begin",
			quoted);
	if (json_object_size(value) != 3)
		return tmesh_fail(
			err, -EPROTO,
			"the tensor \"%s\" has members beside dtype, shape and data_offsets",
			quoted);
	rc = safetensors_tensor_bytes(tensor, err);
	if (rc)
		return rc;
	tensor->file_offset = (uint64_t)json_integer_value(begin);
	if ((uint64_t)json_integer_value(end) - tensor->file_offset != tensor->bytes)
		return tmesh_fail(
			err, -EPROTO,
			"the tensor \"%s\" needs %llu bytes by dtype and shape, its "
			"data_offsets have %llu",
			quoted, (unsigned long long)tensor->bytes,
			(unsigned long long)(json_integer_value(end) - json_integer_value(begin)));
	return 0;
}

static int read_metadata(struct table *table, const json_t *metadata, struct tmesh_error *err)
{
	const char *key;
	const json_t *value;

	if (!json_is_object(metadata))
		return tmesh_fail(err, -EPROTO, "__metadata__ is not an object");
	table->values = calloc(json_object_size(metadata) + 1, sizeof(*table->values));
	if (!table->values)
		return tmesh_fail(err, -ENOMEM, "no memory for the metadata");
	json_object_foreach((json_t *)metadata, key, value) {
		char quoted[MODEL_QUOTE];

		if (!json_is_string(value))
			return tmesh_fail(err, -EPROTO, "\"%s\" in __metadata__ is not a string",
					  model_quote(quoted, key));
		table->values[table->value_count++] = (struct table_value){
			.key = key,
			.type = TMESH_MODEL_STRING,
			.count = 1,
			.data = (const uint8_t *)json_string_value(value),
			.bytes = json_string_length(value),
		};
	}
	return 0;
}

static int by_offset(const void *left, const void *right)
{
	const struct table_tensor *a = left, *b = right;

	if (a->file_offset != b->file_offset)
		return a->file_offset < b->file_offset ? -1 : 1;
	if (a->bytes != b->bytes)
		return a->bytes < b->bytes ? -1 : 1;
	/* Both empty, or overlapping, which is refused. */
	return strcmp(a->name, b->name);
}

/* Check that each tensor begins where the one before it ends: every byte belongs to one tensor. */
int safetensors_check_offsets(struct table *table, uint64_t data_bytes, struct tmesh_error *err)
{
	uint64_t at = 0;

	qsort(table->tensors, table->tensor_count, sizeof(*table->tensors), by_offset);
	for (size_t i = 0; i < table->tensor_count; i++) {
		struct table_tensor *tensor = &table->tensors[i];
		char quoted[MODEL_QUOTE];
		int rc = model_check_begin(tensor, at, err);

		if (rc)
			return rc;
		if (__builtin_add_overflow(at, tensor->bytes, &at) || at > data_bytes)
			return tmesh_fail(err, -EPROTO,
					  "the tensor \"%s\" ends beyond the end of the file",
					  model_quote(quoted, tensor->name));
		tensor->file_offset += table->header_bytes;
	}
	if (at == data_bytes)
		return 0;
	if (!table->lenient)
		return tmesh_fail(err, -EPROTO,
				  "the file has %llu bytes that belong to no tensor at its end",
				  (unsigned long long)(data_bytes - at));
	table->lapses |= LAPSE_BEHIND;
	return 0;
}

static uint64_t le64(const uint8_t *at)
{
	uint64_t value = 0;

	for (int i = 7; i >= 0; i--)
		value = value << 8 | at[i];
	return value;
}

uint64_t safetensors_header_bytes(const uint8_t *data, size_t bytes)
{
	uint64_t length = bytes < 8 || !memcmp(data, "GGUF", 4) ? 0 : le64(data);

	return length && length <= MODEL_SAFETENSORS_HEADER_MAX ? 8 + length : 0;
}

/* Name the format of a file that is no safetensors file, by its first bytes. */
static const char *what_else(const uint8_t *data)
{
	static const struct {
		const char *begins;
		size_t bytes;
		const char *what;
	} kinds[] = {
		{"version ", 8, "as a pointer of Git LFS: fetch the file itself (git lfs pull)"},
		{"PK\3\4", 4,
		 "as a ZIP file, which torch.save() and numpy.savez() write: save the tensors "
		 "anew"},
		{"\x80\2", 2, "as a pickle, which old PyTorch wrote: save the tensors anew"},
		{"\x93NUMPY", 6, "as a file of numpy.save(): save the tensors anew"},
		{"\x89HDF", 4, "as an HDF5 file: save the tensors anew"},
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!memcmp(data, kinds[i].begins, kinds[i].bytes))
			return kinds[i].what;
	return NULL;
}

int table_parse_safetensors(struct table *table, struct opening *opening, const uint8_t *data,
			    size_t bytes, uint64_t file_bytes, uint64_t *need,
			    struct tmesh_error *err)
{
	uint64_t length;
	const char *name;
	const json_t *value;
	int rc;

	table->format = TMESH_MODEL_SAFETENSORS;
	if (file_bytes < 8)
		return tmesh_fail(err, -EPROTO, "the file has %llu bytes; a header has at least 8",
				  (unsigned long long)file_bytes);
	*need = 8;
	if (bytes < 8)
		return -EAGAIN;
	length = le64(data);
	if (length > MODEL_SAFETENSORS_HEADER_MAX && what_else(data))
		return tmesh_fail(err, -EPROTO,
				  "this is neither a safetensors nor a GGUF file: it begins %s",
				  what_else(data));
	if (length > MODEL_SAFETENSORS_HEADER_MAX)
		return tmesh_fail(err, -EPROTO,
				  "the header has %llu bytes, by what its first 8 say; %u are the "
				  "most: this is neither a safetensors nor a GGUF file",
				  (unsigned long long)length, MODEL_SAFETENSORS_HEADER_MAX);
	if (length > file_bytes - 8)
		return tmesh_fail(err, -EPROTO,
				  "the header has %llu bytes, the file only %llu after its first 8",
				  (unsigned long long)length, (unsigned long long)(file_bytes - 8));
	*need = table->header_bytes = 8 + length;
	if (bytes < *need)
		return -EAGAIN;
	if (!length || data[8] != '{')
		return tmesh_fail(err, -EPROTO, "the header does not begin with '{'");
	if (has_minus(data + 8, length))
		return tmesh_fail(err, -EPROTO, "the header has a negative number");
	/* Values may have zeros in them. Names may not: the reader refuses such keys. */
	table->root = opening_json(opening, (const char *)data + 8, length, "the header", 8, err);
	if (!table->root)
		return opening->cancelled ? -ECANCELED : -EPROTO;
	table->tensors = calloc(json_object_size(table->root) + 1, sizeof(*table->tensors));
	if (!table->tensors)
		return tmesh_fail(err, -ENOMEM, "no memory for the tensors' table");
	json_object_foreach(table->root, name, value) {
		if (!strcmp(name, "__metadata__"))
			rc = read_metadata(table, value, err);
		else
			rc = read_tensor(&table->tensors[table->tensor_count++], name, value, err);
		if (!rc)
			rc = opening_go_on(opening, TENSOR_WORK, err);
		if (rc)
			return rc;
	}
	return safetensors_check_offsets(table, file_bytes - table->header_bytes, err);
}
