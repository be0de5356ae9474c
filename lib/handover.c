// SPDX-License-Identifier: MIT
/* Messages with descriptors over Unix sockets, and the hand-over of regions by them. */
#include "common/foreign.h"
#include "memfd.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Room for more than is wanted would let a peer install more; what does not fit the kernel
 * drops and says so. */
union control {
	struct cmsghdr align;
	char room[CMSG_SPACE(TMESH_JOIN_FDS * sizeof(int))];
};

/* Room for so many tells more than are wanted from too few numbers. Where none are wanted, or no
 * more may be taken, there is none. */
static unsigned int room_for(int socket, unsigned int wanted)
{
	if (!wanted || !tmesh_foreign_room_at(socket))
		return 0;
	return wanted < TMESH_WIRE_FDS ? TMESH_WIRE_FDS : wanted;
}

static void close_all(const int *fds, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		close(fds[i]);
}

/*
 * Descriptors of one received message go to @fds behind the *@count there are. -EPROTO when it
 * has more than @room or carries anything else; -EMFILE when the kernel had to leave some
 * out though the message had room for them: then this process has no number free, or too many that
 * it cannot close. What came in excess is closed.
 */
static int take_fds(int socket, struct msghdr *msg, int *fds, unsigned int room,
		    unsigned int *count)
{
	bool cut = msg->msg_flags & MSG_CTRUNC;
	int rc = !cut ? 0 : room ? -EMFILE : -EPROTO;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t got;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
			rc = cut ? -EPROTO : rc;
			continue;
		}
		got = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < got; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (*count < room) {
				fds[(*count)++] = fd;
			} else {
				tmesh_foreign_close(fd, tmesh_giver_at(socket));
				rc = -EPROTO;
			}
		}
		if (got >= TMESH_WIRE_FDS && got >= room && cut)
			rc = -EPROTO;
	}
	return rc;
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

/* Only a stream goes on after a part of a message. */
static bool is_stream(int socket)
{
	int type;
	socklen_t size = sizeof(type);

	return getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

int tmesh_wire_recv(int socket, void *message, size_t bytes, int *fds, unsigned int fd_room,
		    uint64_t deadline)
{
	unsigned int count = 0;
	size_t done = 0;
	int rc = 0;

	while (done < bytes) {
		struct iovec part = {(uint8_t *)message + done, bytes - done};
		union control control;
		struct msghdr msg = {
			.msg_iov = &part,
			.msg_iovlen = 1,
			.msg_control = control.room,
			.msg_controllen = CMSG_SPACE(room_for(socket, fd_room) * sizeof(int)),
		};
		ssize_t got;

		rc = deadline ? wait_readable(socket, deadline) : 0;
		if (rc)
			break;
		got = recvmsg(socket, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (got < 0) {
			if (errno == EINTR || (errno == EAGAIN && deadline))
				continue;
			rc = errno == ECONNRESET ? -EPIPE : -errno;
			break;
		}
		rc = take_fds(socket, &msg, fds, fd_room, &count);
		if (!rc && (msg.msg_flags & MSG_TRUNC))
			rc = -EPROTO;
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
		tmesh_foreign_close_all(fds, count, tmesh_giver_at(socket));
		return rc;
	}
	return (int)count;
}

int tmesh_wire_send(int socket, const void *message, size_t bytes, const int *fds,
		    unsigned int fd_count, int flags)
{
	struct iovec whole = {(void *)message, bytes};
	union control control;
	struct msghdr msg = {.msg_iov = &whole, .msg_iovlen = 1};
	ssize_t sent;

	if (fd_count) {
		struct cmsghdr *c = &control.align;

		memset(&control, 0, sizeof(control));
		msg.msg_control = control.room;
		msg.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
		memcpy(CMSG_DATA(c), fds, fd_count * sizeof(int));
	}
	do
		sent = sendmsg(socket, &msg, MSG_NOSIGNAL | flags);
	while (sent < 0 && errno == EINTR);
	if (sent < 0)
		return errno == ECONNRESET || errno == ENOTCONN ? -EPIPE : -errno;
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

/* On a socket that cannot take it now, wait as for a message: at most the timeout. */
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
		/* No socket tells when descriptors that are under way by others have arrived. */
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
		return tmesh_fail(err, rc, "send: nobody is at the other end of the socket");
	case -ETIMEDOUT:
		return tmesh_fail(err, rc, "send: the peer does not empty its socket");
	case -ETOOMANYREFS:
		return tmesh_fail(err, -ETIMEDOUT,
				  "send: as many descriptors as RLIMIT_NOFILE allows are under way "
				  "to peers of this user's, who do not take them");
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
		return tmesh_fail(err, rc, "receive: nobody is at the other end of the socket");
	case -ETIMEDOUT:
		return tmesh_fail(err, rc, "receive: nothing came in time");
	case -EPROTO:
		return tmesh_fail(err, rc,
				  "receive: the peer sent something else than was expected");
	case -EMFILE:
		errno = EMFILE;
		return tmesh_foreign_fail_errno(err, "receive: what was sent is lost",
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
	tmesh_foreign_close_all(fds, (unsigned int)count, tmesh_giver_at(socket));
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
	region->giver = tmesh_giver_at(socket);
	if (wire.magic != TMESH_MAGIC_REGION || wire.version != TMESH_WIRE_VERSION || wire.pad ||
	    (unsigned int)count != 1 + tmesh_opaque_count(&wire)) {
		tmesh_foreign_close_all(fds, (unsigned int)count, region->giver);
		if (wire.magic == TMESH_MAGIC_BUNDLE)
			return tmesh_fail(err, -EPROTO,
					  "receive: the peer sent a bundle, not a region: "
					  "tmesh_bundle_recv() takes it");
		return tmesh_fail(err, -EPROTO,
				  "receive: the peer sent something else than one region");
	}
	if (wire.backend != ops->backend) {
		tmesh_foreign_close_all(fds, (unsigned int)count, region->giver);
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
