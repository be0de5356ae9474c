// SPDX-License-Identifier: GPL-2.0-only
/*
 * Leases: a claim's right to its region ends when the lease is not touched for its period, or with
 * a process.
 *
 * A lease is shared by the handle that it was put on, by handles derived from it, and by exports
 * and views made through them. It has two pages. User space touches the lease by writing to the
 * first. The second shows its state, and the kernel writes it before it takes mappings away. User
 * space holds a lease only through lease files, which map these pages.
 */
#include <linux/anon_inodes.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/list_sort.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "account.h"
#include "claim.h"
#include "fence.h"
#include "lease.h"
#include "main.h"
#include "map.h"
#include "mem.h"
#include "region.h"
#include "trace.h"
#include "ucmd.h"
#include "lease_expiry.h"

#define TMESH_LEASE_BYTES (2 * PAGE_SIZE)
#define TMESH_LEASE_GFP (TMESH_GFP | __GFP_ZERO)

/* The number of leases, and of passes over a region that ended some; for debugfs. */
static atomic_long_t tmesh_leases;
static atomic_long_t tmesh_passes;

/* The most leases that end under one hold of claims_lock */
#define TMESH_LAPSE_PIECE 256

/* The delay before another try at regions whose cut_lock was contended */
#define TMESH_LAPSE_AGAIN msecs_to_jiffies(10)

