// SPDX-License-Identifier: GPL-2.0-only
/*
 * Exports: a region or a slice of it as a dma-buf.
 *
 * An export holds the region. Each mapping by a device or the kernel is a use of the memory
 * (drain.c), so that a revocation does not free pages that are mapped.
 */
#include <linux/dcache.h>
#include <linux/dma-buf.h>
#include <linux/dma-fence.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/file.h>
#include <linux/iosys-map.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "claim.h"
#include "drain.h"
#include "export.h"
#include "main.h"
#include "map.h"
#include "mem.h"
#include "poison.h"
#include "trace.h"
#include "ucmd.h"

/*
 * The longest delay between two tries to notify importers whose reservation is locked. The delay
 * doubles each time.
 */
#define TMESH_TELL_MAX max(HZ / 10, 1)

/**
 * struct tmesh_dma_mapping - a mapping by one device
 * @sgt:  the table that the device got
 * @use:  the use of the memory
 * @dev:  the device
 * @dir:  direction of the DMA
 * @node: in the export's list @mappings
 * @nr:   serial number of the mapping within the export
 * @syncing: number of callers that are synchronising it; guarded by the export's lock
 * @leaving: it is about to be unmapped; guarded by the export's lock
 *
 * An attachment is made with one. So the table is allocated and charged while no reservation is
 * held.
 */
struct tmesh_dma_mapping {
	struct sg_table sgt;
	struct tmesh_use use;
	struct device *dev;
	enum dma_data_direction dir;
	struct list_head node;
	u64 nr;
	unsigned int syncing;
	bool leaving;
};

static struct tmesh_dmabuf *to_dmabuf(struct tmesh_claim *claim)
{
	return container_of(claim, struct tmesh_dmabuf, claim);
}

/**
 * tmesh_dmabuf_use() - let a device or the kernel use the memory of an export
 * @claim: claim of the export
 * @use:   filled in; ended by tmesh_use_end()
 *
 * Context: the reservation is held, unless the caller itself ends the use. A lapse notifies
 * importers under it, so a use that began before is notified.
 * Return: the memory; or as a pointer -ESTALE if the region was revoked or the lease has lapsed, or
 * another error of tmesh_use_begin().
 */
struct tmesh_mem *tmesh_dmabuf_use(const struct tmesh_claim *claim, struct tmesh_use *use)
{
	if (tmesh_claim_lapsed(claim))
		return ERR_PTR(-ESTALE);
	return tmesh_use_begin(claim->region, use, claim->first, claim->nr_pages);
}

/**
 * tmesh_dmabuf_attach() - attach a device: the common part of dma_buf_ops.attach
 * @dmabuf: of an export
 * @attach: the attachment; its private data is set to a struct tmesh_attachment
 *
 * Return: 0, -ESTALE or -ENOMEM.
 */
int tmesh_dmabuf_attach(struct dma_buf *dmabuf, struct dma_buf_attachment *attach)
{
	struct tmesh_dmabuf *export = dmabuf->priv;
	struct tmesh_region *region = export->claim.region;
	struct tmesh_attachment *attachment;
	int rc;

	rc = tmesh_claim_allows(&export->claim, TMESH_RIGHT_READ);
	if (rc)
		return rc;
	attachment = kzalloc(sizeof(*attachment), TMESH_GFP);
	if (!attachment)
		return -ENOMEM;
	attachment->dev = attach->dev;
	attach->priv = attachment;
	mutex_lock(&export->lock);
	list_add_tail(&attachment->node, &export->attachments);
	mutex_unlock(&export->lock);
	atomic_inc(&region->attachments);
	trace_tmesh_attach(region->id, dev_name(attach->dev));
	return 0;
}

/**
 * tmesh_dmabuf_detach() - detach a device: the common part of dma_buf_ops.detach
 * @dmabuf: of an export
 * @attach: the attachment
 */
void tmesh_dmabuf_detach(struct dma_buf *dmabuf, struct dma_buf_attachment *attach)
{
	struct tmesh_attachment *attachment = attach->priv;
	struct tmesh_dmabuf *export = dmabuf->priv;
	struct tmesh_region *region = export->claim.region;

	mutex_lock(&export->lock);
	list_del(&attachment->node);
	mutex_unlock(&export->lock);
	kfree(attachment);
	/* A holder may now be the only one: wake pollers for EPOLLOUT. */
	if (atomic_dec_and_test(&region->attachments))
		tmesh_wake(&region->wait, EPOLLOUT);
	trace_tmesh_detach(region->id, dev_name(attach->dev));
}

