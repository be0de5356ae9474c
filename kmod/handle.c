// SPDX-License-Identifier: GPL-2.0-only
/*
 * Handles: files that refer to a region. Each has an inode, and thereby an address space, of its
 * own on an internal filesystem.
 */
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/poll.h>
#include <linux/pseudo_fs.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "account.h"
#include "claim.h"
#include "debug.h"
#include "fs.h"
#include "handle.h"
#include "map.h"
#include "mem.h"
#include "region.h"
#include "registry.h"
#include "trace.h"
#include "ucmd.h"

/*
 * Mounted while there are handles. A mount that lived as long as the module would hold a reference
 * on the module for ever.
 */
static struct vfsmount *tmesh_mnt;
static int tmesh_mnt_count;

static int tmesh_fs_init_context(struct fs_context *fc)
{
	if (!init_pseudo(fc, TMESH_FS_MAGIC))
		return -ENOMEM;
	fc->s_iflags |= SB_I_NOEXEC;
	return 0;
}

static struct file_system_type tmesh_fs = {
	.name = "tmesh",
	.owner = THIS_MODULE,
	.init_fs_context = tmesh_fs_init_context,
	.kill_sb = kill_anon_super,
};

static void tmesh_handle_uncharge(const struct tmesh_paid *paid)
{
	if (paid->kind == TMESH_HANDLE_FILE) {
		tmesh_uncharge(paid->user, TMESH_FILES, 1);
		if (paid->owner) {
			tmesh_uncharge(paid->owner, TMESH_FOREIGN_FILES, 1);
			tmesh_user_put(paid->owner);
		}
	} else {
		tmesh_uncharge_pinned(paid->user, paid->pinned_bytes);
		tmesh_uncharge(paid->user, TMESH_PINS, paid->kind == TMESH_HANDLE_PINNING);
		tmesh_uncharge(paid->user, TMESH_HANDLES, 1);
	}
	tmesh_user_put(paid->user);
}

/*
 * Charge an open file. A file's mode may admit users outside the group tmesh, so open files leave
 * the handles alone, and those of other users are limited for each owner, too.
 */
static int tmesh_file_charge(struct tmesh_paid *paid, const struct tmesh_region *region)
{
	int rc;

	rc = tmesh_charge(paid->user, TMESH_FILES, 1);
	if (rc || uid_eq(paid->user->uid, region->uid))
		return rc;
	rc = tmesh_charge(region->user, TMESH_FOREIGN_FILES, 1);
	if (rc) {
		tmesh_uncharge(paid->user, TMESH_FILES, 1);
		return rc;
	}
	tmesh_user_hold(region->user);
	paid->owner = region->user;
	return 0;
}

/*
 * Charge another handle. A pinning handle keeps another user's memory from being revoked, so it
 * costs as much as memory of one's own.
 */
static int tmesh_plain_charge(struct tmesh_paid *paid, const struct tmesh_region *region)
{
	bool pinning = paid->kind == TMESH_HANDLE_PINNING;
	int rc;

	if (pinning && !uid_eq(paid->user->uid, region->uid))
		paid->pinned_bytes = (u64)region->nr_pages << PAGE_SHIFT;
	rc = tmesh_charge(paid->user, TMESH_HANDLES, 1);
	if (rc)
		return rc;
	rc = tmesh_charge(paid->user, TMESH_PINS, pinning);
	if (rc)
		goto uncharge_handle;
	rc = tmesh_charge_pinned(paid->user, paid->pinned_bytes);
	if (rc)
		goto uncharge_pin;
	return 0;

uncharge_pin:
	tmesh_uncharge(paid->user, TMESH_PINS, pinning);
uncharge_handle:
	tmesh_uncharge(paid->user, TMESH_HANDLES, 1);
	return rc;
}

static int tmesh_handle_charge(struct tmesh_paid *paid, const struct tmesh_region *region)
{
	int rc;

	paid->user = tmesh_user_get(current_euid());
	if (IS_ERR(paid->user))
		return PTR_ERR(paid->user);
	rc = paid->kind == TMESH_HANDLE_FILE ? tmesh_file_charge(paid, region) :
					       tmesh_plain_charge(paid, region);
	if (rc)
		tmesh_user_put(paid->user);
	return rc;
}

/**
 * tmesh_handle_end() - end a handle without mappings
 * @handle: the handle
 *
 * Context: takes claims_lock; may free the region.
 */
void tmesh_handle_end(struct tmesh_handle *handle)
{
	struct tmesh_paid paid = handle->paid;

	tmesh_claim_fini(&handle->claim);
	tmesh_handle_uncharge(&paid);
}

