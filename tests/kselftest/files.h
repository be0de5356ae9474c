/* SPDX-License-Identifier: MIT */
/*
 * Kept files and the file system that shows them, for their tests.
 */
#ifndef TMESH_KSELFTEST_FILES_H
#define TMESH_KSELFTEST_FILES_H

#include <sys/mount.h>

#include "keep.h"

#define MOUNT "/files"

struct kept_files {
	struct tmesh_file entries[512];
	char paths[32 * 1024];
	__u32 count, bytes;
};

/* Add a file behind those that are there. */
static inline void files_add(struct kept_files *f, const char *path, __u32 region, __u64 offset,
			     __u64 bytes)
{
	size_t length = strlen(path) + 1;

	REQUIRE(f->count < ARRAY_SIZE(f->entries) && f->bytes + length <= sizeof(f->paths));
	f->entries[f->count++] = (struct tmesh_file){
		.offset = offset,
		.bytes = bytes,
		.mtime_ns = 1700000000123456789ll + f->count,
		.region = region,
		.path = f->bytes,
	};
	memcpy(f->paths + f->bytes, path, length);
	f->bytes += length;
}

static inline struct tmesh_keep files_call(const char *name, const int *fds, __u32 count,
					   const struct kept_files *f)
{
	struct tmesh_keep k = keep_call(name, fds, count);

	k.files = ADDRESS(f->entries);
	k.paths = ADDRESS(f->paths);
	k.path_bytes = f->bytes;
	k.file_count = f->count;
	k.file_bytes = sizeof(f->entries[0]);
	return k;
}

static inline int keep_files(int dev, const char *name, const int *fds, __u32 count,
			     const struct kept_files *f, __u32 mode, __u32 flags)
{
	struct tmesh_keep k = files_call(name, fds, count, f);

	k.mode = mode;
	k.flags = flags;
	return ioctl(dev, TMESH_KEEP, &k);
}

/* Keep one file of a region whose bytes are as keep_region() makes them. */
static inline int keep_one(int dev, const char *name, const char *path, __u64 bytes,
			   unsigned char value, __u32 mode, __u32 flags)
{
	static struct kept_files f;
	int fd = keep_region(dev, bytes, 0, value), rc, saved;

	f.count = f.bytes = 0;
	files_add(&f, path, 0, 0, bytes);
	rc = keep_files(dev, name, &fd, 1, &f, mode, flags);
	saved = errno;
	close(fd);
	errno = saved;
	return rc;
}

static inline void files_mount(const char *where)
{
	mkdir(where, 0755);
	REQUIRE_OK(mount("none", where, "tmesh", 0, NULL));
}

static struct kept_files files;

static inline struct kept_files *no_files(void)
{
	files.count = files.bytes = 0;
	return &files;
}

/* Mount for one test. A test that fails leaves the mount, so take away what is there. */
static inline void mount_here(void)
{
	umount2(MOUNT, MNT_DETACH);
	files_mount(MOUNT);
}

static inline void unmount_here(void)
{
	CHECK_OK(umount(MOUNT));
}

/* Test whether a file of keep_region()'s bytes has these. */
static inline bool file_same(const char *path, __u64 bytes, unsigned char value)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	unsigned char page[PAGE];
	bool same = fd >= 0;

	for (__u64 at = 0; same && at < bytes; at += PAGE)
		same = pread(fd, page, PAGE, at) ==
			       (ssize_t)(bytes - at < PAGE ? bytes - at : PAGE) &&
		       page[0] == (unsigned char)(value + at / PAGE);
	if (fd >= 0)
		close(fd);
	return same;
}

#endif
