// SPDX-License-Identifier: MIT
/*
 * A folder's files as a kept group. All is listed first, so that limits are checked before a byte
 * is read. A difference between the listing and the end of the reading refuses the whole.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file_size.h"
#include "common/keep_room.h"
#include "common/room.h"
#include "keep_internal.h"
#include "memfd.h"
#include "paths.h"

/* Files below it share a region, each at a multiple of PACKED_ALIGN, or of a page on the module. */
#define SMALL 65536u
#define PACKED_ALIGN 64u
#define PIECE (UINT64_C(32) << 20)

/* A file or folder as it was listed. */
struct found {
	char *path; /* below the root; "" is the root itself */
	struct stat st;
	uint64_t offset;
	uint32_t region;
};

struct found_list {
	struct found *all;
	size_t count, room;
};

struct folder {
	const char *root;
	int dir;
	struct found_list files, folders;
	uint64_t bytes, done, packed_bytes;
	uint32_t regions;
	bool packed; /* region 0 has the small files */
	bool memfds; /* the backend */
	const struct tmesh_keep_opts *opts;
	struct tmesh_region *region[TMESH_KEPT_MAX_REGIONS];
};

static int no_memory(struct tmesh_error *err)
{
	return tmesh_fail(err, -ENOMEM, "no memory to list a folder");
}

static int add_found(struct found_list *list, const char *path, const struct stat *st,
		     struct tmesh_error *err)
{
	if (list->count == list->room) {
		size_t room = list->room ? 2 * list->room : 64;
		struct found *more = realloc(list->all, room * sizeof(*more));

		if (!more)
			return no_memory(err);
		list->all = more;
		list->room = room;
	}
	list->all[list->count] = (struct found){.path = strdup(path), .st = *st};
	if (!list->all[list->count].path)
		return no_memory(err);
	list->count++;
	return 0;
}

static void free_list(struct found_list *list)
{
	while (list->count)
		free(list->all[--list->count].path);
	free(list->all);
}

static int refused(const char *root, const char *path, const char *why, int rc,
		   struct tmesh_error *err)
{
	return tmesh_fail(err, rc, "%.100s%s%.200s %s", root, *path ? "/" : "", path, why);
}

static int refused_errno(const struct folder *folder, const char *path, struct tmesh_error *err)
{
	int rc = -errno;
	char text[64];

	if (rc == -ELOOP)
		return refused(folder->root, path, "is a link in a loop", rc, err);
	return tmesh_fail(err, rc, "%.100s%s%.200s: %s", folder->root, *path ? "/" : "", path,
			  strerror_r(-rc, text, sizeof(text)));
}

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
	       a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static int changed(const struct folder *folder, const char *path, struct tmesh_error *err)
{
	return refused(folder->root, path,
		       "was changed while it was read: nothing is kept; try again when no process "
		       "writes there",
		       -ESTALE, err);
}

/* Add a file. @kind is that of the directory's entry itself, @st of the file that a link leads to.
 */
static int add_file(struct folder *folder, const char *path, mode_t kind, const struct stat *st,
		    struct tmesh_error *err)
{
	if (S_ISDIR(st->st_mode))
		return refused(folder->root, path,
			       "is a link to a folder: keep that folder, or put a folder in its "
			       "place",
			       -EINVAL, err);
	if (!S_ISREG(st->st_mode))
		return refused(folder->root, path,
			       S_ISLNK(kind) ? "leads to a socket, device or pipe: only files are "
					       "kept"
					     : "is a socket, device or pipe: only files are kept",
			       -EINVAL, err);
	if (folder->files.count == TMESH_KEPT_MAX_FILES)
		return tmesh_fail(err, -E2BIG, "%.200s has more than the %d files of a kept name",
				  folder->root, TMESH_KEPT_MAX_FILES);
	return add_found(&folder->files, path, st, err);
}

static int list_entry(struct folder *folder, int dir, const char *path, const char *name,
		      struct tmesh_error *err)
{
	char below[TMESH_KEPT_PATH_LEN + 2];
	struct stat own, st;
	const char *why;

	if (snprintf(below, sizeof(below), "%s%s%s", path, *path ? "/" : "", name) >=
	    (int)sizeof(below))
		return refused(folder->root, path, "has a file whose path is too long", -EINVAL,
			       err);
	why = tmesh_paths_refused(below);
	if (why)
		return tmesh_fail(err, -EINVAL, "the path \"%.200s\" %s", below, why);
	if (fstatat(dir, name, &own, AT_SYMLINK_NOFOLLOW) || fstatat(dir, name, &st, 0))
		return refused_errno(folder, below, err);
	if (S_ISDIR(own.st_mode))
		return add_found(&folder->folders, below, &own, err);
	return add_file(folder, below, own.st_mode, &st, err);
}

