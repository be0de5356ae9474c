// SPDX-License-Identifier: MIT
/* A model that is kept is there without a read when all processes that had it are gone. */
#include "unit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "model_internal.h"

#define BYTES ((size_t)3 << 20)

static char path[96];

static uint8_t byte_at(size_t at)
{
	return (uint8_t)(at / 512 * 17 + at);
}

static int make_model(void **state)
{
	static const char json[] =
		"{\"w\":{\"dtype\":\"U8\",\"shape\":[3145728],\"data_offsets\":[0,3145728]}}";
	uint64_t length = sizeof(json) - 1;
	uint8_t *data = malloc(BYTES);
	int fd;

	strcpy(path, "/tmp/tmesh-kept-XXXXXX");
	fd = mkstemp(path);
	for (size_t i = 0; i < BYTES; i++)
		data[i] = byte_at(i);
	if (fd < 0 || write(fd, &length, 8) != 8 || write(fd, json, length) != (ssize_t)length ||
	    write(fd, data, BYTES) != (ssize_t)BYTES)
		return -1;
	close(fd);
	free(data);
	return 0;
}

static int remove_model(void **state)
{
	return unlink(path);
}

static struct tmesh_model *load(struct tmesh_ctx *ctx, uint32_t flags,
				struct tmesh_model_report *report)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .flags = flags};
	struct tmesh_model *model;
	struct tmesh_tensor *tensor;
	void *data;

	assert_ok(tmesh_model_load(ctx, path, &opts, &model, err));
	report->size = sizeof(*report);
	assert_ok(tmesh_model_report(model, report, err));
	assert_ok(tmesh_model_tensor_open(model, 0, &tensor, err));
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &data, err));
	for (size_t i = 0; i < BYTES; i++)
		assert_int_equal(((uint8_t *)data)[i], byte_at(i));
	tmesh_tensor_unref(tensor);
	return model;
}

static void test_kept(void **state)
{
	struct tmesh_model_load_opts both = {.size = sizeof(both),
					     .flags = TMESH_MODEL_KEEP | TMESH_MODEL_ALONE};
	struct tmesh_model_report report;
	struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
	struct tmesh_model *model, *second;
	struct tmesh_ctx *ctx;
	char name[TMESH_KEPT_NAME_LEN + 1];
	int status;
	pid_t pid = fork();

	if (!pid) {
		if (tmesh_ctx_open(NULL, &ctx, NULL))
			unit_leave(1);
		load(ctx, TMESH_MODEL_KEEP, &report);
		kill(getpid(), SIGKILL);
	}
	waitpid(pid, &status, 0);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	model = load(ctx, 0, &report);
	assert_int_equal(report.bytes_read, 0);
	/* The module's token of the process that is dead is good still, and comes first. */
	assert_true(report.kept[0] || tmesh_ctx_backend(ctx) == TMESH_BACKEND_KERNEL);
	/* To keep what is kept is no fault; joining what was found kept neither. */
	second = load(ctx, TMESH_MODEL_KEEP, &report);
	assert_int_equal(report.bytes_read, 0);
	assert_true(report.kept[0]);
	strcpy(name, report.kept);
	tmesh_model_unref(second);
	tmesh_model_unref(model);
	assert_refused(tmesh_model_load(ctx, path, &both, &model, err), -EINVAL,
		       "leave one of them out");

	/* A changed file is another model. */
	assert_int_equal(utimensat(AT_FDCWD, path, now, 0), 0);
	model = load(ctx, 0, &report);
	assert_int_equal(report.bytes_read, BYTES);
	assert_int_equal(report.kept[0], 0);
	tmesh_model_unref(model);
	assert_ok(tmesh_kept_drop(ctx, name, err));
	tmesh_ctx_unref(ctx);
}

/* What has a model's name and is another region is not that model, and nobody says that it is. */
static void test_another(void **state)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .flags = TMESH_MODEL_KEEP};
	struct tmesh_model_report report;
	struct tmesh_region *other;
	struct tmesh_model *model;
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	tmesh_model_unref(load(ctx, TMESH_MODEL_KEEP, &report));
	assert_ok(tmesh_kept_drop(ctx, report.kept, err));
	assert_ok(tmesh_region_create(ctx, 4096, NULL, &other, err));
	assert_ok(tmesh_region_seal(other, err));
	assert_ok(tmesh_keep(ctx, report.kept, &other, 1, NULL, err));
	tmesh_region_unref(other);
	assert_refused(tmesh_model_load(ctx, path, &opts, &model, err), -EEXIST, "drop it");
	assert_ok(tmesh_kept_drop(ctx, report.kept, err));
	model = load(ctx, TMESH_MODEL_KEEP, &report);
	assert_true(report.kept[0]);
	tmesh_model_unref(model);
	assert_ok(tmesh_kept_drop(ctx, report.kept, err));
	tmesh_ctx_unref(ctx);
}

/* Where there is no runtime directory to be had nothing is kept, and nobody says that it is. */
static void test_no_directory(void **state)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .flags = TMESH_MODEL_KEEP};
	const char *dir = getenv("TMESH_RUNTIME_DIR");
	struct tmesh_model_report report;
	struct tmesh_model *model;
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_int_equal(chmod(dir, 0755), 0);
	assert_refused(tmesh_model_load(ctx, path, &opts, &model, err), -EACCES,
		       "open to other users");
	model = load(ctx, 0, &report);
	assert_false(report.shared);
	tmesh_model_unref(model);
	assert_int_equal(chmod(dir, 0700), 0);
	tmesh_ctx_unref(ctx);
}

static int tire(void *data, const struct tmesh_model_progress *progress)
{
	int *calls = data;

	return progress->waiting && ++*calls > 250;
}

/* The last process has gone; a child that it has forked has nothing that others would wait for. */
static void test_forked(void **state)
{
	int calls = 0, ends[2], status;
	struct tmesh_model_load_opts opts = {
		.size = sizeof(opts), .progress = tire, .progress_data = &calls};
	struct tmesh_model_report report;
	struct tmesh_model *model;
	struct tmesh_ctx *ctx;
	pid_t child;
	char byte;

	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	model = load(ctx, TMESH_MODEL_KEEP, &report);
	assert_int_equal(pipe(ends), 0);
	child = fork();
	if (!child) {
		close(ends[1]);
		/* What it has inherited is there as long as it wants. */
		unit_leave(read(ends[0], &byte, 1) ? 1 : 0);
	}
	close(ends[0]);
	tmesh_model_unref(model);
	assert_ok(tmesh_model_load(ctx, path, &opts, &model, err));
	tmesh_model_unref(model);
	close(ends[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_ok(tmesh_kept_drop(ctx, report.kept, err));
	tmesh_ctx_unref(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kept),
		cmocka_unit_test(test_another),
		cmocka_unit_test(test_no_directory),
		cmocka_unit_test(test_forked),
	};

	return cmocka_run_group_tests_name("model kept", tests, make_model, remove_model);
}
