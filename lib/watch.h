/* SPDX-License-Identifier: MIT */
/*
 * The watch: a thread of a context, there from the first time that something has to be seen or done
 * without a call of the program's. watch.c
 */
#ifndef TMESH_LIB_WATCH_H
#define TMESH_LIB_WATCH_H

#include "internal.h"

struct tmesh_channel;

/* With ctx->lock held. Starts the thread, if it is not there. */
int tmesh_watch_start(struct tmesh_ctx *ctx, struct tmesh_error *err);
/* The end of this connection is told to tmesh_channels_ended(), by @number. Return: 0 or -errno. */
int tmesh_watch_add(struct tmesh_watch *watch, int fd, uint64_t *number);
/* Should the process at its other end (a connection), or that it names (a pidfd), end, the peers
 * are swept, once. Without a watch that is left to the next call. */
void tmesh_watch_peer(struct tmesh_ctx *ctx, int fd);
/* It has something to do. */
void tmesh_watch_nudge(struct tmesh_watch *watch);

/* From the context's end. */
void tmesh_watch_stop(struct tmesh_ctx *ctx);
/* In a forked child, without locks or allocation. */
void tmesh_watch_forked(struct tmesh_ctx *ctx);

/* channel_members.c: what the watch tells, with ctx->lock held */

/* A connection has ended. What came by it before is still good. */
void tmesh_channels_ended(struct tmesh_ctx *ctx, uint64_t number);
/* One that has parted and owes nothing any more, or whose time is over. @more: others part. */
struct tmesh_channel *tmesh_channels_parted(struct tmesh_ctx *ctx, bool *more);
/* Lets go of what lies for nothing where channels have put it. Return: whether to look again. */
bool tmesh_channels_tidy(struct tmesh_ctx *ctx);
void tmesh_channels_forked(struct tmesh_ctx *ctx);

#endif /* TMESH_LIB_WATCH_H */