/* Open a folder that was found, unless another one is in its place. */
static DIR *open_folder(const struct folder *folder, const struct found *found, int *rc,
			struct tmesh_error *err)
{
	int dir = openat(folder->dir, *found->path ? found->path : ".",
			 O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;
	DIR *list = NULL;

	if (dir < 0 || fstat(dir, &st))
		*rc = refused_errno(folder, found->path, err);
	else if (!same_file(&st, &found->st))
		*rc = changed(folder, found->path, err);
	else if (!(list = fdopendir(dir)))
		*rc = refused_errno(folder, found->path, err);
	if (!list && dir >= 0)
		close(dir);
	return list;
}

static int list_folder(struct folder *folder, const struct found *found, struct tmesh_error *err)
{
	/* The list of folders moves when it grows; a path stays. */
	const char *path = found->path;
	struct dirent *entry;
	int rc = 0;
	DIR *list = open_folder(folder, found, &rc, err);

	while (!rc) {
		errno = 0;
		entry = readdir(list);
		if (!entry) {
			if (errno)
				rc = refused_errno(folder, path, err);
			break;
		}
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			rc = list_entry(folder, dirfd(list), path, entry->d_name, err);
	}
	if (list)
		closedir(list);
	return rc;
}

/* List the root and all folders below it, without a call of its own for each level: the stack may
 * be small. Each folder that is found goes to the end of the list. */
static int list_folders(struct folder *folder, const struct stat *root, struct tmesh_error *err)
{
	int rc = add_found(&folder->folders, "", root, err);

	for (size_t i = 0; !rc && i < folder->folders.count; i++)
		rc = list_folder(folder, &folder->folders.all[i], err);
	if (!rc && !folder->files.count)
		rc = refused(folder->root, "", "has no files", -EINVAL, err);
	return rc;
}

/* Enter the snapshot that refs/main names in the hub's folder of a model. */
static int enter_snapshot(int dir)
{
	char commit[80], path[128];
	int refs = openat(dir, "refs/main", O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	ssize_t got = refs < 0 ? 0 : read(refs, commit, sizeof(commit) - 1);

	if (refs >= 0)
		close(refs);
	if (got <= 0 || faccessat(dir, "blobs", F_OK, 0))
		return -1;
	commit[got] = '\0';
	commit[strcspn(commit, "\r\n")] = '\0';
	if (!*commit || strchr(commit, '/') || *commit == '.')
		return -1;
	snprintf(path, sizeof(path), "snapshots/%s", commit);
	return openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int list_root(struct folder *folder, struct tmesh_error *err)
{
	/* A pipe of that name does not block. */
	int dir = open(folder->root, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), snapshot;
	const char *slash = strrchr(folder->root, '/');
	struct stat st;
	int rc;

	if (dir < 0 || fstat(dir, &st)) {
		rc = refused_errno(folder, "", err);
		if (dir >= 0)
			close(dir);
		return rc;
	}
	if (!S_ISDIR(st.st_mode)) {
		folder->dir = AT_FDCWD;
		close(dir);
		if (S_ISREG(st.st_mode) && !st.st_size)
			return refused(folder->root, "", "has no bytes, or does not say how many",
				       -EINVAL, err);
		rc = S_ISREG(st.st_mode) ? 0
					 : refused(folder->root, "",
						   "is not a regular file or folder", -EINVAL, err);
		return rc ? rc
			  : add_file(folder, slash ? slash + 1 : folder->root, st.st_mode, &st,
				     err);
	}
	folder->dir = dir;
	snapshot = enter_snapshot(dir);
	if (snapshot >= 0) {
		close(dir);
		folder->dir = snapshot;
		if (fstat(snapshot, &st))
			return refused_errno(folder, "", err);
	}
	return list_folders(folder, &st, err);
}

/* Find the place of each file's bytes. */
static int plan(struct folder *folder, struct tmesh_error *err)
{
	uint64_t align = folder->memfds ? PACKED_ALIGN : tmesh_page_bytes(), needed = 0;
	struct tmesh_room room;

	for (size_t i = 0; i < folder->files.count; i++)
		folder->packed |= folder->files.all[i].st.st_size < (off_t)SMALL;
	folder->regions = folder->packed;
	for (size_t i = 0; i < folder->files.count; i++) {
		struct found *file = &folder->files.all[i];
		uint64_t bytes = (uint64_t)file->st.st_size;

		folder->bytes += bytes;
		if (bytes < SMALL) {
			file->offset = folder->packed_bytes;
			folder->packed_bytes += (bytes + align - 1) / align * align;
		} else {
			file->region = folder->regions++;
			needed += bytes;
		}
		if (folder->regions > TMESH_KEPT_MAX_REGIONS)
			return tmesh_fail(
				err, -E2BIG,
				"%.200s has more than the %d files of 64 KiB and more that "
				"one name keeps",
				folder->root, TMESH_KEPT_MAX_REGIONS - folder->packed);
	}
	if (folder->packed && !folder->packed_bytes)
		folder->packed_bytes = align;
	needed += folder->packed_bytes;
	tmesh_room("", &room);
	if (needed > room.bytes)
		return tmesh_fail(
			err, -ENOMEM,
			"%.200s needs %" PRIu64 " bytes, and %s%.100s has room for %" PRIu64,
			folder->root, needed, *room.group ? "the control group " : "this machine",
			room.group, room.bytes);
	return 0;
}

static int folder_progress(struct folder *folder, uint64_t bytes, struct tmesh_error *err)
{
	const struct tmesh_keep_opts *opts = folder->opts;

	folder->done += bytes;
	if (opts && opts->progress &&
	    opts->progress(opts->progress_data, folder->done, folder->bytes))
		return tmesh_fail(err, -ECANCELED, "keeping %.200s was ended by its caller",
				  folder->root);
	return 0;
}

static int open_found(const struct folder *folder, const struct found *file,
		      struct tmesh_error *err)
{
	const char *path = folder->dir == AT_FDCWD ? folder->root : file->path;
	int fd = openat(folder->dir, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;

	if (fd < 0)
		return errno == ENOENT ? changed(folder, file->path, err)
				       : refused_errno(folder, file->path, err);
	if (fstat(fd, &st) || !same_file(&st, &file->st)) {
		close(fd);
		return changed(folder, file->path, err);
	}
	return fd;
}

/* Make huge pages of whole 2 MiB before bytes are written there. */
static void make_huge(uint8_t *at, uint64_t from, uint64_t to, bool *huge)
{
	uint64_t end = to / TMESH_HUGE_BYTES * TMESH_HUGE_BYTES;

	if (*huge && from % TMESH_HUGE_BYTES == 0 && end > from)
		*huge = tmesh_huge_populate(at + from, end - from, 0) == end - from;
}

static int read_piece(struct folder *folder, const struct found *file, int fd, uint8_t *at,
		      uint64_t from, uint64_t bytes, struct tmesh_error *err)
{
	for (uint64_t done = 0; done < bytes;) {
		ssize_t got = pread(fd, at + done, bytes - done, (off_t)(from + done));

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return refused_errno(folder, file->path, err);
		if (got == 0)
			return changed(folder, file->path, err);
		done += (uint64_t)got;
	}
	return folder_progress(folder, bytes, err);
}

static int read_file(struct folder *folder, const struct found *file, uint8_t *at,
		     struct tmesh_error *err)
{
	uint64_t bytes = (uint64_t)file->st.st_size;
	int fd = open_found(folder, file, err), rc = 0;
	const char *why;
	/* The module gives huge pages when it makes the region. */
	bool huge = folder->memfds && tmesh_huge_way(&why) == TMESH_HUGE_COLLAPSE && bytes >= SMALL;
	struct stat st;
	char more;

	if (fd < 0)
		return fd;
	for (uint64_t from = 0; !rc && from < bytes; from += PIECE) {
		uint64_t step = bytes - from < PIECE ? bytes - from : PIECE;

		make_huge(at, from, from + step, &huge);
		rc = read_piece(folder, file, fd, at + from, from, step, err);
	}
	/* Reading on finds more if the file has a wrong size, as some file systems report. */
	if (!rc && (fstat(fd, &st) || !same_file(&st, &file->st) ||
		    pread(fd, &more, 1, file->st.st_size) != 0))
		rc = changed(folder, file->path, err);
	close(fd);
	return rc;
}

static uint64_t round_to_pages(uint64_t bytes)
{
	uint64_t page = tmesh_page_bytes();

	return (bytes + page - 1) / page * page;
}

/* Memory that is being filled, and its mapping. */
struct memory {
	struct tmesh_region *region; /* on the module */
	int fd;			     /* on memfd */
	uint8_t *at;
	uint64_t bytes;
};

/* Map it for this process alone: in a child that a callback or another thread forks meanwhile, the
 * mapping would prevent the seal. */
static int map_memfd(struct memory *memory, struct tmesh_error *err)
{
	uint64_t room = round_to_pages(memory->bytes);
	int rc = 0;

	tmesh_fork_keep_off();
	memory->at = tmesh_huge_map(memory->fd, room, PROT_READ | PROT_WRITE, MAP_SHARED);
	if (memory->at == MAP_FAILED || madvise(memory->at, room, MADV_DONTFORK)) {
		rc = tmesh_fail_errno(err, "mapping memory for a file");
		if (memory->at != MAP_FAILED)
			munmap(memory->at, room);
	}
	tmesh_fork_let();
	return rc;
}

static int make_memfd(struct memory *memory, struct tmesh_error *err)
{
	int fd = memfd_create("tmesh-file", MFD_CLOEXEC | MFD_ALLOW_SEALING), rc;

	if (fd < 0)
		return tmesh_fail_errno(err, "making memory for a file (RLIMIT_NOFILE)");
	memory->fd = fd;
	rc = tmesh_ftruncate(fd, (off_t)memory->bytes) || fchmod(fd, 0600) ||
			     fcntl(fd, F_ADD_SEALS, TMESH_SEALS_FIXED)
		     ? tmesh_fail_errno(err, "making memory for a file")
		     : map_memfd(memory, err);
	if (rc)
		close(fd);
	return rc;
}

static int make_region(struct tmesh_ctx *ctx, struct memory *memory, struct tmesh_error *err)
{
	struct tmesh_region *region;
	int rc = tmesh_region_create(ctx, memory->bytes, NULL, &region, err);

	if (rc)
		return rc;
	memory->region = region;
	tmesh_region_lock(region);
	/* The library's own mapping, which no child has. */
	rc = tmesh_region_map_locked(region, PROT_READ | PROT_WRITE, err);
	memory->at = region->addr;
	tmesh_region_unlock(region);
	if (rc)
		tmesh_region_unref(region);
	return rc;
}

static int make_memory(const struct folder *folder, struct tmesh_ctx *ctx, uint64_t bytes,
		       struct memory *memory, struct tmesh_error *err)
{
	*memory = (struct memory){.fd = -1, .bytes = bytes};
	return folder->memfds ? make_memfd(memory, err) : make_region(ctx, memory, err);
}

static int seal_memfd(struct tmesh_ctx *ctx, int fd, struct tmesh_region **region,
		      struct tmesh_error *err)
{
	int rc = tmesh_memfd_seal_writes(fd, err);

	return rc ? rc : tmesh_region_from_memfd(ctx, fd, 0, NULL, region, err);
}

/* Seal what was filled, unless @rc is an error, and end the mapping. */
static int finish_memory(struct folder *folder, uint32_t number, struct tmesh_ctx *ctx,
			 struct memory *memory, int rc, struct tmesh_error *err)
{
	if (folder->memfds) {
		munmap(memory->at, round_to_pages(memory->bytes));
		if (!rc)
			rc = seal_memfd(ctx, memory->fd, &folder->region[number], err);
		close(memory->fd);
		return rc;
	}
	if (!rc)
		rc = tmesh_region_seal(memory->region, err);
	folder->region[number] = memory->region;
	return rc;
}

static int read_small(struct folder *folder, struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	struct memory memory;
	int rc = make_memory(folder, ctx, folder->packed_bytes, &memory, err);

	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < folder->files.count; i++) {
		const struct found *file = &folder->files.all[i];

		if (file->st.st_size < (off_t)SMALL)
			rc = read_file(folder, file, memory.at + file->offset, err);
	}
	return finish_memory(folder, 0, ctx, &memory, rc, err);
}

static int read_large(struct folder *folder, const struct found *file, struct tmesh_ctx *ctx,
		      struct tmesh_error *err)
{
	struct memory memory;
	int rc = make_memory(folder, ctx, (uint64_t)file->st.st_size, &memory, err);

	if (rc)
		return rc;
	rc = read_file(folder, file, memory.at, err);
	return finish_memory(folder, file->region, ctx, &memory, rc, err);
}

static int read_all(struct folder *folder, struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	int rc = folder->packed ? read_small(folder, ctx, err) : 0;

	for (size_t i = 0; !rc && i < folder->files.count; i++)
		if (folder->files.all[i].st.st_size >= (off_t)SMALL)
			rc = read_large(folder, &folder->files.all[i], ctx, err);
	return rc;
}

/* Check that no file was added, removed or changed since all were listed. */
static int look_again(const struct folder *folder, struct tmesh_error *err)
{
	struct stat st;

	for (size_t i = 0; i < folder->folders.count; i++) {
		const struct found *found = &folder->folders.all[i];

		if (fstatat(folder->dir, found->path, &st, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) ||
		    !same_file(&st, &found->st))
			return changed(folder, found->path, err);
	}
	for (size_t i = 0; i < folder->files.count; i++) {
		const struct found *found = &folder->files.all[i];

		if (fstatat(folder->dir, folder->dir == AT_FDCWD ? folder->root : found->path, &st,
			    0) ||
		    !same_file(&st, &found->st))
			return changed(folder, found->path, err);
	}
	return 0;
}

static int keep_all(struct folder *folder, struct tmesh_ctx *ctx, const char *name,
		    const struct tmesh_keep_opts *given, struct tmesh_error *err)
{
	struct tmesh_kept_file *files = calloc(folder->files.count, sizeof(*files));
	struct tmesh_keep_opts opts = *given;
	int rc;

	if (!files)
		return no_memory(err);
	for (size_t i = 0; i < folder->files.count; i++) {
		const struct found *found = &folder->files.all[i];

		files[i] = (struct tmesh_kept_file){
			.path = found->path,
			.offset = found->offset,
			.bytes = (uint64_t)found->st.st_size,
			.mtime_ns = found->st.st_mtim.tv_sec * INT64_C(1000000000) +
				    found->st.st_mtim.tv_nsec,
			.region = found->region,
		};
	}
	opts.size = sizeof(opts);
	opts.files = files;
	opts.file_count = folder->files.count;
	rc = tmesh_keep(ctx, name, folder->region, folder->regions, &opts, err);
	free(files);
	return rc;
}

/* Refuse early, before anything is read, the calls that tmesh_keep() would refuse. */
static int check_first(struct tmesh_ctx *ctx, const char *name, const struct tmesh_keep_opts *opts,
		       struct tmesh_error *err)
{
	struct tmesh_paths *paths;
	uint64_t id;
	int rc;

	if (opts->file_count || opts->files)
		return tmesh_fail(err, -EINVAL, "the files of a folder are the folder's");
	if (!tmesh_paths_may_begin(name))
		return tmesh_fail(
			err, -EINVAL,
			"the name \"%s\" has a slash or begins with a dot: no path can have "
			"it",
			name);
	rc = ctx->ops->keep->paths(ctx, name, TMESH_KEPT_OWN, &paths, &id, err);
	if (!rc)
		free(paths);
	/* A module that cannot keep files. */
	if (rc == -EOPNOTSUPP)
		return rc;
	if ((rc == 0 || rc == -ENODATA) && !(opts->flags & TMESH_KEEPING_REPLACE))
		return tmesh_fail(err, -EEXIST,
				  "\"%s\" is kept already: replace it, or drop it first", name);
	return 0;
}

/* If the limit is not known, tmesh_keep() will tell. */
static int check_limit(const struct folder *folder, struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	struct tmesh_keeper_info info = {0};

	return ctx->ops->keep->info(ctx, &info, NULL)
		       ? 0
		       : tmesh_keep_room(&info, ctx->ops->backend, folder->bytes, err);
}

int tmesh_keep_folder(struct tmesh_ctx *ctx, const char *name, const char *path,
		      const struct tmesh_keep_opts *opts, struct tmesh_error *err)
{
	struct folder *folder;
	struct tmesh_keep_opts o;
	int rc = TMESH_NEED(err, ctx, path);

	if (!rc)
		rc = tmesh_kept_check_name(name, err);
	if (!rc && !*path)
		rc = tmesh_fail(
			err, -EINVAL,
			"cannot keep a folder under %.63s: its path is empty; name a folder "
			"or a file",
			name);
	if (!rc)
		rc = tmesh_read_sized(&o, sizeof(o), opts, err);
	if (!rc)
		rc = tmesh_ctx_enter(ctx, err);
	if (!rc)
		rc = check_first(ctx, name, &o, err);
	if (rc)
		return rc;
	folder = calloc(1, sizeof(*folder));
	if (!folder)
		return no_memory(err);
	folder->root = path;
	folder->dir = -1;
	folder->memfds = ctx->ops->backend == TMESH_BACKEND_MEMFD;
	folder->opts = &o;
	rc = list_root(folder, err);
	if (!rc)
		rc = plan(folder, err);
	if (!rc)
		rc = check_limit(folder, ctx, err);
	if (!rc)
		rc = read_all(folder, ctx, err);
	if (!rc)
		rc = look_again(folder, err);
	if (!rc)
		rc = keep_all(folder, ctx, name, &o, err);
	for (uint32_t i = 0; i < TMESH_KEPT_MAX_REGIONS; i++)
		tmesh_region_unref(folder->region[i]);
	if (folder->dir >= 0)
		close(folder->dir);
	free_list(&folder->files);
	free_list(&folder->folders);
	free(folder);
	return rc;
}
