// SPDX-License-Identifier: MIT
/*
 * Turns of an engine's clients: one that floods, one that is slow to show its memory. An engine
 * that is busy until the test says so stands for any other.
 */
#include <semaphore.h>

#include "common/clock.h"
#include "raw.h"

#define FLOODERS 2

/* A graph that counts its runs in @y. Return: the binding. */
static uint32_t raw_bind(struct raw *raw, const char *mode, struct tmesh_tensor *const *tensors)
{
	const struct wire_tensor list[] = {{.tensor = tensors[0]},
					   {.tensor = tensors[1]},
					   {.tensor = tensors[2], .write = true}};
	static const char *const names[] = {"x", "b", "y"};
	struct wire text = raw_text(raw);
	uint32_t graph;

	wire_put_text(&text, file(mode, mode));
	for (int i = 0; i < 4; i++) /* flags; weights, regions and tensors of those */
		wire_put_u32(&text, 0);
	graph = raw_call(raw, WIRE_GRAPH_OPEN, 0, &text);
	text = raw_text(raw);
	wire_put_u32(&text, 2);
	wire_put_u32(&text, 3);
	for (int i = 0; i < 3; i++) {
		wire_put_text(&text, names[i]);
		wire_put_text(&text, "");
	}
	assert_ok(wire_put_tensors(&text, list, 3, err));
	return raw_call(raw, WIRE_BIND, graph, &text);
}

static void *wait_for_go(void *data)
{
	return (void *)(intptr_t)tmesh_engine_binding_dispatch(data, NULL);
}

static struct tmesh_engine_binding *bind_mode(struct fixture *fix, const char *mode)
{
	struct tmesh_engine_binding *binding;
	struct tmesh_engine_graph *graph;

	assert_ok(tmesh_engine_graph_open(fix->context, file(mode, mode), NULL, &graph, err));
	assert_ok(tmesh_engine_bind(graph, fix->inputs, 2, fix->outputs, 1, &binding, err));
	tmesh_engine_graph_unref(graph);
	return binding;
}

static struct tmesh_tensor *export_of(struct tmesh_engine_tensor *tensor)
{
	struct tmesh_tensor *out;

	assert_ok(tmesh_engine_tensor_export(tensor, &out, err));
	return out;
}

/* Clients whose channels are full of calls, before another one makes its first: that waits for one
 * of each at most beside the one whose round it is. They are kept back themselves when their
 * channels are full, and all that they sent is done. */
