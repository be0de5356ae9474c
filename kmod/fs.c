// SPDX-License-Identifier: GPL-2.0-only
/*
 * The tree of the file system "tmesh": UID/NAME/PATH for the kept groups that have files.
 *
 * A mount shows the groups of the IPC namespace of the process that mounted it. The VFS decides by
 * owner, group and mode which processes read a file. The namespaces of these processes play no
 * part.
 *
 * An inode has a reference on the group's files and none on the group. The end of a name frees its
 * table, so cached dentries and open folders keep little of a group that was dropped. Each walk
 * over a dentry of a dropped group finds the table gone. No dentry says that a name does not exist,
 * so names that come are found at once.
 */
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/fs_context.h>
#include <linux/module.h>
#include <linux/namei.h>
#include <linux/random.h>
#include <linux/sched/signal.h>
#include <linux/siphash.h>
#include <linux/slab.h>

#include "account.h"
#include "files.h"
#include "fs.h"
#include "keep.h"

#define TMESH_INO_ROOT 1

/* The first positions of a listing are "." and "..". */
#define TMESH_POS_FIRST 2

/* Users that one pass over the groups finds for a listing */
#define TMESH_UIDS_AT_ONCE 32

/* Groups that are walked over in one RCU read-side section */
#define TMESH_GROUPS_AT_ONCE 256

/*
 * struct tmesh_mount - a mount; all of it is constant
 */
struct tmesh_mount {
	struct tmesh_user *user; /* reference; its IPC namespace may end all the same */
	siphash_key_t key; /* of the numbers of inodes */
};

static const struct inode_operations tmesh_root_inode_ops;
static const struct inode_operations tmesh_uid_inode_ops;
static const struct inode_operations tmesh_folder_inode_ops;
static const struct file_operations tmesh_root_ops;
static const struct file_operations tmesh_uid_ops;
static const struct file_operations tmesh_folder_ops;

static const struct tmesh_mount *tmesh_fs_mount(const struct super_block *sb)
{
	return sb->s_fs_info;
}

static const struct ipc_namespace *tmesh_fs_ipc_ns(const struct super_block *sb)
{
	return tmesh_fs_mount(sb)->user->ipc_ns;
}

/*
 * Return the number of a node's inode. Each node of a table has a place of its own in the paths. A
 * file has the end of its path, and a folder the end of its prefix in its first path. The hash
 * hides the group's id, from which a process could learn how many objects others have made.
 */
static u64 tmesh_node_ino(const struct super_block *sb, const struct tmesh_files *files, u32 path,
			  u32 length)
{
	return siphash_2u64(files->id, path + length, &tmesh_fs_mount(sb)->key);
}

/* Return the number of the inode of a user's folder. No group has the id 0. */
static u64 tmesh_uid_ino(const struct super_block *sb, u32 uid)
{
	return siphash_2u64(0, uid, &tmesh_fs_mount(sb)->key);
}

static struct inode *tmesh_fs_inode(struct super_block *sb, u64 ino, umode_t mode, kuid_t uid,
				    kgid_t gid)
{
	struct inode *inode = new_inode(sb);

	if (!inode)
		return NULL;
	inode->i_ino = ino;
	inode->i_mode = mode;
	inode->i_uid = uid;
	inode->i_gid = gid;
	inode->i_flags |= S_NOATIME | S_NOCMTIME;
	return inode;
}

/* Make the inode of a folder or file, with a node that is like @like. */
static struct inode *tmesh_node_inode(struct super_block *sb, const struct tmesh_node *like,
				      u64 ino, bool is_file)
{
	const struct tmesh_files *files = like->files;
	umode_t mode = is_file ? S_IFREG | files->mode :
				 S_IFDIR | files->mode | files->mode >> 2;
	struct tmesh_node *node = kmalloc(sizeof(*node), GFP_KERNEL_ACCOUNT);
	struct inode *inode;

	if (!node)
		return NULL;
	inode = tmesh_fs_inode(sb, ino, mode, files->uid, files->gid);
	if (!inode) {
		kfree(node);
		return NULL;
	}
	*node = *like;
	tmesh_files_get(node->files);
	inode->i_private = node;
	if (is_file) {
		inode->i_size = node->file.bytes;
		inode->i_blocks = DIV_ROUND_UP_ULL(node->file.bytes, 512);
		inode->i_fop = &tmesh_fs_file_ops;
		tmesh_set_times(inode, ns_to_timespec64(node->file.mtime_ns), files->kept);
	} else {
		inode->i_op = &tmesh_folder_inode_ops;
		inode->i_fop = &tmesh_folder_ops;
		tmesh_set_times(inode, files->kept, files->kept);
	}
	return inode;
}

