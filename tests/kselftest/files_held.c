// SPDX-License-Identifier: MIT
/*
 * Kept files that are open while their name or memory goes, and what open files and tables cost:
 * limits, memory errors, memory pressure.
 */
#include <sys/sendfile.h>

#include "files.h"

#ifndef MADV_HWPOISON
#define MADV_HWPOISON 100
#endif
#define ALICE 1001
#define BOB 1002
#define BAD 5 /* the page with the error */

/* Return the bytes of kept memory that memory pressure could take. */
static long long idle_bytes(void)
{
	char value[32];

	REQUIRE(t_file_value("/sys/kernel/debug/tmesh/summary", "idle_bytes", value,
			     sizeof(value)));
	return atoll(value);
}

/* Open a path up to @most times. Return the number of files, after a failure with EDQUOT. */
static int open_files(const char *path, int *fds, int most)
{
	int n = 0;

	while (n < most && (fds[n] = open(path, O_RDONLY | O_CLOEXEC)) >= 0)
		n++;
	if (n < most)
		CHECK_EQ(errno, EDQUOT);
	return n;
}

static void close_files(const int *fds, int count)
{
	while (count)
		close(fds[--count]);
}

TEST(holds,
     "an open file and a mapping are holders; a name that is dropped or replaced leaves them")
{
	int dev = t_dev(), fd, old, handle;
	struct tmesh_holder h[4];
	struct tmesh_holders list = {.size = sizeof(list), .entry_bytes = sizeof(h[0])};
	struct tmesh_caps_query before, after;
	unsigned char *p;
	struct tmesh_kept k;
	struct stat st, now;

	mount_here();
	REQUIRE_OK(keep_one(dev, "h", "f", 4 * PAGE, 10, 0600, 0));
	before = t_caps(dev);
	REQUIRE(kept_find(dev, "h", &k));
	CHECK_EQ(k.held, 0);
	old = REQUIRE_OK(open(MOUNT "/0/h/f", O_RDONLY | O_CLOEXEC));
	REQUIRE(kept_find(dev, "h", &k));
	CHECK_EQ(k.held, 1);
	CHECK_EQ(k.handles, 1);
	after = t_caps(dev);
	CHECK_EQ(after.used_handles, before.used_handles);
	CHECK_EQ(after.used_files, before.used_files + 1);
	REQUIRE_OK(kept_open(dev, "h", R_READ | R_MANAGE, 0, &handle, 1));
	list.entries = ADDRESS(h);
	list.count = 4;
	CHECK_OK(ioctl(handle, TMESH_HOLDERS, &list));
	CHECK_EQ(list.count, 2);
	CHECK_EQ(h[0].kind, TMESH_HOLDER_HANDLE);
	CHECK_EQ(h[0].flags, TMESH_HOLDER_FLAG_FILE);
	CHECK_EQ(h[0].pid, getpid());
	CHECK_EQ(h[1].flags, 0);
	close(handle);
	p = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, old, 0);
	REQUIRE(p != MAP_FAILED);
	CHECK_OK(fstat(old, &st));
	close(old);
	REQUIRE(kept_find(dev, "h", &k));
	CHECK_EQ(k.held, 1);
	/* Replace: the path leads to the new file at once. */
	CHECK_OK(keep_one(dev, "h", "f", 5 * PAGE, 50, 0600, TMESH_KEEP_REPLACE));
	CHECK(file_same(MOUNT "/0/h/f", 5 * PAGE, 50));
	CHECK_OK(stat(MOUNT "/0/h/f", &now));
	CHECK(now.st_ino != st.st_ino);
	CHECK_EQ(now.st_size, 5 * PAGE);
	CHECK_EQ(p[3 * PAGE], 13);
	munmap(p, 4 * PAGE);
	CHECK_EQ(t_listed(dev), 1);
	/* Drop, with the file and its folder open. */
	old = REQUIRE_OK(open(MOUNT "/0/h/f", O_RDONLY | O_CLOEXEC));
	fd = REQUIRE_OK(open(MOUNT "/0/h", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	CHECK_OK(kept_drop(dev, "h"));
	CHECK_ERR(open(MOUNT "/0/h/f", O_RDONLY), ENOENT);
	CHECK_ERR(openat(fd, "f", O_RDONLY), ENOENT);
	CHECK_OK(fstat(fd, &st));
	CHECK_EQ(pread(old, &(char){0}, 1, 4 * PAGE), 1);
	CHECK_EQ(t_listed(dev), 1);
	close(old);
	/* The folder's descriptor holds no memory. */
	CHECK_EQ(t_listed(dev), 0);
	close(fd);
	unmount_here();
}

TEST(revoke, "a revocation takes a file's memory: SIGBUS in mappings, ESTALE for reads")
{
	int dev = t_dev(), fd, handle;
	unsigned char *p;

	mount_here();
	REQUIRE_OK(keep_one(dev, "v", "f", 4 * PAGE, 10, 0600, 0));
	fd = REQUIRE_OK(open(MOUNT "/0/v/f", O_RDONLY | O_CLOEXEC));
	p = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	REQUIRE(p != MAP_FAILED);
	CHECK_EQ(t_read(p), 0);
	REQUIRE_OK(kept_open(dev, "v", R_READ | R_MANAGE, 0, &handle, 1));
	CHECK_OK(t_revoke(handle));
	CHECK_EQ(t_read(p), SIGBUS);
	CHECK_ERR(pread(fd, &(char){0}, 1, 0), ESTALE);
	CHECK_ERR(sendfile(STDOUT_FILENO, fd, NULL, 1), ESTALE);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ESTALE);
	CHECK_ERR(open(MOUNT "/0/v/f", O_RDONLY), ENOENT);
	munmap(p, 4 * PAGE);
	close(fd);
	close(handle);
	unmount_here();
}

