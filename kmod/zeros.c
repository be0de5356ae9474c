// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages that belong to a claim: zeros, for a holder that chose TMESH_POLICY_ZERO over SIGBUS for
 * mappings that were taken away; and copies, see tmesh_copy_page().
 *
 * A claim keeps them until it ends. A page that only a page table entry refers to could be freed
 * before the fault has returned. A page shared by all claims would show each what others write.
 */
#include <linux/cred.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched.h>
#include <linux/xarray.h>

#include "account.h"
#include "zeros.h"

static struct page *tmesh_own_new(void)
{
	struct tmesh_user *user;
	struct page *page;

	/* A kernel thread that uses a process's mm has neither its user nor its control group. */
	if (current->flags & PF_KTHREAD)
		return NULL;
	user = tmesh_user_get(current_euid());
	if (IS_ERR(user))
		return NULL;
	if (tmesh_charge(user, TMESH_BYTES, PAGE_SIZE))
		goto put;
	page = alloc_page(GFP_HIGHUSER | __GFP_ZERO | __GFP_ACCOUNT | __GFP_RETRY_MAYFAIL |
			  __GFP_NOWARN);
	if (!page)
		goto uncharge;
	set_page_private(page, (unsigned long)user);
	return page;

uncharge:
	tmesh_uncharge(user, TMESH_BYTES, PAGE_SIZE);
put:
	tmesh_user_put(user);
	return NULL;
}

static void tmesh_own_free(struct page *page)
{
	struct tmesh_user *user = (struct tmesh_user *)page_private(page);

	set_page_private(page, 0);
	put_page(page);
	tmesh_uncharge(user, TMESH_BYTES, PAGE_SIZE);
	tmesh_user_put(user);
}

static struct page *tmesh_own_page(struct xarray *own, unsigned long index)
{
	struct page *page = xa_load(own, index), *old;

	if (!page) {
		page = tmesh_own_new();
		if (!page)
			return NULL;
		old = xa_cmpxchg(own, index, NULL, page, TMESH_GFP);
		if (old) {
			tmesh_own_free(page);
			if (xa_is_err(old))
				return NULL;
			page = old;
		}
	}
	get_page(page);
	return page;
}

/**
 * tmesh_zero_page() - get a claim's page of zeros
 * @claim: a claim whose lease has lapsed or whose region was revoked
 * @index: index of the page in the claim
 *
 * A new page is charged to the caller.
 *
 * Context: may sleep; mmap_lock may be held.
 * Return: the page with a reference; NULL if a limit is reached, without memory, and for a kernel
 * thread that needs a new page.
 */
struct page *tmesh_zero_page(struct tmesh_claim *claim, unsigned long index)
{
	return tmesh_own_page(&claim->zeros, index);
}

/**
 * tmesh_copy_page() - get a page for a claim's copy of a page of sealed memory
 * @claim: the claim
 * @index: index of the page in the claim
 *
 * A long-term pin of a private mapping needs a page of the process's own, even for reading
 * (FAULT_FLAG_UNSHARE). The core makes it by copying a mapped page. If there is no page table
 * entry, it faults a page in first. With a PMD-sized folio it maps the PMD that it has just split
 * for this, and loops. A copy that is not part of such a folio ends the loop. One is needed for
 * each PMD, for a short time.
 *
 * Context: may sleep; mmap_lock may be held.
 * Return: as tmesh_zero_page(); for tmesh_copy_fill().
 */
struct page *tmesh_copy_page(struct tmesh_claim *claim, unsigned long index)
{
	return tmesh_own_page(&claim->copies, index);
}

/**
 * tmesh_copy_fill() - fill a copy
 * @copy: page of tmesh_copy_page(), locked
 * @from: the page of sealed memory; the region's lock is held
 */
void tmesh_copy_fill(struct page *copy, struct page *from)
{
	if (PageUptodate(copy))
		return;
	copy_highpage(copy, from);
	SetPageUptodate(copy);
}

/**
 * tmesh_copies_flush() - wait for faults that are about to map a copy
 * @claim: a claim whose region was revoked or whose lease has lapsed
 */
void tmesh_copies_flush(struct tmesh_claim *claim)
{
	unsigned long index;
	struct page *page;

	xa_for_each(&claim->copies, index, page) {
		lock_page(page);
		unlock_page(page);
		cond_resched();
	}
}

/**
 * tmesh_zeros_init() - initialise a claim without pages of its own
 * @claim: new
 */
void tmesh_zeros_init(struct tmesh_claim *claim)
{
	xa_init_flags(&claim->zeros, XA_FLAGS_ACCOUNT);
	xa_init_flags(&claim->copies, XA_FLAGS_ACCOUNT);
}

static void tmesh_own_free_all(struct xarray *own)
{
	unsigned long index;
	struct page *page;

	xa_for_each(own, index, page) {
		tmesh_own_free(page);
		cond_resched();
	}
	xa_destroy(own);
}

/**
 * tmesh_zeros_free() - free the pages of a claim
 * @claim: a claim without mappings
 */
void tmesh_zeros_free(struct tmesh_claim *claim)
{
	tmesh_own_free_all(&claim->zeros);
	tmesh_own_free_all(&claim->copies);
}

/**
 * tmesh_ioctl_policy() - TMESH_POLICY
 * @ucmd: the call
 *
 * Return: 0.
 */
int tmesh_ioctl_policy(struct tmesh_ucmd *ucmd)
{
	const struct tmesh_policy *cmd = ucmd->cmd;

	WRITE_ONCE(ucmd->handle->claim.policy, cmd->flags);
	return 0;
}
