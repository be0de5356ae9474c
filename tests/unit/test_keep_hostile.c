// SPDX-License-Identifier: MIT
/* Kept regions on memfd: clients that lie to the keeper, and keepers that lie. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "kept.h"
#include "memfd.h"

/* Hostile clients. */

static int connected(struct tmesh_ctx *ctx)
{
	struct timeval patience = {.tv_sec = 600};
	int fd;

	assert_ok(tmesh_keeper_connect(ctx, true, &fd, err));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return fd;
}

static struct tmesh_keeper_request keep_request(const char *name, uint32_t count)
{
	struct tmesh_keeper_request request = {
		.magic = TMESH_MAGIC_KEEP,
		.version = TMESH_WIRE_VERSION,
		.op = TMESH_KEEPER_KEEP,
		.count = count,
		.rights = TMESH_READ,
	};

	strcpy(request.name, name);
	return request;
}

/* Sends one region message as a liar would, and gives the keeper's answer. */
static int32_t answer_to(struct tmesh_ctx *ctx, const struct tmesh_wire_region *wire,
			 const int *fds, unsigned int count)
{
	struct tmesh_keeper_request request = keep_request("evil", 1);
	struct tmesh_keeper_reply reply;
	int fd = connected(ctx);

	assert_int_equal(send(fd, &request, sizeof(request), 0), sizeof(request));
	assert_int_equal(tmesh_wire_send(fd, wire, sizeof(*wire), fds, count, 0), 0);
	assert_int_equal(recv(fd, &reply, sizeof(reply), 0), sizeof(reply));
	close(fd);
	assert_false(is_kept(ctx, "evil"));
	return reply.status;
}

static int memfd_of(uint64_t bytes, unsigned int seals)
{
	int fd = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void test_lying_regions(void **state)
{
	const struct tmesh_wire_region good = {
		.magic = TMESH_MAGIC_REGION,
		.version = TMESH_WIRE_VERSION,
		.backend = TMESH_BACKEND_MEMFD,
		.rights = TMESH_READ,
		.kind = TMESH_KIND_FOREIGN,
		.id = 1,
		.bytes = 4096,
	};
	struct tmesh_wire_region wire = good;
	unsigned int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
	int file = memfd_of(4096, all), loose = memfd_of(4096, 0),
	    writable = memfd_of(4096, F_SEAL_SHRINK | F_SEAL_GROW);
	int folder = open("/", O_RDONLY | O_DIRECTORY), null = open("/dev/null", O_RDWR);
	int fds[4] = {file, file, file, file};

	assert_int_equal(answer_to(*state, &good, &loose, 1), -EINVAL);
	assert_int_equal(answer_to(*state, &good, &writable, 1), -EINVAL);
	assert_int_equal(answer_to(*state, &good, &folder, 1), -EINVAL);
	assert_int_equal(answer_to(*state, &good, &null, 1), -EINVAL);
	assert_int_equal(answer_to(*state, &good, NULL, 0), -EPROTO);
	assert_int_equal(answer_to(*state, &good, fds, 2), -EPROTO);
	wire.bytes = 4097;
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EINVAL);
	wire.bytes = UINT64_MAX;
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EINVAL);
	wire.bytes = 0;
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EINVAL);
	wire = good;
	wire.kind = 0; /* with a trailer, for which there is no room */
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EINVAL);
	wire.kind = 1u << 30;
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EPROTO);
	/* An opaque region whose leash is no pipe. */
	wire.kind = TMESH_KIND_OPAQUE | TMESH_KIND_FOREIGN;
	assert_int_equal(answer_to(*state, &wire, fds, 2), -EINVAL);
	wire = good;
	wire.rights = 0;
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EPROTO);
	wire = good;
	wire.backend = TMESH_BACKEND_KERNEL;
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EPROTO);
	wire = good;
	wire.magic = 0;
	assert_int_equal(answer_to(*state, &wire, &file, 1), -EPROTO);
	/* Memory of another user's, where we can have some. */
	if (geteuid() == 0) {
		int theirs = memfd_of(4096, all);

		assert_int_equal(fchown(theirs, 12345, 12345), 0);
		assert_int_equal(answer_to(*state, &good, &theirs, 1), -EINVAL);
		close(theirs);
	}
	close(file);
	close(loose);
	close(writable);
	close(folder);
	close(null);
	assert_false(is_kept(*state, "evil"));
}