static int tmesh_handle_release(struct inode *inode, struct file *file)
{
	struct tmesh_handle *handle = file->private_data;

	trace_tmesh_close(handle->claim.region->id);
	tmesh_handle_end(handle);
	return 0;
}

/* Free a handle. Its inode has been put, so the filesystem may be unmounted. */
static void tmesh_handle_free(struct tmesh_claim *claim)
{
	kfree(container_of(claim, struct tmesh_handle, claim));
	simple_release_fs(&tmesh_mnt, &tmesh_mnt_count);
}

static int tmesh_handle_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct tmesh_handle *handle = file->private_data;

	return tmesh_mmap(&handle->claim, vma);
}

static __poll_t tmesh_handle_poll(struct file *file, poll_table *wait)
{
	struct tmesh_handle *handle = file->private_data;
	struct tmesh_region *region = handle->claim.region;
	__poll_t mask = 0;

	poll_wait(file, &region->wait, wait);
	if (READ_ONCE(region->state) & TMESH_STATE_REVOKED)
		mask |= EPOLLHUP;
	else if (tmesh_claim_lapsed(&handle->claim))
		mask |= EPOLLHUP | EPOLLERR;
	else if (READ_ONCE(region->nr_live) == 1 && !atomic_read(&region->attachments) &&
		 !READ_ONCE(region->kept))
		mask |= EPOLLOUT;
	if (READ_ONCE(region->state) & TMESH_STATE_POISONED)
		mask |= EPOLLPRI;
	return mask;
}

/* Handles ioctls on handles. Set before the first handle exists. */
static tmesh_calls tmesh_handle_calls __ro_after_init;

/**
 * tmesh_handle_setup() - set the function for ioctls on handles
 * @calls: the function
 */
void __init tmesh_handle_setup(tmesh_calls calls)
{
	tmesh_handle_calls = calls;
}

static long tmesh_handle_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return tmesh_handle_calls(file->private_data, cmd, arg);
}

static const struct file_operations tmesh_handle_fops = {
	.owner = THIS_MODULE,
	.release = tmesh_handle_release,
	.mmap = tmesh_handle_mmap,
	.fsync = noop_fsync,
	.get_unmapped_area = thp_get_unmapped_area,
	.poll = tmesh_handle_poll,
	.unlocked_ioctl = tmesh_handle_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.show_fdinfo = tmesh_show_fdinfo,
	.llseek = noop_llseek,
};

static void tmesh_handle_counted(struct tmesh_claim *claim, int by)
{
	lockdep_assert_held(&claim->region->claims_lock);
	WRITE_ONCE(claim->region->nr_handles, claim->region->nr_handles + by);
}

/* Check whether a region allows a pinning handle. */
static int tmesh_handle_check(const struct tmesh_claim *claim, const struct tmesh_claim *through)
{
	const struct tmesh_region *region = claim->region;

	if (claim->kind != TMESH_HOLDER_PINNING)
		return 0;
	if (region->backing == TMESH_BACKING_GATHER)
		return -EOPNOTSUPP;
	if (region->flags & TMESH_CREATE_NOPIN || (through && through->lease))
		return -EPERM;
	return region->state & TMESH_STATE_SEALED ? 0 : -EINVAL;
}

static void tmesh_handle_describe(const struct tmesh_claim *claim, struct tmesh_holder *holder)
{
	if (container_of(claim, struct tmesh_handle, claim)->paid.kind == TMESH_HANDLE_FILE)
		holder->flags |= TMESH_HOLDER_FLAG_FILE;
}

static const struct tmesh_claim_ops tmesh_handle_claim_ops = {
	.describe = tmesh_handle_describe,
	.counted = tmesh_handle_counted,
	.check = tmesh_handle_check,
	.cut = tmesh_zap,
	.free = tmesh_handle_free,
};

/*
 * Create a handle that is not in its region's list of claims yet. @size becomes the size of its
 * inode.
 */
static struct tmesh_handle *tmesh_handle_alloc(struct tmesh_region *region, u32 rights,
					       enum tmesh_handle_kind kind, loff_t size)
{
	u32 holder = kind == TMESH_HANDLE_PINNING ? TMESH_HOLDER_PINNING : TMESH_HOLDER_HANDLE;
	struct tmesh_handle *handle;
	struct inode *inode;
	int rc;

