// SPDX-License-Identifier: MIT
/*
 * TMESH_CREATE: which requests are granted, the state of a new region, and its description.
 */
#include <linux/mempolicy.h>

#include "t.h"

#define REQUEST(length, ...) \
	((struct tmesh_create){.size = sizeof(struct tmesh_create), .bytes = length, __VA_ARGS__})

static int request(int dev, struct tmesh_create c)
{
	return ioctl(dev, TMESH_CREATE, &c) ? -1 : c.fd;
}

static void check_refused(int dev, struct tmesh_create c, int want, int line)
{
	struct tmesh_caps_query was = t_caps(dev), now;
	int fds = t_count_fds();

	if (!CHECK_ERR(request(dev, c), want))
		t_note("of line %d", line);
	now = t_caps(dev);
	CHECK_EQ(now.used_bytes, was.used_bytes);
	CHECK_EQ(now.used_regions, was.used_regions);
	CHECK_EQ(t_count_fds(), fds);
}
#define REFUSED(c, want) check_refused(dev, c, want, __LINE__)

static int granted(int dev, struct tmesh_create c, struct tmesh_info *info)
{
	int fd = REQUIRE_OK(request(dev, c));

	*info = t_info(fd);
	return fd;
}

TEST(no_bytes, "no bytes at all give EINVAL")
{
	int dev = t_dev();

	REFUSED(REQUEST(0), EINVAL);
	REFUSED(REQUEST(0, .flags = TMESH_CREATE_HUGE), EINVAL);
}

TEST(too_many_bytes, "sizes that overflow give EINVAL, those beyond the limits EDQUOT")
{
	__u64 limit;
	int dev = t_dev();

	REFUSED(REQUEST(~0ull), EINVAL);
	REFUSED(REQUEST(~0ull - PAGE + 2), EINVAL);
	REFUSED(REQUEST(~0ull - HUGE + 2, .flags = TMESH_CREATE_HUGE), EINVAL);
	REFUSED(REQUEST(1ull << 63), EINVAL);
	limit = t_caps(dev).max_bytes_per_uid;
	REFUSED(REQUEST(limit + 1), EDQUOT);
	REFUSED(REQUEST(limit + PAGE), EDQUOT);
	REFUSED(REQUEST(1ull << 45), EDQUOT);
	REFUSED(REQUEST(1ull << 45, .flags = TMESH_CREATE_HUGE), EDQUOT);
}

/* Check that all of it reads as zero, and that every page keeps the bytes written to it. */
static void check_memory(int fd, size_t bytes)
{
	unsigned char *p = t_map(fd, bytes, PROT_READ | PROT_WRITE);
	size_t dirty = 0, wrong = 0, i;

	REQUIRE(p != MAP_FAILED);
	for (i = 0; i < bytes; i += sizeof(long))
		dirty += *(long *)(p + i) != 0;
	CHECK_EQ(dirty, 0);
	for (i = 0; i < bytes; i += PAGE)
		*(size_t *)(p + i) = i ^ 0x5a5a;
	munmap(p, bytes);
	p = t_map(fd, bytes, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	for (i = 0; i < bytes; i += PAGE)
		wrong += *(size_t *)(p + i) != (i ^ 0x5a5a);
	CHECK_EQ(wrong, 0);
	munmap(p, bytes);
}

TEST(sizes, "odd sizes are kept as asked, in zeroed whole pages")
{
	static const __u64 sizes[] = {
		1,
		PAGE - 1,
		PAGE,
		PAGE + 1,
		3 * PAGE,
		64 * KB + 1,
		HUGE - 1,
		HUGE,
		HUGE + 1,
		HUGE + 7 * PAGE,
		2 * HUGE + 3 * PAGE,
		3 * MB + 7,
		17 * MB - PAGE,
	};
	int dev = t_dev(), fd;

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		__u64 alloc = (sizes[i] + PAGE - 1) & ~(PAGE - 1);
		struct tmesh_info info;
		struct stat st;

		fd = granted(dev, REQUEST(sizes[i]), &info);
		CHECK_EQ(info.bytes, sizes[i]);
		CHECK_EQ(info.alloc_bytes, alloc);
		CHECK(info.huge_bytes <= alloc && info.huge_bytes % HUGE == 0);
		CHECK_OK(fstat(fd, &st));
		CHECK_EQ(st.st_size, alloc);
		check_memory(fd, alloc);
		close(fd);
	}
}

