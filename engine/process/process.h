/* SPDX-License-Identifier: MIT */
/*
 * tmesh-engine: a supervisor, which listens and watches and has no engine, and below it one process
 * at a time that has. That one is a single thread which takes requests from its clients by turns.
 */
#ifndef TMESH_ENGINE_PROCESS_H
#define TMESH_ENGINE_PROCESS_H

#include <tmesh/channel.h>
#include <tmesh/engine.h>

#include "remote_wire.h"

#define MAX_FOLDERS 64

struct options {
	const char *name;
	const char *backend;
	const char *library;
	const char *folders[MAX_FOLDERS]; /* of models, NULL behind the last */
	size_t folder_count;
	uint32_t threads;
	uint32_t clients;
	uint32_t sessions;
	uint64_t limit_ns; /* of one call */
	bool unconfined;
	bool with_input; /* ends when the standard input does */
};

/* What the two share: a page of their own. */
struct watch {
	_Atomic uint64_t deadline; /* of the request that is worked on; 0: none */
	int bell;		   /* an eventfd, which the process rings when it wakes */
};

/* supervise.c: until it is told to end. Return: the exit status. */
int supervise(const struct options *options);

/* confine.c: from here on the process opens no file of a user's but below the folders. @why: what
 * this kernel has not, or NULL. */
int confine(const struct options *options, struct tmesh_ctx *ctx, const char **why,
	    struct tmesh_error *err);

/* serve.c: the engine's process. A byte into @ready once it takes connections, or the reason why
 * not. */
_Noreturn void serve(const struct options *options, int listener, int ready, struct watch *watch);

/* client.c */
struct client;
/* A client on @socket, which is taken over; with its welcome under way. */
int client_new(struct tmesh_ctx *ctx, struct tmesh_engine_context *context, int socket,
	       size_t max_regions, struct client **out, struct tmesh_error *err);
void client_free(struct client *client);
/* To poll(): readable when there is a request; readable when it has gone. */
int client_bell(const struct client *client);
int client_socket(const struct client *client);
/* Its next request, if there is one, done and answered. Return: whether there was one; -EPIPE: it
 * is to be dropped. */
int client_turn(struct client *client, struct watch *watch, uint64_t limit_ns);
/* To who connected and is not taken. */
void client_refuse(int socket, int code, const char *message);

#endif /* TMESH_ENGINE_PROCESS_H */
