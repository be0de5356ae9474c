// SPDX-License-Identifier: MIT
/*
 * Users in other namespaces can see, take and use up only objects of their own.
 */
#include <sched.h>

#include "t.h"

#define ALICE 1001
#define BOB 1002
#define OVERFLOW_ID 65534

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

static void unshare_or_skip(int flags)
{
	if (unshare(flags))
		t_skip("unshare(%#x): %s", flags, strerror(errno));
}

/* Become root in a new user namespace, in which @uid is 0. */
static void become_root_of_own(uid_t uid)
{
	char map[32];

	t_become(uid, uid, 0);
	unshare_or_skip(CLONE_NEWUSER);
	snprintf(map, sizeof(map), "0 %u 1", uid);
	REQUIRE(t_write_file("/proc/self/setgroups", "deny"));
	REQUIRE(t_write_file("/proc/self/uid_map", map));
	REQUIRE(t_write_file("/proc/self/gid_map", map));
	REQUIRE_OK(setresgid(0, 0, 0));
	REQUIRE_OK(setresuid(0, 0, 0));
}

static struct tmesh_holders holders_of(__u64 id, struct tmesh_holder *one)
{
	return (struct tmesh_holders){
		.size = sizeof(struct tmesh_holders),
		.id = id,
		.entries = (__u64)(unsigned long)one,
		.entry_bytes = sizeof(*one),
		.count = 1,
	};
}

/*
 * Check that calls on another user's region by its id need CAP_SYS_ADMIN in the initial namespace.
 */
static void sees_nothing(__u64 id)
{
	int dev = t_dev();
	struct tmesh_info i = {.size = sizeof(i), .id = id};
	struct tmesh_holder one;
	struct tmesh_holders q = holders_of(id, &one);
	struct tmesh_desc d = {.size = sizeof(d), .id = id};

	CHECK_EQ(t_listed(dev), 0);
	CHECK_ERR(ioctl(dev, TMESH_INFO, &i), ENOENT);
	CHECK_ERR(ioctl(dev, TMESH_HOLDERS, &q), ENOENT);
	CHECK_ERR(ioctl(dev, TMESH_DESC_GET, &d), ENOENT);
}

TEST(userns_root, "root of a user namespace is no root here: it lists, inspects and opens nothing")
{
	int fd = REQUIRE_OK(t_create(t_dev(), PAGE, 0));
	__u64 id = t_info(fd).id;
	__u8 token[TMESH_TOKEN_BYTES];

	REQUIRE_OK(t_token(fd, R_READ, token));
	T_ALONE()
	{
		become_root_of_own(ALICE);
		CHECK_EQ(geteuid(), 0);
		sees_nothing(id);
		CHECK_ERR(t_open(t_dev(), token, R_READ, 0), ENOENT);
		CHECK_ERR(open("/proc/sys/dev/tmesh/max_bytes", O_WRONLY), EACCES);
	}
}

TEST(userns_account, "a user is charged, owns and is admitted as who it is outside")
{
	struct tmesh_create c = {.size = sizeof(c), .bytes = 3 * PAGE};
	int sv[2], fd;
	pid_t inside;

	t_pair(sv);
	T_CHILD(inside) {
		struct tmesh_info i;

		become_root_of_own(ALICE);
		REQUIRE_OK(ioctl(t_dev(), TMESH_CREATE, &c));
		i = t_info(c.fd);
		CHECK_EQ(i.uid, 0);
		CHECK_EQ(i.gid, 0);
		t_send_fd(sv[1], c.fd);
		t_hear(sv[1]);
	}
	fd = t_recv_fd(sv[0]);
	CHECK_EQ(t_info(fd).uid, ALICE);
	CHECK_EQ(t_info(fd).gid, ALICE);
	T_ALONE()
	{
		struct tmesh_caps_query q;
		__u8 token[TMESH_TOKEN_BYTES];

		t_become(ALICE, ALICE, 0);
		q = t_caps(t_dev());
		CHECK_EQ(q.used_bytes, 3 * PAGE);
		CHECK_EQ(q.used_regions, 1);
		CHECK_EQ(t_listed(t_dev()), 1);
		CHECK_OK(t_token(fd, R_ALL, token));
		CHECK_OK(t_open(t_dev(), token, R_ALL, 0));
	}
	t_say(sv[0]);
	t_wait(inside);
	close(fd);
}

TEST(userns_ids, "users and groups that a user namespace does not know show as the overflow ids")
{
	struct tmesh_create c = {.size = sizeof(c), .bytes = PAGE};
	struct tmesh_holder one;
	struct tmesh_holders q = holders_of(0, &one);
	pid_t pid;

	T_CHILD(pid) {
		struct tmesh_info i;

		t_become(BOB, BOB, 0);
		REQUIRE_OK(ioctl(t_dev(), TMESH_CREATE, &c));
		T_CHILD(pid) {
			unshare_or_skip(CLONE_NEWUSER);
			i = t_info(c.fd);
			CHECK_EQ(i.uid, OVERFLOW_ID);
			CHECK_EQ(i.gid, OVERFLOW_ID);
			/* The caller is still the owner. */
			CHECK_OK(ioctl(c.fd, TMESH_HOLDERS, &q));
			CHECK_EQ(one.uid, OVERFLOW_ID);
			c.flags = TMESH_CREATE_GID;
			c.gid = BOB;
			CHECK_ERR(ioctl(t_dev(), TMESH_CREATE, &c), EINVAL);
		}
		t_wait(pid);
	}
	t_wait(pid);
}

