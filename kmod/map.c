// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory mappings of handles and exports: struct pages, PMDs where the memory is made of
 * 2 MiB folios, else growing batches of pages.
 */
#include <linux/pagemap.h>

#include "claim.h"
#include "map.h"
#include "mem.h"
#include "poison.h"
#include "seal.h"
#include "trace.h"
#include "zeros.h"

/* Pages that a fault maps: so few at first that a first byte is cheap, then twice as many. */
#define TMESH_BATCH_MIN 16U
#define TMESH_BATCH_MAX 512U

/* A private mapping, of sealed memory: what is written is a copy of the process's own. */
static bool tmesh_vma_private(const struct vm_area_struct *vma)
{
	return !(vma->vm_flags & VM_MAYSHARE);
}

/*
 * Maps a batch from the faulting page on. All of it happens under the region's lock, so that
 * a revocation finds either nothing of it or all of it.
 */
static vm_fault_t tmesh_fault_batch(struct vm_fault *vmf, struct tmesh_claim *claim,
				    struct page **pages)
{
	struct vm_area_struct *vma = vmf->vma;
	unsigned int batch = TMESH_BATCH_MIN;
	unsigned long nr, left;
	int rc;

	if (vmf->pgoff == READ_ONCE(claim->fault_next))
		batch = min(READ_ONCE(claim->fault_batch) * 2, TMESH_BATCH_MAX);
	batch = max(batch, TMESH_BATCH_MIN);
	nr = min_t(unsigned long, batch, claim->nr_pages - vmf->pgoff);
	nr = min(nr, (vma->vm_end - vmf->address) >> PAGE_SHIFT);
	nr = tmesh_clean_pages(pages + vmf->pgoff, nr);
	if (!nr) {
		tmesh_poison_found(claim->region);
		return VM_FAULT_HWPOISON;
	}

	left = nr;
	rc = vm_insert_pages(vma, vmf->address, pages + vmf->pgoff, &left);
	WRITE_ONCE(claim->fault_next, vmf->pgoff + nr);
	WRITE_ONCE(claim->fault_batch, batch);
	trace_tmesh_fault(claim->region->id, (u64)(claim->first + vmf->pgoff) << PAGE_SHIFT,
			  (u64)(nr - left) << PAGE_SHIFT, false);
	/*
	 * It stops at a page that is mapped already, which may even be the first. It finds no page
	 * table where MADV_DONTNEED just freed the one that it made (since 6.14): once more, then.
	 */
	if (!rc || left < nr || rc == -EBUSY || rc == -EFAULT)
		return VM_FAULT_NOPAGE;
	return rc == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
}

/*
 * A mapping's private data is its claim, and in the lowest bit whether it counts as a writer.
 * It does from the moment it may write until it is gone: what mprotect() takes away again
 * does not matter, because whether it succeeds is only known after we were asked.
 */
#define TMESH_VMA_WRITES 1UL

static struct tmesh_claim *tmesh_vma_claim(const struct vm_area_struct *vma)
{
	return (struct tmesh_claim *)((unsigned long)vma->vm_private_data & ~TMESH_VMA_WRITES);
}

static bool tmesh_vma_writes(const struct vm_area_struct *vma)
{
	return (unsigned long)vma->vm_private_data & TMESH_VMA_WRITES;
}

/* What was mapped has been taken away, for good. */
static vm_fault_t tmesh_fault_gone(struct vm_fault *vmf, struct tmesh_claim *claim)
{
	struct page *page = NULL;

	if (READ_ONCE(claim->policy) & TMESH_POLICY_ZERO)
		page = tmesh_zero_page(claim, vmf->pgoff);
	trace_tmesh_fault(claim->region->id, (u64)(claim->first + vmf->pgoff) << PAGE_SHIFT,
			  page ? PAGE_SIZE : 0, true);
	if (!page)
		return VM_FAULT_SIGBUS;
	vmf->page = page;
	return 0;
}

/*
 * Maps a good page of a folio that has a bad one, and no other. Whoever maps pages of the folio has
 * its lock, so that no PMD is there that was not when we looked.
 */
