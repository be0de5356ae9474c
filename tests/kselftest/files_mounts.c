// SPDX-License-Identifier: MIT
/*
 * Kept files below other parts of the kernel: overlayfs, mounts with other ids, loop devices, file
 * handles, watches, and code that reads the file of a mapping.
 */
#include <dirent.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <sys/inotify.h>

#include "files.h"

#define LAYERS "/tmp/layers"
#define MERGED LAYERS "/merged"
#define OUTSIDE 100000 /* the user that the idmapped mount shows as root */

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Mount an overlay of a folder and of a new tmpfs. */
static void overlay_here(const char *lower)
{
	char options[512];

	umount2(MERGED, MNT_DETACH);
	umount2(LAYERS, MNT_DETACH);
	mkdir(LAYERS, 0755);
	REQUIRE_OK(mount("none", LAYERS, "tmpfs", 0, NULL));
	REQUIRE_OK(mkdir(LAYERS "/upper", 0755));
	REQUIRE_OK(mkdir(LAYERS "/work", 0755));
	REQUIRE_OK(mkdir(MERGED, 0755));
	snprintf(options, sizeof(options),
		 "lowerdir=%s,upperdir=" LAYERS "/upper,workdir=" LAYERS "/work", lower);
	if (mount("none", MERGED, "overlay", 0, options)) {
		int code = errno;

		umount2(LAYERS, MNT_DETACH);
		umount2(MOUNT, MNT_DETACH);
		t_drop_kept();
		if (code == ENODEV)
			t_skip("this kernel has no overlayfs");
		errno = code;
		REQUIRE_OK(-1);
	}
}

static void no_overlay(void)
{
	CHECK_OK(umount(MERGED));
	CHECK_OK(umount(LAYERS));
}

/* Keep the files "a/f" and "g" under the name "o". */
static void keep_two(int dev, unsigned char value, __u32 flags)
{
	struct kept_files *f = no_files();
	int region = keep_region(dev, 4 * PAGE, 0, value);

	files_add(f, "a/f", 0, 0, 3 * PAGE);
	files_add(f, "g", 0, 3 * PAGE, PAGE);
	REQUIRE_OK(keep_files(dev, "o", &region, 1, f, 0644, flags));
	close(region);
}

static int count_entries(const char *folder)
{
	struct dirent *e;
	DIR *dir = opendir(folder);
	int n = 0;

	REQUIRE(dir);
	while ((e = readdir(dir)))
		n += e->d_name[0] != '.';
	closedir(dir);
	return n;
}

TEST(overlay, "overlayfs takes a kept folder as a lower layer: reads, mappings, copies on write")
{
	int dev = t_dev(), fd, handle;
	struct tmesh_kept kept;
	unsigned char *p;
	char byte = 77;

	mount_here();
	keep_two(dev, 10, 0);
	overlay_here(MOUNT "/0/o");
	CHECK(file_same(MERGED "/a/f", 3 * PAGE, 10));
	CHECK_EQ(count_entries(MERGED), 2);
	CHECK_EQ(count_entries(MERGED "/a"), 1);
	fd = REQUIRE_OK(open(MERGED "/a/f", O_RDONLY | O_DIRECT | O_CLOEXEC));
	p = mmap(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	REQUIRE(p != MAP_FAILED);
	CHECK_EQ(p[2 * PAGE], 12);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0) == MAP_FAILED);
	CHECK_EQ(errno, EPERM);
	close(fd);
	/* A mapping by the overlay is a holder. */
	REQUIRE(kept_find(dev, "o", &kept));
	CHECK_EQ(kept.held, 1);
	/* The overlay copies a file that is opened for writing. The kept file stays. */
	fd = REQUIRE_OK(open(MERGED "/a/f", O_RDWR | O_CLOEXEC));
	CHECK_EQ(pwrite(fd, &byte, 1, 0), 1);
	close(fd);
	CHECK(file_same(MOUNT "/0/o/a/f", 3 * PAGE, 10));
	CHECK(!file_same(MERGED "/a/f", 3 * PAGE, 10));
	CHECK_EQ(p[0], 10);
	CHECK_OK(unlink(MERGED "/g"));
	CHECK_ERR(open(MERGED "/g", O_RDONLY), ENOENT);
	CHECK(file_same(MOUNT "/0/o/g", PAGE, 13));
	CHECK_OK(rename(MERGED "/a/f", MERGED "/f"));
	CHECK_EQ(count_entries(MERGED), 2);
	CHECK_EQ(t_read(p), 0);
	REQUIRE_OK(kept_open(dev, "o", R_READ | R_MANAGE, 0, &handle, 1));
	CHECK_OK(t_revoke(handle));
	CHECK_EQ(t_read(p), SIGBUS);
	munmap(p, 3 * PAGE);
	close(handle);
	no_overlay();
	unmount_here();
}