	handle = kzalloc(sizeof(*handle), TMESH_GFP);
	if (!handle)
		return ERR_PTR(-ENOMEM);
	handle->paid.kind = kind;
	rc = tmesh_handle_charge(&handle->paid, region);
	if (rc)
		goto free;
	rc = simple_pin_fs(&tmesh_fs, &tmesh_mnt, &tmesh_mnt_count);
	if (rc)
		goto uncharge;
	inode = alloc_anon_inode(tmesh_mnt->mnt_sb);
	if (IS_ERR(inode)) {
		rc = PTR_ERR(inode);
		goto unpin;
	}
	inode->i_size = size;
	/* A loop device looks at the mode of the inode that has the mappings. */
	if (kind == TMESH_HANDLE_FILE)
		inode->i_mode |= S_IFREG;
	inode->i_flags |= S_NOCMTIME;
	tmesh_claim_init(&handle->claim, &tmesh_handle_claim_ops, region, holder, rights, inode);
	/* The claim has a reference of its own. */
	iput(inode);
	return handle;

unpin:
	simple_release_fs(&tmesh_mnt, &tmesh_mnt_count);
uncharge:
	tmesh_handle_uncharge(&handle->paid);
free:
	kfree(handle);
	return ERR_PTR(rc);
}

static struct file *tmesh_handle_file(struct tmesh_region *region, u32 rights, bool pinning)
{
	int mode = rights & TMESH_RIGHT_WRITE ? O_RDWR : O_RDONLY;
	struct tmesh_handle *handle;
	struct file *file;

	handle = tmesh_handle_alloc(region, rights,
				    pinning ? TMESH_HANDLE_PINNING : TMESH_HANDLE_PLAIN,
				    (loff_t)region->nr_pages << PAGE_SHIFT);
	if (IS_ERR(handle))
		return ERR_CAST(handle);
	ihold(handle->claim.inode);
	/* alloc_file_pseudo() expects its caller to hold the module. */
	__module_get(THIS_MODULE);
	file = alloc_file_pseudo(handle->claim.inode, tmesh_mnt, "tmesh", mode, &tmesh_handle_fops);
	if (IS_ERR(file)) {
		module_put(THIS_MODULE);
		iput(handle->claim.inode);
		tmesh_handle_end(handle);
		return file;
	}
	file->private_data = handle;
	return file;
}

/**
 * tmesh_handle_of_part() - create a handle for an open file of the file system
 * @region: the region
 * @offset: where the file begins in it; a multiple of PAGE_SIZE.
 * @bytes:  length of the file; not 0
 *
 * The inode of the claim has the exact size of the file, and its mappings.
 *
 * Return: the handle for tmesh_handle_end(), or an error as a pointer. -ESTALE: the region was
 * revoked.
 */
struct tmesh_handle *tmesh_handle_of_part(struct tmesh_region *region, u64 offset, u64 bytes)
{
	struct tmesh_handle *handle;
	int rc;

	rc = tmesh_memory_left();
	if (rc)
		return ERR_PTR(rc);
	handle = tmesh_handle_alloc(region, TMESH_RIGHT_READ, TMESH_HANDLE_FILE, bytes);
	if (IS_ERR(handle))
		return handle;
	handle->claim.first = offset >> PAGE_SHIFT;
	handle->claim.nr_pages = DIV_ROUND_UP_ULL(bytes, PAGE_SIZE);
	rc = tmesh_claim_add(&handle->claim, NULL);
	if (rc) {
		tmesh_handle_end(handle);
		return ERR_PTR(rc);
	}
	return handle;
}

/**
 * tmesh_handle_new() - create a handle and reserve a descriptor for it
 * @region:  the region that it will hold
 * @rights:  TMESH_RIGHT_*
 * @pinning: the handle forbids revocations
 * @through: claim of the handle that it is derived from, or NULL
 * @file:    set to the handle. The caller installs it with fd_install() or discards it with
 *           tmesh_handle_cancel()
 *
 * Return: the descriptor or a negative error.
 */
int tmesh_handle_new(struct tmesh_region *region, u32 rights, bool pinning,
		     const struct tmesh_claim *through, struct file **file)
{
	struct tmesh_handle *handle;
	int fd, rc;

	rc = tmesh_memory_left();
	if (rc)
		return rc;
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		return fd;
	*file = tmesh_handle_file(region, rights, pinning);
	if (IS_ERR(*file)) {
		put_unused_fd(fd);
		return PTR_ERR(*file);
	}
	handle = (*file)->private_data;
	rc = tmesh_claim_add(&handle->claim, through);
	if (rc) {
		tmesh_handle_cancel(fd, *file);
		return rc;
	}
	return fd;
}

/**
 * tmesh_handle_of() - return the handle of a file
 * @file: any file
 *
 * Return: the handle, or NULL if the file is not a handle.
 */
