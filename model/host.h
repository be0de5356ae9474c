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

#include "inside.h"

/* A descriptor that does not outlive fork(): the child's copy is closed before fork() returns. */
struct model_fd {
	int fd; /* -1: closed */
	struct model_fd *next;
	struct model_fd **at;
};

/* What the thread waits for. @ready is called with the lock held. */
struct model_source {
	struct model_fd own;
	void (*ready)(struct model_source *source);
};

/* Grows with every fork(), in the child: what was made in another life is not the child's. */
uint32_t model_life(void);
/* -EPERM for what was inherited through fork(). */
int model_check_life(uint32_t life, struct tmesh_error *err);

/* From here on fork() closes in the child what model_fd_keep() was told of. */
int model_host_ready(struct tmesh_error *err);
/* Somebody needs the thread, or no more. Without the lock held. */
int model_host_enter(struct tmesh_error *err);
void model_host_leave(void);

void model_host_lock(void);
void model_host_unlock(void);

/* With the lock held. @fd is taken over, also on failure. */
void model_fd_keep(struct model_fd *own, int fd);
void model_fd_close(struct model_fd *own);
int model_source_add(struct model_source *source, int fd, struct tmesh_error *err);
/* @ready is not called any more once this has returned. */
void model_source_remove(struct model_source *source);

#endif /* MODEL_HOST_H */
