// SPDX-License-Identifier: MIT
/*
 * Limits of one user and of all users, and how long regions without holders stay.
 */
#include <sched.h>

#include "cgroup.h"
#include "t.h"

#define ALICE 1001
#define BOB 1002

/* Limits */

static int memfd_region(int dev, __u64 bytes)
{
	int memfd = REQUIRE_OK(memfd_create("limits", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd};
	int r;

	REQUIRE_OK(ftruncate(memfd, bytes));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	r = ioctl(dev, TMESH_CREATE_MEMFD, &c);
	close(memfd);
	return r ? -1 : c.fd;
}

TEST(caps, "CAPS shows the limits in force, and what this user has")
{
	int dev = t_dev(), fd;
	struct tmesh_caps_query q = t_caps(dev);

	CHECK_EQ(q.max_bytes_per_uid, t_limit("max_bytes_per_uid"));
	CHECK_EQ(q.max_regions_per_uid, t_limit("max_regions_per_uid"));
	CHECK_EQ(q.max_bytes, t_limit("max_bytes"));
	CHECK_EQ(q.max_regions, t_limit("max_regions"));
	CHECK_EQ(q.max_handles_per_uid, t_limit("max_handles_per_uid"));
	CHECK_EQ(q.max_pins_per_uid, t_limit("max_pins_per_uid"));
	CHECK_EQ(q.max_handles, t_limit("max_handles"));
	CHECK_EQ(q.max_pins, t_limit("max_pins"));
	/* The initial namespace has the limits of the system. */
	CHECK_EQ(q.max_bytes_per_ipc_ns, t_limit("max_bytes"));
	CHECK_EQ(q.max_regions_per_ipc_ns, t_limit("max_regions"));
	CHECK_EQ(q.max_handles_per_ipc_ns, t_limit("max_handles"));
	CHECK_EQ(q.max_pins_per_ipc_ns, t_limit("max_pins"));
	CHECK_EQ(q.used_bytes, 0);
	CHECK_EQ(q.used_regions, 0);
	CHECK_EQ(q.used_handles, 0);
	CHECK_EQ(q.used_pins, 0);
	fd = REQUIRE_OK(t_create(dev, 10000, 0));
	REQUIRE_OK(t_derive(fd, R_READ, 0));
	q = t_caps(dev);
	CHECK_EQ(q.used_bytes, 3 * PAGE);
	CHECK_EQ(q.used_regions, 1);
	CHECK_EQ(q.used_handles, 2);
	CHECK_EQ(q.used_pins, 0);
	CHECK_EQ(q.used_bytes_ipc_ns, 3 * PAGE);
	CHECK_EQ(q.used_regions_ipc_ns, 1);
	CHECK_EQ(q.used_handles_ipc_ns, 2);
	CHECK_EQ(q.used_pins_ipc_ns, 0);
	REQUIRE_OK(t_seal(fd));
	REQUIRE_OK(t_derive(fd, R_READ, TMESH_DERIVE_PIN));
	q = t_caps(dev);
	CHECK_EQ(q.used_handles, 3);
	CHECK_EQ(q.used_pins, 1);
	CHECK_EQ(q.used_pins_ipc_ns, 1);
	CHECK_EQ(q.used_bytes, 3 * PAGE);
}

TEST(bytes, "EDQUOT past the bytes of a user, each user apart, memfds too")
{
	t_set_limit("max_bytes_per_uid", 4 * MB);
	T_ALONE()
	{
		int dev, fd, more;

		t_become(ALICE, ALICE, 0);
		dev = t_dev();
		CHECK_EQ(t_caps(dev).max_bytes_per_uid, 4 * MB);
		CHECK_ERR(t_create(dev, 4 * MB + 1, 0), EDQUOT);
		CHECK_OK(fd = t_create(dev, 4 * MB, 0));
		CHECK_ERR(t_create(dev, 1, 0), EDQUOT);
		CHECK_ERR(memfd_region(dev, PAGE), EDQUOT);
		CHECK_EQ(t_caps(dev).used_bytes, 4 * MB);
		CHECK_EQ(t_caps(dev).used_regions, 1);
		close(fd);
		CHECK_EQ(t_caps(dev).used_bytes, 0);
		CHECK_OK(fd = memfd_region(dev, 3 * MB));
		CHECK_EQ(t_caps(dev).used_bytes, 3 * MB);
		CHECK_ERR(t_create(dev, MB + PAGE, 0), EDQUOT);
		CHECK_OK(more = t_create(dev, MB, 0));
		close(fd);
		close(more);
		CHECK_EQ(t_caps(dev).used_bytes, 0);
	}
	t_set_limit("max_bytes_per_uid", 2 * MB);
	int dev = t_dev(), mine = REQUIRE_OK(t_create(dev, 2 * MB, 0));

	CHECK_ERR(t_create(dev, 1, 0), EDQUOT);
	T_ALONE()
	{
		t_become(BOB, BOB, 0);
		CHECK_OK(t_create(t_dev(), 2 * MB, 0));
	}
	close(mine);
}

/* Create a region, and put one page of each 2 MiB into a pipe, which pins all 2 MiB. */
static int create_and_splice(int dev, int pipe, __u64 bytes)
{
	int fd = t_create(dev, bytes, 0);
	struct iovec io;
	char *p;

	if (fd < 0)
		return -1;
	p = t_map(fd, bytes, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	for (__u64 at = 0; at < bytes; at += HUGE) {
		io = (struct iovec){p + at, PAGE};
		REQUIRE(vmsplice(pipe, &io, 1, 0) == PAGE);
	}
	munmap(p, bytes);
	return close(fd);
}

TEST(spliced, "pages that are pinned when their region ends are charged until the pin ends")
{
	__u64 bytes = 4 * HUGE, each = t_has_huge(t_dev()) ? bytes : 4 * PAGE;

	t_set_limit("max_bytes_per_uid", 2 * bytes);
	T_ALONE()
	{
		int dev, fd, pipes[2];

		t_become(ALICE, ALICE, 0);
		dev = t_dev();
		REQUIRE_OK(pipe(pipes));
		CHECK_OK(create_and_splice(dev, pipes[1], bytes));
		CHECK_EQ(t_caps(dev).used_regions, 0);
		CHECK_EQ(t_caps(dev).used_bytes, each);
		CHECK_OK(create_and_splice(dev, pipes[1], bytes));
		CHECK_EQ(t_caps(dev).used_bytes, 2 * each);
		CHECK_ERR(fd = t_create(dev, 2 * bytes, 0), EDQUOT);
		if (fd >= 0)
			close(fd);
		close(pipes[0]);
		close(pipes[1]);
		for (int i = 0; i < 60000 && t_caps(dev).used_bytes; i++)
			usleep(1000);
		CHECK_EQ(t_caps(dev).used_bytes, 0);
		CHECK_OK(t_create(dev, 2 * bytes, 0));
	}
}

TEST(regions, "EDQUOT past the regions of a user")
{
	int dev = t_dev(), fds[3];

	t_set_limit("max_regions_per_uid", 3);
	for (int i = 0; i < 3; i++)
		CHECK_OK(fds[i] = t_create(dev, PAGE, 0));
	CHECK_OK(t_derive(fds[0], R_READ, 0));
	CHECK_ERR(t_create(dev, PAGE, 0), EDQUOT);
	CHECK_ERR(memfd_region(dev, PAGE), EDQUOT);
	close(fds[1]);
	CHECK_OK(t_create(dev, PAGE, 0));
}

/* Check limits of three handles, one pinning handle, and two regions of a page. */
static void try_counts(void)
{
	int dev = t_dev(), fd, pin, other;
	struct tmesh_caps_query q;
	__u8 token[TMESH_TOKEN_BYTES];

	CHECK_OK(fd = t_create(dev, PAGE, 0));
	CHECK_OK(t_token(fd, R_READ, token));
	CHECK_OK(t_seal(fd));
	CHECK_OK(pin = t_derive(fd, R_READ, TMESH_DERIVE_PIN));
	CHECK_ERR(t_derive(fd, R_READ, TMESH_DERIVE_PIN), EDQUOT);
	q = t_caps(dev);
	CHECK_EQ(q.used_handles, 2);
	CHECK_EQ(q.used_pins, 1);
	CHECK_OK(other = t_derive(fd, R_READ, 0));
	CHECK_ERR(t_derive(fd, R_READ, 0), EDQUOT);
	CHECK_ERR(t_open(dev, token, R_READ, 0), EDQUOT);
	CHECK_ERR(t_create(dev, PAGE, 0), EDQUOT);
	CHECK_ERR(memfd_region(dev, PAGE), EDQUOT);
	q = t_caps(dev);
	CHECK_EQ(q.used_handles, 3);
	CHECK_EQ(q.used_regions, 1);
	CHECK_EQ(q.used_bytes, PAGE);
	close(other);
	CHECK_OK(other = t_create(dev, PAGE, 0));
	close(pin);
	CHECK_ERR(t_create(dev, PAGE, 0), EDQUOT);
	CHECK_OK(t_derive(fd, R_READ, 0));
	q = t_caps(dev);
	CHECK_EQ(q.used_handles, 3);
	CHECK_EQ(q.used_pins, 0);
	CHECK_EQ(q.used_regions, 2);
}

/* Set the limits that try_counts() expects on one level. */
static void set_counts(const char *level)
{
	static const struct {
		const char *count;
		unsigned long long limit;
	} wants[] = {{"bytes", 2 * PAGE}, {"regions", 2}, {"handles", 3}, {"pins", 1}};
	char name[64];

	for (size_t i = 0; i < ARRAY_SIZE(wants); i++) {
		snprintf(name, sizeof(name), "max_%s%s", wants[i].count, level);
		t_set_limit(name, wants[i].limit);
	}
}

TEST(counts, "EDQUOT past the handles and pins of a user, each user apart")
{
	set_counts("_per_uid");
	for (int i = 0; i < 2; i++) {
		T_ALONE()
		{
			t_become(i ? BOB : ALICE, ALICE, 0);
			try_counts();
		}
	}
}

TEST(counts_ipc_ns, "EDQUOT past all limits of an IPC namespace, of all its users together")
{
	pid_t pid;

	set_counts("_per_ipc_ns");
	/* This limit does not apply to the initial namespace. */
	int mine = REQUIRE_OK(t_create(t_dev(), MB, 0));

	for (int i = 0; i < 2; i++) {
		T_CHILD(pid) {
			struct tmesh_caps_query q;

			REQUIRE_OK(unshare(CLONE_NEWIPC));
			q = t_caps(t_dev());
			CHECK_EQ(q.max_bytes_per_ipc_ns, 2 * PAGE);
			CHECK_EQ(q.max_pins_per_ipc_ns, 1);
			CHECK_EQ(q.used_bytes_ipc_ns, 0);
			CHECK_EQ(q.used_bytes, MB);
			T_ALONE()
			{
				t_become(ALICE, ALICE, 0);
				try_counts();
				T_CHILD(pid) {
					CHECK_ERR(t_create(t_dev(), PAGE, 0), EDQUOT);
				}
				t_wait(pid);
			}
			q = t_caps(t_dev());
			CHECK_EQ(q.used_handles_ipc_ns, 0);
		}
		t_wait(pid);
	}
	close(mine);
}

TEST(counts_total, "EDQUOT past the handles and pins that all users may have together")
{
	set_counts("");
	T_ALONE()
	{
		t_become(ALICE, ALICE, 0);
		try_counts();
	}
}

TEST(totals, "EDQUOT past what all users may have together")
{
	unsigned long long all = t_limit("max_bytes");
	int dev = t_dev(), mine;

	mine = REQUIRE_OK(t_create(dev, 3 * MB, 0));
	t_set_limit("max_bytes", 4 * MB);
	T_ALONE()
	{
		t_become(ALICE, ALICE, 0);
		int theirs = t_dev(), fd;

		CHECK_ERR(t_create(theirs, MB + PAGE, 0), EDQUOT);
		CHECK_OK(fd = t_create(theirs, MB, 0));
		close(fd);
	}
	t_set_limit("max_bytes", all);
	t_set_limit("max_regions", 2);
	T_ALONE()
	{
		t_become(ALICE, ALICE, 0);
		int theirs = t_dev();

		CHECK_OK(t_create(theirs, PAGE, 0));
		CHECK_ERR(t_create(theirs, PAGE, 0), EDQUOT);
	}
	close(mine);
}

TEST(lowered, "a limit lowered below what is held takes nothing away")
{
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, 2 * MB, 0));
	unsigned char *p = t_map(fd, 2 * MB, PROT_READ | PROT_WRITE);
	struct tmesh_extent first = t_extent(fd, 0, 1);

	t_set_limit("max_bytes_per_uid", MB);
	REQUIRE(p != MAP_FAILED);
	memset(p, 1, 2 * MB);
	CHECK_OK(t_derive(fd, R_READ, 0));
	CHECK_OK(t_export(fd, 0, 0, 0));
	CHECK_ERR(t_create(dev, PAGE, 0), EDQUOT);
	/* A view's list of pages is charged. */
	CHECK_ERR(t_gather(dev, &first, 1, R_READ), EDQUOT);
}

