/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What exports of our own memory and proxies of other exporters' have in common.
 */
#ifndef TMESH_EXPORT_H
#define TMESH_EXPORT_H

#include <linux/dma-buf.h>

#include "tmesh.h"

/**
 * struct tmesh_dmabuf - an export
 * @claim:       the common part
 * @dmabuf:      the dma-buf that this belongs to
 * @original:    of a proxy: what it stands for, and whose reservation it shares; reference
 * @lock:        guards the two lists
 * @attachments: devices attached
 * @mappings:    what devices have mapped, to be synchronised for CPU access
 * @vmap_use:    of memory that is mapped into the kernel; guarded by the reservation lock, as
 *               is the following
 * @vmap_dummy:  page that is mapped instead, where the region was revoked before, else NULL
 * @waited:      a revocation has dealt with it; guarded by claims_lock
 */
struct tmesh_dmabuf {
	struct tmesh_claim claim;
	struct dma_buf *dmabuf;
	struct dma_buf *original;
	struct mutex lock;
	struct list_head attachments;
	struct list_head mappings;
	struct tmesh_use vmap_use;
	struct page *vmap_dummy;
	bool waited;
};

/**
 * struct tmesh_attachment - a device attached to an export
 * @node:     in the export's list
 * @dev:      the device
 * @original: of a proxy: the same device attached to the original
 * @mapped:   mappings of it; guarded by the export's lock
 */
struct tmesh_attachment {
	struct list_head node;
	struct device *dev;
	struct dma_buf_attachment *original;
	unsigned int mapped;
};

struct tmesh_dmabuf *tmesh_dmabuf_alloc(void);
void tmesh_dmabuf_free(struct tmesh_dmabuf *export);
struct dma_buf *tmesh_dmabuf_publish(struct tmesh_dmabuf *export, struct dma_buf_export_info *info,
				     const struct tmesh_claim *through, unsigned long first,
				     unsigned long nr_pages, bool writable);
struct tmesh_mem *tmesh_dmabuf_use(const struct tmesh_claim *claim, struct tmesh_use *use);
int tmesh_dmabuf_attach(struct dma_buf *dmabuf, struct dma_buf_attachment *attach);
void tmesh_dmabuf_detach(struct dma_buf *dmabuf, struct dma_buf_attachment *attach);
int tmesh_dmabuf_mmap(struct dma_buf *dmabuf, struct vm_area_struct *vma);
int tmesh_dmabuf_vmap_dummy(struct tmesh_dmabuf *export, struct iosys_map *map);
void tmesh_dmabuf_vunmap_dummy(struct tmesh_dmabuf *export, struct iosys_map *map);
void tmesh_dmabuf_release(struct dma_buf *dmabuf);

/* proxy.c */
struct dma_buf *tmesh_proxy_new(const struct tmesh_claim *through, unsigned long first,
				unsigned long nr_pages, bool writable);

/* export.c */
int tmesh_ioctl_export(struct tmesh_ucmd *ucmd);

#endif /* TMESH_EXPORT_H */