/* Requests that are none end the connection, and nobody else's. */
static void test_lying_requests(void **state)
{
	struct tmesh_keeper_request good = keep_request("evil", 1), request;
	char junk[4096] = "junk";
	struct tmesh_keeper_reply reply;
	int fd;

	keep_new(*state, "mine", 4096, 1);
#define REFUSES(change)                                                                    \
	do {                                                                               \
		request = good;                                                            \
		change;                                                                    \
		fd = connected(*state);                                                    \
		assert_int_equal(send(fd, &request, sizeof(request), 0), sizeof(request)); \
		assert_true(recv(fd, junk, sizeof(junk), 0) <= 0);                         \
		close(fd);                                                                 \
	} while (0)
	REFUSES(request.magic = 0);
	REFUSES(request.version = 99);
	REFUSES(request.op = 0);
	REFUSES(request.op = 6);
	REFUSES(memset(request.name, 'x', sizeof(request.name)));
	REFUSES(request.name[0] = '\0');
	REFUSES(request.name[60] = 'x');
	REFUSES(strcpy(request.name, "\x1b[2J"));
#undef REFUSES
#define ANSWERS(change, code)                                                              \
	do {                                                                               \
		request = good;                                                            \
		change;                                                                    \
		fd = connected(*state);                                                    \
		assert_int_equal(send(fd, &request, sizeof(request), 0), sizeof(request)); \
		assert_int_equal(recv(fd, &reply, sizeof(reply), 0), sizeof(reply));       \
		assert_int_equal(reply.status, code);                                      \
		close(fd);                                                                 \
	} while (0)
	ANSWERS(request.count = 0, -EINVAL);
	ANSWERS(request.count = TMESH_KEPT_MAX_REGIONS + 1, -EINVAL);
	ANSWERS(request.count = UINT32_MAX, -EINVAL);
	ANSWERS(request.flags = 2, -EINVAL);
	ANSWERS((request.op = TMESH_KEEPER_OPEN, strcpy(request.name, "mine"), request.rights = 99),
		-EACCES);
#undef ANSWERS
	fd = connected(*state);
	assert_int_equal(send(fd, junk, sizeof(junk), 0), sizeof(junk));
	assert_true(recv(fd, junk, sizeof(junk), 0) <= 0);
	close(fd);
	/* Descriptors where none belong. */
	fd = connected(*state);
	assert_int_equal(tmesh_wire_send(fd, &good, sizeof(good), (int[]){0, 1}, 2, 0), 0);
	assert_true(recv(fd, junk, sizeof(junk), 0) <= 0);
	close(fd);
	check_kept(*state, "mine", 1);
}

/* Clients that stop in the middle: what they began is nobody's, and others are served. */
static void test_silent_clients(void **state)
{
	struct tmesh_keeper_request request = keep_request("half", 2);
	struct tmesh_region *region = sealed(*state, 4096, 1);
	int fds[40];

	for (int i = 0; i < 40; i++) {
		fds[i] = connected(*state);
		if (i % 2)
			assert_int_equal(send(fds[i], &request, sizeof(request), 0),
					 sizeof(request));
		if (i % 4 == 3)
			assert_ok(tmesh_region_send(region, fds[i], TMESH_READ, err));
	}
	keep_new(*state, "whole", 4096, 2);
	check_kept(*state, "whole", 2);
	assert_false(is_kept(*state, "half"));
	for (int i = 0; i < 40; i++)
		close(fds[i]);
	check_kept(*state, "whole", 2);
	/* The region that they gave is in no group. */
	assert_ok(tmesh_keep(*state, "half", &region, 1, NULL, err));
	tmesh_region_unref(region);
}

/* Keepers that lie: a listener of ours in its place. What is kept is refused with @code and @word,
 * and so is the list of it, unless that is empty then, and what the keeper says of itself, unless
 * the head of its answer is @good. */
