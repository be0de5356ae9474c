// SPDX-License-Identifier: GPL-2.0-only
/*
 * Proxies: exports of a foreign dma-buf or of a part of it.
 *
 * A proxy shares the reservation of its original. So fences pass in both directions, and the core's
 * lock on the proxy is that of the original. Each device that attaches to the proxy is attached to
 * the original. The module itself attaches to nothing.
 */
#include <linux/dma-buf.h>
#include <linux/iosys-map.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "backing.h"
#include "claim.h"
#include "drain.h"
#include "export.h"
#include "trace.h"

/**
 * struct tmesh_proxy_mapping - a mapping by one device
 * @sgt:      the table that the device got: a part of @original, without pages
 * @original: the table of the exporter
 * @use:      the use of the region
 */
struct tmesh_proxy_mapping {
	struct sg_table sgt;
	struct sg_table *original;
	struct tmesh_use use;
};

/* Pass a move of the original on to our importer. The reservation that both share is locked. */
static void tmesh_proxy_moved(struct dma_buf_attachment *original)
{
	struct dma_buf_attachment *attach = original->importer_priv;

	attach->importer_ops->TMESH_MOVE_NOTIFY(attach);
}

/* Indexed by the abilities of our importer: to handle moves, and to reach peer device memory. */
static const struct dma_buf_attach_ops tmesh_proxy_importer_ops[2][2] = {
	[0][1] = { .allow_peer2peer = true },
	[1][0] = { .TMESH_MOVE_NOTIFY = tmesh_proxy_moved },
	[1][1] = { .TMESH_MOVE_NOTIFY = tmesh_proxy_moved, .allow_peer2peer = true },
};

static struct dma_buf_attachment *tmesh_proxy_attach_original(struct dma_buf *original,
							      struct dma_buf_attachment *attach)
{
	const struct dma_buf_attach_ops *ops = attach->importer_ops;

	if (!ops || !tmesh_dma_buf_tells(original))
		return dma_buf_attach(original, attach->dev);
	ops = &tmesh_proxy_importer_ops[!!ops->TMESH_MOVE_NOTIFY][ops->allow_peer2peer];
	return dma_buf_dynamic_attach(original, attach->dev, ops, attach);
}

static int tmesh_proxy_attach(struct dma_buf *dmabuf, struct dma_buf_attachment *attach)
{
	struct tmesh_dmabuf *export = dmabuf->priv;
	struct tmesh_attachment *attachment;
	int rc;

	rc = tmesh_dmabuf_attach(dmabuf, attach);
	if (rc)
		return rc;
	attachment = attach->priv;
	attachment->original = tmesh_proxy_attach_original(export->original, attach);
	rc = PTR_ERR_OR_ZERO(attachment->original);
	if (rc)
		tmesh_dmabuf_detach(dmabuf, attach);
	else
		attach->peer2peer = attachment->original->peer2peer;
	return rc;
}

static void tmesh_proxy_detach(struct dma_buf *dmabuf, struct dma_buf_attachment *attach)
{
	struct tmesh_attachment *attachment = attach->priv;
	struct tmesh_dmabuf *export = dmabuf->priv;

	dma_buf_detach(export->original, attachment->original);
	tmesh_dmabuf_detach(dmabuf, attach);
}

/* Pin the original for a dynamic importer. The core itself pins it for a static one. */
static int tmesh_proxy_pin(struct dma_buf_attachment *attach)
{
	struct tmesh_attachment *attachment = attach->priv;

	return attachment->original->importer_ops ? dma_buf_pin(attachment->original) : 0;
}

static void tmesh_proxy_unpin(struct dma_buf_attachment *attach)
{
	struct tmesh_attachment *attachment = attach->priv;

	if (attachment->original->importer_ops)
		dma_buf_unpin(attachment->original);
}

/* Return the length of an entry's part in [@first, @end), both counted from the entry's start. */
static unsigned int tmesh_clip(const struct scatterlist *entry, u64 first, u64 end)
{
	u64 len = sg_dma_len(entry);

	return first < len && end > first ? min(end, len) - first : 0;
}

