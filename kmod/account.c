// SPDX-License-Identifier: GPL-2.0-only
/*
 * Accounts and limits of each uid, of each IPC namespace, and of the whole system. Root sets the
 * limits in /proc/sys/dev/tmesh/.
 */
#include <linux/cgroup.h>
#include <linux/hashtable.h>
#include <linux/idr.h>
#include <linux/ipc_namespace.h>
#include <linux/mm.h>
#include <linux/nsproxy.h>
#include <linux/overflow.h>
#include <linux/proc_ns.h>
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/siphash.h>
#include <linux/slab.h>
#include <linux/sysctl.h>

#include "account.h"

/**
 * struct tmesh_account - the charges of a uid, of a namespace, or of the system.
 * @node: link in a hash table; guarded by users_lock, as are @key and @refs
 * @key:  a uid, or the inode number of a namespace
 * @refs: number of struct tmesh_user that refer to this account
 * @used: charges by kind; guarded by account_lock
 * @due:  for a uid: its leases that are about to end
 * @ids:  for a namespace other than the initial one: the high bits of its ids; constant
 * @last_id: the low bits of the last id that was given out
 */
struct tmesh_account {
	struct hlist_node node;
	u64 key;
	unsigned int refs;
	u64 used[TMESH_COUNTS];
	struct tmesh_due due;
	u64 ids;
	atomic64_t last_id;
};

static unsigned long limits[TMESH_LEVELS][TMESH_COUNTS];

/* The tables have a fixed size, so that no allocation happens under users_lock. */
#define TMESH_USERS_BITS 10

/* Guards the tables. The last reference of a user is dropped under it. */
static DEFINE_MUTEX(users_lock);
static struct hlist_head users[1 << TMESH_USERS_BITS];
static struct hlist_head uid_accounts[1 << TMESH_USERS_BITS];
static struct hlist_head ipc_ns_accounts[1 << TMESH_USERS_BITS];

/* Guards @used of all accounts. It is a leaf lock. */
static DEFINE_SPINLOCK(account_lock);
static struct tmesh_account total_account;

/*
 * Each namespace counts its ids up from a random prefix of its own. So a process cannot learn from
 * an id how many objects other namespaces have made. The initial namespace has no prefix.
 */
#define TMESH_IDS_SHIFT 40
#define TMESH_IDS_BITS 22
static DEFINE_IDA(ids_taken);
static atomic64_t last_id;

/*
 * The work function that ends leases. tmesh_account_init() sets it before the first account exists.
 */
static work_func_t account_due __ro_after_init;

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
	TMESH_LIMIT("max_files_per_uid", TMESH_PER_UID, TMESH_FILES),
	TMESH_LIMIT("max_foreign_files_per_uid", TMESH_PER_UID, TMESH_FOREIGN_FILES),
	TMESH_LIMIT("max_bytes_per_ipc_ns", TMESH_PER_IPC_NS, TMESH_BYTES),
	TMESH_LIMIT("max_regions_per_ipc_ns", TMESH_PER_IPC_NS, TMESH_REGIONS),
	TMESH_LIMIT("max_handles_per_ipc_ns", TMESH_PER_IPC_NS, TMESH_HANDLES),
	TMESH_LIMIT("max_pins_per_ipc_ns", TMESH_PER_IPC_NS, TMESH_PINS),
	TMESH_LIMIT("max_kept_bytes_per_ipc_ns", TMESH_PER_IPC_NS, TMESH_KEPT_BYTES),
	TMESH_LIMIT("max_kept_names_per_ipc_ns", TMESH_PER_IPC_NS, TMESH_KEPT_NAMES),
	TMESH_LIMIT("max_files_per_ipc_ns", TMESH_PER_IPC_NS, TMESH_FILES),
	TMESH_LIMIT("max_bytes", TMESH_TOTAL, TMESH_BYTES),
	TMESH_LIMIT("max_regions", TMESH_TOTAL, TMESH_REGIONS),
	TMESH_LIMIT("max_handles", TMESH_TOTAL, TMESH_HANDLES),
	TMESH_LIMIT("max_pins", TMESH_TOTAL, TMESH_PINS),
	TMESH_LIMIT("max_kept_bytes", TMESH_TOTAL, TMESH_KEPT_BYTES),
	TMESH_LIMIT("max_kept_names", TMESH_TOTAL, TMESH_KEPT_NAMES),
	TMESH_LIMIT("max_files", TMESH_TOTAL, TMESH_FILES),
	TMESH_SYSCTL_END
};

