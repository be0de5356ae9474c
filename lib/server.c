// SPDX-License-Identifier: MIT
/*
 * Server: answers for the tokens of one context's memfd regions, on a thread that starts with the
 * first token. It never waits for a client. Sockets do not block, requests and replies are one
 * packet each, and a client that does not take its reply is disconnected.
 *
 * Clients keep their connection. If there are too many, the one that was idle for longest is
 * closed, and its client connects again.
 */
#include "held.h"
#include "memfd.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CLIENTS 64
#define INDEX_SLOTS 256
#define EVENTS 16
#define REST_US 10000
/* So often at most it is looked whether the socket is still there: a token often costs less. */
#define LOOK_NS 100000000u

/* The number that epoll returns for a descriptor: a client's place, or one of these. */
enum {
	EVENT_LISTENER = CLIENTS,
	EVENT_STOP,
};

struct client {
	int fd; /* -1: free */
	uint64_t used;
};

/* Guarded by ctx->lock, which the thread holds but while it waits for events. */
struct tmesh_server {
	struct tmesh_ctx *ctx;
	uint8_t name[16];
	char path[33]; /* in the runtime directory */
	int listener;
	int epoll;
	int stop;
	bool bound;
	uid_t uid;    /* whose directory it is in */
	bool starved; /* of descriptors */
	pthread_t thread;
	struct tmesh_index *index;
	uint64_t linked; /* the index that strangers are shown */
	uint64_t looked; /* when the socket was found in its place */
	uint64_t clock;	 /* counts requests, to find the client unused for longest */
	struct client clients[CLIENTS];
};

static void drop(struct client *client)
{
	close(client->fd);
	client->fd = -1;
}

static struct client *oldest(struct tmesh_server *server)
{
	struct client *found = NULL;

	for (int i = 0; i < CLIENTS; i++) {
		struct client *client = &server->clients[i];

		if (client->fd >= 0 && (!found || client->used < found->used))
			found = client;
	}
	return found;
}

static struct client *free_place(struct tmesh_server *server)
{
	for (int i = 0; i < CLIENTS; i++)
		if (server->clients[i].fd < 0)
			return &server->clients[i];
	drop(oldest(server));
	return free_place(server);
}

static bool served_find(struct tmesh_server *server, const uint8_t *secret,
			struct tmesh_served *found)
{
	const struct tmesh_index_entry *entry = tmesh_index_find(server->index, secret);

	*found = (struct tmesh_served){.hold = entry ? NULL : tmesh_hold_find(server->ctx, secret)};
	if (entry) {
		found->region = entry->region;
		found->rights = entry->rights;
	} else if (found->hold) {
		found->region = tmesh_hold_region(found->hold);
		found->rights = tmesh_hold_rights(found->hold);
	}
	return found->region;
}

/* Return: the number of descriptors in @fds, or a negative errno. */
static int grant(const struct tmesh_served *entry, const struct tmesh_wire_request *request,
		 struct tmesh_wire_region *region, int *fds)
{
	int more = tmesh_refuse_rights(entry->region, request->rights, entry->rights, NULL);

	if (more)
		return more;
	*region = (struct tmesh_wire_region){
		.magic = TMESH_MAGIC_REGION,
		.version = TMESH_WIRE_VERSION,
		.backend = TMESH_BACKEND_MEMFD,
		.rights = request->rights,
		.kind = entry->region->kind,
		.id = entry->region->id,
		.bytes = entry->region->bytes,
	};
	fds[0] = tmesh_memfd_handle(entry->region, request->rights, NULL);
	if (fds[0] < 0)
		return fds[0];
	if (region->kind & TMESH_KIND_OPAQUE)
		more = tmesh_opaque_handles(entry->region, request->rights, &fds[1], NULL);
	if (more < 0)
		close(fds[0]);
	return more < 0 ? more : 1 + more;
}

