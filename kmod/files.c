// SPDX-License-Identifier: GPL-2.0-only
/*
 * The files of a kept group, as TMESH_KEEP gives them. All of the table comes from user space. It
 * is copied first and checked then.
 */
#include <linux/nospec.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "account.h"
#include "files.h"
#include "keep.h"
#include "mem.h"
#include "region.h"

/* Compare two paths; a slash comes before all other bytes. */
static int tmesh_path_compare(const char *a, const char *b)
{
	for (; *a && *a == *b; a++, b++)
		;
	if (*a == *b)
		return 0;
	if (!*a || !*b)
		return *a ? 1 : -1;
	if (*a == '/' || *b == '/')
		return *a == '/' ? -1 : 1;
	return (u8)*a < (u8)*b ? -1 : 1;
}

/* Test whether a file could have the path. @length is that of the path. */
static bool tmesh_path_valid(const char *path, size_t length)
{
	size_t part;

	if (!length || length > TMESH_PATH_MAX)
		return false;
	do {
		part = strcspn(path, "/");
		if (!part || part > NAME_MAX)
			return false;
		if (*path == '.' && (part == 1 || (part == 2 && path[1] == '.')))
			return false;
		path += part;
	} while (*path++);
	return true;
}

/* Test whether a path leads to a file in the folder @folder, or deeper. */
static bool tmesh_path_below(const char *folder, const char *path)
{
	size_t length = strlen(folder);

	return !strncmp(folder, path, length) && path[length] == '/';
}

/* Check the path of a file. @before is the path in front of it, or NULL. */
static int tmesh_files_check_path(const char *path, size_t length, const char *before)
{
	int order;

	if (!tmesh_path_valid(path, length))
		return -EINVAL;
	if (!before)
		return 0;
	order = tmesh_path_compare(before, path);
	if (!order || tmesh_path_below(before, path))
		return -EEXIST;
	return order < 0 ? 0 : -EINVAL;
}

/* Test for zeros from the end of a file to the end of its last page, which a mapping shows. */
static int tmesh_files_check_tail(struct tmesh_region *region, u64 end)
{
	unsigned int from = offset_in_page(end);
	struct page *page;
	int rc = 0;
	void *at;

	if (!from)
		return 0;
	down_read(&region->lock);
	if (!region->mem) {
		rc = -ESTALE;
		goto unlock;
	}
	page = region->mem->pages[end >> PAGE_SHIFT];
	if (!tmesh_clean_pages(&page, 1)) {
		rc = -EIO;
		goto unlock;
	}
	at = kmap_local_page(page);
	if (memchr_inv(at + from, 0, PAGE_SIZE - from))
		rc = -EINVAL;
	kunmap_local(at);
unlock:
	up_read(&region->lock);
	return rc;
}

/* Check which part of which region a file has. */
static int tmesh_files_check_part(const struct tmesh_group *group, const struct tmesh_file *file)
{
	struct tmesh_region *region;
	u64 end;

	if (file->region >= group->nr_regions || !PAGE_ALIGNED(file->offset) ||
	    check_add_overflow(file->offset, file->bytes, &end))
		return -EINVAL;
	region = group->regions[array_index_nospec(file->region, group->nr_regions)];
	/* A mapping of other memory could not be taken away. */
	if (region->backing != TMESH_BACKING_PAGES)
		return -EOPNOTSUPP;
	if (end > region->bytes)
		return -EINVAL;
	return file->bytes ? tmesh_files_check_tail(region, end) : 0;
}

static int tmesh_files_check(const struct tmesh_group *group, const struct tmesh_table *table,
			     size_t path_bytes)
{
	const char *path, *before = NULL;
	size_t at = 0, length;
	int rc;
	u32 i;

	for (i = 0; i < table->count; i++) {
		if (at >= path_bytes || table->entries[i].path != at)
			return -EINVAL;
		path = tmesh_files_path(table, i);
		length = strnlen(path, path_bytes - at);
		at += length + 1;
		if (at > path_bytes)
			return -EINVAL;
		rc = tmesh_files_check_path(path, length, before);
		if (!rc)
			rc = tmesh_files_check_part(group, &table->entries[i]);
		if (rc)
			return rc;
		if (fatal_signal_pending(current))
			return -EINTR;
		before = path;
		cond_resched();
	}
	return at == path_bytes ? 0 : -EINVAL;
}

