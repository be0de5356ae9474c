// SPDX-License-Identifier: MIT
/* Many views of one source, many extents and mappings of one view, and their makers' sudden ends.
 */
#include "peer.h"
#include "gather_view.h"

TEST(million, "a view of a million extents; its pages are not charged, its list of them is")
{
	/* The list of pages is charged in whole pages. */
	const __u32 whole = PAGE / sizeof(void *), pages = TMESH_GATHER_MAX / whole;
	const __u32 count = t_length(pages, pages) * whole;
	struct tmesh_extent *e = malloc(count * sizeof(*e));
	const __u64 bytes = count * PAGE;
	struct tmesh_caps_query before, after;
	int h, v;
	__u64 *p;

	REQUIRE(e);
	dev = t_dev();
	h = filled(9, 4, 0);
	for (__u32 i = 0; i < count; i++)
		e[i] = t_extent(h, i * 7 % 4, 1);
	before = t_caps(dev);
	v = REQUIRE_OK(gather(e, count, R_READ));
	after = t_caps(dev);
	CHECK_EQ(t_info(v).bytes, bytes);
	CHECK_EQ(after.used_regions - before.used_regions, 1);
	CHECK_EQ(after.used_bytes - before.used_bytes, count * sizeof(void *));
	p = t_map(v, bytes, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	for (__u64 i = 0; i < count; i += 8191)
		CHECK(shows(p + i * WORDS, 9, i * 7 % 4, 1));
	CHECK(shows(p + (count - 1) * WORDS, 9, (count - 1) * 7 % 4, 1));
}

/* All uses of a view may take 2 * TMESH_GATHER_MAX references on a page, and no more. */
#define USES 16

TEST(uses, "a view that names a page very often is mapped for few devices at a time")
{
	const __u32 count = 2 * TMESH_GATHER_MAX / USES;
	struct tmesh_extent *e = malloc(count * sizeof(*e));
	int h, v, slice, peers[USES + 1];

	REQUIRE(e);
	for (size_t i = 0; i < ARRAY_SIZE(peers); i++)
		peers[i] = open_peer();
	dev = t_dev();
	h = filled(9, 4, 0);
	for (__u32 i = 0; i < count; i++)
		e[i] = t_extent(h, i * 7 % 4, 1);
	v = REQUIRE_OK(gather(e, count, R_READ));
	slice = REQUIRE_OK(t_export(v, PAGE, 64 * PAGE, 0));
	for (int i = 0; i < USES; i++)
		CHECK_OK(peer_import(peers[i], slice, 0));
	CHECK_ERR(peer_import(peers[USES], slice, 0), ENOMEM);
	peer_let_go(peers[0]);
	CHECK_OK(peer_import(peers[USES], slice, 0));
	CHECK_OK(t_revoke(h));
	CHECK_EQ(t_info(h).pinned_bytes, 4 * PAGE);
	for (int i = 1; i <= USES; i++)
		peer_let_go(peers[i]);
}

TEST(cap, "one source has so many views and no more")
{
	int h, second, views[TMESH_GATHER_VIEWS];
	struct tmesh_extent both[2];
	struct rlimit files = {TMESH_GATHER_VIEWS + 100, TMESH_GATHER_VIEWS + 100};

	REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &files));
	dev = t_dev();
	h = filled(10, 1, 0);
	second = filled(11, 1, 0);
	for (int i = 0; i < TMESH_GATHER_VIEWS; i++)
		views[i] = REQUIRE_OK(view_of(h, R_READ));
	CHECK_ERR(view_of(h, R_READ), EDQUOT);
	both[0] = t_extent(second, 0, 1);
	both[1] = t_extent(h, 0, 1);
	CHECK_ERR(gather(both, 2, R_READ), EDQUOT);
	CHECK_EQ(t_info(second).gathers, 0);
	close(views[7]);
	CHECK_OK(gather(both, 2, R_READ));
	CHECK_EQ(t_info(h).gathers, TMESH_GATHER_VIEWS);
	CHECK_OK(t_revoke(h));
	CHECK(t_info(views[0]).state & TMESH_STATE_REVOKED);
	CHECK(t_info(views[TMESH_GATHER_VIEWS - 1]).state & TMESH_STATE_REVOKED);
}