/* Allocate a mapping with its table. */
static struct tmesh_dma_mapping *tmesh_mapping_new(const struct tmesh_claim *claim,
						   struct device *dev, gfp_t gfp)
{
	unsigned int max_segment = max_t(size_t, PAGE_SIZE, dma_get_max_seg_size(dev));
	struct tmesh_dma_mapping *mapping;
	struct tmesh_mem *mem;
	int rc;

	mapping = kzalloc(sizeof(*mapping), gfp);
	if (!mapping)
		return ERR_PTR(-ENOMEM);
	mapping->dev = dev;
	mem = tmesh_dmabuf_use(claim, &mapping->use);
	rc = PTR_ERR_OR_ZERO(mem);
	if (rc)
		goto free;
	rc = sg_alloc_table_from_pages_segment(&mapping->sgt, mem->pages + claim->first,
					       claim->nr_pages, 0, claim->nr_pages << PAGE_SHIFT,
					       max_segment, gfp);
	tmesh_use_end(claim->region, &mapping->use);
	if (!rc)
		return mapping;

free:
	kfree(mapping);
	return ERR_PTR(rc);
}

static void tmesh_mapping_free(struct tmesh_dma_mapping *mapping)
{
	if (!mapping)
		return;
	sg_free_table(&mapping->sgt);
	kfree(mapping);
}

/* Return the spare mapping of an attachment, or a new one if that is in use. */
static struct tmesh_dma_mapping *tmesh_mapping_take(struct tmesh_dmabuf *export,
						    struct tmesh_attachment *attachment)
{
	struct tmesh_dma_mapping *mapping;

	mutex_lock(&export->lock);
	mapping = attachment->spare;
	attachment->spare = NULL;
	mutex_unlock(&export->lock);
	if (mapping)
		return mapping;
	return tmesh_mapping_new(&export->claim, attachment->dev, TMESH_RESERVED_GFP);
}

/* Make a mapping the spare one of its attachment, unless there is one. */
static void tmesh_mapping_put(struct tmesh_dmabuf *export, struct tmesh_attachment *attachment,
			      struct tmesh_dma_mapping *mapping)
{
	mutex_lock(&export->lock);
	if (!attachment->spare)
		swap(attachment->spare, mapping);
	mutex_unlock(&export->lock);
	tmesh_mapping_free(mapping);
}

static int tmesh_export_attach(struct dma_buf *dmabuf, struct dma_buf_attachment *attach)
{
	struct tmesh_dmabuf *export = dmabuf->priv;
	struct tmesh_dma_mapping *mapping;
	struct tmesh_attachment *attachment;
	int rc;

	rc = tmesh_claim_allows(&export->claim, TMESH_RIGHT_READ);
	if (rc)
		return rc;
	mapping = tmesh_mapping_new(&export->claim, attach->dev, TMESH_GFP);
	if (IS_ERR(mapping))
		return PTR_ERR(mapping);
	rc = tmesh_dmabuf_attach(dmabuf, attach);
	if (rc) {
		tmesh_mapping_free(mapping);
		return rc;
	}
	attachment = attach->priv;
	attachment->spare = mapping;
	return 0;
}

static void tmesh_export_detach(struct dma_buf *dmabuf, struct dma_buf_attachment *attach)
{
	struct tmesh_attachment *attachment = attach->priv;

	tmesh_mapping_free(attachment->spare);
	tmesh_dmabuf_detach(dmabuf, attach);
}

/*
 * Map an export for a device. DMA_ATTR_SKIP_CPU_SYNC and explicit synchronisation let several
 * devices map the same pages, which the DMA API debugging code would report as an error otherwise.
 */
static struct sg_table *tmesh_dmabuf_map(struct dma_buf_attachment *attach,
					 enum dma_data_direction dir)
{
	struct tmesh_dmabuf *export = attach->dmabuf->priv;
	struct tmesh_attachment *attachment = attach->priv;
	struct tmesh_claim *claim = &export->claim;
	struct tmesh_dma_mapping *mapping;
	struct tmesh_mem *mem;
	int rc;

