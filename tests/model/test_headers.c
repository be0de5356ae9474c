// SPDX-License-Identifier: MIT
/* The contents of headers, and the refused ones: each guard has a file here that only it refuses.
 */
#include "unit.h"

#include <limits.h>
#include <malloc.h>

#include "files/model_internal.h"

static char folder[64];

static unsigned long compared; /* texts; the sanitizers have a function of their own */

#ifndef __SANITIZE_ADDRESS__
int strcmp(const char *left, const char *right)
{
	compared++;
	while (*left && *left == *right) {
		left++;
		right++;
	}
	return (unsigned char)*left - (unsigned char)*right;
}
#endif

static void write_file(const char *name, const void *data, size_t bytes)
{
	char path[160];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, bytes), bytes);
	close(fd);
}

/* A safetensors file of @json and @bytes zeros. */
static uint8_t *st(const char *json, size_t bytes, size_t *size)
{
	uint64_t length = strlen(json);
	uint8_t *file = calloc(1, 8 + length + bytes);

	memcpy(file, &length, 8);
	memcpy(file + 8, json, length);
	*size = 8 + length + bytes;
	return file;
}

static int parse_st(const char *json, size_t bytes, struct tmesh_model **model,
		    struct tmesh_error *err)
{
	size_t size;
	uint8_t *file = st(json, bytes, &size);
	uint64_t need;
	int rc = tmesh_model_parse(file, size, size, model, &need, err);

	free(file);
	return rc;
}

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"

UNIT(test_safetensors)
{
	struct tmesh_model_tensor tensor = {.size = sizeof(tensor)};
	struct tmesh_model_value value = {.size = sizeof(value)};
	struct tmesh_model *model;
	size_t index;
	char *text;

	/* Listed by place, whatever the header's order; padded behind. */
	assert_ok(parse_st("{\"b\":{\"dtype\":\"F8_E8M0\",\"shape\":[],\"data_offsets\":[8,9]},"
			   "\"__metadata__\":{\"format\":\"pt\"}," A "}   ",
			   9, &model, err));
	assert_int_equal(tmesh_model_format(model), TMESH_MODEL_SAFETENSORS);
	assert_int_equal(tmesh_model_tensors(model), 2);
	assert_ok(tmesh_model_tensor(model, 0, &tensor, err));
	assert_string_equal(tensor.name, "a");
	assert_int_equal(tensor.dtype, TMESH_FLOAT32);
	assert_int_equal(tensor.bytes, 8);
	assert_ok(tmesh_model_find(model, "b", &index, err));
	assert_int_equal(index, 1);
	assert_ok(tmesh_model_tensor(model, 1, &tensor, err));
	assert_string_equal(tensor.type, "F8_E8M0");
	assert_int_equal(tensor.dtype, TMESH_DTYPE_INVALID);
	assert_int_equal(tensor.ndim, 0);
	assert_refused(tmesh_model_tensor(model, 2, &tensor, err), -EINVAL, "2 tensors");
	assert_refused(tmesh_model_find(model, "c", &index, err), -ENOENT, "\"c\"");
	assert_int_equal(tmesh_model_values(model), 1);
	assert_ok(tmesh_model_value(model, 0, &value, err));
	assert_string_equal(value.key, "format");
	assert_refused(tmesh_model_value(model, 1, &value, err), -EINVAL, "metadata");
	assert_ok(tmesh_model_metadata_json(model, 0, &text, err));
	assert_string_equal(text, "{\"format\":\"pt\"}");
	free(text);
	tmesh_model_unref(model);
	assert_ok(parse_st("{\"__metadata__\":{\"k\":\"a\\u0000b\"}}", 0, &model, err));
	assert_ok(tmesh_model_metadata_json(model, 0, &text, err));
	assert_string_equal(text, "{\"k\":\"a\\u0000b\"}");
	free(text);
	tmesh_model_unref(model);
}

