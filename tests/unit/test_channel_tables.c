// SPDX-License-Identifier: MIT
/* What both ends of a channel remember of tensors, so that those which go again cost less: never
 * for another tensor, and not beyond what it stands on. */
#include "channels.h"
#include "channel.h"

static struct tmesh_tensor *view(struct tmesh_region *region, int64_t rows, int64_t columns,
				 uint64_t offset)
{
	struct tmesh_layout layout;
	struct tmesh_tensor *made;

	assert_ok(
		tmesh_layout_contiguous(&layout, TMESH_INT32, 2, (int64_t[]){rows, columns}, err));
	layout.offset = offset;
	assert_ok(tmesh_tensor_wrap(region, &layout, &made, err));
	return made;
}

static struct tmesh_region *region_of(struct tmesh_ctx *ctx, uint64_t bytes)
{
	struct tmesh_region *region;

	assert_ok(tmesh_region_create(ctx, bytes, NULL, &region, err));
	return region;
}

static void assert_comes(struct tmesh_channel *channel, struct tmesh_tensor *sent)
{
	struct tmesh_message got;

	assert_ok(tmesh_channel_try_recv(channel, &got, err));
	assert_memory_equal(tmesh_tensor_layout(got.tensor), tmesh_tensor_layout(sent),
			    sizeof(struct tmesh_layout));
	assert_int_equal(tmesh_region_id(tmesh_tensor_region(got.tensor)),
			 tmesh_region_id(tmesh_tensor_region(sent)));
	tmesh_tensor_unref(got.tensor);
}

static void assert_passes(struct pair *p, struct tmesh_tensor *tensor)
{
	struct tmesh_message message = {.tensor = tensor};

	assert_ok(tmesh_channel_try_send(p->maker, &message, err));
	assert_comes(p->other, tensor);
}

/* Tensors that stay, in more layouts and regions than the tables hold, all of the same bytes at
 * the same offset: each pushes out what was said of another one. */
static void test_again(void **state)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .regions = 2, .layouts = 2};
	struct pair p = pair_make(SEND, &opts);
	struct tmesh_tensor *tensors[9];

	for (int i = 0; i < 3; i++) {
		struct tmesh_region *region = region_of(p.ctx, 4096);

		for (int k = 0; k < 3; k++)
			tensors[3 * i + k] = view(region, 1 + k, 12 / (1 + k), 0);
		tmesh_region_unref(region);
	}
	for (int step = 1; step < 9; step++)
		for (int i = 0; i < 50; i++) {
			assert_passes(&p, tensors[i * step % 9]);
			assert_passes(&p, tensors[i * step % 9]);
		}
	for (int i = 0; i < 9; i++)
		tmesh_tensor_unref(tensors[i]);
	pair_end(&p);
}

/* The allocator gives the next tensor the last one's place. */
static void test_same_place(void **state)
{
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_region *region = region_of(p.ctx, 4096);
	bool same = false;
	void *last = NULL;

	for (int i = 0; i < 200; i++) {
		struct tmesh_tensor *tensor = view(region, 1 + i % 7, 2, (uint64_t)(i % 5) * 256);

		same = same || tensor == last;
		last = tensor;
		assert_passes(&p, tensor);
		tmesh_tensor_unref(tensor);
	}
	if (!same)
		print_message("no tensor took the place of the last one\n");
	tmesh_region_unref(region);
	pair_end(&p);
}

/* Both producers say the same words of different tensors: which table they mean tells their lane.
 */
static void test_lanes(void **state)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .producers = 2};
	struct pair p = pair_make(RECV, &opts);
	struct tmesh_channel *second = pair_open(&p, SEND);
	struct tmesh_region *region = region_of(p.ctx, 4096);
	struct tmesh_tensor *flat = view(region, 3, 4, 0), *tall = view(region, 4, 3, 0);
	struct tmesh_message one = {.tensor = flat}, other = {.tensor = tall};

	for (int i = 0; i < 10; i++) {
		assert_ok(tmesh_channel_try_send(p.other, &one, err));
		assert_comes(p.maker, flat);
		assert_ok(tmesh_channel_try_send(second, &other, err));
		assert_comes(p.maker, tall);
	}
	tmesh_tensor_unref(flat);
	tmesh_tensor_unref(tall);
	tmesh_region_unref(region);
	tmesh_channel_unref(second);
	pair_end(&p);
}

/* A tensor that the receiver still holds is not made another one under its hands. */
static void test_held(void **state)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .slots = 256};
	struct pair p = pair_make(SEND, &opts);
	struct tmesh_region *region = region_of(p.ctx, 1 << 20);
	struct tmesh_tensor *sent[200], *got[200];

	for (int i = 0; i < 200; i++) {
		struct tmesh_message message, came;

		sent[i] = view(region, 1 + i % 3, 1, (uint64_t)i * 512);
		message = (struct tmesh_message){.tensor = sent[i]};
		assert_ok(tmesh_channel_try_send(p.maker, &message, err));
		assert_ok(tmesh_channel_try_recv(p.other, &came, err));
		got[i] = came.tensor;
	}
	for (int i = 0; i < 200; i++) {
		assert_memory_equal(tmesh_tensor_layout(got[i]), tmesh_tensor_layout(sent[i]),
				    sizeof(struct tmesh_layout));
		tmesh_tensor_unref(sent[i]);
		tmesh_tensor_unref(got[i]);
	}
	tmesh_region_unref(region);
	pair_end(&p);
}

/* A tensor that was received is sent on; the receiver makes the next one of the same object, which
 * the sender does not take for the one before. */
static void test_sent_on(void **state)
{
	struct pair from = pair_make(SEND, NULL), to = pair_make(SEND, NULL);
	struct tmesh_region *region = region_of(from.ctx, 1 << 20);
	struct tmesh_message message = {0}, got;
	const void *last = NULL;
	bool same = false;

	for (uint64_t i = 0; i < 10; i++) {
		/* Offsets that receivers remember in one place. */
		struct tmesh_tensor *tensor = view(region, 3, 4, i * CHANNEL_TENSORS * 256);

		message.tensor = tensor;
		assert_ok(tmesh_channel_try_send(from.maker, &message, err));
		assert_ok(tmesh_channel_try_recv(from.other, &got, err));
		same = same || got.tensor == last;
		last = got.tensor;
		assert_passes(&to, got.tensor);
		assert_int_equal(tmesh_tensor_layout(got.tensor)->offset,
				 i * CHANNEL_TENSORS * 256);
		tmesh_tensor_unref(got.tensor);
		tmesh_tensor_unref(tensor);
	}
	assert_true(same);
	tmesh_region_unref(region);
	pair_end(&to);
	pair_end(&from);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_again),	cmocka_unit_test(test_same_place),
		cmocka_unit_test(test_lanes),	cmocka_unit_test(test_held),
		cmocka_unit_test(test_sent_on),
	};

	return cmocka_run_group_tests_name("channel_tables", tests, NULL, NULL);
}