TEST(huge, "HUGE gives 2 MiB folios throughout")
{
	struct tmesh_info info;
	int dev = t_dev(), fd;

	if (!t_has_huge(dev))
		t_skip("this kernel has no transparent huge pages");
	fd = granted(dev, REQUEST(HUGE + 1, .flags = TMESH_CREATE_HUGE), &info);
	CHECK_EQ(info.bytes, HUGE + 1);
	CHECK_EQ(info.alloc_bytes, 2 * HUGE);
	CHECK_EQ(info.huge_bytes, 2 * HUGE);
	CHECK_EQ(info.flags, TMESH_CREATE_HUGE);
	check_memory(fd, 2 * HUGE);
	close(fd);
}

TEST(nohuge, "NOHUGE gives single pages, and not beside HUGE")
{
	struct tmesh_info info;
	int dev = t_dev(), fd;

	fd = granted(dev, REQUEST(2 * HUGE, .flags = TMESH_CREATE_NOHUGE), &info);
	CHECK_EQ(info.huge_bytes, 0);
	CHECK_EQ(info.alloc_bytes, 2 * HUGE);
	CHECK_EQ(info.flags, TMESH_CREATE_NOHUGE);
	check_memory(fd, 2 * HUGE);
	close(fd);
	REFUSED(REQUEST(PAGE, .flags = TMESH_CREATE_HUGE | TMESH_CREATE_NOHUGE), EINVAL);
}

TEST(zeroed_again, "pages that another process used before come back zeroed")
{
	static const __u32 flags[] = {0, TMESH_CREATE_NOHUGE, TMESH_CREATE_HUGE};
	int dev = t_dev();

	for (int i = 0; i < 12; i++) {
		__u32 f = flags[i % 3];
		size_t dirty = 0;
		char *p;
		int fd;

		if (f == TMESH_CREATE_HUGE && !t_has_huge(dev))
			continue;
		fd = REQUIRE_OK(t_create(dev, 8 * MB, f));
		p = t_map(fd, 8 * MB, PROT_READ | PROT_WRITE);
		REQUIRE(p != MAP_FAILED);
		for (size_t k = 0; k < 8 * MB; k += sizeof(long))
			dirty += *(long *)(p + k) != 0;
		CHECK_EQ(dirty, 0);
		memset(p, 0xa5, 8 * MB);
		munmap(p, 8 * MB);
		close(fd);
	}
}

TEST(labels, "labels are kept; without an end or with control characters they give EINVAL")
{
	static const char *const bad[] = {"\n",
					  "a\tb",
					  "\x1b[31m",
					  "x\x7f",
					  "\x01",
					  "\xc2\x80",
					  "a\xc2\x9b"
					  "31m",
					  "\xc2\x9f"};
	struct tmesh_create c = REQUEST(PAGE);
	struct tmesh_info info;
	int dev = t_dev();

	close(granted(dev, c, &info));
	CHECK_EQ(info.label[0], 0);
	memset(c.label, 'a', TMESH_LABEL_MAX);
	close(granted(dev, c, &info));
	CHECK(!memcmp(info.label, c.label, sizeof(c.label)));
	/*
	 * These are not control characters: the first one after them, and one that contains such a
	 * byte.
	 */
	strcpy(c.label, "\xc2\xa0\xe2\x82\x80");
	close(granted(dev, c, &info));
	strcpy(c.label, "Grüße, 世界");
	close(granted(dev, c, &info));
	CHECK(!strcmp(info.label, "Grüße, 世界"));

	memset(c.label, 'a', sizeof(c.label));
	REFUSED(c, EINVAL);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		c = REQUEST(PAGE);
		strcpy(c.label, bad[i]);
		REFUSED(c, EINVAL);
	}
}