static void tmesh_lease_release(struct kref *ref)
{
	struct tmesh_lease_obj *lease = container_of(ref, struct tmesh_lease_obj, ref);

	if (lease->pid) {
		remove_wait_queue(&lease->pid->wait_pidfd, &lease->exit);
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

static void tmesh_lease_put(struct tmesh_lease_obj *lease)
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

/*
 * End a lease. The state is written before mappings are taken away, so that a process that loses
 * one can find out why.
 */
static void tmesh_lease_end(struct tmesh_lease_obj *lease, u32 state)
{
	/* Pairs with the acquire by which user space reads the state after it has used the data. */
	smp_store_release(&lease->status->state, state);
	WRITE_ONCE(lease->state, state);
}

static struct tmesh_region *tmesh_lease_region(struct tmesh_lease_obj *lease)
{
	struct tmesh_region *region;

	rcu_read_lock();
	region = rcu_dereference(lease->region);
	if (region && !kref_get_unless_zero(&region->ref))
		region = NULL;
	rcu_read_unlock();
	return region;
}

/**
 * struct tmesh_lapsing - leases of a region that lapse together in one pass
 * @leases:  the leases
 * @mem:     the region's memory; reference
 * @claims:  number of claims that share them
 * @writers: number of their writable mappings, which are uncounted once they are gone
 */
struct tmesh_lapsing {
	struct list_head leases;
	struct tmesh_mem *mem;
	unsigned int claims;
	int writers;
};

/* Let leases lapse. From now on their claims cannot map anything. */
static void tmesh_lapse_begin(struct tmesh_region *region, struct tmesh_lapsing *lapsing)
{
	struct tmesh_lease_obj *lease;

	lockdep_assert_held(&region->claims_lock);
	if (list_empty(&lapsing->leases))
		return;
	down_write(&region->lock);
	lapsing->mem = tmesh_mem_hold(region->mem);
	list_for_each_entry(lease, &lapsing->leases, ending) {
		tmesh_lease_end(lease, TMESH_LEASE_LAPSED);
		lapsing->writers += atomic_read(&lease->writers);
		lapsing->claims += lease->nr_claims;
	}
	up_write(&region->lock);

	list_for_each_entry(lease, &lapsing->leases, ending)
		tmesh_lease_expiry_stop(lease);
}

static void tmesh_lapse_claim(struct tmesh_claim *claim)
{
	claim->ops->cut(claim);
}

/*
 * Take away the mappings of all claims of the leases. The mappings count as writers until they are
 * gone.
 */
static void tmesh_lapse_cut(struct tmesh_region *region, struct tmesh_lapsing *lapsing)
{
	struct tmesh_lease_obj *lease;

	lockdep_assert_held(&region->cut_lock);
	if (!lapsing->mem)
		return;
	tmesh_fence_abandon_lapsed(region);
	tmesh_flush_faults(region, lapsing->mem);
	list_for_each_entry(lease, &lapsing->leases, ending) {
		tmesh_claims_each(region, lease, READ_ONCE(lease->nr_claims), tmesh_lapse_claim);
		trace_tmesh_lapse(region->id, lease->period_ns, lease->pid);
	}
	mutex_lock(&region->claims_lock);
	atomic_sub(lapsing->writers, &region->writers);
	region->nr_live -= lapsing->claims;
	mutex_unlock(&region->claims_lock);
	atomic_long_inc(&tmesh_passes);
}

static void tmesh_leases_wake(struct tmesh_region *region)
{
	/* A remaining holder may now be the only one. */
	tmesh_wake(&region->wait, EPOLLHUP | EPOLLERR | EPOLLOUT);
}

static void tmesh_lease_lapse(struct tmesh_lease_obj *lease)
{
	struct tmesh_region *region = tmesh_lease_region(lease);
	struct tmesh_lapsing lapsing = { .leases = LIST_HEAD_INIT(lapsing.leases) };

	if (!region)
		return;
	mutex_lock(&region->cut_lock);
	mutex_lock(&region->claims_lock);
	if (lease->state == TMESH_LEASE_LIVE)
		list_add(&lease->ending, &lapsing.leases);
	tmesh_lapse_begin(region, &lapsing);
	mutex_unlock(&region->claims_lock);
	tmesh_lapse_cut(region, &lapsing);
	mutex_unlock(&region->cut_lock);
	if (lapsing.mem)
		tmesh_mem_put(lapsing.mem);
	tmesh_wakes();
	wake_up_all(&lease->wait);
	tmesh_leases_wake(region);
	tmesh_region_put(region);
}

/* Test whether a lease is one of this region and still live. */
static bool tmesh_lease_ends(const struct tmesh_lease_obj *lease, const struct tmesh_region *region)
{
	lockdep_assert_held(&region->claims_lock);
	return rcu_access_pointer(lease->region) == region && lease->state == TMESH_LEASE_LIVE;
}

/* Move the leases of a busy region to @busy: a walk over its claims may take long. */
static void tmesh_leases_put_off(struct tmesh_region *region, struct list_head *due,
				 struct list_head *busy)
{
	struct tmesh_lease_obj *lease, *next;

	list_for_each_entry_safe(lease, next, due, due) {
		if (lease->id != region->id)
			return;
		list_move_tail(&lease->due, busy);
		cond_resched();
	}
}

/*
 * End some leases of a region from the head of @due, and move them to @over. End only
 * TMESH_LAPSE_PIECE of them at a time, because exiting processes need claims_lock. If cut_lock is
 * contended, move them to @busy, so that one region does not delay the leases of others. Return
 * true if there are more.
 */
static bool tmesh_leases_lapse_piece(struct tmesh_region *region, struct list_head *due,
				     struct list_head *over, struct list_head *busy)
{
	struct tmesh_lapsing lapsing = { .leases = LIST_HEAD_INIT(lapsing.leases) };
	struct tmesh_lease_obj *lease, *next;
	unsigned int looks = 0;

	if (!mutex_trylock(&region->cut_lock)) {
		tmesh_leases_put_off(region, due, busy);
		return false;
	}
	mutex_lock(&region->claims_lock);
	list_for_each_entry_safe(lease, next, due, due) {
		if (lease->id != region->id || looks++ == TMESH_LAPSE_PIECE)
			break;
		list_move_tail(&lease->due, over);
		if (tmesh_lease_ends(lease, region))
			list_add_tail(&lease->ending, &lapsing.leases);
	}
	tmesh_lapse_begin(region, &lapsing);
	mutex_unlock(&region->claims_lock);
	tmesh_lapse_cut(region, &lapsing);
	mutex_unlock(&region->cut_lock);
	if (lapsing.mem)
		tmesh_mem_put(lapsing.mem);
	cond_resched();
	return looks > TMESH_LAPSE_PIECE;
}

static int tmesh_lease_cmp(void *priv, const struct list_head *a, const struct list_head *b)
{
	const struct tmesh_lease_obj *x = list_entry(a, struct tmesh_lease_obj, due);
	const struct tmesh_lease_obj *y = list_entry(b, struct tmesh_lease_obj, due);

	cond_resched();
	return x->id > y->id;
}

/*
 * End leases and drop their references: those of a region together. Those of busy regions move to
 * @busy.
 */
static void tmesh_leases_lapse(struct list_head *due, struct list_head *busy)
{
	struct tmesh_lease_obj *lease, *next;
	struct tmesh_region *region;
	LIST_HEAD(over);

	list_sort(NULL, due, tmesh_lease_cmp);
	while ((lease = list_first_entry_or_null(due, struct tmesh_lease_obj, due))) {
		region = tmesh_lease_region(lease);
		/* The lease has no claim any more, or none yet. */
		if (!region)
			list_move(&lease->due, &over);
		else
			while (tmesh_leases_lapse_piece(region, due, &over, busy))
				;
		list_for_each_entry_safe(lease, next, &over, due) {
			list_del(&lease->due);
			tmesh_wakes();
			wake_up_all(&lease->wait);
			tmesh_lease_put(lease);
			cond_resched();
		}
		if (region) {
			tmesh_leases_wake(region);
			tmesh_region_put(region);
		}
	}
}

/**
 * tmesh_lease_work() - end the leases of a uid that are due
 * @work: the work of a struct tmesh_due
 */
void tmesh_lease_work(struct work_struct *work)
{
	struct tmesh_due *due = container_of(work, struct tmesh_due, work);
	struct tmesh_user *user = NULL;
	LIST_HEAD(leases);
	LIST_HEAD(busy);

	while (!user) {
		if (!list_empty(&busy))
			schedule_timeout_uninterruptible(TMESH_LAPSE_AGAIN);
		list_splice_init(&busy, &leases);
		spin_lock_irq(&due->lock);
		list_splice_init(&due->leases, &leases);
		if (list_empty(&leases)) {
			due->queued = false;
			swap(user, due->user);
		}
		spin_unlock_irq(&due->lock);
		tmesh_leases_lapse(&leases, &busy);
	}
	/* This may free @due, unless the work was queued anew. */
	tmesh_user_put(user);
}

/**
 * tmesh_leases_revoke() - end all leases of a region that is being revoked
 * @region: the region
 *
 * Context: claims_lock is held, and the region's lock for writing.
 * Return: number of leases, for tmesh_leases_tell().
 */
unsigned long tmesh_leases_revoke(struct tmesh_region *region)
{
	struct tmesh_lease_obj *lease;
	unsigned long nr = 0;

	lockdep_assert_held_write(&region->lock);
	list_for_each_entry(lease, &region->leases, node) {
		nr++;
		cond_resched();
		if (lease->state != TMESH_LEASE_LIVE)
			continue;
		tmesh_lease_end(lease, TMESH_LEASE_REVOKED);
		tmesh_lease_expiry_stop(lease);
	}
	return nr;
}

static struct tmesh_lease_obj *tmesh_leases_next(struct tmesh_region *region)
{
	struct tmesh_lease_obj *lease;

	mutex_lock(&region->claims_lock);
	lease = list_first_entry_or_null(&region->leases, struct tmesh_lease_obj, node);
	if (lease) {
		list_move_tail(&lease->node, &region->leases);
		kref_get(&lease->ref);
	}
	mutex_unlock(&region->claims_lock);
	return lease;
}

/**
 * tmesh_leases_tell() - wake pollers of the leases of a revoked region
 * @region: revoked
 * @nr:     number of leases when it was revoked
 *
 * claims_lock is not held across the wake-ups: a user may have made many pollers, and exiting
 * processes need the lock.
 *
 * Context: cut_lock is held, so that there is one walk at a time; may sleep.
 */
void tmesh_leases_tell(struct tmesh_region *region, unsigned long nr)
{
	struct tmesh_lease_obj *lease;

	lockdep_assert_held(&region->cut_lock);
	while (nr-- && (lease = tmesh_leases_next(region))) {
		tmesh_wakes();
		wake_up_all(&lease->wait);
		tmesh_lease_put(lease);
		cond_resched();
	}
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

/**
 * tmesh_lease_passes() - count the passes in which leases have lapsed
 *
 * Return: number of passes since the module was loaded.
 */
long tmesh_lease_passes(void)
{
	return atomic_long_read(&tmesh_passes);
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
};

/*
 * Take the pid from the wait queue: poll() of a pidfd waits on the pid's own queue. Modules have no
 * other way from the file to the pid.
 */
static void tmesh_process_queue(struct file *file, wait_queue_head_t *head, poll_table *table)
{
	struct tmesh_lease_obj *lease =
		container_of(table, struct tmesh_process_poll, table)->lease;

	lease->pid = get_pid(container_of(head, struct pid, wait_pidfd));
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
		if (vfs_poll(file, &poll.table) & EPOLLIN)
			rc = -ESRCH;
	}
	fput(file);
	return rc;
}

static struct tmesh_lease_obj *tmesh_lease_new(const struct tmesh_lease *cmd)
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

/* Put a lease on a claim. Nothing may fail afterwards. */
static int tmesh_lease_attach(struct tmesh_lease_obj *lease, struct tmesh_claim *claim)
{
	struct tmesh_region *region = claim->region;
	int rc = 0;

	if (mutex_lock_killable(&region->claims_lock))
		return -EINTR;
	down_write(&region->lock);
	if (region->state & TMESH_STATE_REVOKED || tmesh_claim_lapsed(claim)) {
		rc = -ESTALE;
	} else if (claim->lease) {
		rc = -EBUSY;
	} else if (atomic_read(&region->mem->escaped)) {
		rc = -EOPNOTSUPP;
	} else {
		lease->id = region->id;
		rcu_assign_pointer(lease->region, region);
		list_add_tail(&lease->node, &region->leases);
		tmesh_lease_join(lease, claim);
		atomic_set(&lease->writers, atomic_read(&claim->writers));
		tmesh_lease_expiry_start(lease);
	}
	up_write(&region->lock);
	mutex_unlock(&region->claims_lock);
	if (rc)
		return rc;
	trace_tmesh_lease(region->id, lease->period_ns, lease->pid);
	/*
	 * A process that ended meanwhile has set TMESH_LEASE_DUE, and the work may have run before
	 * the lease had a region.
	 */
	smp_mb();
	if (test_bit(TMESH_LEASE_DUE, &lease->flags))
		tmesh_lease_lapse(lease);
	return 0;
}

static vm_fault_t tmesh_lease_fault(struct vm_fault *vmf)
{
	const struct tmesh_lease_obj *lease = vmf->vma->vm_file->private_data;

	vmf->page = virt_to_page(vmf->pgoff ? (void *)lease->status : (void *)lease->touch);
	get_page(vmf->page);
	return 0;
}

static const struct vm_operations_struct tmesh_lease_vm_ops = {
	.fault = tmesh_lease_fault,
};

/* Map one of the two pages: the first may be writable, the second not. */
static int tmesh_lease_mmap(struct file *file, struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_MAYSHARE) || vma->vm_pgoff > 1 || vma_pages(vma) != 1)
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	if (vma->vm_pgoff) {
		if (vma->vm_flags & VM_WRITE)
			return -EACCES;
		vm_flags_clear(vma, VM_MAYWRITE);
	}
	vm_flags_clear(vma, VM_MAYEXEC);
	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_ops = &tmesh_lease_vm_ops;
	return 0;
}

