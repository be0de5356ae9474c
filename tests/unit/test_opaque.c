// SPDX-License-Identifier: MIT
/*
 * Regions that stand for a descriptor, on memfd: hand-over by token and socket, taking them back,
 * and the errors at each end when the other side is killed.
 */
#include <poll.h>
#include <sys/time.h>

#include "unit.h"
#include "wire.h"

#define BYTES (3u << 20)
#define RW (TMESH_READ | TMESH_WRITE)

/* A file that its inode identifies. */
static int thing(ino_t *ino)
{
	int fd = memfd_create("thing", MFD_CLOEXEC);
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	*ino = st.st_ino;
	return fd;
}

static struct tmesh_region *make(struct tmesh_ctx *ctx, ino_t *ino)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .label = "gpu"};
	struct tmesh_region *region;
	int fd = thing(ino);

	assert_ok(tmesh_region_from_fd(ctx, fd, BYTES, &opts, &region, err));
	close(fd);
	return region;
}

static ino_t ino_of(struct tmesh_region *region)
{
	struct stat st = {0};
	int fd;

	assert_ok(tmesh_region_opaque_fd(region, &fd, err));
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	fstat(fd, &st);
	close(fd);
	return st.st_ino;
}

static void token(struct tmesh_region *region, uint32_t rights, char *text)
{
	assert_ok(tmesh_region_token(region, rights, text, err));
}

UNIT_CTX(test_here)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region, *opened, *derived;
	char text[TMESH_TOKEN_SIZE];
	int before, fd;
	ino_t ino;

	region = make(*state, &ino);
	assert_int_equal(tmesh_region_bytes(region), BYTES);
	assert_ok(tmesh_region_set_description(region, "{\"a\": 1}", err));
	assert_true(ino_of(region) == ino);
	assert_int_equal(tmesh_region_events(region), TMESH_EVENT_ALONE);
	token(region, RW, text);
	/* Descriptors that the context opens once for all. */
	assert_ok(tmesh_region_derive(region, TMESH_READ, &derived, err));
	tmesh_region_unref(derived);
	before = unit_open_fds();
	assert_ok(tmesh_region_open(*state, text, RW, &opened, err));
	assert_true(ino_of(opened) == ino);
	assert_int_equal(tmesh_region_id(opened), tmesh_region_id(region));
	assert_ok(tmesh_region_info(opened, &info, err));
	assert_int_equal(info.backing, TMESH_BACKED_BY_OPAQUE);
	assert_string_equal(info.label, "gpu");
	assert_string_equal(info.description, "{\"a\": 1}");
	assert_int_equal(tmesh_region_events(region), 0);
	assert_ok(tmesh_region_derive(opened, TMESH_READ, &derived, err));
	assert_refused(tmesh_region_opaque_fd(derived, &fd, err), -EACCES, "write");
	tmesh_region_unref(opened);
	assert_int_equal(tmesh_region_events(region), 0);
	tmesh_region_unref(derived);
	assert_int_equal(tmesh_region_events(region), TMESH_EVENT_ALONE);
	assert_int_equal(unit_open_fds(), before);
	tmesh_region_unref(region);
}

