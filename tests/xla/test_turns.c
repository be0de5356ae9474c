// SPDX-License-Identifier: MIT
/* Calls of several threads at once, and the events that end a waiting call. For the thread
 * sanitizer, too. */
#include "unit.h"

#include <stdatomic.h>

#include "host.h"

#define F32 11
#define THREADS 4
#define MESSAGES 200

static struct tmesh_ctx *ctx;

static struct tmesh_channel *channel_new(enum tmesh_channel_role role, const char *name)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .producers = 4};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_channel *channel;

	assert_ok(tmesh_channel_create(ctx, role, &opts, &channel, err));
	assert_ok(tmesh_channel_token(channel, token, err));
	assert_ok(tmesh_xla_bind(
		name, token, role == TMESH_CHANNEL_SEND ? TMESH_CHANNEL_RECV : TMESH_CHANNEL_SEND,
		err));
	return channel;
}

static int setup(void **state)
{
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	return 0;
}

static int teardown(void **state)
{
	tmesh_ctx_unref(ctx);
	return 0;
}

struct caller {
	pthread_t thread;
	float first;
	int code;
	int calls;
	int64_t timeout_ms;
};

static int push_one(float value)
{
	int64_t count = 1;
	struct host host;

	host_init(&host, "out", 60000);
	host_operand(&host, F32, &value, 1, &count);
	return host_call(&host, tmesh_xla_push);
}

static int pop_one(float *value, int64_t timeout_ms)
{
	int64_t count = 1;
	struct host host;

	host_init(&host, "in", timeout_ms);
	host_result(&host, F32, value, 1, &count);
	return host_call(&host, tmesh_xla_pop);
}

static void *pusher(void *data)
{
	struct caller *caller = data;

	for (int i = 0; i < MESSAGES && !caller->code; i++)
		caller->code = push_one(caller->first + (float)i);
	return NULL;
}

/* Calls of one thread stay in order. */
UNIT_SET_UP(test_threads_push)
{
	struct tmesh_channel *inbox = channel_new(TMESH_CHANNEL_RECV, "out");
	struct caller callers[THREADS] = {0};
	float last[THREADS] = {0};

	for (int i = 0; i < THREADS; i++) {
		callers[i].first = (float)(i * 1000 + 1);
		assert_int_equal(pthread_create(&callers[i].thread, NULL, pusher, &callers[i]), 0);
	}
	for (int i = 0; i < THREADS * MESSAGES; i++) {
		struct tmesh_message message = {0};
		float value;

		assert_ok(tmesh_channel_recv(inbox, &message, 60000000000, err));
		assert_ok(tmesh_tensor_read(message.tensor, &value, sizeof(value), err));
		tmesh_tensor_unref(message.tensor);
		assert_true(value > last[(int)value / 1000]);
		last[(int)value / 1000] = value;
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(callers[i].thread, NULL);
		assert_int_equal(callers[i].code, 0);
	}
	assert_ok(tmesh_xla_unbind("out", err));
	tmesh_channel_unref(inbox);
}

static void *popper(void *data)
{
	struct caller *caller = data;
	float value;

	do {
		caller->code = pop_one(&value, caller->timeout_ms);
		caller->calls++;
	} while (!caller->code && value != 0);
	return NULL;
}

static void start(struct caller *callers, int64_t timeout_ms)
{
	for (int i = 0; i < THREADS; i++) {
		callers[i] = (struct caller){.timeout_ms = timeout_ms};
		assert_int_equal(pthread_create(&callers[i].thread, NULL, popper, &callers[i]), 0);
	}
}

static atomic_bool came;
static atomic_uint waiting; /* threads that have asked twice: they wait, and go on with it */

static bool has_come(void)
{
	static _Thread_local unsigned int asked;

	/* Nothing of ours is locked: this would wait for ever. */
	assert_int_equal(tmesh_xla_cancel("nobody", NULL), -ENOENT);
	if (++asked == 2)
		atomic_fetch_add(&waiting, 1);
	return atomic_load(&came);
}

/* Wait until each caller waits, for a message or for its turn: their questions in between show
 * it. */
static void start_asking(struct caller *callers)
{
	atomic_store(&waiting, 0);
	tmesh_xla_ask(has_come);
	start(callers, 60000);
	while (atomic_load(&waiting) < THREADS)
		usleep(1000);
}

/* And asks no more from here on. */
static void start_waiting(struct caller *callers)
{
	start_asking(callers);
	tmesh_xla_ask(NULL);
	usleep(2 * TMESH_XLA_ASK_NS / 1000);
}

/* Check that all ended with @code, those that waited for a message and those that waited for their
 * turn. */
static void join(struct caller *callers, int code)
{
	for (int i = 0; i < THREADS; i++) {
		pthread_join(callers[i].thread, NULL);
		assert_int_equal(callers[i].code, code);
	}
}

UNIT_SET_UP(test_threads_pop)
{
	struct tmesh_channel *outbox = channel_new(TMESH_CHANNEL_SEND, "in");
	struct caller callers[THREADS];
	struct tmesh_message message = {0};
	int64_t count = 1;

	start(callers, 60000);
	for (int i = 0; i < MESSAGES + THREADS; i++) {
		float value = i < MESSAGES;

		assert_ok(tmesh_tensor_put(ctx, TMESH_FLOAT32, 1, &count, &value, NULL,
					   &message.tensor, err));
		assert_ok(tmesh_channel_send(outbox, &message, 60000000000, err));
		tmesh_tensor_unref(message.tensor);
	}
	join(callers, 0);
	assert_int_equal(callers[0].calls + callers[1].calls + callers[2].calls + callers[3].calls,
			 MESSAGES + THREADS);
	assert_ok(tmesh_xla_unbind("in", err));
	tmesh_channel_unref(outbox);
}