TEST(root_only, "only root sets limits")
{
	static const char *const names[] = {
		"max_bytes_per_uid",
		"max_regions_per_uid",
		"max_handles_per_uid",
		"max_pins_per_uid",
		"max_bytes_per_ipc_ns",
		"max_regions_per_ipc_ns",
		"max_handles_per_ipc_ns",
		"max_pins_per_ipc_ns",
		"max_bytes",
		"max_regions",
		"max_handles",
		"max_pins",
		"max_files_per_uid",
		"max_foreign_files_per_uid",
		"max_files_per_ipc_ns",
		"max_files",
	};

	T_ALONE()
	{
		char path[64];

		t_become(ALICE, ALICE, 0);
		for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
			snprintf(path, sizeof(path), "/proc/sys/dev/tmesh/%s", names[i]);
			CHECK_ERR(open(path, O_WRONLY), EACCES);
			CHECK(t_limit(names[i]) > 0);
		}
	}
}

TEST(together, "processes that create at once never pass the limit together")
{
	enum {
		CHILDREN = 4,
		ROOM = 10
	};
	int dev = t_dev(), sv[CHILDREN][2], made = 0;
	pid_t pids[CHILDREN];

	t_set_limit("max_bytes_per_uid", ROOM * MB);
	for (int i = 0; i < CHILDREN; i++) {
		t_pair(sv[i]);
		T_CHILD(pids[i]) {
			int fds[64], n, most = 0;

			for (int round = 0; round < 30; round++) {
				for (n = 0; n < 64; n++) {
					fds[n] = t_create(dev, MB, 0);
					if (fds[n] < 0)
						break;
				}
				CHECK_EQ(errno, EDQUOT);
				most = n > most ? n : most;
				while (n)
					close(fds[--n]);
			}
			CHECK(most <= ROOM);
			for (n = 0; n < 64 && t_create(dev, MB, 0) >= 0; n++)
				;
			REQUIRE(write(sv[i][1], &n, sizeof(n)) == sizeof(n));
			t_hear(sv[i][1]);
		}
	}
	for (int i = 0, n; i < CHILDREN; i++) {
		REQUIRE(read(sv[i][0], &n, sizeof(n)) == sizeof(n));
		made += n;
	}
	CHECK_EQ(made, ROOM);
	CHECK_EQ(t_caps(dev).used_bytes, ROOM * MB);
	for (int i = 0; i < CHILDREN; i++) {
		t_say(sv[i][0]);
		t_wait(pids[i]);
	}
}

