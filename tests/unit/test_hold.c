// SPDX-License-Identifier: MIT
/* Tokens that hold: memory stays until it was opened, or for as long as was asked. */
#include "comma.h"
#include "producer.h"

#include <tmesh/hold.h>

#define SECOND 1000000000ull
#define LONG (600 * SECOND)

static const char *self;

/* This program again, in another role: see main(). Its output, or what it says on stderr. */
struct role {
	pid_t pid;
	FILE *out, *errors;
};

static struct role start(const char *what, const char *argument, const char *exit_wait)
{
	int out[2], errors[2];
	struct role role;

	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	assert_int_equal(pipe2(errors, O_CLOEXEC), 0);
	role.pid = fork();
	if (role.pid == 0) {
		dup2(out[1], STDOUT_FILENO);
		dup2(errors[1], STDERR_FILENO);
		setenv("TMESH_EXIT_WAIT", exit_wait, 1);
		execl(self, self, what, argument, NULL);
		_exit(127);
	}
	close(out[1]);
	close(errors[1]);
	role.out = fdopen(out[0], "r");
	role.errors = fdopen(errors[0], "r");
	return role;
}

/* Its exit status; what it wrote on stderr in @text. */
static int ended(struct role *role, char text[512])
{
	int status;

	text[fread(text, 1, 511, role->errors)] = '\0';
	fclose(role->errors);
	fclose(role->out);
	assert_int_equal(waitpid(role->pid, &status, 0), role->pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int opens_elsewhere(const char *ref)
{
	struct role role = start("open", ref, "");
	char text[512];
	int status = ended(&role, text);

	if (status && status != 2)
		fail_msg("%s", text);
	return status;
}

static const int32_t numbers[4] = {1, 2, 3, 4};

static struct tmesh_tensor *put(struct tmesh_ctx *ctx)
{
	const int64_t shape[] = {4};
	struct tmesh_tensor *tensor = NULL;

	assert_ok(tmesh_tensor_put(ctx, TMESH_INT32, 1, shape, numbers, NULL, &tensor, err));
	return tensor;
}

static void hold(struct tmesh_ctx *ctx, uint64_t ns, char ref[TMESH_REF_SIZE])
{
	struct tmesh_tensor *tensor = put(ctx);

	assert_ok(tmesh_tensor_ref_hold(tensor, TMESH_READ, ns, ref, TMESH_REF_SIZE, err));
	tmesh_tensor_unref(tensor);
}

static uint64_t held(struct tmesh_ctx *ctx)
{
	struct tmesh_flushed left = {.size = sizeof(left)};

	tmesh_ctx_flush(ctx, 0, &left, NULL);
	return left.held;
}

/* The thread that lets go does so a moment after the hold has ended. */
static void expect_free(struct tmesh_ctx *ctx)
{
	while (ctx_stats(ctx).regions_live)
		usleep(1000);
}

/* The module does not tell at once who opens. */
static void expect_none_held(struct tmesh_ctx *ctx)
{
	while (unit_on_kernel() && held(ctx))
		usleep(1000);
	assert_int_equal(held(ctx), 0);
}

/* Each hold ends with the open of its ref, however soon the next one begins. */
static void test_one_after_another(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_tensor *tensor = put(ctx), *opened = NULL;
	char text[TMESH_REF_SIZE];
	struct tmesh_ref ref;

	for (int i = 0; i < 20; i++) {
		assert_ok(tmesh_tensor_ref_hold(tensor, TMESH_READ, LONG, text, sizeof(text), err));
		assert_ok(tmesh_ref_decode(text, strlen(text), &ref, err));
		assert_ok(tmesh_tensor_open(ctx, &ref, TMESH_READ, &opened, err));
		tmesh_tensor_unref(opened);
	}
	expect_none_held(ctx);
	tmesh_tensor_unref(tensor);
	expect_free(ctx);
	tmesh_ctx_unref(ctx);
}

/* With the last reference of the caller's the context lives on, and answers. */
static void test_without_its_context(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	char ref[TMESH_REF_SIZE];

	hold(ctx, LONG, ref);
	tmesh_ctx_unref(ctx);
	assert_int_equal(opens_elsewhere(ref), 0);
	/* Until the thread that lets go has done so. */
	while (opens_elsewhere(ref) != 2)
		usleep(1000);
}

static void test_time(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_flushed left = {.size = sizeof(left)};
	char ref[TMESH_REF_SIZE];

	hold(ctx, 1, ref);
	assert_ok(tmesh_ctx_flush(ctx, -1, &left, err));
	assert_int_equal(left.held, 0);
	assert_int_equal(left.held_expired, 1);
	expect_free(ctx);
	assert_int_equal(opens_elsewhere(ref), 2);
	/* The thread wakes by itself when the time of one is over that was not yet. */
	hold(ctx, 20000000, ref);
	expect_free(ctx);
	tmesh_ctx_unref(ctx);
}

/* A region held for two is held until both have opened it. */
static void test_two(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_tensor *tensor = put(ctx);
	struct tmesh_flushed left = {.size = sizeof(left)};
	char refs[2][TMESH_REF_SIZE], again[TMESH_REF_SIZE];

	for (int i = 0; i < 2; i++)
		assert_ok(tmesh_tensor_ref_hold(tensor, TMESH_READ, LONG, refs[i], TMESH_REF_SIZE,
						err));
	assert_string_not_equal(refs[0], refs[1]);
	assert_refused(tmesh_ctx_flush(ctx, 0, &left, err), -ETIMEDOUT, "2 tokens hold");
	assert_int_equal(left.held, 2);
	assert_int_equal(left.held_bytes, sysconf(_SC_PAGESIZE));
	assert_int_equal(opens_elsewhere(refs[0]), 0);
	assert_int_equal(opens_elsewhere(refs[0]), 0);
	assert_int_equal(held(ctx), 1);
	/* As long as the region is there the token is good, and holds again when it is asked to.
	 */
	while (atomic_load(&tmesh_tensor_region(tensor)->refs) != 2)
		usleep(1000);
	assert_ok(tmesh_tensor_ref_hold(tensor, TMESH_READ, LONG, again, TMESH_REF_SIZE, err));
	assert_string_equal(again, refs[0]);
	tmesh_tensor_unref(tensor);
	assert_int_equal(opens_elsewhere(again), 0);
	assert_int_equal(held(ctx), 1);
	assert_int_equal(opens_elsewhere(refs[1]), 0);
	assert_int_equal(held(ctx), 0);
	expect_free(ctx);
	tmesh_ctx_unref(ctx);
}

static void test_rights(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_region *region = NULL, *other = NULL;
	char token[TMESH_TOKEN_SIZE], plain[TMESH_TOKEN_SIZE];

	assert_ok(tmesh_region_create(ctx, 100, NULL, &region, err));
	assert_refused(tmesh_region_hold(region, TMESH_WRITE, 0, token, err), -EINVAL, "READ");
	assert_refused(tmesh_region_hold(region, TMESH_READ, TMESH_HOLD_MAX_NS + 1, token, err),
		       -EINVAL, "day");
	assert_int_equal(held(ctx), 0);
	assert_ok(tmesh_region_hold(region, TMESH_READ, 0, token, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, plain, err));
	/* Opening another token does not open this one. */
	assert_ok(tmesh_region_open(ctx, plain, TMESH_READ, &other, err));
	tmesh_region_unref(other);
	assert_int_equal(held(ctx), 1);
	assert_refused(tmesh_region_open(ctx, token, RW, &other, err), -EACCES, "rights");
	assert_int_equal(held(ctx), 1);
	tmesh_region_unref(region);
	assert_ok(tmesh_region_open(ctx, token, TMESH_READ, &other, err));
	assert_int_equal(held(ctx), 0);
	tmesh_region_unref(other);
	expect_free(ctx);
	tmesh_ctx_unref(ctx);
}

static void test_limits(void **state)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .max_held_bytes = page};
	struct tmesh_ctx *ctx = NULL;
	struct tmesh_tensor *tensor, *other;
	struct tmesh_region *opened;
	static char tokens[TMESH_HOLD_MAX][TMESH_TOKEN_SIZE];
	char ref[TMESH_REF_SIZE];

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_ok(tmesh_region_create(ctx, 2 * page, NULL, &opened, err));
	assert_refused(tmesh_region_hold(opened, TMESH_READ, LONG, tokens[0], err), -EDQUOT,
		       "max_held_bytes");
	tmesh_region_unref(opened);
	tensor = put(ctx);
	other = put(ctx);
	for (uint32_t i = 0; i < TMESH_HOLD_MAX; i++) {
		assert_ok(tmesh_region_hold(tmesh_tensor_region(tensor), TMESH_READ, LONG,
					    tokens[i], err));
		if (!i)
			assert_refused(tmesh_tensor_ref_hold(other, TMESH_READ, LONG, ref,
							     sizeof(ref), err),
				       -EDQUOT, "max_held_bytes");
	}
	assert_refused(tmesh_tensor_ref_hold(tensor, TMESH_READ, LONG, ref, sizeof(ref), err),
		       -EDQUOT, "4096 tokens");
	tmesh_tensor_unref(tensor);
	assert_int_equal(held(ctx), TMESH_HOLD_MAX);
	for (uint32_t i = 0; i < TMESH_HOLD_MAX; i++) {
		assert_ok(tmesh_region_open(ctx, tokens[i], TMESH_READ, &opened, err));
		tmesh_region_unref(opened);
	}
	assert_int_equal(held(ctx), 0);
	/* An opened region is no part of the held ones, however often. */
	for (uint32_t i = 0; i < 3; i++) {
		assert_ok(tmesh_region_hold(tmesh_tensor_region(other), TMESH_READ, LONG, tokens[0],
					    err));
		assert_ok(tmesh_region_open(ctx, tokens[0], TMESH_READ, &opened, err));
		tmesh_region_unref(opened);
	}
	assert_int_equal(held(ctx), 0);
	assert_refused(tmesh_tensor_ref_hold(other, TMESH_READ, LONG, ref, 10, err), -ENOSPC,
		       "room");
	assert_int_equal(held(ctx), 0);
	tmesh_tensor_unref(other);
	expect_free(ctx);
	tmesh_ctx_unref(ctx);
}

