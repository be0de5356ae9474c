// SPDX-License-Identifier: MIT
/*
 * Common to slots, logs and pools of pages: listeners that end while others connect, messages that
 * are none, waits that signals interrupt.
 */
#include <poll.h>
#include <sys/time.h>
#include <tmesh/pages.h>
#include <tmesh/slot.h>

#include "shared/publication.h"
#include "unanswered.h"

/* Descriptors of an empty message, which is taken for the end, do not stay open. */
UNIT(test_empty_message)
{
	int ends[2], pipes[2], fd = 0;
	char byte;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(model_socket_send(ends[0], "", 0, pipes[1]), 0);
	close(pipes[1]);
	assert_int_equal(model_socket_recv(ends[1], &byte, 1, &fd), 0);
	assert_int_equal(fd, -1);
	/* So the pipe has no writer any more. */
	assert_int_equal(read(pipes[0], &byte, 1), 0);
	close(pipes[0]);
	close(ends[0]);
	close(ends[1]);
}

/* Files that may be served are given to no caller. They wait to be closed up to a number, and none
 * comes where none is wanted. */
UNIT_ADD(test_unanswered, server_start, server_end)
{
	unsigned int taken = 0;
	int ends[2], fd;
	char byte;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(model_socket_send(ends[0], "x", 1, server.fd), 0);
		assert_int_equal(model_socket_recv(ends[1], &byte, 1, i % 2 ? &fd : NULL), 1);
		if (i % 2 == 0)
			continue;
		assert_true(fd == -1 || fd == -EMFILE);
		taken += fd == -1;
	}
	assert_int_equal(taken, TMESH_FOREIGN_OF_PROCESS);
	assert_int_equal(server_files(), taken);
	server_answers();
	assert_int_equal(server.asked, taken);
	close(ends[0]);
	close(ends[1]);
}

static atomic_uint ticks;

static void tick(int signal)
{
	atomic_fetch_add(&ticks, 1);
}

static void *close_later(void *fd)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	while (atomic_load(&ticks) < 10)
		usleep(1000);
	close(*(int *)fd);
	return NULL;
}

/* Signals do not end the wait for the publisher's end, which says why its value is gone. */
UNIT(test_interrupted)
{
	const struct sigaction action = {.sa_handler = tick};
	struct itimerval often = {{0, 2000}, {0, 2000}};
	struct model_subscription subscription = {0};
	struct sigaction before;
	pthread_t thread;
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	subscription.socket.fd = ends[0];
	atomic_store(&ticks, 0);
	assert_int_equal(pthread_create(&thread, NULL, close_later, &ends[1]), 0);
	assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
	assert_true(model_subscription_ended(&subscription, 60000));
	often = (struct itimerval){0};
	assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
	assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	close(ends[0]);
}

/* A listener that is ready all the time: no message to it is ever read. */
struct ready {
	struct model_source source;
	atomic_uint times;
};

static void ready(struct model_source *source)
{
	atomic_fetch_add(&((struct ready *)source)->times, 1);
}

/* None of two that always have something to say keeps the other from being heard. */
UNIT(test_takes_turns)
{
	struct ready two[2] = {0};
	struct tmesh_slot *slot;
	struct tmesh_ctx *ctx = new_ctx();
	int ends[2][2];

	/* The thread runs as long as there is a slot. */
	assert_ok(tmesh_slot_create(ctx, NULL, &slot, err));
	model_host_lock();
	for (int i = 0; i < 2; i++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends[i]), 0);
		assert_int_equal(model_socket_send(ends[i][0], "x", 1, -1), 0);
		two[i].source.ready = ready;
		assert_ok(model_source_add(&two[i].source, ends[i][1], err));
	}
	model_host_unlock();
	while (atomic_load(&two[0].times) + atomic_load(&two[1].times) < 100)
		usleep(1000);
	model_host_lock();
	for (int i = 0; i < 2; i++) {
		model_source_remove(&two[i].source);
		close(ends[i][0]);
	}
	model_host_unlock();
	assert_true(atomic_load(&two[0].times) && atomic_load(&two[1].times));
	tmesh_slot_unref(slot);
	tmesh_ctx_unref(ctx);
}