TEST(pins_paid, "a process that pins another's region pays for it too")
{
	int dev = t_dev(), fd, sv[2], pin;
	struct tmesh_create c = {.size = sizeof(c), .bytes = 2 * MB};
	pid_t pid;

	REQUIRE_OK(ioctl(dev, TMESH_CREATE, &c));
	fd = c.fd;
	REQUIRE_OK(t_seal(fd));
	t_pair(sv);
	T_CHILD(pid) {
		t_become(BOB, BOB, 0);
		int theirs = t_dev();

		t_hear(sv[1]);
		CHECK_ERR(t_derive(fd, R_READ, TMESH_DERIVE_PIN), EDQUOT);
		CHECK_EQ(t_caps(theirs).used_bytes, 0);
		t_say(sv[1]);
		t_hear(sv[1]);
		CHECK_OK(pin = t_derive(fd, R_READ, TMESH_DERIVE_PIN));
		CHECK_EQ(t_caps(theirs).used_bytes, 2 * MB);
		close(pin);
		CHECK_EQ(t_caps(theirs).used_bytes, 0);
	}
	t_set_limit("max_bytes_per_uid", MB);
	t_say(sv[0]);
	t_hear(sv[0]);
	t_set_limit("max_bytes_per_uid", 4 * MB);
	t_say(sv[0]);
	t_wait(pid);
}

