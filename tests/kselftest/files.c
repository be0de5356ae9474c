// SPDX-License-Identifier: MIT
/*
 * Kept files, and the file system that shows them: the tree, reading, mapping, users and
 * namespaces. files_held.c has files that are open while their name or memory goes.
 */
#include <dirent.h>
#include <grp.h>
#include <sched.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/xattr.h>

#include "files.h"

#define ALICE 1001
#define BOB 1002
#define TEAM 2001

TEST(arguments, "tables that are wrong are refused, and nothing is kept of them")
{
	int dev = t_dev(), fds[2], memfd;
	struct tmesh_create_memfd m = {.size = sizeof(m)};
	struct kept_files *f = no_files();
	struct tmesh_caps_query before, after;
	struct tmesh_keep k;
	unsigned char *p;
	char path[1100];

	fds[0] = REQUIRE_OK(t_create(dev, 3 * PAGE, 0));
	p = t_map(fds[0], 3 * PAGE, PROT_READ | PROT_WRITE);
	REQUIRE(p != MAP_FAILED);
	p[100] = 1;
	munmap(p, 3 * PAGE);
	REQUIRE_OK(t_seal(fds[0]));
	memfd = REQUIRE_OK(memfd_create("files", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	REQUIRE_OK(ftruncate(memfd, PAGE));
	REQUIRE_OK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE));
	m.memfd = memfd;
	REQUIRE_OK(ioctl(dev, TMESH_CREATE_MEMFD, &m));
	fds[1] = m.fd;
	REQUIRE_OK(t_seal(fds[1]));
	before = t_caps(dev);
	CHECK(before.features & TMESH_FEATURE_FILES);

#define REFUSED(want, ...)                                   \
	do {                                                 \
		f = no_files();                              \
		files_add(f, "a/b", 0, 0, PAGE);             \
		files_add(f, "a/c", 0, PAGE, 2 * PAGE);      \
		k = files_call("x", fds, 2, f);              \
		__VA_ARGS__;                                 \
		CHECK_ERR(ioctl(dev, TMESH_KEEP, &k), want); \
	} while (0)
#define FIRST(text)                                                 \
	(strcpy(f->paths, text), f->entries[1].path = sizeof(text), \
	 strcpy(f->paths + sizeof(text), "z"), k.path_bytes = sizeof(text) + 2)
	REFUSED(EINVAL, FIRST(""));
	REFUSED(EINVAL, FIRST("/a"));
	REFUSED(EINVAL, FIRST("a//b"));
	REFUSED(EINVAL, FIRST("a/"));
	REFUSED(EINVAL, FIRST("."));
	REFUSED(EINVAL, FIRST(".."));
	REFUSED(EINVAL, FIRST("a/../b"));
	REFUSED(EINVAL, FIRST("a/."));
	REFUSED(EEXIST, FIRST("z"));
	REFUSED(EINVAL, FIRST("zz"));
	REFUSED(EEXIST, strcpy(f->paths, "a"), f->entries[1].path = 2, strcpy(f->paths + 2, "a/b"),
		k.path_bytes = 6);
	memset(path, 'p', sizeof(path));
	path[256] = '\0';
	REFUSED(EINVAL, no_files(), files_add(f, path, 0, 0, PAGE), k.file_count = 1,
		k.path_bytes = f->bytes);
	path[256] = 'p';
	for (int i = 200; i < 1024; i += 200)
		path[i] = '/';
	path[1024] = '\0';
	REFUSED(EINVAL, no_files(), files_add(f, path, 0, 0, PAGE), files_add(f, "z", 0, 0, PAGE),
		k.path_bytes = f->bytes);
	/* Numbers that do not fit. */
	REFUSED(EINVAL, f->entries[1].path = 3);
	REFUSED(EINVAL, f->entries[0].path = 1);
	REFUSED(EINVAL, f->entries[1].path = ~0u);
	REFUSED(EINVAL, k.path_bytes--);
	REFUSED(EINVAL, k.path_bytes++);
	REFUSED(EINVAL, k.path_bytes = 1);
	REFUSED(E2BIG, k.path_bytes = 2 * 1024 + 1);
	REFUSED(E2BIG, k.path_bytes = ~0ull);
	REFUSED(E2BIG, k.file_count = TMESH_FILES_MAX + 1);
	REFUSED(E2BIG, k.file_count = ~0u);
	REFUSED(EINVAL, k.file_count = 0);
	REFUSED(EINVAL, k.file_bytes = 24);
	REFUSED(EINVAL, k.file_bytes = 36);
	REFUSED(E2BIG, k.file_bytes = PAGE + 8);
	REFUSED(EFAULT, k.files = 8);
	REFUSED(EFAULT, k.paths = 8);
	REFUSED(EINVAL, f->entries[1].region = 2);
	REFUSED(EOPNOTSUPP, f->entries[1].region = 1);
	REFUSED(EINVAL, f->entries[1].offset = 64);
	REFUSED(EINVAL, f->entries[1].bytes = 2 * PAGE + 1);
	REFUSED(EINVAL, f->entries[1].offset = 4 * PAGE, f->entries[1].bytes = 0);
	REFUSED(EINVAL, f->entries[1].offset = -PAGE, f->entries[1].bytes = 2 * PAGE);
	/* The last page would show byte 100 behind the file's end. */
	REFUSED(EINVAL, f->entries[0].bytes = 100);
	REFUSED(EINVAL, strcpy(k.name, ".x"));
	REFUSED(EINVAL, strcpy(k.name, "x/y"));
	REFUSED(EINVAL, k.mode = 0660);
	REFUSED(EINVAL, k.mode = 0664);
	REFUSED(EINVAL, k.mode = 0755);
	after = t_caps(dev);
	CHECK_EQ(after.used_kept_names, before.used_kept_names);
	CHECK_EQ(after.used_kept_bytes, before.used_kept_bytes);
	f = no_files();
	files_add(f, "a", 0, 0, 101);
	CHECK_OK(keep_files(dev, "x", fds, 2, f, 0644, 0));
	after = t_caps(dev);
	/* Three pages of one region, one of the other, and one of the table. */
	CHECK_EQ(after.used_kept_bytes, before.used_kept_bytes + 5 * PAGE);
	CHECK_OK(kept_drop(dev, "x"));
	after = t_caps(dev);
	CHECK_EQ(after.used_kept_bytes, before.used_kept_bytes);
}

