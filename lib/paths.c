// SPDX-License-Identifier: MIT
/* Tables of paths: made from a caller's files, and checked when they come from another process. */
#include "paths.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <linux/magic.h>
#include <unistd.h>

#include "common/file_size.h"
#include "memfd.h"

static unsigned int rank(char c)
{
	return c == '/' ? 1 : c ? (unsigned char)c + 1u : 0;
}

int tmesh_paths_compare(const char *a, const char *b)
{
	for (; *a && *a == *b; a++, b++)
		;
	return (rank(*a) > rank(*b)) - (rank(*a) < rank(*b));
}

const char *tmesh_paths_refused(const char *path)
{
	size_t length = strnlen(path, TMESH_KEPT_PATH_LEN + 1);
	size_t part;

	if (!length)
		return "is empty";
	if (length > TMESH_KEPT_PATH_LEN)
		return "is longer than 1023 bytes";
	if (*path == '/')
		return "is absolute: a kept file has a relative path";
	do {
		part = strcspn(path, "/");
		if (!part)
			return "has an empty component";
		if (part > TMESH_KEPT_COMPONENT_LEN)
			return "has a component of more than 255 bytes";
		if (*path == '.' && (part == 1 || (part == 2 && path[1] == '.')))
			return "has \".\" or \"..\" as a component";
		path += part;
	} while (*path++);
	return NULL;
}

bool tmesh_paths_may_begin(const char *name)
{
	return *name != '.' && !strchr(name, '/');
}

/* Return whether @path is a file in the folder @folder, or deeper. */
static bool is_below(const char *folder, const char *path)
{
	size_t length = strlen(folder);

	return !strncmp(folder, path, length) && path[length] == '/';
}

static int by_path(const void *a, const void *b)
{
	const struct tmesh_kept_file *const *one = a, *const *two = b;

	return tmesh_paths_compare((*one)->path, (*two)->path);
}

static int check_file(const struct tmesh_kept_file *file, size_t i, const uint64_t *bytes,
		      uint32_t regions, struct tmesh_error *err)
{
	const char *why = file->path ? tmesh_paths_refused(file->path) : "is missing";
	uint64_t end;

	if (why)
		return tmesh_fail(err, -EINVAL, "the path of file %zu, \"%.80s\", %s", i,
				  file->path ? file->path : "", why);
	if (file->region >= regions)
		return tmesh_fail(err, -EINVAL,
				  "file %zu, \"%.80s\", is in region %" PRIu32 " of %" PRIu32, i,
				  file->path, file->region, regions);
	if (__builtin_add_overflow(file->offset, file->bytes, &end) || end > bytes[file->region])
		return tmesh_fail(err, -EINVAL,
				  "file %zu, \"%.80s\", ends at byte %" PRIu64
				  " of a region of %" PRIu64,
				  i, file->path, end, bytes[file->region]);
	return 0;
}

static int check_order(const struct tmesh_kept_file *const *sorted, size_t count,
		       struct tmesh_error *err)
{
	for (size_t i = 1; i < count; i++) {
		const char *before = sorted[i - 1]->path, *path = sorted[i]->path;

		if (!strcmp(before, path))
			return tmesh_fail(err, -EEXIST, "two files have the path \"%.120s\"", path);
		if (is_below(before, path))
			return tmesh_fail(err, -EEXIST,
					  "\"%.80s\" is a file, and the folder of \"%.80s\", too",
					  before, path);
	}
	return 0;
}

static struct tmesh_paths *lay_out(const struct tmesh_kept_file *const *sorted, size_t count,
				   uint32_t regions, uint64_t path_bytes, size_t *length)
{
	struct tmesh_paths *paths;
	uint32_t at = 0;
	char *names;

	*length = sizeof(*paths) + count * sizeof(paths->entries[0]) + path_bytes;
	paths = calloc(1, *length);
	if (!paths)
		return NULL;
	paths->magic = TMESH_PATHS_MAGIC;
	paths->version = TMESH_PATHS_VERSION;
	paths->count = (uint32_t)count;
	paths->regions = regions;
	paths->path_bytes = path_bytes;
	names = (char *)&paths->entries[count];
	for (size_t i = 0; i < count; i++) {
		const struct tmesh_kept_file *file = sorted[i];
		size_t bytes = strlen(file->path) + 1;

		paths->entries[i] = (struct tmesh_paths_entry){
			.offset = file->offset,
			.bytes = file->bytes,
			.mtime_ns = file->mtime_ns,
			.region = file->region,
			.path = at,
		};
		memcpy(names + at, file->path, bytes);
		at += (uint32_t)bytes;
	}
	return paths;
}

int tmesh_paths_build(const struct tmesh_kept_file *files, size_t count, const uint64_t *bytes,
		      uint32_t regions, struct tmesh_paths **out, size_t *length,
		      struct tmesh_error *err)
{
	const struct tmesh_kept_file **sorted;
	uint64_t path_bytes = 0;
	int rc = 0;

