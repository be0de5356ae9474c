// SPDX-License-Identifier: MIT
/*
 * A header that another process has read: it is used, it says what the file says, and damage to it
 * is found. The layout is that of table_pack.c, written down here once more.
 */
#include "unit.h"

#include "files/model_internal.h"

#define HEAD 40
#define PACKED 88
#define TABLE_AT 12288
#define TENSORS 3
#define VALUES 1

static const char json[] = "{\"__metadata__\":{\"who\":\"a test\"},"
			   "\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
			   "\"bb\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[8,11]},"
			   "\"c\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[11,12]}}";
#define DATA 12

static uint8_t *make_file(size_t *bytes)
{
	uint64_t length = strlen(json);
	uint8_t *file = calloc(1, 8 + length + DATA);

	memcpy(file, &length, 8);
	memcpy(file + 8, json, length);
	*bytes = 8 + length + DATA;
	return file;
}

static uint64_t header(void)
{
	return 8 + strlen(json);
}

static struct table *parse(void)
{
	struct opening opening = {0};
	struct table *table;
	size_t bytes;
	uint8_t *file = make_file(&bytes);
	uint64_t need;

	assert_int_equal(table_parse(&opening, file, bytes, bytes, &table, &need, NULL), 0);
	free(file);
	return table;
}

static uint8_t *pack(size_t *bytes)
{
	struct table *table = parse();
	uint8_t *all = table_pack(table, bytes);

	assert_non_null(all);
	assert_int_equal(table_packed_bytes(all, HEAD), *bytes);
	table_free(table);
	return all;
}

UNIT(test_the_same)
{
	struct table *table = parse(), *other;
	size_t bytes;
	uint8_t *all = table_pack(table, &bytes);

	other = table_unpack(all, bytes, header(), header() + DATA);
	assert_non_null(other);
	assert_int_equal(other->format, table->format);
	assert_int_equal(other->header_bytes, table->header_bytes);
	assert_int_equal(other->tensor_count, TENSORS);
	for (size_t i = 0; i < TENSORS; i++) {
		const struct table_tensor *one = &table->tensors[i], *two = &other->tensors[i];

		assert_string_equal(one->name, two->name);
		assert_ptr_equal(one->type, two->type);
		assert_int_equal(one->ndim, two->ndim);
		assert_memory_equal(one->shape, two->shape, sizeof(one->shape));
		assert_int_equal(one->bytes, two->bytes);
		assert_int_equal(one->file_offset, two->file_offset);
	}
	assert_int_equal(other->value_count, VALUES);
	assert_string_equal(other->values[0].key, "who");
	assert_int_equal(other->values[0].type, TMESH_MODEL_STRING);
	assert_int_equal(other->values[0].count, 1);
	assert_int_equal(other->values[0].bytes, 6);
	assert_memory_equal(other->values[0].data, "a test", 6);
	table_free(table);
	table_free(other);
	/* A GGUF file has none: reading it is as fast. */
	table = calloc(1, sizeof(*table));
	table->format = TMESH_MODEL_GGUF;
	assert_null(table_pack(table, &bytes));
	table_free(table);
}

static void sign(uint8_t *all, size_t bytes)
{
	uint64_t hash[2];

	model_hash(all + HEAD, bytes - HEAD, hash);
	memcpy(all + 16, hash, sizeof(hash));
}

static bool accepted(uint8_t *all, size_t bytes)
{
	struct table *table = table_unpack(all, bytes, header(), header() + DATA);

	table_free(table);
	return table;
}

/* One number of the table is another, and the checksum fits. */
static bool accepts(size_t at, int64_t value, size_t size)
{
	size_t bytes;
	uint8_t *all = pack(&bytes);

	memcpy(all + at, &value, size);
	sign(all, bytes);
	return accepted(all, bytes);
}