TEST(modes, "modes have only bits for owner and group; 0 means 0600")
{
	static const __u32 good[] = {0600, 0400, 0640, 0660};
	struct tmesh_info info;
	int dev = t_dev();

	close(granted(dev, REQUEST(PAGE), &info));
	CHECK_EQ(info.mode, 0600);
	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		close(granted(dev, REQUEST(PAGE, .mode = good[i]), &info));
		CHECK_EQ(info.mode, good[i]);
	}
	for (int bit = 0; bit < 32; bit++)
		if (!((1u << bit) & 0660))
			REFUSED(REQUEST(PAGE, .mode = 0600 | 1u << bit), EINVAL);
}

TEST(groups, "the group is one of the caller's, else EPERM")
{
	T_ALONE()
	{
		struct tmesh_info info;
		int dev = t_dev();

		t_become(1001, 1001, 1500);
		close(granted(dev, REQUEST(PAGE), &info));
		CHECK_EQ(info.uid, 1001);
		CHECK_EQ(info.gid, 1001);
		close(granted(dev, REQUEST(PAGE, .gid = 1500, .flags = TMESH_CREATE_GID), &info));
		CHECK_EQ(info.gid, 1500);
		CHECK_EQ(info.flags, TMESH_CREATE_GID);
		REFUSED(REQUEST(PAGE, .gid = 1002, .flags = TMESH_CREATE_GID), EPERM);
		REFUSED(REQUEST(PAGE, .gid = 0, .flags = TMESH_CREATE_GID), EPERM);
		REFUSED(REQUEST(PAGE, .gid = ~0u, .flags = TMESH_CREATE_GID), EINVAL);
		REFUSED(REQUEST(PAGE, .gid = 1500), EINVAL);
	}
}

TEST(nodes, "a node must be there, and be asked for")
{
	struct tmesh_info info;
	int dev = t_dev();

	close(granted(dev, REQUEST(PAGE), &info));
	CHECK_EQ(info.node, -1);
	close(granted(dev, REQUEST(PAGE, .node = 0, .flags = TMESH_CREATE_NODE), &info));
	CHECK_EQ(info.node, 0);
	CHECK_EQ(info.flags, TMESH_CREATE_NODE);
	REFUSED(REQUEST(PAGE, .node = -1, .flags = TMESH_CREATE_NODE), EINVAL);
	/* Try numbers beyond the kernel's last node: it must not read past its map of nodes. */
	for (int node = 64; node <= 1 << 20; node *= 2)
		REFUSED(REQUEST(PAGE, .node = node, .flags = TMESH_CREATE_NODE), EINVAL);
	REFUSED(REQUEST(PAGE, .node = 1023, .flags = TMESH_CREATE_NODE), EINVAL);
	REFUSED(REQUEST(PAGE, .node = (__s32)0x80000000, .flags = TMESH_CREATE_NODE), EINVAL);
	REFUSED(REQUEST(PAGE, .node = 1), EINVAL);
}

static int node_of(void *p)
{
	int node = -1;

	REQUIRE_OK(syscall(SYS_get_mempolicy, &node, NULL, 0, p, MPOL_F_NODE | MPOL_F_ADDR));
	return node;
}

static void try_node(int dev, int node, __u32 flags)
{
	struct tmesh_info info;
	int fd = granted(dev, REQUEST(2 * HUGE, .node = node, .flags = TMESH_CREATE_NODE | flags),
			 &info);
	unsigned char *p = t_map(fd, 2 * HUGE, PROT_READ);

	REQUIRE(p != MAP_FAILED);
	CHECK_EQ(info.node, node);
	for (size_t i = 0; i < 2 * HUGE; i += 16 * PAGE)
		if (!CHECK_EQ(node_of(p + i), node))
			break;
	munmap(p, 2 * HUGE);
	close(fd);
}