static void lie(struct tmesh_ctx *ctx, const void *answer, size_t bytes, bool with_region,
		bool good, int code, const char *word)
{
	struct sockaddr_un address;
	struct tmesh_keeper_request request;
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), dir, fd;
	struct tmesh_region **regions = NULL;
	const struct tmesh_keeper_reply *reply = answer;
	struct tmesh_keeper_info info = {.size = sizeof(info)};
	struct tmesh_kept_info *infos = NULL;
	unsigned int before;
	size_t count = 0;
	int status;
	pid_t pid;

	pthread_mutex_lock(&ctx->lock);
	assert_ok(tmesh_rundir_open(ctx, &dir, err));
	pthread_mutex_unlock(&ctx->lock);
	unlinkat(dir, TMESH_KEEPER_SOCKET, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address,
			      tmesh_rundir_address(dir, TMESH_KEEPER_SOCKET, &address)),
			 0);
	assert_int_equal(listen(listener, 4), 0);
	pid = fork();
	if (!pid) {
		for (int i = 0; i < 3; i++) {
			fd = accept(listener, NULL, NULL);
			if (recv(fd, &request, sizeof(request), 0) < 0)
				unit_leave(1);
			send(fd, answer, bytes, MSG_NOSIGNAL);
			if (with_region)
				send(fd, "not a region, nor a row of a list", 33, MSG_NOSIGNAL);
			close(fd);
		}
		unit_leave(0);
	}
	before = unit_open_fds();
	assert_refused(tmesh_kept_open(ctx, "a", TMESH_KEPT_OWN, TMESH_READ, &regions, &count, err),
		       code, word);
	if (good && !reply->count) {
		assert_ok(tmesh_kept_list(ctx, &infos, &count, err));
		assert_int_equal(count, 0);
		free(infos);
		infos = NULL;
	} else {
		assert_refused(tmesh_kept_list(ctx, &infos, &count, err), code, word);
	}
	if (good)
		assert_ok(tmesh_keeper_info(ctx, &info, err));
	else
		assert_refused(tmesh_keeper_info(ctx, &info, err), code, word);
	assert_int_equal(unit_open_fds(), before);
	assert_null(regions);
	assert_null(infos);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(listener);
	unlinkat(dir, TMESH_KEEPER_SOCKET, 0);
}

static void test_lying_keeper(void **state)
{
	const struct tmesh_keeper_reply good = {
		.magic = TMESH_MAGIC_KEEP,
		.version = TMESH_WIRE_VERSION,
		.count = 1,
	};
	struct tmesh_keeper_reply reply = good;
	struct tmesh_region **none;
	size_t count;

	assert_refused(tmesh_kept_open(*state, "a", TMESH_KEPT_OWN, TMESH_READ, &none, &count, err),
		       -ENOENT, "nothing is kept as \"a\"");
	lie(*state, "short", 5, false, false, -EPROTO, "was expected");
	lie(*state, "", 0, false, false, -EPIPE, "the keeper ended");
	reply.magic = 0;
	lie(*state, &reply, sizeof(reply), false, false, -EPROTO, "malformed");
	reply = good;
	reply.version++;
	lie(*state, &reply, sizeof(reply), false, false, -EPROTO, "malformed");
	reply = good;
	reply.status = 5;
	lie(*state, &reply, sizeof(reply), false, false, -EPROTO, "malformed");
	reply.status = INT32_MIN;
	lie(*state, &reply, sizeof(reply), false, false, -EPROTO, "the keeper");
	lie(*state, &good, sizeof(good), false, true, -EPIPE, "nobody");
	lie(*state, &good, sizeof(good), true, true, -EPROTO, "was expected");
	reply = good;
	reply.count = UINT32_MAX;
	lie(*state, &reply, sizeof(reply), true, true, -EPROTO, "answered with 4294967295");
	reply.count = 0;
	lie(*state, &reply, sizeof(reply), false, true, -EPROTO, "answered with 0 regions");
}

/* One that is stopped takes nobody from its queue: who finds that full does not wait for ever. */
static void test_full_queue(void **state)
{
	struct tmesh_ctx *ctx = *state;
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), dir, clients[8],
	    count = 0;
	struct tmesh_kept_info *infos = NULL;
	struct sockaddr_un address;
	socklen_t length;
	unsigned int before;
	size_t listed;
	bool full = false;

	pthread_mutex_lock(&ctx->lock);
	assert_ok(tmesh_rundir_open(ctx, &dir, err));
	pthread_mutex_unlock(&ctx->lock);
	unlinkat(dir, TMESH_KEEPER_SOCKET, 0);
	length = tmesh_rundir_address(dir, TMESH_KEEPER_SOCKET, &address);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, length), 0);
	assert_int_equal(listen(listener, 1), 0);
	for (; !full; count++) {
		assert_in_range(count, 0, 7);
		clients[count] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		full = connect(clients[count], (struct sockaddr *)&address, length) != 0;
	}
	assert_int_equal(errno, EAGAIN);
	before = unit_open_fds();
	alarm(600);
	assert_refused(tmesh_kept_list(ctx, &infos, &listed, err), -ETIMEDOUT, "does not answer");
	alarm(0);
	assert_int_equal(unit_open_fds(), before);
	assert_null(infos);
	while (count)
		close(clients[--count]);
	close(listener);
	unlinkat(dir, TMESH_KEEPER_SOCKET, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		KEEP_TEST(test_lying_regions),	KEEP_TEST(test_lying_requests),
		KEEP_TEST(test_silent_clients), KEEP_TEST(test_lying_keeper),
		KEEP_TEST(test_full_queue),
	};

	return cmocka_run_group_tests(tests, unit_memfd_setup, NULL);
}
