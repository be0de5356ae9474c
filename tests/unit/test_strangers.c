// SPDX-License-Identifier: MIT
/* Peers that are no libtmesh, on either end of a socket: garbage, too many descriptors,
 * half a message, silence. Nothing is taken over and no descriptor stays. */
#include "strangers.h"
#include "watch.h"

static void receive(struct tmesh_ctx *ctx, int type, const void *data, size_t bytes, int fd,
		    int count, int code)
{
	struct tmesh_region *region = (void *)ctx;
	struct tmesh_error err = {0};
	unsigned int before;
	int pair[2], rc;

	assert_int_equal(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair), 0);
	before = unit_open_fds();
	send_fds(pair[0], data, bytes, fd, count);
	rc = tmesh_region_recv(ctx, pair[1], &region, &err);
	assert_int_equal(rc, code);
	if (rc == 0) {
		tmesh_region_unref(region);
	} else {
		assert_int_equal(err.code, code);
		assert_true(strlen(err.message) > 10);
		assert_ptr_equal(region, ctx);
	}
	assert_int_equal(unit_open_fds(), before);
	close(pair[0]);
	close(pair[1]);
}

static void test_recv(void **state)
{
	static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
	struct tmesh_ctx *ctx = context(NULL, HASTY_MS);
	struct tmesh_wire_region wire;
	char garbage[200], longer[sizeof(wire) + 1] = {0};
	int fd = memfd(16384, F_SEAL_SHRINK | F_SEAL_GROW), soft = memfd(16384, 0);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	memset(garbage, 0xa5, sizeof(garbage));
	memcpy(longer, &good, sizeof(good));
	for (int i = 0; i < 2; i++) {
		int type = types[i];

		receive(ctx, type, &good, sizeof(good), fd, 1, 0);
		receive(ctx, type, garbage, sizeof(wire), fd, 1, -EPROTO);
		receive(ctx, type, garbage, sizeof(garbage), fd, 1, -EPROTO);
		receive(ctx, type, &good, sizeof(good), fd, 0, -EPROTO);
		receive(ctx, type, &good, sizeof(good), fd, 2, -EPROTO);
		receive(ctx, type, &good, sizeof(good), fd, 253, -EPROTO);
		receive(ctx, type, &good, sizeof(good), null, 1, -EPROTO);
		receive(ctx, type, &good, sizeof(good), soft, 1, -EPROTO);
		/* Half a message, then silence: a stream may go on, a packet is over. */
		receive(ctx, type, &good, sizeof(good) / 2, fd, 1,
			type == SOCK_STREAM ? -ETIMEDOUT : -EPROTO);
#define WRONG(member, value, code)                                    \
	do {                                                          \
		wire = good;                                          \
		wire.member = value;                                  \
		receive(ctx, type, &wire, sizeof(wire), fd, 1, code); \
	} while (0)
		WRONG(version, 99, -EPROTO);
		WRONG(magic, TMESH_MAGIC_REQUEST, -EPROTO);
		WRONG(pad, 1, -EPROTO);
		WRONG(backend, TMESH_BACKEND_KERNEL, -EOPNOTSUPP);
		WRONG(rights, 0, -EPROTO);
		WRONG(rights, 1 | 8, -EPROTO);
		WRONG(kind, 1u << 30, -EPROTO);
		WRONG(kind, TMESH_KIND_HUGETLB, -EPROTO);
		WRONG(kind, TMESH_KIND_FOREIGN, 0);
		WRONG(kind, TMESH_KIND_FOREIGN | TMESH_KIND_HUGETLB, -EPROTO);
		WRONG(bytes, 0, -EPROTO);
		WRONG(bytes, 16384 - 8192 + 1, -EPROTO);
		WRONG(bytes, UINT64_MAX, -EPROTO);
	}
	receive(ctx, SOCK_SEQPACKET, longer, sizeof(longer), fd, 1, -EPROTO);
	close(fd);
	close(soft);
	close(null);
	tmesh_ctx_unref(ctx);
}