/* The time of a token that was opened comes, and says nothing of others. */
static void test_opened_in_time(void **state)
{
	struct tmesh_flushed left = {.size = sizeof(left)};
	uint64_t time = SECOND, begun;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_tensor *tensors[3];
	struct tmesh_region *opened;
	struct tmesh_ctx *ctx = NULL;

	/* On a machine that has much to do it may take longer to open it than it was held. */
	do {
		if (ctx) {
			tmesh_tensor_unref(tensors[0]);
			tmesh_ctx_unref(ctx);
		}
		time *= 2;
		ctx = context(NULL, 0);
		tensors[0] = put(ctx);
		begun = tmesh_now_ns();
		assert_ok(tmesh_region_hold(tmesh_tensor_region(tensors[0]), TMESH_READ, time,
					    token, err));
		assert_ok(tmesh_region_open(ctx, token, TMESH_READ, &opened, err));
		tmesh_region_unref(opened);
	} while (tmesh_now_ns() - begun >= time);
	for (int i = 1; i < 3; i++)
		tensors[i] = put(ctx);
	while (tmesh_now_ns() - begun <= time)
		usleep(100000);
	/* Each of these makes the thread look. */
	for (int i = 1; i < 3; i++) {
		assert_ok(tmesh_region_hold(tmesh_tensor_region(tensors[i]), TMESH_READ, LONG,
					    token, err));
		usleep(50000);
	}
	assert_int_equal(tmesh_ctx_flush(ctx, 0, &left, NULL), -ETIMEDOUT);
	assert_int_equal(left.held, 2);
	assert_int_equal(left.held_expired, 0);
	assert_ok(tmesh_region_open(ctx, token, TMESH_READ, &opened, err));
	tmesh_region_unref(opened);
	for (int i = 0; i < 3; i++)
		tmesh_tensor_unref(tensors[i]);
	tmesh_ctx_unref(ctx);
}