	if (!(claim->rights & TMESH_RIGHT_WRITE) && dir != DMA_TO_DEVICE)
		return ERR_PTR(-EACCES);
	mapping = tmesh_mapping_take(export, attachment);
	if (IS_ERR(mapping))
		return ERR_CAST(mapping);
	mapping->dir = dir;
	mem = tmesh_dmabuf_use(claim, &mapping->use);
	rc = PTR_ERR_OR_ZERO(mem);
	if (rc)
		goto put_mapping;
	rc = tmesh_poison_check(claim->region, mem, claim->first, claim->nr_pages);
	if (rc)
		goto end_use;
	/* Do not map under the region's lock, which page faults need: an IOMMU may take long. */
	rc = dma_map_sgtable(attach->dev, &mapping->sgt, dir, DMA_ATTR_SKIP_CPU_SYNC);
	if (rc)
		goto end_use;
	dma_sync_sgtable_for_device(attach->dev, &mapping->sgt, dir);

	mutex_lock(&export->lock);
	mapping->leaving = false;
	mapping->nr = ++export->nr_mapped;
	list_add_tail(&mapping->node, &export->mappings);
	attachment->mapped++;
	mutex_unlock(&export->lock);
	trace_tmesh_dma_map(claim->region->id, dev_name(attach->dev),
			    (u64)claim->first << PAGE_SHIFT, (u64)claim->nr_pages << PAGE_SHIFT,
			    dir);
	return &mapping->sgt;

end_use:
	tmesh_use_end(claim->region, &mapping->use);
put_mapping:
	tmesh_mapping_put(export, attachment, mapping);
	return ERR_PTR(rc);
}

static void tmesh_dmabuf_unmap(struct dma_buf_attachment *attach, struct sg_table *sgt,
			       enum dma_data_direction dir)
{
	struct tmesh_dma_mapping *mapping = container_of(sgt, struct tmesh_dma_mapping, sgt);
	struct tmesh_dmabuf *export = attach->dmabuf->priv;
	struct tmesh_attachment *attachment = attach->priv;
	struct tmesh_claim *claim = &export->claim;

	mutex_lock(&export->lock);
	mapping->leaving = true;
	attachment->mapped--;
	mutex_unlock(&export->lock);
	/* Wait for synchronisations of this mapping. Its @leaving keeps new ones from beginning. */
	wait_event(export->synced, !READ_ONCE(mapping->syncing));
	mutex_lock(&export->lock);
	list_del(&mapping->node);
	mutex_unlock(&export->lock);
	dma_sync_sgtable_for_cpu(mapping->dev, sgt, mapping->dir);
	dma_unmap_sgtable(mapping->dev, sgt, mapping->dir, DMA_ATTR_SKIP_CPU_SYNC);
	tmesh_use_end(claim->region, &mapping->use);
	trace_tmesh_dma_unmap(claim->region->id, dev_name(attach->dev),
			      (u64)claim->first << PAGE_SHIFT,
			      (u64)claim->nr_pages << PAGE_SHIFT, mapping->dir);
	tmesh_mapping_put(export, attachment, mapping);
}

/*
 * Return the mapping after @mapping, or the first for NULL. It stays until the next call. Skip
 * mappings that began after number @last, so that the walk ends although new ones keep coming.
 */
static struct tmesh_dma_mapping *tmesh_sync_next(struct tmesh_dmabuf *export,
						 struct tmesh_dma_mapping *mapping, u64 *last)
{
	struct tmesh_dma_mapping *done = mapping;

	mutex_lock(&export->lock);
	if (!done)
		*last = export->nr_mapped;
	mapping = list_prepare_entry(mapping, &export->mappings, node);
	list_for_each_entry_continue(mapping, &export->mappings, node) {
		if (!mapping->leaving)
			break;
	}
	if (list_entry_is_head(mapping, &export->mappings, node) || mapping->nr > *last)
		mapping = NULL;
	else
		mapping->syncing++;
	if (done) {
		WRITE_ONCE(done->syncing, done->syncing - 1);
		if (done->leaving)
			wake_up_all(&export->synced);
	}
	mutex_unlock(&export->lock);
	return mapping;
}

