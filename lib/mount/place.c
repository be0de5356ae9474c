// SPDX-License-Identifier: MIT
/* The mount point: its owner, its contents, and the mount of a killed tmesh-mount. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/kept_mount.h"
#include "mount.h"

#define TAKEN "is taken: another file system is mounted there"

static bool refuse(const char *path, const char *why)
{
	fprintf(stderr, "tmesh-mount: %s %s\n", path, why);
	return false;
}

/* Decode a path of /proc/self/mountinfo. */
static void unescape(char *text)
{
	char *to = text;

	for (; *text; text++) {
		unsigned int value;

		if (*text == '\\' && sscanf(text, "\\%3o", &value) == 1) {
			*to++ = (char)value;
			text += 3;
		} else {
			*to++ = *text;
		}
	}
	*to = '\0';
}

/* Find the last mount at @path, and its type. False: there is none. */
static bool mounted(const char *path, char type[TMESH_MOUNT_TYPE_SIZE])
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	char *line = NULL, at[4096];
	bool found = false;
	size_t room = 0;

	while (file && getline(&line, &room, file) > 0) {
		const char *dash = strstr(line, " - ");

		if (!dash || sscanf(line, "%*s %*s %*s %*s %4095s", at) != 1)
			continue;
		unescape(at);
		if (strcmp(at, path))
			continue;
		found = sscanf(dash, " - %63s", type) == 1;
	}
	free(line);
	if (file)
		fclose(file);
	return found;
}

/* Unmount: as root by the kernel, else by the program that may. */
static void detach(const char *path)
{
	char *argv[] = {"fusermount3", "-u", "-z", "-q", (char *)path, NULL};
	pid_t pid;

	if (geteuid() == 0) {
		umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW);
		return;
	}
	pid = fork();
	if (pid == 0) {
		execvp(argv[0], argv);
		_exit(127);
	}
	while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

void place_leave(const char *path)
{
	char type[TMESH_MOUNT_TYPE_SIZE];

	if (mounted(path, type) && !strcmp(type, TMESH_MOUNT_FUSE))
		detach(path);
}

static bool is_empty(int dir)
{
	DIR *list = fdopendir(dup(dir));
	struct dirent *entry;
	bool empty = true;

	while (list && empty && (entry = readdir(list)))
		empty = !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..");
	if (list)
		closedir(list);
	return empty;
}

/* Check that no tmesh-mount serves the folder. */
static bool check_unserved(const char *path)
{
	char way[TMESH_MOUNT_WAY_SIZE];
	int rc = tmesh_mount_way(path, way);

	if (rc == -ETIMEDOUT)
		return refuse(path, "is taken: another tmesh-mount serves it and does not answer; "
				    "continue or end that process");
	if (rc)
		return refuse(path, strerror(-rc));
	return !*way || refuse(path, "is taken: another tmesh-mount serves it");
}

static bool clear_mounts(const char *path)
{
	char type[TMESH_MOUNT_TYPE_SIZE];

	/* A mount may cover another one. An empty folder of another file system is as good as any:
	 * a container's volume is one. */
	for (int i = 0; i < 8 && mounted(path, type) && strcmp(type, TMESH_MOUNT_MODULE); i++) {
		if (strcmp(type, TMESH_MOUNT_FUSE))
			return true;
		if (!check_unserved(path))
			return false;
		detach(path);
	}
	return !mounted(path, type) || refuse(path, TAKEN);
}

bool place_prepare(const char *path)
{
	char type[TMESH_MOUNT_TYPE_SIZE];
	struct stat st;
	bool good;
	int dir;

	if (!clear_mounts(path))
		return false;
	if (mkdir(path, 0755) && errno != EEXIST) {
		fprintf(stderr, "tmesh-mount: making %s: %s\n", path, strerror(errno));
		return false;
	}
	dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0 || fstat(dir, &st)) {
		if (dir >= 0)
			close(dir);
		return refuse(path, errno == ELOOP || errno == ENOTDIR
					    ? "is no folder: choose one, or remove it"
					    : strerror(errno));
	}
	if (st.st_uid != geteuid())
		good = refuse(path, "belongs to another user: choose a folder of your own");
	else if (!is_empty(dir))
		good = refuse(path,
			      mounted(path, type) ? TAKEN : "is not empty: choose an empty folder");
	else
		good = true;
	close(dir);
	return good;
}