/* The memory control group */

static void try_memcg(__u32 flags)
{
	int dev = t_dev(), fd;

	if (flags & TMESH_CREATE_HUGE && !t_has_huge(dev))
		t_skip("this kernel has no transparent huge pages");
	T_ALONE()
	{
		struct tmesh_caps_query q;

		cgroup_enter(CGROUP, "33554432");
		CHECK_ERR(t_create(dev, 128 * MB, flags), ENOMEM);
		q = t_caps(dev);
		CHECK_EQ(q.used_bytes, 0);
		CHECK_EQ(q.used_regions, 0);
		CHECK_OK(fd = t_create(dev, 8 * MB, flags));
		CHECK_EQ(cgroup_events(CGROUP, "oom_kill"), 0);
	}
	cgroup_remove(CGROUP);
}

TEST_CALL(memcg, "past the memory cgroup's limit ENOMEM, and no process is killed", try_memcg(0))
TEST_CALL(memcg_single, "the same with single pages", try_memcg(TMESH_CREATE_NOHUGE))
TEST_CALL(memcg_huge, "the same with huge pages", try_memcg(TMESH_CREATE_HUGE))

TEST(memcg_charge, "a region is charged to its creator's memory cgroup, which INFO names")
{
	T_ALONE()
	{
		int dev = t_dev(), fd;
		struct stat st;
		long before;

		cgroup_enter(CGROUP, "max");
		before = cgroup_charged(CGROUP);
		fd = REQUIRE_OK(t_create(dev, 16 * MB, 0));
		REQUIRE_OK(stat(CGROUP, &st));
		CHECK_EQ(t_info(fd).cgroup_id, st.st_ino);
		/* Each processor is charged for a few pages in advance. */
		CHECK(cgroup_charged(CGROUP) - before >= (long)(15 * MB));
	}
	cgroup_remove(CGROUP);
}

