// SPDX-License-Identifier: MIT
/*
 * The header of a GGUF file, version 3, little-endian; version 2 has the same layout. The rules
 * come from docs/gguf.md of https://github.com/ggml-org/ggml. Limits that it leaves open come from
 * its own reader, src/gguf.cpp.
 *
 *  - "GGUF", u32 3, u64 tensors, u64 values
 *  - the values: key, u32 type, value
 *  - the tensors: name, u32 dimensions (at most 4, the fastest first), u64 each, u32 type,
 *    u64 offset
 *  - padding to general.alignment (32); the tensors' bytes, each tensor padded
 *
 * A tensor's offset is the padded sum of those before it: no overlap, no hole.
 */
#include "model_internal.h"

#include <string.h>

#define DIMS_MAX 4
#define NAME_MAX_GGUF 64
#define KEY_MAX 65535
#define ALIGNMENT_MAX (1u << 20)
#define TENSOR_LEAST 24 /* bytes of the shortest description: an empty name, no dimension */
#define VALUE_LEAST 13
#define STRING_WORK 16
#define ENTRY_WORK 128

struct cursor {
	const uint8_t *data;
	uint64_t at, bytes, file_bytes;
	uint64_t need; /* more of the file is needed; 0: the file ends too early, or no fault */
	struct opening *opening;
	struct tmesh_error *err;
};

/* Return @count bytes at the cursor, and move it past them. NULL: see starved(). */
static const uint8_t *cursor_read(struct cursor *cursor, uint64_t count)
{
	const uint8_t *at = cursor->data + cursor->at;

	if (count > cursor->bytes - cursor->at) {
		cursor->need = count > cursor->file_bytes - cursor->at ? 0 : cursor->at + count;
		return NULL;
	}
	cursor->at += count;
	return at;
}

/* Return the reason why cursor_read() returned nothing. */
static int starved(const struct cursor *cursor, const char *what)
{
	if (cursor->need)
		return -EAGAIN;
	return tmesh_fail(cursor->err, -EPROTO, "the file ends within %s", what);
}

static uint64_t little(const uint8_t *at, unsigned int bytes)
{
	uint64_t value = 0;

	while (bytes--)
		value = value << 8 | at[bytes];
	return value;
}

static int take_number(struct cursor *cursor, unsigned int bytes, const char *what, uint64_t *value)
{
	const uint8_t *at = cursor_read(cursor, bytes);

	*value = 0;
	if (!at)
		return starved(cursor, what);
	*value = little(at, bytes);
	return 0;
}

/* Read a name or key, and copy it to @names with a zero. */
static int take_name(struct cursor *cursor, char **names, uint64_t most, const char *what,
		     const char **name)
{
	uint64_t length;
	const uint8_t *at;
	int rc = take_number(cursor, 8, what, &length);

	if (rc)
		return rc;
	if (!length || length > most)
		return tmesh_fail(cursor->err, -EPROTO, "%s has %llu bytes; 1 to %llu are allowed",
				  what, (unsigned long long)length, (unsigned long long)most);
	at = cursor_read(cursor, length);
	if (!at)
		return starved(cursor, what);
	if (memchr(at, 0, length) || !model_is_utf8(at, length))
		return tmesh_fail(cursor->err, -EPROTO, "%s is not UTF-8 without zeros", what);
	*name = memcpy(*names, at, length);
	*names += length + 1;
	return 0;
}

static unsigned int scalar_bytes(uint64_t type)
{
	static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

	return type < sizeof(bytes) ? bytes[type] : 0;
}

/* Check that @count elements of @type are at the cursor, and move past them. */
static int take_elements(struct cursor *cursor, uint64_t type, uint64_t count, const char *quoted)
{
	unsigned int size = scalar_bytes(type);
	const uint8_t *at;
	uint64_t length;

	if (type == TMESH_MODEL_STRING) {
		for (uint64_t i = 0; i < count; i++) {
			int rc = take_number(cursor, 8, "a string", &length);

			if (rc)
				return rc;
			if (!cursor_read(cursor, length))
				return starved(cursor, "a string");
			rc = opening_go_on(cursor->opening, STRING_WORK, cursor->err);
			if (rc)
				return rc;
		}
		return 0;
	}
	if (!size)
		return tmesh_fail(cursor->err, type == TMESH_MODEL_ARRAY ? -EOPNOTSUPP : -EPROTO,
				  "the value \"%s\" %s", quoted,
				  type == TMESH_MODEL_ARRAY ? "is an array of arrays"
							    : "has an unknown type");
	if (__builtin_mul_overflow(count, (uint64_t)size, &length))
		return tmesh_fail(cursor->err, -EPROTO, "the size of the value \"%s\" overflows",
				  quoted);
	at = cursor_read(cursor, length);
	if (!at)
		return starved(cursor, "a value");
	for (uint64_t i = 0; type == TMESH_MODEL_BOOL && i < count; i++) {
		if (at[i] > 1)
			return tmesh_fail(cursor->err, -EPROTO,
					  "the value \"%s\" is a boolean that is neither 0 nor 1",
					  quoted);
	}
	return 0;
}

