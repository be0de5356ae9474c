/* SPDX-License-Identifier: MIT */
/* Shared by the tests with peers that are no libtmesh: contexts, and malformed messages. */
#ifndef TMESH_UNIT_STRANGERS_H
#define TMESH_UNIT_STRANGERS_H

#include <sys/inotify.h>
#include <sys/time.h>
#include <sys/un.h>

#include "unit.h"
#include "wire.h"

/* For answers that come, however busy the machine is, and for those that never do. */
#define PATIENT_MS 600000
#define HASTY_MS 50

static inline struct tmesh_ctx *context(const char *dir, uint64_t timeout_ms)
{
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.backend = TMESH_BACKEND_MEMFD,
		.runtime_dir = dir,
		.timeout_ns = timeout_ms * 1000000,
	};
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	return ctx;
}

/* sendmsg() as no program should: @count times the same descriptor. */
static inline void send_fds(int socket, const void *data, size_t bytes, int fd, int count)
{
	static char room[CMSG_SPACE(253 * sizeof(int))];
	struct iovec part = {(void *)data, bytes};
	struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};

	if (count) {
		struct cmsghdr *c = (struct cmsghdr *)room;

		msg.msg_control = room;
		msg.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
		for (int i = 0; i < count; i++)
			memcpy(CMSG_DATA(c) + (size_t)i * sizeof(int), &fd, sizeof(fd));
	}
	assert_int_equal(sendmsg(socket, &msg, MSG_NOSIGNAL), bytes);
}

static const struct tmesh_wire_region good = {
	.magic = TMESH_MAGIC_REGION,
	.version = TMESH_WIRE_VERSION,
	.backend = TMESH_BACKEND_MEMFD,
	.rights = TMESH_READ,
	.id = 1,
	.bytes = 100,
};

static inline int dial(const char *token)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = PATIENT_MS / 1000};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%.32s", unit_runtime_dir(),
		 token + 5);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return fd;
}

/* How often what is watched was opened. */
static inline unsigned int opens_of(int notify)
{
	char events[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
	ssize_t got = read(notify, events, sizeof(events));
	unsigned int count = 0;

	for (ssize_t at = 0; at < got; count++)
		at += (ssize_t)(sizeof(struct inotify_event) +
				((struct inotify_event *)(events + at))->len);
	return count;
}

#endif /* TMESH_UNIT_STRANGERS_H */
