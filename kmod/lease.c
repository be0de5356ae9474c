// SPDX-License-Identifier: GPL-2.0-only
/*
 * Leases: the right to a region that ends unless somebody touches it, or with a process.
 *
 * A lease is shared by the handle it was put on, by the handles derived from that, and by what
 * is exported through them. It has two pages: one that user space writes to, which is how it is
 * touched, and one that says whether it still lives, which is written before anything is taken
 * away. Files that map them are its only part that user space holds.
 */
#include <linux/anon_inodes.h>
#include <linux/cred.h>
#include <linux/file.h>
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
#include "watch.h"

#define TMESH_LEASE_BYTES (2 * PAGE_SIZE)
#define TMESH_LEASE_GFP (TMESH_GFP | __GFP_ZERO)

/* How many there are, for debugfs. */
static atomic_long_t tmesh_leases;

static void tmesh_lease_release(struct kref *ref)
{
	struct tmesh_tenure *lease = container_of(ref, struct tmesh_tenure, ref);

	if (lease->pid) {
		remove_wait_queue(&lease->pid->wait_pidfd, &lease->exit);
		put_pid(lease->pid);
	}
	tmesh_watch_fini(lease);
	free_page((unsigned long)lease->touch);
	free_page((unsigned long)lease->status);
	tmesh_uncharge(lease->user, TMESH_BYTES, TMESH_LEASE_BYTES);
	tmesh_user_put(lease->user);
	kfree(lease);
	atomic_long_dec(&tmesh_leases);
}

static void tmesh_lease_put(struct tmesh_tenure *lease)
{
	kref_put(&lease->ref, tmesh_lease_release);
}

/**
 * tmesh_lease_due() - let a lease lapse, soon
 * @lease: of which there may be no reference left
 *
 * Context: any.
 */
void tmesh_lease_due(struct tmesh_tenure *lease)
{
	/* Once only, so that the reference never has to be given back here. */
	if (!test_and_set_bit(TMESH_LEASE_DUE, &lease->flags) &&
	    kref_get_unless_zero(&lease->ref))
		queue_work(tmesh_wq, &lease->lapse);
}

/* The state is written first: who sees that something is gone can see why. */
static void tmesh_lease_end(struct tmesh_tenure *lease, u32 state)
{
	/* For user space, which reads it after it found something gone. */
	smp_store_release(&lease->status->state, state);
	WRITE_ONCE(lease->state, state);
}

static struct tmesh_region *tmesh_lease_region(struct tmesh_tenure *lease)
{
	struct tmesh_region *region;

	rcu_read_lock();
	region = rcu_dereference(lease->region);
	if (region && !kref_get_unless_zero(&region->ref))
		region = NULL;
	rcu_read_unlock();
	return region;
}

/* Takes away what all claims of a lease have mapped. */
static void tmesh_lease_cut(struct tmesh_region *region, struct tmesh_tenure *lease)
{
	struct tmesh_claim *claim;

	lockdep_assert_held(&region->claims_lock);
	down_write(&region->lock);
	tmesh_lease_end(lease, TMESH_LEASE_LAPSED);
	/* What they have mapped shows nothing of the region any more. */
	list_for_each_entry(claim, &lease->claims, lease_node)
		atomic_sub(atomic_read(&claim->writers), &region->writers);
	up_write(&region->lock);

	tmesh_watch_stop(lease);
	tmesh_flush_faults(region->mem);
	list_for_each_entry(claim, &lease->claims, lease_node) {
		region->nr_live--;
		tmesh_fence_abandon(claim);
		claim->ops->cut(claim);
	}
	trace_tmesh_lapse(region->id, lease->period_ns, lease->pid);
}

static void tmesh_lease_lapse(struct tmesh_tenure *lease)
{
	struct tmesh_region *region = tmesh_lease_region(lease);

	if (!region)
		return;
	mutex_lock(&region->claims_lock);
	if (lease->state == TMESH_LEASE_LIVE)
		tmesh_lease_cut(region, lease);
	mutex_unlock(&region->claims_lock);
	wake_up_all(&lease->wait);
	wake_up_all(&region->wait);
	tmesh_region_put(region);
}

static void tmesh_lease_work(struct work_struct *work)
{
	struct tmesh_tenure *lease = container_of(work, struct tmesh_tenure, lapse);

	tmesh_lease_lapse(lease);
	tmesh_lease_put(lease);
}

/**
 * tmesh_leases_revoke() - tell all leases of a region that it is revoked
 * @region: about to be
 *
 * Context: claims_lock is held, and the region's lock for writing.
 */
void tmesh_leases_revoke(struct tmesh_region *region)
{
	struct tmesh_tenure *lease;

	lockdep_assert_held_write(&region->lock);
	list_for_each_entry(lease, &region->leases, node) {
		if (lease->state != TMESH_LEASE_LIVE)
			continue;
		tmesh_lease_end(lease, TMESH_LEASE_REVOKED);
		tmesh_watch_stop(lease);
		wake_up_all(&lease->wait);
	}
}

/**
 * tmesh_lease_join() - let a claim share a lease
 * @lease: the lease
 * @claim: that has none
 *
 * Context: claims_lock is held.
 */
void tmesh_lease_join(struct tmesh_tenure *lease, struct tmesh_claim *claim)
{
	lockdep_assert_held(&claim->region->claims_lock);
	kref_get(&lease->ref);
	list_add_tail(&claim->lease_node, &lease->claims);
	/* Calls on the handle look at it without a lock. */
	smp_store_release(&claim->lease, lease);
}

