// SPDX-License-Identifier: GPL-2.0-only
/*
 * What calls have in common: the region, the label and the group that one names, the structure that
 * it answers with, and entries of arrays.
 */
#include <linux/cred.h>
#include <linux/uaccess.h>

#include "registry.h"
#include "ucmd.h"

/**
 * tmesh_get_named() - the region that a call is about
 * @ucmd: the call
 * @id:   as it gave it: 0 on a handle, whose region it is
 *
 * Return: a reference, or -EINVAL, -ENOENT.
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
 * @size: of the structure
 *
 * Writes what the caller has room for. To be called before the first step that cannot be
 * undone, such as installing a descriptor.
 *
 * Return: 0 or -EFAULT.
 */
int tmesh_respond(struct tmesh_ucmd *ucmd, size_t size)
{
	return copy_to_user(ucmd->ubuffer, ucmd->cmd, min_t(size_t, ucmd->user_size, size)) ?
		       -EFAULT : 0;
}

/**
 * tmesh_check_stride() - is the stride of a caller's array good?
 * @count:    how many entries there is room for
 * @stride:   bytes from one to the next
 * @min_size: of an entry as first published
 *
 * Return: 0; -EINVAL when it is too short; -E2BIG when it is longer than a page.
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
 * @entries: where the array is
 * @stride:  bytes from one entry to the next
 * @index:   of the entry
 * @entry:   what to write; begins with its size
 * @size:    of it; a longer stride is filled with zeros, a shorter one cuts it
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

/**
 * tmesh_check_label() - is a label, or a name, one?
 * @label: TMESH_LABEL_MAX + 1 bytes as given by the caller
 *
 * Return: 0, or -EINVAL for one without an end or with control characters.
 */
int tmesh_check_label(const char *label)
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

/**
 * tmesh_check_gid() - which group does the caller mean?
 * @flags: with TMESH_CREATE_GID where one was given
 * @id:    the one that was given, else 0
 * @gid:   set to it, or to the caller's
 *
 * Return: 0; -EINVAL for one that there is not; -EPERM for one that the caller is not in.
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
