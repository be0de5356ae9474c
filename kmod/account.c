// SPDX-License-Identifier: GPL-2.0-only
/*
 * Limits: what a uid, an IPC namespace, and all of them together, may hold. Root sets them in
 * /proc/sys/dev/tmesh/.
 */
#include <linux/cgroup.h>
#include <linux/ipc_namespace.h>
#include <linux/mm.h>
#include <linux/nsproxy.h>
#include <linux/overflow.h>
#include <linux/proc_ns.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/sysctl.h>
#include <linux/xarray.h>

#include "account.h"

/**
 * struct tmesh_account - what a uid, a namespace, or everybody holds
 * @refs: users that are charged here; guarded by users_lock
 * @used: guarded by account_lock
 */
struct tmesh_account {
	unsigned int refs;
	u64 used[TMESH_COUNTS];
};

static unsigned long limits[TMESH_LEVELS][TMESH_COUNTS];

/* Guards the tables, and the last reference of each user. */
static DEFINE_MUTEX(users_lock);
static DEFINE_XARRAY_FLAGS(users, XA_FLAGS_ACCOUNT);
static DEFINE_XARRAY_FLAGS(uid_accounts, XA_FLAGS_ACCOUNT);
static DEFINE_XARRAY_FLAGS(ipc_ns_accounts, XA_FLAGS_ACCOUNT);

/* Guards what is used, on all levels at once. Nothing is taken inside. */
static DEFINE_SPINLOCK(account_lock);
static struct tmesh_account total_account;

static struct ctl_table_header *sysctls;

#define TMESH_LIMIT(_name, _level, _count)                   \
	{                                                    \
		.procname = _name,                           \
		.data = &limits[_level][_count],             \
		.maxlen = sizeof(unsigned long),             \
		.mode = 0644,                                \
		.proc_handler = proc_doulongvec_minmax,      \
	}

static struct ctl_table sysctl_table[] = {
	TMESH_LIMIT("max_bytes_per_uid", TMESH_PER_UID, TMESH_BYTES),
	TMESH_LIMIT("max_regions_per_uid", TMESH_PER_UID, TMESH_REGIONS),
	TMESH_LIMIT("max_handles_per_uid", TMESH_PER_UID, TMESH_HANDLES),
	TMESH_LIMIT("max_pins_per_uid", TMESH_PER_UID, TMESH_PINS),
	TMESH_LIMIT("max_kept_bytes_per_uid", TMESH_PER_UID, TMESH_KEPT_BYTES),
	TMESH_LIMIT("max_kept_names_per_uid", TMESH_PER_UID, TMESH_KEPT_NAMES),
	TMESH_LIMIT("max_bytes_per_ipc_ns", TMESH_PER_IPC_NS, TMESH_BYTES),
	TMESH_LIMIT("max_regions_per_ipc_ns", TMESH_PER_IPC_NS, TMESH_REGIONS),
	TMESH_LIMIT("max_handles_per_ipc_ns", TMESH_PER_IPC_NS, TMESH_HANDLES),
	TMESH_LIMIT("max_pins_per_ipc_ns", TMESH_PER_IPC_NS, TMESH_PINS),
	TMESH_LIMIT("max_kept_bytes_per_ipc_ns", TMESH_PER_IPC_NS, TMESH_KEPT_BYTES),
	TMESH_LIMIT("max_kept_names_per_ipc_ns", TMESH_PER_IPC_NS, TMESH_KEPT_NAMES),
	TMESH_LIMIT("max_bytes", TMESH_TOTAL, TMESH_BYTES),
	TMESH_LIMIT("max_regions", TMESH_TOTAL, TMESH_REGIONS),
	TMESH_LIMIT("max_handles", TMESH_TOTAL, TMESH_HANDLES),
	TMESH_LIMIT("max_pins", TMESH_TOTAL, TMESH_PINS),
	TMESH_LIMIT("max_kept_bytes", TMESH_TOTAL, TMESH_KEPT_BYTES),
	TMESH_LIMIT("max_kept_names", TMESH_TOTAL, TMESH_KEPT_NAMES),
	TMESH_SYSCTL_END
};

