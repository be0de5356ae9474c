/* SPDX-License-Identifier: MIT */
/*
 * Descriptors of any kind from another process. Closing, polling or inspecting one may ask the
 * process that serves its file, which may never answer.
 */
#ifndef TMESH_COMMON_FOREIGN_H
#define TMESH_COMMON_FOREIGN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "error.h"

/* The process and the user that gave a descriptor, as the kernel names them. */
typedef uint64_t tmesh_giver;

/* Not known, as for root's processes of other PID namespaces. */
#define TMESH_GIVER_UNKNOWN ((tmesh_giver)0)

tmesh_giver tmesh_giver_of(uid_t uid, pid_t pid);
/* Return the process that connected to the socket, made it listen, or made its pair. */
tmesh_giver tmesh_giver_at(int socket);

/* Limits on descriptors that wait for the process serving them, with those of messages being
 * received. They are per giving process, per user and in all, so that others can go on. */
#define TMESH_FOREIGN_OF_PROCESS 8
#define TMESH_FOREIGN_OF_USER 64
#define TMESH_FOREIGN_MOST 256

/*
 * Return whether more descriptors may be taken from @giver, so that no process can fill this one.
 * If not, messages are received without room for descriptors, and the kernel drops those that they
 * have.
 */
bool tmesh_foreign_room(tmesh_giver giver);
/* Return the same for the process at the socket's other end. */
bool tmesh_foreign_room_at(int socket);
/* Fill @err as tmesh_fail_errno(), and explain it if descriptors were refused although numbers are
 * free. */
int tmesh_foreign_fail_errno(struct tmesh_error *err, const char *what, tmesh_giver giver)
	__attribute__((cold));
/*
 * Return the seals of @fd, or -1 with errno if it is not memory: a memfd, or a file in shared
 * memory. No process serves memory, so reading, mapping, inspecting and closing it never block, nor
 * does this call. Check every descriptor from another process by it first. A descriptor opened with
 * O_PATH never counts as memory.
 */
int tmesh_foreign_seals(int fd);
static inline bool tmesh_foreign_is_memory(int fd)
{
	return tmesh_foreign_seals(fd) >= 0;
}
/* Return whether @fd is a Unix socket. Reading, polling and closing it never wait for others. */
bool tmesh_foreign_is_unix_socket(int fd);
/*
 * Return whether close() of @fd may wait for others. A process may serve the file, as FUSE does,
 * whose flush() can block for ever. A socket of another family than AF_UNIX may wait for another
 * machine (SO_LINGER). No process serves memory, Unix sockets, pipes, devices and files without a
 * type, such as the module's handles. tmesh_fds_recv() gives its callers none that may be served.
 *
 * A limit: the kernel itself closes descriptors for which a message has no room, and those inside a
 * Unix socket's queue. If it closes the last one of a lingering socket there, the call waits up to
 * the time that the sender set.
 */
bool tmesh_foreign_may_be_served(int fd);
/*
 * Open the file of @fd anew with @flags. Any process that has the memory can take a file lease on
 * it (F_SETLEASE), for which open() waits up to /proc/sys/fs/lease-break-time; this fails with
 * EWOULDBLOCK instead. Return: the descriptor, or -1 with errno.
 */
int tmesh_foreign_reopen(int fd, int flags);
/* Close the descriptor without waiting for the process that serves its file. */
void tmesh_foreign_close(int fd, tmesh_giver giver);
void tmesh_foreign_close_all(const int *fds, unsigned int count, tmesh_giver giver);

/* The part of fstat() that is known without asking the process that serves the file. */
struct tmesh_foreign_file {
	mode_t type; /* S_IFREG, ...; 0: what the kernel has without one, such as the module's
			handles */
	uint64_t dev;
	uint64_t ino;
};

/* Look at @name in @dir, if a link of /proc leads there, or at @dir itself if @name is "". */
bool tmesh_foreign_look(int dir, const char *name, struct tmesh_foreign_file *file);

#endif /* TMESH_COMMON_FOREIGN_H */
