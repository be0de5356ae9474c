// SPDX-License-Identifier: GPL-2.0-only
/*
 * The calls that create regions, and the steps that they share.
 */
#include <linux/cred.h>
#include <linux/dma-buf.h>
#include <linux/file.h>
#include <linux/ipc_namespace.h>
#include <linux/ktime.h>
#include <linux/nsproxy.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "account.h"
#include "backing.h"
#include "create.h"
#include "drain.h"
#include "fence.h"
#include "handle.h"
#include "hold.h"
#include "mem.h"
#include "poison.h"
#include "reclaim.h"
#include "region.h"
#include "registry.h"
#include "trace.h"
#include "ucmd.h"

/* Allocate a region without memory. The caller publishes it and drops the reference. */
static struct tmesh_region *tmesh_region_alloc(struct tmesh_user *user,
					       const struct tmesh_spec *spec)
{
	struct tmesh_region *region;
	kgid_t gid;
	int rc;

	rc = tmesh_label_valid(spec->label);
	if (rc)
		return ERR_PTR(rc);
	if (spec->mode & ~0660 || spec->hold_ms > TMESH_HOLD_MAX_MS)
		return ERR_PTR(-EINVAL);
	rc = tmesh_check_gid(spec->flags, spec->gid, &gid);
	if (rc)
		return ERR_PTR(rc);

	rc = tmesh_charge(user, TMESH_REGIONS, 1);
	if (rc)
		return ERR_PTR(rc);
	region = kzalloc(sizeof(*region), TMESH_GFP);
	if (!region) {
		rc = -ENOMEM;
		goto uncharge;
	}
	kref_init(&region->ref);
	init_rwsem(&region->lock);
	mutex_init(&region->cut_lock);
	mutex_init(&region->claims_lock);
	INIT_LIST_HEAD(&region->claims);
	INIT_LIST_HEAD(&region->gathers);
	tmesh_fence_init(&region->fence);
	INIT_LIST_HEAD(&region->leases);
	init_waitqueue_head(&region->wait);
	tmesh_hold_init(region);
	tmesh_drain_init(region);
	tmesh_poison_init(region);
	tmesh_region_teach(region);
	region->bytes = spec->bytes;
	region->nr_pages = spec->nr_pages;
	region->created_ns = ktime_get_ns();
	region->gid = gid;
	region->mode = spec->mode ? spec->mode : 0600;
	region->flags = spec->flags;
	region->node = spec->node;
	region->hold_ms = spec->hold_ms;
	region->cgroup_id = tmesh_cgroup_id();
	strscpy(region->label, spec->label, sizeof(region->label));
	rc = tmesh_registry_reserve(region, user);
	if (rc)
		goto free;
	tmesh_user_hold(user);
	region->user = user;
	region->uid = user->uid;
	region->ipc_ns = user->ipc_ns;
	return region;

free:
	kfree(region);
uncharge:
	tmesh_uncharge(user, TMESH_REGIONS, 1);
	return ERR_PTR(rc);
}

/**
 * tmesh_birth_begin() - begin to create a region: without memory, not visible yet
 * @birth: filled in
 * @spec:  the caller's request
 *
 * Return: 0, to be followed by tmesh_birth_end(); -EINVAL for a bad label, mode, hold or group;
 * -EPERM for a group that the caller is not in; -EDQUOT; -ENOMEM.
 */
int tmesh_birth_begin(struct tmesh_birth *birth, const struct tmesh_spec *spec)
{
	int rc;

	birth->file = NULL;
	birth->user = tmesh_user_get(current_euid());
	if (IS_ERR(birth->user))
		return PTR_ERR(birth->user);
	birth->region = tmesh_region_alloc(birth->user, spec);
	rc = PTR_ERR_OR_ZERO(birth->region);
	if (rc)
		tmesh_user_put(birth->user);
	return rc;
}

/**
 * tmesh_birth_handle() - give a region memory and its first handle
 * @birth:  begun
 * @mem:    its memory, whose reference this function takes; or an error pointer
 * @rights: TMESH_RIGHT_* of the handle
 *
 * Return: 0 and the handle's descriptor in @birth; or a negative error, such as that of @mem.
 */
int tmesh_birth_handle(struct tmesh_birth *birth, struct tmesh_mem *mem, u32 rights)
{
	struct tmesh_region *region = birth->region;
	int fd;

	if (IS_ERR(mem))
		return PTR_ERR(mem);
	region->backing = mem->ops->backing;
	region->huge_bytes = (u64)mem->nr_huge << PMD_SHIFT;
	/* From now on a revocation of a source may take the memory of a view away. */
	down_write(&region->lock);
	region->mem = mem;
	up_write(&region->lock);
	fd = tmesh_handle_new(region, rights, false, NULL, &birth->file);
	if (fd < 0) {
		birth->file = NULL;
		return fd;
	}
	birth->fd = fd;
	return 0;
}

