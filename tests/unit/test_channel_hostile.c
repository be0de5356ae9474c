// SPDX-License-Identifier: MIT
/*
 * A process writes anything anywhere into a channel's memory while both ends use it. No call takes
 * longer than it may, messages are whole as far as that can be checked, and the channel beside it
 * does not notice.
 */
#include <sys/un.h>

#include "channels.h"
#include "channel_internal.h"

#define ROUNDS 40
#define TIMEOUT (2 * SECOND / 1000)

static atomic_bool over;
static atomic_int late;

static uint64_t length_ns(void)
{
	const char *length = getenv("TMESH_TEST_LENGTH");

	return length && !strcmp(length, "full") ? SECOND / 2 : SECOND / 40;
}

/* A machine with much to do is no hang. */
static void in_time(uint64_t start)
{
	if (tmesh_now_ns() - start > 60 * (uint64_t)SECOND)
		atomic_fetch_add(&late, 1);
}

static void *scribble(void *data)
{
	struct tmesh_channel *channel = data;
	atomic_uint_fast64_t *words = (atomic_uint_fast64_t *)channel->head;
	uint64_t random = 88172645463325252u;

	while (!over) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		/* Now near, now far off. */
		atomic_fetch_add(&words[random % (channel->shape.bytes / 8)],
				 random & 1 << 20 ? random >> 32 : (random >> 32) % 5 - 2);
		for (volatile int i = 0; i < (int)(random >> 40 & 1023); i++)
			;
	}
	return NULL;
}

static void *receive(void *data)
{
	struct tmesh_channel *channel = data;
	struct tmesh_message message;
	void *bytes;

	while (!over) {
		uint64_t start = tmesh_now_ns();

		if (!tmesh_channel_recv(channel, &message, TIMEOUT, NULL) && message.tensor) {
			if (tmesh_tensor_data(message.tensor, TMESH_READ, &bytes, NULL) == 0 &&
			    tmesh_tensor_bytes(message.tensor))
				*(volatile uint8_t *)bytes;
			tmesh_tensor_unref(message.tensor);
		}
		in_time(start);
	}
	return NULL;
}

static void *send_all(void *data)
{
	struct tmesh_channel *channel = data;
	int64_t shape[] = {3, 5};
	struct tmesh_message messages[3] = {{.bytes = 8}, {.bytes = 24}, {.bytes = 56}};

	assert_int_equal(tmesh_tensor_create(channel->ctx, TMESH_INT32, 2, shape, NULL,
					     &messages[0].tensor, NULL),
			 0);
	assert_int_equal(tmesh_tensor_create(channel->ctx, TMESH_INT8, 1, shape, NULL,
					     &messages[1].tensor, NULL),
			 0);
	while (!over) {
		uint64_t start = tmesh_now_ns();

		tmesh_channel_send_batch(channel, messages, 3, TIMEOUT, NULL);
		in_time(start);
	}
	tmesh_tensor_unref(messages[0].tensor);
	tmesh_tensor_unref(messages[1].tensor);
	return NULL;
}

UNIT(test_scribbled)
{
	struct tmesh_channel_opts opts = {
		.size = sizeof(opts), .capacity = 8, .producers = 2, .regions = 2, .layouts = 2};
	struct tmesh_ctx *ctx = new_ctx();

	for (int round = 0; round < ROUNDS; round++) {
		void *(*work[])(void *) = {send_all, receive, scribble};
		struct tmesh_channel_opts beside_opts = {.size = sizeof(beside_opts)};
		struct pair p = {.ctx = tmesh_ctx_ref(ctx)}, beside = pair_make(SEND, &beside_opts);
		uint64_t until = tmesh_now_ns() + length_ns(), n = 0;
		pthread_t threads[3];

		assert_ok(tmesh_channel_create(ctx, SEND, &opts, &p.maker, err));
		assert_ok(tmesh_channel_token(p.maker, p.token, err));
		p.other = pair_open(&p, RECV);
		over = false;
		for (int i = 0; i < 3; i++)
			pthread_create(&threads[i], NULL, work[i], i == 1 ? p.other : p.maker);
		while (tmesh_now_ns() < until) {
			struct tmesh_message message = number(n), got;

			assert_ok(tmesh_channel_send(beside.maker, &message, PATIENCE, err));
			assert_ok(tmesh_channel_recv(beside.other, &got, PATIENCE, err));
			assert_int_equal(number_of(&got), n++);
		}
		over = true;
		for (int i = 0; i < 3; i++)
			pthread_join(threads[i], NULL);
		pair_end(&beside);
		pair_end(&p);
	}
	assert_int_equal(late, 0);
	tmesh_ctx_unref(ctx);
}

