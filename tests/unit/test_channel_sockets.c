// SPDX-License-Identifier: MIT
/* Descriptors that a stranger puts into a channel's stores do nothing, and are closed: only
 * messages of the channel come out of it. */
#include <valgrind/valgrind.h>

#include "channel_internal.h"
#include "channels.h"
#include "common/fd_passing.h"

#define RW (TMESH_READ | TMESH_WRITE)
#define LANES 2
#define REGIONS 2

/* The contents of a store: channel_store.c. */
struct lie {
	uint32_t magic, version, count, pad;
	uint64_t serial;
	struct tmesh_wire_region regions[2];
};

static const struct tmesh_channel_opts two = {
	.size = sizeof(two), .capacity = 8, .producers = LANES, .regions = REGIONS};

static struct tmesh_region *make(struct tmesh_ctx *ctx)
{
	struct tmesh_region *region = new_region(ctx, 4096);

	return region;
}

static atomic_uint_fast64_t *entry_of(const struct tmesh_channel *channel, uint32_t entry)
{
	return channel_regions(channel, channel_lane(channel, 0))[entry].words;
}

/* It says that @regions are there, and @count descriptors are. */
static struct lie lie_about(const struct tmesh_region *region, uint32_t regions)
{
	struct lie lie = {.magic = 0x46304d54u, .version = TMESH_WIRE_VERSION, .count = regions};

	lie.regions[0] = lie.regions[1] = (struct tmesh_wire_region){
		.version = TMESH_WIRE_VERSION,
		.backend = TMESH_BACKEND_MEMFD,
		.rights = RW,
		.kind = region->kind,
		.id = region->id,
		.bytes = region->bytes,
	};
	return lie;
}

/* In place of what lies there. */
static void lay(const struct channel_store *store, const struct lie *lie, int fd,
		unsigned int count)
{
	const int fds[] = {fd, fd};
	char byte;

	while (recv(store->get, &byte, 1, MSG_DONTWAIT) > 0)
		;
	assert_int_equal(tmesh_wire_send(store->put, lie, 24 + lie->count * sizeof(lie->regions[0]),
					 fds, count, 0),
			 0);
}

static int store_open(struct pair *p, const struct lie *lie, int fd, unsigned int count,
		      uint64_t id)
{
	struct tmesh_region *got = NULL;
	unsigned int before = unit_open_fds();
	int rc;

	lay(&p->other->own, lie, fd, count);
	rc = tmesh_channel_store_open(p->maker, 0, 0, id, RW, &got);
	assert_true(rc || got->id == id);
	tmesh_region_unref(got);
	assert_int_equal(unit_open_fds(), before);
	return rc;
}

static void test_store(void **state)
{
	struct pair p = pair_make(RECV, &two);
	struct tmesh_region *region = make(p.ctx);
	const struct lie good = lie_about(region, 1);
	struct lie bad;

	assert_int_equal(store_open(&p, &good, region->fd, 1, region->id), 0);
#define BAD(member, value)                                                                  \
	do {                                                                                \
		bad = good;                                                                 \
		bad.member = value;                                                         \
		assert_int_equal(store_open(&p, &bad, region->fd, 1, region->id), -ENOENT); \
	} while (0)
	BAD(regions[0].pad, 1);
	BAD(regions[0].rights, TMESH_READ);
	BAD(regions[0].backend, TMESH_BACKEND_KERNEL);
	BAD(regions[0].kind, TMESH_KIND_OPAQUE);
#undef BAD
	bad = lie_about(region, 2);
	bad.regions[0].id ^= 1;
	assert_int_equal(store_open(&p, &bad, region->fd, 2, region->id), 0);
	/* The kernel has left it out, as far as can be seen. */
	assert_int_equal(store_open(&p, &bad, region->fd, 1, region->id), -EMFILE);
	tmesh_region_unref(region);
	pair_end(&p);
}

