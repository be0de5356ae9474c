// SPDX-License-Identifier: MIT
/* Keeping, opening, dropping, revoking and reclaiming the same names at once. */
#include "keep.h"

#define NAMES 3
#define REGIONS 3
#define BYTES (4 * PAGE)

/* The state that all processes share */
static struct {
	bool stop;
	unsigned long kept, opened, dropped, gone, revoked, reclaims;
} * all;

static void set_up(void)
{
	all = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	REQUIRE(all != MAP_FAILED);
}

static bool stopped(void)
{
	return __atomic_load_n(&all->stop, __ATOMIC_RELAXED);
}

static void count(unsigned long *n)
{
	__atomic_add_fetch(n, 1, __ATOMIC_RELAXED);
}

static const char *some_name(unsigned int *seed)
{
	static const char *const names[NAMES] = {"a", "b", "c"};

	return names[t_random(seed) % NAMES];
}

static bool is_one_of(int error, int a, int b, int c)
{
	return error == a || error == b || error == c;
}

/* Keep groups of regions whose values differ by one. */
static void keeper(int dev, unsigned int seed)
{
	int fds[REGIONS], first = t_random(&seed) % 100;

	for (int i = 0; i < REGIONS; i++)
		fds[i] = keep_region(dev, BYTES, 0, first + i);
	if (!keep(dev, some_name(&seed), fds, REGIONS, t_random(&seed) % 2))
		count(&all->kept);
	else
		CHECK_EQ(errno, EEXIST);
	for (int i = 0; i < REGIONS; i++)
		close(fds[i]);
}

/* Open groups. Check that a call opens all of a group or nothing, with the right bytes. */
static void opener(int dev, unsigned int seed)
{
	int fds[REGIONS];
	unsigned char *p[REGIONS];

	if (kept_open(dev, some_name(&seed), R_READ, 0, fds, REGIONS) < 0) {
		CHECK_EQ(errno, ENOENT);
		return;
	}
	count(&all->opened);
	for (int i = 0; i < REGIONS; i++) {
		p[i] = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fds[i], 0);
		close(fds[i]);
	}
	for (int i = 0; i < REGIONS; i++) {
		/* A revocation takes away one region only. */
		if (p[i] == MAP_FAILED || p[0] == MAP_FAILED || t_read(p[i]) ||
		    t_read(p[i] + PAGE) || t_read(p[0]) || t_write(p[i] + 1, 1)) {
			count(&all->gone);
			break;
		}
	}
	for (int i = 0; i < REGIONS; i++)
		if (p[i] != MAP_FAILED)
			munmap(p[i], BYTES);
}

static void dropper(int dev, unsigned int seed)
{
	struct tmesh_kept k[NAMES];

	if (kept_drop(dev, some_name(&seed)))
		CHECK_EQ(errno, ENOENT);
	else
		count(&all->dropped);
	CHECK_OK(kept_list(dev, 0, k, NAMES));
	usleep(t_random(&seed) % 3000);
}

static void revoker(int dev, unsigned int seed)
{
	int fds[REGIONS], keeps;

	if (kept_open(dev, some_name(&seed), R_READ | R_MANAGE, 0, fds, REGIONS) < 0) {
		CHECK_EQ(errno, ENOENT);
		return;
	}
	/* The name may belong to another group by now. */
	keeps = keep(dev, some_name(&seed), fds, REGIONS, t_random(&seed) % 2);
	if (keeps)
		CHECK(is_one_of(errno, EEXIST, EBUSY, ESTALE));
	if (t_random(&seed) % 4 == 0) {
		if (t_revoke(fds[seed % REGIONS]))
			CHECK_EQ(errno, ESTALE);
		else
			count(&all->revoked);
	}
	for (int i = 0; i < REGIONS; i++)
		close(fds[i]);
	usleep(t_random(&seed) % 3000);
}

static void reclaimer(int dev, unsigned int seed)
{
	if (t_write_file("/proc/sys/vm/drop_caches", "2"))
		count(&all->reclaims);
	usleep(t_random(&seed) % 5000);
}

static bool all_counted(void)
{
	return __atomic_load_n(&all->kept, __ATOMIC_RELAXED) &&
	       __atomic_load_n(&all->opened, __ATOMIC_RELAXED) &&
	       __atomic_load_n(&all->dropped, __ATOMIC_RELAXED) &&
	       __atomic_load_n(&all->revoked, __ATOMIC_RELAXED) &&
	       __atomic_load_n(&all->reclaims, __ATOMIC_RELAXED);
}