static bool answer(struct tmesh_server *server, struct client *client,
		   const struct tmesh_wire_request *request)
{
	struct tmesh_wire_reply reply = {
		.magic = TMESH_MAGIC_REPLY,
		.version = TMESH_WIRE_VERSION,
		.index = tmesh_index_number(server->index),
	};
	struct tmesh_served entry = {.region = NULL};
	int fds[TMESH_WIRE_FDS];
	unsigned int own, count;
	int rc;

	if (request->version != TMESH_WIRE_VERSION)
		rc = -EPROTO;
	else if (tmesh_check_rights(request->rights, NULL))
		rc = -EINVAL;
	else if (!served_find(server, request->secret, &entry))
		rc = -ENOENT;
	else
		rc = grant(&entry, request, &reply.region, fds);
	own = count = rc < 0 ? 0 : (unsigned int)rc;
	if (rc < 0) {
		reply.status = rc;
		reply.index = request->index;
	} else if (request->index != reply.index) {
		fds[count++] = tmesh_index_fd(server->index);
	}
	client->used = ++server->clock;
	rc = tmesh_wire_send(client->fd, &reply, sizeof(reply), fds, count, MSG_DONTWAIT);
	for (unsigned int i = 0; i < own; i++)
		close(fds[i]);
	if (rc == 0 && own) {
		tmesh_count(server->ctx, COUNT_SERVED, 1);
		if (entry.hold)
			tmesh_hold_opened(entry.hold);
	}
	return rc == 0;
}

/* Answer a join. After it the connection is the channel's. */
static bool join(struct tmesh_server *server, struct client *client,
		 const struct tmesh_wire_request *request)
{
	const struct tmesh_index_entry *entry = tmesh_index_find(server->index, request->secret);
	struct tmesh_channel *channel = entry ? entry->region->channel : NULL;
	struct tmesh_wire_reply reply = {
		.magic = TMESH_MAGIC_REPLY,
		.version = TMESH_WIRE_VERSION,
		.status = -ENOENT,
	};
	struct tmesh_joined joined = {.count = 0};
	int fd = client->fd, rc;

	if (request->version != TMESH_WIRE_VERSION)
		reply.status = -EPROTO;
	else if (channel)
		reply.status = tmesh_channel_admit(channel, fd, request->rights, &joined);
	if (reply.status == 0) {
		epoll_ctl(server->epoll, EPOLL_CTL_DEL, fd, NULL);
		client->fd = -1;
	}
	client->used = ++server->clock;
	reply.lane = joined.lane;
	rc = tmesh_wire_send(fd, &reply, sizeof(reply), joined.fds, joined.count, MSG_DONTWAIT);
	while (joined.given--)
		close(joined.fds[--joined.count]);
	if (rc == 0)
		return true;
	if (reply.status)
		return false;
	tmesh_channel_unadmit(channel, fd);
	return true;
}

/* Serve a request. Anything else ends the connection. False: there was nothing to read. */
static bool serve(struct tmesh_server *server, struct client *client)
{
	struct tmesh_wire_request request;
	int none;
	int rc = tmesh_wire_recv(client->fd, &request, sizeof(request), &none, 0, 0);

	if (rc == -EAGAIN)
		return false;
	if (rc < 0 || request.pad ||
	    !(request.magic == TMESH_MAGIC_REQUEST ? answer(server, client, &request)
	      : request.magic == TMESH_MAGIC_JOIN  ? join(server, client, &request)
						   : false))
		drop(client);
	return true;
}

static bool same_user(int socket)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
	       peer.uid == geteuid();
}

/* Free a descriptor for the next connection: close the client's that was idle for longest. Without
 * any, let the thread rest, because the client goes on trying. */
static void accept_failed(struct tmesh_server *server)
{
	struct client *client = oldest(server);

	if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS)
		return;
	if (client)
		drop(client);
	else
		server->starved = true;
}

static void welcome(struct tmesh_server *server)
{
	int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct client *client;
	struct epoll_event event = {.events = EPOLLIN};

	if (fd < 0) {
		accept_failed(server);
		return;
	}
	if (!same_user(fd)) {
		close(fd);
		return;
	}
	client = free_place(server);
	client->fd = fd;
	client->used = ++server->clock;
	/* The request is usually there by now. */
	serve(server, client);
	if (client->fd < 0)
		return;
	event.data.u32 = (uint32_t)(client - server->clients);
	if (epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event))
		drop(client);
}

static void *server_run(void *data)
{
	struct tmesh_server *server = data;
	struct tmesh_ctx *ctx = server->ctx;
	struct epoll_event events[EVENTS];
	bool stop = false, starved = false;

	pthread_setname_np(pthread_self(), "tmesh-server");
	while (!stop) {
		int count;

		if (starved)
			usleep(REST_US);
		count = epoll_wait(server->epoll, events, EVENTS, -1);
		pthread_mutex_lock(&ctx->lock);
		server->starved = false;
		for (int i = 0; i < count; i++) {
			uint32_t who = events[i].data.u32;

			if (who == EVENT_STOP)
				stop = true;
			else if (who == EVENT_LISTENER)
				welcome(server);
			else if (server->clients[who].fd >= 0)
				serve(server, &server->clients[who]);
		}
		starved = server->starved;
		pthread_mutex_unlock(&ctx->lock);
	}
	return NULL;
}