/* A lane looks as if its last producer had published more messages than it has slots. The next
 * producer's look at it comes to an end. */
UNIT(test_left_behind)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 8, .producers = 2};
	struct pair p = pair_make(RECV, &opts);
	struct channel_lane *lane = channel_lane(p.maker, 1);
	struct tmesh_message message = number(1);
	struct tmesh_channel *second;
	int rc;

	atomic_store(&lane->tail, 1);
	for (uint64_t i = 1; i <= opts.capacity; i++)
		atomic_store(&channel_cell(p.maker, lane, i)->word, channel_word(i, 0));
	alarm(600);
	second = pair_open(&p, SEND);
	alarm(0);
	assert_refused(tmesh_channel_try_send(second, &message, err), -EAGAIN, "full");
	tmesh_channel_unref(second);
	atomic_store(&lane->tail, opts.capacity + 1);
	while ((rc = tmesh_channel_open(p.ctx, p.token, SEND, NULL, &second, NULL)) == -EBUSY)
		usleep(100);
	assert_int_equal(rc, -EPROTO);
	pair_end(&p);
}

static struct tmesh_channel *next_producer(struct pair *p, struct tmesh_channel *last)
{
	struct tmesh_channel *next;

	tmesh_channel_unref(last);
	/* The place is free once the maker has seen the end of the connection. */
	while (tmesh_channel_open(p->ctx, p->token, SEND, NULL, &next, NULL) == -EBUSY)
		usleep(100);
	return next;
}

static void send_number(struct tmesh_channel *channel, uint64_t n)
{
	struct tmesh_message message = number(n);

	assert_ok(tmesh_channel_try_send(channel, &message, err));
}

static void expect_number(struct tmesh_channel *channel, uint64_t n)
{
	struct tmesh_message got;

	assert_ok(tmesh_channel_try_recv(channel, &got, err));
	assert_int_equal(number_of(&got), n);
}

/* Producers that died between two words: their published messages are there, once, and no others.
 */
UNIT(test_died_between)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 8, .producers = 2};
	struct pair p = pair_make(RECV, &opts);
	struct tmesh_channel *second = pair_open(&p, SEND);
	struct channel_lane *lane = channel_lane(p.maker, 1);
	struct tmesh_message got;

	/* Taken, before its tail said so. */
	send_number(second, 1);
	send_number(second, 2);
	expect_number(p.maker, 1);
	expect_number(p.maker, 2);
	atomic_store(&lane->tail, 1);
	second = next_producer(&p, second);
	send_number(second, 3);
	expect_number(p.maker, 3);
	/* Not taken yet. */
	send_number(second, 4);
	send_number(second, 5);
	atomic_store(&lane->tail, 3);
	second = next_producer(&p, second);
	send_number(second, 6);
	for (uint64_t n = 4; n <= 6; n++)
		expect_number(p.maker, n);
	/* The end of a batch, of which it did not live to publish the beginning. */
	atomic_store(&channel_cell(p.maker, lane, 7)->word, channel_word(7, 8));
	second = next_producer(&p, second);
	send_number(second, 7);
	expect_number(p.maker, 7);
	assert_refused(tmesh_channel_try_recv(p.maker, &got, err), -EAGAIN, "no message is ready");
	send_number(second, 8);
	expect_number(p.maker, 8);
	tmesh_channel_unref(second);
	pair_end(&p);
}