TEST(stress, "keep, open, drop, keep again, revoke and reclaim, of the same names")
{
	static void (*const work[])(int dev, unsigned int seed) = {keeper,  opener,  opener,
								   dropper, revoker, reclaimer};
	pid_t pids[ARRAY_SIZE(work)];
	int dev = t_dev();

	set_up();
	for (size_t i = 0; i < ARRAY_SIZE(work); i++)
		T_CHILD(pids[i]) {
			unsigned int seed = i * 7919 + 1;

			while (!stopped() && !t_failed()) {
				t_random(&seed);
				work[i](dev, seed);
			}
		}
	sleep(t_length(20, 600));
	while (!all_counted() && !t_failed())
		usleep(10000);
	__atomic_store_n(&all->stop, true, __ATOMIC_RELAXED);
	for (size_t i = 0; i < ARRAY_SIZE(work); i++)
		t_wait(pids[i]);
	t_note("%lu kept, %lu opened, %lu found gone, %lu dropped, %lu revoked, %lu reclaims",
	       all->kept, all->opened, all->gone, all->dropped, all->revoked, all->reclaims);
	CHECK(all_counted());
	t_drop_kept();
	CHECK_EQ(t_caps(dev).used_kept_names, 0);
	CHECK_EQ(t_caps(dev).used_kept_bytes, 0);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
}

/* Check that each name has a whole group with its bytes, or none. No region is revoked here. */
static void check_whole(int dev)
{
	struct tmesh_kept some[NAMES];
	int n = REQUIRE_OK(kept_list(dev, 0, some, NAMES)), fds[REGIONS];

	for (int k = 0; k < n; k++) {
		unsigned char *p;
		int first;

		if (kept_open(dev, some[k].name, R_READ, 0, fds, REGIONS) < 0) {
			CHECK_EQ(errno, ENOENT);
			continue;
		}
		p = t_map(fds[0], BYTES, PROT_READ);
		REQUIRE(p != MAP_FAILED);
		first = p[0];
		munmap(p, BYTES);
		for (int i = 0; i < REGIONS; i++) {
			CHECK(keep_same(fds[i], BYTES, first + i));
			close(fds[i]);
		}
	}
}

TEST(killed, "processes that are killed while they keep and open leave whole kept groups")
{
	long rounds = t_length(60, 5000), left = 0;
	double until = t_now() + t_length(40, 600);
	int dev = t_dev();
	struct tmesh_kept some[NAMES];

	set_up();
	for (long round = 0; (!left || (round < rounds && t_now() < until)) && !t_failed();
	     round++) {
		pid_t pids[3];

		for (int i = 0; i < 3; i++)
			T_CHILD(pids[i]) {
				unsigned int seed = round * 3 + i + 1;

				for (;;) {
					t_random(&seed);
					(i ? keeper : opener)(dev, seed);
				}
			}
		/* Wait longer each time: on a slow machine nothing may have been kept by then. */
		usleep((10000 + round * 7919 % 30000) * (left ? 1 : 1 + round / 10));
		for (int i = 0; i < 3; i++) {
			kill(pids[i], SIGKILL);
			waitpid(pids[i], NULL, 0);
		}
		check_whole(dev);
		left += kept_list(dev, 0, some, NAMES);
	}
	t_note("%ld names were left by those who were killed", left);
	CHECK(left);
	t_drop_kept();
	CHECK_EQ(t_caps(dev).used_kept_bytes, 0);
}

/* List names for ever as a user that may see none of them. */
static void list_always(void)
{
	struct tmesh_kept k[4];
	int dev;

	t_become(1002, 1002, 0);
	for (dev = t_dev();;)
		kept_list(dev, 0, k, 4);
}

TEST(dropped, "what has no holder is gone when DROP returns, although others list names meanwhile")
{
	int dev = t_dev(), late = 0, fd;
	long rounds = t_length(1000, 5000);
	pid_t listers[2];

	for (int i = 0; i < 2; i++) {
		listers[i] = t_fork();
		if (!listers[i])
			list_always();
	}
	for (long i = 0; i < rounds; i++) {
		fd = REQUIRE_OK(t_create(dev, PAGE, 0));
		REQUIRE_OK(t_seal(fd));
		REQUIRE_OK(keep(dev, "dropped", &fd, 1, 0));
		close(fd);
		REQUIRE_OK(kept_drop(dev, "dropped"));
		late += t_caps(dev).used_regions != 0;
	}
	for (int i = 0; i < 2; i++) {
		kill(listers[i], SIGKILL);
		waitpid(listers[i], NULL, 0);
	}
	t_note("%d of %ld were still there", late, rounds);
	CHECK_EQ(late, 0);
}

