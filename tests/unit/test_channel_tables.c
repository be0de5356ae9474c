// SPDX-License-Identifier: MIT
/* Both ends of a channel remember tensors, so that sending one again costs less. They never mistake
 * one for another, and forget it with the region that it is in. */
#include <valgrind/valgrind.h>

#include "channels.h"
#include "channel_internal.h"

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

/* Tensors that stay, in more layouts and regions than the tables hold, all of the same bytes at the
 * same offset. Each pushes out the entry of another one. */
static void test_again(void **state)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .regions = 2, .layouts = 2};
	struct pair p = pair_make(SEND, &opts);
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct tmesh_tensor *tensors[9];

	for (int i = 0; i < 3; i++) {
		struct tmesh_region *region = new_region(p.ctx, 4096);

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
	tmesh_ctx_ref(p.ctx);
	pair_end(&p);
	assert_int_equal(tmesh_stats(p.ctx, &stats), 0);
	assert_int_equal(stats.regions_live, 0);
	tmesh_ctx_unref(p.ctx);
}

/* The allocator gives the next tensor the last one's place. */
static void test_same_place(void **state)
{
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_region *region = new_region(p.ctx, 4096);
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
	struct tmesh_region *region = new_region(p.ctx, 4096);
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
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 256};
	struct pair p = pair_make(SEND, &opts);
	struct tmesh_region *region = new_region(p.ctx, 1 << 20);
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
	struct tmesh_region *region = new_region(from.ctx, 1 << 20);
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

static struct tmesh_tensor *typed(struct tmesh_region *region, enum tmesh_dtype dtype)
{
	struct tmesh_layout layout;
	struct tmesh_tensor *made;

	assert_ok(tmesh_layout_contiguous(&layout, dtype, 2, (int64_t[]){3, 4}, err));
	assert_ok(tmesh_tensor_wrap(region, &layout, &made, err));
	return made;
}

/* Layouts that differ in nothing but the type. */
static void test_types(void **state)
{
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_region *region = new_region(p.ctx, 4096);
	struct tmesh_tensor *tensors[] = {typed(region, TMESH_INT32), typed(region, TMESH_FLOAT32)};

	for (int i = 0; i < 6; i++)
		assert_passes(&p, tensors[i % 2]);
	for (int i = 0; i < 2; i++)
		tmesh_tensor_unref(tensors[i]);
	tmesh_region_unref(region);
	pair_end(&p);
}

/* Layouts of which one has all that the other has, and one dimension more. */
static void test_dimensions(void **state)
{
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_region *region = new_region(p.ctx, 4096);
	struct tmesh_tensor *tensors[2];

	for (int i = 0; i < 2; i++) {
		struct tmesh_layout layout;

		assert_ok(tmesh_layout_contiguous(&layout, TMESH_INT32, 1 + i, (int64_t[]){16, 1},
						  err));
		assert_ok(tmesh_tensor_wrap(region, &layout, &tensors[i], err));
	}
	for (int i = 0; i < 6; i++)
		assert_passes(&p, tensors[i % 2]);
	for (int i = 0; i < 2; i++)
		tmesh_tensor_unref(tensors[i]);
	tmesh_region_unref(region);
	pair_end(&p);
}

/* A channel whose receiver opens no more than @opts lets it. */
static struct pair pair_receiving(const struct tmesh_channel_opts *opts)
{
	struct pair p = {.ctx = new_ctx()};

	assert_ok(tmesh_channel_create(p.ctx, SEND, NULL, &p.maker, err));
	assert_ok(tmesh_channel_token(p.maker, p.token, err));
	assert_ok(tmesh_channel_open(p.ctx, p.token, RECV, opts, &p.other, err));
	return p;
}

/* Two regions where one may be open: the other one goes, and comes again. */
static void test_room_for_one(void **state)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .max_regions = 1};
	struct pair p = pair_receiving(&opts);
	struct tmesh_tensor *tensors[2];

	for (int i = 0; i < 2; i++) {
		struct tmesh_region *region = new_region(p.ctx, 4096);

		tensors[i] = view(region, 3, 4, 0);
		tmesh_region_unref(region);
	}
	for (int i = 0; i < 6; i++) {
		assert_passes(&p, tensors[i % 2]);
		assert_int_equal(p.other->open_regions, 1);
		assert_int_equal(p.other->open_bytes, 4096);
	}
	for (int i = 0; i < 2; i++)
		tmesh_tensor_unref(tensors[i]);
	pair_end(&p);
}