/*
 * Synchronise all mappings. Not under the export's lock: devices need it to drop their mappings,
 * and a synchronisation may take long.
 */
static int tmesh_dmabuf_sync(struct tmesh_dmabuf *export,
			     void (*sync)(struct device *dev, struct sg_table *sgt,
					  enum dma_data_direction dir))
{
	struct tmesh_dma_mapping *mapping = NULL;
	bool killed = false;
	u64 last;

	while ((mapping = tmesh_sync_next(export, mapping, &last))) {
		killed = killed || fatal_signal_pending(current);
		if (!killed)
			sync(mapping->dev, &mapping->sgt, mapping->dir);
		cond_resched();
	}
	return killed ? -EINTR : 0;
}

static int tmesh_dmabuf_begin_cpu_access(struct dma_buf *dmabuf, enum dma_data_direction dir)
{
	return tmesh_dmabuf_sync(dmabuf->priv, dma_sync_sgtable_for_cpu);
}

static int tmesh_dmabuf_end_cpu_access(struct dma_buf *dmabuf, enum dma_data_direction dir)
{
	return tmesh_dmabuf_sync(dmabuf->priv, dma_sync_sgtable_for_device);
}

/**
 * tmesh_dmabuf_mmap() - map an export: dma_buf_ops.mmap
 * @dmabuf: of an export
 * @vma:    the new mapping
 *
 * Return: as tmesh_mmap().
 */
int tmesh_dmabuf_mmap(struct dma_buf *dmabuf, struct vm_area_struct *vma)
{
	struct tmesh_dmabuf *export = dmabuf->priv;

	return tmesh_mmap(&export->claim, vma);
}

/**
 * tmesh_dmabuf_vmap_dummy() - map zeros into the kernel in place of revoked or bad memory
 * @export: an export
 * @map:    set to the mapping
 *
 * A zeroed dummy avoids the core's warning about a failed vmap. One page is mapped in every place.
 *
 * Return: 0 or -ENOMEM.
 */
int tmesh_dmabuf_vmap_dummy(struct tmesh_dmabuf *export, struct iosys_map *map)
{
	unsigned long i, nr_pages = export->claim.nr_pages;
	struct page **pages;
	void *vaddr = NULL;

	pages = kvmalloc_array(nr_pages, sizeof(*pages), TMESH_RESERVED_GFP);
	export->vmap_dummy = alloc_page(TMESH_RESERVED_GFP | __GFP_ZERO);
	if (pages && export->vmap_dummy) {
		for (i = 0; i < nr_pages; i++)
			pages[i] = export->vmap_dummy;
		vaddr = vmap(pages, nr_pages, VM_MAP, PAGE_KERNEL);
	}
	if (!vaddr && export->vmap_dummy) {
		__free_page(export->vmap_dummy);
		export->vmap_dummy = NULL;
	}
	kvfree(pages);
	if (!vaddr)
		return -ENOMEM;
	iosys_map_set_vaddr(map, vaddr);
	return 0;
}

/**
 * tmesh_dmabuf_vunmap_dummy() - undo tmesh_dmabuf_vmap_dummy()
 * @export: an export with a dummy
 * @map:    its mapping
 */
void tmesh_dmabuf_vunmap_dummy(struct tmesh_dmabuf *export, struct iosys_map *map)
{
	vunmap(map->vaddr);
	__free_page(export->vmap_dummy);
	export->vmap_dummy = NULL;
}

static int tmesh_dmabuf_vmap(struct dma_buf *dmabuf, struct iosys_map *map)
{
	struct tmesh_dmabuf *export = dmabuf->priv;
	struct tmesh_claim *claim = &export->claim;
	struct tmesh_mem *mem;
	void *vaddr;

	mem = tmesh_dmabuf_use(claim, &export->vmap_use);
	if (mem == ERR_PTR(-ESTALE))
		return tmesh_dmabuf_vmap_dummy(export, map);
	if (IS_ERR(mem))
		return PTR_ERR(mem);
	/* Reading a page with a memory error would crash the kernel. */
	if (tmesh_poison_check(claim->region, mem, claim->first, claim->nr_pages)) {
		tmesh_use_end(claim->region, &export->vmap_use);
		return tmesh_dmabuf_vmap_dummy(export, map);
	}
	vaddr = vmap(mem->pages + claim->first, claim->nr_pages, VM_MAP, PAGE_KERNEL);
	if (!vaddr) {
		tmesh_use_end(claim->region, &export->vmap_use);
		return -ENOMEM;
	}
	iosys_map_set_vaddr(map, vaddr);
	return 0;
}