static long reclaimable_slab(void)
{
	char text[32];

	REQUIRE(t_file_value(CGROUP "/memory.stat", "slab_reclaimable", text, sizeof(text)));
	return atol(text);
}

TEST(memcg_zeros, "where pages of zeros stand is charged to the memory cgroup as they are")
{
	T_ALONE()
	{
		struct tmesh_policy policy = {.size = sizeof(policy), .flags = TMESH_POLICY_ZERO};
		/* One entry for each node of the xarray, which has more than 500 bytes */
		size_t bytes = 64 * MB, step = 64 * PAGE, i;
		volatile unsigned char *p;
		long before;
		int fd;

		cgroup_enter(CGROUP, "max");
		fd = REQUIRE_OK(t_create(t_dev(), bytes, 0));
		REQUIRE_OK(ioctl(fd, TMESH_POLICY, &policy));
		p = t_map(fd, bytes, PROT_READ);
		REQUIRE(p != MAP_FAILED);
		CHECK_OK(t_revoke(fd));
		before = reclaimable_slab();
		for (i = 0; i < bytes; i += step)
			CHECK_EQ(p[i], 0);
		CHECK(reclaimable_slab() - before >= (long)(bytes / step * 256));
	}
	cgroup_remove(CGROUP);
}

/* Holds */

