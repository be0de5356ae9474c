/* SPDX-License-Identifier: MIT */
/*
 * The watch: a thread of a context, there from the first time that something has to be seen or done
 * without a call of the program's. watch.c
 */
#ifndef TMESH_LIB_WATCH_H
#define TMESH_LIB_WATCH_H

#include "internal.h"

struct tmesh_channel;

/* Start the thread unless it runs; ctx->lock is held. */
int tmesh_watch_start(struct tmesh_ctx *ctx, struct tmesh_error *err);
/* Watch a connection: its end calls tmesh_channels_ended() with @number. Return: 0 or -errno. */
int tmesh_watch_add(struct tmesh_watch *watch, int fd, uint64_t *number);
/* Sweep the peers once when the process ends that @fd connects to or, as a pidfd, names. Without a
 * watch the next call does that. */
void tmesh_watch_peer(struct tmesh_ctx *ctx, int fd);
/* Wake the watch: it has something to do. */
void tmesh_watch_nudge(struct tmesh_watch *watch);

/* Stop the watch at the context's end. */
void tmesh_watch_stop(struct tmesh_ctx *ctx);
/* Drop the watch in a forked child, without locks or allocation. */
void tmesh_watch_forked(struct tmesh_ctx *ctx);

/* channel_members.c: called by the watch, with ctx->lock held */

/* Note that a connection has ended. Messages that came before its end are still valid. */
void tmesh_channels_ended(struct tmesh_ctx *ctx, uint64_t number);
/* Return a channel whose last handle is closed and that owes nothing any more, or whose time is
 * over. @more: other channels are closed and wait. */
struct tmesh_channel *tmesh_channels_parted(struct tmesh_ctx *ctx, bool *more);
/* Release memory that channels no longer use. Return whether to look again. */
bool tmesh_channels_tidy(struct tmesh_ctx *ctx);
void tmesh_channels_forked(struct tmesh_ctx *ctx);

#endif /* TMESH_LIB_WATCH_H */