static struct dentry *tmesh_fs_found(struct dentry *dentry, struct inode *inode)
{
	if (!inode)
		return ERR_PTR(-ENOMEM);
	d_add(dentry, inode);
	return NULL;
}

/* Read a uid in the form in which a listing shows it. */
static bool tmesh_fs_parse_uid(const struct qstr *name, kuid_t *uid)
{
	char text[12];
	u32 value;

	if (name->len >= sizeof(text))
		return false;
	memcpy(text, name->name, name->len);
	text[name->len] = '\0';
	/* kstrtou32() takes a newline at the end. */
	if (!isdigit(*text) || !isdigit(text[name->len - 1]) || (*text == '0' && name->len > 1) ||
	    kstrtou32(text, 10, &value))
		return false;
	*uid = KUIDT_INIT(value);
	return uid_valid(*uid);
}

/*
 * Return the next group with files in the namespace, or NULL if there is none among the next @left
 * groups. @left is above 0 then if the last group was seen. Called under RCU.
 */
static struct tmesh_group *tmesh_fs_group_after(const struct ipc_namespace *ipc_ns, u64 *cursor,
						u32 *left)
{
	struct tmesh_group *group;

	while (*left) {
		group = tmesh_group_after(cursor);
		if (!group)
			break;
		--*left;
		if (group->files && group->user->ipc_ns == ipc_ns)
			return group;
	}
	return NULL;
}

/*
 * struct tmesh_uids - the lowest uids that a pass over the groups finds, in order
 */
struct tmesh_uids {
	u64 from; /* the lowest one that is looked for */
	u32 nr;
	u32 uids[TMESH_UIDS_AT_ONCE];
};

static void tmesh_uids_add(struct tmesh_uids *found, u32 uid)
{
	u32 at = found->nr;

	if (uid < found->from)
		return;
	while (at && found->uids[at - 1] > uid)
		at--;
	if ((at && found->uids[at - 1] == uid) || at == ARRAY_SIZE(found->uids))
		return;
	found->nr = min_t(u32, found->nr + 1, ARRAY_SIZE(found->uids));
	memmove(found->uids + at + 1, found->uids + at,
		(found->nr - at - 1) * sizeof(*found->uids));
	found->uids[at] = uid;
}

/* Find the uids that have files in the namespace. With each pass a listing makes progress. */
static int tmesh_fs_uids(const struct ipc_namespace *ipc_ns, struct tmesh_uids *found)
{
	struct tmesh_group *group;
	u64 cursor = 0;
	u32 left;

	do {
		left = TMESH_GROUPS_AT_ONCE;
		rcu_read_lock();
		while ((group = tmesh_fs_group_after(ipc_ns, &cursor, &left)))
			tmesh_uids_add(found, __kuid_val(group->user->uid));
		rcu_read_unlock();
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	} while (!left);
	return 0;
}

static struct dentry *tmesh_root_lookup(struct inode *dir, struct dentry *dentry,
					unsigned int flags)
{
	struct inode *inode;
	bool shown;
	kuid_t uid;

	if (dentry->d_name.len > NAME_MAX)
		return ERR_PTR(-ENAMETOOLONG);
	if (!tmesh_fs_parse_uid(&dentry->d_name, &uid))
		return NULL;
	spin_lock(&tmesh_kept_lock);
	shown = tmesh_user_shown(uid, tmesh_fs_ipc_ns(dir->i_sb));
	spin_unlock(&tmesh_kept_lock);
	if (!shown)
		return NULL;
	inode = tmesh_fs_inode(dir->i_sb, tmesh_uid_ino(dir->i_sb, __kuid_val(uid)), S_IFDIR | 0711,
			       uid, GLOBAL_ROOT_GID);
	if (inode) {
		inode->i_op = &tmesh_uid_inode_ops;
		inode->i_fop = &tmesh_uid_ops;
	}
	return tmesh_fs_found(dentry, inode);
}

static struct dentry *tmesh_uid_lookup(struct inode *dir, struct dentry *dentry, unsigned int flags)
{
	struct tmesh_node node = { };
	struct inode *inode;

