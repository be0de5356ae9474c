/* SPDX-License-Identifier: MIT */
/* The mount of kept files as other processes see it. */
#ifndef TMESH_COMMON_KEPT_MOUNT_H
#define TMESH_COMMON_KEPT_MOUNT_H

/* The types of file systems that show kept files: the module's, and tmesh-mount's. */
#define TMESH_MOUNT_MODULE "tmesh"
#define TMESH_MOUNT_FUSE "fuse.tmesh"
#define TMESH_MOUNT_TYPE_SIZE 64

/* The attribute of tmesh-mount's root, "passthrough" or "page cache". */
#define TMESH_MOUNT_XATTR "user.tmesh.mount"
#define TMESH_MOUNT_WAY_SIZE 32

/* Name the type of the file system at @path, as /proc/self/mountinfo does; "" if it is not known.
 * If @path is the root of a mount, the process that serves the file system is not asked: it may
 * never answer. */
void tmesh_mount_type(const char *path, char type[TMESH_MOUNT_TYPE_SIZE]);
/* Ask the tmesh-mount at @place for that attribute; "" if none serves it. Return: 0; -ETIMEDOUT (it
 * does not answer); -EAGAIN, -ENOMEM. */
int tmesh_mount_way(const char *place, char way[TMESH_MOUNT_WAY_SIZE]);

#endif /* TMESH_COMMON_KEPT_MOUNT_H */
