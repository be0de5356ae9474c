/* SPDX-License-Identifier: MIT */
/*
 * Calls on kept regions, for their tests. Like those of t.h they return -1 with errno.
 */
#ifndef TMESH_KSELFTEST_KEEP_H
#define TMESH_KSELFTEST_KEEP_H

#include "t.h"

#define ADDRESS(p) ((__u64)(unsigned long)(p))

static inline struct tmesh_keep keep_call(const char *name, const int *fds, __u32 count)
{
	struct tmesh_keep k = {.size = sizeof(k), .handles = ADDRESS(fds), .count = count};

	snprintf(k.name, sizeof(k.name), "%s", name);
	return k;
}

static inline int keep(int dev, const char *name, const int *fds, __u32 count, __u32 flags)
{
	struct tmesh_keep k = keep_call(name, fds, count);

	k.flags = flags;
	return ioctl(dev, TMESH_KEEP, &k);
}

/* Open the regions of a name. Return their number. */
static inline int kept_open(int dev, const char *name, __u32 rights, __u32 flags, int *fds,
			    __u32 room)
{
	struct tmesh_kept_open o = {
		.size = sizeof(o),
		.flags = flags,
		.fds = ADDRESS(fds),
		.count = room,
		.rights = rights,
	};

	snprintf(o.name, sizeof(o.name), "%s", name);
	return ioctl(dev, TMESH_KEPT_OPEN, &o) ? -1 : (int)o.count;
}

static inline int kept_drop(int dev, const char *name)
{
	struct tmesh_kept_drop d = {.size = sizeof(d)};

	snprintf(d.name, sizeof(d.name), "%s", name);
	return ioctl(dev, TMESH_KEPT_DROP, &d);
}

static inline int kept_drop_id(int dev, __u64 id)
{
	struct tmesh_kept_drop d = {.size = sizeof(d), .flags = TMESH_KEPT_ID, .id = id};

	return ioctl(dev, TMESH_KEPT_DROP, &d);
}

/* List names after a cursor. Return the number of entries written. */
static inline int kept_list(int dev, __u64 cursor, struct tmesh_kept *entries, __u32 room)
{
	struct tmesh_kept_list l = {
		.size = sizeof(l),
		.cursor = cursor,
		.entries = ADDRESS(entries),
		.entry_bytes = sizeof(*entries),
		.count = room,
	};

	return ioctl(dev, TMESH_KEPT_LIST, &l) ? -1 : (int)l.count;
}

/* Test whether the caller's list has a name. */
static inline bool kept_find(int dev, const char *name, struct tmesh_kept *kept)
{
	__u64 cursor = 0;

	while (kept_list(dev, cursor, kept, 1) == 1) {
		if (!strcmp(kept->name, name))
			return true;
		cursor = kept->id;
	}
	return false;
}

/* Make a sealed region whose pages begin with the byte @value plus the number of the page. */
static inline int keep_region(int dev, __u64 bytes, __u32 flags, unsigned char value)
{
	int fd = REQUIRE_OK(t_create(dev, bytes, flags));
	unsigned char *p = t_map(fd, bytes, PROT_READ | PROT_WRITE);

	REQUIRE(p != MAP_FAILED);
	for (__u64 at = 0; at < bytes; at += PAGE)
		p[at] = value + at / PAGE;
	munmap(p, bytes);
	REQUIRE_OK(t_seal(fd));
	return fd;
}

/* Test whether a region still has these bytes. */
static inline bool keep_same(int fd, __u64 bytes, unsigned char value)
{
	unsigned char *p = t_map(fd, bytes, PROT_READ);
	bool same = p != MAP_FAILED;

	for (__u64 at = 0; same && at < bytes; at += PAGE)
		same = p[at] == (unsigned char)(value + at / PAGE);
	if (p != MAP_FAILED)
		munmap(p, bytes);
	return same;
}

static inline bool is_kept(int dev, const char *name)
{
	struct tmesh_kept k;

	return kept_find(dev, name, &k);
}

/* Call all shrinkers, again and again while they free much. Ours frees one name. */
static inline void drop_caches(void)
{
	for (int i = 0; i < 10; i++)
		REQUIRE(t_write_file("/proc/sys/vm/drop_caches", "2"));
}

#endif
