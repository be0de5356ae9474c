// SPDX-License-Identifier: MIT
#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool may_hold_ours(const struct stat *above)
{
	const mode_t shared = S_ISVTX | S_IWOTH;

	return above->st_uid == geteuid() || above->st_uid == 0 ||
	       (above->st_mode & shared) == shared;
}

static int make_in(int dir, const char *name, uid_t *owner)
{
	struct stat above, there;

	if (fstat(dir, &above))
		return -errno;
	if (may_hold_ours(&above))
		return mkdirat(dir, name, 0700) && errno != EEXIST ? -errno : 0;
	if (!fstatat(dir, name, &there, AT_SYMLINK_NOFOLLOW))
		return 0;
	*owner = above.st_uid;
	return -EACCES;
}

int tmesh_make_folder(const char *path, uid_t *owner)
{
	size_t length = strlen(path);
	const char *above = ".", *name;
	char text[PATH_MAX], *slash;
	int dir, rc;

	*owner = TMESH_NO_OWNER;
	while (length > 1 && path[length - 1] == '/')
		length--;
	if (length >= sizeof(text))
		return -ENAMETOOLONG;
	memcpy(text, path, length);
	text[length] = '\0';
	slash = strrchr(text, '/');
	name = slash ? slash + 1 : text;
	if (slash == text) {
		above = "/";
	} else if (slash) {
		*slash = '\0';
		above = text;
	}
	if (!*name)
		return 0;
	/* Made by the descriptor that is looked at: another folder may take its name meanwhile. */
	dir = open(above, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return -errno;
	rc = make_in(dir, name, owner);
	close(dir);
	return rc;
}
