/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The objects of tmesh.ko. What a file offers to others is in the header of its name.
 * docs/locking.md has the lock order.
 *
 *	tmesh_user    a uid in an IPC namespace: whom something is charged to
 *	tmesh_mem     pages and their charge; belongs to a region
 *	tmesh_use     a part of them that a device or the kernel has mapped
 *	tmesh_region  the named, owned thing around a tmesh_mem
 *	tmesh_claim   what keeps a region alive and maps it: a handle or a dma-buf
 *	tmesh_tenure  a lease, shared by claims of one region
 *	tmesh_bundle  regions that are kept together, under a name (keep.h)
 */
#ifndef TMESH_H
#define TMESH_H

#include <linux/atomic.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/refcount.h>
#include <linux/rhashtable-types.h>
#include <linux/rwsem.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>
#include <linux/tmesh.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "compat/compat.h"

#ifndef CONFIG_64BIT
#error "tmesh keeps 64-bit ids and lengths in machine words"
#endif

#define TMESH_RIGHTS_ALL (TMESH_RIGHT_READ | TMESH_RIGHT_WRITE | TMESH_RIGHT_MANAGE)
#define TMESH_HUGE_ORDER (PMD_SHIFT - PAGE_SHIFT)
#define TMESH_HUGE_PAGES BIT(TMESH_HUGE_ORDER)
/*
 * Charged to the memory control group of who asks. Where that is full, or the machine is, there is
 * no memory, and nobody is killed for it.
 */
#define TMESH_GFP (GFP_KERNEL_ACCOUNT | __GFP_RETRY_MAYFAIL | __GFP_NOWARN)
#define TMESH_NAMES 4 /* sets of rights that a token may stand for: READ is in each */

struct dma_fence;
struct ipc_namespace;
struct tmesh_account;
struct tmesh_block;
struct tmesh_bundle;
struct tmesh_claim;
struct tmesh_class;
struct tmesh_mem;
struct tmesh_sealing;

/* What is counted and limited, and for whom. */
enum tmesh_count {
	TMESH_BYTES,
	TMESH_REGIONS,
	TMESH_HANDLES,
	TMESH_PINS,
	TMESH_KEPT_BYTES,
	TMESH_KEPT_NAMES,
	TMESH_COUNTS
};

enum tmesh_level { TMESH_PER_UID, TMESH_PER_IPC_NS, TMESH_TOTAL, TMESH_LEVELS };

/**
 * struct tmesh_user - a uid in an IPC namespace that holds something, or has the device open
 * @uid:       constant, as are the following down to @accounts
 * @ipc_ns:    reference
 * @accounts:  what this uid, this namespace, and all users hold
 * @ref:       held by regions, memory, handles and open device files; the last one is dropped
 *             under users_lock (account.c)
 * @rcu:       look-ups end before it is freed
 * @lock:      guards @files, @lingering and each listed region's linger_node
 * @files:     open /dev/tmesh files
 * @lingering: regions without a claim that are kept a little longer
 */
struct tmesh_user {
	kuid_t uid;
	struct ipc_namespace *ipc_ns;
	struct tmesh_account *accounts[TMESH_LEVELS];
	refcount_t ref;
	struct rcu_head rcu;
	spinlock_t lock;
	unsigned int files;
	struct list_head lingering;
};

/**
 * struct tmesh_backing_ops - where memory comes from
 * @backing:   TMESH_BACKING_*
 * @borrowed:  the pages are another region's, without references of ours
 * @release:   gives the pages back and frees the object around @mem
 * @mmap:      maps by other means than our fault handler; NULL where that serves.
 *             Called with mmap_lock held for writing, and none of ours, because another
 *             driver may take its reservation lock; rights and bounds are checked, vm_pgoff
 *             counts from the start of @mem
 * @seal:      makes sure that nobody writes, a piece at a time: 1 when there is more to look at,
 *             -EAGAIN where what it found may be a passing state, another error where not.
 *             Called with the region's lock held for writing, when no writable mapping or
 *             export of ours exists; with 0 nobody writes any more. NULL where nobody could
 * @seal_end:  undoes what @seal began, where it did not seal; without locks. May be NULL
 * @settle:    lets passing states pass before another look; without locks, may sleep. May be NULL
 * @sealed:    did others seal it, so that nothing may begin to write? NULL where they cannot
 * @in_use:    does anybody beside us and page tables have a reference on a folio? NULL where
 *             only uses count, and a revoked region's memory is given back as a whole
 * @poisoned:  has those look for bad pages who lent theirs. Called with uses_lock held; NULL where
 *             nobody did
 */