UNIT_CTX(test_refused)
{
	struct tmesh_region *region, *holder, *plain, *made;
	const int64_t shape[] = {BYTES};
	struct tmesh_tensor *tensor;
	struct tmesh_layout layout;
	char text[TMESH_TOKEN_SIZE], byte = 0;
	void *addr;
	short wait;
	int fd, before;
	ino_t ino;

	region = make(*state, &ino);
	token(region, RW | TMESH_MANAGE, text);
	assert_ok(tmesh_region_open(*state, text, RW | TMESH_MANAGE, &holder, err));
	before = unit_open_fds();
	assert_refused(tmesh_region_map(region, TMESH_READ, &addr, err), -EOPNOTSUPP, "no memory");
	assert_ok(tmesh_layout_contiguous(&layout, TMESH_UINT8, 1, shape, err));
	assert_refused(tmesh_tensor_wrap(holder, &layout, &tensor, err), -EPROTO,
		       "tmesh_slot_open()");
	assert_refused(tmesh_region_read(region, 0, &byte, 1, err), -EOPNOTSUPP, "no memory");
	assert_refused(tmesh_region_write(region, 0, &byte, 1, err), -EOPNOTSUPP, "no memory");
	assert_refused(tmesh_region_seal(region, err), -EOPNOTSUPP, "no memory");
	assert_refused(tmesh_region_export_dmabuf(region, 0, 0, RW, &fd, err), -EOPNOTSUPP,
		       "no memory");
	assert_refused(tmesh_region_pin(region, &made, err), -EINVAL, "not sealed");
	assert_refused(tmesh_region_private(region, &made, err), -EOPNOTSUPP, "private view");
	assert_refused(tmesh_region_revoke(holder, err), -EOPNOTSUPP, "only the process");
	assert_ok(tmesh_region_derive(region, RW, &made, err));
	assert_refused(tmesh_region_reclaim(made, 0, NULL, err), -EACCES, "manage");
	assert_refused(tmesh_region_revoke(made, err), -EACCES, "manage");
	tmesh_region_unref(made);
	assert_refused(tmesh_region_poll_fd(region, TMESH_EVENT_TAKEN, &wait, err), -EOPNOTSUPP,
		       "this process's");
	assert_refused(tmesh_region_poll_fd(holder, TMESH_EVENT_ALONE, &wait, err), -EOPNOTSUPP,
		       "only a region's maker");
	assert_refused(tmesh_region_poll_fd(holder, 0, &wait, err), -EINVAL,
		       "poll: events 0x0 are not made of TMESH_EVENT_TAKEN");
	assert_refused(tmesh_region_poll_fd(holder, TMESH_EVENT_POISONED, &wait, err), -EOPNOTSUPP,
		       "memory errors");
	assert_refused(tmesh_region_poll_fd(holder, TMESH_EVENT_ORPHANED, &wait, err), -EINVAL,
		       "0x4");
	assert_refused(tmesh_region_poll_fd(holder, 16, &wait, err), -EINVAL, "0x10");
	assert_refused(tmesh_region_from_fd(*state, -1, BYTES, NULL, &made, err), -EBADF, "open");
	assert_refused(tmesh_region_from_fd(*state, 0, 0, NULL, &made, err), -EINVAL, "bytes");
	assert_refused(tmesh_region_from_fd(*state, 0, UINT64_MAX, NULL, &made, err), -EOVERFLOW,
		       "more than");
	assert_ok(tmesh_region_create(*state, 1, NULL, &plain, err));
	assert_refused(tmesh_region_poll_fd(plain, TMESH_EVENT_TAKEN, &wait, err), -EOPNOTSUPP,
		       "module");
	assert_refused(tmesh_region_reclaim(plain, 0, NULL, err), -EOPNOTSUPP, "module");
	assert_int_equal(tmesh_region_events(plain), 0);
	/* For good: it is not to lie in the pool. */
	assert_true(tmesh_region_fd(plain) >= 0);
	tmesh_region_unref(plain);
	assert_int_equal(unit_open_fds(), before);
	tmesh_region_unref(holder);
	tmesh_region_unref(region);
}

UNIT_CTX(test_by_socket)
{
	struct tmesh_region *region, *got;
	int ends[2], fd, before;
	ino_t ino;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	region = make(*state, &ino);
	assert_ok(tmesh_region_derive(region, TMESH_READ, &got, err));
	tmesh_region_unref(got);
	before = unit_open_fds();
	assert_ok(tmesh_region_send(region, ends[0], RW, err));
	assert_ok(tmesh_region_recv(*state, ends[1], &got, err));
	assert_true(ino_of(got) == ino);
	/* And on. */
	assert_ok(tmesh_region_send(got, ends[1], TMESH_READ, err));
	tmesh_region_unref(got);
	assert_ok(tmesh_region_recv(*state, ends[0], &got, err));
	assert_refused(tmesh_region_opaque_fd(got, &fd, err), -EACCES, "write");
	assert_int_equal(tmesh_region_events(region), 0);
	tmesh_region_unref(got);
	/* A descriptor that no process receives holds as long as it is in the queue. */
	assert_ok(tmesh_region_send(region, ends[0], RW, err));
	assert_int_equal(tmesh_region_events(region), 0);
	close(ends[1]);
	assert_int_equal(tmesh_region_events(region), TMESH_EVENT_ALONE);
	close(ends[0]);
	assert_int_equal(unit_open_fds(), before - 2);
	tmesh_region_unref(region);
}

