/* SPDX-License-Identifier: MIT */
/*
 * Pages: a pool of equal pages that processes share, and sequences over them: a KV cache. Part of
 * libtmesh-model. See tmesh/tmesh.h for the conventions of all calls, docs/reference/pages.md for
 * the trust between processes. Since 0.1.
 * Maturity: stable.
 *
 * A page pool is made in one process, its owner, which counts the holders of each page. Its pages
 * are in regions (slabs), one for each device. A tenant of the pool has slabs, a limit, prefixes
 * and a key of its own; it can neither map, name nor look up another tenant's. A process that has
 * a tenant's token opens a handle on the pool with it (struct tmesh_pages).
 *
 * A handle's tables and counts are in the private memory of its process, which sends messages to
 * the owner. The owner checks each message against its own records: a handle can give back, share
 * and cache only pages that it holds. When a process dies, its pages are free at once, except those
 * that others hold.
 *
 * All processes of a tenant can write to all of the tenant's pages, because they share the memory.
 * The calls below never write to a page that another sequence may have: they copy the page first,
 * and count the copy.
 *
 * Page numbers are those of a pool. Page p of device d is at tmesh_pages_base(d) + p * page_bytes
 * in each process, so that a table of numbers indexes one tensor.
 */
#ifndef TMESH_PAGES_H
#define TMESH_PAGES_H

#include <tmesh/tmesh.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_page_pool;
struct tmesh_pages;
struct tmesh_seq;

#define TMESH_PAGES_MAX 4194304u	 /* of a pool */
#define TMESH_PAGES_MAX_BYTES (1u << 30) /* of a page on one device */
#define TMESH_PAGES_MAX_DEVICES 16
#define TMESH_PAGES_MAX_SEQ 32768u /* pages of one sequence */
#define TMESH_PAGES_TICKET_SIZE 40 /* a ticket's text with its terminating zero */

/* A page that is cached under its hash and that no handle holds. */
struct tmesh_page_victim {
	uint32_t tenant; /* number, from 0, in the order of tmesh_page_pool_tenant() */
	uint32_t page;
	uint64_t hash[2];
};

struct tmesh_page_pool_opts {
	size_t size;	      /* sizeof(struct tmesh_page_pool_opts) */
	uint64_t page_bytes;  /* on each device: a multiple of the machine's pages; 0: 64 KiB */
	uint32_t page_tokens; /* tokens of a sequence in one page; 0: 16 */
	uint32_t slab_pages;  /* pages of a region; 0: 256 */
	uint32_t max_pages;   /* of all tenants, in whole slabs; 0: 4,096 */
	uint32_t devices;     /* over which the heads are spread; 0: 1 */
	uint32_t heads;	      /* 0: as many as devices */
	uint32_t reserved;    /* 0 */
	/* Make the region of a slab on @device; NULL: tmesh_region_create(). Called on the host's
	 * thread, with locks held: it may call this library, but no function of this header. It
	 * does not fork(), which would wait for such a lock; posix_spawn() is fine. The region has
	 * at least @bytes, can be mapped for reading and writing, and is the pool's then. */
	int (*place)(void *data, struct tmesh_ctx *ctx, uint32_t device, uint64_t bytes,
		     struct tmesh_region **out, struct tmesh_error *err);
	/* A tenant is out of pages: may this one, unused for longest, be evicted? false: the next
	 * one is asked about. NULL: each may. Called on the host's thread, with locks held: it
	 * calls nothing of this library, and does not fork(), as @place. */
	bool (*evict)(void *data, const struct tmesh_page_victim *victim);
	void *data; /* of both */
};

/*
 * Make a pool. A thread of this process serves it until its last reference is dropped. Its regions
 * are made with @ctx when they are needed.
 * Return: 0; -EINVAL, -EOVERFLOW, -ENOMEM, -EMFILE.
 */
int tmesh_page_pool_create(struct tmesh_ctx *ctx, const struct tmesh_page_pool_opts *opts,
			   struct tmesh_page_pool **out, struct tmesh_error *err);
struct tmesh_page_pool *tmesh_page_pool_ref(struct tmesh_page_pool *pool);
/* The last one ends the pool: handles keep what they have mapped, and get -EPIPE for more. */
void tmesh_page_pool_unref(struct tmesh_page_pool *pool);