TEST(tree, "the tree shows all files, each of its length, with owner, mode, times and numbers")
{
	static const char *const paths[] = {"a/b/c", "a/b/d", "a/e",	"a.x",
					    "b",     "empty", "z/y/x/w"};
	static const __u64 lengths[] = {1, PAGE, PAGE + 1, 3 * PAGE - 1, 77, 0, 12345};
	int dev = t_dev(), fd, entries = 0;
	struct kept_files *f = no_files();
	struct tmesh_keep k;
	unsigned char *p, got[4 * PAGE];
	struct statfs fs;
	struct stat st, here;
	struct dirent *e;
	char path[512];
	DIR *dir;

	fd = REQUIRE_OK(t_create(dev, 7 * 4 * PAGE, 0));
	p = t_map(fd, 7 * 4 * PAGE, PROT_READ | PROT_WRITE);
	REQUIRE(p != MAP_FAILED);
	for (unsigned int i = 0; i < ARRAY_SIZE(paths); i++) {
		memset(p + i * 4 * PAGE, 'A' + i, lengths[i]);
		files_add(f, paths[i], 0, i * 4 * PAGE, lengths[i]);
	}
	munmap(p, 7 * 4 * PAGE);
	REQUIRE_OK(t_seal(fd));
	mount_here();
	k = files_call("m", &fd, 1, f);
	k.flags = TMESH_KEEP_GID;
	k.gid = 0;
	k.mode = 0640;
	REQUIRE_OK(ioctl(dev, TMESH_KEEP, &k));
	close(fd);
	for (unsigned int i = 0; i < ARRAY_SIZE(paths); i++) {
		snprintf(path, sizeof(path), MOUNT "/0/m/%s", paths[i]);
		if (!CHECK_OK(fd = open(path, O_RDONLY | O_CLOEXEC)))
			continue;
		CHECK_OK(fstat(fd, &st));
		CHECK_EQ(st.st_size, lengths[i]);
		CHECK_EQ(st.st_mode, S_IFREG | 0440);
		CHECK_EQ(st.st_nlink, 1);
		CHECK_EQ(st.st_uid, 0);
		CHECK_EQ(st.st_mtim.tv_sec, 1700000000);
		CHECK_EQ(st.st_mtim.tv_nsec, 123456789 + i + 1);
		CHECK_EQ(st.st_blocks, (lengths[i] + 511) / 512);
		CHECK_EQ(read(fd, got, sizeof(got)), lengths[i]);
		CHECK(!lengths[i] || (got[0] == 'A' + i && got[lengths[i] - 1] == 'A' + i));
		CHECK_EQ(read(fd, got, sizeof(got)), 0);
		CHECK_EQ(lseek(fd, 0, SEEK_END), lengths[i]);
		if (lengths[i]) {
			CHECK_EQ(lseek(fd, 0, SEEK_HOLE), lengths[i]);
			CHECK_EQ(lseek(fd, 0, SEEK_DATA), 0);
		}
		CHECK_EQ(pread(fd, got, 10, lengths[i]), 0);
		CHECK_EQ(pread(fd, got, 10, 1ull << 62), 0);
		close(fd);
	}
	dir = opendir(MOUNT "/0/m/a");
	REQUIRE(dir);
	while ((e = readdir(dir))) {
		entries++;
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), MOUNT "/0/m/a/%s", e->d_name);
		CHECK_OK(stat(path, &here));
		CHECK_EQ(here.st_ino, e->d_ino);
		CHECK_EQ(e->d_type, S_ISDIR(here.st_mode) ? DT_DIR : DT_REG);
	}
	closedir(dir);
	CHECK_EQ(entries, 4);
	CHECK_OK(stat(MOUNT "/0/m", &st));
	CHECK_EQ(st.st_mode, S_IFDIR | 0550);
	CHECK_OK(stat(MOUNT "/0", &st));
	CHECK_EQ(st.st_mode, S_IFDIR | 0711);
	CHECK_OK(statfs(MOUNT, &fs));
	CHECK_EQ(fs.f_type, 0x746d7368);
	CHECK_ERR(stat(MOUNT "/0/m/a/b/c/d", &st), ENOTDIR);
	CHECK_ERR(stat(MOUNT "/0/m/a/", &st) ? -1 : stat(MOUNT "/0/m/a/x", &st), ENOENT);
	CHECK_ERR(stat(MOUNT "/0/m/a/bb", &st), ENOENT);
	CHECK_ERR(stat(MOUNT "/0/n", &st), ENOENT);
	CHECK_ERR(stat(MOUNT "/00", &st), ENOENT);
	CHECK_ERR(stat(MOUNT "/1", &st), ENOENT);
	CHECK_ERR(stat(MOUNT "/4294967296", &st), ENOENT);
	CHECK_ERR(stat(MOUNT "/x", &st), ENOENT);
	/* Nothing can be changed. */
	CHECK_ERR(open(MOUNT "/0/m/b", O_RDWR), EROFS);
	CHECK_ERR(open(MOUNT "/0/m/new", O_RDWR | O_CREAT, 0600), EROFS);
	CHECK_ERR(truncate(MOUNT "/0/m/b", 0), EROFS);
	CHECK_ERR(unlink(MOUNT "/0/m/b"), EROFS);
	CHECK_ERR(mkdir(MOUNT "/0/m/new", 0700), EROFS);
	CHECK_ERR(rename(MOUNT "/0/m/b", MOUNT "/0/m/bb"), EROFS);
	CHECK_ERR(link(MOUNT "/0/m/b", MOUNT "/0/m/bb"), EROFS);
	CHECK_ERR(chmod(MOUNT "/0/m/b", 0777), EROFS);
	CHECK_ERR(mount("none", MOUNT, NULL, MS_REMOUNT, NULL) ? -1 : open(MOUNT "/0/m/b", O_RDWR),
		  EROFS);
	/* A name without files is not shown. */
	fd = keep_region(dev, PAGE, 0, 1);
	CHECK_OK(keep(dev, "plain", &fd, 1, 0));
	close(fd);
	CHECK_ERR(stat(MOUNT "/0/plain", &st), ENOENT);
	CHECK_OK(kept_drop(dev, "plain"));
	CHECK_OK(kept_drop(dev, "m"));
	CHECK_ERR(stat(MOUNT "/0/m/b", &st), ENOENT);
	unmount_here();
}

