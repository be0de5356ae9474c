// SPDX-License-Identifier: GPL-2.0-only
/*
 * Regions: how they are made, sealed, revoked and freed.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/ipc_namespace.h>
#include <linux/ktime.h>
#include <linux/nsproxy.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "tmesh.h"
#include "trace.h"

/* A seal waits this often, 1, 2, 4, ... ms, for readers that are just being unmapped. */
#define TMESH_SEAL_TRIES 6

/**
 * struct tmesh_spec - what TMESH_CREATE and TMESH_CREATE_MEMFD have in common
 * @bytes:     length asked for
 * @nr_pages:  length in pages
 * @flags:     TMESH_CREATE_*
 * @mode:      as given by the caller
 * @gid:       as given by the caller
 * @linger_ms: as given by the caller
 * @node:      NUMA node or NUMA_NO_NODE
 * @label:     as given by the caller
 */
struct tmesh_spec {
	u64 bytes;
	unsigned long nr_pages;
	u32 flags;
	u32 mode;
	u32 gid;
	u32 linger_ms;
	int node;
	const char *label;
};

static void tmesh_region_release(struct kref *ref)
{
	struct tmesh_region *region = container_of(ref, struct tmesh_region, ref);

	trace_tmesh_free(region->id);
	tmesh_names_remove(region);
	tmesh_registry_remove(region);
	if (region->mem)
		tmesh_mem_put(region->mem);
	kfree(region->desc);
	tmesh_put_ipc_ns(region->ipc_ns);
	tmesh_uncharge(region->user, 1, 0);
	tmesh_user_put(region->user);
	kfree_rcu(region, rcu);
}

/**
 * tmesh_region_put() - drop a reference
 * @region: the region
 *
 * Context: process context; frees the memory with the last reference.
 */
void tmesh_region_put(struct tmesh_region *region)
{
	kref_put(&region->ref, tmesh_region_release);
}

static int tmesh_check_label(const char *label)
{
	size_t len = strnlen(label, TMESH_LABEL_MAX + 1), i;

	if (len > TMESH_LABEL_MAX)
		return -EINVAL;
	for (i = 0; i < len; i++) {
		if ((unsigned char)label[i] < 0x20 || label[i] == 0x7f)
			return -EINVAL;
	}
	return 0;
}

static int tmesh_check_gid(const struct tmesh_spec *spec, kgid_t *gid)
{
	if (!(spec->flags & TMESH_CREATE_GID)) {
		*gid = current_egid();
		return spec->gid ? -EINVAL : 0;
	}
	*gid = make_kgid(current_user_ns(), spec->gid);
	if (!gid_valid(*gid))
		return -EINVAL;
	return in_egroup_p(*gid) ? 0 : -EPERM;
}

/* Everything but the memory; the caller publishes it and drops the reference. */
static struct tmesh_region *tmesh_region_new(struct tmesh_user *user,
					     const struct tmesh_spec *spec)
{
	struct tmesh_region *region;
	kgid_t gid;
	int rc;

	rc = tmesh_check_label(spec->label);
	if (rc)
		return ERR_PTR(rc);
	if (spec->mode & ~0660 || spec->linger_ms > TMESH_LINGER_MAX_MS)
		return ERR_PTR(-EINVAL);
	rc = tmesh_check_gid(spec, &gid);
	if (rc)
		return ERR_PTR(rc);

	rc = tmesh_charge(user, 1, 0);
	if (rc)
		return ERR_PTR(rc);
	region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);
	if (!region) {
		rc = -ENOMEM;
		goto uncharge;
	}
	kref_init(&region->ref);
	init_rwsem(&region->lock);
	mutex_init(&region->claims_lock);
	INIT_LIST_HEAD(&region->claims);
	init_waitqueue_head(&region->wait);
	tmesh_linger_init(region);
	region->bytes = spec->bytes;
	region->nr_pages = spec->nr_pages;
	region->created_ns = ktime_get_ns();
	region->gid = gid;
	region->mode = spec->mode ? spec->mode : 0600;
	region->flags = spec->flags;
	region->node = spec->node;
	region->linger_ms = spec->linger_ms;
	strscpy(region->label, spec->label, sizeof(region->label));
	rc = tmesh_registry_reserve(region);
	if (rc)
		goto free;
	tmesh_user_hold(user);
	region->user = user;
	region->uid = user->uid;
	region->ipc_ns = get_ipc_ns(current->nsproxy->ipc_ns);
	return region;