/* Descriptors that go with regions of memfds do not matter to a context of the module's, and do not
 * stay. */
static void test_recv_too_much(void **state)
{
	struct tmesh_wire_region wire = {
		.magic = TMESH_MAGIC_REGION,
		.version = TMESH_WIRE_VERSION,
		.backend = TMESH_BACKEND_KERNEL,
		.rights = TMESH_READ | TMESH_WRITE,
		.kind = TMESH_KIND_OPAQUE,
	};
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	ctx->ops = &tmesh_kernel_ops;
	receive(ctx, SOCK_SEQPACKET, &wire, sizeof(wire), null, 3, -EPROTO);
	ctx->ops = &tmesh_memfd_ops;
	close(null);
	tmesh_ctx_unref(ctx);
}

/* In the middle of a message the peer is gone. */
static void test_recv_hangup(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	struct tmesh_region *region;
	int fd = memfd(16384, F_SEAL_SHRINK | F_SEAL_GROW), pair[2];
	unsigned int before;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	send_fds(pair[0], &good, 10, fd, 1);
	close(pair[0]);
	before = unit_open_fds();
	assert_refused(tmesh_region_recv(ctx, pair[1], &region, err), -EPROTO, "something else");
	assert_int_equal(unit_open_fds(), before);
	close(pair[1]);
	close(fd);
	tmesh_ctx_unref(ctx);
}

/* A message in ten pieces is a message all the same. */
static void test_recv_pieces(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	struct tmesh_region *region;
	int fd = memfd(16384, F_SEAL_SHRINK | F_SEAL_GROW), pair[2];
	const char *bytes = (const char *)&good;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	send_fds(pair[0], bytes, 4, fd, 1);
	for (size_t i = 4; i < sizeof(good); i += 4)
		send_fds(pair[0], bytes + i, 4, fd, 0);
	assert_ok(tmesh_region_recv(ctx, pair[1], &region, err));
	tmesh_region_unref(region);
	close(pair[0]);
	close(pair[1]);
	close(fd);
	tmesh_ctx_unref(ctx);
}

/* In pieces, of which the first brings more descriptors than any message has: the later whole is no
 * message. */
static void test_recv_bad_piece(void **state)
{
	struct tmesh_wire_bundle head = {
		.magic = TMESH_MAGIC_BUNDLE,
		.version = TMESH_WIRE_VERSION,
		.backend = TMESH_BACKEND_MEMFD,
	};
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), pair[2];
	struct tmesh_bundle *bundle;
	unsigned int before;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	before = unit_open_fds();
	send_fds(pair[0], &head, 4, null, 253);
	send_fds(pair[0], (const char *)&head + 4, sizeof(head) - 4, -1, 0);
	assert_refused(tmesh_bundle_recv(ctx, pair[1], &bundle, err), -EPROTO, "was expected");
	assert_int_equal(unit_open_fds(), before);
	close(pair[0]);
	close(pair[1]);
	close(null);
	tmesh_ctx_unref(ctx);
}

/* A file that is shorter than what stands behind a region's memory. */
static void test_recv_short_file(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	int fd = memfd(1000, F_SEAL_SHRINK | F_SEAL_GROW), pair[2];
	struct tmesh_region *region;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	send_fds(pair[0], &good, sizeof(good), fd, 1);
	assert_refused(tmesh_region_recv(ctx, pair[1], &region, err), -EPROTO, "file has 1000");
	close(pair[0]);
	close(pair[1]);
	close(fd);
	tmesh_ctx_unref(ctx);
}

