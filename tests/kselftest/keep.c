// SPDX-License-Identifier: MIT
/*
 * Kept regions: which of them outlive all processes, for which users, how long, and their charges.
 */
#include <sched.h>

#include "keep.h"

#define ALICE 1001
#define BOB 1002
#define TEAM 2001

/* The longest time, in seconds, for kept regions to end by themselves */
#define PATIENCE 120

static bool gone_soon(int dev, const char *name)
{
	double until = t_now() + PATIENCE;
	struct tmesh_kept k;

	while (kept_find(dev, name, &k)) {
		if (t_now() > until)
			return false;
		usleep(20000);
	}
	return true;
}

static int opaque_region(int dev)
{
	int null = REQUIRE_OK(open("/dev/null", O_RDWR | O_CLOEXEC));
	struct tmesh_import i = {.size = sizeof(i), .source = null, .bytes = 5 * PAGE};

	REQUIRE_OK(ioctl(dev, TMESH_IMPORT, &i));
	close(null);
	return i.fd;
}

TEST(outlives,
     "a kept region outlives its process, killed as it is, and its bytes are as they were")
{
	int dev = t_dev(), fds[3], got[4], sv[2];
	struct tmesh_kept k;
	pid_t pid;

	t_pair(sv);
	T_CHILD(pid) {
		for (int i = 0; i < 3; i++)
			fds[i] = keep_region(dev, (i + 1) * 64 * KB, 0, 10 * i);
		CHECK_OK(keep(dev, "model", fds, 3, 0));
		t_say(sv[1]);
		pause();
	}
	t_hear(sv[0]);
	REQUIRE_OK(kill(pid, SIGKILL));
	waitpid(pid, NULL, 0);
	REQUIRE(kept_find(dev, "model", &k));
	CHECK_EQ(k.count, 3);
	CHECK_EQ(k.bytes, 6 * 64 * KB);
	CHECK_EQ(k.mode, 0600);
	CHECK_EQ(k.uid, 0);
	CHECK_EQ(k.expires_ns, 0);
	CHECK_EQ(k.held, 0);
	CHECK_EQ(k.handles, 0);
	CHECK(k.used_ns >= k.kept_ns && k.used_ns <= t_now() * 1e9);
	CHECK_EQ(kept_open(dev, "model", R_READ, 0, got, 4), 3);
	for (int i = 0; i < 3; i++) {
		struct tmesh_info info = t_info(got[i]);

		CHECK_EQ(info.rights, R_READ);
		CHECK_EQ(info.bytes, (i + 1) * 64 * KB);
		CHECK_EQ(info.kept, k.id);
		CHECK(info.state & TMESH_STATE_SEALED);
		CHECK(keep_same(got[i], (i + 1) * 64 * KB, 10 * i));
		CHECK_EQ(fcntl(got[i], F_GETFD), FD_CLOEXEC);
	}
	REQUIRE(kept_find(dev, "model", &k));
	CHECK_EQ(k.held, 3);
	CHECK_EQ(k.handles, 3);
	close(got[1]);
	REQUIRE(kept_find(dev, "model", &k));
	CHECK_EQ(k.held, 2);
	CHECK_OK(kept_drop(dev, "model"));
	CHECK(!kept_find(dev, "model", &k));
	CHECK_ERR(kept_drop(dev, "model"), ENOENT);
	CHECK_ERR(kept_open(dev, "model", R_READ, 0, got, 4), ENOENT);
	/* A holder keeps its region. */
	CHECK(keep_same(got[2], 3 * 64 * KB, 20));
	CHECK_EQ(t_info(got[2]).kept, 0);
	CHECK_EQ(t_listed(dev), 2);
}

TEST(huge, "a region of 2 MiB pages is kept as one")
{
	int dev = t_dev(), fd, got;

	if (!t_has_huge(dev))
		t_skip("no 2 MiB pages");
	fd = t_create(dev, 4 * MB, TMESH_CREATE_HUGE);
	if (fd < 0)
		t_skip("no 2 MiB pages are free");
	REQUIRE_OK(t_seal(fd));
	CHECK_OK(keep(dev, "huge", &fd, 1, 0));
	close(fd);
	CHECK_EQ(kept_open(dev, "huge", R_READ, 0, &got, 1), 1);
	CHECK_EQ(t_info(got).huge_bytes, 4 * MB);
	CHECK_OK(kept_drop(dev, "huge"));
}

