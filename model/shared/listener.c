// SPDX-License-Identifier: MIT
/* Listeners, and messages on accepted and connected sockets. */
#include "listener.h"

#include "common/fd_passing.h"
#include "common/foreign.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define RW (TMESH_READ | TMESH_WRITE)
#define CONNECT 0x4e304d54u /* "TM0N" */

int model_socket_send(int socket, const void *data, size_t bytes, int fd)
{
	ssize_t sent = tmesh_fds_send(socket, data, bytes, &fd, fd >= 0, MSG_DONTWAIT);

	return sent < 0 ? (int)sent : 0;
}

ssize_t model_socket_recv(int socket, void *data, size_t room, int *fd)
{
	struct tmesh_fds taken = {.fds = fd, .room = fd ? 1 : 0};
	ssize_t got = tmesh_fds_recv(socket, data, room, &taken, MSG_DONTWAIT | MSG_TRUNC);

	if (fd && !taken.count)
		*fd = got >= 0 && taken.problem == -EMFILE ? -EMFILE : -1;
	if (got < 0)
		return got == -ECONNRESET ? 0 : got;
	/* An empty message counts as the end, so close a descriptor that came with it. */
	if (!got && taken.count) {
		close(*fd);
		*fd = -1;
	}
	return got;
}

int model_socket_wait(int socket, short events, uint64_t deadline)
{
	struct pollfd poller = {.fd = socket, .events = events};
	int rc;

	do
		rc = poll(&poller, 1, tmesh_poll_ms(deadline));
	while (rc < 0 && errno == EINTR);
	return rc == 1 ? 0 : -ETIMEDOUT;
}

/* Check that the process has this user's uid and sent a SOCK_SEQPACKET socket. */
static bool is_welcome(int fd)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);
	int type;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.uid != geteuid())
		return false;
	size = sizeof(type);
	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

static void accept_socket(struct model_source *source)
{
	struct model_listener *listener = (struct model_listener *)source;
	uint32_t word = 0;
	int fd;
	ssize_t got = model_socket_recv(source->own.fd, &word, sizeof(word), &fd);

	/* The listening end was shut down: no more processes join, and nothing else is lost. */
	if (got == 0)
		model_source_remove(source);
	if (got == sizeof(word) && word == CONNECT && fd >= 0 && is_welcome(fd))
		listener->accepted(listener, fd);
	else if (fd >= 0)
		close(fd);
}

static int memfd_ctx_of(struct tmesh_ctx *ctx, struct tmesh_ctx **out, struct tmesh_error *err)
{
	const struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD};

	if (tmesh_ctx_backend(ctx) != TMESH_BACKEND_MEMFD)
		return tmesh_ctx_open(&opts, out, err);
	*out = tmesh_ctx_ref(ctx);
	return 0;
}

int model_listener_open(struct model_listener *listener, struct tmesh_ctx *ctx, const char *label,
			struct tmesh_error *err)
{
	const struct tmesh_region_opts opts = {.size = sizeof(opts), .label = label};
	int ends[2];
	int rc = model_host_enter(err);

	if (rc)
		return rc;
	listener->source.own.fd = -1;
	rc = memfd_ctx_of(ctx, &listener->memfd_ctx, err);
	if (rc) {
		model_host_leave();
		return rc;
	}
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
		rc = tmesh_fail_errno(err, "making a socket pair for a token");
	} else {
		rc = tmesh_region_from_fd(listener->memfd_ctx, ends[1], 1, &opts, &listener->region,
					  err);
		close(ends[1]);
		if (!rc) {
			listener->source.ready = accept_socket;
			model_host_lock();
			rc = model_source_add(&listener->source, ends[0], err);
			model_host_unlock();
			if (rc)
				tmesh_region_unref(listener->region);
		} else {
			close(ends[0]);
		}
	}
	if (rc) {
		tmesh_ctx_unref(listener->memfd_ctx);
		model_host_leave();
	}
	return rc;
}

void model_listener_shut(struct model_listener *listener)
{
	model_source_remove(&listener->source);
}

void model_listener_close(struct model_listener *listener)
{
	model_host_lock();
	model_listener_shut(listener);
	model_host_unlock();
	tmesh_region_unref(listener->region);
	tmesh_ctx_unref(listener->memfd_ctx);
	model_host_leave();
}

int model_listener_region(struct tmesh_ctx *ctx, int socket, const char *label,
			  struct tmesh_region **out, struct tmesh_error *err)
{
	const struct tmesh_region_opts opts = {.size = sizeof(opts), .label = label};
	struct tmesh_ctx *memfd_ctx;
	int rc = memfd_ctx_of(ctx, &memfd_ctx, err);

	if (rc)
		return rc;
	rc = tmesh_region_from_fd(memfd_ctx, socket, 1, &opts, out, err);
	tmesh_ctx_unref(memfd_ctx);
	return rc;
}

int model_listener_token(struct model_listener *listener, char *token, struct tmesh_error *err)
{
	return tmesh_region_token(listener->region, RW, token, err);
}

int model_refuse_token(struct tmesh_error *err)
{
	return tmesh_fail(err, -EPROTO,
			  "the token is of something else, or of another version: open a slot's "
			  "with tmesh_slot_open(), a tenant's of a pool of pages with "
			  "tmesh_pages_open(), page tables' with tmesh_page_copy_open()");
}

static int connect_socket(int listening, int *out, struct tmesh_error *err)
{
	const uint32_t word = CONNECT;
	uint64_t deadline = tmesh_now_ns() + MODEL_WAIT_NS;
	int type = 0, ends[2], rc;
	socklen_t size = sizeof(type);

	if (getsockopt(listening, SOL_SOCKET, SO_TYPE, &type, &size) || type != SOCK_SEQPACKET)
		return model_refuse_token(err);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return tmesh_fail_errno(err, "making a socket pair to the token's owner");
	do
		rc = model_socket_send(listening, &word, sizeof(word), ends[1]);
	while (rc == -EAGAIN && model_socket_wait(listening, POLLOUT, deadline) == 0);
	close(ends[1]);
	if (rc) {
		close(ends[0]);
		return rc == -EAGAIN
			       ? tmesh_fail(err, -ETIMEDOUT, "the token's owner does not answer")
			       : tmesh_fail(err, -ENOENT,
					    "the token's owner has closed "
					    "it, or is gone: get a new token "
					    "from a new owner");
	}
	*out = ends[0];
	return 0;
}

int model_connect(struct tmesh_ctx *ctx, const char *token, int *socket, struct tmesh_error *err)
{
	struct tmesh_region *region;
	struct tmesh_ctx *memfd_ctx;
	int listening, rc = memfd_ctx_of(ctx, &memfd_ctx, err);

	if (rc)
		return rc;
	rc = tmesh_region_open(memfd_ctx, token, RW, &region, err);
	if (!rc) {
		if (tmesh_region_opaque_fd(region, &listening, NULL)) {
			rc = model_refuse_token(err);
		} else {
			rc = connect_socket(listening, socket, err);
			tmesh_foreign_close(listening, TMESH_GIVER_UNKNOWN);
		}
		tmesh_region_unref(region);
	}
	tmesh_ctx_unref(memfd_ctx);
	return rc;
}
