// SPDX-License-Identifier: MIT
/* Refs: a written ref is read back; everything else is refused with a reason. */
#include "unit.h"

#define TOKEN "tm1k-00112233445566778899aabbccddeeff"
#define HEAD "{\"v\":1,\"id\":\"0123456789abcdef\",\"token\":\"" TOKEN "\","
#define BODY                                                                                       \
	"\"offset\":256,\"byte_size\":24,\"shape\":[2,3],\"dtype\":\"float32\",\"strides\":[3,1]," \
	"\"device\":\"cpu\""
#define REF HEAD BODY "}"

static int decode(const char *text, struct tmesh_ref *ref, struct tmesh_error *err)
{
	/* At the end of a page of its own, so that a sanitizer sees a read too far. */
	char *copy = malloc(strlen(text));
	int rc;

	memcpy(copy, text, strlen(text));
	rc = tmesh_ref_decode(copy, strlen(text), ref, err);
	free(copy);
	return rc;
}

UNIT(test_encode)
{
	struct tmesh_ref ref = {.id = 0x0123456789abcdef, .token = TOKEN, .byte_size = 24};
	char text[TMESH_REF_SIZE];

	assert_ok(tmesh_layout_contiguous(&ref.layout, TMESH_FLOAT32, 2, (int64_t[]){2, 3}, err));
	ref.layout.offset = 256;
	assert_ok(tmesh_ref_encode(&ref, text, sizeof(text), err));
	assert_string_equal(text, REF);

	memset(text, 'x', sizeof(text));
	assert_refused(tmesh_ref_encode(&ref, text, strlen(REF), err), -ENOSPC, "room");
	assert_int_equal(text[0], 'x');
	assert_ok(tmesh_ref_encode(&ref, text, strlen(REF) + 1, err));
}

UNIT(test_encode_longest)
{
	struct tmesh_ref ref = {.id = UINT64_MAX, .byte_size = 0};
	struct tmesh_ref back;
	char text[TMESH_REF_SIZE];

	memset(ref.token, 'f', sizeof(ref.token) - 1);
	ref.layout.dtype = TMESH_FLOAT8_E4M3FN;
	ref.layout.ndim = TMESH_MAX_DIMS;
	for (int i = 0; i < TMESH_MAX_DIMS; i++) {
		ref.layout.shape[i] = i ? INT64_MAX : 0;
		ref.layout.strides[i] = INT64_MIN;
	}
	ref.layout.offset = INT64_MAX;
	ref.layout.device_type = TMESH_DEVICE_CUDA;
	ref.layout.device_id = INT32_MAX;
	assert_ok(tmesh_ref_encode(&ref, text, sizeof(text), err));
	assert_ok(decode(text, &back, err));
	assert_memory_equal(&back, &ref, sizeof(ref));
}

UNIT(test_encode_refused)
{
	struct tmesh_ref good = {.token = TOKEN, .byte_size = 4};
	char text[TMESH_REF_SIZE];
	struct tmesh_ref ref;

	assert_ok(tmesh_layout_contiguous(&good.layout, TMESH_INT8, 1, (int64_t[]){4}, err));
	ref = good;
	ref.token[3] = '"';
	assert_refused(tmesh_ref_encode(&ref, text, sizeof(text), err), -EINVAL, "token");
	ref = good;
	memset(ref.token, 'a', sizeof(ref.token));
	assert_refused(tmesh_ref_encode(&ref, text, sizeof(text), err), -EINVAL, "token");
	ref = good;
	ref.byte_size = 5;
	assert_refused(tmesh_ref_encode(&ref, text, sizeof(text), err), -EINVAL, "byte_size");
	ref = good;
	ref.layout.ndim = 9;
	assert_refused(tmesh_ref_encode(&ref, text, sizeof(text), err), -EINVAL, "dimensions");
	ref = good;
	ref.layout.offset = (uint64_t)1 << 63;
	assert_refused(tmesh_ref_encode(&ref, text, sizeof(text), err), -EINVAL, "offset");
}

UNIT(test_decode)
{
	struct tmesh_ref ref;

	assert_ok(decode(REF, &ref, err));
	assert_int_equal(ref.id, 0x0123456789abcdef);
	assert_string_equal(ref.token, TOKEN);
	assert_int_equal(ref.byte_size, 24);
	assert_int_equal(ref.layout.dtype, TMESH_FLOAT32);
	assert_int_equal(ref.layout.ndim, 2);
	assert_int_equal(ref.layout.shape[1], 3);
	assert_int_equal(ref.layout.strides[0], 3);
	assert_int_equal(ref.layout.offset, 256);
	assert_int_equal(ref.layout.device_type, TMESH_DEVICE_CPU);

	assert_ok(decode(HEAD "\"note\":{\"a\":[null]}," BODY "}", &ref, err));
	assert_ok(decode(" \n{\"v\":1,\"id\":\"0123456789ABCDEF\"," BODY "}\n", &ref, err));
	assert_string_equal(ref.token, "");
}