/*
 * Make a tenant with at most @max_pages pages (0: as many as the pool), rounded up to whole slabs.
 * @token gets its token (TMESH_TOKEN_SIZE bytes), for processes of the same user. Each call makes
 * another tenant, with a random key.
 * Return: 0; -EINVAL; -EDQUOT (64 tenants); -ENOMEM, -EMFILE, -EACCES (runtime directory); -EPERM
 * (inherited).
 */
int tmesh_page_pool_tenant(struct tmesh_page_pool *pool, uint32_t max_pages, char *token,
			   struct tmesh_error *err);

struct tmesh_page_pool_info {
	size_t size;	    /* in: sizeof(struct tmesh_page_pool_info) */
	uint64_t slabs;	    /* regions' worth of memory */
	uint64_t pages;	    /* in them */
	uint64_t free;	    /* held by no handle and not cached */
	uint64_t cached;    /* under a hash, held or not */
	uint64_t held;	    /* by handles and tickets */
	uint64_t handles;   /* that take part now */
	uint64_t tickets;   /* not yet ended */
	uint64_t evicted;   /* since the beginning, as all that follow */
	uint64_t refused;   /* pages in messages of handles that did not hold them */
	uint64_t died;	    /* handles that ended with pages in use */
	uint64_t reclaimed; /* pages that those had */
};
/* Return: 0; -EINVAL (@info), -EPERM (inherited). */
int tmesh_page_pool_info(struct tmesh_page_pool *pool, struct tmesh_page_pool_info *info,
			 struct tmesh_error *err);

/*
 * Take part in a pool, as the tenant whose token it is. Address space for the whole pool is
 * reserved; memory is mapped when this handle first has a page of it. A forked child takes part by
 * a handle of its own; through the inherited one it gets -EPERM, and none of the pages.
 * Return: 0; -ENOENT (the pool is gone), -EPROTO (another token), -EBUSY (as many handles as the
 * pool can have), -ETIMEDOUT, -ENOMEM, -EMFILE.
 */
int tmesh_pages_open(struct tmesh_ctx *ctx, const char *token, struct tmesh_pages **out,
		     struct tmesh_error *err);
struct tmesh_pages *tmesh_pages_ref(struct tmesh_pages *pages);
/* The last one, and sequences count, gives all pages back. */
void tmesh_pages_unref(struct tmesh_pages *pages);

struct tmesh_pages_info {
	size_t size; /* in: sizeof(struct tmesh_pages_info) */
	uint64_t page_bytes;
	uint32_t page_tokens;
	uint32_t slab_pages;
	uint32_t max_pages; /* numbers are below */
	uint32_t devices;
	uint32_t heads;
	uint32_t spare;	 /* pages that this handle keeps ready */
	uint64_t held;	 /* pages that its tables and tmesh_pages_alloc() have */
	uint64_t copies; /* pages copied before a write, since the beginning */
	uint64_t bytes_copied;
};
int tmesh_pages_info(struct tmesh_pages *pages, struct tmesh_pages_info *info,
		     struct tmesh_error *err);

/* Where @head lies: its device, and its index among that device's heads. Heads are dealt
 * round-robin. Return: 0; -EINVAL. */
int tmesh_pages_head(const struct tmesh_pages *pages, uint32_t head, uint32_t *device,
		     uint32_t *place, struct tmesh_error *err);
/* The address of page 0 on @device, valid while the handle lives; NULL: there is no such device.
 * tmesh_pages_info() gives the page size. Only pages that the handle holds are mapped for certain.
 */
void *tmesh_pages_base(const struct tmesh_pages *pages, uint32_t device);

/*
 * Return the region of pages [@slab * slab_pages, (@slab + 1) * slab_pages) on @device, as this
 * handle has it, to be read and written: a new reference. Another process that works for this one,
 * such as an engine of tmesh/engine.h, maps the same memory by its token. Such a process can access
 * all pages of the slab, also those of other holders.
 * Return: 0; -EINVAL (no such slab or device), -ENOENT (this handle had no page of it so far),
 * -EPERM (inherited).
 */
int tmesh_pages_slab(struct tmesh_pages *pages, uint32_t slab, uint32_t device,
		     struct tmesh_region **out, struct tmesh_error *err);
