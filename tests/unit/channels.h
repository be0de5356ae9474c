/* SPDX-License-Identifier: MIT */
/* Shared by the tests of channels: two ends, messages with a number, tensors with a number. */
#ifndef TMESH_UNIT_CHANNELS_H
#define TMESH_UNIT_CHANNELS_H

#include "channel_internal.h"
#include "unit.h"

#define SEND TMESH_CHANNEL_SEND
#define RECV TMESH_CHANNEL_RECV
#define SECOND 1000000000ll
/* The limit for a message that does come, long enough for a busy machine. */
#define PATIENCE (600 * SECOND)
#define PATIENT_MS 600000

static inline struct tmesh_message number(uint64_t n)
{
	struct tmesh_message message = {.bytes = sizeof(n)};

	memcpy(message.data, &n, sizeof(n));
	return message;
}

static inline uint64_t number_of(const struct tmesh_message *message)
{
	uint64_t n;

	memcpy(&n, message->data, sizeof(n));
	return n;
}

/* A channel and its other end, in one process: @role is the maker's. */
struct pair {
	struct tmesh_ctx *ctx;
	struct tmesh_channel *maker;
	struct tmesh_channel *other;
	char token[TMESH_TOKEN_SIZE];
};

static inline struct tmesh_channel *pair_open(struct pair *pair, enum tmesh_channel_role role)
{
	struct tmesh_channel *channel;

	assert_ok(tmesh_channel_open(pair->ctx, pair->token, role, NULL, &channel, err));
	return channel;
}

static inline struct pair pair_make(enum tmesh_channel_role role,
				    const struct tmesh_channel_opts *opts)
{
	struct pair pair = {.ctx = new_ctx()};

	assert_ok(tmesh_channel_create(pair.ctx, role, opts, &pair.maker, err));
	assert_ok(tmesh_channel_token(pair.maker, pair.token, err));
	pair.other = pair_open(&pair, role == SEND ? RECV : SEND);
	return pair;
}

static inline void pair_end(struct pair *pair)
{
	tmesh_channel_unref(pair->other);
	tmesh_channel_unref(pair->maker);
	tmesh_ctx_unref(pair->ctx);
}

/* Whether something lies in the store of the first lane. */
static inline bool lane_has_something(const struct tmesh_channel *channel)
{
	int fd;
	bool found;

	if (tmesh_channel_lane_end(channel, 0, &fd))
		return false;
	found = recv(fd, &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
	close(fd);
	return found;
}

#endif /* TMESH_UNIT_CHANNELS_H */
