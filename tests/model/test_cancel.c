// SPDX-License-Identifier: MIT
/* Cancelling while headers are read: of an index of shards, and of a GGUF file. */
#include "unit.h"

#include "files/model_internal.h"

#define SHARDS 3
#define TENSORS 8000 /* of each shard */
#define STRINGS 300000

static char folder[64];
static struct tmesh_ctx *ctx;

static FILE *create(const char *name)
{
	char path[160];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "we");
	assert_non_null(file);
	return file;
}

static void write_index(void)
{
	FILE *file = create("model.safetensors.index.json");

	fprintf(file, "{\"weight_map\":{");
	for (int i = 0; i < SHARDS * TENSORS; i++)
		fprintf(file, "%s\"layer.%d\":\"%d.safetensors\"", i ? "," : "", i, i / TENSORS);
	fprintf(file, "}}");
	assert_int_equal(fclose(file), 0);
}

static void write_shard(int shard)
{
	uint64_t length;
	char name[32];
	FILE *file;

	snprintf(name, sizeof(name), "%d.safetensors", shard);
	file = create(name);
	fseek(file, 8, SEEK_SET);
	for (int i = 0; i < TENSORS; i++)
		fprintf(file,
			"%s\"layer.%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
			i ? "," : "{", shard * TENSORS + i, i, i + 1);
	fprintf(file, "}");
	length = (uint64_t)ftell(file) - 8;
	for (int i = 0; i < TENSORS; i++)
		fputc(i, file);
	rewind(file);
	assert_int_equal(fwrite(&length, sizeof(length), 1, file), 1);
	assert_int_equal(fclose(file), 0);
}

static void write_number(FILE *file, uint64_t value, size_t bytes)
{
	assert_int_equal(fwrite(&value, bytes, 1, file), 1);
}

/* A file with one value, a list of tokens, and no tensor. */
static void write_gguf(void)
{
	FILE *file = create("tokens.gguf");

	fprintf(file, "GGUF");
	write_number(file, 3, 4);
	write_number(file, 0, 8);
	write_number(file, 1, 8);
	write_number(file, 6, 8);
	fprintf(file, "tokens");
	write_number(file, TMESH_MODEL_ARRAY, 4);
	write_number(file, TMESH_MODEL_STRING, 4);
	write_number(file, STRINGS, 8);
	for (int i = 0; i < STRINGS; i++) {
		write_number(file, 1, 8);
		fputc('x', file);
	}
	assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
	strcpy(folder, "/tmp/tmesh-cancel-XXXXXX");
	return !mkdtemp(folder) || tmesh_ctx_open(NULL, &ctx, NULL);
}

static int tear_down(void **state)
{
	char command[96];

	tmesh_ctx_unref(ctx);
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command);
}

/* The calls before the first byte of a tensor is there. */
struct calls {
	unsigned int made, cancelled; /* cancelled: the number of the call that cancels */
	uint64_t total;
};

static int count(void *data, const struct tmesh_model_progress *progress)
{
	struct calls *calls = data;

	if (progress->bytes_done || progress->waiting)
		return 0;
	assert_true(progress->bytes_total && progress->bytes_total >= calls->total);
	calls->total = progress->bytes_total;
	return ++calls->made == calls->cancelled;
}

typedef int (*way_fn)(const char *name, struct calls *calls, struct tmesh_model **model,
		      struct tmesh_error *err);

static int describe(const char *name, struct calls *calls, struct tmesh_model **model,
		    struct tmesh_error *err)
{
	const struct tmesh_model_describe_opts opts = {
		.size = sizeof(opts), .progress = count, .progress_data = calls};
	char path[160];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return tmesh_model_describe(path, &opts, model, err);
}

static int load(const char *name, struct calls *calls, struct tmesh_model **model,
		struct tmesh_error *err)
{
	const struct tmesh_model_load_opts opts = {.size = sizeof(opts),
						   .flags = TMESH_MODEL_ALONE,
						   .progress = count,
						   .progress_data = calls};
	char path[160];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return tmesh_model_load(ctx, path, &opts, model, err);
}

/* Each call can cancel. Nothing is asked after that, and nothing is left. */
static unsigned int cancel_each(way_fn way, const char *name, size_t tensors)
{
	struct calls all = {0};
	struct tmesh_model *model;
	unsigned int fds;

	assert_ok(way(name, &all, &model, err));
	assert_int_equal(tmesh_model_tensors(model), tensors);
	tmesh_model_unref(model);
	fds = unit_open_fds();
	for (unsigned int i = 1; i <= all.made; i++) {
		struct calls calls = {.cancelled = i};

		assert_refused(way(name, &calls, &model, err), -ECANCELED, "cancelled");
		assert_int_equal(calls.made, i);
		assert_int_equal(unit_open_fds(), fds);
	}
	return all.made;
}

UNIT(test_index)
{
	write_index();
	for (int i = 0; i < SHARDS; i++)
		write_shard(i);
	/* Bytes and names of the index, bytes and tensors of each shard. */
	assert_true(cancel_each(load, "", SHARDS * TENSORS) >= 8);
	assert_true(cancel_each(describe, "", SHARDS * TENSORS) >= 8);
}

/* A header that is not JSON at its end is refused for that, as long as nothing is cancelled. */
UNIT(test_malformed)
{
	static const way_fn ways[] = {load, describe};
	struct tmesh_model *model;
	FILE *file = create("hostile.index.json");

	fprintf(file, "{\"weight_map\":{");
	for (int i = 0; i < SHARDS * TENSORS * 4; i++)
		fprintf(file, "\"layer.%d\":\"%d.safetensors\",", i, i);
	assert_int_equal(fclose(file), 0);
	for (int i = 0; i < 2; i++) {
		struct calls none = {0}, first = {.cancelled = 1};

		assert_refused(ways[i]("hostile.index.json", &none, &model, err), -EPROTO,
			       "not JSON");
		assert_true(none.made >= 2);
		assert_refused(ways[i]("hostile.index.json", &first, &model, err), -ECANCELED,
			       "cancelled");
		assert_int_equal(first.made, 1);
	}
}

UNIT(test_gguf)
{
	write_gguf();
	assert_true(cancel_each(load, "tokens.gguf", 0) >= 4);
	assert_true(cancel_each(describe, "tokens.gguf", 0) >= 4);
}

UNIT_MAIN("cancel", set_up, tear_down)