/* A message that was never sent cannot have been taken. */
UNIT(test_head_ahead)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 8};
	struct pair p = pair_make(SEND, &opts);
	struct tmesh_message messages[8] = {0};

	atomic_store(&p.maker->lane->head, 5);
	assert_refused(tmesh_channel_flush(p.maker, 0, err), -EPROTO, "corrupt (head)");
	assert_refused(tmesh_channel_send_batch(p.maker, messages, 8, 0, err), -EPROTO,
		       "corrupt (head)");
	assert_refused(tmesh_channel_try_send(p.maker, messages, err), -EPROTO, "corrupt (head)");
	pair_end(&p);
}

/* Words that no sender writes where the next message is due. */
UNIT(test_bad_word)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 8};
	struct pair p = pair_make(SEND, &opts);
	struct tmesh_message message = number(7), got;
	atomic_uint_fast64_t *word = &channel_cell(p.maker, p.maker->lane, 0)->word;

	atomic_store(word, channel_word(3, 8));
	assert_refused(tmesh_channel_try_recv(p.other, &got, err), -EPROTO, "corrupt (cell)");
	atomic_store(word, 0);
	assert_refused(tmesh_channel_try_recv(p.other, &got, err), -EAGAIN, "no message is ready");
	/* A message that is longer than one can be goes, and the next one comes. */
	atomic_store(word, channel_word(0, TMESH_MESSAGE_BYTES + 1));
	assert_refused(tmesh_channel_try_recv(p.other, &got, err), -EPROTO, "corrupt (kind)");
	word = &channel_cell(p.maker, p.maker->lane, 1)->word;
	atomic_store(word, channel_word(1, CHANNEL_KIND_TENSOR + TMESH_MESSAGE_TENSOR_BYTES + 1));
	assert_refused(tmesh_channel_try_recv(p.other, &got, err), -EPROTO, "corrupt (kind)");
	p.maker->tail = 2;
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	assert_ok(tmesh_channel_try_recv(p.other, &got, err));
	assert_int_equal(number_of(&got), 7);
	pair_end(&p);
}

