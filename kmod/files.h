/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The files of a kept group: a table of paths, and of the part of a region that each file has.
 */
#ifndef TMESH_FILES_H
#define TMESH_FILES_H

#include "tmesh.h"

struct tmesh_group;

/*
 * struct tmesh_table - the paths of a group's files
 *
 * The files are in the order of their paths: byte by byte, with a slash before all other bytes. So
 * the files of a folder follow each other. The paths stand behind the entries, each with a zero
 * behind it.
 */
struct tmesh_table {
	struct rcu_head rcu;
	u32 count;
	struct tmesh_file entries[];
};

/*
 * struct tmesh_files - the files of a group
 *
 * The members behind the table are constant.
 */
struct tmesh_files {
	struct kref ref; /* held by the group and by inodes; it holds no region */
	struct rcu_head rcu; /* walks of paths under RCU end before it is freed */
	struct tmesh_table __rcu *table; /* NULL: the name is gone; set under tmesh_kept_lock */
	u64 id; /* of the group */
	kuid_t uid;
	kgid_t gid;
	u32 mode; /* permission bits of a file */
	struct timespec64 kept;
};

/* Return the path of a file. */
static inline const char *tmesh_files_path(const struct tmesh_table *table, u32 i)
{
	return (const char *)&table->entries[table->count] + table->entries[i].path;
}

/* Return whether the group has no name any more. */
static inline bool tmesh_files_gone(const struct tmesh_files *files)
{
	return !rcu_access_pointer(files->table);
}

int tmesh_files_read(struct tmesh_group *group, const struct tmesh_keep *cmd);
void tmesh_files_get(struct tmesh_files *files);
void tmesh_files_put(struct tmesh_files *files);
void tmesh_files_drop(struct tmesh_files *files);
u32 tmesh_files_bound(const struct tmesh_table *table, u32 first, u32 end, u32 prefix,
		      const char *name, u32 length, bool behind);
u32 tmesh_files_component(const struct tmesh_table *table, u32 i, u32 prefix, bool *is_file);

#endif /* TMESH_FILES_H */