/* Too many bytes are no reason to close what is held, for that gives none back. */
static void test_room_in_bytes(void **state)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .max_bytes = 4096};
	struct pair p = pair_receiving(&opts);
	struct tmesh_tensor *tensors[3];
	struct tmesh_message message, held;

	for (int i = 0; i < 3; i++) {
		struct tmesh_region *region = new_region(p.ctx, 4096);

		tensors[i] = view(region, 3, 4, 0);
		tmesh_region_unref(region);
	}
	message = (struct tmesh_message){.tensor = tensors[0]};
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	assert_ok(tmesh_channel_try_recv(p.other, &held, err));
	assert_passes(&p, tensors[1]);
	assert_int_equal(p.other->open_regions, 2);
	tmesh_tensor_unref(held.tensor);
	assert_passes(&p, tensors[2]);
	assert_int_equal(p.other->open_regions, 1);
	for (int i = 0; i < 3; i++)
		tmesh_tensor_unref(tensors[i]);
	pair_end(&p);
}

/* A region that its sender has let go of, and that this process does not hold, is closed when the
 * next one comes. */
static void test_let_go(void **state)
{
	struct pair p = pair_make(SEND, NULL);

	for (int i = 0; i < 3; i++) {
		struct tmesh_region *region = new_region(p.ctx, 4096);
		struct tmesh_tensor *tensor = view(region, 3, 4, 0);

		tmesh_region_unref(region);
		assert_passes(&p, tensor);
		assert_int_equal(p.other->open_regions, 1);
		tmesh_tensor_unref(tensor);
	}
	pair_end(&p);
}

static void assert_live(struct tmesh_ctx *ctx, uint64_t regions)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	/* A thread gives them back. */
	do
		assert_int_equal(tmesh_stats(ctx, &stats), 0);
	while (stats.regions_live != regions && !usleep(1000));
}

/* Neither end keeps a region for nothing while it waits, or when it is asked. */
static void test_trim(void **state)
{
	enum {
		ASKED,
		POLLS,
		SLEEPS,
		WAYS
	};
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct tmesh_message got;

	for (int way = ASKED; way < WAYS; way++) {
		struct pair p = pair_make(SEND, NULL);
		struct tmesh_region *region = new_region(p.ctx, 4096);
		struct tmesh_tensor *tensor = view(region, 3, 4, 0), *held;

		assert_int_equal(tmesh_stats(p.ctx, &stats), 0);
		if (way == POLLS)
			assert_true(tmesh_channel_poll_fd(p.other, NULL) >= 0);
		assert_ok(tmesh_channel_try_send(p.maker, &(struct tmesh_message){.tensor = tensor},
						 err));
		assert_ok(tmesh_channel_try_recv(p.other, &got, err));
		held = got.tensor;
		/* A held region stays, at either end. */
		tmesh_channel_trim(p.maker);
		assert_ptr_equal(p.maker->sent_regions[0].region, region);
		tmesh_region_unref(region);
		tmesh_tensor_unref(tensor);
		tmesh_channel_trim(p.maker);
		assert_null(p.maker->sent_regions[0].region);
		tmesh_channel_trim(p.other);
		assert_int_equal(p.other->open_regions, 1);
		tmesh_tensor_unref(held);
		if (way == ASKED)
			tmesh_channel_trim(p.other);
		else if (way == POLLS)
			assert_int_equal(tmesh_channel_try_recv(p.other, &got, NULL), -EAGAIN);
		else
			assert_int_equal(tmesh_channel_recv(p.other, &got, 1000000, NULL),
					 -ETIMEDOUT);
		assert_int_equal(p.other->open_regions, 0);
		assert_live(p.ctx, stats.regions_live - 1);
		pair_end(&p);
	}
	tmesh_channel_trim(NULL);
}

/* A sender that finds no room lets go of what was received before it sleeps. */
static void test_trim_full(void **state)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .capacity = 1};
	struct pair p = pair_make(SEND, &opts);
	struct tmesh_region *region = new_region(p.ctx, 4096);
	struct tmesh_tensor *tensor = view(region, 3, 4, 0);
	const struct tmesh_message bytes = {.bytes = 1};

	tmesh_region_unref(region);
	assert_passes(&p, tensor);
	tmesh_tensor_unref(tensor);
	assert_ok(tmesh_channel_try_send(p.maker, &bytes, err));
	assert_non_null(p.maker->sent_regions[0].region);
	assert_int_equal(tmesh_channel_send(p.maker, &bytes, 1000000, NULL), -ETIMEDOUT);
	assert_null(p.maker->sent_regions[0].region);
	pair_end(&p);
}