	if (dentry->d_name.len > NAME_MAX)
		return ERR_PTR(-ENAMETOOLONG);
	node.files = tmesh_group_files(dir->i_uid, tmesh_fs_ipc_ns(dir->i_sb), dentry->d_name.name,
				       &node.end);
	if (!node.files)
		return NULL;
	inode = tmesh_node_inode(dir->i_sb, &node, tmesh_node_ino(dir->i_sb, node.files, 0, 0),
				 false);
	tmesh_files_put(node.files);
	return tmesh_fs_found(dentry, inode);
}

static struct dentry *tmesh_folder_lookup(struct inode *dir, struct dentry *dentry,
					  unsigned int flags)
{
	const struct tmesh_node *folder = dir->i_private;
	const struct qstr *name = &dentry->d_name;
	const struct tmesh_table *table;
	struct tmesh_node node = *folder;
	bool is_file = false;
	u64 ino = 0;

	if (name->len > NAME_MAX)
		return ERR_PTR(-ENAMETOOLONG);
	rcu_read_lock();
	table = rcu_dereference(folder->files->table);
	node.end = 0;
	if (table) {
		node.first = tmesh_files_bound(table, folder->first, folder->end, folder->prefix,
					       name->name, name->len, false);
		node.end = tmesh_files_bound(table, node.first, folder->end, folder->prefix,
					     name->name, name->len, true);
	}
	if (node.first < node.end) {
		tmesh_files_component(table, node.first, folder->prefix, &is_file);
		node.prefix = folder->prefix + name->len + !is_file;
		node.file = table->entries[node.first];
		ino = tmesh_node_ino(dir->i_sb, folder->files, node.file.path, node.prefix);
	}
	rcu_read_unlock();
	/*
	 * The name ended in the middle of a walk, and may have been replaced. The VFS walks once
	 * more.
	 */
	if (!table && !(flags & LOOKUP_REVAL))
		return ERR_PTR(-ESTALE);
	if (node.first >= node.end)
		return NULL;
	return tmesh_fs_found(dentry, tmesh_node_inode(dir->i_sb, &node, ino, is_file));
}

static const struct inode_operations tmesh_root_inode_ops = { .lookup = tmesh_root_lookup };
static const struct inode_operations tmesh_uid_inode_ops = { .lookup = tmesh_uid_lookup };
static const struct inode_operations tmesh_folder_inode_ops = { .lookup = tmesh_folder_lookup };

/* List the users in ascending order. A position is a uid. */
static int tmesh_root_iterate(struct file *file, struct dir_context *ctx)
{
	const struct super_block *sb = file_inode(file)->i_sb;
	struct tmesh_uids found;
	char text[12];
	int rc;
	u32 i;

	if (!dir_emit_dots(file, ctx))
		return 0;
	do {
		found.from = ctx->pos - TMESH_POS_FIRST;
		found.nr = 0;
		rc = tmesh_fs_uids(tmesh_fs_ipc_ns(sb), &found);
		for (i = 0; i < found.nr && !rc; i++) {
			ctx->pos = (u64)found.uids[i] + TMESH_POS_FIRST;
			if (!dir_emit(ctx, text, sprintf(text, "%u", found.uids[i]),
				      tmesh_uid_ino(sb, found.uids[i]), DT_DIR))
				return 0;
			ctx->pos++;
		}
	} while (found.nr && !rc);
	return rc;
}

/* Copy the name of the next group of a user that has files. Return false after the last one. */
static bool tmesh_uid_next(const struct inode *dir, u64 *cursor, char *name, u64 *ino)
{
	const struct ipc_namespace *ipc_ns = tmesh_fs_ipc_ns(dir->i_sb);
	const struct tmesh_group *group;
	u32 left;

	do {
		left = TMESH_GROUPS_AT_ONCE;
		rcu_read_lock();
		do
			group = tmesh_fs_group_after(ipc_ns, cursor, &left);
		while (group && !uid_eq(group->user->uid, dir->i_uid));
		if (group) {
			memcpy(name, group->name, sizeof(group->name));
			*ino = tmesh_node_ino(dir->i_sb, group->files, 0, 0);
		}
		rcu_read_unlock();
		cond_resched();
	} while (!group && !left && !fatal_signal_pending(current));
	return group;
}

