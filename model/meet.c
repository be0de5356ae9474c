// SPDX-License-Identifier: MIT
/* Lobbies, and the messages that go through the sockets which come of them. */
#include "meet.h"

#include "common/foreign.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define RW (TMESH_READ | TMESH_WRITE)
#define KNOCK 0x4b304d54u /* "TM0K" */

int model_meet_send(int socket, const void *data, size_t bytes, int fd)
{
	struct iovec vector = {.iov_base = (void *)data, .iov_len = bytes};
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
	ssize_t sent;

	if (fd >= 0) {
		struct cmsghdr *head;

		message.msg_control = control.room;
		message.msg_controllen = sizeof(control.room);
		head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), &fd, sizeof(fd));
	}
	do
		sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : 0;
}

ssize_t model_meet_recv(int socket, void *data, size_t room, int *fd)
{
	struct iovec vector = {.iov_base = data, .iov_len = room};
	union {
		char room[CMSG_SPACE(4 * sizeof(int))];
		struct cmsghdr align;
	} control;
	bool takes = fd && tmesh_foreign_room_at(socket);
	struct msghdr message = {
		.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = takes ? control.room : NULL,
		.msg_controllen = takes ? sizeof(control.room) : 0,
	};
	ssize_t got;

	if (fd)
		*fd = -1;
	do
		got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return errno == ECONNRESET ? 0 : -errno;
	for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head;
	     head = CMSG_NXTHDR(&message, head)) {
		size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int came;

			memcpy(&came, CMSG_DATA(head) + i * sizeof(int), sizeof(came));
			if (*fd < 0)
				*fd = came;
			else
				tmesh_foreign_close(came, tmesh_giver_at(socket));
		}
	}
	if (fd && *fd < 0 && (message.msg_flags & MSG_CTRUNC))
		*fd = -EMFILE;
	/* An empty message is taken for the end: nobody looks for what came with it. */
	if (!got && fd && *fd >= 0) {
		tmesh_foreign_close(*fd, tmesh_giver_at(socket));
		*fd = -1;
	}
	return got;
}

int model_meet_wait(int socket, short events, uint64_t deadline)
{
	struct pollfd poller = {.fd = socket, .events = events};
	int rc;

	do
		rc = poll(&poller, 1, tmesh_poll_ms(deadline));
	while (rc < 0 && errno == EINTR);
	return rc == 1 ? 0 : -ETIMEDOUT;
}

/* Who knocks is this user, and brings a socket on which messages stay whole. */
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

static void knocked(struct model_source *source)
{
	struct model_meet *meet = (struct model_meet *)source;
	uint32_t word = 0;
	int fd;
	ssize_t got = model_meet_recv(source->own.fd, &word, sizeof(word), &fd);

	/* Somebody has shut the lobby down: nobody joins any more, and nothing else is lost. */
	if (got == 0)
		model_source_remove(source);
	if (got == sizeof(word) && word == KNOCK && fd >= 0 && is_welcome(fd))
		meet->joined(meet, fd);
	else if (fd >= 0)
		tmesh_foreign_close(fd, tmesh_giver_at(source->own.fd));
}

static int home_of(struct tmesh_ctx *ctx, struct tmesh_ctx **out, struct tmesh_error *err)
{
	const struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD};

	if (tmesh_ctx_backend(ctx) != TMESH_BACKEND_MEMFD)
		return tmesh_ctx_open(&opts, out, err);
	*out = tmesh_ctx_ref(ctx);
	return 0;
}

int model_meet_open(struct model_meet *meet, struct tmesh_ctx *ctx, const char *label,
		    struct tmesh_error *err)
{
	const struct tmesh_region_opts opts = {.size = sizeof(opts), .label = label};
	int ends[2];
	int rc = model_host_enter(err);