static int watch(struct tmesh_server *server, int fd, uint32_t who)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = who};

	return epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event);
}

/* Write the link to the index beside the socket. Processes that find no link ask the server. */
static void link_index(struct tmesh_server *server)
{
	uint64_t number = tmesh_index_number(server->index);
	int rc;

	if (server->linked == number)
		return;
	server->linked = number;
	rc = tmesh_rundir_link(server->ctx->memfd.dir, server->path, tmesh_index_fd(server->index));
	if (rc)
		tmesh_log_later(server->ctx, TMESH_LOG_WARN,
				"no link to the index of tokens (errno %d): the first open by each "
				"process has to ask",
				-rc);
}

/* Report the error. The directory may belong to the user that this process had before. */
static int bind_error(const struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	char path[4096] = "", text[64];
	int rc = -errno;

	tmesh_rundir_path(ctx, path, sizeof(path), NULL);
	return tmesh_fail(err, rc,
			  "cannot make a socket in the runtime directory %.128s: %s; set "
			  "TMESH_RUNTIME_DIR to one of your own",
			  path, strerror_r(-rc, text, sizeof(text)));
}

static int bind_socket(struct tmesh_server *server, int dir, struct tmesh_error *err)
{
	struct sockaddr_un address;
	socklen_t size = tmesh_rundir_address(dir, server->path, &address);

	server->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (server->listener < 0)
		return tmesh_fail_errno(err, "cannot answer for tokens");
	if (bind(server->listener, (struct sockaddr *)&address, size))
		return bind_error(server->ctx, err);
	server->bound = true;
	server->uid = geteuid();
	if (listen(server->listener, SOMAXCONN))
		return tmesh_fail_errno(err, "listening on a socket in the runtime directory");
	if (watch(server, server->listener, EVENT_LISTENER))
		return tmesh_fail_errno(err, "watching the socket that answers for tokens");
	return 0;
}

static void unbind_socket(struct tmesh_server *server)
{
	if (server->bound)
		tmesh_rundir_remove(server->ctx->memfd.dir, server->path);
	server->bound = false;
	if (server->listener < 0)
		return;
	/* A child that was forked may have it open still. */
	epoll_ctl(server->epoll, EPOLL_CTL_DEL, server->listener, NULL);
	close(server->listener);
	server->listener = -1;
}

/*
 * Put the socket back if it is gone from the runtime directory. The end of a login session removes
 * XDG_RUNTIME_DIR, another process may empty a folder in /tmp, or this process may change its user.
 * Tokens given after that could not be opened. So the socket and its link are made anew in the
 * directory that has the path now, with the same name, which older tokens have too.
 */
static int stay_there(struct tmesh_server *server, struct tmesh_error *err)
{
	struct tmesh_ctx *ctx = server->ctx;
	bool is_there = server->bound && server->uid == geteuid();
	uint64_t now = tmesh_now_ns();
	struct stat st;
	int dir, rc;

	if (is_there && now - server->looked < LOOK_NS)
		return 0;
	server->looked = now;
	if (is_there &&
	    (!fstatat(ctx->memfd.dir, server->path, &st, AT_SYMLINK_NOFOLLOW) || errno != ENOENT))
		return 0;
	unbind_socket(server);
	if (ctx->memfd.dir >= 0)
		close(ctx->memfd.dir);
	ctx->memfd.dir = -1;
	rc = tmesh_rundir_open(ctx, &dir, err);
	if (!rc)
		rc = bind_socket(server, dir, err);
	if (rc) {
		unbind_socket(server);
		return rc;
	}
	server->linked = 0;
	link_index(server);
	tmesh_log_later(
		ctx, TMESH_LOG_WARN,
		"the socket that answers for tokens was removed from the runtime directory, and "
		"is there again");
	return 0;
}

/* Start the thread, with all signals blocked: they are the application's. */
static int start_thread(struct tmesh_server *server, struct tmesh_error *err)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&server->thread, NULL, server_run, server);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return tmesh_fail(err, -rc, "cannot start the thread that answers for tokens");
	return 0;
}