/* The parent's holds do not concern the child. */
static void test_fork(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	char ref[TMESH_REF_SIZE];
	pid_t pid;

	hold(ctx, LONG, ref);
	pid = fork();
	if (pid == 0) {
		if (held(ctx) || ctx_stats(ctx).regions_live != 0)
			unit_leave(1);
		tmesh_exit_wait(600 * SECOND);
		unit_leave(0);
	}
	join_child(pid);
	assert_int_equal(held(ctx), 1);
	assert_int_equal(opens_elsewhere(ref), 0);
	tmesh_ctx_unref(ctx);
}

static void test_bundle(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_tensor *tensors[2] = {put(ctx), put(ctx)};
	const struct tmesh_bundle_entry entries[] = {
		{.name = "a", .tensor = tensors[0]},
		{.name = "b", .tensor = tensors[1]},
	};
	struct tmesh_bundle *bundle = NULL, *opened = NULL;
	char *ref;

	assert_ok(tmesh_bundle_create(ctx, entries, 2, NULL, &bundle, err));
	ref = malloc(tmesh_bundle_ref_size(bundle));
	assert_refused(tmesh_bundle_ref_hold(bundle, TMESH_READ, LONG, ref, 10, err), -ENOSPC,
		       "room");
	assert_int_equal(held(ctx), 0);
	assert_ok(tmesh_bundle_ref_hold(bundle, TMESH_READ, LONG, ref,
					tmesh_bundle_ref_size(bundle), err));
	assert_int_equal(held(ctx), 3);
	tmesh_bundle_unref(bundle);
	for (int i = 0; i < 2; i++)
		tmesh_tensor_unref(tensors[i]);
	assert_ok(tmesh_bundle_open(ctx, ref, strlen(ref), TMESH_READ, &opened, err));
	expect_none_held(ctx);
	free(ref);
	tmesh_bundle_unref(opened);
	expect_free(ctx);
	tmesh_ctx_unref(ctx);
}

