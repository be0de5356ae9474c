// SPDX-License-Identifier: MIT
/*
 * Kept files as programs use them. Huge mappings, calls that engines make, copies, a lease beside
 * open files. Names and tables at their limits. Readers of user namespaces.
 */
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "files.h"
#include "lease.h"

#define BYTES (5 * MB + 123)
#define OUTSIDE 100000 /* the first user that the namespace maps */
#define OVERFLOW_ID 65534

TEST(huge, "a file in huge pages is mapped by 2 MiB entries, shared and private")
{
	static const int kinds[] = {MAP_SHARED, MAP_PRIVATE};
	int dev = t_dev(), region, fd;
	struct kept_files *f = no_files();
	unsigned char *p;

	if (!t_has_huge(dev))
		t_skip("no 2 MiB pages");
	mount_here();
	region = keep_region(dev, 2 * HUGE, TMESH_CREATE_HUGE, 7);
	files_add(f, "w", 0, 0, 2 * HUGE - 100);
	REQUIRE_OK(keep_files(dev, "h", &region, 1, f, 0600, 0));
	close(region);
	fd = REQUIRE_OK(open(MOUNT "/0/h/w", O_RDONLY | O_CLOEXEC));
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		p = mmap(NULL, 2 * HUGE, PROT_READ, kinds[i], fd, 0);
		REQUIRE(p != MAP_FAILED);
		CHECK_EQ((unsigned long)p % HUGE, 0);
		CHECK_EQ(t_pmd_mapped(p, 2 * HUGE), 2 * HUGE / KB);
		CHECK_EQ(p[HUGE], (unsigned char)(7 + HUGE / PAGE));
		munmap(p, 2 * HUGE);
	}
	close(fd);
	CHECK_OK(kept_drop(dev, "h"));
	unmount_here();
}