UNIT(test_safetensors_refused)
{
	static const struct {
		const char *begins;
		const char *word;
	} others[] = {
		{"version https://git-lfs", "git lfs pull"},
		{"PK\3\4\0\0\10\10\0\0\0\0\0\0\0\0", "torch.save()"},
		{"\x80\2\x8a\nl\xfc\x9c"
		 "F\xf9 j\xa8P\x19.\x80",
		 "pickle"},
		{"\x93NUMPY\1\0v\0{'desc", "numpy.save()"},
		{"\x89HDF\r\n\32\n\0\0\0\0\0\10\10", "HDF5"},
		{"<!DOCTYPE html>\n", "neither a safetensors nor a GGUF file"},
	};
	static const struct {
		const char *json;
		size_t bytes;
		int code;
		const char *word;
	} bad[] = {
		{" {" A "}", 8, -EPROTO, "does not begin with"},
		{"{" A, 8, -EPROTO, "not JSON"},
		{"{" A "}x", 8, -EPROTO, "not JSON"},
		{"{" A "," A "}", 8, -EPROTO, "duplicate"},
		{"{" A "}", 9, -EPROTO, "1 bytes that belong to no tensor"},
		{"{" A "}", 7, -EPROTO, "beyond the end"},
		{"{\"a\":[]}", 0, -EPROTO, "not described"},
		{"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, -EPROTO, "no dtype"},
		{"{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, -EPROTO,
		 "F33"},
		{"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, -EPROTO, "no shape"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, -EPROTO,
		 "dimension"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[-0,1],\"data_offsets\":[0,0]}}", 0, -EPROTO,
		 "negative"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}",
		 4, -EOPNOTSUPP, "9 dimensions"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, -EPROTO,
		 "two numbers"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,0]}}", 8, -EPROTO,
		 "two numbers"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8,
		 -EPROTO, "members beside"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,"
		 "0]}}",
		 0, -EPROTO, "overflows"},
		{"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}"
		 "}",
		 0, -EPROTO, "overflows"},
		{"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, -EPROTO,
		 "whole bytes"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, -EPROTO,
		 "needs 8"},
		{"{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[7,8]}}", 8,
		 -EPROTO, "overlaps"},
		{"{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[9,10]}}", 10,
		 -EPROTO, "hole"},
		{"{\"__metadata__\":[]}", 0, -EPROTO, "not an object"},
		{"{\"__metadata__\":{\"k\":1}}", 0, -EPROTO, "\"k\""},
		{"{\"a\\u001bb\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
		 -EPROTO, "control characters"},
		{"{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, -EPROTO,
		 "is empty"},
		{"{\"a\\u0000b\":1}", 0, -EPROTO, "not JSON"},
		{"{\"__metadata__\":{\"k\\u0000\":\"a\"}}", 0, -EPROTO, "not JSON"},
		{"{\"a\":{\"dtype\":\"F32\\u0000x\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
		 -EPROTO, "unknown dtype"},
		{"{\"a\x1b[2J\":1}", 0, -EPROTO, "not JSON"},
	};
	struct tmesh_model *model;
	uint64_t need;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_refused(parse_st(bad[i].json, bad[i].bytes, &model, err), bad[i].code,
			       bad[i].word);
	assert_refused(tmesh_model_parse("\1\0\0\0\0", 5, 5, &model, &need, err), -EPROTO,
		       "5 bytes");
	assert_refused(tmesh_model_parse("\1\0\0\0\0", 5, 3, &model, &need, err), -EINVAL,
		       "more bytes");
	assert_refused(tmesh_model_parse("\1\xe1\xf5\5\0\0\0\0", 8, 1u << 30, &model, &need, err),
		       -EPROTO, "100000000 are the most");
	/* Files that are most often mistaken for such a file, by their kind. */
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
		assert_refused(tmesh_model_parse(others[i].begins, 16, 1000, &model, &need, err),
			       -EPROTO, others[i].word);
	assert_refused(tmesh_model_parse("\x10\0\0\0\0\0\0\0", 8, 20, &model, &need, err), -EPROTO,
		       "only 12");
	assert_refused(tmesh_model_parse("\x10\0\0\0\0\0\0\0", 8, 24, &model, &need, err), -EAGAIN,
		       "24");
	assert_int_equal(need, 24);
	assert_refused(tmesh_model_parse("\0\0\0\0\0\0\0\0", 8, 8, &model, &need, err), -EPROTO,
		       "begin");
}

/* GGUF is written by these. */
struct gguf {
	uint8_t data[4096];
	size_t bytes;
};

static void put(struct gguf *file, uint64_t value, unsigned int bytes)
{
	memcpy(file->data + file->bytes, &value, bytes);
	file->bytes += bytes;
}