/**
 * tmesh_birth_end() - publish a region, or discard it
 * @birth: begun
 * @rc:    0 if it has its handle and the answer was written, else the error
 *
 * Return: @rc.
 */
int tmesh_birth_end(struct tmesh_birth *birth, int rc)
{
	struct tmesh_region *region = birth->region;

	if (!rc) {
		trace_tmesh_create(region->id, region->bytes, region->huge_bytes, region->backing);
		tmesh_registry_publish(region);
		fd_install(birth->fd, birth->file);
	} else if (birth->file) {
		tmesh_handle_cancel(birth->fd, birth->file);
	}
	tmesh_region_put(region);
	tmesh_user_put(birth->user);
	return rc;
}

static int tmesh_create(struct tmesh_ucmd *ucmd, const struct tmesh_spec *spec,
			unsigned long *take)
{
	struct tmesh_create *cmd = ucmd->cmd;
	struct tmesh_birth birth;
	struct tmesh_mem *mem;
	int rc;

	rc = tmesh_birth_begin(&birth, spec);
	if (rc)
		return rc;
	mem = tmesh_pages_create(birth.user, spec->nr_pages, spec->flags, spec->node, take);
	rc = tmesh_birth_handle(&birth, mem, TMESH_RIGHTS_ALL);
	if (!rc) {
		cmd->fd = birth.fd;
		cmd->id = birth.region->id;
		rc = tmesh_respond(ucmd, sizeof(*cmd));
	}
	return tmesh_birth_end(&birth, rc);
}

/*
 * The number of pages of kept regions that a new region may reclaim: its length, the page list, and
 * the file.
 */
static unsigned long tmesh_create_take(const struct tmesh_spec *spec)
{
	return spec->nr_pages + DIV_ROUND_UP(spec->nr_pages, PAGE_SIZE / sizeof(struct page *)) +
	       TMESH_ROOM_PAGES;
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
	struct tmesh_spec spec = TMESH_SPEC(cmd);
	unsigned long take;
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
	/* The length must also be a valid file size. */
	if (check_add_overflow(cmd->bytes, unit - 1, &rounded) || rounded > LLONG_MAX)
		return -EINVAL;
	spec.nr_pages = (rounded & ~(unit - 1)) >> PAGE_SHIFT;

	take = huge ? 0 : tmesh_create_take(&spec);
	do {
		rc = tmesh_create(ucmd, &spec, &take);
		/* Reclaim here too: the page list and the file also need memory. */
	} while (rc == -ENOMEM && tmesh_reclaim_cgroup(&take));
	return rc;
}

static int tmesh_create_memfd(struct tmesh_ucmd *ucmd, struct tmesh_spec *spec,
			      struct file *memfd)
{
	struct tmesh_create_memfd *cmd = ucmd->cmd;
	struct tmesh_birth birth;
	struct tmesh_mem *mem;
	u64 file_bytes;
	int rc;

	rc = tmesh_memfd_rights(memfd, &cmd->rights);
	if (rc)
		return rc;
	/* The size is stable: F_SEAL_SHRINK was checked. */
	file_bytes = i_size_read(file_inode(memfd));
	if (!spec->bytes)
		spec->bytes = file_bytes;
	if (!spec->bytes || spec->bytes > file_bytes)
		return -EINVAL;
	spec->nr_pages = DIV_ROUND_UP_ULL(spec->bytes, PAGE_SIZE);

	rc = tmesh_birth_begin(&birth, spec);
	if (rc)
		return rc;
	mem = tmesh_backing_memfd(birth.user, memfd, spec->nr_pages, &cmd->rights);
	rc = tmesh_birth_handle(&birth, mem, cmd->rights);
	if (!rc) {
		cmd->fd = birth.fd;
		cmd->id = birth.region->id;
		rc = tmesh_respond(ucmd, sizeof(*cmd));
	}
	return tmesh_birth_end(&birth, rc);
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
	struct tmesh_spec spec = TMESH_SPEC(cmd);
	struct file *memfd;
	int rc;

	memfd = fget(cmd->memfd);
	if (!memfd)
		return -EBADF;
	rc = tmesh_create_memfd(ucmd, &spec, memfd);
	fput(memfd);
	return rc;
}

