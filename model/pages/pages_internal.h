/* SPDX-License-Identifier: MIT */
/*
 * The messages between the owner of a page pool and its handles, and declarations that the files of
 * a handle share. docs/reference/pages.md explains them.
 *
 * Each message is a head and a body. Both ends check all of it: sizes are the packet's own, counts
 * must fit them, numbers of pages are compared with the pool's.
 */
#ifndef MODEL_PAGES_INTERNAL_H
#define MODEL_PAGES_INTERNAL_H

#include <pthread.h>

#include "../shared/listener.h"

#pragma GCC visibility push(default)
#include <tmesh/pages.h>
#pragma GCC visibility pop

#define PAGES_MAGIC 0x47304d54u /* "TM0G" */
#define PAGES_VERSION 1
#define PAGES_HUGE_BYTES (2ull << 20)

enum pages_op {
	/* of a handle */
	PAGES_WANT = 1,	   /* @count pages; @a: of them needed now, the others are for later */
	PAGES_RETURN,	   /* pages */
	PAGES_SLAB,	   /* @a: its number */
	PAGES_CACHE,	   /* struct pages_hashed */
	PAGES_FIND,	   /* hashes */
	PAGES_SHARE,	   /* pages; @a: tokens */
	PAGES_OPEN_TICKET, /* @a, @b: ticket */
	PAGES_UNSHARE,	   /* @a, @b: ticket */
	/* of the owner; each but WELCOME and RECALL answers the one with the same place above */
	PAGES_GRANT = 65,   /* pages */
	PAGES_SLAB_IS = 67, /* a token for each device */
	PAGES_CACHED = 68,
	PAGES_FOUND = 69,  /* pages */
	PAGES_TICKET = 70, /* @a, @b */
	PAGES_TABLE = 71,  /* pages; @a: tokens */
	PAGES_UNSHARED = 72,
	PAGES_WELCOME = 80, /* struct pages_shape */
	PAGES_RECALL,
};

struct pages_head {
	uint32_t op;
	int32_t status; /* of an answer: 0 or a negative errno */
	uint32_t count; /* of what follows */
	uint32_t pad;	/* 0 */
	uint64_t a;
	uint64_t b;
};

struct pages_hashed {
	uint64_t hash[2];
	uint32_t page;
	uint32_t pad;
};

struct pages_shape {
	uint32_t magic;
	uint32_t version;
	uint64_t page_bytes;
	uint32_t page_tokens;
	uint32_t slab_pages;
	uint32_t max_pages;
	uint32_t devices;
	uint32_t heads;
	uint32_t pad;
	uint64_t key[4];
};

#define PAGES_FIND_MAX 8192u
#define PAGES_CACHE_MAX 4096u
#define PAGES_GRANT_MAX 1024u
/* Messages that a handle reads before its answer. An owner sends at most a GRANT, and a RECALL for
 * each message of the handle's. */
#define PAGES_UNASKED_MAX 4096u

/* Room for any message. */
struct pages_message {
	struct pages_head head;
	union {
		uint32_t pages[TMESH_PAGES_MAX_SEQ];
		uint64_t hashes[PAGES_FIND_MAX][2];
		struct pages_hashed hashed[PAGES_CACHE_MAX];
		struct pages_shape shape;
		char tokens[TMESH_PAGES_MAX_DEVICES][TMESH_TOKEN_SIZE];
	};
};

/* Reserve addresses at a multiple of 2 MiB; NULL with errno. */
uint8_t *pages_address_space(uint64_t bytes);
/* Check for powers of two, limits and overflows; 0 or -EINVAL. */
int pages_check_shape(const struct pages_shape *shape, struct tmesh_error *err);

static inline bool bit_get(const uint64_t *bits, uint32_t i)
{
	return bits[i / 64] >> (i % 64) & 1;
}

static inline void bit_set(uint64_t *bits, uint32_t i)
{
	bits[i / 64] |= 1ull << (i % 64);
}

static inline void bit_clear(uint64_t *bits, uint32_t i)
{
	bits[i / 64] &= ~(1ull << (i % 64));
}