static void test_floods(void **state)
{
	struct fixture *busy = *state, counted[FLOODERS], late;
	struct raw flooders[FLOODERS];
	uint32_t bindings[FLOODERS], pid = tmesh_engine_context_pid(busy->context);
	struct tmesh_engine_binding *holds = bind_mode(busy, "waits");
	uint32_t looks[FLOODERS];
	struct raw looker;
	const float nothing[8] = {0};

	/* It takes what the others have counted for its x. */
	late = *busy;
	raw_join(&looker, busy);
	for (int i = 0; i < FLOODERS; i++) {
		struct tmesh_tensor *tensors[3], *seen;

		counted[i] = late;
		assert_ok(tmesh_engine_tensor_create(late.context, TMESH_FLOAT32, 2, shape_x, FLAGS,
						     &counted[i].x, err));
		assert_ok(tmesh_engine_tensor_create(late.context, TMESH_FLOAT32, 2, shape_x, FLAGS,
						     &counted[i].y, err));
		counted[i].inputs[0].tensor = counted[i].x;
		counted[i].outputs[0].tensor = counted[i].y;
		tensors[0] = export_of(late.x);
		tensors[1] = export_of(late.b);
		tensors[2] = export_of(counted[i].x);
		seen = export_of(counted[i].y);
		raw_join(&flooders[i], busy);
		bindings[i] = raw_bind(&flooders[i], "counts", tensors);
		looks[i] = raw_bind(&looker, "plain",
				    (struct tmesh_tensor *[]){tensors[2], tensors[1], seen});
		tmesh_tensor_unref(seen);
		for (int n = 0; n < 3; n++)
			tmesh_tensor_unref(tensors[n]);
	}
	for (int round = 0; round < 3; round++) {
		uint32_t sent[FLOODERS] = {0};
		struct wire_reply looked;
		pthread_t holder;
		void *result;

		pthread_create(&holder, NULL, wait_for_go, holds);
		await_run(busy);
		for (int i = 0; i < FLOODERS; i++) {
			assert_ok(tmesh_engine_tensor_write(counted[i].x, nothing, sizeof(nothing),
							    err));
			while (sent[i] < 100000 && !raw_try(&flooders[i], WIRE_RUN, bindings[i], 0))
				sent[i]++;
			assert_int_equal(raw_try(&flooders[i], WIRE_RUN, bindings[i], 0), -EAGAIN);
			assert_in_range(sent[i], 10, 99999);
		}
		assert_int_equal(raw_try(&looker, WIRE_RUN, looks[round % FLOODERS], 0), 0);
		file("waits.go", "");
		raw_reply(&looker, &looked);
		assert_int_equal(looked.code, 0);
		pthread_join(holder, &result);
		assert_int_equal((intptr_t)result, 0);
		for (int i = 0; i < FLOODERS; i++) {
			float seen[8], all[8];

			for (uint32_t n = 0; n < sent[i]; n++) {
				struct wire_reply reply;

				raw_reply(&flooders[i], &reply);
				assert_int_equal(reply.code, 0);
				assert_int_equal(reply.number,
						 flooders[i].number - sent[i] + n + 1);
			}
			assert_ok(tmesh_engine_tensor_read(counted[i].x, all, sizeof(all), err));
			assert_true(all[0] == (float)sent[i]);
			if (i != round % FLOODERS)
				continue;
			/* b[0] is 10 */
			assert_ok(tmesh_engine_tensor_read(counted[i].y, seen, sizeof(seen), err));
			assert_true(seen[0] - 10 <= 2);
		}
		assert_int_equal(unlink(file("waits.go", "")), 0);
	}
	for (int i = 0; i < FLOODERS; i++) {
		raw_leave(&flooders[i]);
		tmesh_engine_tensor_unref(counted[i].x);
		tmesh_engine_tensor_unref(counted[i].y);
	}
	tmesh_engine_binding_unref(holds);
	raw_leave(&looker);
	assert_works(busy);
	assert_int_equal(tmesh_engine_context_pid(busy->context), pid);
}

/* In a process of its own: sealed memory, by its token, and then it stops. */
static int be_slow(int out)
{
	struct tmesh_tensor *tensor;
	struct tmesh_ctx *ctx;
	char token[TMESH_TOKEN_SIZE];
	char byte;

	if (tmesh_ctx_open(NULL, &ctx, NULL) ||
	    tmesh_tensor_create(ctx, TMESH_FLOAT32, 1, shape_b, NULL, &tensor, NULL) ||
	    tmesh_region_seal(tmesh_tensor_region(tensor), NULL) ||
	    tmesh_region_token(tmesh_tensor_region(tensor), TMESH_READ, token, NULL) ||
	    write(out, token, sizeof(token)) != sizeof(token))
		return 1;
	raise(SIGSTOP);
	/* Until it is no more needed. */
	_exit(read(0, &byte, 1) != 0);
}

/* A client that is slow to show its memory costs no process, however long the engine waits for it:
 * while it does, no call's time is counted. */