#define CONNECTS 64

struct connecting {
	struct tmesh_ctx *ctx;
	char token[TMESH_TOKEN_SIZE];
	int sockets[CONNECTS];
};

static void *connect_often(void *data)
{
	struct connecting *k = data;

	for (int i = 0; i < CONNECTS; i++)
		if (model_connect(k->ctx, k->token, &k->sockets[i], NULL))
			k->sockets[i] = -1;
	return NULL;
}

static atomic_bool contends;

static void *contend(void *data)
{
	while (atomic_load(&contends)) {
		model_host_lock();
		model_host_unlock();
	}
	return NULL;
}

/* A slot or a pool ends while others connect: each accepted socket has an owner that closes it. */
static void ends_while_knocked(bool pools)
{
	const struct tmesh_page_pool_opts opts = {
		.size = sizeof(opts), .page_bytes = 4096, .slab_pages = 16, .max_pages = 16};
	struct connecting k = {0};
	pthread_t connector, contender;

	assert_ok(tmesh_ctx_open(NULL, &k.ctx, err));
	/* So that the end of the slot or pool has to wait between its steps. */
	atomic_store(&contends, true);
	assert_int_equal(pthread_create(&contender, NULL, contend, NULL), 0);
	/* No step of this is the backend's. */
	for (int round = 0; round < (unit_on_kernel() ? 40 : 300); round++) {
		struct tmesh_page_pool *pool = NULL;
		struct tmesh_slot *slot = NULL;

		if (pools) {
			assert_ok(tmesh_page_pool_create(k.ctx, &opts, &pool, err));
			assert_ok(tmesh_page_pool_tenant(pool, 0, k.token, err));
		} else {
			assert_ok(tmesh_slot_create(k.ctx, NULL, &slot, err));
			assert_ok(tmesh_slot_token(slot, k.token, err));
		}
		assert_int_equal(pthread_create(&connector, NULL, connect_often, &k), 0);
		usleep((useconds_t)(round % 20 * 50));
		tmesh_slot_unref(slot);
		tmesh_page_pool_unref(pool);
		assert_int_equal(pthread_join(connector, NULL), 0);
		for (int i = 0; i < CONNECTS; i++) {
			struct pollfd poller = {.fd = k.sockets[i], .events = POLLRDHUP};

			if (poller.fd < 0)
				continue;
			assert_int_equal(poll(&poller, 1, 60000), 1);
			close(poller.fd);
		}
	}
	atomic_store(&contends, false);
	assert_int_equal(pthread_join(contender, NULL), 0);
	tmesh_ctx_unref(k.ctx);
}

UNIT(test_slot_knocked)
{
	ends_while_knocked(false);
}

UNIT(test_pool_knocked)
{
	ends_while_knocked(true);
}

static struct tmesh_bundle *bundle_of(struct tmesh_ctx *ctx, uint64_t word)
{
	const int64_t shape[] = {1};
	struct tmesh_bundle_entry entry = {.name = "w"};
	struct tmesh_bundle *bundle;

	assert_ok(tmesh_tensor_put(ctx, TMESH_UINT64, 1, shape, &word, NULL, &entry.tensor, err));
	assert_ok(tmesh_bundle_create(ctx, &entry, 1, NULL, &bundle, err));
	tmesh_tensor_unref(entry.tensor);
	return bundle;
}

static void publish(struct tmesh_slot *slot, struct tmesh_ctx *ctx, uint64_t word)
{
	struct tmesh_bundle *bundle = bundle_of(ctx, word);

	assert_ok(tmesh_slot_publish(slot, bundle, NULL, err));
	tmesh_bundle_unref(bundle);
}

static bool opens(struct tmesh_ctx *ctx, const char *text, size_t bytes)
{
	struct tmesh_bundle *bundle;
	int rc = tmesh_bundle_open(ctx, text, bytes, TMESH_READ, &bundle, NULL);

	if (!rc)
		tmesh_bundle_unref(bundle);
	return !rc;
}

