/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What differs between the kernels that tmesh builds for. No other file looks at
 * LINUX_VERSION_CODE; each entry says since when the newer form exists.
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
#include <linux/version.h>

/* 7.1: batches of folios have a header of their own name. */
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

/* 7.0: so has the importer's call. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0)
#define TMESH_MOVE_NOTIFY move_notify
#else
#define TMESH_MOVE_NOTIFY invalidate_mappings
#endif

/*
 * 7.0: importers that can be told are attached as such to any exporter. Before, the core keeps
 * their mapping until they detach unless the exporter moves its memory, and telling them of a
 * mapping that stays would lead to nothing.
 */
static inline bool tmesh_dma_buf_tells(struct dma_buf *dmabuf)
{
	return LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0) || dma_buf_is_dynamic(dmabuf);
}

/* 7.0: dma-buf wants to know about descriptors that it did not make itself. */
static inline void tmesh_dma_buf_fd_install(struct dma_buf *dmabuf, int fd)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0)
	fd_install(fd, dmabuf->file);
#else
	dma_buf_fd_install(dmabuf, fd);
#endif
}

/*
 * 6.6: pins refuse pages of a file whose filesystem has to know who writes. They may be
 * written at any time without its knowing, which it does not expect.
 */
static inline bool tmesh_may_pin_for_writing(struct page *page)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 6, 0)
	struct folio *folio = page_folio(page);

	/* Of no file, of shmem or private to the process, or of hugetlbfs. */
	return !READ_ONCE(folio->mapping) || folio_test_swapbacked(folio) ||
	       folio_test_hugetlb(folio);
#else
	return true;
#endif
}

/* 6.9: pidfds have a filesystem, and there are some of single threads. */
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
 * 6.8: receive_fd() itself says where the number goes, and before anybody can use it. Gives the
 * caller a descriptor of a file that others made, if the security module lets it.
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
 * 6.15: a mapping that may have PMDs can be given a single page. 6.17: where the core cannot map a
 * folio whole it maps all of its pages, by single entries. Before, a mark keeps it from mapping the
 * folio whole, and it maps one page.
 *
 * Maps a page that is locked and referenced: what the fault handler returns. With VM_FAULT_LOCKED
 * the core does it.
 */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 15, 0)
#define TMESH_CORE_MAPS_BESIDE false

static inline vm_fault_t tmesh_map_one(struct vm_fault *vmf, struct page *page)
{
	folio_set_has_hwpoisoned(page_folio(page));
	vmf->page = page;
	return VM_FAULT_LOCKED;
}
#else
#define TMESH_CORE_MAPS_BESIDE true

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