/* A message about a tensor whose words, or what they name in the tables, are not a sender's. */
UNIT(test_bad_names)
{
	struct tmesh_channel_opts opts = {
		.size = sizeof(opts), .capacity = 8, .regions = 2, .layouts = 2};
	struct pair p = pair_make(SEND, &opts);
	const int64_t shape[] = {16};
	struct tmesh_message message = {0}, got;
	struct tmesh_tensor *tensor, *beside;
	atomic_uint_fast64_t *region, *layout, *cell;
	struct tmesh_stats before = {.size = sizeof(before)}, after = before;
	_Alignas(uint64_t) char token[TMESH_TOKEN_SIZE];
	uint64_t position = 0;

	assert_ok(tmesh_tensor_create(p.ctx, TMESH_INT32, 1, shape, NULL, &tensor, err));
	assert_ok(tmesh_tensor_create(p.ctx, TMESH_INT32, 1, shape, NULL, &beside, err));
	assert_ok(tmesh_region_token(tmesh_tensor_region(beside), TMESH_READ, token, err));
	region = channel_regions(p.maker, p.maker->lane)[0].words;
	layout = channel_layouts(p.maker, p.maker->lane)[0].words;
	message.tensor = tensor;
	assert_ok(tmesh_stats(p.ctx, &before));
	/* Each time nothing is known yet at either end, as for the first message. */
#define BAD(word, change)                                                                \
	do {                                                                             \
		struct tmesh_channel *fresh = pair_open(&p, RECV);                       \
		uint64_t kept_region[16], kept_layout[24];                               \
                                                                                         \
		assert_ok(tmesh_channel_try_send(p.maker, &message, err));               \
		cell = channel_cell(p.maker, p.maker->lane, position++)->payload;        \
		channel_copy_out(kept_region, region, 16);                               \
		channel_copy_out(kept_layout, layout, 24);                               \
		change;                                                                  \
		assert_refused(tmesh_channel_try_recv(fresh, &got, err), -EPROTO, word); \
		assert_refused(tmesh_channel_try_recv(fresh, &got, err), -EAGAIN,        \
			       "no message is ready");                                   \
		channel_copy_in(region, kept_region, 16);                                \
		channel_copy_in(layout, kept_layout, 24);                                \
		tmesh_channel_unref(fresh);                                              \
	} while (0)
	BAD("number", atomic_fetch_or(&cell[CHANNEL_W_NAMES], 2));
	BAD("number", atomic_fetch_or(&cell[CHANNEL_W_NAMES], 2 << 16));
	BAD("(region)", atomic_fetch_xor(&region[CHANNEL_R_ID], 1));
	BAD("(rights)", atomic_fetch_or(&region[CHANNEL_R_RIGHTS], TMESH_MANAGE));
	BAD("(token)",
	    channel_copy_in(&region[CHANNEL_R_TOKEN], (uint64_t *)token, TMESH_TOKEN_SIZE / 8));
	BAD("(layout)", atomic_fetch_add(&layout[CHANNEL_L_VERSION], 1));
	BAD("(layout)", atomic_store(&layout[CHANNEL_L_VERSION], 0);
	    atomic_fetch_and(&cell[CHANNEL_W_NAMES], UINT32_MAX));
	BAD("(shape)", atomic_store(&layout[CHANNEL_L_SHAPE], (uint64_t)-1));
	BAD("(shape)", atomic_store(&layout[CHANNEL_L_TYPE], 99));
	BAD("(shape)", atomic_store(&layout[CHANNEL_L_TYPE], TMESH_INT32 | 9ull << 32));
	BAD("place", atomic_store(&cell[CHANNEL_W_BYTES], 60));
	BAD("place", atomic_store(&cell[CHANNEL_W_OFFSET], 1));
	BAD("place", atomic_store(&cell[CHANNEL_W_OFFSET], UINT64_MAX - 8));
	BAD("place", atomic_store(&layout[CHANNEL_L_STRIDES], (uint64_t)-1));
	/* None of it stays open. */
	assert_ok(tmesh_stats(p.ctx, &after));
	assert_int_equal(after.regions_live, before.regions_live);
	tmesh_tensor_unref(tensor);
	tmesh_tensor_unref(beside);
	pair_end(&p);
}

/* A consumer that may not open a region gets the reason once. */
UNIT(test_refused_once)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .flags = TMESH_CHANNEL_NO_OPEN};
	struct pair p = {.ctx = new_ctx()};
	const int64_t shape[] = {16};
	struct tmesh_message message = {0}, got;
	atomic_uint_fast64_t *id;

	assert_ok(tmesh_channel_create(p.ctx, SEND, NULL, &p.maker, err));
	assert_ok(tmesh_channel_token(p.maker, p.token, err));
	assert_ok(tmesh_channel_open(p.ctx, p.token, RECV, &opts, &p.other, err));
	assert_ok(tmesh_tensor_create(p.ctx, TMESH_INT32, 1, shape, NULL, &message.tensor, err));
	id = &channel_regions(p.maker, p.maker->lane)[0].words[CHANNEL_R_ID];
	for (int i = 0; i < 2; i++) {
		assert_ok(tmesh_channel_try_send(p.maker, &message, err));
		assert_refused(tmesh_channel_try_recv(p.other, &got, err), -EINPROGRESS, "prepare");
		atomic_fetch_xor(id, 1);
		assert_ok(tmesh_channel_prepare(p.other, err));
		assert_refused(tmesh_channel_try_recv(p.other, &got, err), -EPROTO,
			       "cannot be opened");
		atomic_fetch_xor(id, 1);
		assert_refused(tmesh_channel_try_recv(p.other, &got, err), -EAGAIN,
			       "no message is ready");
	}
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	assert_refused(tmesh_channel_try_recv(p.other, &got, err), -EINPROGRESS, "prepare");
	assert_ok(tmesh_channel_prepare(p.other, err));
	assert_ok(tmesh_channel_try_recv(p.other, &got, err));
	tmesh_tensor_unref(got.tensor);
	tmesh_tensor_unref(message.tensor);
	pair_end(&p);
}