TEST(limits, "open files have limits of their own and leave the handles alone")
{
	static const char *const limits[] = {"max_files_per_uid", "max_files"};
	int dev = t_dev(), fds[8];
	struct tmesh_caps_query before, now;
	unsigned long long limit;

	mount_here();
	REQUIRE_OK(keep_one(dev, "l", "f", PAGE, 7, 0600, 0));
	before = t_caps(dev);
	CHECK_EQ(before.max_files, t_limit("max_files"));
	CHECK_EQ(before.max_files_per_uid, t_limit("max_files_per_uid"));
	CHECK_EQ(before.max_foreign_files_per_uid, t_limit("max_foreign_files_per_uid"));
	CHECK_EQ(before.max_files_per_ipc_ns, t_limit("max_files"));
	t_set_limit("max_handles_per_uid", before.used_handles);
	CHECK_EQ(open_files(MOUNT "/0/l/f", fds, 8), 8);
	now = t_caps(dev);
	CHECK_EQ(now.used_handles, before.used_handles);
	CHECK_EQ(now.used_files, before.used_files + 8);
	CHECK_EQ(now.used_files_ipc_ns, before.used_files_ipc_ns + 8);
	CHECK_EQ(now.used_foreign_files, 0);
	close_files(fds, 8);
	CHECK_EQ(t_caps(dev).used_files, before.used_files);
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		limit = t_limit(limits[i]);
		t_set_limit(limits[i], before.used_files + 4);
		CHECK_EQ(open_files(MOUNT "/0/l/f", fds, 8), 4);
		close_files(fds, 4);
		t_set_limit(limits[i], limit);
	}
	CHECK_EQ(t_caps(dev).used_files, before.used_files);
	CHECK_OK(kept_drop(dev, "l"));
	unmount_here();
}

