// SPDX-License-Identifier: GPL-2.0-only
/*
 * Differences between kernel versions that are too long for a header.
 */
#include <linux/pagemap.h>
#include <linux/proc_ns.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/shmem_fs.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/stringify.h>
#include <linux/swap.h>

#include "compat.h"

/* The newest kernel that the tests have booted. Only a test sets another. */
#ifndef TMESH_TESTED_MINOR
#define TMESH_TESTED_MAJOR 7
#define TMESH_TESTED_MINOR 3
#endif

/* Not #warning, which is an error where the kernel is built with CONFIG_WERROR. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(TMESH_TESTED_MAJOR, TMESH_TESTED_MINOR + 1, 0)
#define TMESH_UNTESTED							\
	"tested up to Linux " __stringify(TMESH_TESTED_MAJOR) "."	\
	__stringify(TMESH_TESTED_MINOR) ", and this kernel is newer"
#pragma message("warning: tmesh is " TMESH_UNTESTED)
#endif

/**
 * tmesh_tell_untested() - warn in the log if the tests have not booted this kernel version
 *
 * A user of DKMS does not see the warning of the compiler.
 */
void tmesh_tell_untested(void)
{
#ifdef TMESH_UNTESTED
	pr_warn("tmesh: " TMESH_UNTESTED "\n");
#endif
}

/**
 * tmesh_put_ipc_ns() - drop a reference on an IPC namespace
 * @ns: the namespace
 *
 * Debian's 6.1 does not export put_ipc_ns(), but the namespace's operations call it.
 *
 * Context: process context.
 */
void tmesh_put_ipc_ns(struct ipc_namespace *ns)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)
	ns->ns.ops->put(&ns->ns);
#else
	put_ipc_ns(ns);
#endif
}

/**
 * tmesh_shrinker_new() - register a shrinker
 * @name:  for people
 * @count: counts the pages that may be freed
 * @scan:  frees some of them
 *
 * 6.7: shrinkers are allocated by the core.
 *
 * Return: the shrinker or an error as a pointer.
 */
struct shrinker *tmesh_shrinker_new(const char *name,
				    unsigned long (*count)(struct shrinker *s,
							   struct shrink_control *sc),
				    unsigned long (*scan)(struct shrinker *s,
							  struct shrink_control *sc))
{
	struct shrinker *shrinker;
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 7, 0)
	int rc;

	shrinker = kzalloc(sizeof(*shrinker), GFP_KERNEL);
	if (!shrinker)
		return ERR_PTR(-ENOMEM);
	shrinker->count_objects = count;
	shrinker->scan_objects = scan;
	shrinker->seeks = DEFAULT_SEEKS;
	rc = register_shrinker(shrinker, "%s", name);
	if (rc) {
		kfree(shrinker);
		return ERR_PTR(rc);
	}
#else
	shrinker = shrinker_alloc(0, "%s", name);
	if (!shrinker)
		return ERR_PTR(-ENOMEM);
	shrinker->count_objects = count;
	shrinker->scan_objects = scan;
	shrinker_register(shrinker);
#endif
	return shrinker;
}

/**
 * tmesh_shrinker_free() - unregister a shrinker
 * @shrinker: the shrinker
 *
 * Context: waits until the shrinker is not running.
 */
void tmesh_shrinker_free(struct shrinker *shrinker)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 7, 0)
	unregister_shrinker(shrinker);
	kfree(shrinker);
#else
	shrinker_free(shrinker);
#endif
}

/**
 * tmesh_reclaimed() - report to memory reclaim what a shrinker of tmesh has freed
 * @pages: number of pages
 *
 * 6.4: there is a function for it.
 *
 * Context: called from a shrinker.
 */
void tmesh_reclaimed(unsigned long pages)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
	if (current->reclaim_state)
		current->reclaim_state->reclaimed_slab += pages;
#else
	mm_account_reclaimed_pages(pages);
#endif
}

/**
 * tmesh_folio_mapcount() - count the page table entries that map a folio or a part of it
 * @folio: a folio that is not anonymous
 *
 * 6.1 has folio_mapcount() but does not export it. There a page's count includes the
 * mappings of the folio as a whole.
 *
 * Return: the number of entries; a mapping of the whole folio by a PMD is one.
 */
