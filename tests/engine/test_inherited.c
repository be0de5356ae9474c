// SPDX-License-Identifier: MIT
/* tmesh-engine with a state that it inherits: closed standard descriptors, a limit of files' sizes.
 * It serves as without them. */
#include "served.h"

/* More than the memory of one client. */
#define FILE_BYTES (4 << 20)

/* Start tmesh-engine as "unit", in the state that @prepare makes. */
static void start(void (*prepare)(const void *data), const void *data)
{
	char models[64];
	char *argv[] = {(char *)"tmesh-engine", (char *)"--engine=fake",
			(char *)served_limit,	(char *)"--patience=600",
			(char *)"--models",	models,
			(char *)"unit",		NULL};

	snprintf(models, sizeof(models), "%s/models", folder);
	supervisor = fork();
	if (!supervisor) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prepare(data);
		execv(getenv("TMESH_ENGINE_PROGRAM"), argv);
		_exit(127);
	}
}

/* Connect. The program may have no output that says when it serves. */
static void join_at_last(struct fixture *fix)
{
	int rc = -ENOENT;

	assert_ok(tmesh_ctx_open(NULL, &fix->ctx, err));
	for (int i = 0; i < 60000 && rc == -ENOENT; i++) {
		assert_int_equal(waitpid(supervisor, NULL, WNOHANG), 0);
		rc = tmesh_engine_connect(fix->ctx, "unit", NULL, &fix->context, NULL);
		usleep(1000);
	}
	assert_int_equal(rc, 0);
	fill(fix);
}

/* It serves, replaces a process that is killed, and ends. */
static void assert_serves(struct fixture *fix)
{
	uint32_t pid;

	assert_works(fix);
	pid = tmesh_engine_context_pid(fix->context);
	assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
	assert_works(fix);
	assert_int_not_equal(tmesh_engine_context_pid(fix->context), pid);
	leave(fix);
	assert_int_equal(kill(supervisor, SIGTERM), 0);
	join_child(supervisor);
	supervisor = 0;
}

/* End it after a failed test. */
static int end_it(void **state)
{
	if (supervisor) {
		kill(supervisor, SIGKILL);
		waitpid(supervisor, NULL, 0);
	}
	supervisor = 0;
	return 0;
}

static void close_these(const void *data)
{
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (*(const unsigned int *)data >> fd & 1)
			close(fd);
}

static void test_closed(void **state)
{
	static const unsigned int masks[] = {1, 2, 4, 7};

	for (size_t i = 0; i < sizeof(masks) / sizeof(*masks); i++) {
		const struct engine_status *status;
		struct fixture fix;

		start(close_these, &masks[i]);
		join_at_last(&fix);
		/* The file that names the status has nothing else in it. */
		status = map_status(&fix);
		/* A client may come before the supervisor has written it. */
		for (int j = 0; j < 60000 && !*(const volatile uint32_t *)&status->magic; j++)
			usleep(1000);
		assert_int_equal(status->magic, ENGINE_STATUS_MAGIC);
		munmap((void *)status, sizeof(*status));
		assert_serves(&fix);
	}
}

static void limit_sizes(const void *data)
{
	const struct rlimit limit = {FILE_BYTES, FILE_BYTES};
	int fd = open(data, O_WRONLY | O_APPEND);

	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	close(fd);
	signal(SIGXFSZ, SIG_DFL);
	setrlimit(RLIMIT_FSIZE, &limit);
}

/* The outputs are a file that cannot grow. */
static void test_full_log(void **state)
{
	struct tmesh_error error;
	struct fixture fix;
	char log[128];

	snprintf(log, sizeof(log), "%s", file("log", ""));
	assert_int_equal(truncate(log, FILE_BYTES), 0);
	start(limit_sizes, log);
	join_at_last(&fix);
	/* A library of the engine's writes to its error output. */
	assert_int_equal(dispatch_of(&fix, "talks", &error), 0);
	assert_y(&fix);
	assert_serves(&fix);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_closed, end_it),
		cmocka_unit_test_teardown(test_full_log, end_it),
	};
	int failed;

	if (make_folder())
		return 1;
	failed = cmocka_run_group_tests_name("inherited", tests, NULL, NULL);
	return remove_folder() || failed;
}