TEST(arguments, "what cannot be kept is refused, and nothing is left of it")
{
	int dev = t_dev(), fds[2], fd, unsealed, reader, null;
	struct tmesh_caps_query before, after;
	struct tmesh_keep k;

	fds[0] = keep_region(dev, PAGE, 0, 1);
	fds[1] = keep_region(dev, PAGE, 0, 2);
	unsealed = REQUIRE_OK(t_create(dev, PAGE, 0));
	reader = REQUIRE_OK(t_derive(fds[0], R_READ, 0));
	null = REQUIRE_OK(open("/dev/null", O_RDWR | O_CLOEXEC));
	before = t_caps(dev);

#define REFUSED(want, ...)                                   \
	do {                                                 \
		k = keep_call("x", fds, 2);                  \
		__VA_ARGS__;                                 \
		CHECK_ERR(ioctl(dev, TMESH_KEEP, &k), want); \
	} while (0)
	REFUSED(EINVAL, k.count = 0);
	REFUSED(EINVAL, k.count = TMESH_KEEP_MAX + 1);
	REFUSED(EINVAL, k.name[0] = 0);
	REFUSED(EINVAL, memset(k.name, 'a', sizeof(k.name)));
	REFUSED(EINVAL, k.name[0] = '\n');
	REFUSED(EINVAL, k.mode = 0666);
	REFUSED(EINVAL, k.gid = 5);
	REFUSED(EINVAL, k.lifetime_ns = 1ull << 63);
	REFUSED(EINVAL, k.pad = 1);
	REFUSED(EFAULT, k.handles = 0);
	REFUSED(EINVAL, k.flags = TMESH_KEEP_GID; k.gid = ~0u);
	fd = fds[1];
	fds[1] = 999;
	REFUSED(EBADF);
	fds[1] = null;
	REFUSED(EINVAL);
	fds[1] = dev;
	REFUSED(EINVAL);
	fds[1] = fds[0];
	REFUSED(EINVAL);
	fds[1] = unsealed;
	REFUSED(EINVAL);
	fds[1] = reader;
	REFUSED(EACCES);
	fds[1] = REQUIRE_OK(t_derive(fd, R_READ | R_MANAGE, 0));
	struct tmesh_lease lease = {.size = sizeof(lease)};

	REQUIRE_OK(ioctl(fds[1], TMESH_LEASE, &lease));
	REFUSED(EPERM);
	close(lease.fd);
	close(fds[1]);
	fds[1] = keep_region(dev, PAGE, 0, 2);
	REQUIRE_OK(t_revoke(fds[1]));
	REFUSED(ESTALE);
	close(fds[1]);
	fds[1] = fd;
	after = t_caps(dev);
	CHECK_EQ(after.used_kept_bytes, before.used_kept_bytes);
	CHECK_EQ(after.used_kept_names, before.used_kept_names);
	CHECK_EQ(t_info(fds[0]).kept, 0);
	CHECK_EQ(t_info(fds[1]).kept, 0);
}

TEST(most, "a name keeps so many regions and no more")
{
	static int fds[TMESH_KEEP_MAX + 1];
	struct rlimit files = {ARRAY_SIZE(fds) + 100, ARRAY_SIZE(fds) + 100};
	int dev = t_dev();

	REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &files));
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		fds[i] = opaque_region(dev);
	CHECK_ERR(keep(dev, "most", fds, ARRAY_SIZE(fds), 0), EINVAL);
	CHECK_OK(keep(dev, "most", fds, TMESH_KEEP_MAX, 0));
	CHECK_OK(kept_drop(dev, "most"));
}

TEST(open_arguments, "room, rights and users of an open")
{
	int dev = t_dev(), fds[2], got[2] = {-1, -1};
	struct tmesh_kept_open o = {.size = sizeof(o), .fds = ADDRESS(got), .rights = R_READ};
	int before;

	for (int i = 0; i < 2; i++)
		fds[i] = keep_region(dev, PAGE, 0, i);
	REQUIRE_OK(keep(dev, "pair", fds, 2, 0));
	before = t_count_fds();
	strcpy(o.name, "pair");
	CHECK_ERR(ioctl(dev, TMESH_KEPT_OPEN, &o), ENOSPC);
	CHECK_EQ(o.count, 2);
	o.count = 1;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_OPEN, &o), ENOSPC);
	CHECK_EQ(o.count, 2);
	CHECK_EQ(got[0], -1);
	o.uid = 1;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_OPEN, &o), EINVAL);
	o.flags = TMESH_KEPT_UID;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_OPEN, &o), ENOENT);
	o.flags = 0;
	o.uid = 0;
	o.fds = 0;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_OPEN, &o), EFAULT);
	o.fds = ADDRESS(got);
	o.rights = 0;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_OPEN, &o), EINVAL);
	o.rights = 1u << 3;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_OPEN, &o), EOPNOTSUPP);
	CHECK_ERR(kept_open(dev, "other", R_READ, 0, got, 2), ENOENT);
	CHECK_ERR(kept_open(dev, "", R_READ, 0, got, 2), EINVAL);
	CHECK_ERR(kept_open(dev, "\n", R_READ, 0, got, 2), EINVAL);
	CHECK_EQ(t_count_fds(), before);
	/* The owner gets all rights, may keep the regions again, and may pin them. */
	CHECK_EQ(kept_open(dev, "pair", R_ALL, 0, got, 2), 2);
	CHECK_OK(t_derive(got[0], R_READ, TMESH_DERIVE_PIN));
	CHECK_ERR(t_revoke(got[0]), EBUSY);
	CHECK_OK(kept_drop(dev, "pair"));
}

