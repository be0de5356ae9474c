// SPDX-License-Identifier: MIT
/* What somebody else puts into a channel's connections and onto its shelves does nothing, and is
 * closed: only what was sent through the channel comes out of it. */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "channel_internal.h"
#include "channels.h"

#define RW (TMESH_READ | TMESH_WRITE)
#define LANES 2
#define REGIONS 2

/* What lies on a shelf: channel_shelf.c. */
struct lie {
	uint32_t magic, version, count, pad;
	uint64_t serial;
	struct tmesh_wire_region regions[2];
};

static const struct tmesh_channel_opts two = {
	.size = sizeof(two), .slots = 8, .producers = LANES, .regions = REGIONS};

static struct tmesh_region *make(struct tmesh_ctx *ctx)
{
	struct tmesh_region *region;

	assert_ok(tmesh_region_create(ctx, 4096, NULL, &region, err));
	return region;
}

static atomic_uint_fast64_t *entry_of(const struct tmesh_channel *channel, uint32_t entry)
{
	return channel_regions(channel, channel_lane(channel, 0))[entry].words;
}

/* How many places hold something when the maker, which receives, has looked at what came with
 * @count descriptors from its sender. */
static unsigned int handed(struct pair *p, const struct tmesh_wire_region *wire, int fd,
			   unsigned int count)
{
	struct tmesh_channel *maker = p->maker;
	const int fds[] = {fd, fd};
	unsigned int found = 0;

	assert_int_equal(tmesh_wire_send(p->other->conn, wire, sizeof(*wire), fds, count, 0), 0);
	pthread_mutex_lock(&maker->home->lock);
	tmesh_channel_collect(maker, maker->members[0].fd);
	for (uint32_t i = 0; i < LANES * REGIONS; i++) {
		found += maker->handed[i].count;
		tmesh_channel_hand_drop(&maker->handed[i]);
	}
	pthread_mutex_unlock(&maker->home->lock);
	return found;
}

static void test_handed(void **state)
{
	struct pair p = pair_make(RECV, &two);
	struct tmesh_region *region = make(p.ctx);
	const struct tmesh_wire_region good = tmesh_channel_wire(region, RW, 1);
	struct tmesh_wire_region bad;
	unsigned int before = unit_open_fds();

	assert_int_equal(handed(&p, &good, region->fd, 1), 1);
#define BAD(member, value, count)                                         \
	do {                                                              \
		bad = good;                                               \
		bad.member = value;                                       \
		assert_int_equal(handed(&p, &bad, region->fd, count), 0); \
		assert_int_equal(unit_open_fds(), before);                \
	} while (0)
	BAD(magic, TMESH_MAGIC_REGION, 1);
	BAD(version, TMESH_WIRE_VERSION + 1, 1);
	BAD(kind, TMESH_KIND_OPAQUE, 1);
	BAD(pad, REGIONS, 1);
	BAD(pad, 1, 0);
	BAD(pad, 1, 2);
	/* There is room for it; there was such a lane. */
	p.maker->shape.lanes = 1;
	BAD(pad, 1 << 16, 1);
	p.maker->shape.lanes = LANES;
#undef BAD
	tmesh_region_unref(region);
	pair_end(&p);
}

static void hand(struct pair *p, const struct tmesh_wire_region *wire, int fd)
{
	assert_int_equal(tmesh_wire_send(p->other->conn, wire, sizeof(*wire), &fd, 1, 0), 0);
}

static void test_asked_for(void **state)
{
	struct pair p = pair_make(RECV, &two);
	struct tmesh_region *region = make(p.ctx), *got;
	struct tmesh_wire_region wire = tmesh_channel_wire(region, RW, 0);
	const uint64_t id = wire.id;

	/* What the table does not name goes when something else is asked for. */
	atomic_store(&entry_of(p.maker, 0)[CHANNEL_R_ID], id);
	hand(&p, &wire, region->fd);
	wire.pad = 1;
	hand(&p, &wire, region->fd);
	assert_int_equal(tmesh_channel_handed(p.maker, 0, 0, id, RW, &got), 0);
	assert_int_equal(got->id, id);
	tmesh_region_unref(got);
	assert_int_equal(p.maker->handed[1].count, 0);
	wire.pad = 0;
	hand(&p, &wire, region->fd);
	assert_int_equal(tmesh_channel_handed(p.maker, 0, 0, id, TMESH_READ, &got), -ENOENT);
	wire.backend = TMESH_BACKEND_KERNEL;
	hand(&p, &wire, region->fd);
	assert_int_equal(tmesh_channel_handed(p.maker, 0, 0, id, RW, &got), -ENOENT);
	tmesh_region_unref(region);
	pair_end(&p);
}

