// SPDX-License-Identifier: MIT
/* The engine's process: accept clients, take their turns and drop them. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "process.h"

/* After a request the next one usually comes soon, and sleeping costs both sides more than this. */
#define SPIN_NS UINT64_C(200000)
/* The interval of looks for new and gone clients while the process is awake. */
#define LOOK_NS UINT64_C(1000000)
#define MAX_FILES 65536
/* Descriptors that belong to no client. */
#define OWN_FILES 256
/* The pause in accepting when there is no descriptor for a connection. */
#define REST_MS 100
#define REST_NS (REST_MS * UINT64_C(1000000))

struct server {
	const struct options *options;
	const struct shared *shared;
	struct service service;
	int listener;
	int spare;		 /* a descriptor to free for refusing a client; -1: none */
	uint64_t rests;		 /* no connection is accepted until then */
	struct client **clients; /* options->clients entries */
	struct pollfd *fds;	 /* the listener, the question, then two for each client */
	uint32_t count, first;	 /* @first: the client that begins the next round */
};
#define FIXED 2 /* of fds */

static void drop(struct server *server, uint32_t i)
{
	calls_busy(server->service.calls);
	client_free(server->clients[i]);
	server->clients[i] = server->clients[--server->count];
	server->shared->status->clients = server->count;
	calls_idle(server->service.calls);
}

/* Take one request of each client that has one. Return whether there was any. */
static bool round_of_turns(struct server *server)
{
	uint32_t count = server->count;
	bool any = false;

	server->first = count ? (server->first + 1) % count : 0;
	for (uint32_t n = 0; n < count && server->count; n++) {
		uint32_t i = (server->first + n) % server->count;
		int rc = client_turn(server->clients[i]);

		any |= rc;
		if (rc < 0)
			drop(server, i);
	}
	return any;
}

/* Refuse a client for which there is no descriptor: else poll() would report it again at once. */
static void accept_failed(struct server *server)
{
	int fd;

	if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS)
		return;
	if (server->spare >= 0)
		close(server->spare);
	fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0)
		client_refuse(fd, -EMFILE,
			      "the engine has no descriptor left: give tmesh-engine more open "
			      "files (ulimit -n) or fewer --clients");
	else
		server->rests = tmesh_now_ns() + REST_NS;
	server->spare = dup(server->listener);
	if (server->spare < 0)
		server->rests = tmesh_now_ns() + REST_NS;
}

static void server_accept(struct server *server)
{
	struct tmesh_error err = {0};
	struct ucred peer;
	socklen_t size = sizeof(peer);
	int fd, rc;

	/* Keep a spare descriptor, so that a client can be refused instead of left waiting. */
	if (server->spare < 0)
		server->spare = dup(server->listener);
	fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0) {
		accept_failed(server);
		return;
	}
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.uid != geteuid()) {
		client_refuse(fd, -EACCES, "the engine is another user's");
		return;
	}
	if (server->count == server->options->clients) {
		char message[128];

		snprintf(message, sizeof(message),
			 "the engine has %u clients, as many as it takes (--clients)",
			 server->count);
		client_refuse(fd, -EBUSY, message);
		return;
	}
	rc = client_new(&server->service, fd, &server->clients[server->count], &err);
	if (!rc)
		server->shared->status->clients = ++server->count;
	else if (rc != -EPIPE)
		fprintf(stderr, "tmesh-engine: a client could not be taken: %s\n", err.message);
}

/* Look for new clients, gone clients and requests, for at most @timeout ms. */
static void server_look(struct server *server, int timeout)
{
	bool rests = server->rests > tmesh_now_ns();
	uint32_t count = server->count;
	uint64_t asked;
	int found;

	server->fds[0] = (struct pollfd){.fd = rests ? -1 : server->listener, .events = POLLIN};
	server->fds[1] = (struct pollfd){.fd = server->shared->wake, .events = POLLIN};
	for (uint32_t i = 0; i < count; i++) {
		struct pollfd *fds = &server->fds[FIXED + 2 * i];

		fds[0] = (struct pollfd){.fd = client_notifier(server->clients[i]),
					 .events = POLLIN};
		fds[1] = (struct pollfd){.fd = client_socket(server->clients[i]),
					 .events = POLLRDHUP};
	}
	if (timeout < 0)
		calls_sleep(server->service.calls);
	found = poll(server->fds, FIXED + 2 * count, rests && timeout < 0 ? REST_MS : timeout);
	/* Wake the supervisor before any work: it sleeps as long as this process. */
	if (timeout < 0)
		calls_wake(server->service.calls);
	if (found <= 0)
		return;
	/* Being awake answers the supervisor's question. */
	if (server->fds[1].revents && read(server->shared->wake, &asked, sizeof(asked)) < 0)
		errno = 0;
	/* Backwards, because drop() moves the last client to the free index. The second thread
	 * reads from the client's socket. */
	for (uint32_t i = count; i--;)
		if (server->fds[FIXED + 2 * i + 1].revents)
			drop(server, i);
	if (server->fds[0].revents) {
		calls_busy(server->service.calls);
		server_accept(server);
		calls_idle(server->service.calls);
	}
}

static _Noreturn void loop(struct server *server)
{
	struct watch *watch = server->shared->watch;
	uint64_t busy = tmesh_now_ns(), looked = 0;

	for (;;) {
		bool any = round_of_turns(server);
		uint64_t now = tmesh_now_ns();

		if (any)
			busy = now;
		if (now - looked >= LOOK_NS) {
			server_look(server, 0);
			looked = now;
			atomic_fetch_add(&watch->beat, 1);
		} else if (!any && now - busy >= SPIN_NS) {
			server_look(server, -1);
			busy = looked = tmesh_now_ns();
		}
	}
}

