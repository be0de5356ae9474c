// SPDX-License-Identifier: MIT
/* A sender that comes after another one, whose messages were not received yet. */
#include "channels.h"
#include "channel_internal.h"

static struct tmesh_tensor *tensor(struct tmesh_ctx *ctx, uint64_t n)
{
	const int64_t one[] = {1};
	struct tmesh_tensor *made = NULL;

	assert_ok(tmesh_tensor_put(ctx, TMESH_UINT64, 1, one, &n, NULL, &made, err));
	return made;
}

static void send_one(struct tmesh_ctx *ctx, struct tmesh_channel *to, uint64_t n)
{
	struct tmesh_message message = {.tensor = tensor(ctx, n)};

	assert_ok(tmesh_channel_try_send(to, &message, err));
	tmesh_tensor_unref(message.tensor);
}

static void receive_one(struct tmesh_channel *from, uint64_t want)
{
	struct tmesh_message message;
	uint64_t got = UINT64_MAX;

	assert_ok(tmesh_channel_try_recv(from, &message, err));
	assert_ok(tmesh_tensor_read(message.tensor, &got, sizeof(got), err));
	assert_int_equal(got, want);
	tmesh_tensor_unref(message.tensor);
}

/* One of 16 places for regions is taken, and one of 64 slots: there is room for more. */
UNIT(test_room_behind_the_dead)
{
	struct tmesh_ctx *ctx = new_ctx();
	struct tmesh_channel *channel, *second;
	char token[TMESH_TOKEN_SIZE];
	pid_t child;

	assert_ok(tmesh_channel_create(ctx, RECV, NULL, &channel, err));
	assert_ok(tmesh_channel_token(channel, token, err));
	child = fork();
	if (child == 0) {
		struct tmesh_ctx *own = new_ctx();
		struct tmesh_channel *first;

		CHECK(!tmesh_channel_open(own, token, SEND, NULL, &first, NULL));
		send_one(own, first, 0);
		kill(getpid(), SIGKILL);
	}
	assert_int_equal(waitpid(child, NULL, 0), child);
	/* Its place is free, whether or not others know of its end. */
	assert_ok(tmesh_channel_open(ctx, token, SEND, NULL, &second, err));
	for (uint64_t n = 1; n < 16; n++)
		send_one(ctx, second, n);
	for (uint64_t n = 0; n < 16; n++)
		receive_one(channel, n);
	tmesh_channel_unref(second);
	tmesh_channel_unref(channel);
	tmesh_ctx_unref(ctx);
}

/* Messages of a dead producer stay good though others send after it. */
UNIT(test_all_places_named)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .regions = 2};
	struct pair p = pair_make(RECV, &opts);
	struct tmesh_message message = {0};

	send_one(p.ctx, p.other, 0);
	send_one(p.ctx, p.other, 1);
	tmesh_channel_unref(p.other);
	p.other = pair_open(&p, SEND);
	message.tensor = tensor(p.ctx, 2);
	assert_refused(tmesh_channel_try_send(p.other, &message, err), -EAGAIN, "full");
	receive_one(p.maker, 0);
	assert_ok(tmesh_channel_try_send(p.other, &message, err));
	receive_one(p.maker, 1);
	receive_one(p.maker, 2);
	tmesh_tensor_unref(message.tensor);
	pair_end(&p);
}

UNIT(test_empty_lane_first)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 4, .producers = 2};
	struct pair p = pair_make(RECV, &opts);

	for (uint64_t n = 0; n < 4; n++)
		send_one(p.ctx, p.other, n);
	tmesh_channel_unref(p.other);
	p.other = pair_open(&p, SEND);
	send_one(p.ctx, p.other, 4);
	receive_one(p.maker, 0);
	receive_one(p.maker, 4);
	pair_end(&p);
}

/* Messages of a dead producer that are under way are counted, and may be more than the next
 * producer may have. */
UNIT(test_level_behind_the_dead)
{
	struct tmesh_channel_opts limited = {.size = sizeof(limited), .limit = 2};
	struct pair p = pair_make(RECV, NULL);
	struct tmesh_message message = number(0), got;
	uint64_t waiting = 0;
	uint32_t room = 7;

	for (int i = 0; i < 4; i++)
		assert_ok(tmesh_channel_try_send(p.other, &message, err));
	tmesh_channel_unref(p.other);
	assert_ok(tmesh_channel_level(p.maker, &waiting, NULL, err));
	assert_int_equal(waiting, 4);
	assert_ok(tmesh_channel_open(p.ctx, p.token, SEND, &limited, &p.other, err));
	for (uint64_t i = 4; i > 1; i--) {
		assert_ok(tmesh_channel_level(p.other, &waiting, &room, err));
		assert_int_equal(waiting, i);
		assert_int_equal(room, 0);
		assert_refused(tmesh_channel_try_send(p.other, &message, err), -EAGAIN, "full");
		assert_ok(tmesh_channel_try_recv(p.maker, &got, err));
	}
	assert_ok(tmesh_channel_try_send(p.other, &message, err));
	/* A sender that died before it counted its last message. */
	atomic_fetch_sub(&channel_lane(p.other, 0)->tail, 1);
	assert_ok(tmesh_channel_level(p.maker, &waiting, &room, err));
	assert_int_equal(waiting, 2);
	atomic_fetch_add(&channel_lane(p.other, 0)->tail, 65);
	assert_refused(tmesh_channel_level(p.maker, &waiting, &room, err), -EPROTO, "tail");
	pair_end(&p);
}

UNIT(test_one_after_the_other)
{
	struct pair p = pair_make(RECV, NULL);

	/* A channel's places are its own, whatever the backend. */
	for (uint64_t n = 0; n < (unit_on_kernel() ? 60 : 300); n++) {
		send_one(p.ctx, p.other, n);
		tmesh_channel_unref(p.other);
		/* Never busy: the one before has gone. */
		p.other = pair_open(&p, SEND);
		receive_one(p.maker, n);
	}
	pair_end(&p);
}

UNIT_MAIN("channel_lanes", NULL, NULL)