/* A handle. Members not marked constant are under @lock. */
struct tmesh_pages {
	atomic_uint refs;
	uint32_t life;
	struct tmesh_ctx *ctx;
	struct model_fd socket;			/* opened and closed under the host's lock too */
	struct pages_shape shape;		/* constant */
	uint32_t slabs;				/* constant */
	uint8_t *base[TMESH_PAGES_MAX_DEVICES]; /* constant */
	pthread_mutex_t lock;

	struct tmesh_region *(*regions)[TMESH_PAGES_MAX_DEVICES]; /* of each slab mapped */
	uint32_t *refs_of;					  /* of each page */
	uint64_t *shared; /* others may have the page: it is not written, and goes back */
	uint32_t *spare;  /* pages that it holds and nothing refers to */
	uint32_t spares;
	uint32_t *back; /* pages to be returned with the next message */
	uint32_t backs;
	uint32_t since; /* pages released since the last message of the owner */
	bool dry;	/* the last GRANT had no page: none are asked for ahead */
	bool wants;	/* the answer to a WANT is under way */
	bool gone;
	uint64_t held, copies;
	struct pages_message message;	     /* used under the lock */
	uint32_t found[TMESH_PAGES_MAX_SEQ]; /* pages of an answer, while more is asked */

	struct tmesh_seq *seqs, **seqs_end; /* in the order of ids */
	uint64_t last_id;
	struct table_log *log; /* block_table.c; NULL: none */
};

struct seq_view {
	uint8_t *addr; /* NULL: none */
	uint32_t room; /* in pages; 0: none */
};

struct tmesh_seq {
	struct tmesh_pages *pages;
	struct tmesh_seq *next, **at;
	uint64_t id;
	uint64_t tokens;
	uint32_t *table;
	uint32_t count, room;
	struct seq_view views[TMESH_PAGES_MAX_DEVICES];
};

/* handle.c; with the handle's lock held, and after pages_enter() */

/* Take the lock; -EPERM without it for an inherited handle. */
int pages_enter(struct tmesh_pages *pages, struct tmesh_error *err);
void pages_leave(struct tmesh_pages *pages);
/* Take @count pages with a reference each, or none. */
int pages_alloc(struct tmesh_pages *pages, uint32_t *out, uint32_t count, struct tmesh_error *err);
void pages_unref(struct tmesh_pages *pages, uint32_t page);
/* Adopt a page that came with the owner's answer, and map its slab. */
int pages_adopt(struct tmesh_pages *pages, uint32_t page, struct tmesh_error *err);
bool pages_alone(const struct tmesh_pages *pages, uint32_t page);
void pages_copy(struct tmesh_pages *pages, uint32_t to, uint32_t from);
/*
 * Send the @bytes of pages->message and wait for the answer, which replaces them. Pages released
 * before are returned first: none may be returned between a question and its answer, because the
 * answer may give the same pages again.
 */
int pages_ask(struct tmesh_pages *pages, size_t bytes, enum pages_op answer,
	      struct tmesh_error *err);
/* Send the released pages, without waiting. */
void pages_flush(struct tmesh_pages *pages);

/* Blocks that forks copy in an update; see tmesh_page_copy_update(). */
#define TABLE_COPIED_MOST (1u << 26)

/* block_table.c: append each change to the log of the handle's tables, if there is one */
void table_changed(const struct tmesh_seq *seq, uint32_t from);
void table_forked(const struct tmesh_seq *seq, const struct tmesh_seq *from);
void table_freed(struct tmesh_pages *pages, uint64_t id);
void table_log_free(struct tmesh_pages *pages);

/* sequence_map.c */
/* Show the new pages of blocks [@from, @to). */
int view_update(struct tmesh_seq *seq, uint32_t from, uint32_t to, struct tmesh_error *err);
/* Cut blocks beyond @count from views. Return: 0, or a negative errno if a view still shows some.
 */
int view_cut(struct tmesh_seq *seq, uint32_t count);
/* Return -EINVAL if a view has no room for @count blocks. */
int view_has_room(const struct tmesh_seq *seq, uint32_t count, struct tmesh_error *err);
void view_free(struct tmesh_seq *seq);

#endif /* MODEL_PAGES_INTERNAL_H */
