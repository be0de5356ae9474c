/* SPDX-License-Identifier: MIT */
/*
 * tmesh-engine: a supervisor, which listens and watches but runs no engine, and one process at a
 * time that does. This process works in a single thread, which takes requests from its clients by
 * turns. A second thread listens for clients that cancel the running call. The supervisor trusts
 * nothing that the engine's process sends or writes.
 */
#ifndef TMESH_ENGINE_PROCESS_H
#define TMESH_ENGINE_PROCESS_H

#include <tmesh/channel.h>
#include <tmesh/engine.h>

#include "common/engine_status.h"
#include "remote_wire.h"

#define MAX_FOLDERS 64
/* The most clients that have connected and are not accepted yet. */
#define BACKLOG 128
/* The exit status if the engine cannot be confined (EX_CONFIG). */
#define EXIT_UNCONFINED 78

struct options {
	const char *name;
	const char *backend;
	const char *library;
	const char *folders[MAX_FOLDERS]; /* of models, NULL after the last */
	size_t folder_count;
	uint32_t threads;
	uint32_t clients;
	uint32_t sessions;
	uint64_t limit_ns;    /* of one call */
	uint64_t patience_ns; /* the time for a client to give its memory, for each region */
	bool unconfined;
	bool with_input; /* end when the standard input ends */
};

/* A page that both processes share: the engine's process writes it, the supervisor reads it. */
struct watch {
	_Atomic uint64_t beat; /* changes whenever something begins or ends */
	/* When the current work must have ended, by the engine's limit; 0: no work. */
	_Atomic uint64_t deadline;
	/* When it must have ended because its client stops waiting; 0: no such time. */
	_Atomic uint64_t until;
	_Atomic uint32_t asleep; /* WATCH_ASLEEP: until a client or the supervisor wakes it */
};
#define WATCH_ASLEEP UINT32_C(0x736c6570)

/* Objects that an engine's process shares with its supervisor. */
struct shared {
	struct watch *watch;
	struct engine_status *status;
	/* The engine's end of a socket pair. Either side writes there to wake the other one. Each
	 * side has a file of its own, so that flags which the engine sets bind the engine alone. */
	int wake;
	int broker; /* a socket on which the supervisor hands over connections */
	int folder; /* the engine's own folder in the runtime directory */
};

/* supervise.c: serve until a signal or the end of the input. Return: the exit status. */
int supervise(const struct options *options);

/* place.c: the files of one engine's name in the runtime directory. */
struct place {
	int dir;      /* the runtime directory */
	int lock;     /* engine-NAME.lock, locked while the supervisor lives */
	int listener; /* engine-NAME */
	int folder;   /* engine-NAME.d, for the engine's process */
	int status_fd;
	struct engine_status *status;
	char name[sizeof(WIRE_SOCKET) + WIRE_NAME_LEN];
};
#define PLACE_NONE                                                                   \
	(struct place)                                                               \
	{                                                                            \
		.dir = -1, .lock = -1, .listener = -1, .folder = -1, .status_fd = -1 \
	}
/* Return 0, or -1 with the reason in @err. */
int place_claim(struct place *place, const char *name, struct tmesh_error *err);
/* Return whether a process has shut the listener down, on which no client can connect then. */
bool place_is_deaf(const struct place *place);
/* Make the listener anew. Return 0, or -1 with the reason in @err. */
int place_listen(struct place *place, struct tmesh_error *err);
/* Remove the files that an ended engine's process left in its folder. */
void place_sweep(const struct place *place);
void place_leave(struct place *place);

/* status.c: the engine's status, in a memfd whose size is sealed. */
int status_new(int *fd, struct engine_status **out, struct tmesh_error *err);
/* Count a call that begins or ends. @step: it was a run, which took @tokens in. Its deadline is set
 * before, and again on each change; UINT64_MAX: not watched. */
void status_deadline(struct engine_status *status, uint64_t deadline);
void status_began(struct engine_status *status);
void status_ended(struct engine_status *status, int code, bool step, uint64_t tokens);
/* Count a process that died, and the call that ran in it. */
void status_buried(struct engine_status *status, uint32_t restarts);

/*
 * Confine a process, in this order: shed.c, the context of libtmesh, confine.c, the first token,
 * whose socket is made then, and filter.c. Return -ENOTSUP if the kernel lacks a feature, which
 * @err names.
 */
/* shed.c: remove variables that no engine needs, also from the memory that the kernel shows. */
void shed_environment(void);
/* Open /dev/null in place of standard descriptors that are closed: else the next files would get
 * their numbers, and messages. Return: 0 or -1. */
int fill_standard(void);
/* Close all descriptors above the standard ones except @kept, which gets sorted. Return: 0 or
 * -1. */
