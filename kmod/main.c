// SPDX-License-Identifier: GPL-2.0-only
/*
 * tmesh: refcounted memory regions shared between processes and devices.
 *
 * The device, and the table of calls on the device and on handles.
 */
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/uaccess.h>

#include "account.h"
#include "backing.h"
#include "create.h"
#include "debug.h"
#include "drain.h"
#include "export.h"
#include "files_calls.h"
#include "fence.h"
#include "gather.h"
#include "handle.h"
#include "holders.h"
#include "keep.h"
#include "keep_calls.h"
#include "lease_calls.h"
#include "lease_end.h"
#include "fs.h"
#include "hold.h"
#include "main.h"
#include "query.h"
#include "reclaim.h"
#include "registry.h"
#include "renew.h"
#include "revoke.h"
#include "seal.h"
#include "lease_expiry.h"
#include "zeros.h"

/* For work that may drop the last reference to a region. Unloading the module waits for it. */
struct workqueue_struct *tmesh_wq;
/* For the walks over leases, which must not wait for other work, and for the end of leases. */
struct workqueue_struct *tmesh_expiry_wq;
struct workqueue_struct *tmesh_lapse_wq;
/* For memory that was pinned when its region ended. */
struct workqueue_struct *tmesh_orphan_wq;

#define TMESH_ON_DEVICE BIT(0)
#define TMESH_ON_HANDLE BIT(1)

/**
 * struct tmesh_op - a call
 * @size:     size of its structure in this module
 * @min_size: size of its structure as first published
 * @flags:    the flags that it accepts
 * @where:    TMESH_ON_*
 * @execute:  handles the call and writes the answer, before any step that cannot be undone
 */
struct tmesh_op {
	u32 size;
	u32 min_size;
	u32 flags;
	u32 where;
	int (*execute)(struct tmesh_ucmd *ucmd);
};

#define TMESH_OP(_cmd, _struct, _last, _flags, _where, _execute)                \
	[_IOC_NR(_cmd)] = {                                                     \
		.size = sizeof(struct _struct) +                                \
			BUILD_BUG_ON_ZERO(offsetof(struct _struct, size)) +     \
			BUILD_BUG_ON_ZERO(offsetof(struct _struct, flags) != 4), \
		.min_size = offsetofend(struct _struct, _last),                 \
		.flags = _flags,                                                \
		.where = _where,                                                \
		.execute = _execute,                                            \
	}

