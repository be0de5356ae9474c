// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory mappings of handles and exports. The fault handler maps PMDs where the memory is made of
 * folios of PMD size, and growing batches of pages elsewhere.
 */
#include <linux/oom.h>
#include <linux/pagemap.h>

#include "claim.h"
#include "drain.h"
#include "map.h"
#include "mem.h"
#include "poison.h"
#include "seal.h"
#include "trace.h"
#include "zeros.h"

/*
 * The number of pages that a fault maps. It is small at first, so that the first byte is cheap, and
 * doubles for sequential readers.
 */
#define TMESH_BATCH_MIN 16U
#define TMESH_BATCH_MAX 512U

/*
 * Test for a private mapping, which only sealed memory has. A write goes to a copy of the page that
 * belongs to the process.
 */
static bool tmesh_vma_private(const struct vm_area_struct *vma)
{
	return !(vma->vm_flags & VM_MAYSHARE);
}

static vm_fault_t tmesh_fault_page(struct vm_fault *vmf, struct tmesh_claim *claim,
				   struct page *page, struct page *copy);

/*
 * Return how many of the first pages have folios that may get another reference. Each page table
 * entry has a reference and costs eight bytes, so that on a large machine the count could wrap.
 */
static unsigned long tmesh_countable_pages(struct page **pages, unsigned long nr)
{
	unsigned long i = 0;

	/* fork() may have raised it beyond INT_MAX. */
	while (i < nr && (unsigned int)folio_ref_count(page_folio(pages[i])) <= INT_MAX / 2)
		i++;
	return i;
}

/*
 * Handle a page table entry that exists already. If the fault found none, another fault has made it
 * since, or a marker of userfaultfd has come: the access is retried. vm_insert_pages() does not
 * replace a marker. Let the core do that for one page, so that the retried access finds an entry.
 * The core maps it after the region's lock is dropped, as for memory that PMDs map:
 * tmesh_flush_faults() has to wait for it.
 *
 * MADV_DONTNEED may free the page table before that (since 6.14). Then the core would map all of a
 * folio of PMD size, from its first page on. The mapping is one that must have no PMD: it may
 * begin at another page of the folio.
 */
static vm_fault_t tmesh_fault_again(struct vm_fault *vmf, struct tmesh_claim *claim,
				    struct page *page)
{
	bool marker = vmf->flags & FAULT_FLAG_ORIG_PTE_VALID && !pte_none(vmf->orig_pte);

	if (!marker || pmd_none(READ_ONCE(*vmf->pmd)))
		return VM_FAULT_NOPAGE;
	if (folio_nr_pages(page_folio(page)) >= TMESH_HUGE_PAGES)
		return VM_FAULT_SIGBUS;
	WRITE_ONCE(claim->region->late, true);
	return tmesh_fault_page(vmf, claim, page, NULL);
}

/*
 * Map a batch from the faulting page on. The region's lock is held throughout, so that a revocation
 * finds either none of the batch or all of it.
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
	/* Stay in one page table: allocating another would happen under the region's lock. */
	nr = min(nr, PTRS_PER_PTE - pte_index(vmf->address));
	nr = tmesh_clean_pages(pages + vmf->pgoff, nr);
	if (!nr) {
		tmesh_poison_found(claim->region);
		return VM_FAULT_HWPOISON;
	}
	nr = tmesh_countable_pages(pages + vmf->pgoff, nr);
	if (!nr)
		return VM_FAULT_SIGBUS;

	left = nr;
	rc = vm_insert_pages(vma, vmf->address, pages + vmf->pgoff, &left);
	WRITE_ONCE(claim->fault_next, vmf->pgoff + nr);
	WRITE_ONCE(claim->fault_batch, batch);
	trace_tmesh_fault(claim->region->id, (u64)(claim->first + vmf->pgoff) << PAGE_SHIFT,
			  (u64)(nr - left) << PAGE_SHIFT, false);
	/*
	 * vm_insert_pages() stops at a page that is mapped already, which may be the first. It
	 * returns -EFAULT if MADV_DONTNEED has just freed the page table (since 6.14). The access
	 * is retried in these cases.
	 */
	if (!rc || left < nr || rc == -EFAULT)
		return VM_FAULT_NOPAGE;
	if (rc == -EBUSY)
		return tmesh_fault_again(vmf, claim, pages[vmf->pgoff]);
	return rc == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
}

