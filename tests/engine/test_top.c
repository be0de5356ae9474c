// SPDX-License-Identifier: MIT
/*
 * tmeshctl top (TMESHCTL) and engines in processes of their own: what it shows of them, and that no
 * process or file can keep it waiting. The engine is the fake.
 */
#include <jansson.h>
#include <math.h>
#include <sys/file.h>

#include "served.h"

/* Run the view and return its array of engines. A top that waits for a process is ended by the
 * alarm.
 */
static json_t *top(void)
{
	json_error_t error;
	json_t *shown, *engines;
	int out[2];
	pid_t pid;
	FILE *from;

	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	pid = fork();
	if (!pid) {
		alarm(1800); /* on a machine with much to do one look took 166 s */
		dup2(out[1], 1);
		execl(getenv("TMESHCTL"), "tmeshctl", "top", "--json", NULL);
		_exit(127);
	}
	close(out[1]);
	from = fdopen(out[0], "r");
	shown = json_loadf(from, 0, &error);
	fclose(from);
	join_child(pid);
	engines = json_incref(json_object_get(shown, "engines"));
	assert_true(json_is_array(engines));
	assert_true(json_is_array(json_object_get(shown, "regions")));
	json_decref(shown);
	return engines;
}

/* The engine "unit" as it is shown, and no other. */
static json_t *shown_unit(void)
{
	json_t *engines = top(), *unit;

	assert_int_equal(json_array_size(engines), 1);
	unit = json_incref(json_array_get(engines, 0));
	json_decref(engines);
	assert_string_equal(json_string_value(json_object_get(unit, "name")), "unit");
	return unit;
}

static int64_t shown(const char *name)
{
	json_t *unit = shown_unit();
	int64_t value = json_integer_value(json_object_get(unit, name));

	json_decref(unit);
	return value;
}

static bool is_state(const char *state)
{
	json_t *unit = shown_unit();
	bool is = !strcmp(json_string_value(json_object_get(unit, "state")), state);

	json_decref(unit);
	return is;
}

/* The last look counts: a further one may find another state. */
#define EVENTUALLY(condition)                                                      \
	do {                                                                       \
		bool met = false;                                                  \
                                                                                   \
		for (int tries = 0; tries < 1200 && !(met = (condition)); tries++) \
			usleep(50000);                                             \
		assert_true(met);                                                  \
	} while (0)

UNIT_SET_UP(test_counts)
{
	struct fixture *fix = *state;
	int64_t calls = shown("calls"), failed = shown("failed_calls"), steps = shown("steps");
	struct tmesh_engine_binding *binding;
	json_t *unit;

	assert_ok(tmesh_engine_bind(fix->graph, fix->inputs, 2, fix->outputs, 1, &binding, err));
	for (int i = 0; i < 100; i++)
		assert_ok(tmesh_engine_binding_dispatch(binding, err));
	unit = shown_unit();
	assert_string_equal(json_string_value(json_object_get(unit, "backend")), "fake");
	assert_string_equal(json_string_value(json_object_get(unit, "version")), "a fake");
	assert_string_equal(json_string_value(json_object_get(unit, "state")), "idle");
	assert_int_equal(json_integer_value(json_object_get(unit, "pid")),
			 tmesh_engine_context_pid(fix->context));
	assert_int_equal(json_integer_value(json_object_get(unit, "supervisor_pid")), supervisor);
	assert_true(json_is_null(json_object_get(unit, "call_ns")));
	assert_int_equal(json_integer_value(json_object_get(unit, "steps")), steps + 100);
	/* The binding was a call, too. */
	assert_int_equal(json_integer_value(json_object_get(unit, "calls")), calls + 101);
	assert_int_equal(json_integer_value(json_object_get(unit, "failed_calls")), failed);
	assert_true(json_integer_value(json_object_get(unit, "uptime_ns")) > 0);
	json_decref(unit);
	tmesh_engine_binding_unref(binding);
	/* Those of the last seconds, however slow the machine is: it is asked again at once. */
	EVENTUALLY(({
		assert_works(fix);
		unit = shown_unit();
		double rate = json_real_value(json_object_get(unit, "steps_per_second"));
		json_decref(unit);
		rate > 0;
	}));
	assert_refused(dispatch_of(fix, "fails", err), -EIO, "as its graph asks");
	assert_int_equal(shown("failed_calls"), failed + 1);
	EVENTUALLY(shown("clients") == 1);
}