TEST(part, "some regions of a name are opened by number, with few descriptors left")
{
	int dev = t_dev(), fds[8], got[8], before;
	struct tmesh_kept_open o = {
		.size = sizeof(o),
		.flags = TMESH_KEPT_PART,
		.name = "eight",
		.fds = ADDRESS(got),
		.rights = R_READ,
	};
	/* The first region to open, room, and the number of opened ones */
	const __u32 cases[][3] = {
		{0, 0, 0}, {0, 8, 8}, {3, 1, 1}, {5, 8, 3}, {7, ~0u, 1}, {8, 1, 0}, {~0u, ~0u, 0},
	};
	struct rlimit few;

	for (int i = 0; i < 8; i++)
		fds[i] = keep_region(dev, PAGE, 0, i);
	REQUIRE_OK(keep(dev, "eight", fds, 8, 0));
	for (int i = 0; i < 8; i++)
		close(fds[i]);
	before = t_count_fds();
	for (size_t c = 0; c < ARRAY_SIZE(cases); c++) {
		o.first = cases[c][0];
		o.count = cases[c][1];
		memset(got, 0xff, sizeof(got));
		CHECK_OK(ioctl(dev, TMESH_KEPT_OPEN, &o));
		CHECK_EQ(o.count, cases[c][2]);
		CHECK_EQ(o.total, 8);
		CHECK_EQ(t_count_fds(), before + (int)o.count);
		for (__u32 i = 0; i < ARRAY_SIZE(got); i++) {
			CHECK_EQ(got[i] >= 0, i < o.count);
			if (i < o.count) {
				CHECK(keep_same(got[i], PAGE, o.first + i));
				close(got[i]);
			}
		}
	}
	/* A program that knows no @first */
	o.size = offsetof(struct tmesh_kept_open, first);
	o.first = o.total = 5;
	o.count = 1;
	CHECK_OK(ioctl(dev, TMESH_KEPT_OPEN, &o));
	CHECK(keep_same(got[0], PAGE, 0));
	CHECK_EQ(o.total, 5);
	close(got[0]);
	o.size = sizeof(o);
	o.flags = 0;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_OPEN, &o), EINVAL);
	/* Three descriptors more than the process has open, from 0 on */
	few = (struct rlimit){dup(dev) + 3, 4096};
	REQUIRE_OK(setrlimit(RLIMIT_NOFILE, &few));
	o.first = 0;
	o.count = 8;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_OPEN, &o), EMFILE);
	o.flags = TMESH_KEPT_PART;
	o.first = 6;
	CHECK_OK(ioctl(dev, TMESH_KEPT_OPEN, &o));
	CHECK_EQ(o.count, 2);
	CHECK_OK(kept_drop(dev, "eight"));
}

/* Rights never grow, not through a name either. */
TEST(opaque, "opaque regions are kept, with the rights that their handles had")
{
	int dev = t_dev(), fd = opaque_region(dev), half, got;
	struct tmesh_opaque o = {.size = sizeof(o)};
	struct tmesh_kept k;

	half = REQUIRE_OK(t_derive(fd, R_READ | R_MANAGE, 0));
	close(fd);
	CHECK_OK(keep(dev, "half", &half, 1, 0));
	close(half);
	CHECK_ERR(kept_open(dev, "half", R_READ | R_WRITE, 0, &got, 1), EACCES);
	CHECK_EQ(kept_open(dev, "half", R_READ, 0, &got, 1), 1);
	CHECK_ERR(ioctl(got, TMESH_OPAQUE, &o), EACCES);
	close(got);
	CHECK_OK(kept_drop(dev, "half"));

	fd = opaque_region(dev);
	CHECK_OK(keep(dev, "whole", &fd, 1, 0));
	close(fd);
	REQUIRE(kept_find(dev, "whole", &k));
	CHECK_EQ(k.bytes, 0);
	CHECK_EQ(kept_open(dev, "whole", R_READ | R_WRITE, 0, &got, 1), 1);
	CHECK_OK(ioctl(got, TMESH_OPAQUE, &o));
	CHECK_EQ(write(o.fd, "x", 1), 1);
	CHECK_EQ(t_info(got).bytes, 5 * PAGE);
	CHECK_OK(kept_drop(dev, "whole"));
}