/* List the names of a user in the order of their ids. A position is an id. */
static int tmesh_uid_iterate(struct file *file, struct dir_context *ctx)
{
	char name[TMESH_LABEL_MAX + 1];
	u64 cursor, ino;

	if (!dir_emit_dots(file, ctx))
		return 0;
	cursor = ctx->pos - TMESH_POS_FIRST;
	while (tmesh_uid_next(file_inode(file), &cursor, name, &ino)) {
		if (!dir_emit(ctx, name, strlen(name), ino, DT_DIR))
			return 0;
		ctx->pos = cursor + TMESH_POS_FIRST;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}

/* An entry of a folder's listing */
struct tmesh_entry {
	char name[NAME_MAX + 1];
	u32 length;
	u64 ino;
	bool is_file;
	u32 next; /* number of the file behind those of the entry */
};

/* Find the entry of the file number @i. Return false if the group has no name any more. */
static bool tmesh_folder_entry(const struct super_block *sb, const struct tmesh_node *folder, u32 i,
			       struct tmesh_entry *entry)
{
	const struct tmesh_table *table;
	const char *name;

	rcu_read_lock();
	table = rcu_dereference(folder->files->table);
	if (table) {
		name = tmesh_files_path(table, i) + folder->prefix;
		entry->length = tmesh_files_component(table, i, folder->prefix, &entry->is_file);
		memcpy(entry->name, name, entry->length);
		entry->ino = tmesh_node_ino(sb, folder->files, table->entries[i].path,
					    folder->prefix + entry->length + !entry->is_file);
		entry->next = tmesh_files_bound(table, i, folder->end, folder->prefix, name,
						entry->length, true);
	}
	rcu_read_unlock();
	return table;
}

/* List a folder of a group. A position is the number of the next file. */
static int tmesh_folder_iterate(struct file *file, struct dir_context *ctx)
{
	const struct tmesh_node *folder = file_inode(file)->i_private;
	u64 i = folder->first;
	struct tmesh_entry entry;

	if (!dir_emit_dots(file, ctx))
		return 0;
	if (tmesh_files_gone(folder->files))
		return -ENOENT;
	i += ctx->pos - TMESH_POS_FIRST;
	while (i < folder->end) {
		if (!tmesh_folder_entry(file_inode(file)->i_sb, folder, i, &entry))
			return -ENOENT;
		if (!dir_emit(ctx, entry.name, entry.length, entry.ino,
			      entry.is_file ? DT_REG : DT_DIR))
			return 0;
		i = entry.next;
		ctx->pos = i - folder->first + TMESH_POS_FIRST;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}

static const struct file_operations tmesh_root_ops = {
	.owner = THIS_MODULE,
	.read = generic_read_dir,
	.iterate_shared = tmesh_root_iterate,
	.llseek = generic_file_llseek,
	.fsync = noop_fsync,
};

static const struct file_operations tmesh_uid_ops = {
	.owner = THIS_MODULE,
	.read = generic_read_dir,
	.iterate_shared = tmesh_uid_iterate,
	.llseek = generic_file_llseek,
	.fsync = noop_fsync,
};

static const struct file_operations tmesh_folder_ops = {
	.owner = THIS_MODULE,
	.read = generic_read_dir,
	.iterate_shared = tmesh_folder_iterate,
	.llseek = generic_file_llseek,
	.fsync = noop_fsync,
};

/*
 * Test whether a dentry still is what its path leads to. Also called under RCU, which keeps the
 * node and its files.
 */
static int tmesh_fs_revalidate(TMESH_REVALIDATE_ARGS struct dentry *dentry, unsigned int flags)
{
	const struct inode *inode = d_inode_rcu(dentry);
	const struct tmesh_node *node = inode ? READ_ONCE(inode->i_private) : NULL;

	return !node || !tmesh_files_gone(node->files);
}

static const struct dentry_operations tmesh_fs_dentry_ops = {
	.d_revalidate = tmesh_fs_revalidate,
};

/* Also called in memory reclaim. */
static void tmesh_fs_evict(struct inode *inode)
{
	struct tmesh_node *node = inode->i_private;

	truncate_inode_pages_final(&inode->i_data);
	clear_inode(inode);
	if (!node)
		return;
	tmesh_files_put(node->files);
	kfree_rcu(node, rcu);
}

static const struct super_operations tmesh_fs_super_ops = {
	.evict_inode = tmesh_fs_evict,
	.statfs = simple_statfs,
};

static int tmesh_fs_fill(struct super_block *sb, struct fs_context *fc)
{
	struct tmesh_mount *mount = kmalloc(sizeof(*mount), TMESH_GFP);
	struct inode *root;
	int rc;

	if (!mount)
		return -ENOMEM;
	mount->user = tmesh_user_get(current_euid());
	if (IS_ERR(mount->user)) {
		rc = PTR_ERR(mount->user);
		kfree(mount);
		return rc;
	}
	get_random_bytes(&mount->key, sizeof(mount->key));
	sb->s_fs_info = mount;
	sb->s_flags |= SB_RDONLY | SB_NOATIME;
	sb->s_iflags |= SB_I_NOEXEC | SB_I_NODEV;
	sb->s_magic = TMESH_FS_MAGIC;
	sb->s_maxbytes = MAX_LFS_FILESIZE;
	sb->s_blocksize = PAGE_SIZE;
	sb->s_blocksize_bits = PAGE_SHIFT;
	sb->s_time_gran = 1;
	sb->s_op = &tmesh_fs_super_ops;
	tmesh_set_dentry_ops(sb, &tmesh_fs_dentry_ops);
	root = tmesh_fs_inode(sb, TMESH_INO_ROOT, S_IFDIR | 0755, GLOBAL_ROOT_UID, GLOBAL_ROOT_GID);
	if (root) {
		root->i_op = &tmesh_root_inode_ops;
		root->i_fop = &tmesh_root_ops;
	}
	sb->s_root = d_make_root(root);
	return sb->s_root ? 0 : -ENOMEM;
}

static int tmesh_fs_get_tree(struct fs_context *fc)
{
	return get_tree_nodev(fc, tmesh_fs_fill);
}

static int tmesh_fs_reconfigure(struct fs_context *fc)
{
	fc->sb_flags |= SB_RDONLY;
	return 0;
}

static const struct fs_context_operations tmesh_fs_context_ops = {
	.get_tree = tmesh_fs_get_tree,
	.reconfigure = tmesh_fs_reconfigure,
};

/* Mounts wait until the module is whole. A step of its start that fails frees it under a mount. */
static DECLARE_COMPLETION(tmesh_fs_settled);
static bool tmesh_fs_usable;

static int tmesh_fs_init_context(struct fs_context *fc)
{
	int rc = wait_for_completion_killable(&tmesh_fs_settled);

	if (rc)
		return rc;
	if (!tmesh_fs_usable)
		return -ENODEV;
	fc->ops = &tmesh_fs_context_ops;
	return 0;
}

static void tmesh_fs_kill(struct super_block *sb)
{
	struct tmesh_mount *mount = sb->s_fs_info;

	kill_anon_super(sb);
	if (!mount)
		return;
	tmesh_user_put(mount->user);
	kfree(mount);
}

/*
 * Not for user namespaces: docs/internals/abi.md has the reason. Mounts may have other ids, because
 * the VFS alone compares the owner and the group of a file with those of a reader.
 */
static struct file_system_type tmesh_fs_type = {
	.name = "tmesh",
	.owner = THIS_MODULE,
	.init_fs_context = tmesh_fs_init_context,
	.kill_sb = tmesh_fs_kill,
	.fs_flags = FS_ALLOW_IDMAP,
};

/**
 * tmesh_fs_init() - register the file system; mounts wait for tmesh_fs_settle()
 *
 * Return: 0 or a negative error.
 */
int __init tmesh_fs_init(void)
{
	return register_filesystem(&tmesh_fs_type);
}

/**
 * tmesh_fs_settle() - end the waits of mounts
 * @usable: the module has all of its parts; else mounts fail
 */
void tmesh_fs_settle(bool usable)
{
	tmesh_fs_usable = usable;
	complete_all(&tmesh_fs_settled);
}

/**
 * tmesh_fs_exit() - unregister the file system, which has no mount any more
 */
void tmesh_fs_exit(void)
{
	unregister_filesystem(&tmesh_fs_type);
}

/**
 * tmesh_fs_abandon() - unregister the file system, of which all mounts were refused
 *
 * The core frees a module whose start has failed, whatever refers to it. So wait until refused
 * mounts have left the code of the module and have dropped their references.
 *
 * Context: may sleep; the module has no other files than those of mounts.
 */
void __init tmesh_fs_abandon(void)
{
	tmesh_fs_exit();
#ifdef CONFIG_MODULE_UNLOAD
	/* The start of the module has one reference. */
	while (module_refcount(THIS_MODULE) > 1)
		msleep(20);
#endif
}