struct tmesh_backing_ops {
	u32 backing;
	bool borrowed;
	void (*release)(struct tmesh_mem *mem);
	int (*mmap)(struct tmesh_mem *mem, struct vm_area_struct *vma);
	int (*seal)(struct tmesh_mem *mem, struct tmesh_sealing *sealing);
	void (*seal_end)(struct tmesh_mem *mem);
	void (*settle)(struct tmesh_mem *mem);
	bool (*sealed)(const struct tmesh_mem *mem);
	bool (*in_use)(struct tmesh_mem *mem, struct folio *folio);
	void (*poisoned)(struct tmesh_mem *mem);
};

/**
 * struct tmesh_mem - pages, charged to a user
 * @ops:      constant
 * @user:     who pays; reference
 * @nr_pages: constant
 * @charged:  pages charged: all, until some are dropped after a revocation
 * @pages:    constant until the region is revoked: a reference on each folio, in order. In place
 *            of a folio that was dropped its first entry has its length, as xa_mk_value()
 * @nr_huge:  folios of PMD size among them
 * @pmd:      every PMD-sized, aligned part is one folio: mappings may use PMDs
 * @named:    constant: of borrowed pages, how often a use may name a folio at most
 * @nomap:    constant: it is never mapped by way of us
 * @escaped:  mappings that are another file's, so that nobody can take them away: with any,
 *            there is neither revocation nor lease. Leaves zero under the region's lock for
 *            reading, where that lock is held for writing to look at it
 *
 * A region has it in @mem until it is revoked, under its lock, then in @gone, under its
 * uses_lock, until nobody has any of it.
 */
struct tmesh_mem {
	const struct tmesh_backing_ops *ops;
	struct tmesh_user *user;
	unsigned long nr_pages;
	unsigned long charged;
	struct page **pages;
	unsigned long nr_huge;
	bool pmd;
	unsigned long named;
	bool nomap;
	atomic_t escaped;
};

/* How many pages or folios, whichever takes longer, are looked at before locks are let go. */
#define TMESH_PIECE 1024

/**
 * struct tmesh_sealing - a look at all pages before a seal, in pieces
 * @mem:    what is looked at; NULL before the first piece
 * @wrote:  the region's count of those who could write, at the first piece
 * @next:   page that the next piece begins with
 * @begun:  the backing has begun what its seal_end undoes
 * @found:  of a memfd: up to here the file has the region's pages
 * @joined: of a memfd: count of regions that could write to it, at the first piece
 */
struct tmesh_sealing {
	struct tmesh_mem *mem;
	s64 wrote;
	unsigned long next;
	bool begun;
	unsigned long found;
	u64 joined;
};

/**
 * struct tmesh_use - a part of a region that a device or the kernel has mapped
 * @node:     in region->uses
 * @first:    first page of it
 * @nr_pages: how many
 * @owns:     it has references on its folios: they were borrowed and the region was revoked
 *
 * All but the first two are constant; those are guarded by the region's uses_lock.
 */
struct tmesh_use {
	struct list_head node;
	unsigned long first;
	unsigned long nr_pages;
	bool owns;
};

/**
 * struct tmesh_name - a token of a region
 * @node:   in the table of names; guarded by RCU for look-up
 * @region: whose name it is
 * @rights: TMESH_RIGHT_* that it stands for; 0 until it is asked for, and once it is dead.
 *          Guarded by the region's claims_lock
 * @token:  random, constant while @rights is set
 */
struct tmesh_name {
	struct rhash_head node;
	struct tmesh_region *region;
	u32 rights;
	u8 token[TMESH_TOKEN_BYTES];
};

/**
 * struct tmesh_fence - how far a region's producer is
 * @lock:     guards all of it
 * @value:    signalled last
 * @producer: who signals it now, or NULL; holds no reference, it says when it ends
 * @deaths:   how many producers have ended
 */
struct tmesh_fence {
	spinlock_t lock;
	u64 value;
	const struct tmesh_claim *producer;
	u64 deaths;
};

