// SPDX-License-Identifier: MIT
/*
 * A producer goes on beside each kind of hostile peer of its own user. It counts its hand-overs to
 * a client that behaves, so the test asserts no time.
 */
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "memfd.h"
#include "producer.h"

#define ROUNDS 200
#define PATIENT_MS 600000
#define CONNECTIONS 128
#define SOCKET_NAME 32 /* hex digits of a token, which name its producer's socket */

/* Each gets tokens of the producer, one after the other, and the name of its socket. */
typedef void act_fn(struct tmesh_ctx *ctx, const char *token, const char *path);

/* Take leases on memory that may only be read. */
static void lease(struct tmesh_ctx *ctx, const char *token, const char *path)
{
	struct tmesh_region *region;
	char fd_path[32];
	int fd;

	if (tmesh_region_open(ctx, token, TMESH_READ, &region, NULL))
		return;
	snprintf(fd_path, sizeof(fd_path), "/proc/self/fd/%d", tmesh_region_fd(region));
	fd = open(fd_path, O_RDONLY | O_CLOEXEC);
	for (int i = 0; i < 10; i++)
		if (fcntl(fd, F_SETLEASE, F_RDLCK))
			fcntl(fd, F_SETLEASE, F_WRLCK);
	close(fd);
	tmesh_region_unref(region);
}

static int connected(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	strcpy(address.sun_path, path);
	/* The server's queue may be full. Any other refusal would make the test empty. */
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) && errno != EAGAIN)
		_exit(1);
	return fd;
}

/* Connect again and again, and say nothing. */
static void be_silent(struct tmesh_ctx *ctx, const char *token, const char *path)
{
	static int fds[CONNECTIONS];
	static int next;

	if (fds[next])
		close(fds[next]);
	fds[next] = connected(path);
	next = (next + 1) % CONNECTIONS;
}

/* Send what is no request, with descriptors, and never read the answers. */
static void send_junk(struct tmesh_ctx *ctx, const char *token, const char *path)
{
	static char junk[4096];
	int fd = connected(path), pair[2];

	for (size_t bytes = 1; bytes <= sizeof(junk); bytes *= 4) {
		memset(junk, (int)bytes, bytes);
		if (send(fd, junk, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
			break;
	}
	if (!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
		tmesh_wire_send(fd, "x", 1, pair, 2, 0);
		close(pair[0]);
		close(pair[1]);
	}
	close(fd);
}

/* Open everything, keep it, and stand still. */
static void stop(struct tmesh_ctx *ctx, const char *token, const char *path)
{
	struct tmesh_region *region;

	if (!tmesh_region_open(ctx, token, TMESH_READ, &region, NULL))
		raise(SIGSTOP);
}

static const struct {
	const char *name;
	act_fn *act;
} kinds[] = {{"leases", lease}, {"silence", be_silent}, {"junk", send_junk}, {"a stop", stop}};

struct peer {
	pid_t pid;
	int tokens;
};

static _Noreturn void act_on(int tokens, act_fn *act)
{
	struct tmesh_ctx *ctx;
	char token[TMESH_TOKEN_SIZE], path[108];

	signal(SIGIO, SIG_IGN);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (tmesh_ctx_open(NULL, &ctx, NULL))
		_exit(1);
	while (read(tokens, token, sizeof(token)) == sizeof(token)) {
		snprintf(path, sizeof(path), "%.60s/%.*s", unit_runtime_dir(), SOCKET_NAME,
			 token + 5);
		act(ctx, token, path);
	}
	_exit(0);
}

static struct peer peer_start(act_fn *act)
{
	struct peer peer;
	int ends[2];

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	peer.pid = fork();
	if (!peer.pid) {
		close(ends[1]);
		act_on(ends[0], act);
	}
	close(ends[0]);
	/* One that stands still reads no tokens. */
	fcntl(ends[1], F_SETFL, O_NONBLOCK);
	peer.tokens = ends[1];
	return peer;
}

static void peer_end(const struct peer *peer)
{
	/* It is still there: it has not ended by itself. */
	assert_int_equal(waitpid(peer->pid, NULL, WNOHANG), 0);
	close(peer->tokens);
	kill(peer->pid, SIGKILL);
	waitpid(peer->pid, NULL, 0);
}

/* Make a region, hand it over with a question to this process's server, and compare the bytes. */
static void hand_over(struct tmesh_ctx *maker, struct tmesh_ctx *client, int round,
		      const struct peer *peer)
{
	char token[TMESH_TOKEN_SIZE], link[256];
	struct tmesh_region *region, *got;
	int text = 0;

	assert_ok(tmesh_region_create(maker, 1 << 16, NULL, &region, err));
	assert_ok(tmesh_region_write(region, 0, &round, sizeof(round), err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	if (write(peer->tokens, token, sizeof(token)) < 0)
		assert_int_equal(errno, EAGAIN);
	snprintf(link, sizeof(link), "%s/%.*s.index", unit_runtime_dir(), SOCKET_NAME, token + 5);
	if (round % 2)
		unlink(link);
	assert_ok(tmesh_region_open(client, token, TMESH_READ, &got, err));
	assert_ok(tmesh_region_read(got, 0, &text, sizeof(text), err));
	assert_int_equal(text, round);
	assert_ok(tmesh_region_write(region, 4, &round, sizeof(round), err));
	assert_ok(tmesh_region_seal(region, err));
	tmesh_region_unref(got);
	tmesh_region_unref(region);
}

static void test_goes_on(void **state)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		struct tmesh_ctx *maker = context(NULL, 0), *client;
		struct tmesh_stats stats = {.size = sizeof(stats)};
		struct peer peer = peer_start(kinds[i].act);
		int done = 0;

		for (; done < ROUNDS; done++) {
			client = context(NULL, PATIENT_MS);
			hand_over(maker, client, done, &peer);
			tmesh_ctx_unref(client);
		}
		printf("# %d hand-overs beside a peer with %s\n", done, kinds[i].name);
		assert_int_equal(tmesh_stats(maker, &stats), 0);
		assert_true(stats.tokens_served >= ROUNDS / 2);
		peer_end(&peer);
		tmesh_ctx_unref(maker);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_goes_on)};

	return cmocka_run_group_tests_name("beside hostile peers", tests, unit_memfd_setup, NULL);
}
