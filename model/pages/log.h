/* SPDX-License-Identifier: MIT */
/*
 * A log: numbered, checksummed records that one process appends and any other follows. Its form,
 * which docs/reference/pages.md describes, is little-endian and without addresses: records mean the
 * same on another machine.
 *
 * Memory has a head and two segments, used in turn. A segment begins with the whole state (from
 * RESET to READY), so a follower that begins there needs nothing from before. tests/sim/sim_log.py
 * is the model of it.
 */
#ifndef MODEL_LOG_H
#define MODEL_LOG_H

#include "../shared/publication.h"

#define LOG_MAGIC 0x4c304d54u	     /* "TM0L", of the publication */
#define LOG_RECORD_MAGIC 0x52304c54u /* "TL0R" */
#define LOG_VERSION 1
#define LOG_SEGMENTS 2
#define LOG_SEGMENT_LEAST 4096u
#define LOG_SEGMENT_MOST (1u << 28)
#define LOG_PAYLOAD_MAX 1024u

enum log_kind {
	LOG_RESET = 1, /* forget everything: the state follows */
	LOG_READY = 2, /* that was the state */
	LOG_END = 3,   /* of the segment */
	LOG_OWN = 16,  /* and above: the writer's */
};

/* 40 bytes, then the payload, filled up with zeros to a multiple of 8. */
struct log_record {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;
	uint32_t bytes; /* of the payload */
	uint32_t zero;
	uint64_t number;   /* the first is 1, each next one is one more */
	uint64_t check[2]; /* [0]: of the head without this and the payload; [1]: of the head alone
			    */
};

struct log_head {
	uint32_t version;
	uint32_t segment_bytes;
	uint64_t id[2];				/* random: the key of the checksums */
	_Alignas(64) atomic_uint_fast64_t tail; /* segment above 32 bits of offset */
	atomic_uint_fast64_t failed;		/* the writer's errno, once it has given up */
	_Alignas(64) uint8_t segments[];
};

size_t log_record_size(uint32_t payload);

struct model_log {
	struct model_publication publication;
	struct log_head *head;
	uint64_t number;
	int failed;
	bool turning;
	/* Append the whole state. Called by model_log_append(). */
	int (*snapshot)(void *data, struct model_log *log);
	void *data;
};

/* Create a log. @segment_bytes: a multiple of 8. */
int model_log_create(struct model_log *log, struct tmesh_ctx *ctx, uint32_t segment_bytes,
		     int (*snapshot)(void *data, struct model_log *log), void *data,
		     struct tmesh_error *err);
void model_log_close(struct model_log *log);
/* Begin with the present state, once, before anything else. */
int model_log_begin(struct model_log *log);
/*
 * Append one record; for one thread at a time. The state must already be the one after it. Return:
 * 0; -ENOSPC: the state does not fit a segment. Then the log has ended, and followers learn of it.
 */
int model_log_append(struct model_log *log, uint16_t kind, const void *payload, uint32_t bytes);
/* Notify followers of appended records. */
void model_log_tell(struct model_log *log);

struct model_follower {
	struct model_subscription subscription;
	const struct log_head *head;
	uint64_t id[2];
	uint32_t segment_bytes;
	uint64_t segment;
	uint32_t offset;
	uint64_t number; /* of the last record; 0: any may be next */
	union {
		struct log_record record;
		uint8_t room[sizeof(struct log_record) + LOG_PAYLOAD_MAX];
	};
};

int model_follow_open(struct model_follower *follower, struct tmesh_ctx *ctx, const char *token,
		      struct tmesh_error *err);
void model_follow_close(struct model_follower *follower);
/* Return the log's tail, and whether the follower has read all records before it. */
uint64_t model_follow_tail(const struct model_follower *follower);
bool model_follow_past(const struct model_follower *follower, uint64_t tail);
/* Go on at the beginning of the newest segment. */
void model_follow_resync(struct model_follower *follower);
/*
 * Read the next record into follower->record and the room after it. Return: 0; -EAGAIN (no more
 * yet); -ESTALE (it fell behind); -EBADMSG (damage); -ENOSPC (the writer has given up). After any
 * error but -EAGAIN the follower needs a resync.
 */
int model_follow_next(struct model_follower *follower);

#endif /* MODEL_LOG_H */