/* The fake has no graph with such an input: the binding alone is looked at. */
UNIT_SET_UP(test_tokens)
{
	struct fixture *fix = *state;
	struct tmesh_engine_graph *graph;
	int64_t tokens = shown("tokens");

	assert_ok(
		tmesh_engine_graph_open(fix->context, file("tokens", "tokens"), NULL, &graph, err));
	fix->inputs[0].name = "tokens";
	assert_ok(tmesh_engine_dispatch(graph, fix->inputs, 2, fix->outputs, 1, err));
	tmesh_engine_graph_unref(graph);
	assert_int_equal(shown("tokens"), tokens + 8);
}

struct call {
	struct fixture *fix;
	struct tmesh_engine_graph *graph;
	struct tmesh_engine_cancellable *stop;
	int rc;
};

static void *run_call(void *data)
{
	struct call *call = data;

	call->rc = tmesh_engine_dispatch_cancellable(call->graph, call->fix->inputs, 2,
						     call->fix->outputs, 1, call->stop, NULL);
	return NULL;
}

/* One call runs, and another client's waits for its turn. */
UNIT_SET_UP(test_waiting)
{
	struct fixture other, *fix = *state;
	struct call first = {.fix = fix}, second = {.fix = &other};
	pthread_t threads[2];
	json_t *unit;

	join(&other);
	assert_ok(tmesh_engine_graph_open(fix->context, file("long", "long"), NULL, &first.graph,
					  err));
	second.graph = other.graph;
	assert_ok(tmesh_engine_cancellable_create(NULL, &first.stop, err));
	assert_ok(tmesh_engine_cancellable_create(NULL, &second.stop, err));
	pthread_create(&threads[0], NULL, run_call, &first);
	EVENTUALLY(is_state("running"));
	EVENTUALLY(shown("waiting") == 0);
	pthread_create(&threads[1], NULL, run_call, &second);
	EVENTUALLY(shown("waiting") == 1);
	unit = shown_unit();
	assert_true(json_integer_value(json_object_get(unit, "call_ns")) > 0);
	assert_int_equal(json_integer_value(json_object_get(unit, "clients")), 2);
	json_decref(unit);
	tmesh_engine_cancel(first.stop);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	assert_int_equal(first.rc, -ECANCELED);
	assert_int_equal(second.rc, 0);
	EVENTUALLY(shown("waiting") == 0);
	assert_true(is_state("idle"));
	tmesh_engine_graph_unref(first.graph);
	tmesh_engine_cancellable_unref(first.stop);
	tmesh_engine_cancellable_unref(second.stop);
	leave(&other);
}

UNIT_SET_UP(test_stopped)
{
	struct fixture *fix = *state;
	pid_t pid = (pid_t)tmesh_engine_context_pid(fix->context);
	int64_t restarts = shown("restarts"), failed = shown("failed_calls");

	assert_int_equal(kill(pid, SIGSTOP), 0);
	EVENTUALLY(is_state("hung"));
	assert_int_equal(kill(pid, SIGCONT), 0);
	EVENTUALLY(is_state("idle"));
	assert_int_equal(kill(supervisor, SIGSTOP), 0);
	EVENTUALLY(is_state("hung"));
	assert_int_equal(kill(supervisor, SIGCONT), 0);
	EVENTUALLY(is_state("idle"));
	assert_works(fix);
	assert_refused(dispatch_of(fix, "crashes", err), -EPIPE, "died in this call");
	assert_works(fix);
	assert_int_equal(shown("restarts"), restarts + 1);
	assert_int_equal(shown("failed_calls"), failed + 1);
	/* A process may serve before its supervisor has read that it is ready. */
	EVENTUALLY(shown("pid") == tmesh_engine_context_pid(fix->context));
}

