/* SPDX-License-Identifier: MIT */
/*
 * Declarations that the files of the library share; libtmesh exports none of them.
 *
 * Locks, in the order in which they may be taken:
 *
 *  fork.c's list lock -> ctx->lock              (all contexts', only around fork())
 *  region->copies     -> region->lock       -> ctx->lock
 *
 * No lock is held while waiting for another process. Around fork() all context locks are held, so
 * that the child finds them free and their data consistent. Region locks are not: a child uses the
 * context's lock for the regions it inherited (region_lock() chooses).
 */
#ifndef TMESH_INTERNAL_H
#define TMESH_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/clock.h"
#include "common/error.h"
#include "common/foreign.h"
#include "common/hex.h"
#include "common/label.h"
#include "common/page.h"
#include "common/random.h"
#include "common/siphash.h"
#include "common/sized.h"

/* Offsets of memory: on 32 bits -D_FILE_OFFSET_BITS=64. */
_Static_assert(sizeof(off_t) == 8, "off_t has 64 bits");

#define TMESH_RIGHTS_ALL (TMESH_READ | TMESH_WRITE | TMESH_MANAGE)
#define TMESH_SECRET_BYTES 16

/* context.c */

enum tmesh_counter {
	COUNT_BYTES_COPIED,
	COUNT_COPIES,
	COUNT_CREATED,
	COUNT_OPENED,
	COUNT_LIVE,
	COUNT_BYTES_LIVE,
	COUNT_REGION_POOL_HITS,
	COUNT_REGION_POOL_MISSES,
	COUNT_SERVED,
	COUNT_WITHOUT_WAKE,
	COUNT_SENT_ALONE,
	COUNT_HUGE_BYTES,
	COUNT_HUGE_GIVEN_UP,
	COUNTERS,
};

enum tmesh_cap_index {
	CAP_ZERO_COPY,
	CAP_CRASH_CLEANUP,
	CAP_READ_ONLY,
	CAP_SEAL,
	CAP_SEAL_DEVICES,
	CAP_REVOKE,
	CAP_PIN,
	CAP_HOLDERS,
	CAP_DMABUF_EXPORT,
	CAP_DMABUF_EXPORT_SEALED,
	CAP_HUGE_PAGES,
	CAP_NUMA,
	CAP_QUOTA,
	CAP_DIRECT_IO,
	CAP_OPEN_WITHOUT_WAKE,
	CAP_LEASE,
	CAP_USER_MEMORY,
	CAP_IMPORT,
	CAP_GATHER,
	CAP_FENCE,
	CAPS,
};

struct tmesh_server; /* answers for the tokens of a context: server.c */
struct tmesh_peer;   /* another process's server: peer.c */
struct tmesh_watch;  /* work that no call does: watch.c */
struct tmesh_wire_region;
struct tmesh_holds; /* regions held for others: hold.c */
struct tmesh_hold;

#include "kernel_part.h"
#include "memfd_part.h"

struct tmesh_ctx {
	atomic_uint refs;
	const struct tmesh_backend_ops *ops;
	struct tmesh_ctx *next; /* all contexts, guarded by fork.c's list lock */
	uint32_t life;		/* the process it lives in, as fork.c counts; under lock */
	pthread_mutex_t lock;

	atomic_uint_fast64_t max_bytes;
	atomic_uint_fast64_t pool_max; /* or POOL_BY_DEFAULT */
	uint64_t timeout_ns;
	uint64_t exit_wait_ns;	 /* also how long a channel without members outlives its maker */
	bool waits_at_exit;	 /* the program asked for it: by the option or the environment */
	uint64_t max_held_bytes; /* as given */
	/* The process's; asking each time would be a call per region. tmesh_rundir_open() asks. */
	uid_t uid;
	tmesh_log_fn log;
	void *log_data;
	_Atomic(struct tmesh_log_line *) said; /* the last one first */
	enum tmesh_taken taken;
	uint32_t spare_files;
	/* environment.c: the environment at the time when the context was made */
	char *runtime_dir;	  /* absolute */
	bool runtime_dir_of_user; /* "tmesh-UID" below it, also after a change of the user */
	char *mount;		  /* of kept files */
	char *keeper;		  /* the program; NULL: search it */
	int (*connect)(void *data, const char *name, uint64_t deadline, int *socket); /* or NULL */
	void *connect_data;

