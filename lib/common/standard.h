/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_STANDARD_H
#define TMESH_COMMON_STANDARD_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Open /dev/null in place of each standard descriptor that is closed. Else the next file would get
 * its number, and the program's messages. A program that leaves its terminal would replace the
 * file. A read or a write still fails. */
static inline void tmesh_fill_standard(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 &&
		    open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
			return;
}

/* Write out all that was printed. Return the program's status: 1 after a message if that fails. */
static inline int tmesh_end_output(const char *program)
{
	if (!fflush(stdout))
		return 0;
	fprintf(stderr, "%s: writing the answer: %s\n", program, strerror(errno));
	return 1;
}

#endif /* TMESH_COMMON_STANDARD_H */
