// SPDX-License-Identifier: MIT
/* Calls that are called off, in this process and in an engine's own: whatever they wait for. */
#include <stdatomic.h>
#include <tmesh/import.h>

#include "served.h"

struct call {
	struct fixture *fix;
	struct tmesh_engine_graph *graph;
	struct tmesh_engine_binding *binding; /* in place of the graph, or NULL */
	struct tmesh_engine_cancellable *cancellable;
	pthread_t thread;
	struct tmesh_error error;
};

static struct tmesh_engine_cancellable *cancellable(void)
{
	struct tmesh_engine_cancellable *made;

	assert_ok(tmesh_engine_cancellable_create(NULL, &made, err));
	return made;
}

static void *dispatch_it(void *data)
{
	struct call *call = data;

	if (call->binding)
		return (void *)(intptr_t)tmesh_engine_binding_dispatch_cancellable(
			call->binding, call->cancellable, &call->error);
	return (void *)(intptr_t)tmesh_engine_dispatch_cancellable(call->graph, call->fix->inputs,
								   2, call->fix->outputs, 1,
								   call->cancellable, &call->error);
}

static void begin_graph(struct call *call, struct fixture *fix, struct tmesh_engine_graph *graph)
{
	*call = (struct call){
		.fix = fix, .cancellable = cancellable(), .graph = tmesh_engine_graph_ref(graph)};
	pthread_create(&call->thread, NULL, dispatch_it, call);
}

static struct tmesh_engine_graph *open_mode(struct fixture *fix, const char *mode)
{
	struct tmesh_engine_graph *graph;

	assert_ok(tmesh_engine_graph_open(fix->context, file(mode, mode), NULL, &graph, err));
	return graph;
}

static void begin(struct call *call, struct fixture *fix, const char *mode)
{
	struct tmesh_engine_graph *graph = open_mode(fix, mode);

	begin_graph(call, fix, graph);
	tmesh_engine_graph_unref(graph);
}

static int end(struct call *call)
{
	void *result;

	pthread_join(call->thread, &result);
	tmesh_engine_cancellable_unref(call->cancellable);
	tmesh_engine_graph_unref(call->graph);
	return (int)(intptr_t)result;
}

UNIT_SET_UP(test_cancellable)
{
	const struct tmesh_engine_cancellable_opts wrong = {.size = 3};
	struct tmesh_engine_cancellable *made;
	struct fixture *fix = *state;

	assert_int_equal(tmesh_engine_cancellable_create(&wrong, &made, NULL), -EINVAL);
	made = cancellable();
	assert_false(tmesh_engine_cancelled(made));
	assert_ok(tmesh_engine_dispatch_cancellable(fix->graph, fix->inputs, 2, fix->outputs, 1,
						    made, err));
	assert_y(fix);
	tmesh_engine_cancel(made);
	tmesh_engine_cancel(made);
	assert_true(tmesh_engine_cancelled(made));
	/* All later calls with it. */
	for (int i = 0; i < 2; i++)
		assert_refused(tmesh_engine_dispatch_cancellable(fix->graph, fix->inputs, 2,
								 fix->outputs, 1, made, err),
			       -ECANCELED, "before it ran");
	tmesh_engine_cancellable_unref(tmesh_engine_cancellable_ref(made));
	tmesh_engine_cancellable_unref(made);
	tmesh_engine_cancellable_unref(NULL);
	assert_works(fix);
}

/* Other calls of a thread than dispatches, which has one for all of them. */
static int open_it(struct fixture *fix, struct tmesh_error *err)
{
	struct tmesh_engine_graph *graph;

	return tmesh_engine_graph_open(fix->context, file("another", "plain"), NULL, &graph, err);
}

static int bind_it(struct fixture *fix, struct tmesh_error *err)
{
	struct tmesh_engine_binding *binding;

	return tmesh_engine_bind(fix->graph, fix->inputs, 2, fix->outputs, 1, &binding, err);
}

struct other_call {
	struct fixture *fix;
	int (*make)(struct fixture *fix, struct tmesh_error *err);
	struct tmesh_engine_cancellable *cancellable;
	pthread_t thread;
	atomic_bool entered;
};

static void *make_it(void *data)
{
	struct other_call *call = data;
	int rc;

	assert_null(tmesh_engine_cancellable_enter(call->cancellable));
	atomic_store(&call->entered, true);
	rc = call->make(call->fix, NULL);
	assert_ptr_equal(tmesh_engine_cancellable_enter(NULL), call->cancellable);
	return (void *)(intptr_t)rc;
}