/* In the place of a lane's store only a Unix socket counts: others may wait for a machine. */
static void test_lane_end(void **state)
{
	struct pair p = pair_make(RECV, &two);
	struct lie lie = lie_about(p.maker->memory, 1);
	int store, tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	unsigned int before;

	lie.regions[0].id = 0;
	lie.regions[0].pad = 0xffff;
	lay(&p.maker->store->ends, &lie, p.other->own.get, 1);
	before = unit_open_fds();
	assert_int_equal(tmesh_channel_lane_end(p.maker, 0, &store), 0);
	close(store);
	lay(&p.maker->store->ends, &lie, tcp, 1);
	assert_int_equal(tmesh_channel_lane_end(p.maker, 0, &store), -ENOENT);
	/* A thread closes it. */
	while (unit_open_fds() > before)
		usleep(1000);
	close(tcp);
	pair_end(&p);
}

/* A lane's next sender takes what messages name that are still there, and nothing else. */
static void test_inherit(void **state)
{
	struct pair p = pair_make(RECV, &two);
	struct tmesh_channel *sender = p.other;
	struct channel_sent_region *sent = &sender->sent_regions[0];
	struct tmesh_region *region = make(p.ctx);
	struct lie lie = lie_about(region, 1);
	const struct channel_store *store = &sender->own;
	unsigned int before;
	int first;

	lie.serial = 5;
	lay(store, &lie, region->fd, 1);
	before = unit_open_fds();
	/* No message names it; another one has its place. */
	atomic_store(&entry_of(sender, 0)[CHANNEL_R_ID], region->id);
	tmesh_channel_store_inherit(sender);
	assert_int_equal(sent->fd, -1);
	sent->until = sender->seen + 1;
	atomic_fetch_xor(&entry_of(sender, 0)[CHANNEL_R_ID], 1);
	tmesh_channel_store_inherit(sender);
	assert_int_equal(sent->fd, -1);
	atomic_fetch_xor(&entry_of(sender, 0)[CHANNEL_R_ID], 1);
	tmesh_channel_store_inherit(sender);
	assert_int_equal(sender->own_serial, 5);
	first = sent->fd;
	assert_true(first >= 0);
	/* It has that already. */
	tmesh_channel_store_inherit(sender);
	assert_int_equal(sent->fd, first);
	assert_int_equal(unit_open_fds(), before + 1);
	/* No such place. */
	lie.regions[0].pad = 0xffff;
	lay(store, &lie, region->fd, 1);
	tmesh_channel_store_inherit(sender);
	assert_int_equal(unit_open_fds(), before + 1);
	close(sent->fd);
	sent->fd = -1;
	tmesh_region_unref(region);
	pair_end(&p);
}

static bool settled(struct tmesh_channel *maker)
{
	bool more;

	pthread_mutex_lock(&maker->home->lock);
	more = tmesh_channel_settle(maker, 0);
	pthread_mutex_unlock(&maker->home->lock);
	return !more;
}

/* The maker clears a store of what no message names. A store that it cannot read whole stays. */
static void test_settle(void **state)
{
	struct pair p = pair_make(RECV, &two);
	struct tmesh_region *region = make(p.ctx);
	struct lie lie = lie_about(region, 2);
	unsigned int before = unit_open_fds();
	struct channel_store store;

	for (int how = 0; how < 2; how++) {
		assert_true(tmesh_channel_lane_store(p.maker, 0, &store));
		/* A datagram that has fewer descriptors than it says is junk, and so is one of
		 * another kind. */
		if (how == 0)
			lay(&store, &lie, region->fd, 1);
		else
			assert_int_equal(tmesh_wire_send(store.put, "junk", 4, &region->fd, 1, 0),
					 0);
		close(store.put);
		close(store.get);
		assert_true(settled(p.maker));
		assert_false(lane_has_something(p.maker));
		assert_int_equal(unit_open_fds(), before);
	}
	tmesh_region_unref(region);
	pair_end(&p);
}

