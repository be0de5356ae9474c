// SPDX-License-Identifier: MIT
/* Metadata as JSON. The text is made a part at a time: a tree of all values takes many times as
 * much memory as the header. */
#include "model_internal.h"

#include <math.h>
#include <string.h>

#define BATCH 1024 /* elements of an array */

struct text {
	char *data;
	size_t bytes, room;
	size_t most; /* bytes */
	int rc;	     /* why nothing more was added */
};

/* Add text; for json_dump_callback() too. */
static int text_add(const char *from, size_t bytes, void *data)
{
	struct text *text = data;
	size_t room = 2 * text->room + bytes;
	char *grown;

	if (!text->rc && bytes > text->most - text->bytes)
		text->rc = -EINVAL;
	if (!text->rc && bytes > text->room - text->bytes) {
		room = room < text->most ? room : text->most;
		grown = realloc(text->data, room + 1);
		if (grown) {
			text->data = grown;
			text->room = room;
		} else {
			text->rc = -ENOMEM;
		}
	}
	if (text->rc)
		return -1;
	memcpy(text->data + text->bytes, from, bytes);
	text->bytes += bytes;
	return 0;
}

/* Add @json and release it. NULL: there was no memory for it. */
static void text_add_json(struct text *text, json_t *json)
{
	if (!text->rc &&
	    (!json || json_dump_callback(json, text_add, text, JSON_COMPACT | JSON_ENCODE_ANY)))
		text->rc = text->rc ? text->rc : -ENOMEM;
	json_decref(json);
}

/* Make a JSON string of bytes that need not be UTF-8. */
static json_t *text_json(const uint8_t *text, uint64_t bytes)
{
	static const char replacement[] = "\xef\xbf\xbd";
	json_t *json;
	char *clean;
	size_t at = 0;

	if (model_is_utf8(text, bytes))
		return json_stringn((const char *)text, bytes);
	if (bytes > SIZE_MAX / 3)
		return NULL;
	clean = malloc(3 * bytes);
	for (uint64_t i = 0; clean && i < bytes;) {
		uint64_t length = bytes - i < 4 ? bytes - i : 4;

		/* The shortest prefix that is UTF-8 is one character. */
		for (uint64_t k = 1; k <= length; k++) {
			if (model_is_utf8(text + i, k)) {
				length = k;
				break;
			}
			if (k == length)
				length = 0;
		}
		memcpy(clean + at, length ? (const char *)text + i : replacement,
		       length ? length : 3);
		at += length ? length : 3;
		i += length ? length : 1;
	}
	json = clean ? json_stringn_nocheck(clean, at) : NULL;
	free(clean);
	return json;
}

/* Convert the element at @data; @took gets its length. */
static json_t *item_json(uint32_t type, const uint8_t *data, uint64_t *took)
{
	union {
		uint64_t u64;
		int64_t i64;
		double f64;
		uint32_t u32;
		int32_t i32;
		float f32;
		uint16_t u16;
		int16_t i16;
		uint8_t u8;
		int8_t i8;
	} value = {0};
	static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};

	*took = sizes[type];
	memcpy(&value, data, sizes[type]);
	switch (type) {
	case TMESH_MODEL_UINT8:
		return json_integer(value.u8);
	case TMESH_MODEL_INT8:
		return json_integer(value.i8);
	case TMESH_MODEL_UINT16:
		return json_integer(value.u16);
	case TMESH_MODEL_INT16:
		return json_integer(value.i16);
	case TMESH_MODEL_UINT32:
		return json_integer(value.u32);
	case TMESH_MODEL_INT32:
		return json_integer(value.i32);
	case TMESH_MODEL_UINT64:
		/* A number that does not fit JSON's integers here becomes a real. */
		return value.u64 <= INT64_MAX ? json_integer((json_int_t)value.u64)
					      : json_real((double)value.u64);
	case TMESH_MODEL_INT64:
		return json_integer(value.i64);
	case TMESH_MODEL_FLOAT32:
		return isfinite(value.f32) ? json_real((double)value.f32) : json_null();
	case TMESH_MODEL_FLOAT64:
		return isfinite(value.f64) ? json_real(value.f64) : json_null();
	case TMESH_MODEL_BOOL:
		return json_boolean(value.u8);
	default: /* a string of an array */
		*took = 8 + value.u64;
		return text_json(data + 8, value.u64);
	}
}

/* Make an array of @count elements at @at, and move past them. */
static json_t *items_json(uint32_t type, uint64_t count, const uint8_t **at)
{
	json_t *array = json_array();
	uint64_t took;

	for (uint64_t i = 0; array && i < count; i++, *at += took) {
		if (json_array_append_new(array, item_json(type, *at, &took))) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

static void text_add_array(struct text *text, const struct table_value *value, uint64_t most)
{
	uint64_t count = most && value->count > most ? most : value->count;
	const uint8_t *at = value->data;

	if (!count)
		text_add("[", 1, text);
	for (uint64_t done = 0; done < count && !text->rc;) {
		uint64_t n = count - done < BATCH ? count - done : BATCH;
		size_t begin = text->bytes;

		text_add_json(text, items_json(value->item, n, &at));
		if (text->rc)
			return;
		/* All batches are one array. */
		if (done)
			text->data[begin] = ',';
		text->bytes--;
		done += n;
	}
	if (count < value->count)
		text_add(",null", 5, text);
	text_add("]", 1, text);
}

static void text_add_value(struct text *text, const struct table_value *value, uint64_t most)
{
	uint64_t took;

	text_add_json(text, json_string(value->key));
	text_add(":", 1, text);
	if (value->type == TMESH_MODEL_ARRAY)
		text_add_array(text, value, most);
	else if (value->type == TMESH_MODEL_STRING)
		text_add_json(text, text_json(value->data, value->bytes));
	else
		text_add_json(text, item_json(value->type, value->data, &took));
}

/* Return whether the text has more bytes than @limit in any case: an element of an array takes two.
 */
static bool is_too_long(const struct tmesh_model *model, uint64_t most, size_t limit)
{
	uint64_t least = 2;

	for (size_t i = 0; i < model->value_count && least <= limit; i++) {
		const struct table_value *value = model->values[i];

		if (value->type == TMESH_MODEL_STRING)
			least += value->bytes;
		else if (value->type == TMESH_MODEL_ARRAY)
			least += 2 * (most && value->count > most ? most : value->count);
	}
	return least > limit;
}

int model_metadata_text(const struct tmesh_model *model, uint64_t most, size_t limit, char **out,
			struct tmesh_error *err)
{
	struct text text = {.most = limit};

	if (is_too_long(model, most, limit))
		text.rc = -EINVAL;
	text_add("{", 1, &text);
	for (size_t i = 0; i < model->value_count && !text.rc; i++) {
		if (i)
			text_add(",", 1, &text);
		text_add_value(&text, model->values[i], most);
	}
	text_add("}", 1, &text);
	if (text.rc) {
		free(text.data);
		return text.rc == -EINVAL
			       ? tmesh_fail(
					 err, text.rc,
					 "the metadata has more than %zu bytes as JSON: read the "
					 "values one by one",
					 limit)
			       : tmesh_fail(err, text.rc, "no memory for the metadata");
	}
	text.data[text.bytes] = '\0';
	*out = text.data;
	return 0;
}

int tmesh_model_metadata_json(const struct tmesh_model *model, uint64_t most, char **text,
			      struct tmesh_error *err)
{
	if (TMESH_NEED(err, model, text))
		return -EINVAL;
	return model_metadata_text(model, most, SIZE_MAX / 4, text, err);
}