/* Compare reads of two files at random places, by all calls that read. */
static void read_both(int one, int two, __u64 bytes, unsigned int *seed)
{
	static unsigned char a[256 * KB], b[256 * KB];
	__u64 at = t_random(seed) % (bytes + PAGE), length = t_random(seed) % sizeof(a) + 1;
	struct iovec va[2], vb[2];
	ssize_t got;
	int out;

	switch (t_random(seed) % 4) {
	case 0:
		got = pread(one, a, length, at);
		CHECK_EQ(got, pread(two, b, length, at));
		CHECK(got <= 0 || !memcmp(a, b, got));
		break;
	case 1:
		va[0] = (struct iovec){a, length / 2};
		va[1] = (struct iovec){a + length / 2, length - length / 2};
		vb[0] = (struct iovec){b, length / 2};
		vb[1] = (struct iovec){b + length / 2, length - length / 2};
		got = preadv(one, va, 2, at);
		CHECK_EQ(got, preadv(two, vb, 2, at));
		CHECK(got <= 0 || !memcmp(a, b, got));
		break;
	case 2:
		out = REQUIRE_OK(memfd_create("out", MFD_CLOEXEC));
		got = sendfile(out, one, (off_t[]){at}, length);
		CHECK_EQ(pread(two, b, length, at), got);
		CHECK_EQ(pread(out, a, length, 0), got);
		CHECK(got <= 0 || !memcmp(a, b, got));
		close(out);
		break;
	default: {
		int pipes[2];

		REQUIRE_OK(pipe(pipes));
		got = splice(one, (off_t[]){at}, pipes[1], NULL, 16 * KB, 0);
		if (CHECK(got >= 0) && got) {
			CHECK_EQ(read(pipes[0], a, 16 * KB), got);
			CHECK_EQ(pread(two, b, got, at), got);
			CHECK(!memcmp(a, b, got));
		} else {
			CHECK(at >= bytes);
		}
		close(pipes[0]);
		close(pipes[1]);
	}
	}
}

