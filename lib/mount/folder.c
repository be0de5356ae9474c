// SPDX-License-Identifier: MIT
/* Open folders: the root lists users, a user's folder lists names, a group's its files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "mount.h"

bool folder_add(struct folder *folder, const char *name)
{
	size_t bytes = strlen(name) + 1;

	if (folder->room - folder->length < bytes) {
		size_t room = folder->room ? 2 * folder->room : 4096;
		char *more = realloc(folder->names, room);

		if (!more)
			return false;
		folder->names = more;
		folder->room = room;
	}
	memcpy(folder->names + folder->length, name, bytes);
	folder->length += bytes;
	folder->count++;
	return true;
}

bool folder_has(const struct folder *folder, const char *name)
{
	const char *at = folder->names;

	for (uint32_t i = 0; i < folder->count; i++, at += strlen(at) + 1)
		if (!strcmp(at, name))
			return true;
	return false;
}

static void answer_open(fuse_req_t req, struct fuse_file_info *fi, struct folder *folder)
{
	fi->fh = (uintptr_t)folder;
	if (fuse_reply_open(req, fi))
		folder_close(folder);
}

void folder_close(struct folder *folder)
{
	struct group *group = folder->group;

	if (folder->user) {
		pthread_mutex_lock(&tree.lock);
		folder->user->listed_bytes -= folder->room;
		pthread_mutex_unlock(&tree.lock);
	}
	if (folder->asker) {
		pthread_mutex_lock(&tree.lock);
		folder->asker->listings--;
		asker_release(folder->asker);
		pthread_mutex_unlock(&tree.lock);
	}
	if (group) {
		table_put(folder->table);
		pthread_mutex_lock(&tree.lock);
		group->lookups--;
		group_release(group);
		pthread_mutex_unlock(&tree.lock);
	}
	free(folder->names);
	free(folder);
}

void folder_open(fuse_req_t req, struct job *job, struct group *group, struct table *table,
		 fuse_ino_t ino, const struct fuse_file_info *fi)
{
	struct folder *folder = calloc(1, sizeof(*folder));
	struct fuse_file_info info = *fi;

	if (job && !job_answers(job)) {
		free(folder);
		table_put(table);
		return;
	}
	if (!folder || !ino_fits(ino, table)) {
		fuse_reply_err(req, folder ? ESTALE : ENOMEM);
		free(folder);
		table_put(table);
		return;
	}
	folder->group = group;
	folder->table = table;
	folder->ino = ino;
	pthread_mutex_lock(&tree.lock);
	group->lookups++;
	pthread_mutex_unlock(&tree.lock);
	answer_open(req, &info, folder);
}

/* Count the names that a user's keeper has the service hold. Return whether there is room. */
static bool count_names(struct folder *folder, struct user *user)
{
	bool room;

	pthread_mutex_lock(&tree.lock);
	room = user->listed_bytes + folder->room <= LISTED_BYTES;
	if (room && folder->room) {
		folder->user = user;
		user->listed_bytes += folder->room;
	}
	pthread_mutex_unlock(&tree.lock);
	return room;
}

void folder_open_user(struct job *job)
{
	struct folder *folder = calloc(1, sizeof(*folder));
	struct tmesh_keeper_row *rows = NULL;
	uint32_t count = 0;
	int rc = folder ? ask_list(job->user->uid, &rows, &count, job->deadline) : -ENOMEM;

	/* A keeper that has ended keeps nothing. */
	if (rc == -ENOENT)
		rc = 0;
	for (uint32_t i = 0; !rc && i < count; i++)
		if (!folder_add(folder, rows[i].name))
			rc = -ENOMEM;
	free(rows);
	if (!rc && !count_names(folder, job->user))
		rc = -EMFILE;
	if (rc || !job_answers(job)) {
		if (rc)
			job_fail(job, rc);
		if (folder)
			folder_close(folder);
		return;
	}
	answer_open(job->req, &job->fi, folder);
}

size_t folder_prefix(const struct table *table, fuse_ino_t ino)
{
	const char *path = tmesh_paths_name(table->paths, ino_index(ino)), *at = path;

	for (unsigned int depth = ino_depth(ino); depth; depth--)
		at = strchr(at, '/') + 1;
	return (size_t)(at - path);
}

/* Return the first entry after those whose paths begin with the @length bytes of entry @i. */
static uint32_t behind(const struct tmesh_paths *paths, uint32_t i, size_t length)
{
	const char *start = tmesh_paths_name(paths, i);
	uint32_t from = i + 1, to = paths->count;

	while (from < to) {
		uint32_t middle = from + (to - from) / 2;

		if (strncmp(tmesh_paths_name(paths, middle), start, length))
			to = middle;
		else
			from = middle + 1;
	}
	return from;
}

struct listing {
	fuse_req_t req;
	char *buffer;
	size_t size, used;
};

static bool put_entry(struct listing *listing, const char *name, mode_t type, fuse_ino_t ino,
		      off_t next)
{
	const struct stat st = {.st_mode = type, .st_ino = ino};
	size_t bytes = fuse_add_direntry(listing->req, listing->buffer + listing->used,
					 listing->size - listing->used, name, &st, next);

	if (bytes > listing->size - listing->used)
		return false;
	listing->used += bytes;
	return true;
}

static void list_group(struct listing *listing, const struct folder *folder, off_t offset)
{
	const struct tmesh_paths *paths = folder->table->paths;
	uint32_t first = ino_index(folder->ino), end;
	size_t prefix = folder_prefix(folder->table, folder->ino);
	char name[TMESH_KEPT_COMPONENT_LEN + 1];

	end = prefix ? behind(paths, first, prefix) : paths->count;
	/* A reader may seek to any offset. */
	if ((uint64_t)offset - 2 >= end - first)
		return;
	for (uint32_t i = first + (uint32_t)offset - 2; i < end;) {
		const char *rest = tmesh_paths_name(paths, i) + prefix;
		size_t length = strcspn(rest, "/");
		bool is_folder = rest[length] == '/';
		uint32_t next = is_folder ? behind(paths, i, prefix + length + 1) : i + 1;
		unsigned int depth = is_folder ? ino_depth(folder->ino) + 1 : INO_FILE;

		memcpy(name, rest, length);
		name[length] = '\0';
		if (!put_entry(listing, name, is_folder ? S_IFDIR : S_IFREG,
			       ino_of(folder->group, i, depth), next - first + 2))
			return;
		i = next;
	}
}

static void list_names(struct listing *listing, const struct folder *folder, off_t offset)
{
	const char *name = folder->names;

	for (uint32_t i = 0; i < folder->count; i++, name += strlen(name) + 1)
		if (i + 2 >= (uint64_t)offset && !put_entry(listing, name, S_IFDIR, i + 2, i + 3))
			return;
}

void folder_read(fuse_req_t req, struct folder *folder, size_t size, off_t offset)
{
	struct listing listing = {.req = req, .size = size, .buffer = malloc(size)};
	bool more = true;

	if (!listing.buffer || offset < 0 || offset > UINT32_MAX) {
		fuse_reply_err(req, listing.buffer ? EINVAL : ENOMEM);
		free(listing.buffer);
		return;
	}
	if (offset == 0)
		more = put_entry(&listing, ".", S_IFDIR, 1, 1);
	if (more && offset <= 1)
		more = put_entry(&listing, "..", S_IFDIR, 1, 2);
	if (offset < 2)
		offset = 2;
	if (more && folder->group)
		list_group(&listing, folder, offset);
	else if (more)
		list_names(&listing, folder, offset);
	fuse_reply_buf(req, listing.buffer, listing.used);
	free(listing.buffer);
}
