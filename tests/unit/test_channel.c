// SPDX-License-Identifier: MIT
/* Channels between ends that mean well: order, bounds, tensors, many at once. */
#include "channels.h"
#include "channel_internal.h"

UNIT(test_bytes)
{
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_message message = {0}, got;

	for (uint32_t bytes = 0; bytes <= TMESH_MESSAGE_BYTES; bytes++) {
		message.bytes = bytes;
		memset(message.data, (int)bytes + 1, sizeof(message.data));
		assert_ok(tmesh_channel_try_send(p.maker, &message, err));
		assert_ok(tmesh_channel_try_recv(p.other, &got, err));
		assert_int_equal(got.bytes, bytes);
		assert_memory_equal(got.data, message.data, bytes);
	}
	message.bytes = TMESH_MESSAGE_BYTES + 1;
	assert_refused(tmesh_channel_try_send(p.maker, &message, err), -EINVAL, "at most 56");
	message.bytes = 0;
	message.reserved = 1;
	assert_refused(tmesh_channel_try_send(p.maker, &message, err), -EINVAL, "reserved is 1");
	assert_refused(tmesh_channel_try_recv(p.other, &got, err), -EAGAIN, "no message is ready");
	assert_refused(tmesh_channel_try_send(p.other, &message, err), -EINVAL, "direction");
	assert_refused(tmesh_channel_try_recv(p.maker, &got, err), -EINVAL, "direction");
	pair_end(&p);
}

UNIT(test_full)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 4};
	struct pair p = pair_make(SEND, &opts);
	struct tmesh_message message = number(0), got, many[8];

	for (uint64_t i = 0; i < 4; i++) {
		message = number(i);
		assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	}
	assert_refused(tmesh_channel_try_send(p.maker, &message, err), -EAGAIN, "full");
	assert_refused(tmesh_channel_send(p.maker, &message, 2000000, err), -ETIMEDOUT,
		       "send timed out: the channel is full");
	assert_refused(tmesh_channel_flush(p.maker, 0, err), -ETIMEDOUT,
		       "flush timed out: sent messages wait");
	assert_ok(tmesh_channel_try_recv(p.other, &got, err));
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	assert_int_equal(tmesh_channel_recv_batch(p.other, many, 8, 0, NULL), 4);
	assert_int_equal(number_of(&many[0]), 1);
	assert_int_equal(number_of(&many[3]), 3);
	assert_ok(tmesh_channel_flush(p.maker, 0, err));
	for (uint64_t i = 0; i < 8; i++)
		many[i] = number(i);
	assert_int_equal(tmesh_channel_send_batch(p.maker, many, 8, 0, NULL), 4);
	assert_int_equal(tmesh_channel_recv_batch(p.other, many, 3, 0, NULL), 3);
	assert_int_equal(tmesh_channel_recv_batch(p.other, many, 3, 0, NULL), 1);
	assert_refused(tmesh_channel_recv(p.other, &got, 2000000, err), -ETIMEDOUT,
		       "receive timed out: no message is ready");
	assert_refused(tmesh_channel_recv_batch(p.other, many, 0, 0, err), -EINVAL, "at least");
	assert_refused(tmesh_channel_send_batch(p.maker, many, 0, 0, err), -EINVAL, "at least");
	pair_end(&p);
}

static void assert_level(struct tmesh_channel *channel, uint64_t waiting, uint32_t room)
{
	uint64_t is_waiting;
	uint32_t has_room = UINT32_MAX;

	assert_ok(tmesh_channel_level(channel, &is_waiting, &has_room, err));
	assert_int_equal(is_waiting, waiting);
	assert_int_equal(has_room, room);
	assert_ok(tmesh_channel_level(channel, NULL, NULL, err));
}

static void *take_one(void *channel)
{
	struct tmesh_message got;

	usleep(10000);
	assert_ok(tmesh_channel_recv((struct tmesh_channel *)channel, &got, -1, err));
	return NULL;
}

