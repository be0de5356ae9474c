/* SPDX-License-Identifier: MIT */
/* A keeper's clients: one request at a time each, in bounded time. */
#ifndef TMESH_KEEPER_CLIENT_H
#define TMESH_KEEPER_CLIENT_H

#include "table.h"

#define CLIENTS 64

/* The data that serves all clients. */
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
	pid_t pid;
	enum client_state state;
	uint64_t deadline; /* after it the client is disconnected */
	struct tmesh_keeper_request request;
	struct tmesh_keeper_reply reply;
	struct group *group; /* being given, or being taken */
	struct tmesh_keeper_row *rows;
	uint32_t follow; /* messages behind the reply */
	uint32_t done;	 /* messages that came, or went: the reply is the first */
	bool stranger;	 /* of another version: its further messages are dropped */
};

void client_begin(struct client *client, int fd, pid_t pid);
void client_end(struct client *client);
short client_waits_for(const struct client *client);
/* Go on as far as that needs no waiting; @events is poll()'s. */
void client_step(struct client *client, struct service *service, short events);

/* inherited.c: give up limits, niceness and the like of the client that has started this process,
 * as far as its user may. False: nothing can be kept under the limits that are left; stdout has the
 * reason. */
bool inherited_reset(void);

/* shown.c: other processes find a region that is kept alone without a question (keeper.h). */
struct shown {
	int dir;
	uint8_t name[16];
	struct tmesh_index *index; /* NULL: there is none */
	uint32_t most;		   /* lent at a time */
};

void shown_begin(struct shown *shown, int dir, uint32_t most);
void shown_end(struct shown *shown);
void shown_add(struct shown *shown, const struct group *group);
/* Remove the region before its descriptor is closed. @renamed: another region has its name. */
void shown_remove(struct shown *shown, struct group *group, bool renamed);
/* Take lent descriptors back, before a look at the group's holders. */
void shown_reclaim(struct shown *shown, struct group *group);
/* Lend the groups that were kept last, after that and when others are shown. */
void shown_lend(struct shown *shown, struct group *groups, uint32_t count);

#endif /* TMESH_KEEPER_CLIENT_H */
