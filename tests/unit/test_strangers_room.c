// SPDX-License-Identifier: MIT
/* Descriptors that there is no room for, at either end of a socket: none of them is lost, and none
 * stays. */
#include <valgrind/valgrind.h>

#include "memfd.h"
#include "strangers.h"

/* No room for more than @more descriptors any more, where the free ones are the highest; give
 * the result to release_fds(). */
static struct rlimit exhaust_fds(int more)
{
	struct rlimit old, full;
	int lowest = dup(0);

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	full = old;
	full.rlim_cur = (rlim_t)(lowest + more);
	close(lowest);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &full), 0);
	return old;
}

static void release_fds(struct rlimit old)
{
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
}

/* The kernel drops what has no room in the message, and what has none in the process. */
UNIT(test_recv_without_room)
{
	static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	struct tmesh_region *region = NULL;
	int fd = memfd(16384, F_SEAL_SHRINK | F_SEAL_GROW), on = 1;

	for (int i = 0; i < 2; i++) {
		struct rlimit limit;
		unsigned int before;
		int pair[2];

		assert_int_equal(socketpair(AF_UNIX, types[i] | SOCK_CLOEXEC, 0, pair), 0);
		before = unit_open_fds();
		send_fds(pair[0], &good, sizeof(good), fd, 1);
		limit = exhaust_fds(0);
		assert_refused(tmesh_region_recv(ctx, pair[1], &region, err), -EMFILE,
			       "RLIMIT_NOFILE");
		release_fds(limit);
		assert_int_equal(unit_open_fds(), before);
		send_fds(pair[0], &good, sizeof(good), fd, 1);
		assert_ok(tmesh_region_recv(ctx, pair[1], &region, err));
		tmesh_region_unref(region);
		/* A socket with the option to add its sender's credentials leaves room for both. */
		assert_int_equal(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
		send_fds(pair[0], &good, sizeof(good), fd, 1);
		assert_ok(tmesh_region_recv(ctx, pair[1], &region, err));
		tmesh_region_unref(region);
		assert_int_equal(unit_open_fds(), before);
		close(pair[0]);
		close(pair[1]);
	}
	close(fd);
	tmesh_ctx_unref(ctx);
}

/* Another process, which offers a token of a region as long as its end of the socket is open. */
static pid_t producer(int *socket, char *token)
{
	int pair[2];
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
		struct tmesh_region *region;

		close(pair[0]);
		if (tmesh_region_create(ctx, 10, NULL, &region, NULL) ||
		    tmesh_region_token(region, TMESH_READ, token, NULL) ||
		    send(pair[1], token, TMESH_TOKEN_SIZE, 0) != TMESH_TOKEN_SIZE)
			_exit(1);
		recv(pair[1], token, 1, 0);
		tmesh_region_unref(region);
		tmesh_ctx_unref(ctx);
		_exit(0);
	}
	close(pair[1]);
	*socket = pair[0];
	assert_int_equal(recv(*socket, token, TMESH_TOKEN_SIZE, 0), TMESH_TOKEN_SIZE);
	return child;
}

/* The same for the answer to a token: there is room for the connection and for nothing more. */
UNIT(test_open_without_room)
{
	struct tmesh_ctx *client = context(NULL, PATIENT_MS);
	char token[TMESH_TOKEN_SIZE], path[512];
	struct tmesh_region *got;
	struct rlimit limit;
	int socket;
	pid_t child = producer(&socket, token);

	/* By socket, that is. */
	snprintf(path, sizeof(path), "%s/%.32s.index", unit_runtime_dir(), token + 5);
	assert_int_equal(unlink(path), 0);
	limit = exhaust_fds(1);
	assert_refused(tmesh_region_open(client, token, TMESH_READ, &got, err), -EMFILE,
		       "RLIMIT_NOFILE");
	release_fds(limit);
	assert_ok(tmesh_region_open(client, token, TMESH_READ, &got, err));
	tmesh_region_unref(got);
	tmesh_ctx_unref(client);
	close(socket);
	join_child(child);
}

/* A server that has no descriptor left for one more client lets go of the one unused for longest. A
 * server that has too few for all of a region's keeps none of them. */
