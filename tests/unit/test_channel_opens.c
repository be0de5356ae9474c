// SPDX-License-Identifier: MIT
/* A process that fails to open a channel changes nothing for those that use it. */
#include "channel_internal.h"
#include "channels.h"

static uint32_t others(struct tmesh_channel *maker)
{
	uint32_t count;

	pthread_mutex_lock(&maker->home->lock);
	count = maker->producers + maker->consumers - 1;
	pthread_mutex_unlock(&maker->home->lock);
	return count;
}

/* The maker goes on as if no process had come. */
static void expect_open(struct tmesh_channel *maker)
{
	struct tmesh_message message;

	while (others(maker))
		usleep(1000);
	if (maker->role == RECV)
		assert_refused(tmesh_channel_try_recv(maker, &message, err), -EAGAIN,
			       "no message is ready");
	assert_int_equal(atomic_load(&maker->head->state) &
				 (CHANNEL_NO_PRODUCERS | CHANNEL_NO_CONSUMERS),
			 0);
}

UNIT(test_limit)
{
	const struct tmesh_channel_opts eight = {.size = sizeof(eight), .capacity = 8};
	const struct tmesh_channel_opts nine = {.size = sizeof(nine), .limit = 9};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_channel *maker, *other;
	struct tmesh_message message;
	struct tmesh_ctx *ctx = new_ctx();

	assert_ok(tmesh_channel_create(ctx, RECV, &eight, &maker, err));
	assert_ok(tmesh_channel_token(maker, token, err));
	for (int i = 0; i < 3; i++)
		assert_refused(tmesh_channel_open(ctx, token, SEND, &nine, &other, err), -EINVAL,
			       "limit is 9");
	expect_open(maker);
	assert_ok(tmesh_channel_open(ctx, token, SEND, NULL, &other, err));
	assert_refused(tmesh_channel_try_recv(maker, &message, err), -EAGAIN,
		       "no message is ready");
	/* One that was open all right ends it. */
	tmesh_channel_unref(other);
	assert_refused(tmesh_channel_recv(maker, &message, PATIENCE, err), -EPIPE,
		       "no sender is left");
	tmesh_channel_unref(maker);
	tmesh_ctx_unref(ctx);
}

/* In a child that may open @more descriptors. */
static int open_with(const char *token, enum tmesh_channel_role role, rlim_t more)
{
	struct tmesh_ctx *ctx = new_ctx();
	struct tmesh_channel *channel;
	struct rlimit limit;
	int next = dup(0);

	close(next);
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = (rlim_t)next + more;
	setrlimit(RLIMIT_NOFILE, &limit);
	return tmesh_channel_open(ctx, token, role, NULL, &channel, NULL);
}

UNIT(test_no_number)
{
	for (int role = SEND; role <= RECV; role++) {
		struct tmesh_channel *maker;
		char token[TMESH_TOKEN_SIZE];
		struct tmesh_ctx *ctx = new_ctx();
		int failed = 0, status = 1;

		assert_ok(tmesh_channel_create(ctx, role == SEND ? RECV : SEND, NULL, &maker, err));
		assert_ok(tmesh_channel_token(maker, token, err));
		for (rlim_t more = 0; status; more++) {
			pid_t child = fork();

			if (!child) {
				int rc = open_with(token, (enum tmesh_channel_role)role, more);

				_exit(rc == 0 ? 0 : rc == -EMFILE ? 1 : 2);
			}
			assert_int_equal(waitpid(child, &status, 0), child);
			assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
			failed += status != 0;
			if (status)
				expect_open(maker);
		}
		assert_true(failed > 4);
		while (!(atomic_load(&maker->head->state) &
			 (CHANNEL_NO_PRODUCERS | CHANNEL_NO_CONSUMERS)))
			usleep(1000);
		tmesh_channel_unref(maker);
		tmesh_ctx_unref(ctx);
	}
}

UNIT_MAIN("channel_opens", NULL, NULL)