/* A worker that makes something and ends. */
static void test_exit(void **state)
{
	struct role role = start("hold", "600000", "600");
	char ref[TMESH_REF_SIZE], text[512];

	assert_non_null(fgets(ref, sizeof(ref), role.out));
	assert_int_equal(opens_elsewhere(ref), 0);
	assert_int_equal(ended(&role, text), 0);
	assert_string_equal(text, "");
}

/* A thread that reads has the lock of its stream, and one that writes that of stdout: the library's
 * destructor waits for neither. */
static void test_exit_beside_streams(void **state)
{
	struct role role = start("streams", "600000", "0.01");
	char text[512];

	assert_int_equal(ended(&role, text), 0);
}

static void test_exit_too_late(void **state)
{
	struct role role = start("hold", "600000", "0.01");
	char ref[TMESH_REF_SIZE], text[512];

	assert_non_null(fgets(ref, sizeof(ref), role.out));
	assert_int_equal(ended(&role, text), 0);
	if (unit_on_kernel()) {
		assert_string_equal(text, "");
		assert_int_equal(opens_elsewhere(ref), 0);
		return;
	}
	if (!strstr(text, "1 of its tokens") || !strstr(text, "lost"))
		fail_msg("\"%s\" does not say what was lost", text);
	assert_int_equal(opens_elsewhere(ref), 2);
}

/* A destructor waits only if the program asked for it. */
static void test_exit_without_asking(void **state)
{
	struct role role = start("hold", "600000", "");
	char ref[TMESH_REF_SIZE], text[512];

	assert_non_null(fgets(ref, sizeof(ref), role.out));
	assert_int_equal(ended(&role, text), 0);
	if (!unit_on_kernel() && !strstr(text, "It waited 0 s"))
		fail_msg("\"%s\" does not say that it did not wait", text);
}

/* tmesh_exit_wait() is asked for by its call, whatever exit() would do. */
static void test_exit_wait_call(void **state)
{
	struct role role = start("ends", "600000", "0");
	char ref[TMESH_REF_SIZE], text[512];

	assert_non_null(fgets(ref, sizeof(ref), role.out));
	assert_int_equal(ended(&role, text), 0);
	if (unit_on_kernel())
		assert_string_equal(text, "");
	else if (!strstr(text, "It waited 0.01 s"))
		fail_msg("\"%s\" does not say how long it waited", text);
}

/* An exit does not wait for a region that no process could open any more. */
static void test_exit_in_time(void **state)
{
	struct role role = start("hold", "1", "600");
	char ref[TMESH_REF_SIZE], text[512];

	assert_non_null(fgets(ref, sizeof(ref), role.out));
	assert_int_equal(ended(&role, text), 0);
	assert_string_equal(text, "");
}

/* The module's holds for a process outlive it. The region is held again,
 * for longer, or sealed only then, or a longer time is not granted. */
static void test_exit_after_more(void **state)
{
	static const char *const roles[] = {"again", "sealed", "refused"};

	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
		struct role role = start(roles[i], "600000", "0.01");
		char ref[TMESH_REF_SIZE], text[512];

		assert_non_null(fgets(ref, sizeof(ref), role.out));
		assert_int_equal(ended(&role, text), 0);
		if (unit_on_kernel()) {
			/* gcov, too, may have words for one that has no descriptor left. */
			assert_null(strstr(text, "of its tokens"));
			assert_int_equal(opens_elsewhere(ref), 0);
		} else if (!strstr(text, "2 of its tokens")) {
			fail_msg("\"%s\" does not say what was lost", text);
		}
	}
}

