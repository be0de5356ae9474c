/* SPDX-License-Identifier: MIT */
/*
 * Calling off. What waits or runs has a hook in its cancellable, which is called once that is
 * cancelled, with the cancellable's lock held: a hook may take locks, and who holds one of those
 * neither begins nor ends a hook.
 *
 * The cancellable of a thread's call is the thread's: what waits below, in whichever file, asks for
 * it here.
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

/* This thread's call has @cancellable, which may be NULL, until the next of these. Return: the one
 * before. */
struct tmesh_engine_cancellable *cancel_enter(struct tmesh_engine_cancellable *cancellable);
/* -ECANCELED: this thread's call was called off. */
int cancel_check(struct tmesh_error *err);
/* A signal came while the thread waited: its program is asked. */
void cancel_interrupted(void);
/* Whether the program wants to be asked. */
bool cancel_interruptible(void);

/* Of this thread's call. @wake is not called after end(); it may have been called before begin()
 * returns. */
void cancel_hook_begin(struct cancel_hook *hook, void (*wake)(void *data), void *data);
void cancel_hook_end(struct cancel_hook *hook);

#endif /* TMESH_ENGINE_CANCEL_H */
