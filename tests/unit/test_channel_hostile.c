// SPDX-License-Identifier: MIT
/*
 * Somebody writes anything anywhere into a channel's memory while both ends use it: no call takes
 * longer than it may, what comes out is whole as far as it can be checked, and the channel beside
 * it does not notice.
 */
#include <pthread.h>

#include "channels.h"
#include "channel.h"

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
	if (tmesh_now_ns() - start > 5 * (uint64_t)SECOND)
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

static void test_scribbled(void **state)
{
	struct tmesh_channel_opts opts = {
		.size = sizeof(opts), .slots = 8, .producers = 2, .regions = 2, .layouts = 2};
	struct tmesh_ctx *ctx = context();

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

			assert_ok(tmesh_channel_send(beside.maker, &message, 20 * SECOND, err));
			assert_ok(tmesh_channel_recv(beside.other, &got, 20 * SECOND, err));
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

/* A lane that looks as if its last producer had published more than it has slots: whoever takes its
 * place comes to an end of looking at it. */
static void test_left_behind(void **state)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .slots = 8, .producers = 2};
	struct pair p = pair_make(RECV, &opts);
	struct channel_lane *lane = channel_lane(p.maker, 1);
	struct tmesh_message message = number(1);
	struct tmesh_channel *second;

	atomic_store(&lane->tail, 1);
	for (uint64_t i = 1; i <= opts.slots; i++)
		atomic_store(&channel_slot(p.maker, lane, i)->word, channel_word(i, 0));
	alarm(20);
	second = pair_open(&p, SEND);
	alarm(0);
	assert_refused(tmesh_channel_try_send(second, &message, err), -EAGAIN, "full");
	tmesh_channel_unref(second);
	pair_end(&p);
}

/* What was never sent cannot have been taken. */
static void test_head_ahead(void **state)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .slots = 8};
	struct pair p = pair_make(SEND, &opts);
	struct tmesh_message messages[8] = {0};

	atomic_store(&p.maker->lane->head, 5);
	assert_refused(tmesh_channel_flush(p.maker, 0, err), -EPROTO, "corrupt (head)");
	assert_refused(tmesh_channel_send_batch(p.maker, messages, 8, 0, err), -EPROTO,
		       "corrupt (head)");
	assert_refused(tmesh_channel_try_send(p.maker, messages, err), -EPROTO, "corrupt (head)");
	pair_end(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_scribbled),
		cmocka_unit_test(test_left_behind),
		cmocka_unit_test(test_head_ahead),
	};

	return cmocka_run_group_tests_name("channel_hostile", tests, NULL, NULL);
}
