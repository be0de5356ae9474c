// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages of a claim's own: zeros, for those who rather read zeros than get a SIGBUS when what they
 * had mapped was taken away; and copies, see tmesh_copy_page().
 *
 * A claim keeps them until it goes: a page that only a page table entry holds would be freed
 * under the fault that inserts it, and one page for all would show each what others write.
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

	/* One that works in somebody's memory has none of his accounts or control groups. */
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

static struct page *tmesh_own_page(struct xarray *own, unsigned long index, struct page *from)
{
	struct page *page = xa_load(own, index), *old;

	if (!page) {
		page = tmesh_own_new();
		if (!page)
			return NULL;
		if (from)
			copy_highpage(page, from);
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
 * tmesh_zero_page() - a claim's page of zeros
 * @claim: whose lease has lapsed, or whose region was revoked
 * @index: of the page
 *
 * Charged to the caller when it is new.
 *
 * Context: may sleep; mmap_lock may be held.
 * Return: the page, with a reference for the caller; NULL where a limit is reached, and where a
 * kernel thread asks for a new one.
 */
struct page *tmesh_zero_page(struct tmesh_claim *claim, unsigned long index)
{
	return tmesh_own_page(&claim->zeros, index, NULL);
}

/**
 * tmesh_copy_page() - a claim's copy of a page of sealed memory
 * @claim: the claim
 * @index: of the page
 * @from:  the page
 *
 * Who pins a private mapping for long is to get a page of the process's own, even for reading. The
 * core makes it from a page table entry, but where there is none it asks for a page, and puts the
 * PMD back that it took away for this, again and again. A page that is no part of a 2 MiB one ends
 * that. It is needed once in 2 MiB, and nobody sees it for long.
 *
 * Context: may sleep; mmap_lock may be held.
 * Return: as tmesh_zero_page().
 */
struct page *tmesh_copy_page(struct tmesh_claim *claim, unsigned long index, struct page *from)
{
	return tmesh_own_page(&claim->copies, index, from);
}

/**
 * tmesh_copies_flush() - wait for faults that are about to map a copy
 * @claim: whose region was taken away
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
 * tmesh_zeros_init() - a claim without pages of its own
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
 * tmesh_zeros_free() - free them
 * @claim: without mappings
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