static struct tmesh_account *tmesh_account_get(struct xarray *accounts, unsigned long key)
{
	struct tmesh_account *account = xa_load(accounts, key);
	int rc;

	if (!account) {
		account = kzalloc(sizeof(*account), TMESH_GFP);
		if (!account)
			return NULL;
		rc = xa_err(xa_store(accounts, key, account, TMESH_GFP));
		if (rc) {
			kfree(account);
			return NULL;
		}
	}
	account->refs++;
	return account;
}

static void tmesh_account_put(struct xarray *accounts, unsigned long key)
{
	struct tmesh_account *account = xa_load(accounts, key);
	unsigned int i;

	if (!account || --account->refs)
		return;
	for (i = 0; i < TMESH_COUNTS; i++)
		WARN_ON_ONCE(account->used[i]);
	xa_erase(accounts, key);
	kfree(account);
}

/* A namespace's number is its own for as long as we hold the namespace. */
static unsigned long tmesh_user_key(kuid_t uid, const struct ipc_namespace *ipc_ns)
{
	return (unsigned long)ipc_ns->ns.inum << 32 | __kuid_val(uid);
}

static struct tmesh_user *tmesh_user_new(kuid_t uid, struct ipc_namespace *ipc_ns)
{
	struct tmesh_user *user = kzalloc(sizeof(*user), TMESH_GFP);
	int rc = -ENOMEM;

	if (!user)
		return ERR_PTR(-ENOMEM);
	user->uid = uid;
	user->ipc_ns = ipc_ns;
	refcount_set(&user->ref, 1);
	spin_lock_init(&user->lock);
	INIT_LIST_HEAD(&user->lingering);
	user->accounts[TMESH_TOTAL] = &total_account;
	user->accounts[TMESH_PER_UID] = tmesh_account_get(&uid_accounts, __kuid_val(uid));
	if (!user->accounts[TMESH_PER_UID])
		goto free;
	user->accounts[TMESH_PER_IPC_NS] = tmesh_account_get(&ipc_ns_accounts, ipc_ns->ns.inum);
	if (!user->accounts[TMESH_PER_IPC_NS])
		goto put_uid;
	rc = xa_err(xa_store(&users, tmesh_user_key(uid, ipc_ns), user, TMESH_GFP));
	if (rc)
		goto put_ipc_ns;
	get_ipc_ns(ipc_ns);
	return user;

put_ipc_ns:
	tmesh_account_put(&ipc_ns_accounts, ipc_ns->ns.inum);
put_uid:
	tmesh_account_put(&uid_accounts, __kuid_val(uid));
free:
	kfree(user);
	return ERR_PTR(rc);
}

/**
 * tmesh_user_get() - find or make what a uid in the caller's IPC namespace is charged to
 * @uid: the uid
 *
 * Context: process context.
 * Return: a reference, or -ENOMEM as a pointer.
 */
struct tmesh_user *tmesh_user_get(kuid_t uid)
{
	struct ipc_namespace *ipc_ns = current->nsproxy->ipc_ns;
	unsigned long key = tmesh_user_key(uid, ipc_ns);
	struct tmesh_user *user;

	rcu_read_lock();
	user = xa_load(&users, key);
	if (user && !refcount_inc_not_zero(&user->ref))
		user = NULL;
	rcu_read_unlock();
	if (user)
		return user;

	mutex_lock(&users_lock);
	user = xa_load(&users, key);
	if (user)
		refcount_inc(&user->ref);
	else
		user = tmesh_user_new(uid, ipc_ns);
	mutex_unlock(&users_lock);
	return user;
}

/**
 * tmesh_user_hold() - take one more reference
 * @user: which the caller has a reference of
 */
void tmesh_user_hold(struct tmesh_user *user)
{
	refcount_inc(&user->ref);
}

