/* SPDX-License-Identifier: MIT */
/*
 * Cancelling. A call that waits or runs has a hook in its cancellable. tmesh_engine_cancel() calls
 * the hook once, with the cancellable's lock held. A hook may take other locks, so a thread must
 * not begin or end a hook while it holds one of those.
 *
 * The cancellable and the deadline of a call belong to the calling thread. Code below the call, in
 * any file, gets them here. So a call that waits several times has one deadline for all its waits.
 */
#ifndef TMESH_ENGINE_CANCEL_H
#define TMESH_ENGINE_CANCEL_H

#include "engine_internal.h"

struct cancel_hook {
	void (*wake)(void *data);
	void *data;
	struct tmesh_engine_cancellable *of; /* NULL: there is none */
	struct cancel_hook *next;
};

/* Set this thread's cancellable, which may be NULL. Return the previous one. */
struct tmesh_engine_cancellable *cancel_enter(struct tmesh_engine_cancellable *cancellable);
/* Return -ECANCELED if this thread's call was cancelled. */
int cancel_check(struct tmesh_error *err);
/* Ask the program whether to cancel, after a signal interrupted this thread's wait. */
void cancel_interrupted(void);

/* Set the deadline of this thread's call; 0: none. Return the deadline of the call around it, which
 * is set again when this one ends. */
uint64_t deadline_enter(uint64_t deadline);
/* Return the deadline of this thread's call; 0: none. */
uint64_t deadline_get(void);

/* The interval at which a wait that signals do not interrupt asks the program. */
#define CANCEL_LOOK_NS UINT64_C(100000000)
/* Make a condition that uses the monotonic clock. */
void cancel_cond_init(pthread_cond_t *cond);
/* Wait on such a condition. If the program wants to be asked after signals, wait at most
 * CANCEL_LOOK_NS, then ask it without @lock. Return 0, or ETIMEDOUT after the deadline of this
 * thread's call. */
int cancel_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);

/* Begin or end a hook of this thread's call. @wake may be called before begin() returns. It is not
 * called after end(). */
void cancel_hook_begin(struct cancel_hook *hook, void (*wake)(void *data), void *data);
void cancel_hook_end(struct cancel_hook *hook);

#endif /* TMESH_ENGINE_CANCEL_H */