/* Let another user make views of a region, which has @views already. */
static pid_t stranger(uid_t uid, int h, int views, int sock)
{
	pid_t pid = t_fork();

	if (pid)
		return pid;
	t_become(uid, uid, 0);
	dev = t_dev();
	for (int i = 0; i < views; i++)
		REQUIRE_OK(view_of(h, R_READ));
	CHECK_ERR(view_of(h, R_READ), EDQUOT);
	t_say(sock);
	t_hear(sock);
	t_exit();
}

TEST(share, "readers leave half of a source's views to its owner, and some to each other")
{
	struct rlimit files = {TMESH_GATHER_VIEWS + 100, TMESH_GATHER_VIEWS + 100};
	int h, first[2], second[2], left = TMESH_GATHER_VIEWS * 5 / 8;
	pid_t one, two;

	REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &files));
	dev = t_dev();
	h = filled(10, 1, 0);
	t_pair(first);
	t_pair(second);
	one = stranger(1001, h, TMESH_GATHER_VIEWS / 4, first[1]);
	t_hear(first[0]);
	two = stranger(1002, h, TMESH_GATHER_VIEWS / 8, second[1]);
	t_hear(second[0]);
	for (int i = 0; i < left; i++)
		REQUIRE_OK(view_of(h, R_READ));
	CHECK_ERR(view_of(h, R_READ), EDQUOT);
	CHECK_EQ(t_info(h).gathers, TMESH_GATHER_VIEWS);
	t_say(first[0]);
	t_wait(one);
	CHECK_OK(view_of(h, R_READ));
	t_say(second[0]);
	t_wait(two);
}

/* Each descriptor is looked up once, even if another thread replaces it meanwhile. */

static int shuffled[2], targets[3];
static bool done;

static void *shuffle(void *arg)
{
	unsigned int seed = 3;

	while (!__atomic_load_n(&done, __ATOMIC_RELAXED))
		dup2(targets[t_random(&seed) % 3], shuffled[t_random(&seed) % 2]);
	return NULL;
}

