// SPDX-License-Identifier: MIT
/* The kernel's requests. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "../keep_internal.h"
#include "common/kept_mount.h"
#include "mount.h"

/* Kept files do not change; another keeping of the name has other inodes. */
#define FOREVER 86400.0

static void initialize(void *data, struct fuse_conn_info *conn)
{
#if PASSTHROUGH
	/* Only a process with CAP_SYS_ADMIN can hand descriptors to the kernel. */
	if (tree.own == 0 && (conn->capable & FUSE_CAP_PASSTHROUGH)) {
		conn->want |= FUSE_CAP_PASSTHROUGH;
		conn->max_backing_stack_depth = FUSE_BACKING_STACKED_UNDER;
		tree.passthrough = true;
	}
#endif
	/* Without it the kernel sends one look-up of a folder at a time. libfuse before 3.17 does
	 * not pass it on. So no look-up in the root waits for a keeper. */
	conn->want |= conn->capable & FUSE_CAP_PARALLEL_DIROPS;
	conn->want &= ~(unsigned int)FUSE_CAP_READDIRPLUS;
}

/* Read a uid in the form in which it is printed. */
static bool uid_of(const char *name, uid_t *uid)
{
	char *end, text[16];
	unsigned long value = strtoul(name, &end, 10);

	snprintf(text, sizeof(text), "%lu", value);
	*uid = (uid_t)value;
	return *name && !*end && value < UINT32_MAX && !strcmp(text, name) &&
	       (tree.own == 0 || value == tree.own);
}

/* Reply with a user's folder, without a question to its keeper: an unanswered one would delay the
 * look-ups of all other users. The folder of a user that keeps nothing is empty. */
static void answer_user(fuse_req_t req, uid_t uid)
{
	struct fuse_entry_param entry = {
		.ino = ino_of_user(uid), .attr_timeout = FOREVER, .entry_timeout = FOREVER};

	attr_of_user(&entry.attr, uid);
	fuse_reply_entry(req, &entry);
}

/* Reply with an inode of a group; a reply that the kernel does not want gives no lookup. */
static void answer_entry(fuse_req_t req, struct group *group, struct fuse_entry_param *entry)
{
	pthread_mutex_lock(&tree.lock);
	group->lookups++;
	pthread_mutex_unlock(&tree.lock);
	if (!fuse_reply_entry(req, entry))
		return;
	pthread_mutex_lock(&tree.lock);
	group->lookups--;
	group_release(group);
	pthread_mutex_unlock(&tree.lock);
}

/* Ask the keeper for the name's group at each walk: the name may have another group now. */
static void find_group(struct job *job)
{
	struct fuse_entry_param entry = {.attr_timeout = FOREVER};
	struct table *table = NULL;
	struct tmesh_keeper_row row;
	struct group *group;
	bool known, full;
	int rc = ask_find(job->user->uid, job->name, &row, NULL, job->deadline);

	if (rc) {
		job_fail(job, rc);
		return;
	}
	pthread_mutex_lock(&tree.lock);
	group = group_of(job->user, &row);
	known = group && group->table;
	full = job->user->groups >= GROUPS_KNOWN;
	group_crowd(job->user);
	if (group)
		group->lookups++; /* this call's */
	pthread_mutex_unlock(&tree.lock);
	if (!group) {
		job_fail(job, full ? EMFILE : ENOMEM);
		return;
	}
	if (!known)
		rc = ask_find(job->user->uid, job->name, &row, &table, job->deadline);
	if (!rc && row.id != group->id)
		rc = -ESTALE;
	pthread_mutex_lock(&tree.lock);
	if (!rc && table && !group->table) {
		if (table_admit(group, table))
			group_set_table(group, table);
		else
			rc = -EMFILE;
	}
	pthread_mutex_unlock(&tree.lock);
	if (table)
		table_put(table);
	if (rc) {
		job_fail(job, rc);
	} else if (job_answers(job)) {
		struct tmesh_paths none = {.count = 1};
		struct table only = {.paths = &none};

		entry.ino = ino_of(group, 0, 0);
		attr_of(&entry.attr, group, &only, entry.ino);
		answer_entry(job->req, group, &entry);
	}
	pthread_mutex_lock(&tree.lock);
	group->lookups--;
	group_release(group);
	pthread_mutex_unlock(&tree.lock);
}

/* Get the group's table with a reference, and read it again if it was dropped. */
static struct table *get_table(struct job *job, int *rc)
{
	struct table *table;
	struct tmesh_keeper_row row;