	if (rc)
		return rc;
	meet->lobby.own.fd = -1;
	rc = home_of(ctx, &meet->home, err);
	if (rc) {
		model_host_leave();
		return rc;
	}
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
		rc = tmesh_fail_errno(err, "making a socket pair for a token");
	} else {
		rc = tmesh_region_from_fd(meet->home, ends[1], 1, &opts, &meet->card, err);
		close(ends[1]);
		if (!rc) {
			meet->lobby.ready = knocked;
			model_host_lock();
			rc = model_source_add(&meet->lobby, ends[0], err);
			model_host_unlock();
			if (rc)
				tmesh_region_unref(meet->card);
		} else {
			close(ends[0]);
		}
	}
	if (rc) {
		tmesh_ctx_unref(meet->home);
		model_host_leave();
	}
	return rc;
}

void model_meet_shut(struct model_meet *meet)
{
	model_source_remove(&meet->lobby);
}

void model_meet_close(struct model_meet *meet)
{
	model_host_lock();
	model_meet_shut(meet);
	model_host_unlock();
	tmesh_region_unref(meet->card);
	tmesh_ctx_unref(meet->home);
	model_host_leave();
}

int model_meet_card(struct tmesh_ctx *ctx, int socket, const char *label, struct tmesh_region **out,
		    struct tmesh_error *err)
{
	const struct tmesh_region_opts opts = {.size = sizeof(opts), .label = label};
	struct tmesh_ctx *home;
	int rc = home_of(ctx, &home, err);

	if (rc)
		return rc;
	rc = tmesh_region_from_fd(home, socket, 1, &opts, out, err);
	tmesh_ctx_unref(home);
	return rc;
}

int model_meet_token(struct model_meet *meet, char *token, struct tmesh_error *err)
{
	return tmesh_region_token(meet->card, RW, token, err);
}

int model_meet_refuse(struct tmesh_error *err)
{
	return tmesh_fail(err, -EPROTO,
			  "the token is of something else, or of another version: open a slot's "
			  "with tmesh_slot_open(), a tenant's of a pool of pages with "
			  "tmesh_pages_open(), page tables' with tmesh_page_copy_open()");
}

static int knock(int lobby, int *out, struct tmesh_error *err)
{
	const uint32_t word = KNOCK;
	uint64_t deadline = tmesh_now_ns() + MODEL_WAIT_NS;
	int type = 0, ends[2], rc;
	socklen_t size = sizeof(type);

	if (getsockopt(lobby, SOL_SOCKET, SO_TYPE, &type, &size) || type != SOCK_SEQPACKET)
		return model_meet_refuse(err);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return tmesh_fail_errno(err, "making a socket pair to the token's owner");
	do
		rc = model_meet_send(lobby, &word, sizeof(word), ends[1]);
	while (rc == -EAGAIN && model_meet_wait(lobby, POLLOUT, deadline) == 0);
	close(ends[1]);
	if (rc) {
		close(ends[0]);
		return rc == -EAGAIN
			       ? tmesh_fail(err, -ETIMEDOUT, "the token's owner does not answer")
			       : tmesh_fail(err, -ENOENT,
					    "the token's owner has closed "
					    "it, or is gone: take a new token "
					    "from who makes one again");
	}
	*out = ends[0];
	return 0;
}

int model_meet_join(struct tmesh_ctx *ctx, const char *token, int *socket, struct tmesh_error *err)
{
	struct tmesh_region *card;
	struct tmesh_ctx *home;
	int lobby, rc = home_of(ctx, &home, err);

	if (rc)
		return rc;
	rc = tmesh_region_open(home, token, RW, &card, err);
	if (!rc) {
		if (tmesh_region_opaque_fd(card, &lobby, NULL)) {
			rc = model_meet_refuse(err);
		} else {
			rc = knock(lobby, socket, err);
			tmesh_foreign_close(lobby, TMESH_GIVER_UNKNOWN);
		}
		tmesh_region_unref(card);
	}
	tmesh_ctx_unref(home);
	return rc;
}
