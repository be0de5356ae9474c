// SPDX-License-Identifier: MIT
/* An engine's process that speaks the protocol badly. Each call of its client ends by its deadline,
 * and a cancelled call within the time that an engine has to stop. */
#include "remote.h"
#include "served.h"

/* How long the engine does not answer. It is above all limits of the client. */
#define SILENCE_NS (60000 * MS)

enum fault {
	FLOODS,	 /* replies to a call of long ago, without end */
	FUTURE,	 /* replies to a call that was not made yet */
	HANGS_UP /* closes its socket when the call is cancelled, and nothing else */
};

struct engine {
	enum fault fault;
	struct fixture *fix;
	struct tmesh_ctx *ctx;
	struct tmesh_channel *requests, *replies;
	struct tmesh_tensor *page;
	struct wire_welcome welcome;
	int listener, socket;
	atomic_bool asked, ends;
	pthread_t thread;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void listen_as_unit(struct engine *engine)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char folder_of[300];

	snprintf(folder_of, sizeof(folder_of), "%s/" WIRE_SOCKET "unit" WIRE_FOLDER,
		 getenv("TMESH_RUNTIME_DIR"));
	assert_true(!mkdir(folder_of, 0700) || errno == EEXIST);
	snprintf(address.sun_path, sizeof(address.sun_path), "%.90s/" WIRE_SOCKET "unit",
		 getenv("TMESH_RUNTIME_DIR"));
	unlink(address.sun_path);
	engine->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(engine->listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(engine->listener, 1), 0);
}

static void make_objects(struct engine *engine)
{
	const struct tmesh_channel_opts opts = {.size = sizeof(opts), .regions = 1, .layouts = 1};
	const int64_t bytes = sizeof(struct wire_page);

	engine->ctx = ctx_of_engine(engine->fix);
	assert_ok(tmesh_channel_create(engine->ctx, TMESH_CHANNEL_RECV, &opts, &engine->requests,
				       err));
	assert_ok(tmesh_channel_create(engine->ctx, TMESH_CHANNEL_SEND, &opts, &engine->replies,
				       err));
	assert_ok(
		tmesh_tensor_create(engine->ctx, TMESH_UINT8, 1, &bytes, NULL, &engine->page, err));
	engine->welcome =
		(struct wire_welcome){.magic = WIRE_MAGIC, .pid = 1, .backend = "hostile"};
	assert_ok(tmesh_channel_token(engine->requests, engine->welcome.requests, err));
	assert_ok(tmesh_channel_token(engine->replies, engine->welcome.replies, err));
	assert_ok(tmesh_region_token(tmesh_tensor_region(engine->page), TMESH_READ | TMESH_WRITE,
				     engine->welcome.page, err));
}

/* Return whether the reply was sent. */
static bool reply(struct engine *engine, uint64_t number)
{
	const struct wire_reply words = {.number = number};
	struct tmesh_message message = {.bytes = sizeof(words)};

	memcpy(message.data, &words, sizeof(words));
	return !tmesh_channel_try_send(engine->replies, &message, NULL);
}

static void misbehave(struct engine *engine, uint64_t number)
{
	uint64_t until = now_ns() + SILENCE_NS;
	struct wire_cancel words;

	if (engine->fault == HANGS_UP) {
		recv(engine->socket, &words, sizeof(words), 0);
		shutdown(engine->socket, SHUT_RDWR);
	}
	while (!atomic_load(&engine->ends) && now_ns() < until)
		if (engine->fault == HANGS_UP ||
		    !reply(engine, engine->fault == FUTURE ? number + 1 : 0))
			usleep(50);
	while (!atomic_load(&engine->ends) && !reply(engine, number))
		usleep(50);
}

static void *act(void *data)
{
	struct engine *engine = data;
	struct tmesh_message message;
	struct wire_request request;

	engine->socket = accept(engine->listener, NULL, NULL);
	send(engine->socket, &engine->welcome, sizeof(engine->welcome), MSG_NOSIGNAL);
	if (!tmesh_channel_recv(engine->requests, &message, -1, NULL)) {
		memcpy(&request, message.data, sizeof(request));
		atomic_store(&engine->asked, true);
		misbehave(engine, request.number);
	}
	return NULL;
}