TEST(names, "a name that is taken, replaced, and regions that have one already")
{
	int dev = t_dev(), a = keep_region(dev, PAGE, 0, 1), b = keep_region(dev, PAGE, 0, 2);
	int both[2] = {b, a}, got[2];
	struct tmesh_kept k, was;

	CHECK_OK(keep(dev, "one", &a, 1, 0));
	REQUIRE(kept_find(dev, "one", &was));
	CHECK_ERR(keep(dev, "one", &b, 1, 0), EEXIST);
	CHECK_ERR(keep(dev, "one", &a, 1, 0), EEXIST);
	CHECK_ERR(keep(dev, "two", &a, 1, 0), EBUSY);
	CHECK_ERR(keep(dev, "two", &a, 1, TMESH_KEEP_REPLACE), EBUSY);
	CHECK_OK(keep(dev, "one", both, 2, TMESH_KEEP_REPLACE));
	REQUIRE(kept_find(dev, "one", &k));
	CHECK(k.id > was.id);
	CHECK_EQ(k.count, 2);
	CHECK_EQ(t_info(a).kept, k.id);
	CHECK_EQ(t_caps(dev).used_kept_names, 1);
	CHECK_EQ(t_caps(dev).used_kept_bytes, 2 * PAGE);
	CHECK_EQ(kept_open(dev, "one", R_READ, 0, got, 2), 2);
	CHECK(keep_same(got[0], PAGE, 2) && keep_same(got[1], PAGE, 1));
	/* Region a leaves, and may get another name. */
	CHECK_OK(keep(dev, "one", &b, 1, TMESH_KEEP_REPLACE));
	CHECK_EQ(t_info(a).kept, 0);
	CHECK_OK(keep(dev, "two", &a, 1, TMESH_KEEP_REPLACE));
	CHECK_EQ(t_caps(dev).used_kept_names, 2);
	CHECK_ERR(keep(dev, "two", both, 2, TMESH_KEEP_REPLACE), EBUSY);
	CHECK(keep_same(a, PAGE, 1));
	CHECK_OK(kept_drop(dev, "one"));
	CHECK_OK(kept_drop(dev, "two"));
	CHECK_EQ(t_caps(dev).used_kept_names, 0);
	CHECK_EQ(t_caps(dev).used_kept_bytes, 0);
}

TEST(replaced_frees, "what was replaced and has no holder is free when the call returns")
{
	int dev = t_dev(), a = keep_region(dev, MB, 0, 1), b;

	REQUIRE_OK(keep(dev, "it", &a, 1, 0));
	close(a);
	b = keep_region(dev, PAGE, 0, 2);
	CHECK_EQ(t_caps(dev).used_bytes, MB + PAGE);
	CHECK_OK(keep(dev, "it", &b, 1, TMESH_KEEP_REPLACE));
	CHECK_EQ(t_caps(dev).used_bytes, PAGE);
	close(b);
	CHECK_OK(kept_drop(dev, "it"));
	CHECK_EQ(t_caps(dev).used_bytes, 0);
	CHECK_EQ(t_caps(dev).used_regions, 0);
}

TEST(alone, "a holder of a kept region is not alone with it")
{
	int dev = t_dev(), fd = keep_region(dev, PAGE, 0, 1);
	struct tmesh_revoke r = {.size = sizeof(r)};
	struct tmesh_kept k;

	REQUIRE_OK(keep(dev, "it", &fd, 1, 0));
	/* A revocation removes the region from its name, and ends the whole kept group. */
	int fds[2] = {keep_region(dev, PAGE, 0, 2), keep_region(dev, PAGE, 0, 3)};

	REQUIRE_OK(keep(dev, "both", fds, 2, 0));
	CHECK_OK(ioctl(fds[1], TMESH_REVOKE, &r));
	CHECK(!kept_find(dev, "both", &k));
	CHECK_EQ(t_info(fds[0]).kept, 0);
	CHECK(keep_same(fds[0], PAGE, 2));
	CHECK(kept_find(dev, "it", &k));
	CHECK_OK(kept_drop(dev, "it"));
}