/* Sockets without another end, whatever the kernel calls that. */
static void test_send_to_nobody(void **state)
{
	static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	struct tmesh_region *region = new_region(ctx, 10);
	struct tmesh_bundle *bundle;
	int pair[2], alone;

	for (int i = 0; i < 2; i++) {
		alone = socket(AF_UNIX, types[i] | SOCK_CLOEXEC, 0);
		assert_refused(tmesh_region_send(region, alone, TMESH_READ, err), -EPIPE,
			       "the other end of the socket is closed");
		close(alone);
		/* It left without reading what it had been sent. */
		assert_int_equal(socketpair(AF_UNIX, types[i] | SOCK_CLOEXEC, 0, pair), 0);
		assert_int_equal(write(pair[0], "x", 1), 1);
		close(pair[1]);
		assert_refused(tmesh_region_send(region, pair[0], TMESH_READ, err), -EPIPE,
			       "the other end of the socket is closed");
		close(pair[0]);
	}
	/* Nor does anything of a bundle go where its descriptors could not. */
	alone = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (alone >= 0) {
		assert_ok(tmesh_bundle_create(ctx, NULL, 0, NULL, &bundle, err));
		assert_refused(tmesh_bundle_send(bundle, alone, TMESH_READ, err), -EINVAL,
			       "only Unix sockets");
		tmesh_bundle_unref(bundle);
		close(alone);
	}
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* Clients that are none, against a real server. */

/* The server ends such a connection: we read the end, not an answer. */
static void hangs_up(const char *token, const void *data, size_t bytes, int fd, int count)
{
	int conn = dial(token);
	char answer[256];

	send_fds(conn, data, bytes, fd, count);
	errno = 0;
	assert_true(recv(conn, answer, sizeof(answer), 0) <= 0);
	assert_true(errno != EAGAIN);
	close(conn);
}

static int refusal(const char *token, const struct tmesh_wire_request *request)
{
	struct tmesh_wire_reply reply;
	int conn = dial(token);

	send_fds(conn, request, sizeof(*request), -1, 0);
	assert_int_equal(recv(conn, &reply, sizeof(reply), 0), sizeof(reply));
	assert_int_equal(reply.magic, TMESH_MAGIC_REPLY);
	close(conn);
	return reply.status;
}

static void test_bad_clients(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS), *client = context(NULL, PATIENT_MS);
	struct tmesh_wire_request request = {
		.magic = TMESH_MAGIC_REQUEST,
		.version = TMESH_WIRE_VERSION,
		.rights = TMESH_READ,
	};
	struct tmesh_token_fields parts;
	struct tmesh_region *region, *got;
	char token[TMESH_TOKEN_SIZE];
	int silent[100], last, null = open("/dev/null", O_RDWR | O_CLOEXEC);
	char garbage[sizeof(request) * 2];
	unsigned int before;

	memset(garbage, 0x5a, sizeof(garbage));
	assert_ok(tmesh_region_create(ctx, 10, NULL, &region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_ok(tmesh_token_parse(token, &parts, err));
	memcpy(request.secret, parts.secret, sizeof(request.secret));
	before = unit_open_fds();
	hangs_up(token, garbage, sizeof(request), -1, 0);
	hangs_up(token, garbage, sizeof(garbage), -1, 0);
	hangs_up(token, garbage, 1, -1, 0);
	hangs_up(token, &request, sizeof(request) - 1, -1, 0);
	hangs_up(token, &request, sizeof(request), null, 1);
	hangs_up(token, &request, sizeof(request), null, 253);
	assert_int_equal(unit_open_fds(), before);
	assert_int_equal(refusal(token, &request), 0);
	request.version = 2;
	assert_int_equal(refusal(token, &request), -EPROTO);
	request.magic = TMESH_MAGIC_JOIN;
	assert_int_equal(refusal(token, &request), -EPROTO);
	request.version = TMESH_WIRE_VERSION;
	request.magic = TMESH_MAGIC_REPLY;
	hangs_up(token, &request, sizeof(request), -1, 0);
	request.magic = TMESH_MAGIC_REQUEST;
	request.pad = 1;
	hangs_up(token, &request, sizeof(request), -1, 0);
	request.pad = 0;
	request.rights = 64;
	assert_int_equal(refusal(token, &request), -EINVAL);
	request.rights = TMESH_READ | TMESH_WRITE;
	assert_int_equal(refusal(token, &request), -EACCES);
	request.rights = TMESH_READ;
	request.secret[0] ^= 1;
	assert_int_equal(refusal(token, &request), -ENOENT);

	/* More silent ones than there are places do not keep an honest one waiting. */
	for (int i = 0; i < 100; i++)
		silent[i] = dial(token);
	assert_ok(tmesh_region_open(client, token, TMESH_READ, &got, err));
	tmesh_region_unref(got);
	for (int i = 0; i < 100; i++)
		close(silent[i]);
	close(null);
	/* One that stays hears of the end. */
	last = dial(token);
	send_fds(last, &request, sizeof(request), -1, 0);
	assert_int_equal(recv(last, garbage, sizeof(garbage), 0), sizeof(struct tmesh_wire_reply));
	tmesh_region_unref(region);
	tmesh_ctx_unref(client);
	tmesh_ctx_unref(ctx);
	assert_int_equal(recv(last, garbage, sizeof(garbage), 0), 0);
	close(last);
}

/* Servers that are none, against a real client. */

struct fake {
	int listener;
	pthread_t thread;
	const void *reply;
	size_t bytes;
	int fd;
	int fds;
	int held[8];
};

static void *fake_run(void *data)
{
	struct fake *fake = data;
	int conn = accept(fake->listener, NULL, NULL);
	char request[256];

	if (recv(conn, request, sizeof(request), 0) > 0 && fake->bytes)
		send_fds(conn, fake->reply, fake->bytes, fake->fd, fake->fds);
	/* Until the client lets go. */
	while (recv(conn, request, sizeof(request), 0) > 0)
		;
	close(conn);
	return NULL;
}

static void against(struct tmesh_ctx *ctx, const void *reply, size_t bytes, int fd, int fds,
		    int code)
{
	static const char name[] = "00112233445566778899aabbccddeeff";
	struct fake fake = {.reply = reply, .bytes = bytes, .fd = fd, .fds = fds};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct tmesh_region *region = (void *)ctx;
	char token[TMESH_TOKEN_SIZE];
	unsigned int before;

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", unit_runtime_dir(), name);
	snprintf(token, sizeof(token), "tm1m-%s-%s", name, name);
	fake.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	unlink(address.sun_path);
	assert_int_equal(bind(fake.listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fake.listener, 4), 0);
	pthread_create(&fake.thread, NULL, fake_run, &fake);
	before = unit_open_fds();
	assert_int_equal(tmesh_region_open(ctx, token, TMESH_READ, &region, NULL), code);
	assert_ptr_equal(region, ctx);
	tmesh_watch_stop(ctx);
	tmesh_peers_drop(ctx); /* a kept connection would keep the other end waiting */
	pthread_join(fake.thread, NULL);
	assert_int_equal(unit_open_fds(), before);
	close(fake.listener);
	unlink(address.sun_path);
}

static void test_bad_servers(void **state)
{
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS), *hasty = context(NULL, HASTY_MS);
	struct tmesh_wire_reply reply =
					{
						.magic = TMESH_MAGIC_REPLY,
						.version = TMESH_WIRE_VERSION,
						.region = good,
					},
				wrong;
	int soft = memfd(16384, 0), hard = memfd(16384, F_SEAL_SHRINK | F_SEAL_GROW);

	against(ctx, "hello", 5, -1, 0, -EPROTO);
	against(hasty, &reply, 0, -1, 0, -ETIMEDOUT);
	tmesh_ctx_unref(hasty);
	against(ctx, &reply, sizeof(reply) - 8, soft, 1, -EPROTO);
	against(ctx, &reply, sizeof(reply), -1, 0, -EPROTO);
	against(ctx, &reply, sizeof(reply), soft, 2, -EPROTO);
	against(ctx, &reply, sizeof(reply), soft, 253, -EPROTO);
	/* A file that can shrink is never mapped. */
	against(ctx, &reply, sizeof(reply), soft, 1, -EPROTO);
	/* One that cannot, with an answer that is not whole. */
	against(ctx, &reply, sizeof(reply), hard, 2, -EPROTO);
	wrong = reply;
	wrong.index = 7;
	against(ctx, &wrong, sizeof(wrong), hard, 1, -EPROTO);
	wrong = reply;
	wrong.magic = TMESH_MAGIC_REGION;
	against(ctx, &wrong, sizeof(wrong), hard, 1, -EPROTO);
	wrong = reply;
	wrong.version = 2;
	against(ctx, &wrong, sizeof(wrong), hard, 1, -EPROTO);
	wrong = reply;
	wrong.region.backend = TMESH_BACKEND_KERNEL;
	against(ctx, &wrong, sizeof(wrong), hard, 1, -EPROTO);
	wrong = reply;
	wrong.status = 5;
	against(ctx, &wrong, sizeof(wrong), -1, 0, -EPROTO);
	wrong.status = -ENOENT;
	against(ctx, &wrong, sizeof(wrong), -1, 0, -ENOENT);
	against(ctx, &wrong, sizeof(wrong), soft, 1, -EPROTO);
	wrong.status = -EMFILE;
	against(ctx, &wrong, sizeof(wrong), -1, 0, -EMFILE);
	close(soft);
	close(hard);
	tmesh_ctx_unref(ctx);
}

/* Replies as told to whatever is asked by one connection. The files that it opens meanwhile take
 * the numbers that the caller has let go of. */
static void *fake_on(void *data)
{
	struct fake *fake = data;
	int conn = accept(fake->listener, NULL, NULL);
	char request[256];

	for (int i = 0; i < 8; i++)
		fake->held[i] = dup(fake->listener);
	while (recv(conn, request, sizeof(request), 0) > 0)
		send_fds(conn, fake->reply, fake->bytes, -1, 0);
	close(conn);
	return NULL;
}

/* The descriptor is another file's than the index says, and the producer, who is asked then, says
 * no: each descriptor is closed once. */
static void test_index_then_refused(void **state)
{
	static const uint8_t name[16] = {0x12, 0x36};
	struct tmesh_wire_reply reply = {
		.magic = TMESH_MAGIC_REPLY,
		.version = TMESH_WIRE_VERSION,
		.status = -ENOENT,
		.index = 1,
	};
	struct fake fake = {.reply = &reply, .bytes = sizeof(reply)};
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS), *holder = context(NULL, 0);
	struct tmesh_token_fields parts = {.backend = TMESH_BACKEND_MEMFD};
	struct tmesh_index_entry entry = {.rights = TMESH_READ, .read_only = true};
	char token[TMESH_TOKEN_SIZE], path[33];
	struct tmesh_region *region;
	struct sockaddr_un address;
	struct tmesh_index *index;
	int dir, other;

	memcpy(parts.name, name, sizeof(name));
	tmesh_token_format(token, &parts);
	tmesh_hex(path, name, sizeof(name));
	assert_ok(tmesh_rundir_open(ctx, &dir, err));
	assert_ok(tmesh_index_new(name, 1, 64, false, &index, err));
	assert_ok(tmesh_region_create(holder, 100, NULL, &entry.region, err));
	assert_ok(tmesh_index_add(&index, &entry, err));
	assert_int_equal(tmesh_rundir_link(dir, path, tmesh_index_fd(index)), 0);
	other = memfd(16384, F_SEAL_SHRINK | F_SEAL_GROW);
	assert_int_equal(dup2(other, entry.region->fd), entry.region->fd);
	close(other);
	fake.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fake.listener, (struct sockaddr *)&address,
			      tmesh_rundir_address(dir, path, &address)),
			 0);
	assert_int_equal(listen(fake.listener, 4), 0);
	pthread_create(&fake.thread, NULL, fake_on, &fake);
	assert_int_equal(tmesh_region_open(ctx, token, TMESH_READ, &region, NULL), -ENOENT);
	tmesh_peers_drop(ctx);
	pthread_join(fake.thread, NULL);
	for (int i = 0; i < 8; i++)
		assert_int_equal(close(fake.held[i]), 0);
	close(fake.listener);
	tmesh_index_free(index);
	tmesh_rundir_remove(dir, path);
	tmesh_region_unref(entry.region);
	tmesh_ctx_unref(holder);
	tmesh_ctx_unref(ctx);
}