/* A message whose descriptors are not what its kind says. */
UNIT_CTX(test_wrong_number)
{
	struct tmesh_wire_region wire = {
		.magic = TMESH_MAGIC_REGION,
		.version = TMESH_WIRE_VERSION,
		.backend = TMESH_BACKEND_MEMFD,
		.rights = RW,
		.kind = TMESH_KIND_OPAQUE,
		.id = 7,
		.bytes = 4096,
	};
	const int fds[] = {0, 0, 0, 0};
	int before = unit_open_fds();
	struct tmesh_region *got;

	for (unsigned int count = 1; count <= 4; count++) {
		int ends[2];

		/* Three are right in number, and no region. */
		assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
		assert_int_equal(tmesh_wire_send(ends[0], &wire, sizeof(wire), fds, count, 0), 0);
		assert_refused(tmesh_region_recv(*state, ends[1], &got, err), -EPROTO,
			       count == 3 ? "fixed size" : "something else");
		close(ends[0]);
		close(ends[1]);
	}
	assert_int_equal(unit_open_fds(), before);
}

/* A hand-over that is right but for its revocation pipe, which polling a file of its sender's own
 * could make wait for him. */
UNIT_CTX(test_strange_leash)
{
	int before, ends[2], fds[TMESH_WIRE_FDS], strange;
	struct tmesh_region *region, *got;
	struct tmesh_wire_region wire;
	ino_t ino;

	region = make(*state, &ino);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	assert_ok(tmesh_region_send(region, ends[0], RW, err));
	assert_int_equal(tmesh_wire_recv(ends[1], &wire, sizeof(wire), fds, TMESH_WIRE_FDS, 0), 3);
	strange = fds[2];
	fds[2] = fds[1];
	fds[1] = strange;
	before = unit_open_fds();
	assert_int_equal(tmesh_wire_send(ends[0], &wire, sizeof(wire), fds, 3, 0), 0);
	assert_refused(tmesh_region_recv(*state, ends[1], &got, err), -EPROTO, "not a pipe");
	assert_int_equal(unit_open_fds(), before);
	for (int i = 0; i < 3; i++)
		close(fds[i]);
	close(ends[0]);
	close(ends[1]);
	tmesh_region_unref(region);
}

/* A child with a context of its own that opens the token, reports it, and follows the test's
 * orders. It is forked before there is a region, whose descriptors it would inherit. */
struct holder {
	pid_t pid;
	int socket;
};

struct order {
	char text[TMESH_TOKEN_SIZE];
	ino_t ino;
};

static void holder_main(int socket)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts)};
	struct order what;
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;
	struct pollfd poller;
	short wait;
	char order;
	int fd;

	if (read(socket, &what, sizeof(what)) != sizeof(what) ||
	    tmesh_ctx_open(&opts, &ctx, NULL) ||
	    tmesh_region_open(ctx, what.text, RW, &region, NULL) || ino_of(region) != what.ino ||
	    tmesh_region_events(region) != 0)
		unit_leave(1);
	poller.fd = tmesh_region_poll_fd(region, TMESH_EVENT_TAKEN, &wait, NULL);
	poller.events = wait;
	if (poll(&poller, 1, 0) || write(socket, "o", 1) != 1)
		unit_leave(2);
	if (read(socket, &order, 1) != 1)
		unit_leave(3);
	/* A child that lives on. */
	if (order == 'f' && fork() == 0)
		unit_leave((int)read(socket, &order, 1));
	if (order == 't' &&
	    (poll(&poller, 1, 600000) != 1 || tmesh_region_events(region) != TMESH_EVENT_TAKEN ||
	     tmesh_region_opaque_fd(region, &fd, NULL) != -ESTALE))
		unit_leave(4);
	if (order == 'o' &&
	    (poll(&poller, 1, 600000) != 1 || tmesh_region_events(region) != TMESH_EVENT_ORPHANED ||
	     ino_of(region) != what.ino))
		unit_leave(5);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	unit_leave(0);
}

static struct holder spawn(void)
{
	struct holder holder;
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	holder.pid = fork();
	if (holder.pid == 0) {
		close(ends[0]);
		holder_main(ends[1]);
	}
	close(ends[1]);
	holder.socket = ends[0];
	return holder;
}

