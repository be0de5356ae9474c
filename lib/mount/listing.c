// SPDX-License-Identifier: MIT
/*
 * Listings of the root. The keepers of all users are asked, and the last answer completes a
 * listing. Listings that wait at the same time share each question, so that many of them do not
 * fill a user's queue. A thread of its own reads the folders that tell which users there are.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "mount.h"

/* A caller's groups beyond these are not looked at. */
#define CALLER_GROUPS 64
#define USERS_LISTED 256
/* A folder with more numbers in its names is read for each listing. */
#define NUMBERS_KEPT 65536
/* The clock of a file system may stand still for so long: a later change may have the same time. */
#define CLOCK_STEP_NS INT64_C(100000000)

/* A listing of the root. */
struct gather {
	struct gather *next;
	fuse_req_t req;
	struct fuse_file_info fi;
	struct folder *folder; /* NULL: it was answered */
	struct asker *asker;   /* until then */
	uint64_t deadline;
	unsigned int pending;
	enum {
		WAITS,
		READS,
		HAS_READ
	} folders;
	uid_t uid;
	int group_count;
	gid_t groups[CALLER_GROUPS + 1];
	unsigned int asked_count;
	uid_t asked[USERS_LISTED];
};

/* The numbers in the names of a pattern's folder. */
struct numbers {
	bool good; /* as long as the folder does not change */
	struct statx seen;
	uint32_t *uids;
	size_t count, room;
};

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
	folder->asker = gather->asker;
	folder->asker->listings++;
	asker_end(gather->asker);
	gather->fi.fh = (uintptr_t)folder;
	if (!fuse_reply_open(gather->req, &gather->fi))
		return;
	folder->asker->listings--;
	asker_release(folder->asker);
	free(folder->names);
	free(folder);
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

static void end_user(struct part *part, uid_t uid, const struct tmesh_keeper_row *rows,
		     uint32_t count)
{
	struct gather *gather = part->gather;
	bool shown = false;
	char text[16];

	for (uint32_t i = 0; !shown && i < count; i++)
		shown = may_read(gather, uid, &rows[i]);
	snprintf(text, sizeof(text), "%u", (unsigned int)uid);
	pthread_mutex_lock(&tree.lock);
	if (shown && gather->folder && !folder_has(gather->folder, text))
		folder_add(gather->folder, text);
	end_part(gather);
	pthread_mutex_unlock(&tree.lock);
	free(part);
}

/* Ask a user's keeper for all listings that share the question. */
static void list_user(struct job *job)
{
	struct tmesh_keeper_row *rows = NULL;
	uint32_t count = 0;
	int rc = -EAGAIN;

	if (tmesh_now_ns() < job->deadline)
		rc = ask_list(job->user->uid, &rows, &count, job->deadline);
	if (rc == -ETIMEDOUT) {
		pthread_mutex_lock(&tree.lock);
		user_rests(job->user);
		pthread_mutex_unlock(&tree.lock);
	}
	for (struct part *part = job->parts, *next; part; part = next) {
		next = part->next;
		end_user(part, job->user->uid, rows, rc ? 0 : count);
	}
	free(rows);
}

void gathers_expire(uint64_t now)
{
	for (struct gather *gather = tree.gathers; gather; gather = gather->next)
		if (now >= gather->deadline)
			finish(gather);
}

/* Ask a user's keeper once for a listing; the lock is held. */
static void ask_user(struct gather *gather, uid_t uid)
{
	struct part *part;

	if (gather->asked_count == USERS_LISTED || !gather->folder)
		return;
	for (unsigned int i = 0; i < gather->asked_count; i++)
		if (gather->asked[i] == uid)
			return;
	part = calloc(1, sizeof(*part));
	if (!part)
		return;
	part->gather = gather;
	if (!job_post_part(uid, list_user, part)) {
		free(part);
		return;
	}
	gather->pending++;
	gather->asked[gather->asked_count++] = uid;
}

/* Ask a user's keeper for all listings for which the folders are read. Return whether one of them
 * still waits. */
