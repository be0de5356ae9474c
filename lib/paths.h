/* SPDX-License-Identifier: MIT */
/*
 * The table of paths of a kept group: which bytes of which region each file has. It travels as a
 * sealed memfd: a head, the entries, then the paths, each with a zero behind it. All numbers are in
 * the machine's own byte order, as in wire.h. Entries are sorted by tmesh_paths_compare(), so the
 * files of a folder follow each other.
 */
#ifndef TMESH_PATHS_H
#define TMESH_PATHS_H

#include <tmesh/keep.h>

#include "internal.h"

#define TMESH_PATHS_MAGIC 0x50304d54u /* "TM0P" */
#define TMESH_PATHS_VERSION 1
#define TMESH_PATHS_MEMFD "tmesh-paths"

struct tmesh_paths_entry {
	uint64_t offset;
	uint64_t bytes;
	int64_t mtime_ns;
	uint32_t region;
	uint32_t path; /* offset behind the entries */
};

struct tmesh_paths {
	uint32_t magic;
	uint32_t version;
	uint32_t count;
	uint32_t regions;
	uint64_t path_bytes; /* of all paths */
	struct tmesh_paths_entry entries[];
};

_Static_assert(sizeof(struct tmesh_paths) == 24, "format of the table");
_Static_assert(sizeof(struct tmesh_paths_entry) == 32, "format of the table");

/* The longest table. */
#define TMESH_PATHS_MAX               \
	(sizeof(struct tmesh_paths) + \
	 TMESH_KEPT_MAX_FILES * (sizeof(struct tmesh_paths_entry) + TMESH_KEPT_PATH_LEN + 1))

/* Order paths byte by byte, with a slash before all other bytes. */
int tmesh_paths_compare(const char *a, const char *b);
/* Return why @path cannot be a file's, or NULL if it can. */
const char *tmesh_paths_refused(const char *path);
/* Return whether a path can begin with the kept name @name. */
bool tmesh_paths_may_begin(const char *name);

/*
 * Make the table of @files on @regions regions of @bytes each. Return: 0, @out to be freed and its
 * length; -EINVAL, -EEXIST (two files of one path, or a file below another one), -E2BIG, -ENOMEM.
 */
int tmesh_paths_build(const struct tmesh_kept_file *files, size_t count, const uint64_t *bytes,
		      uint32_t regions, struct tmesh_paths **out, size_t *length,
		      struct tmesh_error *err);
static inline size_t tmesh_paths_bytes(const struct tmesh_paths *paths)
{
	return sizeof(*paths) + paths->count * sizeof(paths->entries[0]) + paths->path_bytes;
}

/* Return a sealed memfd of the table, or a negative errno. */
int tmesh_paths_seal(const struct tmesh_paths *paths, struct tmesh_error *err);
/* Check that @length bytes from another process are a whole table for @regions regions. */
bool tmesh_paths_are_good(const struct tmesh_paths *paths, size_t length, uint32_t regions);
/* Read the table of a descriptor from another process, which stays open. NULL: it is none, with
 * errno, or is longer than @most. */
struct tmesh_paths *tmesh_paths_read(int fd, uid_t owner, uint32_t regions, size_t most,
				     size_t *length);

static inline const char *tmesh_paths_name(const struct tmesh_paths *paths, uint32_t i)
{
	return (const char *)&paths->entries[paths->count] + paths->entries[i].path;
}

/* Return the first entry whose path is not before @path. */
uint32_t tmesh_paths_bound(const struct tmesh_paths *paths, const char *path);
/* Find a file: its number, or UINT32_MAX. */
uint32_t tmesh_paths_find(const struct tmesh_paths *paths, const char *path);

#endif /* TMESH_PATHS_H */
