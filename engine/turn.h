/* SPDX-License-Identifier: MIT */
/* Turns: calls use an object one after another. A call that waits for its turn can be cancelled. */
#ifndef TMESH_ENGINE_TURN_H
#define TMESH_ENGINE_TURN_H

#include "cancel.h"

struct turns {
	pthread_mutex_t lock; /* also guards other fields of the object */
	pthread_cond_t idle;
	const struct cancel_hook *holder; /* of the call that has the turn; NULL: none */
	pthread_t owner;		  /* the thread that has the turn */
};

void turns_init(struct turns *turns);
void turns_destroy(struct turns *turns);
/*
 * Wait for the turn until the deadline of this thread's call. @hook stays until turn_leave(). If
 * the call is cancelled, @wake is called with @data and has to call turns_wake(). @what: "runs of
 * this binding", for errors. Return: 0; -ETIMEDOUT, -ECANCELED; -EDEADLK in a signal handler of the
 * thread that has the turn.
 */
int turn_enter(struct turns *turns, struct cancel_hook *hook, void (*wake)(void *data), void *data,
	       const char *what, struct tmesh_error *err);
/* Take the turn if it is free. @hook is empty, because such a call waits for nothing. */
bool turn_try_enter(struct turns *turns, const struct cancel_hook *hook);
/* End the turn, with the lock. */
void turn_leave(struct turns *turns);
/* Wake the waiting calls, with the lock: one was cancelled. The others go on waiting. */
void turns_wake(struct turns *turns);

#endif /* TMESH_ENGINE_TURN_H */