TEST(overlay_replaced,
     "an overlay of a folder that is dropped or replaced says ESTALE, a new one has the new files")
{
	int dev = t_dev(), fd;
	struct stat st;

	mount_here();
	keep_two(dev, 20, 0);
	overlay_here(MOUNT "/0/o");
	CHECK(file_same(MERGED "/a/f", 3 * PAGE, 20));
	fd = REQUIRE_OK(open(MERGED "/a/f", O_RDONLY | O_CLOEXEC));
	keep_two(dev, 50, TMESH_KEEP_REPLACE);
	CHECK_ERR(open(MERGED "/a/f", O_RDONLY), ESTALE);
	CHECK_ERR(stat(MERGED "/g", &st), ESTALE);
	CHECK_EQ(pread(fd, &(char){0}, 1, 2 * PAGE), 1);
	close(fd);
	no_overlay();
	overlay_here(MOUNT "/0/o");
	CHECK(file_same(MERGED "/a/f", 3 * PAGE, 50));
	CHECK_OK(kept_drop(dev, "o"));
	CHECK_ERR(open(MERGED "/a/f", O_RDONLY), ESTALE);
	/* The overlay holds no memory. */
	CHECK_EQ(t_listed(dev), 0);
	no_overlay();
	unmount_here();
}

static void map_one(pid_t pid, const char *file)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
	CHECK(t_write_file(path, "0 100000 1"));
}

TEST(idmapped, "a mount with other ids shows the files as those of a container's user")
{
	struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP};
	int dev = t_dev(), sv[2], tree;
	char path[64];
	struct stat st;
	pid_t pid;

	mount_here();
	mkdir("/mapped", 0755);
	umount2("/mapped", MNT_DETACH);
	REQUIRE_OK(keep_one(dev, "i", "f", PAGE, 5, 0600, 0));
	t_pair(sv);
	T_CHILD(pid) {
		REQUIRE_OK(unshare(CLONE_NEWUSER));
		t_say(sv[1]);
		t_hear(sv[1]);
	}
	t_hear(sv[0]);
	map_one(pid, "uid_map");
	map_one(pid, "gid_map");
	snprintf(path, sizeof(path), "/proc/%d/ns/user", pid);
	attr.userns_fd = REQUIRE_OK(open(path, O_RDONLY | O_CLOEXEC));
	tree = REQUIRE_OK(
		syscall(SYS_open_tree, AT_FDCWD, MOUNT, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
	CHECK_OK(syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof(attr)));
	CHECK_OK(syscall(SYS_move_mount, tree, "", AT_FDCWD, "/mapped", MOVE_MOUNT_F_EMPTY_PATH));
	close(tree);
	close(attr.userns_fd);
	t_say(sv[0]);
	t_wait(pid);
	CHECK_OK(stat("/mapped/0/i/f", &st));
	CHECK_EQ(st.st_uid, OUTSIDE);
	T_ALONE()
	{
		t_become(OUTSIDE, OUTSIDE, 0);
		CHECK(file_same("/mapped/0/i/f", PAGE, 5));
		CHECK_ERR(open(MOUNT "/0/i/f", O_RDONLY), EACCES);
	}
	T_ALONE()
	{
		t_become(OUTSIDE + 1, OUTSIDE + 1, 0);
		CHECK_ERR(open("/mapped/0/i/f", O_RDONLY), EACCES);
	}
	CHECK_OK(umount("/mapped"));
	CHECK_OK(kept_drop(dev, "i"));
	unmount_here();
}

