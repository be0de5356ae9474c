// SPDX-License-Identifier: MIT
/*
 * Preloaded into tmesh-keeper. Files in the folder $TMESH_KERNEL stand for the kernel's own: its
 * boot's id, whether another kernel is loaded, and whether this one hands memory over. If the file
 * "full" is there, the first opening of a file finds the kernel's table of open files full.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static const char *const files[] = {"/proc/sys/kernel/random/boot_id", "/sys/kernel/kexec_loaded",
				    "/dev/liveupdate"};

static const char *instead(const char *path, char *room, size_t bytes)
{
	const char *folder = getenv("TMESH_KERNEL");

	for (size_t i = 0; folder && i < sizeof(files) / sizeof(files[0]); i++) {
		if (strcmp(path, files[i]))
			continue;
		snprintf(room, bytes, "%s%s", folder, strrchr(path, '/'));
		return room;
	}
	return path;
}

/* Return whether the kernel's table of open files is full, once. */
static bool is_full(void)
{
	const char *folder = getenv("TMESH_KERNEL");
	char path[256];

	snprintf(path, sizeof(path), "%s/full", folder ? folder : "");
	return folder && !unlink(path);
}

int open(const char *path, int flags, ...)
{
	int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
	char room[256];
	mode_t mode = 0;
	va_list more;

	va_start(more, flags);
	if (flags & O_CREAT)
		mode = va_arg(more, mode_t);
	va_end(more);
	if (!strcmp(path, files[0]) && is_full()) {
		errno = ENFILE;
		return -1;
	}
	return real(instead(path, room, sizeof(room)), flags, mode);
}

int access(const char *path, int mode)
{
	int (*real)(const char *, int) = dlsym(RTLD_NEXT, "access");
	char room[256];

	return real(instead(path, room, sizeof(room)), mode);
}