	pthread_mutex_lock(&tree.lock);
	table = table_get(job->group);
	pthread_mutex_unlock(&tree.lock);
	if (table)
		return table;
	*rc = ask_find(job->user->uid, job->group->name, &row, &table, job->deadline);
	if (*rc)
		return NULL;
	if (row.id != job->group->id) {
		table_put(table);
		*rc = -ESTALE;
		return NULL;
	}
	pthread_mutex_lock(&tree.lock);
	if (!table_admit(job->group, table))
		*rc = -EMFILE;
	else if (!job->group->table)
		group_set_table(job->group, table);
	pthread_mutex_unlock(&tree.lock);
	if (!*rc)
		return table;
	table_put(table);
	return NULL;
}

/* Find @name below the folder @parent in the table. */
static bool find_below(const struct table *table, fuse_ino_t parent, const char *name,
		       uint32_t *index, bool *is_file)
{
	const struct tmesh_paths *paths = table->paths;
	size_t prefix, length = strlen(name);
	char path[TMESH_KEPT_PATH_LEN + 1];
	const char *found;

	if (ino_depth(parent) == INO_FILE || !ino_fits(parent, table))
		return false;
	prefix = folder_prefix(table, parent);
	if (prefix + length > TMESH_KEPT_PATH_LEN)
		return false;
	memcpy(path, tmesh_paths_name(paths, ino_index(parent)), prefix);
	memcpy(path + prefix, name, length + 1);
	*index = tmesh_paths_bound(paths, path);
	if (*index == paths->count)
		return false;
	found = tmesh_paths_name(paths, *index);
	*is_file = !strcmp(found, path);
	return *is_file ||
	       (!strncmp(found, path, prefix + length) && found[prefix + length] == '/');
}

static void lookup_below(fuse_req_t req, struct job *job, struct group *group, struct table *table,
			 fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry = {.attr_timeout = FOREVER, .entry_timeout = FOREVER};
	uint32_t index;
	bool is_file;
	bool found = find_below(table, parent, name, &index, &is_file);

	if (found) {
		entry.ino = ino_of(group, index, is_file ? INO_FILE : ino_depth(parent) + 1);
		attr_of(&entry.attr, group, table, entry.ino);
	}
	table_put(table);
	if (job && !job_answers(job))
		return;
	if (found)
		answer_entry(req, group, &entry);
	else
		fuse_reply_err(req, ENOENT);
}

static void lookup_later(struct job *job)
{
	int rc = 0;
	struct table *table = get_table(job, &rc);

	if (table)
		lookup_below(job->req, job, job->group, table, job->ino, job->name);
	else
		job_fail(job, rc);
}

/* Get the group of an inode, and its table if it is there, each with a reference. */
static struct group *enter(fuse_ino_t ino, struct table **table)
{
	struct group *group;

	pthread_mutex_lock(&tree.lock);
	group = group_find(ino_serial(ino));
	if (group) {
		*table = table_get(group);
		group->lookups++;
	}
	pthread_mutex_unlock(&tree.lock);
	return group;
}

static void leave(struct group *group)
{
	pthread_mutex_lock(&tree.lock);
	group->lookups--;
	group_release(group);
	pthread_mutex_unlock(&tree.lock);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct table *table;
	struct group *group;
	uid_t uid;

	if (strlen(name) > TMESH_KEPT_COMPONENT_LEN) {
		fuse_reply_err(req, ENAMETOOLONG);
		return;
	}
	if (parent == FUSE_ROOT_ID) {
		if (uid_of(name, &uid))
			answer_user(req, uid);
		else
			fuse_reply_err(req, ENOENT);
		return;
	}
	if (ino_is_user(parent)) {
		if (strlen(name) > TMESH_KEPT_NAME_LEN || !tmesh_paths_may_begin(name))
			fuse_reply_err(req, ENOENT);
		else
			job_post((uid_t)parent, NULL, find_group, req, parent, name, NULL);
		return;
	}
	group = enter(parent, &table);
	if (!group) {
		fuse_reply_err(req, ESTALE);
		return;
	}
	if (table)
		lookup_below(req, NULL, group, table, parent, name);
	else
		job_post(group->user->uid, group, lookup_later, req, parent, name, NULL);
	leave(group);
}

static void forget_one(fuse_ino_t ino, uint64_t count)
{
	struct group *group;

	if (ino == FUSE_ROOT_ID || ino_is_user(ino))
		return;
	pthread_mutex_lock(&tree.lock);
	group = group_find(ino_serial(ino));
	if (group) {
		group->lookups -= count < group->lookups ? count : group->lookups;
		group_release(group);
	}
	pthread_mutex_unlock(&tree.lock);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count)
{
	forget_one(ino, count);
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *all)
{
	for (size_t i = 0; i < count; i++)
		forget_one(all[i].ino, all[i].nlookup);
	fuse_reply_none(req);
}