static __poll_t tmesh_lease_poll(struct file *file, poll_table *wait)
{
	struct tmesh_lease_obj *lease = file->private_data;

	poll_wait(file, &lease->wait, wait);
	return READ_ONCE(lease->state) == TMESH_LEASE_LIVE ? 0 : EPOLLHUP;
}

static int tmesh_lease_file_release(struct inode *inode, struct file *file)
{
	tmesh_lease_put(file->private_data);
	return 0;
}

static void tmesh_lease_show_fdinfo(struct seq_file *m, struct file *file)
{
	static const char * const names[] = {
		[TMESH_LEASE_LIVE] = "live",
		[TMESH_LEASE_LAPSED] = "lapsed",
		[TMESH_LEASE_REVOKED] = "revoked",
	};
	struct tmesh_lease_obj *lease = file->private_data;

	seq_printf(m, "tmesh-region:\t%llu\n", lease->id);
	seq_printf(m, "tmesh-lease:\t%s\n", names[READ_ONCE(lease->state)]);
	seq_printf(m, "tmesh-lease-ns:\t%llu\n", lease->period_ns);
	seq_printf(m, "tmesh-lease-left-ns:\t%llu\n", tmesh_lease_expiry_left(lease));
	seq_printf(m, "tmesh-lease-process:\t%d\n", !!lease->pid);
}