static void tmesh_proxy_count(struct tmesh_dmabuf *export, struct tmesh_attachment *attachment,
			      int mapped)
{
	mutex_lock(&export->lock);
	attachment->mapped += mapped;
	mutex_unlock(&export->lock);
}

/*
 * Cut [@offset, @offset + @bytes) out of @whole. Fill @part in, or if it is NULL count the entries
 * that it needs.
 */
static unsigned int tmesh_cut(struct sg_table *whole, u64 offset, u64 bytes,
			      struct scatterlist *part)
{
	struct scatterlist *entry;
	unsigned int i, len, nents = 0;

	for_each_sgtable_dma_sg(whole, entry, i) {
		cond_resched();
		len = tmesh_clip(entry, offset, offset + bytes);
		if (len && part) {
			sg_set_page(part, NULL, len, 0);
			sg_dma_address(part) = sg_dma_address(entry) + offset;
			sg_dma_len(part) = len;
			part = sg_next(part);
		}
		nents += !!len;
		bytes -= len;
		offset -= min_t(u64, offset, sg_dma_len(entry));
	}
	/* The exporter mapped less than the size of its dma-buf. */
	return bytes ? 0 : nents;
}

static struct sg_table *tmesh_proxy_map(struct dma_buf_attachment *attach,
					enum dma_data_direction dir)
{
	struct tmesh_dmabuf *export = attach->dmabuf->priv;
	struct tmesh_attachment *attachment = attach->priv;
	const struct tmesh_claim *claim = &export->claim;
	u64 offset = (u64)claim->first << PAGE_SHIFT, bytes = (u64)claim->nr_pages << PAGE_SHIFT;
	struct tmesh_proxy_mapping *mapping;
	unsigned int nents;
	int rc;

	rc = tmesh_claim_allows(claim, dir == DMA_TO_DEVICE ? TMESH_RIGHT_READ :
							      TMESH_RIGHT_WRITE);
	if (rc)
		return ERR_PTR(rc);
	mapping = kzalloc(sizeof(*mapping), TMESH_RESERVED_GFP);
	if (!mapping)
		return ERR_PTR(-ENOMEM);
	rc = PTR_ERR_OR_ZERO(tmesh_dmabuf_use(claim, &mapping->use));
	if (rc)
		goto free;
	mapping->original = dma_buf_map_attachment(attachment->original, dir);
	rc = PTR_ERR_OR_ZERO(mapping->original);
	if (rc)
		goto end_use;
	nents = tmesh_cut(mapping->original, offset, bytes, NULL);
	rc = nents ? sg_alloc_table(&mapping->sgt, nents, TMESH_RESERVED_GFP) : -EIO;
	if (rc)
		goto unmap;
	tmesh_cut(mapping->original, offset, bytes, mapping->sgt.sgl);
	tmesh_proxy_count(export, attachment, 1);
	trace_tmesh_dma_map(claim->region->id, dev_name(attach->dev), offset, bytes, dir);
	return &mapping->sgt;

unmap:
	dma_buf_unmap_attachment(attachment->original, mapping->original, dir);
end_use:
	tmesh_use_end(claim->region, &mapping->use);
free:
	kfree(mapping);
	return ERR_PTR(rc);
}

static void tmesh_proxy_unmap(struct dma_buf_attachment *attach, struct sg_table *sgt,
			      enum dma_data_direction dir)
{
	struct tmesh_proxy_mapping *mapping = container_of(sgt, struct tmesh_proxy_mapping, sgt);
	struct tmesh_attachment *attachment = attach->priv;
	struct tmesh_dmabuf *export = attach->dmabuf->priv;
	const struct tmesh_claim *claim = &export->claim;

	tmesh_proxy_count(export, attachment, -1);
	sg_free_table(sgt);
	dma_buf_unmap_attachment(attachment->original, mapping->original, dir);
	tmesh_use_end(claim->region, &mapping->use);
	trace_tmesh_dma_unmap(claim->region->id, dev_name(attach->dev),
			      (u64)claim->first << PAGE_SHIFT,
			      (u64)claim->nr_pages << PAGE_SHIFT, dir);
	kfree(mapping);
}