UNIT_SET_UP(test_other_calls)
{
	int (*const calls[])(struct fixture *, struct tmesh_error *) = {open_it, bind_it};
	struct fixture *fix = *state;
	struct call first;
	void *result;

	for (size_t i = 0; i < 2; i++) {
		struct other_call second = {
			.fix = fix, .make = calls[i], .cancellable = cancellable()};

		begin(&first, fix, "long");
		await_run(fix);
		pthread_create(&second.thread, NULL, make_it, &second);
		while (!atomic_load(&second.entered))
			usleep(1000);
		usleep(i ? 20000 : 0);
		tmesh_engine_cancel(second.cancellable);
		pthread_join(second.thread, &result);
		assert_int_equal((intptr_t)result, -ECANCELED);
		tmesh_engine_cancellable_unref(second.cancellable);
		tmesh_engine_cancel(first.cancellable);
		assert_int_equal(end(&first), -ECANCELED);
		assert_works(fix);
	}
}

/* A running call ends, and its process stays. */
UNIT_SET_UP(test_runs)
{
	struct fixture *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	struct call call;

	for (int i = 0; i < 3; i++) {
		begin(&call, fix, "long");
		await_run(fix);
		tmesh_engine_cancel(call.cancellable);
		assert_int_equal(end(&call), -ECANCELED);
		assert_non_null(strstr(call.error.message, "half written"));
		assert_works(fix);
	}
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
}

/* In each place where a call may wait behind another's: in its context, and in the engine. */
UNIT_SET_UP(test_waits)
{
	struct fixture other, *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	struct tmesh_engine_binding *binding;
	struct tmesh_engine_graph *graph;
	struct call first, second;

	join(&other);
	for (int i = 0; i < 4; i++) {
		struct fixture *waits = i % 2 ? &other : fix;

		graph = open_mode(waits, "plain");
		assert_ok(tmesh_engine_bind(graph, waits->inputs, 2, waits->outputs, 1, &binding,
					    err));
		begin(&first, fix, "long");
		await_run(fix);
		begin_graph(&second, waits, graph);
		usleep(i < 2 ? 0 : 20000);
		tmesh_engine_cancel(second.cancellable);
		assert_int_equal(end(&second), -ECANCELED);
		assert_non_null(strstr(second.error.message, "before it ran"));
		tmesh_engine_cancel(first.cancellable);
		assert_int_equal(end(&first), -ECANCELED);
		assert_ok(tmesh_engine_binding_dispatch(binding, err));
		assert_y(waits);
		tmesh_engine_binding_unref(binding);
		tmesh_engine_graph_unref(graph);
	}
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
	assert_works(&other);
	leave(&other);
	assert_works(fix);
}

/* An engine that does not stop is ended, and that costs its call alone. */
UNIT_SET_UP(test_does_not_stop)
{
	struct fixture other, *fix = *state;
	struct call call = {.error.message = ""};

	join(&other);
	/* A supervisor that gets no turn for a second leaves it at "does not answer". */
	for (int i = 0; i < 100 && !strstr(call.error.message, "ended by that"); i++) {
		uint32_t pid = tmesh_engine_context_pid(fix->context);

		begin(&call, fix, "hangs");
		await_run(fix);
		tmesh_engine_cancel(call.cancellable);
		assert_works(&other);
		assert_int_equal(end(&call), -ECANCELED);
		assert_works(fix);
		assert_int_not_equal(tmesh_engine_context_pid(fix->context), pid);
	}
	assert_non_null(strstr(call.error.message, "ended by that"));
	leave(&other);
}

/* One that is stopped answers nothing at all. */
UNIT_SET_UP(test_stopped)
{
	struct fixture *fix = *state;
	pid_t pid = (pid_t)tmesh_engine_context_pid(fix->context);
	struct call call;

	assert_int_equal(kill(pid, SIGSTOP), 0);
	begin_graph(&call, fix, fix->graph);
	usleep(20000);
	tmesh_engine_cancel(call.cancellable);
	assert_int_equal(end(&call), -ECANCELED);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_works(fix);
}

/* A client that dies during a call takes the call along: others wait no longer than that. */
static void test_dies(void **state)
{
	struct fixture *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	struct tmesh_engine_tensor *y = fix->y;
	struct tmesh_tensor *tensor;
	char token[TMESH_TOKEN_SIZE];
	pid_t child;

	assert_ok(tmesh_engine_tensor_export(y, &tensor, err));
	assert_ok(tmesh_region_token(tmesh_tensor_region(tensor), TMESH_READ | TMESH_WRITE, token,
				     err));
	file("long", "long");
	child = fork();
	if (!child) {
		struct tmesh_region *region;
		struct tmesh_tensor *theirs;
		struct fixture inner;

		join(&inner);
		if (tmesh_region_open(inner.ctx, token, TMESH_READ | TMESH_WRITE, &region, NULL) ||
		    tmesh_tensor_wrap(region, tmesh_tensor_layout(tensor), &theirs, NULL) ||
		    tmesh_engine_tensor_wrap(inner.context, theirs, TMESH_READ | TMESH_WRITE, FLAGS,
					     &inner.outputs[0].tensor, NULL))
			_exit(1);
		tmesh_engine_dispatch(open_mode(&inner, "long"), inner.inputs, 2, inner.outputs, 1,
				      NULL);
		_exit(2);
	}
	await_run(fix);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_works(fix);
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
	tmesh_tensor_unref(tensor);
}

