/* SPDX-License-Identifier: MIT */
/*
 * Context: one backend, one set of limits and counters. See tmesh/tmesh.h for the
 * conventions of all calls. Since 0.1.
 * Maturity: stable.
 */
#ifndef TMESH_CONTEXT_H
#define TMESH_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_ctx;

/* What went wrong. Owned by the caller. */
struct tmesh_error {
	int code;	   /* negative errno */
	char message[252]; /* zero-terminated, one sentence or two */
};

enum tmesh_backend {
	TMESH_BACKEND_AUTO = 0,	  /* the module when /dev/tmesh can be opened, else memfd */
	TMESH_BACKEND_KERNEL = 1, /* tmesh.ko */
	TMESH_BACKEND_MEMFD = 2,  /* sealed memfds, nothing to install */
};

enum tmesh_log_level {
	TMESH_LOG_ERROR = 0,
	TMESH_LOG_WARN = 1,
	TMESH_LOG_INFO = 2,
	TMESH_LOG_DEBUG = 3,
};

/* The effect of touching a mapping once its memory was taken away, by a lapse or a revocation. */
enum tmesh_taken {
	TMESH_TAKEN_SIGBUS = 0,
	TMESH_TAKEN_ZERO = 1, /* zeros, private to this handle; tmesh_region_info() tells whether
			       * they are real */
};

/* Called from any thread, possibly several at once. It may fork(). It calls nothing of this
 * library, for a region may be locked, and returns (no longjmp(), no exception of C++). @message
 * lives for the call. */
typedef void (*tmesh_log_fn)(void *data, enum tmesh_log_level level, const char *message);

#define TMESH_NO_EXIT_WAIT UINT64_MAX
#define TMESH_NO_REGION_POOL UINT64_MAX

struct tmesh_ctx_opts {
	size_t size;		    /* sizeof(struct tmesh_ctx_opts) */
	enum tmesh_backend backend; /* AUTO asks TMESH_BACKEND=kernel|memfd first */
	const char *runtime_dir;    /* memfd sockets; NULL: TMESH_RUNTIME_DIR, then
				     * XDG_RUNTIME_DIR/tmesh, then a folder of this user
				     * under the temporary directory. A relative one is relative to
				     * the working directory of this call */
	uint64_t max_bytes;	    /* bytes of live regions this context creates, each as long as
				     * the context has a handle on it, and of its pool; 0: no
				     * limit. Passing it gives -EDQUOT */
	uint64_t region_pool_bytes; /* the pool: bytes kept for reuse after the last unref, for
				     * 10 s (see tmesh_ctx_trim()). 0: TMESH_REGION_POOL, in MiB,
				     * else 256 MiB, at most 1/64 of the memory that the machine or
				     * this control group has; TMESH_NO_REGION_POOL: none is kept.
				     * Given back before a region that is created, opened,
				     * derived, exported or named is refused for want of them or
				     * of their descriptors, or for max_bytes */
	int64_t timeout_ns;	    /* longest wait for a peer; 0: 2 s; negative: no limit */
	tmesh_log_fn log;	    /* NULL: nothing is logged */
	void *log_data;
	enum tmesh_taken taken; /* of every handle that this context gets; one call each (module) */
	uint32_t spare_files;	/* descriptors below RLIMIT_NOFILE, at most a quarter of them, that
				 * no region takes: for the process's files and sockets. 0: none */
	uint64_t exit_wait_ns;	/* longest wait of exit() for holds to be opened (tmesh/hold.h), up
				 * to an hour; 0: TMESH_EXIT_WAIT, in seconds, else none;
				 * TMESH_NO_EXIT_WAIT: none. A closed channel that no handle has
				 * joined stays as long, or 5 s if neither is given */
	uint64_t max_held_bytes; /* of held regions; 0: a quarter of the machine's memory */
	/*
	 * For a process that a filter keeps from making sockets (memfd). @connect gives a connected
	 * SOCK_SEQPACKET socket to the producer that listens in the runtime directory as @name (32
	 * hex digits), or a negative errno of connect(). The socket is non-blocking and closed on
	 * exec, and belongs to the context from then on. @connect may wait until @deadline
	 * (CLOCK_MONOTONIC, ns). It is called from any thread, possibly several at once, with no
	 * lock held. It calls nothing of this library, and may fork(): the child calls exec() or
	 * _exit(). A context that has it changes no file's mode: all processes that it gives memory
	 * to must be of its own user. NULL: the context connects by itself.
	 */
	int (*connect)(void *data, const char *name, uint64_t deadline, int *socket);
	void *connect_data;
};

/*
 * Open a context.
 *
 * The call reads the environment; no later call of the context does. So a program may call setenv()
 * beside these, and the context does not notice it.
 *
 * An explicit backend (by @opts or TMESH_BACKEND) is never replaced by another: if it does not
 * work, the call fails with the reason. AUTO logs at INFO which backend it chose, and at WARN if a
 * /dev/tmesh exists but cannot be used.
 *
 * Return: 0 and a reference in @out; -EINVAL (unknown TMESH_BACKEND); -ENOMEM. For the module:
 * -ENOENT (no /dev/tmesh), -EACCES (no permission on it: the message names the group to join),
 * -EPROTO (a module with another ABI).
 */
int tmesh_ctx_open(const struct tmesh_ctx_opts *opts, struct tmesh_ctx **out,
		   struct tmesh_error *err);
/* Change max_bytes of tmesh_ctx_opts. Memory in use stays, even if it exceeds the new limit. */
void tmesh_ctx_limit(struct tmesh_ctx *ctx, uint64_t max_bytes);