/**
 * tmesh_user_put() - drop a reference
 * @user: the user
 *
 * Context: process context.
 */
void tmesh_user_put(struct tmesh_user *user)
{
	if (!refcount_dec_and_mutex_lock(&user->ref, &users_lock))
		return;
	xa_erase(&users, tmesh_user_key(user->uid, user->ipc_ns));
	tmesh_account_put(&uid_accounts, __kuid_val(user->uid));
	tmesh_account_put(&ipc_ns_accounts, user->ipc_ns->ns.inum);
	mutex_unlock(&users_lock);
	WARN_ON_ONCE(user->files || !list_empty(&user->lingering));
	tmesh_put_ipc_ns(user->ipc_ns);
	kfree_rcu(user, rcu);
}

/**
 * tmesh_ipc_ns_ended() - has an IPC namespace no processes any more?
 * @user: of that namespace
 *
 * The namespace does not tell. Each user has a reference on it, and when there are no others nobody
 * is in it, nor can anybody come. While a reference of ours is on its way out the answer is no.
 *
 * Context: process context.
 * Return: true when it has ended for all but us.
 */
bool tmesh_ipc_ns_ended(const struct tmesh_user *user)
{
	bool ended;

	mutex_lock(&users_lock);
	ended = tmesh_ipc_ns_refs(user->ipc_ns) == user->accounts[TMESH_PER_IPC_NS]->refs;
	mutex_unlock(&users_lock);
	return ended;
}

/**
 * tmesh_limit() - a limit in force
 * @user:  for whom
 * @level: on which level
 * @count: of what
 *
 * The system's own IPC namespace may have as much as there may be in all.
 *
 * Return: the limit.
 */
u64 tmesh_limit(const struct tmesh_user *user, enum tmesh_level level, enum tmesh_count count)
{
	if (level == TMESH_PER_IPC_NS && user->ipc_ns->ns.inum == PROC_IPC_INIT_INO)
		level = TMESH_TOTAL;
	return READ_ONCE(limits[level][count]);
}

static int tmesh_exchange_levels(struct tmesh_user *user, enum tmesh_count count, u64 less,
				 u64 more, unsigned int levels)
{
	unsigned int i;
	u64 sum;

	spin_lock(&account_lock);
	/* Adding nothing fits even where a limit was lowered below what is used. */
	for (i = 0; i < levels && more > less; i++) {
		if (check_add_overflow(user->accounts[i]->used[count] - less, more, &sum) ||
		    sum > tmesh_limit(user, i, count)) {
			spin_unlock(&account_lock);
			return -EDQUOT;
		}
	}
	for (i = 0; i < levels; i++)
		user->accounts[i]->used[count] += more - less;
	spin_unlock(&account_lock);
	return 0;
}

static void tmesh_uncharge_levels(struct tmesh_user *user, enum tmesh_count count, u64 less,
				  unsigned int levels)
{
	unsigned int i;

	spin_lock(&account_lock);
	for (i = 0; i < levels; i++)
		user->accounts[i]->used[count] -= less;
	spin_unlock(&account_lock);
}

/**
 * tmesh_charge() - charge something to a user, if the limits of all levels allow
 * @user:  the user
 * @count: what
 * @more:  how much
 *
 * Return: 0, or -EDQUOT and nothing is charged.
 */
int tmesh_charge(struct tmesh_user *user, enum tmesh_count count, u64 more)
{
	return tmesh_exchange_levels(user, count, 0, more, TMESH_LEVELS);
}

/**
 * tmesh_exchange() - charge something in place of what was charged
 * @user:  the user
 * @count: what
 * @less:  how much of what was charged
 * @more:  how much instead
 *
 * Context: any; takes a spinlock.
 * Return: 0, or -EDQUOT and nothing has changed.
 */
int tmesh_exchange(struct tmesh_user *user, enum tmesh_count count, u64 less, u64 more)
{
	return tmesh_exchange_levels(user, count, less, more, TMESH_LEVELS);
}