static vm_fault_t tmesh_fault_beside(struct vm_fault *vmf, struct page *page)
{
	vm_fault_t ret;

	if (pmd_trans_huge(READ_ONCE(*vmf->pmd))) {
		/* Mapped whole before the error: it is about to be taken away. */
		ret = VM_FAULT_NOPAGE;
	} else {
		ret = tmesh_map_one(vmf, page);
		if (ret & VM_FAULT_LOCKED)
			return ret;
	}
	unlock_page(page);
	put_page(page);
	return ret;
}

/*
 * The core maps the page, by a PMD where it can, after our lock is gone. It holds the folio's lock
 * until then, and a revocation waits for that before it unmaps.
 *
 * A bad page must not get there: the core would unmap it by way of its mapping, which it has not
 * got, and an error is marked before it takes the folio's lock. Nor must one that the core would
 * map beside the page that is touched.
 */
static vm_fault_t tmesh_fault_page(struct vm_fault *vmf, struct tmesh_claim *claim,
				   struct page *page)
{
	bool whole = pmd_none(READ_ONCE(*vmf->pmd)), bad;

	get_page(page);
	lock_page(page);
	bad = PageHWPoison(page);
	if (bad || (vmf->flags & FAULT_FLAG_UNSHARE && whole)) {
		vmf->page = bad ? NULL : tmesh_copy_page(claim, vmf->pgoff, page);
		unlock_page(page);
		put_page(page);
		if (bad) {
			tmesh_poison_found(claim->region);
			return VM_FAULT_HWPOISON;
		}
		if (!vmf->page)
			return VM_FAULT_SIGBUS;
		lock_page(vmf->page);
	} else {
		vmf->page = page;
		/* A copy is made of the page alone. */
		if (!vmf->cow_page && PageCompound(page) && (whole || TMESH_CORE_MAPS_BESIDE) &&
		    tmesh_folio_poisoned(page_folio(page))) {
			tmesh_poison_found(claim->region);
			trace_tmesh_fault(claim->region->id,
					  (u64)(claim->first + vmf->pgoff) << PAGE_SHIFT,
					  PAGE_SIZE, false);
			return tmesh_fault_beside(vmf, page);
		}
	}
	trace_tmesh_fault(claim->region->id, (u64)(claim->first + vmf->pgoff) << PAGE_SHIFT,
			  folio_size(page_folio(vmf->page)), false);
	return VM_FAULT_LOCKED;
}

static vm_fault_t tmesh_fault(struct vm_fault *vmf)
{
	struct tmesh_claim *claim = tmesh_vma_claim(vmf->vma);
	struct tmesh_region *region = claim->region;
	vm_fault_t ret = VM_FAULT_SIGBUS;
	struct page **pages;

	down_read(&region->lock);
	if (vmf->pgoff >= claim->nr_pages)
		goto unlock;
	if (!region->mem || tmesh_claim_lapsed(claim)) {
		up_read(&region->lock);
		return tmesh_fault_gone(vmf, claim);
	}
	pages = region->mem->pages + claim->first;
	/* A first write to a private mapping: the core copies the page, and maps the copy alone. */
	if (vmf->vma->vm_flags & VM_MIXEDMAP && !vmf->cow_page)
		ret = tmesh_fault_batch(vmf, claim, pages);
	else
		ret = tmesh_fault_page(vmf, claim, pages[vmf->pgoff]);
unlock:
	up_read(&region->lock);
	return ret;
}

/*
 * Counts a mapping that can write. Once the lease has lapsed it writes to nothing of the region,
 * and does not keep anybody from sealing it.
 */
static void tmesh_count_writer(struct tmesh_claim *claim, int n)
{
	lockdep_assert_held_read(&claim->region->lock);
	atomic_add(n, &claim->writers);
	if (tmesh_claim_lapsed(claim))
		return;
	atomic_add(n, &claim->region->writers);
	if (n > 0)
		atomic64_inc(&claim->region->wrote);
}

static void tmesh_vma_count_writer(const struct vm_area_struct *vma, int n)
{
	struct tmesh_claim *claim = tmesh_vma_claim(vma);

	if (!tmesh_vma_writes(vma))
		return;
	down_read(&claim->region->lock);
	tmesh_count_writer(claim, n);
	up_read(&claim->region->lock);
}