/* A client that is killed while the engine writes for it, with one end of @ends kept there; with
 * @crash the engine's process is another one by then. */
static void die_with_kept(const char *token, const struct tmesh_tensor *tensor, const int ends[2],
			  bool crash)
{
	struct tmesh_region *region, *line;
	struct tmesh_tensor *theirs;
	struct fixture inner;

	close(ends[0]);
	join(&inner);
	if (tmesh_region_from_fd(inner.ctx, ends[1], 1, NULL, &line, NULL) ||
	    tmesh_engine_context_lifeline(inner.context, line, NULL))
		_exit(1);
	tmesh_region_unref(line);
	close(ends[1]);
	if (crash && dispatch_of(&inner, "crashes", NULL) != -EPIPE)
		_exit(2);
	if (tmesh_region_open(inner.ctx, token, TMESH_READ | TMESH_WRITE, &region, NULL) ||
	    tmesh_tensor_wrap(region, tmesh_tensor_layout(tensor), &theirs, NULL) ||
	    tmesh_engine_tensor_wrap(inner.context, theirs, TMESH_READ | TMESH_WRITE, FLAGS,
				     &inner.outputs[0].tensor, NULL))
		_exit(3);
	tmesh_engine_dispatch(open_mode(&inner, "lags"), inner.inputs, 2, inner.outputs, 1, NULL);
	_exit(4);
}

/* The reply kept for a client hangs up when the engine has stopped to write for it, and not before.
 */
static void test_kept(void **state)
{
	struct fixture *fix = *state;
	struct tmesh_tensor *tensor;
	char token[TMESH_TOKEN_SIZE];

	assert_ok(tmesh_engine_tensor_export(fix->y, &tensor, err));
	assert_ok(tmesh_region_token(tmesh_tensor_region(tensor), TMESH_READ | TMESH_WRITE, token,
				     err));
	for (int crash = 0; crash < 2; crash++) {
		float y[8];
		int ends[2];
		pid_t child;

		assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
		child = fork();
		if (!child)
			die_with_kept(token, tensor, ends, crash);
		close(ends[1]);
		await_run(fix);
		kill(child, SIGKILL);
		assert_int_equal(waitpid(child, NULL, 0), child);
		assert_int_equal(recv(ends[0], y, sizeof(y), 0), 0);
		assert_ok(tmesh_engine_tensor_read(fix->y, y, sizeof(y), err));
		assert_true(y[0] == -2);
		close(ends[0]);
		assert_works(fix);
	}
	tmesh_tensor_unref(tensor);
}

static atomic_int asked;

static int interrupted(void *data)
{
	asked++;
	return *(atomic_int *)data;
}

static void nothing(int signal)
{
}

/* A signal while a call waits: its program is asked, and may call it off. */
UNIT_SET_UP(test_signal)
{
	const struct sigaction action = {.sa_handler = nothing};
	atomic_int yes = 0;
	const struct tmesh_engine_cancellable_opts opts = {
		.size = sizeof(opts), .interrupted = interrupted, .data = &yes};
	struct fixture *fix = *state;
	struct call call = {.fix = fix};

	sigaction(SIGUSR1, &action, NULL);
	assert_ok(tmesh_engine_cancellable_create(&opts, &call.cancellable, err));
	call.graph = open_mode(fix, "long");
	pthread_create(&call.thread, NULL, dispatch_it, &call);
	await_run(fix);
	for (int i = 0; i < 6000 && !asked; i++) {
		pthread_kill(call.thread, SIGUSR1);
		usleep(10000);
	}
	assert_true(asked);
	assert_false(tmesh_engine_cancelled(call.cancellable));
	yes = 1;
	for (int i = 0; i < 6000 && !tmesh_engine_cancelled(call.cancellable); i++) {
		pthread_kill(call.thread, SIGUSR1);
		usleep(10000);
	}
	assert_int_equal(end(&call), -ECANCELED);
	assert_works(fix);
}

static struct tmesh_engine_binding *binding_within;
static atomic_int rc_within;

static int run_within(void *data)
{
	rc_within = tmesh_engine_binding_dispatch(binding_within, NULL);
	return 1;
}

