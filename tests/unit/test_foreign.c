// SPDX-License-Identifier: MIT
/*
 * Files whose server does not answer, handed over where memory is due: no call waits to close them,
 * and not many of them wait in one process.
 */
#include "memfd.h"
#include "strangers.h"
#include "unanswered.h"
#include "watch.h"

/* Until no more may be taken; whatever else is handed over then has to wait, and says for what. */
UNIT_ADD(test_bound, server_start, server_end)
{
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	int memory = memfd(16384, F_SEAL_SHRINK | F_SEAL_GROW), pair[2];
	struct tmesh_region *region;
	struct tmesh_foreign_file nothing;
	unsigned int before, most = 0;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	before = unit_open_fds();
	while (tmesh_foreign_room_at(pair[1])) {
		send_fds(pair[0], &good, sizeof(good), server.fd, 3);
		assert_refused(tmesh_region_recv(ctx, pair[1], &region, err), -EPROTO,
			       "something else than");
		most += 3;
		assert_int_equal(server_files(), most);
	}
	assert_true(most < TMESH_FOREIGN_OF_PROCESS + TMESH_WIRE_FDS);
	for (int i = 0; i < 1000; i++) {
		send_fds(pair[0], &good, sizeof(good), i % 2 ? server.fd : memory, 1 + i % 253);
		assert_refused(tmesh_region_recv(ctx, pair[1], &region, err), -EMFILE,
			       "servers of files that peers sent");
	}
	assert_int_equal(server_files(), most);
	/* Which is no reason for anything else. */
	errno = EACCES;
	assert_int_equal(tmesh_foreign_fail_errno(NULL, "opening it", tmesh_giver_at(pair[1])),
			 -EACCES);
	assert_false(tmesh_foreign_look(-1, "", &nothing));
	server_answers();
	assert_int_equal(unit_open_fds(), before);
	assert_int_equal(server.asked, most);
	send_fds(pair[0], &good, sizeof(good), memory, 1);
	assert_ok(tmesh_region_recv(ctx, pair[1], &region, err));
	tmesh_region_unref(region);
	close(memory);
	close(pair[0]);
	close(pair[1]);
	tmesh_ctx_unref(ctx);
}

