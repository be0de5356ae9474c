// SPDX-License-Identifier: GPL-2.0-only
/*
 * TMESH_LEASE, and lease files. lease.c has the leases.
 */
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/seq_file.h>

#include "claim.h"
#include "lease.h"
#include "lease_calls.h"
#include "lease_end.h"
#include "lease_expiry.h"
#include "mem.h"
#include "trace.h"
#include "ucmd.h"

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