/* A handle may use fewer slots than there are; both ends see what is there. */
UNIT(test_level)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 8, .producers = 2};
	struct tmesh_channel_opts limited = {.size = sizeof(opts), .limit = 3};
	struct pair p = pair_make(RECV, &opts);
	struct tmesh_channel *from = NULL, *none;
	struct tmesh_message message = number(7), many[8];
	pthread_t thread;

	assert_refused(tmesh_channel_open(p.ctx, p.token, RECV, &limited, &none, err), -EINVAL,
		       "handles that send");
	assert_ok(tmesh_channel_open(p.ctx, p.token, SEND, &limited, &from, err));
	for (int turn = 0; turn < 20; turn++) {
		for (uint32_t i = 0; i < 3; i++) {
			assert_level(from, i, 3 - i);
			assert_ok(tmesh_channel_try_send(from, &message, err));
		}
		assert_level(from, 3, 0);
		assert_level(p.maker, 3, 0);
		assert_refused(tmesh_channel_try_send(from, &message, err), -EAGAIN, "full");
		assert_refused(tmesh_channel_send(from, &message, 2000000, err), -ETIMEDOUT, "");
		assert_int_equal(tmesh_channel_recv_batch(p.maker, many, 8, 0, NULL), 3);
		for (uint32_t i = 0; i < 8; i++)
			many[i] = message;
		assert_int_equal(tmesh_channel_send_batch(from, many, 8, 0, NULL), 3);
		assert_level(p.other, 3, 8);
		assert_ok(tmesh_channel_send(p.other, &message, 0, err));
		assert_level(p.other, 4, 7);
		assert_level(from, 4, 0);
		for (uint32_t i = 4; i; i--) {
			assert_level(p.maker, i, 0);
			assert_int_equal(tmesh_channel_recv_batch(p.maker, many, 1, 0, NULL), 1);
		}
		assert_level(from, 0, 3);
	}
	for (uint32_t i = 0; i < 3; i++)
		assert_ok(tmesh_channel_try_send(from, &message, err));
	assert_int_equal(pthread_create(&thread, NULL, take_one, p.maker), 0);
	assert_ok(tmesh_channel_send(from, &message, -1, err));
	pthread_join(thread, NULL);
	assert_level(from, 3, 0);
	tmesh_channel_unref(from);
	pair_end(&p);
}

UNIT(test_bad_options)
{
	static const struct {
		struct tmesh_channel_opts opts;
		const char *word;
	} bad[] = {
		{{.capacity = 3}, "power of two"},
		{{.capacity = 131072}, "most"},
		{{.producers = 65}, "most"},
		{{.regions = 1025}, "most"},
		{{.layouts = 1025}, "most"},
		{{.rights = TMESH_WRITE}, "rights"},
		{{.rights = TMESH_READ | TMESH_MANAGE}, "rights"},
		{{.spin_ns = 2 * SECOND}, "second"},
		{{.capacity = 4, .limit = 5}, "limit is 5"},
	};
	struct tmesh_ctx *ctx = new_ctx();
	struct tmesh_channel_opts opts;
	struct tmesh_channel *channel;
	struct tmesh_region *region;
	char token[TMESH_TOKEN_SIZE];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		opts = bad[i].opts;
		opts.size = sizeof(opts);
		assert_refused(tmesh_channel_create(ctx, SEND, &opts, &channel, err), -EINVAL,
			       bad[i].word);
	}
	opts = (struct tmesh_channel_opts){.size = 1};
	assert_refused(tmesh_channel_create(ctx, SEND, &opts, &channel, err), -EINVAL, "size");
	assert_refused(tmesh_channel_create(ctx, (enum tmesh_channel_role)3, NULL, &channel, err),
		       -EINVAL, "neither");
	assert_refused(tmesh_channel_open(ctx, "tm1m-x", SEND, NULL, &channel, err), -EPROTO,
		       "token");
	assert_refused(tmesh_channel_open(ctx, "tm1k-00112233445566778899aabbccddeeff", SEND, NULL,
					  &channel, err),
		       -EPROTO, "region's");
	opts = (struct tmesh_channel_opts){.size = sizeof(opts), .capacity = 4};
	assert_refused(tmesh_channel_open(ctx, "tm1m-x", SEND, &opts, &channel, err), -EINVAL,
		       "when the channel is made");
	assert_ok(tmesh_region_create(ctx, 65536, NULL, &region, err));
	assert_ok(tmesh_region_token(region, TMESH_READ | TMESH_WRITE, token, err));
	assert_int_equal(tmesh_channel_open(ctx, token, SEND, NULL, &channel, NULL), -EPROTO);
	/* Nor where the token or the memory does not give what a channel's does. */
	assert_ok(tmesh_region_token(region, TMESH_READ, token, err));
	assert_refused(tmesh_channel_open(ctx, token, SEND, NULL, &channel, err), -EPROTO,
		       "not a channel's");
	assert_ok(tmesh_region_seal(region, err));
	assert_refused(tmesh_channel_open(ctx, token, SEND, NULL, &channel, err), -EPROTO,
		       "not a channel's");
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

