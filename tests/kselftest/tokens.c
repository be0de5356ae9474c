// SPDX-License-Identifier: MIT
/*
 * Tokens: the handles that they open, for which users and how long. Also the regions that each user
 * may see.
 */
#include <sched.h>
#include <sys/prctl.h>

#include "t.h"

#define BYTES (64 * KB)
#define ALICE 1001
#define BOB 1002
#define STAFF 1500
#define OVERFLOW_ID 65534

static int create(int dev, __u32 mode, gid_t gid)
{
	struct tmesh_create c = {
		.size = sizeof(c),
		.flags = gid ? TMESH_CREATE_GID : 0,
		.bytes = BYTES - 7,
		.mode = mode,
		.gid = gid,
	};

	return REQUIRE_OK(ioctl(dev, TMESH_CREATE, &c) ? -1 : c.fd);
}

/* Open a token and close the handle. Return 0 or the errno. */
static int opens(int dev, const __u8 *token, __u32 rights)
{
	int fd = t_open(dev, token, rights, 0), err = errno;

	if (fd < 0)
		return err;
	CHECK_EQ(t_info(fd).rights, rights);
	close(fd);
	return 0;
}

TEST(counted, "redeemed tokens of a region are counted, refused ones and other handles are not")
{
	int dev = t_dev(), fd = create(dev, 0, 0), other = create(dev, 0, 0);
	__u8 token[TMESH_TOKEN_BYTES], reader[TMESH_TOKEN_BYTES];

	CHECK_EQ(t_info(fd).opens, 0);
	REQUIRE_OK(t_token(fd, R_ALL, token));
	REQUIRE_OK(t_token(fd, R_READ, reader));
	CHECK_EQ(opens(dev, token, R_READ), 0);
	CHECK_EQ(opens(dev, reader, R_READ), 0);
	CHECK_EQ(opens(dev, reader, R_ALL), EACCES);
	close(REQUIRE_OK(t_derive(fd, R_READ, 0)));
	CHECK_EQ(t_info(fd).opens, 2);
	CHECK_EQ(t_info(other).opens, 0);
	close(other);
	close(fd);
}

TEST(open, "a token opens its region and tells what it is")
{
	int dev = t_dev(), fd = create(dev, 0, 0);
	struct tmesh_open o = {.size = sizeof(o), .rights = R_READ | R_WRITE};
	struct tmesh_token t = {.size = sizeof(t), .rights = R_ALL};
	unsigned char *p, *q;

	REQUIRE_OK(ioctl(fd, TMESH_TOKEN, &t));
	memcpy(o.token, t.token, sizeof(o.token));
	REQUIRE_OK(ioctl(dev, TMESH_OPEN, &o));
	CHECK_EQ(o.id, t_info(fd).id);
	CHECK_EQ(o.bytes, BYTES - 7);
	CHECK_EQ(o.alloc_bytes, BYTES);
	CHECK_EQ(o.state, 0);
	CHECK_EQ(o.desc_bytes, 0);
	CHECK_EQ(fcntl(o.fd, F_GETFD), FD_CLOEXEC);
	CHECK_EQ(t_info(o.fd).rights, R_READ | R_WRITE);
	CHECK_EQ(t_info(fd).handles, 2);
	p = t_map(fd, BYTES, PROT_READ | PROT_WRITE);
	q = t_map(o.fd, BYTES, PROT_READ | PROT_WRITE);
	REQUIRE(p != MAP_FAILED && q != MAP_FAILED);
	p[1] = 1;
	CHECK_EQ(q[1], 1);
	CHECK_OK(t_revoke(fd) ? -1 : 0);
}

TEST(state, "opening a sealed and described region tells so")
{
	int dev = t_dev(), fd = create(dev, 0, 0);
	struct tmesh_open o = {.size = sizeof(o), .rights = R_READ};
	struct tmesh_desc d = {
		.size = sizeof(d),
		.data = (__u64)(unsigned long)"u8",
		.bytes = 2,
	};

	REQUIRE_OK(ioctl(fd, TMESH_DESC_SET, &d));
	REQUIRE_OK(t_seal(fd));
	REQUIRE_OK(t_token(fd, R_READ, o.token));
	REQUIRE_OK(ioctl(dev, TMESH_OPEN, &o));
	CHECK_EQ(o.state, TMESH_STATE_SEALED);
	CHECK_EQ(o.desc_bytes, 2);
}