/**
 * tmesh_lease_leave() - a claim that shares a lease goes
 * @claim: in the region's list
 *
 * With the last one the lease is over. The claim keeps its reference.
 *
 * Context: claims_lock is held.
 */
void tmesh_lease_leave(struct tmesh_claim *claim)
{
	struct tmesh_tenure *lease = claim->lease;

	lockdep_assert_held(&claim->region->claims_lock);
	if (!lease)
		return;
	list_del(&claim->lease_node);
	if (!list_empty(&lease->claims))
		return;
	if (lease->state == TMESH_LEASE_LIVE)
		tmesh_lease_end(lease, TMESH_LEASE_LAPSED);
	tmesh_watch_stop(lease);
	list_del(&lease->node);
	RCU_INIT_POINTER(lease->region, NULL);
	wake_up_all(&lease->wait);
}

/**
 * tmesh_lease_drop() - drop a claim's reference to its lease
 * @claim: that has left it, or has none
 *
 * Context: process context, no locks.
 */
void tmesh_lease_drop(struct tmesh_claim *claim)
{
	if (claim->lease)
		tmesh_lease_put(claim->lease);
}

/**
 * tmesh_lease_times() - how long a claim's lease is and for how long it still lives
 * @claim:     the claim
 * @period_ns: set to its period, 0 for none
 * @left_ns:   set to what is left of it without a touch
 */
void tmesh_lease_times(const struct tmesh_claim *claim, u64 *period_ns, u64 *left_ns)
{
	/* Pairs with tmesh_lease_join(). */
	struct tmesh_tenure *lease = smp_load_acquire(&claim->lease);

	*period_ns = lease ? lease->period_ns : 0;
	*left_ns = lease ? tmesh_watch_left(lease) : 0;
}

/**
 * tmesh_lease_count() - leases that exist
 *
 * Return: their number.
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

/* Called with the lock of the pid's wait queue held, interrupts off. */
static int tmesh_process_wake(struct wait_queue_entry *entry, unsigned int mode, int sync,
			      void *key)
{
	struct tmesh_tenure *lease = container_of(entry, struct tmesh_tenure, exit);

	if (tmesh_process_ended(lease->pid))
		tmesh_lease_due(lease);
	return 0;
}

struct tmesh_process_poll {
	poll_table table;
	struct tmesh_tenure *lease;
};

/*
 * What a pidfd's poll waits on is the pid's own queue; there is no other way from the file to
 * the pid that modules may take.
 */
static void tmesh_process_queue(struct file *file, wait_queue_head_t *head, poll_table *table)
{
	struct tmesh_tenure *lease = container_of(table, struct tmesh_process_poll, table)->lease;

	lease->pid = get_pid(container_of(head, struct pid, wait_pidfd));
	add_wait_queue(head, &lease->exit);
}

static int tmesh_lease_bind(struct tmesh_tenure *lease, int pidfd)
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

static struct tmesh_tenure *tmesh_lease_new(const struct tmesh_lease *cmd)
{
	struct tmesh_tenure *lease;
	int rc = -ENOMEM;

	lease = kzalloc(sizeof(*lease), TMESH_GFP);
	if (!lease)
		return ERR_PTR(-ENOMEM);
	kref_init(&lease->ref);
	init_waitqueue_head(&lease->wait);
	INIT_LIST_HEAD(&lease->claims);
	INIT_WORK(&lease->lapse, tmesh_lease_work);
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
	rc = tmesh_watch_init(lease);
	if (rc)
		goto free_status;
	atomic_long_inc(&tmesh_leases);
	if (cmd->flags & TMESH_LEASE_PROCESS) {
		rc = tmesh_lease_bind(lease, cmd->pidfd);
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

/* Puts a lease on a claim; nothing can fail afterwards. */
static int tmesh_lease_attach(struct tmesh_tenure *lease, struct tmesh_claim *claim)
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
		tmesh_watch_start(lease);
	}
	up_write(&region->lock);
	mutex_unlock(&region->claims_lock);
	if (rc)
		return rc;
	trace_tmesh_lease(region->id, lease->period_ns, lease->pid);
	/* A process that ended meanwhile has queued the work, which may have found no region. */
	smp_mb();
	if (test_bit(TMESH_LEASE_DUE, &lease->flags))
		tmesh_lease_lapse(lease);
	return 0;
}

static vm_fault_t tmesh_lease_fault(struct vm_fault *vmf)
{
	const struct tmesh_tenure *lease = vmf->vma->vm_file->private_data;

	vmf->page = virt_to_page(vmf->pgoff ? (void *)lease->status : (void *)lease->touch);
	get_page(vmf->page);
	return 0;
}

static const struct vm_operations_struct tmesh_lease_vm_ops = {
	.fault = tmesh_lease_fault,
};

/* A page at a time: one may be written to and the other may not. */
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
	struct tmesh_tenure *lease = file->private_data;

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
	struct tmesh_tenure *lease = file->private_data;

	seq_printf(m, "tmesh-region:\t%llu\n", lease->id);
	seq_printf(m, "tmesh-lease:\t%s\n", names[READ_ONCE(lease->state)]);
	seq_printf(m, "tmesh-lease-ns:\t%llu\n", lease->period_ns);
	seq_printf(m, "tmesh-lease-left-ns:\t%llu\n", tmesh_watch_left(lease));
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

static struct tmesh_tenure *tmesh_lease_of(const struct tmesh_claim *claim)
{
	/* Pairs with tmesh_lease_join(). */
	struct tmesh_tenure *lease = smp_load_acquire(&claim->lease);

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
	struct tmesh_tenure *lease;
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
	rc = tmesh_room();
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
