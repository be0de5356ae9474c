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

/* A caller's groups beyond these are not looked at. */
#define CALLER_GROUPS 64
#define USERS_LISTED 256

struct folder {
	/* Of a group. */
	struct group *group;
	struct table *table;
	fuse_ino_t ino;
	struct user *user; /* whose names a user's folder lists */
	/* The other folders list names, one behind the other. */
	char *names;
	size_t length, room;
	uint32_t count;
};

/* A listing of the root: each user's keeper is asked, and the last answer completes it. */
struct gather {
	struct gather *next;
	fuse_req_t req;
	struct fuse_file_info fi;
	struct folder *folder; /* NULL: it was answered */
	uint64_t deadline;
	unsigned int pending;
	uid_t uid;
	int group_count;
	gid_t groups[CALLER_GROUPS + 1];
};

static bool add_name(struct folder *folder, const char *name)
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

static bool has_name(const struct folder *folder, const char *name)
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
		if (!add_name(folder, rows[i].name))
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

static bool may_read(const struct gather *gather, uid_t uid, const struct tmesh_keeper_row *row)
{
	if (gather->uid == 0 || gather->uid == uid || (row->mode & 0004))
		return true;
	for (int i = 0; (row->mode & 0040) && i < gather->group_count; i++)
		if (gather->groups[i] == row->gid)
			return true;
	return false;
}

/* Finish a listing that is whole or out of time; the lock is held. */
static void finish(struct gather *gather)
{
	struct folder *folder = gather->folder;

	if (!folder)
		return;
	gather->folder = NULL;
	answer_open(gather->req, &gather->fi, folder);
}

/* End one user's part; the lock is held. */
static void end_part(struct gather *gather)
{
	struct gather **at = &tree.gathers;

	if (--gather->pending)
		return;
	finish(gather);
	while (*at != gather)
		at = &(*at)->next;
	*at = gather->next;
	free(gather);
}

static void list_user(struct job *job)
{
	struct gather *gather = job->gather;
	struct tmesh_keeper_row *rows = NULL;
	uid_t uid = job->user->uid;
	uint32_t count = 0;
	bool shown = false;
	char text[16];
	int rc = ask_list(uid, &rows, &count, job->deadline);

	for (uint32_t i = 0; !rc && !shown && i < count; i++)
		shown = may_read(gather, uid, &rows[i]);
	free(rows);
	snprintf(text, sizeof(text), "%u", (unsigned int)uid);
	pthread_mutex_lock(&tree.lock);
	if (rc == -ETIMEDOUT)
		user_rests(job->user);
	if (shown && gather->folder && !has_name(gather->folder, text))
		add_name(gather->folder, text);
	end_part(gather);
	pthread_mutex_unlock(&tree.lock);
}

void gathers_expire(uint64_t now)
{
	for (struct gather *gather = tree.gathers; gather; gather = gather->next)
		if (now >= gather->deadline)
			finish(gather);
}

static void ask_user(struct gather *gather, uid_t uid, unsigned int *asked)
{
	pthread_mutex_lock(&tree.lock);
	if (job_post_gather(uid, list_user, gather)) {
		gather->pending++;
		(*asked)++;
	}
	pthread_mutex_unlock(&tree.lock);
}

/* Return whether a folder belongs to the user: in /tmp each user can make folders with others'
 * numbers. A file system of the user's is not asked, since it may not answer. */
static bool belongs_to(int dir, const char *name, uid_t uid)
{
	struct statx st;

	return !statx(dir, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC,
		      STATX_TYPE | STATX_UID, &st) &&
	       S_ISDIR(st.stx_mode) && st.stx_uid == uid;
}

/* Ask the keepers of all users that have a runtime folder by this pattern. */
static void ask_users(struct gather *gather, const char *pattern, unsigned int *asked)
{
	const char *number = strstr(pattern, "%u"), *slash = number;
	size_t before;
	char base[4096];
	struct dirent *entry;
	DIR *dir;

	if (!number) {
		ask_user(gather, tree.own, asked);
		return;
	}
	while (slash > pattern && slash[-1] != '/')
		slash--;
	before = (size_t)(number - slash);
	if ((size_t)snprintf(base, sizeof(base), "%.*s", (int)(slash - pattern), pattern) >=
	    sizeof(base))
		return;
	dir = opendir(*base ? base : ".");
	while (dir && *asked < USERS_LISTED && (entry = readdir(dir))) {
		unsigned long uid;
		char *end, text[32];

		if (strncmp(entry->d_name, slash, before))
			continue;
		uid = strtoul(entry->d_name + before, &end, 10);
		snprintf(text, sizeof(text), "%lu", uid);
		/* The rest of this component, if there is one, follows the number. */
		if (uid > UINT32_MAX - 1 || strncmp(entry->d_name + before, text, strlen(text)) ||
		    strncmp(end, number + 2, strcspn(number + 2, "/")) ||
		    strlen(end) != strcspn(number + 2, "/") || (tree.own && uid != tree.own) ||
		    !belongs_to(dirfd(dir), entry->d_name, (uid_t)uid))
			continue;
		ask_user(gather, (uid_t)uid, asked);
	}
	if (dir)
		closedir(dir);
}

void folder_open_root(fuse_req_t req, const struct fuse_file_info *fi)
{
	struct gather *gather = calloc(1, sizeof(*gather));
	struct folder *folder = calloc(1, sizeof(*folder));
	const struct fuse_ctx *caller = fuse_req_ctx(req);
	unsigned int asked = 0;

	if (!gather || !folder) {
		free(gather);
		free(folder);
		fuse_reply_err(req, ENOMEM);
		return;
	}
	gather->req = req;
	gather->fi = *fi;
	gather->folder = folder;
	gather->uid = caller->uid;
	gather->deadline = tmesh_now_ns() + ANSWER_NS;
	gather->pending = 1;
	gather->group_count = fuse_req_getgroups(req, CALLER_GROUPS, gather->groups);
	if (gather->group_count < 0)
		gather->group_count = 0;
	else if (gather->group_count > CALLER_GROUPS)
		gather->group_count = CALLER_GROUPS;
	gather->groups[gather->group_count++] = caller->gid;
	pthread_mutex_lock(&tree.lock);
	gather->next = tree.gathers;
	tree.gathers = gather;
	pthread_mutex_unlock(&tree.lock);
	for (size_t i = 0; i < tree.keeper_count; i++)
		ask_users(gather, tree.keepers[i], &asked);
	pthread_mutex_lock(&tree.lock);
	end_part(gather);
	pthread_mutex_unlock(&tree.lock);
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
