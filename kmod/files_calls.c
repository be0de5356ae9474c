// SPDX-License-Identifier: GPL-2.0-only
/*
 * The call that reads the files of a kept group, by the group's name or by an open file of the file
 * system "tmesh".
 */
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "account.h"
#include "files.h"
#include "files_calls.h"
#include "fs.h"
#include "keep.h"
#include "ucmd.h"

/*
 * Copy bytes of a table: the paths follow the entries. Return false if the group has no name any
 * more, because the end of the name frees the table.
 */
static bool tmesh_table_copy(const struct tmesh_files *files, size_t from, void *to, size_t bytes)
{
	const struct tmesh_table *table;

	rcu_read_lock();
	table = rcu_dereference(files->table);
	if (table)
		memcpy(to, (const char *)table->entries + from, bytes);
	rcu_read_unlock();
	return table;
}

/* Get the number of files and the length of their paths. Return false as tmesh_table_copy(). */
static bool tmesh_table_size(const struct tmesh_files *files, u32 *count, u64 *path_bytes)
{
	const struct tmesh_table *table;
	u32 last;

	rcu_read_lock();
	table = rcu_dereference(files->table);
	if (table) {
		last = table->count - 1;
		*count = table->count;
		*path_bytes = table->entries[last].path + strlen(tmesh_files_path(table, last)) + 1;
	}
	rcu_read_unlock();
	return table;
}

static int tmesh_put_file(const struct tmesh_kept_files *cmd, u32 index,
			  const struct tmesh_file *file)
{
	void __user *to = u64_to_user_ptr(cmd->files + (u64)index * cmd->file_bytes);

	if (copy_to_user(to, file, sizeof(*file)) ||
	    clear_user(to + sizeof(*file), cmd->file_bytes - sizeof(*file)))
		return -EFAULT;
	return fatal_signal_pending(current) ? -EINTR : 0;
}

static int tmesh_put_files(const struct tmesh_kept_files *cmd, const struct tmesh_files *files)
{
	struct tmesh_file file;
	int rc;
	u32 i;

	for (i = 0; i < cmd->file_count; i++) {
		if (!tmesh_table_copy(files, i * sizeof(file), &file, sizeof(file)))
			return -ESTALE;
		rc = tmesh_put_file(cmd, i, &file);
		if (rc)
			return rc;
		cond_resched();
	}
	return 0;
}

static int tmesh_put_paths(const struct tmesh_kept_files *cmd, const struct tmesh_files *files)
{
	size_t from = cmd->file_count * sizeof(struct tmesh_file), done, step;
	char *page = kmalloc(PAGE_SIZE, TMESH_GFP);
	int rc = 0;

	if (!page)
		return -ENOMEM;
	for (done = 0; !rc && done < cmd->path_bytes; done += step) {
		step = min_t(size_t, cmd->path_bytes - done, PAGE_SIZE);
		if (!tmesh_table_copy(files, from + done, page, step))
			rc = -ESTALE;
		else if (copy_to_user(u64_to_user_ptr(cmd->paths + done), page, step))
			rc = -EFAULT;
		else if (fatal_signal_pending(current))
			rc = -EINTR;
		cond_resched();
	}
	kfree(page);
	return rc;
}

/* Describe the files of a name. Return -ESTALE if it ended meanwhile. */
static int tmesh_files_of_name(struct tmesh_ucmd *ucmd, const struct tmesh_files *files)
{
	struct tmesh_kept_files *cmd = ucmd->cmd;
	u32 room = cmd->file_count;
	u64 path_room = cmd->path_bytes;
	int rc;

	if (!tmesh_table_size(files, &cmd->file_count, &cmd->path_bytes))
		return -ESTALE;
	if (room < cmd->file_count || path_room < cmd->path_bytes)
		return tmesh_respond(ucmd, sizeof(*cmd)) ? -EFAULT : -ENOSPC;
	rc = tmesh_put_files(cmd, files);
	if (!rc)
		rc = tmesh_put_paths(cmd, files);
	return rc ? rc : tmesh_respond(ucmd, sizeof(*cmd));
}

static int tmesh_files_by_name(struct tmesh_ucmd *ucmd)
{
	struct tmesh_kept_files *cmd = ucmd->cmd, asked = *cmd;
	kuid_t uid = current_euid();
	struct tmesh_files *files;
	struct tmesh_group *group;
	int rc;

	if (cmd->fd || !*cmd->name)
		return -EINVAL;
	rc = tmesh_label_valid(cmd->name);
	if (rc)
		return rc;
	if (cmd->flags & TMESH_KEPT_UID)
		uid = make_kuid(current_user_ns(), cmd->uid);
	else if (cmd->uid)
		return -EINVAL;
	/*
	 * The caller's memory may delay the copy for ever. So only the table is held meanwhile. It
	 * is emptied when the name ends. A name that is replaced has another group the next time.
	 */
	do {
		*cmd = asked;
		group = uid_valid(uid) ? tmesh_group_get(uid, cmd->name) : NULL;
		if (!group)
			return -ENOENT;
		cmd->id = group->id;
		files = group->files;
		if (files)
			tmesh_files_get(files);
		tmesh_group_unhold(group);
		if (!files)
			return -ENODATA;
		rc = tmesh_files_of_name(ucmd, files);
		tmesh_files_put(files);
		if (fatal_signal_pending(current))
			return -EINTR;
	} while (rc == -ESTALE);
	return rc;
}

/* Describe an open file, whose mode admitted the process that opened it. */
static int tmesh_files_of_fd(struct tmesh_ucmd *ucmd, const struct file *file)
{
	const struct tmesh_node *node = file_inode(file)->i_private;
	struct tmesh_kept_files *cmd = ucmd->cmd;
	struct tmesh_group *group;
	int rc;

	group = tmesh_group_of_files(node->files);
	if (!group)
		return -ENOENT;
	memcpy(cmd->name, group->name, sizeof(cmd->name));
	cmd->id = group->id;
	tmesh_group_unhold(group);
	cmd->uid = from_kuid_munged(current_user_ns(), node->files->uid);
	cmd->file_count = 1;
	cmd->path_bytes = 0;
	rc = tmesh_put_file(cmd, 0, &node->file);
	return rc ? rc : tmesh_respond(ucmd, sizeof(*cmd));
}

static int tmesh_files_by_fd(struct tmesh_ucmd *ucmd)
{
	const struct tmesh_kept_files *cmd = ucmd->cmd;
	struct file *file;
	int rc;

	if (cmd->flags != TMESH_KEPT_FD || cmd->uid || cmd->paths || cmd->path_bytes ||
	    cmd->file_count != 1 || memchr_inv(cmd->name, 0, sizeof(cmd->name)))
		return -EINVAL;
	file = fget(cmd->fd);
	if (!file)
		return -EBADF;
	rc = file->f_op == &tmesh_fs_file_ops ? tmesh_files_of_fd(ucmd, file) : -ENODATA;
	fput(file);
	return rc;
}

/**
 * tmesh_ioctl_kept_files() - TMESH_KEPT_FILES
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_kept_files(struct tmesh_ucmd *ucmd)
{
	const struct tmesh_kept_files *cmd = ucmd->cmd;
	int rc = tmesh_check_stride(cmd->file_count, cmd->file_bytes, sizeof(struct tmesh_file));

	if (rc)
		return rc;
	return cmd->flags & TMESH_KEPT_FD ? tmesh_files_by_fd(ucmd) : tmesh_files_by_name(ucmd);
}
