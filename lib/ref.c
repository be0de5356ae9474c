// SPDX-License-Identifier: MIT
/*
 * Refs: a tensor's description with its token, to and from JSON.
 *
 * Every hand-over encodes a ref, and its strings cannot need escaping, so the encoder is written by
 * hand. Refs from other processes are decoded by jansson.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "ref_json.h"

#define REF_VERSION 1
#define IS_BUNDLE "this is the ref of a bundle, not of a tensor: tmesh_bundle_open() opens it"
#define ID_DIGITS 16

/* Check that a token has only these characters, so that it needs no escaping. */
static bool token_is_plain(const char *token)
{
	size_t len = strnlen(token, TMESH_TOKEN_SIZE);

	return len < TMESH_TOKEN_SIZE &&
	       strspn(token, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

static int check_numbers(const struct tmesh_ref *ref, int code, struct tmesh_error *err)
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
	if (ref->layout.offset > INT64_MAX)
		return tmesh_fail(err, code, "offset %" PRIu64 " is beyond 2^63",
				  ref->layout.offset);
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
	const struct tmesh_layout *layout;
	/* Room for all members at their longest: the checks below bound each of them. */
	char whole[TMESH_REF_SIZE];
	char *to = whole;
	size_t bytes;
	int rc = TMESH_NEED(err, ref, text);

	if (rc)
		return rc;
	layout = &ref->layout;
	if (!token_is_plain(ref->token))
		return tmesh_fail(err, -EINVAL, "the ref's token has characters that no token has");
	rc = check_numbers(ref, -EINVAL, err);
	if (rc)
		return rc;

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

static int no_member(const char *name, struct tmesh_error *err)
{
	return tmesh_fail(err, -EPROTO, "the ref has no \"%s\"", name);
}

static int too_long(const char *name, struct tmesh_error *err)
{
	return tmesh_fail(err, -EPROTO, "the ref's \"%s\" has more than %d numbers", name,
			  TMESH_MAX_DIMS);
}

/* Read a member by its name, which an error contains. */
static int get_string(const json_t *ref, const char *name, const char **value,
		      struct tmesh_error *err)
{
	const json_t *member = json_object_get(ref, name);

	if (!member)
		return no_member(name, err);
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
		return no_member(name, err);
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
		return no_member(name, err);
	if (!json_is_array(member))
		return tmesh_fail(err, -EPROTO, "the ref's \"%s\" is not a list", name);
	*count = json_array_size(member);
	if (*count > TMESH_MAX_DIMS)
		return too_long(name, err);
	json_array_foreach(member, i, number) {
		if (!json_is_integer(number))
			return tmesh_fail(err, -EPROTO, "the ref's \"%s\" holds no integer at %zu",
					  name, i);
		list[i] = json_integer_value(number);
	}
	return 0;
}

static int check_version(uint64_t version, struct tmesh_error *err)
{
	if (version == REF_VERSION)
		return 0;
	return tmesh_fail(err, -EPROTO,
			  "a ref of version %" PRIu64 "; this library reads version %d", version,
			  REF_VERSION);
}

static int read_id(const char *text, uint64_t *id, struct tmesh_error *err)
{
	if (strlen(text) != ID_DIGITS || strspn(text, "0123456789abcdefABCDEF") != ID_DIGITS)
		return tmesh_fail(err, -EPROTO, "the ref's \"id\" is not %d hex digits", ID_DIGITS);
	*id = strtoull(text, NULL, 16);
	return 0;
}

static int read_token(const char *text, char *token, struct tmesh_error *err)
{
	if (!token_is_plain(text))
		return tmesh_fail(err, -EPROTO, "the ref's \"token\" is not a token");
	memcpy(token, text, strlen(text) + 1);
	return 0;
}

int tmesh_ref_get_version(const json_t *ref, struct tmesh_error *err)
{
	uint64_t version = 0;
	int rc = tmesh_ref_get_uint(ref, "v", &version, err);

	return rc ? rc : check_version(version, err);
}

int tmesh_ref_get_id(const json_t *ref, uint64_t *id, struct tmesh_error *err)
{
	const char *text = "";
	int rc = get_string(ref, "id", &text, err);

	return rc ? rc : read_id(text, id, err);
}

/* Read the token. A description is a ref without one. */
int tmesh_ref_get_token(const json_t *ref, char *token, struct tmesh_error *err)
{
	const char *text = "";
	int rc;

	token[0] = '\0';
	if (!json_object_get(ref, "token"))
		return 0;
	rc = get_string(ref, "token", &text, err);
	return rc ? rc : read_token(text, token, err);
}

static int read_dtype(const char *name, enum tmesh_dtype *dtype, struct tmesh_error *err)
{
	*dtype = tmesh_dtype_from_name(name);
	if (*dtype != TMESH_DTYPE_INVALID)
		return 0;
	/* The name is a stranger's: repeat it only where it cannot upset a terminal. */
	if (strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(name))
		name = "";
	return tmesh_fail(err, -EPROTO, "the ref's \"dtype\" is unknown: \"%.32s\"", name);
}

static int read_device(const char *name, struct tmesh_layout *layout, struct tmesh_error *err)
{
	const char *digits;
	size_t count;
	long number;

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

/* Check everything that does not depend on how the members were read. */
static int read_members(const struct tmesh_ref_members *m, struct tmesh_ref *ref,
			struct tmesh_error *err)
{
	struct tmesh_layout *layout = &ref->layout;
	int rc;

	if (!m->id || !m->dtype || !m->device)
		return no_member(!m->id ? "id" : !m->dtype ? "dtype" : "device", err);
	if (!m->shape || !m->strides)
		return no_member(!m->shape ? "shape" : "strides", err);
	if (m->shape_count > TMESH_MAX_DIMS || m->strides_count > TMESH_MAX_DIMS)
		return too_long(m->shape_count > TMESH_MAX_DIMS ? "shape" : "strides", err);
	rc = check_version(m->v, err);
	if (!rc)
		rc = read_id(m->id, &ref->id, err);
	if (!rc && m->token)
		rc = read_token(m->token, ref->token, err);
	if (!rc)
		rc = read_dtype(m->dtype, &layout->dtype, err);
	if (!rc)
		rc = read_device(m->device, layout, err);
	if (rc)
		return rc;
	if (m->shape_count != m->strides_count)
		return tmesh_fail(err, -EPROTO, "the ref has %zu dimensions, but %zu strides",
				  m->shape_count, m->strides_count);
	layout->offset = m->offset;
	layout->ndim = (int32_t)m->shape_count;
	memcpy(layout->shape, m->shape, m->shape_count * sizeof(*m->shape));
	memcpy(layout->strides, m->strides, m->strides_count * sizeof(*m->strides));
	ref->byte_size = m->byte_size;
	return check_numbers(ref, -EPROTO, err);
}

int tmesh_ref_from_members(const struct tmesh_ref_members *members, struct tmesh_ref *ref,
			   struct tmesh_error *err)
{
	struct tmesh_ref_members m;
	struct tmesh_ref read = {0};
	int rc = TMESH_NEED(err, members, ref);

	if (!rc)
		rc = tmesh_read_sized(&m, sizeof(m), members, err);
	if (!rc)
		rc = read_members(&m, &read, err);
	if (!rc)
		*ref = read;
	return rc;
}

/* Read members of the right types; read_members() checks the rest. */
static int read_ref(const json_t *json, struct tmesh_ref *ref, struct tmesh_error *err)
{
	int64_t shape[TMESH_MAX_DIMS], strides[TMESH_MAX_DIMS];
	struct tmesh_ref_members m = {.shape = shape, .strides = strides};
	int rc;

	if (!json_is_object(json))
		return tmesh_fail(err, -EPROTO, "a ref is a JSON object");
	if (tmesh_ref_is_bundle(json))
		return tmesh_fail(err, -EPROTO, IS_BUNDLE);
	rc = tmesh_ref_get_uint(json, "v", &m.v, err);
	if (!rc)
		rc = check_version(m.v, err);
	if (!rc)
		rc = get_string(json, "id", &m.id, err);
	if (!rc && json_object_get(json, "token"))
		rc = get_string(json, "token", &m.token, err);
	if (!rc)
		rc = tmesh_ref_get_uint(json, "offset", &m.offset, err);
	if (!rc)
		rc = tmesh_ref_get_uint(json, "byte_size", &m.byte_size, err);
	if (!rc)
		rc = get_list(json, "shape", shape, &m.shape_count, err);
	if (!rc)
		rc = get_string(json, "dtype", &m.dtype, err);
	if (!rc)
		rc = get_list(json, "strides", strides, &m.strides_count, err);
	if (!rc)
		rc = get_string(json, "device", &m.device, err);
	return rc ? rc : read_members(&m, ref, err);
}

static bool begins_as_object(const char *text, size_t bytes)
{
	size_t i = 0;

	while (i < bytes && strchr(" \t\r\n", text[i]))
		i++;
	return i < bytes && text[i] == '{';
}

int tmesh_ref_load(const char *text, size_t bytes, json_t **out, struct tmesh_error *err)
{
	json_error_t where;
	const char *end;

	*out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
	if (*out)
		return 0;
	/* jansson's own text may quote the input, which is a stranger's. */
	if (json_error_code(&where) == json_error_out_of_memory)
		return tmesh_fail(err, -ENOMEM, "no memory to read a ref");
	if (json_error_code(&where) == json_error_duplicate_key)
		return tmesh_fail(err, -EPROTO, "a member of the ref appears twice");
	if (bytes > 3 && !memcmp(text, "tm1", 3))
		return tmesh_fail(err, -EPROTO,
				  "this is a token, not a ref, which begins with {. A tensor or a "
				  "bundle is opened by its ref: " TMESH_OTHER_TOKENS);
	end = bytes ? memchr(text, '\0', bytes) : NULL;
	if (end)
		return tmesh_fail(err, -EPROTO,
				  "byte %zu of the ref's %zu is a zero, which ends its text: give "
				  "its length, strlen(), and not the size of its place",
				  (size_t)(end - text), bytes);
	if (!begins_as_object(text, bytes))
		return tmesh_fail(err, -EPROTO,
				  "the ref is not JSON: a ref is an object, which begins with {");
	return tmesh_fail(err, -EPROTO, "the ref is not JSON from byte %d on", where.position);
}

bool tmesh_ref_is_bundle(const json_t *json)
{
	const char *kind = json_string_value(json_object_get(json, "kind"));

	return kind && !strcmp(kind, "bundle");
}

/* Return whether a text longer than any tensor's ref is a bundle's, given to the wrong call. */
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
	int rc = TMESH_NEED(err, text, ref);

	if (rc)
		return rc;
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