static const struct tmesh_op tmesh_ops[] = {
	TMESH_OP(TMESH_CAPS, tmesh_caps_query, used_regions, 0,
		 TMESH_ON_DEVICE | TMESH_ON_HANDLE, tmesh_ioctl_caps),
	TMESH_OP(TMESH_CREATE, tmesh_create, id,
		 TMESH_CREATE_HUGE | TMESH_CREATE_NOHUGE | TMESH_CREATE_NODE | TMESH_CREATE_GID |
			 TMESH_CREATE_NOPIN,
		 TMESH_ON_DEVICE, tmesh_ioctl_create),
	TMESH_OP(TMESH_CREATE_MEMFD, tmesh_create_memfd, id, TMESH_CREATE_GID | TMESH_CREATE_NOPIN,
		 TMESH_ON_DEVICE, tmesh_ioctl_create_memfd),
	TMESH_OP(TMESH_OPEN, tmesh_open, desc_bytes, 0, TMESH_ON_DEVICE,
		 tmesh_ioctl_open),
	TMESH_OP(TMESH_DERIVE, tmesh_derive, fd, TMESH_DERIVE_PIN, TMESH_ON_HANDLE,
		 tmesh_ioctl_derive),
	TMESH_OP(TMESH_TOKEN, tmesh_token, token, 0, TMESH_ON_HANDLE, tmesh_ioctl_token),
	TMESH_OP(TMESH_INFO, tmesh_info, label, TMESH_INFO_PINS, TMESH_ON_DEVICE | TMESH_ON_HANDLE,
		 tmesh_ioctl_info),
	TMESH_OP(TMESH_LIST, tmesh_list, pad, 0, TMESH_ON_DEVICE, tmesh_ioctl_list),
	TMESH_OP(TMESH_HOLDERS, tmesh_holders, pad, 0, TMESH_ON_DEVICE | TMESH_ON_HANDLE,
		 tmesh_ioctl_holders),
	TMESH_OP(TMESH_SEAL, tmesh_seal, flags, 0, TMESH_ON_HANDLE, tmesh_ioctl_seal),
	TMESH_OP(TMESH_EXPORT, tmesh_export, pad, TMESH_EXPORT_WRITE, TMESH_ON_HANDLE,
		 tmesh_ioctl_export),
	TMESH_OP(TMESH_DESC_SET, tmesh_desc, pad, 0, TMESH_ON_HANDLE, tmesh_ioctl_desc_set),
	TMESH_OP(TMESH_DESC_GET, tmesh_desc, pad, 0, TMESH_ON_DEVICE | TMESH_ON_HANDLE,
		 tmesh_ioctl_desc_get),
	TMESH_OP(TMESH_REVOKE, tmesh_revoke, pad, TMESH_REVOKE_WAIT,
		 TMESH_ON_DEVICE | TMESH_ON_HANDLE,
		 tmesh_ioctl_revoke),
	TMESH_OP(TMESH_POLICY, tmesh_policy, flags, TMESH_POLICY_ZERO, TMESH_ON_HANDLE,
		 tmesh_ioctl_policy),
	TMESH_OP(TMESH_LEASE, tmesh_lease, fd, TMESH_LEASE_PROCESS | TMESH_LEASE_GET,
		 TMESH_ON_HANDLE, tmesh_ioctl_lease),
	TMESH_OP(TMESH_CREATE_USER, tmesh_create_user, id, TMESH_CREATE_GID, TMESH_ON_DEVICE,
		 tmesh_ioctl_create_user),
	TMESH_OP(TMESH_IMPORT, tmesh_import, id, TMESH_CREATE_GID,
		 TMESH_ON_DEVICE, tmesh_ioctl_import),
	TMESH_OP(TMESH_OPAQUE, tmesh_opaque, pad, 0, TMESH_ON_HANDLE, tmesh_ioctl_opaque),
	TMESH_OP(TMESH_GATHER, tmesh_gather, id, TMESH_CREATE_GID, TMESH_ON_DEVICE,
		 tmesh_ioctl_gather),
	TMESH_OP(TMESH_SIGNAL, tmesh_signal, value, 0, TMESH_ON_HANDLE, tmesh_ioctl_signal),
	TMESH_OP(TMESH_WAIT, tmesh_wait, timeout_ns, 0, TMESH_ON_HANDLE,
		 tmesh_ioctl_wait),
	TMESH_OP(TMESH_KEEP, tmesh_keep, id, TMESH_KEEP_REPLACE | TMESH_KEEP_GID, TMESH_ON_DEVICE,
		 tmesh_ioctl_keep),
	TMESH_OP(TMESH_KEPT_OPEN, tmesh_kept_open, id, TMESH_KEPT_UID | TMESH_KEPT_PART,
		 TMESH_ON_DEVICE, tmesh_ioctl_kept_open),
	TMESH_OP(TMESH_KEPT_LIST, tmesh_kept_list, pad, 0, TMESH_ON_DEVICE,
		 tmesh_ioctl_kept_list),
	TMESH_OP(TMESH_KEPT_DROP, tmesh_kept_drop, id, TMESH_KEPT_ID, TMESH_ON_DEVICE,
		 tmesh_ioctl_kept_drop),
	TMESH_OP(TMESH_RENEW, tmesh_renew, flags, 0, TMESH_ON_HANDLE, tmesh_ioctl_renew),
	TMESH_OP(TMESH_KEPT_FILES, tmesh_kept_files, id, TMESH_KEPT_UID | TMESH_KEPT_FD,
		 TMESH_ON_DEVICE, tmesh_ioctl_kept_files),
};

union tmesh_cmd {
	struct {
		u32 size;
		u32 flags;
	} head;
	struct tmesh_caps_query caps;
	struct tmesh_create create;
	struct tmesh_create_memfd create_memfd;
	struct tmesh_open open;
	struct tmesh_derive derive;
	struct tmesh_token token;
	struct tmesh_info info;
	struct tmesh_list list;
	struct tmesh_holders holders;
	struct tmesh_seal seal;
	struct tmesh_export export;
	struct tmesh_desc desc;
	struct tmesh_revoke revoke;
	struct tmesh_create_user create_user;
	struct tmesh_import import;
	struct tmesh_opaque opaque;
	struct tmesh_gather gather;
	struct tmesh_signal signal;
	struct tmesh_wait wait;
	struct tmesh_policy policy;
	struct tmesh_lease lease;
	struct tmesh_keep keep;
	struct tmesh_kept_open kept_open;
	struct tmesh_kept_list kept_list;
	struct tmesh_kept_drop kept_drop;
	struct tmesh_renew renew;
	struct tmesh_kept_files kept_files;
};

