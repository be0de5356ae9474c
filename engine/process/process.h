/* SPDX-License-Identifier: MIT */
/*
 * tmesh-engine: a supervisor, which listens and watches and has no engine, and below it one process
 * at a time that has. That one works in a single thread which takes requests from its clients by
 * turns; a second one listens for who calls off what runs.
 */
#ifndef TMESH_ENGINE_PROCESS_H
#define TMESH_ENGINE_PROCESS_H

#include <tmesh/channel.h>
#include <tmesh/engine.h>

#include "common/engine_status.h"
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
	uint64_t limit_ns;    /* of one call */
	uint64_t patience_ns; /* with a client that is asked for its memory, for each region */
	bool unconfined;
	bool with_input; /* ends when the standard input does */
};

/* What the two share: a page of their own. */
struct watch {
	_Atomic uint64_t deadline; /* of the request that is worked on; 0: none */
	int bell;		   /* an eventfd, which the process rings when it wakes */
	struct engine_status *status;
};

/* supervise.c: until it is told to end. Return: the exit status. */
int supervise(const struct options *options);

/* status.c: what is told to whoever looks. The file's beginning, of zeros, as memory. Return: 0, or
 * -1 and errno. */
int status_map(int fd, struct engine_status **out);
/* A call begins, and ends; @step: it was a run, which took @tokens in. When it has to have ended:
 * said before, and again whenever that changes; UINT64_MAX: not watched. */
void status_deadline(struct engine_status *status, uint64_t deadline);
void status_began(struct engine_status *status);
void status_ended(struct engine_status *status, int code, bool step, uint64_t tokens);
/* The process has died, and with it the call that ran. */
void status_buried(struct engine_status *status);

/* confine.c: from here on the process opens no file of a user's but below the folders. @why: what
 * this kernel has not, or NULL. */
int confine(const struct options *options, struct tmesh_ctx *ctx, const char **why,
	    struct tmesh_error *err);

/* filter.c: from here on it makes no system call that an engine has no use for. @why: as above. */
int filter_calls(const char **why, struct tmesh_error *err);

/* serve.c: the engine's process. A byte into @ready once it takes connections, or the reason why
 * not. */
_Noreturn void serve(const struct options *options, int listener, int ready, struct watch *watch);

/* calls.c: what runs, and the thread that ends it when its caller says so or has gone. */
struct calls;
/* Whose calls they are. */
struct caller {
	struct caller *next;
	uint64_t serial;	       /* 0: not listened to */
	uint64_t cancelled;	       /* up to which number its calls are called off */
	uint64_t ended;		       /* up to which they have been replied to */
	_Atomic uint64_t seen;	       /* up to which they have had their turn */
	const _Atomic uint64_t *asked; /* up to which its client says that it called */
	int socket;
	int kept[WIRE_KEPT]; /* descriptors that are open as long as it is a caller */
	uint32_t kept_count;
};
/* Starts the thread: it lives as long as the process. */
int calls_new(struct watch *watch, struct calls **out, struct tmesh_error *err);
int calls_add(struct calls *calls, struct caller *caller, int socket, const struct wire_page *page);
void calls_remove(struct calls *calls, struct caller *caller);
/* A call of @caller: its @number, until when its client wants it, how long the engine may take for
 * it, and whether it ends when it is called off; @cancellable is for it. */
struct call {
	uint64_t number;
	uint64_t until; /* 0: no matter when */
	uint64_t limit_ns;
	bool stops; /* it is a run */
	uint64_t tokens;
	struct tmesh_engine_cancellable *cancellable;
};
/* From here to calls_end(), when its reply is sent, it runs. -ECANCELED: it was called off before.
 */
int calls_begin(struct calls *calls, struct caller *caller, struct call *call,
		struct tmesh_error *err);
/* Its client is asked for memory: a slow one has no process ended, and the engine's time for the
 * call begins when that is there. */
void calls_wait(struct calls *calls);
/* -ETIMEDOUT: the client does not want it any more. */
int calls_go_on(struct calls *calls, struct tmesh_error *err);
/* Its time is not watched any more, and it is counted. */
void calls_ran(struct calls *calls, int code);
void calls_end(struct calls *calls);

/* client.c */
struct client;
/* A client on @socket, which is taken over; with its welcome under way. */
int client_new(struct tmesh_ctx *ctx, struct tmesh_engine_context *context, struct calls *calls,
	       int socket, size_t max_regions, struct client **out, struct tmesh_error *err);
void client_free(struct client *client);
/* To poll(): readable when there is a request; what hangs up when it has gone. */
int client_bell(const struct client *client);
int client_socket(const struct client *client);
/* Its next request, if there is one, done and answered. Return: whether there was one; -EPIPE: it
 * is to be dropped. */
int client_turn(struct client *client, uint64_t limit_ns);
/* To who connected and is not taken. */
void client_refuse(int socket, int code, const char *message);

#endif /* TMESH_ENGINE_PROCESS_H */