static void hold(struct holder *holder, struct tmesh_region *region, struct order *what)
{
	char byte;

	token(region, RW, what->text);
	assert_int_equal(write(holder->socket, what, sizeof(*what)), sizeof(*what));
	assert_int_equal(read(holder->socket, &byte, 1), 1);
}

static int end_of(struct holder *holder)
{
	int status;

	close(holder->socket);
	waitpid(holder->pid, &status, 0);
	return status;
}

UNIT_CTX(test_taken_back)
{
	struct tmesh_reclaim_report report = {.size = sizeof(report)};
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region, *late;
	struct holder holder = spawn();
	struct tmesh_error told = {0};
	struct order what;
	char pid[16];

	region = make(*state, &what.ino);
	hold(&holder, region, &what);
	assert_int_equal(tmesh_region_events(region), 0);
	assert_int_equal(tmesh_region_reclaim(region, 1000000, &report, &told), -ETIMEDOUT);
	snprintf(pid, sizeof(pid), "%d (", (int)holder.pid);
	if (!strstr(told.message, pid))
		fail_msg("\"%s\" does not name %s", told.message, pid);
	assert_refused(tmesh_region_open(*state, what.text, RW, &late, err), -ENOENT, "no such");
	assert_refused(tmesh_region_token(region, RW, what.text, err), -ESTALE, "taken back");
	assert_ok(tmesh_region_info(region, &info, err));
	assert_true(info.revoked);
	assert_int_equal(write(holder.socket, "t", 1), 1);
	assert_ok(tmesh_region_reclaim(region, -1, &report, err));
	assert_int_equal(end_of(&holder), 0);
	assert_int_equal(tmesh_region_events(region), TMESH_EVENT_TAKEN | TMESH_EVENT_ALONE);
	tmesh_region_unref(region);
}

static void interrupt(int number)
{
}

/* A signal ends the wait, and nothing else: the region is taken back, and another wait may follow.
 */
/* A token that holds ends with the others, also one that was opened before: no process gets the
 * descriptor. */
UNIT_CTX(test_held_and_taken_back)
{
	struct tmesh_flushed left = {.size = sizeof(left)};
	struct tmesh_region *region, *opened;
	char used[TMESH_TOKEN_SIZE], fresh[TMESH_TOKEN_SIZE];
	unsigned int before;
	ino_t ino;

	region = make(*state, &ino);
	assert_ok(tmesh_region_hold(region, RW, 0, used, err));
	assert_ok(tmesh_region_open(*state, used, RW, &opened, err));
	tmesh_region_unref(opened);
	assert_ok(tmesh_region_hold(region, TMESH_READ, 0, fresh, err));
	assert_ok(tmesh_region_reclaim(region, 0, NULL, err));
	assert_refused(tmesh_region_open(*state, used, RW, &opened, err), -ENOENT, "released");
	before = unit_open_fds();
	assert_refused(tmesh_region_open(*state, fresh, TMESH_READ, &opened, err), -ENOENT,
		       "released");
	assert_refused(tmesh_region_hold(region, RW, 0, fresh, err), -ESTALE, "taken back");
	assert_int_equal(unit_open_fds(), before);
	/* No process waits at its end for holds of a region that was taken back. */
	assert_ok(tmesh_ctx_flush(*state, -1, &left, err));
	assert_int_equal(left.held, 0);
	tmesh_region_unref(region);
}

UNIT_CTX(test_reclaim_interrupted)
{
	struct tmesh_reclaim_report report = {.size = sizeof(report)};
	struct itimerval often = {{0, 10000}, {0, 10000}}, never = {0};
	const struct sigaction act = {.sa_handler = interrupt};
	struct tmesh_region *region;
	struct holder holder = spawn();
	struct order what;

	region = make(*state, &what.ino);
	hold(&holder, region, &what);
	/* The handler stays: another thread may still have the last of them before it. */
	sigaction(SIGALRM, &act, NULL);
	/* Again and again, as the first may come before the wait begins. */
	setitimer(ITIMER_REAL, &often, NULL);
	assert_refused(tmesh_region_reclaim(region, -1, &report, err), -EINTR, "reclaim");
	setitimer(ITIMER_REAL, &never, NULL);
	assert_int_equal(tmesh_region_events(region), TMESH_EVENT_TAKEN);
	assert_int_equal(write(holder.socket, "t", 1), 1);
	assert_ok(tmesh_region_reclaim(region, -1, &report, err));
	assert_int_equal(end_of(&holder), 0);
	tmesh_region_unref(region);
}