TEST(sameness, "a region has one token for each set of rights, and no other region's")
{
	__u8 seen[8][TMESH_TOKEN_BYTES], again[TMESH_TOKEN_BYTES];
	int dev = t_dev(), fds[2] = {create(dev, 0, 0), create(dev, 0, 0)}, n = 0;

	for (int i = 0; i < 2; i++)
		for (__u32 rights = R_READ; rights <= R_ALL; rights += 2, n++) {
			REQUIRE_OK(t_token(fds[i], rights, seen[n]));
			REQUIRE_OK(t_token(fds[i], rights, again));
			CHECK(!memcmp(seen[n], again, sizeof(again)));
			for (int k = 0; k < n; k++)
				CHECK(memcmp(seen[n], seen[k], sizeof(again)));
		}
}

TEST(rights, "a token opens with its rights or fewer, more give EACCES")
{
	int dev = t_dev(), fd = create(dev, 0, 0);
	__u8 token[TMESH_TOKEN_BYTES];

	for (__u32 has = R_READ; has <= R_ALL; has += 2) {
		REQUIRE_OK(t_token(fd, has, token));
		for (__u32 want = R_READ; want <= R_ALL; want += 2)
			CHECK_EQ(opens(dev, token, want), want & ~has ? EACCES : 0);
	}
}

TEST(guesses, "guessed tokens give ENOENT, however near")
{
	int dev = t_dev(), fd = create(dev, 0, 0);
	__u8 token[TMESH_TOKEN_BYTES], guess[TMESH_TOKEN_BYTES] = {0};
	unsigned int seed = 12345;

	REQUIRE_OK(t_token(fd, R_READ, token));
	CHECK_EQ(opens(dev, guess, R_READ), ENOENT);
	memset(guess, 0xff, sizeof(guess));
	CHECK_EQ(opens(dev, guess, R_READ), ENOENT);
	for (int bit = 0; bit < 8 * TMESH_TOKEN_BYTES; bit++) {
		memcpy(guess, token, sizeof(guess));
		guess[bit / 8] ^= 1 << bit % 8;
		CHECK_EQ(opens(dev, guess, R_READ), ENOENT);
	}
	for (int i = 0; i < 2000; i++) {
		for (int k = 0; k < TMESH_TOKEN_BYTES; k++)
			guess[k] = t_random(&seed);
		CHECK_EQ(opens(dev, guess, R_READ), ENOENT);
	}
	CHECK_EQ(opens(dev, token, R_READ), 0);
}