/* The refusal of one region does not hold for the next one in its place of the table. */
UNIT(test_refused_other)
{
	struct tmesh_channel_opts one = {.size = sizeof(one), .regions = 1};
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .flags = TMESH_CHANNEL_NO_OPEN};
	struct pair p = {.ctx = new_ctx()};
	const int64_t shape[] = {16};
	struct tmesh_message message = {0}, got;
	struct tmesh_channel *rival;
	atomic_uint_fast64_t *id;

	assert_ok(tmesh_channel_create(p.ctx, SEND, &one, &p.maker, err));
	assert_ok(tmesh_channel_token(p.maker, p.token, err));
	assert_ok(tmesh_channel_open(p.ctx, p.token, RECV, &opts, &p.other, err));
	rival = pair_open(&p, RECV);
	id = &channel_regions(p.maker, p.maker->lane)[0].words[CHANNEL_R_ID];
	for (int i = 0; i < 2; i++) {
		assert_ok(tmesh_tensor_create(p.ctx, TMESH_INT32, 1, shape, NULL, &message.tensor,
					      err));
		assert_ok(tmesh_channel_try_send(p.maker, &message, err));
		tmesh_tensor_unref(message.tensor);
		if (i == 0) {
			atomic_fetch_xor(id, 1);
			assert_ok(tmesh_channel_prepare(p.other, err));
			atomic_fetch_xor(id, 1);
			assert_ok(tmesh_channel_try_recv(rival, &got, err));
			tmesh_tensor_unref(got.tensor);
		}
	}
	assert_refused(tmesh_channel_try_recv(p.other, &got, err), -EINPROGRESS, "prepare");
	assert_ok(tmesh_channel_prepare(p.other, err));
	assert_ok(tmesh_channel_try_recv(p.other, &got, err));
	tmesh_tensor_unref(got.tensor);
	tmesh_channel_unref(rival);
	pair_end(&p);
}

/* Memory that says it is a channel's, and is not, or is too small for what it says. */
UNIT(test_bad_memory)
{
	static const struct channel_head good = {
		.magic = CHANNEL_MAGIC,
		.version = CHANNEL_VERSION,
		.capacity = 64,
		.lanes = 1,
		.regions = 16,
		.layouts = 16,
		.flags = CHANNEL_POLLABLE,
	};
	struct pair p = pair_make(SEND, NULL);
	uint64_t bytes = p.maker->shape.bytes;
	struct {
		struct channel_head head;
		uint64_t bytes;
	} bad[] = {
		{good, 1},
		{good, CHANNEL_HEAD_BYTES},
		{good, CHANNEL_HEAD_BYTES + 4096},
		{good, bytes - 1},
		{good, bytes + 1},
		{good, bytes},
		{good, bytes},
		{good, bytes},
		{good, bytes},
		{good, bytes},
		{good, bytes},
		{good, bytes},
	};
	struct tmesh_ctx_opts memfd = {.size = sizeof(memfd), .backend = TMESH_BACKEND_MEMFD};
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_channel *channel;
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;
	void *addr;

	/* Nothing but one number of the head is wrong: 0 is a preset's place when a channel is
	 * made, and none in memory. */
	bad[5].head.magic ^= 1;
	bad[6].head.version++;
	bad[7].head.capacity = 0;
	bad[8].head.lanes = 0;
	bad[9].head.regions = 0;
	bad[10].head.layouts = 0;
	bad[11].head.flags = 2;
	pair_end(&p);
	assert_ok(tmesh_ctx_open(&memfd, &ctx, err));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_ok(tmesh_region_create(ctx, bad[i].bytes, NULL, &region, err));
		assert_ok(tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &addr, err));
		memcpy(addr, &bad[i].head, sizeof(good));
		assert_ok(tmesh_region_token(region, TMESH_READ | TMESH_WRITE, token, err));
		assert_refused(tmesh_channel_open(ctx, token, RECV, NULL, &channel, err), -EPROTO,
			       "not a channel");
		tmesh_region_unref(region);
	}
	tmesh_ctx_unref(ctx);
}