UNIT_CTX(test_holder_killed)
{
	struct holder holder = spawn();
	struct tmesh_region *region;
	struct pollfd poller;
	struct order what;
	short wait;

	region = make(*state, &what.ino);
	hold(&holder, region, &what);
	poller.fd = tmesh_region_poll_fd(region, TMESH_EVENT_ALONE, &wait, NULL);
	poller.events = wait;
	assert_int_equal(poll(&poller, 1, 0), 0);
	kill(holder.pid, SIGKILL);
	assert_int_equal(poll(&poller, 1, 600000), 1);
	assert_int_equal(tmesh_region_events(region), TMESH_EVENT_ALONE);
	end_of(&holder);
	tmesh_region_unref(region);
}

UNIT_CTX(test_maker_gone)
{
	struct holder holder = spawn();
	struct tmesh_region *region;
	struct order what;

	region = make(*state, &what.ino);
	hold(&holder, region, &what);
	tmesh_region_unref(region);
	assert_int_equal(write(holder.socket, "o", 1), 1);
	assert_int_equal(end_of(&holder), 0);
}

/* Children of either side live on and keep no process waiting for them. */
UNIT_CTX(test_forked)
{
	struct holder forks = spawn(), waits = spawn();
	struct tmesh_region *region;
	struct pollfd poller;
	struct order what;
	short wait;
	pid_t child;

	region = make(*state, &what.ino);
	hold(&forks, region, &what);
	poller.fd = tmesh_region_poll_fd(region, TMESH_EVENT_ALONE, &wait, NULL);
	poller.events = wait;
	assert_int_equal(write(forks.socket, "f", 1), 1);
	assert_int_equal(poll(&poller, 1, 600000), 1);
	assert_int_equal(tmesh_region_events(region), TMESH_EVENT_ALONE);
	hold(&waits, region, &what);
	child = fork();
	if (child == 0) {
		pause();
		unit_leave(1);
	}
	tmesh_region_unref(region);
	assert_int_equal(write(waits.socket, "o", 1), 1);
	assert_int_equal(end_of(&waits), 0);
	assert_int_equal(end_of(&forks), 0);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

/* More who ask than the server keeps connections for: whose it dropped asks by another one. */
UNIT_CTX(test_many_ask)
{
	struct tmesh_region *region, *opened;
	struct tmesh_ctx *clients[70];
	char text[TMESH_TOKEN_SIZE];
	ino_t ino;

	region = make(*state, &ino);
	token(region, RW, text);
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < 70; i++) {
			if (!round)
				assert_ok(tmesh_ctx_open(NULL, &clients[i], err));
			assert_ok(tmesh_region_open(clients[i], text, RW, &opened, err));
			tmesh_region_unref(opened);
		}
	for (int i = 0; i < 70; i++)
		tmesh_ctx_unref(clients[i]);
	tmesh_region_unref(region);
}

/* An inherited descriptor is not the child's own, to be let go of once more where it forks itself.
 */
UNIT_CTX(test_forked_again)
{
	struct tmesh_error why = {0};
	struct tmesh_region *region;
	int status;
	pid_t child;
	short wait;
	ino_t ino;

	/* Nor is what is gone by then. */
	tmesh_region_unref(make(*state, &ino));
	region = make(*state, &ino);
	child = fork();
	if (child == 0) {
		signal(SIGALRM, SIG_DFL);
		alarm(600);
		if (tmesh_region_poll_fd(region, TMESH_EVENT_ALONE, &wait, &why) != -EPERM ||
		    why.code != -EPERM)
			unit_leave(2);
		tmesh_region_unref(region);
		region = make(*state, &ino);
		child = fork();
		if (child == 0)
			unit_leave(0);
		if (waitpid(child, &status, 0) != child || status || ino_of(region) != ino ||
		    tmesh_region_events(region) != TMESH_EVENT_ALONE)
			unit_leave(1);
		unit_leave(0);
	}
	join_child(child);
	assert_true(ino_of(region) == ino);
	tmesh_region_unref(region);
}

UNIT_MAIN("opaque", unit_memfd_setup, NULL)