int tmesh_folio_mapcount(struct folio *folio)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
	long i, nr = folio_nr_pages(folio);
	int count = 0;

	for (i = 0; i < nr; i++)
		count += page_mapcount(folio_page(folio, i));
	if (nr > 1)
		count -= folio_entire_mapcount(folio) * (nr - 1);
	return count;
#else
	return folio_mapcount(folio);
#endif
}

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 11, 0)
/* 6.11: memfd_pin_folios() also moves folios out of zones that must stay movable. */
static long tmesh_memfd_get_some(struct file *memfd, pgoff_t index, struct page **pages,
				 unsigned long nr_pages)
{
	pages[0] = shmem_read_mapping_page(memfd->f_mapping, index);
	return IS_ERR(pages[0]) ? PTR_ERR(pages[0]) : 1;
}
#else
#define TMESH_PIN_BATCH 32

static long tmesh_memfd_get_some(struct file *memfd, pgoff_t index, struct page **pages,
				 unsigned long nr_pages)
{
	struct folio *folios[TMESH_PIN_BATCH];
	unsigned long want = min(nr_pages, TMESH_PIN_BATCH + 0UL), got = 0, sub;
	loff_t start = (loff_t)index << PAGE_SHIFT;
	/* memfd_pin_folios() takes bytes, and the file may end within its last page. */
	loff_t end = min(start + ((loff_t)want << PAGE_SHIFT), i_size_read(file_inode(memfd)));
	pgoff_t offset;
	long nr, i;

	nr = memfd_pin_folios(memfd, start, end - 1, folios, TMESH_PIN_BATCH, &offset);
	if (nr <= 0)
		return nr ? nr : -EINVAL;
	sub = offset >> PAGE_SHIFT;
	for (i = 0; i < nr; i++, sub = 0) {
		for (; sub < folio_nr_pages(folios[i]) && got < want; sub++) {
			folio_get(folios[i]);
			pages[got++] = folio_page(folios[i], sub);
		}
	}
	unpin_folios(folios, nr);
	return got;
}
#endif

/**
 * tmesh_memfd_get_pages() - take a reference on each of the first pages of a memfd
 * @memfd:    a file of shmem, sealed against shrinking, at least @nr_pages long
 * @pages:    room for the pages
 * @nr_pages: how many
 *
 * Allocates pages that were never written. The references are plain ones and not pins, so that
 * folio_maybe_dma_pinned() reports only the pins of others.
 *
 * Context: process context, may sleep long; a fatal signal ends it.
 * Return: 0 or a negative error; on an error no reference is held.
 */
int tmesh_memfd_get_pages(struct file *memfd, struct page **pages, unsigned long nr_pages)
{
	unsigned long done = 0;
	long got;

	while (done < nr_pages) {
		got = tmesh_memfd_get_some(memfd, done, pages + done, nr_pages - done);
		if (got > 0 && fatal_signal_pending(current)) {
			done += got;
			got = -EINTR;
		}
		if (got < 0)
			goto release;
		done += got;
		cond_resched();
	}
	return 0;

release:
	while (done)
		put_page(pages[--done]);
	return got;
}

/**
 * tmesh_pin_reader_flags() - choose the flags for a long-term pin for reading
 * @address:  address of the first page
 * @nr_pages: number of pages; lowered to those that the flags apply to, at least one
 *
 * 6.2: a long-term pin for reading gives a private mapping pages of its own first. Before, the
 * process's next write goes to a copy that the pin does not see, for the zero page and for pages of
 * a file. Forcing the pin to be for writing makes that copy first.
 *
 * Context: takes mmap_lock.
 * Return: FOLL_* flags.
 */
unsigned int tmesh_pin_reader_flags(unsigned long address, unsigned long *nr_pages)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	unsigned int flags = 0;

	mmap_read_lock(mm);
	vma = vma_lookup(mm, address);
	if (vma) {
		*nr_pages = min(*nr_pages, (vma->vm_end - address) >> PAGE_SHIFT);
		if (vma->vm_flags & VM_READ && is_cow_mapping(vma->vm_flags))
			flags = FOLL_WRITE | FOLL_FORCE;
	}
	mmap_read_unlock(mm);
	return flags;
#else
	return 0;
#endif
}
