// SPDX-License-Identifier: GPL-2.0-only
/*
 * Leases: a claim's right to its region ends when the lease is not touched for its period, or with
 * a process. TMESH_LEASE and lease files are in lease_calls.c, the checks for touches in
 * lease_expiry.c, and the end of leases in lease_end.c.
 *
 * A lease is shared by the handle that it was put on, by handles derived from it, and by exports
 * and views made through them. It has two pages. User space touches the lease by writing to the
 * first. The second shows its state, and the kernel writes it before it takes mappings away. User
 * space holds a lease only through lease files, which map these pages.
 */
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/pid.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "account.h"
#include "lease.h"
#include "main.h"
#include "lease_expiry.h"

#define TMESH_LEASE_BYTES (2 * PAGE_SIZE)
#define TMESH_LEASE_GFP (TMESH_GFP | __GFP_ZERO)

/*
 * The most leases of a uid that end with one process. The end of the process walks over the leases
 * of all uids, with interrupts off.
 */
#define TMESH_PROCESS_LEASES 4096

/* The number of leases; for debugfs. */
static atomic_long_t tmesh_leases;

/*
 * Add 1 or -1 to the number of a uid's leases that end with a process. Lowering it needs no memory.
 * A process that has ended may share its pid, and so its number of leases, with a later one.
 */
static int tmesh_process_count(struct tmesh_lease_obj *lease, struct pid *pid, int by)
{
	struct xarray *bound = &tmesh_user_due(lease->user)->bound;
	unsigned long nr = pid_nr(pid), count;
	void *old, *was = xa_load(bound, nr);

	do {
		old = was;
		count = (old ? xa_to_value(old) : 0) + by;
		if (count > TMESH_PROCESS_LEASES)
			return -EDQUOT;
		was = xa_cmpxchg(bound, nr, old, count ? xa_mk_value(count) : NULL, TMESH_GFP);
	} while (!xa_is_err(was) && was != old);
	return xa_err(was);
}

static void tmesh_lease_release(struct kref *ref)
{
	struct tmesh_lease_obj *lease = container_of(ref, struct tmesh_lease_obj, ref);

	if (lease->pid) {
		remove_wait_queue(&lease->pid->wait_pidfd, &lease->exit);
		tmesh_process_count(lease, lease->pid, -1);
		put_pid(lease->pid);
	}
	tmesh_lease_expiry_fini(lease);
	free_page((unsigned long)lease->touch);
	free_page((unsigned long)lease->status);
	tmesh_uncharge(lease->user, TMESH_BYTES, TMESH_LEASE_BYTES);
	tmesh_user_put(lease->user);
	kfree(lease);
	atomic_long_dec(&tmesh_leases);
}

/**
 * tmesh_lease_put() - drop a reference
 * @lease: the lease
 *
 * Context: process context; no locks are held.
 */
void tmesh_lease_put(struct tmesh_lease_obj *lease)
{
	kref_put(&lease->ref, tmesh_lease_release);
}

/**
 * tmesh_lease_due() - queue a lease to lapse
 * @lease: the lease, which may have no references left
 *
 * Context: any.
 */
void tmesh_lease_due(struct tmesh_lease_obj *lease)
{
	struct tmesh_due *due;
	unsigned long flags;

	/* Queue it once only, so that no reference has to be dropped here. */
	if (test_and_set_bit(TMESH_LEASE_DUE, &lease->flags) ||
	    !kref_get_unless_zero(&lease->ref))
		return;
	due = tmesh_user_due(lease->user);
	spin_lock_irqsave(&due->lock, flags);
	list_add_tail(&lease->due, &due->leases);
	if (!due->queued) {
		due->queued = true;
		tmesh_user_hold(lease->user);
		due->user = lease->user;
		queue_work(tmesh_lapse_wq, &due->work);
	}
	spin_unlock_irqrestore(&due->lock, flags);
}

/**
 * tmesh_lease_end() - write the state of a lease that ends
 * @lease: live
 * @state: TMESH_LEASE_LAPSED or TMESH_LEASE_REVOKED
 *
 * The state is written before mappings are taken away, so that a process that loses one can find
 * out why.
 *
 * Context: the locks of the state are held; see struct tmesh_lease_obj.
 */