/* Those who receive have their places, and no lane. */
UNIT(test_receivers)
{
	struct pair p = {.ctx = new_ctx()};
	struct tmesh_channel *receivers[64], *more;

	assert_ok(tmesh_channel_create(p.ctx, RECV, NULL, &p.maker, err));
	assert_ok(tmesh_channel_token(p.maker, p.token, err));
	for (int i = 1; i < 64; i++)
		receivers[i] = pair_open(&p, RECV);
	assert_refused(tmesh_channel_open(p.ctx, p.token, RECV, NULL, &more, err), -EBUSY,
		       "close one of its receivers");
	p.other = pair_open(&p, SEND);
	assert_refused(tmesh_channel_open(p.ctx, p.token, SEND, NULL, &more, err), -EBUSY, "taken");
	for (int i = 1; i < 64; i++)
		tmesh_channel_unref(receivers[i]);
	pair_end(&p);
}

/* A tensor of 100 floats, the first of which is @first. */
static struct tmesh_tensor *tensor(struct tmesh_ctx *ctx, float first)
{
	struct tmesh_tensor *made;
	const struct tmesh_region_opts opts = {
		.size = sizeof(opts),
		.flags = TMESH_REGION_UNSEALED,
	};
	const int64_t shape[] = {4, 25};
	float data[100] = {first};

	assert_ok(tmesh_tensor_put(ctx, TMESH_FLOAT32, 2, shape, data, &opts, &made, err));
	return made;
}

UNIT(test_tensors)
{
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_tensor *first = tensor(p.ctx, 1), *second = tensor(p.ctx, 2), *again = NULL;
	struct tmesh_message message = {.tensor = first, .bytes = 24}, got;
	struct tmesh_stats before = {.size = sizeof(before)}, after = before;
	void *data;

	memcpy(message.data, "twenty-four bytes beside", 24);
	assert_ok(tmesh_stats(p.ctx, &before));
	for (int i = 0; i < 10; i++) {
		message.tensor = i % 2 ? second : first;
		assert_ok(tmesh_channel_try_send(p.maker, &message, err));
		assert_ok(tmesh_channel_try_recv(p.other, &got, err));
		assert_int_equal(got.bytes, 24);
		assert_memory_equal(got.data, message.data, 24);
		assert_int_equal(tmesh_region_id(tmesh_tensor_region(got.tensor)),
				 tmesh_region_id(tmesh_tensor_region(message.tensor)));
		assert_memory_equal(tmesh_tensor_layout(got.tensor),
				    tmesh_tensor_layout(message.tensor),
				    sizeof(struct tmesh_layout));
		assert_ok(tmesh_tensor_data(got.tensor, TMESH_READ, &data, err));
		assert_true(*(float *)data == 1 + i % 2);
		assert_refused(tmesh_tensor_data(got.tensor, TMESH_READ | TMESH_WRITE, &data, err),
			       -EACCES, "write");
		if (i == 0)
			again = got.tensor;
		else if (i % 2 == 0)
			assert_ptr_equal(got.tensor, again);
		tmesh_tensor_unref(got.tensor);
	}
	assert_ok(tmesh_stats(p.ctx, &after));
	assert_int_equal(after.regions_opened - before.regions_opened, 2);
	message.bytes = 25;
	assert_refused(tmesh_channel_try_send(p.maker, &message, err), -EINVAL, "at most 24");
	/* Sent, released, and still there for the receiver. */
	message = (struct tmesh_message){.tensor = tensor(p.ctx, 3)};
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	tmesh_tensor_unref(message.tensor);
	assert_ok(tmesh_channel_try_recv(p.other, &got, err));
	assert_ok(tmesh_tensor_data(got.tensor, TMESH_READ, &data, err));
	assert_true(*(float *)data == 3);
	tmesh_channel_unref(p.other);
	tmesh_channel_unref(p.maker);
	p.other = p.maker = NULL;
	/* The receiver's tensor outlives the channel. */
	assert_true(*(float *)data == 3);
	tmesh_tensor_unref(got.tensor);
	tmesh_tensor_unref(first);
	tmesh_tensor_unref(second);
	pair_end(&p);
}

