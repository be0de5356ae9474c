/* SPDX-License-Identifier: MIT */
/*
 * What the files of the library share. Nothing here is seen outside libtmesh.
 *
 * Locks, in the order in which they may be taken:
 *
 *   fork.c's list lock -> ctx->lock              (all contexts', only around fork())
 *   region->copies     -> region->lock       -> ctx->lock
 *
 * No lock is held while waiting for another process. Around fork() all context locks are
 * held, so that the child finds them free and what they guard whole. Region locks are not:
 * a child uses the context's lock for the regions it inherited (region_lock() chooses).
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
	COUNT_POOL_HITS,
	COUNT_POOL_MISSES,
	COUNT_SERVED,
	COUNT_WITHOUT_WAKE,
	COUNT_SENT_ALONE,
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
struct tmesh_watch;  /* does what no call does: watch.c */
struct tmesh_wire_region;
struct tmesh_holds; /* what is held for others: hold.c */
struct tmesh_hold;

struct tmesh_ctx {
	atomic_uint refs;
	const struct tmesh_backend_ops *ops;
	struct tmesh_ctx *next; /* all contexts, guarded by fork.c's list lock */
	uint32_t life;		/* the process it lives in, as fork.c counts; under lock */
	pthread_mutex_t lock;

	atomic_uint_fast64_t max_bytes;
	atomic_uint_fast64_t pool_max; /* or POOL_BY_DEFAULT */
	uint64_t timeout_ns;
	uint64_t linger_ns;
	uint64_t max_held_bytes; /* as given */
	tmesh_log_fn log;
	void *log_data;
	enum tmesh_taken taken;
	uid_t uid; /* of who opened it: asking each time would be a call per region */
	uint32_t spare_files;
	char *runtime_dir; /* absolute; NULL: by the environment, which says an absolute one */

	uint64_t id_key[2]; /* ids are a keyed hash of a counter: random, without a call */
	atomic_uint_fast64_t id_count;
	atomic_uint_fast64_t bytes_owned; /* of max_bytes, with the pool's */
	atomic_uint_fast64_t counters[COUNTERS];

	/* guarded by lock */
	struct tmesh_cap *caps; /* made when first asked for */
	struct tmesh_caps_copy *caps_copies;
	struct tmesh_region *pool;
	uint64_t pool_bytes;
	uint64_t pool_idle_ns; /* so long a region lies there */
	int pool_look_ms;      /* so often the watch looks, where pool_watched */
	bool pool_watched;
	bool pool_used;		    /* since it looked */
	struct tmesh_region **live; /* live.c: heads by id */
	uint32_t live_buckets;
	uint32_t live_count;
	struct tmesh_region *live_few[64];
	struct tmesh_holds *holds;	     /* made with the first */
	struct tmesh_holds *inherited_holds; /* of the parent's, to be let go of */

	atomic_uint_fast64_t memory; /* memfd: bytes this machine has, 0 until needed */

	/* memfd, guarded by lock */
	int dir;	 /* the runtime directory, -1 until needed */
	atomic_int proc; /* /proc/self/fd of this process, -1 until needed */
	struct tmesh_server *server;
	struct tmesh_peer *peers;

	struct tmesh_region *opaque; /* memfd: its regions that stand for a descriptor */
	struct tmesh_channel *channels;
	struct tmesh_watch *watch;
	_Atomic(struct tmesh_region *) later; /* whose last reference is to go; without the lock */

	int device;			    /* kernel: an open /dev/tmesh */
	bool renews;			    /* kernel: it has TMESH_RENEW */
	_Atomic(struct tmesh_ctx *) beside; /* kernel: the memfd context of its channels, or NULL */
};

