/* SPDX-License-Identifier: MIT */
/*
 * How two processes that one token brings together get a socket between them.
 *
 * The owner has a listening socket: one end of a socket pair, whose other end a region of
 * tmesh_region_from_fd() stands for. That region's token is the owner's. A process that opens it
 * makes a socket pair of its own and sends one end of it to that socket. The connection is private,
 * its end is the death of the one or of the other, and in whatever PID namespaces they live.
 */
#ifndef MODEL_LISTENER_H
#define MODEL_LISTENER_H

#include "host.h"

struct model_listener {
	struct model_source source;
	struct tmesh_ctx
		*memfd_ctx; /* a memfd context: the module's regions stand for devices only */
	struct tmesh_region *region;
	/* With the host's lock held; the socket is the callee's. */
	void (*accepted)(struct model_listener *listener, int socket);
};

#define MODEL_WAIT_NS 2000000000ull /* for an answer of the owner's */

/* Open a listener. The lock is not held. */
int model_listener_open(struct model_listener *listener, struct tmesh_ctx *ctx, const char *label,
			struct tmesh_error *err);
/* Stop new processes from joining, with the lock held. Call it before ending accepted connections.
 */
void model_listener_shut(struct model_listener *listener);
void model_listener_close(struct model_listener *listener);
int model_listener_token(struct model_listener *listener, char *token, struct tmesh_error *err);
/* Make a region that stands for @socket; the caller keeps its own descriptor. */
int model_listener_region(struct tmesh_ctx *ctx, int socket, const char *label,
			  struct tmesh_region **out, struct tmesh_error *err);
/* Connect to a token's owner. -ENOENT: it is gone; -EPROTO: the token is something else's. */
int model_connect(struct tmesh_ctx *ctx, const char *token, int *socket, struct tmesh_error *err);

/* Return -EPROTO: the token is something else's. The error has the call that opens it. */
int model_refuse_token(struct tmesh_error *err);

/* Send one message, with at most one descriptor (-1: none). Return: 0 or a negative errno. */
int model_socket_send(int socket, const void *data, size_t bytes, int fd);
/* Receive one message. Return its bytes, of which at most @room are in @data, or a negative errno
 * (-EAGAIN). Return 0 if the other end is gone. @fd is the descriptor that came, or -1 if none
 * came. It is -EMFILE if this process has no room for one (tmesh_foreign_room()). If @fd is NULL,
 * descriptors are closed. */
ssize_t model_socket_recv(int socket, void *data, size_t room, int *fd);
/* Wait until the socket can be read or written (@events), or is over. 0 or -ETIMEDOUT. */
int model_socket_wait(int socket, short events, uint64_t deadline);

#endif /* MODEL_LISTENER_H */
