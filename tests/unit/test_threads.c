// SPDX-License-Identifier: MIT
/* Many threads on the same context, the same regions and the same tokens. */
#include "held.h"
#include "unit.h"

#define RW (TMESH_READ | TMESH_WRITE)
#define THREADS 4
/* The module's own races are tests/kselftest's: in an emulated machine a round takes 70 ms. */
#define ROUNDS (unit_on_kernel() ? 40 : 150)

static struct {
	struct tmesh_ctx *producer, *client;
	struct tmesh_region *shared;
	char token[TMESH_TOKEN_SIZE];
	int sockets[2];
} all;

static atomic_int failures;

#define CHECK_HERE(condition)                               \
	do {                                                \
		if (!(condition)) {                         \
			print_error("line %d\n", __LINE__); \
			failures++;                         \
			return NULL;                        \
		}                                           \
	} while (0)

static void *work(void *data)
{
	int self = (int)(intptr_t)data;

	for (int i = 0; i < ROUNDS; i++) {
		struct tmesh_region *own, *got, *less;
		char token[TMESH_TOKEN_SIZE], text[32] = "", back[32];
		void *addr, *again;

		snprintf(text, sizeof(text), "thread %d round %d", self, i);
		CHECK_HERE(!tmesh_region_create(all.producer, 5000, NULL, &own, NULL));
		CHECK_HERE(!tmesh_region_write(own, 0, text, sizeof(text), NULL));
		CHECK_HERE(!tmesh_region_token(own, TMESH_READ, token, NULL));
		CHECK_HERE(!tmesh_region_open(all.client, token, TMESH_READ, &got, NULL));
		CHECK_HERE(tmesh_region_id(got) == tmesh_region_id(own));
		CHECK_HERE(!tmesh_region_read(got, 0, back, sizeof(back), NULL));
		CHECK_HERE(!strcmp(text, back));
		tmesh_region_unref(got);

		CHECK_HERE(!tmesh_region_open(all.client, all.token, TMESH_READ, &got, NULL));
		tmesh_region_unref(got);
		CHECK_HERE(!tmesh_region_map(all.shared, TMESH_READ, &addr, NULL));
		CHECK_HERE(!tmesh_region_map(all.shared, RW, &again, NULL) && addr == again);
		tmesh_region_unmap(all.shared, RW);
		tmesh_region_unmap(all.shared, TMESH_READ);
		tmesh_region_unref(tmesh_region_ref(all.shared));
		CHECK_HERE(!tmesh_region_derive(all.shared, TMESH_READ, &less, NULL));
		CHECK_HERE(!tmesh_region_map(less, TMESH_READ, &addr, NULL));
		CHECK_HERE(!strcmp(addr, "shared"));
		tmesh_region_unref(less);

		CHECK_HERE(!tmesh_region_send(all.shared, all.sockets[0], TMESH_READ, NULL));
		CHECK_HERE(!tmesh_region_recv(all.client, all.sockets[1], &got, NULL));
		CHECK_HERE(tmesh_region_id(got) == tmesh_region_id(all.shared));
		tmesh_region_unref(got);

		/* Never handed out: these go round through the pool. */
		CHECK_HERE(!tmesh_region_create(all.client, 5000, NULL, &got, NULL));
		CHECK_HERE(!tmesh_region_map(got, RW, &addr, NULL));
		CHECK_HERE(*(char *)addr == 0);
		memset(addr, 0xee, 5000);
		tmesh_region_unmap(got, RW);
		tmesh_region_unref(got);
		CHECK_HERE(!tmesh_region_seal(own, NULL));
		tmesh_region_unref(own);
	}
	return NULL;
}

