// SPDX-License-Identifier: GPL-2.0-only
/*
 * A driver that exports and imports dma-bufs; peer.h describes its calls.
 */
#include <linux/delay.h>
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/iosys-map.h>
#include <linux/kprobes.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "peer.h"

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
MODULE_IMPORT_NS(DMA_BUF);
#else
MODULE_IMPORT_NS("DMA_BUF");
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0)
#define PEER_NOTIFY move_notify
#define peer_tell dma_buf_move_notify
#else
#define PEER_NOTIFY invalidate_mappings
#define peer_tell dma_buf_invalidate_mappings
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
#define peer_vmap dma_buf_vmap
#define peer_vunmap dma_buf_vunmap
#else
#define peer_vmap dma_buf_vmap_unlocked
#define peer_vunmap dma_buf_vunmap_unlocked
#endif

/* An open file: an importer. The reservation guards the mapping too. */
struct peer {
	struct mutex lock;
	struct dma_buf *dmabuf;
	struct dma_buf_attachment *attach;
	struct sg_table *sgt;
	enum dma_data_direction dir;
	bool lets_go;
	atomic_t told;
	bool held;
	wait_queue_head_t let;
	struct page *locked;
};

static struct miscdevice peer_device;
static atomic_t peer_pins;

/* The exporter */

/* Set in the private data of every export, with the flags of its creation */
#define PEER_EXPORTED BIT(31)

static int peer_attach(struct dma_buf *dmabuf, struct dma_buf_attachment *attach)
{
	return (unsigned long)dmabuf->priv & PEER_REFUSES ? -ENXIO : 0;
}

static int peer_pin(struct dma_buf_attachment *attach)
{
	dma_resv_assert_held(attach->dmabuf->resv);
	atomic_inc(&peer_pins);
	return 0;
}

static void peer_unpin(struct dma_buf_attachment *attach)
{
	dma_resv_assert_held(attach->dmabuf->resv);
	atomic_dec(&peer_pins);
}

static struct sg_table *peer_map(struct dma_buf_attachment *attach, enum dma_data_direction dir)
{
	unsigned long flags = (unsigned long)attach->dmabuf->priv;
	unsigned int pages = flags & PEER_MAPS_HALF ? PEER_PAGES / 2 : PEER_PAGES;
	unsigned int left = pages, parts = 0, i, nr;
	struct scatterlist *sg;
	struct sg_table *sgt;

	if (flags & PEER_MAPS_NOT)
		return ERR_PTR(-ENXIO);
	while (left) {
		left -= min(left, parts % 5 + 1);
		parts++;
	}
	sgt = kzalloc(sizeof(*sgt), GFP_KERNEL);
	if (!sgt || sg_alloc_table(sgt, parts, GFP_KERNEL)) {
		kfree(sgt);
		return ERR_PTR(-ENOMEM);
	}
	left = pages;
	for_each_sgtable_dma_sg(sgt, sg, i) {
		nr = min(left, i % 5 + 1);
		left -= nr;
		sg_set_page(sg, NULL, nr << PAGE_SHIFT, 0);
		sg_dma_address(sg) = (i + 1ull) << 32;
		sg_dma_len(sg) = nr << PAGE_SHIFT;
	}
	return sgt;
}

static void peer_unmap(struct dma_buf_attachment *attach, struct sg_table *sgt,
		       enum dma_data_direction dir)
{
	sg_free_table(sgt);
	kfree(sgt);
}

static void peer_release(struct dma_buf *dmabuf)
{
}

#define PEER_OPS                     \
	.attach = peer_attach,       \
	.map_dma_buf = peer_map,     \
	.unmap_dma_buf = peer_unmap, \
	.release = peer_release

static const struct dma_buf_ops peer_static_ops = { PEER_OPS };
static const struct dma_buf_ops peer_dynamic_ops = {
	PEER_OPS,
	.pin = peer_pin,
	.unpin = peer_unpin,
};

static int peer_export(unsigned long flags)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct dma_buf *dmabuf;
	int fd;

	info.ops = flags & PEER_MOVES ? &peer_dynamic_ops : &peer_static_ops;
	info.size = (PEER_PAGES << PAGE_SHIFT) - !!(flags & PEER_NOT_WHOLE);
	info.flags = flags & PEER_WRITE_ONLY ? O_WRONLY : O_RDWR;
	/* The core requires private data that is not NULL. */
	info.priv = (void *)(flags | PEER_EXPORTED);
	dmabuf = dma_buf_export(&info);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	fd = dma_buf_fd(dmabuf, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(dmabuf);
	return fd;
}