free:
	kfree(region);
uncharge:
	tmesh_uncharge(user, 1, 0);
	return ERR_PTR(rc);
}

static void tmesh_region_set_mem(struct tmesh_region *region, struct tmesh_mem *mem)
{
	region->mem = mem;
	region->backing = mem->ops->backing;
	region->huge_bytes = (u64)mem->nr_huge << PMD_SHIFT;
}

/**
 * tmesh_ioctl_create() - TMESH_CREATE
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_create(struct tmesh_ucmd *ucmd)
{
	struct tmesh_create *cmd = ucmd->cmd;
	bool huge = cmd->flags & TMESH_CREATE_HUGE;
	struct tmesh_spec spec = {
		.bytes = cmd->bytes,
		.flags = cmd->flags,
		.mode = cmd->mode,
		.gid = cmd->gid,
		.linger_ms = cmd->linger_ms,
		.node = NUMA_NO_NODE,
		.label = cmd->label,
	};
	struct tmesh_region *region;
	struct tmesh_user *user;
	struct tmesh_mem *mem;
	struct file *file;
	u64 unit, rounded;
	int rc;

	if (cmd->pad || !cmd->bytes)
		return -EINVAL;
	if (huge && cmd->flags & TMESH_CREATE_NOHUGE)
		return -EINVAL;
	if (huge && !IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE))
		return -EOPNOTSUPP;
	if (cmd->flags & TMESH_CREATE_NODE) {
		if (cmd->node < 0 || cmd->node >= MAX_NUMNODES || !node_state(cmd->node, N_MEMORY))
			return -EINVAL;
		spec.node = cmd->node;
	} else if (cmd->node) {
		return -EINVAL;
	}
	unit = huge ? PMD_SIZE : PAGE_SIZE;
	/* Lengths are file sizes too. */
	if (check_add_overflow(cmd->bytes, unit - 1, &rounded) || rounded > LLONG_MAX)
		return -EINVAL;
	spec.nr_pages = (rounded & ~(unit - 1)) >> PAGE_SHIFT;

	user = tmesh_user_get(current_euid());
	if (IS_ERR(user))
		return PTR_ERR(user);
	region = tmesh_region_new(user, &spec);
	rc = PTR_ERR_OR_ZERO(region);
	if (rc)
		goto put_user;
	mem = tmesh_pages_create(user, spec.nr_pages, spec.flags, spec.node);
	rc = PTR_ERR_OR_ZERO(mem);
	if (rc)
		goto put_region;
	tmesh_region_set_mem(region, mem);

	rc = tmesh_handle_new(region, TMESH_RIGHTS_ALL, false, &file);
	if (rc < 0)
		goto put_region;
	cmd->fd = rc;
	cmd->id = region->id;
	rc = tmesh_respond(ucmd, sizeof(*cmd));
	if (rc) {
		tmesh_handle_cancel(cmd->fd, file);
		goto put_region;
	}
	trace_tmesh_create(region->id, region->bytes, region->huge_bytes, region->backing);
	tmesh_registry_publish(region);
	fd_install(cmd->fd, file);
put_region:
	tmesh_region_put(region);
put_user:
	tmesh_user_put(user);
	return rc;
}