TEST(stale, "tokens die with their region and with its revocation")
{
	int dev = t_dev(), fd = create(dev, 0, 0), dmabuf;
	__u8 token[TMESH_TOKEN_BYTES];
	unsigned char *p;

	REQUIRE_OK(t_token(fd, R_READ, token));
	close(fd);
	CHECK_EQ(opens(dev, token, R_READ), ENOENT);

	fd = create(dev, 0, 0);
	REQUIRE_OK(t_token(fd, R_READ, token));
	REQUIRE_OK(t_revoke(fd));
	CHECK_EQ(opens(dev, token, R_READ), ENOENT);
	/* EACCES would mean that the token is still alive. */
	CHECK_EQ(opens(dev, token, R_ALL), ENOENT);
	CHECK_ERR(t_token(fd, R_READ, token), ESTALE);
	close(fd);

	/* A mapping or an export holds the region, and so its token. */
	fd = create(dev, 0, 0);
	REQUIRE_OK(t_token(fd, R_READ, token));
	p = t_map(fd, BYTES, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	dmabuf = REQUIRE_OK(t_export(fd, 0, 0, 0));
	close(fd);
	CHECK_EQ(opens(dev, token, R_READ), 0);
	munmap(p, BYTES);
	CHECK_EQ(opens(dev, token, R_READ), 0);
	close(dmabuf);
	CHECK_EQ(opens(dev, token, R_READ), ENOENT);
}

/* Users */

struct offer {
	__u64 id;
	__u8 reader[TMESH_TOKEN_BYTES], writer[TMESH_TOKEN_BYTES];
};

static struct offer offer_of(int fd)
{
	struct offer o = {.id = t_info(fd).id};

	REQUIRE_OK(t_token(fd, R_READ, o.reader));
	REQUIRE_OK(t_token(fd, R_ALL, o.writer));
	return o;
}

static bool seen_by_id(int dev, __u64 id)
{
	struct tmesh_info info = {.size = sizeof(info), .id = id};
	bool seen = !ioctl(dev, TMESH_INFO, &info);

	if (!seen)
		CHECK_EQ(errno, ENOENT);
	return seen;
}

static int holders_by_id(int dev, __u64 id)
{
	struct tmesh_holders h = {.size = sizeof(h), .id = id};

	return ioctl(dev, TMESH_HOLDERS, &h) ? errno : 0;
}

/* The regions that Alice offers, by mode */
static struct offer offers[5];
static const __u32 offered_modes[5] = {0600, 0400, 0640, 0660, 0620};

static void make_offers(int fds[5])
{
	int dev = t_dev();

	for (int i = 0; i < 5; i++) {
		fds[i] = create(dev, offered_modes[i], offered_modes[i] & 0070 ? STAFF : 0);
		offers[i] = offer_of(fds[i]);
	}
	close(dev);
}

static void check_offers(int dev, const int readers[5], const int writers[5])
{
	int visible = 0;

	for (int i = 0; i < 5; i++) {
		CHECK_EQ(opens(dev, offers[i].reader, R_READ), readers[i]);
		CHECK_EQ(opens(dev, offers[i].writer, R_READ | R_WRITE), writers[i]);
		CHECK_EQ(opens(dev, offers[i].reader, R_READ | R_WRITE),
			 readers[i] == ENOENT ? ENOENT : EACCES);
		CHECK_EQ(seen_by_id(dev, offers[i].id), readers[i] != ENOENT);
		visible += readers[i] != ENOENT;
	}
	CHECK_EQ(t_listed(dev), visible);
}

static void as_alice(void (*then)(const int fds[5]))
{
	T_ALONE()
	{
		int fds[5];

		/*
		 * Alice is a child of root, so that Bob can be another one and yet see her regions.
		 */
		t_become(ALICE, ALICE, STAFF);
		make_offers(fds);
		then(fds);
	}
}

static void owner_checks(const int fds[5])
{
	static const int readers[5], writers[5] = {0, EACCES};
	int dev = t_dev();

	check_offers(dev, readers, writers);
	for (int i = 0; i < 5; i++)
		CHECK_EQ(holders_by_id(dev, offers[i].id), 0);
}

TEST_CALL(owner, "the owner opens as its mode bits allow", as_alice(owner_checks))

/* Check Alice's regions as another user. This process holds them as root, so that they live. */
static void stranger_checks(gid_t extra, const int readers[5], const int writers[5])
{
	int sv[2], fds[5];
	pid_t alice;
	char c;

	t_pair(sv);
	T_CHILD(alice) {
		t_become(ALICE, ALICE, STAFF);
		make_offers(fds);
		REQUIRE(write(sv[1], offers, sizeof(offers)) == sizeof(offers));
		CHECK_EQ(read(sv[1], &c, 1), 1);
	}
	REQUIRE(read(sv[0], offers, sizeof(offers)) == sizeof(offers));
	T_ALONE()
	{
		int dev;

		t_become(BOB, BOB, extra);
		dev = t_dev();
		check_offers(dev, readers, writers);
		for (int i = 0; i < 5; i++)
			CHECK_EQ(holders_by_id(dev, offers[i].id),
				 readers[i] == ENOENT ? ENOENT : EPERM);
		CHECK_EQ(t_caps(dev).used_regions, 0);
	}
	REQUIRE(write(sv[0], "", 1) == 1);
	t_wait(alice);
}

TEST(stranger, "another user sees and opens nothing, whatever token it has")
{
	static const int none[5] = {ENOENT, ENOENT, ENOENT, ENOENT, ENOENT};

	stranger_checks(0, none, none);
}

TEST(group, "the region's group opens as the mode's group bits allow")
{
	static const int readers[5] = {ENOENT, ENOENT, 0, 0, ENOENT};
	static const int writers[5] = {ENOENT, ENOENT, EACCES, 0, ENOENT};

	stranger_checks(STAFF, readers, writers);
}

TEST(descriptor, "a descriptor needs no token: possession suffices, rights stay")
{
	int dev = t_dev(), fd = create(dev, 0600, 0), sv[2];
	int ro = REQUIRE_OK(t_derive(fd, R_READ, 0));
	pid_t pid;

	t_pair(sv);
	T_CHILD(pid) {
		struct tmesh_holders h = {.size = sizeof(h)};
		int got;

		close(fd);
		close(ro);
		t_become(BOB, BOB, 0);
		got = t_recv_fd(sv[1]);
		CHECK(t_map(got, BYTES, PROT_READ) != MAP_FAILED);
		CHECK_ERR(t_map(got, BYTES, PROT_READ | PROT_WRITE), EACCES);
		CHECK_ERR(ioctl(got, TMESH_HOLDERS, &h), EPERM);
		CHECK_EQ(t_info(got).uid, 0);
	}
	t_send_fd(sv[0], ro);
	t_wait(pid);
}

TEST(device_mode, "without permission on /dev/tmesh EACCES")
{
	struct stat st;

	REQUIRE_OK(stat("/dev/tmesh", &st));
	REQUIRE_OK(chmod("/dev/tmesh", 0600));
	T_ALONE()
	{
		t_become(BOB, BOB, 0);
		CHECK_ERR(open("/dev/tmesh", O_RDWR), EACCES);
		CHECK_ERR(open("/dev/tmesh", O_RDONLY), EACCES);
	}
	CHECK_OK(chmod("/dev/tmesh", st.st_mode & 07777));
}

/* Lists and holders */

TEST(list, "lists come in order of id, in parts, with a cursor")
{
	int dev = t_dev();
	struct tmesh_info some[3];
	struct tmesh_list l;
	__u64 cursor = 0;
	int n = 0;

	for (int i = 0; i < 8; i++)
		create(dev, 0, 0);
	do {
		l = (struct tmesh_list){
			.size = sizeof(l),
			.cursor = cursor,
			.entries = (__u64)(unsigned long)some,
			.entry_bytes = sizeof(some[0]),
			.count = ARRAY_SIZE(some),
		};
		memset(some, 0, sizeof(some));
		REQUIRE_OK(ioctl(dev, TMESH_LIST, &l));
		CHECK(l.count <= ARRAY_SIZE(some));
		for (__u32 i = 0; i < l.count; i++) {
			CHECK(some[i].id > cursor);
			CHECK_EQ(some[i].bytes, BYTES - 7);
			CHECK_EQ(some[i].rights, 0);
			cursor = some[i].id;
		}
		CHECK_EQ(l.cursor, cursor);
		n += l.count;
	} while (l.more && n <= 8);
	CHECK_EQ(n, 8);

	l = (struct tmesh_list){.size = sizeof(l), .entry_bytes = sizeof(some[0])};
	CHECK_OK(ioctl(dev, TMESH_LIST, &l));
	CHECK_EQ(l.count, 0);
	CHECK_EQ(l.more, 1);
	l.cursor = ~0ull;
	CHECK_OK(ioctl(dev, TMESH_LIST, &l));
	CHECK_EQ(l.more, 0);
}

/* The walk drops the RCU lock every 256 regions. */
TEST(list_of_few, "a list of one's own region is the same behind hundreds of others'")
{
	int dev = t_dev();

	for (int i = 0; i < 600; i++)
		REQUIRE_OK(t_create(dev, PAGE, 0));
	T_ALONE()
	{
		t_become(ALICE, ALICE, 0);
		dev = t_dev();
		CHECK_EQ(t_listed(dev), 0);
		create(dev, 0, 0);
		CHECK_EQ(t_listed(dev), 1);
	}
}

static __u32 holders(int fd, struct tmesh_holder *into, __u32 room, __u32 *total)
{
	struct tmesh_holders h = {
		.size = sizeof(h),
		.entries = (__u64)(unsigned long)into,
		.entry_bytes = sizeof(*into),
		.count = room,
	};

	REQUIRE_OK(ioctl(fd, TMESH_HOLDERS, &h));
	*total = h.total;
	return h.count;
}

TEST(holders, "holders are named with process, rights, mappings and exports")
{
	int dev = t_dev(), fd = create(dev, 0, 0), sv[2];
	struct tmesh_holder h[4] = {0};
	const struct tmesh_holder *by_child = NULL, *export = NULL;
	__u32 total, n;
	pid_t pid;
	char c;

	t_pair(sv);
	T_CHILD(pid) {
		int mine = REQUIRE_OK(t_derive(fd, R_READ, 0));

		prctl(PR_SET_NAME, "consumer");
		close(mine);
		mine = REQUIRE_OK(t_derive(fd, R_READ, 0));
		REQUIRE(t_map(mine, BYTES, PROT_READ) != MAP_FAILED);
		t_say(sv[1]);
		CHECK_EQ(read(sv[1], &c, 1), 1);
	}
	t_hear(sv[0]);
	REQUIRE_OK(t_export(fd, PAGE, 2 * PAGE, TMESH_EXPORT_WRITE));
	n = holders(fd, h, ARRAY_SIZE(h), &total);
	CHECK_EQ(n, 3);
	CHECK_EQ(total, 3);
	for (__u32 i = 0; i < n; i++) {
		CHECK_EQ(h[i].size, sizeof(h[i]));
		CHECK_EQ(h[i].uid, 0);
		CHECK(h[i].since_ns > 0);
		if (h[i].kind == TMESH_HOLDER_EXPORT)
			export = &h[i];
		else if (h[i].pid == (__u32)pid)
			by_child = &h[i];
		else
			CHECK_EQ(h[i].pid, getpid());
	}
	REQUIRE(by_child && export);
	CHECK_EQ(by_child->kind, TMESH_HOLDER_HANDLE);
	CHECK_EQ(by_child->rights, R_READ);
	CHECK_EQ(by_child->mappings, 1);
	CHECK(!strcmp(by_child->comm, "consumer"));
	CHECK_EQ(export->offset, PAGE);
	CHECK_EQ(export->bytes, 2 * PAGE);
	CHECK_EQ(export->pid, getpid());
	CHECK_EQ(export->rights, R_READ | R_WRITE);

	n = holders(fd, h, 1, &total);
	CHECK_EQ(n, 1);
	CHECK_EQ(total, 3);
	n = holders(fd, NULL, 0, &total);
	CHECK_EQ(n, 0);
	CHECK_EQ(total, 3);
	t_say(sv[0]);
	t_wait(pid);
}

/* Namespaces */

TEST(ipc_namespaces, "two IPC namespaces see nothing of each other, not even one user's")
{
	int sv[2];
	struct offer outside, inside;
	pid_t pid;

	t_pair(sv);
	T_CHILD(pid) {
		int dev, fd;

		REQUIRE_OK(unshare(CLONE_NEWIPC));
		t_become(ALICE, ALICE, 0);
		dev = t_dev();
		fd = create(dev, 0600, 0);
		inside = offer_of(fd);
		REQUIRE(write(sv[1], &inside, sizeof(inside)) == sizeof(inside));
		REQUIRE(read(sv[1], &outside, sizeof(outside)) == sizeof(outside));
		CHECK_EQ(opens(dev, inside.reader, R_READ), 0);
		CHECK_EQ(opens(dev, outside.reader, R_READ), ENOENT);
		CHECK(!seen_by_id(dev, outside.id));
		CHECK_EQ(t_listed(dev), 1);
		t_say(sv[1]);
		t_hear(sv[1]);
	}
	REQUIRE(read(sv[0], &inside, sizeof(inside)) == sizeof(inside));

	T_ALONE()
	{
		int dev, fd;

		t_become(ALICE, ALICE, 0);
		dev = t_dev();
		fd = create(dev, 0600, 0);
		outside = offer_of(fd);
		REQUIRE(write(sv[0], &outside, sizeof(outside)) == sizeof(outside));
		t_hear(sv[0]);
		CHECK_EQ(opens(dev, inside.reader, R_READ), ENOENT);
		CHECK_EQ(opens(dev, outside.reader, R_READ), 0);
		CHECK(!seen_by_id(dev, inside.id));
		CHECK_EQ(t_listed(dev), 1);
		CHECK_EQ(t_caps(dev).used_regions, 2);
		t_say(sv[0]);
	}
	t_wait(pid);
}

TEST(device_from_outside, "a device opened before unshare() does not lead back out")
{
	int dev = t_dev(), fd = create(dev, 0600, 0);
	struct offer o = offer_of(fd);

	T_ALONE()
	{
		REQUIRE_OK(unshare(CLONE_NEWIPC));
		CHECK_EQ(opens(dev, o.reader, R_READ), ENOENT);
		CHECK_EQ(t_info(fd).id, o.id);
	}
	CHECK_EQ(opens(dev, o.reader, R_READ), 0);
}

TEST(ipc_namespace_ends, "a region outlives its IPC namespace where a descriptor went out")
{
	int sv[2], fd, dev = t_dev();
	__u8 token[TMESH_TOKEN_BYTES];
	pid_t pid;

	t_pair(sv);
	T_CHILD(pid) {
		REQUIRE_OK(unshare(CLONE_NEWIPC));
		t_send_fd(sv[1], create(dev, 0600, 0));
	}
	fd = t_recv_fd(sv[0]);
	t_wait(pid);
	CHECK(t_map(fd, BYTES, PROT_READ) != MAP_FAILED);
	REQUIRE_OK(t_token(fd, R_READ, token));
	CHECK_EQ(opens(dev, token, R_READ), ENOENT);
}

TEST(user_namespace, "root of a user namespace has no more rights")
{
	int dev = t_dev(), fd = create(dev, 0600, 0);
	struct offer o = offer_of(fd);

	T_ALONE()
	{
		struct tmesh_holders h = {.size = sizeof(h)};
		int mine;

		t_become(BOB, BOB, 0);
		if (unshare(CLONE_NEWUSER)) {
			t_note("unshare(CLONE_NEWUSER): %s", strerror(errno));
			t_skip("no user namespaces for users");
		}
		REQUIRE(t_write_file("/proc/self/uid_map", "0 1002 1"));
		CHECK_EQ(getuid(), 0);
		CHECK_EQ(opens(dev, o.reader, R_READ), ENOENT);
		CHECK(!seen_by_id(dev, o.id));
		CHECK_EQ(t_listed(dev), 0);
		CHECK_ERR(ioctl(fd, TMESH_HOLDERS, &h), EPERM);
		CHECK_EQ(t_info(fd).uid, OVERFLOW_ID);
		mine = create(dev, 0600, 0);
		CHECK_EQ(t_info(mine).uid, 0);
		CHECK_EQ(t_info(mine).gid, OVERFLOW_ID);
		CHECK_EQ(t_listed(dev), 1);
	}
}

TEST(pid_namespace, "holders outside the caller's PID namespace have pid 0")
{
	int dev = t_dev(), fd = create(dev, 0, 0);
	pid_t pid;

	T_CHILD(pid) {
		REQUIRE_OK(unshare(CLONE_NEWPID));
		T_ALONE()
		{
			struct tmesh_holder h[2] = {0};
			__u32 total;

			CHECK_EQ(getpid(), 1);
			REQUIRE_OK(t_derive(fd, R_READ, 0));
			CHECK_EQ(holders(fd, h, 2, &total), 2);
			CHECK_EQ(h[0].pid + h[1].pid, 1);
			CHECK_EQ(h[0].pid * h[1].pid, 0);
		}
	}
	t_wait(pid);
}
