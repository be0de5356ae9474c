// SPDX-License-Identifier: MIT
/* The memfds of other processes: their descriptors and mappings, as far as /proc shows them to this
 * user. */
#include "common/foreign.h"
#include "memfd.h"
#include "memfd_proc.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Return whether the file is on the kernel's own file system for memfds, one for each size of
 * pages. */
static bool lies_with(atomic_uint_fast64_t *dev, unsigned int flags, uint64_t of)
{
	uint64_t known = atomic_load_explicit(dev, memory_order_relaxed);
	struct tmesh_foreign_file file;
	int fd;

	if (known)
		return known == of;
	fd = memfd_create("tmesh:look", MFD_CLOEXEC | flags);
	if (fd < 0)
		return false;
	if (tmesh_foreign_look(fd, "", &file))
		atomic_store_explicit(dev, known = file.dev, memory_order_relaxed);
	close(fd);
	return known && known == of;
}

bool tmesh_is_memory(const struct tmesh_foreign_file *file)
{
	/* As long as the machine runs they are the same. */
	static atomic_uint_fast64_t usual, huge, giant;

	return S_ISREG(file->type) && (lies_with(&usual, 0, file->dev) ||
				       lies_with(&huge, MFD_HUGETLB | MFD_HUGE_2MB, file->dev) ||
				       lies_with(&giant, MFD_HUGETLB | MFD_HUGE_1GB, file->dev));
}

int tmesh_proc_at(int dir, int number, struct tmesh_foreign_file *file)
{
	char name[TMESH_FD_NAME];
	int at;

	tmesh_fd_name(name, number);
	at = openat(dir, name, O_PATH | O_CLOEXEC);
	errno = at < 0 ? errno : EINVAL;
	if (at >= 0 && (!tmesh_foreign_look(at, "", file) || !tmesh_is_memory(file))) {
		int code = errno;

		close(at);
		errno = code;
		at = -1;
	}
	return at;
}

int tmesh_proc_open(int dir, int number)
{
	struct tmesh_foreign_file file;
	int fd, at = tmesh_proc_at(dir, number, &file);

	if (at < 0)
		return -1;
	/* Do not change the time of access, by which the keeper learns of use. The kernel refuses
	 * O_NOATIME for another user's file. */
	fd = tmesh_foreign_reopen(at, O_RDONLY | O_NOATIME);
	if (fd < 0 && errno == EPERM)
		fd = tmesh_foreign_reopen(at, O_RDONLY);
	close(at);
	return fd;
}

/* Return the name after "/memfd:"; NULL: it is no memfd. */
static const char *memfd_name(const char *path)
{
	return strncmp(path, "/memfd:", 7) ? NULL : path + 7;
}

/* Return whether the last open failed for lack of a descriptor. */
static bool is_short(void)
{
	return errno == EMFILE || errno == ENFILE;
}

void tmesh_proc_note(const struct sight *sight)
{
	if (is_short())
		*sight->lack = errno;
}

int tmesh_proc_walk_fds(pid_t pid, visit_fn visit, void *data, int *lack)
{
	char path[512];
	struct sight sight = {.pid = pid, .lack = lack};
	struct dirent *entry;
	int rc = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	if (!dir)
		return is_short() ? -errno : 0;
	sight.dir = dirfd(dir);
	while (!rc && (entry = readdir(dir))) {
		ssize_t length = readlinkat(sight.dir, entry->d_name, path, sizeof(path) - 1);
		struct tmesh_foreign_file file;

		if (length <= 0)
			continue;
		path[length] = '\0';
		sight.name = memfd_name(path);
		if (!sight.name || !tmesh_foreign_look(sight.dir, entry->d_name, &file))
			continue;
		sight.fd = atoi(entry->d_name);
		sight.dev = file.dev;
		sight.ino = file.ino;
		rc = visit(data, &sight);
	}
	closedir(dir);
	return rc;
}

static int walk_maps(pid_t pid, visit_fn visit, void *data, int *lack)
{
	struct sight sight = {.pid = pid, .fd = -1, .dir = -1, .lack = lack};
	char path[64], *line = NULL;
	size_t room = 0;
	int rc = 0;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	maps = fopen(path, "re");
	if (!maps)
		return is_short() ? -errno : 0;
	while (!rc && getline(&line, &room, maps) > 0) {
		unsigned int major, minor;
		unsigned long ino;
		char rights[5];
		int at = 0;

		if (sscanf(line, "%*x-%*x %4s %*x %x:%x %lu %n", rights, &major, &minor, &ino,
			   &at) != 4 ||
		    !at)
			continue;
		/* A page that only keeps the file open for writing (memfd_fd.c). */
		if (!strcmp(rights, "---p"))
			continue;
		line[strcspn(line, "\n")] = '\0';
		sight.name = memfd_name(line + at);
		if (!sight.name)
			continue;
		sight.dev = makedev(major, minor);
		sight.ino = ino;
		sight.writable = rights[1] == 'w' && rights[3] == 's';
		rc = visit(data, &sight);
	}
	free(line);
	fclose(maps);
	return rc;
}

int tmesh_proc_walk(visit_fn fds, visit_fn maps, void *data, struct tmesh_error *err)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	int rc = 0, lack = 0;

	if (!proc)
		return is_short() ? tmesh_fail_errno(err, "listing holders")
				  : tmesh_fail(err, -EOPNOTSUPP,
					       "listing holders needs /proc, which is not mounted");
	while (!rc && (entry = readdir(proc))) {
		pid_t pid;

		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		pid = atoi(entry->d_name);
		rc = tmesh_proc_walk_fds(pid, fds, data, &lack);
		if (!rc && maps)
			rc = walk_maps(pid, maps, data, &lack);
		if (rc >= 0 && lack)
			rc = -lack;
	}
	closedir(proc);
	if (rc == -EMFILE || rc == -ENFILE) {
		errno = -rc;
		return tmesh_fail_errno(err, "listing holders");
	}
	return rc == -ENOMEM ? tmesh_fail(err, rc, "no memory for what /proc shows") : rc;
}