/**
 * struct tmesh_region - memory with a name, an owner and one lifetime
 * @ref:         held by claims, by a pending linger and by whoever looks at it
 * @rcu:         look-ups by id or token end before it is freed
 * @id:          constant, as are the following down to @cgroup_id
 * @bytes:       length as asked for
 * @nr_pages:    length in pages
 * @created_ns:  CLOCK_MONOTONIC
 * @user:        the owner's account; reference
 * @uid:         the owner; RCU readers may look at it when @user is gone
 * @gid:         whose members @mode admits
 * @mode:        permission bits for redeeming tokens
 * @flags:       TMESH_CREATE_*
 * @node:        NUMA node asked for, or NUMA_NO_NODE
 * @backing:     TMESH_BACKING_*
 * @linger_ms:   how long it outlives its last claim
 * @label:       for people
 * @ipc_ns:      where tokens are good; as @uid
 * @huge_bytes:  length in folios of PMD size
 * @cgroup_id:   the memory control group that is charged, or 0
 * @lock:        guards @state, @mem, @desc, @desc_bytes; read by page faults
 * @state:       TMESH_STATE_*; bits are only ever added
 * @mem:         the memory, NULL once revoked
 * @desc:        description
 * @desc_bytes:  its length
 * @writers:     mappings and exports that can write. Goes from zero to one under @lock for
 *               reading; a seal looks under @lock for writing
 * @wrote:       how often one of them, or a writable mapping that is another file's, began.
 *               Rises under @lock for reading
 * @attachments: devices attached to exports
 * @opens:       how often a token was redeemed
 * @claims_lock: guards @claims, @leases, @names and the counts; held throughout a revocation
 * @claims:      all handles, exports and views
 * @nr_handles:  pinning ones included
 * @nr_pinning:  handles that forbid a revocation
 * @nr_exports:  dma-bufs
 * @nr_gathers:  views that show parts of it
 * @nr_live:     claims whose lease has not lapsed
 * @leases:      leases of claims
 * @names:       tokens, by their rights
 * @uses_lock:   guards @uses, @nr_uses, @gone, @pinned, @drain_delay and @poisoned
 * @uses:        what devices and the kernel have mapped
 * @nr_uses:     how many
 * @gone:        the memory of a revoked region, until nobody has any of it
 * @freeing:     what was there is being given back; set before @gone is NULL, unlocked after that
 * @pinned:      pages of it that somebody had when it was looked at last
 * @drain:       looks again; owns no reference, cancelled with the last one
 * @drain_delay: how long it waited before that
 * @poison:      looks for pages with memory errors; owns no reference, cancelled with the last one
 * @poisoned:    how many are known
 * @fence:       how far its producer is
 * @wait:        pollers of handles, and waits for the fence and for the memory of a revoked
 *               region
 * @linger:      ends a linger; pending work owns a reference
 * @linger_node: in the owner's list, under the owner's lock
 * @kept:        what keeps it, or NULL; guarded by tmesh_kept_lock. Set while it has a claim
 */
struct tmesh_region {
	struct kref ref;
	struct rcu_head rcu;

	u64 id;
	u64 bytes;
	unsigned long nr_pages;
	u64 created_ns;
	struct tmesh_user *user;
	kuid_t uid;
	kgid_t gid;
	u32 mode;
	u32 flags;
	int node;
	u32 backing;
	u32 linger_ms;
	char label[TMESH_LABEL_MAX + 1];
	struct ipc_namespace *ipc_ns;
	u64 huge_bytes;
	u64 cgroup_id;

	struct rw_semaphore lock;
	u32 state;
	struct tmesh_mem *mem;
	void *desc;
	u32 desc_bytes;

	atomic_t writers;
	atomic64_t wrote;
	atomic_t attachments;
	atomic64_t opens;

	struct mutex claims_lock;
	struct list_head claims;
	u32 nr_handles;
	u32 nr_pinning;
	u32 nr_exports;
	u32 nr_gathers;
	u32 nr_live;
	struct list_head leases;
	struct tmesh_name names[TMESH_NAMES];

	struct mutex uses_lock;
	struct list_head uses;
	unsigned long nr_uses;
	struct tmesh_mem *gone;
	bool freeing;
	unsigned long pinned;
	struct delayed_work drain;
	unsigned long drain_delay;
	struct work_struct poison;
	unsigned long poisoned;

	struct tmesh_fence fence;
	wait_queue_head_t wait;
	struct delayed_work linger;
	struct list_head linger_node;
	struct tmesh_bundle *kept;
};

/**
 * struct tmesh_claim_ops - in what handles, exports and views differ
 * @writes:   its right to write alone makes it a writer: what devices and views do cannot be seen.
 *            A handle writes by its mappings
 * @count:    where its region counts claims of its kind
 * @check:    may it be added? Called with the region's lock held for reading; NULL where always
 * @cut:      takes away what it has of its region, when it is refused what it asks for anew
 * @describe: adds what only its kind knows to a holder; NULL for nothing
 * @devices:  writes down the devices attached to it, in so much room; how many there are. NULL for
 *            none
 * @in_use:   have devices or the kernel something mapped by way of it? NULL where @devices says it
 * @pending:  a reference to a fence of what devices have queued on it, NULL for nothing; asked
 *            once, by a revocation. NULL where devices do not know it
 * @poisoned: the region has bad pages, which it may show; NULL where mappings are all
 *
 * All but @check are called with the region's claims_lock held.
 */
struct tmesh_claim_ops {
	bool writes;
	u32 *(*count)(struct tmesh_region *region);
	int (*check)(const struct tmesh_claim *claim, const struct tmesh_claim *through);
	void (*cut)(struct tmesh_claim *claim);
	void (*describe)(const struct tmesh_claim *claim, struct tmesh_holder *holder);
	u32 (*devices)(struct tmesh_claim *claim, struct tmesh_holder *holders, u32 room);
	bool (*in_use)(const struct tmesh_claim *claim);
	struct dma_fence *(*pending)(struct tmesh_claim *claim);
	void (*poisoned)(const struct tmesh_claim *claim);
};

