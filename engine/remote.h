/* SPDX-License-Identifier: MIT */
/*
 * The client's side of an engine in another process. To libtmesh-engine it is one more plug-in,
 * whose bind, run and other calls are requests. Programs use both kinds alike.
 *
 * A link is one connection to one process. If that process dies, calls that it had begun fail.
 * Other calls make a new link to the process that the supervisor started in its place. Sessions and
 * bindings are made again there when they are used.
 */
#ifndef TMESH_ENGINE_REMOTE_H
#define TMESH_ENGINE_REMOTE_H

#include <tmesh/channel.h>

#include "remote_wire.h"
#include "turn.h"

/* A note that the engine can drop an object. It is allocated with the object, so that dropping it
 * needs no memory. */
struct remote_word {
	struct remote_word *next;
	uint32_t op, id;
	uint64_t generation;
};

struct remote {
	struct tmesh_ctx *ctx;
	/* For the engine's own tokens, whose sockets are in a folder of the runtime directory
	 * @dir. */
	struct tmesh_ctx *engine_ctx;
	int dir;
	char name[WIRE_NAME_LEN + 1];
	uint64_t timeout_ns; /* of a call; 0: none */
	struct turns turns;  /* of calls */
	int notifier; /* an eventfd: signalled when a call that waits for a link is cancelled */
	/* The link; without one the socket is -1. */
	int socket;
	_Atomic uint32_t pid; /* of the newest link, read without the lock */
	char backend[WIRE_NAME_LEN + 1];
	char version[64];
	struct tmesh_channel *requests, *replies; /* set and cleared with the lock */
	struct tmesh_tensor *page_tensor;
	struct wire_page *page;
	uint64_t generation;	   /* of links: objects of an older one are gone */
	uint64_t number;	   /* of the last request */
	uint64_t answered;	   /* the number of the last reply */
	struct remote_word *words; /* to be sent by a turn; with the lock */
	/* Lifelines that the engine keeps open. They are sent on each new link. Used in a turn. */
	struct tmesh_region *kept[WIRE_KEPT];
	size_t kept_count;
};

/* The engine died before it began the call: make it again on a new link. */
#define REMOTE_AGAIN (-ERESTART)

/* Return the deadline of a call that begins now; 0: none. @remote is NULL for an engine in this
 * process. */
uint64_t remote_deadline(const struct remote *remote);
/* Wait for the turn, as turn_enter(). @hook stays until remote_leave(). */
int remote_enter(struct remote *remote, struct cancel_hook *hook, struct tmesh_error *err);
/* End the turn. */
void remote_leave(struct remote *remote, struct cancel_hook *hook);
/* The following functions are called in a turn. They wait until the deadline of this thread's call.
 *
 * Make a link if there is none. Return: 0; -EPIPE (no engine serves the name), -ECANCELED. */
int remote_link(struct remote *remote, struct tmesh_error *err);
void remote_unlink(struct remote *remote);
/* Return the place for a request's text. */
struct wire remote_text(struct remote *remote);
/*
 * Send one request and wait for its reply. @answer (may be NULL) is the reply's text, in the page
 * until the next request. Return: 0; REMOTE_AGAIN; -EPIPE (the engine died in this call);
 * -ETIMEDOUT, -ECANCELED; the engine's error.
 */
int remote_call(struct remote *remote, uint32_t op, uint32_t id, const struct wire *text,
		uint32_t *made, struct wire *answer, struct tmesh_error *err);

/* remote_words.c: take ownership of @word and queue it. For destructors: this waits for nothing. */
struct remote_word *remote_word_new(void);
void remote_word_queue(struct remote *remote, struct remote_word *word, uint32_t op, uint32_t id,
		       uint64_t generation);
/* Send the queued words, in a turn. Return false if the engine has no room for all of them. */
bool remote_say_words(struct remote *remote);
void remote_words_free(struct remote *remote);

/* remote_lifeline.c: give the engine one more lifeline to keep. This takes a turn. */
int remote_lifeline(struct remote *remote, struct tmesh_region *region, struct tmesh_error *err);
/* Send all lifelines on a new link. Return: 0; REMOTE_AGAIN. */
int remote_tell_kept(struct remote *remote, struct tmesh_error *err);

int remote_new(struct tmesh_ctx *ctx, const char *name, uint64_t timeout_ns, struct remote **out,
	       struct tmesh_error *err);
/* Free the client; its sessions and bindings are gone before. */
void remote_free(struct remote *remote);

extern const struct tmesh_engine_plugin remote_plugin;

#endif /* TMESH_ENGINE_REMOTE_H */