static _Noreturn void give_up(int ready, int status, int code, const struct tmesh_error *err)
{
	struct ready words = {.status = status, .code = code};

	snprintf(words.why, sizeof(words.why), "%.*s", (int)sizeof(words.why) - 1, err->message);
	if (write(ready, &words, sizeof(words)) < 0)
		_exit(2);
	_exit(1);
}

static rlim_t files_of(struct rlimit *files)
{
	if (getrlimit(RLIMIT_NOFILE, files))
		files->rlim_max = 1024;
	return files->rlim_max < MAX_FILES ? files->rlim_max : MAX_FILES;
}

size_t serve_regions(const struct options *options)
{
	struct rlimit files;
	rlim_t most = files_of(&files);
	size_t room = most > OWN_FILES ? most - OWN_FILES : 1;

	/* Channels need descriptors too, and a region may have more than one. Idle sessions may
	 * keep as many regions open as one client. */
	return room / (2 * ((size_t)options->clients + 1));
}

/* Raise the limit of descriptors for the memory that clients hand over. */
static void raise_files(void)
{
	struct rlimit files;

	files.rlim_cur = files_of(&files);
	files.rlim_max = files.rlim_cur;
	setrlimit(RLIMIT_NOFILE, &files);
}

/* Make the socket for this process's own tokens, and the thread that answers there. */
static int open_tokens(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	const struct tmesh_channel_opts opts = {.size = sizeof(opts), .regions = 1, .layouts = 1};
	struct tmesh_channel *channel;
	char token[TMESH_TOKEN_SIZE];
	int rc = tmesh_channel_create(ctx, TMESH_CHANNEL_RECV, &opts, &channel, err);

	if (rc)
		return rc;
	rc = tmesh_channel_token(channel, token, err);
	tmesh_channel_unref(channel);
	return rc;
}

static int open_context(struct server *server, struct tmesh_error *err)
{
	char folder[32];
	struct tmesh_ctx_opts opts = {.size = sizeof(opts),
				      .runtime_dir = folder,
				      .timeout_ns = server->options->patience_ns,
				      .connect = broker_connect};
	struct broker *broker;
	int rc = broker_new(server->shared->broker, &broker, err);

	if (rc)
		return rc;
	opts.connect_data = broker;
	/* The library refuses a folder that is a link, so end the path with a dot. */
	snprintf(folder, sizeof(folder), "/proc/self/fd/%d/.", server->shared->folder);
	return tmesh_ctx_open(&opts, &server->service.ctx, err);
}

/* Confine the process. The order matters: no thread may start before Landlock binds it, the token's
 * socket is made under Landlock, and no socket can be made after the filter. */
static int enclose(struct server *server, struct tmesh_error *err)
{
	bool confined = !server->options->unconfined;
	unsigned int proved;
	int rc;

	rc = shed_rights(confined, err);
	if (!rc)
		rc = open_context(server, err);
	if (!rc && confined)
		rc = confine(server->options, server->shared->folder, err);
	if (!rc)
		rc = open_tokens(server->service.ctx, err);
	if (!rc && confined)
		rc = prove_rights(err);
	if (!rc && confined)
		rc = filter_calls(err);
	if (!rc && confined)
		rc = prove_confined(&proved, err);
	return rc;
}

_Noreturn void serve(const struct options *options, int listener, int ready,
		     const struct shared *shared)
{
	struct tmesh_engine_context_opts opts = {.size = sizeof(opts),
						 .library = options->library,
						 .threads = options->threads,
						 .sessions = options->sessions};
	struct server server = {.options = options, .listener = listener, .shared = shared};
	const struct ready words = {0};
	struct tmesh_error err = {0};
	int rc;

	prctl(PR_SET_NAME, "tmesh-engine-io", 0, 0, 0);
	server.service.max_regions = serve_regions(options);
	server.service.patience_ns = options->patience_ns;
	opts.session_regions = (uint32_t)server.service.max_regions;
	raise_files();
	server.spare = dup(listener);
	server.clients = calloc(options->clients, sizeof(*server.clients));
	server.fds = calloc(FIXED + 2 * (size_t)options->clients, sizeof(*server.fds));
	if (!server.clients || !server.fds) {
		rc = tmesh_fail(&err, -ENOMEM, "no memory for %u clients", options->clients);
		give_up(ready, 1, rc, &err);
	}
	rc = enclose(&server, &err);
	if (rc == -ENOTSUP)
		give_up(ready, EXIT_UNCONFINED, rc, &err);
	if (!rc)
		rc = tmesh_engine_context_create(server.service.ctx, options->backend, &opts,
						 &server.service.context, &err);
	if (!rc)
		rc = calls_new(shared, options->limit_ns, &server.service.calls, &err);
	if (rc)
		give_up(ready, 1, rc, &err);
	snprintf(shared->status->backend, sizeof(shared->status->backend), "%s",
		 tmesh_engine_context_backend(server.service.context));
	snprintf(shared->status->version, sizeof(shared->status->version), "%s",
		 tmesh_engine_context_version(server.service.context));
	if (write(ready, &words, sizeof(words)) < 0)
		_exit(1);
	close(ready);
	loop(&server);
}
