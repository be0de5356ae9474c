// SPDX-License-Identifier: MIT
/* Messages with descriptors over Unix sockets, and the hand-over of regions by them. */
#include "common/fd_passing.h"
#include "common/foreign.h"
#include "memfd.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void close_all(const int *fds, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		close(fds[i]);
}

static int wait_readable(int socket, uint64_t deadline)
{
	struct pollfd poller = {.fd = socket, .events = POLLIN};
	int rc;

	do
		rc = poll(&poller, 1, tmesh_poll_ms(deadline));
	while (rc < 0 && errno == EINTR);
	if (rc < 0)
		return -errno;
	return rc ? 0 : -ETIMEDOUT;
}

/* Return whether it is a stream, where a message may be sent in parts. */
static bool is_stream(int socket)
{
	int type;
	socklen_t size = sizeof(type);

	return getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

int tmesh_wire_recv(int socket, void *message, size_t bytes, int *fds, unsigned int fd_room,
		    uint64_t deadline)
{
	struct tmesh_fds taken = {.fds = fds, .room = fd_room, .any_socket = true};
	size_t done = 0;
	int rc = 0;

	while (done < bytes) {
		ssize_t got;

		rc = deadline ? wait_readable(socket, deadline) : 0;
		if (rc)
			break;
		got = tmesh_fds_recv(socket, (uint8_t *)message + done, bytes - done, &taken,
				     MSG_DONTWAIT);
		if (got == -EAGAIN && deadline)
			continue;
		if (got < 0) {
			rc = got == -ECONNRESET ? -EPIPE : (int)got;
			break;
		}
		rc = taken.cut && !taken.problem ? -EPROTO : taken.problem;
		if (rc)
			break;
		if (got == 0) {
			rc = done ? -EPROTO : -EPIPE;
			break;
		}
		done += (size_t)got;
		if (done < bytes && !is_stream(socket)) {
			rc = -EPROTO;
			break;
		}
	}
	if (rc) {
		close_all(fds, taken.count);
		return rc;
	}
	return (int)taken.count;
}

int tmesh_wire_send(int socket, const void *message, size_t bytes, const int *fds,
		    unsigned int fd_count, int flags)
{
	ssize_t sent = tmesh_fds_send(socket, message, bytes, fds, fd_count, flags);

	if (sent < 0)
		return sent == -ECONNRESET || sent == -ENOTCONN ? -EPIPE : (int)sent;
	/* The kernel takes so little whole or not at all, on streams too. */
	return (size_t)sent == bytes ? 0 : -EPIPE;
}

int tmesh_wire_check(int socket, struct tmesh_error *err)
{
	int domain;
	socklen_t size = sizeof(domain);

	if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size))
		return tmesh_fail_errno(err, "not an open socket");
	if (domain != AF_UNIX)
		return tmesh_fail(err, -EINVAL, "only Unix sockets carry descriptors");
	return 0;
}

/* Send. If the socket cannot take it now, wait as for a message: at most the timeout. */
static int send_waiting(const struct tmesh_ctx *ctx, int socket, const void *message, size_t bytes,
			const int *fds, unsigned int count)
{
	uint64_t deadline = 0;

	for (;;) {
		struct pollfd poller = {.fd = socket, .events = POLLOUT};
		int rc = tmesh_wire_send(socket, message, bytes, fds, count, MSG_DONTWAIT);
		bool many = rc == -ETOOMANYREFS;
		int left;

		if (rc != -EAGAIN && !many)
			return rc;
		if (!deadline)
			deadline = tmesh_now_ns() + ctx->timeout_ns;
		left = tmesh_poll_ms(deadline);
		if (!left)
			return many ? rc : -ETIMEDOUT;
		/* No socket shows when descriptors on their way by other sockets have arrived. */
		if (poll(&poller, !many, many ? 1 : left) < 0 && errno != EINTR)
			return -errno;
	}
}

int tmesh_wire_send_waiting(const struct tmesh_ctx *ctx, int socket, const void *message,
			    size_t bytes, const int *fds, unsigned int count,
			    struct tmesh_error *err)
{
	int rc = tmesh_wire_check(socket, err);

	if (rc)
		return rc;
	rc = send_waiting(ctx, socket, message, bytes, fds, count);
	switch (rc) {
	case 0:
		return 0;
	case -EPIPE:
		return tmesh_fail(err, rc, "send: the other end of the socket is closed");
	case -ETIMEDOUT:
		return tmesh_fail(err, rc, "send: the peer does not empty its socket");
	case -ETOOMANYREFS:
		return tmesh_fail(
			err, -ETIMEDOUT,
			"send: as many descriptors as RLIMIT_NOFILE allows wait in sockets "
			"of this user; let their receivers take them");
	default:
		errno = -rc;
		return tmesh_fail_errno(err, "sending a region");
	}
}