static bool ask_for_all(uid_t uid)
{
	bool waits = false;

	pthread_mutex_lock(&tree.lock);
	for (struct gather *gather = tree.gathers; gather; gather = gather->next) {
		if (gather->folders != READS || !gather->folder)
			continue;
		if (uid != (uid_t)-1)
			ask_user(gather, uid);
		waits |= gather->asked_count < USERS_LISTED && tmesh_now_ns() < gather->deadline;
	}
	pthread_mutex_unlock(&tree.lock);
	return waits;
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

/* A pattern's component with the number: BEFORE%uBEHIND, in the folder BASE. */
struct component {
	const char *before, *behind;
	int before_length, behind_length;
	char base[4096];
};

static bool split_pattern(const char *pattern, struct component *component)
{
	const char *number = strstr(pattern, "%u"), *slash = number;

	if (!number)
		return false;
	while (slash > pattern && slash[-1] != '/')
		slash--;
	component->before = slash;
	component->before_length = (int)(number - slash);
	component->behind = number + 2;
	component->behind_length = (int)strcspn(number + 2, "/");
	return (size_t)snprintf(component->base, sizeof(component->base), "%.*s",
				slash == pattern ? 1 : (int)(slash - pattern),
				slash == pattern ? "." : pattern) < sizeof(component->base);
}

static bool name_of(char *name, size_t size, const struct component *component, uid_t uid)
{
	return (size_t)snprintf(name, size, "%.*s%u%.*s", component->before_length,
				component->before, (unsigned int)uid, component->behind_length,
				component->behind) < size;
}

/* Read the number of a name as the pattern writes it. */
static bool number_of(const char *name, const struct component *component, uid_t *uid)
{
	char again[256];
	unsigned long value;

	if (strncmp(name, component->before, (size_t)component->before_length))
		return false;
	value = strtoul(name + component->before_length, NULL, 10);
	if (value > UINT32_MAX - 1)
		return false;
	*uid = (uid_t)value;
	return name_of(again, sizeof(again), component, *uid) && !strcmp(again, name);
}

static bool ask_owner(int dir, const char *name, uid_t uid)
{
	return ask_for_all(belongs_to(dir, name, uid) ? uid : (uid_t)-1);
}

static bool keep_number(struct numbers *numbers, uid_t uid)
{
	if (numbers->count == numbers->room) {
		size_t room = numbers->room ? 2 * numbers->room : 64;
		uint32_t *more = NULL;

		if (room <= NUMBERS_KEPT)
			more = realloc(numbers->uids, room * sizeof(*more));
		if (!more)
			return false;
		numbers->uids = more;
		numbers->room = room;
	}
	numbers->uids[numbers->count++] = uid;
	return true;
}

/* Return whether a change after this moment gives the folder another time. */
static bool is_settled(const struct statx *st)
{
	struct timespec now;
	int64_t passed;

	clock_gettime(CLOCK_REALTIME, &now);
	passed = (now.tv_sec - st->stx_mtime.tv_sec) * INT64_C(1000000000) + now.tv_nsec -
		 st->stx_mtime.tv_nsec;
	return passed > CLOCK_STEP_NS;
}

static bool is_same(const struct statx *a, const struct statx *b)
{
	return a->stx_ino == b->stx_ino && a->stx_dev_major == b->stx_dev_major &&
	       a->stx_dev_minor == b->stx_dev_minor &&
	       !memcmp(&a->stx_mtime, &b->stx_mtime, sizeof(a->stx_mtime)) &&
	       !memcmp(&a->stx_ctime, &b->stx_ctime, sizeof(a->stx_ctime));
}

/* Read the folder, ask the users in it, and keep their numbers. */
static void read_numbers(int fd, const struct component *component, struct numbers *numbers)
{
	DIR *dir = fdopendir(fd);
	struct dirent *entry;
	bool whole = true, waits = true;
	uid_t uid;

	numbers->good = false;
	numbers->count = 0;
	if (!dir) {
		close(fd);
		return;
	}
	while (waits && (entry = readdir(dir))) {
		if (!number_of(entry->d_name, component, &uid) || (tree.own && uid != tree.own))
			continue;
		whole = keep_number(numbers, uid) && whole;
		waits = ask_owner(fd, entry->d_name, uid);
	}
	numbers->good = whole && waits;
	closedir(dir);
}

/* Ask the keepers of all users that have a runtime folder by this pattern. */
static void ask_users(const char *pattern, struct numbers *numbers)
{
	struct component component;
	struct statx now;
	bool settled, waits = true;
	char name[256];
	int fd;

	if (!split_pattern(pattern, &component))
		return;
	fd = open(component.base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return;
	if (statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_MTIME | STATX_CTIME, &now)) {
		close(fd);
		return;
	}
	settled = is_settled(&now);
	if (!numbers->good || !is_same(&numbers->seen, &now)) {
		read_numbers(fd, &component, numbers);
		numbers->good &= settled;
		numbers->seen = now;
		return;
	}
	for (size_t i = 0; waits && i < numbers->count; i++)
		if (name_of(name, sizeof(name), &component, numbers->uids[i]))
			waits = ask_owner(fd, name, numbers->uids[i]);
	close(fd);
}

/* Wait for listings whose folders are to be read. False: the service ends. The lock is held. */
static bool await_listings(void)
{
	bool found = false;

	while (!found && !tree.ends) {
		for (struct gather *gather = tree.gathers; gather; gather = gather->next)
			if (gather->folders == WAITS) {
				gather->folders = READS;
				found = true;
			}
		if (!found)
			pthread_cond_wait(&tree.arrived, &tree.lock);
	}
	return found;
}

static void end_reading(void)
{
	for (struct gather *gather = tree.gathers, *next; gather; gather = next) {
		next = gather->next;
		if (gather->folders != READS)
			continue;
		gather->folders = HAS_READ;
		end_part(gather);
	}
}

void *read_folders(void *unused)
{
	static struct numbers numbers[KEEPER_PATTERNS];

	pthread_mutex_lock(&tree.lock);
	while (await_listings()) {
		pthread_mutex_unlock(&tree.lock);
		for (size_t i = 0; i < tree.keeper_count; i++)
			ask_users(tree.keepers[i], &numbers[i]);
		pthread_mutex_lock(&tree.lock);
		end_reading();
	}
	pthread_mutex_unlock(&tree.lock);
	return NULL;
}

static void set_caller(struct gather *gather, fuse_req_t req)
{
	const struct fuse_ctx *caller = fuse_req_ctx(req);

	gather->uid = caller->uid;
	gather->group_count = fuse_req_getgroups(req, CALLER_GROUPS, gather->groups);
	if (gather->group_count < 0)
		gather->group_count = 0;
	else if (gather->group_count > CALLER_GROUPS)
		gather->group_count = CALLER_GROUPS;
	gather->groups[gather->group_count++] = caller->gid;
}

/* Begin a listing with the users that the service knows; the lock is held. 0 or an errno. */
static int begin(struct gather *gather)
{
	struct asker *asker = asker_of(gather->uid);
	int rc = asker ? asker_admit_listing(asker) : ENOMEM;

	if (rc) {
		if (asker)
			asker_release(asker);
		return rc;
	}
	asker_begin(asker);
	gather->asker = asker;
	gather->next = tree.gathers;
	tree.gathers = gather;
	for (struct user *user = tree.users; user; user = user->next)
		if (user->groups)
			ask_user(gather, user->uid);
	for (size_t i = 0; i < tree.keeper_count; i++)
		if (!strstr(tree.keepers[i], "%u"))
			ask_user(gather, tree.own);
	pthread_cond_signal(&tree.arrived);
	return 0;
}

void folder_open_root(fuse_req_t req, const struct fuse_file_info *fi)
{
	struct gather *gather = calloc(1, sizeof(*gather));
	struct folder *folder = calloc(1, sizeof(*folder));
	int rc = ENOMEM;

	if (gather && folder) {
		gather->req = req;
		gather->fi = *fi;
		gather->folder = folder;
		gather->deadline = tmesh_now_ns() + ANSWER_NS;
		gather->pending = 1; /* the reading of folders */
		set_caller(gather, req);
		pthread_mutex_lock(&tree.lock);
		rc = begin(gather);
		pthread_mutex_unlock(&tree.lock);
	}
	if (!rc)
		return;
	free(gather);
	free(folder);
	fuse_reply_err(req, rc);
}