/* The maker leaves a region in the store while it has no descriptor number, and takes it later. */
static void test_settle_without_room(void **state)
{
	struct pair p = pair_make(RECV, &two);
	struct tmesh_region *region = make(p.ctx);
	struct lie lie = lie_about(region, 2);
	unsigned int before = unit_open_fds();
	struct channel_store store;
	struct rlimit limit, few;
	int free_number;

	assert_true(tmesh_channel_lane_store(p.maker, 0, &store));
	lie.regions[1].pad = 0xffff;
	lay(&store, &lie, region->fd, 2);
	close(store.put);
	close(store.get);
	free_number = dup(region->fd);
	close(free_number);
	getrlimit(RLIMIT_NOFILE, &limit);
	few = (struct rlimit){(rlim_t)free_number + 2, limit.rlim_max};
	setrlimit(RLIMIT_NOFILE, &few);
	assert_false(settled(p.maker));
	setrlimit(RLIMIT_NOFILE, &limit);
	assert_true(lane_has_something(p.maker));
	assert_true(settled(p.maker));
	assert_false(lane_has_something(p.maker));
	assert_int_equal(unit_open_fds(), before);
	tmesh_region_unref(region);
	pair_end(&p);
}

/* A datagram with as many descriptors as the kernel lets through. */
struct full_lie {
	uint32_t magic, version, count, pad;
	uint64_t serial;
	struct tmesh_wire_region regions[TMESH_FDS_MOST];
};

/* Put the region into the last of all places of the lane's store. */
static void lay_full(const struct channel_store *store, const struct tmesh_region *region)
{
	const struct lie one = lie_about(region, 1);
	struct full_lie full = {
		.magic = one.magic, .version = one.version, .count = TMESH_FDS_MOST};
	int fds[TMESH_FDS_MOST];

	for (int i = 0; i < TMESH_FDS_MOST; i++) {
		full.regions[i] = one.regions[0];
		full.regions[i].pad = i < TMESH_FDS_MOST - 1 ? 1 : 0;
		fds[i] = region->fd;
	}
	assert_int_equal(tmesh_wire_send(store->put, &full, sizeof(full), fds, TMESH_FDS_MOST, 0),
			 0);
}

/* Set an option on the ends of the stores, as a peer can that has them. */
static bool set_option(const struct pair *p, int option)
{
	const int on = 1;

	return !setsockopt(p->other->own.get, SOL_SOCKET, option, &on, sizeof(on)) &&
	       !setsockopt(p->maker->store->ends.get, SOL_SOCKET, option, &on, sizeof(on));
}

/* With an option of a store's end the kernel brings along credentials, or a descriptor of the
 * sender's process. All regions are found, and no descriptor stays. */
static void test_options(void **state)
{
	static const int options[] = {SO_PASSCRED, SO_TIMESTAMP, TMESH_SO_PASSPIDFD};

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		struct pair p = pair_make(RECV, &two);
		struct tmesh_region *region = make(p.ctx), *got = NULL;
		unsigned int before;

		if (set_option(&p, options[i])) {
			/* The maker writes its store anew. */
			tmesh_channel_unref(pair_open(&p, SEND));
			lay_full(&p.other->own, region);
			before = unit_open_fds();
			assert_int_equal(
				tmesh_channel_store_open(p.maker, 0, 0, region->id, RW, &got), 0);
			assert_int_equal(got->id, region->id);
			tmesh_region_unref(got);
			/* A thread may close descriptors of before meanwhile. */
			assert_true(unit_open_fds() <= before);
			tmesh_channel_store_inherit(p.other);
			assert_true(settled(p.maker));
			assert_true(unit_open_fds() <= before);
		} else {
			print_message("# this kernel has no socket option %d\n", options[i]);
		}
		tmesh_region_unref(region);
		pair_end(&p);
	}
}

/* Without a number for each lane's end the channel's store stays as it is, and the next sender owes
 * what it sends. */
static void test_no_number_for_a_store(void **state)
{
	struct pair p = pair_make(RECV, &two);
	struct channel_store store;
	unsigned int before = unit_open_fds();
	struct rlimit limit, few;
	int free_number = dup(p.other->conn);

	close(free_number);
	getrlimit(RLIMIT_NOFILE, &limit);
	for (rlim_t more = 0; more < 3; more++) {
		few = (struct rlimit){(rlim_t)free_number + more, limit.rlim_max};
		setrlimit(RLIMIT_NOFILE, &few);
		assert_false(tmesh_channel_lane_store(p.maker, 1, &store));
		setrlimit(RLIMIT_NOFILE, &limit);
		assert_int_equal(store.get, -1);
		assert_int_equal(unit_open_fds(), before);
	}
	assert_int_equal(tmesh_channel_lane_end(p.maker, 0, &store.get), 0);
	close(store.get);
	pair_end(&p);
}