static int region_with_hold(int dev, __u32 ms, __u8 *token)
{
	struct tmesh_create c = {.size = sizeof(c), .bytes = MB, .hold_ms = ms};

	REQUIRE_OK(ioctl(dev, TMESH_CREATE, &c));
	REQUIRE_OK(t_token(c.fd, R_READ, token));
	return c.fd;
}

/* Test whether the machine has stalled. Such a round proves nothing about time. */
static bool too_late(double since)
{
	if (t_now() - since < TMESH_HOLD_MAX_MS / 1000.)
		return false;
	t_note("the machine stalled for a second; nothing learnt");
	return true;
}

TEST(hold, "a token sent before the last handle closed is still good, then it ends")
{
	int dev = t_dev(), fd;
	__u8 token[TMESH_TOKEN_BYTES];
	double since;

	fd = region_with_hold(dev, TMESH_HOLD_MAX_MS, token);
	since = t_now();
	close(fd);
	fd = t_open(dev, token, R_READ, 0);
	if (!too_late(since)) {
		CHECK_OK(fd);
		CHECK_EQ(t_listed(dev), 1);
		CHECK_EQ(t_caps(dev).used_bytes, MB);
	}
	close(fd);
	/* The region leaves the list before all of its memory is free. */
	while ((t_listed(dev) || t_caps(dev).used_bytes || t_caps(dev).used_regions) &&
	       t_now() - since < 60)
		usleep(20000);
	CHECK_EQ(t_listed(dev), 0);
	CHECK_ERR(t_open(dev, token, R_READ, 0), ENOENT);
	CHECK_EQ(t_caps(dev).used_bytes, 0);
	CHECK_EQ(t_caps(dev).used_regions, 0);
}

TEST(hold_nobody, "nothing is held where no token can come: none was made, or it was revoked")
{
	struct tmesh_create c = {
		.size = sizeof(c),
		.bytes = MB,
		.hold_ms = TMESH_HOLD_MAX_MS,
	};
	int dev = t_dev(), fd;
	__u8 token[TMESH_TOKEN_BYTES];

	REQUIRE_OK(ioctl(dev, TMESH_CREATE, &c));
	close(c.fd);
	CHECK_EQ(t_listed(dev), 0);
	fd = region_with_hold(dev, TMESH_HOLD_MAX_MS, token);
	REQUIRE_OK(t_revoke(fd));
	close(fd);
	CHECK_EQ(t_listed(dev), 0);
}

TEST(hold_mapping, "a mapping and an export put off the hold")
{
	int dev = t_dev(), fd, dmabuf;
	__u8 token[TMESH_TOKEN_BYTES];
	void *p;

	fd = region_with_hold(dev, 1, token);
	dmabuf = REQUIRE_OK(t_export(fd, 0, 0, 0));
	p = t_map(fd, MB, PROT_READ);
	close(fd);
	usleep(50000);
	CHECK_EQ(t_listed(dev), 1);
	munmap(p, MB);
	usleep(50000);
	CHECK_EQ(t_listed(dev), 1);
	close(dmabuf);
}