static void close_fds(struct tmesh_server *server)
{
	const int fds[] = {server->listener, server->epoll, server->stop};

	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	for (int i = 0; i < CLIENTS; i++)
		if (server->clients[i].fd >= 0)
			close(server->clients[i].fd);
}

static void server_free(struct tmesh_server *server)
{
	close_fds(server);
	if (server->bound)
		tmesh_rundir_remove(server->ctx->memfd.dir, server->path);
	if (server->index)
		tmesh_index_free(server->index);
	free(server);
}

static int start(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	struct tmesh_server *server;
	int dir;
	int rc = tmesh_rundir_open(ctx, &dir, err);

	if (rc)
		return rc;
	server = calloc(1, sizeof(*server));
	if (!server)
		return tmesh_fail(err, -ENOMEM, "no memory to answer for tokens");
	server->ctx = ctx;
	for (int i = 0; i < CLIENTS; i++)
		server->clients[i].fd = -1;
	server->listener = -1;
	server->epoll = epoll_create1(EPOLL_CLOEXEC);
	server->stop = eventfd(0, EFD_CLOEXEC);
	if (server->epoll < 0 || server->stop < 0)
		rc = tmesh_fail_errno(err, "cannot answer for tokens");
	if (!rc)
		rc = tmesh_random(server->name, sizeof(server->name), err);
	if (!rc)
		rc = tmesh_index_new(server->name, 1, INDEX_SLOTS, ctx->connect != NULL,
				     &server->index, err);
	if (!rc) {
		tmesh_hex(server->path, server->name, sizeof(server->name));
		rc = bind_socket(server, dir, err);
	}
	if (!rc && watch(server, server->stop, EVENT_STOP))
		rc = tmesh_fail_errno(err, "watching the socket that answers for tokens");
	if (!rc)
		rc = start_thread(server, err);
	if (rc) {
		server_free(server);
		return rc;
	}
	ctx->memfd.server = server;
	link_index(server);
	tmesh_rundir_sweep(ctx, dir);
	return 0;
}

int tmesh_server_ready(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	return ctx->memfd.server ? stay_there(ctx->memfd.server, err) : start(ctx, err);
}

int tmesh_server_add(struct tmesh_ctx *ctx, const struct tmesh_index_entry *entry,
		     struct tmesh_error *err)
{
	int rc = tmesh_index_add(&ctx->memfd.server->index, entry, err);

	if (!rc)
		link_index(ctx->memfd.server);
	return rc;
}

const uint8_t *tmesh_server_name(const struct tmesh_ctx *ctx)
{
	return ctx->memfd.server->name;
}

void tmesh_server_forget(struct tmesh_region *region)
{
	for (int set = 0; set < 4; set++)
		if (region->memfd.tokens[set].given)
			tmesh_index_remove(region->ctx->memfd.server->index,
					   region->memfd.tokens[set].secret);
}

void tmesh_server_set_writable(struct tmesh_region *region)
{
	for (int set = 0; set < 4; set++)
		if (region->memfd.tokens[set].given)
			tmesh_index_set_writable(region->ctx->memfd.server->index,
						 region->memfd.tokens[set].secret);
}

bool tmesh_server_find(struct tmesh_ctx *ctx, const struct tmesh_token_fields *token,
		       struct tmesh_served *found)
{
	return ctx->memfd.server &&
	       !memcmp(ctx->memfd.server->name, token->name, sizeof(token->name)) &&
	       served_find(ctx->memfd.server, token->secret, found);
}

void tmesh_server_stop(struct tmesh_ctx *ctx)
{
	struct tmesh_server *server = ctx->memfd.server;
	const uint64_t one = 1;

	if (!server)
		return;
	/* An empty eventfd takes it at once. */
	if (write(server->stop, &one, sizeof(one)) == sizeof(one))
		pthread_join(server->thread, NULL);
	ctx->memfd.server = NULL;
	server_free(server);
}

/* Free the child's copy. The socket file, the link and the index's mapping are the parent's. */
void tmesh_server_forked(struct tmesh_ctx *ctx)
{
	struct tmesh_server *server = ctx->memfd.server;

	if (!server)
		return;
	ctx->memfd.server = NULL;
	close_fds(server);
	tmesh_index_forget(server->index);
	free(server);
}