static struct tmesh_account *tmesh_account_find(const struct hlist_head *accounts, u64 key)
{
	struct tmesh_account *account;

	lockdep_assert_held(&users_lock);
	hlist_for_each_entry(account, accounts, node) {
		if (account->key == key)
			return account;
	}
	return NULL;
}

/* Find an account by its key. If there is none, add *@brought and set *@brought to NULL. */
static struct tmesh_account *tmesh_account_get(struct hlist_head *accounts, u64 key,
					       struct tmesh_account **brought)
{
	struct tmesh_account *account = tmesh_account_find(accounts, key);

	if (!account) {
		account = *brought;
		*brought = NULL;
		account->key = key;
		hlist_add_head(&account->node, accounts);
	}
	account->refs++;
	return account;
}

static void tmesh_account_free(struct tmesh_account *account)
{
	if (account && account->ids)
		ida_free(&ids_taken, account->ids >> TMESH_IDS_SHIFT);
	kfree(account);
}

static void tmesh_account_put(struct tmesh_account *account)
{
	unsigned int i;

	lockdep_assert_held(&users_lock);
	if (--account->refs)
		return;
	for (i = 0; i < TMESH_COUNTS; i++)
		WARN_ON_ONCE(account->used[i]);
	hlist_del(&account->node);
	tmesh_account_free(account);
}

/* The inode number of a namespace is unique while the user holds a reference on the namespace. */
static u64 tmesh_user_key(kuid_t uid, const struct ipc_namespace *ipc_ns)
{
	return (u64)ipc_ns->ns.inum << 32 | __kuid_val(uid);
}

/* Keys the hash, so that a user cannot choose uids and namespaces that collide. */
static siphash_key_t users_seed __ro_after_init;

static struct hlist_head *tmesh_bucket(struct hlist_head *table, u64 key)
{
	return &table[siphash_1u64(key, &users_seed) & (BIT(TMESH_USERS_BITS) - 1)];
}

/* Called under RCU or with users_lock held. */
static struct tmesh_user *tmesh_user_find(u64 key)
{
	struct tmesh_user *user;

	hlist_for_each_entry_rcu(user, tmesh_bucket(users, key), node,
				 lockdep_is_held(&users_lock)) {
		if (user->key == key)
			return user;
	}
	return NULL;
}

/**
 * struct tmesh_newcomer - preallocated objects for a new user
 * @user:     the user
 * @accounts: its accounts; those that exist already are not needed
 *
 * They are allocated before users_lock is taken. The allocation is charged to the caller and may
 * block, and an exiting process must not wait for it under users_lock.
 */
struct tmesh_newcomer {
	struct tmesh_user *user;
	struct tmesh_account *accounts[TMESH_TOTAL];
};

static void tmesh_newcomer_free(struct tmesh_newcomer *new)
{
	unsigned int i;

	for (i = 0; i < TMESH_TOTAL; i++)
		tmesh_account_free(new->accounts[i]);
	kfree(new->user);
}

static void tmesh_due_init(struct tmesh_due *due)
{
	spin_lock_init(&due->lock);
	INIT_LIST_HEAD(&due->leases);
	INIT_WORK(&due->work, account_due);
	xa_init_flags(&due->bound, XA_FLAGS_ACCOUNT);
}

/* Reserve a random prefix for the ids of a namespace. */
static int tmesh_ids_alloc(struct tmesh_account *account)
{
	int bits;

	do {
		bits = get_random_u32() & (BIT(TMESH_IDS_BITS) - 1);
		bits = bits ? ida_alloc_range(&ids_taken, bits, bits, TMESH_GFP) : -ENOSPC;
		if (fatal_signal_pending(current) && bits < 0)
			return -EINTR;
	} while (bits == -ENOSPC);
	if (bits < 0)
		return bits;
	account->ids = (u64)bits << TMESH_IDS_SHIFT;
	return 0;
}

