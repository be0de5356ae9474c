// SPDX-License-Identifier: MIT
/* A model that is kept is there without a read when all processes that had it are gone. */
#include "kept.h"

#include "files/model_internal.h"

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

UNIT(test_kept)
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

/* A region of another kind with a model's name is not that model, and no call reports that it is.
 */
UNIT(test_another)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .flags = TMESH_MODEL_KEEP};
	struct tmesh_model_report report;
	struct tmesh_region *other;
	struct tmesh_model *model;
	struct tmesh_ctx *ctx = new_ctx();

	tmesh_model_unref(load(ctx, TMESH_MODEL_KEEP, &report));
	assert_ok(tmesh_kept_drop(ctx, report.kept, err));
	assert_ok(tmesh_region_create(ctx, 4096, NULL, &other, err));
	assert_ok(tmesh_region_seal(other, err));
	assert_ok(tmesh_keep(ctx, report.kept, &other, 1, NULL, err));
	tmesh_region_unref(other);
	assert_refused(tmesh_model_load(ctx, path, &opts, &model, err), -EEXIST, "drop that");
	assert_ok(tmesh_kept_drop(ctx, report.kept, err));
	model = load(ctx, TMESH_MODEL_KEEP, &report);
	assert_true(report.kept[0]);
	tmesh_model_unref(model);
	assert_ok(tmesh_kept_drop(ctx, report.kept, err));
	tmesh_ctx_unref(ctx);
}

static int count_reads(void *data, const struct tmesh_model_progress *progress)
{
	++*(int *)data;
	return 0;
}

/* A model that passes the limit by itself is not read first. */
UNIT(test_beyond_the_limit)
{
	int calls = 0;
	struct tmesh_model_load_opts opts = {.size = sizeof(opts),
					     .flags = TMESH_MODEL_KEEP,
					     .progress = count_reads,
					     .progress_data = &calls};
	struct tmesh_region *small;
	struct tmesh_model *model;
	struct tmesh_ctx *ctx = new_ctx();

	/* The module's limit is root's. */
	if (tmesh_ctx_backend(ctx) == TMESH_BACKEND_KERNEL) {
		tmesh_ctx_unref(ctx);
		skip();
	}
	end_keeper(ctx, SIGTERM);
	setenv("TMESH_KEEPER_BYTES", "1000000", 1);
	assert_ok(tmesh_region_create(ctx, 4096, NULL, &small, err));
	assert_ok(tmesh_region_seal(small, err));
	assert_ok(tmesh_keep(ctx, "small", &small, 1, NULL, err));
	tmesh_region_unref(small);
	assert_refused(tmesh_model_load(ctx, path, &opts, &model, err), -EDQUOT,
		       "the limit of this user is 1000000");
	assert_int_equal(calls, 0);
	unsetenv("TMESH_KEEPER_BYTES");
	opts.flags = 0;
	assert_ok(tmesh_model_load(ctx, path, &opts, &model, err));
	assert_int_not_equal(calls, 0);
	tmesh_model_unref(model);
	assert_ok(tmesh_kept_drop(ctx, "small", err));
	end_keeper(ctx, SIGTERM);
	tmesh_ctx_unref(ctx);
}

/* Where there is no runtime directory to be had nothing is kept, and no report says that it is. */
UNIT(test_no_directory)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .flags = TMESH_MODEL_KEEP};
	const char *dir = unit_runtime_dir();
	struct tmesh_model_report report;
	struct tmesh_model *model;
	struct tmesh_ctx *ctx = new_ctx();

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
UNIT(test_forked)
{
	int calls = 0, ends[2], there[2];
	struct tmesh_model_load_opts opts = {
		.size = sizeof(opts), .progress = tire, .progress_data = &calls};
	struct tmesh_model_report report;
	struct tmesh_model *model;
	struct tmesh_ctx *ctx = new_ctx();
	pid_t child;
	char byte;

	model = load(ctx, TMESH_MODEL_KEEP, &report);
	assert_int_equal(pipe(ends) | pipe(there), 0);
	child = fork();
	if (!child) {
		close(ends[1]);
		/* Its fork handlers are behind it, which close what would keep others waiting. */
		if (write(there[1], "", 1) != 1)
			unit_leave(2);
		/* An inherited region is there as long as the child wants. */
		unit_leave(read(ends[0], &byte, 1) ? 1 : 0);
	}
	close(ends[0]);
	assert_int_equal(read(there[0], &byte, 1), 1);
	close(there[0]);
	close(there[1]);
	tmesh_model_unref(model);
	assert_ok(tmesh_model_load(ctx, path, &opts, &model, err));
	tmesh_model_unref(model);
	close(ends[1]);
	join_child(child);
	assert_ok(tmesh_kept_drop(ctx, report.kept, err));
	tmesh_ctx_unref(ctx);
}

