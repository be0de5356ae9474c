// SPDX-License-Identifier: MIT
/* Hand-over between processes: by token, by socket, with producers that die or stop. */
#include <sys/un.h>
#include <valgrind/valgrind.h>

#include "producer.h"
#include "watch.h"
#include "wire.h"

static void other_digit(char *c)
{
	*c = *c == '0' ? '1' : '0';
}

/* The rest of what is no token, or another's, is in the table of promises. */
UNIT(test_bad_tokens)
{
	struct producer p = producer_start();
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_region *region = (void *)ctx;
	char *guess = p.token;

	assert_refused(tmesh_region_open(ctx, NULL, TMESH_READ, &region, err), -EINVAL,
		       "token is NULL");
	assert_refused(tmesh_region_open(ctx, "", TMESH_READ, &region, err), -EPROTO, "token");
	assert_refused(tmesh_region_open(ctx, guess, TMESH_WRITE, &region, err), -EINVAL, "READ");
	assert_refused(tmesh_region_open(ctx, guess, 1 | 16, &region, err), -EINVAL, "unknown");
	other_digit(&guess[10]); /* a guessed name */
	assert_refused(tmesh_region_open(ctx, guess, TMESH_READ, &region, err), -ENOENT, "no such");
	assert_ptr_equal(region, ctx);
	producer_end(&p, 0);
	tmesh_ctx_unref(ctx);
}