/* Whether what was opened is back in its place. */
static bool given_back(struct tmesh_channel *maker)
{
	unsigned int count;

	tmesh_channel_hand_back(maker, 0);
	count = maker->handed[0].count;
	tmesh_channel_hand_drop(&maker->handed[0]);
	return count;
}

static void test_hand_back(void **state)
{
	struct pair p = pair_make(RECV, &two);
	struct tmesh_region *region = make(p.ctx);
	struct rlimit limit, none;
	bool came;

	p.maker->known_regions[0].region = region;
	atomic_store(&entry_of(p.maker, 0)[CHANNEL_R_ID], region->id);
	assert_true(given_back(p.maker));
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = limit;
	none.rlim_cur = 0;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	came = given_back(p.maker);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_false(came);
	/* Its sender has put another one there. */
	atomic_fetch_xor(&entry_of(p.maker, 0)[CHANNEL_R_ID], 1);
	assert_false(given_back(p.maker));
	p.maker->known_regions[0].region = NULL;
	tmesh_region_unref(region);
	pair_end(&p);
}

/* What others have received, or nobody sends any more, the maker does not keep. */
static void test_stale(void **state)
{
	struct pair p = pair_make(RECV, &two);
	struct tmesh_channel *second = pair_open(&p, RECV), *maker = p.maker;
	struct tmesh_region *region = make(p.ctx);
	const struct tmesh_wire_region wire = tmesh_channel_wire(region, RW, 0);

	/* The table names it; it does not; it does, but its sender has gone, and no message does.
	 */
	for (int how = 0; how < 3; how++) {
		atomic_store(&entry_of(maker, 0)[CHANNEL_R_ID], how == 1 ? 0 : region->id);
		hand(&p, &wire, region->fd);
		pthread_mutex_lock(&maker->home->lock);
		tmesh_channel_collect(maker, maker->members[0].fd);
		assert_int_equal(maker->handed[0].count, 1);
		maker->shelves[0].left = how == 2;
		tmesh_channel_tidy(maker);
		assert_int_equal(maker->handed[0].count, how == 0);
		pthread_mutex_unlock(&maker->home->lock);
	}
	tmesh_region_unref(region);
	tmesh_channel_unref(second);
	pair_end(&p);
}

/* It says that @regions are there, and @count descriptors are. */
static struct lie lie_about(const struct tmesh_region *region, uint32_t regions)
{
	struct lie lie = {.magic = 0x53304d54u, .version = TMESH_WIRE_VERSION, .count = regions};

	lie.regions[0] = lie.regions[1] = tmesh_channel_wire(region, RW, 0);
	return lie;
}

/* In place of what lies there. */
static void lay(const struct channel_shelf *shelf, const struct lie *lie, int fd,
		unsigned int count)
{
	const int fds[] = {fd, fd};
	char byte;

	while (recv(shelf->get, &byte, 1, MSG_DONTWAIT) > 0)
		;
	assert_int_equal(tmesh_wire_send(shelf->put, lie, 24 + lie->count * sizeof(lie->regions[0]),
					 fds, count, 0),
			 0);
}