/* As slot.c's readers have it. */
static struct model_subscription *subscription_of(struct tmesh_slot_reader *reader)
{
	struct model_subscription *subscription =
		(struct model_subscription *)((char *)reader + 40);

	assert_true(subscription->life == model_life() && subscription->bytes == 9ul * 4096 &&
		    fcntl(subscription->socket.fd, F_GETFD) == FD_CLOEXEC);
	return subscription;
}

/* A reader finds no room to say that it is done: it says so when it looks again. @how: by what. */
static void done_without_room(int how)
{
	char text[4096], token[TMESH_TOKEN_SIZE];
	struct tmesh_slot_reader *reader;
	struct tmesh_slot_value *value;
	struct model_answer answer;
	struct model_subscription *subscription;
	struct tmesh_slot *slot;
	struct tmesh_ctx *ctx = new_ctx();
	int fd = -1;

	assert_ok(tmesh_slot_create(ctx, NULL, &slot, err));
	assert_ok(tmesh_slot_token(slot, token, err));
	assert_ok(tmesh_slot_open(ctx, token, &reader, err));
	subscription = subscription_of(reader);
	publish(slot, ctx, 1);
	model_subscription_ask(subscription);
	while (!model_subscription_answer(subscription, 1000, &answer, &fd))
		;
	assert_true(fd >= 0 && answer.bytes < sizeof(text));
	assert_int_equal(pread(fd, text, sizeof(text), 0), answer.bytes);
	close(fd);
	publish(slot, ctx, 2);
	assert_true(opens(ctx, text, answer.bytes));
	/* The thread that would read waits for this lock. */
	model_host_lock();
	while (!model_socket_send(subscription->socket.fd, "W", 1, -1))
		;
	model_subscription_done(subscription);
	model_host_unlock();
	for (int i = 0; opens(ctx, text, answer.bytes); i++) {
		assert_true(i < 60000);
		if (how == 0)
			model_subscription_drain(subscription);
		else if (how == 1)
			model_subscription_ended(subscription, 0);
		else if (how == 2)
			model_subscription_settle(subscription);
		else {
			/* It is known only that there is a newer one. */
			publish(slot, ctx, (uint64_t)i + 3);
			assert_ok(tmesh_slot_read(reader, &value, err));
		}
		usleep(1000);
	}
	tmesh_slot_close(reader);
	tmesh_slot_unref(slot);
	tmesh_ctx_unref(ctx);
}

UNIT(test_done_without_room)
{
	for (int how = 0; how < 4; how++)
		done_without_room(how);
}

/* The publisher lies: its answer is a file that could keep its reader waiting. */
static int answer_with_a_file(struct model_publication *publication, struct model_answer *answer,
			      int *fd, void **pin)
{
	*answer = (struct model_answer){UINT64_MAX, 64};
	*fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	return 0;
}

UNIT(test_no_memory_in_answer)
{
	struct tmesh_slot_reader *reader;
	struct tmesh_slot_value *value;
	char token[TMESH_TOKEN_SIZE];
	struct model_publication *publication;
	struct tmesh_slot *slot;
	struct tmesh_ctx *ctx = new_ctx();

	assert_ok(tmesh_slot_create(ctx, NULL, &slot, err));
	assert_ok(tmesh_slot_token(slot, token, err));
	assert_ok(tmesh_slot_open(ctx, token, &reader, err));
	/* As slot.c begins its object: a count, then the publication. */
	publication = (struct model_publication *)((char *)slot + 8);
	model_host_lock();
	publication->asked = answer_with_a_file;
	publication->done = NULL;
	/* A newest generation whose entry is being written. */
	((uint64_t *)publication->addr)[8] = 1;
	model_host_unlock();
	assert_refused(tmesh_slot_read(reader, &value, err), -EPROTO, "a file that is no memory");
	tmesh_slot_close(reader);
	tmesh_slot_unref(slot);
	tmesh_ctx_unref(ctx);
}

UNIT_MAIN("listener", NULL, NULL)