/* The core maps an export once for all importers, and unmaps it after the last of them. */
static void tmesh_dmabuf_vunmap(struct dma_buf *dmabuf, struct iosys_map *map)
{
	struct tmesh_dmabuf *export = dmabuf->priv;

	if (export->vmap_dummy) {
		tmesh_dmabuf_vunmap_dummy(export, map);
		return;
	}
	vunmap(map->vaddr);
	tmesh_use_end(export->claim.region, &export->vmap_use);
}

static void tmesh_export_tell_work(struct work_struct *work);

/**
 * tmesh_dmabuf_alloc() - allocate an export
 *
 * Return: an export for tmesh_dmabuf_publish() or tmesh_dmabuf_free(); NULL without memory.
 */
struct tmesh_dmabuf *tmesh_dmabuf_alloc(void)
{
	struct tmesh_dmabuf *export = kzalloc(sizeof(*export), TMESH_GFP);

	if (!export)
		return NULL;
	mutex_init(&export->lock);
	/* As in tmesh_region_teach(). */
	fs_reclaim_acquire(GFP_KERNEL);
	might_lock(&export->lock);
	fs_reclaim_release(GFP_KERNEL);
	INIT_LIST_HEAD(&export->attachments);
	INIT_LIST_HEAD(&export->mappings);
	init_waitqueue_head(&export->synced);
	INIT_DELAYED_WORK(&export->tell, tmesh_export_tell_work);
	return export;
}

/**
 * tmesh_dmabuf_free() - free an export that has no dma-buf, or none any more
 * @export: an export whose claim has ended or was not initialised
 */
void tmesh_dmabuf_free(struct tmesh_dmabuf *export)
{
	if (export->original)
		dma_buf_put(export->original);
	kfree(export);
}

/**
 * tmesh_dmabuf_release() - end an export with its dma-buf: dma_buf_ops.release
 * @dmabuf: of an export
 */
void tmesh_dmabuf_release(struct dma_buf *dmabuf)
{
	struct tmesh_dmabuf *export = dmabuf->priv;

	tmesh_claim_fini(&export->claim);
}

#define TMESH_DMABUF_OPS                                       \
	.attach = tmesh_export_attach,                         \
	.detach = tmesh_export_detach,                         \
	.map_dma_buf = tmesh_dmabuf_map,                       \
	.unmap_dma_buf = tmesh_dmabuf_unmap,                   \
	.begin_cpu_access = tmesh_dmabuf_begin_cpu_access,     \
	.end_cpu_access = tmesh_dmabuf_end_cpu_access,         \
	.mmap = tmesh_dmabuf_mmap,                             \
	.release = tmesh_dmabuf_release

static const struct dma_buf_ops tmesh_dmabuf_rw_ops = {
	TMESH_DMABUF_OPS,
	.vmap = tmesh_dmabuf_vmap,
	.vunmap = tmesh_dmabuf_vunmap,
};

/*
 * A read-only export has no vmap operation: a kernel mapping would be writable, and the core warns
 * about a vmap that fails.
 */
static const struct dma_buf_ops tmesh_dmabuf_ro_ops = {
	TMESH_DMABUF_OPS,
};

static void tmesh_export_counted(struct tmesh_claim *claim, int by)
{
	lockdep_assert_held(&claim->region->claims_lock);
	WRITE_ONCE(claim->region->nr_exports, claim->region->nr_exports + by);
}

/*
 * Keep the dma-buf from being released by a reference on its dentry. Its file may be gone already:
 * a descriptor opened with O_PATH keeps the dentry alone, and the dma-buf is released with the
 * dentry.
 */