	uint64_t id_key[2]; /* ids are a keyed hash of a counter: random, without a call */
	atomic_uint_fast64_t id_count;
	atomic_uint_fast64_t bytes_owned; /* of max_bytes, with the pool's */
	atomic_uint_fast64_t counters[COUNTERS];

	/* guarded by lock */
	struct tmesh_cap *caps; /* made when first asked for */
	struct tmesh_caps_copy *caps_copies;
	struct tmesh_region *pool;
	uint64_t region_pool_bytes;
	uint64_t pool_idle_ns; /* so long a region lies there */
	int pool_look_ms;      /* so often the watch looks, where pool_watched */
	bool pool_watched;
	bool pool_used;		    /* since it looked */
	struct tmesh_region **live; /* live.c: heads by id */
	uint32_t live_buckets;
	uint32_t live_count;
	struct tmesh_region *live_few[64];
	struct tmesh_holds *holds;	     /* made with the first */
	struct tmesh_holds *inherited_holds; /* of the parent's, to be dropped */

	struct tmesh_channel *channels;
	struct tmesh_watch *watch;
	_Atomic(struct tmesh_region *) later; /* to drop their last reference; without the lock */

	struct tmesh_memfd_ctx memfd;
	struct tmesh_kernel_ctx kernel;
};