UNIT(test_decode_refused)
{
#define WITH(offset, bytes, shape, dtype, strides, device)                                        \
	HEAD "\"offset\":" offset ",\"byte_size\":" bytes ",\"shape\":" shape ",\"dtype\":" dtype \
	     ",\"strides\":" strides ",\"device\":" device "}"
#define F32 "\"float32\""
#define CPU "\"cpu\""
	static const struct {
		const char *text, *word;
	} bad[] = {
		{"", "begins with {"},
		{" \n", "begins with {"},
		{"garbage", "begins with {"},
		{"{", "not JSON from byte 1 on"},
		{" {", "not JSON from byte 2 on"},
		{REF "x", "not JSON"},
		{REF REF, "not JSON"},
		{"tm1k-0123456789abcdef0123456789abcdef", "tmesh_slot_open()"},
		{"[]", "object"},
		{"{}", "has no \"v\""},
		{"{\"v\":\"1\"," BODY "}", "\"v\""},
		{"{\"v\":1.0," BODY "}", "\"v\""},
		{"{\"v\":2," BODY "}", "version 2"},
		{"{\"v\":1," BODY "}", "has no \"id\""},
		{"{\"v\":1,\"id\":7," BODY "}", "\"id\""},
		{"{\"v\":1,\"id\":\"0x23456789abcdef\"," BODY "}", "hex"},
		{"{\"v\":1,\"id\":\"0123456789abcdef0\"," BODY "}", "hex"},
		{"{\"v\":1,\"id\":\"0123456789abcdef-\"," BODY "}", "hex"},
		{"{\"v\":1,\"id\":\"0123456789abcdef\",\"token\":null," BODY "}", "\"token\""},
		{"{\"v\":1,\"id\":\"0123456789abcdef\",\"token\":\"a/b\"," BODY "}", "\"token\""},
		{HEAD BODY ",\"offset\":256}", "twice"},
		{HEAD BODY ",\"x\":\"\\u0000\"}", "not JSON"},
		{HEAD BODY ",\"x\":\"\xff\"}", "not JSON"},
		{HEAD "\"byte_size\":24,\"shape\":[2,3]}", "has no \"offset\""},
		{HEAD "\"offset\":0,\"byte_size\":24}", "has no \"shape\""},
		{HEAD "\"offset\":0,\"byte_size\":24,\"shape\":[2],\"dtype\":\"int8\"}",
		 "has no \"strides\""},
		{WITH("-1", "24", "[2,3]", F32, "[3,1]", CPU), "\"offset\""},
		{WITH("1e3", "24", "[2,3]", F32, "[3,1]", CPU), "\"offset\""},
		{WITH("9223372036854775808", "24", "[2,3]", F32, "[3,1]", CPU), "not JSON"},
		{WITH("true", "24", "[2,3]", F32, "[3,1]", CPU), "\"offset\""},
		{WITH("0", "\"24\"", "[2,3]", F32, "[3,1]", CPU), "\"byte_size\""},
		{WITH("0", "25", "[2,3]", F32, "[3,1]", CPU), "byte_size is 25"},
		{WITH("0", "24", "6", F32, "[3,1]", CPU), "\"shape\""},
		{WITH("0", "24", "[2,\"3\"]", F32, "[3,1]", CPU), "\"shape\""},
		{WITH("0", "24", "[2,-3]", F32, "[3,1]", CPU), "negative"},
		{WITH("0", "4", "[1,1,1,1,1,1,1,1,1]", F32, "[1]", CPU), "\"shape\""},
		{WITH("0", "24", "[2,3]", F32, "[3]", CPU), "strides"},
		{WITH("0", "24", "[2,3]", F32, "null", CPU), "\"strides\""},
		{WITH("0", "24", "[4611686018427387904,3]", F32, "[3,1]", CPU), "2^63"},
		{WITH("0", "24", "[2,3]", F32, "[4611686018427387904,1]", CPU), "2^63"},
		{WITH("0", "24", "[2,3]", "\"f32\"", "[3,1]", CPU), "\"f32\""},
		{WITH("0", "24", "[2,3]", "\"\\u001b[31m\"", "[3,1]", CPU), "unknown: \"\""},
		{WITH("0", "24", "[2,3]", "4", "[3,1]", CPU), "\"dtype\""},
		{WITH("0", "24", "[2,3]", F32, "[3,1]", "\"gpu\""), "\"device\""},
		{WITH("0", "24", "[2,3]", F32, "[3,1]", "\"cuda\""), "\"device\""},
		{WITH("0", "24", "[2,3]", F32, "[3,1]", "\"cuda:\""), "\"device\""},
		{WITH("0", "24", "[2,3]", F32, "[3,1]", "\"cuda:-1\""), "\"device\""},
		{WITH("0", "24", "[2,3]", F32, "[3,1]", "\"cuda:1x\""), "\"device\""},
		{WITH("0", "24", "[2,3]", F32, "[3,1]", "\"cuda:4294967296\""), "\"device\""},
		/* Below 2^31 again, were it cut to 64 bits. */
		{WITH("0", "24", "[2,3]", F32, "[3,1]", "\"cuda:18446744073709551617\""),
		 "\"device\""},
		{WITH("0", "24", "[2,3]", F32, "[3,1]", "0"), "\"device\""},
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct tmesh_ref ref = {.id = 42};

		assert_refused(decode(bad[i].text, &ref, err), -EPROTO, bad[i].word);
		assert_int_equal(ref.id, 42);
	}
}