/* Keep a file "w" under the name "u". Return it, and a file in tmpfs with the same bytes. */
static int with_twin(int dev, int *twin)
{
	struct kept_files *f = no_files();
	int region = t_create(dev, BYTES, 0);
	unsigned char *p = t_map(region, BYTES, PROT_READ | PROT_WRITE);
	unsigned int seed = 5;

	REQUIRE(p != MAP_FAILED);
	*twin = REQUIRE_OK(open("/tmp/files_use", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
	unlink("/tmp/files_use");
	for (__u64 i = 0; i + 4 <= BYTES; i += 4)
		*(unsigned int *)(p + i) = t_random(&seed);
	REQUIRE(pwrite(*twin, p, BYTES, 0) == BYTES);
	munmap(p, BYTES);
	REQUIRE_OK(t_seal(region));
	files_add(f, "w", 0, 0, BYTES);
	REQUIRE_OK(keep_files(dev, "u", &region, 1, f, 0600, 0));
	close(region);
	return REQUIRE_OK(open(MOUNT "/0/u/w", O_RDONLY | O_CLOEXEC));
}

static const int advices[] = {
	MADV_NORMAL, MADV_RANDOM,  MADV_SEQUENTIAL, MADV_WILLNEED, MADV_POPULATE_READ,
	MADV_COLD,   MADV_PAGEOUT, MADV_DONTNEED,   MADV_DONTFORK, MADV_DONTDUMP,
};

#define CALLS 13

/* Make one call on a mapping, or on its file. Return -1 with errno if it fails. */
static long use(unsigned int number, int fd, unsigned char *p)
{
	static unsigned char copy[MB], pages[BYTES / PAGE + 1];
	int out, rc;

	switch (number) {
	case 0:
		return mlock(p, BYTES);
	case 1:
		return munlock(p, BYTES);
	case 2:
		return mincore(p, BYTES, pages);
	case 3:
		return msync(p, BYTES, MS_SYNC);
	case 4:
		return mprotect(p + MB, MB, PROT_NONE);
	case 5:
		return mprotect(p + MB, MB, PROT_READ);
	case 6:
		return process_vm_readv(getpid(), &(struct iovec){copy, MB}, 1,
					&(struct iovec){p + MB, MB}, 1, 0);
	case 7:
		out = REQUIRE_OK(memfd_create("out", MFD_CLOEXEC));
		rc = pwrite(out, p, BYTES, 0);
		close(out);
		return rc;
	case 8:
		errno = posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
		return errno ? -1 : 0;
	case 9:
		return readahead(fd, 0, BYTES);
	case 10:
		return fsync(fd);
	case 11:
		return flock(fd, LOCK_SH | LOCK_NB);
	case 12:
		return fcntl(fd, F_SETLK, &(struct flock){.l_type = F_RDLCK, .l_len = MB});
	default:
		return madvise(p, BYTES, advices[number - CALLS]);
	}
}

TEST(calls, "calls that engines make on a file and its mapping work as those on tmpfs")
{
	static const int kinds[] = {MAP_SHARED, MAP_PRIVATE};
	int dev = t_dev(), fd, twin;
	unsigned char *p, *q;

	mount_here();
	fd = with_twin(dev, &twin);
	for (size_t kind = 0; kind < ARRAY_SIZE(kinds); kind++) {
		p = mmap(NULL, BYTES, PROT_READ, kinds[kind], fd, 0);
		q = mmap(NULL, BYTES, PROT_READ, kinds[kind], twin, 0);
		REQUIRE(p != MAP_FAILED && q != MAP_FAILED);
		for (unsigned int i = 0; i < CALLS + ARRAY_SIZE(advices); i++) {
			long ours = use(i, fd, p), theirs;
			int error = ours < 0 ? errno : 0;

			theirs = use(i, twin, q);
			if (!CHECK_EQ(ours, theirs) || !CHECK_EQ(error, theirs < 0 ? errno : 0))
				t_note("call %u, kind %zu", i, kind);
		}
		/* llama.cpp gives up the parts of a mapping that it does not use. */
		CHECK_OK(munmap(p + MB, MB));
		CHECK_OK(munmap(p + 4 * MB, BYTES - 4 * MB));
		CHECK(!memcmp(p, q, MB));
		CHECK(!memcmp(p + 2 * MB, q + 2 * MB, 2 * MB));
		munmap(p, 4 * MB);
		munmap(q, BYTES);
	}
	close(fd);
	close(twin);
	CHECK_OK(kept_drop(dev, "u"));
	unmount_here();
}

TEST(copies, "statx says what there is; copy_file_range to another file system is refused")
{
	int dev = t_dev(), fd, twin, out;
	struct statx s;

	mount_here();
	fd = with_twin(dev, &twin);
	CHECK_OK(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &s));
	/* The file system keeps no time of access, and knows none of birth. */
	CHECK_EQ(s.stx_mask & (STATX_BASIC_STATS | STATX_BTIME), STATX_BASIC_STATS & ~STATX_ATIME);
	CHECK_EQ(s.stx_size, BYTES);
	CHECK_EQ(s.stx_nlink, 1);
	CHECK_EQ(s.stx_mode, S_IFREG | 0400);
	CHECK_EQ(s.stx_blocks, (BYTES + 511) / 512);
	CHECK_EQ(s.stx_mtime.tv_sec, 1700000000);
	CHECK_EQ(s.stx_mtime.tv_nsec, 123456790);
	/* Programs such as cp read the file then, as between any two file systems. */
	out = REQUIRE_OK(memfd_create("out", MFD_CLOEXEC));
	CHECK_ERR(copy_file_range(twin, NULL, out, NULL, BYTES, 0), EXDEV);
	CHECK_ERR(copy_file_range(fd, NULL, out, NULL, BYTES, 0), EXDEV);
	CHECK_ERR(copy_file_range(fd, NULL, fd, NULL, PAGE, 0), EBADF);
	close(out);
	close(fd);
	close(twin);
	CHECK_OK(kept_drop(dev, "u"));
	unmount_here();
}

TEST(lease, "a lease's end takes a handle's mappings, and leaves the open files of the name")
{
	int dev = t_dev(), fd, handle;
	pid_t pid = sleeper();
	unsigned char *p, *q;
	struct lease l;

	mount_here();
	REQUIRE_OK(keep_one(dev, "e", "f", 4 * PAGE, 10, 0600, 0));
	fd = REQUIRE_OK(open(MOUNT "/0/e/f", O_RDONLY | O_CLOEXEC));
	p = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	REQUIRE(p != MAP_FAILED);
	CHECK_ERR(lease_call(fd, 0, 0, 0, NULL), ENOTTY);
	REQUIRE_OK(kept_open(dev, "e", R_READ, 0, &handle, 1));
	l = lease_bind(handle, pid);
	q = t_map(handle, 4 * PAGE, PROT_READ);
	REQUIRE(q != MAP_FAILED);
	CHECK_EQ(t_read(q), 0);
	CHECK_EQ(t_read(p), 0);
	kill_and_reap(pid);
	await_end(&l, handle);
	CHECK_EQ(t_read(q), SIGBUS);
	CHECK_EQ(t_read(p), 0);
	CHECK_EQ(p[3 * PAGE], 13);
	CHECK(file_same(MOUNT "/0/e/f", 4 * PAGE, 10));
	munmap(q, 4 * PAGE);
	munmap(p, 4 * PAGE);
	lease_unmap(&l);
	close(handle);
	close(fd);
	CHECK_OK(kept_drop(dev, "e"));
	unmount_here();
}

TEST(vain, "what was looked for in vain is there once it is kept, and gone once it is dropped")
{
	static const char *const paths[] = {MOUNT "/3999", MOUNT "/3999/n", MOUNT "/3999/n/a",
					    MOUNT "/3999/n/a/f"};
	int sv[2];
	struct stat st;
	pid_t pid;

	mount_here();
	t_pair(sv);
	T_CHILD(pid) {
		int dev;

		t_become(3999, 3999, 0);
		dev = t_dev();
		for (int round = 0; round < 3; round++) {
			t_hear(sv[1]);
			CHECK_OK(keep_one(dev, "n", "a/f", PAGE, round, 0644, 0));
			t_say(sv[1]);
			t_hear(sv[1]);
			CHECK_OK(kept_drop(dev, "n"));
			t_say(sv[1]);
		}
	}
	for (int round = 0; round < 3; round++) {
		/* The folder of a user may stay for a while. */
		for (size_t i = round ? 1 : 0; i < ARRAY_SIZE(paths); i++)
			CHECK_ERR(stat(paths[i], &st), ENOENT);
		t_say(sv[0]);
		t_hear(sv[0]);
		for (size_t i = 0; i < ARRAY_SIZE(paths); i++)
			CHECK_OK(stat(paths[i], &st));
		CHECK_ERR(stat(MOUNT "/3999/n/b", &st), ENOENT);
		CHECK_ERR(stat(MOUNT "/3999\n", &st), ENOENT);
		CHECK(file_same(MOUNT "/3999/n/a/f", PAGE, round));
		t_say(sv[0]);
		t_hear(sv[0]);
	}
	t_wait(pid);
	unmount_here();
}

/* Read a directory in pieces that have room for one short entry. Return the number of entries. */
static int count_in_pieces(int dir)
{
	char piece[24];
	int n = 0;

	while (syscall(SYS_getdents64, dir, piece, sizeof(piece)) == sizeof(piece))
		n++;
	return n;
}

TEST(pieces, "folders are read an entry at a time, and one whose name is gone has no more entries")
{
	int dev = t_dev(), region = keep_region(dev, PAGE, 0, 1), dir;
	static const char *const folders[] = {MOUNT, MOUNT "/0", MOUNT "/0/n", MOUNT "/0/n/d"};
	static const int entries[] = {1, 1, 3, 2};
	struct kept_files *f = no_files();
	char piece[24];

	mount_here();
	files_add(f, "a", 0, 0, PAGE);
	files_add(f, "d/a", 0, 0, PAGE);
	files_add(f, "d/b", 0, 0, PAGE);
	files_add(f, "z", 0, 0, PAGE);
	REQUIRE_OK(keep_files(dev, "n", &region, 1, f, 0600, 0));
	close(region);
	for (size_t i = 0; i < ARRAY_SIZE(folders); i++) {
		dir = REQUIRE_OK(open(folders[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC));
		/* With "." and ".." */
		CHECK_EQ(count_in_pieces(dir), entries[i] + 2);
		close(dir);
	}
	dir = REQUIRE_OK(open(MOUNT "/0/n", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	for (int i = 0; i < 3; i++)
		CHECK_EQ(syscall(SYS_getdents64, dir, piece, sizeof(piece)), sizeof(piece));
	CHECK_OK(kept_drop(dev, "n"));
	CHECK_ERR(syscall(SYS_getdents64, dir, piece, sizeof(piece)), ENOENT);
	close(dir);
	unmount_here();
}

TEST(names, "names that no listing shows lead nowhere, and too long ones are refused as such")
{
	static const char *const folders[] = {MOUNT, MOUNT "/0", MOUNT "/0/n", MOUNT "/0/n/d"};
	static const char *const users[] = {"+0", "0\n", "-0", "00", " 0", "0x0", "000000000000"};
	int dev = t_dev();
	char path[400];
	struct stat st;

	mount_here();
	REQUIRE_OK(keep_one(dev, "n", "d/f", PAGE, 1, 0600, 0));
	CHECK_OK(stat(MOUNT "/0/n/d/f", &st));
	for (size_t i = 0; i < ARRAY_SIZE(users); i++) {
		snprintf(path, sizeof(path), MOUNT "/%s", users[i]);
		CHECK_ERR(stat(path, &st), ENOENT);
	}
	for (size_t i = 0; i < ARRAY_SIZE(folders); i++) {
		snprintf(path, sizeof(path), "%s/%0255d", folders[i], 0);
		CHECK_ERR(stat(path, &st), ENOENT);
		snprintf(path, sizeof(path), "%s/%0256d", folders[i], 0);
		CHECK_ERR(stat(path, &st), ENAMETOOLONG);
	}
	CHECK_OK(kept_drop(dev, "n"));
	unmount_here();
}

TEST(reopened, "a file of a name that is gone is not opened again by a descriptor of its path")
{
	int dev = t_dev(), path;
	char again[32];

	mount_here();
	REQUIRE_OK(keep_one(dev, "n", "f", PAGE, 1, 0600, 0));
	path = REQUIRE_OK(open(MOUNT "/0/n/f", O_PATH | O_CLOEXEC));
	snprintf(again, sizeof(again), "/proc/self/fd/%d", path);
	CHECK(file_same(again, PAGE, 1));
	CHECK_OK(kept_drop(dev, "n"));
	CHECK_ERR(open(again, O_RDONLY | O_CLOEXEC), ESTALE);
	close(path);
	unmount_here();
}

TEST(empty, "an open file without bytes holds nothing, and cannot be mapped")
{
	int dev = t_dev(), region = keep_region(dev, PAGE, 0, 1), fd;
	struct kept_files *f = no_files();
	__u64 before = t_caps(dev).used_files;
	struct tmesh_kept kept;

	mount_here();
	files_add(f, "empty", 0, PAGE, 0);
	files_add(f, "f", 0, 0, PAGE);
	REQUIRE_OK(keep_files(dev, "n", &region, 1, f, 0600, 0));
	close(region);
	fd = REQUIRE_OK(open(MOUNT "/0/n/empty", O_RDONLY | O_CLOEXEC));
	REQUIRE(kept_find(dev, "n", &kept));
	CHECK_EQ(kept.held, 0);
	CHECK_EQ(t_caps(dev).used_files, before);
	CHECK_EQ(pread(fd, &(char){0}, 1, 0), 0);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL);
	close(fd);
	CHECK_OK(kept_drop(dev, "n"));
	unmount_here();
}

/* Try to keep a name with a wrong table. */
static void refused(int dev, struct tmesh_keep k, int error)
{
	CHECK_ERR(ioctl(dev, TMESH_KEEP, &k), error);
	CHECK_EQ(t_caps(dev).used_kept_names, 0);
}

TEST(tables, "wrong tables are refused that are right but for one thing")
{
	int dev = t_dev(), region = keep_region(dev, PAGE, 0, 1);
	static struct {
		struct tmesh_file file;
		char zeros[2 * PAGE];
	} wide;
	struct kept_files *f = no_files();
	struct tmesh_keep k = keep_call("n", &region, 1);

	/* Only one of the fields is set. */
	k.files = ADDRESS(&wide);
	refused(dev, k, EINVAL);
	k = keep_call("n", &region, 1);
	k.paths = ADDRESS("a");
	refused(dev, k, EINVAL);
	k = keep_call("n", &region, 1);
	k.path_bytes = 2;
	refused(dev, k, EINVAL);
	k = keep_call("n", &region, 1);
	k.file_bytes = sizeof(struct tmesh_file);
	refused(dev, k, EINVAL);
	/* An entry that is too short or too long, and has zeros where another one would fail. */
	k.files = ADDRESS(&wide);
	k.file_count = 1;
	k.paths = ADDRESS("a");
	k.path_bytes = 2;
	k.file_bytes = 24;
	refused(dev, k, EINVAL);
	k.file_bytes = PAGE + 8;
	refused(dev, k, E2BIG);
	/* An entry without a path, behind one that is right. */
	files_add(f, "a", 0, 0, PAGE);
	k = files_call("n", &region, 1, f);
	files_add(f, "", 0, 0, PAGE);
	k.file_count = 2;
	refused(dev, k, EINVAL);
	/* A slash comes before all other bytes, so these are in a wrong order. */
	f = no_files();
	files_add(f, "a.x", 0, 0, PAGE);
	files_add(f, "a/b", 0, 0, PAGE);
	refused(dev, files_call("n", &region, 1, f), EINVAL);
	f = no_files();
	files_add(f, "a/b", 0, 0, PAGE);
	files_add(f, "a", 0, 0, PAGE);
	refused(dev, files_call("n", &region, 1, f), EINVAL);
	f = no_files();
	files_add(f, "a/b", 0, 0, PAGE);
	files_add(f, "a.x", 0, 0, PAGE);
	files_add(f, "aa", 0, 0, PAGE);
	CHECK_OK(keep_files(dev, "n", &region, 1, f, 0600, 0));
	CHECK_OK(kept_drop(dev, "n"));
	close(region);
}

/* Test a file's bytes, and its owner and group as this process sees them. */
static void is_seen(const char *path, unsigned int uid, unsigned int gid, unsigned char value)
{
	struct stat st;

	if (!CHECK_OK(stat(path, &st)))
		return;
	CHECK_EQ(st.st_uid, uid);
	CHECK_EQ(st.st_gid, gid);
	CHECK_EQ(st.st_size, PAGE);
	CHECK(file_same(path, PAGE, value));
}

static void map_ids(pid_t pid, const char *file)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
	CHECK(t_write_file(path, "0 100000 2"));
}

/* Keep a file that its owner alone reads. */
static void keep_own(uid_t uid, unsigned char value)
{
	pid_t pid;

	T_CHILD(pid) {
		t_become(uid, uid, 0);
		CHECK_OK(keep_one(t_dev(), "own", "f", PAGE, value, 0600, 0));
	}
	t_wait(pid);
}

static void drop_own(uid_t uid)
{
	pid_t pid;

	T_CHILD(pid) {
		t_become(uid, uid, 0);
		CHECK_OK(kept_drop(t_dev(), "own"));
	}
	t_wait(pid);
}

TEST(mapped, "users without a mapping show as overflow ids; root of a namespace reads mapped users")
{
	int dev = t_dev(), ready[2];
	pid_t pid;

	mount_here();
	REQUIRE_OK(keep_one(dev, "all", "f", PAGE, 6, 0644, 0));
	keep_own(0, 7);
	keep_own(OUTSIDE, 8);
	keep_own(OUTSIDE + 1, 9);
	t_pair(ready);
	T_CHILD(pid) {
		t_become(OUTSIDE, OUTSIDE, 0);
		REQUIRE_OK(unshare(CLONE_NEWUSER));
		/* The namespace maps no user. The kernel still compares users, not what they show
		 * as. */
		CHECK_EQ(getuid(), OVERFLOW_ID);
		is_seen(MOUNT "/0/all/f", OVERFLOW_ID, OVERFLOW_ID, 6);
		is_seen(MOUNT "/100000/own/f", OVERFLOW_ID, OVERFLOW_ID, 8);
		CHECK_ERR(open(MOUNT "/0/own/f", O_RDONLY), EACCES);
		CHECK_ERR(open(MOUNT "/100001/own/f", O_RDONLY), EACCES);
		t_say(ready[1]);
		t_hear(ready[1]);
		t_become(0, 0, 0);
		is_seen(MOUNT "/0/all/f", OVERFLOW_ID, OVERFLOW_ID, 6);
		is_seen(MOUNT "/100000/own/f", 0, 0, 8);
		/* By its capabilities, which reach the users that are mapped. */
		is_seen(MOUNT "/100001/own/f", 1, 1, 9);
		CHECK_ERR(open(MOUNT "/0/own/f", O_RDONLY), EACCES);
		CHECK_ERR(open(MOUNT "/0", O_RDONLY | O_DIRECTORY), EACCES);
	}
	t_hear(ready[0]);
	map_ids(pid, "gid_map");
	map_ids(pid, "uid_map");
	t_say(ready[0]);
	t_wait(pid);
	drop_own(OUTSIDE);
	drop_own(OUTSIDE + 1);
	CHECK_OK(kept_drop(dev, "own"));
	CHECK_OK(kept_drop(dev, "all"));
	unmount_here();
}

int main(void)
{
	return t_main();
}