/* A signal's handler of Python, say, runs the binding whose run it has interrupted. */
UNIT_SET_UP(test_within_itself)
{
	const struct sigaction action = {.sa_handler = nothing};
	const struct tmesh_engine_cancellable_opts opts = {.size = sizeof(opts),
							   .interrupted = run_within};
	struct fixture *fix = *state;
	struct call call = {.fix = fix};

	sigaction(SIGUSR1, &action, NULL);
	assert_ok(tmesh_engine_cancellable_create(&opts, &call.cancellable, err));
	call.graph = open_mode(fix, "long");
	assert_ok(
		tmesh_engine_bind(call.graph, fix->inputs, 2, fix->outputs, 1, &call.binding, err));
	binding_within = call.binding;
	pthread_create(&call.thread, NULL, dispatch_it, &call);
	await_run(fix);
	for (int i = 0; i < 6000 && !rc_within; i++) {
		pthread_kill(call.thread, SIGUSR1);
		usleep(10000);
	}
	assert_int_equal(rc_within, -EDEADLK);
	assert_int_equal(end(&call), -ECANCELED);
	tmesh_engine_binding_unref(binding_within);
	assert_works(fix);
}

/* Calls of several clients that are called off at random moments, whatever they do then. */
UNIT_SET_UP(test_storm)
{
	struct tmesh_engine_graph *graphs[3][2];
	struct fixture all[3], *fix = *state;
	unsigned int seed = 7, full = getenv("TMESH_TEST_LENGTH") &&
				      !strcmp(getenv("TMESH_TEST_LENGTH"), "full");
	uint32_t pid = tmesh_engine_context_pid(fix->context);

	for (int i = 0; i < 3; i++) {
		join(&all[i]);
		graphs[i][0] = open_mode(&all[i], "plain");
		graphs[i][1] = open_mode(&all[i], "long");
	}
	for (int round = 0; round < (full ? 3000 : 150); round++) {
		struct call calls[3];

		for (int i = 0; i < 3; i++)
			begin_graph(&calls[i], &all[i], graphs[i][rand_r(&seed) % 3 == 0]);
		for (int i = 0; i < 3; i++) {
			usleep((useconds_t)rand_r(&seed) % 700);
			tmesh_engine_cancel(calls[i].cancellable);
		}
		for (int i = 0; i < 3; i++) {
			int rc = end(&calls[i]);

			assert_true(!rc || rc == -ECANCELED);
		}
	}
	for (int i = 0; i < 3; i++) {
		tmesh_engine_graph_unref(graphs[i][0]);
		tmesh_engine_graph_unref(graphs[i][1]);
		assert_works(&all[i]);
		leave(&all[i]);
	}
	assert_works(fix);
	/* No process was ended for it. */
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
}

/* In this process: a run, and who waits for its binding. */
UNIT_SET_UP(test_here)
{
	struct fixture here = {0}, *fix = *state;
	struct tmesh_engine_binding *binding;
	struct call calls[2];

	assert_ok(tmesh_ctx_open(NULL, &here.ctx, err));
	assert_ok(tmesh_engine_context_create(here.ctx, "fake", NULL, &here.context, err));
	fill(&here);
	for (int i = 0; i < 3; i++) {
		struct tmesh_engine_graph *graph = open_mode(&here, "long");

		assert_ok(tmesh_engine_bind(graph, here.inputs, 2, here.outputs, 1, &binding, err));
		for (int n = 0; n < 2; n++) {
			calls[n] = (struct call){.fix = &here,
						 .cancellable = cancellable(),
						 .graph = tmesh_engine_graph_ref(graph),
						 .binding = binding};
			pthread_create(&calls[n].thread, NULL, dispatch_it, &calls[n]);
			if (!n)
				await_run(&here);
		}
		usleep(i ? 10000 : 0);
		tmesh_engine_cancel(calls[1].cancellable);
		assert_int_equal(end(&calls[1]), -ECANCELED);
		assert_non_null(strstr(calls[1].error.message, "before it ran"));
		tmesh_engine_cancel(calls[0].cancellable);
		assert_int_equal(end(&calls[0]), -ECANCELED);
		assert_non_null(strstr(calls[0].error.message, "half written"));
		tmesh_engine_binding_unref(binding);
		tmesh_engine_graph_unref(graph);
	}
	assert_works(&here);
	leave(&here);
	assert_works(fix);
}

int main(void)
{
	const struct CMUnitTest forked[] = {TEST_SET_UP(test_dies), TEST_SET_UP(test_kept)};
	int failed;

	if (make_folder())
		return 1;
	failed = UNIT_RUN("cancelled", serve, unserve);
#ifdef __SANITIZE_THREAD__
	failed += UNIT_SKIP(forked,
			    "the thread sanitizer ends a child of fork() that starts a thread");
#else
	failed += cmocka_run_group_tests_name("cancelled, forked", forked, serve, unserve);
#endif
	return remove_folder() || failed;
}
