/* SPDX-License-Identifier: MIT */
/* A copy of the keeper's descriptors with systemd (FileDescriptorStoreMax=), by which they survive
 * the keeper. sd_notify(3) and sd_listen_fds(3) have the protocol. */
#ifndef TMESH_KEEPER_STORE_H
#define TMESH_KEEPER_STORE_H

#include "kexec.h"
#include "table.h"

struct store {
	int socket; /* -1: there is no store */
	char boot[KEXEC_BOOT_BYTES];
};

/* Open the socket of NOTIFY_SOCKET; false: there is none. */
bool store_open(struct store *store);
void store_ready(const struct store *store);
/* Report that this keeper is not ready, because another one runs. */
void store_waiting(const struct store *store);
/* Store a group: its regions, then its manifest. Return when systemd has them: 0 or a negative
 * errno. */
int store_add(const struct store *store, const struct group *group);
void store_remove(const struct store *store, const struct group *group);
/* Return the lock that an earlier life had and that systemd has kept, or -1. Call it before
 * store_adopt(), which leaves the lock alone. */
int store_lock(void);
/* Have systemd keep the lock, so that no other keeper gets it between two lives of this one. */
void store_keep_lock(const struct store *store, int lock);
/* Take over the descriptors of an earlier life, by LISTEN_FDS. Whole groups go into the table;
 * others are closed and removed from the store. Call this once, before anything else is open. */
void store_adopt(const struct store *store, struct table *table, int lock, uint64_t now);

/* Store groups that passed a kexec anew, with this kernel's descriptors and times, under new ids.
 * Call this when new ids are higher than all that were taken. */
void store_settle(const struct store *store, struct table *table);
/* Store a record of each group (kexec.h) if a kernel is loaded. Call this last of all. */
void store_before_kexec(const struct store *store, struct table *table);

#endif /* TMESH_KEEPER_STORE_H */