/* A socket to another machine stands for one whose close() waits, by SO_LINGER. */
static int socket_start(void **state)
{
	return server_start_with(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

/* The sender of a TCP socket can make its close() wait for another machine. This thread does not
 * wait, as for a file that a process serves. */
UNIT_ADD(test_sockets, socket_start, server_end)
{
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	unsigned int before = unit_open_fds();
	struct tmesh_region *region;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	assert_true(tmesh_foreign_may_be_served(server.fd));
	assert_false(tmesh_foreign_may_be_served(pair[0]));
	send_fds(pair[0], &good, sizeof(good), server.fd, 3);
	assert_refused(tmesh_region_recv(ctx, pair[1], &region, err), -EPROTO,
		       "something else than");
	assert_int_equal(server_files(), 3);
	server_answers();
	assert_int_equal(server.asked, 3);
	close(pair[0]);
	close(pair[1]);
	assert_int_equal(unit_open_fds(), before);
	tmesh_ctx_unref(ctx);
}

static void give_files(tmesh_giver giver, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		tmesh_foreign_close(fcntl(server.fd, F_DUPFD_CLOEXEC, 0), giver);
}

/* Each process and each user has a part of its own. */
UNIT_ADD(test_parts, server_start, server_end)
{
	const pid_t processes = TMESH_FOREIGN_OF_USER / TMESH_FOREIGN_OF_PROCESS;
	const uid_t users = TMESH_FOREIGN_MOST / TMESH_FOREIGN_OF_USER;
	unsigned int before = unit_open_fds();

	give_files(tmesh_giver_of(0, 1), TMESH_FOREIGN_OF_PROCESS - 1);
	assert_true(tmesh_foreign_room(tmesh_giver_of(0, 1)));
	give_files(tmesh_giver_of(0, 1), 1);
	assert_false(tmesh_foreign_room(tmesh_giver_of(0, 1)));
	assert_true(tmesh_foreign_room(tmesh_giver_of(0, 2)));
	assert_true(tmesh_foreign_room(TMESH_GIVER_UNKNOWN));
	for (pid_t pid = 2; pid <= processes; pid++)
		give_files(tmesh_giver_of(0, pid), TMESH_FOREIGN_OF_PROCESS);
	assert_false(tmesh_foreign_room(tmesh_giver_of(0, processes + 1)));
	assert_false(tmesh_foreign_room(TMESH_GIVER_UNKNOWN));
	assert_true(tmesh_foreign_room(tmesh_giver_of(1, 1)));
	for (uid_t uid = 1; uid < users; uid++)
		give_files(tmesh_giver_of(uid, 1), TMESH_FOREIGN_OF_USER);
	assert_false(tmesh_foreign_room(tmesh_giver_of(users, 1)));
	/* A message keeps what was on its way then. */
	give_files(tmesh_giver_of(users, 1), 3);
	assert_int_equal(server_files(), TMESH_FOREIGN_MOST + 3);
	server_answers();
	assert_int_equal(unit_open_fds(), before);
	assert_true(tmesh_foreign_room(tmesh_giver_of(0, 1)));
	assert_int_equal(tmesh_giver_at(server.fd), TMESH_GIVER_UNKNOWN);
}

/* A pair's end of another process, which sends memory by the other one. */
static int pair_of(int memory, pid_t *child)
{
	int ends[2], pair[2], fd;
	char byte;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	*child = fork();
	if (!*child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
			_exit(1);
		send_fds(ends[1], "", 1, pair[0], 1);
		send_fds(pair[1], &good, sizeof(good), memory, 1);
		pause();
	}
	assert_int_equal(tmesh_wire_recv(ends[0], &byte, 1, &fd, 1,
					 tmesh_now_ns() + PATIENT_MS * UINT64_C(1000000)),
			 1);
	close(ends[0]);
	close(ends[1]);
	return fd;
}

/* A gift of one context takes nothing from another. */
UNIT_ADD(test_others, server_start, server_end)
{
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	int memory = memfd(16384, F_SEAL_SHRINK | F_SEAL_GROW), pair[2], other;
	struct tmesh_region *region;
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	other = pair_of(memory, &child);
	while (tmesh_foreign_room_at(pair[1])) {
		send_fds(pair[0], &good, sizeof(good), server.fd, 3);
		assert_refused(tmesh_region_recv(ctx, pair[1], &region, err), -EPROTO,
			       "something else than");
	}
	assert_ok(tmesh_region_recv(ctx, other, &region, err));
	tmesh_region_unref(region);
	server_answers();
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	close(other);
	close(pair[0]);
	close(pair[1]);
	close(memory);
	tmesh_ctx_unref(ctx);
}

/* A server of tokens takes no descriptors at all: none is there to be closed. */
UNIT_ADD(test_requests, server_start, server_end)
{
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	struct tmesh_wire_request request = {
		.magic = TMESH_MAGIC_REQUEST,
		.version = TMESH_WIRE_VERSION,
		.rights = TMESH_READ,
	};
	struct tmesh_region *region = new_region(ctx, 10);
	char token[TMESH_TOKEN_SIZE], answer[256];

	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	for (int i = 0; i < 100; i++) {
		int conn = dial(token);

		send_fds(conn, &request, sizeof(request), server.fd, 4);
		errno = 0;
		assert_true(recv(conn, answer, sizeof(answer), 0) <= 0 && errno != EAGAIN);
		close(conn);
	}
	assert_int_equal(server.asked, 0);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* Nor does the module's backend ask what a file is that is no handle. */
UNIT_ADD(test_no_handle, server_start, server_end)
{
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	struct tmesh_region *region = new_region(ctx, 10), *given;

	given = calloc(1, sizeof(*given));
	assert_refused(tmesh_kernel_ops.adopt(given, &server.fd, &good, err), -EPROTO, "no handle");
	assert_refused(tmesh_kernel_ops.adopt(given, &region->fd, &good, err), -EPROTO,
		       "no handle");
	free(given);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

struct producer {
	int listener;
	int memory;
	uint32_t version;
	unsigned int files;
	pthread_t thread;
};

/* Gives a region, and perhaps the file for its index. */
static void *produce(void *data)
{
	struct producer *producer = data;
	struct tmesh_wire_reply reply = {
		.magic = TMESH_MAGIC_REPLY,
		.version = producer->version,
		.region = good,
	};
	const int fds[] = {producer->memory, server.fd};
	int conn = accept(producer->listener, NULL, NULL);
	char request[256];

	while (recv(conn, request, sizeof(request), 0) > 0) {
		reply.index++;
		assert_int_equal(
			tmesh_wire_send(conn, &reply, sizeof(reply), fds, producer->files, 0), 0);
	}
	close(conn);
	return NULL;
}

static void ask_producer(uint32_t version, unsigned int files, const char *word)
{
	static const char name[] = "00112233445566778899aabbccddeefa";
	struct tmesh_ctx *ctx = context(NULL, PATIENT_MS);
	struct producer producer = {
		.memory = memfd(16384, F_SEAL_SHRINK | F_SEAL_GROW),
		.version = version,
		.files = files,
	};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_region *region;
	unsigned int before;

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", unit_runtime_dir(), name);
	snprintf(token, sizeof(token), "tm1m-%s-%s", name, name);
	producer.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(producer.listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(producer.listener, 4), 0);
	before = unit_open_fds();
	pthread_create(&producer.thread, NULL, produce, &producer);
	assert_refused(tmesh_region_open(ctx, token, TMESH_READ, &region, err), -EPROTO, word);
	tmesh_watch_stop(ctx);
	tmesh_peers_drop(ctx);
	pthread_join(producer.thread, NULL);
	server_answers();
	assert_int_equal(server.asked, files > 1);
	assert_int_equal(unit_open_fds(), before);
	close(producer.listener);
	close(producer.memory);
	unlink(address.sun_path);
	tmesh_ctx_unref(ctx);
}

/* A file that may be served makes an answer malformed, and is closed without waiting. */
UNIT_ADD(test_index, server_start, server_end)
{
	ask_producer(TMESH_WIRE_VERSION, 2, "malformed answer");
}

UNIT_ADD(test_other_release, server_start, server_end)
{
	ask_producer(TMESH_WIRE_VERSION + 1, 1, "another release of tmesh");
}

/*
 * A child does not wait for the descriptors of its parent, and takes others as before. It answers
 * by the signal that ends it: valgrind turns an exit into a failure, because the child has lost
 * what the parent's threads hold on their stacks.
 */
UNIT_ADD(test_forked, server_start, server_end)
{
	tmesh_giver giver = tmesh_giver_of(geteuid(), getpid());
	int status;
	pid_t child;

	for (int i = 0; i < TMESH_FOREIGN_OF_PROCESS; i++)
		tmesh_foreign_close(fcntl(server.fd, F_DUPFD_CLOEXEC, 0), giver);
	assert_false(tmesh_foreign_room(giver));
	child = fork();
	if (!child)
		raise(tmesh_foreign_room(giver) ? SIGUSR1 : SIGUSR2);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGUSR1);
	assert_false(tmesh_foreign_room(giver));
	server_answers();
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	mkdir(unit_runtime_dir(), 0700);
	return UNIT_RUN("foreign", NULL, NULL);
}