static void send_new(struct pair *p, uint64_t n)
{
	const int64_t one[] = {1};
	struct tmesh_message message = {0};

	assert_ok(tmesh_tensor_put(p->ctx, TMESH_UINT64, 1, one, &n, NULL, &message.tensor, err));
	assert_ok(tmesh_channel_try_send(p->maker, &message, err));
	tmesh_tensor_unref(message.tensor);
}

/* A message takes 253 descriptors: the rest is not in the store, and counted. */
static void test_full_store(void **state)
{
	const struct tmesh_channel_opts many = {
		.size = sizeof(many), .capacity = 512, .regions = 512};
	struct tmesh_stats stats = {.size = sizeof(stats)};
	unsigned int before = unit_open_fds();
	struct pair p = pair_make(SEND, &many);
	struct tmesh_channel *second = pair_open(&p, RECV);

	for (uint64_t i = 0; i < 260; i++)
		send_new(&p, i);
	assert_int_equal(tmesh_stats(p.ctx, &stats), 0);
	assert_int_equal(stats.sent_alone, 260 - 253);
	tmesh_channel_unref(second);
	pair_end(&p);
	/* Some of it is let go of by a thread. */
	while (unit_open_fds() > before)
		usleep(1000);
}

/* When one region has taken the place of another, neither end keeps the old one open. */
static void test_one_place(void **state)
{
	const struct tmesh_channel_opts one = {.size = sizeof(one), .regions = 1};
	unsigned int before = unit_open_fds();
	struct pair p = pair_make(SEND, &one);
	struct tmesh_channel *second = pair_open(&p, RECV);
	struct tmesh_message got;

	for (uint64_t i = 0; i < 10; i++) {
		send_new(&p, i);
		assert_ok(tmesh_channel_try_recv(second, &got, err));
		tmesh_tensor_unref(got.tensor);
		assert_int_equal(second->open_regions, 1);
	}
	tmesh_channel_unref(second);
	pair_end(&p);
	while (unit_open_fds() > before)
		usleep(1000);
}

static void expect_end(struct tmesh_channel *receiver)
{
	struct tmesh_message got;

	assert_refused(tmesh_channel_recv(receiver, &got, -1, err), -EPIPE, "no sender is left");
}

/* The maker has seen that its sender is gone, and looks at its store no more. */
static bool is_settled(struct tmesh_channel *maker)
{
	bool settled;

	pthread_mutex_lock(&maker->home->lock);
	settled = !maker->producers && !maker->left;
	pthread_mutex_unlock(&maker->home->lock);
	return settled;
}

/* The store is closed, and emptied for the others, when no sender can come any more. */
static void test_last_look(void **state)
{
	struct pair p = pair_make(RECV, &two);
	struct tmesh_ctx *other = new_ctx();
	struct tmesh_channel *second, *third;
	struct tmesh_region *region = make(p.ctx);
	const struct lie lie = lie_about(region, 1);

	/* In another context as in another process. */
	assert_ok(tmesh_channel_open(other, p.token, RECV, NULL, &second, err));
	assert_ok(tmesh_channel_open(other, p.token, RECV, NULL, &third, err));
	tmesh_channel_unref(p.other);
	p.other = NULL;
	expect_end(p.maker);
	expect_end(second);
	while (!is_settled(p.maker))
		usleep(1000);
	assert_non_null(second->store);
	lay(&p.maker->store->ends, &lie, region->fd, 1);
	tmesh_channel_unref(p.maker);
	p.maker = NULL;
	while (!atomic_load(&second->over) || !atomic_load(&third->over))
		usleep(1000);
	assert_true(recv(third->store->ends.get, &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT) > 0);
	expect_end(second);
	assert_null(second->store);
	assert_false(recv(third->store->ends.get, &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT) > 0);
	tmesh_region_unref(region);
	tmesh_channel_unref(third);
	tmesh_channel_unref(second);
	tmesh_ctx_unref(other);
	pair_end(&p);
}

/* A sender that joined, and the maker, which receives, in one process and in two. The number of a
 * channel's descriptors does not depend on how many may send. */