/* An open that must not wait fails with its reason, and succeeds once it may wait. */
UNIT(test_no_open)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .flags = TMESH_CHANNEL_NO_OPEN};
	struct tmesh_channel_opts bad = {.size = sizeof(bad), .flags = 4};
	struct pair p = {.ctx = new_ctx()};
	struct tmesh_message message = number(1), got[3];

	assert_refused(tmesh_channel_create(p.ctx, SEND, &bad, &p.maker, err), -EINVAL, "flags");
	assert_ok(tmesh_channel_create(p.ctx, SEND, NULL, &p.maker, err));
	assert_ok(tmesh_channel_token(p.maker, p.token, err));
	assert_ok(tmesh_channel_open(p.ctx, p.token, RECV, &opts, &p.other, err));
	assert_refused(tmesh_channel_prepare(p.maker, err), -EINVAL, "direction");
	assert_ok(tmesh_channel_prepare(p.other, err));
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	message.tensor = tensor(p.ctx, 1);
	for (int i = 0; i < 2; i++)
		assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	assert_int_equal(tmesh_channel_recv_batch(p.other, got, 3, 0, NULL), 1);
	for (int i = 0; i < 2; i++)
		assert_refused(tmesh_channel_recv(p.other, got, -1, err), -EINPROGRESS, "prepare");
	assert_ok(tmesh_channel_prepare(p.other, err));
	assert_int_equal(tmesh_channel_recv_batch(p.other, got, 3, 0, NULL), 2);
	assert_ptr_equal(got[0].tensor, got[1].tensor);
	for (int i = 0; i < 2; i++)
		tmesh_tensor_unref(got[i].tensor);
	tmesh_tensor_unref(message.tensor);
	pair_end(&p);
}

/* An arena: many tensors in one region, of layouts that outnumber the channel's table. */
UNIT(test_layouts)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 8, .layouts = 2};
	struct pair p = pair_make(SEND, &opts);
	struct tmesh_stats before = {.size = sizeof(before)}, after = before;
	struct tmesh_tensor *sent[4];
	struct tmesh_region *region = new_region(p.ctx, 1 << 20);
	struct tmesh_message got;

	assert_ok(tmesh_stats(p.ctx, &before));
	for (int64_t i = 0; i < 500; i++) {
		int count = 0;

		for (int64_t k = 0; k < 4; k++) {
			struct tmesh_layout layout;
			struct tmesh_message message = {.bytes = 8};

			assert_ok(tmesh_layout_contiguous(&layout, TMESH_INT16, 2,
							  (int64_t[]){1 + (i + k) % 7, 3}, err));
			layout.offset = (uint64_t)(i * 512 + k * 256);
			if (i % 5 == 0 && layout.shape[0] > 1) {
				/* backwards */
				layout.offset += (uint64_t)(layout.shape[0] - 1) * 6;
				layout.strides[0] = -3;
			}
			assert_ok(tmesh_tensor_wrap(region, &layout, &sent[count], err));
			message.tensor = sent[count];
			if (tmesh_channel_try_send(p.maker, &message, NULL) == -EAGAIN) {
				/* More layouts than the table holds are under way. */
				assert_true(k >= 2);
				tmesh_tensor_unref(sent[count]);
				break;
			}
			count++;
		}
		for (int k = 0; k < count; k++) {
			assert_ok(tmesh_channel_try_recv(p.other, &got, err));
			assert_memory_equal(tmesh_tensor_layout(got.tensor),
					    tmesh_tensor_layout(sent[k]),
					    sizeof(struct tmesh_layout));
			assert_int_equal(tmesh_tensor_bytes(got.tensor),
					 tmesh_tensor_bytes(sent[k]));
			tmesh_tensor_unref(sent[k]);
			tmesh_tensor_unref(got.tensor);
		}
	}
	assert_ok(tmesh_stats(p.ctx, &after));
	assert_int_equal(after.regions_opened - before.regions_opened, 1);
	tmesh_region_unref(region);
	pair_end(&p);
}

