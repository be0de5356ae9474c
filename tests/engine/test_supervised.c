// SPDX-License-Identifier: MIT
/*
 * The supervisor of an engine whose process hangs while it starts, in a call or outside of one,
 * damages the memory that both share, or cannot be started. No process or file is left, and no
 * client waits for ever.
 */
#include <limits.h>
#include <time.h>

#include "served.h"

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static char library[128];
/* With a client that is asked for its memory: a slow machine has all the time. */
static const char *patience = "--patience=600";

/* tmesh-engine as "unit", with @library where that is not empty; until its first line, if @waits.
 */
static void start(const char *limit, bool waits)
{
	char models[64], line[256], own[160];
	char *argv[] = {(char *)"tmesh-engine",
			(char *)"--engine=fake",
			(char *)"--clients=4",
			(char *)limit,
			(char *)patience,
			(char *)"--with-input",
			(char *)"--models",
			models,
			*library ? own : (char *)"unit",
			*library ? (char *)"unit" : NULL,
			NULL};
	int in[2];

	snprintf(models, sizeof(models), "%s/models", folder);
	snprintf(own, sizeof(own), "--library=%s", library);
	if (waits) {
		supervisor = run_program(argv, &input, line, sizeof(line));
		assert_string_equal(line, "ready unit\n");
		return;
	}
	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	supervisor = fork();
	if (!supervisor) {
		dup2(in[0], 0);
		/* nohup, or a shell for what it starts in the background, has these ignored. */
		signal(SIGINT, SIG_DFL);
		signal(SIGHUP, SIG_DFL);
		execv(getenv("TMESH_ENGINE_PROGRAM"), argv);
		_exit(127);
	}
	close(in[0]);
	input = in[1];
}

static pid_t child_of(pid_t pid)
{
	char path[64];
	FILE *from;
	int child;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", pid, pid);
	from = fopen(path, "r");
	if (!from || fscanf(from, "%d", &child) != 1)
		child = 0;
	if (from)
		fclose(from);
	return child;
}

/* The supervisor's child, after @last. One that has ended stays its child until it is waited for.
 */
static pid_t await_child(pid_t last)
{
	pid_t child = 0;

	for (int i = 0; i < 60000 && (!child || child == last); i++) {
		usleep(1000);
		child = child_of(supervisor);
	}
	assert_int_not_equal(child, 0);
	assert_int_not_equal(child, last);
	return child;
}

/* The process has ended, or its parent has not waited for it yet. */
static bool is_gone(pid_t pid)
{
	char path[64], state = 'X';
	FILE *from;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	from = fopen(path, "r");
	if (!from)
		return true;
	if (fscanf(from, "%*d (%*[^)]) %c", &state) != 1)
		state = 'X';
	fclose(from);
	return state == 'Z' || state == 'X';
}

static void await_end_of(pid_t pid)
{
	for (int i = 0; i < 60000 && !is_gone(pid); i++)
		usleep(1000);
	assert_true(is_gone(pid));
}

static void assert_ends(int signal)
{
	assert_int_equal(kill(supervisor, signal), 0);
	join_child(supervisor);
	close(input);
}

static void assert_nothing_left(void)
{
	static const char *const names[] = {"engine-unit", "engine-unit.lock", "engine-unit.d"};
	char path[300];

	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/%s", getenv("TMESH_RUNTIME_DIR"), names[i]);
		assert_int_equal(access(path, F_OK), -1);
	}
}

