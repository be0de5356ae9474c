/* SPDX-License-Identifier: MIT */
/*
 * Between the library and the keeper: a SOCK_SEQPACKET socket in the runtime directory. A client
 * asks once per message and waits for the answer. Regions travel as a hand-over sends them, one
 * message each (struct tmesh_wire_region).
 *
 *   KEEP    request, then request.count regions   -> reply
 *   OPEN    request                               -> reply, then reply.count regions
 *   LIST    request                               -> reply, then reply.count rows
 *   DROP, STATUS   request                        -> reply
 */
#ifndef TMESH_KEEPER_H
#define TMESH_KEEPER_H

#include "wire.h"

#define TMESH_MAGIC_KEEP 0x4b304d54u /* "TM0K" */
#define TMESH_KEEPER_SOCKET "keeper"
#define TMESH_KEEPER_LOCK "keeper.lock"

#define TMESH_KEEPER_MAX_NAMES 65536

enum tmesh_keeper_op {
	TMESH_KEEPER_KEEP = 1,
	TMESH_KEEPER_OPEN = 2,
	TMESH_KEEPER_LIST = 3,
	TMESH_KEEPER_DROP = 4,
	TMESH_KEEPER_STATUS = 5,
};

struct tmesh_keeper_request {
	uint32_t magic;
	uint32_t version;
	uint32_t op;
	uint32_t flags; /* TMESH_KEEPING_REPLACE */
	uint32_t count;
	uint32_t rights;
	uint64_t lifetime_ns;
	char name[TMESH_KEPT_NAME_LEN + 1]; /* zeros behind it */
};

struct tmesh_keeper_reply {
	uint32_t magic;
	uint32_t version;
	int32_t status; /* 0 or a negative errno */
	uint32_t count; /* of what follows; of STATUS the names */
	uint32_t where; /* the region that was refused */
	uint32_t flags; /* of STATUS: TMESH_KEEPER_* */
	uint64_t id;
	uint64_t need; /* bytes that did not fit */
	uint64_t used;
	uint64_t limit;
};
#define TMESH_KEEPER_STORED (1u << 0) /* systemd has the descriptors too */
#define TMESH_KEEPER_PRESSURE (1u << 1)

struct tmesh_keeper_row {
	uint64_t id;
	uint64_t bytes;
	uint64_t kept_ns;
	uint64_t used_ns;
	uint64_t expires_ns;
	uint32_t count;
	uint32_t held;
	char name[TMESH_KEPT_NAME_LEN + 1];
};

_Static_assert(sizeof(struct tmesh_keeper_request) == 96, "wire format");
_Static_assert(sizeof(struct tmesh_keeper_reply) == 56, "wire format");
_Static_assert(sizeof(struct tmesh_keeper_row) == 112, "wire format");

/*
 * What is kept as one region for reading is found without a question, as a producer's tokens are
 * (wire.h): the keeper's index has the runtime directory for its name, and in place of a secret
 * what tmesh_keeper_key() makes of the kept name. The link to it is named after the index.
 */
void tmesh_keeper_name(uint64_t dev, uint64_t ino, uint8_t name[16]);
void tmesh_keeper_key(const char *kept, uint8_t key[TMESH_SECRET_BYTES]);

/* keep_start.c: a connection to this user's keeper, one that is started for it when @start. -ENOENT
 * when none runs. */
int tmesh_keeper_connect(struct tmesh_ctx *ctx, bool start, int *out, struct tmesh_error *err);

#endif /* TMESH_KEEPER_H */
