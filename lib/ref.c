// SPDX-License-Identifier: MIT
/*
 * Refs: a tensor's description with its token, to and from JSON.
 *
 * Encoding is on the way of every hand-over and its strings cannot need escaping, so it
 * is written out by hand; decoding meets other people's text and is left to jansson.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "ref_json.h"

#define REF_VERSION 1
#define IS_BUNDLE "this is the ref of a bundle, not of a tensor: tmesh_bundle_open() opens it"
#define ID_DIGITS 16

/* Tokens are made of these characters alone, which is why they need no escaping. */
static bool token_is_plain(const char *token)
{
	size_t len = strnlen(token, TMESH_TOKEN_SIZE);

	return len < TMESH_TOKEN_SIZE &&
	       strspn(token, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

static int check_byte_size(const struct tmesh_ref *ref, int code, struct tmesh_error *err)
{
	struct tmesh_error why;
	uint64_t extent;
	int64_t low, high;

	if (tmesh_layout_measure(&ref->layout, &extent, &low, &high, &why))
		return tmesh_fail(err, code, "a ref that no tensor can have: %s", why.message);
	if (extent != ref->byte_size)
		return tmesh_fail(err, code,
				  "byte_size is %" PRIu64 ", but shape and dtype make %" PRIu64,
				  ref->byte_size, extent);
	return 0;
}

static char *put_text(char *to, const char *text)
{
	return stpcpy(to, text);
}

static char *put_uint(char *to, uint64_t number)
{
	char digits[20];
	int n = 0;

	do {
		digits[n++] = (char)('0' + number % 10);
		number /= 10;
	} while (number);
	while (n)
		*to++ = digits[--n];
	return to;
}

static char *put_int(char *to, int64_t number)
{
	if (number >= 0)
		return put_uint(to, (uint64_t)number);
	*to++ = '-';
	return put_uint(to, 0 - (uint64_t)number);
}

static char *put_id(char *to, uint64_t id)
{
	for (int shift = 4 * (ID_DIGITS - 1); shift >= 0; shift -= 4)
		*to++ = "0123456789abcdef"[(id >> shift) & 15];
	return to;
}

static char *put_list(char *to, const int64_t *list, int32_t count)
{
	*to++ = '[';
	for (int32_t i = 0; i < count; i++) {
		if (i)
			*to++ = ',';
		to = put_int(to, list[i]);
	}
	*to++ = ']';
	return to;
}

int tmesh_ref_encode(const struct tmesh_ref *ref, char *text, size_t size, struct tmesh_error *err)
{
	const struct tmesh_layout *layout = &ref->layout;
	/* All members at their longest fit: what is checked first bounds every one. */
	char whole[TMESH_REF_SIZE];
	char *to = whole;
	size_t bytes;
	int rc;

	if (!token_is_plain(ref->token))
		return tmesh_fail(err, -EINVAL, "the ref's token has characters no token has");
	rc = check_byte_size(ref, -EINVAL, err);
	if (rc)
		return rc;
	if (layout->offset > INT64_MAX)
		return tmesh_fail(err, -EINVAL, "offset %" PRIu64 " is beyond 2^63",
				  layout->offset);

	to = put_text(to, "{\"v\":1,\"id\":\"");
	to = put_id(to, ref->id);
	if (ref->token[0]) {
		to = put_text(to, "\",\"token\":\"");
		to = put_text(to, ref->token);
	}
	to = put_text(to, "\",\"offset\":");
	to = put_uint(to, layout->offset);
	to = put_text(to, ",\"byte_size\":");
	to = put_uint(to, ref->byte_size);
	to = put_text(to, ",\"shape\":");
	to = put_list(to, layout->shape, layout->ndim);
	to = put_text(to, ",\"dtype\":\"");
	to = put_text(to, tmesh_dtype_name(layout->dtype));
	to = put_text(to, "\",\"strides\":");
	to = put_list(to, layout->strides, layout->ndim);
	if (layout->device_type == TMESH_DEVICE_CUDA) {
		to = put_text(to, ",\"device\":\"cuda:");
		to = put_uint(to, (uint64_t)layout->device_id);
	} else {
		to = put_text(to, ",\"device\":\"cpu");
	}
	to = put_text(to, "\"}");

	bytes = (size_t)(to - whole) + 1;
	if (bytes > size)
		return tmesh_fail(err, -ENOSPC, "the ref needs %zu bytes, there is room for %zu",
				  bytes, size);
	memcpy(text, whole, bytes);
	return 0;
}

/* Members are found by name; a message about one names it. */
int tmesh_ref_get_string(const json_t *ref, const char *name, const char **value,
			 struct tmesh_error *err)
{
	const json_t *member = json_object_get(ref, name);

	if (!member)
		return tmesh_fail(err, -EPROTO, "the ref has no \"%s\"", name);
	if (!json_is_string(member))
		return tmesh_fail(err, -EPROTO, "the ref's \"%s\" is not a string", name);
	*value = json_string_value(member);
	return 0;
}

int tmesh_ref_get_uint(const json_t *ref, const char *name, uint64_t *value,
		       struct tmesh_error *err)
{
	const json_t *member = json_object_get(ref, name);

	if (!member)
		return tmesh_fail(err, -EPROTO, "the ref has no \"%s\"", name);
	if (!json_is_integer(member) || json_integer_value(member) < 0)
		return tmesh_fail(err, -EPROTO, "the ref's \"%s\" is not an integer from 0 up",
				  name);
	*value = (uint64_t)json_integer_value(member);
	return 0;
}

static int get_list(const json_t *ref, const char *name, int64_t *list, size_t *count,
		    struct tmesh_error *err)
{
	const json_t *member = json_object_get(ref, name);
	const json_t *number;
	size_t i;

	if (!member)
		return tmesh_fail(err, -EPROTO, "the ref has no \"%s\"", name);
	if (!json_is_array(member))
		return tmesh_fail(err, -EPROTO, "the ref's \"%s\" is not a list", name);
	*count = json_array_size(member);
	if (*count > TMESH_MAX_DIMS)
		return tmesh_fail(err, -EPROTO, "the ref's \"%s\" has more than %d numbers", name,
				  TMESH_MAX_DIMS);
	json_array_foreach(member, i, number) {
		if (!json_is_integer(number))
			return tmesh_fail(err, -EPROTO, "the ref's \"%s\" holds no integer at %zu",
					  name, i);
		list[i] = json_integer_value(number);
	}
	return 0;
}

int tmesh_ref_get_version(const json_t *ref, struct tmesh_error *err)
{
	uint64_t version;
	int rc;

	rc = tmesh_ref_get_uint(ref, "v", &version, err);
	if (!rc && version != REF_VERSION)
		return tmesh_fail(err, -EPROTO,
				  "a ref of version %" PRIu64 "; this library reads version %d",
				  version, REF_VERSION);
	return rc;
}

int tmesh_ref_get_id(const json_t *ref, uint64_t *id, struct tmesh_error *err)
{
	const char *text;
	int rc;

	rc = tmesh_ref_get_string(ref, "id", &text, err);
	if (rc)
		return rc;
	if (strlen(text) != ID_DIGITS || strspn(text, "0123456789abcdefABCDEF") != ID_DIGITS)
		return tmesh_fail(err, -EPROTO, "the ref's \"id\" is not %d hex digits", ID_DIGITS);
	*id = strtoull(text, NULL, 16);
	return 0;
}

/* A description is a ref without a token, so there may be none. */
int tmesh_ref_get_token(const json_t *ref, char *token, struct tmesh_error *err)
{
	const char *text;
	int rc;

	token[0] = '\0';
	if (!json_object_get(ref, "token"))
		return 0;
	rc = tmesh_ref_get_string(ref, "token", &text, err);
	if (rc)
		return rc;
	if (!token_is_plain(text))
		return tmesh_fail(err, -EPROTO, "the ref's \"token\" is not a token");
	memcpy(token, text, strlen(text) + 1);
	return 0;
}

static int get_dtype(const json_t *ref, enum tmesh_dtype *dtype, struct tmesh_error *err)
{
	const char *name;
	int rc;

	rc = tmesh_ref_get_string(ref, "dtype", &name, err);
	if (rc)
		return rc;
	*dtype = tmesh_dtype_from_name(name);
	if (*dtype != TMESH_DTYPE_INVALID)
		return 0;
	/* The name is a stranger's: repeat it only where it cannot upset a terminal. */
	if (strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(name))
		name = "";
	return tmesh_fail(err, -EPROTO, "the ref's \"dtype\" is unknown: \"%.32s\"", name);
}

static int get_device(const json_t *ref, struct tmesh_layout *layout, struct tmesh_error *err)
{
	const char *name, *digits;
	size_t count;
	long number;
	int rc;

	rc = tmesh_ref_get_string(ref, "device", &name, err);
	if (rc)
		return rc;
	layout->device_type = TMESH_DEVICE_CPU;
	layout->device_id = 0;
	if (!strcmp(name, "cpu"))
		return 0;

	digits = name + strlen("cuda:");
	if (!strncmp(name, "cuda:", strlen("cuda:"))) {
		count = strspn(digits, "0123456789");
		number = count && !digits[count] ? strtol(digits, NULL, 10) : -1;
		if (number >= 0 && number <= INT32_MAX) {
			layout->device_type = TMESH_DEVICE_CUDA;
			layout->device_id = (int32_t)number;
			return 0;
		}
	}
	return tmesh_fail(err, -EPROTO, "the ref's \"device\" is neither \"cpu\" nor \"cuda:N\"");
}

static int read_ref(const json_t *json, struct tmesh_ref *ref, struct tmesh_error *err)
{
	struct tmesh_layout *layout = &ref->layout;
	size_t dims, strides;
	int rc;

	if (!json_is_object(json))
		return tmesh_fail(err, -EPROTO, "a ref is a JSON object");
	if (tmesh_ref_is_bundle(json))
		return tmesh_fail(err, -EPROTO, IS_BUNDLE);
	rc = tmesh_ref_get_version(json, err);
	if (!rc)
		rc = tmesh_ref_get_id(json, &ref->id, err);
	if (!rc)
		rc = tmesh_ref_get_token(json, ref->token, err);
	if (!rc)
		rc = tmesh_ref_get_uint(json, "offset", &layout->offset, err);
	if (!rc)
		rc = tmesh_ref_get_uint(json, "byte_size", &ref->byte_size, err);
	if (!rc)
		rc = get_list(json, "shape", layout->shape, &dims, err);
	if (!rc)
		rc = get_dtype(json, &layout->dtype, err);
	if (!rc)
		rc = get_list(json, "strides", layout->strides, &strides, err);
	if (!rc)
		rc = get_device(json, layout, err);
	if (rc)
		return rc;
	if (dims != strides)
		return tmesh_fail(err, -EPROTO, "the ref has %zu dimensions, but %zu strides", dims,
				  strides);
	layout->ndim = (int32_t)dims;
	return check_byte_size(ref, -EPROTO, err);
}

int tmesh_ref_load(const char *text, size_t bytes, json_t **out, struct tmesh_error *err)
{
	json_error_t where;

	*out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
	if (*out)
		return 0;
	/* jansson's own text may quote the input, which is a stranger's. */
	if (json_error_code(&where) == json_error_out_of_memory)
		return tmesh_fail(err, -ENOMEM, "no memory to read a ref");
	if (json_error_code(&where) == json_error_duplicate_key)
		return tmesh_fail(err, -EPROTO, "a member of the ref appears twice");
	return tmesh_fail(err, -EPROTO, "the ref is not JSON from byte %d on", where.position);
}

bool tmesh_ref_is_bundle(const json_t *json)
{
	const char *kind = json_string_value(json_object_get(json, "kind"));

	return kind && !strcmp(kind, "bundle");
}

/* Longer than any tensor's ref: perhaps somebody took the wrong call. */
static bool long_bundle(const char *text, size_t bytes)
{
	json_t *json;
	bool is;

	if (bytes > TMESH_BUNDLE_MAX_REF || tmesh_ref_load(text, bytes, &json, NULL))
		return false;
	is = tmesh_ref_is_bundle(json);
	json_decref(json);
	return is;
}

int tmesh_ref_decode(const char *text, size_t bytes, struct tmesh_ref *ref, struct tmesh_error *err)
{
	struct tmesh_ref read = {0};
	json_t *json;
	int rc;

	if (bytes > TMESH_REF_SIZE)
		return long_bundle(text, bytes)
			       ? tmesh_fail(err, -EPROTO, IS_BUNDLE)
			       : tmesh_fail(err, -EPROTO, "a ref has at most %d bytes, not %zu",
					    TMESH_REF_SIZE, bytes);
	rc = tmesh_ref_load(text, bytes, &json, err);
	if (rc)
		return rc;
	rc = read_ref(json, &read, err);
	json_decref(json);
	if (!rc)
		*ref = read;
	return rc;
}