UNIT(test_serve_without_room)
{
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	struct tmesh_wire_request request = {
		.magic = TMESH_MAGIC_REQUEST,
		.version = TMESH_WIRE_VERSION,
		.rights = TMESH_READ | TMESH_WRITE,
	};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = PATIENT_MS / 1000};
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), first, second, before;
	struct tmesh_token_fields parts;
	struct tmesh_wire_reply reply;
	struct tmesh_region *region, *other;
	char token[TMESH_TOKEN_SIZE];
	struct rlimit limit;

	assert_ok(tmesh_region_from_fd(ctx, null, 4096, NULL, &region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ | TMESH_WRITE, token, err));
	assert_ok(tmesh_token_parse(token, &parts, err));
	first = dial(token);
	second = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	setsockopt(second, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	/* The secret is none, and the answer without descriptors. */
	send_fds(first, &request, sizeof(request), -1, 0);
	assert_int_equal(recv(first, &reply, sizeof(reply), 0), sizeof(reply));
	assert_int_equal(reply.status, -ENOENT);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%.32s", unit_runtime_dir(),
		 token + 5);
	limit = exhaust_fds(0);
	assert_int_equal(connect(second, (struct sockaddr *)&address, sizeof(address)), 0);
	send_fds(second, &request, sizeof(request), -1, 0);
	assert_int_equal(recv(second, &reply, sizeof(reply), 0), sizeof(reply));
	assert_int_equal(reply.status, -ENOENT);
	assert_int_equal(recv(first, &reply, sizeof(reply), 0), 0);
	release_fds(limit);
	memcpy(request.secret, parts.secret, sizeof(request.secret));
	/* Everything that a context opens for good is there. */
	assert_ok(tmesh_region_derive(region, request.rights, &other, err));
	tmesh_region_unref(other);
	before = (int)unit_open_fds();
	for (int more = 0; more < 3; more++) {
		limit = exhaust_fds(more);
		send_fds(second, &request, sizeof(request), -1, 0);
		assert_int_equal(recv(second, &reply, sizeof(reply), 0), sizeof(reply));
		release_fds(limit);
		assert_int_equal(reply.status, -EMFILE);
		assert_int_equal(unit_open_fds(), before);
	}
	close(first);
	close(second);
	close(null);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* As a user whose descriptors under way are limited: until it is refused. Return: the code. */
static int send_many(void)
{
	struct tmesh_ctx *ctx = context(NULL, HASTY_MS);
	struct rlimit few = {64, 64};
	struct tmesh_region *region;
	int pair[2], rc = 0;

	if ((!geteuid() && (setgid(65534) || setuid(65534))) || setrlimit(RLIMIT_NOFILE, &few))
		return 0;
	assert_ok(tmesh_region_create(ctx, 1, NULL, &region, err));
	/* No socket comes near to being full. */
	for (int i = 0; i < 20 && !rc; i++) {
		rc = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair);
		for (int n = 0; n < 4 && !rc; n++)
			rc = tmesh_region_send(region, pair[0], TMESH_RIGHTS_ALL, NULL);
	}
	return rc;
}

/* The receiver takes nothing, and the socket itself could take more: an error after the timeout. */
UNIT(test_send_under_way)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		alarm(PATIENT_MS / 1000);
		_exit(-send_many());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, ETIMEDOUT << 8);
}

/* A region whose descriptor cannot be lowered for want of another one is not told to strangers as
 * one that can only be read. */
UNIT(test_lower_without_room)
{
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	struct tmesh_region *first = new_region(ctx, 10), *region;
	char token[TMESH_TOKEN_SIZE];
	struct rlimit limit;

	assert_ok(tmesh_region_create(ctx, 10, NULL, &region, err));
	assert_ok(tmesh_region_token(first, TMESH_READ, token, err));
	assert_true(tmesh_memfd_reads_only(first));
	limit = exhaust_fds(0);
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	release_fds(limit);
	assert_int_equal(fcntl(region->fd, F_GETFL) & O_ACCMODE, O_RDWR);
	assert_false(tmesh_memfd_reads_only(region));
	tmesh_region_unref(first);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

int main(void)
{
	/* Writing to who has hung up is part of it. */
	signal(SIGPIPE, SIG_IGN);
	mkdir(unit_runtime_dir(), 0700);
	if (RUNNING_ON_VALGRIND)
		return UNIT_SKIP_ALL("valgrind keeps descriptor limits from the kernel");
	return UNIT_RUN("strangers_room", NULL, NULL);
}
