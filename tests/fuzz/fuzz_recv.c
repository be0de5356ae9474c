// SPDX-License-Identifier: MIT
/*
 * Any message of a hand-over by socket, with any kind and number of descriptors: refused, or
 * a region that can be used. No descriptor may stay behind.
 *
 * The first byte says how many descriptors (as many as one message can have), the second
 * of which kind; the rest is the message.
 */
#include "sockets.h"

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

/* The lowest free descriptor: the same before and after, or one was left open. */
static unsigned int next_fd(void)
{
	int fd = dup(STDERR_FILENO);

	close(fd);
	return (unsigned int)fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_region *region;
	struct tmesh_error err = {0};
	unsigned int before;
	int pair[2], fd, rc;

	if (size < 3)
		return 0;
	before = next_fd();
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		abort();
	fd = fuzz_fd(data[1]);
	fuzz_send(pair[0], data + 2, size - 2, data[0], fd);
	close(fd);
	close(pair[0]);

	rc = tmesh_region_recv(ctx, pair[1], &region, &err);
	if (!rc) {
		fuzz_use(region);
		tmesh_region_unref(region);
	} else if (rc != err.code || !err.message[0]) {
		abort();
	}
	close(pair[1]);
	if (!fuzz_back_to(next_fd, before))
		abort();
	return 0;
}
