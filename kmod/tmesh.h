/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The objects of tmesh.ko. Each file declares its functions in the header of its name.
 * docs/internals/locking.md has the lock order.
 *
 *	tmesh_user       a uid in an IPC namespace, which is charged for its objects
 *	tmesh_mem        pages and their charge; belongs to a region
 *	tmesh_use        a part of these pages that a device or the kernel has mapped
 *	tmesh_region     a tmesh_mem with an id, an owner and a lifetime
 *	tmesh_claim      a holder of a region: a handle, an export, or a link of a view
 *	tmesh_lease_obj  a lease, shared by claims of one region
 *	tmesh_group      regions that are kept together under a name (keep.h)
 */
#ifndef TMESH_H
#define TMESH_H

#include <linux/atomic.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/llist.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/poll.h>
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
 * Charge the memory control group of the caller. If that or the machine is full, fail the
 * allocation and do not invoke the OOM killer.
 */
#define TMESH_GFP (GFP_KERNEL_ACCOUNT | __GFP_RETRY_MAYFAIL | __GFP_NOWARN)
/*
 * For allocations under a reservation, which other importers need to unmap. A process above
 * memory.high would sleep in a charge, so nothing is charged there.
 */
#define TMESH_RESERVED_GFP (GFP_KERNEL | __GFP_RETRY_MAYFAIL | __GFP_NOWARN)
#define TMESH_NAMES 4 /* sets of rights that a token may stand for: READ is in each */

struct dma_fence;
struct ipc_namespace;
struct tmesh_account;
struct tmesh_block;
struct tmesh_files;
struct tmesh_group;
struct tmesh_claim;
struct tmesh_class;
struct tmesh_mem;
struct tmesh_sealing;

/* The kinds of charges that are limited */
enum tmesh_count {
	TMESH_BYTES,
	TMESH_REGIONS,
	TMESH_HANDLES,
	TMESH_PINS,
	TMESH_KEPT_BYTES,
	TMESH_KEPT_NAMES,
	TMESH_FILES, /* of the file system, by the user that opened them */
	TMESH_FOREIGN_FILES, /* open files of other users, by the owner of their memory */
	TMESH_COUNTS
};

enum tmesh_level { TMESH_PER_UID, TMESH_PER_IPC_NS, TMESH_TOTAL, TMESH_LEVELS };

/**
 * struct tmesh_due - leases of a uid that are about to end
 * @lock:   guards the other members; taken with interrupts off
 * @leases: the leases, each with a reference
 * @queued: @work was queued and has not found @leases empty since
 * @user:   while @queued is set: a reference, which also keeps this structure
 * @work:   ends the leases. Each uid has its own work, so that its leases do not wait for those of
 *          another
 * @bound:  for each process: the number of the uid's leases that end with it, by pid
 */
struct tmesh_due {
	spinlock_t lock;
	struct list_head leases;
	bool queued;
	struct tmesh_user *user;
	struct work_struct work;
	struct xarray bound;
};

/**
 * struct tmesh_user - a uid in an IPC namespace that holds something, or has the device open
 * @key:       key of the look-up, made of @uid and @ipc_ns; readers under RCU may use it after
 *             @ipc_ns is gone. Constant, as are the members down to @accounts
 * @uid:       the uid
 * @ipc_ns:    the namespace; reference
 * @accounts:  the accounts of the uid, of the namespace, and of the system
 * @ref:       held by regions, memory, handles and open device files; the last one is dropped
 *             under users_lock (account.c)
 * @rcu:       delays freeing until look-ups under RCU have ended
 * @node:      in the table of users (account.c)
 * @lock:      guards @files, @holds and each listed region's hold_node
 * @files:     open /dev/tmesh files
 * @holds:     regions without a claim whose hold has not ended
 * @shown:     number of its groups that have files; guarded by tmesh_kept_lock
 */
struct tmesh_user {
	u64 key;
	kuid_t uid;
	struct ipc_namespace *ipc_ns;
	struct tmesh_account *accounts[TMESH_LEVELS];
	refcount_t ref;
	struct rcu_head rcu;
	struct hlist_node node;
	spinlock_t lock;
	unsigned int files;
	struct list_head holds;
	unsigned int shown;
};