/* A hold that is refused writes nothing. */
static void test_refused_writes_nothing(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_tensor *tensor = put(ctx);
	struct tmesh_bundle_entry entry = {.name = "a", .tensor = tensor};
	struct tmesh_bundle *bundle;
	char text[2 * TMESH_REF_SIZE] = "untouched";

	assert_ok(tmesh_bundle_create(ctx, &entry, 1, NULL, &bundle, err));
	assert_refused(tmesh_tensor_ref_hold(tensor, TMESH_READ, TMESH_HOLD_MAX_NS + 1, text,
					     sizeof(text), err),
		       -EINVAL, "more than a day");
	assert_string_equal(text, "untouched");
	assert_refused(tmesh_bundle_ref_hold(bundle, TMESH_READ, TMESH_HOLD_MAX_NS + 1, text,
					     sizeof(text), err),
		       -EINVAL, "more than a day");
	assert_string_equal(text, "untouched");
	tmesh_bundle_unref(bundle);
	tmesh_tensor_unref(tensor);
	tmesh_ctx_unref(ctx);
}

static void test_exit_wait_option(void **state)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts)};
	struct tmesh_ctx *ctx = NULL;

	setenv("TMESH_EXIT_WAIT", "soon", 1);
	assert_refused(tmesh_ctx_open(&opts, &ctx, err), -EINVAL, "TMESH_EXIT_WAIT is \"soon\"");
	for (int i = 0; i < 5; i++) {
		const char *const wrong[] = {"-1", "nan", "3601", "1e300", "1s"};

		setenv("TMESH_EXIT_WAIT", wrong[i], 1);
		assert_refused(tmesh_ctx_open(&opts, &ctx, err), -EINVAL, "seconds from 0 to");
	}
	setenv("TMESH_EXIT_WAIT", "", 1); /* as if it were not set */
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_int_equal(ctx->exit_wait_ns, 5 * SECOND);
	tmesh_ctx_unref(ctx);
	setenv("TMESH_EXIT_WAIT", "1.5", 1);
	/* In any language of the program. */
	comma_begin();
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	comma_end();
	assert_int_equal(ctx->exit_wait_ns, 1500000000);
	tmesh_ctx_unref(ctx);
	opts.exit_wait_ns = TMESH_NO_EXIT_WAIT;
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_int_equal(ctx->exit_wait_ns, 0);
	tmesh_ctx_unref(ctx);
	opts.exit_wait_ns = 3601 * SECOND;
	assert_refused(tmesh_ctx_open(&opts, &ctx, err), -EINVAL, "hour");
	unsetenv("TMESH_EXIT_WAIT");
}

/* Roles. Status 2: there is no such region. */
static int open_ref(const char *text)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts)};
	struct tmesh_tensor *tensor = NULL;
	struct tmesh_ctx *ctx = NULL;
	struct tmesh_error err;
	struct tmesh_ref ref;
	int32_t got[4] = {0};
	int rc = tmesh_ctx_open(&opts, &ctx, &err);

	if (!rc)
		rc = tmesh_ref_decode(text, strcspn(text, "\n"), &ref, &err);
	if (!rc)
		rc = tmesh_tensor_open(ctx, &ref, TMESH_READ, &tensor, &err);
	if (!rc)
		rc = tmesh_tensor_read(tensor, got, sizeof(got), &err);
	if (rc)
		fprintf(stderr, "%s", err.message);
	else if (memcmp(got, numbers, sizeof(got)))
		fprintf(stderr, "other numbers");
	tmesh_tensor_unref(tensor);
	tmesh_ctx_unref(ctx);
	return rc == -ENOENT ? 2 : rc || memcmp(got, numbers, sizeof(got));
}

static int hold_and_end(const char *ms)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	char ref[TMESH_REF_SIZE];

	hold(ctx, strtoull(ms, NULL, 10) * 1000000, ref);
	tmesh_ctx_unref(ctx);
	puts(ref);
	return 0;
}

/* Without exit(), whose destructors would wait. */
static int hold_and_leave(const char *ms)
{
	hold_and_end(ms);
	fflush(stdout);
	tmesh_exit_wait(10000000);
	_exit(0);
}