TEST(changing_fds, "descriptors that change meanwhile: each view is of one region throughout")
{
	static struct tmesh_extent e[400];
	double until = t_now() + t_length(2, 60);
	long made = 0, refused = 0;
	pthread_t thread;

	dev = t_dev();
	targets[0] = filled(20, 2, 0);
	targets[1] = filled(21, 2, 0);
	targets[2] = REQUIRE_OK(open("/dev/null", O_RDWR | O_CLOEXEC));
	shuffled[0] = REQUIRE_OK(dup(targets[0]));
	shuffled[1] = REQUIRE_OK(dup(targets[1]));
	REQUIRE(!pthread_create(&thread, NULL, shuffle, NULL));
	for (size_t i = 0; i < ARRAY_SIZE(e); i++)
		e[i] = t_extent(shuffled[0], i % 2, 1);
	while (t_now() < until && !t_failed()) {
		int v = gather(e, ARRAY_SIZE(e), R_READ);
		__u64 *p;

		if (v < 0) {
			CHECK_EQ(errno, EINVAL);
			refused++;
			continue;
		}
		made++;
		p = t_map(v, sizeof(e) / sizeof(e[0]) * PAGE, PROT_READ);
		REQUIRE(p != MAP_FAILED);
		for (size_t k = 0; k < ARRAY_SIZE(e); k += 57)
			CHECK(shows(p + k * WORDS, shows(p, 20, 0, 1) ? 20 : 21, k % 2, 1));
		munmap(p, ARRAY_SIZE(e) * PAGE);
		close(v);
	}
	__atomic_store_n(&done, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	t_note("%ld made, %ld refused", made, refused);
}

TEST(storm, "processes that are killed while they make and use views leave nothing")
{
	long rounds = t_length(40, 1000);
	unsigned int seed = 77;

	dev = t_dev();
	for (long i = 0; i < rounds && !t_failed(); i++) {
		int h = filled(22, 8, 0);
		pid_t pid = t_fork();

		if (!pid) {
			struct tmesh_extent e[3] = {t_extent(h, 0, 2), t_extent(0, 1, 3),
						    t_extent(h, 6, 2)};

			for (;;) {
				int other = t_create(dev, 4 * PAGE, 0), v;
				char *p;

				e[1].handle = other;
				v = gather(e, 3, R_RW);
				p = t_map(v, 7 * PAGE, RW);
				t_write(p + 3 * PAGE, 1);
				close(t_export(v, 0, 0, 0));
				munmap(p, 7 * PAGE);
				close(v);
				close(other);
			}
		}
		usleep(t_random(&seed) % 5000);
		kill(pid, SIGKILL);
		REQUIRE(waitpid(pid, NULL, 0) == pid);
		comes_to(h, 0);
		CHECK_EQ(t_info(h).handles, 1);
		close(h);
	}
}

/* Count the pages of a mapping that have a page table entry. */
static unsigned int present(const void *p, unsigned int pages)
{
	int fd = REQUIRE_OK(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
	unsigned int n = 0;
	__u64 entry;

	for (unsigned int i = 0; i < pages; i++) {
		REQUIRE(pread(fd, &entry, sizeof(entry), ((unsigned long)p / PAGE + i) * 8) == 8);
		n += entry >> 63;
	}
	close(fd);
	return n;
}

/* Return how many of the first pages have their entries in one page table, as a fault fills one. */
static unsigned int in_one_table(const void *p, unsigned int pages)
{
	unsigned int left = 512 - (unsigned long)p / PAGE % 512;

	return pages < left ? pages : left;
}

/* All mappings of a view may have 2 * TMESH_GATHER_MAX entries of one page. */
#define REPEATS (TMESH_GATHER_MAX / 4)

TEST(many_repeats,
     "a view that repeats a page is mapped a few times, and forks take no entries along")
{
	struct tmesh_extent *extents = calloc(REPEATS, sizeof(*extents));
	int fd = REQUIRE_OK(t_create(dev = t_dev(), 2 * PAGE, 0)), view;
	unsigned char *p[8];

	for (unsigned int i = 0; i < REPEATS; i++)
		extents[i] = t_extent(fd, 0, 1);
	view = REQUIRE_OK(t_gather(dev, extents, REPEATS, R_READ));
	for (int i = 0; i < 8; i++) {
		p[i] = t_map(view, 16 * PAGE, PROT_READ);
		REQUIRE(p[i] != MAP_FAILED);
	}
	CHECK_ERR(t_map(view, PAGE, PROT_READ), ENOMEM);
	CHECK_EQ(t_read(p[0]), 0);
	CHECK_EQ(present(p[0], 16), in_one_table(p[0], 16));
	T_ALONE()
	{
		CHECK_EQ(present(p[0], 16), 0);
		CHECK_EQ(t_read(p[0] + PAGE), 0);
	}
	munmap(p[7], 16 * PAGE);
	CHECK(t_map(view, PAGE, PROT_READ) != MAP_FAILED);
	/* Without repeats the number of mappings is not limited, and fork() copies the entries. */
	extents[1] = t_extent(fd, 1, 1);
	view = REQUIRE_OK(t_gather(dev, extents, 2, R_READ));
	for (int i = 0; i < 16; i++) {
		p[0] = t_map(view, 2 * PAGE, PROT_READ);
		REQUIRE(p[0] != MAP_FAILED);
	}
	CHECK_EQ(t_read(p[0]), 0);
	T_ALONE()
	{
		CHECK_EQ(present(p[0], 2), in_one_table(p[0], 2));
	}
}