/* A message that another receiver has taken is not prepared, though it still lies there. */
static void test_prepare_taken(void **state)
{
	struct tmesh_channel_opts one = {.size = sizeof(one), .capacity = 1};
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .flags = TMESH_CHANNEL_NO_OPEN};
	struct pair p = {.ctx = new_ctx()};
	struct tmesh_region *region;
	struct tmesh_message message = {0};
	struct tmesh_channel *other;

	assert_ok(tmesh_channel_create(p.ctx, SEND, &one, &p.maker, err));
	assert_ok(tmesh_channel_token(p.maker, p.token, err));
	assert_ok(tmesh_channel_open(p.ctx, p.token, RECV, &opts, &p.other, err));
	other = pair_open(&p, RECV);
	region = new_region(p.ctx, 4096);
	message.tensor = view(region, 3, 4, 0);
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	assert_comes(other, message.tensor);
	assert_ok(tmesh_channel_prepare(p.other, err));
	assert_int_equal(p.other->open_regions, 0);
	tmesh_tensor_unref(message.tensor);
	tmesh_region_unref(region);
	tmesh_channel_unref(other);
	pair_end(&p);
}

/* Regions that follow each other in one entry, with tensors that are alike but for that. */
static void test_one_entry(void **state)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .regions = 1};
	struct tmesh_stats stats = {.size = sizeof(stats)};
	struct pair p = pair_make(SEND, &opts);

	for (int i = 0; i < 1000; i++) {
		struct tmesh_region *region = new_region(p.ctx, 4096);
		struct tmesh_tensor *tensor = view(region, 3, 4, 0);

		assert_passes(&p, tensor);
		tmesh_tensor_unref(tensor);
		tmesh_region_unref(region);
	}
	/* The channel's own memory, and the last one or two; the watch may be giving back the
	 * others. */
	do
		assert_int_equal(tmesh_stats(p.ctx, &stats), 0);
	while (stats.regions_live > 6 && !usleep(1000));
	pair_end(&p);
}

/* A tensor that the channel alone holds stays until it is taken, whatever else is sent. */
static void test_not_taken(void **state)
{
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_message message, got;
	struct tmesh_region *region;
	uint64_t ids[5];

	for (int i = 0; i < 5; i++) {
		region = new_region(p.ctx, 4096);
		ids[i] = tmesh_region_id(region);
		message = (struct tmesh_message){.tensor = view(region, 3, 4, 0)};
		assert_ok(tmesh_channel_try_send(p.maker, &message, err));
		tmesh_tensor_unref(message.tensor);
		tmesh_region_unref(region);
	}
	for (int i = 0; i < 5; i++) {
		assert_ok(tmesh_channel_try_recv(p.other, &got, err));
		assert_int_equal(tmesh_region_id(tmesh_tensor_region(got.tensor)), ids[i]);
		tmesh_tensor_unref(got.tensor);
	}
	pair_end(&p);
}

/* The messages of the last producer are not taken yet. They hold as many entries as it used, in one
 * table or in the other. */
static void test_entries_held(void **state)
{
	for (uint32_t k = 1; k <= 2; k++) {
		struct tmesh_channel_opts opts = {
			.size = sizeof(opts), .producers = 2, .regions = k, .layouts = 3 - k};
		struct pair p = pair_make(RECV, &opts);
		struct tmesh_region *region = new_region(p.ctx, 4096),
				    *later = new_region(p.ctx, 4096);
		struct tmesh_tensor *first = view(region, 3, 4, 0), *other = view(later, 4, 3, 0);
		struct tmesh_message message = {.tensor = first};
		struct tmesh_channel *second = pair_open(&p, SEND);

		assert_ok(tmesh_channel_try_send(second, &message, err));
		tmesh_channel_unref(second);
		while (tmesh_channel_open(p.ctx, p.token, SEND, NULL, &second, NULL) == -EBUSY)
			usleep(100);
		/* Its region's token is still good: the tensor keeps it. */
		message.tensor = other;
		assert_refused(tmesh_channel_try_send(second, &message, err), -EAGAIN, "full");
		assert_comes(p.maker, first);
		assert_ok(tmesh_channel_try_send(second, &message, err));
		assert_comes(p.maker, other);
		tmesh_channel_unref(second);
		tmesh_tensor_unref(first);
		tmesh_tensor_unref(other);
		tmesh_region_unref(region);
		tmesh_region_unref(later);
		pair_end(&p);
	}
}

