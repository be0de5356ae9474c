// SPDX-License-Identifier: MIT
/*
 * A channel between two well-behaved ends, and a third process that writes anything anywhere into
 * its memory between their calls. Every call ends, with success or an error, and a tensor that
 * comes out lies inside its region.
 *
 * The input is a script: each step's first byte says what is done.
 */
#include <stdlib.h>
#include <string.h>

#include "bounds.h"
#include "channel_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct script {
	const uint8_t *data;
	size_t left;
};

static uint64_t take(struct script *script, size_t bytes)
{
	uint64_t value = 0;

	if (bytes > script->left)
		bytes = script->left;
	memcpy(&value, script->data, bytes);
	script->data += bytes;
	script->left -= bytes;
	return value;
}

static struct tmesh_ctx *ctx;
static struct tmesh_tensor *tensors[3]; /* more than a channel's regions */

static void begin(void)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .backend = TMESH_BACKEND_MEMFD};
	const int64_t shape[] = {6, 7};

	if (tmesh_ctx_open(&opts, &ctx, NULL))
		abort();
	for (int i = 0; i < 3; i++)
		if (tmesh_tensor_create(ctx, i == 1 ? TMESH_FLOAT64 : TMESH_INT16, 2, shape, NULL,
					&tensors[i], NULL))
			abort();
}

/* Touch the ends of the range that it claims. */
static void check(struct tmesh_message *message)
{
	const struct tmesh_layout *layout;
	volatile uint8_t seen;
	__int128 low, high, end;
	uint8_t *data;

	if (message->bytes > (message->tensor ? TMESH_MESSAGE_TENSOR_BYTES : TMESH_MESSAGE_BYTES))
		abort();
	if (!message->tensor)
		return;
	layout = tmesh_tensor_layout(message->tensor);
	end = tmesh_region_bytes(tmesh_tensor_region(message->tensor));
	if (!fuzz_bounds(layout, &low, &high) || layout->offset + low < 0 ||
	    layout->offset + high > end)
		abort();
	if (tmesh_tensor_data(message->tensor, TMESH_READ, (void **)&data, NULL))
		abort();
	if (high > low) {
		seen = data[(ptrdiff_t)low];
		seen = data[(ptrdiff_t)high - 1];
		(void)seen;
	}
	tmesh_tensor_unref(message->tensor);
}

static void send_some(struct tmesh_channel *from, struct script *script)
{
	struct tmesh_message messages[4] = {0};
	uint32_t count = 1 + take(script, 1) % 4;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t what = take(script, 1);

		messages[i].tensor = what % 4 < 3 ? tensors[what % 4] : NULL;
		messages[i].bytes = (what >> 2) % (messages[i].tensor ? TMESH_MESSAGE_TENSOR_BYTES
								      : TMESH_MESSAGE_BYTES);
	}
	tmesh_channel_send_batch(from, messages, count, 0, NULL);
}

static void receive_some(struct tmesh_channel *to, struct script *script)
{
	struct tmesh_message messages[4];
	int got = tmesh_channel_recv_batch(to, messages, 1 + take(script, 1) % 4, 0, NULL);

	for (int i = 0; i < got; i++)
		check(&messages[i]);
}

/* Mostly the words of the lanes, with numbers near the good ones. */
static void scribble_near(struct tmesh_channel *channel, struct script *script)
{
	struct channel_lane *lane = channel_lane(channel, take(script, 1) % channel->shape.lanes);
	atomic_uint_fast64_t *words[] = {
		&lane->head,
		&lane->tail,
		&channel_cell(channel, lane, take(script, 1))->word,
		&channel_cell(channel, lane, 0)->payload[take(script, 1) % CHANNEL_WORDS],
		&channel_regions(channel, lane)[take(script, 1) % channel->shape.regions].words[0],
		&channel_layouts(channel, lane)[take(script, 1) % channel->shape.layouts]
			 .words[take(script, 1) % CHANNEL_L_WORDS],
	};
	atomic_uint_fast64_t *word = words[take(script, 1) % (sizeof(words) / sizeof(words[0]))];
	unsigned int shift = take(script, 1) % 64;

	atomic_fetch_add(word, (uint64_t)(int64_t)(int8_t)take(script, 1) << shift);
}

static void scribble_anywhere(struct tmesh_channel *channel, struct script *script)
{
	uint64_t at = take(script, 2) % (channel->shape.bytes / 8);

	atomic_store((atomic_uint_fast64_t *)channel->head + at, take(script, 8));
}

static void join(const char *token, enum tmesh_channel_role role, struct script *script)
{
	struct tmesh_channel *channel;

	if (tmesh_channel_open(ctx, token, role, NULL, &channel, NULL))
		return;
	if (role == TMESH_CHANNEL_SEND)
		send_some(channel, script);
	else
		receive_some(channel, script);
	tmesh_channel_unref(channel);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_channel_opts opts = {
		.size = sizeof(opts),
		.capacity = 4,
		.producers = 2,
		.regions = 2,
		.layouts = 2,
	};
	struct script script = {data, size};
	struct tmesh_channel *from, *to;
	char token[TMESH_TOKEN_SIZE];

	if (!ctx)
		begin();
	if (tmesh_channel_create(ctx, TMESH_CHANNEL_SEND, &opts, &from, NULL) ||
	    tmesh_channel_token(from, token, NULL) ||
	    tmesh_channel_open(ctx, token, TMESH_CHANNEL_RECV, NULL, &to, NULL))
		abort();
	for (int steps = 0; script.left && steps < 200; steps++) {
		switch (take(&script, 1) % 8) {
		case 0:
		case 1:
			send_some(from, &script);
			break;
		case 2:
		case 3:
			receive_some(to, &script);
			break;
		case 4:
			scribble_near(from, &script);
			break;
		case 5:
			scribble_anywhere(from, &script);
			break;
		case 6:
			tmesh_channel_flush(from, 0, NULL);
			tmesh_channel_poll_fd(to, NULL);
			break;
		default:
			join(token, take(&script, 1) % 2 ? TMESH_CHANNEL_SEND : TMESH_CHANNEL_RECV,
			     &script);
		}
	}
	tmesh_channel_unref(to);
	tmesh_channel_unref(from);
	return 0;
}
