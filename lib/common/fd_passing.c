// SPDX-License-Identifier: MIT
#include "fd_passing.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "foreign.h"

#define SCM_PROCESS 0x04 /* SCM_PIDFD: a descriptor of the sender's process */
/* The least room, which distinguishes too many descriptors from too few free numbers. */
#define LEAST 4

/* Room for just the descriptors wanted: with more room a peer could install more. The kernel drops
 * those that do not fit, and reports it. */
union control {
	struct cmsghdr align;
	char room[CMSG_SPACE(TMESH_FDS_MOST * sizeof(int)) + TMESH_FDS_BESIDE];
};

ssize_t tmesh_fds_send(int socket, const void *data, size_t bytes, const int *fds,
		       unsigned int count, int flags)
{
	struct iovec whole = {(void *)data, bytes};
	struct msghdr msg = {.msg_iov = &whole, .msg_iovlen = 1};
	union control control;
	ssize_t sent;

	if (count) {
		struct cmsghdr *c = &control.align;

		msg.msg_control = control.room;
		msg.msg_controllen = CMSG_SPACE(count * sizeof(int));
		memset(control.room, 0, msg.msg_controllen);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(c), fds, count * sizeof(int));
	}
	do
		sent = sendmsg(socket, &msg, MSG_NOSIGNAL | flags);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : sent;
}

/* Return the room for descriptors: none if none are wanted, or if no more may be taken. */
static unsigned int room_for(int socket, unsigned int wanted)
{
	if (!wanted || !tmesh_foreign_room_at(socket))
		return 0;
	return wanted < LEAST ? LEAST : wanted;
}

/* Return the room for other control messages. The kernel puts them before the descriptors, and
 * leaves these out if no room is left. */
static size_t room_beside(int socket)
{
	static const int options[] = {SO_PASSCRED, SO_PASSSEC, SO_TIMESTAMP, SO_TIMESTAMPNS,
				      TMESH_SO_PASSPIDFD};
	int on = 0;

	for (size_t i = 0; !on && i < sizeof(options) / sizeof(options[0]); i++) {
		socklen_t size = sizeof(on);

		if (getsockopt(socket, SOL_SOCKET, options[i], &on, &size))
			on = 0;
	}
	return on ? TMESH_FDS_BESIDE : 0;
}

bool tmesh_fds_close_process(const struct cmsghdr *control)
{
	int fd;

	if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_PROCESS)
		return false;
	memcpy(&fd, CMSG_DATA(control), sizeof(fd));
	/* It is an error code if the kernel has no descriptor. */
	if (fd >= 0)
		close(fd);
	return true;
}

static void message_receive_fds(int socket, struct msghdr *msg, struct tmesh_fds *got)
{
	bool cut = msg->msg_flags & MSG_CTRUNC;

	got->problem = !cut ? 0 : got->room ? -EMFILE : -EPROTO;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		int fd;

		if (tmesh_fds_close_process(c))
			continue;
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
			got->problem = cut ? -EPROTO : got->problem;
			continue;
		}
		for (size_t i = 0; i < count; i++) {
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (got->count < got->room && !tmesh_foreign_may_be_served(fd)) {
				got->fds[got->count++] = fd;
				continue;
			}
			tmesh_foreign_close(fd, tmesh_giver_at(socket));
			got->problem = -EPROTO;
		}
		if (count >= LEAST && count >= got->room && cut)
			got->problem = -EPROTO;
	}
}

ssize_t tmesh_fds_recv(int socket, void *data, size_t bytes, struct tmesh_fds *got, int flags)
{
	struct iovec whole = {data, bytes};
	union control control;
	size_t beside = got->room && got->any_socket ? room_beside(socket) : 0;
	struct msghdr msg = {.msg_iov = &whole, .msg_iovlen = 1, .msg_control = control.room};
	ssize_t came;

	do {
		unsigned int room = room_for(socket, got->room);

		msg.msg_controllen = (room ? CMSG_SPACE(room * sizeof(int)) : 0) + beside;
		came = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC | flags);
	} while (came < 0 && errno == EINTR);
	if (came < 0)
		return -errno;
	message_receive_fds(socket, &msg, got);
	got->cut = msg.msg_flags & MSG_TRUNC;
	return came;
}