TEST(reader, "a random reader gets the bytes that a file on tmpfs gives, and so do mappings")
{
	const __u64 bytes = 5 * MB + 123;
	int dev = t_dev(), fd, one, two;
	struct kept_files *f = no_files();
	unsigned char *p, *q;
	unsigned int seed = 39;

	two = REQUIRE_OK(memfd_create("twin", MFD_CLOEXEC));
	REQUIRE_OK(ftruncate(two, bytes));
	fd = REQUIRE_OK(t_create(dev, bytes, 0));
	p = t_map(fd, bytes, PROT_READ | PROT_WRITE);
	q = t_map(two, bytes, PROT_READ | PROT_WRITE);
	REQUIRE(p != MAP_FAILED && q != MAP_FAILED);
	for (__u64 i = 0; i + 4 <= bytes; i += 4)
		*(unsigned int *)(p + i) = *(unsigned int *)(q + i) = t_random(&seed);
	munmap(p, bytes);
	REQUIRE_OK(t_seal(fd));
	files_add(f, "w", 0, 0, bytes);
	mount_here();
	REQUIRE_OK(keep_files(dev, "r", &fd, 1, f, 0600, 0));
	close(fd);
	one = REQUIRE_OK(open(MOUNT "/0/r/w", O_RDONLY | O_CLOEXEC));
	for (long i = 0; i < t_length(2000, 20000) && !t_failed(); i++)
		read_both(one, two, bytes, &seed);
	p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, one, 0);
	if (CHECK(p != MAP_FAILED)) {
		CHECK(!memcmp(p, q, bytes));
		/* The last page has zeros behind the end. */
		CHECK_EQ(p[bytes], 0);
		CHECK_EQ(p[(bytes | (PAGE - 1))], 0);
		CHECK_ERR(mprotect(p, PAGE, PROT_READ | PROT_WRITE), EACCES);
		CHECK_ERR(mprotect(p, PAGE, PROT_READ | PROT_EXEC), EACCES);
		if (t_has_huge(dev))
			t_note("%ld kB mapped by PMDs", t_pmd_mapped(p, bytes));
		munmap(p, bytes);
	}
	p = mmap(NULL, 2 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE, one, PAGE);
	if (CHECK(p != MAP_FAILED)) {
		CHECK(!memcmp(p, q + PAGE, 2 * MB));
		memset(p, 1, 3 * PAGE);
		CHECK_EQ(p[2 * PAGE], 1);
		CHECK(!memcmp(p + 3 * PAGE, q + 4 * PAGE, PAGE));
		munmap(p, 2 * MB);
	}
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, one, 0) == MAP_FAILED &&
	      errno == EACCES);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, one, 0) == MAP_FAILED &&
	      errno == EPERM);
	CHECK(mmap(NULL, bytes + 2 * PAGE, PROT_READ, MAP_SHARED, one, 0) == MAP_FAILED &&
	      errno == EINVAL);
	CHECK_ERR(syscall(SYS_pread64, one, 8, PAGE, 0), EFAULT);
	CHECK_ERR(ioctl(one, TMESH_SEAL, &(struct tmesh_seal){.size = sizeof(struct tmesh_seal)}),
		  ENOTTY);
	CHECK_OK(posix_fadvise(one, 0, 0, POSIX_FADV_WILLNEED));
	close(one);
	one = open(MOUNT "/0/r/w", O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (CHECK_OK(one)) {
		static unsigned char direct[PAGE] __attribute__((aligned(4096)));

		CHECK_EQ(pread(one, direct, PAGE, PAGE), PAGE);
		CHECK(!memcmp(direct, q + PAGE, PAGE));
		close(one);
	}
	CHECK_OK(kept_drop(dev, "r"));
	unmount_here();
	munmap(q, bytes);
}