/* Give back the pool's memory (region_pool_bytes), at once. Without this call, memory that was not
 * reused for 10 s leaves the pool with the next region that enters it. A thread of the context also
 * frees it, within 5 s more. Return: the bytes that were given back. */
uint64_t tmesh_ctx_trim(struct tmesh_ctx *ctx);

struct tmesh_ctx *tmesh_ctx_ref(struct tmesh_ctx *ctx);
/* Regions keep their context alive, also those that are held (tmesh/hold.h). The last reference
 * ends the context's server thread. */
void tmesh_ctx_unref(struct tmesh_ctx *ctx);

/* TMESH_BACKEND_KERNEL or TMESH_BACKEND_MEMFD. */
enum tmesh_backend tmesh_ctx_backend(const struct tmesh_ctx *ctx);

/*
 * A descriptor of the runtime directory (tmesh_ctx_opts), which is made if it does not exist. It
 * belongs to this user and is closed to all others. Processes of one user leave files for each
 * other there. The caller owns @fd. It is not made in a directory of another user, unless that is
 * root or the directory is sticky and writable for all users.
 *
 * Return: 0; -EACCES (another user's, open to others, a symlink, to be made in another user's
 * directory: the message says which and what to do), -ENOENT, -ENAMETOOLONG, -EMFILE.
 */
int tmesh_ctx_runtime_dir(struct tmesh_ctx *ctx, int *fd, struct tmesh_error *err);

/* "kernel" or "memfd". */
const char *tmesh_backend_name(enum tmesh_backend backend);

/* The library's version, "0.1.0". */
const char *tmesh_version(void);

/*
 * Capabilities: the table of promises for this machine and backend.
 *
 * @name is stable and short: zero-copy, crash-cleanup, read-only, seal,
 * seal-devices, revoke, pin, holders, dmabuf-export, dmabuf-export-sealed,
 * huge-pages, numa, quota, direct-io, open-without-wake, lease, user-memory, import,
 * gather, fence.
 */
enum tmesh_cap_level {
	TMESH_CAP_NO = 0,
	TMESH_CAP_COOPERATIVE = 1, /* kept by well-behaved processes of the same user */
	TMESH_CAP_ENFORCED = 2,	   /* kept by the kernel against all processes */
};

struct tmesh_cap {
	const char *name;
	enum tmesh_cap_level level;
	const char *reason; /* why not ENFORCED, and what would change it; else a few
			     * words on who enforces it */
};

/* The array and its strings live as long as @ctx. Its elements are as the caller was compiled:
 * @cap_bytes is for the inline function below. */
int tmesh_caps_sized(struct tmesh_ctx *ctx, size_t cap_bytes, const struct tmesh_cap **caps,
		     size_t *count);

static inline int tmesh_caps(struct tmesh_ctx *ctx, const struct tmesh_cap **caps, size_t *count)
{
	return tmesh_caps_sized(ctx, sizeof(struct tmesh_cap), caps, count);
}

/* Counters since the context was opened. Cheap; a snapshot, not a transaction. */
struct tmesh_stats {
	size_t size;		   /* in: sizeof(struct tmesh_stats) */
	uint64_t bytes_copied;	   /* tensor bytes the library itself copied, in or out */
	uint64_t copies;	   /* number of these copies */
	uint64_t regions_created;  /* not from the pool */
	uint64_t regions_opened;   /* by token, socket or descriptor */
	uint64_t regions_live;	   /* created or opened, not yet released; one with several
				    * handles is one */
	uint64_t bytes_live;	   /* of those, in whole pages */
	uint64_t region_pool_hits; /* creations served from the pool */
	uint64_t region_pool_misses;
	uint64_t region_pool_bytes;  /* kept in the pool now */
	uint64_t tokens_served;	     /* memfd: opens answered for other processes */
	uint64_t opens_without_wake; /* memfd: opens that did not wake the producer */
	uint64_t sent_alone;	     /* regions that channels sent and that no process but this one
				      * has until they are received: SIGKILL loses them
				      * (docs/reference/channels.md) */
	uint64_t huge_bytes;	     /* memfd: bytes that were taken in pages of 2 MiB */
	uint64_t huge_given_up;	     /* memfd: regions of which some memory got small pages,
				      * because pages of 2 MiB could not be had, or too slowly */
};
int tmesh_stats(struct tmesh_ctx *ctx, struct tmesh_stats *stats);

/* The module's limits, which root sets in /proc/sys/dev/tmesh/, and their use by all
 * processes of the caller's user and of its IPC namespace. */
struct tmesh_limits {
	size_t size; /* in: sizeof(struct tmesh_limits) */
	uint64_t max_bytes_per_uid;
	uint64_t max_regions_per_uid;
	uint64_t max_bytes; /* all users together */
	uint64_t max_regions;
	uint64_t used_bytes; /* this user */
	uint64_t used_regions;
	uint64_t max_handles_per_uid;
	uint64_t max_pins_per_uid; /* pinning handles */
	uint64_t used_handles;
	uint64_t used_pins;
	uint64_t max_bytes_per_ipc_ns; /* the caller's IPC namespace, from here on */
	uint64_t max_regions_per_ipc_ns;
	uint64_t max_handles_per_ipc_ns;
	uint64_t max_pins_per_ipc_ns;
	uint64_t used_bytes_ipc_ns;
	uint64_t used_regions_ipc_ns;
	uint64_t used_handles_ipc_ns;
	uint64_t used_pins_ipc_ns;
	uint64_t max_handles; /* all users together */
	uint64_t max_pins;
};
/* Return: 0; -EOPNOTSUPP (memfd: the kernel has no counts per user). */
int tmesh_limits(struct tmesh_ctx *ctx, struct tmesh_limits *limits, struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_CONTEXT_H */