static void put_text(struct gguf *file, const char *text)
{
	put(file, strlen(text), 8);
	memcpy(file->data + file->bytes, text, strlen(text));
	file->bytes += strlen(text);
}

static void put_head(struct gguf *file, uint64_t tensors, uint64_t values)
{
	memset(file, 0, sizeof(*file));
	memcpy(file->data, "GGUF", 4);
	file->bytes = 4;
	put(file, 3, 4);
	put(file, tensors, 8);
	put(file, values, 8);
}

static void put_u32(struct gguf *file, const char *key, uint32_t type, uint64_t value,
		    unsigned int bytes)
{
	put_text(file, key);
	put(file, type, 4);
	put(file, value, bytes);
}

static void put_tensor(struct gguf *file, const char *name, uint64_t dim, uint32_t type,
		       uint64_t offset)
{
	put_text(file, name);
	put(file, 1, 4);
	put(file, dim, 8);
	put(file, type, 4);
	put(file, offset, 8);
}

static int parse_gguf(struct gguf *file, size_t data, size_t alignment, struct tmesh_model **model,
		      struct tmesh_error *err)
{
	size_t size = (file->bytes + alignment - 1) / alignment * alignment + data;
	uint64_t need;

	return tmesh_model_parse(file->data, size, size, model, &need, err);
}

UNIT(test_gguf)
{
	struct tmesh_model_tensor tensor = {.size = sizeof(tensor)};
	struct tmesh_model *model;
	struct gguf file;
	char *text;

	put_head(&file, 2, 6);
	put_u32(&file, "general.alignment", TMESH_MODEL_UINT32, 64, 4);
	put_u32(&file, "b", TMESH_MODEL_BOOL, 1, 1);
	put_text(&file, "words");
	put(&file, TMESH_MODEL_ARRAY, 4);
	put(&file, TMESH_MODEL_STRING, 4);
	put(&file, 2, 8);
	put_text(&file, "x");
	put_text(&file, "\xff");
	put_u32(&file, "u", TMESH_MODEL_UINT64, UINT64_MAX, 8);
	put_u32(&file, "nan", TMESH_MODEL_FLOAT32, 0x7fc00000, 4);
	put_u32(&file, "i", TMESH_MODEL_INT8, (uint8_t)-3, 1);
	put_tensor(&file, "q", 64, 2, 0);
	put_text(&file, "m");
	put(&file, 2, 4);
	put(&file, 3, 8);
	put(&file, 5, 8);
	put(&file, 0, 4);
	put(&file, 64, 8);
	assert_ok(parse_gguf(&file, 64 + 60, 64, &model, err));
	assert_ok(tmesh_model_tensor(model, 0, &tensor, err));
	assert_string_equal(tensor.type, "Q4_0");
	assert_int_equal(tensor.dtype, TMESH_DTYPE_INVALID);
	assert_int_equal(tensor.block_elements, 32);
	assert_int_equal(tensor.block_bytes, 18);
	assert_int_equal(tensor.bytes, 36);
	assert_int_equal(tensor.shape[0], 64);
	assert_int_equal(tensor.file_offset % 64, 0);
	assert_ok(tmesh_model_tensor(model, 1, &tensor, err));
	assert_int_equal(tensor.shape[0], 5);
	assert_int_equal(tensor.shape[1], 3);
	assert_ok(tmesh_model_metadata_json(model, 0, &text, err));
	assert_string_equal(
		text, "{\"general.alignment\":64,\"b\":true,\"words\":[\"x\",\"\xef\xbf\xbd\"],"
		      "\"u\":1.8446744073709552e19,\"nan\":null,\"i\":-3}");
	free(text);
	assert_ok(tmesh_model_metadata_json(model, 1, &text, err));
	assert_non_null(strstr(text, "[\"x\",null]"));
	free(text);
	tmesh_model_unref(model);
	/* The last tensor's padding may be there or not, half of it too; more is a hole. */
	assert_ok(parse_gguf(&file, 128, 64, &model, err));
	tmesh_model_unref(model);
	assert_refused(parse_gguf(&file, 129, 64, &model, err), -EPROTO,
		       "1 bytes that belong to no");
	assert_refused(parse_gguf(&file, 123, 64, &model, err), -EPROTO, "beyond the end");
}

/* Bytes that Jansson has allocated, now and at most */
static size_t held, held_most;

