/* SPDX-License-Identifier: MIT */
/* Messages of any bytes with any descriptors. */
#ifndef TMESH_FUZZ_SOCKETS_H
#define TMESH_FUZZ_SOCKETS_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"

#define FDS_MAX 253 /* SCM_MAX_FD */

/* A descriptor of some kind: a good one, and those that ought to be refused. */
static inline int fuzz_fd(unsigned int kind)
{
	int fd;

	switch (kind % 4) {
	case 0:
		fd = memfd_create("fuzz", MFD_ALLOW_SEALING | MFD_CLOEXEC);
		if (ftruncate(fd, 16384) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
			abort();
		return fd;
	case 1: /* one that can shrink under a reader */
		fd = memfd_create("fuzz", MFD_CLOEXEC);
		if (ftruncate(fd, 16384))
			abort();
		return fd;
	case 2:
		return open("/dev/null", O_RDWR | O_CLOEXEC);
	default:
		return open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	}
}

/* Send @fd as often as @count says, at most FDS_MAX times. */
static inline void fuzz_send(int socket, const uint8_t *data, size_t size, unsigned int count,
			     int fd)
{
	union {
		char buffer[CMSG_SPACE(sizeof(int) * FDS_MAX)];
		struct cmsghdr align;
	} control;
	struct iovec io = {.iov_base = (void *)data, .iov_len = size};
	struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};

	count %= FDS_MAX + 1;
	if (count) {
		struct cmsghdr *header;

		message.msg_control = control.buffer;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int) * count);
		for (unsigned int i = 0; i < count; i++)
			memcpy(CMSG_DATA(header) + sizeof(int) * i, &fd, sizeof(fd));
	}
	/* The other end may have seen enough already. */
	if (sendmsg(socket, &message, MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != ECONNRESET)
		abort();
}

/*
 * Return whether descriptors are as they were: @count() says @before within five seconds. Files
 * that another file system may serve are closed by a thread of their own, later.
 */
static inline bool fuzz_back_to(unsigned int (*count)(void), unsigned int before)
{
	const struct timespec nap = {.tv_nsec = 100000};

	for (int tries = 0; tries < 50000; tries++) {
		if (count() == before)
			return true;
		nanosleep(&nap, NULL);
	}
	return false;
}

/* An accepted region can be read, or stands for a descriptor. */
static inline void fuzz_use(struct tmesh_region *region)
{
	char byte;
	int fd, rc = tmesh_region_read(region, 0, &byte, 1, NULL);

	if (rc == -EOPNOTSUPP) {
		rc = tmesh_region_opaque_fd(region, &fd, NULL);
		if (!rc)
			close(fd);
		if (rc == -EACCES || rc == -ESTALE)
			rc = 0;
	}
	if (rc)
		abort();
}

#endif /* TMESH_FUZZ_SOCKETS_H */