TEST(limits, "bytes and names of a user, of an IPC namespace and of all")
{
	static const char *const levels[] = {"_per_uid", "_per_ipc_ns", ""};

	for (size_t i = 0; i < ARRAY_SIZE(levels); i++) {
		char bytes[64], names[64];
		unsigned long long old_bytes, old_names;

		snprintf(bytes, sizeof(bytes), "max_kept_bytes%s", levels[i]);
		snprintf(names, sizeof(names), "max_kept_names%s", levels[i]);
		old_bytes = t_limit(bytes);
		old_names = t_limit(names);
		t_set_limit(bytes, 3 * PAGE);
		t_set_limit(names, 2);
		T_ALONE()
		{
			int dev, a, b, c;

			if (i == 1)
				REQUIRE_OK(unshare(CLONE_NEWIPC));
			t_become(ALICE, ALICE, 0);
			dev = t_dev();
			a = keep_region(dev, 2 * PAGE, 0, 1);
			b = keep_region(dev, 2 * PAGE, 0, 2);
			c = keep_region(dev, PAGE, 0, 3);
			CHECK_OK(keep(dev, "a", &a, 1, 0));
			CHECK_ERR(keep(dev, "b", &b, 1, 0), EDQUOT);
			CHECK_EQ(t_caps(dev).used_kept_names, 1);
			CHECK_OK(keep(dev, "c", &c, 1, 0));
			CHECK_EQ(t_caps(dev).used_kept_bytes_ipc_ns, 3 * PAGE);
			b = opaque_region(dev);
			CHECK_ERR(keep(dev, "o", &b, 1, 0), EDQUOT);
			/* As a replacement it fits. */
			b = keep_region(dev, 2 * PAGE, 0, 2);
			CHECK_OK(keep(dev, "a", &b, 1, TMESH_KEEP_REPLACE));
			CHECK_ERR(keep(dev, "c", &a, 1, TMESH_KEEP_REPLACE), EDQUOT);
			CHECK_EQ(t_caps(dev).used_kept_bytes, 3 * PAGE);
			CHECK_EQ(t_caps(dev).used_kept_names, 2);
			CHECK_OK(kept_drop(dev, "a"));
			CHECK_OK(kept_drop(dev, "c"));
			CHECK_EQ(t_caps(dev).used_kept_bytes, 0);
		}
		t_set_limit(bytes, old_bytes);
		t_set_limit(names, old_names);
	}
	int dev = t_dev();
	struct tmesh_caps_query q = t_caps(dev);

	CHECK_EQ(q.max_kept_bytes, t_limit("max_kept_bytes"));
	CHECK_EQ(q.max_kept_names, t_limit("max_kept_names"));
	CHECK_EQ(q.max_kept_bytes_per_uid, t_limit("max_kept_bytes_per_uid"));
	CHECK_EQ(q.max_kept_names_per_uid, t_limit("max_kept_names_per_uid"));
	CHECK_EQ(q.max_kept_bytes_per_ipc_ns, t_limit("max_kept_bytes"));
	CHECK_EQ(q.max_kept_names_per_ipc_ns, t_limit("max_kept_names"));
}

TEST(charged, "what is kept stays charged to its owner")
{
	int dev = t_dev(), fd;

	T_ALONE()
	{
		t_become(ALICE, ALICE, 0);
		fd = keep_region(t_dev(), 5 * PAGE, 0, 1);
		REQUIRE_OK(keep(t_dev(), "mine", &fd, 1, 0));
	}
	T_ALONE()
	{
		struct tmesh_caps_query q;

		t_become(ALICE, ALICE, 0);
		dev = t_dev();
		q = t_caps(dev);
		CHECK_EQ(q.used_bytes, 5 * PAGE);
		CHECK_EQ(q.used_regions, 1);
		CHECK_EQ(q.used_handles, 0);
		CHECK_EQ(q.used_kept_bytes, 5 * PAGE);
		CHECK_EQ(q.used_kept_names, 1);
		CHECK_EQ(t_listed(dev), 1);
		CHECK_OK(kept_drop(dev, "mine"));
		CHECK_EQ(t_caps(dev).used_bytes, 0);
	}
}

