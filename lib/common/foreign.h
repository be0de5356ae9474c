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

/* The process and the user who gave a descriptor, as the kernel names them. */
typedef uint64_t tmesh_giver;

/* Who it was is not told; with it go root's processes of other PID namespaces. */
#define TMESH_GIVER_UNKNOWN ((tmesh_giver)0)

tmesh_giver tmesh_giver_of(uid_t uid, pid_t pid);
/* Who connected to the socket, made it listen, or made the pair that it is of. */
tmesh_giver tmesh_giver_at(int socket);

/* As many may wait for who serves them, and those of the messages that are being received: of what
 * a process gave, of what a user's processes gave, and in all, so that others go on. */
#define TMESH_FOREIGN_OF_PROCESS 8
#define TMESH_FOREIGN_OF_USER 64
#define TMESH_FOREIGN_MOST 256

/*
 * Whether more may be taken from @giver, so much that nobody fills this process by them: while it
 * is false a message is received without room for descriptors, and the kernel lets go of those
 * that it has.
 */
bool tmesh_foreign_room(tmesh_giver giver);
/* From who is at the socket's other end. */
bool tmesh_foreign_room_at(int socket);
/* tmesh_fail_errno(), which knows why descriptors were not taken though there are numbers. */
int tmesh_foreign_fail_errno(struct tmesh_error *err, const char *what, tmesh_giver giver)
	__attribute__((cold));
/* close(), but never waits for who serves the file. */
void tmesh_foreign_close(int fd, tmesh_giver giver);
void tmesh_foreign_close_all(const int *fds, unsigned int count, tmesh_giver giver);

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