	if (count > TMESH_KEPT_MAX_FILES)
		return tmesh_fail(err, -E2BIG, "a name keeps at most %d files, not %zu",
				  TMESH_KEPT_MAX_FILES, count);
	sorted = malloc((count ? count : 1) * sizeof(const struct tmesh_kept_file *));
	if (!sorted)
		return tmesh_fail(err, -ENOMEM, "no memory for a table of paths");
	for (size_t i = 0; !rc && i < count; i++) {
		rc = check_file(&files[i], i, bytes, regions, err);
		sorted[i] = &files[i];
		path_bytes += rc ? 0 : strlen(files[i].path) + 1;
	}
	if (!rc) {
		qsort(sorted, count, sizeof(const struct tmesh_kept_file *), by_path);
		rc = check_order(sorted, count, err);
	}
	if (!rc) {
		*out = lay_out(sorted, count, regions, path_bytes, length);
		if (!*out)
			rc = tmesh_fail(err, -ENOMEM, "no memory for a table of paths");
	}
	free(sorted);
	return rc;
}

int tmesh_paths_seal(const struct tmesh_paths *paths, struct tmesh_error *err)
{
	int fd = memfd_create(TMESH_PATHS_MEMFD, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	size_t length = tmesh_paths_bytes(paths), done = 0;
	int rc;

	if (fd < 0)
		return tmesh_fail_errno(err, "making a table of paths");
	while (done < length) {
		ssize_t put = tmesh_write(fd, (const char *)paths + done, length - done);

		if (put < 0 && errno == EINTR)
			continue;
		if (!put)
			errno = ENOSPC;
		if (put <= 0)
			goto failed;
		done += (size_t)put;
	}
	if (fcntl(fd, F_ADD_SEALS, TMESH_SEALS_FIXED | F_SEAL_WRITE | F_SEAL_SEAL) == 0)
		return fd;
failed:
	rc = tmesh_fail_errno(err, "writing a table of paths");
	close(fd);
	return rc;
}

bool tmesh_paths_are_good(const struct tmesh_paths *paths, size_t length, uint32_t regions)
{
	const char *names, *before = NULL;
	uint64_t expected;

	if (length < sizeof(*paths) || paths->magic != TMESH_PATHS_MAGIC ||
	    paths->version != TMESH_PATHS_VERSION || paths->regions != regions || !paths->count ||
	    paths->count > TMESH_KEPT_MAX_FILES || paths->path_bytes > TMESH_PATHS_MAX)
		return false;
	expected = sizeof(*paths) + paths->count * sizeof(paths->entries[0]) + paths->path_bytes;
	names = (const char *)&paths->entries[paths->count];
	if (length != expected || !paths->path_bytes || names[paths->path_bytes - 1])
		return false;
	for (uint32_t i = 0; i < paths->count; i++) {
		const struct tmesh_paths_entry *entry = &paths->entries[i];
		const char *path = names + entry->path;
		uint64_t end;

		if (entry->path >= paths->path_bytes || entry->region >= regions ||
		    __builtin_add_overflow(entry->offset, entry->bytes, &end) || end > INT64_MAX ||
		    tmesh_paths_refused(path))
			return false;
		if (before && (tmesh_paths_compare(before, path) >= 0 || is_below(before, path)))
			return false;
		before = path;
	}
	return true;
}

/* Read by read(), which takes no page of a hole in the file, and gets no signal. */
struct tmesh_paths *tmesh_paths_read(int fd, uid_t owner, uint32_t regions, size_t most,
				     size_t *length)
{
	const int wanted = TMESH_SEALS_FIXED | F_SEAL_WRITE;
	int seals = tmesh_foreign_seals(fd);
	struct tmesh_paths *paths;
	struct statfs fs;
	struct stat st;
	size_t done = 0;

	if (seals < 0 || fstat(fd, &st) || fstatfs(fd, &fs))
		return NULL;
	if ((seals & wanted) != wanted || fs.f_type != TMPFS_MAGIC || st.st_uid != owner ||
	    st.st_size < (off_t)sizeof(*paths) || (uint64_t)st.st_size > TMESH_PATHS_MAX) {
		errno = EPROTO;
		return NULL;
	}
	if ((uint64_t)st.st_size > most) {
		errno = E2BIG;
		return NULL;
	}
	*length = (size_t)st.st_size;
	paths = malloc(*length);
	while (paths && done < *length) {
		ssize_t got = pread(fd, (char *)paths + done, *length - done, (off_t)done);

		if (got <= 0)
			break;
		done += (size_t)got;
	}
	if (paths && done == *length && tmesh_paths_are_good(paths, *length, regions))
		return paths;
	errno = paths ? EPROTO : ENOMEM;
	free(paths);
	return NULL;
}

uint32_t tmesh_paths_bound(const struct tmesh_paths *paths, const char *path)
{
	uint32_t from = 0, to = paths->count;

	while (from < to) {
		uint32_t middle = from + (to - from) / 2;

		if (tmesh_paths_compare(tmesh_paths_name(paths, middle), path) < 0)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

uint32_t tmesh_paths_find(const struct tmesh_paths *paths, const char *path)
{
	uint32_t i = tmesh_paths_bound(paths, path);

	return i < paths->count && !strcmp(tmesh_paths_name(paths, i), path) ? i : UINT32_MAX;
}