static int take_value(struct cursor *cursor, char **names, struct table_value *value)
{
	char quoted[MODEL_QUOTE];
	uint64_t type, item;
	uint64_t begin;
	int rc = take_name(cursor, names, KEY_MAX, "a key", &value->key);

	if (!rc)
		rc = take_number(cursor, 4, "a value", &type);
	if (rc)
		return rc;
	model_quote(quoted, value->key);
	value->type = (uint32_t)type;
	item = type;
	value->count = 1;
	if (type == TMESH_MODEL_ARRAY) {
		rc = take_number(cursor, 4, "an array", &item);
		if (!rc)
			rc = take_number(cursor, 8, "an array", &value->count);
		if (rc)
			return rc;
		value->item = (uint32_t)item;
	}
	begin = cursor->at;
	rc = take_elements(cursor, item, value->count, quoted);
	if (rc)
		return rc;
	value->data = cursor->data + begin;
	value->bytes = cursor->at - begin;
	if (type == TMESH_MODEL_STRING) {
		value->data += 8;
		value->bytes -= 8;
	}
	return 0;
}

static int take_tensor(struct cursor *cursor, char **names, struct table_tensor *tensor)
{
	char quoted[MODEL_QUOTE];
	uint64_t ndim, type, fastest = 1;
	bool even;
	int rc = take_name(cursor, names, NAME_MAX_GGUF, "a tensor's name", &tensor->name);

	if (!rc)
		rc = take_number(cursor, 4, "a tensor's description", &ndim);
	if (rc)
		return rc;
	model_quote(quoted, tensor->name);
	if (ndim > DIMS_MAX)
		return tmesh_fail(cursor->err, -EPROTO,
				  "the tensor \"%s\" has %llu dimensions; %d are the most", quoted,
				  (unsigned long long)ndim, DIMS_MAX);
	tensor->ndim = (int32_t)ndim;
	for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
		uint64_t dim;

		rc = take_number(cursor, 8, "a tensor's description", &dim);
		if (rc)
			return rc;
		if (dim > INT64_MAX)
			return tmesh_fail(cursor->err, -EPROTO,
					  "a dimension of the tensor \"%s\" is out of range",
					  quoted);
		tensor->shape[i] = (int64_t)dim;
		if (i == tensor->ndim - 1)
			fastest = dim;
	}
	rc = take_number(cursor, 4, "a tensor's description", &type);
	if (!rc)
		rc = take_number(cursor, 8, "a tensor's description", &tensor->file_offset);
	if (rc)
		return rc;
	tensor->type = model_type_gguf((uint32_t)type);
	if (!tensor->type)
		return tmesh_fail(cursor->err, -EPROTO,
				  "the tensor \"%s\" has the unknown type %llu", quoted,
				  (unsigned long long)type);
	if (fastest % tensor->type->block_elements)
		return tmesh_fail(
			cursor->err, -EPROTO,
			"rows of the tensor \"%s\" are not a whole number of %s's blocks of %u",
			quoted, tensor->type->name, tensor->type->block_elements);
	if (!model_type_bytes(tensor->type, tensor->ndim, tensor->shape, &tensor->bytes, &even))
		return tmesh_fail(cursor->err, -EPROTO, "the size of the tensor \"%s\" overflows",
				  quoted);
	return 0;
}

static const struct table_value *find_value(const struct table *table, const char *key)
{
	for (size_t i = 0; i < table->value_count; i++) {
		if (!strcmp(table->values[i].key, key))
			return &table->values[i];
	}
	return NULL;
}