static int tmesh_files_copy(struct tmesh_table *table, const struct tmesh_keep *cmd)
{
	char *paths = (char *)&table->entries[table->count];
	u64 done, step;
	int rc;
	u32 i;

	for (i = 0; i < table->count; i++) {
		rc = copy_struct_from_user(&table->entries[i], sizeof(table->entries[i]),
					   u64_to_user_ptr(cmd->files + (u64)i * cmd->file_bytes),
					   cmd->file_bytes);
		if (rc)
			return rc;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	for (done = 0; done < cmd->path_bytes; done += step) {
		step = min_t(u64, cmd->path_bytes - done, SZ_1M);
		if (copy_from_user(paths + done, u64_to_user_ptr(cmd->paths + done), step))
			return -EFAULT;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}

/**
 * tmesh_files_read() - read the files of a call, check them, and give them to its group
 * @group: has its regions and is not published
 * @cmd:   the call
 *
 * Context: may fault and may sleep long; a fatal signal ends it.
 * Return: 0, also if there are none; or a negative error.
 */
int tmesh_files_read(struct tmesh_group *group, const struct tmesh_keep *cmd)
{
	struct tmesh_table *table;
	struct tmesh_files *files;
	size_t bytes;
	int rc;

	if (!cmd->file_count)
		return cmd->files || cmd->paths || cmd->path_bytes || cmd->file_bytes ? -EINVAL : 0;
	if (cmd->file_count > TMESH_FILES_MAX ||
	    cmd->path_bytes > (u64)cmd->file_count * (TMESH_PATH_MAX + 1))
		return -E2BIG;
	if (cmd->file_bytes < sizeof(struct tmesh_file) || cmd->file_bytes % 8)
		return -EINVAL;
	if (cmd->file_bytes > PAGE_SIZE)
		return -E2BIG;
	/* The name is a folder. */
	if (*cmd->name == '.' || strchr(cmd->name, '/'))
		return -EINVAL;
	bytes = struct_size(table, entries, cmd->file_count) + cmd->path_bytes;
	/* The caller's memory may delay the copy for ever, so the table is charged first. */
	rc = tmesh_charge(group->user, TMESH_KEPT_BYTES, PAGE_ALIGN(bytes));
	if (rc)
		return rc;
	group->precharged = PAGE_ALIGN(bytes);
	group->nr_table_pages = group->precharged >> PAGE_SHIFT;
	files = kzalloc(sizeof(*files), TMESH_GFP);
	if (!files)
		return -ENOMEM;
	table = kvzalloc(bytes, TMESH_GFP);
	if (!table) {
		kfree(files);
		return -ENOMEM;
	}
	table->count = cmd->file_count;
	RCU_INIT_POINTER(files->table, table);
	kref_init(&files->ref);
	files->id = group->id;
	files->uid = group->user->uid;
	files->gid = group->gid;
	files->mode = group->mode & 0444;
	ktime_get_real_ts64(&files->kept);
	group->files = files;
	rc = tmesh_files_copy(table, cmd);
	return rc ? rc : tmesh_files_check(group, table, cmd->path_bytes);
}

/**
 * tmesh_files_get() - take a reference
 * @files: the files; the caller has a reference, or holds tmesh_kept_lock
 */
void tmesh_files_get(struct tmesh_files *files)
{
	kref_get(&files->ref);
}

/**
 * tmesh_files_drop() - free the table of files whose group has no name any more
 * @files: the files
 *
 * Context: tmesh_kept_lock is held, or the last reference was dropped.
 */
void tmesh_files_drop(struct tmesh_files *files)
{
	struct tmesh_table *table;

	table = rcu_dereference_protected(files->table,
					  lockdep_is_held(&tmesh_kept_lock) ||
						  !kref_read(&files->ref));
	rcu_assign_pointer(files->table, NULL);
	if (table)
		kvfree_rcu(table, rcu);
}

static void tmesh_files_release(struct kref *ref)
{
	struct tmesh_files *files = container_of(ref, struct tmesh_files, ref);

	tmesh_files_drop(files);
	kfree_rcu(files, rcu);
}

/**
 * tmesh_files_put() - drop a reference
 * @files: the files
 *
 * Context: any process context, also in memory reclaim.
 */
void tmesh_files_put(struct tmesh_files *files)
{
	kref_put(&files->ref, tmesh_files_release);
}

/* Compare a component of a path with a name of @length bytes. */
static int tmesh_component_compare(const char *path, const char *name, u32 length)
{
	u32 i;

	for (i = 0; i < length; i++) {
		if (!path[i] || path[i] == '/')
			return -1;
		if (path[i] != name[i])
			return (u8)path[i] < (u8)name[i] ? -1 : 1;
	}
	return path[i] && path[i] != '/' ? 1 : 0;
}

/**
 * tmesh_files_bound() - find where the files of a name begin or end in a folder
 * @table:  the table
 * @first:  the folder's first file
 * @end:    the file behind the folder's last one
 * @prefix: length of the folder's path, with its slash
 * @name:   the name, without a slash
 * @length: its length
 * @behind: find the first file behind those of the name; else the first one that is not before it
 *
 * Return: the number of that file, at most @end.
 */
u32 tmesh_files_bound(const struct tmesh_table *table, u32 first, u32 end, u32 prefix,
		      const char *name, u32 length, bool behind)
{
	u32 middle;

	while (first < end) {
		middle = first + (end - first) / 2;
		if (tmesh_component_compare(tmesh_files_path(table, middle) + prefix, name,
					    length) < behind)
			first = middle + 1;
		else
			end = middle;
	}
	return first;
}

/**
 * tmesh_files_component() - return the length of a path's component
 * @table:   the table
 * @i:       number of the file
 * @prefix:  where the component begins
 * @is_file: set to whether it is the last one, which is the file itself
 *
 * Return: its length.
 */
u32 tmesh_files_component(const struct tmesh_table *table, u32 i, u32 prefix, bool *is_file)
{
	const char *name = tmesh_files_path(table, i) + prefix;
	u32 length = strcspn(name, "/");

	*is_file = !name[length];
	return length;
}