static const char *flag(const char *name)
{
	static char path[96];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static void set_flag(const char *name)
{
	int fd = open(flag(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	close(fd);
}

/* A signal comes while the engine starts and does not come back. */
static void test_end_while_starting(void **state)
{
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP};

	strcpy(library, "hangs");
	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++) {
		pid_t child;

		start("--limit=600", false);
		child = await_child(0);
		assert_ends(signals[i]);
		await_end_of(child);
		assert_nothing_left();
	}
	/* And by its input. */
	start("--limit=600", false);
	await_child(0);
	end_program(supervisor, input);
	assert_nothing_left();
	*library = '\0';
}

static void *join_late(void *data)
{
	join(data);
	return NULL;
}

/* Clients that come while it starts wait for that. */
static void test_slow_start(void **state)
{
	struct fixture fix;
	pthread_t thread;

	snprintf(library, sizeof(library), "opens:%s", flag("open"));
	start("--limit=600", false);
	await_child(0);
	file("graph", "plain");
	for (int i = 0; i < 60000 && access(getenv("TMESH_RUNTIME_DIR"), F_OK); i++)
		usleep(1000);
	pthread_create(&thread, NULL, join_late, &fix);
	usleep(100000);
	set_flag("open");
	pthread_join(thread, NULL);
	assert_works(&fix);
	leave(&fix);
	assert_ends(SIGTERM);
	assert_nothing_left();
	unlink(flag("open"));
	*library = '\0';
}

/* The next process cannot be started: clients get the reason, until it can. */
static void test_no_restart(void **state)
{
	struct fixture fix;
	uint64_t time, starts = 0;
	uint32_t pid;
	int last = 0;

	snprintf(library, sizeof(library), "fails:%s", flag("fail"));
	start("--limit=600", true);
	join(&fix);
	assert_works(&fix);
	pid = tmesh_engine_context_pid(fix.context);
	set_flag("fail");
	assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
	for (uint64_t began = now_ns(); (time = now_ns() - began) < 1000 * MS;) {
		struct tmesh_error why;
		int process;

		assert_int_equal(dispatch(&fix, &why), -ENOSPC);
		assert_int_equal(sscanf(why.message,
					"the engine cannot be started: the fake has no room in "
					"process %d",
					&process),
				 1);
		starts += process != last;
		last = process;
	}
	/* It rests after each start: 10 ms, then twice as long, and at last 250 ms. */
	assert_in_range(starts, 1, 7 + time / (250 * MS));
	unlink(flag("fail"));
	/* The next try may have begun before. */
	for (int i = 0, rc = -ENOSPC; i < 100 && rc == -ENOSPC; i++)
		rc = dispatch(&fix, NULL);
	assert_works(&fix);
	assert_int_not_equal(tmesh_engine_context_pid(fix.context), pid);
	leave(&fix);
	assert_ends(SIGTERM);
	*library = '\0';
}

/* The supervisor has no descriptor for the next process: it goes on trying. */
static void test_no_descriptors(void **state)
{
	struct rlimit all, few;
	struct fixture fix;
	uint32_t pid;

	start("--limit=600", true);
	join(&fix);
	assert_works(&fix);
	pid = tmesh_engine_context_pid(fix.context);
	assert_int_equal(prlimit(supervisor, RLIMIT_NOFILE, NULL, &all), 0);
	/* As many as it polls. */
	few = (struct rlimit){.rlim_cur = 6, .rlim_max = all.rlim_max};
	assert_int_equal(prlimit(supervisor, RLIMIT_NOFILE, &few, NULL), 0);
	assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
	await_end_of((pid_t)pid);
	usleep(300000);
	assert_int_equal(waitpid(supervisor, NULL, WNOHANG), 0);
	assert_int_equal(prlimit(supervisor, RLIMIT_NOFILE, &all, NULL), 0);
	assert_works(&fix);
	assert_int_not_equal(tmesh_engine_context_pid(fix.context), pid);
	leave(&fix);
	assert_ends(SIGTERM);
	assert_nothing_left();
}

/* The engine hangs outside of a call: it closes a session, or frees one of a client that died. */
static void test_hang_outside(void **state)
{
	struct fixture fix;
	pid_t child;

	start("--limit=2", true);
	for (int dies = 0; dies < 2; dies++) {
		uint32_t pid;

		join_timed(&fix, 0, "plain");
		assert_works_at_last(&fix);
		pid = tmesh_engine_context_pid(fix.context);
		child = fork();
		if (!child) {
			struct fixture inner;
			const char *path;

			join_timed(&inner, 0, "stuck");
			path = file("stuck", "stuck");
			unlink(path);
			if (dies)
				raise(SIGKILL);
			leave(&inner);
			_exit(0);
		}
		assert_int_equal(waitpid(child, NULL, 0), child);
		/* The engine's process is ended for it, and the next one serves. */
		await_end_of((pid_t)pid);
		assert_works_at_last(&fix);
		leave(&fix);
	}
	assert_ends(SIGTERM);
}

/* The engine damages the memory that it shares with its supervisor, and hangs: it is ended. */
static void test_damaged(void **state)
{
	static const char *const ways[] = {"zeros", "ones", "random", "asleep"};
	struct fixture fix;

	/* The supervisor allows for it before it ends a process that says nothing. */
	patience = "--patience=0.1";
	start("--limit=1", true);
	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		struct tmesh_engine_graph *graph;
		char text[32];
		int rc = -EPIPE;

		join_timed(&fix, 0, "plain");
		snprintf(text, sizeof(text), "damages %s", ways[i]);
		for (int n = 0; n < 100 && (rc == -EPIPE || rc == -ETIMEDOUT); n++)
			rc = tmesh_engine_graph_open(fix.context, file("damages", text), NULL,
						     &graph, NULL);
		assert_int_equal(rc, 0);
		/* On a slow machine it is not even begun. */
		rc = -ETIMEDOUT;
		for (int n = 0; n < 100 && rc == -ETIMEDOUT; n++)
			rc = tmesh_engine_dispatch(graph, fix.inputs, 2, fix.outputs, 1, NULL);
		assert_int_equal(rc, -EPIPE);
		assert_works_at_last(&fix);
		tmesh_engine_graph_unref(graph);
		leave(&fix);
	}
	patience = "--patience=600";
	assert_ends(SIGTERM);
	assert_nothing_left();
}