/**
 * tmesh_ioctl_create_user() - TMESH_CREATE_USER
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_create_user(struct tmesh_ucmd *ucmd)
{
	struct tmesh_create_user *cmd = ucmd->cmd;
	struct tmesh_spec spec = TMESH_SPEC(cmd);
	struct tmesh_birth birth;
	struct tmesh_mem *mem;
	u64 end;
	int rc;

	rc = tmesh_rights_valid(cmd->rights);
	if (rc)
		return rc;
	if (cmd->rights & TMESH_RIGHT_MANAGE || !cmd->bytes ||
	    !PAGE_ALIGNED(cmd->address | cmd->bytes) ||
	    check_add_overflow(cmd->address, cmd->bytes, &end))
		return -EINVAL;
	spec.nr_pages = cmd->bytes >> PAGE_SHIFT;
	cmd->reason = 0;
	cmd->bad_address = 0;

	rc = tmesh_birth_begin(&birth, &spec);
	if (rc)
		return rc;
	mem = tmesh_range_create(birth.user, cmd);
	rc = tmesh_birth_handle(&birth, mem, cmd->rights | TMESH_RIGHT_MANAGE);
	if (!rc) {
		cmd->fd = birth.fd;
		cmd->id = birth.region->id;
		rc = tmesh_respond(ucmd, sizeof(*cmd));
	} else if (cmd->reason && tmesh_respond(ucmd, sizeof(*cmd))) {
		rc = -EFAULT;
	}
	return tmesh_birth_end(&birth, rc);
}

static int tmesh_import_respond(struct tmesh_ucmd *ucmd, const struct tmesh_birth *birth)
{
	struct tmesh_import *cmd = ucmd->cmd;

	cmd->fd = birth->fd;
	cmd->id = birth->region->id;
	cmd->bytes = birth->region->bytes;
	cmd->backing = birth->region->backing;
	return tmesh_respond(ucmd, sizeof(*cmd));
}

static int tmesh_import_dmabuf(struct tmesh_ucmd *ucmd, struct tmesh_spec *spec,
			       struct dma_buf *dmabuf)
{
	struct tmesh_import *cmd = ucmd->cmd;
	struct tmesh_birth birth;
	struct tmesh_mem *mem;
	int rc;

	if (spec->bytes)
		return -EINVAL;
	rc = tmesh_import_rights(dmabuf, &cmd->rights);
	if (rc)
		return rc;
	spec->bytes = dmabuf->size;
	spec->nr_pages = dmabuf->size >> PAGE_SHIFT;

	rc = tmesh_birth_begin(&birth, spec);
	if (rc)
		return rc;
	mem = tmesh_import_create(birth.user, dmabuf);
	rc = tmesh_birth_handle(&birth, mem, cmd->rights);
	return tmesh_birth_end(&birth, rc ? rc : tmesh_import_respond(ucmd, &birth));
}

/* An opaque region has all rights. TMESH_RIGHT_WRITE is the right to get its file. */
static int tmesh_import_opaque(struct tmesh_ucmd *ucmd, const struct tmesh_spec *spec,
			       struct file *file)
{
	struct tmesh_import *cmd = ucmd->cmd;
	struct tmesh_birth birth;
	struct tmesh_mem *mem;
	int rc;

	if (!tmesh_opaque_fits(file))
		return -EOPNOTSUPP;
	cmd->rights = TMESH_RIGHTS_ALL;

	rc = tmesh_birth_begin(&birth, spec);
	if (rc)
		return rc;
	mem = tmesh_backing_opaque(birth.user, file);
	rc = tmesh_birth_handle(&birth, mem, cmd->rights);
	return tmesh_birth_end(&birth, rc ? rc : tmesh_import_respond(ucmd, &birth));
}

/**
 * tmesh_ioctl_import() - TMESH_IMPORT
 * @ucmd: the call
 *
 * Return: 0 or a negative error.
 */
int tmesh_ioctl_import(struct tmesh_ucmd *ucmd)
{
	struct tmesh_import *cmd = ucmd->cmd;
	struct tmesh_spec spec = TMESH_SPEC(cmd);
	struct dma_buf *dmabuf;
	struct file *file;
	int rc;

	if (cmd->pad)
		return -EINVAL;
	dmabuf = dma_buf_get(cmd->source);
	if (!IS_ERR(dmabuf)) {
		rc = tmesh_import_dmabuf(ucmd, &spec, dmabuf);
		dma_buf_put(dmabuf);
		return rc;
	}
	/* The descriptor was not a dma-buf a moment ago. */
	file = fget(cmd->source);
	if (!file)
		return -EBADF;
	rc = tmesh_import_opaque(ucmd, &spec, file);
	fput(file);
	return rc;
}