/* Two regions, for which there is room, are opened once each: a region that has gone counts no
 * more. */
static void assert_stay_open(struct pair *p, struct tmesh_ctx *receiver)
{
	struct tmesh_stats before = {.size = sizeof(before)}, after = before;
	struct tmesh_tensor *both[] = {tensor(p->ctx, 1), tensor(p->ctx, 2)};
	struct tmesh_message got;

	assert_ok(tmesh_stats(receiver, &before));
	for (int i = 0; i < 10; i++) {
		struct tmesh_message message = {.tensor = both[i % 2]};

		assert_ok(tmesh_channel_try_send(p->maker, &message, err));
		assert_ok(tmesh_channel_try_recv(p->other, &got, err));
		tmesh_tensor_unref(got.tensor);
	}
	assert_ok(tmesh_stats(receiver, &after));
	assert_int_equal(after.regions_opened - before.regions_opened, 2);
	for (int i = 0; i < 2; i++)
		tmesh_tensor_unref(both[i]);
}

/* The watch may be giving back what was let go of before. */
static void expect_regions(struct tmesh_ctx *ctx, uint64_t most)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	do
		assert_ok(tmesh_stats(ctx, &stats));
	while (stats.regions_live > most && !usleep(1000));
}

/* The receiver holds no more regions than it wants to; the sender none that were taken and
 * have made place. */
UNIT(test_regions_bounded)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .regions = 3};
	struct tmesh_channel_opts few = {.size = sizeof(few), .max_regions = 2};
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct pair p = {.ctx = new_ctx()};
	struct tmesh_message message = {0}, got;
	struct tmesh_ctx *ctx = new_ctx();
	struct tmesh_tensor *kept[3];
	uint64_t before;

	assert_ok(tmesh_channel_create(p.ctx, SEND, &opts, &p.maker, err));
	assert_ok(tmesh_channel_token(p.maker, p.token, err));
	assert_ok(tmesh_channel_open(ctx, p.token, RECV, &few, &p.other, err));
	assert_ok(tmesh_stats(ctx, &stats));
	before = stats.regions_live;
	for (int i = 0; i < 20; i++) {
		message.tensor = tensor(p.ctx, (float)i);
		assert_ok(tmesh_channel_try_send(p.maker, &message, err));
		tmesh_tensor_unref(message.tensor);
		assert_ok(tmesh_channel_try_recv(p.other, &got, err));
		tmesh_tensor_unref(got.tensor);
		/* and the channel's memory where that is counted here too */
		expect_regions(p.ctx, 3 + 1);
		expect_regions(ctx, before + 2);
	}
	assert_stay_open(&p, ctx);
	for (int i = 0; i < 3; i++) {
		message.tensor = kept[i] = tensor(p.ctx, (float)i);
		assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	}
	message.tensor = tensor(p.ctx, 9);
	assert_refused(tmesh_channel_try_send(p.maker, &message, err), -EAGAIN, "full");
	tmesh_tensor_unref(message.tensor);
	for (int i = 0; i < 3; i++)
		tmesh_tensor_unref(kept[i]);
	pair_end(&p);
	tmesh_ctx_unref(ctx);
}

/* Large memory without users is not kept for the channel's sake, at neither end. */
static void expect_at_most(struct tmesh_ctx *ctx, uint64_t bytes)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	do
		assert_ok(tmesh_stats(ctx, &stats));
	while (stats.bytes_live > bytes && !usleep(1000));
}

static void expect_little(struct tmesh_ctx *ctx)
{
	expect_at_most(ctx, 1 << 19);
}

