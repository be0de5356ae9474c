// SPDX-License-Identifier: MIT
/*
 * Gather views: their contents, their rights, and how they end with their sources.
 */
#include "peer.h"
#include "gather_view.h"

TEST(scattered, "a view shows its parts one behind the other, and writes reach the source")
{
	static const __u64 at[] = {60, 3, 4, 5, 0, 31, 17};
	struct tmesh_extent extents[ARRAY_SIZE(at)];
	struct tmesh_info info;
	int h, v;
	const __u64 bytes = ARRAY_SIZE(at) * PAGE;
	__u64 *p, *q;

	dev = t_dev();
	h = filled(1, 64, 0);
	for (size_t i = 0; i < ARRAY_SIZE(at); i++)
		extents[i] = t_extent(h, at[i], 1);
	v = REQUIRE_OK(gather(extents, ARRAY_SIZE(at), R_RW));
	info = t_info(v);
	CHECK_EQ(info.backing, TMESH_BACKING_GATHER);
	CHECK_EQ(info.bytes, bytes);
	CHECK_EQ(info.alloc_bytes, bytes);
	CHECK_EQ(info.huge_bytes, 0);
	CHECK_EQ(info.rights, R_ALL);
	CHECK_EQ(info.gathers, 0);
	CHECK_EQ(t_info(h).gathers, 1);
	CHECK_EQ(t_info(h).handles, 1);
	CHECK_EQ(holder(h, 1).kind, TMESH_HOLDER_GATHER);
	CHECK_EQ(holder(h, 1).view, info.id);
	CHECK_EQ(holder(h, 1).rights, R_RW);
	CHECK_EQ(holder(h, 1).pid, getpid());

	p = t_map(v, bytes, RW);
	REQUIRE(p != MAP_FAILED);
	for (size_t i = 0; i < ARRAY_SIZE(at); i++)
		CHECK(shows(p + i * WORDS, 1, at[i], 1));
	q = t_map(h, 64 * PAGE, PROT_READ);
	p[6 * WORDS + 5] = 99;
	CHECK_EQ(q[17 * WORDS + 5], 99);
	CHECK_ERR((long)t_map(v, bytes + PAGE, RW), EINVAL);
	close(v);
	CHECK_EQ(t_info(h).gathers, 1);
	munmap(p, bytes);
	CHECK_EQ(t_info(h).gathers, 0);
}

#define MANY 40