void tmesh_log(const struct tmesh_ctx *ctx, enum tmesh_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Log a line with ctx->lock held. tmesh_log_said() passes it to the context's user later, without
 * the lock, so that a program may fork() there. */
void tmesh_log_later(struct tmesh_ctx *ctx, enum tmesh_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void tmesh_log_said(struct tmesh_ctx *ctx);
void tmesh_log_forget(struct tmesh_ctx *ctx); /* in a forked child: the lines are the parent's */
void tmesh_count(struct tmesh_ctx *ctx, enum tmesh_counter counter, uint64_t n);
/* Account one copy of tensor bytes that the library itself made. */
void tmesh_count_copy(struct tmesh_ctx *ctx, uint64_t bytes);
/* Read as tmesh_region_read() does, but do not count a copy. */
int tmesh_region_fetch(struct tmesh_region *region, uint64_t offset, void *data, uint64_t bytes,
		       struct tmesh_error *err);
uint64_t tmesh_new_id(struct tmesh_ctx *ctx);
/* Begin a call that needs the context alive. After a fork it makes the child's context its own. */
int tmesh_ctx_enter(struct tmesh_ctx *ctx, struct tmesh_error *err);
/* backend.c: read the backend from @option or TMESH_BACKEND; TMESH_BACKEND_AUTO: neither names one.
 */
int tmesh_backend_wanted(enum tmesh_backend option, enum tmesh_backend *out,
			 struct tmesh_error *err);
/* Open the context's backend: the wanted one, or the module if it can be had, else memfds. */
int tmesh_backend_open(struct tmesh_ctx *ctx, enum tmesh_backend wanted, struct tmesh_error *err);
/* Return the context of memfds: @ctx itself or, on the module, one beside it that is made once. */
int tmesh_ctx_memfd(struct tmesh_ctx *ctx, struct tmesh_ctx **out, struct tmesh_error *err);
void tmesh_caps_free(struct tmesh_ctx *ctx);
/* caps.c: set one capability. A backend's caps operation calls it once for each. */
void tmesh_cap_set(struct tmesh_ctx *ctx, enum tmesh_cap_index cap, enum tmesh_cap_level level,
		   const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* opts.c */

int tmesh_check_rights(uint32_t rights, struct tmesh_error *err);
/* Return -EPERM: a sealed region keeps its description. */
int tmesh_refuse_description(const struct tmesh_region *region, struct tmesh_error *err);
/* Refuse a right to write that was asked for in an open, after a seal. */
int tmesh_refuse_sealed(const struct tmesh_region *region, uint32_t rights,
			struct tmesh_error *err);
/* Return -EPERM as before, or -EACCES: a token grants less than @rights. */
int tmesh_refuse_rights(const struct tmesh_region *region, uint32_t rights, uint32_t granted,
			struct tmesh_error *err);
/* Return -EACCES: @what, such as a token, grants less than @rights. */
int tmesh_fail_rights(struct tmesh_error *err, const char *what, uint32_t rights);
/* Return -EPERM if @what would give other processes the right to write to sealed memory. */
int tmesh_refuse_sealed_gift(struct tmesh_region *region, uint32_t rights, const char *what,
			     struct tmesh_error *err);
int tmesh_check_mode(uint32_t mode, struct tmesh_error *err);
/* Check all options that do not depend on the backend. @opts may be NULL. */
int tmesh_read_region_opts(const struct tmesh_region_opts *opts, struct tmesh_region_opts *out,
			   struct tmesh_error *err);
/* Read the options of a tensor, which may name an arena. */
int tmesh_read_tensor_opts(const struct tmesh_region_opts *opts, struct tmesh_region_opts *out,
			   struct tmesh_error *err);
/* Return whether a tensor that is put with these checked options is sealed then. */
static inline bool tmesh_opts_seal(const struct tmesh_region_opts *opts)
{
	return !opts->arena && !(opts->flags & (TMESH_REGION_UNSEALED | TMESH_REGION_REUSE));
}

/* fork.c */

int tmesh_fork_watch(struct tmesh_ctx *ctx);
void tmesh_fork_forget(struct tmesh_ctx *ctx);
extern atomic_uint tmesh_life;
/* Return a number that differs between a process and its forked children. */
static inline uint32_t tmesh_fork_life(void)
{
	return atomic_load_explicit(&tmesh_life, memory_order_relaxed);
}
/* Keep fork() from running until tmesh_fork_let(). Only for short work that takes no other lock. */
void tmesh_fork_keep_off(void);
/* Allow fork() again. It leaves errno as it is. */
void tmesh_fork_let(void);
uint32_t tmesh_fork_count(void); /* grows with every fork() of this process */
/* Call @f with every context, which stays alive meanwhile, and without a lock. If another thread
 * keeps the list's lock, call it for none. */
void tmesh_fork_each(void (*f)(struct tmesh_ctx *ctx, void *data), void *data);

/* region.c */

/* Room above for rounding up to huge pages and for a backend's trailer. */
#define TMESH_BYTES_MAX ((uint64_t)INT64_MAX - (64u << 20))

/* Properties of a region beside its bytes, in messages and in the index. */
#define TMESH_KIND_FOREIGN (1u << 0) /* a memfd made elsewhere: no name, no trailer of ours */
#define TMESH_KIND_HUGETLB (1u << 1)
#define TMESH_KIND_NO_PIN (1u << 2)
#define TMESH_KIND_OPAQUE (1u << 3) /* stands for a descriptor: memfd_opaque.c */
#define TMESH_KINDS \
	(TMESH_KIND_FOREIGN | TMESH_KIND_HUGETLB | TMESH_KIND_NO_PIN | TMESH_KIND_OPAQUE)

/* A question to the producer of a token, which may take more calls than one: peer.c. */
struct tmesh_question {
	uint64_t until;	   /* this call waits no longer; UINT64_MAX: for the context's timeout */
	int conn;	   /* it was asked by, and the answer comes by it; -1: nothing was asked */
	pid_t pid;	   /* of the process at its other end */
	uint64_t deadline; /* after it the producer counts as one that does not answer */
	uint64_t index;	   /* as in the request, with the next two */
	uint32_t rights;
	uint8_t secret[TMESH_SECRET_BYTES];
};
#define TMESH_NO_QUESTION ((struct tmesh_question){.until = UINT64_MAX, .conn = -1})

struct tmesh_region {
	atomic_uint refs;
	struct tmesh_ctx *ctx;
	uint32_t life;	/* tmesh_fork_life() of the process it belongs to */
	uint32_t forks; /* tmesh_fork_count() when it was made */
	int fd;
	uint32_t rights;
	uint32_t kind;
	uint64_t id;
	uint64_t bytes;
	uint64_t alloc;
	struct tmesh_question *question; /* while it is opened, or NULL */
	struct tmesh_region_opts opts;	 /* as created; label points to the next */
	char label[TMESH_LABEL_LEN + 1];
	bool created; /* by this context: may go to the pool */
	bool pinning;
	bool private; /* writes to it are this process's own: region.c */

	pthread_rwlock_t copies; /* shared by copies into it, exclusive for a seal */
	atomic_uint writers;	 /* by its descriptor, or its mapping */

	pthread_mutex_t lock; /* guards the rest, never for as long as a copy takes; take it with
			       * region_lock() */
	void *addr;	      /* the one mapping, kept until the end; set last */
	int prot;	      /* PROT_* of it */
	bool marked;	      /* a forked child does not have it: map.c */
	unsigned int maps;
	atomic_bool sealed;
	atomic_bool shared; /* created here, and others may hold the memory: never to the pool */
	atomic_bool lent;   /* others have had it for reading only, and may hold it still */
	bool warm;	    /* its pages are there and mapped: write through the mapping */
	uint32_t description_bytes;
	struct tmesh_region *pool_next;
	struct tmesh_region *later; /* watch.c: of regions whose last reference is to be dropped */
	uint64_t pool_since;
	/* live.c; under ctx->lock */
	struct tmesh_region *ring_next, *ring_prev; /* handles of the same region */
	struct tmesh_region *live_next;		    /* of a head: the bucket's next one */
	uint64_t live_bytes;			    /* of a head: as it was counted */
	uint64_t charged;			    /* of the context's max_bytes */
	struct tmesh_channel *channel; /* made here, whose memory it is; under ctx->lock */

	/* Tokens that hold it or have held it; under ctx->lock */
	struct tmesh_hold *hold;
	uint32_t holds;		 /* how many do */
	bool outlives;		 /* the kernel keeps it as long, should this process end */
	uint8_t outlives_as[16]; /* what it is kept by, known here alone */
	uint64_t outlives_until;

	_Atomic(struct tmesh_client_lease *) lease; /* lease.c; NULL: not looked for yet */
	struct tmesh_memfd_region memfd;
	bool zeros; /* taken memory reads as zeros: check again after reading */
};

bool tmesh_region_inherited(const struct tmesh_region *region);
/* Drop a reference unless it is the last. The caller then sees all that other threads did before
 * they dropped theirs. */
static inline bool tmesh_drop_one(atomic_uint *refs)
{
	unsigned int now = atomic_load_explicit(refs, memory_order_acquire);

	while (now > 1)
		if (atomic_compare_exchange_weak_explicit(refs, &now, now - 1, memory_order_acq_rel,
							  memory_order_acquire))
			return true;
	return false;
}

/* Make a region object with no descriptor yet. */
struct tmesh_region *tmesh_region_new(struct tmesh_ctx *ctx, struct tmesh_error *err);
/* Undo tmesh_region_new(): unmap, close, free. */
void tmesh_region_destroy(struct tmesh_region *region);
/* Make a region object likewise, after entering the context, with its maker's label and options. */
int tmesh_region_begin(struct tmesh_ctx *ctx, const struct tmesh_region_opts *opts,
		       struct tmesh_region **out, struct tmesh_error *err);
/* Make it the caller's: counted, and holding its context alive. */
void tmesh_region_publish(struct tmesh_region *region, struct tmesh_region **out);
/* Open as tmesh_region_open(), but return -EAGAIN, without a message, when the time of @question is
 * over. The next call with it goes on. */
int tmesh_region_open_asking(struct tmesh_ctx *ctx, const char *token, uint32_t rights,
			     struct tmesh_question *question, struct tmesh_region **out,
			     struct tmesh_error *err);
void tmesh_question_drop(struct tmesh_question *question);
/* Publish a region that was opened, or destroy it if @rc is an error. Return: @rc. */
int tmesh_region_opened(struct tmesh_region *region, int rc, struct tmesh_region **out);
/* Write without a count of the copy, and without a look at the rights and the range. */
int tmesh_region_fill(struct tmesh_region *region, uint64_t offset, const void *data,
		      uint64_t bytes, struct tmesh_error *err);
/* Write the elements of @layout likewise, the first of which is at @data: in C order, @bytes. */
int tmesh_region_pack(struct tmesh_region *region, uint64_t offset, const void *data,
		      const struct tmesh_layout *layout, uint64_t bytes, struct tmesh_error *err);
void tmesh_region_lock(struct tmesh_region *region);
void tmesh_region_unlock(struct tmesh_region *region);
/* Note that another process may hold the memory from now on. */
void tmesh_region_set_shared(struct tmesh_region *region);
/* Return -EPERM in a forked child, -EACCES without all of @rights, -ESTALE after the lease. */
int tmesh_region_may_here(struct tmesh_region *region, uint32_t rights, const char *what,
			  struct tmesh_error *err);
/* Check the same for uses that other processes share: -EOPNOTSUPP for a private view. */
int tmesh_region_may(struct tmesh_region *region, uint32_t rights, const char *what,
		     struct tmesh_error *err);

/* map.c */

/* Map for the library itself; the caller holds the region's lock, or is alone. */
int tmesh_region_map_locked(struct tmesh_region *region, int prot, struct tmesh_error *err);
/* Replace the mapping, where it is, by one with other rights; without harm on failure. */
int tmesh_region_remap(struct tmesh_region *region, int prot, struct tmesh_error *err);
/* Map likewise by @fd. */
int tmesh_region_map_over(struct tmesh_region *region, int prot, int fd, struct tmesh_error *err);
/* Drop the mapping, because the region object ends or is to have another file. */
void tmesh_region_drop_mapping(struct tmesh_region *region);

/* watch.c: release, on this thread, references that the watch of the context's channels has not
 * dropped yet. This is for a lack of memory or descriptors, and for a forked child, which has no
 * watch. Return whether there were any. */
bool tmesh_later_drain(struct tmesh_ctx *ctx);

/* memfd_opaque.c: close the descriptors of a region that stands for one, if it is one. */
void tmesh_opaque_close(struct tmesh_region *region);
/* memfd_fd.c: return whether the region's descriptor is that of its file. A process that closes all
 * descriptors, as daemons do, closes it too, and then its number is another file's. */
bool tmesh_memfd_has_file(const struct tmesh_region *region);
/* Remove the mapping that tmesh_memfd_guard() made, if any. */
void tmesh_memfd_unguard(struct tmesh_region *region);

/* lease.c */

int tmesh_check_taken(enum tmesh_taken taken, struct tmesh_error *err);

/* module: pages that the kernel shares with the holders of a lease */
struct tmesh_lease_pages {
	uint64_t *touch;
	const uint32_t *state;
};
/* Return whether this process knows, without a system call, that the region's lease is over. */
bool tmesh_lease_lapsed_here(struct tmesh_region *region);
void tmesh_lease_unmap(struct tmesh_lease_pages *pages);
/* Return the period of a lease that this library keeps (memfd), else 0. */
uint64_t tmesh_lease_period_ns(const struct tmesh_region *region);
/* Drop the lease's part of a region object that ends; the lease stays with its other handles. */
void tmesh_lease_forget(struct tmesh_region *region);

/* live.c */

void tmesh_live_init(struct tmesh_ctx *ctx);
void tmesh_live_end(struct tmesh_ctx *ctx);
/* Add a region. Its id stays until tmesh_live_remove(). */
void tmesh_live_add(struct tmesh_region *region);
/* Return the charge that ends with a region's last handle. 0: another handle takes it over. */
uint64_t tmesh_live_remove(struct tmesh_region *region);

/* region_pool.c */

#define POOL_BY_DEFAULT UINT64_MAX
/* Find the pool's limit by the option and the environment. */
int tmesh_region_pool_wanted(uint64_t option, uint64_t *out, struct tmesh_error *err);
/* Return a pooled region for this request, ready for use, or NULL. */
struct tmesh_region *tmesh_region_pool_get(struct tmesh_ctx *ctx, uint64_t bytes,
					   const struct tmesh_region_opts *opts);
/* Return whether the pool has taken the region, which nothing uses any more, with its charge. */
bool tmesh_region_pool_put(struct tmesh_region *region);
/* Release regions that no request has taken in a while. */
void tmesh_region_pool_age(struct tmesh_ctx *ctx);
/* Empty the pool if @rc is a shortage. Return whether to try again. */
bool tmesh_region_pool_yields(struct tmesh_ctx *ctx, int rc);

/* Check before a descriptor is taken for a region: 0; -EMFILE (tmesh_ctx_opts.spare_files). */
int tmesh_spare_files(struct tmesh_ctx *ctx, struct tmesh_error *err);

/* copy.c: copy as memcpy(), past the caches if @n is large. */
void tmesh_copy(void *dst, const void *src, size_t n);

/* token.c */

struct tmesh_token_fields {
	enum tmesh_backend backend;
	uint8_t name[16]; /* memfd: of the producer's socket */
	uint8_t secret[TMESH_SECRET_BYTES];
};
void tmesh_token_format(char *text, const struct tmesh_token_fields *parts);
int tmesh_token_parse(const char *text, struct tmesh_token_fields *parts, struct tmesh_error *err);
/* memfd: mint a token of @region for @rights, or return the one minted before, and serve it from
 * now on. ctx->lock is held. */
int tmesh_token_mint(struct tmesh_region *region, uint32_t rights, struct tmesh_token_fields *token,
		     struct tmesh_error *err);
/* The remedy for a token of something else, for messages. */
#define TMESH_OTHER_TOKENS                                                                \
	"a slot's token is for tmesh_slot_open(), a channel's for tmesh_channel_open(), " \
	"that of a pool of pages for tmesh_pages_open()"

#include "backend.h"

#endif /* TMESH_INTERNAL_H */