static void answer_attr(fuse_req_t req, struct job *job, struct group *group, struct table *table,
			fuse_ino_t ino)
{
	struct stat st;
	bool good = attr_of(&st, group, table, ino);

	table_put(table);
	if (job && !job_answers(job))
		return;
	if (good)
		fuse_reply_attr(req, &st, FOREVER);
	else
		fuse_reply_err(req, ESTALE);
}

static void getattr_later(struct job *job)
{
	int rc = 0;
	struct table *table = get_table(job, &rc);

	if (table)
		answer_attr(job->req, job, job->group, table, job->ino);
	else
		job_fail(job, rc == -ENOENT ? -ESTALE : rc);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct table *table;
	struct group *group;
	struct stat st;

	if (ino == FUSE_ROOT_ID || ino_is_user(ino)) {
		if (ino == FUSE_ROOT_ID)
			attr_of_root(&st);
		else
			attr_of_user(&st, (uid_t)ino);
		/* A call on the root must show whether the service runs, so its attributes are not
		 * cached. */
		fuse_reply_attr(req, &st, ino == FUSE_ROOT_ID ? 0 : FOREVER);
		return;
	}
	group = enter(ino, &table);
	if (!group) {
		fuse_reply_err(req, ESTALE);
		return;
	}
	if (table)
		answer_attr(req, NULL, group, table, ino);
	else
		job_post(group->user->uid, group, getattr_later, req, ino, NULL, fi);
	leave(group);
}

static void opendir_later(struct job *job)
{
	int rc = 0;
	struct table *table = get_table(job, &rc);

	if (table)
		folder_open(job->req, job, job->group, table, job->ino, &job->fi);
	else
		job_fail(job, rc == -ENOENT ? -ESTALE : rc);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct table *table;
	struct group *group;

	if (ino == FUSE_ROOT_ID) {
		folder_open_root(req, fi);
		return;
	}
	if (ino_is_user(ino)) {
		job_post((uid_t)ino, NULL, folder_open_user, req, ino, NULL, fi);
		return;
	}
	group = enter(ino, &table);
	if (!group) {
		fuse_reply_err(req, ESTALE);
		return;
	}
	if (table)
		folder_open(req, NULL, group, table, ino, fi);
	else
		job_post(group->user->uid, group, opendir_later, req, ino, NULL, fi);
	leave(group);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
		       struct fuse_file_info *fi)
{
	folder_read(req, (struct folder *)(uintptr_t)fi->fh, size, offset);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	folder_close((struct folder *)(uintptr_t)fi->fh);
	fuse_reply_err(req, 0);
}

/* Count one more open of a file for its group and user; the lock is held. */
static struct file *add_file(struct group *group, uint32_t index)
{
	struct user *user = group->user;
	struct file *file;

	if (user->open_files >= FILES_OPEN || (!group->opens && user->open_groups >= GROUPS_OPEN))
		return NULL;
	file = calloc(1, sizeof(*file));
	if (!file)
		return NULL;
	file->group = group;
	file->index = index;
	file->fd = -1;
	file->next = group->files;
	group->files = file;
	user->open_files++;
	if (group->opens++ == 0)
		user->open_groups++;
	return file;
}

/* Let the kernel read a file that is a whole region from the descriptor itself. */
static void hand_over(struct file *file, fuse_req_t req, uint64_t region_bytes)
{
#if PASSTHROUGH
	if (!tree.passthrough || file->offset || file->bytes != region_bytes)
		return;
	int backing = fuse_passthrough_open(req, file->fd);

	if (backing <= 0)
		return;
	file->backing = (uint32_t)backing;
	/* It has the file now, and the service needs no descriptor. */
	close(file->fd);
	file->fd = -1;
#endif
}

static void close_file(struct file *file)
{
	pthread_mutex_lock(&tree.lock);
	file_close(file);
	pthread_mutex_unlock(&tree.lock);
}

/* Answer a request that this thread has to answer. */
static void answer_file(struct job *job, struct file *file)
{
	job->fi.fh = (uintptr_t)file;
	/* The kernel keeps no other pages of a file that it reads itself. */
	job->fi.keep_cache = !file->backing;
	job->fi.noflush = 1;
#if PASSTHROUGH
	job->fi.backing_id = (int32_t)file->backing;
#endif
	if (!fuse_reply_open(job->req, &job->fi))
		return;
	close_file(file);
}

