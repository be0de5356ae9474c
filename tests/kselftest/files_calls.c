// SPDX-License-Identifier: MIT
/*
 * TMESH_KEPT_FILES: the files of a name are read back, and an open file is described.
 */
#include <grp.h>

#include "files.h"

/* Room for the answers */
static struct tmesh_file entries[ARRAY_SIZE(files.entries)];
static char paths[sizeof(files.paths)];

static struct tmesh_kept_files files_of(const char *name)
{
	struct tmesh_kept_files k = {
		.size = sizeof(k),
		.files = ADDRESS(entries),
		.file_count = ARRAY_SIZE(entries),
		.file_bytes = sizeof(entries[0]),
		.paths = ADDRESS(paths),
		.path_bytes = sizeof(paths),
	};

	snprintf(k.name, sizeof(k.name), "%s", name);
	memset(entries, 0x5a, sizeof(entries));
	memset(paths, 0x5a, sizeof(paths));
	return k;
}

static struct tmesh_kept_files file_at(int fd)
{
	return (struct tmesh_kept_files){
		.size = sizeof(struct tmesh_kept_files),
		.flags = TMESH_KEPT_FD,
		.files = ADDRESS(entries),
		.file_count = 1,
		.file_bytes = sizeof(entries[0]),
		.fd = fd,
	};
}

/* Keep @count files of two regions, with paths of about @length bytes. */
static void keep_many(int dev, const char *name, __u32 count, int length)
{
	int fds[2] = {keep_region(dev, PAGE, 0, 1), keep_region(dev, 2 * PAGE, 0, 2)};
	struct kept_files *f = no_files();
	char path[256];

	for (__u32 i = 0; i < count; i++) {
		snprintf(path, sizeof(path), "%04u%0*u", i, length, i);
		files_add(f, path, i % 2, i % 2 ? PAGE : 0, i % 3 ? PAGE : 0);
	}
	REQUIRE_OK(keep_files(dev, name, fds, 2, f, 0600, 0));
	close(fds[0]);
	close(fds[1]);
}

TEST(read_back, "the table of a name is read as it was given, also when it takes several pages")
{
	int dev = t_dev();
	struct tmesh_kept_files k;
	struct tmesh_kept kept;

	keep_many(dev, "n", 300, 40);
	REQUIRE(kept_find(dev, "n", &kept));
	k = files_of("n");
	REQUIRE_OK(ioctl(dev, TMESH_KEPT_FILES, &k));
	CHECK_EQ(k.file_count, files.count);
	CHECK_EQ(k.path_bytes, files.bytes);
	CHECK_EQ(k.id, kept.id);
	CHECK(!memcmp(entries, files.entries, files.count * sizeof(entries[0])));
	CHECK(!memcmp(paths, files.paths, files.bytes));
	CHECK_EQ(paths[files.bytes], 0x5a);
	CHECK_OK(kept_drop(dev, "n"));
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), ENOENT);
	close(dev);
}

TEST(room, "too little room gives ENOSPC with both lengths, and nothing is read")
{
	int dev = t_dev();
	struct tmesh_kept_files k;
	unsigned char *p;

	keep_many(dev, "n", 3, 4);
	for (int i = 0; i < 3; i++) {
		k = files_of("n");
		k.file_count = i == 0 ? 2 : i == 1 ? 3 : 0;
		k.path_bytes = i == 1 ? files.bytes - 1 : files.bytes;
		if (i == 2)
			k.file_bytes = 0;
		CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), ENOSPC);
		CHECK_EQ(k.file_count, 3);
		CHECK_EQ(k.path_bytes, files.bytes);
		CHECK(k.id);
		CHECK_EQ(paths[0], 0x5a);
	}
	k = files_of("n");
	k.file_count = 3;
	k.path_bytes = files.bytes;
	CHECK_OK(ioctl(dev, TMESH_KEPT_FILES, &k));
	/* Longer entries are filled with zeros. */
	k = files_of("n");
	k.file_bytes = sizeof(entries[0]) + 8;
	CHECK_OK(ioctl(dev, TMESH_KEPT_FILES, &k));
	CHECK_EQ(*(__u64 *)&entries[1], 0);
	k.file_bytes = sizeof(entries[0]) - 8;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), EINVAL);
	k = files_of("n");
	k.files = 8;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), EFAULT);
	k = files_of("n");
	k.paths = 8;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), EFAULT);
	/* The zeros of the last entry would be on a page that is not there. */
	p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(p != MAP_FAILED);
	REQUIRE_OK(munmap(p + PAGE, PAGE));
	k = files_of("n");
	k.file_count = 3;
	k.file_bytes = sizeof(entries[0]) + 8;
	k.files = ADDRESS(p + PAGE + 8 - 3 * k.file_bytes);
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), EFAULT);
	munmap(p, PAGE);
	CHECK_OK(kept_drop(dev, "n"));
	close(dev);
}