/* The engine has the reads of all its descriptors wait, and dies: the supervisor waits for none. */
static void test_unblocked(void **state)
{
	struct tmesh_engine_graph *graph;
	struct fixture fix;

	start("--limit=600", true);
	join(&fix);
	assert_ok(tmesh_engine_graph_open(fix.context, file("unblocks", "unblocks"), NULL, &graph,
					  err));
	for (int i = 0; i < 2; i++) {
		assert_int_equal(tmesh_engine_dispatch(graph, fix.inputs, 2, fix.outputs, 1, NULL),
				 -EPIPE);
		assert_works(&fix);
	}
	tmesh_engine_graph_unref(graph);
	leave(&fix);
	assert_ends(SIGTERM);
	assert_nothing_left();
}

/* A process that is always about to sleep, for its client calls again just before. A call that
 * hangs then is ended all the same. */
static void test_hang_awake(void **state)
{
	struct tmesh_engine_binding *binding, *hangs;
	struct tmesh_engine_graph *graph;
	uint64_t end = now_ns() + 3000 * MS;
	struct fixture fix;

	start("--limit=3", true);
	join_timed(&fix, 0, "plain");
	binding = bind_timed(&fix, fix.graph);
	graph = open_timed(&fix, "hangs");
	hangs = bind_timed(&fix, graph);
	while (now_ns() < end) {
		/* The engine sleeps after 200 us. */
		uint64_t next = now_ns() + MS / 10;
		int rc = tmesh_engine_binding_dispatch(binding, NULL);

		assert_true(!rc || rc == -EPIPE);
		while (now_ns() < next)
			;
	}
	assert_refused(tmesh_engine_binding_dispatch(hangs, err), -EPIPE, "died in this call");
	tmesh_engine_binding_unref(binding);
	tmesh_engine_binding_unref(hangs);
	tmesh_engine_graph_unref(graph);
	leave(&fix);
	assert_ends(SIGTERM);
}

