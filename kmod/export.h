/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The common part of exports of tmesh's memory and of proxies for foreign dma-bufs.
 */
#ifndef TMESH_EXPORT_H
#define TMESH_EXPORT_H

#include <linux/dma-buf.h>

#include "tmesh.h"

/**
 * struct tmesh_dmabuf - an export
 * @claim:       the common part
 * @dmabuf:      the dma-buf of this export
 * @dentry:      dentry of the dma-buf, which is released with it; no reference
 * @original:    for a proxy: the foreign dma-buf, whose reservation it shares; reference
 * @lock:        guards @attachments, @mappings and @nr_mapped
 * @attachments: devices attached
 * @mappings:    mappings by devices, which are synchronised for access by the CPU
 * @nr_mapped:   number of mappings that were ever made
 * @synced:      wait queue for the unmapping of a mapping that is being synchronised
 * @tell:        notifies importers whose reservation was locked. While pending, it has a reference
 *               on @dentry.
 * @tell_delay:  its last delay
 * @vmap_use:    use of the memory by a kernel mapping; guarded by the reservation lock, as is
 *               @vmap_dummy
 * @vmap_dummy:  zeroed page that is mapped instead if the region was revoked or has a bad page,
 *               else NULL
 */
struct tmesh_dmabuf {
	struct tmesh_claim claim;
	struct dma_buf *dmabuf;
	struct dentry *dentry;
	struct dma_buf *original;
	struct mutex lock;
	struct list_head attachments;
	struct list_head mappings;
	u64 nr_mapped;
	wait_queue_head_t synced;
	struct delayed_work tell;
	unsigned long tell_delay;
	struct tmesh_use vmap_use;
	struct page *vmap_dummy;
};

struct tmesh_dma_mapping;

/**
 * struct tmesh_attachment - a device attached to an export
 * @node:     in the export's list
 * @dev:      the device
 * @original: for a proxy: the attachment of the same device to the original
 * @mapped:   number of its mappings; guarded by the export's lock, as is @spare
 * @spare:    for an export of tmesh's memory: a mapping that is not in use, or NULL
 */
struct tmesh_attachment {
	struct list_head node;
	struct device *dev;
	struct dma_buf_attachment *original;
	unsigned int mapped;
	struct tmesh_dma_mapping *spare;
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