/*
 * Make a region that stands for this handle's connection to the owner (tmesh_region_opaque_fd()).
 * When this process dies, the owner gives the handle's pages to others only once no process has the
 * connection open. A process that writes to pages for this one keeps it until it has stopped;
 * tmesh_engine_context_lifeline() makes an engine do so. The last tmesh_pages_unref() ends the
 * connection for all processes that have it. Return: 0; -EMFILE, -ENOMEM, -EPERM (inherited).
 */
int tmesh_pages_lifeline(struct tmesh_pages *pages, struct tmesh_region **out,
			 struct tmesh_error *err);

/*
 * One page, with one reference, whose content is whatever the tenant left in it. Costs no message
 * where the handle has one ready, as after a page that was let go.
 * Return: 0; -EDQUOT (the tenant has no page left: all are held); -EPIPE (the owner is gone),
 * -ETIMEDOUT, -ENOMEM (no region for a slab), -EPERM (inherited).
 */
int tmesh_pages_alloc(struct tmesh_pages *pages, uint32_t *page, struct tmesh_error *err);
/* Add or drop a reference on a page that this handle holds (else -EINVAL). Dropping the last one
 * gives the page back. */
int tmesh_pages_get(struct tmesh_pages *pages, uint32_t page, struct tmesh_error *err);
int tmesh_pages_put(struct tmesh_pages *pages, uint32_t page, struct tmesh_error *err);
/* Give the owner the pages that this handle keeps ready, and read the owner's messages. Waits at
 * most two seconds for an answer that is under way. */
void tmesh_pages_trim(struct tmesh_pages *pages);

/* Sequences. Each call takes the lock of its handle; sequences of one handle may be used by
 * several threads, one sequence by one at a time. */

/* A sequence without tokens. Return: 0; -ENOMEM, -EPERM (inherited). */
int tmesh_seq_create(struct tmesh_pages *pages, struct tmesh_seq **out, struct tmesh_error *err);
/* Lets its pages go. */
void tmesh_seq_free(struct tmesh_seq *seq);
/* Its number in this handle, which is never used again. */
uint64_t tmesh_seq_id(const struct tmesh_seq *seq);

/*
 * Room for @tokens more. A last page that is not full and that others may have is copied.
 * Return: 0; -EINVAL (more than TMESH_PAGES_MAX_SEQ pages, or than its view has room for); as
 * tmesh_pages_alloc().
 */
int tmesh_seq_append(struct tmesh_seq *seq, uint64_t tokens, struct tmesh_error *err);
/* Only the first @tokens stay. Return: 0; -EINVAL (it has fewer). */
int tmesh_seq_truncate(struct tmesh_seq *seq, uint64_t tokens, struct tmesh_error *err);
/* Another sequence with the same pages; either copies a page before it writes to it. Costs one
 * reference for each page. Return: 0; -ENOMEM, -EPERM. */
int tmesh_seq_fork(struct tmesh_seq *seq, struct tmesh_seq **out, struct tmesh_error *err);

uint64_t tmesh_seq_tokens(const struct tmesh_seq *seq);
/* Its block table, @count page numbers below 2^22, good until the sequence changes. */
const int32_t *tmesh_seq_table(const struct tmesh_seq *seq, uint32_t *count);
/*
 * Where block @index (from 0) is on @device. @rights: TMESH_READ, or TMESH_READ | TMESH_WRITE. With
 * TMESH_WRITE the block is this sequence's alone afterwards: a page that others may have was
 * copied, on all devices.
 * Return: 0; -EINVAL; as tmesh_pages_alloc().
 */
int tmesh_seq_page(struct tmesh_seq *seq, uint32_t index, uint32_t device, uint32_t rights,
		   void **addr, struct tmesh_error *err);
/*
 * Return whether the page of block @index is this sequence's alone. If it is not, a write copies it
 * and releases the old page, which may become another's at once. Such writes are tmesh_seq_page(),
 * and tmesh_seq_append() if that block is the last one and not full. A process that still reads the
 * old page takes a reference first, by tmesh_pages_get(). Return: 1, 0; -EINVAL (no such block),
 * -EPERM (inherited).
 */
int tmesh_seq_alone(struct tmesh_seq *seq, uint32_t index, struct tmesh_error *err);