/**
 * tmesh_ioctl_create_memfd() - TMESH_CREATE_MEMFD
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_create_memfd(struct tmesh_ucmd *ucmd)
{
	struct tmesh_create_memfd *cmd = ucmd->cmd;
	struct tmesh_spec spec = {
		.bytes = cmd->bytes,
		.flags = cmd->flags,
		.mode = cmd->mode,
		.gid = cmd->gid,
		.linger_ms = cmd->linger_ms,
		.node = NUMA_NO_NODE,
		.label = cmd->label,
	};
	struct tmesh_region *region;
	struct file *memfd, *file;
	struct tmesh_user *user;
	struct tmesh_mem *mem;
	u64 file_bytes;
	int rc;

	memfd = fget(cmd->memfd);
	if (!memfd)
		return -EBADF;
	rc = tmesh_memfd_rights(memfd, &cmd->rights);
	if (rc)
		goto put_memfd;
	/* It cannot shrink any more. */
	file_bytes = i_size_read(file_inode(memfd));
	if (!spec.bytes)
		spec.bytes = file_bytes;
	rc = -EINVAL;
	if (!spec.bytes || spec.bytes > file_bytes)
		goto put_memfd;
	spec.nr_pages = DIV_ROUND_UP_ULL(spec.bytes, PAGE_SIZE);

	user = tmesh_user_get(current_euid());
	rc = PTR_ERR_OR_ZERO(user);
	if (rc)
		goto put_memfd;
	region = tmesh_region_new(user, &spec);
	rc = PTR_ERR_OR_ZERO(region);
	if (rc)
		goto put_user;
	mem = tmesh_memfd_create(user, memfd, spec.nr_pages);
	rc = PTR_ERR_OR_ZERO(mem);
	if (rc)
		goto put_region;
	tmesh_region_set_mem(region, mem);

	rc = tmesh_handle_new(region, cmd->rights, false, &file);
	if (rc < 0)
		goto put_region;
	cmd->fd = rc;
	cmd->id = region->id;
	rc = tmesh_respond(ucmd, sizeof(*cmd));
	if (rc) {
		tmesh_handle_cancel(cmd->fd, file);
		goto put_region;
	}
	trace_tmesh_create(region->id, region->bytes, region->huge_bytes, region->backing);
	tmesh_registry_publish(region);
	fd_install(cmd->fd, file);
put_region:
	tmesh_region_put(region);
put_user:
	tmesh_user_put(user);
put_memfd:
	fput(memfd);
	return rc;
}

/*
 * Mappings by the backing's own means are its file's: it counts them, but only once they are
 * linked, after our ->mmap() has returned. Until then the core counts them on the handle.
 */
static bool tmesh_mapping_in_flight(struct tmesh_region *region)
{
	struct tmesh_claim *claim;

	lockdep_assert_held(&region->claims_lock);
	list_for_each_entry(claim, &region->claims, node) {
		if (mapping_writably_mapped(claim->inode->i_mapping))
			return true;
	}
	return false;
}

static int tmesh_try_seal(struct tmesh_region *region)
{
	int rc = 0;

	lockdep_assert_held(&region->claims_lock);
	if (down_write_killable(&region->lock))
		return -EINTR;
	if (region->state & TMESH_STATE_REVOKED)
		rc = -ESTALE;
	else if (region->state & TMESH_STATE_SEALED)
		;
	else if (atomic_read(&region->writers))
		rc = -EBUSY;
	else if (region->mem->ops->mmap && tmesh_mapping_in_flight(region))
		rc = -EAGAIN;
	else
		rc = region->mem->ops->seal(region->mem);
	if (!rc)
		WRITE_ONCE(region->state, region->state | TMESH_STATE_SEALED);
	up_write(&region->lock);
	return rc;
}

/**
 * tmesh_ioctl_seal() - TMESH_SEAL
 * @ucmd: the call
 *
 * New writers are kept out by the lock. Without a writable mapping no page table lets
 * anybody take a page for writing; what was taken before shows in the page's counts.
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_seal(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	unsigned int try;
	int rc;

	rc = tmesh_claim_allows(claim, TMESH_RIGHT_MANAGE);
	if (rc)
		return rc;
	for (try = 0; ; try++) {
		if (mutex_lock_killable(&claim->region->claims_lock))
			return -EINTR;
		rc = tmesh_try_seal(claim->region);
		mutex_unlock(&claim->region->claims_lock);
		if (rc != -EAGAIN || try == TMESH_SEAL_TRIES)
			break;
		schedule_timeout_killable(msecs_to_jiffies(1 << try));
		if (fatal_signal_pending(current))
			return -EINTR;
	}
	if (rc == -EAGAIN)
		rc = -EBUSY;
	trace_tmesh_seal(claim->region->id, rc);
	return rc;
}

/* Flags the region, so that nobody starts anew, and takes its memory off it. */
static struct tmesh_mem *tmesh_revoke_begin(struct tmesh_region *region)
{
	struct tmesh_mem *mem;