static bool lies(const struct channel_shelf *shelf)
{
	char byte;

	return recv(shelf->get, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

static int shelf_open(struct pair *p, const struct lie *lie, int fd, unsigned int count,
		      uint64_t id)
{
	struct tmesh_region *got = NULL;
	unsigned int before = unit_open_fds();
	int rc;

	lay(&p->maker->shelves[0], lie, fd, count);
	rc = tmesh_channel_shelf_open(p->other, 0, 0, id, RW, &got);
	assert_true(rc || got->id == id);
	tmesh_region_unref(got);
	assert_int_equal(unit_open_fds(), before);
	return rc;
}

static void test_shelf(void **state)
{
	struct pair p = pair_make(SEND, &two);
	struct tmesh_region *region = make(p.ctx);
	const struct lie good = lie_about(region, 1);
	struct lie bad;

	/* The maker was not handed it, so that nobody waits. */
	atomic_store(&entry_of(p.maker, 0)[CHANNEL_R_ID], region->id);
	assert_int_equal(shelf_open(&p, &good, region->fd, 1, region->id), 0);
#define BAD(member, value)                                                                  \
	do {                                                                                \
		bad = good;                                                                 \
		bad.member = value;                                                         \
		assert_int_equal(shelf_open(&p, &bad, region->fd, 1, region->id), -ENOENT); \
	} while (0)
	BAD(regions[0].pad, 1);
	BAD(regions[0].rights, TMESH_READ);
	BAD(regions[0].backend, TMESH_BACKEND_KERNEL);
	BAD(regions[0].kind, TMESH_KIND_OPAQUE);
#undef BAD
	bad = lie_about(region, 2);
	bad.regions[0].id ^= 1;
	assert_int_equal(shelf_open(&p, &bad, region->fd, 2, region->id), 0);
	/* The kernel has left it out, as far as can be seen. */
	assert_int_equal(shelf_open(&p, &bad, region->fd, 1, region->id), -EMFILE);
	tmesh_region_unref(region);
	pair_end(&p);
}

/* Who receives waits for what the maker alone was handed as long as it may be laid there. */
static void test_with_maker(void **state)
{
	struct pair p = pair_make(SEND, &two);
	atomic_uint_fast64_t *words = entry_of(p.maker, 0);
	struct tmesh_region *region = make(p.ctx), *got;
	const struct lie good = lie_about(region, 1);

	atomic_store(&words[CHANNEL_R_WITH_MAKER], region->id);
	atomic_store(&words[CHANNEL_R_ID], region->id);
	assert_int_equal(shelf_open(&p, &good, region->fd, 1, region->id), 0);
	tmesh_region_unref(region);
	p.ctx->timeout_ns = 1000000;
	atomic_store(&words[CHANNEL_R_WITH_MAKER], 7);
	atomic_store(&words[CHANNEL_R_ID], 7);
	alarm(600);
	assert_int_equal(tmesh_channel_shelf_open(p.other, 0, 0, 7, RW, &got), -ETIMEDOUT);
	alarm(0);
	/* Others have received it. */
	atomic_store(&words[CHANNEL_R_ID], 8);
	assert_int_equal(tmesh_channel_shelf_open(p.other, 0, 0, 7, RW, &got), -ENOENT);
	/* The maker is gone. */
	atomic_store(&words[CHANNEL_R_ID], 7);
	atomic_store(&p.other->over, 1);
	assert_int_equal(tmesh_channel_shelf_open(p.other, 0, 0, 7, RW, &got), -ENOENT);
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
	const struct channel_shelf *shelf = &sender->shelves[0];
	unsigned int before;
	int first;

	lie.serial = 5;
	lay(shelf, &lie, region->fd, 1);
	before = unit_open_fds();
	/* No message names it; another one has its place. */
	atomic_store(&entry_of(sender, 0)[CHANNEL_R_ID], region->id);
	tmesh_channel_shelf_inherit(sender);
	assert_int_equal(sent->fd, -1);
	sent->until = sender->seen + 1;
	atomic_fetch_xor(&entry_of(sender, 0)[CHANNEL_R_ID], 1);
	tmesh_channel_shelf_inherit(sender);
	assert_int_equal(sent->fd, -1);
	atomic_fetch_xor(&entry_of(sender, 0)[CHANNEL_R_ID], 1);
	tmesh_channel_shelf_inherit(sender);
	assert_int_equal(sender->shelf_serial, 5);
	first = sent->fd;
	assert_true(first >= 0);
	/* It has that already. */
	tmesh_channel_shelf_inherit(sender);
	assert_int_equal(sent->fd, first);
	assert_int_equal(unit_open_fds(), before + 1);
	/* No such place. */
	lie.regions[0].pad = 0xffff;
	lay(shelf, &lie, region->fd, 1);
	tmesh_channel_shelf_inherit(sender);
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
	more = tmesh_channel_settle(maker, 0, false);
	pthread_mutex_unlock(&maker->home->lock);
	return !more;
}

/* The maker clears a shelf of what no message names; what it cannot read all of stays there. */
static void test_settle(void **state)
{
	struct pair p = pair_make(RECV, &two);
	struct tmesh_region *region = make(p.ctx);
	const struct channel_shelf *shelf = &p.other->shelves[0];
	struct lie lie = lie_about(region, 2);
	unsigned int before = unit_open_fds();

	lay(shelf, &lie, region->fd, 1);
	assert_false(settled(p.maker));
	assert_true(lies(shelf));
	lie.regions[1].pad = 0xffff;
	lay(shelf, &lie, region->fd, 2);
	assert_true(settled(p.maker));
	assert_false(lies(shelf));
	assert_int_equal(unit_open_fds(), before);
	tmesh_region_unref(region);
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

/* What the maker lays on a shelf can do no more than the message says. */
static void test_no_more_than_rights(void **state)
{
	struct pair p = pair_make(RECV, &two);
	struct tmesh_channel *maker = p.maker;
	struct tmesh_region *region = make(p.ctx);
	const struct channel_shelf *shelf = &p.other->shelves[0];
	struct pair reverse = {.ctx = p.ctx, .maker = p.other};

	send_new(&reverse, 1);
	atomic_store(&entry_of(maker, 0)[CHANNEL_R_ID], region->id);
	for (int all = 0; all < 2; all++) {
		region->rights = all ? RW : TMESH_READ;
		atomic_store(&entry_of(maker, 0)[CHANNEL_R_RIGHTS], region->rights);
		pthread_mutex_lock(&maker->home->lock);
		maker->known_regions[0].region = region;
		assert_true(tmesh_channel_settle(maker, 0, true));
		maker->known_regions[0].region = NULL;
		pthread_mutex_unlock(&maker->home->lock);
		assert_int_equal(lies(shelf), all);
	}
	tmesh_region_unref(region);
	pair_end(&p);
}

/* What one receiver alone was handed lies on the shelf once there is another one. */
static void test_shared(void **state)
{
	struct pair p = pair_make(SEND, &two);
	const struct channel_shelf *shelf = &p.maker->shelves[0];
	struct tmesh_channel *second, *third;

	send_new(&p, 1);
	assert_int_equal(p.maker->sent_regions[0].held, CHANNEL_HELD_THERE);
	assert_false(lies(shelf));
	second = pair_open(&p, RECV);
	assert_int_equal(p.maker->sent_regions[0].held, CHANNEL_HELD_SHELF);
	assert_true(lies(shelf));
	/* Where it cannot lie there it is with the first one still. */
	p.maker->sent_regions[0].held = CHANNEL_HELD_THERE;
	shutdown(shelf->get, SHUT_RD);
	third = pair_open(&p, RECV);
	assert_int_equal(p.maker->sent_regions[0].held, CHANNEL_HELD_THERE);
	tmesh_channel_unref(third);
	tmesh_channel_unref(second);
	pair_end(&p);
}

/* A message takes 253 descriptors: what is more is not on the shelf, and counted. */
static void test_full_shelf(void **state)
{
	const struct tmesh_channel_opts many = {.size = sizeof(many), .slots = 512, .regions = 512};
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

/* Of what another one has taken the place of nothing stays open at either end. */
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

	assert_refused(tmesh_channel_recv(receiver, &got, -1, err), -EPIPE, "nobody is left");
}

/* The maker has seen that its sender is gone, and looks at its shelf no more. */
static bool is_settled(struct tmesh_channel *maker)
{
	bool settled;

	pthread_mutex_lock(&maker->home->lock);
	settled = !maker->producers && !maker->shelves[0].left;
	pthread_mutex_unlock(&maker->home->lock);
	return settled;
}

/* Shelves are closed, and emptied for the others, when nobody can come any more to send. */
static void test_last_look(void **state)
{
	struct pair p = pair_make(RECV, &two);
	struct tmesh_channel *second = pair_open(&p, RECV), *third = pair_open(&p, RECV);
	struct channel_shelf whole;
	struct tmesh_region *region = make(p.ctx);
	const struct lie lie = lie_about(region, 1);

	tmesh_channel_unref(p.other);
	p.other = NULL;
	expect_end(p.maker);
	expect_end(second);
	while (!is_settled(p.maker))
		usleep(1000);
	assert_true(p.maker->shelves[0].get >= 0);
	assert_true(second->shelves[0].get >= 0);
	whole = (struct channel_shelf){.put = p.maker->shelves[0].put,
				       .get = second->shelves[0].get};
	lay(&whole, &lie, region->fd, 1);
	tmesh_channel_unref(p.maker);
	p.maker = NULL;
	while (!atomic_load(&second->over) || !atomic_load(&third->over))
		usleep(1000);
	assert_true(lies(&third->shelves[0]));
	expect_end(second);
	assert_int_equal(second->shelves[0].get, -1);
	assert_false(lies(&third->shelves[0]));
	tmesh_region_unref(region);
	tmesh_channel_unref(third);
	tmesh_channel_unref(second);
	pair_end(&p);
}

/* Messages that nobody is left to receive are none that may be lost. */
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
		cmocka_unit_test(test_handed),
		cmocka_unit_test(test_asked_for),
		cmocka_unit_test(test_hand_back),
		cmocka_unit_test(test_stale),
		cmocka_unit_test(test_shelf),
		cmocka_unit_test(test_with_maker),
		cmocka_unit_test(test_inherit),
		cmocka_unit_test(test_settle),
		cmocka_unit_test(test_no_more_than_rights),
		cmocka_unit_test(test_shared),
		cmocka_unit_test(test_full_shelf),
		cmocka_unit_test(test_unread),
		cmocka_unit_test(test_one_place),
		cmocka_unit_test(test_last_look),
	};

	return cmocka_run_group_tests_name("channel_sockets", tests, unit_memfd_setup, NULL);
}
