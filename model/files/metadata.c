// SPDX-License-Identifier: MIT
/* Metadata as JSON. */
#include "model_internal.h"

#include <math.h>
#include <string.h>

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

static json_t *value_json(const struct table_value *value, uint64_t most)
{
	const uint8_t *at = value->data;
	json_t *array, *item = NULL;
	uint64_t took;

	if (value->type == TMESH_MODEL_STRING)
		return text_json(value->data, value->bytes);
	if (value->type != TMESH_MODEL_ARRAY)
		return item_json(value->type, at, &took);
	array = json_array();
	for (uint64_t i = 0; array && i < value->count; i++, at += took) {
		item = most && i >= most ? json_null() : item_json(value->item, at, &took);
		if (json_array_append_new(array, item)) {
			json_decref(array);
			return NULL;
		}
		if (most && i >= most)
			break;
	}
	return array;
}

int tmesh_model_metadata_json(const struct tmesh_model *model, uint64_t most, char **text,
			      struct tmesh_error *err)
{
	char *written = NULL;
	json_t *all;

	if (TMESH_NEED(err, model, text))
		return -EINVAL;
	all = json_object();
	for (size_t i = 0; all && i < model->value_count; i++) {
		if (json_object_set_new(all, model->values[i]->key,
					value_json(model->values[i], most))) {
			json_decref(all);
			all = NULL;
		}
	}
	if (all)
		written = json_dumps(all, JSON_COMPACT);
	json_decref(all);
	if (!written)
		return tmesh_fail(err, -ENOMEM, "no memory for the metadata");
	*text = written;
	return 0;
}