TEST(many, "extents of many regions, verified word by word")
{
	static struct tmesh_extent extents[1500];
	int handles[MANY], v;
	unsigned int seed = 5;
	__u64 *p, pages = 0;

	dev = t_dev();
	for (int i = 0; i < MANY; i++)
		handles[i] = filled(i, 40, i % 2 ? TMESH_CREATE_NOHUGE : 0);
	for (size_t i = 0; i < ARRAY_SIZE(extents); i++) {
		__u64 first = t_random(&seed) % 40;
		__u64 n = 1 + t_random(&seed) % (40 - first);

		extents[i] = t_extent(handles[t_random(&seed) % MANY], first, n);
		pages += n;
	}
	v = REQUIRE_OK(gather(extents, ARRAY_SIZE(extents), R_READ));
	CHECK_EQ(t_info(v).bytes, pages * PAGE);
	p = t_map(v, pages * PAGE, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	for (size_t i = 0; i < ARRAY_SIZE(extents) && !t_failed(); i++) {
		__u64 n = extents[i].bytes / PAGE;
		int number = 0;

		while (handles[number] != extents[i].handle)
			number++;
		CHECK(shows(p, number, extents[i].offset / PAGE, n));
		p += n * WORDS;
	}
	for (int i = 0; i < MANY; i++)
		CHECK_EQ(t_info(handles[i]).gathers, 1);
}

TEST(repeats, "a page may come twice in a view that cannot write, and in no other")
{
	struct tmesh_extent twice[2];
	__u32 views;
	int h;
	__u64 *p;

	dev = t_dev();
	h = filled(2, 16, 0);
	twice[0] = t_extent(h, 3, 1);
	twice[1] = t_extent(h, 3, 1);
	CHECK_ERR(gather(twice, 2, R_RW), EINVAL);
	p = t_map(REQUIRE_OK(gather(twice, 2, R_READ)), 2 * PAGE, PROT_READ);
	CHECK(p != MAP_FAILED && shows(p, 2, 3, 1) && shows(p + WORDS, 2, 3, 1));
	twice[1] = t_extent(h, 0, 4);
	CHECK_ERR(gather(twice, 2, R_RW), EINVAL);
	twice[1] = t_extent(h, 2, 3);
	CHECK_ERR(gather(twice, 2, R_RW), EINVAL);
	/* Through another handle it is the same page of the same source. */
	twice[1] = t_extent(REQUIRE_OK(t_derive(h, R_RW, 0)), 3, 1);
	CHECK_ERR(gather(twice, 2, R_RW), EINVAL);
	views = t_info(h).gathers;
	CHECK_OK(gather(twice, 2, R_READ));
	CHECK_EQ(t_info(h).gathers, views + 1);
	twice[1] = t_extent(h, 4, 12);
	CHECK_OK(gather(twice, 2, R_RW));
	twice[1] = t_extent(h, 0, 3);
	CHECK_OK(gather(twice, 2, R_RW));
}

TEST(bad_extents,
     "extents that are no whole pages or leave their region give EINVAL, and so do bad labels")
{
	static const struct {
		__u64 offset, bytes;
		__u32 pad;
	} bad[] = {
		{0, 0, 0},
		{0, 1, 0},
		{1, PAGE, 0},
		{0, PAGE + 1, 0},
		{PAGE / 2, PAGE / 2, 0},
		{8 * PAGE, PAGE, 0},
		{7 * PAGE, 2 * PAGE, 0},
		{0, 9 * PAGE, 0},
		{~0ull - PAGE + 1, PAGE, 0},
		{~0ull - PAGE + 1, 2 * PAGE, 0},
		{PAGE, ~0ull - PAGE + 1, 0},
		{1ull << 63, 1ull << 63, 0},
		{0, PAGE, 1},
	};
	struct tmesh_extent extents[2];
	struct tmesh_gather g = {
		.size = sizeof(g),
		.extents = (__u64)(unsigned long)extents,
		.count = 1,
		.rights = R_READ,
	};
	int h;

	dev = t_dev();
	h = filled(3, 8, 0);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		extents[0] = t_extent(h, 0, 1);
		extents[1] = (struct tmesh_extent){h, bad[i].pad, bad[i].offset, bad[i].bytes};
		if (!CHECK_ERR(gather(extents, 2, R_READ), EINVAL))
			t_note("at %#llx, %#llx bytes", bad[i].offset, bad[i].bytes);
	}
	CHECK_ERR(gather(extents, 0, R_READ), EINVAL);
	CHECK_ERR(gather(extents, TMESH_GATHER_MAX + 1, R_READ), EINVAL);
	CHECK_ERR(gather(extents, ~0u, R_READ), EINVAL);
	g.label[0] = '\n';
	CHECK_ERR(ioctl(dev, TMESH_GATHER, &g), EINVAL);
	g.label[0] = 0;
	g.mode = 0666;
	CHECK_ERR(ioctl(dev, TMESH_GATHER, &g), EINVAL);
	CHECK_EQ(t_info(h).gathers, 0);
}