/* A process that holds the file of the engine "none", which leads to @fd. */
static pid_t hold_place(int dir, int fd, const int *end)
{
	const struct engine_status_place place = {.magic = ENGINE_STATUS_MAGIC, .fd = (uint32_t)fd};
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	pid_t pid = fork();
	int held;

	if (pid)
		return pid;
	held = openat(dir, "engine-none.lock", O_RDWR | O_CLOEXEC);
	_exit(fcntl(held, F_SETLK, &lock) ||
	      pwrite(held, &place, sizeof(place), 0) != sizeof(place) ||
	      write(end[1], "", 1) != 1 || pause());
}

static bool is_shown_of(int dir, int fd)
{
	json_t *engines;
	size_t count;
	int end[2];
	pid_t pid;
	char byte;

	assert_int_equal(pipe2(end, O_CLOEXEC), 0);
	pid = hold_place(dir, fd, end);
	assert_int_equal(read(end[0], &byte, 1), 1);
	engines = top();
	count = json_array_size(engines);
	json_decref(engines);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(end[0]);
	close(end[1]);
	return count != 1;
}

/* Files that look like an engine's, and are not: those that no process holds are not shown, and
 * what one says who holds it is checked. */
UNIT_SET_UP(test_hostile)
{
	static const char *const names[] = {"engine-fifo.lock",	 "engine-link.lock",
					    "engine-short.lock", "engine-none.lock",
					    "engine-.lock",	 "engine-dir.lock"};
	struct engine_status_place place = {.magic = ENGINE_STATUS_MAGIC};
	struct engine_status lies;
	struct fixture *fix = *state;
	json_t *engines, *engine;
	int dir, held, end[2], fd;
	pid_t pid;

	assert_ok(tmesh_ctx_runtime_dir(fix->ctx, &dir, err));
	memset((void *)&lies, 0xff, sizeof(lies));
	lies.magic = ENGINE_STATUS_MAGIC;
	lies.pid = 1;
	memcpy(lies.backend, "\033[31m\"", 6);
	assert_int_equal(mkfifoat(dir, names[0], 0600), 0);
	assert_int_equal(symlinkat("/dev/zero", dir, names[1]), 0);
	assert_int_equal(mkdirat(dir, names[5], 0700), 0);
	fd = memfd_create("lies", MFD_CLOEXEC);
	assert_int_equal(write(fd, (void *)&lies, sizeof(lies)), sizeof(lies));
	place.fd = (uint32_t)fd;
	for (int i = 2; i < 5; i++) {
		held = openat(dir, names[i], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		assert_int_equal(write(held, &place, i == 2 ? 7 : sizeof(place)),
				 i == 2 ? 7 : sizeof(place));
		close(held);
	}
	engines = top();
	assert_int_equal(json_array_size(engines), 1);
	json_decref(engines);

	/* A holder gives as its status a pipe without a writer; a folder; a memfd that is
	 * too short; nothing. */
	assert_int_equal(pipe2(end, O_CLOEXEC), 0);
	{
		const int others[] = {end[0], dir, memfd_create("short", MFD_CLOEXEC), 4711};

		for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
			assert_false(is_shown_of(dir, others[i]));
		close(others[2]);
	}
	pid = hold_place(dir, fd, end);
	assert_int_equal(read(end[0], &held, 1), 1);
	engines = top();
	assert_int_equal(json_array_size(engines), 2);
	engine = json_array_get(engines, 0);
	assert_string_equal(json_string_value(json_object_get(engine, "name")), "none");
	assert_int_equal(json_integer_value(json_object_get(engine, "supervisor_pid")), pid);
	/* It is not the parent of process 1. */
	assert_true(json_is_null(json_object_get(engine, "pid")));
	assert_true(isfinite(json_real_value(json_object_get(engine, "steps_per_second"))));
	assert_int_equal(json_integer_value(json_object_get(engine, "steps")), INT64_MAX);
	json_decref(engines);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	engines = top();
	assert_int_equal(json_array_size(engines), 1);
	json_decref(engines);
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		assert_int_equal(unlinkat(dir, names[i], i == 5 ? AT_REMOVEDIR : 0), 0);
	close(end[0]);
	close(end[1]);
	close(fd);
	close(dir);
	assert_works(fix);
}

int main(void)
{
	int failed;

	if (make_folder())
		return 1;
	/* A call is to be looked at as long as that takes. */
	failed = UNIT_RUN("top", serve, unserve);
	return remove_folder() || failed;
}