UNIT(test_bytes_bounded)
{
	struct tmesh_channel_opts few = {.size = sizeof(few), .max_bytes = 3 << 20};
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct pair p = {.ctx = new_ctx()};
	struct tmesh_message message = {0}, got;
	struct tmesh_ctx *ctx = new_ctx();
	struct tmesh_tensor *held = NULL;
	int64_t shape[] = {1 << 20};
	uint64_t before;

	assert_ok(tmesh_channel_create(p.ctx, SEND, NULL, &p.maker, err));
	assert_ok(tmesh_channel_token(p.maker, p.token, err));
	assert_ok(tmesh_channel_open(ctx, p.token, RECV, &few, &p.other, err));
	assert_ok(tmesh_stats(ctx, &stats));
	before = stats.bytes_live;
	for (int i = 0; i < 10; i++) {
		assert_ok(tmesh_tensor_create(p.ctx, TMESH_UINT8, 1, shape, NULL, &message.tensor,
					      err));
		assert_ok(tmesh_channel_try_send(p.maker, &message, err));
		tmesh_tensor_unref(message.tensor);
		/* A tensor that was taken goes with the next new one, and may just be going. */
		expect_at_most(p.ctx, 7 << 19);
		assert_ok(tmesh_channel_try_recv(p.other, &got, err));
		if (i == 0)
			held = got.tensor;
		else
			tmesh_tensor_unref(got.tensor);
		expect_at_most(ctx, before + (3 << 20) + 65536);
	}
	tmesh_tensor_unref(held);
	assert_stay_open(&p, ctx);
	assert_ok(tmesh_channel_flush(p.maker, 0, err));
	expect_little(p.ctx);
	/* ... or with a flush, when none comes. */
	assert_ok(tmesh_tensor_create(p.ctx, TMESH_UINT8, 1, shape, NULL, &message.tensor, err));
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	tmesh_tensor_unref(message.tensor);
	assert_ok(tmesh_channel_try_recv(p.other, &got, err));
	tmesh_tensor_unref(got.tensor);
	assert_ok(tmesh_channel_flush(p.maker, 0, err));
	expect_little(p.ctx);
	pair_end(&p);
	tmesh_ctx_unref(ctx);
}

/* Lanes are served in turn, and none is overlooked. */
UNIT(test_lanes)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .producers = 3};
	struct tmesh_channel_opts no_open = {.size = sizeof(no_open),
					     .flags = TMESH_CHANNEL_NO_OPEN};
	struct pair p = pair_make(RECV, &opts);
	struct tmesh_channel *from[] = {p.other, pair_open(&p, SEND), pair_open(&p, SEND)}, *late;
	struct tmesh_message message, got;
	uint64_t counts[3] = {0};

	for (uint64_t i = 0; i < 12; i++) {
		message = number(i % 3);
		assert_ok(tmesh_channel_try_send(from[i % 3], &message, err));
	}
	for (uint64_t i = 0; i < 12; i++) {
		assert_ok(tmesh_channel_try_recv(p.maker, &got, err));
		assert_int_equal(counts[number_of(&got)]++, i / 3);
	}
	message = (struct tmesh_message){.tensor = tensor(p.ctx, 1)};
	assert_ok(tmesh_channel_try_send(from[2], &message, err));
	assert_ok(tmesh_channel_open(p.ctx, p.token, RECV, &no_open, &late, err));
	assert_true(readable(tmesh_channel_poll_fd(late, NULL), 0));
	assert_refused(tmesh_channel_try_recv(late, &got, err), -EINPROGRESS, "prepare");
	assert_ok(tmesh_channel_prepare(late, err));
	assert_ok(tmesh_channel_try_recv(late, &got, err));
	tmesh_tensor_unref(got.tensor);
	tmesh_tensor_unref(message.tensor);
	tmesh_channel_unref(late);
	tmesh_channel_unref(from[1]);
	tmesh_channel_unref(from[2]);
	pair_end(&p);
}

/* Threads. */

#define EACH 20000

struct worker {
	struct pair *pair;
	enum tmesh_channel_role role;
	uint64_t first;
	uint64_t sum;
	uint64_t count;
	bool in_order;
};