/* A fork, split or move: the mapping it comes from still counts, so nobody can have sealed. */
static void tmesh_vma_open(struct vm_area_struct *vma)
{
	atomic_inc(&tmesh_vma_claim(vma)->mappings);
	tmesh_vma_count_writer(vma, 1);
}

/* Its page table entries are gone by now. */
static void tmesh_vma_close(struct vm_area_struct *vma)
{
	tmesh_vma_count_writer(vma, -1);
	atomic_dec(&tmesh_vma_claim(vma)->mappings);
}

static int tmesh_vma_mprotect(struct vm_area_struct *vma, unsigned long start, unsigned long end,
			      unsigned long newflags)
{
	struct tmesh_claim *claim = tmesh_vma_claim(vma);
	struct tmesh_region *region = claim->region;
	int rc = 0;

	if (!(newflags & VM_WRITE) || tmesh_vma_writes(vma) || tmesh_vma_private(vma))
		return 0;
	down_read(&region->lock);
	if (region->state & TMESH_STATE_SEALED) {
		rc = -EACCES;
	} else {
		tmesh_count_writer(claim, 1);
		vma->vm_private_data = (void *)((unsigned long)claim | TMESH_VMA_WRITES);
	}
	up_read(&region->lock);
	return rc;
}

static const struct vm_operations_struct tmesh_vm_ops = {
	.open = tmesh_vma_open,
	.close = tmesh_vma_close,
	.mprotect = tmesh_vma_mprotect,
	.fault = tmesh_fault,
};

/*
 * The core puts a PMD where the file's offset is aligned. That is where a folio begins only
 * if the claim begins at one too.
 */
static bool tmesh_wants_pmd(const struct tmesh_claim *claim, const struct tmesh_mem *mem,
			    const struct vm_area_struct *vma)
{
	return mem->pmd && IS_ALIGNED(claim->first, TMESH_HUGE_PAGES) &&
	       IS_ALIGNED((vma->vm_start >> PAGE_SHIFT) - vma->vm_pgoff, TMESH_HUGE_PAGES) &&
	       ALIGN(vma->vm_start, PMD_SIZE) + PMD_SIZE <= vma->vm_end;
}

/*
 * A mapping of an import has the original as its file, which remap_file_pages() asks for any part
 * of it, and to write where its descriptor could. It does so where the file that was mapped can.
 */
static bool tmesh_map_leads_on(const struct tmesh_claim *claim, const struct vm_area_struct *vma)
{
	if (claim->region->backing != TMESH_BACKING_DMABUF || !(vma->vm_flags & VM_SHARED))
		return false;
	return claim->nr_pages < claim->region->nr_pages || !(claim->rights & TMESH_RIGHT_WRITE);
}

static int tmesh_check_map(const struct tmesh_claim *claim, struct vm_area_struct *vma)
{
	const struct tmesh_region *region = claim->region;
	bool private = tmesh_vma_private(vma);
	bool writable = vma->vm_flags & VM_WRITE && !private;

	lockdep_assert_held_read(&region->lock);
	if (!region->mem || tmesh_claim_lapsed(claim))
		return -ESTALE;
	/* Handles are on a filesystem that says so; an export's does not. */
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	/*
	 * What somebody may still write to would show in a private mapping, or not, as it happens.
	 * A dma-buf is mapped by devices' rules, which know of no copies.
	 */
	if (private && (!(region->state & TMESH_STATE_SEALED) ||
			claim->kind == TMESH_HOLDER_EXPORT))
		return -EINVAL;
	/* What another file maps a lease could not take away. */
	if (region->mem->nomap || (region->mem->ops->mmap && claim->lease))
		return -EOPNOTSUPP;
	if (vma->vm_pgoff > claim->nr_pages || vma_pages(vma) > claim->nr_pages - vma->vm_pgoff)
		return -EINVAL;
	if (writable && !(claim->rights & TMESH_RIGHT_WRITE))
		return -EACCES;
	if (writable && tmesh_region_sealed(region))
		return -EPERM;
	return tmesh_map_leads_on(claim, vma) ? -EOPNOTSUPP : 0;
}

/* The mapping becomes another file's. @mem stays: having escaped it is not revoked. */
static int tmesh_mmap_foreign(struct tmesh_claim *claim, struct tmesh_mem *mem,
			      struct vm_area_struct *vma)
{
	int rc;