/* Revoke by an id, which needs no handle. */
static int revoke_id(int dev, __u64 id)
{
	struct tmesh_revoke r = {.size = sizeof(r), .id = id};

	return ioctl(dev, TMESH_REVOKE, &r);
}

TEST(revoked_idle, "regions are revoked by their ids while reclaim takes their group")
{
	long rounds = t_length(40, 400), revoked = 0, reclaimed = 0;
	double until = t_now() + t_length(30, 300);
	unsigned int seed = 20261130;
	int dev = t_dev();

	for (long round = 0; round < rounds && t_now() < until && !t_failed(); round++) {
		__u64 ids[REGIONS];
		int fds[REGIONS], rc;
		pid_t pid;

		for (int i = 0; i < REGIONS; i++) {
			fds[i] = REQUIRE_OK(t_create(dev, 16 << 20, 0));
			REQUIRE_OK(t_seal(fds[i]));
			ids[i] = t_info(fds[i]).id;
		}
		REQUIRE_OK(keep(dev, "idle", fds, REGIONS, 0));
		for (int i = 0; i < REGIONS; i++)
			close(fds[i]);
		T_CHILD(pid) {
			for (int i = 0; i < 3; i++)
				t_write_file("/proc/sys/vm/drop_caches", "2");
		}
		usleep(t_random(&seed) % 20000);
		for (int i = 0; i < REGIONS; i++) {
			rc = revoke_id(dev, ids[i]);
			if (rc)
				CHECK(errno == ENOENT || errno == ESTALE);
			revoked += !rc;
			reclaimed += rc && errno == ENOENT;
		}
		t_wait(pid);
		t_drop_kept();
		CHECK_EQ(t_caps(dev).used_kept_names, 0);
		CHECK_EQ(t_caps(dev).used_kept_bytes, 0);
	}
	t_note("%ld were revoked, %ld had gone or were taken", revoked, reclaimed);
	CHECK(revoked && reclaimed);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
}

TEST(used_idle, "a name that is used and pinned while reclaim looks at it stays")
{
	long rounds = t_length(60, 2000), held = 0, gone = 0;
	double until = t_now() + t_length(30, 300);
	unsigned int seed = 20261201;
	int dev = t_dev();

	for (long round = 0; round < rounds && t_now() < until && !t_failed(); round++) {
		struct iovec page = {.iov_len = 1};
		int fds[2], ends[2];
		pid_t pid;

		/* The look comes to the second region long after the first. */
		if (!is_kept(dev, "used")) {
			fds[0] = keep_region(dev, PAGE, 0, 1);
			fds[1] = REQUIRE_OK(t_create(dev, 32 << 20, TMESH_CREATE_NOHUGE));
			REQUIRE_OK(t_seal(fds[1]));
			REQUIRE_OK(keep(dev, "used", fds, 2, 0));
			close(fds[0]);
			close(fds[1]);
		}
		REQUIRE_OK(pipe2(ends, O_CLOEXEC));
		T_CHILD(pid) {
			close(ends[0]);
			close(ends[1]);
			t_write_file("/proc/sys/vm/drop_caches", "2");
		}
		usleep(t_random(&seed) % 30000);
		if (kept_open(dev, "used", R_READ, 0, fds, 2) == 2) {
			page.iov_base = t_map(fds[0], PAGE, PROT_READ);
			REQUIRE(page.iov_base != MAP_FAILED);
			REQUIRE(vmsplice(ends[1], &page, 1, 0) == 1);
			munmap(page.iov_base, PAGE);
			close(fds[0]);
			close(fds[1]);
			t_wait(pid);
			CHECK(is_kept(dev, "used"));
			held++;
		} else {
			t_wait(pid);
			gone++;
		}
		close(ends[0]);
		close(ends[1]);
	}
	t_note("%ld were used, %ld had gone", held, gone);
	CHECK(held);
	t_drop_kept();
}