static int open_of(int dev, uid_t uid, const char *name, __u32 rights)
{
	int fd;
	struct tmesh_kept_open o = {
		.size = sizeof(o),
		.flags = TMESH_KEPT_UID,
		.fds = ADDRESS(&fd),
		.count = 1,
		.rights = rights,
		.uid = uid,
	};

	snprintf(o.name, sizeof(o.name), "%s", name);
	return ioctl(dev, TMESH_KEPT_OPEN, &o) ? -1 : fd;
}

TEST(others, "other users learn, open and drop nothing but what the mode gives them")
{
	int dev = t_dev(), fd;
	struct tmesh_kept k;
	__u64 secret, team;

	T_ALONE()
	{
		struct tmesh_keep call;

		t_become(ALICE, ALICE, TEAM);
		fd = keep_region(t_dev(), PAGE, 0, 1);
		REQUIRE_OK(keep(t_dev(), "secret", &fd, 1, 0));
		fd = opaque_region(t_dev());
		call = keep_call("team", &fd, 1);
		call.mode = 0640;
		call.gid = BOB;
		call.flags = TMESH_KEEP_GID;
		CHECK_ERR(ioctl(t_dev(), TMESH_KEEP, &call), EPERM);
		call.gid = TEAM;
		CHECK_OK(ioctl(t_dev(), TMESH_KEEP, &call));
	}
	REQUIRE(kept_find(dev, "secret", &k));
	CHECK_EQ(k.uid, ALICE);
	secret = k.id;
	REQUIRE(kept_find(dev, "team", &k));
	CHECK_EQ(k.gid, TEAM);
	CHECK_EQ(k.mode, 0640);
	team = k.id;
	/* Root may list and drop names, but is not admitted to open them. */
	CHECK_ERR(open_of(dev, ALICE, "secret", R_READ), ENOENT);
	T_ALONE()
	{
		t_become(BOB, BOB, 0);
		dev = t_dev();
		CHECK(!kept_find(dev, "secret", &k) && !kept_find(dev, "team", &k));
		CHECK_ERR(open_of(dev, ALICE, "secret", R_READ), ENOENT);
		CHECK_ERR(open_of(dev, ALICE, "nothing", R_READ), ENOENT);
		CHECK_ERR(kept_drop_id(dev, secret), ENOENT);
		CHECK_ERR(kept_drop_id(dev, 1ull << 40), ENOENT);
		CHECK_ERR(kept_drop(dev, "secret"), ENOENT);
		/* Other users may use the name. */
		fd = keep_region(dev, PAGE, 0, 2);
		CHECK_OK(keep(dev, "secret", &fd, 1, 0));
		CHECK_OK(kept_drop(dev, "secret"));
	}
	T_ALONE()
	{
		t_become(BOB, BOB, TEAM);
		dev = t_dev();
		CHECK(kept_find(dev, "team", &k) && !kept_find(dev, "secret", &k));
		CHECK_OK(fd = open_of(dev, ALICE, "team", R_READ));
		CHECK_ERR(open_of(dev, ALICE, "team", R_READ | R_WRITE), EACCES);
		CHECK_ERR(open_of(dev, ALICE, "team", R_READ | R_MANAGE), EACCES);
		CHECK_ERR(kept_drop_id(dev, team), EPERM);
		/* Only the owner of a region may keep it. */
		CHECK_ERR(keep(dev, "stolen", &fd, 1, 0), EACCES);
	}
	CHECK_OK(kept_drop_id(dev, secret));
	CHECK_OK(kept_drop_id(dev, team));
	CHECK_ERR(kept_drop_id(dev, team), ENOENT);
}

TEST(not_owner, "a receiver of MANAGE cannot keep another user's region")
{
	int dev = t_dev(), fd = keep_region(dev, PAGE, 0, 1);

	T_ALONE()
	{
		t_become(BOB, BOB, 0);
		CHECK_ERR(keep(t_dev(), "its", &fd, 1, 0), EPERM);
	}
	T_ALONE()
	{
		REQUIRE_OK(unshare(CLONE_NEWIPC));
		CHECK_ERR(keep(dev, "its", &fd, 1, 0), EPERM);
	}
}

