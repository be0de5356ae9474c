// SPDX-License-Identifier: GPL-2.0-only
/*
 * A character device's file that only its driver understands, such as a CUDA memory export:
 * held, handed over and listed, mapped and exported by nobody.
 *
 * docs/abi.md says why character devices, and no other files.
 */
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/slab.h>

#include "backing.h"
#include "claim.h"
#include "mem.h"

/**
 * struct tmesh_opaque_mem - what stands for memory that is not ours
 * @mem:  the common part, without pages
 * @file: reference
 */
struct tmesh_opaque_mem {
	struct tmesh_mem mem;
	struct file *file;
};

static struct tmesh_opaque_mem *to_opaque(struct tmesh_mem *mem)
{
	return container_of(mem, struct tmesh_opaque_mem, mem);
}

static void tmesh_opaque_release(struct tmesh_mem *mem)
{
	struct tmesh_opaque_mem *opaque = to_opaque(mem);

	tmesh_mem_fini(mem);
	fput(opaque->file);
	kfree(opaque);
}

static const struct tmesh_backing_ops tmesh_opaque_ops = {
	.backing = TMESH_BACKING_OPAQUE,
	.release = tmesh_opaque_release,
};

/**
 * tmesh_opaque_fits() - may a region stand for a file?
 * @file: the file
 *
 * Return: is it a character device's, and not ours?
 */
bool tmesh_opaque_fits(const struct file *file)
{
	return S_ISCHR(file_inode(file)->i_mode) && file->f_op->owner != THIS_MODULE;
}

/**
 * tmesh_opaque_create() - make a region's memory of a file
 * @user: who pays, which is nothing
 * @file: that tmesh_opaque_fits() found good
 *
 * Return: the memory or -ENOMEM as a pointer.
 */
struct tmesh_mem *tmesh_opaque_create(struct tmesh_user *user, struct file *file)
{
	struct tmesh_opaque_mem *opaque;
	int rc;

	opaque = kzalloc(sizeof(*opaque), TMESH_GFP);
	if (!opaque)
		return ERR_PTR(-ENOMEM);
	rc = tmesh_mem_init(&opaque->mem, &tmesh_opaque_ops, user, 0);
	if (rc) {
		kfree(opaque);
		return ERR_PTR(rc);
	}
	opaque->mem.nomap = true;
	opaque->file = get_file(file);
	return &opaque->mem;
}

/* The file, or what forbids to have it; the answer is good for the moment of the lock. */
static struct file *tmesh_opaque_get(struct tmesh_claim *claim)
{
	struct tmesh_region *region = claim->region;
	struct file *file;
	int rc;

	down_read(&region->lock);
	rc = tmesh_claim_allows(claim, TMESH_RIGHT_WRITE);
	if (rc)
		file = ERR_PTR(rc);
	else if (region->backing != TMESH_BACKING_OPAQUE)
		file = ERR_PTR(-EOPNOTSUPP);
	else
		file = get_file(to_opaque(region->mem)->file);
	up_read(&region->lock);
	return file;
}

/**
 * tmesh_ioctl_opaque() - TMESH_OPAQUE
 * @ucmd: the call
 *
 * The receiver is asked for its permission, as with descriptors that come over a socket.
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_opaque(struct tmesh_ucmd *ucmd)
{
	struct tmesh_opaque __user *answer = ucmd->ubuffer;
	struct tmesh_opaque *cmd = ucmd->cmd;
	struct file *file;
	int fd;

	if (cmd->pad)
		return -EINVAL;
	file = tmesh_opaque_get(&ucmd->handle->claim);
	if (IS_ERR(file))
		return PTR_ERR(file);
	fd = tmesh_receive_fd(file, &answer->fd);
	fput(file);
	return min(fd, 0);
}