static int setup_engine(void **state)
{
	struct engine *engine = calloc(1, sizeof(*engine));

	engine->fix = calloc(1, sizeof(*engine->fix));
	assert_ok(tmesh_ctx_open(NULL, &engine->fix->ctx, err));
	listen_as_unit(engine);
	make_objects(engine);
	*state = engine;
	return 0;
}

static int teardown_engine(void **state)
{
	struct engine *engine = *state;

	close(engine->listener);
	tmesh_channel_unref(engine->requests);
	tmesh_channel_unref(engine->replies);
	tmesh_tensor_unref(engine->page);
	tmesh_ctx_unref(engine->ctx);
	tmesh_ctx_unref(engine->fix->ctx);
	free(engine->fix);
	free(engine);
	return 0;
}

/* Make one call to an engine with @fault. */
static int call(struct engine *engine, enum fault fault, uint64_t timeout_ns,
		struct tmesh_engine_cancellable *cancellable, struct tmesh_error *error)
{
	struct cancel_hook hook;
	struct remote *remote;
	uint64_t before;
	int rc;

	engine->fault = fault;
	pthread_create(&engine->thread, NULL, act, engine);
	/* The link itself has the time that it takes. */
	assert_ok(remote_new(engine->fix->ctx, "unit", 0, &remote, err));
	remote->timeout_ns = timeout_ns;
	tmesh_engine_cancellable_enter(cancellable);
	assert_ok(remote_enter(remote, &hook, err));
	before = deadline_enter(remote_deadline(remote));
	rc = remote_call(remote, WIRE_RUN, 0, NULL, NULL, NULL, error);
	deadline_enter(before);
	remote_leave(remote, &hook);
	tmesh_engine_cancellable_enter(NULL);
	atomic_store(&engine->ends, true);
	pthread_join(engine->thread, NULL);
	remote_free(remote);
	close(engine->socket);
	return rc;
}

struct canceller {
	struct engine *engine;
	struct tmesh_engine_cancellable *cancellable;
};

/* Cancel the call once the engine has it. Before that it would be refused, and the engine would
 * wait for it. */
static void *cancel_begun(void *data)
{
	struct canceller *own = data;

	while (!atomic_load(&own->engine->asked))
		usleep(1000);
	tmesh_engine_cancel(own->cancellable);
	return NULL;
}

static int call_cancelled(struct engine *engine, enum fault fault, uint64_t timeout_ns,
			  struct tmesh_error *error)
{
	struct canceller own = {.engine = engine};
	pthread_t thread;
	int rc;

	assert_ok(tmesh_engine_cancellable_create(NULL, &own.cancellable, err));
	pthread_create(&thread, NULL, cancel_begun, &own);
	rc = call(engine, fault, timeout_ns, own.cancellable, error);
	pthread_join(thread, NULL);
	tmesh_engine_cancellable_unref(own.cancellable);
	return rc;
}

static void test_floods(void **state)
{
	assert_refused(call(*state, FLOODS, 0, NULL, err), -EPROTO, "malformed reply");
}

static void test_future(void **state)
{
	assert_refused(call(*state, FUTURE, 0, NULL, err), -EPROTO, "malformed reply");
}

static void test_hangs_up(void **state)
{
	assert_refused(call_cancelled(*state, HANGS_UP, 0, err), -ECANCELED, "does not answer");
}

static void test_hangs_up_before_deadline(void **state)
{
	assert_refused(call_cancelled(*state, HANGS_UP, 500 * MS, err), -ETIMEDOUT,
		       "does not answer");
}

#define HOSTILE(test) cmocka_unit_test_setup_teardown(test, setup_engine, teardown_engine)

int main(void)
{
	const struct CMUnitTest tests[] = {
		HOSTILE(test_floods),
		HOSTILE(test_future),
		HOSTILE(test_hangs_up),
		HOSTILE(test_hangs_up_before_deadline),
	};

	return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
