// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory of the calling process, pinned for as long as the region lives.
 *
 * It is charged to the mm that was pinned, in pinned_vm as RDMA does it: mlock() counts pages
 * elsewhere, under mmap_lock, and only for as long as they are mapped. A pin outlives the
 * mapping and even the process, and is given back by whoever drops the last reference.
 */
#include <linux/capability.h>
#include <linux/magic.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "backing.h"
#include "mem.h"

/* Pages that are pinned at a time. */
#define TMESH_PIN_CHUNK 512UL

/**
 * struct tmesh_range - pinned memory of a process
 * @mem:      the common part
 * @mm:       whose memory it is; keeps the counter, not the mappings
 * @writable: it was pinned for writing
 */
struct tmesh_range {
	struct tmesh_mem mem;
	struct mm_struct *mm;
	bool writable;
};

static int tmesh_range_charge(struct mm_struct *mm, unsigned long nr_pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;

	if (atomic64_add_return(nr_pages, &mm->pinned_vm) > limit && !capable(CAP_IPC_LOCK)) {
		atomic64_sub(nr_pages, &mm->pinned_vm);
		return -ENOMEM;
	}
	mmgrab(mm);
	return 0;
}

static void tmesh_range_uncharge(struct mm_struct *mm, unsigned long nr_pages)
{
	atomic64_sub(nr_pages, &mm->pinned_vm);
	mmdrop(mm);
}

/* In pieces, so that a large range does not keep the CPU. */
static void tmesh_range_unpin(struct tmesh_range *range, unsigned long nr_pages)
{
	unsigned long done, nr;

	for (done = 0; done < nr_pages; done += nr) {
		nr = min(nr_pages - done, TMESH_PIN_CHUNK);
		unpin_user_pages_dirty_lock(range->mem.pages + done, nr, range->writable);
		cond_resched();
	}
}

static void tmesh_range_release(struct tmesh_mem *mem)
{
	struct tmesh_range *range = container_of(mem, struct tmesh_range, mem);

	tmesh_range_unpin(range, mem->nr_pages);
	tmesh_range_uncharge(range->mm, mem->nr_pages);
	tmesh_mem_fini(mem);
	kfree(range);
}

static const struct tmesh_backing_ops tmesh_range_ops = {
	.backing = TMESH_BACKING_USER,
	.release = tmesh_range_release,
};

static bool tmesh_vma_is_secret(const struct vm_area_struct *vma)
{
	return vma->vm_file && file_inode(vma->vm_file)->i_sb->s_magic == SECRETMEM_MAGIC;
}

static bool tmesh_vma_ends_before(const struct vm_area_struct *vma, unsigned long address)
{
	loff_t offset = ((loff_t)vma->vm_pgoff << PAGE_SHIFT) + (address - vma->vm_start);

	return offset >= i_size_read(vma->vm_file->f_mapping->host);
}

/* Why a page could not be pinned, to the best of what its mapping says a moment later. */
static u32 tmesh_pin_reason(struct mm_struct *mm, unsigned long address, bool write)
{
	struct vm_area_struct *vma;
	u32 reason = TMESH_PIN_HOLE;

	mmap_read_lock(mm);
	vma = vma_lookup(mm, address);
	if (!vma || !(vma->vm_flags & VM_READ))
		goto unlock;
	if (vma->vm_flags & (VM_IO | VM_PFNMAP))
		reason = TMESH_PIN_DEVICE;
	else if (tmesh_vma_is_secret(vma))
		reason = TMESH_PIN_SECRET;
	else if (write && !(vma->vm_flags & VM_WRITE))
		reason = TMESH_PIN_READONLY;
	else if (vma->vm_file && !tmesh_vma_ends_before(vma, address))
		reason = TMESH_PIN_FILE;
unlock:
	mmap_read_unlock(mm);
	return reason;
}

static int tmesh_pin_error(u32 reason)
{
	switch (reason) {
	case TMESH_PIN_HOLE:
	case TMESH_PIN_READONLY:
		return -EFAULT;
	default:
		return -EOPNOTSUPP;
	}
}

/* What can be pinned of a chunk, at least a page, or an error. */
static long tmesh_pin_some(unsigned long address, unsigned long nr_pages, bool write,
			   struct page **pages)
{
	unsigned int flags = write ? FOLL_WRITE : tmesh_pin_reader_flags(address, &nr_pages);
	long got, i;

	got = pin_user_pages_fast(address, nr_pages, FOLL_LONGTERM | flags, pages);
	for (i = 0; i < got; i++) {
		if (write && !tmesh_may_pin_for_writing(pages[i])) {
			unpin_user_pages(pages + i, got - i);
			return i ? i : -EOPNOTSUPP;
		}
	}
	return got ? got : -EFAULT;
}

static int tmesh_range_pin(struct tmesh_range *range, struct tmesh_create_user *cmd)
{
	struct tmesh_mem *mem = &range->mem;
	unsigned long done = 0, address = cmd->address;
	long got;

	while (done < mem->nr_pages) {
		address = cmd->address + (done << PAGE_SHIFT);
		got = tmesh_pin_some(address, min(mem->nr_pages - done, TMESH_PIN_CHUNK),
				     range->writable, mem->pages + done);
		if (got > 0)
			done += got;
		if (fatal_signal_pending(current))
			got = -EINTR;
		if (got < 0)
			goto unpin;
		cond_resched();
	}
	return 0;

unpin:
	tmesh_range_unpin(range, done);
	if (got == -EFAULT || got == -EOPNOTSUPP || got == -EREMOTEIO) {
		cmd->reason = tmesh_pin_reason(range->mm, address, range->writable);
		cmd->bad_address = address;
		got = tmesh_pin_error(cmd->reason);
	}
	return got;
}

/**
 * tmesh_range_create() - pin memory of the caller
 * @user: who is charged
 * @cmd:  what was asked for, in whole pages; told where and why it failed
 *
 * Context: process context, may sleep long; a fatal signal ends it.
 * Return: the memory, or -EDQUOT, -ENOMEM, -EINTR, -EFAULT or -EOPNOTSUPP as a pointer.
 */
struct tmesh_mem *tmesh_range_create(struct tmesh_user *user, struct tmesh_create_user *cmd)
{
	unsigned long nr_pages = cmd->bytes >> PAGE_SHIFT;
	struct tmesh_range *range;
	int rc;

	range = kzalloc(sizeof(*range), TMESH_GFP);
	if (!range)
		return ERR_PTR(-ENOMEM);
	range->mm = current->mm;
	range->writable = cmd->rights & TMESH_RIGHT_WRITE;
	range->mem.nomap = true;
	rc = tmesh_range_charge(range->mm, nr_pages);
	if (rc) {
		cmd->reason = TMESH_PIN_MEMLOCK;
		cmd->bad_address = cmd->address;
		goto free;
	}
	rc = tmesh_mem_init(&range->mem, &tmesh_range_ops, user, nr_pages);
	if (rc)
		goto uncharge;
	rc = tmesh_range_pin(range, cmd);
	if (rc)
		goto fini;
	return &range->mem;

fini:
	tmesh_mem_fini(&range->mem);
uncharge:
	tmesh_range_uncharge(range->mm, nr_pages);
free:
	kfree(range);
	return ERR_PTR(rc);
}