/* A maker that answers as it likes for memory that is a channel's. */
struct maker {
	int listener;
	struct tmesh_wire_reply reply;
	int fd;
	unsigned int count; /* as often it goes with the reply */
	bool silent;	    /* it hangs up instead */
};

static void *answer(void *data)
{
	struct maker *maker = data;
	int conn = accept(maker->listener, NULL, NULL);
	int fds[] = {maker->fd, maker->fd, maker->fd, maker->fd, maker->fd, maker->fd};
	char request[256];

	if (recv(conn, request, sizeof(request), 0) > 0 && !maker->silent) {
		tmesh_wire_send(conn, &maker->reply, sizeof(maker->reply), fds, maker->count, 0);
		/* Until who asked lets go. */
		recv(conn, request, 1, 0);
	}
	close(conn);
	return NULL;
}

static int ask(struct tmesh_ctx *ctx, const char *token, struct maker *maker)
{
	struct tmesh_channel *channel;
	struct tmesh_error err = {0};
	pthread_t thread;
	int rc;

	pthread_create(&thread, NULL, answer, maker);
	rc = tmesh_channel_open(ctx, token, SEND, NULL, &channel, &err);
	if (!rc)
		tmesh_channel_unref(channel);
	pthread_join(thread, NULL);
	tmesh_peers_drop(ctx);
	assert_int_equal(err.code, rc);
	return rc;
}

UNIT(test_bad_maker)
{
	static const uint8_t name[16] = {0x56, 0x78};
	struct tmesh_ctx_opts memfd = {.size = sizeof(memfd), .backend = TMESH_BACKEND_MEMFD};
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_token_fields parts = {.backend = TMESH_BACKEND_MEMFD};
	struct tmesh_index_entry entry = {.rights = TMESH_READ | TMESH_WRITE,
					  .region = p.maker->memory};
	struct maker good = {.reply = {.magic = TMESH_MAGIC_REPLY, .version = TMESH_WIRE_VERSION},
			     .count = 5}, /* ends to poll, and the store of its lane */
		bad;
	char token[TMESH_TOKEN_SIZE], path[33];
	struct sockaddr_un address;
	struct tmesh_channel *channel;
	struct tmesh_index *index;
	struct tmesh_ctx *ctx;
	unsigned int before;
	socklen_t size;
	int dir, null;

	/* Its link leads to an index of ours, in which the memory is; its socket is ours too. */
	assert_ok(tmesh_ctx_open(&memfd, &ctx, err));
	memcpy(parts.name, name, sizeof(name));
	tmesh_token_format(token, &parts);
	tmesh_hex(path, name, sizeof(name));
	assert_ok(tmesh_rundir_open(ctx, &dir, err));
	assert_ok(tmesh_index_new(name, 1, 64, false, &index, err));
	assert_ok(tmesh_index_add(&index, &entry, err));
	assert_int_equal(tmesh_rundir_link(dir, path, tmesh_index_fd(index)), 0);
	size = tmesh_rundir_address(dir, path, &address);
	good.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	good.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	assert_int_equal(bind(good.listener, (struct sockaddr *)&address, size), 0);
	assert_int_equal(listen(good.listener, 4), 0);
	/* From a bad answer nothing stays but what the context keeps after its first. The good one
	 * comes last: the watch closes what a channel had in its own time. */
	bad = good;
	bad.silent = true;
	assert_int_equal(ask(ctx, token, &bad), -ENOENT);
	before = unit_open_fds_at_rest();
#define BAD_ANSWER(member, value, code)                        \
	do {                                                   \
		bad = good;                                    \
		bad.member = value;                            \
		assert_int_equal(ask(ctx, token, &bad), code); \
		assert_int_equal(unit_open_fds(), before);     \
	} while (0)
	BAD_ANSWER(reply.magic, TMESH_MAGIC_REGION, -EPROTO);
	BAD_ANSWER(reply.version, TMESH_WIRE_VERSION + 1, -EPROTO);
	BAD_ANSWER(reply.lane, 1, -EPROTO);
	BAD_ANSWER(reply.lane, UINT32_MAX, -EPROTO);
	/* Without a store of its lane a sender owes what it sends. */
	for (unsigned int count = 0; count < 7; count++)
		if (count != good.count && count != good.count - 2)
			BAD_ANSWER(count, count, -EPROTO);
	BAD_ANSWER(reply.status, 1, -EPROTO);
	BAD_ANSWER(reply.status, -5000, -EPROTO);
	BAD_ANSWER(reply.status, -ENOENT, -ENOENT);
	BAD_ANSWER(reply.status, -EBUSY, -EBUSY);
	BAD_ANSWER(reply.status, -EMFILE, -EMFILE);
	BAD_ANSWER(silent, true, -ENOENT);
	/* Polling it could ask its server. */
	BAD_ANSWER(fd, null, -EPROTO);
	bad = good;
	bad.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(ask(ctx, token, &bad), -EPROTO);
	close(bad.fd);
	/* A thread closes it. */
	while (unit_open_fds() > before)
		usleep(1000);
	assert_int_equal(ask(ctx, token, &good), 0);
	close(null);
	close(good.fd);
	close(good.listener);
	/* Its memory is found, and no process answers for it. */
	assert_refused(tmesh_channel_open(ctx, token, SEND, NULL, &channel, err), -ENOENT, "gone");
	tmesh_index_free(index);
	tmesh_rundir_remove(dir, path);
	tmesh_ctx_unref(ctx);
	pair_end(&p);
}

