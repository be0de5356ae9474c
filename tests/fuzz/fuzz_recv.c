// SPDX-License-Identifier: MIT
/*
 * Any message of a hand-over by socket, with any kind and number of descriptors: refused, or
 * a region that can be read. No descriptor may stay behind.
 *
 * The first byte says how many descriptors (as many as one message can have), the second
 * of which kind; the rest is the message.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"

#define FDS_MAX 253 /* SCM_MAX_FD */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tmesh_ctx *context(void)
{
	static struct tmesh_ctx *ctx;
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.backend = TMESH_BACKEND_MEMFD,
		.timeout_ns = 1000000,
	};

	if (!ctx && tmesh_ctx_open(&opts, &ctx, NULL))
		abort();
	return ctx;
}

static int some_fd(unsigned int kind)
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

/* The lowest free descriptor: the same before and after, or one was left open. */
static int next_fd(void)
{
	int fd = dup(STDERR_FILENO);

	close(fd);
	return fd;
}

static void send_message(int socket, const uint8_t *data, size_t size, unsigned int count, int fd)
{
	union {
		char buffer[CMSG_SPACE(sizeof(int) * FDS_MAX)];
		struct cmsghdr align;
	} control;
	struct iovec io = {.iov_base = (void *)data, .iov_len = size};
	struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};

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
	if (sendmsg(socket, &message, 0) < 0)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region;
	struct tmesh_error err = {0};
	int pair[2], fd, rc, before;
	char byte;

	if (size < 3)
		return 0;
	before = next_fd();
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		abort();
	fd = some_fd(data[1]);
	send_message(pair[0], data + 2, size - 2, data[0] % (FDS_MAX + 1), fd);
	close(fd);
	close(pair[0]);

	rc = tmesh_region_recv(ctx, pair[1], &region, &err);
	if (!rc) {
		if (tmesh_region_read(region, 0, &byte, 1, NULL))
			abort();
		tmesh_region_unref(region);
	} else if (rc != err.code || !err.message[0]) {
		abort();
	}
	close(pair[1]);
	if (next_fd() != before)
		abort();
	return 0;
}