/* A process that sends it on unchanged adds nothing of its own. */
UNIT(test_behind_a_token)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_region *region;
	char token[TMESH_TOKEN_SIZE];

	memset(token, 'x', sizeof(token));
	assert_ok(tmesh_region_create(ctx, 10, NULL, &region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	for (size_t i = strlen(token); i < sizeof(token); i++)
		assert_int_equal(token[i], 0);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

static void expect_label(struct tmesh_ctx *ctx, const char *token, const char *label)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region;

	assert_ok(tmesh_region_open(ctx, token, TMESH_READ, &region, err));
	assert_ok(tmesh_region_info(region, &info, err));
	assert_string_equal(info.label, label);
	tmesh_region_unref(region);
}

/* A process that opens a region can ask for its label. */
UNIT(test_label)
{
	struct tmesh_ctx_opts pooling = {
		.size = sizeof(pooling),
		.region_pool_bytes = 1 << 20,
	};
	struct tmesh_region_opts opts = {.size = sizeof(opts), .label = "first"};
	struct tmesh_ctx *ctx, *client = context(NULL, 0);
	struct tmesh_region *region;
	char token[TMESH_TOKEN_SIZE];

	assert_ok(tmesh_ctx_open(&pooling, &ctx, err));
	assert_ok(tmesh_region_create(ctx, 10, &opts, &region, err));
	tmesh_region_unref(region);
	/* On memfd the same memory under another name, which the file cannot take. */
	opts.label = "second";
	assert_ok(tmesh_region_create(ctx, 10, &opts, &region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	expect_label(client, token, "second");
	tmesh_region_unref(region);
	assert_int_equal(ctx_stats(ctx).region_pool_hits, unit_on_kernel() ? 0 : 1);
	opts.label = "third: \xc3\xa9";
	assert_ok(tmesh_region_create(ctx, 10, &opts, &region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	expect_label(client, token, opts.label);
	tmesh_region_unref(region);
	tmesh_ctx_unref(client);
	tmesh_ctx_unref(ctx);
}

static void test_stopped(void **state)
{
	struct producer p = producer_start();
	struct tmesh_ctx *ctx = context(NULL, 200), *other = context(NULL, 200);
	struct tmesh_ctx *patient = context(NULL, 0);
	struct tmesh_region *region;
	char link[512];
	uint64_t start;
	int status;

	kill(p.pid, SIGSTOP);
	assert_int_equal(waitpid(p.pid, &status, WUNTRACED), p.pid);
	/* A process that finds its index does not need it to run. */
	assert_ok(tmesh_region_open(other, p.token, TMESH_READ, &region, err));
	tmesh_region_unref(region);
	assert_int_equal(unlink(link_path(link, p.token)), 0);
	start = tmesh_now_ns();
	assert_refused(tmesh_region_open(ctx, p.token, TMESH_READ, &region, err), -ETIMEDOUT,
		       "stopped");
	/* By its own 200 ms, and not by the default of the tests (patient.c). */
	assert_true(tmesh_now_ns() - start < UINT64_C(60) * 1000000000);
	kill(p.pid, SIGCONT);
	/* It has to get its turn first. */
	assert_ok(tmesh_region_open(patient, p.token, TMESH_READ, &region, err));
	tmesh_region_unref(region);
	producer_end(&p, 0);
	tmesh_ctx_unref(patient);
	tmesh_ctx_unref(other);
	tmesh_ctx_unref(ctx);
}

/* A first open with the link replaced by @target (NULL: none): asked by socket, not refused. */
static void asks_with(const struct producer *p, const char *target)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_region *region;
	char link[512];

	link_path(link, p->token);
	unlink(link);
	if (target)
		assert_int_equal(symlink(target, link), 0);
	assert_ok(tmesh_region_open(ctx, p->token, TMESH_READ, &region, err));
	expect(region, "region");
	tmesh_region_unref(region);
	if (ctx_stats(ctx).opens_without_wake)
		fail_msg("%s was followed", target);
	assert_int_equal(ctx_stats(ctx).regions_opened, 1);
	/* The answer brought the index. */
	assert_ok(tmesh_region_open(ctx, p->token, TMESH_READ, &region, err));
	tmesh_region_unref(region);
	assert_int_equal(ctx_stats(ctx).opens_without_wake, 1);
	tmesh_ctx_unref(ctx);
}

/* A link that does not lead to the producer's index is no harm. */
static void test_wrong_link(void **state)
{
	struct producer p = producer_start(), other = producer_start();
	char link[512], target[512], good[64] = "", others[64] = "";
	int index, fifo;

	assert_true(readlink(link_path(link, other.token), others, 63) > 0);
	assert_true(readlink(link_path(link, p.token), good, 63) > 0);
	index = open(good, O_RDONLY | O_CLOEXEC);
	assert_true(index >= 0);
	asks_with(&p, NULL);
	asks_with(&p, "/");
	asks_with(&p, "/proc/0/fd/1");
	asks_with(&p, "/proc/-1/fd/1");
	asks_with(&p, "/proc/1/fd/-1");
	asks_with(&p, "/proc/99999999999999999999/fd/99999999999999999999");
	asks_with(&p, "/proc/2147483647/fd/3");
	/* Files that only look like the right one. */
	snprintf(target, sizeof(target), "%s/", good);
	asks_with(&p, target);
	snprintf(target, sizeof(target), "/proc/0%s", good + strlen("/proc/"));
	asks_with(&p, target);
	/* Another producer's, no index at all, and a process that only has it open. */
	asks_with(&p, others);
	snprintf(target, sizeof(target), "/proc/%d/fd/%d", (int)getpid(), p.socket);
	asks_with(&p, target);
	snprintf(target, sizeof(target), "/proc/%d/fd/%d", (int)getpid(), index);
	asks_with(&p, target);
	close(index);
	/* A pipe with a name and without a writer: an open would wait. */
	snprintf(target, sizeof(target), "%s/fifo", unit_runtime_dir());
	assert_int_equal(mkfifo(target, 0600), 0);
	fifo = open(target, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	assert_true(fifo >= 0);
	unlink(target);
	snprintf(target, sizeof(target), "/proc/%d/fd/%d", (int)getpid(), fifo);
	asks_with(&p, target);
	close(fifo);
	producer_end(&other, 0);
	producer_end(&p, 0);
}

/* Many tokens: the index grows under a client that knows it, and shrinks by releases. */
static void test_many(void **state)
{
	enum {
		COUNT = 1500
	};
	static struct tmesh_region *regions[COUNT];
	static char tokens[COUNT][TMESH_TOKEN_SIZE];
	struct tmesh_ctx *ctx = context(NULL, 0), *client = context(NULL, 0);
	struct tmesh_region *region;
	struct rlimit limit;

	/* Two descriptors for each, and more than a login begins with. */
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limit.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_true(limit.rlim_max > 3 * COUNT);
	for (int i = 0; i < COUNT; i++) {
		assert_ok(tmesh_region_create(ctx, 4096, NULL, &regions[i], err));
		assert_ok(tmesh_region_token(regions[i], TMESH_READ, tokens[i], err));
		assert_ok(tmesh_region_open(client, tokens[i], TMESH_READ, &region, err));
		assert_int_equal(tmesh_region_id(region), tmesh_region_id(regions[i]));
		tmesh_region_unref(region);
	}
	/* Each growth renews the link, by which a stranger finds the last one too. */
	assert_int_equal(ctx_stats(client).opens_without_wake, COUNT);
	tmesh_ctx_unref(client);
	client = context(NULL, 0);
	assert_ok(tmesh_region_open(client, tokens[COUNT - 1], TMESH_READ, &region, err));
	tmesh_region_unref(region);
	assert_int_equal(ctx_stats(client).opens_without_wake, 1);
	for (int i = 0; i < COUNT; i += 2)
		tmesh_region_unref(regions[i]);
	for (int i = 0; i < COUNT; i++) {
		int rc = tmesh_region_open(client, tokens[i], TMESH_READ, &region, NULL);

		assert_int_equal(rc, i % 2 ? 0 : -ENOENT);
		if (rc == 0) {
			assert_int_equal(tmesh_region_id(region), tmesh_region_id(regions[i]));
			tmesh_region_unref(region);
			tmesh_region_unref(regions[i]);
		}
	}
	tmesh_ctx_unref(client);
	tmesh_ctx_unref(ctx);
}

/* A process that opens from many producers keeps descriptors for some of them, and opens from all.
 */
static void test_many_producers(void **state)
{
	enum {
		MANY = 48,
		KEPT = 32
	};
	struct tmesh_ctx *client = context(NULL, 0), *producers[MANY];
	struct tmesh_region *regions[MANY], *region;
	char tokens[MANY][TMESH_TOKEN_SIZE];
	unsigned int before, most = 0;

	for (int i = 0; i < MANY; i++) {
		producers[i] = context(NULL, 0);
		assert_ok(tmesh_region_create(producers[i], 4096, NULL, &regions[i], err));
		assert_ok(tmesh_region_token(regions[i], TMESH_READ, tokens[i], err));
	}
	before = unit_open_fds();
	for (int i = 0; i < 2 * MANY; i++) {
		assert_ok(tmesh_region_open(client, tokens[i % MANY], TMESH_READ, &region, err));
		assert_int_equal(tmesh_region_id(region), tmesh_region_id(regions[i % MANY]));
		tmesh_region_unref(region);
		if (i == KEPT - 1)
			most = unit_open_fds();
	}
	assert_true(most > before);
	assert_int_equal(unit_open_fds(), most);
	tmesh_ctx_unref(client);
	assert_int_equal(unit_open_fds(), before);
	for (int i = 0; i < MANY; i++) {
		tmesh_region_unref(regions[i]);
		tmesh_ctx_unref(producers[i]);
	}
}

static bool has_peers(struct tmesh_ctx *ctx)
{
	bool has;

	pthread_mutex_lock(&ctx->lock);
	has = ctx->memfd.peers;
	pthread_mutex_unlock(&ctx->lock);
	return has;
}

/* Nothing of ended producers stays open, though this process makes no calls and holds their
 * regions: the watch looks. */
static void test_dead_producers(void **state)
{
	enum {
		AT_ONCE = 6,
		ROUNDS = 5
	};
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_region *held[AT_ONCE], *region;
	struct producer producers[AT_ONCE];
	unsigned int before = 0, most = 0;
	char link[512];

	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < AT_ONCE; i++)
			producers[i] = producer_start();
		/* Those asked by socket are known by their connection. */
		if (round % 2)
			assert_int_equal(unlink(link_path(link, producers[0].token)), 0);
		for (int i = 0; i < AT_ONCE; i++) {
			assert_ok(tmesh_region_open(ctx, producers[i].token, TMESH_READ, &held[i],
						    err));
			/* Asked once, it is known by its connection alone; its index comes with
			 * more. */
			if (round == 3)
				continue;
			assert_ok(tmesh_region_open(ctx, producers[i].token, TMESH_READ, &region,
						    err));
			tmesh_region_unref(region);
		}
		assert_true(has_peers(ctx));
		if (round == 1)
			most = unit_open_fds();
		for (int i = 0; i < AT_ONCE; i++)
			producer_end(&producers[i], SIGKILL);
		alarm(600);
		while (has_peers(ctx))
			usleep(1000);
		alarm(0);
		expect(held[0], "region");
		for (int i = 0; i < AT_ONCE; i++)
			tmesh_region_unref(held[i]);
		if (round == 0)
			before = unit_open_fds();
		assert_int_equal(unit_open_fds(), before);
	}
	assert_true(most > before + AT_ONCE);
	tmesh_ctx_unref(ctx);
}

/* A process that may have no more threads has none that watches. The next call looks then: one that
 * opens from other producers, or lets go of a region. */
static void test_dead_producers_unwatched(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_region *held[2];
	struct producer producers[2] = {producer_start(), producer_start()};
	unsigned int most;

	assert_ok(tmesh_region_open(ctx, producers[0].token, TMESH_READ, &held[0], err));
	tmesh_watch_stop(ctx);
	most = unit_open_fds();
	producer_end(&producers[0], SIGKILL);
	assert_int_equal(unit_open_fds(), most - 1);
	assert_ok(tmesh_region_open(ctx, producers[1].token, TMESH_READ, &held[1], err));
	expect(held[0], "region");
	tmesh_watch_stop(ctx);
	assert_int_equal(unit_open_fds(), most);
	producer_end(&producers[1], SIGKILL);
	tmesh_region_unref(held[0]);
	assert_false(has_peers(ctx));
	tmesh_region_unref(held[1]);
	/* Or a caller asks one of them, and gets no answer. */
	producers[0] = producer_start();
	assert_ok(tmesh_region_open(ctx, producers[0].token, TMESH_READ, &held[0], err));
	tmesh_watch_stop(ctx);
	producer_end(&producers[0], SIGKILL);
	assert_refused(tmesh_region_open(ctx, producers[0].token, TMESH_READ, &held[1], err),
		       -ENOENT, "gone");
	assert_false(has_peers(ctx));
	tmesh_region_unref(held[0]);
	tmesh_ctx_unref(ctx);
}

struct opening {
	struct tmesh_ctx *ctx;
	const char *token;
	int rc;
};

static void *open_one(void *data)
{
	struct opening *opening = data;
	struct tmesh_region *region;

	opening->rc = tmesh_region_open(opening->ctx, opening->token, TMESH_READ, &region, NULL);
	if (!opening->rc)
		tmesh_region_unref(region);
	return NULL;
}

/* Threads that ask the same producer at once: of their connections one is kept. */
static void test_asked_at_once(void **state)
{
	struct producer p = producer_start();
	struct tmesh_ctx *client = context(NULL, 0);
	struct opening openings[4];
	unsigned int before;
	pthread_t threads[4];
	char link[512];
	int status;

	assert_int_equal(unlink(link_path(link, p.token)), 0);
	before = unit_open_fds();
	kill(p.pid, SIGSTOP);
	assert_int_equal(waitpid(p.pid, &status, WUNTRACED), p.pid);
	for (int i = 0; i < 4; i++) {
		openings[i] = (struct opening){client, p.token, 1};
		pthread_create(&threads[i], NULL, open_one, &openings[i]);
	}
	usleep(50000);
	kill(p.pid, SIGCONT);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(openings[i].rc, 0);
	}
	tmesh_watch_stop(client);
	tmesh_peers_drop(client);
	assert_int_equal(unit_open_fds(), before);
	producer_end(&p, 0);
	tmesh_ctx_unref(client);
}

static void socket_of_type(int type)
{
	struct tmesh_ctx *ctx = context(NULL, 100);
	struct tmesh_region *region, *got = NULL;
	int pair[2];
	void *addr;

	assert_int_equal(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair), 0);
	assert_ok(tmesh_region_create(ctx, 12345, NULL, &region, err));
	assert_ok(tmesh_region_map(region, RW, &addr, err));
	strcpy(addr, "sent");
	assert_ok(tmesh_region_send(region, pair[0], TMESH_READ, err));
	assert_ok(tmesh_region_send(region, pair[0], TMESH_RIGHTS_ALL, err));
	assert_ok(tmesh_region_recv(ctx, pair[1], &got, err));
	assert_int_equal(ctx_stats(ctx).regions_opened, 1);
	expect(got, "sent");
	assert_int_equal(tmesh_region_bytes(got), 12345);
	assert_int_equal(tmesh_region_id(got), tmesh_region_id(region));
	assert_refused(tmesh_region_map(got, RW, &addr, err), -EACCES, "write");
	assert_refused(tmesh_region_send(got, pair[0], RW, err), -EACCES, "write");
	assert_refused(tmesh_region_send(got, pair[0], 0, err), -EINVAL, "READ");
	tmesh_region_unref(got);
	assert_ok(tmesh_region_recv(ctx, pair[1], &got, err));
	assert_int_equal(got->rights, TMESH_RIGHTS_ALL);
	tmesh_region_unref(got);
	assert_refused(tmesh_region_recv(ctx, pair[1], &got, err), -ETIMEDOUT, "timed out");
	close(pair[1]);
	assert_refused(tmesh_region_send(region, pair[0], TMESH_READ, err), -EPIPE, "other end");
	assert_refused(tmesh_region_recv(ctx, pair[0], &got, err), -EPIPE, "other end");
	close(pair[0]);
	assert_refused(tmesh_region_send(region, pair[0], TMESH_READ, err), -EBADF, "socket");
	assert_refused(tmesh_region_recv(ctx, pair[0], &got, err), -EBADF, "");
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

UNIT(test_stream)
{
	socket_of_type(SOCK_STREAM);
}

UNIT(test_seqpacket)
{
	socket_of_type(SOCK_SEQPACKET);
}

/* Programs have sockets that say with each message who sent it, and when: regions come all the
 * same. */
UNIT(test_telling_socket)
{
	static const int options[] = {SO_PASSCRED, SO_TIMESTAMP, SO_PASSSEC, 76 /* SO_PASSPIDFD */};
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_region *region = new_region(ctx, 12345), *got;
	unsigned int before;
	const int on = 1;
	int pair[2];

	for (int type = SOCK_STREAM; type <= SOCK_SEQPACKET; type += SOCK_SEQPACKET - SOCK_STREAM) {
		assert_int_equal(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair), 0);
		assert_ok(tmesh_region_send(region, pair[0], TMESH_READ, err));
		assert_ok(tmesh_region_recv(ctx, pair[1], &got, err));
		tmesh_region_unref(got);
		before = unit_open_fds();
		for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
			/* Before Linux 6.5 there is no pidfd to be had. */
			setsockopt(pair[1], SOL_SOCKET, options[i], &on, sizeof(on));
			assert_ok(tmesh_region_send(region, pair[0], TMESH_READ, err));
			assert_ok(tmesh_region_recv(ctx, pair[1], &got, err));
			assert_int_equal(tmesh_region_id(got), tmesh_region_id(region));
			tmesh_region_unref(got);
			assert_int_equal(unit_open_fds(), before);
		}
		close(pair[0]);
		close(pair[1]);
	}
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* A socket that is not emptied: an error after the timeout, no hang. */
static void *empty_later(void *data)
{
	char room[256];

	usleep(20000);
	while (recv(*(int *)data, room, sizeof(room), 0) > 0)
		;
	return NULL;
}

UNIT(test_full_socket)
{
	struct tmesh_ctx *ctx = context(NULL, 100), *patient = context(NULL, 0);
	struct tmesh_region *region;
	pthread_t thread;
	int pair[2], pipes[2], rc = 0;
	char path[] = "/dev/null";
	int null = open(path, O_RDWR | O_CLOEXEC),
	    inet = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	assert_ok(tmesh_region_create(ctx, 10, NULL, &region, err));
	for (int i = 0; i < 2000 && rc == 0; i++)
		rc = tmesh_region_send(region, pair[0], TMESH_RIGHTS_ALL, NULL);
	assert_int_equal(rc, -ETIMEDOUT);
	assert_refused(tmesh_region_send(region, null, TMESH_READ, err), -ENOTSOCK, "socket");
	assert_refused(tmesh_region_recv(ctx, null, &region, err), -ENOTSOCK, "socket");
	assert_refused(tmesh_region_send(region, inet, TMESH_READ, err), -EINVAL, "Unix");
	assert_refused(tmesh_region_recv(ctx, inet, &region, err), -EINVAL, "Unix");
	/* Nor are these waited for as a peer that sends nothing. */
	assert_refused(tmesh_region_recv(ctx, -1, &region, err), -EBADF, "not an open socket");
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	assert_refused(tmesh_region_recv(ctx, pipes[0], &region, err), -ENOTSOCK, "socket");
	close(pipes[0]);
	close(pipes[1]);
	tmesh_region_unref(region);
	/* A process that comes in time is waited for. */
	assert_ok(tmesh_region_create(patient, 10, NULL, &region, err));
	assert_int_equal(pthread_create(&thread, NULL, empty_later, &pair[1]), 0);
	assert_ok(tmesh_region_send(region, pair[0], TMESH_READ, err));
	close(pair[0]);
	pthread_join(thread, NULL);
	tmesh_region_unref(region);
	close(pair[1]);
	close(null);
	close(inet);
	tmesh_ctx_unref(patient);
	tmesh_ctx_unref(ctx);
}

/* The producer's answer to a request with a token's secret for these rights. */
static int32_t answered(struct tmesh_ctx *ctx, const char *token, uint32_t rights)
{
	struct tmesh_wire_request request = {
		.magic = TMESH_MAGIC_REQUEST,
		.version = TMESH_WIRE_VERSION,
		.rights = rights,
	};
	uint64_t deadline = tmesh_now_ns() + UINT64_C(600) * 1000000000;
	int conn, got, fds[TMESH_WIRE_FDS];
	struct tmesh_token_fields parts;
	struct tmesh_wire_reply reply;

	assert_ok(tmesh_token_parse(token, &parts, err));
	memcpy(request.secret, parts.secret, sizeof(request.secret));
	assert_ok(tmesh_peer_connect(ctx, parts.name, deadline, &conn, err));
	assert_int_equal(tmesh_wire_send(conn, &request, sizeof(request), NULL, 0, 0), 0);
	got = tmesh_wire_recv(conn, &reply, sizeof(reply), fds, TMESH_WIRE_FDS, deadline);
	assert_int_equal(got > 0, reply.status == 0);
	while (got > 0)
		close(fds[--got]);
	close(conn);
	return reply.status;
}

/* A token gives no more than its rights, however it is asked. */
static void test_asked_for_more(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_region *region = new_region(ctx, 10);
	char token[TMESH_TOKEN_SIZE];

	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_int_equal(answered(ctx, token, TMESH_READ), 0);
	assert_int_equal(answered(ctx, token, TMESH_READ | TMESH_WRITE), -EACCES);
	assert_int_equal(answered(ctx, token, TMESH_RIGHTS_ALL), -EACCES);
	assert_int_equal(answered(ctx, token, 0x80), -EINVAL);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

static int open_as_nobody(const char *token)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		struct tmesh_ctx *ctx = context(NULL, 300);
		struct tmesh_region *region;

		/* Later, for /dev/tmesh may be for few. */
		if (setgid(65534) || setuid(65534))
			_exit(100);
		_exit(-tmesh_region_open(ctx, token, TMESH_READ, &region, NULL));
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return -WEXITSTATUS(status);
}

/* The same without a libtmesh that would look at the other end first: 0 when answered. */
static int ask_as_nobody(const char *path, const char *token)
{
	struct tmesh_wire_request request = {
		.magic = TMESH_MAGIC_REQUEST,
		.version = TMESH_WIRE_VERSION,
		.rights = TMESH_READ,
	};
	pid_t child = fork();
	int status;

	if (child == 0) {
		struct sockaddr_un address = {.sun_family = AF_UNIX};
		struct tmesh_token_fields parts;
		int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

		snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
		if (setgid(65534) || setuid(65534) || tmesh_token_parse(token, &parts, NULL) ||
		    connect(fd, (struct sockaddr *)&address, sizeof(address)))
			_exit(2);
		memcpy(request.secret, parts.secret, sizeof(request.secret));
		send(fd, &request, sizeof(request), MSG_NOSIGNAL);
		_exit(recv(fd, &request, sizeof(request), 0) > 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return WEXITSTATUS(status);
}

/* Another user gets nothing, whatever he knows. */
static void test_other_user(void **state)
{
	struct producer p = producer_start();

	assert_int_equal(open_as_nobody(p.token), -ENOENT);
	producer_end(&p, 0);
}

/* Not even when the directory and then the socket are opened to him. */
static void test_other_user_asks(void **state)
{
	const char *dir = unit_runtime_dir();
	struct producer p = producer_start();
	char path[108];

	chmod(dir, 0777);
	assert_int_equal(open_as_nobody(p.token), -ENOENT);
	snprintf(path, sizeof(path), "%s/%.32s", dir, p.token + 5);
	assert_int_equal(chmod(path, 0777), 0);
	assert_int_equal(open_as_nobody(p.token), -ENOENT);
	assert_int_equal(ask_as_nobody(path, p.token), 1);
	chmod(dir, 0700);
	producer_end(&p, 0);
}

int main(void)
{
	const struct CMUnitTest rendezvous[] = {
		TEST(test_stopped),	   TEST(test_wrong_link),    TEST(test_many),
		TEST(test_many_producers), TEST(test_asked_at_once), TEST(test_asked_for_more),
	};
	const struct CMUnitTest dead[] = {
		TEST(test_dead_producers),
		TEST(test_dead_producers_unwatched),
	};
	const struct CMUnitTest others[] = {TEST(test_other_user)};
	const struct CMUnitTest others_ask[] = {TEST(test_other_user_asks)};
	int failed = UNIT_RUN("share", NULL, NULL);

	if (geteuid())
		failed += UNIT_SKIP(others, "only root can become another user");
	else
		failed += cmocka_run_group_tests_name("others", others, NULL, NULL);
	failed += cmocka_run_group_tests_name("rendezvous", rendezvous, unit_memfd_setup, NULL);
	if (RUNNING_ON_VALGRIND)
		failed += UNIT_SKIP(dead, "valgrind has no pidfd_open()");
	else
		failed += cmocka_run_group_tests_name("dead", dead, unit_memfd_setup, NULL);
	if (geteuid())
		return failed + UNIT_SKIP(others_ask, "only root can become another user");
	return failed +
	       cmocka_run_group_tests_name("others ask", others_ask, unit_memfd_setup, NULL);
}