static int tmesh_newcomer_alloc(struct tmesh_newcomer *new, const struct ipc_namespace *ipc_ns)
{
	unsigned int i;

	new->user = kzalloc(sizeof(*new->user), TMESH_GFP);
	if (!new->user)
		return -ENOMEM;
	for (i = 0; i < TMESH_TOTAL; i++) {
		new->accounts[i] = kzalloc(sizeof(*new->accounts[i]), TMESH_GFP);
		if (!new->accounts[i])
			return -ENOMEM;
		tmesh_due_init(&new->accounts[i]->due);
	}
	if (ipc_ns->ns.inum != PROC_IPC_INIT_INO)
		return tmesh_ids_alloc(new->accounts[TMESH_PER_IPC_NS]);
	return 0;
}

static struct tmesh_user *tmesh_user_join(struct tmesh_newcomer *new, kuid_t uid,
					  struct ipc_namespace *ipc_ns)
{
	u64 key = tmesh_user_key(uid, ipc_ns), id = __kuid_val(uid);
	struct tmesh_user *user = new->user;

	lockdep_assert_held(&users_lock);
	new->user = NULL;
	user->key = key;
	user->uid = uid;
	user->ipc_ns = ipc_ns;
	refcount_set(&user->ref, 1);
	spin_lock_init(&user->lock);
	INIT_LIST_HEAD(&user->holds);
	user->accounts[TMESH_TOTAL] = &total_account;
	user->accounts[TMESH_PER_UID] = tmesh_account_get(tmesh_bucket(uid_accounts, id), id,
							  &new->accounts[TMESH_PER_UID]);
	id = ipc_ns->ns.inum;
	user->accounts[TMESH_PER_IPC_NS] = tmesh_account_get(tmesh_bucket(ipc_ns_accounts, id), id,
							     &new->accounts[TMESH_PER_IPC_NS]);
	get_ipc_ns(ipc_ns);
	hlist_add_head_rcu(&user->node, tmesh_bucket(users, key));
	return user;
}

/**
 * tmesh_user_get() - find or create the user for a uid in the caller's IPC namespace
 * @uid: the uid
 *
 * Context: process context, may sleep; neither claims_lock nor the region's lock is held.
 * Return: a reference, or -ENOMEM as a pointer.
 */
struct tmesh_user *tmesh_user_get(kuid_t uid)
{
	struct ipc_namespace *ipc_ns = current->nsproxy->ipc_ns;
	u64 key = tmesh_user_key(uid, ipc_ns);
	struct tmesh_newcomer new = { };
	struct tmesh_user *user;
	int rc;

	rcu_read_lock();
	user = tmesh_user_find(key);
	if (user && !refcount_inc_not_zero(&user->ref))
		user = NULL;
	rcu_read_unlock();
	if (user)
		return user;

	rc = tmesh_newcomer_alloc(&new, ipc_ns);
	if (!rc) {
		mutex_lock(&users_lock);
		user = tmesh_user_find(key);
		if (user)
			refcount_inc(&user->ref);
		else
			user = tmesh_user_join(&new, uid, ipc_ns);
		mutex_unlock(&users_lock);
	}
	tmesh_newcomer_free(&new);
	return rc ? ERR_PTR(rc) : user;
}

/**
 * tmesh_user_hold() - take one more reference
 * @user: the user; the caller has a reference
 */
void tmesh_user_hold(struct tmesh_user *user)
{
	refcount_inc(&user->ref);
}

/**
 * tmesh_user_try_hold() - take a reference unless the last one has been dropped
 * @user: the user; the caller is in an RCU read-side section
 *
 * Return: true if a reference was taken.
 */
bool tmesh_user_try_hold(struct tmesh_user *user)
{
	return refcount_inc_not_zero(&user->ref);
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
	hlist_del_rcu(&user->node);
	tmesh_account_put(user->accounts[TMESH_PER_UID]);
	tmesh_account_put(user->accounts[TMESH_PER_IPC_NS]);
	mutex_unlock(&users_lock);
	WARN_ON_ONCE(user->files || user->shown || !list_empty(&user->holds));
	tmesh_put_ipc_ns(user->ipc_ns);
	kfree_rcu(user, rcu);
}

