// SPDX-License-Identifier: GPL-2.0-only
/*
 * A character device's file that only its driver understands, such as a CUDA memory export. A
 * region holds it, hands it over and lists it, but cannot map or export it.
 *
 * docs/internals/abi.md says why character devices, and no other files.
 */
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/slab.h>

#include "backing.h"
#include "claim.h"
#include "mem.h"

/**
 * struct tmesh_opaque_mem - a foreign file in place of memory
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
 * tmesh_opaque_fits() - test whether a region may hold a file
 * @file: the file
 *
 * Return: true for a character device's file that is not one of tmesh.
 */
bool tmesh_opaque_fits(const struct file *file)
{
	return S_ISCHR(file_inode(file)->i_mode) && file->f_op->owner != THIS_MODULE;
}

/**
 * tmesh_backing_opaque() - create the memory object of an opaque file
 * @user: the owner; charged nothing
 * @file: a file that tmesh_opaque_fits() accepted
 *
 * Return: the memory or -ENOMEM as a pointer.
 */
struct tmesh_mem *tmesh_backing_opaque(struct tmesh_user *user, struct file *file)
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

/* Take a reference on the file, or return the error that forbids it. */
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
 * tmesh_receive_fd() asks the security module, as for a descriptor that comes over a socket.
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