UNIT(test_guards)
{
	enum {
		NAME = HEAD,
		OFFSET = HEAD + 8,
		SHAPE = HEAD + 16,
		NDIM = HEAD + 80,
		TYPE = HEAD + 84
	};
	enum {
		KEY = HEAD + TENSORS * PACKED,
		TEXT = KEY + 8,
		LENGTH = KEY + 16,
		STRINGS = KEY + 24
	};
	size_t bytes;
	uint8_t *all = pack(&bytes);

	assert_true(accepts(SHAPE, 2, 8));
	assert_false(accepts(0, 1, 1)); /* what it is */
	assert_false(accepts(8, (int64_t)bytes - 1, 8));
	assert_false(accepts(32, UINT32_MAX, 4)); /* how many tensors, and values */
	assert_false(accepts(32, TENSORS + 1, 4));
	assert_false(accepts(32, TENSORS - 1, 4));
	assert_false(accepts(36, UINT32_MAX, 4));
	assert_false(accepts(NAME, (int64_t)bytes, 8));
	assert_false(accepts(NAME, -1, 8));
	assert_false(accepts(NAME, HEAD, 8));
	assert_false(accepts(NAME, (int64_t)bytes - 1, 8)); /* empty */
	assert_false(accepts(NAME, STRINGS + 2, 8));	    /* another tensor's */
	assert_false(accepts(OFFSET, 1, 8));
	assert_false(accepts(OFFSET, -8, 8));
	assert_false(accepts(SHAPE, 3, 8));
	assert_false(accepts(SHAPE, -2, 8));
	assert_false(accepts(SHAPE, INT64_MAX, 8));
	assert_false(accepts(NDIM, -1, 4));
	assert_false(accepts(NDIM, TMESH_MAX_DIMS + 1, 4));
	assert_false(accepts(NDIM, 1 << 30, 4));
	assert_false(accepts(TYPE, 22, 4));
	assert_false(accepts(TYPE, UINT32_MAX, 4));
	assert_false(accepts(PACKED + SHAPE, 1, 8)); /* half a byte */
	assert_false(accepts(KEY, (int64_t)bytes, 8));
	assert_false(accepts(TEXT, -1, 8));
	assert_false(accepts(LENGTH, (int64_t)bytes, 8));
	assert_false(accepts(STRINGS, '\n', 1)); /* the first name's letter */
	assert_false(accepts(STRINGS, 0xff, 1));
	all[bytes - 1] = 'x';
	sign(all, bytes);
	assert_false(accepted(all, bytes));
	all = pack(&bytes);
	all[bytes - 2] ^= 1; /* and no new checksum */
	assert_false(accepted(all, bytes));
	all = pack(&bytes);
	assert_null(table_unpack(all, bytes, header() + DATA + 1, header() + DATA));
	all = pack(&bytes);
	assert_int_equal(table_packed_bytes(all, HEAD - 1), 0);
	memset(all + 8, 0xff, 8);
	assert_int_equal(table_packed_bytes(all, HEAD), 0);
	free(all);
}

/* Any bytes are refused, or make a table in which each byte of the file belongs to one tensor. */
UNIT(test_noise)
{
	unsigned int taken = 0;

	srand(3);
	for (int round = 0; round < 20000; round++) {
		struct table *table;
		uint64_t end = header();
		size_t bytes;
		uint8_t *all = pack(&bytes);

		for (int i = rand() % 3; i >= 0; i--)
			all[HEAD - 8 + (size_t)rand() % (bytes - HEAD + 8)] ^=
				(uint8_t)(1 << rand() % 8);
		sign(all, bytes);
		table = table_unpack(all, bytes, header(), header() + DATA);
		taken += table != NULL;
		for (size_t i = 0; table && i < table->tensor_count; i++) {
			assert_int_equal(table->tensors[i].file_offset, end);
			assert_true(table->tensors[i].name[0] && table->tensors[i].type);
			end += table->tensors[i].bytes;
		}
		if (table)
			assert_int_equal(end, header() + DATA);
		table_free(table);
	}
	assert_in_range(taken, 1, 19999);
}

static int shared_load_file(void)
{
	DIR *dir = opendir(unit_runtime_dir());
	struct dirent *entry;
	int fd = -1;

	while (fd < 0 && (entry = readdir(dir))) {
		if (strstr(entry->d_name, ".shared"))
			fd = openat(dirfd(dir), entry->d_name, O_RDWR | O_CLOEXEC);
	}
	closedir(dir);
	assert_true(fd >= 0);
	return fd;
}

static const char *first_name(struct tmesh_ctx *ctx, const char *path)
{
	struct tmesh_model_tensor tensor = {.size = sizeof(tensor)};
	static char name[8];
	struct tmesh_model *model;

	assert_ok(tmesh_model_load(ctx, path, NULL, &model, err));
	assert_ok(tmesh_model_tensor(model, 0, &tensor, err));
	snprintf(name, sizeof(name), "%s", tensor.name);
	tmesh_model_unref(model);
	return name;
}

