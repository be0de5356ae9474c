// SPDX-License-Identifier: GPL-2.0-only
/*
 * Limits: what a uid, and all of them together, may hold. Root sets them in
 * /proc/sys/dev/tmesh/.
 */
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/slab.h>
#include <linux/sysctl.h>
#include <linux/xarray.h>

#include "tmesh.h"

struct tmesh_limits tmesh_limits;

/* Guards the table of users and the last reference of each. */
static DEFINE_MUTEX(users_lock);
static DEFINE_XARRAY(users);

/* Guards the counts of all users and these two sums. Nothing is taken inside. */
static DEFINE_SPINLOCK(account_lock);
static u64 total_bytes;
static u64 total_regions;

static struct ctl_table_header *sysctls;

static struct ctl_table sysctl_table[] = {
	{
		.procname = "max_bytes_per_uid",
		.data = &tmesh_limits.bytes_per_uid,
		.maxlen = sizeof(unsigned long),
		.mode = 0644,
		.proc_handler = proc_doulongvec_minmax,
	},
	{
		.procname = "max_regions_per_uid",
		.data = &tmesh_limits.regions_per_uid,
		.maxlen = sizeof(unsigned long),
		.mode = 0644,
		.proc_handler = proc_doulongvec_minmax,
	},
	{
		.procname = "max_bytes",
		.data = &tmesh_limits.bytes,
		.maxlen = sizeof(unsigned long),
		.mode = 0644,
		.proc_handler = proc_doulongvec_minmax,
	},
	{
		.procname = "max_regions",
		.data = &tmesh_limits.regions,
		.maxlen = sizeof(unsigned long),
		.mode = 0644,
		.proc_handler = proc_doulongvec_minmax,
	},
	TMESH_SYSCTL_END
};

/**
 * tmesh_user_get() - find or make the account of a uid
 * @uid: the uid
 *
 * Context: process context.
 * Return: a reference, or -ENOMEM as a pointer.
 */
struct tmesh_user *tmesh_user_get(kuid_t uid)
{
	struct tmesh_user *user;
	int rc;

	mutex_lock(&users_lock);
	user = xa_load(&users, __kuid_val(uid));
	if (user) {
		refcount_inc(&user->ref);
		goto unlock;
	}
	user = kzalloc(sizeof(*user), GFP_KERNEL_ACCOUNT);
	if (!user) {
		user = ERR_PTR(-ENOMEM);
		goto unlock;
	}
	user->uid = uid;
	refcount_set(&user->ref, 1);
	spin_lock_init(&user->lock);
	INIT_LIST_HEAD(&user->lingering);
	rc = xa_err(xa_store(&users, __kuid_val(uid), user, GFP_KERNEL_ACCOUNT));
	if (rc) {
		kfree(user);
		user = ERR_PTR(rc);
	}
unlock:
	mutex_unlock(&users_lock);
	return user;
}

/**
 * tmesh_user_hold() - take one more reference
 * @user: an account that the caller has a reference of
 */
void tmesh_user_hold(struct tmesh_user *user)
{
	refcount_inc(&user->ref);
}

/**
 * tmesh_user_put() - drop a reference
 * @user: the account
 *
 * Context: process context.
 */
void tmesh_user_put(struct tmesh_user *user)
{
	if (!refcount_dec_and_mutex_lock(&user->ref, &users_lock))
		return;
	xa_erase(&users, __kuid_val(user->uid));
	mutex_unlock(&users_lock);
	WARN_ON_ONCE(user->bytes || user->regions || user->files || !list_empty(&user->lingering));
	kfree(user);
}

static bool tmesh_fits(u64 used, u64 more, unsigned long limit)
{
	u64 sum;

	return !check_add_overflow(used, more, &sum) && sum <= limit;
}

/**
 * tmesh_charge() - charge regions and bytes to a user, if the limits allow
 * @user:    the account
 * @regions: how many regions
 * @bytes:   how many bytes
 *
 * Return: 0, or -EDQUOT and nothing is charged.
 */
int tmesh_charge(struct tmesh_user *user, u64 regions, u64 bytes)
{
	int rc = -EDQUOT;

	spin_lock(&account_lock);
	/* Adding nothing fits even where a limit was lowered below what is used. */
	if ((!bytes ||
	     (tmesh_fits(user->bytes, bytes, READ_ONCE(tmesh_limits.bytes_per_uid)) &&
	      tmesh_fits(total_bytes, bytes, READ_ONCE(tmesh_limits.bytes)))) &&
	    (!regions ||
	     (tmesh_fits(user->regions, regions, READ_ONCE(tmesh_limits.regions_per_uid)) &&
	      tmesh_fits(total_regions, regions, READ_ONCE(tmesh_limits.regions))))) {
		user->bytes += bytes;
		user->regions += regions;
		total_bytes += bytes;
		total_regions += regions;
		rc = 0;
	}
	spin_unlock(&account_lock);
	return rc;
}

/**
 * tmesh_uncharge() - take a charge back
 * @user:    the account
 * @regions: as charged
 * @bytes:   as charged
 */
void tmesh_uncharge(struct tmesh_user *user, u64 regions, u64 bytes)
{
	spin_lock(&account_lock);
	user->bytes -= bytes;
	user->regions -= regions;
	total_bytes -= bytes;
	total_regions -= regions;
	spin_unlock(&account_lock);
}

/**
 * tmesh_charge_pin() - charge somebody for keeping another user's memory
 * @user:  who keeps it
 * @bytes: how much
 *
 * The memory exists once and its owner's charge has it in the sum of all users already.
 *
 * Return: 0, or -EDQUOT and nothing is charged.
 */
int tmesh_charge_pin(struct tmesh_user *user, u64 bytes)
{
	int rc = -EDQUOT;

	spin_lock(&account_lock);
	if (tmesh_fits(user->bytes, bytes, READ_ONCE(tmesh_limits.bytes_per_uid))) {
		user->bytes += bytes;
		rc = 0;
	}
	spin_unlock(&account_lock);
	return rc;
}

/**
 * tmesh_uncharge_pin() - take such a charge back
 * @user:  who kept it
 * @bytes: as charged
 */
void tmesh_uncharge_pin(struct tmesh_user *user, u64 bytes)
{
	spin_lock(&account_lock);
	user->bytes -= bytes;
	spin_unlock(&account_lock);
}

/**
 * tmesh_usage() - what is charged
 * @user:    to whom; NULL for all users together
 * @regions: set to the count of regions
 * @bytes:   set to the count of bytes
 */
void tmesh_usage(const struct tmesh_user *user, u64 *regions, u64 *bytes)
{
	spin_lock(&account_lock);
	*regions = user ? user->regions : total_regions;
	*bytes = user ? user->bytes : total_bytes;
	spin_unlock(&account_lock);
}

int __init tmesh_account_init(void)
{
	unsigned long ram = totalram_pages() << PAGE_SHIFT;

	tmesh_limits.bytes_per_uid = ram / 2;
	tmesh_limits.bytes = ram / 4 * 3;
	tmesh_limits.regions_per_uid = 1 << 19;
	tmesh_limits.regions = 1 << 20;
	sysctls = register_sysctl("dev/tmesh", sysctl_table);
	return sysctls ? 0 : -ENOMEM;
}

void tmesh_account_exit(void)
{
	unregister_sysctl_table(sysctls);
	WARN_ON_ONCE(!xa_empty(&users));
}