/*
 * Write the tables of @count sequences in the form that paged attention kernels take. @tables is
 * int32 [count, width], row-major, 0 where a sequence has no more blocks. @lens is int32 [count],
 * in tokens. Return: 0; -EINVAL (a sequence has more than @width blocks, or more tokens than an
 * int32 holds: nothing was written).
 */
int tmesh_seq_tables(struct tmesh_seq *const *seqs, uint32_t count, int32_t *tables, uint32_t width,
		     int32_t *lens, struct tmesh_error *err);
/* Where tokens [@first, @first + @count) go: int64 [count], page * page_tokens + index in the page.
 * Return: 0; -EINVAL (beyond the sequence). */
int tmesh_seq_slot_mapping(const struct tmesh_seq *seq, uint64_t first, uint64_t count,
			   int64_t *slots, struct tmesh_error *err);

/*
 * Map the sequence on @device as one piece of memory, for reading: blocks one behind the other at
 * @addr, with address space for @max_tokens. Later calls give the same address, and fail if they
 * want more space. A fork has no view yet, and can have a larger one. Appended blocks appear behind
 * the others, and a replaced block is replaced here too; nothing is copied. The view ends with the
 * sequence. Memory beyond the last block cannot be touched (SIGSEGV). A sequence that is cut at the
 * limit of mappings (vm.max_map_count) loses the address space behind its last block.
 *
 * Return: 0; -EINVAL; -ENOMEM (address space, or vm.max_map_count: pages that follow each other
 * take one mapping together).
 */
int tmesh_seq_view(struct tmesh_seq *seq, uint32_t device, uint64_t max_tokens, const void **addr,
		   struct tmesh_error *err);
/*
 * The same as a region of its own, by tmesh_region_gather(): as it is now, read-only, with a token
 * and exports as any region. It keeps the memory alive but holds no page: it is good as long as
 * the sequence is not changed. Return: as tmesh_region_gather(): -EOPNOTSUPP on memfd; -EINVAL (no
 * blocks).
 */
int tmesh_seq_gather(struct tmesh_seq *seq, uint32_t device, struct tmesh_region **out,
		     struct tmesh_error *err);

/* Prefixes. */

/*
 * The hash of @count tokens behind those whose hash is @parent (NULL: none), under the tenant's
 * key: 128 bits of SipHash. The same tokens have another hash for another tenant.
 */
void tmesh_pages_hash(const struct tmesh_pages *pages, const uint64_t parent[2],
		      const int32_t *tokens, size_t count, uint64_t hash[2]);
/*
 * Let other handles of this tenant find the first @count blocks by these hashes. The blocks stay
 * cached after the sequence is freed, until the room is needed. Blocks that are cached already do
 * not change. All of these blocks must be full. They are not written any more: a later write copies
 * the page.
 * Return: 0; -EINVAL; -EPIPE, -ETIMEDOUT, -EPERM.
 */
int tmesh_seq_cache(struct tmesh_seq *seq, const uint64_t (*hashes)[2], uint32_t count,
		    struct tmesh_error *err);
/*
 * A sequence of the longest prefix of @hashes (at most 8,192) that is cached; it may have no block.
 * Return: 0; -EINVAL; -EPIPE, -ETIMEDOUT, -ENOMEM, -EPERM.
 */
int tmesh_pages_find(struct tmesh_pages *pages, const uint64_t (*hashes)[2], uint32_t count,
		     struct tmesh_seq **out, struct tmesh_error *err);

/* Handing over. */

/*
 * A ticket for the sequence as it is now, for handles of the same tenant. Its pages stay until
 * the ticket ends: by tmesh_pages_unshare(), or with this handle.
 * Return: 0; -EDQUOT (1,024 tickets of one handle); -EPIPE, -ETIMEDOUT, -EPERM.
 */
int tmesh_seq_share(struct tmesh_seq *seq, char ticket[TMESH_PAGES_TICKET_SIZE],
		    struct tmesh_error *err);
/* A sequence with the same pages. Return: 0; -EPROTO (no ticket), -ENOENT (it has ended, or is
 * another tenant's); -EPIPE, -ETIMEDOUT, -ENOMEM, -EPERM. */
int tmesh_seq_open(struct tmesh_pages *pages, const char *ticket, struct tmesh_seq **out,
		   struct tmesh_error *err);
int tmesh_pages_unshare(struct tmesh_pages *pages, const char *ticket, struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_PAGES_H */