/* Dispatch a call on a handle, or on the device if @handle is NULL. */
static long tmesh_ioctl(struct tmesh_handle *handle, unsigned int cmd, unsigned long arg)
{
	struct tmesh_ucmd ucmd = { .ubuffer = (void __user *)arg, .handle = handle };
	const struct tmesh_op *op;
	union tmesh_cmd buffer;
	int rc;

	if (_IOC_TYPE(cmd) != TMESH_IOC_MAGIC || cmd != _IO(TMESH_IOC_MAGIC, _IOC_NR(cmd)) ||
	    _IOC_NR(cmd) >= ARRAY_SIZE(tmesh_ops))
		return -ENOTTY;
	op = &tmesh_ops[array_index_nospec(_IOC_NR(cmd), ARRAY_SIZE(tmesh_ops))];
	if (!(op->where & (handle ? TMESH_ON_HANDLE : TMESH_ON_DEVICE)))
		return -ENOTTY;

	if (get_user(ucmd.user_size, (u32 __user *)ucmd.ubuffer))
		return -EFAULT;
	if (ucmd.user_size < op->min_size)
		return -EINVAL;
	if (ucmd.user_size > PAGE_SIZE)
		return -E2BIG;
	rc = copy_struct_from_user(&buffer, op->size, ucmd.ubuffer, ucmd.user_size);
	if (rc)
		return rc;
	if (buffer.head.flags & ~op->flags)
		return -EOPNOTSUPP;
	/* Use the size that was checked: the caller may have changed the structure since. */
	buffer.head.size = ucmd.user_size;

	ucmd.cmd = &buffer;
	return op->execute(&ucmd);
}

static long tmesh_device_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return tmesh_ioctl(NULL, cmd, arg);
}

static int tmesh_device_open(struct inode *inode, struct file *file)
{
	struct tmesh_user *user = tmesh_user_get(file->f_cred->euid);

	if (IS_ERR(user))
		return PTR_ERR(user);
	tmesh_device_opened(user);
	file->private_data = user;
	return 0;
}

static int tmesh_device_release(struct inode *inode, struct file *file)
{
	struct tmesh_user *user = file->private_data;

	tmesh_device_closed(user);
	tmesh_user_put(user);
	return 0;
}

static const struct file_operations tmesh_device_fops = {
	.owner = THIS_MODULE,
	.open = tmesh_device_open,
	.release = tmesh_device_release,
	.unlocked_ioctl = tmesh_device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

static struct miscdevice tmesh_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "tmesh",
	.fops = &tmesh_device_fops,
	.mode = 0660,
};

static void tmesh_queues_exit(void)
{
	/* Destroy them in this order: a lease that ends may queue work on tmesh_wq. */
	if (tmesh_expiry_wq)
		destroy_workqueue(tmesh_expiry_wq);
	if (tmesh_lapse_wq)
		destroy_workqueue(tmesh_lapse_wq);
	if (tmesh_wq)
		destroy_workqueue(tmesh_wq);
	/* No region ends any more, so no memory is added to the orphans. */
	tmesh_drain_exit();
	if (tmesh_orphan_wq)
		destroy_workqueue(tmesh_orphan_wq);
}

static int __init tmesh_queues_init(void)
{
	tmesh_expiry_wq = alloc_workqueue("tmesh_expiry", WQ_UNBOUND, 0);
	tmesh_lapse_wq = alloc_workqueue("tmesh_lapse", WQ_UNBOUND, 0);
	tmesh_wq = alloc_workqueue("tmesh", WQ_UNBOUND, 0);
	/* No process waits for this work, so one item at a time is enough. */
	tmesh_orphan_wq = alloc_workqueue("tmesh_orphan", WQ_UNBOUND, 1);
	return tmesh_expiry_wq && tmesh_lapse_wq && tmesh_wq && tmesh_orphan_wq ? 0 : -ENOMEM;
}

static int __init tmesh_init(void)
{
	int rc;

	rc = tmesh_queues_init();
	if (rc)
		goto err_wq;
	rc = tmesh_registry_init();
	if (rc)
		goto err_wq;
	rc = tmesh_account_init(tmesh_lease_work);
	if (rc)
		goto err_registry;
	rc = tmesh_reclaim_init();
	if (rc)
		goto err_account;
	tmesh_handle_setup(tmesh_ioctl);
	tmesh_lease_expiry_setup();
	tmesh_kept_setup();
	rc = tmesh_fs_init();
	if (rc)
		goto err_reclaim;
	/* The last step that can fail: open files do not keep a failure from freeing the module. */
	rc = misc_register(&tmesh_device);
	tmesh_fs_settle(!rc);
	if (rc)
		goto err_fs;
	tmesh_debug_init();
	tmesh_tell_untested();
	return 0;

err_fs:
	tmesh_fs_abandon();
err_reclaim:
	tmesh_reclaim_exit();
err_account:
	tmesh_account_exit();
err_registry:
	tmesh_registry_exit();
err_wq:
	tmesh_queues_exit();
	return rc;
}

static void __exit tmesh_exit(void)
{
	tmesh_fs_exit();
	misc_deregister(&tmesh_device);
	/* All files are closed, but work that the last ones queued may still be running. */
	tmesh_lease_expiry_exit();
	tmesh_reclaim_exit();
	tmesh_kept_exit();
	tmesh_queues_exit();
	tmesh_debug_exit();
	tmesh_account_exit();
	tmesh_registry_exit();
}

module_init(tmesh_init);
module_exit(tmesh_exit);

MODULE_DESCRIPTION("Refcounted memory regions shared between processes and devices");
MODULE_LICENSE("GPL");
TMESH_IMPORT_DMA_BUF;