/* A moment later there is room for those who knock, and one of them is answered. */
static void *fake_late(void *data)
{
	struct fake *fake = data;
	struct tmesh_wire_request request;
	ssize_t got;

	usleep(30000);
	do {
		int conn = accept(fake->listener, NULL, NULL);

		got = recv(conn, &request, sizeof(request), 0);
		if (got > 0)
			send_fds(conn, fake->reply, fake->bytes, -1, 0);
		close(conn);
	} while (got <= 0);
	return NULL;
}

/* More have come than the listener has room for. */
static void test_busy_server(void **state)
{
	static const char name[] = "00112233445566778899aabbccddeefe";
	struct tmesh_wire_reply reply = {
		.magic = TMESH_MAGIC_REPLY,
		.version = TMESH_WIRE_VERSION,
		.status = -ENOENT,
	};
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS), *hasty = context(NULL, HASTY_MS);
	struct fake fake = {.reply = &reply, .bytes = sizeof(reply)};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region;
	int many[8];

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", unit_runtime_dir(), name);
	snprintf(token, sizeof(token), "tm1m-%s-%s", name, name);
	fake.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fake.listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fake.listener, 1), 0);
	for (int i = 0; i < 8; i++) {
		many[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (connect(many[i], (struct sockaddr *)&address, sizeof(address)))
			assert_int_equal(errno, EAGAIN);
		else
			shutdown(many[i], SHUT_WR);
	}
	assert_refused(tmesh_region_open(hasty, token, TMESH_READ, &region, err), -ETIMEDOUT,
		       "does not answer");
	pthread_create(&fake.thread, NULL, fake_late, &fake);
	assert_refused(tmesh_region_open(ctx, token, TMESH_READ, &region, err), -ENOENT, "");
	pthread_join(fake.thread, NULL);
	for (int i = 0; i < 8; i++)
		close(many[i]);
	close(fake.listener);
	unlink(address.sun_path);
	tmesh_ctx_unref(hasty);
	tmesh_ctx_unref(ctx);
}