TEST(handles, "files have no handles for NFS; a watch hears of readers, and not of names that go")
{
	union {
		struct file_handle handle;
		char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	} u = {.handle.handle_bytes = MAX_HANDLE_SZ};
	struct {
		struct inotify_event event;
		char name[256];
	} said;
	int dev = t_dev(), id, watch;

	mount_here();
	keep_two(dev, 30, 0);
	CHECK_ERR(name_to_handle_at(AT_FDCWD, MOUNT "/0/o/g", &u.handle, &id, 0), EOPNOTSUPP);
	watch = REQUIRE_OK(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
	CHECK_OK(inotify_add_watch(watch, MOUNT "/0/o", IN_ALL_EVENTS));
	CHECK(file_same(MOUNT "/0/o/g", PAGE, 33));
	CHECK(read(watch, &said, sizeof(said)) > 0);
	CHECK_EQ(said.event.mask, IN_OPEN);
	CHECK(!strcmp(said.name, "g"));
	while (read(watch, &said, sizeof(said)) > 0)
		;
	CHECK_OK(kept_drop(dev, "o"));
	CHECK_ERR(open(MOUNT "/0/o/g", O_RDONLY), ENOENT);
	CHECK_ERR(read(watch, &said, sizeof(said)), EAGAIN);
	CHECK_EQ(t_listed(dev), 0);
	unmount_here();
	CHECK(read(watch, &said, sizeof(said)) > 0);
	CHECK_EQ(said.event.mask, IN_UNMOUNT | IN_ISDIR);
	close(watch);
}

/* The question about a mapping, of Linux 6.11; not in the headers of Debian 12 */
struct map_query {
	__u64 size, query_flags, query_addr, vma_start, vma_end, vma_flags, vma_page_size,
		vma_offset, inode;
	__u32 dev_major, dev_minor, vma_name_size, build_id_size;
	__u64 vma_name_addr, build_id_addr;
};

#define MAP_QUERY _IOWR('f', 17, struct map_query)

/* Ask for the build id of a mapping's file. Return its length, or -1. */
static int build_id(const void *p, unsigned char *id)
{
	struct map_query q = {
		.size = sizeof(q),
		.query_addr = ADDRESS(p),
		.build_id_size = 32,
		.build_id_addr = ADDRESS(id),
	};
	int maps = REQUIRE_OK(open("/proc/self/maps", O_RDONLY | O_CLOEXEC)), rc;

	rc = ioctl(maps, MAP_QUERY, &q);
	close(maps);
	return rc ? rc : (int)q.build_id_size;
}

TEST(build_id, "the kernel reads the build id of a mapped file, and none of a region's mapping")
{
	int dev = t_dev(), self = REQUIRE_OK(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), region,
	    fd;
	struct kept_files *f = no_files();
	unsigned char *p, *q, ids[2][32];
	struct stat st;
	int length;

	REQUIRE_OK(fstat(self, &st));
	q = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, self, 0);
	REQUIRE(q != MAP_FAILED);
	length = build_id(q, ids[0]);
	if (length < 0 && errno == ENOTTY)
		t_skip("this kernel does not answer questions about a mapping");
	mount_here();
	region = REQUIRE_OK(t_create(dev, (st.st_size + PAGE - 1) & -PAGE, 0));
	p = t_map(region, st.st_size, PROT_READ | PROT_WRITE);
	REQUIRE(p != MAP_FAILED);
	memcpy(p, q, st.st_size);
	munmap(p, st.st_size);
	REQUIRE_OK(t_seal(region));
	files_add(f, "exe", 0, 0, st.st_size);
	REQUIRE_OK(keep_files(dev, "b", &region, 1, f, 0600, 0));
	p = t_map(region, st.st_size, PROT_READ);
	REQUIRE(p != MAP_FAILED);
	CHECK_EQ(build_id(p, ids[1]), 0);
	munmap(p, st.st_size);
	close(region);
	fd = REQUIRE_OK(open(MOUNT "/0/b/exe", O_RDONLY | O_CLOEXEC));
	p = mmap(NULL, st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	REQUIRE(p != MAP_FAILED);
	CHECK(length > 0);
	CHECK_EQ(build_id(p, ids[1]), length);
	CHECK(!memcmp(ids[0], ids[1], length));
	munmap(p, st.st_size);
	munmap(q, st.st_size);
	close(fd);
	close(self);
	CHECK_OK(kept_drop(dev, "b"));
	unmount_here();
}

TEST(loop, "a loop device has the bytes of a kept file, and loses them with a revocation")
{
	struct loop_config config = {.info.lo_flags = LO_FLAGS_READ_ONLY};
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), dev = t_dev(), disk, handle, n;
	static unsigned char page[PAGE] __attribute__((aligned(4096)));
	char path[32];
	__u64 bytes;

	if (control < 0)
		t_skip("this kernel has no loop devices");
	mount_here();
	REQUIRE_OK(keep_one(dev, "d", "image", 8 * PAGE, 40, 0600, 0));
	n = REQUIRE_OK(ioctl(control, LOOP_CTL_GET_FREE));
	snprintf(path, sizeof(path), "/dev/loop%d", n);
	disk = REQUIRE_OK(open(path, O_RDONLY | O_DIRECT | O_CLOEXEC));
	config.fd = REQUIRE_OK(open(MOUNT "/0/d/image", O_RDONLY | O_CLOEXEC));
	CHECK_OK(ioctl(disk, LOOP_CONFIGURE, &config));
	close(config.fd);
	CHECK_OK(ioctl(disk, BLKGETSIZE64, &bytes));
	CHECK_EQ(bytes, 8 * PAGE);
	CHECK_EQ(pread(disk, page, PAGE, 7 * PAGE), PAGE);
	CHECK_EQ(page[0], 47);
	CHECK_EQ(pread(disk, page, PAGE, 8 * PAGE), 0);
	drop_caches();
	CHECK(is_kept(dev, "d"));
	REQUIRE_OK(kept_open(dev, "d", R_READ | R_MANAGE, 0, &handle, 1));
	CHECK_OK(t_revoke(handle));
	close(handle);
	CHECK_ERR(pread(disk, page, PAGE, 0), EIO);
	CHECK_OK(ioctl(disk, LOOP_CLR_FD));
	close(disk);
	close(control);
	/* A work of the device closes the file. */
	for (int i = 0; i < 1000 && t_listed(dev); i++)
		usleep(10000);
	unmount_here();
}

