/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Differences between the kernel versions that tmesh builds for. No other file looks at
 * LINUX_VERSION_CODE. Each entry begins with the version that brought the newer form.
 */
#ifndef TMESH_COMPAT_H
#define TMESH_COMPAT_H

#include <linux/dma-buf.h>
#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/ipc_namespace.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/pidfd.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/userfaultfd_k.h>
#include <linux/version.h>

/* 7.1: folio batches have a header of their own. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 0)
#include <linux/pagevec.h>
#else
#include <linux/folio_batch.h>
#endif

struct folio;
struct page;
struct shrink_control;
struct shrinker;

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "tmesh needs Linux 6.1 or later"
#endif

/* 6.3: vm_flags is written through helpers. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static inline void vm_flags_set(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags &= ~flags;
}
#endif

/* 6.13: the namespace of an import is a string. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
#define TMESH_IMPORT_DMA_BUF MODULE_IMPORT_NS(DMA_BUF)
#else
#define TMESH_IMPORT_DMA_BUF MODULE_IMPORT_NS("DMA_BUF")
#endif

/* 6.6: register_sysctl() takes the array's size; before, an empty entry ends it. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 6, 0)
#define TMESH_SYSCTL_END { }
#else
#define TMESH_SYSCTL_END
#endif

/* 6.8: mapping a file on behalf of another has a helper that 6.16 renamed. */
static inline int tmesh_file_mmap(struct file *file, struct vm_area_struct *vma)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 16, 0)
	return call_mmap(file, vma);
#else
	return vfs_mmap(file, vma);
#endif
}

/* 7.0: the notification of importers has a new name. */
static inline void tmesh_dma_buf_invalidate(struct dma_buf *dmabuf)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0)
	dma_buf_move_notify(dmabuf);
#else
	dma_buf_invalidate_mappings(dmabuf);
#endif
}

/* 7.0: the move callback of importers has a new name. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0)
#define TMESH_MOVE_NOTIFY move_notify
#else
#define TMESH_MOVE_NOTIFY invalidate_mappings
#endif

/*
 * 7.0: an importer with a move callback is attached as a dynamic one to any exporter. Before, the
 * core keeps its mapping until it detaches, unless the exporter is dynamic too. Notifying it would
 * then have no effect.
 */
static inline bool tmesh_dma_buf_tells(struct dma_buf *dmabuf)
{
	return LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0) || dma_buf_is_dynamic(dmabuf);
}

/* 7.0: dma-buf has its own call to install a descriptor that it did not make. */
static inline void tmesh_dma_buf_fd_install(struct dma_buf *dmabuf, int fd)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0)
	fd_install(fd, dmabuf->file);
#else
	dma_buf_fd_install(dmabuf, fd);
#endif
}

/*
 * 6.6: pin_user_pages() refuses pages of a file whose filesystem tracks dirty pages. A pin could
 * write to them at any time without notifying the filesystem, which does not expect that.
 */
static inline bool tmesh_may_pin_for_writing(struct page *page)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 6, 0)
	struct folio *folio = page_folio(page);

	/* Allow pages without a file, private and shmem pages, and those of hugetlbfs. */
	return !READ_ONCE(folio->mapping) || folio_test_swapbacked(folio) ||
	       folio_test_hugetlb(folio);
#else
	return true;
#endif
}

/* 6.9: pidfds have a filesystem of their own, and a pidfd may refer to a single thread. */
static inline bool tmesh_is_pidfd(struct file *file)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 9, 0)
	const struct dentry *dentry = file->f_path.dentry;

	return dentry->d_sb->s_magic == ANON_INODE_FS_MAGIC &&
	       !strcmp(dentry->d_name.name, "[pidfd]");
#else
	return file_inode(file)->i_sb->s_magic == PID_FS_MAGIC && !(file->f_flags & PIDFD_THREAD);
#endif
}

/*
 * Give the caller a descriptor of a foreign file, if the security module allows it. Since 6.8
 * receive_fd() itself writes the number to user memory, before the descriptor can be used.
 */