/* A producer that takes a lane after another one never refers to the other's entries. */
static void test_next_producer(void **state)
{
	struct tmesh_channel_opts opts = {
		.size = sizeof(opts), .producers = 2, .regions = 1, .layouts = 1};
	struct pair p = pair_make(RECV, &opts);
	struct tmesh_region *region = new_region(p.ctx, 4096);
	struct tmesh_tensor *flat = view(region, 3, 4, 0), *tall = view(region, 4, 3, 0);
	struct tmesh_message message = {.tensor = flat};
	struct channel_lane *lane = channel_lane(p.maker, 1);
	struct tmesh_channel *second;

	for (int i = 0; i < 10; i++) {
		struct tmesh_tensor *now = i % 2 ? tall : flat;

		do
			usleep(100);
		while (tmesh_channel_open(p.ctx, p.token, SEND, NULL, &second, NULL) == -EBUSY);
		assert_ptr_equal(second->lane, channel_lane(second, 1));
		message.tensor = now;
		assert_ok(tmesh_channel_try_send(second, &message, err));
		assert_comes(p.maker, now);
		tmesh_channel_unref(second);
	}
	while (tmesh_channel_open(p.ctx, p.token, SEND, NULL, &second, NULL) == -EBUSY)
		usleep(100);
	/* Versions come round, and 0 is none. */
	atomic_store(&channel_layouts(second, lane)[0].words[CHANNEL_L_VERSION], UINT32_MAX);
	message.tensor = flat;
	assert_ok(tmesh_channel_try_send(second, &message, err));
	assert_comes(p.maker, flat);
	tmesh_channel_unref(second);
	tmesh_tensor_unref(flat);
	tmesh_tensor_unref(tall);
	tmesh_region_unref(region);
	pair_end(&p);
}

static struct tmesh_channel *rival;
static struct tmesh_message taken;

/* In the middle of opening a region another receiver is faster. */
int fcntl(int fd, int command, ...)
{
	va_list args;
	long argument;

	va_start(args, command);
	argument = va_arg(args, long);
	va_end(args);
	if (command == F_GET_SEALS && rival) {
		struct tmesh_channel *channel = rival;

		rival = NULL;
		assert_ok(tmesh_channel_try_recv(channel, &taken, err));
	}
	return (int)syscall(SYS_fcntl, fd, command, argument);
}

/* One of two consumers has a message, also where the other one had already read it. */
static void test_rival(void **state)
{
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_ctx *ctx = new_ctx();
	struct tmesh_region *region = new_region(p.ctx, 4096);
	struct tmesh_message message = {.tensor = view(region, 3, 4, 0)}, after = number(5), got;
	struct tmesh_channel *channel;

	assert_ok(tmesh_channel_open(ctx, p.token, RECV, NULL, &channel, err));
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	assert_comes(channel, message.tensor);
	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	rival = channel;
	assert_refused(tmesh_channel_try_recv(p.other, &got, err), -EAGAIN, "no message is ready");
	assert_null(rival);
	assert_int_equal(tmesh_region_id(tmesh_tensor_region(taken.tensor)),
			 tmesh_region_id(region));
	tmesh_tensor_unref(taken.tensor);
	assert_ok(tmesh_channel_try_send(p.maker, &after, err));
	assert_ok(tmesh_channel_try_recv(p.other, &got, err));
	assert_int_equal(number_of(&got), 5);
	tmesh_tensor_unref(message.tensor);
	tmesh_region_unref(region);
	tmesh_channel_unref(channel);
	tmesh_ctx_unref(ctx);
	pair_end(&p);
}

/* Without a descriptor for its region a message stays. */
static void test_no_descriptor(void **state)
{
	struct pair p = pair_make(SEND, NULL);
	struct tmesh_region *region = new_region(p.ctx, 4096);
	struct tmesh_message message = {.tensor = view(region, 3, 4, 0)}, got;
	struct rlimit usual, none;
	int next;

	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	next = dup(0);
	close(next);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
	none = (struct rlimit){.rlim_cur = (rlim_t)next, .rlim_max = usual.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	assert_int_equal(tmesh_channel_prepare(p.other, NULL), -EMFILE);
	assert_int_equal(tmesh_channel_try_recv(p.other, &got, NULL), -EMFILE);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
	assert_comes(p.other, message.tensor);
	tmesh_tensor_unref(message.tensor);
	tmesh_region_unref(region);
	pair_end(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_again),	  TEST(test_same_place),    TEST(test_lanes),
		TEST(test_held),	  TEST(test_sent_on),	    TEST(test_types),
		TEST(test_one_entry),	  TEST(test_not_taken),	    TEST(test_next_producer),
		TEST(test_entries_held),  TEST(test_dimensions),    TEST(test_room_for_one),
		TEST(test_room_in_bytes), TEST(test_let_go),	    TEST(test_trim),
		TEST(test_trim_full),	  TEST(test_prepare_taken),
	};
	const struct CMUnitTest memfds[] = {TEST(test_rival)};
	const struct CMUnitTest limited[] = {TEST(test_no_descriptor)};
	int failed = cmocka_run_group_tests_name("channel_tables", tests, NULL, NULL);

	failed += cmocka_run_group_tests_name("memfds", memfds, unit_memfd_setup, NULL);
	if (RUNNING_ON_VALGRIND)
		return failed +
		       UNIT_SKIP(limited, "valgrind keeps descriptor limits from the kernel");
	return failed + cmocka_run_group_tests_name("channel_tables", limited, NULL, NULL);
}
