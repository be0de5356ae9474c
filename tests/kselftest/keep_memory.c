// SPDX-License-Identifier: MIT
/*
 * Kept regions when the machine needs memory: which are reclaimed, in which order, and which never
 * are.
 */
#include "keep.h"

#define CHUNK (16 * MB)

/* Keep a new region without holders. */
static void leave(int dev, const char *name, __u64 bytes, __u32 flags)
{
	int fd = keep_region(dev, bytes, flags, 3);

	REQUIRE_OK(keep(dev, name, &fd, 1, 0));
	close(fd);
}

TEST(unheld,
     "what has no holder is taken, in whole kept groups, and its memory and charge are back")
{
	int dev = t_dev(), fds[4], got, i;
	__u64 huge = t_has_huge(dev) ? 4 * MB : 0;

	leave(dev, "small", 3 * PAGE, TMESH_CREATE_NOHUGE);
	if (huge)
		leave(dev, "huge", huge, 0);
	for (i = 0; i < 4; i++)
		fds[i] = keep_region(dev, MB, 0, i);
	REQUIRE_OK(keep(dev, "bundle", fds, 4, 0));
	/* A held region protects the others of its name. */
	for (i = 1; i < 4; i++)
		close(fds[i]);
	drop_caches();
	CHECK(!is_kept(dev, "small"));
	CHECK(!is_kept(dev, "huge"));
	CHECK_ERR(kept_open(dev, "small", R_READ, 0, &got, 1), ENOENT);
	CHECK(is_kept(dev, "bundle"));
	CHECK(keep_same(fds[0], MB, 0));
	CHECK_EQ(t_caps(dev).used_kept_names, 1);
	CHECK_EQ(t_caps(dev).used_bytes, 4 * MB);
	close(fds[0]);
	drop_caches();
	CHECK(!is_kept(dev, "bundle"));
	CHECK_EQ(t_caps(dev).used_bytes, 0);
	CHECK_EQ(t_caps(dev).used_kept_bytes, 0);
}

TEST(held, "held memory stays: by a handle, a mapping, an export, a view, an opener")
{
	int dev = t_dev(), fd, fds[2], dmabuf, view;
	struct tmesh_extent e;
	void *p;

	fd = keep_region(dev, PAGE, 0, 3);
	REQUIRE_OK(keep(dev, "handle", &fd, 1, 0));

	fds[0] = keep_region(dev, PAGE, 0, 3);
	REQUIRE_OK(keep(dev, "mapping", &fds[0], 1, 0));
	p = t_map(fds[0], PAGE, PROT_READ);
	close(fds[0]);

	fds[0] = keep_region(dev, PAGE, 0, 3);
	REQUIRE_OK(keep(dev, "export", &fds[0], 1, 0));
	dmabuf = REQUIRE_OK(t_export(fds[0], 0, 0, 0));
	close(fds[0]);

	fds[0] = keep_region(dev, PAGE, 0, 3);
	REQUIRE_OK(keep(dev, "view", &fds[0], 1, 0));
	e = t_extent(fds[0], 0, 1);
	view = REQUIRE_OK(t_gather(dev, &e, 1, R_READ));
	close(fds[0]);

	leave(dev, "opened", PAGE, 0);
	CHECK_EQ(kept_open(dev, "opened", R_READ, 0, fds, 1), 1);

	drop_caches();
	CHECK(is_kept(dev, "handle"));
	CHECK(is_kept(dev, "mapping"));
	CHECK(is_kept(dev, "export"));
	CHECK(is_kept(dev, "view"));
	CHECK(is_kept(dev, "opened"));
	close(fd);
	munmap(p, PAGE);
	close(dmabuf);
	close(view);
	close(fds[0]);
	drop_caches();
	CHECK_EQ(t_caps(dev).used_kept_names, 0);
}

TEST(pinned, "pages that the kernel has of it keep it, although no process has a handle")
{
	int dev = t_dev(), fd = keep_region(dev, 4 * PAGE, TMESH_CREATE_NOHUGE, 3), pipes[2];
	char *p = t_map(fd, 4 * PAGE, PROT_READ), byte;
	struct iovec io = {p + PAGE, PAGE};

	REQUIRE(p != MAP_FAILED);
	REQUIRE_OK(keep(dev, "pinned", &fd, 1, 0));
	REQUIRE_OK(pipe(pipes));
	REQUIRE(vmsplice(pipes[1], &io, 1, 0) == PAGE);
	munmap(p, 4 * PAGE);
	close(fd);
	leave(dev, "later", 4 * PAGE, TMESH_CREATE_NOHUGE);
	drop_caches();
	CHECK(is_kept(dev, "pinned"));
	/* A name that cannot go does not hold up one that was used later. */
	CHECK(!is_kept(dev, "later"));
	CHECK_EQ(read(pipes[0], &byte, 1), 1);
	CHECK_EQ(byte, 4);
	close(pipes[0]);
	close(pipes[1]);
	drop_caches();
	CHECK(!is_kept(dev, "pinned"));
}