static const struct file_operations tmesh_lease_fops = {
	.owner = THIS_MODULE,
	.release = tmesh_lease_file_release,
	.mmap = tmesh_lease_mmap,
	.poll = tmesh_lease_poll,
	.show_fdinfo = tmesh_lease_show_fdinfo,
	.llseek = noop_llseek,
};

static int tmesh_lease_check(struct tmesh_lease *cmd)
{
	if (cmd->flags & TMESH_LEASE_GET)
		return cmd->flags != TMESH_LEASE_GET || cmd->period_ns || cmd->pidfd ? -EINVAL : 0;
	if (!(cmd->flags & TMESH_LEASE_PROCESS)) {
		if (cmd->pidfd)
			return -EINVAL;
		if (!cmd->period_ns)
			cmd->period_ns = TMESH_LEASE_DEFAULT_NS;
	}
	if (cmd->period_ns &&
	    (cmd->period_ns < TMESH_LEASE_MIN_NS || cmd->period_ns > TMESH_LEASE_MAX_NS))
		return -EINVAL;
	return 0;
}

static struct tmesh_lease_obj *tmesh_lease_of(const struct tmesh_claim *claim)
{
	/* Pairs with the release in tmesh_lease_join(). */
	struct tmesh_lease_obj *lease = smp_load_acquire(&claim->lease);