/**
 * struct tmesh_backing_ops - operations of a kind of memory
 * @backing:   TMESH_BACKING_*
 * @borrowed:  the pages belong to other regions, and this memory has no references on them
 * @release:   releases the pages and frees the object around @mem, after the last reference
 * @mmap:      maps without our fault handler; NULL to use that. Called with mmap_lock held for
 *             writing, and with no lock of tmesh, because another driver may take its reservation
 *             lock. Rights and bounds have been checked, and vm_pgoff counts from the start of @mem
 * @seal:      checks a piece of the memory for writers. Returns 1 if there is more to look at; 0 if
 *             nothing can write any more; -EAGAIN if the state that it found may pass; else another
 *             error. Called with the region's lock held for writing, when tmesh has no writable
 *             mapping or export. NULL if the memory cannot be sealed
 * @seal_end:  ends a seal that has begun (@begun), and undoes it unless it succeeded. Called
 *             without locks, with a reference on @mem. May be NULL
 * @settle:    lets transient references go before another look. Called without locks; may sleep;
 *             uses no memory object. May be NULL
 * @sealed:    tests whether the memory was sealed without tmesh, so that new writers are forbidden.
 *             NULL if that cannot happen
 * @in_use:    tests whether a folio has references other than ours and those of page tables. NULL
 *             if only uses count, and the memory of a revoked region is freed as a whole
 * @mapped:    tests whether mappings that belong to another file keep the pages, so that the end of
 *             the region frees nothing. Called in memory reclaim with the region's uses_lock held.
 *             NULL if that cannot happen
 * @poisoned:  lets the sources of borrowed pages look for bad pages. Called with a reference on
 *             @mem and with cut_lock held. NULL for memory that is not borrowed
 */
struct tmesh_backing_ops {
	u32 backing;
	bool borrowed;
	void (*release)(struct tmesh_mem *mem);
	int (*mmap)(struct tmesh_mem *mem, struct vm_area_struct *vma);
	int (*seal)(struct tmesh_mem *mem, struct tmesh_sealing *sealing);
	void (*seal_end)(struct tmesh_mem *mem);
	void (*settle)(void);
	bool (*sealed)(const struct tmesh_mem *mem);
	bool (*in_use)(struct tmesh_mem *mem, struct folio *folio);
	bool (*mapped)(const struct tmesh_mem *mem);
	void (*poisoned)(struct tmesh_mem *mem);
};

/**
 * struct tmesh_mem - pages, charged to a user
 * @ref:      held by the region, and by code that uses it without a lock
 * @ops:      operations of its kind; constant
 * @user:     the user charged; reference
 * @nr_pages: length of @pages; constant
 * @charged:  number of pages charged; falls when pages are freed after a revocation
 * @pages:    the pages in order, with a reference on each folio; constant until the region is
 *            revoked. When a folio is dropped, its first entry becomes its length, as xa_mk_value()
 * @nr_huge:  number of folios of PMD size among @pages
 * @pmd:      every PMD-sized, aligned part is one folio: mappings may use PMDs
 * @named:    for borrowed pages: the most references that one use may take on a folio; constant
 * @nomap:    it cannot be mapped through tmesh; constant
 * @escaped:  number of mappings that belong to another file and cannot be taken away. While there
 *            are any, revocations and leases are refused. Rises from 0 under the region's lock for
 *            reading; readers hold it for writing
 * @orphan:   looks again at pages that were pinned when the region ended. It uses the region's
 *            reference
 * @orphan_delay: its last delay
 * @orphan_node: in the list of such memory; guarded by orphans_lock (drain.c)
 *
 * A region has it in @mem until it is revoked, guarded by the region's lock. Then it has it in
 * @gone, guarded by uses_lock, until no page is in use or pinned. The region's reference is dropped
 * then. Pages are freed before that, under uses_lock: a reference keeps the object and the pages
 * that @release frees, but not each page.
 */
struct tmesh_mem {
	struct kref ref;
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
	struct delayed_work orphan;
	unsigned long orphan_delay;
	struct list_head orphan_node;
};

/* The number of pages or folios to look at before locks are dropped */
#define TMESH_PIECE 1024

/**
 * struct tmesh_sealing - progress of a seal
 * @mem:    the memory; reference; NULL before the first piece
 * @wrote:  the region's @wrote at the first piece
 * @next:   first page of the next piece
 * @begun:  the backing's seal_end has to be called
 * @found:  for a memfd: number of leading pages that the file still shares with the region
 * @joined: for a memfd: its @joined at the first piece
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
 * @nr_pages: number of pages
 * @owns:     it has references on its folios, which were borrowed by a region that was revoked
 *
 * @first and @nr_pages are constant. @node and @owns are guarded by the region's uses_lock.
 */
struct tmesh_use {
	struct list_head node;
	unsigned long first;
	unsigned long nr_pages;
	bool owns;
};