	vma->vm_pgoff += claim->first;
	rc = mem->ops->mmap(mem, vma);
	if (rc)
		atomic_dec(&mem->escaped);
	else
		vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	return rc;
}

static void tmesh_mmap_own(struct tmesh_claim *claim, const struct tmesh_mem *mem,
			   struct vm_area_struct *vma)
{
	bool writable = vma->vm_flags & VM_WRITE && !tmesh_vma_private(vma);
	unsigned long writes = writable ? TMESH_VMA_WRITES : 0;

	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	/* Where a PMD is mapped, VM_MIXEDMAP would lose the folio's reference. */
	if (!tmesh_wants_pmd(claim, mem, vma))
		vm_flags_set(vma, VM_MIXEDMAP);
	vma->vm_private_data = (void *)((unsigned long)claim | writes);
	vma->vm_ops = &tmesh_vm_ops;
	atomic_inc(&claim->mappings);
	if (writes)
		tmesh_count_writer(claim, 1);
}

/**
 * tmesh_mmap() - map a part of a claim
 * @claim: whose file is mapped
 * @vma:   the new mapping
 *
 * No page is mapped here: a revocation would not find it yet.
 *
 * Context: mmap_lock is held for writing; takes the region's lock.
 * Return: 0; -EINVAL for one that leaves the claim, and for a private one of an export, or of a
 * region that is not sealed; -EACCES for a writable one without the right; -EPERM for a writable
 * one of a sealed region, and for an executable one; -ESTALE where the region was revoked or the
 * lease has lapsed;
 * -EOPNOTSUPP where the memory cannot be mapped, or not through a leased handle.
 */
int tmesh_mmap(struct tmesh_claim *claim, struct vm_area_struct *vma)
{
	struct tmesh_region *region = claim->region;
	bool writable = vma->vm_flags & VM_WRITE;
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT;
	struct tmesh_mem *foreign = NULL;
	int rc;

	down_read(&region->lock);
	rc = tmesh_check_map(claim, vma);
	if (rc)
		goto unlock;
	vm_flags_clear(vma, VM_MAYEXEC);
	/* An importer may map an export with a file that is open for writing. */
	if (!(claim->rights & TMESH_RIGHT_WRITE) && !tmesh_vma_private(vma))
		vm_flags_clear(vma, VM_MAYWRITE);
	if (region->mem->ops->mmap) {
		foreign = region->mem;
		atomic_inc(&foreign->escaped);
		if (writable && !tmesh_vma_private(vma))
			atomic64_inc(&region->wrote);
	} else {
		tmesh_mmap_own(claim, region->mem, vma);
	}
unlock:
	up_read(&region->lock);
	if (foreign)
		rc = tmesh_mmap_foreign(claim, foreign, vma);
	if (!rc)
		trace_tmesh_map(region->id, ((u64)claim->first << PAGE_SHIFT) + offset,
				vma->vm_end - vma->vm_start, writable);
	return rc;
}

/**
 * tmesh_flush_faults() - wait for faults that saw a region before it was taken away
 * @mem: its memory, of which the caller has a reference
 *
 * Batches are over when the region's lock is. Faults that left the mapping to the core hold
 * the lock of their folio until it is done.
 *
 * Context: may sleep; the region's lock must not be held.
 */
void tmesh_flush_faults(struct tmesh_mem *mem)
{
	unsigned long i;

	if (!mem->pmd)
		return;
	for (i = 0; i < mem->nr_pages; i += folio_nr_pages(page_folio(mem->pages[i]))) {
		struct folio *folio = page_folio(mem->pages[i]);

		folio_lock(folio);
		folio_unlock(folio);
		cond_resched();
	}
}

/**
 * tmesh_zap() - take all mappings of a claim away
 * @claim: whose region is revoked or whose lease has lapsed, so that they do not come back
 *
 * Pages that a process has written to in a private mapping are its own and stay.
 *
 * Context: may sleep; takes i_mmap_rwsem.
 */
void tmesh_zap(struct tmesh_claim *claim)
{
	tmesh_copies_flush(claim);
	unmap_mapping_range(claim->inode->i_mapping, 0, (loff_t)claim->nr_pages << PAGE_SHIFT, 0);
}
