// SPDX-License-Identifier: MIT
/*
 * What slots, logs and pools of pages have in common: lobbies that end while others knock, messages
 * that are none, waits that signals interrupt.
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <tmesh/pages.h>
#include <tmesh/slot.h>

#include "board.h"
#include "unit.h"

/* What comes with an empty message, which is taken for the end, stays with nobody. */
static void test_empty_message(void **state)
{
	int ends[2], pipes[2], fd = 0;
	char byte;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(model_meet_send(ends[0], "", 0, pipes[1]), 0);
	close(pipes[1]);
	assert_int_equal(model_meet_recv(ends[1], &byte, 1, &fd), 0);
	assert_int_equal(fd, -1);
	/* So the pipe has no writer any more. */
	assert_int_equal(read(pipes[0], &byte, 1), 0);
	close(pipes[0]);
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
static void test_interrupted(void **state)
{
	const struct sigaction action = {.sa_handler = tick};
	struct itimerval often = {{0, 2000}, {0, 2000}};
	struct model_view view = {0};
	struct sigaction before;
	pthread_t thread;
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	view.socket.fd = ends[0];
	atomic_store(&ticks, 0);
	assert_int_equal(pthread_create(&thread, NULL, close_later, &ends[1]), 0);
	assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
	assert_true(model_view_is_over(&view, 60000));
	often = (struct itimerval){0};
	assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
	assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	close(ends[0]);
}

#define KNOCKS 64

struct knocking {
	struct tmesh_ctx *ctx;
	char token[TMESH_TOKEN_SIZE];
	int knocks[KNOCKS];
};

static void *knock(void *data)
{
	struct knocking *k = data;

	for (int i = 0; i < KNOCKS; i++)
		if (model_meet_join(k->ctx, k->token, &k->knocks[i], NULL))
			k->knocks[i] = -1;
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

/* A slot or a pool ends while others knock: none is let in that nobody would let go of. */
static void ends_while_knocked(bool pools)
{
	const struct tmesh_page_pool_opts opts = {
		.size = sizeof(opts), .page_bytes = 4096, .slab_pages = 16, .max_pages = 16};
	struct knocking k = {0};
	pthread_t knocker, contender;

	assert_ok(tmesh_ctx_open(NULL, &k.ctx, err));
	/* So that the end of the slot or pool has to wait between its steps. */
	atomic_store(&contends, true);
	assert_int_equal(pthread_create(&contender, NULL, contend, NULL), 0);
	for (int round = 0; round < 300; round++) {
		struct tmesh_page_pool *pool = NULL;
		struct tmesh_slot *slot = NULL;

		if (pools) {
			assert_ok(tmesh_page_pool_create(k.ctx, &opts, &pool, err));
			assert_ok(tmesh_page_pool_tenant(pool, 0, k.token, err));
		} else {
			assert_ok(tmesh_slot_create(k.ctx, NULL, &slot, err));
			assert_ok(tmesh_slot_token(slot, k.token, err));
		}
		assert_int_equal(pthread_create(&knocker, NULL, knock, &k), 0);
		usleep((useconds_t)(round % 20 * 50));
		tmesh_slot_unref(slot);
		tmesh_page_pool_unref(pool);
		assert_int_equal(pthread_join(knocker, NULL), 0);
		for (int i = 0; i < KNOCKS; i++) {
			struct pollfd poller = {.fd = k.knocks[i], .events = POLLRDHUP};

			if (poller.fd < 0)
				continue;
			assert_int_equal(poll(&poller, 1, 10000), 1);
			close(poller.fd);
		}
	}
	atomic_store(&contends, false);
	assert_int_equal(pthread_join(contender, NULL), 0);
	tmesh_ctx_unref(k.ctx);
}

static void test_slot_knocked(void **state)
{
	ends_while_knocked(false);
}

static void test_pool_knocked(void **state)
{
	ends_while_knocked(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_empty_message),
		cmocka_unit_test(test_interrupted),
		cmocka_unit_test(test_slot_knocked),
		cmocka_unit_test(test_pool_knocked),
	};

	return cmocka_run_group_tests_name("meet", tests, NULL, NULL);
}
