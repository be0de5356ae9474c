// SPDX-License-Identifier: MIT
/*
 * Linked with every unit program, in front of close(): who closes a descriptor twice may close
 * another thread's the second time. Here the number is free by then, and the program ends.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "closes.h"

int __real_close(int fd);
int __wrap_close(int fd);

void (*_Atomic unit_before_close)(int fd);

int __wrap_close(int fd)
{
	void (*before)(int fd) = unit_before_close;
	int rc;

	if (before)
		before(fd);
	rc = __real_close(fd);
	if (rc && errno == EBADF) {
		fprintf(stderr, "# close(%d): it is not open; it was closed before\n", fd);
		abort();
	}
	return rc;
}