TEST(foreign, "files that others have open are limited for each owner, who opens them all the same")
{
	int sv[2], fds[8], dev;
	pid_t owner;

	t_set_limit("max_foreign_files_per_uid", 3);
	mount_here();
	t_pair(sv);
	T_CHILD(owner) {
		t_become(ALICE, ALICE, 0);
		dev = t_dev();
		REQUIRE_OK(keep_one(dev, "all", "f", PAGE, 1, 0644, 0));
		t_say(sv[1]);
		t_hear(sv[1]);
		CHECK_EQ(t_caps(dev).used_foreign_files, 3);
		CHECK_EQ(t_caps(dev).used_files, 0);
		CHECK_EQ(open_files(MOUNT "/1001/all/f", fds, 8), 8);
		CHECK_EQ(t_caps(dev).used_files, 8);
		CHECK_EQ(t_caps(dev).used_foreign_files, 3);
		/* The regions end, and the owner stays charged for the files that are open. */
		CHECK_OK(kept_drop(dev, "all"));
		close_files(fds, 8);
		CHECK_EQ(t_caps(dev).used_foreign_files, 3);
		t_say(sv[1]);
		t_hear(sv[1]);
		CHECK_EQ(t_caps(dev).used_foreign_files, 0);
	}
	t_hear(sv[0]);
	T_ALONE()
	{
		t_become(BOB, BOB, 0);
		dev = t_dev();
		CHECK_EQ(open_files(MOUNT "/1001/all/f", fds, 8), 3);
		CHECK_EQ(t_caps(dev).used_files, 3);
		CHECK_EQ(t_caps(dev).used_foreign_files, 0);
		t_say(sv[0]);
		t_hear(sv[0]);
		close_files(fds, 3);
		CHECK_EQ(t_caps(dev).used_files, 0);
		t_say(sv[0]);
	}
	t_wait(owner);
	unmount_here();
}

/*
 * Mark the page BAD as bad, through a mapping that may be the file's. A test that is skipped leaves
 * no name behind.
 */
static void poison(int dev, unsigned char *p)
{
	CHECK_EQ(t_read(p + BAD * PAGE), 0);
	if (madvise(p + BAD * PAGE, PAGE, MADV_HWPOISON) && errno != EBUSY && errno != EHWPOISON) {
		int code = errno;

		kept_drop(dev, "p");
		umount2(MOUNT, MNT_DETACH);
		t_skip("this kernel makes no memory errors: %s", strerrorname_np(code));
	}
}

/* Test reads and mappings of a file whose page BAD is bad. */
static void is_bad(int fd, const unsigned char *p)
{
	static char bytes[16 * PAGE];
	int out = REQUIRE_OK(memfd_create("out", MFD_CLOEXEC));

	CHECK_EQ(t_read(p + BAD * PAGE), SIGBUS);
	CHECK_EQ(t_read(p + (BAD + 1) * PAGE), 0);
	CHECK_EQ(p[(BAD + 1) * PAGE], BAD + 2);
	CHECK_ERR(pread(fd, bytes, 1, BAD * PAGE), EIO);
	CHECK_ERR(sendfile(out, fd, (off_t[]){BAD * PAGE}, 1), EIO);
	CHECK_EQ(pread(fd, bytes, 16 * PAGE, 0), BAD * PAGE);
	CHECK_EQ(bytes[(BAD - 1) * PAGE], BAD);
	CHECK_EQ(pread(fd, bytes, 16 * PAGE, (BAD + 1) * PAGE), (15 - BAD) * PAGE);
	close(out);
}