UNIT(test_all_at_once)
{
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.region_pool_bytes = 1 << 20,
	};
	struct tmesh_stats stats = {.size = sizeof(stats)};
	pthread_t threads[THREADS];

	assert_ok(tmesh_ctx_open(&opts, &all.producer, err));
	assert_ok(tmesh_ctx_open(&opts, &all.client, err));
	assert_ok(tmesh_region_create(all.producer, 100, NULL, &all.shared, err));
	assert_ok(tmesh_region_write(all.shared, 0, "shared", 7, err));
	assert_ok(tmesh_region_token(all.shared, TMESH_READ, all.token, err));
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, all.sockets), 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(failures, 0);
	tmesh_region_unref(all.shared);
	assert_int_equal(tmesh_stats(all.producer, &stats), 0);
	assert_int_equal(stats.regions_live, 0);
	assert_int_equal(tmesh_stats(all.client, &stats), 0);
	assert_int_equal(stats.regions_live, 0);
	assert_true(stats.region_pool_hits > 0);
	assert_true(unit_on_kernel() || stats.opens_without_wake > 0);
	tmesh_ctx_unref(all.client);
	tmesh_ctx_unref(all.producer);
	close(all.sockets[0]);
	close(all.sockets[1]);
}

static atomic_int handled;

static void handle(int signal)
{
	handled++;
}

/* Signals are the application's: a thread of ours takes none that it keeps from its own. */
UNIT(test_signals)
{
	const struct sigaction action = {.sa_handler = handle}, none = {.sa_handler = SIG_DFL};
	struct tmesh_channel *sender, *receiver;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_ctx *ctx = new_ctx();
	sigset_t one, pending;

	assert_ok(tmesh_channel_create(ctx, TMESH_CHANNEL_SEND, NULL, &sender, err));
	assert_ok(tmesh_channel_token(sender, token, err));
	assert_ok(tmesh_channel_open(ctx, token, TMESH_CHANNEL_RECV, NULL, &receiver, err));
	sigemptyset(&one);
	sigaddset(&one, SIGUSR1);
	assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
	assert_int_equal(pthread_sigmask(SIG_BLOCK, &one, NULL), 0);
	kill(getpid(), SIGUSR1);
	usleep(50000);
	assert_int_equal(handled, 0);
	assert_int_equal(sigpending(&pending), 0);
	assert_true(sigismember(&pending, SIGUSR1));
	assert_int_equal(pthread_sigmask(SIG_UNBLOCK, &one, NULL), 0);
	assert_int_equal(handled, 1);
	assert_int_equal(sigaction(SIGUSR1, &none, NULL), 0);
	tmesh_channel_unref(receiver);
	tmesh_channel_unref(sender);
	tmesh_ctx_unref(ctx);
}

static atomic_int arrived;

static void *call_first(void *data)
{
	atomic_fetch_add(&arrived, 1);
	while (atomic_load(&arrived) < THREADS)
		;
	CHECK_HERE(!tmesh_ctx_enter(data, NULL));
	return NULL;
}

/* The first calls of a forked child may come at once: one thread lets go of what the parent held.
 * The thread sanitizer follows no threads of a forked child, so this process stands for one. */
UNIT(test_first_calls)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts),
				      .backend = TMESH_BACKEND_MEMFD,
				      .exit_wait_ns = TMESH_NO_EXIT_WAIT};
	struct tmesh_region *region;
	char token[TMESH_TOKEN_SIZE];
	pthread_t threads[THREADS];
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	assert_ok(tmesh_region_create(ctx, 4096, NULL, &region, err));
	for (int round = 0; round < 50; round++) {
		assert_ok(tmesh_region_hold(region, TMESH_READ, 1, token, err));
		assert_ok(tmesh_ctx_flush(ctx, -1, NULL, err));
		/* The thread that has ended the hold is gone too. */
		while (atomic_load(&ctx->refs) > 2)
			usleep(100);
		tmesh_holds_forked(ctx);
		region->hold = NULL;
		ctx->life--;
		atomic_store(&arrived, 0);
		for (int i = 0; i < THREADS; i++)
			pthread_create(&threads[i], NULL, call_first, ctx);
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
		assert_null(ctx->inherited_holds);
	}
	assert_int_equal(failures, 0);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

UNIT_MAIN("threads", NULL, NULL)