void tmesh_lease_end(struct tmesh_lease_obj *lease, u32 state)
{
	/* Pairs with the acquire by which user space reads the state after it has used the data. */
	smp_store_release(&lease->status->state, state);
	WRITE_ONCE(lease->state, state);
}

/**
 * tmesh_lease_join() - let a claim share a lease
 * @lease: the lease
 * @claim: a claim without a lease
 *
 * Context: claims_lock is held.
 */
void tmesh_lease_join(struct tmesh_lease_obj *lease, struct tmesh_claim *claim)
{
	lockdep_assert_held(&claim->region->claims_lock);
	kref_get(&lease->ref);
	list_add_tail(&claim->lease_node, &lease->claims);
	WRITE_ONCE(lease->nr_claims, lease->nr_claims + 1);
	/* Pairs with the acquires in calls on the handle, which read it without a lock. */
	smp_store_release(&claim->lease, lease);
}

/**
 * tmesh_lease_leave() - remove a claim from its lease
 * @claim: a claim that was in the region's list
 *
 * The lease ends with its last claim. The claim keeps its reference.
 *
 * Context: claims_lock is held.
 * Return: true if it was the last one. The caller then calls tmesh_lease_wake().
 */
bool tmesh_lease_leave(struct tmesh_claim *claim)
{
	struct tmesh_lease_obj *lease = claim->lease;

	lockdep_assert_held(&claim->region->claims_lock);
	if (!lease)
		return false;
	list_del(&claim->lease_node);
	WRITE_ONCE(lease->nr_claims, lease->nr_claims - 1);
	if (lease->nr_claims)
		return false;
	if (lease->state == TMESH_LEASE_LIVE)
		tmesh_lease_end(lease, TMESH_LEASE_LAPSED);
	tmesh_lease_expiry_stop(lease);
	list_del(&lease->node);
	RCU_INIT_POINTER(lease->region, NULL);
	return true;
}

/**
 * tmesh_lease_wake() - wake pollers of a claim's lease
 * @claim: the last claim of the lease, after tmesh_lease_leave()
 *
 * Context: claims_lock is not held.
 */
void tmesh_lease_wake(struct tmesh_claim *claim)
{
	tmesh_wakes();
	wake_up_all(&claim->lease->wait);
}

/**
 * tmesh_lease_drop() - drop a claim's reference to its lease
 * @claim: a claim that has left its lease or has none
 *
 * Context: process context; no locks are held.
 */
void tmesh_lease_drop(struct tmesh_claim *claim)
{
	if (claim->lease)
		tmesh_lease_put(claim->lease);
}

/**
 * tmesh_lease_times() - read the period of a claim's lease and the time left
 * @claim:     the claim
 * @period_ns: set to its period, 0 for none
 * @left_ns:   set to the least time that it lives without a touch
 */
void tmesh_lease_times(const struct tmesh_claim *claim, u64 *period_ns, u64 *left_ns)
{
	/* Pairs with the release in tmesh_lease_join(). */
	struct tmesh_lease_obj *lease = smp_load_acquire(&claim->lease);

	*period_ns = lease ? lease->period_ns : 0;
	*left_ns = lease ? tmesh_lease_expiry_left(lease) : 0;
}

/**
 * tmesh_lease_count() - count leases
 *
 * Return: number of leases.
 */
long tmesh_lease_count(void)
{
	return atomic_long_read(&tmesh_leases);
}

static bool tmesh_process_ended(struct pid *pid)
{
	struct task_struct *task;
	bool ended;

	rcu_read_lock();
	task = pid_task(pid, PIDTYPE_TGID);
	ended = !task || (READ_ONCE(task->exit_state) && thread_group_empty(task));
	rcu_read_unlock();
	return ended;
}

/*
 * Queue the lease if its process has ended. Called with the lock of the pid's wait queue held and
 * interrupts off.
 */