	lockdep_assert_held(&region->claims_lock);
	if (down_write_killable(&region->lock))
		return ERR_PTR(-EINTR);
	if (region->state & TMESH_STATE_REVOKED) {
		mem = ERR_PTR(-ESTALE);
	} else if (!region->mem->ops->revocable) {
		mem = ERR_PTR(-EOPNOTSUPP);
	} else if (region->nr_pinning) {
		mem = ERR_PTR(-EBUSY);
	} else {
		WRITE_ONCE(region->state, region->state | TMESH_STATE_REVOKED);
		mem = region->mem;
		region->mem = NULL;
	}
	up_write(&region->lock);
	return mem;
}

/* Takes every mapping away and tells importers. Nothing here waits for a device. */
static void tmesh_revoke_claims(struct tmesh_region *region, struct tmesh_mem *mem)
{
	struct tmesh_claim *claim;

	lockdep_assert_held(&region->claims_lock);
	tmesh_names_remove(region);
	tmesh_flush_faults(mem);
	list_for_each_entry(claim, &region->claims, node) {
		tmesh_zap(claim);
		if (claim->kind == TMESH_HOLDER_EXPORT)
			tmesh_export_invalidate(claim);
	}
}

/**
 * tmesh_ioctl_revoke() - TMESH_REVOKE
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_revoke(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	struct tmesh_region *region = claim->region;
	struct tmesh_revoke *cmd = ucmd->cmd;
	struct tmesh_holder *holders = NULL;
	u32 room = cmd->count;
	struct tmesh_mem *mem;
	int rc;

	if (cmd->pad)
		return -EINVAL;
	rc = tmesh_check_stride(room, cmd->entry_bytes, offsetofend(struct tmesh_holder, comm));
	if (rc)
		return rc;
	rc = tmesh_claim_allows(claim, TMESH_RIGHT_MANAGE);
	if (rc)
		return rc;

	cmd->count = 0;
	cmd->total = 0;
	/* Once the region is revoked there is no way back. */
	rc = tmesh_respond(ucmd, sizeof(*cmd));
	if (rc)
		return rc;
	if (mutex_lock_killable(&region->claims_lock))
		return -EINTR;
	mem = tmesh_revoke_begin(region);
	rc = PTR_ERR_OR_ZERO(mem);
	if (!rc)
		tmesh_revoke_claims(region, mem);
	else if (rc == -EBUSY &&
		 tmesh_claims_describe(region, TMESH_HOLDER_PINNING, room, &holders, &cmd->count,
				       &cmd->total))
		rc = -ENOMEM;
	mutex_unlock(&region->claims_lock);

	if (!rc) {
		trace_tmesh_revoke(region->id);
		wake_up_all(&region->wait);
		tmesh_exports_wait(region);
		tmesh_mem_put(mem);
		return 0;
	}
	if (rc != -EBUSY)
		return rc;
	if (tmesh_put_holders(cmd->entries, cmd->entry_bytes, holders, cmd->count) ||
	    tmesh_respond(ucmd, sizeof(*cmd)))
		rc = -EFAULT;
	kvfree(holders);
	return rc;
}

/**
 * tmesh_ioctl_desc_set() - TMESH_DESC_SET
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_desc_set(struct tmesh_ucmd *ucmd)
{
	struct tmesh_claim *claim = &ucmd->handle->claim;
	struct tmesh_region *region = claim->region;
	struct tmesh_desc *cmd = ucmd->cmd;
	void *desc = NULL;
	int rc;

	if (cmd->pad || cmd->id || cmd->bytes > TMESH_DESC_MAX)
		return -EINVAL;
	rc = tmesh_claim_allows(claim, TMESH_RIGHT_MANAGE);
	if (rc)
		return rc;
	if (cmd->bytes) {
		desc = kmalloc(cmd->bytes, GFP_KERNEL_ACCOUNT);
		if (!desc)
			return -ENOMEM;
		if (copy_from_user(desc, u64_to_user_ptr(cmd->data), cmd->bytes)) {
			kfree(desc);
			return -EFAULT;
		}
	}
	down_write(&region->lock);
	if (region->state & TMESH_STATE_REVOKED) {
		rc = -ESTALE;
	} else if (region->state & TMESH_STATE_SEALED) {
		rc = -EPERM;
	} else {
		swap(region->desc, desc);
		WRITE_ONCE(region->desc_bytes, cmd->bytes);
	}
	up_write(&region->lock);
	kfree(desc);
	return rc;
}