/**
 * struct tmesh_name - a token of a region
 * @node:   in the table of tokens, for look-up under RCU
 * @region: the region
 * @rights: TMESH_RIGHT_* of the token; 0 before it is made and after it has died. Guarded by the
 *          region's claims_lock
 * @token:  random, constant while @rights is set
 */
struct tmesh_name {
	struct rhash_head node;
	struct tmesh_region *region;
	u32 rights;
	u8 token[TMESH_TOKEN_BYTES];
};

/**
 * struct tmesh_fence - the fence of a region
 * @lock:     guards the other members
 * @value:    the last value signalled
 * @producer: the claim that signals it, or NULL; no reference: the claim clears it before it ends
 * @deaths:   number of producers that have ended
 */
struct tmesh_fence {
	spinlock_t lock;
	u64 value;
	const struct tmesh_claim *producer;
	u64 deaths;
};

/**
 * struct tmesh_region - memory with a name, an owner and one lifetime
 * @ref:         held by claims, by a pending hold, by a group, and by code that uses the region
 * @rcu:         delays freeing until look-ups by id or token have ended
 * @dead:        in regions_dead, for a work to free (region.c)
 * @id:          its id; constant, as are the members down to @cgroup_id
 * @bytes:       length as asked for
 * @nr_pages:    length in pages
 * @created_ns:  CLOCK_MONOTONIC
 * @user:        the user charged; reference
 * @uid:         the owner; readers under RCU may use it after @user is gone
 * @gid:         the group that @mode admits
 * @mode:        permission bits for redeeming tokens
 * @flags:       TMESH_CREATE_*
 * @node:        NUMA node asked for, or NUMA_NO_NODE
 * @backing:     TMESH_BACKING_*
 * @hold_ms:   how long it outlives its last claim, in ms
 * @label:       for people
 * @ipc_ns:      the namespace in which tokens are valid; readers under RCU as for @uid
 * @huge_bytes:  length in folios of PMD size
 * @cgroup_id:   the memory control group that is charged, or 0
 * @lock:        guards @state, @mem, @desc, @desc_bytes; page faults take it for reading
 * @state:       TMESH_STATE_*; bits are only ever added
 * @mem:         the memory, NULL once revoked
 * @desc:        description
 * @desc_bytes:  its length
 * @writers:     number of mappings, exports and views that can write. Rises under @lock for
 *               reading; a seal reads it under @lock for writing
 * @wrote:       number of writers that ever began, including writable mappings that belong to
 *               another file. Rises under @lock for reading
 * @repeats:     for a view that repeats pages: how often it may show one page; else 0. Constant
 * @late:        a fault has left a page to the core although no PMD maps this memory. Set under
 *               @lock for reading, and never cleared
 * @mappings:    number of mappings of all claims that our fault handler serves
 * @attachments: number of devices attached to exports
 * @telling:     number of exports whose importers a work still has to notify
 * @opens:       number of times that a token was redeemed
 * @cut_lock:    held while mappings of claims are taken away: for a revocation, a lapse, or a
 *               memory error. It is the outermost lock. Neither close() nor the exit of a process
 *               takes it, nor does any other path that holders need to let go of the region
 * @claims_lock: guards @claims, @gathers, @leases, @names and the counts
 * @claims:      all handles, exports and views
 * @nr_handles:  number of handles, including pinning ones
 * @nr_pinning:  number of handles that forbid a revocation
 * @nr_exports:  number of exports
 * @nr_gathers:  number of links of views that show parts of it
 * @gathers:     these links
 * @nr_live:     number of claims whose lease has not lapsed
 * @nr_joined:   number of claims that were ever added
 * @leases:      leases of claims
 * @names:       tokens, by their rights
 * @uses_lock:   guards @uses, @nr_uses, @gone, @pinned, @drain_delay and @poisoned
 * @uses:        uses by devices and the kernel
 * @nr_uses:     number of @uses
 * @gone:        the memory of a revoked region, until no page of it is in use or pinned
 * @freeing:     the region was revoked, and some of its memory is not free yet; unlocked
 * @pinned:      number of pages in use or pinned at the last look
 * @drain:       looks again; has no reference; cancelled after the last one is dropped
 * @drain_delay: its last delay
 * @poison:      looks for pages with memory errors; has no reference; cancelled after the last one
 *               is dropped
 * @poisoned:    number of pages with memory errors that are known
 * @fence:       the fence
 * @wait:        pollers of handles, and waiters for the fence and for the memory of a revoked
 *               region
 * @hold:        ends a hold; while pending, it has a reference
 * @hold_node: in the owner's list, under the owner's lock
 * @kept:        the group that keeps it, or NULL; guarded by tmesh_kept_lock. Becomes set only
 *               while the region has a claim
 */