static void *count_malloc(size_t bytes)
{
	void *memory = malloc(bytes);

	held += malloc_usable_size(memory);
	held_most = held > held_most ? held : held_most;
	return memory;
}

static void count_free(void *memory)
{
	held -= malloc_usable_size(memory);
	free(memory);
}

/* A long array becomes text a part at a time: an element takes no memory of its own. */
UNIT(test_long_array)
{
	enum {
		MANY = 100000
	};
	struct tmesh_model *model;
	uint8_t *data = calloc(1, sizeof(struct gguf) + MANY);
	struct gguf file;
	uint64_t need;
	size_t bytes;
	char *text;

	put_head(&file, 0, 1);
	put_text(&file, "k");
	put(&file, TMESH_MODEL_ARRAY, 4);
	put(&file, TMESH_MODEL_UINT8, 4);
	put(&file, MANY, 8);
	bytes = file.bytes + MANY;
	assert_non_null(data);
	memcpy(data, file.data, file.bytes);
	data[bytes - 1] = 7;
	assert_ok(tmesh_model_parse(data, bytes, bytes, &model, &need, err));
	json_set_alloc_funcs(count_malloc, count_free);
	held = held_most = 0;
	assert_ok(tmesh_model_metadata_json(model, 0, &text, err));
	assert_in_range(held_most, 1, MANY);
	assert_int_equal(held, 0);
	json_set_alloc_funcs(malloc, free);
	assert_int_equal(strlen(text), strlen("{\"k\":[]}") + 2 * MANY - 1);
	assert_memory_equal(text, "{\"k\":[0,0,", 10);
	assert_string_equal(text + strlen(text) - 8, ",0,0,7]}");
	for (size_t i = 6; i < 6 + 2 * MANY - 2; i += 2)
		assert_memory_equal(text + i, "0,", 2);
	free(text);
	/* As many bytes as there are, and one fewer. */
	assert_ok(model_metadata_text(model, 0, 2 * MANY + 7, &text, err));
	free(text);
	assert_refused(model_metadata_text(model, 0, 2 * MANY + 6, &text, err), -EINVAL,
		       "200006 bytes");
	assert_ok(model_metadata_text(model, 3, 20, &text, err));
	assert_string_equal(text, "{\"k\":[0,0,0,null]}");
	free(text);
	/* Elements that cannot fit are counted, and not read. */
	held_most = 0;
	json_set_alloc_funcs(count_malloc, count_free);
	assert_refused(model_metadata_text(model, 0, MANY, &text, err), -EINVAL, "100000 bytes");
	json_set_alloc_funcs(malloc, free);
	assert_int_equal(held_most, 0);
	tmesh_model_unref(model);
	free(data);
}

static void refuse_value(uint32_t type, uint64_t value, unsigned int bytes, const char *key,
			 int code, const char *word)
{
	struct tmesh_model *model;
	struct gguf file;

	put_head(&file, 0, 1);
	put_u32(&file, key, type, value, bytes);
	assert_refused(parse_gguf(&file, 0, 1, &model, err), code, word);
}

static void refuse_tensor(const char *name, uint64_t dim, uint32_t type, uint64_t offset,
			  size_t data, const char *word)
{
	struct tmesh_model *model;
	struct gguf file;

	put_head(&file, 1, 0);
	put_tensor(&file, name, dim, type, offset);
	assert_refused(parse_gguf(&file, data, 32, &model, err), -EPROTO, word);
}