static void *produce(void *data)
{
	struct worker *w = data;
	struct tmesh_channel *channel = pair_open(w->pair, SEND);
	struct tmesh_message message[16];
	uint64_t n = w->first;

	while (w->count < EACH) {
		int sent;

		for (uint64_t i = 0; i < 16; i++)
			message[i] = number(n + i);
		sent = tmesh_channel_send_batch(
			channel, message,
			(uint32_t)(1 + n % 16 < EACH - w->count ? 1 + n % 16 : EACH - w->count),
			PATIENCE, NULL);
		assert_true(sent > 0);
		for (int i = 0; i < sent; i++)
			w->sum += n++;
		w->count += (uint64_t)sent;
	}
	tmesh_channel_unref(channel);
	return NULL;
}

static void *consume(void *data)
{
	struct worker *w = data;
	struct tmesh_channel *channel = pair_open(w->pair, RECV);
	uint64_t last[8] = {0};
	struct tmesh_message message[8];
	int got;

	w->in_order = true;
	while ((got = tmesh_channel_recv_batch(channel, message, 8, PATIENCE, NULL)) > 0) {
		for (int i = 0; i < got; i++) {
			uint64_t n = number_of(&message[i]), who = n >> 32;

			w->in_order &= n > last[who];
			last[who] = n;
			w->sum += n;
		}
		w->count += (uint64_t)got;
	}
	assert_int_equal(got, -EPIPE);
	tmesh_channel_unref(channel);
	return NULL;
}

UNIT(test_many)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 32, .producers = 5};
	struct pair p = {.ctx = new_ctx()};
	struct worker workers[6];
	pthread_t threads[6];
	uint64_t sent = 0, got = 0, counted = 0;
	struct tmesh_message message;

	assert_ok(tmesh_channel_create(p.ctx, RECV, &opts, &p.maker, err));
	assert_ok(tmesh_channel_token(p.maker, p.token, err));
	/* While it is there, those who come late do not find that all others have gone. */
	p.other = pair_open(&p, SEND);
	for (uint64_t i = 0; i < 6; i++) {
		workers[i] = (struct worker){.pair = &p, .first = ((i + 1) << 32) + 1};
		pthread_create(&threads[i], NULL, i < 4 ? produce : consume, &workers[i]);
	}
	for (int i = 0; i < 6; i++) {
		if (i == 4)
			tmesh_channel_unref(p.other);
		pthread_join(threads[i], NULL);
	}
	p.other = NULL;
	for (int i = 0; i < 4; i++)
		sent += workers[i].sum;
	for (int i = 4; i < 6; i++) {
		assert_true(workers[i].in_order);
		got += workers[i].sum;
		counted += workers[i].count;
	}
	assert_int_equal(tmesh_channel_recv(p.maker, &message, PATIENCE, NULL), -EPIPE);
	assert_int_equal(counted, 4 * EACH);
	assert_int_equal(got, sent);
	pair_end(&p);
}

/* Messages that a producer has sent arrive though it is stopped and does not answer. */
UNIT(test_silent_sender)
{
	struct tmesh_ctx_opts memfd = {.size = sizeof(memfd), .backend = TMESH_BACKEND_MEMFD};
	struct pair p = {0};
	struct tmesh_message message = {0}, got;
	struct tmesh_ctx *ctx;
	char link[512];

	assert_ok(tmesh_ctx_open(&memfd, &p.ctx, err));
	assert_ok(tmesh_ctx_open(&memfd, &ctx, err));
	assert_ok(tmesh_channel_create(p.ctx, SEND, NULL, &p.maker, err));
	assert_ok(tmesh_channel_token(p.maker, p.token, err));
	message.tensor = tensor(p.ctx, 1);
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	assert_ok(tmesh_channel_open(ctx, p.token, RECV, NULL, &p.other, err));
	snprintf(link, sizeof(link), "%s/%.32s.index", unit_runtime_dir(), p.token + 5);
	assert_int_equal(unlink(link), 0);
	tmesh_peers_drop(ctx);
	pthread_mutex_lock(&p.ctx->lock);
	assert_ok(tmesh_channel_try_recv(p.other, &got, err));
	pthread_mutex_unlock(&p.ctx->lock);
	tmesh_tensor_unref(got.tensor);
	tmesh_tensor_unref(message.tensor);
	pair_end(&p);
	tmesh_ctx_unref(ctx);
}