static void test_descriptors(void **state)
{
	const struct tmesh_channel_opts opts = {
		.size = sizeof(opts), .producers = 64, .flags = TMESH_CHANNEL_NO_POLL};
	struct tmesh_ctx *ctx = new_ctx(), *other = new_ctx();
	struct tmesh_channel *maker[100], *sender, *receiver;
	char token[TMESH_TOKEN_SIZE];
	struct tmesh_message message = {0}, got;
	const int64_t one[] = {1};
	unsigned int before;

	/* Descriptors that each context has once. */
	for (int i = 0; i < 2; i++) {
		before = unit_open_fds();
		assert_ok(tmesh_channel_create(ctx, SEND, &opts, &maker[0], err));
		assert_ok(tmesh_channel_token(maker[0], token, err));
		assert_true(!i || unit_open_fds() - before <= 3);
		assert_ok(tmesh_channel_open(ctx, token, RECV, NULL, &receiver, err));
		assert_true(!i || unit_open_fds() - before <= 5);
		assert_ok(tmesh_tensor_put(ctx, TMESH_UINT64, 1, one, token, NULL, &message.tensor,
					   err));
		assert_ok(tmesh_channel_send(maker[0], &message, PATIENCE, err));
		tmesh_tensor_unref(message.tensor);
		assert_ok(tmesh_channel_recv(receiver, &got, PATIENCE, err));
		tmesh_tensor_unref(got.tensor);
		assert_ok(tmesh_channel_flush(maker[0], PATIENCE, err));
		tmesh_channel_trim(receiver);
		while (i && (int)(unit_open_fds() - before) > 7)
			usleep(1000);
		before = unit_open_fds();
		assert_ok(tmesh_channel_open(other, token, SEND, NULL, &sender, err));
		/* Its own, and the maker's end of the connection. The server closes that of the
		 * answer in a moment. */
		while (i && (int)(unit_open_fds() - before) > 4 + 1)
			usleep(1000);
		tmesh_channel_unref(sender);
		tmesh_channel_unref(receiver);
		assert_refused(tmesh_channel_poll_fd(maker[0], err), -EOPNOTSUPP, "NO_POLL");
		tmesh_channel_unref(maker[0]);
	}
	before = unit_open_fds();
	for (int i = 0; i < 100; i++)
		assert_ok(tmesh_channel_create(ctx, SEND, &opts, &maker[i], err));
	assert_true(unit_open_fds() - before <= 100 * 3);
	for (int i = 0; i < 100; i++)
		tmesh_channel_unref(maker[i]);
	assert_refused(tmesh_channel_open(ctx, token, SEND, &opts, &sender, err), -EINVAL,
		       "when the channel is made");
	tmesh_ctx_unref(other);
	tmesh_ctx_unref(ctx);
}

/* Messages without a receiver are none that may be lost. */
static void test_unread(void **state)
{
	struct tmesh_message message = number(1);
	struct pair p = pair_make(SEND, NULL);

	assert_ok(tmesh_channel_try_send(p.maker, &message, err));
	assert_int_equal(tmesh_channels_unread(p.maker->home), 1);
	tmesh_channel_unref(p.other);
	while (!channel_gone(p.maker))
		usleep(1000);
	assert_int_equal(tmesh_channels_unread(p.maker->home), 0);
	p.other = NULL;
	pair_end(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_store),      TEST(test_inherit),     TEST(test_settle),
		TEST(test_full_store), TEST(test_descriptors), TEST(test_unread),
		TEST(test_one_place),  TEST(test_last_look),   TEST(test_options),
		TEST(test_lane_end),
	};

	const struct CMUnitTest limited[] = {
		TEST(test_settle_without_room),
		TEST(test_no_number_for_a_store),
	};
	int failed = cmocka_run_group_tests_name("channel_sockets", tests, unit_memfd_setup, NULL);

	if (RUNNING_ON_VALGRIND)
		return failed +
		       UNIT_SKIP(limited, "valgrind keeps descriptor limits from the kernel");
	return failed +
	       cmocka_run_group_tests_name("channel_sockets", limited, unit_memfd_setup, NULL);
}