UNIT(test_gguf_refused)
{
	char name[70];
	struct tmesh_model *model;
	struct gguf file;
	uint64_t need;

	refuse_value(13, 0, 8, "k", -EPROTO, "unknown type");
	refuse_value(TMESH_MODEL_BOOL, 2, 1, "k", -EPROTO, "neither 0 nor 1");
	refuse_value(TMESH_MODEL_UINT8, 2, 1, "", -EPROTO, "a key has 0 bytes");
	refuse_value(TMESH_MODEL_UINT8, 2, 1, "\xc0\x80", -EPROTO, "UTF-8");
	refuse_value(TMESH_MODEL_STRING, UINT64_MAX, 8, "k", -EPROTO, "ends within a string");
	refuse_value(TMESH_MODEL_UINT32, 48, 4, "general.alignment", -EPROTO, "power of two");
	refuse_value(TMESH_MODEL_UINT32, 4, 4, "general.alignment", -EPROTO, "power of two");
	refuse_value(TMESH_MODEL_UINT32, 1u << 21, 4, "general.alignment", -EPROTO, "power of two");
	refuse_value(TMESH_MODEL_UINT64, 64, 8, "general.alignment", -EPROTO, "uint32");
	refuse_value(TMESH_MODEL_UINT8, 1, 1, "split.no", -EPROTO, "another type");
	refuse_value(TMESH_MODEL_INT32, (uint32_t)-1, 4, "split.tensors.count", -EPROTO,
		     "negative");
	refuse_tensor("", 1, 0, 0, 4, "a tensor's name has 0");
	memset(name, 'n', sizeof(name));
	name[65] = 0;
	refuse_tensor(name, 1, 0, 0, 4, "a tensor's name has 65");
	refuse_tensor("t", 1, 4, 0, 4, "unknown type 4");
	refuse_tensor("t", 1, 99, 0, 4, "unknown type 99");
	refuse_tensor("t", 33, 2, 0, 64, "blocks of 32");
	refuse_tensor("t", (uint64_t)INT64_MAX + 1, 0, 0, 4, "out of range");
	refuse_tensor("t", INT64_MAX, 0, 0, 4, "overflows");
	refuse_tensor("t", 1, 0, 32, 36, "hole");
	refuse_tensor("t", 1, 0, 0, 3, "beyond the end");
	refuse_tensor("t", INT64_MAX / 4, 0, 0, 4, "beyond the end");

	put_head(&file, 2, 0);
	put_tensor(&file, "t", 1, 0, 0);
	put_tensor(&file, "t", 1, 0, 32);
	assert_refused(parse_gguf(&file, 64, 32, &model, err), -EPROTO, "there twice");
	put_head(&file, 2, 0);
	put_tensor(&file, "t", 16, 0, 0);
	put_tensor(&file, "u", 1, 0, 32);
	assert_refused(parse_gguf(&file, 96, 32, &model, err), -EPROTO, "overlaps");
	put_head(&file, 0, 2);
	put_u32(&file, "k", TMESH_MODEL_UINT8, 1, 1);
	put_u32(&file, "k", TMESH_MODEL_UINT8, 1, 1);
	assert_refused(parse_gguf(&file, 0, 1, &model, err), -EPROTO, "there twice");
	put_head(&file, 1, 0);
	put_text(&file, "t");
	put(&file, 5, 4);
	assert_refused(parse_gguf(&file, 64, 32, &model, err), -EPROTO, "5 dimensions");
	put_head(&file, 0, 1);
	put_text(&file, "k");
	put(&file, TMESH_MODEL_ARRAY, 4);
	put(&file, TMESH_MODEL_ARRAY, 4);
	put(&file, 1, 8);
	assert_refused(parse_gguf(&file, 64, 32, &model, err), -EOPNOTSUPP, "array of arrays");
	put_head(&file, 0, 1);
	put_text(&file, "k");
	put(&file, TMESH_MODEL_ARRAY, 4);
	put(&file, TMESH_MODEL_UINT64, 4);
	put(&file, UINT64_MAX / 4, 8);
	assert_refused(parse_gguf(&file, 64, 32, &model, err), -EPROTO, "overflows");
	put_head(&file, TMESH_BUNDLE_MAX_TENSORS + 1ull, 0);
	assert_refused(
		tmesh_model_parse(file.data, file.bytes, UINT64_C(1) << 40, &model, NULL, err),
		-EOPNOTSUPP, "1048576 are the most");
	put_head(&file, UINT64_MAX, 0);
	assert_refused(parse_gguf(&file, 64, 32, &model, err), -EPROTO, "do not fit");
	put_head(&file, 0, UINT64_MAX);
	assert_refused(parse_gguf(&file, 64, 32, &model, err), -EPROTO, "do not fit");
	put_head(&file, 0, 0);
	assert_refused(parse_gguf(&file, 9, 32, &model, err), -EPROTO, "belong to no tensor");
	file.data[4] = 2;
	assert_refused(parse_gguf(&file, 0, 1, &model, err), -EOPNOTSUPP, "version 2");
	memcpy(file.data + 4, "\0\0\0\3", 4);
	assert_refused(parse_gguf(&file, 0, 1, &model, err), -EOPNOTSUPP, "big-endian");
	/* A header's promise counts only as far as the file goes. */
	put_head(&file, 0, 1);
	put_text(&file, "k");
	put(&file, TMESH_MODEL_STRING, 4);
	put(&file, 1ull << 40, 8);
	assert_refused(tmesh_model_parse(file.data, file.bytes, 1ull << 41, &model, &need, err),
		       -EPROTO, "more than 1073741824");
}

