/* SPDX-License-Identifier: MIT */
/*
 * The protocol of the library and the keeper, on a SOCK_SEQPACKET socket in the runtime directory.
 * A client asks once per message and waits for the answer. A region is one message, as in a
 * hand-over (struct tmesh_wire_region). In all versions the magic, the version and
 * the status stay where they are, and request and reply have these sizes. So each side can name the
 * difference.
 *
 *  KEEP    request, then request.count regions   -> reply
 *  OPEN    request                               -> reply, then reply.count regions
 *  LIST    request                               -> reply, then reply.count rows
 *  FIND    request                               -> reply, then one row
 *  TAKE    request                               -> reply, then one region
 *  DROP, STATUS   request                        -> reply
 *
 * A table of paths (paths.h) comes with the request of KEEP, and with the reply to FIND, if the
 * request has TMESH_KEEPER_PATHS.
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
	TMESH_KEEPER_FIND = 6,
	TMESH_KEEPER_OPEN_REGION = 7,
};

struct tmesh_keeper_request {
	uint32_t magic;
	uint32_t version;
	uint32_t op;
	uint32_t flags; /* TMESH_KEEPING_REPLACE, TMESH_KEEPER_PATHS */
	uint32_t count;
	uint32_t rights;
	uint64_t lifetime_ns;
	uint64_t id;	 /* TAKE: of the keeping */
	uint32_t region; /* TAKE: its place in the group */
	uint32_t mode;	 /* KEEP: of a group with paths */
	uint32_t gid;
	uint32_t pad;
	char name[TMESH_KEPT_NAME_LEN + 1]; /* zeros behind it */
};

struct tmesh_keeper_reply {
	uint32_t magic;
	uint32_t version;
	int32_t status; /* 0 or a negative errno */
	uint32_t count; /* of the messages to come; STATUS: of the names */
	uint32_t where; /* the region that was refused */
	uint32_t flags; /* of STATUS: TMESH_KEEPER_* */
	uint64_t id;
	uint64_t need; /* bytes that did not fit */
	uint64_t used;
	uint64_t limit;
};
#define TMESH_KEEPER_PATHS (1u << 8)  /* of requests and rows: with a table of paths */
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
	uint32_t mode;
	uint32_t gid;
	uint32_t flags; /* TMESH_KEEPER_PATHS */
	uint32_t pad;
	char name[TMESH_KEPT_NAME_LEN + 1];
};

_Static_assert(sizeof(struct tmesh_keeper_request) == 120, "wire format");
_Static_assert(sizeof(struct tmesh_keeper_reply) == 56, "wire format");
_Static_assert(sizeof(struct tmesh_keeper_row) == 128, "wire format");

/*
 * Compute an index's name and a kept name's key. A region that is kept alone and for reading is
 * found without a question, as a producer's tokens are (wire.h). The keeper's index has the runtime
 * directory as its name, and the key in place of a secret. The link to it is named after the index.
 */
void tmesh_keeper_name(uint64_t dev, uint64_t ino, uint8_t name[16]);
void tmesh_keeper_key(const char *kept, uint8_t key[TMESH_SECRET_BYTES]);

/* keep_start.c: connect to this user's keeper. @start: start one if none runs. -ENOENT: none runs.
 */
int tmesh_keeper_connect(struct tmesh_ctx *ctx, bool start, int *out, struct tmesh_error *err);

#endif /* TMESH_KEEPER_H */