static int tmesh_process_wake(struct wait_queue_entry *entry, unsigned int mode, int sync,
			      void *key)
{
	struct tmesh_lease_obj *lease = container_of(entry, struct tmesh_lease_obj, exit);

	if (tmesh_process_ended(lease->pid))
		tmesh_lease_due(lease);
	return 0;
}

struct tmesh_process_poll {
	poll_table table;
	struct tmesh_lease_obj *lease;
	int rc;
};

/*
 * Take the pid from the wait queue: poll() of a pidfd waits on the pid's own queue. Modules have no
 * other way from the file to the pid.
 */
static void tmesh_process_queue(struct file *file, wait_queue_head_t *head, poll_table *table)
{
	struct tmesh_process_poll *poll = container_of(table, struct tmesh_process_poll, table);
	struct pid *pid = container_of(head, struct pid, wait_pidfd);
	struct tmesh_lease_obj *lease = poll->lease;

	poll->rc = tmesh_process_count(lease, pid, 1);
	if (poll->rc)
		return;
	lease->pid = get_pid(pid);
	add_wait_queue(head, &lease->exit);
}

static int tmesh_lease_bind_process(struct tmesh_lease_obj *lease, int pidfd)
{
	struct tmesh_process_poll poll = { .lease = lease };
	struct file *file = fget(pidfd);
	int rc = 0;

	if (!file)
		return -EBADF;
	if (!tmesh_is_pidfd(file)) {
		rc = -EINVAL;
	} else {
		init_poll_funcptr(&poll.table, tmesh_process_queue);
		rc = vfs_poll(file, &poll.table) & EPOLLIN ? -ESRCH : poll.rc;
	}
	fput(file);
	return rc;
}

/**
 * tmesh_lease_new() - allocate a lease without claims
 * @cmd: the call; its period was checked
 *
 * Return: the lease with a reference; or as a pointer -ENOMEM, -EDQUOT; -EBADF, -EINVAL, -ESRCH or
 * -EDQUOT for the process.
 */
struct tmesh_lease_obj *tmesh_lease_new(const struct tmesh_lease *cmd)
{
	struct tmesh_lease_obj *lease;
	int rc = -ENOMEM;

	lease = kzalloc(sizeof(*lease), TMESH_GFP);
	if (!lease)
		return ERR_PTR(-ENOMEM);
	kref_init(&lease->ref);
	init_waitqueue_head(&lease->wait);
	INIT_LIST_HEAD(&lease->claims);
	init_waitqueue_func_entry(&lease->exit, tmesh_process_wake);
	lease->period_ns = cmd->period_ns;
	lease->state = TMESH_LEASE_LIVE;
	lease->user = tmesh_user_get(current_euid());
	if (IS_ERR(lease->user)) {
		rc = PTR_ERR(lease->user);
		goto free;
	}
	rc = tmesh_charge(lease->user, TMESH_BYTES, TMESH_LEASE_BYTES);
	if (rc)
		goto put_user;
	rc = -ENOMEM;
	lease->touch = (void *)__get_free_page(TMESH_LEASE_GFP);
	if (!lease->touch)
		goto uncharge;
	lease->status = (void *)__get_free_page(TMESH_LEASE_GFP);
	if (!lease->status)
		goto free_touch;
	lease->status->state = TMESH_LEASE_LIVE;
	lease->status->period_ns = lease->period_ns;
	rc = tmesh_lease_expiry_init(lease);
	if (rc)
		goto free_status;
	atomic_long_inc(&tmesh_leases);
	if (cmd->flags & TMESH_LEASE_PROCESS) {
		rc = tmesh_lease_bind_process(lease, cmd->pidfd);
		if (rc) {
			tmesh_lease_put(lease);
			return ERR_PTR(rc);
		}
	}
	return lease;

free_status:
	free_page((unsigned long)lease->status);
free_touch:
	free_page((unsigned long)lease->touch);
uncharge:
	tmesh_uncharge(lease->user, TMESH_BYTES, TMESH_LEASE_BYTES);
put_user:
	tmesh_user_put(lease->user);
free:
	kfree(lease);
	return ERR_PTR(rc);
}
