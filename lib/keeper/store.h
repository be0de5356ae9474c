/* SPDX-License-Identifier: MIT */
/* A copy of the keeper's descriptors with systemd (FileDescriptorStoreMax=), by which they survive
 * the keeper. sd_notify(3) and sd_listen_fds(3) have the protocol. */
#ifndef TMESH_KEEPER_STORE_H
#define TMESH_KEEPER_STORE_H

#include "table.h"

struct store {
	int socket; /* -1: nobody stores */
};

/* By NOTIFY_SOCKET; false: there is none. */
bool store_open(struct store *store);
void store_ready(const struct store *store);
/* Not ready, because another keeper runs. */
void store_waiting(const struct store *store);
/* All of a group: its regions, then what says which they are. Returns when systemd has them. 0 or a
 * negative errno. */
int store_add(const struct store *store, const struct group *group);
void store_remove(const struct store *store, const struct group *group);
/* The lock that an earlier life had and that systemd has kept, or -1. To be called before
 * store_take(), which leaves it alone. */
int store_lock(void);
/* Have systemd keep the lock, so that nobody else gets it between two lives of this keeper. */
void store_keep_lock(const struct store *store, int lock);
/* What an earlier life left, by LISTEN_FDS: whole groups into the table, the rest is closed and
 * taken from the store. To be called once, before anything else is open. */
void store_take(const struct store *store, struct table *table, int lock, uint64_t now);

#endif /* TMESH_KEEPER_STORE_H */