const struct tmesh_handle *tmesh_handle_of(const struct file *file)
{
	return file->f_op == &tmesh_handle_fops ? file->private_data : NULL;
}

/**
 * tmesh_handle_cancel() - discard a handle that was not installed
 * @fd:   its descriptor
 * @file: the handle
 */
void tmesh_handle_cancel(int fd, struct file *file)
{
	put_unused_fd(fd);
	fput(file);
}

/**
 * tmesh_rights_valid() - check a set of rights
 * @rights: as given by the caller
 *
 * READ is part of every set, so that 0 is an error.
 *
 * Return: 0, -EOPNOTSUPP or -EINVAL.
 */
int tmesh_rights_valid(u32 rights)
{
	if (rights & ~TMESH_RIGHTS_ALL)
		return -EOPNOTSUPP;
	return rights & TMESH_RIGHT_READ ? 0 : -EINVAL;
}

/**
 * tmesh_ioctl_open() - TMESH_OPEN
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_open(struct tmesh_ucmd *ucmd)
{
	struct tmesh_open *cmd = ucmd->cmd;
	struct tmesh_region *region;
	struct file *file;
	u32 rights;
	int rc;

	rc = tmesh_rights_valid(cmd->rights);
	if (rc)
		return rc;
	region = tmesh_registry_redeem(cmd->token, &rights);
	if (!region)
		return -ENOENT;
	rc = -EACCES;
	if (cmd->rights & ~(rights & tmesh_access(region)))
		goto put;
	rc = tmesh_handle_new(region, cmd->rights, false, NULL, &file);
	/* A revocation removes the token, so report an unknown token. */
	if (rc == -ESTALE)
		rc = -ENOENT;
	if (rc < 0)
		goto put;
	cmd->fd = rc;
	/* TMESH_RENEW may have removed the token before this handle was added as a claim. */
	if (!tmesh_name_stands(region, cmd->token)) {
		tmesh_handle_cancel(cmd->fd, file);
		rc = -ENOENT;
		goto put;
	}
	cmd->id = region->id;
	cmd->bytes = region->bytes;
	cmd->alloc_bytes = (u64)region->nr_pages << PAGE_SHIFT;
	cmd->state = READ_ONCE(region->state);
	cmd->desc_bytes = READ_ONCE(region->desc_bytes);
	rc = tmesh_respond(ucmd, sizeof(*cmd));
	if (rc) {
		tmesh_handle_cancel(cmd->fd, file);
		goto put;
	}
	atomic64_inc(&region->opens);
	trace_tmesh_open(region->id, cmd->rights, false);
	fd_install(cmd->fd, file);
put:
	tmesh_region_put(region);
	return rc;
}

/**
 * tmesh_ioctl_derive() - TMESH_DERIVE
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_derive(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	struct tmesh_derive *cmd = ucmd->cmd;
	struct file *file;
	int rc;

	rc = tmesh_rights_valid(cmd->rights);
	if (rc)
		return rc;
	rc = tmesh_claim_allows(claim, cmd->rights);
	if (rc)
		return rc;
	rc = tmesh_handle_new(claim->region, cmd->rights, cmd->flags & TMESH_DERIVE_PIN, claim,
			      &file);
	if (rc < 0)
		return rc;
	cmd->fd = rc;
	rc = tmesh_respond(ucmd, sizeof(*cmd));
	if (rc) {
		tmesh_handle_cancel(cmd->fd, file);
		return rc;
	}
	trace_tmesh_derive(claim->region->id, cmd->rights, cmd->flags & TMESH_DERIVE_PIN);
	fd_install(cmd->fd, file);
	return 0;
}

/**
 * tmesh_ioctl_token() - TMESH_TOKEN
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_token(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	struct tmesh_token *cmd = ucmd->cmd;
	int rc;

	if (cmd->pad)
		return -EINVAL;
	rc = tmesh_rights_valid(cmd->rights);
	if (rc)
		return rc;
	rc = tmesh_claim_allows(claim, cmd->rights);
	if (rc)
		return rc;
	/* A handle opened by a token would not share the lease. */
	if (READ_ONCE(claim->lease))
		return -EPERM;
	while (true) {
		if (mutex_lock_killable(&claim->region->claims_lock))
			return -EINTR;
		rc = tmesh_name_get(claim->region, cmd->rights, cmd->token);
		mutex_unlock(&claim->region->claims_lock);
		if (rc != -EBUSY)
			break;
		/* A work is enlarging the table of tokens. */
		schedule_timeout_killable(1);
		if (fatal_signal_pending(current))
			return -EINTR;
	}
	return rc ? rc : tmesh_respond(ucmd, sizeof(*cmd));
}
