/* SPDX-License-Identifier: MIT */
/*
 * How two processes that one token brings together get a socket between them.
 *
 * The owner has a lobby: one end of a socket pair, whose other end a region of
 * tmesh_region_from_fd() stands for. That region's token is the owner's. Who redeems it makes a
 * socket pair of its own and sends one end of it into the lobby. The connection is private, its
 * end is the death of the one or of the other, and in whatever PID namespaces they live.
 */
#ifndef MODEL_MEET_H
#define MODEL_MEET_H

#include "host.h"

struct model_meet {
	struct model_source lobby;
	struct tmesh_ctx *home; /* a memfd context: the module's regions stand for devices only */
	struct tmesh_region *card;
	/* With the host's lock held; the socket is the callee's. */
	void (*joined)(struct model_meet *meet, int socket);
};

#define MODEL_WAIT_NS 2000000000ull /* for an answer of the owner's */

/* Without the lock held. */
int model_meet_open(struct model_meet *meet, struct tmesh_ctx *ctx, const char *label,
		    struct tmesh_error *err);
/* With the lock held: nobody joins any more. Before those that have joined are let go of. */
void model_meet_shut(struct model_meet *meet);
void model_meet_close(struct model_meet *meet);
int model_meet_token(struct model_meet *meet, char *token, struct tmesh_error *err);
/* A region that stands for @socket, whose caller keeps its own. */
int model_meet_card(struct tmesh_ctx *ctx, int socket, const char *label, struct tmesh_region **out,
		    struct tmesh_error *err);
/* -ENOENT: its owner is gone; -EPROTO: the token is something else's. */
int model_meet_join(struct tmesh_ctx *ctx, const char *token, int *socket, struct tmesh_error *err);

/* -EPROTO: the token is something else's; says which call opens what. */
int model_meet_refuse(struct tmesh_error *err);

/* One message, with at most one descriptor (-1: none). Return: 0 or a negative errno. */
int model_meet_send(int socket, const void *data, size_t bytes, int fd);
/* Return: bytes, of which at most @room are in @data; 0: the other end is gone; a negative errno
 * (-EAGAIN). @fd may be NULL: then descriptors that come are let go of. It is -1 where none came,
 * and -EMFILE where one was sent for which this process has no room (tmesh_foreign_room()). */
ssize_t model_meet_recv(int socket, void *data, size_t room, int *fd);
/* Wait until the socket can be read or written (@events), or is over. 0 or -ETIMEDOUT. */
int model_meet_wait(int socket, short events, uint64_t deadline);

#endif /* MODEL_MEET_H */
