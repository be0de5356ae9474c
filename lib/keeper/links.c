// SPDX-License-Identifier: MIT
#include "client.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "kept"
/* While it is made; no group's link begins with a dot. */
#define UNFINISHED FOLDER "/.new"

/* One region whose file ends where it does, under a name that is a file's. */
static bool has_path(const struct group *group, char path[96])
{
	const struct item *item = &group->items[0];

	if (group->count != 1 || group->name[0] == '.' || strchr(group->name, '/') ||
	    !(item->wire.kind & TMESH_KIND_FOREIGN) || item->wire.bytes != item->bytes)
		return false;
	snprintf(path, 96, FOLDER "/%s", group->name);
	return true;
}

/* Best effort: what is kept is kept without its path too. */
void link_add(int dir, const struct group *group)
{
	char path[96], target[64];

	if (!has_path(group, path))
		return;
	if (mkdirat(dir, FOLDER, 0700) && errno != EEXIST)
		return;
	snprintf(target, sizeof(target), "/proc/%d/fd/%d", (int)getpid(), group->items[0].fds[0]);
	unlinkat(dir, UNFINISHED, 0);
	if (symlinkat(target, dir, UNFINISHED) == 0)
		renameat(dir, UNFINISHED, dir, path);
}

/* Not another group's, which has taken the name. */
void link_remove(int dir, const struct group *group)
{
	char path[96], target[64], there[64];
	ssize_t got;

	if (!has_path(group, path))
		return;
	snprintf(target, sizeof(target), "/proc/%d/fd/%d", (int)getpid(), group->items[0].fds[0]);
	got = readlinkat(dir, path, there, sizeof(there) - 1);
	if (got < 0)
		return;
	there[got] = '\0';
	if (!strcmp(there, target))
		unlinkat(dir, path, 0);
}

/* What an earlier keeper left names a process that is gone. */
void links_clear(int dir)
{
	int folder = openat(dir, FOLDER, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *list = folder < 0 ? NULL : fdopendir(folder);
	struct dirent *entry;

	if (!list) {
		if (folder >= 0)
			close(folder);
		return;
	}
	while ((entry = readdir(list)))
		if (entry->d_type == DT_LNK)
			unlinkat(folder, entry->d_name, 0);
	closedir(list);
}