int tmesh_region_send(struct tmesh_region *region, int socket, uint32_t rights,
		      struct tmesh_error *err)
{
	struct tmesh_wire_region wire;
	int rc = TMESH_NEED(err, region);
	int fds[TMESH_WIRE_FDS];
	int more = 0;

	if (rc)
		return rc;
	wire = (struct tmesh_wire_region){
		.magic = TMESH_MAGIC_REGION,
		.version = TMESH_WIRE_VERSION,
		.backend = region->ctx->ops->backend,
		.rights = rights,
		.kind = region->kind,
		.id = region->id,
		.bytes = region->bytes,
	};
	rc = tmesh_check_rights(rights, err);
	if (!rc)
		rc = tmesh_region_may(region, rights, "send", err);
	if (!rc)
		rc = tmesh_refuse_sealed_gift(region, rights, "send", err);
	if (!rc)
		rc = tmesh_wire_check(socket, err);
	if (!rc)
		rc = region->ctx->ops->handle_fd(region, rights, &fds[0], err);
	if (rc)
		return rc;
	tmesh_region_set_shared(region);
	if (wire.kind & TMESH_KIND_OPAQUE)
		more = tmesh_opaque_handles(region, rights, &fds[1], err);
	if (more >= 0) {
		rc = tmesh_wire_send_waiting(region->ctx, socket, &wire, sizeof(wire), fds,
					     1 + (unsigned int)more, err);
		close_all(&fds[1], (unsigned int)more);
	}
	close(fds[0]);
	return more < 0 ? more : rc;
}

static int recv_error(int rc, int socket, struct tmesh_error *err)
{
	switch (rc) {
	case -EPIPE:
		return tmesh_fail(err, rc, "receive: the other end of the socket is closed");
	case -ETIMEDOUT:
		return tmesh_fail(err, rc, "receive timed out: no message came by the socket");
	case -EPROTO:
		return tmesh_fail(err, rc,
				  "receive: the peer sent something else than was expected");
	case -EMFILE:
		errno = EMFILE;
		return tmesh_foreign_fail_errno(err, "receive: the sent region is lost",
						tmesh_giver_at(socket));
	default:
		errno = -rc;
		return tmesh_fail_errno(err, "receiving a region");
	}
}

int tmesh_wire_recv_plain(int socket, void *message, size_t bytes, uint64_t deadline,
			  struct tmesh_error *err)
{
	int fds[TMESH_WIRE_FDS];
	int count = tmesh_wire_recv(socket, message, bytes, fds, TMESH_WIRE_FDS, deadline);

	if (count < 0)
		return recv_error(count, socket, err);
	close_all(fds, (unsigned int)count);
	return 0;
}

static int take_region(struct tmesh_region *region, int socket, uint64_t deadline,
		       struct tmesh_error *err)
{
	const struct tmesh_backend_ops *ops = region->ctx->ops;
	struct tmesh_wire_region wire;
	int fds[TMESH_WIRE_FDS];
	int count = tmesh_wire_recv(socket, &wire, sizeof(wire), fds, TMESH_WIRE_FDS, deadline);

	if (count < 0)
		return recv_error(count, socket, err);
	if (wire.magic != TMESH_MAGIC_REGION || wire.version != TMESH_WIRE_VERSION || wire.pad ||
	    (unsigned int)count != 1 + tmesh_opaque_count(&wire)) {
		close_all(fds, (unsigned int)count);
		if (wire.magic == TMESH_MAGIC_BUNDLE)
			return tmesh_fail(err, -EPROTO,
					  "receive: the peer sent a bundle, not a region: "
					  "tmesh_bundle_recv() takes it");
		return tmesh_fail(err, -EPROTO,
				  "receive: the peer sent something else than one region");
	}
	if (wire.backend != ops->backend) {
		close_all(fds, (unsigned int)count);
		return tmesh_fail(err, -EOPNOTSUPP,
				  "receive: the region is of another backend than this context's "
				  "(%s)",
				  tmesh_backend_name(ops->backend));
	}
	return ops->adopt(region, fds, &wire, err);
}

int tmesh_region_recv(struct tmesh_ctx *ctx, int socket, struct tmesh_region **out,
		      struct tmesh_error *err)
{
	struct tmesh_region *region;
	uint64_t deadline;
	int rc = TMESH_NEED(err, ctx, out);

	if (rc)
		return rc;
	deadline = tmesh_now_ns() + ctx->timeout_ns;
	rc = tmesh_ctx_enter(ctx, err);
	if (!rc)
		rc = tmesh_spare_files(ctx, err);
	if (!rc)
		rc = tmesh_wire_check(socket, err);
	if (rc)
		return rc;
	/* Now, not once the message is there: it would be lost without memory, and late with it. */
	region = tmesh_region_new(ctx, err);
	if (!region)
		return -ENOMEM;
	return tmesh_region_opened(region, take_region(region, socket, deadline, err), out);
}