/* Another user, who got a socket into the directory, answers as a producer would. */
static void test_others_server(void **state)
{
	static const char name[] = "00112233445566778899aabbccddeefd";
	struct tmesh_wire_reply reply = {
		.magic = TMESH_MAGIC_REPLY,
		.version = TMESH_WIRE_VERSION,
		.region = good,
	};
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char token[TMESH_TOKEN_SIZE], request[256];
	struct tmesh_region *region;
	int listener, ready[2], fd = memfd(16384, F_SEAL_SHRINK | F_SEAL_GROW);
	pid_t child;

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", unit_runtime_dir(), name);
	snprintf(token, sizeof(token), "tm1m-%s-%s", name, name);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		int conn;

		if (setgid(65534) || setuid(65534) || listen(listener, 1) ||
		    write(ready[1], "", 1) != 1)
			_exit(1);
		conn = accept(listener, NULL, NULL);
		if (recv(conn, request, sizeof(request), 0) > 0)
			send_fds(conn, &reply, sizeof(reply), fd, 1);
		_exit(0);
	}
	assert_int_equal(read(ready[0], request, 1), 1);
	assert_refused(tmesh_region_open(ctx, token, TMESH_READ, &region, err), -ENOENT,
		       "another user's");
	join_child(child);
	close(ready[0]);
	close(ready[1]);
	close(listener);
	close(fd);
	unlink(address.sun_path);
	tmesh_ctx_unref(ctx);
}