void tmesh_log(const struct tmesh_ctx *ctx, enum tmesh_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void tmesh_count(struct tmesh_ctx *ctx, enum tmesh_counter counter, uint64_t n);
/* Account one copy of tensor bytes that the library itself made. */
void tmesh_count_copy(struct tmesh_ctx *ctx, uint64_t bytes);
/* As tmesh_region_read(), but for the count of the copy. */
int tmesh_region_fetch(struct tmesh_region *region, uint64_t offset, void *data, uint64_t bytes,
		       struct tmesh_error *err);
uint64_t tmesh_new_id(struct tmesh_ctx *ctx);
/* Every call that needs the context alive begins with this: after a fork it gives the
 * child's context its own life. */
int tmesh_ctx_enter(struct tmesh_ctx *ctx, struct tmesh_error *err);
void tmesh_caps_free(struct tmesh_ctx *ctx);
/* caps.c: what a backend's caps operation calls, once for each. */
void tmesh_cap_set(struct tmesh_ctx *ctx, enum tmesh_cap_index cap, enum tmesh_cap_level level,
		   const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* opts.c */

int tmesh_check_rights(uint32_t rights, struct tmesh_error *err);
/* -EPERM: a sealed region keeps its description. */
int tmesh_refuse_description(const struct tmesh_region *region, struct tmesh_error *err);
/* To write was asked for when it was just opened, and the seal came before. */
int tmesh_refuse_sealed(const struct tmesh_region *region, uint32_t rights,
			struct tmesh_error *err);
/* -EPERM as before, or -EACCES: a token grants less than @rights. */
int tmesh_refuse_rights(const struct tmesh_region *region, uint32_t rights, uint32_t granted,
			struct tmesh_error *err);
/* -EACCES: @what, a token say, grants less than @rights. */
int tmesh_fail_rights(struct tmesh_error *err, const char *what, uint32_t rights);
/* -EPERM: others are to be given the right to write, by @what, to what is sealed. */
int tmesh_refuse_sealed_gift(struct tmesh_region *region, uint32_t rights, const char *what,
			     struct tmesh_error *err);
int tmesh_check_mode(uint32_t mode, struct tmesh_error *err);
/* Validates all that does not depend on the backend. @opts may be NULL. */
int tmesh_read_region_opts(const struct tmesh_region_opts *opts, struct tmesh_region_opts *out,
			   struct tmesh_error *err);
/* The same of a tensor, which may be told an arena instead. */
int tmesh_read_tensor_opts(const struct tmesh_region_opts *opts, struct tmesh_region_opts *out,
			   struct tmesh_error *err);
/* Whether a tensor that is put with these checked options is sealed then. */
static inline bool tmesh_opts_seal(const struct tmesh_region_opts *opts)
{
	return !opts->arena && !(opts->flags & (TMESH_REGION_UNSEALED | TMESH_REGION_REUSE));
}

/* fork.c */

int tmesh_fork_watch(struct tmesh_ctx *ctx);
void tmesh_fork_forget(struct tmesh_ctx *ctx);
extern atomic_uint tmesh_life;
/* Differs between a process and its forked children. */
static inline uint32_t tmesh_fork_life(void)
{
	return atomic_load_explicit(&tmesh_life, memory_order_relaxed);
}
/* From here to tmesh_fork_let() no child is forked. For what ends at once, without another lock. */
void tmesh_fork_keep_off(void);
/* Leaves errno as it is. */
void tmesh_fork_let(void);
uint32_t tmesh_fork_count(void); /* grows with every fork() of this process */
/* Calls @f with every context, which is alive meanwhile, and without a lock. Not at all where
 * another thread has the list's lock for good. */
void tmesh_fork_each(void (*f)(struct tmesh_ctx *ctx, void *data), void *data);

/* region.c */

/* Room above for rounding up to huge pages and for what a backend puts behind the data. */
#define TMESH_BYTES_MAX ((uint64_t)INT64_MAX - (64u << 20))

/* What a region is beyond its bytes; stands in messages and in the index. */
#define TMESH_KIND_FOREIGN (1u << 0) /* a memfd made elsewhere: no name, no trailer of ours */
#define TMESH_KIND_HUGETLB (1u << 1)
#define TMESH_KIND_NO_PIN (1u << 2)
#define TMESH_KIND_OPAQUE (1u << 3) /* stands for a descriptor: memfd_opaque.c */
#define TMESH_KINDS \
	(TMESH_KIND_FOREIGN | TMESH_KIND_HUGETLB | TMESH_KIND_NO_PIN | TMESH_KIND_OPAQUE)

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
	uint64_t dev; /* memfd: the file's; of a region made here known from its first */
	uint64_t ino; /* token on */
	bool reopens; /* memfd: the context's user may open its file anew for writing */
	int device;   /* memfd, opaque: the descriptor it stands for, or -1 */
	int leash;    /* memfd, opaque: one end of the pipe, or -1 */
	bool leash_made;
	tmesh_giver giver;		  /* who gave the descriptors, where that was another */
	struct tmesh_region *opaque_next; /* in the context's list; under ctx->lock */
	atomic_bool leash_cut;		  /* by its maker: taken back */
	struct tmesh_region_opts opts;	  /* as created; label points to the next */
	char label[TMESH_LABEL_LEN + 1];
	bool created; /* by this context: may go to the pool */
	bool pinning;
	bool private;	 /* what is written through it is this process's own: region.c */
	bool align_huge; /* map at a multiple of 2 MiB and advise huge pages */

	pthread_rwlock_t copies; /* who copies into it shares it, a seal has it alone */
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
	atomic_bool reads_only; /* memfd: fd cannot write, whatever the rights: memfd_fd.c */
	bool fd_stays;		/* memfd: never make it so */
	bool warm;		/* its pages are there and mapped: write through the mapping */
	uint32_t description_bytes;
	struct {
		bool given;
		uint8_t secret[TMESH_SECRET_BYTES];
	} tokens[4]; /* memfd: one per set of rights; under ctx->lock */
	struct tmesh_region *pool_next;
	struct tmesh_region *later; /* watch.c: of those whose last reference is to go */
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

	_Atomic(struct tmesh_lease_keeper *) lease; /* lease.c; NULL: not looked for yet */
	bool zeros; /* taken memory reads as zeros: what was read needs a second look */
};

/* The region's context, good while the region lives. */
struct tmesh_ctx *tmesh_region_ctx(const struct tmesh_region *region);
bool tmesh_region_inherited(const struct tmesh_region *region);
/* Drops a reference unless it is the last; then what others did with theirs has been done. */
static inline bool tmesh_drop_one(atomic_uint *refs)
{
	unsigned int now = atomic_load_explicit(refs, memory_order_acquire);

	while (now > 1)
		if (atomic_compare_exchange_weak_explicit(refs, &now, now - 1, memory_order_acq_rel,
							  memory_order_acquire))
			return true;
	return false;
}

/* A region object with no descriptor yet. */
struct tmesh_region *tmesh_region_new(struct tmesh_ctx *ctx, struct tmesh_error *err);
/* Undoes tmesh_region_new(): unmaps, closes, frees. */
void tmesh_region_destroy(struct tmesh_region *region);
/* The same, entering the context, with the label and the options of its maker. */
int tmesh_region_begin(struct tmesh_ctx *ctx, const struct tmesh_region_opts *opts,
		       struct tmesh_region **out, struct tmesh_error *err);
/* Make it the caller's: counted, and holding its context alive. */
void tmesh_region_publish(struct tmesh_region *region, struct tmesh_region **out);
/* The same for one that was opened, or destroy it where that gave @rc. Return: @rc. */
int tmesh_region_opened(struct tmesh_region *region, int rc, struct tmesh_region **out);
/* Write without a count of the copy, and without a look at the rights and the range. */
int tmesh_region_fill(struct tmesh_region *region, uint64_t offset, const void *data,
		      uint64_t bytes, struct tmesh_error *err);
/* The same of the elements of @layout, of which the first lies at @data: in C order. */
int tmesh_region_pack(struct tmesh_region *region, uint64_t offset, const void *data,
		      const struct tmesh_layout *layout, struct tmesh_error *err);
void tmesh_region_lock(struct tmesh_region *region);
void tmesh_region_unlock(struct tmesh_region *region);
/* From now on somebody else may hold the memory. */
void tmesh_region_set_shared(struct tmesh_region *region);
/* -EPERM in a forked child, -EACCES without all of @rights, -ESTALE after the lease. */
int tmesh_region_may_here(struct tmesh_region *region, uint32_t rights, const char *what,
			  struct tmesh_error *err);
/* The same of what is for others too: -EOPNOTSUPP for a private view. */
int tmesh_region_may(struct tmesh_region *region, uint32_t rights, const char *what,
		     struct tmesh_error *err);

/* map.c */

/* Map for the library itself; the caller holds the region's lock, or is alone. */
int tmesh_region_map_locked(struct tmesh_region *region, int prot, struct tmesh_error *err);
/* Replace the mapping, where it is, by one with other rights; without harm on failure. */
int tmesh_region_remap(struct tmesh_region *region, int prot, struct tmesh_error *err);
/* The same by a mapping of @fd, and at once. */
int tmesh_region_map_over(struct tmesh_region *region, int prot, int fd, struct tmesh_error *err);
/* The region object ends, or is to have another file. */
void tmesh_region_drop_mapping(struct tmesh_region *region);

/* watch.c: lets go, on this thread, of what the watch of the context's channels has not come to:
 * where memory or descriptors are out, and where there is no watch, in a forked child. Return:
 * whether there was anything. */
bool tmesh_later_drain(struct tmesh_ctx *ctx);

/* memfd_opaque.c: closes what such a region has, if it is one. */
void tmesh_opaque_close(struct tmesh_region *region);

/* lease.c */

int tmesh_check_taken(enum tmesh_taken taken, struct tmesh_error *err);

/* module: what the kernel shares with the holders of a lease */
struct tmesh_lease_pages {
	uint64_t *touch;
	const uint32_t *state;
};
/* It is known here, without a system call, that the region's lease is over. */
bool tmesh_lease_lapsed_here(struct tmesh_region *region);
void tmesh_lease_unmap(struct tmesh_lease_pages *pages);
/* The period of a lease that this library keeps (memfd), else 0. */
uint64_t tmesh_lease_kept_ns(const struct tmesh_region *region);
/* The region object ends; the lease stays with its other handles. */
void tmesh_lease_forget(struct tmesh_region *region);

/* live.c */

void tmesh_live_init(struct tmesh_ctx *ctx);
void tmesh_live_end(struct tmesh_ctx *ctx);
/* From here to tmesh_live_remove() its id stays. */
void tmesh_live_add(struct tmesh_region *region);
/* Return: what is not charged any more, of a region's last handle; others inherit it. */
uint64_t tmesh_live_remove(struct tmesh_region *region);

/* pool.c */

#define POOL_BY_DEFAULT UINT64_MAX
/* What the pool may hold, by the option and the environment. */
int tmesh_pool_wanted(uint64_t option, uint64_t *out, struct tmesh_error *err);
/* A pooled region for this request, ready to be given out, or NULL. */
struct tmesh_region *tmesh_pool_get(struct tmesh_ctx *ctx, uint64_t bytes,
				    const struct tmesh_region_opts *opts);
/* True: the pool has taken the region that nobody uses any more, with what it is charged. */
bool tmesh_pool_put(struct tmesh_region *region);
/* What has lain there for too long goes. */
void tmesh_pool_age(struct tmesh_ctx *ctx);
/* Who was refused what the pool may hold, by @rc, gets it: whether to try once more. */
bool tmesh_pool_yields(struct tmesh_ctx *ctx, int rc);

/* Before a descriptor is taken for a region. Return: 0; -EMFILE (tmesh_ctx_opts.spare_files). */
int tmesh_spare_files(struct tmesh_ctx *ctx, struct tmesh_error *err);

/* copy.c: memcpy() that goes past the caches when @n is large. */
void tmesh_copy(void *dst, const void *src, size_t n);

/* token.c */

struct tmesh_token_parts {
	enum tmesh_backend backend;
	uint8_t name[16]; /* memfd: of the producer's socket */
	uint8_t secret[TMESH_SECRET_BYTES];
};
void tmesh_token_format(char *text, const struct tmesh_token_parts *parts);
int tmesh_token_parse(const char *text, struct tmesh_token_parts *parts, struct tmesh_error *err);
/* What to do with a token of something else, for messages. */
#define TMESH_OTHER_TOKENS                                                                \
	"a slot's token is for tmesh_slot_open(), a channel's for tmesh_channel_open(), " \
	"that of a pool of pages for tmesh_pages_open()"

/* Backends. Each operation returns 0 or a negative errno with @err filled. */
struct tmesh_keep_ops;
struct tmesh_backend_ops {
	enum tmesh_backend backend;
	const struct tmesh_keep_ops *keep; /* keep_internal.h */

	int (*open)(struct tmesh_ctx *ctx, struct tmesh_error *err);
	void (*close)(struct tmesh_ctx *ctx);
	/* In a forked child: let go of what is the parent's, without locks or allocation. */
	void (*forked)(struct tmesh_ctx *ctx);
	void (*caps)(struct tmesh_ctx *ctx);

	/* These fill in a region made by tmesh_region_new() */
	int (*create)(struct tmesh_region *region, uint64_t bytes, struct tmesh_error *err);
	int (*from_memfd)(struct tmesh_region *region, int fd, uint64_t bytes,
			  struct tmesh_error *err);
	int (*derive)(struct tmesh_region *region, struct tmesh_region *from, uint32_t rights,
		      bool pin, struct tmesh_error *err);
	int (*open_token)(struct tmesh_region *region, const struct tmesh_token_parts *token,
			  uint32_t rights, struct tmesh_error *err);
	/* @fds, as many as @wire calls for, are the region's from here on, also on failure. */
	int (*adopt)(struct tmesh_region *region, const int *fds,
		     const struct tmesh_wire_region *wire, struct tmesh_error *err);

	/* Under the region's lock */
	int (*mmap)(struct tmesh_region *region, int prot, void **addr, struct tmesh_error *err);
	int (*seal)(struct tmesh_region *region, struct tmesh_error *err);
	/* Without it: look whether anybody has sealed the region. */
	bool (*is_sealed)(const struct tmesh_region *region);
	int (*set_description)(struct tmesh_region *region, const char *text, uint32_t bytes,
			       struct tmesh_error *err);

	int (*read)(struct tmesh_region *region, uint64_t offset, void *data, uint64_t bytes,
		    struct tmesh_error *err);
	/* Write to memory that is not mapped yet, cheaply: what that needs, under the region's
	 * lock, and without it the copy, which a seal waits for. */
	int (*write_ready)(struct tmesh_region *region, struct tmesh_error *err);
	int (*write_cold)(struct tmesh_region *region, uint64_t offset, const void *data,
			  uint64_t bytes, struct tmesh_error *err);
	int (*revoke)(struct tmesh_region *region, struct tmesh_error *err);
	int (*export_dmabuf)(struct tmesh_region *region, uint64_t offset, uint64_t bytes,
			     uint32_t rights, int *fd, struct tmesh_error *err);
	int (*token)(struct tmesh_region *region, uint32_t rights, char *token,
		     struct tmesh_error *err);
	/* A descriptor of its own to hand over for @rights, which the caller closes. */
	int (*handle_fd)(struct tmesh_region *region, uint32_t rights, int *fd,
			 struct tmesh_error *err);
	int (*info)(struct tmesh_region *region, struct tmesh_region_info *info,
		    struct tmesh_error *err);
	/* The caller is to know region->fd: give it all that the rights allow, for good. NULL:
	 * it always has that. */
	int (*fd_told)(struct tmesh_region *region, struct tmesh_error *err);
	/* Keep it for @ns, whatever becomes of this process; false: that cannot be had. Again for
	 * another time. ctx->lock is held. NULL: never (memfd). */
	bool (*hold)(struct tmesh_region *region, uint64_t ns);
	void (*unhold)(struct tmesh_region *region);
	/* How often its tokens were opened so far, where nobody tells each time. With @hold. */
	uint64_t (*opens)(struct tmesh_region *region);
	/* The region's tokens die; its descriptor and mapping are still there. */
	void (*release)(struct tmesh_region *region);

	/* May this region, released and never shared, serve that request? */
	bool (*pool_fits)(const struct tmesh_region *region, uint64_t bytes,
			  const struct tmesh_region_opts *opts);
	/* Nobody else holds it as far as the backend can tell. */
	bool (*pool_alone)(struct tmesh_region *region);
	/* Give it the identity of a new region; contents are the caller's business. */
	int (*pool_renew)(struct tmesh_region *region, uint64_t bytes,
			  const struct tmesh_region_opts *opts);

	/* What happens to a region, as events to poll() for and as they are now. */
	int (*poll_fd)(struct tmesh_region *region, uint32_t events, short *wait,
		       struct tmesh_error *err);
	uint32_t (*events)(struct tmesh_region *region);
	int (*from_fd)(struct tmesh_region *region, int fd, uint64_t bytes,
		       struct tmesh_error *err);
	int (*opaque_fd)(struct tmesh_region *region, int *fd, struct tmesh_error *err);
	int (*reclaim)(struct tmesh_region *region, uint64_t timeout_ns,
		       struct tmesh_reclaim_report *report, struct tmesh_error *err);

	/* What only the module can do: NULL on memfd. @region is as for create. */
	int (*from_user)(struct tmesh_region *region, void *addr, uint64_t bytes,
			 struct tmesh_error *err);
	int (*from_dmabuf)(struct tmesh_region *region, int fd, struct tmesh_error *err);
	int (*gather)(struct tmesh_region *region, const struct tmesh_gather_extent *extents,
		      size_t count, struct tmesh_error *err);
	/* @pidfd -1: not bound to a process */
	int (*lease_set)(struct tmesh_region *region, uint64_t ns, int pidfd,
			 struct tmesh_error *err);
	/* -ENODATA: there is none */
	int (*lease_map)(struct tmesh_region *region, struct tmesh_lease_pages *pages,
			 struct tmesh_error *err);
	int (*when_taken)(struct tmesh_region *region, enum tmesh_taken taken,
			  struct tmesh_error *err);
	int (*signal)(struct tmesh_region *region, uint64_t value, struct tmesh_error *err);
	/* @arm: for poll(), without waiting */
	int (*wait)(struct tmesh_region *region, uint64_t value, int64_t timeout_ns,
		    uint64_t *reached, struct tmesh_error *err);

	int (*list)(struct tmesh_ctx *ctx, struct tmesh_region_info **infos, size_t *count,
		    struct tmesh_error *err);
	int (*holders)(struct tmesh_ctx *ctx, uint64_t id, struct tmesh_holder_info **holders,
		       size_t *count, struct tmesh_error *err);
};

extern const struct tmesh_backend_ops tmesh_memfd_ops;
extern const struct tmesh_backend_ops tmesh_kernel_ops;

#endif /* TMESH_INTERNAL_H */