/**
 * tmesh_uncharge() - take a charge back
 * @user:  the user
 * @count: what
 * @less:  how much of what was charged
 */
void tmesh_uncharge(struct tmesh_user *user, enum tmesh_count count, u64 less)
{
	tmesh_uncharge_levels(user, count, less, TMESH_LEVELS);
}

/**
 * tmesh_charge_kept() - charge somebody for keeping another user's memory
 * @user:  who keeps it
 * @bytes: how much
 *
 * To the uid alone: the memory exists once, and its owner's charge has it in the sums.
 *
 * Return: 0, or -EDQUOT and nothing is charged.
 */
int tmesh_charge_kept(struct tmesh_user *user, u64 bytes)
{
	return tmesh_exchange_levels(user, TMESH_BYTES, 0, bytes, TMESH_PER_UID + 1);
}

/**
 * tmesh_uncharge_kept() - take such a charge back
 * @user:  who kept it
 * @bytes: as charged
 */
void tmesh_uncharge_kept(struct tmesh_user *user, u64 bytes)
{
	tmesh_uncharge_levels(user, TMESH_BYTES, bytes, TMESH_PER_UID + 1);
}

/**
 * tmesh_used() - what is charged
 * @user:  to whom; NULL for what all hold together
 * @level: on which level
 * @count: of what
 *
 * Return: how much.
 */
u64 tmesh_used(const struct tmesh_user *user, enum tmesh_level level, enum tmesh_count count)
{
	const struct tmesh_account *account = user ? user->accounts[level] : &total_account;
	u64 used;

	spin_lock(&account_lock);
	used = account->used[count];
	spin_unlock(&account_lock);
	return used;
}

int __init tmesh_account_init(void)
{
	unsigned long ram = totalram_pages() << PAGE_SHIFT;
	unsigned int level;

	BUILD_BUG_ON(TMESH_PER_UID != 0);
	for (level = TMESH_PER_UID; level <= TMESH_PER_IPC_NS; level++) {
		limits[level][TMESH_BYTES] = ram / 2;
		limits[level][TMESH_REGIONS] = 1 << 19;
		limits[level][TMESH_HANDLES] = 1 << 20;
		limits[level][TMESH_PINS] = 1 << 19;
		/* Room for the next ones beside those that are kept. */
		limits[level][TMESH_KEPT_BYTES] = ram / 4;
		limits[level][TMESH_KEPT_NAMES] = 1 << 10;
	}
	limits[TMESH_TOTAL][TMESH_BYTES] = ram / 4 * 3;
	limits[TMESH_TOTAL][TMESH_REGIONS] = 1 << 20;
	limits[TMESH_TOTAL][TMESH_HANDLES] = 1 << 21;
	limits[TMESH_TOTAL][TMESH_PINS] = 1 << 20;
	limits[TMESH_TOTAL][TMESH_KEPT_BYTES] = ram / 2;
	limits[TMESH_TOTAL][TMESH_KEPT_NAMES] = 1 << 14;
	sysctls = register_sysctl("dev/tmesh", sysctl_table);
	return sysctls ? 0 : -ENOMEM;
}

void tmesh_account_exit(void)
{
	unregister_sysctl_table(sysctls);
	WARN_ON_ONCE(!xa_empty(&users) || !xa_empty(&uid_accounts) || !xa_empty(&ipc_ns_accounts));
}

/**
 * tmesh_cgroup_id() - whose memory controller the caller's allocations are charged to
 *
 * Context: process context.
 * Return: the group's id as user space has it, or 0.
 */
u64 tmesh_cgroup_id(void)
{
	u64 id = 0;
#ifdef CONFIG_MEMCG
	struct cgroup *cgroup;

	rcu_read_lock();
	cgroup = task_css(current, memory_cgrp_id)->cgroup;
	if (cgroup->root == &cgrp_dfl_root)
		id = cgroup_id(cgroup);
	rcu_read_unlock();
#endif
	return id;
}
