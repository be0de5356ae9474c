// SPDX-License-Identifier: MIT
/*
 * A safetensors file's table as bytes, so that the next process need not read its JSON. Numbers are
 * the machine's own; nothing is believed that is not checked as if it came from the file itself.
 *
 *   struct head, struct packed[tensors], struct pair[values], strings, each with a zero at its end
 */
#include "model_internal.h"

#include <string.h>

#define MAGIC 0x316b6170746d746dull /* "mtmtpak1" */

struct head {
	uint64_t magic;
	uint64_t bytes;	  /* of all */
	uint64_t hash[2]; /* of the bytes after the head */
	uint32_t tensors, values;
};

_Static_assert(sizeof(struct head) == TABLE_PACK_HEAD, "the head's length");

struct packed {
	uint64_t name;	      /* where its string begins, from the first byte of all */
	uint64_t file_offset; /* in the data */
	int64_t shape[TMESH_MAX_DIMS];
	int32_t ndim;
	uint32_t type;
};

struct pair {
	uint64_t key, data; /* as a name */
	uint64_t bytes;
};

static uint64_t put_string(uint8_t *all, uint64_t *end, const void *text, uint64_t bytes)
{
	uint64_t at = *end;

	memcpy(all + at, text, bytes);
	all[at + bytes] = 0;
	*end += bytes + 1;
	return at;
}

uint8_t *table_pack(const struct table *table, size_t *bytes)
{
	struct head head = {.magic = MAGIC,
			    .bytes = sizeof(head),
			    .tensors = (uint32_t)table->tensor_count,
			    .values = (uint32_t)table->value_count};
	struct packed *tensors;
	struct pair *values;
	uint64_t end;
	uint8_t *all;

	/* A process that is not lenient must not get a table that breaks rules. */
	if (table->format != TMESH_MODEL_SAFETENSORS || table->lapses)
		return NULL;
	head.bytes += table->tensor_count * sizeof(*tensors) + table->value_count * sizeof(*values);
	end = head.bytes;
	for (size_t i = 0; i < table->tensor_count; i++)
		head.bytes += strlen(table->tensors[i].name) + 1;
	for (size_t i = 0; i < table->value_count; i++)
		head.bytes += strlen(table->values[i].key) + 1 + table->values[i].bytes + 1;
	if (head.bytes > TABLE_PACK_MAX)
		return NULL;
	all = calloc(1, head.bytes);
	if (!all)
		return NULL;
	tensors = (struct packed *)(all + sizeof(head));
	values = (struct pair *)(tensors + table->tensor_count);
	for (size_t i = 0; i < table->tensor_count; i++) {
		const struct table_tensor *tensor = &table->tensors[i];

		tensors[i].name = put_string(all, &end, tensor->name, strlen(tensor->name));
		tensors[i].file_offset = tensor->file_offset - table->header_bytes;
		memcpy(tensors[i].shape, tensor->shape, sizeof(tensor->shape));
		tensors[i].ndim = tensor->ndim;
		tensors[i].type = model_type_safetensors_number(tensor->type);
	}
	for (size_t i = 0; i < table->value_count; i++) {
		const struct table_value *value = &table->values[i];

		values[i].key = put_string(all, &end, value->key, strlen(value->key));
		values[i].data = put_string(all, &end, value->data, value->bytes);
		values[i].bytes = value->bytes;
	}
	model_hash(all + sizeof(head), head.bytes - sizeof(head), head.hash);
	memcpy(all, &head, sizeof(head));
	*bytes = head.bytes;
	return all;
}

size_t table_packed_bytes(const void *start, size_t bytes)
{
	struct head head;

	if (bytes < sizeof(head))
		return 0;
	memcpy(&head, start, sizeof(head));
	return head.magic == MAGIC && head.bytes >= sizeof(head) && head.bytes <= TABLE_PACK_MAX
		       ? head.bytes
		       : 0;
}

/* Return the string at @at, which ends inside; NULL: there is none. */
static const char *string_at(const struct table *table, uint64_t bytes, uint64_t strings,
			     uint64_t at)
{
	return at >= strings && at < bytes ? (const char *)table->copy + at : NULL;
}

static bool unpack_tensor(struct table *table, uint64_t bytes, uint64_t strings,
			  const struct packed *packed)
{
	struct table_tensor *tensor = &table->tensors[table->tensor_count++];

	tensor->name = string_at(table, bytes, strings, packed->name);
	tensor->type = model_type_safetensors_at(packed->type);
	tensor->ndim = packed->ndim;
	tensor->file_offset = packed->file_offset;
	if (!tensor->name || !tensor->type || tensor->ndim < 0 || tensor->ndim > TMESH_MAX_DIMS)
		return false;
	for (int32_t i = 0; i < tensor->ndim; i++) {
		tensor->shape[i] = packed->shape[i];
		if (tensor->shape[i] < 0)
			return false;
	}
	return model_is_utf8((const uint8_t *)tensor->name, strlen(tensor->name)) &&
	       !safetensors_tensor_bytes(tensor, NULL);
}

static bool unpack_value(struct table *table, uint64_t bytes, uint64_t strings,
			 const struct pair *pair)
{
	const char *key = string_at(table, bytes, strings, pair->key);
	const char *data = string_at(table, bytes, strings, pair->data);

	if (!key || !data || pair->bytes > bytes - pair->data ||
	    !model_is_utf8((const uint8_t *)key, strlen(key)) ||
	    !model_is_utf8((const uint8_t *)data, pair->bytes))
		return false;
	table->values[table->value_count++] = (struct table_value){
		.key = key,
		.type = TMESH_MODEL_STRING,
		.count = 1,
		.data = (const uint8_t *)data,
		.bytes = pair->bytes,
	};
	return true;
}

struct table *table_unpack(uint8_t *all, size_t bytes, uint64_t header_bytes, uint64_t file_bytes)
{
	struct table *table = calloc(1, sizeof(*table));
	uint64_t hash[2], strings = sizeof(struct head);
	struct head head;
	bool good;

	if (!table) {
		free(all);
		return NULL;
	}
	table->copy = all;
	table->format = TMESH_MODEL_SAFETENSORS;
	table->header_bytes = header_bytes;
	table->split_no = table->split_count = table->split_tensors = -1;
	good = table_packed_bytes(all, bytes) == bytes && header_bytes <= file_bytes;
	if (good) {
		memcpy(&head, all, sizeof(head));
		model_hash(all + sizeof(head), bytes - sizeof(head), hash);
		strings += head.tensors * sizeof(struct packed) + head.values * sizeof(struct pair);
		/* The last byte ends the last string. */
		good = !memcmp(hash, head.hash, sizeof(hash)) && strings <= bytes &&
		       (strings == bytes || !all[bytes - 1]);
	}
	if (good) {
		table->tensors = calloc((size_t)head.tensors + 1, sizeof(*table->tensors));
		table->values = calloc((size_t)head.values + 1, sizeof(*table->values));
		good = table->tensors && table->values;
	}
	if (good) {
		const struct packed *tensors = (const struct packed *)(all + sizeof(head));
		const struct pair *values = (const struct pair *)(tensors + head.tensors);

		for (uint32_t i = 0; i < head.tensors && good; i++)
			good = unpack_tensor(table, bytes, strings, &tensors[i]);
		for (uint32_t i = 0; i < head.values && good; i++)
			good = unpack_value(table, bytes, strings, &values[i]);
	}
	if (good && !safetensors_check_offsets(table, file_bytes - header_bytes, NULL) &&
	    !table_check_names(table, NULL))
		return table;
	table_free(table);
	return NULL;
}
