// SPDX-License-Identifier: GPL-2.0-only
/*
 * Helpers for calls: find the region, check labels and groups, write the answer and entries of
 * arrays.
 */
#include <linux/cred.h>
#include <linux/uaccess.h>

#include "registry.h"
#include "ucmd.h"

/**
 * tmesh_get_named() - find the region that a call names
 * @ucmd: the call
 * @id:   the id in the call's structure; must be 0 for a call on a handle
 *
 * Return: the region with a reference, or -EINVAL or -ENOENT as a pointer.
 */
struct tmesh_region *tmesh_get_named(struct tmesh_ucmd *ucmd, u64 id)
{
	struct tmesh_region *region;

	if (ucmd->handle) {
		if (id)
			return ERR_PTR(-EINVAL);
		region = ucmd->handle->claim.region;
		kref_get(&region->ref);
		return region;
	}
	region = tmesh_registry_find(id);
	return region ? region : ERR_PTR(-ENOENT);
}

/**
 * tmesh_respond() - write a call's structure back
 * @ucmd: the call
 * @size: size of the structure
 *
 * Writes as much as the caller has room for. Call it before the first step that cannot be undone,
 * such as installing a descriptor.
 *
 * Return: 0 or -EFAULT.
 */
int tmesh_respond(struct tmesh_ucmd *ucmd, size_t size)
{
	return copy_to_user(ucmd->ubuffer, ucmd->cmd, min_t(size_t, ucmd->user_size, size)) ?
		       -EFAULT : 0;
}

/**
 * tmesh_check_stride() - check the stride of a caller's array
 * @count:    number of entries in the array
 * @stride:   bytes from one entry to the next
 * @min_size: size of an entry as first published
 *
 * Return: 0; -EINVAL if it is too short or not a multiple of 8; -E2BIG if it is longer than a page.
 */
int tmesh_check_stride(u32 count, u32 stride, size_t min_size)
{
	if (!count)
		return 0;
	if (stride < min_size || stride % 8)
		return -EINVAL;
	return stride > PAGE_SIZE ? -E2BIG : 0;
}

/**
 * tmesh_put_entry() - write one entry of a caller's array
 * @entries: address of the array
 * @stride:  bytes from one entry to the next
 * @index:   index of the entry
 * @entry:   the entry, which begins with its size
 * @size:    its size. A longer stride is filled with zeros, a shorter one cuts it
 *
 * Context: may fault.
 * Return: 0 or -EFAULT.
 */
int tmesh_put_entry(u64 entries, u32 stride, u32 index, const void *entry, size_t size)
{
	void __user *to = u64_to_user_ptr(entries + (u64)index * stride);
	u32 len = min_t(size_t, stride, size);

	if (copy_to_user(to, entry, len) || clear_user(to + len, stride - len) ||
	    put_user(len, (u32 __user *)to))
		return -EFAULT;
	return 0;
}

/* Test for a control character of ASCII, or one of C1, which is two bytes in UTF-8. */
static bool tmesh_is_control(const char *label)
{
	unsigned char first = label[0], second = label[1];

	return first < 0x20 || first == 0x7f || (first == 0xc2 && second >= 0x80 && second < 0xa0);
}

/**
 * tmesh_label_valid() - check a label or a name
 * @label: TMESH_LABEL_MAX + 1 bytes as given by the caller
 *
 * Return: 0, or -EINVAL if it is not terminated or has control characters.
 */
int tmesh_label_valid(const char *label)
{
	size_t len = strnlen(label, TMESH_LABEL_MAX + 1), i;

	if (len > TMESH_LABEL_MAX)
		return -EINVAL;
	for (i = 0; i < len; i++) {
		if (tmesh_is_control(label + i))
			return -EINVAL;
	}
	return 0;
}

/**
 * tmesh_check_gid() - resolve the group of a call
 * @flags: flags of the call; TMESH_CREATE_GID means that a group was given
 * @id:    the group given, else 0
 * @gid:   set to that group, or to the caller's
 *
 * Return: 0; -EINVAL for a group that does not exist; -EPERM for a group that the caller is not in.
 */
int tmesh_check_gid(u32 flags, u32 id, kgid_t *gid)
{
	if (!(flags & TMESH_CREATE_GID)) {
		*gid = current_egid();
		return id ? -EINVAL : 0;
	}
	*gid = make_kgid(current_user_ns(), id);
	if (!gid_valid(*gid))
		return -EINVAL;
	return in_egroup_p(*gid) ? 0 : -EPERM;
}