static void try_poison(bool by_file)
{
	int dev = t_dev(), fd, later, handle;
	unsigned char *p, *q, *own;
	struct kept_files *f = no_files();
	struct pollfd told = {.events = POLLPRI};

	mount_here();
	handle = keep_region(dev, 16 * PAGE, TMESH_CREATE_NOHUGE, 1);
	files_add(f, "f", 0, 0, 16 * PAGE);
	files_add(f, "tail", 0, BAD * PAGE, 0);
	REQUIRE_OK(keep_files(dev, "p", &handle, 1, f, 0600, 0));
	fd = REQUIRE_OK(open(MOUNT "/0/p/f", O_RDONLY | O_CLOEXEC));
	p = mmap(NULL, 16 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	q = t_map(handle, 16 * PAGE, PROT_READ);
	REQUIRE(p != MAP_FAILED && q != MAP_FAILED);
	CHECK_EQ(t_read(p + BAD * PAGE), 0);
	/* A copy that was made before stays. */
	own = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	REQUIRE(own != MAP_FAILED);
	CHECK_EQ(t_write(own + BAD * PAGE, 99), 0);
	poison(dev, by_file ? p : q);
	/* The read finds the bad page. The mappings that have it are taken away then. */
	CHECK_ERR(pread(fd, &(char){0}, 1, BAD * PAGE), EIO);
	told.fd = handle;
	CHECK_EQ(poll(&told, 1, 120000), 1);
	CHECK(told.revents & POLLPRI);
	is_bad(fd, p);
	munmap(q, 16 * PAGE);
	munmap(p, 16 * PAGE);
	CHECK_EQ(own[BAD * PAGE], 99);
	/* The original is bad. */
	CHECK_OK(madvise(own + BAD * PAGE, PAGE, MADV_DONTNEED));
	CHECK_EQ(t_write(own + BAD * PAGE, 99), SIGBUS);
	CHECK_EQ(t_write(own + (BAD + 1) * PAGE, 99), 0);
	CHECK_EQ(own[(BAD + 1) * PAGE + 1], 0);
	munmap(own, 16 * PAGE);
	p = mmap(NULL, 16 * PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	REQUIRE(p != MAP_FAILED);
	is_bad(fd, p);
	munmap(p, 16 * PAGE);
	/* A file that is opened later has the bad page, too. */
	later = REQUIRE_OK(open(MOUNT "/0/p/f", O_RDONLY | O_CLOEXEC));
	p = mmap(NULL, 16 * PAGE, PROT_READ, MAP_SHARED, later, 0);
	REQUIRE(p != MAP_FAILED);
	is_bad(later, p);
	munmap(p, 16 * PAGE);
	/* A table that needs the bad page's bytes is refused. */
	f = no_files();
	files_add(f, "f", 0, 0, BAD * PAGE + 100);
	CHECK_ERR(keep_files(dev, "p", &handle, 1, f, 0600, TMESH_KEEP_REPLACE), EIO);
	close(later);
	close(fd);
	close(handle);
	CHECK_OK(kept_drop(dev, "p"));
	unmount_here();
}

TEST_CALL(poison,
	  "a bad page of an open file: SIGBUS in mappings, EIO for reads, its neighbours stay",
	  try_poison(false))
TEST_CALL(poison_by_file, "the same if the error comes by a mapping of the file", try_poison(true))

TEST(pressure, "memory pressure spares a name whose files are open or mapped, and takes it then")
{
	int dev = t_dev(), fd, folder;
	unsigned char *p;

	mount_here();
	REQUIRE_OK(keep_one(dev, "s", "a/f", 3 * PAGE, 4, 0600, 0));
	folder = REQUIRE_OK(open(MOUNT "/0/s/a", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	fd = REQUIRE_OK(openat(folder, "f", O_RDONLY | O_CLOEXEC));
	CHECK_EQ(idle_bytes(), 0);
	drop_caches();
	CHECK(is_kept(dev, "s"));
	p = mmap(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	REQUIRE(p != MAP_FAILED);
	close(fd);
	drop_caches();
	CHECK(is_kept(dev, "s"));
	CHECK_EQ(p[2 * PAGE], 6);
	munmap(p, 3 * PAGE);
	/* A folder's descriptor holds no memory. */
	drop_caches();
	CHECK(!is_kept(dev, "s"));
	CHECK_ERR(openat(folder, "f", O_RDONLY), ENOENT);
	/* A work frees the region. */
	for (int i = 0; i < 1000 && t_listed(dev); i++)
		usleep(10000);
	CHECK_EQ(t_listed(dev), 0);
	close(folder);
	unmount_here();
}

TEST(table, "a table counts as memory that pressure can take, while its name is idle")
{
	int dev = t_dev(), region = keep_region(dev, PAGE, 0, 1), fd;
	struct kept_files *f = no_files();
	char path[32];

	mount_here();
	for (int i = 0; i < 400; i++) {
		snprintf(path, sizeof(path), "%03d", i);
		files_add(f, path, 0, 0, PAGE);
	}
	CHECK_EQ(idle_bytes(), 0);
	REQUIRE_OK(keep_files(dev, "t", &region, 1, f, 0600, 0));
	CHECK_EQ(idle_bytes(), 0);
	close(region);
	/* A page of memory, and 400 entries of 32 bytes with paths of 4. */
	CHECK_EQ(idle_bytes(), 5 * PAGE);
	fd = REQUIRE_OK(open(MOUNT "/0/t/000", O_RDONLY | O_CLOEXEC));
	CHECK_EQ(idle_bytes(), 0);
	close(fd);
	CHECK_EQ(idle_bytes(), 5 * PAGE);
	drop_caches();
	CHECK(!is_kept(dev, "t"));
	CHECK_EQ(idle_bytes(), 0);
	CHECK_EQ(t_caps(dev).used_kept_bytes, 0);
	unmount_here();
}

TEST(dropped, "a table counts before it is read, and a name's end frees it under open folders")
{
	enum {
		COUNT = 16384,
		LENGTH = 1000,
		ROUNDS = 12
	};
	struct tmesh_file *entries = calloc(COUNT, sizeof(*entries));
	int dev = t_dev(), fd = keep_region(dev, PAGE, 0, 1), held[ROUNDS];
	char *paths = malloc(COUNT * (LENGTH + 1));
	struct tmesh_keep k = keep_call("held", &fd, 1);
	unsigned long long limit = t_limit("max_kept_bytes_per_uid");
	__u64 used = t_caps(dev).used_kept_bytes;
	long before, after = 0;

	REQUIRE(entries && paths);
	mount_here();
	memset(paths, 'x', COUNT * (LENGTH + 1));
	for (unsigned int i = 0; i < COUNT; i++) {
		char *path = paths + i * (LENGTH + 1);

		path[sprintf(path, "%05u", i)] = 'x';
		for (int slash = 200; slash < LENGTH; slash += 200)
			path[slash] = '/';
		path[LENGTH] = 0;
		entries[i].path = i * (LENGTH + 1);
	}
	k.files = ADDRESS(entries);
	k.file_count = COUNT;
	k.file_bytes = sizeof(*entries);
	k.paths = ADDRESS(paths);
	k.path_bytes = COUNT * (LENGTH + 1);
	t_set_limit("max_kept_bytes_per_uid", used + 16 * MB);
	CHECK_ERR(ioctl(dev, TMESH_KEEP, &k), EDQUOT);
	k.paths = 8;
	CHECK_ERR(ioctl(dev, TMESH_KEEP, &k), EDQUOT);
	t_set_limit("max_kept_bytes_per_uid", used + 64 * MB);
	CHECK_ERR(ioctl(dev, TMESH_KEEP, &k), EFAULT);
	CHECK_EQ(t_caps(dev).used_kept_bytes, used);
	t_set_limit("max_kept_bytes_per_uid", limit);
	k.paths = ADDRESS(paths);
	before = t_meminfo("MemAvailable");
	for (int i = 0; i < ROUNDS; i++) {
		REQUIRE_OK(ioctl(dev, TMESH_KEEP, &k));
		held[i] = REQUIRE_OK(open(MOUNT "/0/held", O_PATH | O_CLOEXEC));
		CHECK_OK(kept_drop(dev, "held"));
	}
	for (int i = 0; i < 200; i++) {
		after = t_meminfo("MemAvailable");
		if (before - after < 100000)
			break;
		usleep(100000);
	}
	CHECK(before - after < 100000);
	for (int i = 0; i < ROUNDS; i++) {
		CHECK_ERR(openat(held[i], "x", O_PATH), ENOENT);
		close(held[i]);
	}
	CHECK_EQ(t_caps(dev).used_kept_bytes, used);
	close(fd);
	unmount_here();
	free(paths);
	free(entries);
}
