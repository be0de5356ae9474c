/* SPDX-License-Identifier: MIT */
/* What the tests of hand-over share: contexts, and another process that makes regions. */
#ifndef TMESH_UNIT_PRODUCER_H
#define TMESH_UNIT_PRODUCER_H

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

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

static inline struct tmesh_stats stats_of(struct tmesh_ctx *ctx)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	assert_int_equal(tmesh_stats(ctx, &stats), 0);
	return stats;
}

/* Another process that makes @count regions "region 0", ... and tells their tokens for
 * reading, then the last one's for everything, and lives until it is told to end. */
struct producer {
	pid_t pid;
	int socket;
	struct {
		char text[TMESH_TOKEN_SIZE];
	} tokens[8], all;
};

static inline void produce(int socket, int count)
{
	struct tmesh_ctx *ctx = context(NULL, 0);
	struct tmesh_region *regions[8];
	char token[TMESH_TOKEN_SIZE], done;
	void *addr;

	for (int i = 0; i < count; i++) {
		if (tmesh_region_create(ctx, 5000, NULL, &regions[i], NULL) ||
		    tmesh_region_map(regions[i], RW, &addr, NULL) ||
		    tmesh_region_token(regions[i], TMESH_READ, token, NULL))
			_exit(1);
		sprintf(addr, "region %d", i);
		if (write(socket, token, sizeof(token)) != sizeof(token))
			_exit(1);
	}
	if (tmesh_region_token(regions[count - 1], TMESH_RIGHTS_ALL, token, NULL) ||
	    write(socket, token, sizeof(token)) != sizeof(token))
		_exit(1);
	/* 'r' releases the first region, the end of the socket ends it all. */
	while (read(socket, &done, 1) == 1) {
		tmesh_region_unref(regions[0]);
		if (write(socket, "", 1) != 1)
			break;
	}
	_exit(0);
}

static inline struct producer producer_start(int count)
{
	struct producer p;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	p.pid = fork();
	if (p.pid == 0) {
		close(pair[0]);
		produce(pair[1], count);
	}
	close(pair[1]);
	p.socket = pair[0];
	for (int i = 0; i < count; i++)
		assert_int_equal(read(p.socket, &p.tokens[i], TMESH_TOKEN_SIZE), TMESH_TOKEN_SIZE);
	assert_int_equal(read(p.socket, &p.all, TMESH_TOKEN_SIZE), TMESH_TOKEN_SIZE);
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

static inline char *link_path(char path[512], const char *token)
{
	snprintf(path, 512, "%s/%.32s.index", getenv("TMESH_RUNTIME_DIR"), token + 5);
	return path;
}

static inline void expect(struct tmesh_region *region, const char *text)
{
	void *addr;

	assert_ok(tmesh_region_map(region, TMESH_READ, &addr, err));
	assert_string_equal(addr, text);
}

/* How often the producer was not asked; only on memfd is it counted. */
static inline void expect_without_wake(struct tmesh_ctx *ctx, uint64_t opens)
{
	assert_int_equal(stats_of(ctx).opens_without_wake, unit_on_kernel() ? 0 : opens);
}

#endif /* TMESH_UNIT_PRODUCER_H */