TEST(hold_ended,
     "a region whose hold ended is forgotten: its memory may be another region's by then")
{
	struct tmesh_create c = {.size = sizeof(c), .bytes = PAGE, .hold_ms = 1};
	__u8 token[TMESH_TOKEN_BYTES];
	int dev = t_dev();

	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < 600; i++) {
			REQUIRE_OK(ioctl(dev, TMESH_CREATE, &c));
			REQUIRE_OK(t_token(c.fd, R_READ, token));
			close(c.fd);
		}
		while (t_listed(dev))
			usleep(1000);
	}
	close(dev);
}

TEST(hold_ends, "a hold ends with the user's last open /dev/tmesh")
{
	int root = t_dev(), sv[2];
	double since;
	pid_t pid;

	t_pair(sv);
	since = t_now();
	T_CHILD(pid) {
		__u8 token[TMESH_TOKEN_BYTES];
		int dev, second;

		t_become(ALICE, ALICE, 0);
		dev = t_dev();
		second = t_dev();
		close(region_with_hold(dev, TMESH_HOLD_MAX_MS, token));
		close(dev);
		t_say(sv[1]);
		t_hear(sv[1]);
		close(second);
		t_say(sv[1]);
		t_hear(sv[1]);
	}
	t_hear(sv[0]);
	int with_device = t_listed(root);

	t_say(sv[0]);
	t_hear(sv[0]);
	int without = t_listed(root);

	if (!too_late(since)) {
		CHECK_EQ(with_device, 1);
		CHECK_EQ(without, 0);
	}
	t_say(sv[0]);
	t_wait(pid);
}

/* Descriptors */

TEST(descriptors,
     "without a descriptor left each call that gives one says EMFILE, and leaves nothing")
{
	int dev = t_dev(), h = REQUIRE_OK(t_create(dev, PAGE, 0)), next = REQUIRE_OK(dup(dev));
	struct tmesh_extent e = t_extent(h, 0, 1);
	struct tmesh_lease l = {.size = sizeof(l), .period_ns = 1000000000};
	struct tmesh_caps_query before = t_caps(dev), after;
	__u8 token[TMESH_TOKEN_BYTES];
	struct rlimit limit, none;

	close(next);
	REQUIRE_OK(t_token(h, R_READ, token));
	REQUIRE_OK(getrlimit(RLIMIT_NOFILE, &limit));
	none = limit;
	none.rlim_cur = next;
	REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &none));
	CHECK_ERR(t_create(dev, PAGE, 0), EMFILE);
	CHECK_ERR(t_derive(h, R_READ, 0), EMFILE);
	CHECK_ERR(t_open(dev, token, R_READ, 0), EMFILE);
	CHECK_ERR(t_gather(dev, &e, 1, R_READ), EMFILE);
	CHECK_ERR(t_export(h, 0, 0, 0), EMFILE);
	CHECK_ERR(ioctl(h, TMESH_LEASE, &l), EMFILE);
	REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &limit));
	after = t_caps(dev);
	CHECK_EQ(after.used_regions, before.used_regions);
	CHECK_EQ(after.used_handles, before.used_handles);
	CHECK_EQ(after.used_bytes, before.used_bytes);
	CHECK_EQ(t_info(h).exports, 0);
	CHECK_EQ(t_info(h).gathers, 0);
	/* No lease was put on it. */
	CHECK_OK(t_derive(h, R_READ, 0));
	CHECK_OK(t_token(h, R_READ, token));
}

TEST(hold_killed, "a killed process's region_with_hold regions go with its device")
{
	int root = t_dev(), sv[2];
	double since;
	pid_t pid;

	t_pair(sv);
	T_CHILD(pid) {
		__u8 token[TMESH_TOKEN_BYTES];

		t_become(ALICE, ALICE, 0);
		region_with_hold(t_dev(), TMESH_HOLD_MAX_MS, token);
		t_say(sv[1]);
		pause();
	}
	t_hear(sv[0]);
	CHECK_EQ(t_listed(root), 1);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	since = t_now();
	while (t_listed(root) && t_now() - since < 60)
		usleep(1000);
	CHECK_EQ(t_listed(root), 0);
}