/* Read a file as another user, in a process of its own. Return 0 or the error. */
static int read_as(uid_t uid, gid_t gid, gid_t extra, const char *path)
{
	pid_t pid = fork();
	int status;

	REQUIRE_OK(pid);
	if (!pid) {
		int fd;

		t_become(uid, gid, extra);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		_exit(fd < 0 ? errno : read(fd, &(char){0}, 1) == 1 ? 0 : 255);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(users, "owner, group and mode decide which users read a file, and who lists names")
{
	int dev = t_dev();

	mount_here();
	T_ALONE()
	{
		int own;

		t_become(ALICE, ALICE, TEAM);
		own = REQUIRE_OK(open("/dev/tmesh", O_RDWR | O_CLOEXEC));
		CHECK_OK(keep_one(own, "own", "f", PAGE, 1, 0600, 0));
		CHECK_OK(keep_one(own, "all", "f", PAGE, 1, 0644, 0));
	}
	CHECK_EQ(read_as(ALICE, ALICE, 0, MOUNT "/1001/own/f"), 0);
	CHECK_EQ(read_as(BOB, BOB, 0, MOUNT "/1001/own/f"), EACCES);
	CHECK_EQ(read_as(BOB, ALICE, 0, MOUNT "/1001/own/f"), EACCES);
	CHECK_EQ(read_as(BOB, BOB, 0, MOUNT "/1001/all/f"), 0);
	CHECK_EQ(read_as(BOB, BOB, 0, MOUNT "/1001"), EACCES);
	CHECK_EQ(read_as(0, 0, 0, MOUNT "/1001/own/f"), 0);
	T_ALONE()
	{
		int own, region;
		struct tmesh_keep k;

		t_become(ALICE, ALICE, TEAM);
		own = REQUIRE_OK(open("/dev/tmesh", O_RDWR | O_CLOEXEC));
		region = keep_region(own, PAGE, 0, 1);
		files_add(no_files(), "f", 0, 0, PAGE);
		k = files_call("team", &region, 1, &files);
		k.mode = 0640;
		k.flags = TMESH_KEEP_GID;
		k.gid = TEAM;
		CHECK_OK(ioctl(own, TMESH_KEEP, &k));
	}
	T_ALONE()
	{
		struct tmesh_kept_open o = {.size = sizeof(o),
					    .flags = TMESH_KEPT_UID,
					    .name = "all",
					    .uid = ALICE,
					    .rights = R_READ};

		/* Others are admitted to the files, not to the regions. */
		t_become(BOB, BOB, 0);
		CHECK_ERR(ioctl(REQUIRE_OK(open("/dev/tmesh", O_RDWR | O_CLOEXEC)), TMESH_KEPT_OPEN,
				&o),
			  ENOENT);
	}
	CHECK_EQ(read_as(BOB, BOB, TEAM, MOUNT "/1001/team/f"), 0);
	CHECK_EQ(read_as(BOB, BOB, 0, MOUNT "/1001/team/f"), EACCES);
	T_ALONE()
	{
		int own;

		t_become(ALICE, ALICE, 0);
		own = REQUIRE_OK(open("/dev/tmesh", O_RDWR | O_CLOEXEC));
		CHECK_OK(kept_drop(own, "own"));
		CHECK_OK(kept_drop(own, "all"));
		CHECK_OK(kept_drop(own, "team"));
	}
	CHECK_EQ(t_listed(dev), 0);
	unmount_here();
}

TEST(namespaces, "the mount's IPC namespace decides what is shown, the reader's namespaces do not")
{
	int dev = t_dev();

	mount_here();
	REQUIRE_OK(keep_one(dev, "n", "f", PAGE, 7, 0644, 0));
	T_ALONE()
	{
		char map[64];
		int users, ready[2], own;
		pid_t mapped;

		/* A container: other namespaces, and the tree by a read-only bind mount. */
		REQUIRE_OK(unshare(CLONE_NEWIPC | CLONE_NEWNS | CLONE_NEWPID));
		REQUIRE_OK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
		mkdir("/bound", 0755);
		REQUIRE_OK(mount(MOUNT, "/bound", NULL, MS_BIND, NULL));
		REQUIRE_OK(mount(NULL, "/bound", NULL,
				 MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL));
		CHECK(file_same("/bound/0/n/f", PAGE, 7));
		/* Its own mount shows its own names. */
		files_mount("/inner");
		CHECK_ERR(open("/inner/0/n/f", O_RDONLY), ENOENT);
		own = REQUIRE_OK(open("/dev/tmesh", O_RDWR | O_CLOEXEC));
		CHECK_OK(keep_one(own, "inner", "f", PAGE, 9, 0644, 0));
		CHECK(file_same("/inner/0/inner/f", PAGE, 9));
		CHECK_ERR(open("/bound/0/inner/f", O_RDONLY), ENOENT);
		CHECK_OK(kept_drop(own, "inner"));
		CHECK_OK(umount("/inner"));
		/* A user namespace whose root is another user. */
		t_pair(ready);
		mapped = fork();
		REQUIRE_OK(mapped);
		if (!mapped) {
			REQUIRE_OK(unshare(CLONE_NEWUSER));
			t_say(ready[1]);
			t_hear(ready[1]);
			_exit(setresuid(0, 0, 0) || !file_same("/bound/0/n/f", PAGE, 7) ? 1
			      : unshare(CLONE_NEWNS | CLONE_NEWIPC)
				      ? 2
				      : mount("none", "/inner", "tmesh", 0, NULL) != -1 ||
						errno != EPERM);
		}
		t_hear(ready[0]);
		snprintf(map, sizeof(map), "/proc/%d/uid_map", mapped);
		users = open(map, O_WRONLY);
		CHECK(users >= 0 && write(users, "0 100000 1", 10) == 10);
		t_say(ready[0]);
		t_wait(mapped);
	}
	CHECK_OK(kept_drop(dev, "n"));
	unmount_here();
}

TEST(pieces,
     "a folder is read in pieces while names go, and none that stays is left out or doubled")
{
	int dev = t_dev(), dir, seen[64] = {0};
	const size_t room = sizeof(struct dirent64);
	char name[16], *buffer = malloc(room);
	long got;
	int dropped = 0;

	mount_here();
	for (int i = 0; i < 64; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		REQUIRE_OK(keep_one(dev, name, "f", PAGE, i, 0600, 0));
	}
	dir = REQUIRE_OK(open(MOUNT "/0", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	while ((got = syscall(SYS_getdents64, dir, buffer, room)) > 0) {
		for (long at = 0; at < got;) {
			struct dirent64 *e = (struct dirent64 *)(buffer + at);

			if (e->d_name[0] == 'n')
				seen[atoi(e->d_name + 1)]++;
			at += e->d_reclen;
		}
		/* Every second name goes, in the opposite order. */
		if (dropped < 20) {
			snprintf(name, sizeof(name), "n%d", 63 - 2 * dropped++);
			CHECK_OK(kept_drop(dev, name));
		}
	}
	CHECK_EQ(got, 0);
	free(buffer);
	close(dir);
	for (int i = 0; i < 64; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		if (kept_drop(dev, name) == 0)
			CHECK_EQ(seen[i], 1);
		else
			CHECK(seen[i] <= 1);
	}
	unmount_here();
}

TEST(mounts, "two mounts show the same; one with open files is busy; the module stays")
{
	int dev = t_dev(), fd;
	unsigned char *p;

	mount_here();
	files_mount("/second");
	REQUIRE_OK(keep_one(dev, "t", "f", 2 * PAGE, 7, 0600, 0));
	CHECK(file_same(MOUNT "/0/t/f", 2 * PAGE, 7));
	CHECK(file_same("/second/0/t/f", 2 * PAGE, 7));
	fd = REQUIRE_OK(open("/second/0/t/f", O_RDONLY | O_CLOEXEC));
	CHECK_ERR(umount("/second"), EBUSY);
	p = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	REQUIRE(p != MAP_FAILED);
	close(fd);
	CHECK_ERR(umount("/second"), EBUSY);
	CHECK_OK(umount2("/second", MNT_DETACH));
	CHECK_EQ(p[PAGE], 8);
	munmap(p, 2 * PAGE);
	CHECK_OK(kept_drop(dev, "t"));
	close(dev);
	CHECK_ERR(syscall(SYS_delete_module, "tmesh", O_NONBLOCK), EAGAIN);
	CHECK_ERR(mount("none", "/second", "tmesh", 0, "option=1"), EINVAL);
	unmount_here();
}

TEST(many, "a table of as many files as there may be is shown whole")
{
	const __u32 count = TMESH_FILES_MAX, stride = 40;
	__u32 shown = 0;
	int dev = t_dev(), fd = keep_region(dev, PAGE, 0, 1);
	char *paths = malloc(count * 20), *entries = calloc(count, stride), path[64];
	struct tmesh_keep k = keep_call("many", &fd, 1);
	size_t at = 0;
	struct dirent *e;
	struct stat st;
	DIR *dir;

	REQUIRE(paths && entries);
	mount_here();
	for (__u32 i = 0; i < count; i++) {
		struct tmesh_file *file = (struct tmesh_file *)(entries + i * stride);

		file->path = at;
		file->bytes = i % 2 ? PAGE : 0;
		at += sprintf(paths + at, "%03u/%05u", i / 256, i) + 1;
	}
	k.files = ADDRESS(entries);
	k.file_count = count;
	k.file_bytes = stride;
	k.paths = ADDRESS(paths);
	k.path_bytes = at;
	/* An entry may have more than the module knows, if that is zero. */
	entries[stride - 1] = 1;
	CHECK_ERR(ioctl(dev, TMESH_KEEP, &k), E2BIG);
	entries[stride - 1] = 0;
	REQUIRE_OK(ioctl(dev, TMESH_KEEP, &k));
	for (int i = 0; i < 256; i += 51) {
		snprintf(path, sizeof(path), MOUNT "/0/many/%03d", i);
		dir = opendir(path);
		REQUIRE(dir);
		while ((e = readdir(dir)))
			shown += e->d_name[0] != '.';
		closedir(dir);
		snprintf(path, sizeof(path), MOUNT "/0/many/%03d/%05d", i, i * 256 + 255);
		CHECK_OK(stat(path, &st));
		CHECK_EQ(st.st_size, PAGE);
	}
	CHECK_EQ(shown, 6 * 256);
	CHECK_OK(kept_drop(dev, "many"));
	close(fd);
	unmount_here();
	free(paths);
	free(entries);
}

TEST(listed, "a listing has each user with files once, however many names and users there are")
{
	enum {
		USERS = 40,
		NAMES = 8
	};
	int dev = t_dev(), n, names[USERS] = {0}, root, plain;
	char path[512], name[16];
	struct dirent *e;
	struct stat st;
	DIR *dir;

	mount_here();
	for (int i = 0; i < USERS; i++) {
		T_ALONE()
		{
			t_become(3000 + i, 3000, 0);
			dev = t_dev();
			for (int j = 0; j < NAMES; j++) {
				snprintf(name, sizeof(name), "n%d", j);
				CHECK_OK(keep_one(dev, name, "f", PAGE, 1, 0600, 0));
			}
		}
	}
	/* A user whose names have no files is not shown. */
	plain = keep_region(dev, PAGE, 0, 1);
	REQUIRE_OK(keep(dev, "plain", &plain, 1, 0));
	CHECK_ERR(stat(MOUNT "/0", &st), ENOENT);
	CHECK_ERR(stat(MOUNT "/2999", &st), ENOENT);
	CHECK_OK(stat(MOUNT "/3000", &st));
	root = 0;
	dir = opendir(MOUNT);
	REQUIRE(dir);
	while ((e = readdir(dir))) {
		if (e->d_name[0] == '.')
			continue;
		CHECK_EQ(atoi(e->d_name), 3000 + root++);
		snprintf(path, sizeof(path), MOUNT "/%s", e->d_name);
		CHECK_OK(stat(path, &st));
		CHECK_EQ(st.st_ino, e->d_ino);
	}
	closedir(dir);
	CHECK_EQ(root, USERS);
	for (int i = 0; i < USERS; i++) {
		snprintf(path, sizeof(path), MOUNT "/%d", 3000 + i);
		dir = opendir(path);
		REQUIRE(dir);
		while ((e = readdir(dir)))
			names[i] += e->d_name[0] == 'n';
		closedir(dir);
		CHECK_EQ(names[i], NAMES);
	}
	/* The folder goes with the last name that has files. */
	T_ALONE()
	{
		t_become(3000, 3000, 0);
		n = t_dev();
		for (int j = 0; j < NAMES; j++) {
			CHECK_OK(stat(MOUNT "/3000", &st));
			snprintf(name, sizeof(name), "n%d", j);
			CHECK_OK(kept_drop(n, name));
		}
	}
	unmount_here();
	mount_here();
	CHECK_ERR(stat(MOUNT "/3000", &st), ENOENT);
	CHECK_OK(stat(MOUNT "/3001", &st));
	close(plain);
	T_ALONE()
	{
		t_drop_kept();
	}
	unmount_here();
}

TEST(numbers, "inode numbers stay in a mount, differ between mounts, and count nothing")
{
	int dev = t_dev(), handle;
	struct stat first, second, again, file;
	long long apart;

	mount_here();
	REQUIRE_OK(keep_one(dev, "n1", "f", PAGE, 1, 0600, 0));
	REQUIRE_OK(keep_one(dev, "n2", "f", PAGE, 1, 0600, 0));
	CHECK_OK(stat(MOUNT "/0/n1", &first));
	CHECK_OK(stat(MOUNT "/0/n1/f", &file));
	CHECK_OK(stat(MOUNT "/0/n2", &second));
	CHECK(first.st_ino != second.st_ino && first.st_ino != file.st_ino);
	/* The ids of the two names are close to each other. */
	apart = (long long)(second.st_ino >> 27) - (long long)(first.st_ino >> 27);
	CHECK(apart < 0 || apart > 1000);
	files_mount("/second");
	CHECK_OK(stat("/second/0/n1", &again));
	CHECK(again.st_ino != first.st_ino);
	CHECK_OK(umount("/second"));
	/* New inodes have the same numbers. The handle keeps the memory of the name. */
	REQUIRE_OK(kept_open(dev, "n1", R_READ, 0, &handle, 1));
	for (int i = 0; i < 3; i++)
		t_write_file("/proc/sys/vm/drop_caches", "2");
	CHECK_OK(stat(MOUNT "/0/n1", &again));
	CHECK_EQ(again.st_ino, first.st_ino);
	CHECK_OK(stat(MOUNT "/0/n1/f", &again));
	CHECK_EQ(again.st_ino, file.st_ino);
	close(handle);
	CHECK_OK(kept_drop(dev, "n1"));
	kept_drop(dev, "n2");
	unmount_here();
}