/* Read the values that decide how the rest is read. */
static int read_rules(struct table *table, uint64_t *alignment, struct tmesh_error *err)
{
	static const struct {
		const char *key;
		uint32_t type;
	} splits[] = {{"split.no", TMESH_MODEL_UINT16},
		      {"split.count", TMESH_MODEL_UINT16},
		      {"split.tensors.count", TMESH_MODEL_INT32}};
	int64_t *const out[] = {&table->split_no, &table->split_count, &table->split_tensors};
	const struct table_value *value = find_value(table, "general.alignment");

	*alignment = 32;
	if (value) {
		if (value->type != TMESH_MODEL_UINT32)
			return tmesh_fail(err, -EPROTO, "general.alignment is not a uint32");
		*alignment = little(value->data, 4);
		if (*alignment < 8 || *alignment > ALIGNMENT_MAX || (*alignment & (*alignment - 1)))
			return tmesh_fail(
				err, -EPROTO,
				"general.alignment is %llu, not a power of two from 8 to %u",
				(unsigned long long)*alignment, ALIGNMENT_MAX);
	}
	for (size_t i = 0; i < 3; i++) {
		*out[i] = -1;
		value = find_value(table, splits[i].key);
		if (!value)
			continue;
		if (value->type != splits[i].type)
			return tmesh_fail(err, -EPROTO, "%s is of another type than it should be",
					  splits[i].key);
		*out[i] = value->type == TMESH_MODEL_INT32 ? (int32_t)little(value->data, 4)
							   : (int64_t)little(value->data, 2);
		if (*out[i] < 0)
			return tmesh_fail(err, -EPROTO, "%s is negative", splits[i].key);
	}
	return 0;
}

static int check_offsets(struct table *table, uint64_t begin, uint64_t alignment,
			 uint64_t file_bytes, struct tmesh_error *err)
{
	uint64_t at = 0, end = 0, padded, total;

	/* Without tensors nothing needs to be padded. */
	if (!table->tensor_count) {
		table->header_bytes = file_bytes < begin ? file_bytes : begin;
		if (file_bytes <= begin)
			return 0;
		if (!table->lenient)
			return tmesh_fail(err, -EPROTO,
					  "the file has bytes that belong to no tensor");
		table->lapses |= LAPSE_BEHIND;
		return 0;
	}
	table->header_bytes = begin;
	for (size_t i = 0; i < table->tensor_count; i++) {
		struct table_tensor *tensor = &table->tensors[i];
		char quoted[MODEL_QUOTE];
		int rc = model_check_begin(tensor, at, err);

		if (rc)
			return rc;
		if (__builtin_add_overflow(at, tensor->bytes, &end) ||
		    __builtin_add_overflow(end, alignment - 1, &padded) ||
		    __builtin_add_overflow(begin, padded, &total) || end > file_bytes ||
		    begin > file_bytes - end)
			return tmesh_fail(err, -EPROTO,
					  "the tensor \"%s\" ends beyond the end of the file",
					  model_quote(quoted, tensor->name));
		at = padded & ~(alignment - 1);
		tensor->file_offset += begin;
	}
	if (file_bytes <= begin + at)
		return 0;
	if (!table->lenient)
		return tmesh_fail(err, -EPROTO,
				  "the file has %llu bytes that belong to no tensor at its end",
				  (unsigned long long)(file_bytes - begin - at));
	table->lapses |= LAPSE_BEHIND;
	return 0;
}

static int by_key(const void *left, const void *right)
{
	return strcmp((*(const struct table_value *const *)left)->key,
		      (*(const struct table_value *const *)right)->key);
}

static int check_keys(const struct table *table, struct tmesh_error *err)
{
	const struct table_value **sorted = calloc(table->value_count + 1, sizeof(*sorted));
	int rc = 0;

	if (!sorted)
		return tmesh_fail(err, -ENOMEM, "no memory for the values");
	for (size_t i = 0; i < table->value_count; i++)
		sorted[i] = &table->values[i];
	qsort(sorted, table->value_count, sizeof(*sorted), by_key);
	for (size_t i = 1; i < table->value_count && !rc; i++) {
		char quoted[MODEL_QUOTE];

		if (!strcmp(sorted[i]->key, sorted[i - 1]->key))
			rc = tmesh_fail(err, -EPROTO, "the value \"%s\" is there twice",
					model_quote(quoted, sorted[i]->key));
	}
	free(sorted);
	return rc;
}