static void *wait_for_go(void *data)
{
	return (void *)(intptr_t)tmesh_engine_binding_dispatch(data, NULL);
}

/* Both were stopped, as by a terminal: that time is none of the call's. */
static void test_stopped_together(void **state)
{
	struct tmesh_engine_binding *binding;
	struct tmesh_engine_graph *graph;
	struct fixture fix;
	void *result;
	pid_t engine;

	start("--limit=4", true);
	join_timed(&fix, 0, "plain");
	graph = open_timed(&fix, "waits");
	binding = bind_timed(&fix, graph);
	result = (void *)(intptr_t)-EPIPE;
	/* On a slow machine the time of a call is over before the two are stopped. */
	for (int i = 0; i < 5 && (intptr_t)result == -EPIPE; i++) {
		pthread_t thread;

		unlink(file("waits.go", ""));
		assert_works_at_last(&fix);
		engine = (pid_t)tmesh_engine_context_pid(fix.context);
		pthread_create(&thread, NULL, wait_for_go, binding);
		await_run(&fix);
		assert_int_equal(kill(supervisor, SIGSTOP), 0);
		kill(engine, SIGSTOP);
		sleep(5);
		file("waits.go", "");
		kill(engine, SIGCONT);
		assert_int_equal(kill(supervisor, SIGCONT), 0);
		pthread_join(thread, &result);
	}
	assert_int_equal((intptr_t)result, 0);
	assert_int_equal(tmesh_engine_context_pid(fix.context), engine);
	tmesh_engine_binding_unref(binding);
	tmesh_engine_graph_unref(graph);
	leave(&fix);
	assert_ends(SIGTERM);
}

/* A supervisor that is killed takes its engine with it, and the next one its name. */
static void test_killed(void **state)
{
	struct fixture fix;
	pid_t engine;

	for (int i = 0; i < 3; i++) {
		start("--limit=600", true);
		join(&fix);
		assert_works(&fix);
		engine = (pid_t)tmesh_engine_context_pid(fix.context);
		assert_int_equal(kill(supervisor, SIGKILL), 0);
		assert_int_equal(waitpid(supervisor, NULL, 0), supervisor);
		close(input);
		await_end_of(engine);
		leave(&fix);
	}
	start("--limit=600", true);
	assert_ends(SIGTERM);
	assert_nothing_left();
}

static char program[PATH_MAX];

/* A program that ignores SIGCHLD passes that on. The supervisor sees its engine's end all the same.
 */
static void test_ignored_children(void **state)
{
	struct fixture fix;
	pid_t engine;

	/* Without the shell, which sets the signal itself. */
	assert_int_equal(setenv("TMESH_ENGINE_PROGRAM", program, 1), 0);
	signal(SIGCHLD, SIG_IGN);
	start("--limit=600", true);
	signal(SIGCHLD, SIG_DFL);
	join(&fix);
	assert_works(&fix);
	engine = (pid_t)tmesh_engine_context_pid(fix.context);
	assert_int_equal(kill(engine, SIGKILL), 0);
	await_end_of(engine);
	await_child(engine);
	leave(&fix);
	assert_ends(SIGTERM);
	assert_nothing_left();
}

/* The engine shuts down the socket on which clients connect. The supervisor ends its process, if it
 * has not ended, and listens again. A client that connects meanwhile waits for that. */