struct tmesh_region {
	struct kref ref;
	struct rcu_head rcu;
	struct llist_node dead;

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
	u32 hold_ms;
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
	unsigned long repeats;
	bool late;
	atomic_t mappings;
	atomic_t attachments;
	atomic_t telling;
	atomic64_t opens;

	struct mutex cut_lock;
	struct mutex claims_lock;
	struct list_head claims;
	u32 nr_handles;
	u32 nr_pinning;
	u32 nr_exports;
	u32 nr_gathers;
	struct list_head gathers;
	u32 nr_live;
	u64 nr_joined;
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
	struct delayed_work hold;
	struct list_head hold_node;
	struct tmesh_group *kept;
};

/**
 * struct tmesh_claim_ops - operations of a kind of claim
 * @writes:   a claim of this kind counts as a writer if it has TMESH_RIGHT_WRITE, because writes by
 *            devices and views cannot be observed. A handle only counts by its mappings
 * @counted:  updates the region's count of claims of this kind by @by, which is 1 or -1
 * @check:    checks whether it may be added. Called with the region's lock held for reading. NULL
 *            if it always may
 * @cut:      takes its mappings away, after new ones are refused. Called with only the region's
 *            cut_lock held and a reference on the claim, which may have been removed
 * @free:     frees the object around it, after the last reference
 * @describe: fills in the fields of a holder that are specific to its kind. May be NULL
 * @devices:  lists up to @room of the devices attached to it and returns their number. NULL if
 *            there are none
 * @in_use:   tests whether devices or the kernel have mappings through it. NULL if @devices covers
 *            them
 * @pending:  returns a fence with a reference for the work that devices have queued on it, or NULL.
 *            A revocation calls it once, with a reference on the claim and no locks. NULL if
 *            devices do not use it
 * @poisoned: handles bad pages of the region, which it may show. Called as @cut is. NULL if zapping
 *            its mappings is enough
 *
 * All but @check, @cut, @pending, @poisoned and @free are called with the region's claims_lock
 * held.
 */
struct tmesh_claim_ops {
	bool writes;
	void (*counted)(struct tmesh_claim *claim, int by);
	int (*check)(const struct tmesh_claim *claim, const struct tmesh_claim *through);
	void (*cut)(struct tmesh_claim *claim);
	void (*free)(struct tmesh_claim *claim);
	void (*describe)(const struct tmesh_claim *claim, struct tmesh_holder *holder);
	u32 (*devices)(struct tmesh_claim *claim, struct tmesh_holder *holders, u32 room);
	bool (*in_use)(const struct tmesh_claim *claim);
	struct dma_fence *(*pending)(struct tmesh_claim *claim);
	void (*poisoned)(const struct tmesh_claim *claim);
};

/**
 * struct tmesh_claim - the common part of a handle, an export and a view's link
 * @ref:         held by its file, dma-buf or view, and by code that uses it without claims_lock
 * @release:     frees it when its last reference is dropped
 * @ops:         operations of its kind
 * @region:      reference
 * @node:        in region->claims; empty when it was not added
 * @kind:        TMESH_HOLDER_*
 * @rights:      TMESH_RIGHT_*
 * @inode:       its i_mapping has all mappings that our fault handler serves; reference
 * @first:       first page of the region that it shows
 * @nr_pages:    number of pages
 * @pid:         the process that opened it; reference
 * @uid:         the effective uid of that process
 * @comm:        and its name
 * @since_ns:    time when it was opened, CLOCK_MONOTONIC
 * @lease:       its lease, or NULL; reference. Set once, with claims_lock and the region's lock
 *               held for writing, or before other code can see the claim
 * @lease_node:  in the lease's list; guarded by claims_lock
 * @waited:      a revocation has fetched its fence (@pending); guarded by claims_lock
 * @zeros:       pages of zeros that replace pages that were taken away, by index
 * @copies:      copies of pages, by index, for long-term pins of private mappings (zeros.c)
 * @policy:      TMESH_POLICY_*; unlocked
 * @mappings:    number of mappings that our fault handler serves
 * @writers:     number of those that can write; also counted in region->writers until the lease
 *               lapses
 * @fault_next:  page at which a sequential reader faults next; a hint, unlocked
 * @fault_batch: number of pages that the last fault mapped; a hint, unlocked
 *
 * All members before @lease but @ref and @node are constant.
 */
