// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory that the module allocates. It is zeroed, charged to the caller's memory control group, and
 * made of the largest folios that the kernel can give.
 */
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "backing.h"
#include "mem.h"
#include "reclaim.h"

static void tmesh_pages_free(struct tmesh_mem *mem, unsigned long done)
{
	struct tmesh_release release = {};
	unsigned long i, step;

	for (i = 0; i < done; i += step) {
		if (xa_is_value(mem->pages[i])) {
			step = xa_to_value(mem->pages[i]);
			continue;
		}
		/* Read the length first: the folio may be gone afterwards. */
		step = folio_nr_pages(page_folio(mem->pages[i]));
		tmesh_release_page(&release, mem->pages[i]);
		cond_resched();
	}
	tmesh_release_end(&release);
}

static void tmesh_pages_release(struct tmesh_mem *mem)
{
	tmesh_pages_free(mem, mem->nr_pages);
	tmesh_mem_fini(mem);
	kfree(mem);
}

/*
 * Test whether a folio has references other than those of our list and of page tables. Such a
 * reference is a pin for I/O, by FOLL_PIN or, as direct I/O does before 6.3, by a plain reference.
 * Counting covers both. Unlike folio_maybe_dma_pinned(), it is not misled by a thousand readers.
 * Pins of a large folio have a counter of their own.
 */
static bool tmesh_folio_in_use(struct tmesh_mem *mem, struct folio *folio)
{
	bool in_use;

	/* A fault that took the folio but has not mapped it yet holds its lock. */
	if (mem->pmd && !folio_trylock(folio))
		return true;
	in_use = tmesh_folio_referenced(folio, 1) ||
		 (folio_test_large(folio) && folio_maybe_dma_pinned(folio));
	if (mem->pmd)
		folio_unlock(folio);
	return in_use;
}

static int tmesh_pages_seal(struct tmesh_mem *mem, struct tmesh_sealing *sealing)
{
	struct folio *folio;
	unsigned int looks;

	for (looks = 0; looks < TMESH_PIECE && sealing->next < mem->nr_pages; looks++) {
		folio = page_folio(mem->pages[sealing->next]);
		/* A reader that is unmapping drops its counts one after the other. */
		if (tmesh_folio_in_use(mem, folio))
			return -EAGAIN;
		sealing->next += folio_nr_pages(folio);
		cond_resched();
	}
	return sealing->next < mem->nr_pages;
}

static const struct tmesh_backing_ops tmesh_pages_ops = {
	.backing = TMESH_BACKING_PAGES,
	.release = tmesh_pages_release,
	.seal = tmesh_pages_seal,
	.in_use = tmesh_folio_in_use,
};

static struct folio *tmesh_folio_alloc(unsigned int order, int node)
{
	gfp_t gfp = GFP_HIGHUSER | __GFP_ZERO | __GFP_ACCOUNT;

	/*
	 * A large folio is only a preference, so do not try hard. A single page is worth some
	 * reclaim but not the OOM killer: without __GFP_RETRY_MAYFAIL the limit of a memory control
	 * group would kill the caller.
	 */
	gfp |= order ? __GFP_NORETRY | __GFP_NOWARN : __GFP_RETRY_MAYFAIL | __GFP_NOWARN;
	if (node == NUMA_NO_NODE)
		return folio_alloc(gfp, order);
	return __folio_alloc_node(gfp | __GFP_THISNODE, order, node);
}

/*
 * Test whether the control group is not full, so that the node that was asked for is short, or
 * forbidden to the caller. Kept memory of the control group would not help then.
 */
static bool tmesh_node_short(int node)
{
	struct folio *folio;

	if (node == NUMA_NO_NODE)
		return false;
	folio = tmesh_folio_alloc(0, NUMA_NO_NODE);
	if (folio)
		folio_put(folio);
	return folio;
}

static int tmesh_pages_fill(struct tmesh_mem *mem, u32 flags, int node, unsigned long *take)
{
	bool huge = IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE) && !(flags & TMESH_CREATE_NOHUGE);
	unsigned int most = huge ? TMESH_HUGE_ORDER : 0, order = most, i;
	unsigned long done = 0;
	struct folio *folio;
	int rc;

	while (done < mem->nr_pages) {
		/* Align each folio naturally in the region, so that a PMD can map it. */
		while (order && (mem->nr_pages - done < BIT(order) || done & (BIT(order) - 1)))
			order--;
		rc = -ENOMEM;
		folio = tmesh_folio_alloc(order, node);
		if (!folio) {
			if (!order && tmesh_node_short(node))
				*take = 0;
			if (flags & TMESH_CREATE_HUGE || (!order && !tmesh_reclaim_cgroup(take)))
				goto release;
			/* After a reclaim large folios may be available again. */
			order = order ? order - 1 : most;
			continue;
		}
		/*
		 * Our folios are in no page cache, but finish_fault() compares the index with the
		 * size of the file, and the allocator leaves a stale one there.
		 */
		folio->index = 0;
		for (i = 0; i < BIT(order); i++)
			mem->pages[done + i] = folio_page(folio, i);
		done += BIT(order);
		if (huge && order == TMESH_HUGE_ORDER)
			mem->nr_huge++;
		rc = -EINTR;
		if (fatal_signal_pending(current))
			goto release;
		cond_resched();
	}
	mem->pmd = huge && mem->nr_huge && mem->nr_huge == mem->nr_pages >> TMESH_HUGE_ORDER;
	return 0;

release:
	tmesh_pages_free(mem, done);
	return rc;
}

/**
 * tmesh_pages_create() - allocate memory
 * @user:     the user charged
 * @nr_pages: number of pages
 * @flags:    TMESH_CREATE_HUGE, TMESH_CREATE_NOHUGE
 * @node:     NUMA node, or NUMA_NO_NODE for the caller's memory policy
 * @take:     number of pages of kept regions that may be reclaimed; lowered by those that were
 *
 * Context: process context, may sleep long; a fatal signal ends it.
 * Return: the memory, or -EDQUOT, -ENOMEM or -EINTR as a pointer.
 */
struct tmesh_mem *tmesh_pages_create(struct tmesh_user *user, unsigned long nr_pages, u32 flags,
				     int node, unsigned long *take)
{
	struct tmesh_mem *mem;
	int rc;

	mem = kzalloc(sizeof(*mem), TMESH_GFP);
	if (!mem)
		return ERR_PTR(-ENOMEM);
	rc = tmesh_mem_init(mem, &tmesh_pages_ops, user, nr_pages);
	if (rc)
		goto free;
	rc = tmesh_pages_fill(mem, flags, node, take);
	if (rc) {
		tmesh_mem_fini(mem);
		goto free;
	}
	return mem;

free:
	kfree(mem);
	return ERR_PTR(rc);
}