TEST(arguments, "wrong names, users and mixtures are refused")
{
	int dev = t_dev(), fd = keep_region(dev, PAGE, 0, 1);
	struct tmesh_kept_files k;

	REQUIRE_OK(keep(dev, "plain", &fd, 1, 0));
	k = files_of("plain");
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), ENODATA);
	k = files_of("none");
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), ENOENT);
	k = files_of("");
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), EINVAL);
	k = files_of("a\nb");
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), EINVAL);
	k = files_of("plain");
	k.uid = 1;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), EINVAL);
	k = files_of("plain");
	k.flags = TMESH_KEPT_UID;
	k.uid = 1;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), ENOENT);
	k = file_at(dev);
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), ENODATA);
	k = file_at(fd);
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), ENODATA);
	k = file_at(-1);
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), EBADF);
	k = file_at(dev);
	k.flags |= TMESH_KEPT_UID;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), EINVAL);
	k = file_at(dev);
	k.name[3] = 'x';
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), EINVAL);
	k = file_at(dev);
	k.path_bytes = 1;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), EINVAL);
	k = file_at(dev);
	k.uid = 1;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), EINVAL);
	k = file_at(dev);
	k.paths = ADDRESS(paths);
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), EINVAL);
	k = file_at(dev);
	k.file_count = 2;
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), EINVAL);
	CHECK_OK(kept_drop(dev, "plain"));
	close(fd);
	close(dev);
}

TEST(open_file, "an open file is described, until its name is gone")
{
	int dev = t_dev(), fd;
	struct tmesh_kept_files k;
	struct tmesh_kept kept;

	umount2(MOUNT, MNT_DETACH);
	files_mount(MOUNT);
	keep_many(dev, "n", 6, 1);
	REQUIRE(kept_find(dev, "n", &kept));
	for (int i = 0; i < 6; i++) {
		char path[64];

		snprintf(path, sizeof(path), MOUNT "/0/n/%04u%u", i, i);
		fd = REQUIRE_OK(open(path, O_RDONLY | O_CLOEXEC));
		k = file_at(fd);
		REQUIRE_OK(ioctl(dev, TMESH_KEPT_FILES, &k));
		CHECK(!strcmp(k.name, "n"));
		CHECK_EQ(k.uid, 0);
		CHECK_EQ(k.id, kept.id);
		CHECK_EQ(k.file_count, 1);
		CHECK(!memcmp(entries, &files.entries[i], sizeof(entries[0])));
		if (i < 5)
			close(fd);
	}
	CHECK_OK(kept_drop(dev, "n"));
	k = file_at(fd);
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), ENOENT);
	close(fd);
	fd = REQUIRE_OK(open(MOUNT, O_RDONLY | O_CLOEXEC));
	k = file_at(fd);
	CHECK_ERR(ioctl(dev, TMESH_KEPT_FILES, &k), ENODATA);
	close(fd);
	CHECK_OK(umount(MOUNT));
	close(dev);
}

/* Read the table of root's name as another user. Return its errno. */
static int as_other(int dev, gid_t gid)
{
	struct tmesh_kept_files k = files_of("n");
	pid_t pid = fork();
	int status;

	if (!pid) {
		k.flags = TMESH_KEPT_UID;
		if (setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(1001, 1001, 1001))
			_exit(255);
		_exit(ioctl(dev, TMESH_KEPT_FILES, &k) ? errno : 0);
	}
	REQUIRE(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	return WEXITSTATUS(status);
}

TEST(users, "the table is read by the callers whom TMESH_KEPT_OPEN admits")
{
	int dev = t_dev();
	struct tmesh_kept_files k;

	REQUIRE_OK(keep_one(dev, "n", "f", PAGE, 1, 0600, 0));
	k = files_of("n");
	k.flags = TMESH_KEPT_UID;
	CHECK_OK(ioctl(dev, TMESH_KEPT_FILES, &k));
	CHECK_EQ(as_other(dev, 0), ENOENT);
	CHECK_OK(keep_one(dev, "n", "f", PAGE, 1, 0640, TMESH_KEEP_REPLACE));
	CHECK_EQ(as_other(dev, 0), 0);
	CHECK_EQ(as_other(dev, 1001), ENOENT);
	CHECK_OK(keep_one(dev, "n", "f", PAGE, 1, 0644, TMESH_KEEP_REPLACE));
	CHECK_EQ(as_other(dev, 1001), ENOENT);
	CHECK_OK(kept_drop(dev, "n"));
	close(dev);
}
