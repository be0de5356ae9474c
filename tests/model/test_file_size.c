// SPDX-License-Identifier: MIT
/* RLIMIT_FSIZE, as tests/unit/test_file_size.c has it: loads, saves, slots and pools of pages fail,
 * and no signal ends the process. */
#include "unit.h"

#include <tmesh/model.h>
#include <tmesh/pages.h>
#include <tmesh/slot.h>

#define LARGE (1 << 20)

static char folder[] = "/tmp/tmesh-size-XXXXXX", path[64], other[64], hole[64];

static void limit_to(rlim_t bytes)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void use_little(struct tmesh_ctx *ctx, struct tmesh_tensor *large)
{
	const struct tmesh_model_item item = {.name = "w", .tensor = large};
	struct tmesh_slot_opts named = {.size = sizeof(named)};
	struct tmesh_model_load_opts opts = {.size = sizeof(opts)};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_page_pool *pool;
	struct tmesh_pages *pages;
	struct tmesh_model *model;
	struct tmesh_slot *slot;
	struct tmesh_seq *seq;
	int rc;

	limit_to(LARGE / 2);
	assert_refused(tmesh_model_save(other, &item, 1, NULL, err), -EFBIG, "RLIMIT_FSIZE");
	assert_int_equal(access(other, F_OK), -1);
	for (int alone = 0; alone < 2; alone++) {
		opts.flags = alone ? TMESH_MODEL_ALONE : 0;
		assert_refused(tmesh_model_load(ctx, path, &opts, &model, err), -EFBIG,
			       "RLIMIT_FSIZE");
	}
	/* Not a byte. */
	limit_to(0);
	assert_int_equal(tmesh_model_load(ctx, path, NULL, &model, NULL), -EFBIG);
	for (int i = 0; i < 2; i++) {
		named.name = i ? "size" : NULL;
		assert_int_equal(tmesh_slot_create(ctx, &named, &slot, NULL), -EFBIG);
	}
	assert_ok(tmesh_page_pool_create(ctx, NULL, &pool, err));
	rc = tmesh_page_pool_tenant(pool, 0, token, NULL);
	if (!rc)
		rc = tmesh_pages_open(ctx, token, &pages, NULL);
	if (!rc)
		rc = tmesh_seq_create(pages, &seq, NULL);
	if (!rc)
		rc = tmesh_seq_append(seq, 1, NULL);
	assert_int_equal(rc, -EFBIG);
}

/* Lower the limit as soon as the region is made. */
static int lower(void *data, const struct tmesh_model_progress *progress)
{
	limit_to(LARGE / 2);
	return 0;
}

/* Write the header of a file of one tensor, and leave its bytes a hole. */
static void write_hole(const char *name, uint64_t bytes)
{
	char text[128];
	uint64_t length = (uint64_t)snprintf(text, sizeof(text),
					     "{\"w\":{\"dtype\":\"U8\",\"shape\":[%llu],"
					     "\"data_offsets\":[0,%llu]}}",
					     (unsigned long long)bytes, (unsigned long long)bytes);
	FILE *file = fopen(name, "w");

	assert_non_null(file);
	fwrite(&length, sizeof(length), 1, file);
	fputs(text, file);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(truncate(name, (off_t)(sizeof(length) + length + bytes)), 0);
}

/* Each way of reading meets a limit that is lowered meanwhile. Reads into mapped memory have
 * none. */
static void test_lowered(void **state)
{
	static const struct {
		enum tmesh_model_method method;
		int rc;
	} ways[] = {{TMESH_MODEL_SPLICE, -EFBIG}, {TMESH_MODEL_READ, 0}};

	write_hole(hole, 40 << 20); /* progress is reported after 32 MiB */
	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		struct tmesh_model_load_opts opts = {.size = sizeof(opts)};
		struct tmesh_model *model;
		struct tmesh_ctx *ctx;
		pid_t child = fork();

		if (!child) {
			signal(SIGXFSZ, SIG_DFL);
			assert_ok(tmesh_ctx_open(NULL, &ctx, err));
			opts.flags = TMESH_MODEL_ALONE;
			opts.method = ways[i].method;
			opts.progress = lower;
			if (ways[i].rc)
				assert_refused(tmesh_model_load(ctx, hole, &opts, &model, err),
					       ways[i].rc, "RLIMIT_FSIZE");
			else
				assert_ok(tmesh_model_load(ctx, hole, &opts, &model, err));
			_exit(0);
		}
		join_child(child);
	}
}

static void test_limit(void **state)
{
	const int64_t bytes = LARGE;
	struct tmesh_model_item item = {.name = "w"};
	struct tmesh_ctx *ctx;
	pid_t child = fork();

	if (!child) {
		signal(SIGXFSZ, SIG_DFL);
		assert_ok(tmesh_ctx_open(NULL, &ctx, err));
		assert_ok(
			tmesh_tensor_create(ctx, TMESH_UINT8, 1, &bytes, NULL, &item.tensor, err));
		assert_ok(tmesh_model_save(path, &item, 1, NULL, err));
		use_little(ctx, item.tensor);
		_exit(0);
	}
	join_child(child);
}

int main(void)
{
	const struct CMUnitTest tests[] = {TEST(test_limit), TEST(test_lowered)};
	char command[64];
	int failed;

	if (!mkdtemp(folder))
		return 1;
	snprintf(path, sizeof(path), "%s/w.safetensors", folder);
	snprintf(other, sizeof(other), "%s/other.safetensors", folder);
	snprintf(hole, sizeof(hole), "%s/hole.safetensors", folder);
	failed = cmocka_run_group_tests_name("file size", tests, unit_memfd_setup, NULL);
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command) || failed;
}