TEST(rights, "a view may no more than its sources' handles")
{
	struct tmesh_extent extents[2];
	int h, reader, v;
	void *p;

	dev = t_dev();
	h = filled(4, 4, 0);
	reader = REQUIRE_OK(t_derive(h, R_READ, 0));
	extents[0] = t_extent(h, 0, 1);
	extents[1] = t_extent(reader, 1, 1);
	CHECK_ERR(gather(extents, 2, R_RW), EACCES);
	CHECK_ERR(gather(extents, 2, 0), EINVAL);
	CHECK_ERR(gather(extents, 2, R_WRITE), EINVAL);
	CHECK_ERR(gather(extents, 2, R_READ | R_MANAGE), EINVAL);
	CHECK_ERR(gather(extents, 2, R_READ | 8), EOPNOTSUPP);
	CHECK_EQ(t_info(h).gathers, 0);

	v = REQUIRE_OK(gather(extents, 2, R_READ));
	CHECK_EQ(t_info(v).rights, R_READ | R_MANAGE);
	CHECK_ERR((long)t_map(v, PAGE, RW), EACCES);
	CHECK_ERR(t_export(v, 0, 0, TMESH_EXPORT_WRITE), EACCES);
	CHECK_ERR(t_derive(v, R_RW, 0), EACCES);
	p = t_map(v, PAGE, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	CHECK_ERR(mprotect(p, PAGE, RW), EACCES);
}

TEST(sealed, "a writable view is a writer of its sources, of sealed ones there is none")
{
	struct tmesh_extent extents[2];
	int a, b, v;

	dev = t_dev();
	a = filled(5, 4, 0);
	b = filled(6, 4, 0);
	extents[0] = t_extent(a, 0, 2);
	extents[1] = t_extent(b, 0, 2);
	v = REQUIRE_OK(gather(extents, 2, R_RW));
	CHECK_ERR(t_seal(a), EBUSY);
	CHECK_ERR(t_seal(b), EBUSY);
	close(v);
	CHECK_OK(t_seal(a));
	CHECK_ERR(gather(extents, 2, R_RW), EPERM);
	CHECK_EQ(t_info(b).gathers, 0);

	/* A read-only view does not count as a writer, even with its pages mapped. */
	v = REQUIRE_OK(gather(extents, 2, R_READ));
	CHECK_EQ(t_read(t_map(v, 4 * PAGE, PROT_READ)), 0);
	CHECK_OK(t_seal(b));
	CHECK_ERR(t_seal(v), EOPNOTSUPP);
	CHECK_ERR(t_derive(v, R_READ, TMESH_DERIVE_PIN), EOPNOTSUPP);
}

TEST(wrong_sources, "what is no handle, no memory of the module's or a view itself is refused")
{
	struct tmesh_create_memfd c = {.size = sizeof(c)};
	static char memory[2 * PAGE] __attribute__((aligned(PAGE)));
	struct tmesh_create_user u = {
		.size = sizeof(u),
		.address = (__u64)(unsigned long)memory,
		.bytes = PAGE,
		.rights = R_READ,
	};
	struct tmesh_extent e;
	int h, closed;

	dev = t_dev();
	h = filled(7, 2, 0);
	closed = REQUIRE_OK(dup(h));
	close(closed);
	e = t_extent(-1, 0, 1);
	CHECK_ERR(gather(&e, 1, R_READ), EBADF);
	e = t_extent(closed, 0, 1);
	CHECK_ERR(gather(&e, 1, R_READ), EBADF);
	e = t_extent(dev, 0, 1);
	CHECK_ERR(gather(&e, 1, R_READ), EINVAL);
	e = t_extent(REQUIRE_OK(t_export(h, 0, 0, 0)), 0, 1);
	CHECK_ERR(gather(&e, 1, R_READ), EINVAL);
	e = t_extent(REQUIRE_OK(open("/dev/null", O_RDWR | O_CLOEXEC)), 0, 1);
	CHECK_ERR(gather(&e, 1, R_READ), EINVAL);
	c.memfd = REQUIRE_OK(memfd_create("gather", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	REQUIRE_OK(ftruncate(c.memfd, PAGE));
	REQUIRE_OK(fcntl(c.memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	REQUIRE_OK(ioctl(dev, TMESH_CREATE_MEMFD, &c));
	e = t_extent(c.fd, 0, 1);
	CHECK_ERR(gather(&e, 1, R_READ), EOPNOTSUPP);
	REQUIRE_OK(ioctl(dev, TMESH_CREATE_USER, &u));
	e = t_extent(u.fd, 0, 1);
	CHECK_ERR(gather(&e, 1, R_READ), EOPNOTSUPP);
	e = t_extent(REQUIRE_OK(view_of(h, R_READ)), 0, 1);
	CHECK_ERR(gather(&e, 1, R_READ), ELOOP);
	REQUIRE_OK(t_revoke(h));
	e = t_extent(h, 0, 1);
	CHECK_ERR(gather(&e, 1, R_READ), ESTALE);
}

TEST(torn_array, "an array that ends in nothing gives EFAULT and leaves nothing")
{
	const __u32 n = 1000;
	size_t bytes = n * sizeof(struct tmesh_extent);
	char *p = mmap(NULL, 16 * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct tmesh_extent *e = (void *)(p + 12 * PAGE - bytes / 2 / 8 * 8);
	struct tmesh_caps_query before;
	int h, fds;

	REQUIRE(p != MAP_FAILED);
	dev = t_dev();
	h = filled(8, 2, 0);
	for (__u32 i = 0; i < n / 2; i++)
		e[i] = t_extent(h, 0, 1);
	REQUIRE_OK(munmap(p + 12 * PAGE, 4 * PAGE));
	before = t_caps(dev);
	fds = t_count_fds();
	CHECK_ERR(gather(e, n, R_READ), EFAULT);
	CHECK_ERR(gather((void *)-4096l, n, R_READ), EFAULT);
	CHECK_ERR(gather(NULL, n, R_READ), EFAULT);
	CHECK_EQ(t_count_fds(), fds);
	CHECK_EQ(t_caps(dev).used_bytes, before.used_bytes);
	CHECK_EQ(t_caps(dev).used_regions, before.used_regions);
	CHECK_EQ(t_info(h).gathers, 0);
}

TEST(huge, "views of whole 2 MiB folios are mapped by 2 MiB")
{
	struct tmesh_extent extents[4];
	int a, b, v;
	__u64 *p;

	dev = t_dev();
	if (!t_has_huge(dev))
		t_skip("this kernel has no transparent huge pages");
	a = filled(12, 4 * 512, TMESH_CREATE_HUGE);
	b = filled(13, 2 * 512, TMESH_CREATE_HUGE);
	extents[0] = t_extent(a, 3 * 512, 512);
	extents[1] = t_extent(b, 512, 512);
	extents[2] = t_extent(a, 0, 512);
	extents[3] = t_extent(b, 0, 7);
	v = REQUIRE_OK(gather(extents, 4, R_RW));
	CHECK_EQ(t_info(v).huge_bytes, 3 * HUGE);
	p = t_map(v, 3 * HUGE + 7 * PAGE, RW);
	REQUIRE(p != MAP_FAILED);
	CHECK(shows(p, 12, 3 * 512, 512));
	CHECK(shows(p + 512 * WORDS, 13, 512, 512));
	CHECK(shows(p + 1024 * WORDS, 12, 0, 512));
	CHECK(shows(p + 1536 * WORDS, 13, 0, 7));
	CHECK_EQ(t_pmd_mapped(p, 3 * HUGE), 3 * HUGE / KB);

	/* The number of extents does not matter if their pages are adjacent. */
	extents[0] = t_extent(a, 512, 100);
	extents[1] = t_extent(a, 612, 1);
	extents[2] = t_extent(a, 613, 411);
	v = REQUIRE_OK(gather(extents, 3, R_RW));
	CHECK_EQ(t_info(v).huge_bytes, HUGE);
	close(v);
	extents[0] = t_extent(a, 3 * 512, 512);
	extents[2] = t_extent(a, 0, 512);

	/* With an offset of one page no 2 MiB of the view are one folio. */
	extents[1] = t_extent(b, 511, 512);
	v = REQUIRE_OK(gather(extents, 3, R_RW));
	CHECK_EQ(t_info(v).huge_bytes, 0);
	p = t_map(v, 3 * HUGE, RW);
	REQUIRE(p != MAP_FAILED);
	CHECK(shows(p, 12, 3 * 512, 512));
	CHECK(shows(p + 512 * WORDS, 13, 511, 512));
	CHECK(shows(p + 1024 * WORDS, 12, 0, 512));
	CHECK_EQ(t_smaps(p, "FilePmdMapped"), 0);
}

TEST(pins, "the kernel takes a view's pages as any memory, and keeps them through a revocation")
{
	struct tmesh_extent extents[2];
	static __u64 copy[4 * WORDS];
	int h, v, pipes[2];
	struct iovec mine = {copy, sizeof(copy)}, theirs;
	__u64 *p;

	dev = t_dev();
	h = filled(14, 8, 0);
	extents[0] = t_extent(h, 5, 2);
	extents[1] = t_extent(h, 1, 2);
	v = REQUIRE_OK(gather(extents, 2, R_RW));
	p = t_map(v, 4 * PAGE, RW);
	REQUIRE(p != MAP_FAILED);
	theirs = (struct iovec){p, sizeof(copy)};
	CHECK_EQ(process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0), sizeof(copy));
	CHECK(shows(copy, 14, 5, 2) && shows(copy + 2 * WORDS, 14, 1, 2));
	REQUIRE_OK(pipe2(pipes, O_CLOEXEC));
	CHECK_EQ(vmsplice(pipes[1], &theirs, 1, 0), sizeof(copy));
	CHECK_OK(t_revoke(h));
	CHECK_EQ(t_read(p), SIGBUS);
	memset(copy, 0, sizeof(copy));
	for (int i = 0; i < 4; i++)
		CHECK_EQ(read(pipes[0], copy + i * WORDS, PAGE), PAGE);
	CHECK(shows(copy, 14, 5, 2) && shows(copy + 2 * WORDS, 14, 1, 2));
}

TEST(lifetime, "a view holds its sources and nothing holds a view")
{
	struct tmesh_extent extents[2];
	int a, b, v, listed;
	__u64 *p;

	dev = t_dev();
	listed = t_listed(dev);
	a = filled(15, 4, 0);
	b = filled(16, 4, 0);
	extents[0] = t_extent(a, 1, 2);
	extents[1] = t_extent(b, 0, 2);
	v = REQUIRE_OK(gather(extents, 2, R_RW));
	close(a);
	close(b);
	CHECK_EQ(t_listed(dev), listed + 3);
	p = t_map(v, 4 * PAGE, RW);
	REQUIRE(p != MAP_FAILED);
	CHECK(shows(p, 15, 1, 2) && shows(p + 2 * WORDS, 16, 0, 2));
	close(v);
	CHECK_EQ(t_listed(dev), listed + 3);
	munmap(p, 4 * PAGE);
	CHECK_EQ(t_listed(dev), listed);

	a = filled(15, 4, 0);
	extents[0] = t_extent(a, 1, 2);
	close(REQUIRE_OK(gather(extents, 1, R_RW)));
	CHECK_EQ(t_info(a).gathers, 0);
	CHECK_EQ(t_listed(dev), listed + 1);
}

TEST(tokens, "a view is redeemed by a token and revoked by its own handle")
{
	__u8 token[TMESH_TOKEN_BYTES];
	int h, v, other;
	__u64 *p;

	dev = t_dev();
	h = filled(17, 3, 0);
	v = REQUIRE_OK(view_of(h, R_READ));
	REQUIRE_OK(t_token(v, R_READ, token));
	other = REQUIRE_OK(t_open(dev, token, R_READ, 0));
	p = t_map(other, 3 * PAGE, PROT_READ);
	CHECK(p != MAP_FAILED && shows(p, 17, 0, 3));
	CHECK_OK(t_revoke(v));
	CHECK_EQ(t_read(p), SIGBUS);
	CHECK_EQ(t_info(h).gathers, 0);
	CHECK_EQ(t_info(h).state, 0);
	CHECK_OK(t_seal(h));
}

TEST(revoke_source, "a view goes with its source: mappings, exports, calls; other sources are free")
{
	struct tmesh_extent extents[2];
	struct pollfd pf = {.events = POLLIN};
	struct tmesh_holder some[4] = {0};
	struct tmesh_revoke revoke = {
		.size = sizeof(revoke),
		.entries = (__u64)(unsigned long)some,
		.entry_bytes = sizeof(some[0]),
		.count = ARRAY_SIZE(some),
	};
	int a, b, v, fd, peer = open_peer();
	__u64 *p, *q, *r;

	dev = t_dev();
	a = filled(18, 4, 0);
	b = filled(19, 4, 0);
	extents[0] = t_extent(a, 0, 4);
	extents[1] = t_extent(b, 0, 4);
	v = REQUIRE_OK(gather(extents, 2, R_RW));
	p = t_map(v, 8 * PAGE, RW);
	fd = REQUIRE_OK(t_export(v, 2 * PAGE, 4 * PAGE, TMESH_EXPORT_WRITE));
	q = t_map(fd, 4 * PAGE, RW);
	r = t_map(b, 4 * PAGE, PROT_READ);
	REQUIRE(p != MAP_FAILED && q != MAP_FAILED && r != MAP_FAILED);
	CHECK(shows(p, 18, 0, 4) && shows(p + 4 * WORDS, 19, 0, 4));
	CHECK(shows(q, 18, 2, 2) && shows(q + 2 * WORDS, 19, 0, 2));
	REQUIRE_OK(peer_import(peer, fd, PEER_WRITES));

	CHECK_OK(ioctl(a, TMESH_REVOKE, &revoke));
	for (int i = 0; i < 8; i++)
		CHECK_EQ(t_read(p + i * WORDS), SIGBUS);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(t_read(q + i * WORDS), SIGBUS);
	CHECK(shows(r, 19, 0, 4));
	CHECK_EQ(t_info(v).state, TMESH_STATE_REVOKED);
	CHECK_ERR((long)t_map(v, PAGE, PROT_READ), ESTALE);
	CHECK_ERR(t_export(v, 0, 0, 0), ESTALE);
	CHECK_ERR(t_derive(v, R_READ, 0), ESTALE);
	pf.fd = v;
	CHECK_EQ(poll(&pf, 1, 0), 1);
	CHECK(pf.revents & POLLHUP);
	/* Mappings by a device stay and hold the source, and the view is listed as their holder. */
	CHECK(revoke.pinned_bytes >= 2 * PAGE); /* in whole folios */
	CHECK_EQ(revoke.total, 1);
	CHECK_EQ(revoke.count, 1);
	CHECK_EQ(some[0].kind, TMESH_HOLDER_GATHER);
	CHECK_EQ(some[0].view, t_info(v).id);
	revoke.flags = TMESH_REVOKE_WAIT;
	CHECK_ERR(ioctl(a, TMESH_REVOKE, &revoke), ETIMEDOUT);
	CHECK_EQ(revoke.total, 1);
	peer_let_go(peer);
	revoke.timeout_ns = 60000000000;
	CHECK_OK(ioctl(a, TMESH_REVOKE, &revoke));
	CHECK_EQ(revoke.pinned_bytes, 0);
	CHECK_EQ(revoke.total, 0);
	close(fd);
	comes_to(b, 0);
	CHECK_OK(t_seal(b));
	CHECK_EQ(t_info(b).state, TMESH_STATE_SEALED);
}

TEST(lease, "a view goes with the lease of a handle that it was made through")
{
	struct tmesh_lease l = {.size = sizeof(l), .period_ns = 5000000000};
	struct tmesh_extent extents[3];
	int a, b, leased, v;
	__u64 *p, *q;

	dev = t_dev();
	a = filled(23, 2, 0);
	b = filled(24, 2, 0);
	leased = REQUIRE_OK(t_derive(a, R_READ, 0));
	REQUIRE_OK(ioctl(leased, TMESH_LEASE, &l));
	extents[0] = t_extent(a, 0, 1);
	extents[1] = t_extent(b, 0, 1);
	extents[2] = t_extent(leased, 1, 1);
	v = REQUIRE_OK(gather(extents, 3, R_READ));
	CHECK_EQ(t_info(a).gathers, 2); /* with a lease, and without */
	p = t_map(v, 3 * PAGE, PROT_READ);
	q = t_map(a, 2 * PAGE, PROT_READ);
	REQUIRE(p != MAP_FAILED && q != MAP_FAILED);
	comes_to(a, 0);
	CHECK_EQ(t_info(v).state, TMESH_STATE_REVOKED);
	CHECK_EQ(t_read(p), SIGBUS);
	CHECK_EQ(t_read(p + WORDS), SIGBUS);
	CHECK(shows(q, 23, 0, 2));
	CHECK_EQ(t_info(b).gathers, 0);
	CHECK_ERR(gather(extents, 3, R_READ), ESTALE);
	CHECK_OK(gather(extents, 2, R_READ));
}