TEST(ipc_ns, "in another IPC namespace a token is nothing, and a descriptor is possession")
{
	int fd = REQUIRE_OK(t_create(t_dev(), PAGE, 0));
	__u8 token[TMESH_TOKEN_BYTES];

	REQUIRE_OK(t_token(fd, R_READ, token));
	T_ALONE()
	{
		unshare_or_skip(CLONE_NEWIPC);
		CHECK_ERR(t_open(t_dev(), token, R_READ, 0), ENOENT);
		CHECK_OK(t_derive(fd, R_READ, 0));
		/* The process that derives is charged, in its own namespace. */
		CHECK_EQ(t_caps(t_dev()).used_handles_ipc_ns, 1);
		CHECK_EQ(t_caps(t_dev()).used_regions_ipc_ns, 0);
		t_become(ALICE, ALICE, 0);
		sees_nothing(t_info(fd).id);
	}
	CHECK_EQ(t_caps(t_dev()).used_handles, 1);
}

TEST(ipc_ns_user, "a user's own regions in another IPC namespace count, and are not listed")
{
	T_ALONE()
	{
		struct tmesh_caps_query q;

		t_become(ALICE, ALICE, 0);
		REQUIRE_OK(t_create(t_dev(), PAGE, 0));
		unshare_or_skip(CLONE_NEWUSER | CLONE_NEWIPC);
		CHECK_EQ(t_listed(t_dev()), 0);
		REQUIRE_OK(t_create(t_dev(), PAGE, 0));
		CHECK_EQ(t_listed(t_dev()), 1);
		q = t_caps(t_dev());
		CHECK_EQ(q.used_bytes, 2 * PAGE);
		CHECK_EQ(q.used_bytes_ipc_ns, PAGE);
	}
}

TEST(many_ipc_ns, "namespaces of one's own are no way round the limits of a user")
{
	int sv[2], fds[2];

	t_set_limit("max_bytes_per_uid", 2 * PAGE);
	t_pair(sv);
	for (int i = 0; i < 4; i++) {
		T_ALONE()
		{
			t_become(ALICE, ALICE, 0);
			unshare_or_skip(CLONE_NEWUSER | CLONE_NEWIPC);
			if (i < 2)
				t_send_fd(sv[1], REQUIRE_OK(t_create(t_dev(), PAGE, 0)));
			else
				CHECK_ERR(t_create(t_dev(), PAGE, 0), EDQUOT);
		}
		if (i < 2)
			fds[i] = t_recv_fd(sv[0]);
	}
	close(fds[0]);
	close(fds[1]);
}

TEST(pid_ns, "holders outside one's PID namespace have the pid 0, others their own")
{
	int fd = REQUIRE_OK(t_create(t_dev(), PAGE, 0));
	struct tmesh_holder one;
	struct tmesh_holders mine = holders_of(0, &one);
	pid_t pid;

	REQUIRE_OK(ioctl(fd, TMESH_HOLDERS, &mine));
	CHECK_EQ(one.pid, getpid());
	T_CHILD(pid) {
		struct tmesh_holders q = holders_of(0, &one);

		unshare_or_skip(CLONE_NEWPID);
		T_ALONE()
		{
			int own = REQUIRE_OK(t_create(t_dev(), PAGE, 0));

			CHECK_OK(ioctl(fd, TMESH_HOLDERS, &q));
			CHECK_EQ(one.pid, 0);
			q = holders_of(0, &one);
			CHECK_OK(ioctl(own, TMESH_HOLDERS, &q));
			CHECK_EQ(one.pid, 1);
		}
	}
	t_wait(pid);
}

static struct tmesh_revoke revoke_of(struct tmesh_holder *one)
{
	return (struct tmesh_revoke){
		.size = sizeof(struct tmesh_revoke),
		.entries = (__u64)(unsigned long)one,
		.entry_bytes = sizeof(*one),
		.count = 1,
	};
}