/* Advice, and the error of that which is refused */
static const struct {
	int advice, error;
} advices[] = {
	{MADV_PAGEOUT, 0},	 {MADV_COLD, 0},	{MADV_DONTNEED, 0},
	{MADV_HUGEPAGE, 0},	 {MADV_NOHUGEPAGE, 0},	{MADV_FREE, EINVAL},
	{MADV_COLLAPSE, EINVAL}, {MADV_REMOVE, EACCES}, {MADV_WIPEONFORK, EINVAL},
};

static unsigned char *map_both(int fd, bool private)
{
	unsigned char *p = mmap(NULL, 2 * HUGE, PROT_READ | (private ? PROT_WRITE : 0),
				private ? MAP_PRIVATE : MAP_SHARED, fd, 0);

	REQUIRE(p != MAP_FAILED);
	CHECK_EQ(t_pmd_mapped(p, 2 * HUGE), 2 * HUGE / KB);
	return p;
}

static bool both_same(const unsigned char *p)
{
	for (__u64 at = 0; at < 2 * HUGE; at += PAGE)
		if (p[at] != (unsigned char)(7 + at / PAGE))
			return false;
	return true;
}

static void advise(int fd, bool private, int i, __u64 at, __u64 bytes)
{
	unsigned char *p = map_both(fd, private);

	if (advices[i].error)
		CHECK_ERR(madvise(p + at, bytes, advices[i].advice), advices[i].error);
	else
		CHECK_OK(madvise(p + at, bytes, advices[i].advice));
	if (!CHECK(both_same(p)))
		t_note("advice %d, private %d, at %llu", advices[i].advice, private, at);
	munmap(p, 2 * HUGE);
}

TEST(parts, "advice for a part of a huge mapping, and a move of it, leave the bytes")
{
	int dev = t_dev(), region, fd;
	struct kept_files *f = no_files();
	unsigned char *p, *q;

	if (!t_has_huge(dev))
		t_skip("no 2 MiB pages");
	mount_here();
	region = keep_region(dev, 2 * HUGE, TMESH_CREATE_HUGE, 7);
	files_add(f, "w", 0, 0, 2 * HUGE);
	REQUIRE_OK(keep_files(dev, "h", &region, 1, f, 0600, 0));
	close(region);
	fd = REQUIRE_OK(open(MOUNT "/0/h/w", O_RDONLY | O_CLOEXEC));
	for (int private = 0; private < 2; private ++) {
		for (size_t i = 0; i < ARRAY_SIZE(advices); i++) {
			advise(fd, private, i, PAGE, 3 * PAGE);
			advise(fd, private, i, 0, HUGE);
		}
		p = map_both(fd, private);
		q = mremap(p + PAGE, HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + 4 * HUGE);
		REQUIRE(q != MAP_FAILED);
		CHECK_EQ(p[0], 7);
		CHECK_EQ(q[0], 8);
		CHECK_EQ(q[HUGE - PAGE], (unsigned char)(7 + HUGE / PAGE));
		CHECK_EQ(p[HUGE + PAGE], (unsigned char)(8 + HUGE / PAGE));
		CHECK(mremap(p, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
		munmap(q, HUGE);
		munmap(p, 2 * HUGE);
	}
	close(fd);
	CHECK_OK(kept_drop(dev, "h"));
	unmount_here();
}

int main(void)
{
	return t_main();
}