static int tmesh_proxy_begin_cpu_access(struct dma_buf *dmabuf, enum dma_data_direction dir)
{
	struct tmesh_dmabuf *export = dmabuf->priv;

	return dma_buf_begin_cpu_access(export->original, dir);
}

static int tmesh_proxy_end_cpu_access(struct dma_buf *dmabuf, enum dma_data_direction dir)
{
	struct tmesh_dmabuf *export = dmabuf->priv;

	return dma_buf_end_cpu_access(export->original, dir);
}

/* Map the original into the kernel and skip to our first page. */
static int tmesh_proxy_vmap(struct dma_buf *dmabuf, struct iosys_map *map)
{
	struct tmesh_dmabuf *export = dmabuf->priv;
	struct tmesh_claim *claim = &export->claim;
	int rc;

	if (IS_ERR(tmesh_dmabuf_use(claim, &export->vmap_use)))
		return tmesh_dmabuf_vmap_dummy(export, map);
	rc = dma_buf_vmap(export->original, map);
	if (rc)
		tmesh_use_end(claim->region, &export->vmap_use);
	else
		iosys_map_incr(map, claim->first << PAGE_SHIFT);
	return rc;
}

static void tmesh_proxy_vunmap(struct dma_buf *dmabuf, struct iosys_map *map)
{
	struct tmesh_dmabuf *export = dmabuf->priv;
	struct iosys_map whole = *map;

	if (export->vmap_dummy) {
		tmesh_dmabuf_vunmap_dummy(export, map);
		return;
	}
	iosys_map_incr(&whole, -(export->claim.first << PAGE_SHIFT));
	dma_buf_vunmap(export->original, &whole);
	tmesh_use_end(export->claim.region, &export->vmap_use);
}

#define TMESH_PROXY_OPS                                     \
	.attach = tmesh_proxy_attach,                       \
	.detach = tmesh_proxy_detach,                       \
	.map_dma_buf = tmesh_proxy_map,                     \
	.unmap_dma_buf = tmesh_proxy_unmap,                 \
	.begin_cpu_access = tmesh_proxy_begin_cpu_access,   \
	.end_cpu_access = tmesh_proxy_end_cpu_access,       \
	.mmap = tmesh_dmabuf_mmap,                          \
	.release = tmesh_dmabuf_release

#define TMESH_PROXY_PIN                 \
	.pin = tmesh_proxy_pin,         \
	.unpin = tmesh_proxy_unpin

#define TMESH_PROXY_VMAP                \
	.vmap = tmesh_proxy_vmap,       \
	.vunmap = tmesh_proxy_vunmap

/* Indexed by whether the original is dynamic, and whether it may be mapped into the kernel. */
static const struct dma_buf_ops tmesh_proxy_ops[2][2] = {
	[0][0] = { TMESH_PROXY_OPS },
	[0][1] = { TMESH_PROXY_OPS, TMESH_PROXY_VMAP },
	[1][0] = { TMESH_PROXY_OPS, TMESH_PROXY_PIN },
	[1][1] = { TMESH_PROXY_OPS, TMESH_PROXY_PIN, TMESH_PROXY_VMAP },
};

/**
 * tmesh_proxy_new() - export a foreign dma-buf, or a part of it
 * @through:  claim of a handle on a region of TMESH_BACKING_DMABUF
 * @first:    first page
 * @nr_pages: number of pages
 * @writable: devices may write to it
 *
 * Return: the dma-buf or an error as a pointer.
 */
struct dma_buf *tmesh_proxy_new(const struct tmesh_claim *through, unsigned long first,
				unsigned long nr_pages, bool writable)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct tmesh_dmabuf *export;
	struct dma_buf *original;

	export = tmesh_dmabuf_alloc();
	if (!export)
		return ERR_PTR(-ENOMEM);
	original = tmesh_import_get(through->region);
	if (!original) {
		tmesh_dmabuf_free(export);
		return ERR_PTR(-ESTALE);
	}
	export->original = original;
	info.ops = &tmesh_proxy_ops[dma_buf_is_dynamic(original)][writable && original->ops->vmap];
	info.resv = original->resv;
	return tmesh_dmabuf_publish(export, &info, through, first, nr_pages, writable);
}