TEST(drop_arguments, "a drop is by name or by id")
{
	int dev = t_dev(), fd = keep_region(dev, PAGE, 0, 1);
	struct tmesh_kept_drop d = {.size = sizeof(d)};
	struct tmesh_kept k;

	REQUIRE_OK(keep(dev, "it", &fd, 1, 0));
	REQUIRE(kept_find(dev, "it", &k));
	CHECK_ERR(ioctl(dev, TMESH_KEPT_DROP, &d), EINVAL);
	d.id = k.id;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_DROP, &d), EINVAL);
	strcpy(d.name, "it");
	CHECK_ERR(ioctl(dev, TMESH_KEPT_DROP, &d), EINVAL);
	CHECK_ERR(kept_drop(dev, "\n"), EINVAL);
	d.flags = TMESH_KEPT_ID;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_DROP, &d), EINVAL);
	memset(d.name, 0, sizeof(d.name));
	d.name[TMESH_LABEL_MAX] = 1;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_DROP, &d), EINVAL);
	d.name[TMESH_LABEL_MAX] = 0;
	d.id = 0;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_DROP, &d), ENOENT);
	d.id = k.id;
	CHECK_OK(ioctl(dev, TMESH_KEPT_DROP, &d));
}

TEST(list, "a list goes on where it stopped, in order of id")
{
	int dev = t_dev(), fd;
	struct tmesh_kept some[8];
	char name[8];
	__u64 cursor;

	for (int i = 0; i < 5; i++) {
		snprintf(name, sizeof(name), "%d", i);
		fd = keep_region(dev, PAGE, 0, i);
		REQUIRE_OK(keep(dev, name, &fd, 1, 0));
		close(fd);
	}
	REQUIRE(kept_list(dev, 0, some, 8) == 5);
	for (int i = 0; i < 5; i++) {
		CHECK_EQ(some[i].size, sizeof(some[i]));
		CHECK_EQ(some[i].name[0], '0' + i);
		CHECK(!i || some[i].id > some[i - 1].id);
	}
	cursor = some[1].id;
	CHECK_EQ(kept_list(dev, cursor, some, 2), 2);
	CHECK_EQ(some[0].name[0], '2');
	CHECK_EQ(kept_list(dev, cursor, some, 0), 0);
	CHECK_EQ(kept_list(dev, ~0ull, some, 8), 0);
	for (int i = 0; i < 5; i++) {
		snprintf(name, sizeof(name), "%d", i);
		CHECK_OK(kept_drop(dev, name));
	}
}

TEST(lifetime, "memory kept for a time is gone after it; its holders have it still")
{
	int dev = t_dev(), a = keep_region(dev, PAGE, 0, 1), b = keep_region(dev, PAGE, 0, 2);
	struct tmesh_keep call = keep_call("short", &a, 1);
	struct tmesh_kept k;
	int c = keep_region(dev, PAGE, 0, 3);

	call.lifetime_ns = 300000000;
	CHECK_OK(ioctl(dev, TMESH_KEEP, &call));
	call = keep_call("next", &c, 1);
	call.lifetime_ns = 900000000;
	CHECK_OK(ioctl(dev, TMESH_KEEP, &call));
	close(c);
	call = keep_call("long", &b, 1);
	call.lifetime_ns = 3600 * 1000000000ull;
	CHECK_OK(ioctl(dev, TMESH_KEEP, &call));
	REQUIRE(kept_find(dev, "long", &k));
	CHECK_EQ(k.expires_ns - k.kept_ns, call.lifetime_ns);
	close(b);
	CHECK(gone_soon(dev, "short"));
	CHECK(gone_soon(dev, "next"));
	CHECK(keep_same(a, PAGE, 1));
	CHECK_EQ(t_info(a).kept, 0);
	CHECK(kept_find(dev, "long", &k));
	CHECK_EQ(t_caps(dev).used_kept_names, 1);
	/* The new lifetime counts from now. */
	call = keep_call("long", &a, 1);
	call.flags = TMESH_KEEP_REPLACE;
	call.lifetime_ns = 1;
	CHECK_OK(ioctl(dev, TMESH_KEEP, &call));
	close(a);
	CHECK(gone_soon(dev, "long"));
	CHECK_EQ(t_caps(dev).used_kept_names, 0);
}