static bool tmesh_export_hold(struct tmesh_dmabuf *export)
{
	struct tmesh_claim *claim = &export->claim;
	bool held;

	mutex_lock(&claim->region->claims_lock);
	held = !list_empty(&claim->node) && lockref_get_not_dead(&export->dentry->d_lockref);
	mutex_unlock(&claim->region->claims_lock);
	return held;
}

/* Notify importers. Only try the reservation lock, because importers may hold it for any time. */
static bool tmesh_export_tell(struct tmesh_dmabuf *export)
{
	if (!dma_resv_trylock(export->dmabuf->resv))
		return false;
	tmesh_dma_buf_invalidate(export->dmabuf);
	dma_resv_unlock(export->dmabuf->resv);
	return true;
}

/* Queue the work. Return false if it is pending already; that one has a reference of its own. */
static bool tmesh_export_tell_later(struct tmesh_dmabuf *export)
{
	export->tell_delay = min(export->tell_delay * 2, 0UL + TMESH_TELL_MAX);
	return queue_delayed_work(tmesh_wq, &export->tell, export->tell_delay);
}

/* Count down the exports whose importers still have to be notified. */
static void tmesh_export_told(struct tmesh_region *region)
{
	if (atomic_dec_and_test(&region->telling))
		tmesh_wake(&region->wait, TMESH_WAKE_NO_POLL);
}

static void tmesh_export_tell_work(struct work_struct *work)
{
	struct tmesh_dmabuf *export = container_of(to_delayed_work(work), struct tmesh_dmabuf,
						   tell);

	if (!tmesh_export_tell(export) && tmesh_export_tell_later(export))
		return;
	tmesh_export_told(export->claim.region);
	dput(export->dentry);
}

/*
 * Take away the mappings of an export, and notify importers that have a move callback. The other
 * importers keep their mappings, whose uses keep the memory. A dma-buf that is being released has
 * no importers.
 */
static void tmesh_export_cut(struct tmesh_claim *claim)
{
	struct tmesh_dmabuf *export = to_dmabuf(claim);

	tmesh_zap(claim);
	if (!tmesh_export_hold(export))
		return;
	if (tmesh_export_tell(export))
		goto put;
	export->tell_delay = 1;
	atomic_inc(&claim->region->telling);
	if (tmesh_export_tell_later(export))
		return;
	tmesh_export_told(claim->region);
put:
	dput(export->dentry);
}

static void tmesh_export_free(struct tmesh_claim *claim)
{
	tmesh_dmabuf_free(to_dmabuf(claim));
}

static u32 tmesh_export_devices(struct tmesh_claim *claim, struct tmesh_holder *holder, u32 room)
{
	struct tmesh_dmabuf *export = to_dmabuf(claim);
	struct tmesh_attachment *attachment;
	u32 total = 0;

	mutex_lock(&export->lock);
	list_for_each_entry(attachment, &export->attachments, node) {
		if (total++ >= room)
			continue;
		holder->size = sizeof(*holder);
		holder->kind = TMESH_HOLDER_DEVICE;
		holder->rights = claim->rights;
		holder->offset = (u64)claim->first << PAGE_SHIFT;
		holder->bytes = (u64)claim->nr_pages << PAGE_SHIFT;
		holder->mapped = attachment->mapped;
		strscpy(holder->device, dev_name(attachment->dev), sizeof(holder->device));
		holder++;
	}
	mutex_unlock(&export->lock);
	return total;
}

/*
 * Return one fence for all work that devices have queued. This allocates; without memory the
 * revocation does not wait.
 */
static struct dma_fence *tmesh_export_pending(struct tmesh_claim *claim)
{
	struct tmesh_dmabuf *export = to_dmabuf(claim);
	struct dma_fence *fence;

	if (!tmesh_export_hold(export))
		return NULL;
	if (dma_resv_get_singleton(export->dmabuf->resv, DMA_RESV_USAGE_BOOKKEEP, &fence))
		fence = NULL;
	dput(export->dentry);
	return fence;
}

static const struct tmesh_claim_ops tmesh_export_claim_ops = {
	.writes = true,
	.counted = tmesh_export_counted,
	.cut = tmesh_export_cut,
	.free = tmesh_export_free,
	.devices = tmesh_export_devices,
	.pending = tmesh_export_pending,
};

