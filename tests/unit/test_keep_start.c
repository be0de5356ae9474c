// SPDX-License-Identifier: MIT
/* Programs in the keeper's place that do not start as it does: each wait for them has an end. */
#include "unit.h"

#include <spawn.h>
#include <sys/time.h>

static uint64_t longest_ns;
static int interruptions;

/* A wait without WNOHANG is interrupted as often as a test wants. */
static pid_t interrupted_waitpid(pid_t pid, int *status, int options)
{
	if (!(options & WNOHANG) && interruptions > 0) {
		interruptions--;
		errno = EINTR;
		return -1;
	}
	return waitpid(pid, status, options);
}

#define waitpid interrupted_waitpid

static pid_t holder; /* has a copy of the pipe's end by which the program speaks */
static int let[2];

/* Start the program beside a child that another thread forked at that moment. It lives until it is
 * let go. */
static int spawn_beside(pid_t *pid, const char *program, const posix_spawn_file_actions_t *actions,
			const posix_spawnattr_t *attr, char *const *argv, char *const *envp)
{
	char nothing;

	if (let[1]) {
		holder = fork();
		if (!holder) {
			close(let[1]);
			_exit(read(let[0], &nothing, 1) != 0);
		}
	}
	return posix_spawn(pid, program, actions, attr, argv, envp);
}

#define posix_spawn spawn_beside
#define LONGEST_START_NS longest_ns
#define TMESH_KEEPER_PATH "/nowhere/tmesh-keeper"
#include "../../lib/keep_start.c"
#undef waitpid
#undef posix_spawn

static char folder[] = "/tmp/tmesh-start-XXXXXX";

/* Make a keeper of a shell script. */
static void keeper_is(const char *script)
{
	const char *path = getenv("TMESH_KEEPER");
	FILE *file;

	unlink(path);
	file = fopen(path, "we");
	assert_non_null(file);
	fprintf(file, "#!/bin/sh\n%s\n", script);
	assert_int_equal(fchmod(fileno(file), 0700), 0);
	assert_int_equal(fclose(file), 0);
}

static void assert_no_child(void)
{
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

/* Return the process that the script noted. */
static pid_t noted(void)
{
	char path[64];
	FILE *file;
	int pid;

	snprintf(path, sizeof(path), "%s/pid", folder);
	file = fopen(path, "re");
	assert_non_null(file);
	assert_int_equal(fscanf(file, "%d", &pid), 1);
	fclose(file);
	return pid;
}

static int connected(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	int fd;

	return tmesh_keeper_connect(ctx, true, &fd, err);
}

/* It says nothing and does not end; with its output closed, too. It is killed. */
UNIT(test_silent)
{
	static const char *const scripts[] = {"exec sleep 1000", "exec sleep 1000 >&-"};

	for (size_t i = 0; i < 2; i++) {
		keeper_is(scripts[i]);
		longest_ns = 200000000;
		assert_refused(connected(*state, err), -ETIMEDOUT, "did not start within");
		assert_no_child();
	}
}

/* It ends, and a child of it has the pipe that it was to speak by. */
UNIT(test_left_behind)
{
	longest_ns = 4000000000;
	keeper_is("sleep 1000 & echo $! >${0%/*}/pid; exit 1");
	assert_refused(connected(*state, err), -ENOENT, "could not start");
	assert_int_equal(kill(noted(), SIGKILL), 0);
}

/* A forked child holds the pipe open: the end of the program is noticed all the same, and its
 * reason read. The test's time limit ends a wait for the child. */
UNIT(test_held_open)
{
	longest_ns = UINT64_C(3600000000000);
	for (int fails = 0; fails < 2; fails++) {
		keeper_is(fails ? "sleep 0.1; echo a reason; exit 1" : "sleep 0.1");
		assert_int_equal(pipe2(let, O_CLOEXEC), 0);
		if (fails)
			assert_refused(start(*state, err), -ENOENT, "could not start: a reason");
		else
			assert_ok(start(*state, err));
		close(let[0]);
		close(let[1]);
		let[1] = 0;
		join_child(holder);
		assert_no_child();
	}
}

/* A signal's handler of the program runs meanwhile. */
static void nothing(int number)
{
	(void)number;
}

UNIT(test_interrupted)
{
	const struct sigaction act = {.sa_handler = nothing};
	const struct itimerval often = {{0, 20000}, {0, 20000}}, never = {0};

	keeper_is("exec sleep 1000");
	longest_ns = 500000000;
	interruptions = 2;
	sigaction(SIGALRM, &act, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	assert_refused(connected(*state, err), -ETIMEDOUT, "did not start within");
	setitimer(ITIMER_REAL, &never, NULL);
	/* The handler stays: valgrind may deliver a signal of the timer later. */
	assert_int_equal(interruptions, 0);
	assert_no_child();
}

/* The folder is the runtime folder too, where no other program's keeper answers. */
static int set_up(void **state)
{
	char keeper[64];

	if (!mkdtemp(folder))
		return -1;
	snprintf(keeper, sizeof(keeper), "%s/keeper", folder);
	return setenv("TMESH_KEEPER", keeper, 1) || setenv("TMESH_RUNTIME_DIR", folder, 1) ||
	       unit_ctx_setup(state);
}

static int tear_down(void **state)
{
	char command[96];

	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return unit_ctx_teardown(state) || system(command);
}

UNIT_MAIN("keep start", set_up, tear_down)