int shed_descriptors(int *kept, size_t count);
/* Close the standard input, and drop the right to read from the standard error. Return: 0 or -1. */
int shed_terminal(void);
/* Drop the rights to write core files and to gain privileges; with @all, capabilities too. */
int shed_rights(bool all, struct tmesh_error *err);
/* confine.c: apply Landlock. @folder: the engine's own, or -1. */
int confine(const struct options *options, int folder, struct tmesh_error *err);
/* Return the version of Landlock's interface; 0 or less: there is none. */
int confine_abi(void);
/* filter.c: apply seccomp. */
int filter_calls(struct tmesh_error *err);
/* prove.c: try the forbidden actions, before and after filter_calls(). */
int prove_rights(struct tmesh_error *err);
int prove_confined(unsigned int *count, struct tmesh_error *err);
/* check.c: confine a process without an engine, and print the denied attempts. Return the exit
 * status. */
int check(void);

/* broker.c: connections to producers of tokens. Used in the engine's process: */
struct broker;
int broker_new(int socket, struct broker **out, struct tmesh_error *err);
/* A function for connect of tmesh_ctx_opts; @data is a broker. */
int broker_connect(void *data, const char *name, uint64_t deadline, int *socket);
/* Answer questions in the supervisor, without waiting. @dir: the runtime directory. Return false if
 * no more questions can come. */
bool broker_serve(int broker, int dir);

/* serve.c: the engine's process, which writes one of these into @ready: */
struct ready {
	int32_t status; /* 0: it accepts connections; else the exit status, with: */
	int32_t code;	/* a negative errno */
	char why[248];
};
_Noreturn void serve(const struct options *options, int listener, int ready,
		     const struct shared *shared);
/* Return how many regions one client may have open. */
size_t serve_regions(const struct options *options);

/* calls.c: the running call, and the thread that ends it when its client cancels it or has gone. */
struct calls;
/* A client that makes calls. */
struct caller {
	struct caller *next;
	uint64_t serial;	       /* 0: no thread listens to it */
	uint64_t cancelled;	       /* the last cancelled call */
	uint64_t ended;		       /* the last call with a reply */
	_Atomic uint64_t seen;	       /* the last call that had its turn */
	const _Atomic uint64_t *asked; /* the last call, by the client's word */
	int socket;
	int kept[WIRE_KEPT]; /* lifelines, open while it is a caller */
	uint32_t kept_count;
};
/* Start the thread, which lives as long as the process. */
int calls_new(const struct shared *shared, uint64_t limit_ns, struct calls **out,
	      struct tmesh_error *err);
int calls_add(struct calls *calls, struct caller *caller, int socket, const struct wire_page *page);
void calls_remove(struct calls *calls, struct caller *caller);
/* A call of @caller: its number, the time until its client waits, whether a cancellation ends it,
 * and its cancellable. */
struct call {
	uint64_t number;
	uint64_t until; /* 0: no limit */
	bool stops;	/* it is a run, so it can be cancelled */
	uint64_t tokens;
	struct tmesh_engine_cancellable *cancellable;
};
/* Begin a call. It runs until calls_end(), when its reply is sent. Return: 0; -ECANCELED: it was
 * cancelled before. */
int calls_begin(struct calls *calls, struct caller *caller, struct call *call,
		struct tmesh_error *err);
/* Add @ns to the limit while the client is asked for memory. The engine's time begins when the
 * memory is there. */
void calls_wait(struct calls *calls, uint64_t ns);
/* Start the engine's time. Return -ETIMEDOUT if the client does not wait any more. */
int calls_go_on(struct calls *calls, struct tmesh_error *err);
/* Count the call. Its time is watched until calls_end(). */
void calls_ran(struct calls *calls, int code);
void calls_end(struct calls *calls);
/* Watch work outside of calls: it must end, by calls_idle(), within the limit. */
void calls_busy(struct calls *calls);
void calls_idle(struct calls *calls);
/* Note that the process goes to sleep, or has woken. */
void calls_sleep(struct calls *calls);
void calls_wake(struct calls *calls);

/* client.c */
struct client;
struct service {
	struct tmesh_ctx *ctx;
	struct tmesh_engine_context *context;
	struct calls *calls;
	size_t max_regions; /* the most of one client */
	uint64_t patience_ns;
};
/* Make a client on @socket, take ownership of the socket and send the welcome. */
int client_new(const struct service *service, int socket, struct client **out,
	       struct tmesh_error *err);
void client_free(struct client *client);
/* Descriptors for poll(): readable when there is a request; hung up when the client has gone. */
int client_notifier(const struct client *client);
int client_socket(const struct client *client);
/* Do and answer the client's next request. Return whether there was one; -EPIPE: drop the
 * client. */
int client_turn(struct client *client);
/* Refuse a client that connected, with a reason. */
void client_refuse(int socket, int code, const char *message);

#endif /* TMESH_ENGINE_PROCESS_H */