static int peer_move(int fd)
{
	struct dma_buf *dmabuf = dma_buf_get(fd);

	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	dma_resv_lock(dmabuf->resv, NULL);
	peer_tell(dmabuf);
	dma_resv_unlock(dmabuf->resv);
	dma_buf_put(dmabuf);
	return 0;
}

/* The importer */

static void peer_unmap_attached(struct peer *peer)
{
	dma_resv_assert_held(peer->dmabuf->resv);
	if (peer->sgt)
		dma_buf_unmap_attachment(peer->attach, peer->sgt, peer->dir);
	peer->sgt = NULL;
}

static int peer_map_attached(struct peer *peer)
{
	struct sg_table *sgt;

	dma_resv_assert_held(peer->dmabuf->resv);
	if (peer->sgt)
		return 0;
	sgt = dma_buf_map_attachment(peer->attach, peer->dir);
	if (IS_ERR(sgt))
		return PTR_ERR(sgt);
	peer->sgt = sgt;
	return 0;
}

static void peer_told(struct dma_buf_attachment *attach)
{
	struct peer *peer = attach->importer_priv;

	dma_resv_assert_held(attach->dmabuf->resv);
	atomic_inc(&peer->told);
	if (peer->lets_go)
		peer_unmap_attached(peer);
}

static const struct dma_buf_attach_ops peer_importer_ops = {
	.allow_peer2peer = true,
	.PEER_NOTIFY = peer_told,
};

static void peer_let_go(struct peer *peer)
{
	if (peer->attach) {
		dma_resv_lock(peer->dmabuf->resv, NULL);
		peer_unmap_attached(peer);
		dma_resv_unlock(peer->dmabuf->resv);
		dma_buf_detach(peer->dmabuf, peer->attach);
	}
	if (peer->dmabuf)
		dma_buf_put(peer->dmabuf);
	peer->attach = NULL;
	peer->dmabuf = NULL;
}

static int peer_take(struct peer *peer, const struct peer_import *cmd)
{
	peer->dmabuf = dma_buf_get(cmd->dmabuf);
	if (IS_ERR(peer->dmabuf)) {
		int rc = PTR_ERR(peer->dmabuf);

		peer->dmabuf = NULL;
		return rc;
	}
	peer->dir = cmd->flags & PEER_WRITES ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
	peer->lets_go = cmd->flags & PEER_LETS_GO;
	if (cmd->flags & PEER_TOLD)
		peer->attach = dma_buf_dynamic_attach(peer->dmabuf, peer_device.this_device,
						      &peer_importer_ops, peer);
	else
		peer->attach = dma_buf_attach(peer->dmabuf, peer_device.this_device);
	if (IS_ERR(peer->attach)) {
		int rc = PTR_ERR(peer->attach);

		peer->attach = NULL;
		return rc;
	}
	return 0;
}

static void peer_describe(const struct peer *peer, struct peer_import *cmd)
{
	struct scatterlist *sg;
	unsigned int i;

	for_each_sgtable_dma_sg(peer->sgt, sg, i) {
		if (cmd->count == PEER_PAGES)
			break;
		cmd->parts[cmd->count].address = sg_dma_address(sg);
		cmd->parts[cmd->count++].bytes = sg_dma_len(sg);
	}
}

static int peer_import(struct peer *peer, struct peer_import __user *arg)
{
	struct peer_import *cmd = memdup_user(arg, sizeof(*cmd));
	int rc;

	if (IS_ERR(cmd))
		return PTR_ERR(cmd);
	mutex_lock(&peer->lock);
	peer_let_go(peer);
	atomic_set(&peer->told, 0);
	cmd->count = 0;
	rc = peer_take(peer, cmd);
	if (!rc && !(cmd->flags & PEER_WAITS)) {
		dma_resv_lock(peer->dmabuf->resv, NULL);
		rc = peer_map_attached(peer);
		if (!rc)
			peer_describe(peer, cmd);
		dma_resv_unlock(peer->dmabuf->resv);
	}
	if (rc)
		peer_let_go(peer);
	mutex_unlock(&peer->lock);
	if (!rc && copy_to_user(arg, cmd, sizeof(*cmd)))
		rc = -EFAULT;
	kfree(cmd);
	return rc;
}