struct tmesh_claim {
	struct kref ref;
	void (*release)(struct kref *ref);
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
	struct tmesh_lease_obj *lease;
	struct list_head lease_node;
	bool waited;
	struct xarray zeros;
	struct xarray copies;
	u32 policy;
	atomic_t mappings;
	atomic_t writers;
	unsigned long fault_next;
	unsigned int fault_batch;
};

/**
 * struct tmesh_lease_obj - a lease, shared by a handle and the claims made through it
 * @ref:       held by claims, by lease files and by queued work
 * @period_ns: its period; constant; 0 if it ends only with a process
 * @id:        id of the region
 * @user:      the user charged for the two pages; reference
 * @touch:     page that user space writes to
 * @status:    page that user space reads, written under the region's lock
 * @region:    the region; NULL before the first claim has joined and after the last one has left.
 *             Changes under claims_lock; read under RCU
 * @node:      in the region's list; guarded by claims_lock
 * @claims:    the claims that share it; guarded by claims_lock
 * @state:     TMESH_LEASE_*. Leaves LIVE once, with claims_lock and the region's lock held for
 *             writing, or under claims_lock alone if no claim is left
 * @wait:      pollers of lease files
 * @flags:     TMESH_LEASE_DUE: it was queued to lapse
 * @due:       in the list of its uid's leases that are about to end
 * @ending:    in the list of leases of its region that lapse together; guarded by cut_lock
 * @nr_claims: number of @claims; guarded by claims_lock
 * @writers:   number of their mappings that can write
 * @pid:       the process that it ends with, or NULL; reference
 * @exit:      in the queue of waiters for the end of that process
 * @class:     its class of similar periods, or NULL. This and the members below belong to
 *             lease_expiry.c
 * @block:     the block of its entry, NULL if it is not in the class
 * @slot:      index of its entry in @block
 * @spare:     a preallocated block, until it is in the class
 */
struct tmesh_lease_obj {
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
	struct list_head due;
	struct list_head ending;
	unsigned int nr_claims;
	atomic_t writers;
	struct pid *pid;
	wait_queue_entry_t exit;
	struct tmesh_class *class;
	struct tmesh_block *block;
	unsigned int slot;
	struct tmesh_block *spare;
};

#define TMESH_LEASE_DUE 0

#ifdef CONFIG_LOCKDEP
extern struct lockdep_map tmesh_pollers;
#endif

/* Tell lockdep that pollers are woken. tmesh_region_teach() forbids that under some locks. */
static inline void tmesh_wakes(void)
{
#ifdef CONFIG_LOCKDEP
	lock_map_acquire(&tmesh_pollers);
	lock_map_release(&tmesh_pollers);
#endif
}

/*
 * Wake all waiters except pollers that did not ask for one of these events. TMESH_WAKE_NO_POLL
 * wakes waiters for fences and memory only: no process asks poll() of a handle for it.
 */
#define tmesh_wake(queue, events)                                     \
	do {                                                          \
		tmesh_wakes();                                        \
		__wake_up(queue, TASK_NORMAL, 0, poll_to_key(events)); \
	} while (0)
#define TMESH_WAKE_NO_POLL EPOLLRDBAND

/* The kinds of handles that are charged differently */
enum tmesh_handle_kind { TMESH_HANDLE_PLAIN, TMESH_HANDLE_PINNING, TMESH_HANDLE_FILE };

/**
 * struct tmesh_paid - charges of a handle
 * @kind:         its kind; TMESH_HANDLE_FILE is an open file of the file system
 * @user:         the user that opened it; reference
 * @owner:        the owner of the region, for an open file of another user; reference; else NULL
 * @pinned_bytes: bytes of another user's region that a pinning handle is charged for
 */
struct tmesh_paid {
	enum tmesh_handle_kind kind;
	struct tmesh_user *user;
	struct tmesh_user *owner;
	u64 pinned_bytes;
};

/**
 * struct tmesh_handle - a file on a region
 * @claim: the common part
 * @paid:  its charges; constant
 */
struct tmesh_handle {
	struct tmesh_claim claim;
	struct tmesh_paid paid;
};

/**
 * struct tmesh_ucmd - a call from user space
 * @ubuffer:   address of the caller's structure
 * @user_size: its size as the caller knows it
 * @cmd:       the copy in the kernel
 * @handle:    the handle that the call was made on; NULL for the device
 */
struct tmesh_ucmd {
	void __user *ubuffer;
	u32 user_size;
	void *cmd;
	struct tmesh_handle *handle;
};

#endif /* TMESH_H */