/* Read all of the header that @cursor's data has, into @table. */
static int read_all(struct table *table, struct cursor *cursor, uint64_t *alignment)
{
	struct tmesh_error *err = cursor->err;
	uint64_t version, tensors, values;
	const uint8_t *magic = cursor_read(cursor, 4);
	char *names;
	int rc;

	if (!magic)
		return starved(cursor, "its first bytes");
	rc = take_number(cursor, 4, "its first bytes", &version);
	if (!rc && version == 2 && table->lenient)
		table->lapses |= LAPSE_VERSION;
	else if (!rc && version != 3)
		return tmesh_fail(err, -EOPNOTSUPP,
				  version == 0x3000000
					  ? "the file is a big-endian GGUF"
					  : "the file is GGUF of version %llu; 3 is read",
				  (unsigned long long)version);
	if (!rc)
		rc = take_number(cursor, 8, "its first bytes", &tensors);
	if (!rc)
		rc = take_number(cursor, 8, "its first bytes", &values);
	if (rc)
		return rc;
	if (tensors > (cursor->file_bytes - cursor->at) / TENSOR_LEAST ||
	    values > (cursor->file_bytes - cursor->at) / VALUE_LEAST)
		return tmesh_fail(err, -EPROTO,
				  "%llu tensors and %llu values do not fit into the file",
				  (unsigned long long)tensors, (unsigned long long)values);
	if (tensors > TMESH_BUNDLE_MAX_TENSORS)
		return model_too_many(tensors, err);
	/* Size the tables by the bytes that are there, not by the counts in the header. */
	if (tensors > cursor->bytes / TENSOR_LEAST || values > cursor->bytes / VALUE_LEAST) {
		cursor->need = tensors > values ? tensors * TENSOR_LEAST : values * VALUE_LEAST;
		return -EAGAIN;
	}
	table->values = calloc(values + 1, sizeof(*table->values));
	table->tensors = calloc(tensors + 1, sizeof(*table->tensors));
	/* The copies of all names fit: each loses the length that stands before it and gains a
	 * zero. */
	names = table->names = calloc(1, cursor->bytes);
	if (!table->values || !table->tensors || !names)
		return tmesh_fail(err, -ENOMEM, "no memory for the tensors' table");
	for (uint64_t i = 0; i < values && !rc; i++) {
		rc = take_value(cursor, &names, &table->values[table->value_count++]);
		if (!rc)
			rc = opening_go_on(cursor->opening, ENTRY_WORK, err);
	}
	for (uint64_t i = 0; i < tensors && !rc; i++) {
		rc = take_tensor(cursor, &names, &table->tensors[table->tensor_count++]);
		if (!rc)
			rc = opening_go_on(cursor->opening, ENTRY_WORK, err);
	}
	if (!rc)
		rc = read_rules(table, alignment, err);
	return rc ? rc : check_keys(table, err);
}

int table_parse_gguf(struct table *table, struct opening *opening, const uint8_t *data,
		     size_t bytes, uint64_t file_bytes, uint64_t *need, struct tmesh_error *err)
{
	struct cursor cursor = {.data = data,
				.bytes = bytes,
				.file_bytes = file_bytes,
				.opening = opening,
				.err = err};
	uint64_t alignment = 32;
	int rc;

	table->format = TMESH_MODEL_GGUF;
	rc = read_all(table, &cursor, &alignment);
	if (rc == -EAGAIN) {
		/* By doubling, so that a long header is not read again for each of its strings. */
		uint64_t twice =
			2 * (uint64_t)bytes < file_bytes ? 2 * (uint64_t)bytes : file_bytes;

		*need = cursor.need > twice ? cursor.need : twice;
		if (*need > MODEL_GGUF_HEADER_MAX)
			return tmesh_fail(err, -EPROTO, "the header has more than %u bytes",
					  MODEL_GGUF_HEADER_MAX);
	}
	if (rc)
		return rc;
	/* Values point into a copy that stays. */
	table->copy = malloc(cursor.at);
	if (!table->copy)
		return tmesh_fail(err, -ENOMEM, "no memory for the values");
	memcpy(table->copy, data, cursor.at);
	for (size_t i = 0; i < table->value_count; i++)
		table->values[i].data = table->copy + (table->values[i].data - data);
	*need = cursor.at;
	return check_offsets(table, (cursor.at + alignment - 1) & ~(alignment - 1), alignment,
			     file_bytes, err);
}