/**
 * struct tmesh_claim - what a handle, an export and a view have in common
 * @ops:         by its kind
 * @region:      reference
 * @node:        in region->claims; empty when it was not added
 * @kind:        TMESH_HOLDER_*
 * @rights:      TMESH_RIGHT_*
 * @inode:       whose i_mapping has all mappings that our fault handler serves; reference
 * @first:       first page of the region that it shows
 * @nr_pages:    how many
 * @pid:         who opened it; reference
 * @uid:         whose effective uid
 * @comm:        and name
 * @since_ns:    when, CLOCK_MONOTONIC
 * @lease:       what it ends with, or NULL; set once, with claims_lock and the region's lock
 *               held for writing, or before the claim is in the list. Reference
 * @lease_node:  in the lease's list, under claims_lock
 * @zeros:       pages of zeros that were touched instead of what was taken away, by index
 * @copies:      copies of pages, for the moment in which a private mapping gets pages of its own
 * @policy:      TMESH_POLICY_*; unlocked
 * @mappings:    memory mappings that are ours
 * @writers:     those that can write; counted in region->writers too until the lease lapses
 * @fault_next:  where a sequential reader faults next; a hint, unlocked
 * @fault_batch: pages that the last fault mapped; a hint, unlocked
 *
 * All before @lease are constant.
 */
struct tmesh_claim {
	const struct tmesh_claim_ops *ops;
	struct tmesh_region *region;
	struct list_head node;
	u32 kind;
	u32 rights;
	struct inode *inode;
	unsigned long first;
	unsigned long nr_pages;
	struct pid *pid;
	kuid_t uid;
	char comm[TMESH_COMM_LEN];
	u64 since_ns;
	struct tmesh_tenure *lease;
	struct list_head lease_node;
	struct xarray zeros;
	struct xarray copies;
	u32 policy;
	atomic_t mappings;
	atomic_t writers;
	unsigned long fault_next;
	unsigned int fault_batch;
};

/**
 * struct tmesh_tenure - a lease, which a handle and what was made through it share
 * @ref:       held by claims, by lease files and by queued work
 * @period_ns: constant; 0 where it ends with a process only
 * @id:        of the region
 * @user:      who is charged for the two pages; reference
 * @touch:     page that user space writes to
 * @status:    page that user space reads, written under the region's lock
 * @region:    NULL before the first claim has joined and after the last one has left. Changes
 *             under claims_lock, read under RCU
 * @node:      in the region's list, under claims_lock
 * @claims:    that share it, under claims_lock
 * @state:     TMESH_LEASE_*; leaves LIVE once, with claims_lock and the region's lock held for
 *             writing, or under claims_lock alone when there is no claim left
 * @wait:      pollers of lease files
 * @flags:     TMESH_LEASE_DUE: @lapse was queued
 * @lapse:     ends it; owns a reference
 * @pid:       process that it ends with, or NULL; reference
 * @exit:      in the queue of those who wait for its end
 * @class:     leases of similar periods, or NULL. With the following it belongs to watch.c
 * @block:     where it stands among them, NULL where nobody looks at it
 * @slot:      and which entry of the block it is
 * @spare:     a block, until it stands somewhere
 */
struct tmesh_tenure {
	struct kref ref;
	u64 period_ns;
	u64 id;
	struct tmesh_user *user;
	struct tmesh_lease_touch *touch;
	struct tmesh_lease_state *status;
	struct tmesh_region __rcu *region;
	struct list_head node;
	struct list_head claims;
	u32 state;
	wait_queue_head_t wait;
	unsigned long flags;
	struct work_struct lapse;
	struct pid *pid;
	wait_queue_entry_t exit;
	struct tmesh_class *class;
	struct tmesh_block *block;
	unsigned int slot;
	struct tmesh_block *spare;
};

#define TMESH_LEASE_DUE 0

/**
 * struct tmesh_handle - a file on a region; dies with the file
 * @claim: the common part
 * @user:  who is charged; reference
 * @kept:  bytes of somebody else's region that a pinning handle is charged for
 */
struct tmesh_handle {
	struct tmesh_claim claim;
	struct tmesh_user *user;
	u64 kept;
};

/**
 * struct tmesh_ucmd - a call from user space
 * @ubuffer:   where its structure is
 * @user_size: how long the caller thinks that it is
 * @cmd:       our copy
 * @handle:    the handle it was made on; NULL on the device
 */
struct tmesh_ucmd {
	void __user *ubuffer;
	u32 user_size;
	void *cmd;
	struct tmesh_handle *handle;
};

#endif /* TMESH_H */
