/* SPDX-License-Identifier: MIT */
/*
 * Descriptors that another process gave, whatever they are. Who serves a file may be asked when it
 * is closed, polled or looked at, and not answer.
 */
#ifndef TMESH_COMMON_FOREIGN_H
#define TMESH_COMMON_FOREIGN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "error.h"

/* As many may wait for who serves them, and those of the messages that are being received. */
#define TMESH_FOREIGN_MOST 64

/*
 * Whether more may be taken, so much that nobody fills this process by them: while it is false a
 * message is received without room for descriptors, and the kernel lets go of those that it has.
 */
bool tmesh_foreign_room(void);
/* How many wait: for who wants to leave room to others. */
unsigned int tmesh_foreign_waiting(void);
/* tmesh_fail_errno(), which knows why descriptors were not taken though there are numbers. */
int tmesh_foreign_fail_errno(struct tmesh_error *err, const char *what) __attribute__((cold));
/* close(), but never waits for who serves the file. */
void tmesh_foreign_close(int fd);
void tmesh_foreign_close_all(const int *fds, unsigned int count);

/* What fstat() would say, as far as it is known without a question to who serves the file. */
struct tmesh_foreign_file {
	mode_t type; /* S_IFREG, ...; 0: what the kernel has without one, such as the module's
			handles */
	uint64_t dev;
	uint64_t ino;
};

/* Of @name at @dir, to which a link of /proc leads, or of @dir itself where that is "". */
bool tmesh_foreign_look(int dir, const char *name, struct tmesh_foreign_file *file);

#endif /* TMESH_COMMON_FOREIGN_H */