/* The second process has it from the first: a name that only the shared load's table has shows it.
 */
UNIT(test_used)
{
	char path[] = "/tmp/tmesh-pack-XXXXXX";
	struct tmesh_model *model;
	struct tmesh_ctx *ctx;
	size_t bytes;
	uint8_t *file = make_file(&bytes), *all;
	int fd = mkstemp(path);

	assert_int_equal(write(fd, file, bytes), bytes);
	close(fd);
	free(file);
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_model_load(ctx, path, NULL, &model, err));
	fd = shared_load_file();
	all = pack(&bytes);
	file = malloc(bytes);
	assert_int_equal(pread(fd, file, bytes, TABLE_AT), bytes);
	assert_memory_equal(file, all, bytes);
	free(file);
	all[HEAD + TENSORS * PACKED + VALUES * 24] = 'z';
	sign(all, bytes);
	assert_int_equal(pwrite(fd, all, bytes, TABLE_AT), bytes);
	assert_string_equal(first_name(ctx, path), "z");
	/* Damaged, it is not used; the file's own header is, and is written there again. */
	all[bytes - 2] ^= 1;
	assert_int_equal(pwrite(fd, all, bytes, TABLE_AT), bytes);
	assert_string_equal(first_name(ctx, path), "a");
	assert_int_equal(pread(fd, all, bytes, TABLE_AT), bytes);
	assert_string_equal(first_name(ctx, path), "a");
	assert_int_equal(all[bytes - 2], 't');
	/* A table that another user can write is not believed. */
	all[HEAD + TENSORS * PACKED + VALUES * 24] = 'z';
	sign(all, bytes);
	assert_int_equal(pwrite(fd, all, bytes, TABLE_AT), bytes);
	assert_int_equal(fchmod(fd, 0666), 0);
	assert_string_equal(first_name(ctx, path), "a");
	free(all);
	close(fd);
	tmesh_model_unref(model);
	tmesh_ctx_unref(ctx);
	unlink(path);
}

/* A process that loads a kept model after all others have ended in peace has the table of the last.
 * The table goes with the kept model, and the next reader removes it. */
UNIT(test_stays)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .flags = TMESH_MODEL_KEEP};
	struct tmesh_model_report report = {.size = sizeof(report)};
	char path[] = "/tmp/tmesh-pack-XXXXXX", other[] = "/tmp/tmesh-pack-XXXXXX";
	size_t bytes, table;
	uint8_t *file = make_file(&bytes), *all = pack(&table);
	int fd = mkstemp(path), more = mkstemp(other);
	struct tmesh_model *model;
	struct tmesh_ctx *ctx;

	assert_int_equal(write(fd, file, bytes), bytes);
	assert_int_equal(write(more, file, bytes), bytes);
	close(fd);
	close(more);
	free(file);
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_model_load(ctx, path, &opts, &model, err));
	assert_ok(tmesh_model_report(model, &report, err));
	tmesh_model_unref(model);
	fd = shared_load_file();
	all[HEAD + TENSORS * PACKED + VALUES * 24] = 'z';
	sign(all, table);
	assert_int_equal(pwrite(fd, all, table, TABLE_AT), table);
	assert_string_equal(first_name(ctx, path), "z");
	/* Another model is read: the kept one stays. */
	assert_string_equal(first_name(ctx, other), "a");
	assert_int_equal(unit_runtime_files(".shared"), 1);
	assert_string_equal(first_name(ctx, path), "z");
	close(fd);
	/* No longer kept: gone with the next that is read, the same or another. */
	assert_ok(tmesh_kept_drop(ctx, report.kept, err));
	assert_string_equal(first_name(ctx, other), "a");
	assert_int_equal(unit_runtime_files(".shared"), 0);
	assert_ok(tmesh_model_load(ctx, path, &opts, &model, err));
	tmesh_model_unref(model);
	assert_int_equal(unit_runtime_files(".shared"), 1);
	assert_ok(tmesh_kept_drop(ctx, report.kept, err));
	assert_string_equal(first_name(ctx, path), "a");
	assert_int_equal(unit_runtime_files(".shared"), 0);
	free(all);
	tmesh_ctx_unref(ctx);
	unlink(path);
	unlink(other);
}

UNIT_MAIN("model table", NULL, NULL)
