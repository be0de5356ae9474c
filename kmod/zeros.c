// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages of zeros, for those who rather read zeros than get a SIGBUS when what they had mapped
 * was taken away.
 *
 * A claim keeps them until it goes: a page that only a page table entry holds would be freed
 * under the fault that inserts it, and one page for all would show each what others write.
 */
#include <linux/cred.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/xarray.h>

#include "tmesh.h"

static struct page *tmesh_zero_new(void)
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

static void tmesh_zero_free(struct page *page)
{
	struct tmesh_user *user = (struct tmesh_user *)page_private(page);

	set_page_private(page, 0);
	put_page(page);
	tmesh_uncharge(user, TMESH_BYTES, PAGE_SIZE);
	tmesh_user_put(user);
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
	struct page *page = xa_load(&claim->zeros, index), *old;

	if (!page) {
		page = tmesh_zero_new();
		if (!page)
			return NULL;
		old = xa_cmpxchg(&claim->zeros, index, NULL, page,
				 GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
		if (old) {
			tmesh_zero_free(page);
			if (xa_is_err(old))
				return NULL;
			page = old;
		}
	}
	get_page(page);
	return page;
}

/**
 * tmesh_zeros_init() - a claim without such pages
 * @claim: new
 */
void tmesh_zeros_init(struct tmesh_claim *claim)
{
	xa_init_flags(&claim->zeros, XA_FLAGS_ACCOUNT);
}

/**
 * tmesh_zeros_free() - free them
 * @claim: without mappings
 */
void tmesh_zeros_free(struct tmesh_claim *claim)
{
	unsigned long index;
	struct page *page;

	xa_for_each(&claim->zeros, index, page) {
		tmesh_zero_free(page);
		cond_resched();
	}
	xa_destroy(&claim->zeros);
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
