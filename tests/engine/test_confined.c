// SPDX-License-Identifier: MIT
/*
 * The calls that an engine's process may not make. The engine is the fake, which tries it
 * (probe.h); the rules are the program's real ones.
 */
#include <linux/seccomp.h>

#include "served.h"

/* Return a field of the kernel's report about a process, /proc/PID/status. */
static int status_of(uint32_t pid, const char *name)
{
	char path[64], line[256];
	int value = -1;
	FILE *from;

	snprintf(path, sizeof(path), "/proc/%u/status", pid);
	from = fopen(path, "r");
	assert_non_null(from);
	while (value < 0 && fgets(line, sizeof(line), from))
		if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':')
			value = atoi(line + strlen(name) + 1);
	fclose(from);
	return value;
}

static void test_calls(void **state)
{
	struct fixture *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);

	assert_int_equal(status_of(pid, "Seccomp"), SECCOMP_MODE_FILTER);
	assert_int_equal(status_of(pid, "NoNewPrivs"), 1);
	assert_ok(dispatch_of(fix, "probe", err));
	assert_y(fix);
	/* The same process: a denied call kills no process. */
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
}

static void test_foreign(void **state)
{
	struct fixture *fix = *state;

	assert_refused(dispatch_of(fix, "foreign", err), -EPIPE, "died in this call");
	assert_works(fix);
}

/* The probe knows an engine that is allowed all. */
static void test_unconfined(void **state)
{
	char models[64], line[64];
	char *argv[] = {(char *)"tmesh-engine", (char *)"--engine=fake",
			(char *)"--with-input", (char *)"--unconfined",
			(char *)"--models",	models,
			(char *)"free",		NULL};
	struct fixture fix;
	pid_t pid;
	int end;

	snprintf(models, sizeof(models), "%s/models", folder);
	pid = run_program(argv, &end, line, sizeof(line));
	assert_string_equal(line, "ready free\n");
	assert_ok(tmesh_ctx_open(NULL, &fix.ctx, err));
	assert_ok(tmesh_engine_connect(fix.ctx, "free", NULL, &fix.context, err));
	fill(&fix);
	assert_int_equal(status_of(tmesh_engine_context_pid(fix.context), "Seccomp"),
			 status_of((uint32_t)getpid(), "Seccomp"));
	assert_refused(dispatch_of(&fix, "probe", err), -EIO, "the probe made a call");
	assert_works(&fix);
	leave(&fix);
	end_program(pid, end);
}

int main(void)
{
	const struct CMUnitTest filtered[] = {
		TEST_SET_UP(test_calls),
		TEST_SET_UP(test_unconfined),
#ifdef __x86_64__
		TEST_SET_UP(test_foreign),
#endif
	};
	const uint32_t action = SECCOMP_RET_KILL_PROCESS;
	int failed;

	if (make_folder())
		return 1;
#if !defined(__x86_64__) && !defined(__aarch64__)
	failed = UNIT_SKIP(filtered, "the filter is for x86-64 and aarch64");
#else
	if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action))
		failed = UNIT_SKIP(filtered, "this kernel has no seccomp");
	else
		failed = cmocka_run_group_tests_name("filtered", filtered, serve, unserve);
#endif
	return remove_folder() || failed;
}