static inline int tmesh_receive_fd(struct file *file, int __user *answer)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 8, 0)
	int fd = receive_fd(file, O_CLOEXEC);

	if (fd >= 0 && put_user(fd, answer)) {
		close_fd(fd);
		return -EFAULT;
	}
	return fd;
#else
	return receive_fd(file, answer, O_CLOEXEC);
#endif
}

/* 6.14: d_revalidate() also gets the folder and the name. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
#define TMESH_REVALIDATE_ARGS
#else
#define TMESH_REVALIDATE_ARGS struct inode *dir, const struct qstr *name,
#endif

/* 6.17: the operations of a file system's dentries are set by a call. */
static inline void tmesh_set_dentry_ops(struct super_block *sb, const struct dentry_operations *ops)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 17, 0)
	sb->s_d_op = ops;
#else
	set_default_d_op(sb, ops);
#endif
}

/* 6.5: splice from a file without a page cache has a helper. The one before uses read_iter(). */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 5, 0)
#define tmesh_splice_read generic_file_splice_read
#else
#define tmesh_splice_read copy_splice_read
#endif

/* 6.6, 6.7: an inode's times are set by calls. */
static inline void tmesh_set_times(struct inode *inode, struct timespec64 changed,
				   struct timespec64 kept)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 6, 0)
	inode->i_ctime = kept;
#else
	inode_set_ctime_to_ts(inode, kept);
#endif
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 7, 0)
	inode->i_atime = changed;
	inode->i_mtime = changed;
#else
	inode_set_atime_to_ts(inode, changed);
	inode_set_mtime_to_ts(inode, changed);
#endif
}

/* 6.18: a namespace's references have another name. */
static inline unsigned int tmesh_ipc_ns_refs(const struct ipc_namespace *ns)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 18, 0)
	return refcount_read(&ns->ns.count);
#else
	return refcount_read(&ns->ns.__ns_ref);
#endif
}

/*
 * Map one page of a folio. Since 6.15 vmf_insert_page_mkwrite() can insert a single page into a
 * mapping that may have PMDs. Since 6.17, if the core cannot map a whole folio, it maps all of its
 * pages by single entries, but not for userfaultfd. Before, the has_hwpoisoned flag makes the core
 * map just one page.
 *
 * tmesh_map_one() takes a locked page with a reference and returns the value for the fault handler
 * to return. With VM_FAULT_LOCKED the core does the mapping.
 */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 15, 0)
static inline bool tmesh_core_maps_beside(struct vm_area_struct *vma)
{
	return false;
}

static inline vm_fault_t tmesh_map_one(struct vm_fault *vmf, struct page *page)
{
	folio_set_has_hwpoisoned(page_folio(page));
	vmf->page = page;
	return VM_FAULT_LOCKED;
}
#else
static inline bool tmesh_core_maps_beside(struct vm_area_struct *vma)
{
	return !userfaultfd_armed(vma);
}

static inline vm_fault_t tmesh_map_one(struct vm_fault *vmf, struct page *page)
{
	return vmf_insert_page_mkwrite(vmf, page, vmf->flags & FAULT_FLAG_WRITE);
}
#endif

struct shrinker *tmesh_shrinker_new(const char *name,
				    unsigned long (*count)(struct shrinker *s,
							   struct shrink_control *sc),
				    unsigned long (*scan)(struct shrinker *s,
							  struct shrink_control *sc));
void tmesh_reclaimed(unsigned long pages);
void tmesh_shrinker_free(struct shrinker *shrinker);
void tmesh_put_ipc_ns(struct ipc_namespace *ns);
void tmesh_tell_untested(void);
int tmesh_folio_mapcount(struct folio *folio);
int tmesh_memfd_get_pages(struct file *memfd, struct page **pages, unsigned long nr_pages);
unsigned int tmesh_pin_reader_flags(unsigned long address, unsigned long *nr_pages);

#endif /* TMESH_COMPAT_H */
