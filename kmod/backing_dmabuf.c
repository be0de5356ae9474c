// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory of another exporter's dma-buf.
 *
 * tmesh must not touch its pages. The exporter makes the mappings, and devices attach through a
 * proxy (proxy.c).
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

/* Refuse an offset: some exporters ignore it and map their first page. */
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
 * tmesh_import_rights() - check a dma-buf and return the rights that its descriptor gives
 * @dmabuf: the dma-buf
 * @rights: set to TMESH_RIGHT_*
 *
 * Return: 0; -ELOOP for a dma-buf of tmesh; -EACCES for one not open for reading; -EOPNOTSUPP for
 * one whose size is not a multiple of the page size.
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
 * tmesh_import_create() - create the memory object of a foreign dma-buf
 * @user:   the owner; charged nothing, because the exporter owns the memory
 * @dmabuf: a dma-buf that tmesh_import_rights() accepted
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
 * tmesh_import_get() - take a reference on the dma-buf behind a region
 * @region: of TMESH_BACKING_DMABUF
 *
 * Context: takes the region's lock.
 * Return: the dma-buf, or NULL if the region was revoked.
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
