// SPDX-License-Identifier: MIT
#include "kept_mount.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "in_time.h"

#define ANSWER_NS UINT64_C(2000000000)

void tmesh_mount_type(const char *path, char type[TMESH_MOUNT_TYPE_SIZE])
{
	unsigned int major, minor;
	char *line = NULL;
	struct statx at;
	size_t room = 0;
	FILE *mounts;

	*type = '\0';
	/* Without a mask, FUSE gives the device also of other users' mounts. */
	if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, 0, &at))
		return;
	mounts = fopen("/proc/self/mountinfo", "re");
	while (mounts && !*type && getline(&line, &room, mounts) > 0) {
		const char *dash = strstr(line, " - ");

		if (dash && sscanf(line, "%*s %*s %u:%u", &major, &minor) == 2 &&
		    major == at.stx_dev_major && minor == at.stx_dev_minor)
			sscanf(dash, " - %63s", type);
	}
	free(line);
	if (mounts)
		fclose(mounts);
}

struct question {
	char way[TMESH_MOUNT_WAY_SIZE];
	char place[];
};

static void ask_way(void *data)
{
	struct question *question = data;

	if (getxattr(question->place, TMESH_MOUNT_XATTR, question->way, sizeof(question->way) - 1) <
	    0)
		question->way[0] = '\0';
}

int tmesh_mount_way(const char *place, char way[TMESH_MOUNT_WAY_SIZE])
{
	struct question *question = calloc(1, sizeof(*question) + strlen(place) + 1);
	int rc;

	if (!question)
		return -ENOMEM;
	strcpy(question->place, place);
	rc = tmesh_in_time(ask_way, free, question, ANSWER_NS);
	if (rc)
		return rc;
	strcpy(way, question->way);
	free(question);
	return 0;
}
