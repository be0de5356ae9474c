// SPDX-License-Identifier: GPL-2.0-only
/*
 * Files of the file system "tmesh". An open file has a handle on its part of a region, so it is a
 * holder as any other. The mappings of a file belong to the inode of that handle and not to that of
 * the file. A revocation takes away the mappings of one handle at a time.
 */
#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/uio.h>

#include "files.h"
#include "fs.h"
#include "handle.h"
#include "keep.h"
#include "map.h"
#include "mem.h"
#include "poison.h"
#include "trace.h"

/* Pages that a read holds at once */
#define TMESH_READ_PAGES 16

static int tmesh_fs_open(struct inode *inode, struct file *file)
{
	const struct tmesh_node *node = inode->i_private;
	const struct tmesh_file *entry = &node->file;
	struct tmesh_handle *handle;
	struct tmesh_group *group;
	int rc;

	rc = generic_file_open(inode, file);
	if (rc)
		return rc;
	/* There is no page cache to go around. */
	file->f_mode |= FMODE_CAN_ODIRECT;
	if (!entry->bytes)
		return 0;
	/* The VFS walks the path again after ESTALE. */
	group = tmesh_group_of_files(node->files);
	if (!group)
		return -ESTALE;
	handle = tmesh_handle_of_part(group->regions[entry->region], entry->offset, entry->bytes);
	tmesh_group_unhold(group);
	if (IS_ERR(handle))
		return PTR_ERR(handle);
	trace_tmesh_open(handle->claim.region->id, TMESH_RIGHT_READ, false);
	file->private_data = handle;
	file->f_mapping = handle->claim.inode->i_mapping;
	return 0;
}

static int tmesh_fs_release(struct inode *inode, struct file *file)
{
	struct tmesh_handle *handle = file->private_data;

	if (!handle)
		return 0;
	trace_tmesh_close(handle->claim.region->id);
	file->f_mapping = inode->i_mapping;
	tmesh_handle_end(handle);
	return 0;
}

/*
 * Take references on pages for a read. The region's lock is not held while they are copied: the
 * reader's memory may need it for a fault. Return the number of pages or a negative error.
 */
static int tmesh_fs_get_pages(struct tmesh_claim *claim, unsigned long first, unsigned long want,
			      struct page **pages)
{
	struct tmesh_region *region = claim->region;
	unsigned long nr = 0, i;

	down_read(&region->lock);
	if (region->mem) {
		memcpy(pages, region->mem->pages + claim->first + first, want * sizeof(*pages));
		nr = tmesh_clean_pages(pages, want);
		for (i = 0; i < nr; i++)
			get_page(pages[i]);
	} else {
		want = 0;
	}
	up_read(&region->lock);
	if (nr)
		return nr;
	if (!want)
		return -ESTALE;
	tmesh_poison_found(region);
	return -EIO;
}

static int tmesh_fs_read_some(struct tmesh_claim *claim, loff_t *pos, u64 bytes,
			      struct iov_iter *to)
{
	unsigned long first = *pos >> PAGE_SHIFT, want, copied, step;
	struct page *pages[TMESH_READ_PAGES];
	int nr, i, rc = 0;
	void *at;

	want = DIV_ROUND_UP_ULL(offset_in_page(*pos) + bytes, PAGE_SIZE);
	nr = tmesh_fs_get_pages(claim, first, min_t(unsigned long, want, TMESH_READ_PAGES), pages);
	if (nr < 0)
		return nr;
	for (i = 0; i < nr; i++) {
		if (!rc) {
			step = min_t(u64, bytes, PAGE_SIZE - offset_in_page(*pos));
			/* A pipe gets a copy: a page in it would outlive a revocation. */
			at = kmap_local_page(pages[i]);
			copied = copy_to_iter(at + offset_in_page(*pos), step, to);
			kunmap_local(at);
			*pos += copied;
			bytes -= copied;
			if (copied < step)
				rc = -EFAULT;
		}
		put_page(pages[i]);
	}
	return rc;
}

static ssize_t tmesh_fs_read(struct kiocb *iocb, struct iov_iter *to)
{
	struct tmesh_handle *handle = iocb->ki_filp->private_data;
	loff_t size = i_size_read(file_inode(iocb->ki_filp)), from = iocb->ki_pos;
	u64 bytes;
	int rc = 0;

	while (!rc && iov_iter_count(to) && iocb->ki_pos < size) {
		bytes = min_t(u64, iov_iter_count(to), size - iocb->ki_pos);
		rc = tmesh_fs_read_some(&handle->claim, &iocb->ki_pos, bytes, to);
		if (!rc && fatal_signal_pending(current))
			rc = -EINTR;
		cond_resched();
	}
	return iocb->ki_pos > from ? iocb->ki_pos - from : rc;
}

static int tmesh_fs_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct tmesh_handle *handle = file->private_data;

	return handle ? tmesh_mmap(&handle->claim, vma) : -EINVAL;
}

const struct file_operations tmesh_fs_file_ops = {
	.owner = THIS_MODULE,
	.open = tmesh_fs_open,
	.release = tmesh_fs_release,
	.read_iter = tmesh_fs_read,
	.splice_read = tmesh_splice_read,
	.mmap = tmesh_fs_mmap,
	.get_unmapped_area = thp_get_unmapped_area,
	.llseek = generic_file_llseek,
	.fsync = noop_fsync,
};
