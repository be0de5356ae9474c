/* SPDX-License-Identifier: MIT */
/*
 * A board: memory that one process writes and all others can only read (a memfd sealed against
 * every later writer), and a bell for each reader who wants to be told. A reader that cannot take
 * what it wants before that has changed again asks the owner, and is answered with something that
 * is kept for it.
 */
#ifndef MODEL_BOARD_H
#define MODEL_BOARD_H

#include "meet.h"

struct model_watcher;

struct model_answer {
	uint64_t number; /* of what is answered */
	uint64_t bytes;	 /* of the file that comes with it */
};

struct model_board {
	struct model_meet meet;
	uint32_t kind;
	uint32_t life;
	int fd;
	void *addr;
	size_t bytes;
	struct model_watcher *watchers; /* with the host's lock held */
	unsigned int count;
	/*
	 * A reader asks: fill @answer, give a descriptor (-1: there is none) and what is kept for
	 * the reader until it is done or dead, when @done gets it. Both with the host's lock held.
	 * NULL: there is nothing to ask for.
	 */
	int (*asked)(struct model_board *board, struct model_answer *answer, int *fd, void **pin);
	void (*done)(void *pin);
};

/* @kind is a magic number that says what the board is of. Not with the host's lock held. */
int model_board_create(struct model_board *board, struct tmesh_ctx *ctx, uint32_t kind,
		       const char *label, size_t bytes, struct tmesh_error *err);
void model_board_close(struct model_board *board);
int model_board_token(struct model_board *board, char *token, struct tmesh_error *err);
/* Tell all who want to be told. */
void model_board_ring(struct model_board *board);

/* A reader's side; for one thread at a time. */
struct model_view {
	struct model_fd socket;
	uint32_t life;
	const void *addr;
	size_t bytes;
	uint32_t asks;
	bool watches;
	bool gone;
	bool unsaid; /* that it is done: there was no room */
};

int model_view_open(struct model_view *view, struct tmesh_ctx *ctx, const char *token,
		    uint32_t kind, size_t least, struct tmesh_error *err);
void model_view_close(struct model_view *view);
/* The descriptor to poll; from the first call on the board's owner rings. */
int model_view_watch(struct model_view *view, struct tmesh_error *err);
/* Empty the bell: before the look that it calls for. */
void model_view_drain(struct model_view *view);
/* Whether the board's owner is gone, at once or within @ms. */
bool model_view_is_over(struct model_view *view, int ms);
/* Ask the owner. What is answered is kept until model_view_done(). Bells are emptied meanwhile, and
 * who watches is rung at the end. */
void model_view_ask(struct model_view *view);
/* Wait for the answer to what was asked last, @ms at most. @fd is the caller's, or -1. */
bool model_view_answer(struct model_view *view, int ms, struct model_answer *answer, int *fd);
void model_view_done(struct model_view *view);
/* Tell the owner so now, if there was no room when it was said. Watching and looking do so too. */
void model_view_settle(struct model_view *view);

#endif /* MODEL_BOARD_H */