static int peer_change(struct peer *peer, unsigned int cmd)
{
	int rc = -ENOENT;

	mutex_lock(&peer->lock);
	if (peer->attach) {
		dma_resv_lock(peer->dmabuf->resv, NULL);
		rc = 0;
		if (cmd == PEER_MAP)
			rc = peer_map_attached(peer);
		else if (cmd == PEER_UNMAP)
			peer_unmap_attached(peer);
		else
			rc = !!peer->sgt;
		dma_resv_unlock(peer->dmabuf->resv);
	}
	mutex_unlock(&peer->lock);
	return rc;
}

static int peer_look(int fd)
{
	struct dma_buf *dmabuf = dma_buf_get(fd);
	struct iosys_map map;
	u8 byte;
	int rc;

	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	rc = peer_vmap(dmabuf, &map);
	if (!rc) {
		iosys_map_memcpy_from(&byte, &map, 0, 1);
		peer_vunmap(dmabuf, &map);
		rc = byte;
	}
	dma_buf_put(dmabuf);
	return rc;
}

/* Kernels from 6.7 until 2026 let userfaultfd() register any mapping. */
static int peer_mark(unsigned long address, bool special)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 7, 0)
	return -EOPNOTSUPP;
#else
	struct vm_area_struct *vma;

	mmap_write_lock(current->mm);
	vma = vma_lookup(current->mm, address);
	if (vma && special)
		vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND);
	else if (vma)
		vm_flags_clear(vma, VM_MIXEDMAP | VM_DONTEXPAND);
	mmap_write_unlock(current->mm);
	return vma ? 0 : -EFAULT;
#endif
}

static int peer_count(unsigned long address, int more)
{
	struct page *page;

	if (get_user_pages_fast(address, 1, 0, &page) != 1)
		return -EFAULT;
	page_ref_add(compound_head(page), more);
	put_page(page);
	return 0;
}

static int peer_unlock(struct peer *peer)
{
	struct page *page = xchg(&peer->locked, NULL);

	if (!page)
		return -ENOENT;
	unlock_page(page);
	put_page(page);
	return 0;
}

static int peer_lock(struct peer *peer, unsigned long address)
{
	struct page *page;

	if (get_user_pages_fast(address, 1, 0, &page) != 1)
		return -EFAULT;
	lock_page(page);
	if (!cmpxchg(&peer->locked, NULL, page))
		return 0;
	unlock_page(page);
	put_page(page);
	return -EBUSY;
}

/* Map as drivers do: the mapped file is the driver's, and may be open for writing. */
static int peer_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct peer *peer = file->private_data;
	int rc = -ENOENT;

	mutex_lock(&peer->lock);
	if (peer->dmabuf)
		rc = dma_buf_mmap(peer->dmabuf, vma, vma->vm_pgoff);
	mutex_unlock(&peer->lock);
	return rc;
}

static int peer_open(struct inode *inode, struct file *file)
{
	struct peer *peer = kzalloc(sizeof(*peer), GFP_KERNEL);

	if (!peer)
		return -ENOMEM;
	mutex_init(&peer->lock);
	init_waitqueue_head(&peer->let);
	file->private_data = peer;
	return 0;
}

static int peer_close(struct inode *inode, struct file *file)
{
	struct peer *peer = file->private_data;

	peer_let_go(peer);
	peer_unlock(peer);
	kfree(peer);
	return 0;
}

static long peer_hold(struct peer *peer, int fd)
{
	struct dma_buf *dmabuf = dma_buf_get(fd);

	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	dma_resv_lock(dmabuf->resv, NULL);
	WRITE_ONCE(peer->held, true);
	wait_event_killable(peer->let, !READ_ONCE(peer->held));
	WRITE_ONCE(peer->held, false);
	dma_resv_unlock(dmabuf->resv);
	dma_buf_put(dmabuf);
	return 0;
}

static int peer_mount(struct fs_context *fc)
{
	return -ENODEV;
}

static struct file_system_type peer_fs = {
	.name = "tmesh",
	.owner = THIS_MODULE,
	.init_fs_context = peer_mount,
};

static noinline notrace int peer_refuse(void)
{
	return -ENOMEM;
}

/* Let misc_register() for a device "tmesh" return at once, after a time in which others go on. */
static int peer_at_register(struct kprobe *probe, struct pt_regs *regs)
{
	const struct miscdevice *device = (const void *)regs_get_kernel_argument(regs, 0);

	if (strcmp(device->name, "tmesh"))
		return 0;
	mdelay(300);
	instruction_pointer_set(regs, (unsigned long)peer_refuse);
	return 1;
}

