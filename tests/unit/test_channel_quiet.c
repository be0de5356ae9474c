// SPDX-License-Identifier: MIT
/*
 * Two ends that look busily make no system call and allocate nothing, whatever the tensor's size.
 * Each runs in a process of its own, under a filter that permits only the calls to end, with an
 * allocator that refuses.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <valgrind/valgrind.h>

#include "channels.h"

#define TRIPS 2000

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);

/* Only the watched thread counts: a context's own thread makes calls. */
static __thread bool quiet;

/* Sanitizers have an allocator and calls of their own. */
#ifdef __SANITIZE_ADDRESS__
static const bool sanitized = true;
#else
static const bool sanitized;

void *malloc(size_t bytes)
{
	if (quiet)
		_exit(98);
	return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
	if (quiet)
		_exit(98);
	return __libc_calloc(count, bytes);
}
#endif

/* Where the clock is no call it is not seen here; where it is one, it is let pass. */
static void be_quiet(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	quiet = true;
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		_exit(97);
}

static struct tmesh_tensor *tensors[2]; /* of 1 page, of 64 MiB */

static void talk(struct tmesh_channel *out, struct tmesh_channel *in, bool first)
{
	struct tmesh_message message = {0}, got;
	int rc;

	for (int trip = 0; trip < TRIPS; trip++) {
		/* New regions are opened and remembered before. */
		if (trip == 10)
			be_quiet();
		message.tensor = tensors[trip % 2];
		if (first && tmesh_channel_send(out, &message, PATIENCE, NULL))
			_exit(1);
		/* Waits this brief never sleep, however long the other end is kept from running. */
		while ((rc = tmesh_channel_recv(in, &got, SECOND, NULL)) == -ETIMEDOUT)
			;
		if (rc)
			_exit(2);
		tmesh_tensor_unref(got.tensor);
		if (!first && tmesh_channel_send(out, &message, PATIENCE, NULL))
			_exit(3);
	}
	_exit(0);
}

static pid_t start(const char *there, const char *back, bool first)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .spin_ns = SECOND};
	int64_t shape[2][1] = {{4096}, {1 << 26}};
	struct tmesh_channel *in, *out;
	struct tmesh_ctx *ctx;
	pid_t child = fork();

	if (child)
		return child;
	CHECK(!tmesh_ctx_open(NULL, &ctx, NULL));
	CHECK(!tmesh_channel_open(ctx, first ? back : there, RECV, &opts, &in, NULL));
	CHECK(!tmesh_channel_open(ctx, first ? there : back, SEND, &opts, &out, NULL));
	for (int i = 0; i < 2; i++)
		CHECK(!tmesh_tensor_create(ctx, TMESH_UINT8, 1, shape[i], NULL, &tensors[i], NULL));
	talk(out, in, first);
	return 0;
}

UNIT(test_quiet)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .producers = 2};
	struct tmesh_channel *there, *back;
	char tokens[2][TMESH_TOKEN_SIZE];
	struct tmesh_ctx *ctx = new_ctx();
	pid_t children[2];

	assert_ok(tmesh_channel_create(ctx, SEND, &opts, &there, err));
	assert_ok(tmesh_channel_create(ctx, SEND, &opts, &back, err));
	assert_ok(tmesh_channel_token(there, tokens[0], err));
	assert_ok(tmesh_channel_token(back, tokens[1], err));
	for (int i = 0; i < 2; i++)
		children[i] = start(tokens[0], tokens[1], i == 0);
	for (int i = 0; i < 2; i++)
		join_child(children[i]);
	tmesh_channel_unref(there);
	tmesh_channel_unref(back);
	tmesh_ctx_unref(ctx);
}

int main(void)
{
	if (RUNNING_ON_VALGRIND || sanitized)
		return UNIT_SKIP_ALL("the checker makes system calls of its own");
	return UNIT_RUN("channel_quiet", NULL, NULL);
}
