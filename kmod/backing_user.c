// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory of the calling process, pinned for as long as the region lives.
 *
 * The pages are charged to the @pinned_vm of the mm, as RDMA does it. The mm's @locked_vm does not
 * fit: mlock() changes it under mmap_lock and only while pages are mapped. A pin outlives the
 * mapping and even the process, and any process may drop the last reference. The pages are charged
 * to the real user too, as io_uring does it. Otherwise each new process would have a limit of its
 * own.
 */
#include <linux/capability.h>
#include <linux/magic.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/slab.h>
#include <linux/user_namespace.h>

#include "backing.h"
#include "mem.h"

/* Number of pages that one call pins */
#define TMESH_PIN_CHUNK 512UL

/**
 * struct tmesh_range - pinned memory of a process
 * @mem:      the common part
 * @mm:       the mm of the process; mmgrab() keeps its counter, not its mappings
 * @payer:    the real user that pinned it, or NULL if no limit applies; reference
 * @writable: the pages are pinned for writing
 */
struct tmesh_range {
	struct tmesh_mem mem;
	struct mm_struct *mm;
	struct user_struct *payer;
	bool writable;
};

static void tmesh_range_uncharge(struct tmesh_range *range, unsigned long nr_pages)
{
	if (range->payer) {
		atomic_long_sub(nr_pages, &range->payer->locked_vm);
		free_uid(range->payer);
	}
	atomic64_sub(nr_pages, &range->mm->pinned_vm);
	mmdrop(range->mm);
}

static int tmesh_range_charge(struct tmesh_range *range, unsigned long nr_pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT, here, all;

	range->mm = current->mm;
	mmgrab(range->mm);
	here = atomic64_add_return(nr_pages, &range->mm->pinned_vm);
	if (ns_capable_noaudit(&init_user_ns, CAP_IPC_LOCK))
		return 0;
	range->payer = get_uid(current_user());
	all = atomic_long_add_return(nr_pages, &range->payer->locked_vm);
	if (here <= limit && all <= limit)
		return 0;
	tmesh_range_uncharge(range, nr_pages);
	return -ENOMEM;
}

/* Unpin in chunks, so that a large range does not hog the CPU. */
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
	tmesh_range_uncharge(range, mem->nr_pages);
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

/* Guess why a page could not be pinned. The mapping may have changed since. */
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

/* Pin the first pages of a chunk. Return their number, at least 1, or an error. */
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
 * @user: the user charged
 * @cmd:  the request, in whole pages; on failure its @bad_address and @reason are set
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
	range->writable = cmd->rights & TMESH_RIGHT_WRITE;
	range->mem.nomap = true;
	rc = tmesh_range_charge(range, nr_pages);
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
	tmesh_range_uncharge(range, nr_pages);
free:
	kfree(range);
	return ERR_PTR(rc);
}