static FILE *silent;
static atomic_bool reads;
static bool beside_streams;

/* Between the library's destructor and the end of exit(), which waits for the lock of each stream
 * itself in glibc 2.41. */
__attribute__((destructor(101))) static void leave_streams(void)
{
	if (beside_streams)
		_exit(0);
}

static void *read_for_ever(void *data)
{
	flockfile(silent);
	flockfile(stdout);
	atomic_store(&reads, true);
	fgetc(silent);
	return data;
}

/* Beside a thread that reads where nothing comes. */
static int hold_beside_streams(const char *ms)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	char ref[TMESH_REF_SIZE];
	pthread_t thread;
	int ends[2];

	alarm(120);
	hold(ctx, strtoull(ms, NULL, 10) * 1000000, ref);
	if (pipe(ends))
		return 1;
	silent = fdopen(ends[0], "r");
	if (!silent || pthread_create(&thread, NULL, read_for_ever, NULL))
		return 1;
	while (!atomic_load(&reads))
		usleep(1000);
	beside_streams = true;
	return 0;
}

/* Twice, for longer the second time, after something has happened to the tensor or the process. */
static int hold_twice_and_end(const char *what, const char *ms)
{
	uint64_t ns = strtoull(ms, NULL, 10) * 1000000;
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_tensor *tensor = NULL;
	struct tmesh_error err = {0};
	char ref[TMESH_REF_SIZE];
	const int64_t shape[] = {4};
	int rc;

	rc = tmesh_tensor_create(ctx, TMESH_INT32, 1, shape, NULL, &tensor, &err);
	if (!rc)
		rc = tmesh_region_write(tmesh_tensor_region(tensor), 0, numbers, sizeof(numbers),
					&err);
	if (!rc && strcmp(what, "sealed"))
		rc = tmesh_region_seal(tmesh_tensor_region(tensor), &err);
	if (!rc)
		rc = tmesh_tensor_ref_hold(tensor, TMESH_READ, ns, ref, sizeof(ref), &err);
	if (!rc && !strcmp(what, "sealed"))
		rc = tmesh_region_seal(tmesh_tensor_region(tensor), &err);
	/* The module keeps a user's regions for that user alone. */
	if (!rc && !strcmp(what, "refused") && unit_on_kernel() && geteuid() == 0)
		rc = seteuid(65534);
	if (!rc)
		rc = tmesh_tensor_ref_hold(tensor, TMESH_READ, 2 * ns, ref, sizeof(ref), &err);
	if (rc)
		fprintf(stderr, "%s", err.message);
	tmesh_tensor_unref(tensor);
	tmesh_ctx_unref(ctx);
	puts(ref);
	return rc != 0;
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		TEST(test_without_its_context),
		TEST(test_time),
		TEST(test_exit),
		TEST(test_exit_too_late),
		TEST(test_exit_without_asking),
		TEST(test_exit_wait_call),
		TEST(test_exit_in_time),
		TEST(test_exit_after_more),
		TEST(test_exit_wait_option),
		TEST(test_refused_writes_nothing),
		TEST(test_bundle),
		TEST(test_one_after_another),
	};
	static const struct CMUnitTest streams[] = {TEST(test_exit_beside_streams)};
	/* Where each token has an open of its own. */
	static const struct CMUnitTest seen[] = {
		TEST(test_two),	 TEST(test_rights), TEST(test_limits), TEST(test_opened_in_time),
		TEST(test_fork),
	};
	int failed;

	self = argv[0];
	if (argc == 3)
		return !strcmp(argv[1], "open")	     ? open_ref(argv[2])
		       : !strcmp(argv[1], "hold")    ? hold_and_end(argv[2])
		       : !strcmp(argv[1], "ends")    ? hold_and_leave(argv[2])
		       : !strcmp(argv[1], "streams") ? hold_beside_streams(argv[2])
						     : hold_twice_and_end(argv[1], argv[2]);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
#ifdef __SANITIZE_THREAD__
	UNIT_SKIP(streams, "the thread sanitizer itself flushes stdout at exit, with its lock");
#else
	failed += cmocka_run_group_tests(streams, NULL, NULL);
#endif
	if (unit_on_kernel())
		UNIT_SKIP(seen,
			  "on the module the tokens of a region with the same rights are one");
	else
		failed += cmocka_run_group_tests(seen, NULL, NULL);
	return failed;
}