TEST(node_pages, "all pages come from the node that was asked for")
{
	int dev = t_dev();

	if (access("/sys/devices/system/node/node1", F_OK))
		t_skip("this machine has one node");
	for (int node = 0; node < 2; node++) {
		try_node(dev, node, 0);
		try_node(dev, node, TMESH_CREATE_NOHUGE);
		if (t_has_huge(dev))
			try_node(dev, node, TMESH_CREATE_HUGE);
	}
}

TEST(longest_hold, "a hold beyond the longest gives EINVAL")
{
	struct tmesh_info info;
	int dev = t_dev();

	close(granted(dev, REQUEST(PAGE, .hold_ms = TMESH_HOLD_MAX_MS), &info));
	CHECK_EQ(info.hold_ms, TMESH_HOLD_MAX_MS);
	REFUSED(REQUEST(PAGE, .hold_ms = TMESH_HOLD_MAX_MS + 1), EINVAL);
	REFUSED(REQUEST(PAGE, .hold_ms = ~0u), EINVAL);
}

TEST(information, "INFO tells what was made, on the handle and by id")
{
	struct tmesh_info info, by_id = {.size = sizeof(by_id)};
	struct tmesh_create c =
		REQUEST(10000, .mode = 0640, .flags = TMESH_CREATE_NOPIN, .label = "weights");
	int dev = t_dev(), fd;
	double from = t_now(), until;

	fd = granted(dev, c, &info);
	until = t_now();
	CHECK_EQ(info.size, sizeof(info));
	CHECK(info.created_ns / 1e9 >= from - 1e-3 && info.created_ns / 1e9 <= until + 1e-3);
	CHECK_EQ(info.bytes, 10000);
	CHECK_EQ(info.alloc_bytes, 3 * PAGE);
	CHECK_EQ(info.backing, TMESH_BACKING_PAGES);
	CHECK_EQ(info.state, 0);
	CHECK_EQ(info.rights, R_ALL);
	CHECK_EQ(info.pinning, 0);
	CHECK_EQ(info.uid, getuid());
	CHECK_EQ(info.gid, getgid());
	CHECK_EQ(info.mode, 0640);
	CHECK_EQ(info.node, -1);
	CHECK_EQ(info.handles, 1);
	CHECK_EQ(info.pinning_handles, 0);
	CHECK_EQ(info.exports, 0);
	CHECK_EQ(info.attachments, 0);
	CHECK_EQ(info.desc_bytes, 0);
	CHECK_EQ(info.hold_ms, 0);
	CHECK_EQ(info.flags, TMESH_CREATE_NOPIN);
	CHECK(!strcmp(info.label, "weights"));
	CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);

	by_id.id = info.id;
	CHECK_OK(ioctl(dev, TMESH_INFO, &by_id));
	CHECK_EQ(by_id.rights, 0);
	by_id.rights = info.rights;
	CHECK(!memcmp(&by_id, &info, sizeof(info)));
	close(fd);
	by_id = (struct tmesh_info){.size = sizeof(by_id), .id = info.id};
	CHECK_ERR(ioctl(dev, TMESH_INFO, &by_id), ENOENT);
}

TEST(identity, "ids grow and are never used again")
{
	int dev = t_dev(), fd;
	__u64 last = 0;

	for (int i = 0; i < 100; i++) {
		fd = REQUIRE_OK(t_create(dev, PAGE, 0));
		CHECK(t_info(fd).id > last);
		last = t_info(fd).id;
		close(fd);
	}
}