TEST(ipc_ns, "names are those of an IPC namespace, and go with its last process")
{
	int dev = t_dev(), fd, sv[2];
	struct tmesh_kept k;
	pid_t pid;

	fd = keep_region(dev, PAGE, 0, 1);
	REQUIRE_OK(keep(dev, "here", &fd, 1, 0));
	t_pair(sv);
	T_CHILD(pid) {
		int other;

		REQUIRE_OK(unshare(CLONE_NEWIPC));
		CHECK_ERR(kept_open(dev, "here", R_READ, 0, &other, 1), ENOENT);
		CHECK_ERR(kept_drop(dev, "here"), ENOENT);
		other = keep_region(dev, PAGE, 0, 2);
		CHECK_OK(keep(dev, "here", &other, 1, 0));
		CHECK_OK(keep(dev, "here", &other, 1, TMESH_KEEP_REPLACE));
		close(other);
		sleep(3); /* The name stays as long as the namespace has a process. */
		CHECK_EQ(kept_open(dev, "here", R_READ, 0, &other, 1), 1);
		CHECK(keep_same(other, PAGE, 2));
		CHECK_OK(kept_drop(dev, "here"));
		CHECK_OK(keep(dev, "there", &(int){keep_region(dev, PAGE, 0, 3)}, 1, 0));
		t_say(sv[1]);
		t_hear(sv[1]);
	}
	t_hear(sv[0]);
	/* Root in the initial namespace sees all names. */
	CHECK(kept_find(dev, "there", &k));
	t_say(sv[0]);
	t_wait(pid);
	CHECK(gone_soon(dev, "there"));
	CHECK(kept_find(dev, "here", &k));
	CHECK_OK(kept_drop(dev, "here"));
}

TEST(memfd, "a region over a sealed memfd is kept")
{
	int dev = t_dev(),
	    memfd = REQUIRE_OK(memfd_create("keep", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd};
	int got;

	REQUIRE(write(memfd, "a", 1) == 1);
	REQUIRE_OK(ftruncate(memfd, PAGE));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	REQUIRE_OK(ioctl(dev, TMESH_CREATE_MEMFD, &c));
	CHECK_ERR(keep(dev, "memfd", &c.fd, 1, 0), EINVAL);
	REQUIRE_OK(t_seal(c.fd));
	CHECK_OK(keep(dev, "memfd", &c.fd, 1, 0));
	close(c.fd);
	close(memfd);
	CHECK_EQ(kept_open(dev, "memfd", R_READ, 0, &got, 1), 1);
	CHECK(keep_same(got, PAGE, 'a'));
	CHECK_OK(kept_drop(dev, "memfd"));
}

TEST(view, "a view of a kept region holds it, and is none itself")
{
	int dev = t_dev(), fd = keep_region(dev, PAGE, 0, 1), view;
	struct tmesh_extent e = t_extent(fd, 0, 1);
	struct tmesh_kept k;

	REQUIRE_OK(keep(dev, "source", &fd, 1, 0));
	view = REQUIRE_OK(t_gather(dev, &e, 1, R_READ));
	CHECK_ERR(keep(dev, "view", &view, 1, 0), EINVAL);
	close(fd);
	REQUIRE(kept_find(dev, "source", &k));
	CHECK_EQ(k.held, 1);
	CHECK_EQ(k.handles, 0);
	CHECK_OK(kept_drop(dev, "source"));
	CHECK(keep_same(view, PAGE, 1));
}

/* The answer cannot be written, so @count does not reach the caller either. */
TEST(read_only_room,
     "an open with too little room, whose answer cannot be written back, gives EFAULT")
{
	struct tmesh_kept_open *o =
		mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int dev = t_dev(), fds[2];

	REQUIRE(o != MAP_FAILED);
	for (int i = 0; i < 2; i++)
		fds[i] = keep_region(dev, PAGE, 0, i);
	REQUIRE_OK(keep(dev, "pair", fds, 2, 0));
	*o = (struct tmesh_kept_open){.size = sizeof(*o), .count = 1, .rights = R_READ};
	strcpy(o->name, "pair");
	REQUIRE_OK(mprotect(o, PAGE, PROT_READ));
	CHECK_ERR(ioctl(dev, TMESH_KEPT_OPEN, o), EFAULT);
	CHECK_OK(kept_drop(dev, "pair"));
}

TEST(descriptors, "an open that has too few descriptors opens nothing")
{
	int dev = t_dev(), fds[4], got[4], before;

	for (int i = 0; i < 4; i++)
		fds[i] = keep_region(dev, PAGE, 0, i);
	REQUIRE_OK(keep(dev, "four", fds, 4, 0));
	for (int i = 0; i < 4; i++)
		close(fds[i]);
	t_set_limit("max_handles_per_uid", t_caps(dev).used_handles + 3);
	before = t_count_fds();
	CHECK_ERR(kept_open(dev, "four", R_READ, 0, got, 4), EDQUOT);
	CHECK_EQ(t_count_fds(), before);
	CHECK_EQ(t_caps(dev).used_handles, 0);
	t_set_limit("max_handles_per_uid", 4);
	CHECK_EQ(kept_open(dev, "four", R_READ, 0, got, 4), 4);
	CHECK_OK(kept_drop(dev, "four"));
}