/*
 * The private data of a mapping is its claim. The lowest bit says that the mapping counts as a
 * writer. It counts from when it may first write until it is unmapped. A later mprotect() to
 * read-only does not end that: the core calls us before it knows whether mprotect() succeeds.
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

/*
 * Handle a fault after the mapping was taken away for good: a page of zeros or SIGBUS, by policy.
 */
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
 * Map a good page of a folio that has a bad one, and no other page. The folio's lock is held. Every
 * fault that maps the folio takes that lock, so no PMD can appear after the check.
 */
static vm_fault_t tmesh_fault_beside(struct vm_fault *vmf, struct page *page)
{
	vm_fault_t ret;

	if (pmd_trans_huge(READ_ONCE(*vmf->pmd))) {
		/* The folio was mapped before the error. Its mapping is about to be taken away. */
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
 * Return a page for the core to map, by a PMD where it can, after the region's lock is dropped. The
 * core holds the folio's lock until then, and a revocation waits for that lock before it unmaps
 * (tmesh_flush_faults()).
 *
 * Never return a bad page: the core would try to unmap it through its address_space, and our pages
 * have none. Checking under the folio's lock is enough, because the core marks a page before it
 * takes that lock. Nor may the core map a bad page next to the one that is touched.
 */
static vm_fault_t tmesh_fault_page(struct vm_fault *vmf, struct tmesh_claim *claim,
				   struct page *page, struct page *copy)
{
	bool whole = pmd_none(READ_ONCE(*vmf->pmd)), bad;

	if (!tmesh_countable_pages(&page, 1))
		return VM_FAULT_SIGBUS;
	get_page(page);
	lock_page(page);
	bad = PageHWPoison(page);
	if (bad || copy) {
		if (!bad) {
			vmf->page = copy;
			get_page(copy);
			lock_page(copy);
			tmesh_copy_fill(copy, page);
		}
		unlock_page(page);
		put_page(page);
		if (bad) {
			tmesh_poison_found(claim->region);
			return VM_FAULT_HWPOISON;
		}
	} else {
		vmf->page = page;
		/* For a copy on write, only the page itself matters. */
		if (!vmf->cow_page && PageCompound(page) &&
		    (whole || tmesh_core_maps_beside(vmf->vma)) &&
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

/*
 * Test whether a fault maps a batch. It does not for a first write to a private mapping: the core
 * copies the page and maps only the copy.
 */
static bool tmesh_faults_batch(const struct vm_fault *vmf)
{
	return vmf->vma->vm_flags & VM_MIXEDMAP && !vmf->cow_page;
}

/*
 * Allocate the page table for a batch, or a page for a copy. The memory is charged to the faulting
 * process, whose control group may make it wait for any time. So allocate it before the region's
 * lock is taken.
 */
static vm_fault_t tmesh_fault_prepare(struct vm_fault *vmf, struct tmesh_claim *claim,
				      struct page **copy)
{
	struct vm_area_struct *vma = vmf->vma;

	if (vmf->pgoff >= claim->nr_pages)
		return VM_FAULT_SIGBUS;
	if (!pmd_none(READ_ONCE(*vmf->pmd)))
		return 0;
	if (tmesh_faults_batch(vmf))
		return apply_to_page_range(vma->vm_mm, vmf->address & PAGE_MASK, PAGE_SIZE, NULL,
					   NULL) ? VM_FAULT_OOM : 0;
	if (!(vmf->flags & FAULT_FLAG_UNSHARE))
		return 0;
	*copy = tmesh_copy_page(claim, vmf->pgoff);
	return *copy ? 0 : VM_FAULT_SIGBUS;
}

static vm_fault_t tmesh_fault(struct vm_fault *vmf)
{
	struct tmesh_claim *claim = tmesh_vma_claim(vmf->vma);
	struct tmesh_region *region = claim->region;
	struct page **pages, *copy = NULL;
	vm_fault_t ret = 0;
	bool gone;

	/*
	 * The OOM reaper may have freed pages that the process had written to. A debugger that
	 * reads the process's memory must not see the region's content in their place.
	 */
	if (tmesh_vma_private(vmf->vma))
		ret = check_stable_address_space(vmf->vma->vm_mm);
	if (!ret)
		ret = tmesh_fault_prepare(vmf, claim, &copy);
	if (ret)
		return ret;
	down_read(&region->lock);
	gone = !region->mem || tmesh_claim_lapsed(claim);
	if (!gone) {
		pages = region->mem->pages + claim->first;
		ret = tmesh_faults_batch(vmf) ?
			      tmesh_fault_batch(vmf, claim, pages) :
			      tmesh_fault_page(vmf, claim, pages[vmf->pgoff], copy);
	}
	up_read(&region->lock);
	if (copy)
		put_page(copy);
	return gone ? tmesh_fault_gone(vmf, claim) : ret;
}

/*
 * Count a writable mapping. After the lease has lapsed it cannot write to the region, and must not
 * prevent a seal.
 */
static void tmesh_count_writer(struct tmesh_claim *claim, int n)
{
	lockdep_assert_held_read(&claim->region->lock);
	atomic_add(n, &claim->writers);
	if (claim->lease)
		atomic_add(n, &claim->lease->writers);
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

/*
 * Count a mapping made by fork, split or move. The original mapping still counts, so the region
 * cannot have been sealed. fork() copies page table entries without the check that faults make
 * (tmesh_countable_pages()). So fork() finds none of a view that repeats pages, and none where more
 * mappings exist than the count of a folio could have.
 */
static void tmesh_vma_open(struct vm_area_struct *vma)
{
	struct tmesh_claim *claim = tmesh_vma_claim(vma);

	atomic_inc(&claim->mappings);
	atomic_inc(&claim->region->mappings);
	tmesh_vma_count_writer(vma, 1);
	if (vma->vm_mm != current->mm &&
	    (claim->region->repeats ||
	     atomic_read(&claim->region->mappings) > INT_MAX / 2 / TMESH_HUGE_PAGES))
		tmesh_zap(claim);
}

/* Uncount a mapping. Its page table entries are gone by now. */
static void tmesh_vma_close(struct vm_area_struct *vma)
{
	struct tmesh_claim *claim = tmesh_vma_claim(vma);

	tmesh_vma_count_writer(vma, -1);
	atomic_dec(&claim->mappings);
	atomic_dec(&claim->region->mappings);
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
 * Test whether a mapping may use PMDs. The core maps a PMD at an aligned file offset. A folio
 * begins there only if the claim begins at a folio, too.
 */
static bool tmesh_wants_pmd(const struct tmesh_claim *claim, const struct tmesh_mem *mem,
			    const struct vm_area_struct *vma)
{
	return mem->pmd && IS_ALIGNED(claim->first, TMESH_HUGE_PAGES) &&
	       IS_ALIGNED((vma->vm_start >> PAGE_SHIFT) - vma->vm_pgoff, TMESH_HUGE_PAGES) &&
	       ALIGN(vma->vm_start, PMD_SIZE) + PMD_SIZE <= vma->vm_end;
}

/*
 * Test whether remap_file_pages() could exceed the claim. The file of an import's mapping is the
 * original. remap_file_pages() could map any part of it, and map it for writing if the original's
 * descriptor could write.
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
	/* The filesystem of handles is noexec already, that of dma-bufs is not. */
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	/*
	 * Without a seal it is undefined whether a private mapping shows later writes. Private
	 * mappings of a dma-buf have no defined meaning either.
	 */
	if (private && (!(region->state & TMESH_STATE_SEALED) ||
			claim->kind == TMESH_HOLDER_EXPORT))
		return -EINVAL;
	/* A lapse could not take away a mapping that belongs to another file. */
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

/* Let the backing map another file. Drops the caller's reference on @mem. */
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
	tmesh_mem_put(mem);
	return rc;
}

/*
 * Count a mapping. A view that repeats pages may have few, because each repeat is unmapped in turn.
 */
static int tmesh_count_mapping(struct tmesh_claim *claim)
{
	struct tmesh_region *region = claim->region;
	int mappings = atomic_inc_return(&region->mappings);

	if (region->repeats && mappings > TMESH_VIEW_REFS / region->repeats) {
		atomic_dec(&region->mappings);
		return -ENOMEM;
	}
	atomic_inc(&claim->mappings);
	return 0;
}

static int tmesh_mmap_own(struct tmesh_claim *claim, const struct tmesh_mem *mem,
			  struct vm_area_struct *vma)
{
	bool writable = vma->vm_flags & VM_WRITE && !tmesh_vma_private(vma);
	unsigned long writes = writable ? TMESH_VMA_WRITES : 0;
	int rc = tmesh_count_mapping(claim);

	if (rc)
		return rc;
	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	/* For a VM_MIXEDMAP mapping the core does not drop the folio's reference with a PMD. */
	if (!tmesh_wants_pmd(claim, mem, vma))
		vm_flags_set(vma, VM_MIXEDMAP);
	vma->vm_private_data = (void *)((unsigned long)claim | writes);
	vma->vm_ops = &tmesh_vm_ops;
	if (writes)
		tmesh_count_writer(claim, 1);
	return 0;
}

/**
 * tmesh_mmap() - map a part of a claim
 * @claim: claim of the file that is mapped
 * @vma:   the new mapping
 *
 * Maps no pages: a revocation would not find the mapping yet.
 *
 * Context: mmap_lock is held for writing; takes the region's lock.
 * Return: 0; -EINVAL for a mapping outside of the claim, and for a private mapping of an export or
 * of a region that is not sealed; -EACCES for a writable mapping without TMESH_RIGHT_WRITE; -EPERM
 * for a writable mapping of a sealed region, and for an executable mapping; -ESTALE if the region
 * was revoked or the lease has lapsed; -EOPNOTSUPP if the memory cannot be mapped, or not with a
 * lease; -ENOMEM for too many mappings of a view that repeats pages.
 */
int tmesh_mmap(struct tmesh_claim *claim, struct vm_area_struct *vma)
{
	struct tmesh_region *region = claim->region;
	bool writable = vma->vm_flags & VM_WRITE;
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT;
	struct tmesh_mem *foreign = NULL;
	int rc;

	/* This takes the lock of the VMA, which must not happen under the region's lock. */
	vm_flags_clear(vma, VM_MAYEXEC);
	down_read(&region->lock);
	rc = tmesh_check_map(claim, vma);
	if (rc)
		goto unlock;
	/* An importer may map a read-only export through a file that is open for writing. */
	if (!(claim->rights & TMESH_RIGHT_WRITE) && !tmesh_vma_private(vma))
		vm_flags_clear(vma, VM_MAYWRITE);
	if (region->mem->ops->mmap) {
		foreign = tmesh_mem_hold(region->mem);
		atomic_inc(&foreign->escaped);
		if (writable && !tmesh_vma_private(vma))
			atomic64_inc(&region->wrote);
	} else {
		rc = tmesh_mmap_own(claim, region->mem, vma);
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

/*
 * Return the folio at page @i with a reference, or NULL if it was freed. Set @nr to the number of
 * pages from @i on that are known to be its own, or freed. A view that PMDs do not map may show any
 * page of a folio next to any other.
 */
static struct folio *tmesh_folio_at(struct tmesh_region *region, const struct tmesh_mem *mem,
				    unsigned long i, unsigned long *nr)
{
	struct folio *folio = NULL;

	mutex_lock(&region->uses_lock);
	if (xa_is_value(mem->pages[i])) {
		*nr = xa_to_value(mem->pages[i]);
	} else {
		folio = page_folio(mem->pages[i]);
		*nr = mem->ops->borrowed && !mem->pmd ? 1 : folio_nr_pages(folio);
		folio_get(folio);
	}
	mutex_unlock(&region->uses_lock);
	return folio;
}

/**
 * tmesh_flush_faults() - wait for faults that began before a region was taken away
 * @region: the region
 * @mem:    its memory; the caller has a reference
 *
 * Faults that map a batch hold the region's lock. Faults that leave the mapping to the core hold
 * the lock of their folio until the core has mapped it.
 *
 * Context: may sleep as long as such a fault takes; no lock but cut_lock is held.
 */
void tmesh_flush_faults(struct tmesh_region *region, struct tmesh_mem *mem)
{
	struct folio *folio;
	unsigned long i, nr;

	lockdep_assert_not_held(&region->claims_lock);
	if (!mem->pmd && !READ_ONCE(region->late))
		return;
	for (i = 0; i < mem->nr_pages; i += nr) {
		folio = tmesh_folio_at(region, mem, i, &nr);
		if (!folio)
			continue;
		folio_lock(folio);
		folio_unlock(folio);
		folio_put(folio);
		cond_resched();
	}
}

/**
 * tmesh_zap() - unmap all mappings of a claim
 * @claim: a claim whose region was revoked or whose lease has lapsed, so that faults do not map
 *         again
 *
 * Pages that a process has written to in a private mapping belong to it and stay.
 *
 * Context: may sleep; takes i_mmap_rwsem.
 */
void tmesh_zap(struct tmesh_claim *claim)
{
	tmesh_copies_flush(claim);
	unmap_mapping_range(claim->inode->i_mapping, 0, (loff_t)claim->nr_pages << PAGE_SHIFT, 0);
}