/* Open a file. Only the user's thread makes files, so no other one makes the same meanwhile. */
static void open_file(struct job *job)
{
	uint32_t index = ino_index(job->ino);
	const struct tmesh_paths_entry *entry;
	uint64_t region_bytes = 0;
	struct table *table;
	struct file *file;
	int fd = -1, rc = 0;

	pthread_mutex_lock(&tree.lock);
	file = file_find(job->group, index);
	if (file)
		file->refs++;
	pthread_mutex_unlock(&tree.lock);
	if (file) {
		if (job_answers(job))
			answer_file(job, file);
		else
			close_file(file);
		return;
	}
	table = get_table(job, &rc);
	if (!table) {
		job_fail(job, rc == -ENOENT ? -ESTALE : rc);
		return;
	}
	if (!ino_fits(job->ino, table)) {
		table_put(table);
		job_fail(job, ESTALE);
		return;
	}
	entry = &table->paths->entries[index];
	if (entry->bytes) {
		fd = ask_open_region(job->group, entry->region, entry->offset + entry->bytes,
				     &region_bytes, job->deadline);
		rc = fd < 0 ? fd : 0;
	}
	pthread_mutex_lock(&tree.lock);
	file = rc ? NULL : add_file(job->group, index);
	if (file) {
		file->refs = 1;
		file->fd = fd;
		file->offset = entry->offset;
		file->bytes = entry->bytes;
	}
	pthread_mutex_unlock(&tree.lock);
	table_put(table);
	if (!file) {
		if (fd >= 0)
			close(fd);
		job_fail(job, rc == -ENOENT ? -ESTALE : rc ? rc : EMFILE);
		return;
	}
	/* Until it is answered by this thread, its time may be over, and the request gone. */
	if (!job_answers(job)) {
		close_file(file);
		return;
	}
	if (fd >= 0)
		hand_over(file, job->req, region_bytes);
	answer_file(job, file);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct table *table = NULL;
	struct group *group = enter(ino, &table);

	if (!group) {
		fuse_reply_err(req, ESTALE);
		return;
	}
	if ((fi->flags & O_ACCMODE) != O_RDONLY)
		fuse_reply_err(req, EROFS);
	else if (ino_depth(ino) != INO_FILE || (table && !ino_fits(ino, table)))
		fuse_reply_err(req, ESTALE);
	else
		job_post(group->user->uid, group, open_file, req, ino, NULL, fi);
	if (table)
		table_put(table);
	leave(group);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
		    struct fuse_file_info *fi)
{
	const struct file *file = (const struct file *)(uintptr_t)fi->fh;
	struct fuse_bufvec buffer = FUSE_BUFVEC_INIT(0);

	if (offset < 0 || (uint64_t)offset >= file->bytes || file->fd < 0) {
		fuse_reply_buf(req, NULL, 0);
		return;
	}
	if (size > file->bytes - (uint64_t)offset)
		size = file->bytes - (uint64_t)offset;
	buffer.buf[0].size = size;
	buffer.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	buffer.buf[0].fd = file->fd;
	buffer.buf[0].pos = (off_t)file->offset + offset;
	fuse_reply_data(req, &buffer, 0);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	close_file((struct file *)(uintptr_t)fi->fh);
	fuse_reply_err(req, 0);
}

static void answer_xattr(fuse_req_t req, const char *text, size_t size)
{
	size_t length = strlen(text);

	if (!size)
		fuse_reply_xattr(req, length);
	else if (size < length)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, text, length);
}

static bool describe(fuse_ino_t ino, const struct group *group, const struct table *table,
		     char text[TMESH_KEPT_XATTR_MAX])
{
	const struct tmesh_paths_entry *entry;

	if (ino_depth(ino) != INO_FILE || !table || !ino_fits(ino, table))
		return false;
	entry = &table->paths->entries[ino_index(ino)];
	snprintf(text, TMESH_KEPT_XATTR_MAX, "%llx %u %llu %llu %u %s",
		 (unsigned long long)group->id, entry->region, (unsigned long long)entry->offset,
		 (unsigned long long)entry->bytes, (unsigned int)group->user->uid, group->name);
	return true;
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	char text[TMESH_KEPT_XATTR_MAX];
	struct table *table = NULL;
	struct group *group;
	bool there = false;

	if (ino == FUSE_ROOT_ID && !strcmp(name, TMESH_MOUNT_XATTR)) {
		answer_xattr(req, tree.passthrough ? "passthrough" : "page cache", size);
		return;
	}
	if (ino != FUSE_ROOT_ID && !ino_is_user(ino) && !strcmp(name, TMESH_KEPT_XATTR)) {
		group = enter(ino, &table);
		there = group && describe(ino, group, table, text);
		if (table)
			table_put(table);
		if (group)
			leave(group);
	}
	if (there)
		answer_xattr(req, text, size);
	else
		fuse_reply_err(req, ENODATA);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	const struct statvfs st = {
		.f_bsize = 4096, .f_frsize = 4096, .f_namemax = TMESH_KEPT_COMPONENT_LEN};

	fuse_reply_statfs(req, &st);
}

const struct fuse_lowlevel_ops operations = {
	.init = initialize,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.releasedir = op_releasedir,
	.open = op_open,
	.read = op_read,
	.release = op_release,
	.getxattr = op_getxattr,
	.statfs = op_statfs,
};
