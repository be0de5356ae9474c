// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory of another exporter's dma-buf.
 *
 * It has no pages that we may touch: mappings are made by its exporter, and devices attach to
 * it by way of a proxy (proxy.c).
 */
#include <linux/dma-buf.h>
#include <linux/slab.h>

#include "backing.h"
#include "mem.h"

/**
 * struct tmesh_import_mem - memory of a foreign dma-buf
 * @mem:    the common part, without pages
 * @dmabuf: the original; reference
 */
struct tmesh_import_mem {
	struct tmesh_mem mem;
	struct dma_buf *dmabuf;
};

static struct tmesh_import_mem *to_import(struct tmesh_mem *mem)
{
	return container_of(mem, struct tmesh_import_mem, mem);
}

static void tmesh_import_release(struct tmesh_mem *mem)
{
	struct tmesh_import_mem *import = to_import(mem);

	tmesh_mem_fini(mem);
	dma_buf_put(import->dmabuf);
	kfree(import);
}

/* Some exporters map their first page whatever the offset is. */
static int tmesh_import_mmap(struct tmesh_mem *mem, struct vm_area_struct *vma)
{
	if (vma->vm_pgoff)
		return -EOPNOTSUPP;
	return dma_buf_mmap(to_import(mem)->dmabuf, vma, 0);
}

static const struct tmesh_backing_ops tmesh_import_ops = {
	.backing = TMESH_BACKING_DMABUF,
	.release = tmesh_import_release,
	.mmap = tmesh_import_mmap,
};

/**
 * tmesh_import_rights() - what a descriptor of a dma-buf allows
 * @dmabuf: the dma-buf
 * @rights: set to TMESH_RIGHT_*
 *
 * Return: 0; -ELOOP for a dma-buf of our own; -EACCES for one that cannot be read;
 * -EOPNOTSUPP for one that is no whole pages.
 */
int tmesh_import_rights(const struct dma_buf *dmabuf, u32 *rights)
{
	if (dmabuf->owner == THIS_MODULE)
		return -ELOOP;
	if (!PAGE_ALIGNED(dmabuf->size))
		return -EOPNOTSUPP;
	if (!(dmabuf->file->f_mode & FMODE_READ))
		return -EACCES;
	*rights = TMESH_RIGHT_READ | TMESH_RIGHT_MANAGE;
	if (dmabuf->file->f_mode & FMODE_WRITE)
		*rights |= TMESH_RIGHT_WRITE;
	return 0;
}

/**
 * tmesh_import_create() - make memory of a foreign dma-buf
 * @user:   who pays, which is nothing: the memory is its exporter's
 * @dmabuf: that tmesh_import_rights() found good
 *
 * Return: the memory or -ENOMEM as a pointer.
 */
struct tmesh_mem *tmesh_import_create(struct tmesh_user *user, struct dma_buf *dmabuf)
{
	struct tmesh_import_mem *import;
	int rc;

	import = kzalloc(sizeof(*import), TMESH_GFP);
	if (!import)
		return ERR_PTR(-ENOMEM);
	rc = tmesh_mem_init(&import->mem, &tmesh_import_ops, user, 0);
	if (rc) {
		kfree(import);
		return ERR_PTR(rc);
	}
	get_dma_buf(dmabuf);
	import->dmabuf = dmabuf;
	return &import->mem;
}

/**
 * tmesh_import_get() - the dma-buf that a region stands for
 * @region: of TMESH_BACKING_DMABUF
 *
 * Context: takes the region's lock.
 * Return: a reference, or NULL where the region was revoked.
 */
struct dma_buf *tmesh_import_get(struct tmesh_region *region)
{
	struct dma_buf *dmabuf = NULL;

	down_read(&region->lock);
	if (region->mem) {
		dmabuf = to_import(region->mem)->dmabuf;
		get_dma_buf(dmabuf);
	}
	up_read(&region->lock);
	return dmabuf;
}
