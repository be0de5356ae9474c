/* SPDX-License-Identifier: MIT */
/* A keeper's clients: one request at a time each, in bounded time. */
#ifndef TMESH_KEEPER_CLIENT_H
#define TMESH_KEEPER_CLIENT_H

#include "table.h"

#define CLIENTS 64

/* What all clients are served from. */
struct service {
	struct table table;
	uint32_t flags; /* TMESH_KEEPER_*, for STATUS */
};

enum client_state {
	CLIENT_ASKS,  /* a request comes next */
	CLIENT_GIVES, /* regions to keep */
	CLIENT_TAKES, /* the reply, and what follows it */
};

struct client {
	int fd; /* -1: none */
	enum client_state state;
	uint64_t deadline; /* it is let go then */
	struct tmesh_keeper_request request;
	struct tmesh_keeper_reply reply;
	struct group *group; /* being given, or being taken */
	struct tmesh_keeper_row *rows;
	uint32_t follow; /* messages behind the reply */
	uint32_t done;	 /* messages that came, or went: the reply is the first */
};

void client_begin(struct client *client, int fd);
short client_waits_for(const struct client *client);
/* Go on as far as that needs no waiting; @events is poll()'s. */
void client_step(struct client *client, struct service *service, short events);

/* links.c: a region of exactly its file's length also has a path, kept/NAME in the runtime
 * directory, for programs that know files alone. It is a link into this process's /proc. */
void link_add(int dir, const struct group *group);
void link_remove(int dir, const struct group *group);
void links_clear(int dir);

/* shown.c: what is kept as one region is found by others without a question (keeper.h). */
struct shown {
	int dir;
	uint8_t name[16];
	struct tmesh_index *index; /* NULL: there is none */
	uint32_t most;		   /* lent at a time */
};

void shown_begin(struct shown *shown, int dir, uint32_t most);
void shown_end(struct shown *shown);
void shown_add(struct shown *shown, const struct group *group);
/* Before its descriptor is closed. @renamed: another one has its name. */
void shown_remove(struct shown *shown, struct group *group, bool renamed);
/* Before it is looked who holds it. */
void shown_take_back(struct shown *shown, struct group *group);
/* After that, and when others are shown: lend those that were kept last. */
void shown_lend(struct shown *shown, struct group *groups, uint32_t count);

#endif /* TMESH_KEEPER_CLIENT_H */