TEST(revoke_holders, "TMESH_REVOKE shows no holders to a caller that TMESH_HOLDERS refuses")
{
	int fd = REQUIRE_OK(t_create(t_dev(), PAGE, 0)), given = REQUIRE_OK(t_derive(fd, R_ALL, 0));
	struct tmesh_holder one = {0};
	struct tmesh_revoke r;

	REQUIRE_OK(t_seal(fd));
	REQUIRE_OK(t_derive(fd, R_READ, TMESH_DERIVE_PIN));
	T_ALONE()
	{
		struct tmesh_holders q = holders_of(0, &one);

		t_become(BOB, BOB, 0);
		CHECK_ERR(ioctl(given, TMESH_HOLDERS, &q), EPERM);
		r = revoke_of(&one);
		CHECK_ERR(ioctl(given, TMESH_REVOKE, &r), EBUSY);
		CHECK_EQ(r.count, 0);
		CHECK_EQ(r.total, 1);
		CHECK_EQ(one.pid, 0);
		CHECK_EQ(one.kind, 0);
	}
	r = revoke_of(&one);
	CHECK_ERR(ioctl(given, TMESH_REVOKE, &r), EBUSY);
	CHECK_EQ(r.count, 1);
	CHECK_EQ(one.pid, getpid());
	CHECK_EQ(t_info(fd).state, TMESH_STATE_SEALED);
}

TEST(time_ns, "times are those of the caller's clock, also in a time namespace")
{
	int fd = REQUIRE_OK(t_create(t_dev(), PAGE, 0));
	__u64 created = t_info(fd).created_ns;
	struct tmesh_holder one;
	struct tmesh_holders q = holders_of(0, &one);
	__u64 since;

	REQUIRE_OK(ioctl(fd, TMESH_HOLDERS, &q));
	since = one.since_ns;
	T_ALONE()
	{
		unshare_or_skip(CLONE_NEWTIME);
		if (!t_write_file("/proc/self/timens_offsets", "monotonic 1000000 5"))
			t_skip("no offsets of a time namespace");
		T_ALONE()
		{
			q = holders_of(0, &one);
			REQUIRE_OK(ioctl(fd, TMESH_HOLDERS, &q));
			CHECK_EQ(t_info(fd).created_ns - created, 1000000000000005);
			CHECK_EQ(one.since_ns - since, 1000000000000005);
		}
	}
}

TEST(exhaust, "who has used up all of their own limits takes nothing from others")
{
	int sv[2];
	pid_t pid;

	t_set_limit("max_bytes_per_uid", 4 * MB);
	t_set_limit("max_regions_per_uid", 50);
	t_set_limit("max_handles_per_uid", 60);
	t_set_limit("max_pins_per_uid", 5);
	t_pair(sv);
	T_CHILD(pid) {
		int dev, fd, n = 0;

		t_become(ALICE, ALICE, 0);
		dev = t_dev();
		CHECK_OK(fd = t_create(dev, 2 * MB, 0));
		CHECK_OK(t_seal(fd));
		while (t_derive(fd, R_READ, TMESH_DERIVE_PIN) >= 0)
			n++;
		CHECK_EQ(n, 5);
		for (n = 1; t_create(dev, PAGE, 0) >= 0; n++)
			;
		CHECK_EQ(n, 50);
		while (t_derive(fd, R_READ, 0) >= 0)
			n++;
		CHECK_EQ(n, 55);
		CHECK_EQ(errno, EDQUOT);
		t_say(sv[1]);
		t_hear(sv[1]);
	}
	t_hear(sv[0]);

	T_ALONE()
	{
		int dev, fd;

		t_become(BOB, BOB, 0);
		dev = t_dev();
		CHECK_OK(fd = t_create(dev, 4 * MB, 0));
		CHECK_OK(t_seal(fd));
		for (int i = 0; i < 5; i++)
			CHECK_OK(t_derive(fd, R_READ, TMESH_DERIVE_PIN));
		CHECK_EQ(t_listed(dev), 1);
	}
	t_say(sv[0]);
	t_wait(pid);
}

TEST(mode, "the device is the group's: no other user opens it")
{
	REQUIRE_OK(chmod("/dev/tmesh", 0660));
	T_ALONE()
	{
		t_become(ALICE, ALICE, 0);
		CHECK_ERR(open("/dev/tmesh", O_RDWR), EACCES);
		unshare_or_skip(CLONE_NEWUSER);
		CHECK_ERR(open("/dev/tmesh", O_RDWR), EACCES);
	}
}

TEST(ids, "ids of an IPC namespace say nothing about how much others create")
{
	int outside = t_dev(), sv[2];
	__u64 here;
	pid_t pid;

	t_pair(sv);
	here = t_info(REQUIRE_OK(t_create(outside, PAGE, 0))).id;
	T_CHILD(pid) {
		int dev;
		__u64 id;

		unshare_or_skip(CLONE_NEWIPC);
		dev = t_dev();
		id = t_info(REQUIRE_OK(t_create(dev, PAGE, 0))).id;
		t_say(sv[1]);
		t_hear(sv[1]);
		CHECK_EQ(t_info(REQUIRE_OK(t_create(dev, PAGE, 0))).id, id + 1);
	}
	t_hear(sv[0]);
	for (int i = 0; i < 5; i++)
		REQUIRE_OK(t_create(outside, PAGE, 0));
	t_say(sv[0]);
	t_wait(pid);
	CHECK_EQ(t_info(REQUIRE_OK(t_create(outside, PAGE, 0))).id, here + 6);
}
