/* SPDX-License-Identifier: MIT */
/* Commands to tmesh-net: one JSON object a message. docs/reference/net.md describes them. */
#ifndef TMESH_NET_COMMAND_H
#define TMESH_NET_COMMAND_H

#include "common/public.h"

#pragma GCC visibility push(default)
#include <tmesh/net.h>
#pragma GCC visibility pop

/* Enough for a small offer's bytes in hex and all other members. */
#define COMMAND_MAX_BYTES (2 * TMESH_NET_SMALL_BYTES + 4096)

enum command_type {
	COMMAND_OFFER,
	COMMAND_WITHDRAW,
	COMMAND_COPY,
	COMMAND_GRANT,
	COMMAND_REVOKE,
	COMMAND_FIND,
	COMMAND_FETCH,
	COMMAND_STORE,
	COMMAND_CANCEL,
	COMMAND_RELEASE,
	COMMAND_STATS,
};

/* A command. Its type decides which members are set; the others are zero. */
struct command {
	enum command_type type;
	int64_t id;	    /* of this command, at least 0 */
	int64_t of;	    /* of the fetch that is cancelled or released */
	int64_t bytes;	    /* at least 1 */
	int64_t timeout_ms; /* at least 1 */
	uint8_t *data;	    /* of COMMAND_STORE, @bytes of it; the command's owner frees it */
	char token[TMESH_TOKEN_SIZE];
	char offer[TMESH_NET_ID_SIZE];
	char peer[TMESH_NET_PEER_SIZE];
	char key[TMESH_NET_KEY_SIZE];
	char address[TMESH_NET_ADDRESS_SIZE];
	char checksum[TMESH_NET_CHECKSUM_SIZE];
};

/*
 * Parse a command strictly: every member of its type, each once, and no other. @id becomes the
 * message's id as soon as it is known, so that an answer can name it. Before that it is -1. Return:
 * 0; -EPROTO, -ENOMEM.
 */
int command_read(const char *text, size_t bytes, struct command *command, int64_t *id,
		 struct tmesh_error *err);

#endif /* TMESH_NET_COMMAND_H */