/* Not in time is not never: a message about what cannot be opened now stays. */
UNIT(test_late_region)
{
	struct tmesh_ctx_opts memfd = {.size = sizeof(memfd), .backend = TMESH_BACKEND_MEMFD};
	struct pair p = {0};
	struct tmesh_message message = {0}, got;
	unsigned int before;
	char link[512];
	struct tmesh_ctx *ctx;
	int rc;

	assert_ok(tmesh_ctx_open(&memfd, &p.ctx, err));
	assert_ok(tmesh_ctx_open(&memfd, &ctx, err));
	assert_ok(tmesh_channel_create(p.ctx, SEND, NULL, &p.maker, err));
	assert_ok(tmesh_channel_token(p.maker, p.token, err));
	/* The channel's store is spoilt, so that the producer alone has it. */
	shutdown(p.maker->store->ends.get, SHUT_RD);
	message.tensor = tensor(p.ctx, 1);
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	assert_ok(tmesh_channel_open(ctx, p.token, RECV, NULL, &p.other, err));
	ctx->timeout_ns = SECOND / 20;
	/* By socket, at which no thread answers. */
	snprintf(link, sizeof(link), "%s/%.32s.index", unit_runtime_dir(), p.token + 5);
	assert_int_equal(unlink(link), 0);
	tmesh_peers_drop(ctx);
	pthread_mutex_lock(&p.ctx->lock);
	/* A call waits for its own time, not for the context's. */
	assert_refused(tmesh_channel_try_recv(p.other, &got, err), -EAGAIN, "no message is ready");
	assert_refused(tmesh_channel_recv(p.other, &got, -1, err), -ETIMEDOUT, "does not answer");
	ctx->timeout_ns = PATIENCE;
	assert_refused(tmesh_channel_recv(p.other, &got, 1, err), -ETIMEDOUT, "timed out");
	before = unit_open_fds();
	for (int i = 0; i < 100; i++)
		assert_refused(tmesh_channel_try_recv(p.other, &got, err), -EAGAIN,
			       "no message is ready");
	assert_int_equal(unit_open_fds(), before);
	pthread_mutex_unlock(&p.ctx->lock);
	/* The producer was asked once, and its answer is taken by whichever call comes. */
	while ((rc = tmesh_channel_try_recv(p.other, &got, NULL)) == -EAGAIN)
		usleep(100);
	assert_int_equal(rc, 0);
	tmesh_tensor_unref(got.tensor);
	tmesh_tensor_unref(message.tensor);
	pair_end(&p);
	tmesh_ctx_unref(ctx);
}

/* An error of one message is not another one's about the same region, for another receiver may have
 * taken the first. */
UNIT(test_refused_once)
{
	const struct tmesh_channel_opts opts = {.size = sizeof(opts),
						.flags = TMESH_CHANNEL_NO_OPEN};
	struct pair p = {.ctx = new_ctx()};
	struct tmesh_message message = {0}, got;
	struct channel_known_region *known;

	assert_ok(tmesh_channel_create(p.ctx, SEND, NULL, &p.maker, err));
	assert_ok(tmesh_channel_token(p.maker, p.token, err));
	assert_ok(tmesh_channel_open(p.ctx, p.token, RECV, &opts, &p.other, err));
	message.tensor = tensor(p.ctx, 1);
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	known = &p.other->known_regions[0];
	known->refused = tmesh_region_id(tmesh_tensor_region(message.tensor));
	known->refused_at = UINT64_MAX;
	known->why = -ENOENT;
	assert_refused(tmesh_channel_try_recv(p.other, &got, err), -EINPROGRESS, "not open yet");
	assert_ok(tmesh_channel_prepare(p.other, err));
	assert_ok(tmesh_channel_try_recv(p.other, &got, err));
	tmesh_tensor_unref(got.tensor);
	tmesh_tensor_unref(message.tensor);
	pair_end(&p);
}

UNIT_MAIN("channel", NULL, NULL)
