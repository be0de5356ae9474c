// SPDX-License-Identifier: MIT
/* Inodes: a user's folder by its uid, a file or folder of a group by the group's serial number, a
 * place in its table, and the folder's depth. */
#include <string.h>

#include "mount.h"

fuse_ino_t ino_of_user(uid_t uid)
{
	return (fuse_ino_t)1 << 63 | uid;
}

fuse_ino_t ino_of(const struct group *group, uint32_t index, unsigned int depth)
{
	return group->serial << 27 | (fuse_ino_t)depth << 17 | index;
}

bool ino_fits(fuse_ino_t ino, const struct table *table)
{
	unsigned int depth = ino_depth(ino);
	const char *at;

	if (ino_index(ino) >= table->paths->count)
		return false;
	if (!depth || depth == INO_FILE)
		return true;
	at = tmesh_paths_name(table->paths, ino_index(ino));
	for (; depth; depth--, at++) {
		at = strchr(at, '/');
		if (!at)
			return false;
	}
	return true;
}

static void fill(struct stat *st, fuse_ino_t ino, mode_t mode, uid_t uid, gid_t gid)
{
	*st = (struct stat){
		.st_ino = ino,
		.st_mode = mode,
		.st_nlink = S_ISDIR(mode) ? 2 : 1,
		.st_uid = uid,
		.st_gid = gid,
		.st_blksize = 4096,
	};
}

void attr_of_root(struct stat *st)
{
	fill(st, FUSE_ROOT_ID, S_IFDIR | 0755, tree.own, getegid());
}

void attr_of_user(struct stat *st, uid_t uid)
{
	fill(st, ino_of_user(uid), S_IFDIR | 0711, uid, uid == tree.own ? getegid() : 0);
}

bool attr_of(struct stat *st, const struct group *group, const struct table *table, fuse_ino_t ino)
{
	const struct tmesh_paths *paths = table->paths;
	bool is_file = ino_depth(ino) == INO_FILE;
	mode_t read = group->mode & 0444;
	const struct tmesh_paths_entry *entry;

	if (!ino_fits(ino, table))
		return false;
	entry = &paths->entries[ino_index(ino)];
	fill(st, ino, is_file ? S_IFREG | read : S_IFDIR | read | read >> 2, group->user->uid,
	     group->gid);
	st->st_mtim = group->kept;
	if (is_file) {
		st->st_size = (off_t)entry->bytes;
		st->st_blocks = (blkcnt_t)((entry->bytes + 511) / 512);
		st->st_mtim.tv_sec = entry->mtime_ns / 1000000000;
		st->st_mtim.tv_nsec = entry->mtime_ns % 1000000000;
		if (st->st_mtim.tv_nsec < 0) {
			st->st_mtim.tv_sec--;
			st->st_mtim.tv_nsec += 1000000000;
		}
	}
	st->st_atim = st->st_mtim;
	st->st_ctim = group->kept;
	return true;
}