/**
 * tmesh_user_shown() - test whether a uid has kept files in an IPC namespace
 * @uid:    the uid
 * @ipc_ns: the namespace; the caller has a reference
 *
 * Context: tmesh_kept_lock is held, so that a name that is replaced is there all the time.
 * Return: true if so.
 */
bool tmesh_user_shown(kuid_t uid, const struct ipc_namespace *ipc_ns)
{
	const struct tmesh_user *user;
	bool shown;

	rcu_read_lock();
	user = tmesh_user_find(tmesh_user_key(uid, ipc_ns));
	shown = user && user->shown;
	rcu_read_unlock();
	return shown;
}

/**
 * tmesh_next_id() - allocate an id for a new object
 * @user: the owner of the object
 *
 * Return: an id that no other object has.
 */
u64 tmesh_next_id(const struct tmesh_user *user)
{
	struct tmesh_account *account = user->accounts[TMESH_PER_IPC_NS];

	/* The initial namespace's account may be freed and made again, so its counter is global. */
	if (!account->ids)
		return atomic64_inc_return(&last_id);
	return account->ids | atomic64_inc_return(&account->last_id);
}

/**
 * tmesh_user_due() - return the list of a uid's leases that are about to end
 * @user: the user
 *
 * Return: the list, valid while the caller has a reference on @user.
 */
struct tmesh_due *tmesh_user_due(const struct tmesh_user *user)
{
	return &user->accounts[TMESH_PER_UID]->due;
}

/**
 * tmesh_ipc_ns_ended() - test whether an IPC namespace has lost its last process
 * @user: a user in that namespace
 *
 * The kernel does not notify us when a namespace becomes empty. Each user has one reference on the
 * namespace. If there are no other references, no process is in the namespace and none can enter
 * it. The answer is false while tmesh_user_put() still has to drop its reference.
 *
 * Context: process context.
 * Return: true if only tmesh has references on the namespace.
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
 * tmesh_limit() - read a limit
 * @user:  the user that the limit applies to
 * @level: uid, namespace or system
 * @count: kind of charge
 *
 * The initial IPC namespace has the limits of the whole system.
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
	/* A charge that does not grow always fits, even if root lowered the limit below the use. */
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
 * tmesh_charge() - charge a user unless a limit of any level is exceeded
 * @user:  the user
 * @count: kind of charge
 * @more:  amount
 *
 * Return: 0, or -EDQUOT and nothing is charged.
 */
int tmesh_charge(struct tmesh_user *user, enum tmesh_count count, u64 more)
{
	return tmesh_exchange_levels(user, count, 0, more, TMESH_LEVELS);
}

/**
 * tmesh_exchange() - replace one charge by another
 * @user:  the user
 * @count: kind of charge
 * @less:  amount to release
 * @more:  amount to charge
 *
 * Context: any; takes a spinlock.
 * Return: 0; or -EDQUOT, and nothing has changed.
 */
int tmesh_exchange(struct tmesh_user *user, enum tmesh_count count, u64 less, u64 more)
{
	return tmesh_exchange_levels(user, count, less, more, TMESH_LEVELS);
}

/**
 * tmesh_uncharge() - release a charge
 * @user:  the user
 * @count: kind of charge
 * @less:  amount to release
 */
void tmesh_uncharge(struct tmesh_user *user, enum tmesh_count count, u64 less)
{
	tmesh_uncharge_levels(user, count, less, TMESH_LEVELS);
}

/**
 * tmesh_charge_pinned() - charge a user for pinning another user's memory
 * @user:  the user that pins it
 * @bytes: number of bytes
 *
 * Only the uid is charged. The namespace and the system already have the memory in their sums,
 * because its owner is charged for it.
 *
 * Return: 0, or -EDQUOT and nothing is charged.
 */
int tmesh_charge_pinned(struct tmesh_user *user, u64 bytes)
{
	return tmesh_exchange_levels(user, TMESH_BYTES, 0, bytes, TMESH_PER_UID + 1);
}

