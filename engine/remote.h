/* SPDX-License-Identifier: MIT */
/*
 * An engine in a process of its own, seen from its client. For libtmesh-engine it is one more
 * plug-in, whose bind, run and so on are requests: programs are the same for both.
 *
 * A link is one connection to one process. When that process dies, calls that it had begun fail;
 * all others go on by a new link to the process that the supervisor started in its place, where
 * sessions and bindings are made again when they are used.
 */
#ifndef TMESH_ENGINE_REMOTE_H
#define TMESH_ENGINE_REMOTE_H

#include <tmesh/channel.h>

#include "cancel.h"
#include "remote_wire.h"

struct remote {
	struct tmesh_ctx *ctx;
	char name[WIRE_NAME_LEN + 1];
	uint64_t timeout_ns; /* of a call; 0: none */
	/* One call at a time; others wait. */
	pthread_mutex_t lock;
	pthread_cond_t idle;
	bool busy;
	pthread_t owner; /* whose turn it is */
	int bell;	 /* an eventfd: rung when the call that waits for a link is called off */
	/* The link; its socket is -1 where there is none. */
	int socket;
	_Atomic uint32_t pid; /* of the newest link, read without the lock */
	char backend[WIRE_NAME_LEN + 1];
	char version[64];
	struct tmesh_channel *requests, *replies; /* set and cleared with the lock */
	struct tmesh_tensor *page_tensor;
	struct wire_page *page;
	uint64_t generation; /* of links: what was made by an older one is gone */
	uint64_t number;     /* of the last request */
	/* What the engine's process keeps open: told on each link. In its caller's turn. */
	struct tmesh_region *kept[WIRE_KEPT];
	size_t kept_count;
};

/* A call that the engine had not begun when it died: to be made again on a new link. */
#define REMOTE_AGAIN (-ERESTART)

/* An absolute time, 0: never. */
uint64_t remote_deadline(const struct remote *remote);
/* One call at a time: the caller's turn, without limit when @deadline is 0. @hook stays
 * until it leaves. -ETIMEDOUT, -ECANCELED; -EDEADLK: in a signal's handler. */
int remote_enter(struct remote *remote, struct cancel_hook *hook, uint64_t deadline,
		 struct tmesh_error *err);
void remote_leave(struct remote *remote, struct cancel_hook *hook);
/* In its turn, in each of these. A link, if there is none. -EPIPE: nobody serves the name;
 * -ECANCELED. */
int remote_link(struct remote *remote, uint64_t deadline, struct tmesh_error *err);
void remote_unlink(struct remote *remote);
/* Where a request's text goes. */
struct wire remote_text(struct remote *remote);
/*
 * One request, and its reply. @answer (may be NULL): the reply's text, in the page until the next
 * request.
 * REMOTE_AGAIN; -EPIPE: the engine died in this call; -ETIMEDOUT; -ECANCELED; what the engine
 * replied.
 */
int remote_call(struct remote *remote, uint32_t op, uint32_t id, const struct wire *text,
		uint64_t deadline, uint32_t *made, struct wire *answer, struct tmesh_error *err);
/* A request that has no reply. The engine's death is noticed by the next call. */
void remote_tell(struct remote *remote, uint32_t op, uint32_t id);

/* remote_keep.c: one more that the engine keeps; takes a turn. */
int remote_keep(struct remote *remote, struct tmesh_region *region, struct tmesh_error *err);
/* All that is kept, on a link that is new. REMOTE_AGAIN. */
int remote_tell_kept(struct remote *remote, struct tmesh_error *err);

int remote_new(struct tmesh_ctx *ctx, const char *name, uint64_t timeout_ns, struct remote **out,
	       struct tmesh_error *err);
/* Its sessions and bindings are gone before. */
void remote_free(struct remote *remote);

extern const struct tmesh_engine_plugin remote_plugin;

#endif /* TMESH_ENGINE_REMOTE_H */