static void test_slow_memory(void **state)
{
	struct fixture *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	const struct engine_status *status = map_status(fix);
	char token[TMESH_TOKEN_SIZE], number[16];
	int ends[2], input_ends[2], how;
	struct wire_reply reply;
	struct wire text;
	struct raw raw;
	pid_t slow;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_int_equal(pipe2(input_ends, O_CLOEXEC), 0);
	slow = fork();
	if (!slow) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(input_ends[0], 0);
		fcntl(ends[1], F_SETFD, 0);
		snprintf(number, sizeof(number), "%d", ends[1]);
		execl("/proc/self/exe", "test_turns", number, NULL);
		_exit(127);
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], token, sizeof(token)), sizeof(token));
	assert_int_equal(waitpid(slow, &how, WUNTRACED), slow);
	assert_true(WIFSTOPPED(how));
	raw_join(&raw, fix);
	text = raw_text(&raw);
	wire_put_text(&text, file("graph", "plain"));
	wire_put_u32(&text, 0);
	wire_put_u32(&text, 1);
	wire_put_text(&text, "w");
	wire_put_u32(&text, 1); /* a region, to be read */
	wire_put_u32(&text, 0);
	wire_put_text(&text, token);
	wire_put_u32(&text, 1); /* a tensor in it */
	wire_put_u32(&text, 0);
	wire_put_u32(&text, 0);
	wire_put_u64(&text, 0);
	wire_put_u32(&text, TMESH_FLOAT32);
	wire_put_u32(&text, 1);
	wire_put_u64(&text, 4);
	assert_false(text.wrong);
	assert_int_equal(raw_try(&raw, WIRE_GRAPH_OPEN, 0, (uint32_t)text.at), 0);
	for (int i = 0; i < 60000 && !(status->since_ns && status->deadline_ns == UINT64_MAX); i++)
		usleep(1000);
	assert_true(status->deadline_ns == UINT64_MAX);
	kill(slow, SIGCONT);
	raw_reply(&raw, &reply);
	assert_int_equal(reply.code, 0);
	raw_leave(&raw);
	close(input_ends[1]);
	close(input_ends[0]);
	close(ends[0]);
	assert_int_equal(waitpid(slow, &how, 0), slow);
	assert_int_equal(how, 0);
	munmap((void *)status, sizeof(*status));
	assert_works(fix);
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
}

/* The last of a binding and of a graph is let go of while the engine runs another call, which waits
 * for that: no client waits there. The engine has let go of its own by the end of the next call. */
static void test_ends_do_not_wait(void **state)
{
	struct fixture *fix = *state;
	uint32_t pid = tmesh_engine_context_pid(fix->context);
	struct tmesh_engine_binding *holds = bind_mode(fix, "waits"), *ends[8];
	unsigned int files = files_of(pid);
	struct fixture own = *fix;
	pthread_t holder;
	void *result;

	for (size_t i = 0; i < 8; i++) {
		assert_ok(tmesh_engine_tensor_create(own.context, TMESH_FLOAT32, 2, shape_x, FLAGS,
						     &own.x, err));
		own.inputs[0].tensor = own.x;
		ends[i] = bind_mode(&own, "plain");
		tmesh_engine_tensor_unref(own.x);
	}
	assert_true(files_of(pid) > files);
	pthread_create(&holder, NULL, wait_for_go, holds);
	await_run(fix);
	for (size_t i = 0; i < 8; i++)
		tmesh_engine_binding_unref(ends[i]);
	/* It runs until the file lets it go. */
	file("waits.go", "");
	pthread_join(holder, &result);
	assert_int_equal((intptr_t)result, 0);
	assert_int_equal(unlink(file("waits.go", "")), 0);
	for (int i = 0; i < 60000 && files_of(pid) > files; i++)
		usleep(1000);
	assert_true(files_of(pid) <= files);
	assert_works(fix);
	tmesh_engine_binding_unref(holds);
	assert_works(fix);
	assert_int_equal(tmesh_engine_context_pid(fix->context), pid);
}

/* A call that waits for another one, and the other one. */
struct waiter {
	struct fixture *fix;
	struct tmesh_engine_binding *held; /* its run goes on until there is a file */
	struct tmesh_engine_cancellable *cancellable;
	int (*make)(struct waiter *own);
	pthread_t thread;
	int rc;
};

static int run_held(struct waiter *own)
{
	return tmesh_engine_binding_dispatch_cancellable(own->held, own->cancellable, NULL);
}

static int rebind_held(struct waiter *own)
{
	return tmesh_engine_binding_rebind(own->held, own->fix->inputs, 1, NULL);
}

static int bind_and_run(struct waiter *own)
{
	return tmesh_engine_dispatch_cancellable(own->fix->graph, own->fix->inputs, 2,
						 own->fix->outputs, 1, own->cancellable, NULL);
}

