// SPDX-License-Identifier: MIT
/* The engine's process: clients come, have their turns, and go. */
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

/* After a request the next one is near: sleeping costs both sides more than this. */
#define SPIN_NS UINT64_C(200000)
/* While it does not sleep it looks so often for who came and who went. */
#define LOOK_NS UINT64_C(1000000)
#define MAX_FILES 65536
/* Descriptors that are nobody's. */
#define OWN_FILES 256

struct server {
	const struct options *options;
	struct tmesh_ctx *ctx;
	struct tmesh_engine_context *context;
	int listener;
	struct watch *watch;
	struct calls *calls;
	struct client **clients; /* options->clients of them */
	struct pollfd *fds;	 /* the listener, then two for each client */
	uint32_t count, first;	 /* who is first in the next round */
	size_t max_regions;	 /* of one client */
};

static void drop(struct server *server, uint32_t i)
{
	client_free(server->clients[i]);
	server->clients[i] = server->clients[--server->count];
	server->watch->status->clients = server->count;
}

/* One request of each client that has one. Return: whether there was any. */
static bool round_of_turns(struct server *server)
{
	uint32_t count = server->count;
	bool any = false;

	server->first = count ? (server->first + 1) % count : 0;
	for (uint32_t n = 0; n < count && server->count; n++) {
		uint32_t i = (server->first + n) % server->count;
		int rc = client_turn(server->clients[i], server->options->limit_ns);

		any |= rc;
		if (rc < 0)
			drop(server, i);
	}
	return any;
}

static void take(struct server *server)
{
	int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct tmesh_error err = {0};
	struct ucred peer;
	socklen_t size = sizeof(peer);
	int rc;

	if (fd < 0)
		return;
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
	rc = client_new(server->ctx, server->context, server->calls, fd, server->max_regions,
			&server->clients[server->count], &err);
	if (!rc)
		server->watch->status->clients = ++server->count;
	else if (rc != -EPIPE)
		fprintf(stderr, "tmesh-engine: a client could not be taken: %s\n", err.message);
}

/* Who came, who went; and what there is to do, within @timeout ms. */
static void look(struct server *server, int timeout)
{
	uint32_t count = server->count;

	server->fds[0] = (struct pollfd){.fd = server->listener, .events = POLLIN};
	for (uint32_t i = 0; i < count; i++) {
		server->fds[1 + 2 * i] =
			(struct pollfd){.fd = client_bell(server->clients[i]), .events = POLLIN};
		server->fds[2 + 2 * i] = (struct pollfd){.fd = client_socket(server->clients[i]),
							 .events = POLLRDHUP};
	}
	if (poll(server->fds, 1 + 2 * count, timeout) <= 0)
		return;
	/* From behind: the last one takes the place of who is dropped. What a client says on its
	 * socket is the other thread's to hear. */
	for (uint32_t i = count; i--;)
		if (server->fds[2 + 2 * i].revents)
			drop(server, i);
	if (server->fds[0].revents)
		take(server);
}

static void loop(struct server *server)
{
	uint64_t busy = tmesh_now_ns(), looked = 0;
	const uint64_t one = 1;

	for (;;) {
		bool any = round_of_turns(server);
		uint64_t now = tmesh_now_ns();

		if (any)
			busy = now;
		if (now - looked >= LOOK_NS) {
			look(server, 0);
			looked = now;
		} else if (!any && now - busy >= SPIN_NS) {
			look(server, -1);
			busy = looked = tmesh_now_ns();
			/* The supervisor watches again. */
			if (write(server->watch->bell, &one, sizeof(one)) < 0)
				_exit(1);
		}
	}
}

static _Noreturn void give_up(int ready, const struct tmesh_error *err)
{
	if (write(ready, err->message, strlen(err->message)) < 0)
		_exit(2);
	_exit(1);
}

/* Rights that an engine has no use for, and descriptors enough for what clients show it. */
static void limit(struct server *server)
{
	struct rlimit files, none = {0, 0};

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	/* Others' weights are not to be written to a disk. */
	setrlimit(RLIMIT_CORE, &none);
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max < MAX_FILES ? files.rlim_max : MAX_FILES;
	files.rlim_max = files.rlim_cur;
	setrlimit(RLIMIT_NOFILE, &files);
	server->max_regions = files.rlim_cur > OWN_FILES ? files.rlim_cur - OWN_FILES : 1;
	/* A channel needs some, too, and a region may have more than one. */
	server->max_regions /= 2 * server->options->clients;
}

_Noreturn void serve(const struct options *options, int listener, int ready, struct watch *watch)
{
	struct tmesh_ctx_opts ctx_opts = {.size = sizeof(ctx_opts),
					  .timeout_ns = options->patience_ns};
	struct tmesh_engine_context_opts opts = {.size = sizeof(opts),
						 .library = options->library,
						 .threads = options->threads,
						 .sessions = options->sessions};
	struct server server = {.options = options, .listener = listener, .watch = watch};
	struct tmesh_error err = {0};
	const char *why = NULL, *why_calls = NULL;
	int rc;

	prctl(PR_SET_NAME, "tmesh-engine-io", 0, 0, 0);
	limit(&server);
	server.clients = calloc(options->clients, sizeof(*server.clients));
	server.fds = calloc(1 + 2 * (size_t)options->clients, sizeof(*server.fds));
	if (!server.clients || !server.fds) {
		tmesh_fail(&err, -ENOMEM, "no memory for %u clients", options->clients);
		give_up(ready, &err);
	}
	rc = tmesh_ctx_open(&ctx_opts, &server.ctx, &err);
	/* Before the engine's library starts threads. */
	if (!rc && !options->unconfined)
		rc = confine(options, server.ctx, &why, &err);
	if (!rc && !options->unconfined)
		rc = filter_calls(&why_calls, &err);
	if (!rc)
		rc = tmesh_engine_context_create(server.ctx, options->backend, &opts,
						 &server.context, &err);
	if (!rc)
		rc = calls_new(watch, &server.calls, &err);
	if (rc)
		give_up(ready, &err);
	snprintf(watch->status->backend, sizeof(watch->status->backend), "%s",
		 tmesh_engine_context_backend(server.context));
	snprintf(watch->status->version, sizeof(watch->status->version), "%s",
		 tmesh_engine_context_version(server.context));
	if (why)
		fprintf(stderr, "tmesh-engine: %s\n", why);
	if (why_calls)
		fprintf(stderr, "tmesh-engine: %s\n", why_calls);
	if (write(ready, "", 1) < 0)
		_exit(1);
	close(ready);
	loop(&server);
	_exit(0);
}
