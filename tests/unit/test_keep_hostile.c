// SPDX-License-Identifier: MIT
/* Kept regions on memfd: clients that lie to the keeper, and keepers that lie. */
#include <sys/time.h>
#include <sys/un.h>

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

UNIT_SET_UP(test_lying_regions)
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
	assert_int_equal(answer_to(*state, &good, &folder, 1), -EPROTO);
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
	/* An opaque region whose revocation pipe is no pipe. */
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

/* Asks as a liar would, with a descriptor or -1, and gives the keeper's answer. */
static int32_t asked(struct tmesh_ctx *ctx, const struct tmesh_keeper_request *request, int with)
{
	struct tmesh_keeper_reply reply = {.status = 1};
	int fd = connected(ctx);

	assert_int_equal(tmesh_wire_send(fd, request, sizeof(*request), &with, with >= 0, 0), 0);
	if (recv(fd, &reply, sizeof(reply), 0) != sizeof(reply))
		reply.status = -EPIPE;
	close(fd);
	return reply.status;
}

static int32_t keep_with_table(struct tmesh_ctx *ctx, const char *name, struct tmesh_region *region,
			       int table)
{
	struct tmesh_keeper_request request = keep_request(name, 1);
	struct tmesh_keeper_reply reply;
	int fd = connected(ctx);

	request.flags = TMESH_KEEPER_PATHS;
	request.mode = 0600;
	assert_int_equal(tmesh_wire_send(fd, &request, sizeof(request), &table, 1, 0), 0);
	assert_ok(tmesh_region_send(region, fd, TMESH_READ, err));
	assert_int_equal(recv(fd, &reply, sizeof(reply), 0), sizeof(reply));
	close(fd);
	return reply.status;
}

UNIT_SET_UP(test_lying_paths)
{
	const unsigned int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
	struct tmesh_keeper_request request = keep_request("evil", 1), take;
	int table = memfd_of(4096, seals), writable = memfd_of(4096, F_SEAL_SHRINK | F_SEAL_GROW);
	struct tmesh_kept_info *infos;
	struct tmesh_kept_file *files;
	struct tmesh_region *region;
	uint64_t id;
	size_t count;

	keep_unseen(*state, "mine", 4096, 1);
	/* A flag without a table, a table without a flag, a mode that files do not have. */
	request.flags = TMESH_KEEPER_PATHS;
	assert_int_equal(asked(*state, &request, -1), -EINVAL);
	assert_int_equal(asked(*state, &request, table), -EINVAL);
	request.mode = 0666;
	assert_int_equal(asked(*state, &request, table), -EINVAL);
	request.mode = 0600;
	request.flags = 0;
	assert_int_equal(asked(*state, &request, table), -EINVAL);
	request.op = TMESH_KEEPER_FIND;
	assert_int_equal(asked(*state, &request, table), -EPIPE);
	assert_int_equal(asked(*state, &request, -1), -ENOENT);
	/* The keeper takes nothing of a region that is no table. */
	for (int lie = 0; lie < 3; lie++) {
		int with = lie == 0 ? writable : lie == 1 ? memfd_of(8, seals) : open("/", O_PATH);
		struct tmesh_wire_region wire = {.magic = TMESH_MAGIC_REGION};
		struct tmesh_keeper_reply reply;
		int fd = connected(*state);

		request = keep_request("evil", 1);
		request.flags = TMESH_KEEPER_PATHS;
		request.mode = 0600;
		assert_int_equal(tmesh_wire_send(fd, &request, sizeof(request), &with, 1, 0), 0);
		if (lie < 2) {
			assert_int_equal(send(fd, &wire, sizeof(wire), 0), sizeof(wire));
			assert_int_equal(recv(fd, &reply, sizeof(reply), 0), sizeof(reply));
			assert_int_equal(reply.status, -EINVAL);
		} else {
			/* A file that may be served ends the link. */
			assert_true(recv(fd, &reply, sizeof(reply), 0) <= 0);
		}
		close(fd);
		if (lie)
			close(with);
	}
	assert_false(is_kept(*state, "evil"));
	/* One region of a group: of this keeping, and one that is there. */
	assert_ok(tmesh_kept_list(*state, &infos, &count, err));
	id = infos[0].id;
	free(infos);
	take = keep_request("mine", 0);
	take.op = TMESH_KEEPER_OPEN_REGION;
	take.id = id;
	assert_int_equal(asked(*state, &take, -1), 0);
	take.id++;
	assert_int_equal(asked(*state, &take, -1), -ESTALE);
	take.id--;
	take.region = 1;
	assert_int_equal(asked(*state, &take, -1), -EINVAL);
	take.region = UINT32_MAX;
	assert_int_equal(asked(*state, &take, -1), -EINVAL);
	take.region = 0;
	take.rights = TMESH_READ | TMESH_WRITE;
	assert_int_equal(asked(*state, &take, -1), -EACCES);
	/* The keeper keeps any sealed bytes as a table; a reader refuses them. */
	region = unseen(*state, 4096, 1);
	assert_int_equal(keep_with_table(*state, "junk", region, table), 0);
	assert_refused(tmesh_kept_files(*state, "junk", TMESH_KEPT_OWN, &files, &count, err),
		       -EPROTO, "table of paths");
	tmesh_region_unref(region);
	close(table);
	close(writable);
}

/* A file lease on what is given would hold up who opens it (F_SETLEASE): the keeper does not wait.
 */