/**
 * tmesh_dmabuf_publish() - create the dma-buf of an export
 * @export:   of tmesh_dmabuf_alloc(); freed on failure
 * @info:     has the operations and, for a proxy, the reservation
 * @through:  claim of the handle that the export is made through
 * @first:    first page of the region
 * @nr_pages: number of pages
 * @writable: devices may write to it
 *
 * Return: the dma-buf or an error as a pointer.
 */
struct dma_buf *tmesh_dmabuf_publish(struct tmesh_dmabuf *export, struct dma_buf_export_info *info,
				     const struct tmesh_claim *through, unsigned long first,
				     unsigned long nr_pages, bool writable)
{
	struct dma_buf *dmabuf;
	int rc;

	info->size = nr_pages << PAGE_SHIFT;
	info->flags = writable ? O_RDWR : O_RDONLY;
	info->priv = export;
	dmabuf = dma_buf_export(info);
	if (IS_ERR(dmabuf)) {
		tmesh_dmabuf_free(export);
		return dmabuf;
	}
	export->dmabuf = dmabuf;
	export->dentry = dmabuf->file->f_path.dentry;
	/* The core drops the inode before it releases the dma-buf, so the claim holds the inode. */
	tmesh_claim_init(&export->claim, &tmesh_export_claim_ops, through->region,
			 TMESH_HOLDER_EXPORT, TMESH_RIGHT_READ | (writable ? TMESH_RIGHT_WRITE : 0),
			 file_inode(dmabuf->file));
	export->claim.first = first;
	export->claim.nr_pages = nr_pages;
	rc = tmesh_claim_add(&export->claim, through);
	if (rc) {
		dma_buf_put(dmabuf);
		return ERR_PTR(rc);
	}
	return dmabuf;
}

static struct dma_buf *tmesh_dmabuf_new(const struct tmesh_claim *through, unsigned long first,
					unsigned long nr_pages, bool writable)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct tmesh_dmabuf *export = tmesh_dmabuf_alloc();

	if (!export)
		return ERR_PTR(-ENOMEM);
	info.ops = writable ? &tmesh_dmabuf_rw_ops : &tmesh_dmabuf_ro_ops;
	return tmesh_dmabuf_publish(export, &info, through, first, nr_pages, writable);
}

/**
 * tmesh_ioctl_export() - TMESH_EXPORT
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_export(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	struct tmesh_region *region = claim->region;
	u64 size = (u64)region->nr_pages << PAGE_SHIFT;
	struct tmesh_export *cmd = ucmd->cmd;
	bool writable = cmd->flags & TMESH_EXPORT_WRITE;
	struct dma_buf *(*new)(const struct tmesh_claim *through, unsigned long first,
			       unsigned long nr_pages, bool writable);
	struct dma_buf *dmabuf;
	int fd, rc;

	if (region->backing == TMESH_BACKING_OPAQUE)
		return -EOPNOTSUPP;
	if (cmd->pad || !PAGE_ALIGNED(cmd->offset) || !PAGE_ALIGNED(cmd->bytes) ||
	    cmd->offset >= size || cmd->bytes > size - cmd->offset)
		return -EINVAL;
	if (!cmd->bytes)
		cmd->bytes = size - cmd->offset;
	rc = tmesh_claim_allows(claim, TMESH_RIGHT_READ | (writable ? TMESH_RIGHT_WRITE : 0));
	if (rc)
		return rc;
	rc = tmesh_memory_left();
	if (rc)
		return rc;
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		return fd;
	new = region->backing == TMESH_BACKING_DMABUF ? tmesh_proxy_new : tmesh_dmabuf_new;
	dmabuf = new(claim, cmd->offset >> PAGE_SHIFT, cmd->bytes >> PAGE_SHIFT, writable);
	rc = PTR_ERR_OR_ZERO(dmabuf);
	if (rc)
		goto put_fd;
	cmd->fd = fd;
	rc = tmesh_respond(ucmd, sizeof(*cmd));
	if (rc) {
		dma_buf_put(dmabuf);
		goto put_fd;
	}
	trace_tmesh_export(region->id, cmd->offset, cmd->bytes, writable);
	tmesh_dma_buf_fd_install(dmabuf, fd);
	return 0;

put_fd:
	put_unused_fd(fd);
	return rc;
}
