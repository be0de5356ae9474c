// SPDX-License-Identifier: MIT
/* Compiled with the headers of one version, run with a libtmesh-model of a later one: program.c. */
#include "edge.h"

#include <tmesh/model.h>
#include <tmesh/pages.h>
#include <tmesh/slot.h>

static const char *tmeshctl_model;
static char folder[] = "/tmp/tmesh-grown-XXXXXX", path[64];
static uint64_t told;

static int progress(void *data, const struct tmesh_model_progress *at)
{
	assert_ptr_equal(data, &told);
	assert_int_equal(at->waiting, false);
	assert_true(at->bytes_done <= at->bytes_total);
	told = at->bytes_total;
	return 0;
}

static struct tmesh_tensor *tensor(struct tmesh_ctx *ctx, const char *data, int64_t bytes)
{
	struct tmesh_tensor *made;

	assert_ok(tmesh_tensor_put(ctx, TMESH_UINT8, 1, &bytes, data, NULL, &made, err));
	return made;
}

static void save(struct tmesh_ctx *ctx)
{
	static const char *const metadata[] = {"format", "pt", "made-by", "grown", NULL};
	struct tmesh_model_save_opts *opts = OPTIONS(tmesh_model_save_opts);
	struct tmesh_model_item items[] = {{"one", tensor(ctx, "first", 5)},
					   {"two", tensor(ctx, "second", 6)}};

	opts->metadata = metadata;
	opts->progress = progress;
	opts->progress_data = &told;
	told = 0;
	assert_ok(tmesh_model_save(path, items, 2, opts, err));
	assert_true(told >= 11);
	tmesh_tensor_unref(items[0].tensor);
	tmesh_tensor_unref(items[1].tensor);
}

static void test_file(void **state)
{
	struct tmesh_model_describe_opts *describe = OPTIONS(tmesh_model_describe_opts);
	struct tmesh_model_load_opts *opts = OPTIONS(tmesh_model_load_opts);
	struct tmesh_model_report *report = SIZED(tmesh_model_report);
	struct tmesh_model_tensor *one = SIZED(tmesh_model_tensor);
	struct tmesh_model_value *value = SIZED(tmesh_model_value);
	struct tmesh_model *model;
	struct tmesh_bundle *bundle;
	size_t index;

	save(*state);
	describe->progress = progress;
	describe->progress_data = &told;
	assert_ok(tmesh_model_describe(path, describe, &model, err));
	assert_int_equal(tmesh_model_tensors(model), 2);
	tmesh_model_unref(model);
	opts->flags = TMESH_MODEL_ALONE | TMESH_MODEL_HASH;
	opts->method = TMESH_MODEL_READ;
	opts->progress = progress;
	opts->progress_data = &told;
	opts->label = "loaded";
	told = 0;
	assert_ok(tmesh_model_load(*state, path, opts, &model, err));
	assert_true(told >= 11);
	assert_int_equal(tmesh_model_tensors(model), 2);
	assert_ok(tmesh_model_find(model, "two", &index, err));
	assert_ok(tmesh_model_tensor(model, index, one, err));
	assert_string_equal(one->name, "two");
	assert_int_equal(one->bytes, 6);
	assert_int_equal(one->file, 0);
	assert_true(one->file_offset > 0);
	assert_int_equal(tmesh_model_values(model), 2);
	assert_ok(tmesh_model_value(model, 1, value, err));
	assert_int_equal(value->type, TMESH_MODEL_STRING);
	assert_true(value->bytes == 2 || value->bytes == 5);
	assert_ok(tmesh_model_report(model, report, err));
	assert_int_equal(report->method, TMESH_MODEL_READ);
	assert_string_equal(report->kept, "");
	assert_ok(tmesh_model_bundle(*state, model, &bundle, err));
	assert_int_equal(tmesh_bundle_count(bundle), 2);
	tmesh_bundle_unref(bundle);
	tmesh_model_unref(model);
}