/* The answer of a maker to a request to join as @role. */
static int32_t joins(struct pair *p, uint32_t role)
{
	struct tmesh_wire_request request = {
		.magic = TMESH_MAGIC_JOIN,
		.version = TMESH_WIRE_VERSION,
		.rights = role,
	};
	uint64_t deadline = tmesh_now_ns() + (uint64_t)PATIENCE;
	struct tmesh_token_fields parts;
	struct tmesh_wire_reply reply;
	int conn, fds[TMESH_JOIN_FDS], got;

	assert_ok(tmesh_token_parse(p->token, &parts, err));
	memcpy(request.secret, parts.secret, sizeof(request.secret));
	assert_ok(tmesh_peer_connect(p->maker->home, parts.name, deadline, &conn, err));
	assert_int_equal(tmesh_wire_send(conn, &request, sizeof(request), NULL, 0, 0), 0);
	got = tmesh_wire_recv(conn, &reply, sizeof(reply), fds, TMESH_JOIN_FDS, deadline);
	assert_int_equal(got, reply.status ? 0 : role == TMESH_CHANNEL_SEND ? 5 : 4);
	while (got > 0)
		close(fds[--got]);
	close(conn);
	return reply.status;
}

/* A joiner that is neither producer nor consumer gets no place. A closed channel gives none either,
 * though its memory is still there. */
UNIT(test_bad_joiner)
{
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_region *memory = tmesh_region_ref(p.maker->memory);
	struct tmesh_channel *more;

	assert_int_equal(joins(&p, RECV), 0);
	assert_int_equal(joins(&p, 0), -EINVAL);
	assert_int_equal(joins(&p, 7), -EINVAL);
	assert_int_equal(joins(&p, UINT32_MAX), -EINVAL);
	tmesh_channel_unref(p.maker);
	assert_refused(tmesh_channel_open(p.ctx, p.token, RECV, NULL, &more, err), -ENOENT,
		       "closed it");
	p.maker = NULL;
	tmesh_region_unref(memory);
	pair_end(&p);
}

UNIT_MAIN("channel_hostile", NULL, NULL)