/**
 * tmesh_uncharge_pinned() - release a charge of tmesh_charge_pinned()
 * @user:  the user that pinned it
 * @bytes: the same number of bytes
 */
void tmesh_uncharge_pinned(struct tmesh_user *user, u64 bytes)
{
	tmesh_uncharge_levels(user, TMESH_BYTES, bytes, TMESH_PER_UID + 1);
}

/**
 * tmesh_shared_fairly() - test whether a foreign user may take another slot of a shared object
 * @most:    number of slots; half of them are reserved for the owner
 * @foreign: slots taken by all users but the owner
 * @own:     slots among them that the asking user has taken
 *
 * A user must leave as many slots free as it has taken, so that the next user gets some.
 *
 * Return: true if so.
 */
bool tmesh_shared_fairly(unsigned int most, unsigned int foreign, unsigned int own)
{
	return foreign + own < most / 2;
}

/**
 * tmesh_used() - read a charge
 * @user:  the user charged; NULL for the sum of all users
 * @level: uid, namespace or system
 * @count: kind of charge
 *
 * Return: the amount.
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

/**
 * tmesh_account_init() - set up limits and sysctls before there are users
 * @due: work function that ends the leases of a struct tmesh_due
 *
 * Return: 0 or -ENOMEM.
 */
int __init tmesh_account_init(work_func_t due)
{
	unsigned long ram = totalram_pages() << PAGE_SHIFT;
	unsigned int level;

	/* As in tmesh_region_teach(). */
	fs_reclaim_acquire(GFP_KERNEL);
	might_lock(&users_lock);
	fs_reclaim_release(GFP_KERNEL);

	BUILD_BUG_ON(TMESH_PER_UID != 0);
	get_random_bytes(&users_seed, sizeof(users_seed));
	account_due = due;
	for (level = TMESH_PER_UID; level <= TMESH_PER_IPC_NS; level++) {
		limits[level][TMESH_BYTES] = ram / 2;
		limits[level][TMESH_REGIONS] = 1 << 19;
		limits[level][TMESH_HANDLES] = 1 << 20;
		limits[level][TMESH_PINS] = 1 << 19;
		/* Kept regions may use half of the limit, so that new regions still fit. */
		limits[level][TMESH_KEPT_BYTES] = ram / 4;
		limits[level][TMESH_KEPT_NAMES] = 1 << 10;
		limits[level][TMESH_FILES] = 1 << 20;
		limits[level][TMESH_FOREIGN_FILES] = ULONG_MAX;
	}
	/* One user can take half of the files that others may have open of an owner. */
	limits[TMESH_PER_UID][TMESH_FILES] = 1 << 19;
	limits[TMESH_PER_UID][TMESH_FOREIGN_FILES] = 1 << 20;
	limits[TMESH_TOTAL][TMESH_BYTES] = ram / 4 * 3;
	limits[TMESH_TOTAL][TMESH_REGIONS] = 1 << 20;
	limits[TMESH_TOTAL][TMESH_HANDLES] = 1 << 21;
	limits[TMESH_TOTAL][TMESH_PINS] = 1 << 20;
	limits[TMESH_TOTAL][TMESH_KEPT_BYTES] = ram / 2;
	limits[TMESH_TOTAL][TMESH_KEPT_NAMES] = 1 << 14;
	limits[TMESH_TOTAL][TMESH_FILES] = 1 << 21;
	limits[TMESH_TOTAL][TMESH_FOREIGN_FILES] = ULONG_MAX;
	sysctls = register_sysctl("dev/tmesh", sysctl_table);
	return sysctls ? 0 : -ENOMEM;
}

void tmesh_account_exit(void)
{
	unregister_sysctl_table(sysctls);
	WARN_ON_ONCE(!hash_empty(users) || !hash_empty(uid_accounts) ||
		     !hash_empty(ipc_ns_accounts) || !ida_is_empty(&ids_taken));
}

/**
 * tmesh_cgroup_id() - return the memory control group that the caller's allocations are charged to
 *
 * Context: process context.
 * Return: the id of the control group in the unified hierarchy, or 0.
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