UNIT_SET_UP(test_waits_end)
{
	struct tmesh_channel *outbox = channel_new(TMESH_CHANNEL_SEND, "in"), *other;
	struct caller callers[THREADS];
	float value;

	start_waiting(callers);
	assert_ok(tmesh_xla_cancel("in", err));
	join(callers, FFI_CANCELLED);

	/* Those of that moment only. */
	assert_int_equal(pop_one(&value, 10), FFI_DEADLINE_EXCEEDED);

	start_waiting(callers);
	other = channel_new(TMESH_CHANNEL_SEND, "in");
	join(callers, FFI_CANCELLED);
	tmesh_channel_unref(outbox);

	start_waiting(callers);
	assert_ok(tmesh_xla_unbind("in", err));
	join(callers, FFI_CANCELLED);
	tmesh_channel_unref(other);

	other = channel_new(TMESH_CHANNEL_SEND, "in");
	start(callers, 100);
	join(callers, FFI_DEADLINE_EXCEEDED);

	start_waiting(callers);
	tmesh_channel_unref(other);
	join(callers, FFI_UNAVAILABLE);
	assert_ok(tmesh_xla_unbind("in", err));
}

static void handler(int number)
{
}

UNIT_SET_UP(test_signal)
{
	struct tmesh_channel *outbox = channel_new(TMESH_CHANNEL_SEND, "in");
	struct sigaction action = {.sa_handler = handler};
	struct caller caller = {.timeout_ms = 60000};

	assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
	assert_int_equal(pthread_create(&caller.thread, NULL, popper, &caller), 0);
	/* A signal between two of its sleeps is not seen: send another. */
	while (pthread_tryjoin_np(caller.thread, NULL)) {
		pthread_kill(caller.thread, SIGUSR1);
		usleep(10000);
	}
	assert_int_equal(caller.code, FFI_CANCELLED);
	assert_ok(tmesh_xla_unbind("in", err));
	tmesh_channel_unref(outbox);
}

struct changer {
	atomic_bool stop;
	const char *token;
};

static void *change(void *data)
{
	struct changer *changer = data;
	struct tmesh_error err;

	while (!atomic_load(&changer->stop)) {
		if (tmesh_xla_bind("out", changer->token, TMESH_CHANNEL_SEND, &err) &&
		    err.code != -EBUSY)
			fail_msg("%s", err.message);
		tmesh_xla_cancel("out", NULL);
		tmesh_xla_unbind("out", NULL);
	}
	return NULL;
}

/* A call that waits for a message and a call that waits for a turn both ask; a wait goes on until
 * there is something. */
UNIT_SET_UP(test_asked)
{
	struct tmesh_channel *outbox = channel_new(TMESH_CHANNEL_SEND, "in");
	struct caller callers[THREADS];
	float value;

	start_asking(callers);
	atomic_store(&came, true);
	join(callers, FFI_CANCELLED);
	assert_int_equal(pop_one(&value, 60000), FFI_CANCELLED);
	atomic_store(&came, false);
	/* The time of the whole call counts, and a cancel is noticed between two questions. */
	assert_int_equal(pop_one(&value, 120), FFI_DEADLINE_EXCEEDED);
	start_asking(callers);
	assert_ok(tmesh_xla_cancel("in", err));
	join(callers, FFI_CANCELLED);
	tmesh_xla_ask(NULL);
	atomic_store(&came, true);
	assert_int_equal(pop_one(&value, 120), FFI_DEADLINE_EXCEEDED);
	assert_ok(tmesh_xla_unbind("in", err));
	tmesh_channel_unref(outbox);
}

/* The object under a name changes all the time: each call ends, with success or with a fitting
 * error. */
UNIT_SET_UP(test_changes_storm)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .producers = 4};
	struct tmesh_stats stats = {.size = sizeof(stats)};
	char token[TMESH_TOKEN_SIZE];
	struct changer changer = {.token = token};
	struct tmesh_channel *inbox;
	pthread_t thread;
	int sent = 0;

	assert_ok(tmesh_channel_create(ctx, TMESH_CHANNEL_RECV, &opts, &inbox, err));
	assert_ok(tmesh_channel_token(inbox, token, err));
	assert_int_equal(pthread_create(&thread, NULL, change, &changer), 0);
	for (int i = 0; i < 500 || !sent; i++) {
		struct tmesh_message message = {0};
		int code = push_one(1);

		if (code && code != FFI_NOT_FOUND && code != FFI_CANCELLED)
			fail_msg("%d %s", code, host_error.text);
		sent += !code;
		if (!tmesh_channel_try_recv(inbox, &message, NULL))
			tmesh_tensor_unref(message.tensor);
	}
	atomic_store(&changer.stop, true);
	pthread_join(thread, NULL);
	tmesh_xla_unbind("out", NULL);
	tmesh_channel_unref(inbox);
	assert_ok(tmesh_xla_stats(&stats, err));
	assert_int_equal(stats.regions_live, 0);
}

UNIT_MAIN("tests", NULL, NULL)
