/* SPDX-License-Identifier: MIT */
/* Calls that wait for engines, in threads of their own: jobs.c. */
#ifndef TMESH_NIF_JOBS_H
#define TMESH_NIF_JOBS_H

#include "nif.h"

#include <tmesh/engine.h>

/* The body of a call: as a NIF, in an environment without a process. */
typedef ERL_NIF_TERM job_body(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]);

/*
 * Run @body with @argv except its first item, the tag. The calling process receives {tag, result}.
 * @user: a Cancellable for jobs_cancel(), or NULL. Return: ok; an error: no message will come.
 */
ERL_NIF_TERM job_start(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[], job_body *body,
		       struct object *user);
/* Return the cancellable of the call that this thread runs, for a dispatch. */
struct tmesh_engine_cancellable *job_cancellable(void);
/* Wake the janitor from a thread of this file. Without a thread the janitor's next look comes
 * later. */
void jobs_tell_janitor(void);
/* Call off the jobs of @user, from a NIF. */
void jobs_cancel(ErlNifEnv *env, struct object *user);

#endif /* TMESH_NIF_JOBS_H */