static void test_slot(void **state)
{
	struct tmesh_slot_opts *opts = OPTIONS(tmesh_slot_opts);
	struct tmesh_bundle_opts *bundle_opts = OPTIONS(tmesh_bundle_opts);
	struct tmesh_bundle_entry entry = {.name = "t", .tensor = tensor(*state, "value", 5)};
	struct tmesh_slot_reader *reader;
	struct tmesh_slot_value *value;
	struct tmesh_bundle *bundle;
	struct tmesh_slot *slot;
	uint64_t generation;

	opts->name = "grown-slot";
	assert_ok(tmesh_slot_create(*state, opts, &slot, err));
	assert_ok(tmesh_bundle_create(*state, &entry, 1, bundle_opts, &bundle, err));
	assert_ok(tmesh_slot_publish(slot, bundle, &generation, err));
	assert_ok(tmesh_slot_open_named(*state, "grown-slot", &reader, err));
	assert_ok(tmesh_slot_read(reader, &value, err));
	assert_int_equal(tmesh_slot_value_generation(value), generation);
	assert_string_equal(tmesh_bundle_name(tmesh_slot_value_bundle(value), 0), "t");
	tmesh_slot_value_unref(value);
	tmesh_slot_close(reader);
	tmesh_slot_unref(slot);
	tmesh_bundle_unref(bundle);
	tmesh_tensor_unref(entry.tensor);
}

static void test_pages(void **state)
{
	struct tmesh_page_pool_opts *opts = OPTIONS(tmesh_page_pool_opts);
	struct tmesh_page_pool_info *pool_info = SIZED(tmesh_page_pool_info);
	struct tmesh_pages_info *info = SIZED(tmesh_pages_info);
	struct tmesh_page_pool *pool;
	struct tmesh_pages *pages;
	struct tmesh_seq *seq;
	char token[TMESH_TOKEN_SIZE];
	uint32_t count;

	opts->page_bytes = 4096;
	opts->page_tokens = 4;
	opts->slab_pages = 16;
	opts->max_pages = 64;
	assert_ok(tmesh_page_pool_create(*state, opts, &pool, err));
	assert_ok(tmesh_page_pool_tenant(pool, 0, token, err));
	assert_ok(tmesh_pages_open(*state, token, &pages, err));
	assert_ok(tmesh_seq_create(pages, &seq, err));
	assert_ok(tmesh_seq_append(seq, 10, err));
	assert_non_null(tmesh_seq_table(seq, &count));
	assert_int_equal(count, 3);
	assert_ok(tmesh_pages_info(pages, info, err));
	assert_int_equal(info->page_bytes, 4096);
	assert_int_equal(info->held, 3);
	assert_int_equal(info->bytes_copied, 0);
	assert_ok(tmesh_page_pool_info(pool, pool_info, err));
	assert_int_equal(pool_info->pages, 16);
	assert_int_equal(pool_info->reclaimed, 0);
	tmesh_seq_free(seq);
	tmesh_pages_unref(pages);
	tmesh_page_pool_unref(pool);
}

static void test_wrong_sizes(void **state)
{
	static const size_t wrong[] = {0, 4, 1 << 20, SIZE_MAX};
	struct tmesh_model_describe_opts describe = {0};
	struct tmesh_model_load_opts load = {0};
	struct tmesh_model_tensor out = {0};
	struct tmesh_model *model;

	save(*state);
	assert_ok(tmesh_model_describe(path, NULL, &model, err));
	for (int i = 0; i < 4; i++) {
		out.size = load.size = describe.size = wrong[i];
		assert_int_equal(tmesh_model_tensor(model, 0, &out, NULL), -EINVAL);
		assert_null(out.name);
		assert_int_equal(
			tmesh_model_load(*state, path, &load, &(struct tmesh_model *){0}, NULL),
			-EINVAL);
		assert_int_equal(
			tmesh_model_describe(path, &describe, &(struct tmesh_model *){0}, NULL),
			-EINVAL);
	}
	tmesh_model_unref(model);
}

static void test_tmeshctl(void **state)
{
	const char *text;

	save(*state);
	text = output_of("%s %s --json", tmeshctl_model, path);
	if (!strstr(text, "\"two\""))
		fail_msg("tmeshctl model says: %s", text);
}

static int make_folder(void **state)
{
	if (!mkdtemp(folder))
		return -1;
	snprintf(path, sizeof(path), "%s/m.safetensors", folder);
	return 0;
}

static int remove_folder(void **state)
{
	return unlink(path) || rmdir(folder);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_file),	TEST(test_slot),     TEST(test_pages),
		TEST(test_wrong_sizes), TEST(test_tmeshctl),
	};

	if (argc != 2)
		return 2;
	tmeshctl_model = argv[1];
	return cmocka_run_group_tests_name("grown model", tests, make_folder, remove_folder);
}