static atomic_t peer_late;

static noinline notrace void peer_put_late(struct file_system_type *fs)
{
	atomic_inc(&peer_late);
	msleep(500);
	module_put(fs->owner);
}

static int peer_at_put(struct kprobe *probe, struct pt_regs *regs)
{
	const struct file_system_type *fs = (const void *)regs_get_kernel_argument(regs, 0);

	if (strcmp(fs->name, "tmesh"))
		return 0;
	instruction_pointer_set(regs, (unsigned long)peer_put_late);
	return 1;
}

static struct kprobe peer_register_probe, peer_put_probe;

static int peer_refuse_device(void)
{
	int rc;

	if (!IS_ENABLED(CONFIG_KPROBES))
		return -EOPNOTSUPP;
	atomic_set(&peer_late, 0);
	peer_register_probe = (struct kprobe) {
		.symbol_name = "misc_register",
		.pre_handler = peer_at_register,
	};
	peer_put_probe = (struct kprobe) {
		.symbol_name = "put_filesystem",
		.pre_handler = peer_at_put,
	};
	rc = register_kprobe(&peer_register_probe);
	if (rc)
		return rc;
	rc = register_kprobe(&peer_put_probe);
	if (rc)
		unregister_kprobe(&peer_register_probe);
	return rc;
}

static int peer_allow_device(void)
{
	unregister_kprobe(&peer_put_probe);
	unregister_kprobe(&peer_register_probe);
	return atomic_read(&peer_late);
}

static long peer_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct peer *peer = file->private_data;

	switch (cmd) {
	case PEER_EXPORT:
		return peer_export(arg);
	case PEER_MOVE:
		return peer_move(arg);
	case PEER_IMPORT:
		return peer_import(peer, (void __user *)arg);
	case PEER_TOLD_TIMES:
		return atomic_read(&peer->told);
	case PEER_PINS:
		return atomic_read(&peer_pins);
	case PEER_MAP:
	case PEER_UNMAP:
	case PEER_MAPPED:
		return peer_change(peer, cmd);
	case PEER_LOOK:
		return peer_look(arg);
	case PEER_COUNT:
		return peer_count(arg, INT_MAX / 2 + 1);
	case PEER_UNCOUNT:
		return peer_count(arg, -(INT_MAX / 2 + 1));
	case PEER_HOLD:
		return peer_hold(peer, arg);
	case PEER_LET:
		WRITE_ONCE(peer->held, false);
		wake_up_all(&peer->let);
		return 0;
	case PEER_HELD:
		return READ_ONCE(peer->held);
	case PEER_TAKE_NAME:
		return register_filesystem(&peer_fs);
	case PEER_GIVE_NAME:
		return unregister_filesystem(&peer_fs);
	case PEER_REFUSE_DEVICE:
		return peer_refuse_device();
	case PEER_ALLOW_DEVICE:
		return peer_allow_device();
	case PEER_PLAIN:
	case PEER_SPECIAL:
		return peer_mark(arg, cmd == PEER_SPECIAL);
	case PEER_LOCK:
		return peer_lock(peer, arg);
	case PEER_UNLOCK:
		return peer_unlock(peer);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations peer_fops = {
	.owner = THIS_MODULE,
	.open = peer_open,
	.release = peer_close,
	.unlocked_ioctl = peer_ioctl,
	.mmap = peer_mmap,
};

static struct miscdevice peer_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "peer",
	.fops = &peer_fops,
};

static int __init peer_init(void)
{
	static struct device_dma_parameters parameters;
	struct device *dev;
	int rc;

	rc = misc_register(&peer_device);
	if (rc)
		return rc;
	/* The device can use any address and segments of any length. */
	dev = peer_device.this_device;
	dev->dma_parms = &parameters;
	dma_set_max_seg_size(dev, UINT_MAX);
	rc = dma_coerce_mask_and_coherent(dev, DMA_BIT_MASK(64));
	if (rc)
		misc_deregister(&peer_device);
	return rc;
}

static void __exit peer_exit(void)
{
	misc_deregister(&peer_device);
}

module_init(peer_init);
module_exit(peer_exit);
MODULE_DESCRIPTION("Exports and imports dma-bufs, to test what passes through tmesh");
MODULE_LICENSE("GPL");