/* A link of the producer's to an index of its own, where it lies: in this process. */
static void test_strange_index(void **state)
{
	static const uint8_t name[16] = {0x12, 0x34};
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS), *holder = context(NULL, 0);
	struct tmesh_token_fields parts = {.backend = TMESH_BACKEND_MEMFD};
	struct tmesh_index_entry entry = {.rights = TMESH_READ, .read_only = true};
	struct tmesh_index *index;
	struct tmesh_region *region;
	char token[TMESH_TOKEN_SIZE], wrong[TMESH_TOKEN_SIZE], path[33];
	int dir;

	memcpy(parts.name, name, sizeof(name));
	tmesh_token_format(token, &parts);
	tmesh_hex(path, name, sizeof(name));
	assert_ok(tmesh_rundir_open(ctx, &dir, err));
	assert_ok(tmesh_index_new(name, 1, 64, false, &index, err));
	assert_ok(tmesh_region_create(holder, 100, NULL, &entry.region, err));
	assert_ok(tmesh_index_add(&index, &entry, err));
	assert_int_equal(tmesh_rundir_link(dir, path, tmesh_index_fd(index)), 0);
	assert_ok(tmesh_region_open(ctx, token, TMESH_READ, &region, err));
	tmesh_region_unref(region);
	/* A token that is not in it is not the last one found there. */
	parts.secret[0] ^= 1;
	tmesh_token_format(wrong, &parts);
	assert_int_equal(tmesh_region_open(ctx, wrong, TMESH_READ, &region, NULL), -ENOENT);
	tmesh_peers_drop(ctx);

	/* Another user's index is not believed, whichever process has it open. */
	if (geteuid() == 0) {
		assert_int_equal(fchown(tmesh_index_fd(index), 65534, 65534), 0);
		assert_int_equal(tmesh_region_open(ctx, token, TMESH_READ, &region, NULL), -ENOENT);
		assert_int_equal(fchown(tmesh_index_fd(index), 0, 0), 0);
		/* Nor is a link in another user's directory, wherever it leads. */
		assert_int_equal(fchown(dir, 65534, 65534), 0);
		assert_int_equal(tmesh_region_open(ctx, token, TMESH_READ, &region, NULL), -ENOENT);
		assert_int_equal(fchown(dir, 0, 0), 0);
	}
	/* Nor one in a directory where others may put it. */
	assert_int_equal(fchmod(dir, 0722), 0);
	assert_int_equal(tmesh_region_open(ctx, token, TMESH_READ, &region, NULL), -ENOENT);
	assert_int_equal(fchmod(dir, 0700), 0);
	/* The descriptor is another file's than the index says. */
	assert_int_equal(dup2(tmesh_index_fd(index), entry.region->fd), entry.region->fd);
	assert_int_equal(tmesh_region_open(ctx, token, TMESH_READ, &region, NULL), -ENOENT);
	tmesh_index_free(index);
	tmesh_rundir_remove(dir, path);
	tmesh_region_unref(entry.region);
	tmesh_ctx_unref(holder);
	tmesh_ctx_unref(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_recv),	   TEST(test_recv_too_much),	  TEST(test_recv_hangup),
		TEST(test_recv_pieces),	   TEST(test_bad_clients),	  TEST(test_bad_servers),
		TEST(test_strange_index),  TEST(test_index_then_refused), TEST(test_busy_server),
		TEST(test_recv_bad_piece), TEST(test_recv_short_file),	  TEST(test_send_to_nobody),
	};
	const struct CMUnitTest others[] = {TEST(test_others_server)};
	int failed;

	/* Writing to who has hung up is part of it. */
	signal(SIGPIPE, SIG_IGN);
	mkdir(unit_runtime_dir(), 0700);
	failed = cmocka_run_group_tests_name("strangers", tests, NULL, NULL);
	if (geteuid())
		failed += UNIT_SKIP(others, "only root can become another user");
	else
		failed += cmocka_run_group_tests_name("others", others, NULL, NULL);
	return failed;
}