/* The files of shared loads, and one of their names. */
static unsigned int shared_loads(char name[256])
{
	DIR *dir = opendir(unit_runtime_dir());
	unsigned int count = 0;
	struct dirent *entry;

	while ((entry = readdir(dir))) {
		if (!strstr(entry->d_name, ".shared"))
			continue;
		count++;
		if (name)
			snprintf(name, 256, "%s", entry->d_name);
	}
	closedir(dir);
	return count;
}

static int shared_load_file(const char *name, int flags)
{
	char file[600];
	int fd;

	snprintf(file, sizeof(file), "%s/%s", unit_runtime_dir(), name);
	fd = open(file, flags | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	return fd;
}

/* As shared_load_file.c begins its files. */
struct left {
	uint64_t magic, state, region, bytes, done, kept, backend;
};

static void leave(const char *name, uint64_t backend)
{
	const struct left left = {.magic = 0x31746c666d746d74ull,
				  .state = 2,
				  .region = 7,
				  .kept = 7,
				  .backend = backend};
	int fd = shared_load_file(name, O_RDWR | O_CREAT);

	assert_int_equal(write(fd, &left, sizeof(left)), sizeof(left));
	close(fd);
}

static bool is_there(const char *name)
{
	char file[600];

	snprintf(file, sizeof(file), "%s/%s", unit_runtime_dir(), name);
	return access(file, F_OK) == 0;
}

/* This backend does not know the regions that the other one keeps: they stay. */
UNIT(test_other_backend)
{
	struct tmesh_model_report report;
	uint64_t backend, other;
	struct tmesh_ctx *ctx = new_ctx();
	char file[600];

	backend = tmesh_ctx_backend(ctx);
	other = backend == TMESH_BACKEND_MEMFD ? TMESH_BACKEND_KERNEL : TMESH_BACKEND_MEMFD;
	leave("model-other.shared", other);
	leave("model-own.shared", backend);
	leave("model-earlier.shared", 0);
	tmesh_model_unref(load(ctx, 0, &report));
	assert_true(report.shared);
	assert_true(is_there("model-other.shared"));
	assert_false(is_there("model-own.shared"));
	assert_false(is_there("model-earlier.shared"));
	snprintf(file, sizeof(file), "%s/model-other.shared", unit_runtime_dir());
	assert_int_equal(unlink(file), 0);
	tmesh_ctx_unref(ctx);
}

/* However many models there are, the leftovers of killed processes go in the end. */
UNIT(test_left_among_many)
{
	enum {
		ALIVE = 90,
		DEAD = 20
	};
	struct flock present = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1};
	struct tmesh_model_report report;
	struct tmesh_ctx *ctx = new_ctx();
	int fds[ALIVE];
	char name[32];

	for (int n = 0; n < ALIVE + DEAD; n++) {
		int fd, alive = n - DEAD / 2;

		snprintf(name, sizeof(name), "model-%d.shared", n);
		fd = shared_load_file(name, O_RDWR | O_CREAT);
		if (alive < 0 || alive >= ALIVE) {
			close(fd);
			continue;
		}
		assert_int_equal(fcntl(fd, F_OFD_SETLK, &present), 0);
		fds[alive] = fd;
	}
	for (int round = 0; shared_loads(NULL) > ALIVE; round++) {
		assert_true(round < 1000);
		tmesh_model_unref(load(ctx, 0, &report));
	}
	for (int n = 0; n < ALIVE; n++) {
		snprintf(name, sizeof(name), "model-%d.shared", n + DEAD / 2);
		assert_true(is_there(name));
		close(fds[n]);
	}
	for (int round = 0; shared_loads(NULL); round++) {
		assert_true(round < 1000);
		tmesh_model_unref(load(ctx, 0, &report));
	}
	tmesh_ctx_unref(ctx);
}

/* The process that removes a model's file is stopped. The next reader reads for itself, and reports
 * why, or fails with the remedy if it is to keep the model. */
UNIT(test_stopped)
{
	struct flock present = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1};
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .flags = TMESH_MODEL_KEEP};
	struct tmesh_model_report report;
	struct tmesh_model *model;
	struct tmesh_ctx *ctx = new_ctx();
	char name[256];
	int fd;
	pid_t child;

	model = load(ctx, 0, &report);
	assert_int_equal(shared_loads(name), 1);
	tmesh_model_unref(model);
	fd = shared_load_file(name, O_RDWR | O_CREAT);
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &present), 0);
	child = fork();
	if (!child) {
		if (tmesh_ctx_open(NULL, &ctx, NULL))
			unit_leave(1);
		load(ctx, 0, &report);
		unit_leave(report.shared || !strstr(report.reason, "has stopped") ? 2 : 0);
	}
	assert_refused(tmesh_model_load(ctx, path, &opts, &model, err), -ETIMEDOUT,
		       "let it go on, or end it");
	join_child(child);
	close(fd);
	tmesh_model_unref(load(ctx, 0, &report));
	assert_true(report.shared);
	assert_int_equal(shared_loads(NULL), 0);
	tmesh_ctx_unref(ctx);
}

UNIT_MAIN("model kept", make_model, remove_model)