	if (!lease)
		return ERR_PTR(-ENODATA);
	kref_get(&lease->ref);
	return lease;
}

/**
 * tmesh_ioctl_lease() - TMESH_LEASE
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_lease(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	struct tmesh_lease *cmd = ucmd->cmd;
	bool get = cmd->flags & TMESH_LEASE_GET;
	struct tmesh_lease_obj *lease;
	struct file *file;
	int rc;

	rc = tmesh_lease_check(cmd);
	if (rc)
		return rc;
	rc = tmesh_claim_allows(claim, 0);
	if (rc)
		return rc;
	if (!get && claim->kind == TMESH_HOLDER_PINNING)
		return -EINVAL;
	rc = tmesh_memory_left();
	if (rc)
		return rc;
	lease = get ? tmesh_lease_of(claim) : tmesh_lease_new(cmd);
	if (IS_ERR(lease))
		return PTR_ERR(lease);
	file = anon_inode_getfile("[tmesh-lease]", &tmesh_lease_fops, lease, O_RDWR);
	if (IS_ERR(file)) {
		tmesh_lease_put(lease);
		return PTR_ERR(file);
	}
	rc = get_unused_fd_flags(O_CLOEXEC);
	if (rc < 0)
		goto put_file;
	cmd->fd = rc;
	cmd->period_ns = lease->period_ns;
	rc = tmesh_respond(ucmd, sizeof(*cmd));
	if (!rc && !get)
		rc = tmesh_lease_attach(lease, claim);
	if (rc)
		goto put_fd;
	fd_install(cmd->fd, file);
	return 0;

put_fd:
	put_unused_fd(cmd->fd);
put_file:
	fput(file);
	return rc;
}