TEST(memfd, "a memfd that goes with the others gives its pages back at its region's end")
{
	int dev = t_dev(),
	    memfd = REQUIRE_OK(memfd_create("kept", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd};
	int fds[2] = {keep_region(dev, PAGE, 0, 3)};

	REQUIRE_OK(ftruncate(memfd, 3 * PAGE));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	REQUIRE_OK(ioctl(dev, TMESH_CREATE_MEMFD, &c));
	REQUIRE_OK(t_seal(fds[1] = c.fd));
	REQUIRE_OK(keep(dev, "both", fds, 2, 0));
	close(fds[0]);
	close(fds[1]);
	drop_caches();
	CHECK(!is_kept(dev, "both"));
	while (t_caps(dev).used_regions || t_caps(dev).used_bytes)
		usleep(1000);
}

TEST(memfd_mapped, "a memfd that a process has mapped keeps its name: its end would free nothing")
{
	int dev = t_dev(),
	    memfd = REQUIRE_OK(memfd_create("kept", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	struct tmesh_create_memfd c = {.size = sizeof(c), .memfd = memfd};
	void *p;

	REQUIRE_OK(ftruncate(memfd, 3 * PAGE));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	REQUIRE_OK(ioctl(dev, TMESH_CREATE_MEMFD, &c));
	REQUIRE_OK(t_seal(c.fd));
	REQUIRE_OK(keep(dev, "mapped", &c.fd, 1, 0));
	p = t_map(c.fd, PAGE, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	close(c.fd);
	close(memfd);
	drop_caches();
	CHECK(is_kept(dev, "mapped"));
	munmap(p, PAGE);
	drop_caches();
	CHECK(!is_kept(dev, "mapped"));
	while (t_caps(dev).used_regions || t_caps(dev).used_bytes)
		usleep(1000);
}

/* The hold lasts a second, of which half may pass before the first look. */
TEST(held_for_token, "memory held for a token under way is not taken before that has ended")
{
	struct tmesh_create c = {.size = sizeof(c), .bytes = PAGE, .hold_ms = TMESH_HOLD_MAX_MS};
	int dev = t_dev(), late = 0;
	__u8 token[TMESH_TOKEN_BYTES];
	double since;

	do {
		REQUIRE_OK(ioctl(dev, TMESH_CREATE, &c));
		REQUIRE_OK(t_seal(c.fd));
		REQUIRE_OK(t_token(c.fd, R_READ, token));
		REQUIRE_OK(keep(dev, "holding", &c.fd, 1, 0));
		since = t_now();
		close(c.fd);
		REQUIRE(t_write_file("/proc/sys/vm/drop_caches", "2"));
		if (is_kept(dev, "holding"))
			break;
		CHECK(t_now() - since >= TMESH_HOLD_MAX_MS / 2000.0);
	} while (++late < 3 && !t_failed());
	t_note("%d times it had ended before", late);
	while (is_kept(dev, "holding"))
		drop_caches();
}

/* The end of an opaque region frees no memory of the machine. */
TEST(opaque, "an opaque region is not taken for the machine's memory")
{
	int dev = t_dev(), null = REQUIRE_OK(open("/dev/null", O_RDWR | O_CLOEXEC));
	struct tmesh_import i = {.size = sizeof(i), .source = null};

	REQUIRE_OK(ioctl(dev, TMESH_IMPORT, &i));
	REQUIRE_OK(keep(dev, "opaque", &i.fd, 1, 0));
	close(i.fd);
	drop_caches();
	CHECK(is_kept(dev, "opaque"));
	/* Nor is it ended when another name is, which was used later. */
	leave(dev, "pages", PAGE, 0);
	drop_caches();
	CHECK(is_kept(dev, "opaque"));
	CHECK(!is_kept(dev, "pages"));
	CHECK_OK(kept_drop(dev, "opaque"));
}

/* Use up memory until a name is gone. It must go before another one does. */
static void eat_until_gone(int dev, const char *name, const char *before)
{
	bool later = true;

	__u64 most = t_meminfo("MemTotal") * KB, eaten = 0;

	/* If this goes wrong, the OOM killer should choose this process. */
	REQUIRE(t_write_file("/proc/self/oom_score_adj", "1000"));
	/* Check the later one first: both may end between the two checks. */
	while (later = is_kept(dev, before), is_kept(dev, name) && eaten < most) {
		char *p = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

		REQUIRE(p != MAP_FAILED);
		REQUIRE(later);
		eaten += CHUNK;
	}
	t_note("\"%s\" was gone when %llu MB had been taken of %llu", name, eaten / MB, most / MB);
	CHECK(!is_kept(dev, name));
}

#define POOL "/proc/sys/vm/nr_hugepages"

/*
 * Give the pool of huge pages half of the free memory. That uses memory up without writing to it.
 */
static void fill_pool(char *before, size_t room)
{
	char pages[24];

	if (!t_read_file(POOL, before, room))
		return;
	snprintf(pages, sizeof(pages), "%ld",
		 atol(before) + t_meminfo("MemFree") / 2 / (long)(HUGE / KB));
	CHECK(t_write_file(POOL, pages));
}

TEST(pressure, "a machine short of memory takes what was used longest ago, and what is held never")
{
	__u64 bytes = t_meminfo("MemTotal") * KB / 32 / HUGE * HUGE;
	int dev = t_dev(), held, got;
	char pool[24] = "";

	/* Writing to half of an emulated machine's memory takes minutes. */
	leave(dev, "newer", bytes, 0);
	leave(dev, "oldest", bytes, 0);
	held = keep_region(dev, bytes, 0, 9);
	REQUIRE_OK(keep(dev, "held", &held, 1, 0));
	/* Opening a name counts as a use. */
	REQUIRE(kept_open(dev, "newer", R_READ, 0, &got, 1) == 1);
	CHECK(keep_same(got, bytes, 3));
	close(got);
	fill_pool(pool, sizeof(pool));
	T_ALONE()
	{
		eat_until_gone(dev, "oldest", "newer");
		t_note("\"newer\" is %s", is_kept(dev, "newer") ? "there" : "gone");
		CHECK(is_kept(dev, "held"));
	}
	if (pool[0])
		CHECK(t_write_file(POOL, pool));
	CHECK(is_kept(dev, "held"));
	CHECK(keep_same(held, bytes, 9));
	close(held);
	t_drop_kept();
	CHECK_EQ(t_caps(dev).used_bytes, 0);
}