static int describe(const char *name, struct tmesh_model **model, struct tmesh_error *err)
{
	char path[160];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return tmesh_model_describe(path, NULL, model, err);
}

static void write_st(const char *name, const char *json, size_t bytes)
{
	size_t size;
	uint8_t *file = st(json, bytes, &size);

	write_file(name, file, size);
	free(file);
}

#define B "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}"
#define INDEX "model.safetensors.index.json"

static void write_index(const char *map)
{
	char text[256];

	snprintf(text, sizeof(text), "{\"metadata\":{\"total_size\":9},\"weight_map\":%s}", map);
	write_file(INDEX, text, strlen(text));
}

/* A file that is there and cannot be looked at does not count as missing. */
static void test_folder_that_hides(void)
{
	char path[160], far[PATH_MAX];
	struct tmesh_model *model;
	size_t at;

	snprintf(path, sizeof(path), "%s/model.safetensors", folder);
	assert_int_equal(symlink("nowhere", path), 0);
	assert_refused(describe("", &model, err), -ENOENT, "opening");
	assert_int_equal(unlink(path), 0);

	at = (size_t)snprintf(far, sizeof(far), "%s", folder);
	while (at + 3 < sizeof(far))
		at += (size_t)snprintf(far + at, sizeof(far) - at, "/.");
	assert_refused(tmesh_model_describe(far, NULL, &model, err), -ENAMETOOLONG, "looking for");
}

static int make_folder(void **state)
{
	strcpy(folder, "/tmp/tmesh-model-XXXXXX");
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
	char command[96];

	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command);
}

UNIT_ADD(test_sharded, make_folder, remove_folder)
{
	struct tmesh_model_tensor tensor = {.size = sizeof(tensor)};
	struct tmesh_model *model;
	unsigned int fds = unit_open_fds();
	uint64_t bytes;

	assert_refused(describe("", &model, err), -ENOENT, "neither model.safetensors nor");
	assert_refused(describe("", &model, err), -ENOENT, folder);
	test_folder_that_hides();
	write_st("s1", "{" A "}", 8);
	write_st("s2", "{" B "}", 1);
	write_index("{\"b\":\"s2\",\"a\":\"s1\"}");
	assert_ok(describe("", &model, err));
	assert_int_equal(tmesh_model_files(model), 2);
	assert_non_null(strstr(tmesh_model_file(model, 1, &bytes), "/s2"));
	assert_ok(tmesh_model_tensor(model, 1, &tensor, err));
	assert_string_equal(tensor.name, "b");
	assert_int_equal(tensor.file, 1);
	tmesh_model_unref(model);

	write_index("{\"b\":\"../s2\"}");
	assert_refused(describe(INDEX, &model, err), -EPROTO, "same folder");
	write_index("{\"b\":\"..\"}");
	assert_refused(describe(INDEX, &model, err), -EPROTO, "same folder");
	write_index("{\"b\":\"s3\"}");
	assert_refused(describe(INDEX, &model, err), -ENOENT, "s3");
	/* The missing file of a folder is one that its index names, not the index. */
	assert_refused(describe("", &model, err), -ENOENT, "/s3: No such file");
	write_index("{\"b\":\"s2\",\"c\":\"s2\"}");
	assert_refused(describe(INDEX, &model, err), -EPROTO, "which lacks it");
	write_index("{\"b\":\"s1\",\"a\":\"s2\"}");
	assert_refused(describe(INDEX, &model, err), -EPROTO, "puts elsewhere");
	write_st("s2",
		 "{" B ","
		 "\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
		 1);
	write_index("{\"b\":\"s2\",\"a\":\"s1\"}");
	assert_refused(describe(INDEX, &model, err), -EPROTO, "does not name");
	write_st("s2", "{" A "}", 8);
	write_index("{\"b\":\"s2\",\"a\":\"s1\"}");
	assert_refused(describe(INDEX, &model, err), -EPROTO, "is in s1 and in s2");
	write_index("{}");
	assert_refused(describe(INDEX, &model, err), -EPROTO, "no weight_map");
	write_index("{\"a\":\"s1\",\"a\":\"s1\"}");
	assert_refused(describe(INDEX, &model, err), -EPROTO, "duplicate");
	assert_int_equal(unit_open_fds(), fds);
}

