/* SPDX-License-Identifier: MIT */
/*
 * The host: one thread of this process that serves its slots, logs and pools of pages, and the
 * lock under which all of them stand. It starts with the first of them and ends with the last.
 *
 * Order of locks: the lock of a handle on pages (pages_internal.h) -> the host's lock -> libtmesh's
 * own.
 */
#ifndef MODEL_HOST_H
#define MODEL_HOST_H

#include "shared.h"

/* A descriptor that does not outlive fork(): the child's copy is closed before fork() returns. */
struct model_fd {
	int fd; /* -1: closed */
	struct model_fd *next;
	struct model_fd **at;
};

/* A descriptor that the thread waits for. @ready is called with the lock held. */
struct model_source {
	struct model_fd own;
	void (*ready)(struct model_source *source);
};

/* Return a number that grows in the child with every fork(). A handle of another life is not its
 * own. */
uint32_t model_life(void);
/* Return -EPERM for a handle that was inherited through fork(). */
int model_check_life(uint32_t life, struct tmesh_error *err);

/* Make fork() close, in the child, the descriptors that model_fd_keep() has from here on. */
int model_host_ready(struct tmesh_error *err);
/* Count a user of the thread. Without the lock held. */
int model_host_enter(struct tmesh_error *err);
void model_host_leave(void);

void model_host_lock(void);
void model_host_unlock(void);

/* Keep @fd in @own, also on failure. With the lock held. */
void model_fd_keep(struct model_fd *own, int fd);
void model_fd_close(struct model_fd *own);
int model_source_add(struct model_source *source, int fd, struct tmesh_error *err);
/* Remove a source: @ready is not called any more after that. */
void model_source_remove(struct model_source *source);

#endif /* MODEL_HOST_H */
