/* SPDX-License-Identifier: MIT */
/* Shared by the tests of hand-over: contexts, and another process that makes regions. */
#ifndef TMESH_UNIT_PRODUCER_H
#define TMESH_UNIT_PRODUCER_H

#include "unit.h"

#define RW (TMESH_READ | TMESH_WRITE)

static inline struct tmesh_ctx *context(const char *dir, uint64_t timeout_ms)
{
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.runtime_dir = dir,
		.timeout_ns = timeout_ms * 1000000,
	};
	struct tmesh_ctx *ctx;

	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	return ctx;
}

/* Another process that makes a region, "region", reports its token for reading, and lives until the
 * test ends it. */
struct producer {
	pid_t pid;
	int socket;
	char token[TMESH_TOKEN_SIZE];
};

static inline void produce(int socket)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_region *region;
	char token[TMESH_TOKEN_SIZE];
	void *addr;

	if (tmesh_region_create(ctx, 5000, NULL, &region, NULL) ||
	    tmesh_region_map(region, RW, &addr, NULL) ||
	    tmesh_region_token(region, TMESH_READ, token, NULL))
		_exit(1);
	strcpy(addr, "region");
	if (write(socket, token, sizeof(token)) != sizeof(token))
		_exit(1);
	/* The end of the socket ends it all. */
	_exit(read(socket, token, 1) != 0);
}

static inline struct producer producer_start(void)
{
	struct producer p;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	p.pid = fork();
	if (p.pid == 0) {
		close(pair[0]);
		produce(pair[1]);
	}
	close(pair[1]);
	p.socket = pair[0];
	assert_int_equal(read(p.socket, p.token, TMESH_TOKEN_SIZE), TMESH_TOKEN_SIZE);
	return p;
}

static inline void producer_end(struct producer *p, int signal)
{
	int status;

	if (signal)
		kill(p->pid, signal);
	close(p->socket);
	assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
}

static inline void expect(struct tmesh_region *region, const char *text)
{
	void *addr;

	assert_ok(tmesh_region_map(region, TMESH_READ, &addr, err));
	assert_string_equal(addr, text);
}

#endif /* TMESH_UNIT_PRODUCER_H */
