/* SPDX-License-Identifier: MIT */
/* The disk that a guest brings for direct I/O. */
#ifndef TMESH_KSELFTEST_DISK_H
#define TMESH_KSELFTEST_DISK_H

#include <glob.h>

#include "t.h"

/* Open the disk, whose serial number is "tmesh". Skip the test if there is none. */
static inline int open_disk(void)
{
	glob_t found = {0};
	char serial[32], path[64];
	int disk = -1;

	glob("/sys/block/*/serial", 0, NULL, &found);
	glob("/sys/block/*/device/serial", GLOB_APPEND, NULL, &found);
	for (size_t i = 0; i < found.gl_pathc && disk < 0; i++) {
		if (!t_read_file(found.gl_pathv[i], serial, sizeof(serial)) ||
		    strncmp(serial, "tmesh", 5))
			continue;
		REQUIRE(sscanf(found.gl_pathv[i], "/sys/block/%31[^/]", serial) == 1);
		snprintf(path, sizeof(path), "/dev/%s", serial);
		disk = REQUIRE_OK(open(path, O_RDWR | O_DIRECT | O_CLOEXEC));
	}
	globfree(&found);
	if (disk < 0)
		t_skip("no disk with the serial number tmesh");
	return disk;
}

#endif
