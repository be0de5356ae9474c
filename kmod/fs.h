/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The file system "tmesh", which shows the files of kept groups: fs.c has the tree, and fs_file.c
 * its files.
 */
#ifndef TMESH_FS_H
#define TMESH_FS_H

#include "tmesh.h"

/*
 * struct tmesh_node - a folder or file of a group
 */
struct tmesh_node {
	struct rcu_head rcu; /* walks of paths under RCU end before it is freed */
	struct tmesh_files *files; /* reference */
	u32 first; /* number of the file, or of a folder's first one */
	u32 end; /* behind a folder's last file */
	u32 prefix; /* length of a folder's path with its slash */
	struct tmesh_file file; /* a file's part of a region */
};

extern const struct file_operations tmesh_fs_file_ops;

int tmesh_fs_init(void);
void tmesh_fs_settle(bool usable);
void tmesh_fs_abandon(void);
void tmesh_fs_exit(void);

#endif /* TMESH_FS_H */