#define KEYS 20000

static void write_shard_with_metadata(const char *name, const char *tensor, int first, size_t bytes)
{
	char *text = malloc(KEYS * 32 + 256), *end = text;

	end += sprintf(end, "{\"__metadata__\":{\"same\":\"%s\"", name);
	for (int i = 0; i < KEYS; i++)
		end += sprintf(end, ",\"k%d\":\"%s\"", first + i, name);
	sprintf(end, "},%s}", tensor);
	write_st(name, text, bytes);
	free(text);
}

/* Metadata of many shards: the first file's value counts, and the time does not grow with the
 * square of the number of keys. */
UNIT_ADD(test_sharded_metadata, make_folder, remove_folder)
{
	struct tmesh_model_value value = {.size = sizeof(value)};
	struct tmesh_model *model;
	unsigned long before;

	write_shard_with_metadata("s1", A, 0, 8);
	write_shard_with_metadata("s2", B, KEYS / 2, 1);
	write_index("{\"b\":\"s2\",\"a\":\"s1\"}");
	before = compared;
	assert_ok(describe(INDEX, &model, err));
	assert_true(compared - before < 64 * 2 * KEYS);
	assert_int_equal(tmesh_model_values(model), 1 + KEYS + KEYS / 2);
	for (size_t i = 0; i < tmesh_model_values(model); i += 7) {
		assert_ok(tmesh_model_value(model, i, &value, err));
		assert_memory_equal(value.data, i <= KEYS ? "s1" : "s2", 2);
	}
	tmesh_model_unref(model);
}

static void write_split(int no, int count, int tensors, int said)
{
	struct gguf file;
	char name[64];

	put_head(&file, 1, 3);
	put_u32(&file, "split.no", TMESH_MODEL_UINT16, (uint64_t)said, 2);
	put_u32(&file, "split.count", TMESH_MODEL_UINT16, (uint64_t)count, 2);
	put_u32(&file, "split.tensors.count", TMESH_MODEL_INT32, (uint64_t)tensors, 4);
	snprintf(name, sizeof(name), "t%d", no);
	put_tensor(&file, name, 8, 0, 0);
	snprintf(name, sizeof(name), "m-%05d-of-00002.gguf", no + 1);
	write_file(name, file.data, (file.bytes + 31) / 32 * 32 + 32);
}

#define SPLIT "m-00001-of-00002.gguf"

UNIT_ADD(test_split, make_folder, remove_folder)
{
	struct tmesh_model *model;

	write_split(0, 2, 2, 0);
	write_split(1, 2, 2, 1);
	assert_ok(describe(SPLIT, &model, err));
	assert_int_equal(tmesh_model_files(model), 2);
	assert_int_equal(tmesh_model_tensors(model), 2);
	tmesh_model_unref(model);
	assert_refused(describe("m-00002-of-00002.gguf", &model, err), -EINVAL, "name its first");
	write_split(1, 2, 2, 0);
	assert_refused(describe(SPLIT, &model, err), -EPROTO,
		       "m-00002-of-00002.gguf: its split.no");
	write_split(1, 2, 3, 1);
	assert_refused(describe(SPLIT, &model, err), -EPROTO, "split.tensors.count");
	write_split(0, 2, 3, 0);
	assert_refused(describe(SPLIT, &model, err), -EPROTO, "have 2 tensors");
	write_split(0, 3, 3, 0);
	assert_refused(describe(SPLIT, &model, err), -EPROTO, "not called");
}

UNIT_ADD(test_no_files, make_folder, remove_folder)
{
	struct tmesh_model *model;
	char path[160];

	assert_refused(tmesh_model_describe("", NULL, &model, err), -EINVAL, "no path");
	assert_refused(describe("nothing", &model, err), -ENOENT, "nothing");
	snprintf(path, sizeof(path), "%s/pipe", folder);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_refused(describe("pipe", &model, err), -EINVAL, "not a regular file");
}

UNIT_MAIN("model headers", NULL, NULL)