/* Its length is what its text has, not what was kept for it. */
UNIT(test_decode_zero)
{
	char text[TMESH_REF_SIZE] = REF;
	struct tmesh_ref ref;

	assert_refused(tmesh_ref_decode(text, sizeof(text), &ref, err), -EPROTO, "strlen()");
	assert_refused(tmesh_ref_decode(text, strlen(text) + 1, &ref, err), -EPROTO, "strlen()");
	assert_ok(tmesh_ref_decode(text, strlen(text), &ref, err));
}

UNIT(test_decode_limits)
{
	char text[TMESH_REF_SIZE + 2], *longest;
	struct tmesh_ref ref;
	int start;

	/* Padded to the limit it is read, beyond it is not. */
	snprintf(text, sizeof(text), "%-*s", TMESH_REF_SIZE, REF);
	assert_ok(decode(text, &ref, err));
	snprintf(text, sizeof(text), "%-*s", TMESH_REF_SIZE + 1, REF);
	assert_refused(decode(text, &ref, err), -EPROTO, "at most");

	/* So many dimensions that they would reach far beyond what is kept for them. */
	start = snprintf(text, sizeof(text), HEAD "\"offset\":0,\"byte_size\":1,\"shape\":[1");
	while (start < TMESH_REF_SIZE - 2)
		start += snprintf(text + start, sizeof(text) - (size_t)start, ",1");
	snprintf(text + start, sizeof(text) - (size_t)start, "]}");
	assert_refused(decode(text, &ref, err), -EPROTO, "more than 8");

	/* Nor is a bundle's looked at that is longer than any. */
	longest = malloc(TMESH_BUNDLE_MAX_REF + 2);
	snprintf(longest, TMESH_BUNDLE_MAX_REF + 2, "%-*s", TMESH_BUNDLE_MAX_REF + 1,
		 "{\"kind\":\"bundle\"}");
	assert_refused(decode(longest, &ref, err), -EPROTO, "at most");
	longest[TMESH_BUNDLE_MAX_REF] = '\0';
	assert_refused(decode(longest, &ref, err), -EPROTO, "tmesh_bundle_open");
	free(longest);

	memset(text, '[', TMESH_REF_SIZE);
	text[TMESH_REF_SIZE] = '\0';
	assert_refused(decode(text, &ref, err), -EPROTO, "not JSON");
}

/* The members that another decoder has found give the same as the text. */
UNIT(test_members)
{
	static const int64_t shape[] = {2, 3, 1, 1, 1, 1, 1, 1, 1}, strides[] = {3, 1};
	const struct tmesh_ref_members good = {
		.size = sizeof(good),
		.v = 1,
		.id = "0123456789abcdef",
		.token = TOKEN,
		.offset = 256,
		.byte_size = 24,
		.shape = shape,
		.shape_count = 2,
		.dtype = "float32",
		.strides = strides,
		.strides_count = 2,
		.device = "cpu",
	};
	struct tmesh_ref_members bad = good;
	struct tmesh_ref ref = {0}, same = {0};

	assert_ok(decode(REF, &same, err));
	assert_ok(tmesh_ref_from_members(&good, &ref, err));
	assert_memory_equal(&ref, &same, sizeof(ref));
	bad.token = NULL;
	assert_ok(tmesh_ref_from_members(&bad, &ref, err));
	assert_string_equal(ref.token, "");
	ref.id = 42;
#define BAD(member, value, word)                                                        \
	do {                                                                            \
		bad = good;                                                             \
		bad.member = value;                                                     \
		assert_refused(tmesh_ref_from_members(&bad, &ref, err), -EPROTO, word); \
		assert_int_equal(ref.id, 42);                                           \
	} while (0)
	BAD(v, 2, "version 2");
	BAD(id, NULL, "no \"id\"");
	BAD(id, "0123", "hex");
	BAD(token, "a/b", "\"token\"");
	BAD(offset, 1ull << 63, "2^63");
	BAD(byte_size, 25, "byte_size is 25");
	BAD(shape, NULL, "no \"shape\"");
	BAD(shape_count, 9, "more than 8");
	BAD(shape_count, 1, "1 dimensions");
	BAD(dtype, NULL, "no \"dtype\"");
	BAD(dtype, "float31", "\"float31\"");
	BAD(strides, NULL, "no \"strides\"");
	BAD(strides_count, SIZE_MAX, "more than 8");
	BAD(device, NULL, "no \"device\"");
	BAD(device, "tpu", "\"device\"");
	bad = good;
	bad.size = 0;
	assert_refused(tmesh_ref_from_members(&bad, &ref, err), -EINVAL, "size");
}

UNIT_MAIN("ref", NULL, NULL)