UNIT_SET_UP(test_leased_region)
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
	int file = memfd_of(4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
	int leased = tmesh_foreign_reopen(file, O_RDONLY);

	signal(SIGIO, SIG_IGN);
	close(file);
	keep_new(*state, "mine", 4096, 1);
	assert_int_equal(fcntl(leased, F_SETLEASE, F_WRLCK), 0);
	assert_int_equal(answer_to(*state, &good, &leased, 1), -EAGAIN);
	check_kept(*state, "mine", 1);
	close(leased);
}

/* Requests that are none end the connection, and no other. */
UNIT_SET_UP(test_lying_requests)
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
	REFUSES(request.op = 0);
	REFUSES(request.op = 8);
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
	ANSWERS(request.version++, -EPROTO);
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

/* A client of another release gets an answer with the keeper's version, also where it has sent its
 * regions already, and the keeper takes nothing of them. */
UNIT_SET_UP(test_other_release)
{
	struct tmesh_keeper_request request = keep_request("other", 3);
	struct tmesh_region *region = sealed(*state, 4096, 1);
	struct tmesh_keeper_reply reply;
	int fd = connected(*state);

	request.version++;
	assert_int_equal(send(fd, &request, sizeof(request), 0), sizeof(request));
	for (int i = 0; i < 3; i++)
		assert_ok(tmesh_region_send(region, fd, TMESH_READ, err));
	assert_int_equal(recv(fd, &reply, sizeof(reply), 0), sizeof(reply));
	assert_int_equal(reply.magic, TMESH_MAGIC_KEEP);
	assert_int_equal(reply.version, TMESH_WIRE_VERSION);
	assert_int_equal(reply.status, -EPROTO);
	close(fd);
	assert_false(is_kept(*state, "other"));
	tmesh_region_unref(region);
}

/* Clients that stop in the middle: their half-done requests have no effect, and others are served.
 */
UNIT_SET_UP(test_silent_clients)
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

/* A process that has more connections than the keeper has places, and begins something by some of
 * them: another process gets its place at once. */
UNIT_SET_UP(test_crowd)
{
	struct tmesh_keeper_request request = keep_request("half", 2);
	int ends[2], status;
	char byte;
	pid_t crowd;

	keep_new(*state, "mine", 4096, 1);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	crowd = fork();
	if (!crowd) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int i = 0; i < 200; i++) {
			int fd;

			if (tmesh_keeper_connect(*state, false, &fd, NULL))
				_exit(1);
			if (i % 2)
				send(fd, &request, sizeof(request), MSG_NOSIGNAL);
		}
		if (write(ends[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], &byte, 1), 1);
	for (int i = 0; i < 20; i++)
		check_kept(*state, "mine", 1);
	keep_new(*state, "more", 4096, 2);
	check_kept(*state, "more", 2);
	kill(crowd, SIGKILL);
	assert_int_equal(waitpid(crowd, &status, 0), crowd);
	close(ends[0]);
}

/* The keeper's descriptors are at an end: it does not look for one all the time, and goes on. */
UNIT_SET_UP(test_no_descriptor)
{
	struct rlimit before, none;
	int fds[8], last;
	pid_t keeper;

	keep_new(*state, "mine", 4096, 1);
	keeper = keeper_pid(*state);
	for (int i = 0; i < 8; i++)
		fds[i] = connected(*state);
	check_kept(*state, "mine", 1);
	assert_int_equal(prlimit(keeper, RLIMIT_NOFILE, NULL, &before), 0);
	none = (struct rlimit){16, before.rlim_max};
	assert_int_equal(prlimit(keeper, RLIMIT_NOFILE, &none, NULL), 0);
	last = connected(*state);
	assert_int_equal(keeper_pid(*state), keeper);
	assert_int_equal(prlimit(keeper, RLIMIT_NOFILE, &before, NULL), 0);
	check_kept(*state, "mine", 1);
	for (int i = 0; i < 8; i++)
		close(fds[i]);
	close(last);
}

/* Keepers that lie: a listener of ours in its place. Refuse a kept region with @code and @word, and
 * so the list, unless that is empty then. Refuse the keeper's description too, unless the head of
 * its answer is @good. */
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
	join_child(pid);
	close(listener);
	unlinkat(dir, TMESH_KEEPER_SOCKET, 0);
}

UNIT_SET_UP(test_lying_keeper)
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
	lie(*state, &reply, sizeof(reply), false, false, -EPROTO,
	    "another release of tmesh (protocol 2, here 1)");
	reply = good;
	reply.status = 5;
	lie(*state, &reply, sizeof(reply), false, false, -EPROTO, "malformed");
	reply.status = INT32_MIN;
	lie(*state, &reply, sizeof(reply), false, false, -EPROTO, "the keeper");
	lie(*state, &good, sizeof(good), false, true, -EPIPE,
	    "the other end of the socket is closed");
	lie(*state, &good, sizeof(good), true, true, -EPROTO, "was expected");
	reply = good;
	reply.count = UINT32_MAX;
	lie(*state, &reply, sizeof(reply), true, true, -EPROTO, "answered with 4294967295");
	reply.count = 0;
	lie(*state, &reply, sizeof(reply), false, true, -EPROTO, "answered with 0 regions");
}

/* A stopped keeper takes no connection from its queue: a client that finds that full does not wait
 * for ever. */
UNIT_SET_UP(test_full_queue)
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

UNIT_MAIN("tests", unit_memfd_setup, NULL)