static void test_deafened(void **state)
{
	static const char *const ways[] = {"deafens dies", "deafens stays"};
	const struct tmesh_engine_connect_opts opts = {.size = sizeof(opts), .timeout_ns = 50 * MS};

	start("--limit=600", true);
	for (size_t i = 0; i < 2; i++) {
		struct tmesh_engine_binding *binding;
		struct tmesh_engine_graph *graph;
		struct fixture fix, other;
		pid_t engine;
		int rc;

		join(&fix);
		engine = (pid_t)tmesh_engine_context_pid(fix.context);
		assert_ok(tmesh_engine_graph_open(fix.context, file("deafens", ways[i]), NULL,
						  &graph, err));
		assert_ok(tmesh_engine_bind(graph, fix.inputs, 2, fix.outputs, 1, &binding, err));
		assert_int_equal(kill(supervisor, SIGSTOP), 0);
		rc = tmesh_engine_binding_dispatch(binding, NULL);
		assert_int_equal(rc, i ? 0 : -EPIPE);
		assert_ok(tmesh_ctx_open(NULL, &other.ctx, err));
		assert_refused(tmesh_engine_connect(other.ctx, "unit", &opts, &other.context, err),
			       -ETIMEDOUT, "accepted no connection before the deadline");
		assert_int_equal(kill(supervisor, SIGCONT), 0);
		assert_ok(tmesh_engine_connect(other.ctx, "unit", NULL, &other.context, err));
		await_end_of(engine);
		fill(&other);
		assert_works(&other);
		leave(&other);
		assert_works(&fix);
		tmesh_engine_binding_unref(binding);
		tmesh_engine_graph_unref(graph);
		leave(&fix);
	}
	assert_ends(SIGTERM);
	assert_nothing_left();
}

/* The name of another engine alone does not serve the default engine by that name. */
static void test_name_of_engine(void **state)
{
	char *const lines[][4] = {
		{(char *)"tmesh-engine", (char *)"ggml", NULL},
		{(char *)"tmesh-engine", (char *)"fake", NULL},
		{(char *)"tmesh-engine", (char *)"--engine=none", (char *)"fake", NULL}};
	static const int statuses[] = {2, 2, 1};

	for (size_t i = 0; i < 3; i++) {
		int status, end;
		char line[64];
		pid_t pid = run_program(lines[i], &end, line, sizeof(line));

		assert_int_equal(waitpid(pid, &status, 0), pid);
		close(end);
		assert_int_equal(WEXITSTATUS(status), statuses[i]);
	}
}

/* Few descriptors are few regions of a client, for which the supervisor allows for patience. */
static int limit_files(void)
{
	char script[600];

	snprintf(script, sizeof(script), "#!/bin/sh\nulimit -n 400\nexec %s \"$@\"\n",
		 getenv("TMESH_ENGINE_PROGRAM"));
	return chmod(file("limited", script), 0700) ||
	       setenv("TMESH_ENGINE_PROGRAM", file("limited", script), 1);
}

/* The supervisor of a test that failed keeps the name from the next. */
static int end_left(void **state)
{
	if (supervisor > 0 && !waitpid(supervisor, NULL, WNOHANG)) {
		kill(supervisor, SIGKILL);
		waitpid(supervisor, NULL, 0);
	}
	return 0;
}

#define TEST_ENDED(test) cmocka_unit_test_teardown(test, end_left)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST_ENDED(test_end_while_starting),
		TEST_ENDED(test_slow_start),
		TEST_ENDED(test_no_restart),
		TEST_ENDED(test_no_descriptors),
		TEST_ENDED(test_hang_outside),
		TEST_ENDED(test_hang_awake),
		TEST_ENDED(test_damaged),
		TEST_ENDED(test_unblocked),
		TEST_ENDED(test_stopped_together),
		TEST_ENDED(test_killed),
		TEST_ENDED(test_ignored_children),
		TEST_ENDED(test_deafened),
		TEST_ENDED(test_name_of_engine),
	};
	int failed;

	snprintf(program, sizeof(program), "%s", getenv("TMESH_ENGINE_PROGRAM"));
	if (make_folder() || limit_files())
		return 1;
	failed = cmocka_run_group_tests_name("supervised", tests, NULL, NULL);
	return remove_folder() || failed;
}
