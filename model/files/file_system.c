// SPDX-License-Identifier: MIT
/*
 * Which file system a file is on, and whether it is remote. Two sources are needed. For 9p,
 * statfs() returns the type that the server's file system has, so the list of mounts decides. An
 * open file of a file system that was unmounted is not in that list, so statfs() decides.
 */
#include "model_internal.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

static const struct known {
	long magic;
	const char
		*name; /* remote: also the begin of its mounts' type, as in nfs4 and fuse.sshfs */
	bool remote;
} known[] = {
	{EXT4_SUPER_MAGIC, "ext4", false},
	{XFS_SUPER_MAGIC, "xfs", false},
	{BTRFS_SUPER_MAGIC, "btrfs", false},
	{TMPFS_MAGIC, "tmpfs", false},
	{OVERLAYFS_SUPER_MAGIC, "overlay", false},
	{F2FS_SUPER_MAGIC, "f2fs", false},
	{0x2fc12fc1, "zfs", false},
	{0x746d7368, "tmesh", false},
	{NFS_SUPER_MAGIC, "nfs", true},
	{FUSE_SUPER_MAGIC, "fuse", true},
	{0xff534d42, "cifs", true},
	{0xfe534d42, "smb2", true},
	{CEPH_SUPER_MAGIC, "ceph", true},
	{V9FS_MAGIC, "9p", true},
	{AFS_SUPER_MAGIC, "afs", true},
	{0x0bd00bd0, "lustre", true},
	{0x47504653, "gpfs", true},
	{0x19830326, "beegfs", true},
};
#define KNOWN (sizeof(known) / sizeof(known[0]))

static int mount_of(int fd)
{
	char path[64], *line = NULL;
	size_t room = 0;
	int mount = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	file = fopen(path, "re");
	while (file && mount < 0 && getline(&line, &room, file) > 0)
		sscanf(line, "mnt_id: %d", &mount);
	if (file)
		fclose(file);
	free(line);
	return mount;
}

/* Find a mount's type in "ID PARENT DEVICE ROOT POINT OPTIONS [FIELDS] - TYPE SOURCE OPTIONS"; a
 * blank in a field is "\040". */
static bool mount_type(int mount, char type[32])
{
	FILE *file = mount < 0 ? NULL : fopen("/proc/self/mountinfo", "re");
	char *line = NULL, *end;
	bool found = false;
	size_t room = 0;
	int id;

	while (file && !found && getline(&line, &room, file) > 0) {
		end = strstr(line, " - ");
		found = sscanf(line, "%d", &id) == 1 && id == mount && end &&
			sscanf(end, " - %31s", type) == 1;
	}
	if (file)
		fclose(file);
	free(line);
	return found;
}

bool file_system_is_remote(int fd, char name[16])
{
	struct statfs fs;
	char type[32];

	if (!mount_type(mount_of(fd), type))
		type[0] = '\0';
	for (size_t i = 0; i < KNOWN; i++) {
		if (known[i].remote && !strncmp(type, known[i].name, strlen(known[i].name))) {
			snprintf(name, 16, "%s", known[i].name);
			return true;
		}
	}
	if (fstatfs(fd, &fs))
		return false;
	for (size_t i = 0; i < KNOWN; i++) {
		if ((uint32_t)known[i].magic == (uint32_t)fs.f_type) {
			snprintf(name, 16, "%s", known[i].name);
			return known[i].remote;
		}
	}
	snprintf(name, 16, "0x%x", (uint32_t)fs.f_type);
	return false;
}