static char opens[128]; /* the path of a graph that opens when there is a file */

static int open_graph(struct waiter *own)
{
	struct tmesh_engine_graph *graph;
	int rc = tmesh_engine_graph_open(own->fix->context, opens, NULL, &graph, NULL);

	if (!rc)
		tmesh_engine_graph_unref(graph);
	return rc;
}

static void *make_waiter(void *data)
{
	struct waiter *own = data;

	tmesh_engine_cancellable_enter(own->cancellable);
	own->rc = own->make(own);
	tmesh_engine_cancellable_enter(NULL);
	return NULL;
}

static sem_t waits;

/* A call that waits behind another one asks this from time to time. */
static int tell_waiting(void *data)
{
	sem_post(&waits);
	return 0;
}

static void begin_waiter(struct waiter *own, struct fixture *fix, int (*make)(struct waiter *own))
{
	const struct tmesh_engine_cancellable_opts opts = {.size = sizeof(opts),
							   .interrupted = tell_waiting};

	own->fix = fix;
	own->make = make;
	assert_int_equal(sem_init(&waits, 0, 0), 0);
	assert_ok(tmesh_engine_cancellable_create(&opts, &own->cancellable, err));
	pthread_create(&own->thread, NULL, make_waiter, own);
}

static int end_waiter(struct waiter *own)
{
	pthread_join(own->thread, NULL);
	tmesh_engine_cancellable_unref(own->cancellable);
	return own->rc;
}

/* The deadline of a call counts from its begin, also if the call waits for a turn before it asks
 * the engine, or asks it twice. */
static void test_one_deadline(void **state)
{
	int (*const calls[])(struct waiter *) = {run_held, rebind_held, bind_and_run};
	const uint64_t timeout = 300000 * MS; /* below the engine's own limit */
	struct waiter own, opener;
	const struct engine_status *status;
	struct fixture fix;
	pthread_t holder;
	uint64_t latest;
	void *result;

	join_timed(&fix, timeout, "plain");
	status = map_status(&fix);
	own.held = bind_mode(&fix, "waits");
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		pthread_create(&holder, NULL, wait_for_go, own.held);
		await_run(&fix);
		begin_waiter(&own, &fix, calls[i]);
		while (sem_wait(&waits))
			;
		latest = tmesh_now_ns() + timeout;
		file("waits.go", "");
		pthread_join(holder, &result);
		assert_int_equal((intptr_t)result, 0);
		assert_int_equal(end_waiter(&own), 0);
		assert_true(status->deadline_ns <= latest);
		assert_int_equal(unlink(file("waits.go", "")), 0);
	}
	strcpy(opens, file("opens", "opens"));
	/* The opener before it is cancelled, and the call opens the graph itself. */
	begin_waiter(&opener, &fix, open_graph);
	for (int i = 0; i < 60000 && !status->since_ns; i++)
		usleep(1000);
	begin_waiter(&own, &fix, open_graph);
	while (sem_wait(&waits))
		;
	latest = tmesh_now_ns() + timeout;
	tmesh_engine_cancel(opener.cancellable);
	assert_int_equal(end_waiter(&opener), -ECANCELED);
	file("opens.go", "");
	assert_int_equal(end_waiter(&own), 0);
	assert_true(status->deadline_ns <= latest);
	munmap((void *)status, sizeof(*status));
	tmesh_engine_binding_unref(own.held);
	leave(&fix);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST_SET_UP(test_floods),
		TEST_SET_UP(test_ends_do_not_wait),
		cmocka_unit_test(test_one_deadline),
	};
	const struct CMUnitTest slow[] = {TEST_SET_UP(test_slow_memory)};
	int failed;

	if (argc > 1)
		return be_slow(atoi(argv[1]));
	if (make_folder())
		return 1;
	failed = cmocka_run_group_tests_name("turns", tests, serve, unserve);
	if (unit_on_kernel())
		failed += UNIT_SKIP(slow, "no process is asked for memory of the module");
	else
		failed += cmocka_run_group_tests_name("turns, slow", slow, serve, unserve);
	return remove_folder() || failed;
}