TEST(no_descriptor, "without a free descriptor EMFILE, and nothing is made")
{
	int dev = t_dev(), n = 0;

	while (dup(dev) >= 0)
		n++;
	REQUIRE(errno == EMFILE && n > 10);
	CHECK_ERR(t_create(dev, PAGE, 0), EMFILE);
	CHECK_EQ(t_caps(dev).used_regions, 0);
}

/* The description */

static int describe(int handle, const char *text, unsigned int bytes)
{
	struct tmesh_desc d = {
		.size = sizeof(d),
		.data = (__u64)(unsigned long)text,
		.bytes = bytes,
	};

	return ioctl(handle, TMESH_DESC_SET, &d);
}

/* Return the length of the description of @id, or with id 0 of the handle's region. */
static int described(int fd, __u64 id, char *text, unsigned int room)
{
	struct tmesh_desc d = {
		.size = sizeof(d),
		.id = id,
		.data = (__u64)(unsigned long)text,
		.bytes = room,
	};

	return ioctl(fd, TMESH_DESC_GET, &d) ? -1 : (int)d.bytes;
}

TEST(description, "a description is kept, replaced, cut to the room, seen by id")
{
	char text[16] = "................";
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, PAGE, 0));
	__u64 id = t_info(fd).id;

	CHECK_EQ(described(fd, 0, text, sizeof(text)), 0);
	CHECK_EQ(text[0], '.');
	CHECK_OK(describe(fd, "float32", 7));
	CHECK_EQ(t_info(fd).desc_bytes, 7);
	CHECK_EQ(described(fd, 0, text, sizeof(text)), 7);
	CHECK(!memcmp(text, "float32.........", 16));
	CHECK_OK(describe(fd, "u8\0", 3));
	memset(text, '.', sizeof(text));
	CHECK_EQ(described(dev, id, text, 1), 3);
	CHECK(!memcmp(text, "u.", 2));
	CHECK_EQ(described(fd, 0, NULL, 0), 3);
	CHECK_OK(describe(fd, NULL, 0));
	CHECK_EQ(described(fd, 0, text, sizeof(text)), 0);
	CHECK_EQ(t_info(fd).desc_bytes, 0);
}

TEST(description_limits, "a description has at most 4096 bytes, and bad memory gives EFAULT")
{
	static char text[TMESH_DESC_MAX + 1], back[TMESH_DESC_MAX];
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, PAGE, 0));

	memset(text, 'x', sizeof(text));
	CHECK_OK(describe(fd, text, TMESH_DESC_MAX));
	CHECK_EQ(described(fd, 0, back, sizeof(back)), TMESH_DESC_MAX);
	CHECK(!memcmp(text, back, sizeof(back)));
	CHECK_ERR(describe(fd, text, TMESH_DESC_MAX + 1), EINVAL);
	CHECK_ERR(describe(fd, text, ~0u), EINVAL);
	CHECK_ERR(describe(fd, NULL, 1), EFAULT);
	CHECK_ERR(described(fd, 0, NULL, 1), EFAULT);
	CHECK_EQ(described(fd, 0, back, sizeof(back)), TMESH_DESC_MAX);
}

TEST(description_rights, "a description needs the right to manage, and is frozen by the seal")
{
	int dev = t_dev(), fd = REQUIRE_OK(t_create(dev, PAGE, 0));
	int writer = REQUIRE_OK(t_derive(fd, R_READ | R_WRITE, 0));
	char text[8];

	CHECK_ERR(describe(writer, "no", 2), EACCES);
	CHECK_EQ(described(writer, 0, text, sizeof(text)), 0);
	CHECK_OK(describe(fd, "yes", 3));
	CHECK_EQ(described(writer, 0, text, sizeof(text)), 3);
	CHECK_OK(t_seal(fd));
	CHECK_ERR(describe(fd, "no", 2), EPERM);
	CHECK_EQ(described(writer, 0, text, sizeof(text)), 3);
	CHECK(!memcmp(text, "yes", 3));
}
