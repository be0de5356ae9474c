/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * tmesh: refcounted memory regions shared between processes and devices.
 *
 * This header is the only ioctl ABI. The module and libtmesh include this very
 * file.
 *
 * Two kinds of file take these calls:
 *
 *   device   an open /dev/tmesh
 *   handle   one holder's right to one region. The calls that make regions (TMESH_CREATE,
 *            TMESH_CREATE_MEMFD, TMESH_CREATE_USER, TMESH_IMPORT, TMESH_GATHER), TMESH_OPEN,
 *            TMESH_DERIVE and TMESH_KEPT_OPEN return it as a file descriptor
 *
 * Extension rules
 *
 *   - Every structure begins with its own size in bytes as the caller knows it,
 *     then with a word of flags.
 *   - A structure shorter than the first published one gives EINVAL. A longer one gives E2BIG
 *     unless all bytes that the kernel does not know are zero. One shorter than the current one is
 *     read as if padded with zeros. The kernel writes back only as many bytes as the caller named.
 *   - Unknown flags and unknown rights give EOPNOTSUPP. Padding and fields named
 *     "out" must be zero on the way in where they say so, else EINVAL.
 *   - Structures only grow at the end; a new meaning gets a new number.
 *   - All times are CLOCK_MONOTONIC nanoseconds in the caller's time namespace. All descriptors are
 *     made with O_CLOEXEC. Pointers are carried in __aligned_u64.
 *
 * Errors that all calls share
 *
 *   EINVAL      a size, offset, alignment, mode or padding is wrong
 *   E2BIG       the structure carries a non-zero tail this kernel does not know
 *   EOPNOTSUPP  an unknown flag or right, or a backing that cannot do this
 *   ENOTTY      no such call on this kind of file
 *   EFAULT      a pointer does not point to memory of the caller
 *   EACCES      this handle has not the right the call needs
 *   EPERM       the region's state or its owner's wish forbids it, for any handle
 *   EINTR       a fatal signal came; nothing has changed (but see TMESH_REVOKE and TMESH_WAIT)
 *   ESTALE      the region was revoked, or this handle's lease has lapsed
 *   EDQUOT      a limit would be passed: bytes, regions, handles, pins, kept bytes or kept
 *               names of this user, of this IPC namespace, or of all users. TMESH_CAPS shows
 *               limits and use; root raises the limits in /proc/sys/dev/tmesh/. Nothing was
 *               allocated.
 *   ENOMEM      the system, or the caller's memory control group, has no memory
 *   ENOENT      a token that is dead, foreign or guessed, an unknown id, or a name that is not
 *               kept or not for the caller; the answer never differs
 *   EEXIST      see TMESH_KEEP
 *   ENOSPC      see TMESH_KEPT_OPEN
 *   EBUSY       see TMESH_SEAL, TMESH_REVOKE, TMESH_LEASE, TMESH_SIGNAL, TMESH_KEEP and TMESH_RENEW
 *   EBADF       a descriptor in the structure is not open
 *   EMFILE      the process has no free descriptor
 */
#ifndef _UAPI_LINUX_TMESH_H
#define _UAPI_LINUX_TMESH_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define TMESH_ABI_VERSION 1

#define TMESH_LABEL_MAX 63     /* bytes, without the terminating zero */
#define TMESH_DESC_MAX 4096    /* bytes of a region's description */
#define TMESH_TOKEN_BYTES 16   /* a token's random bits */
#define TMESH_HOLD_MAX_MS 1000 /* longest hold that may be asked for */
#define TMESH_COMM_LEN 16

/*
 * Rights of a handle or a token. They never grow: a handle or a token made from a handle has a
 * subset of its rights. READ is always part of the set. A set without it gives EINVAL.
 *
 * Map a handle with mmap(MAP_SHARED). Executable mappings give EPERM, for exports too, and making a
 * mapping executable gives EACCES. A mapping through a handle without WRITE never becomes writable
 * (EACCES). Once the region is sealed, a new writable mapping gives EPERM, and making an older
 * mapping writable gives EACCES. A mapping counts as a writer from when it first may write until it
 * is unmapped. mprotect() does not change that. To turn a writer into a reader, map the same place
 * again with mmap(MAP_FIXED) and without PROT_WRITE.
 *
 * A sealed region can also be mapped with mmap(MAP_PRIVATE), and with PROT_WRITE whatever the
 * handle's rights are. A write goes to a copy of the page. The copy belongs to the process and is
 * charged to it like its other memory. It stays when the region is revoked or the lease lapses;
 * other pages go as in any mapping. Before the seal, and for exports, MAP_PRIVATE gives EINVAL.
 *
 * poll() of a handle reports
 *   POLLHUP            the region was revoked
 *   POLLHUP | POLLERR  this handle's lease has lapsed
 *   POLLOUT            this is the only holder: there is no other handle, export or view whose
 *                      lease has not lapsed, no attached device, and the region is not kept
 *   POLLPRI            a page of it has an uncorrectable memory error
 */
#define TMESH_RIGHT_READ (1u << 0)   /* map, export read-only */
#define TMESH_RIGHT_WRITE (1u << 1)  /* map writable, export writable, until sealed */
#define TMESH_RIGHT_MANAGE (1u << 2) /* seal, describe, revoke */

/* The kind of a region's memory */
#define TMESH_BACKING_PAGES 1  /* allocated by the module */
#define TMESH_BACKING_MEMFD 2  /* the pages of a memfd */
#define TMESH_BACKING_USER 3   /* pinned memory of a process */
#define TMESH_BACKING_DMABUF 4 /* another exporter's dma-buf */
#define TMESH_BACKING_OPAQUE 5 /* a descriptor that only its driver understands */
#define TMESH_BACKING_GATHER 6 /* parts of other regions */

/* State bits of a region. */
#define TMESH_STATE_SEALED (1u << 0)
#define TMESH_STATE_REVOKED (1u << 1)
#define TMESH_STATE_LAPSED (1u << 2) /* of a handle: its lease has lapsed */
#define TMESH_STATE_POISONED \
	(1u << 3) /* a page of it has an uncorrectable memory error, see below */

/*
 * A region becomes POISONED when tmesh finds a page in it that the kernel has marked as bad. It
 * finds one by a touch, when a device maps an export, or by TMESH_INFO_PINS, which looks at every
 * page. A touch of a bad page raises SIGBUS with BUS_MCEERR_AR and its address. System calls that
 * use it give EFAULT or EHWPOISON, and an importer's mapping of an export gives EHWPOISON. Pages
 * beside it stay good. Before the state is set, all mappings of the page are taken away. Pages
 * beside it are mapped again when they are touched. Mappings by devices stay.
 */

#define TMESH_IOC_MAGIC 0xE7

/*
 * TMESH_CAPS (device, handle): features, limits and use.
 *
 * Limits are those in force now; "used" counts the caller's effective uid.
 */
#define TMESH_FEATURE_PAGES (1ull << 0)	   /* TMESH_CREATE */
#define TMESH_FEATURE_MEMFD (1ull << 1)	   /* TMESH_CREATE_MEMFD */
#define TMESH_FEATURE_EXPORT (1ull << 2)   /* TMESH_EXPORT */
#define TMESH_FEATURE_PIN (1ull << 3)	   /* TMESH_DERIVE_PIN */
#define TMESH_FEATURE_HUGE (1ull << 4)	   /* 2 MiB mappings */
#define TMESH_FEATURE_REVOKE (1ull << 5)   /* TMESH_REVOKE */
#define TMESH_FEATURE_LEASE (1ull << 6)	   /* TMESH_LEASE, TMESH_POLICY */
#define TMESH_FEATURE_USER (1ull << 7)	   /* TMESH_CREATE_USER */
#define TMESH_FEATURE_IMPORT (1ull << 8)   /* TMESH_IMPORT, TMESH_OPAQUE */
#define TMESH_FEATURE_GATHER (1ull << 9)   /* TMESH_GATHER */
#define TMESH_FEATURE_FENCE (1ull << 10)   /* TMESH_SIGNAL, TMESH_WAIT */
#define TMESH_FEATURE_KEEP (1ull << 11)	   /* TMESH_KEEP, TMESH_KEPT_* */
#define TMESH_FEATURE_PRIVATE (1ull << 12) /* mmap(MAP_PRIVATE) of sealed regions */
#define TMESH_FEATURE_RENEW (1ull << 13)   /* TMESH_RENEW */
#define TMESH_FEATURE_FILES (1ull << 14)   /* files of TMESH_KEEP, and the file system "tmesh" */

struct tmesh_caps_query {
	__u32 size;
	__u32 flags;			   /* in: 0 */
	__u32 abi_version;		   /* out */
	__u32 page_bytes;		   /* out */
	__aligned_u64 features;		   /* out: TMESH_FEATURE_* */
	__aligned_u64 huge_page_bytes;	   /* out: 0 where there are none */
	__aligned_u64 max_bytes_per_uid;   /* out */
	__aligned_u64 max_regions_per_uid; /* out */
	__aligned_u64 max_bytes;	   /* out: all users together */
	__aligned_u64 max_regions;	   /* out: all users together */
	__aligned_u64 used_bytes;	   /* out: this uid */
	__aligned_u64 used_regions;	   /* out: this uid */
	/* From here on: handles, pinning handles, and the caller's IPC namespace. */
	__aligned_u64 max_handles_per_uid;
	__aligned_u64 max_pins_per_uid;
	__aligned_u64 used_handles;
	__aligned_u64 used_pins;
	__aligned_u64 max_bytes_per_ipc_ns;
	__aligned_u64 max_regions_per_ipc_ns;
	__aligned_u64 max_handles_per_ipc_ns;
	__aligned_u64 max_pins_per_ipc_ns;
	__aligned_u64 used_bytes_ipc_ns;
	__aligned_u64 used_regions_ipc_ns;
	__aligned_u64 used_handles_ipc_ns;
	__aligned_u64 used_pins_ipc_ns;
	__aligned_u64 max_handles; /* all users together */
	__aligned_u64 max_pins;	   /* all users together */
	/* From here on: kept regions, see TMESH_KEEP. */
	__aligned_u64 max_kept_bytes_per_uid;
	__aligned_u64 max_kept_names_per_uid;
	__aligned_u64 used_kept_bytes;
	__aligned_u64 used_kept_names;
	__aligned_u64 max_kept_bytes_per_ipc_ns;
	__aligned_u64 max_kept_names_per_ipc_ns;
	__aligned_u64 used_kept_bytes_ipc_ns;
	__aligned_u64 used_kept_names_ipc_ns;
	__aligned_u64 max_kept_bytes; /* all users together */
	__aligned_u64 max_kept_names; /* all users together */
	/* From here on: open files of the file system. Foreign ones are those of other users. */
	__aligned_u64 max_files_per_uid;
	__aligned_u64 max_foreign_files_per_uid;
	__aligned_u64 used_files;
	__aligned_u64 used_foreign_files;
	__aligned_u64 max_files_per_ipc_ns;
	__aligned_u64 used_files_ipc_ns;
	__aligned_u64 max_files; /* all users together */
};
#define TMESH_CAPS _IO(TMESH_IOC_MAGIC, 0x00)

/*
 * TMESH_CREATE (device): a new region of zeroed pages and its first handle.
 *
 * @bytes      in: length wanted, at least 1; the memory is rounded up to whole
 *             pages (to 2 MiB with TMESH_CREATE_HUGE), the length is kept as asked
 * @node       in: NUMA node, with TMESH_CREATE_NODE; else must be 0
 * @mode       in: permission bits for redeeming a token of this region: 0400 and 0200 for the
 *             owner, 0040 and 0020 for @gid. Others give EINVAL; 0 means 0600
 * @gid        in: with TMESH_CREATE_GID: group of the region in the caller's user namespace. EPERM
 *             if the caller is not in it. Else must be 0, and the region gets the caller's group
 * @hold_ms  in: how long the region stays after its last handle and export are gone, so that a
 *             token already sent can still be redeemed. At most TMESH_HOLD_MAX_MS. Without a token
 *             there is no hold. The region stays charged. All holds of a user end when its last
 *             open /dev/tmesh is closed
 * @label      in: a name for people, zero-terminated, no control characters
 * @fd         out: the handle, with all rights
 * @id         out: never used again while the module is loaded, not a secret
 *
 * The memory is allocated here: a shortage gives EDQUOT or ENOMEM now, never a SIGBUS later.
 */
#define TMESH_CREATE_HUGE (1u << 0)   /* 2 MiB folios throughout, or ENOMEM */
#define TMESH_CREATE_NOHUGE (1u << 1) /* single pages only */
#define TMESH_CREATE_NODE (1u << 2)   /* memory of @node only, or ENOMEM */
#define TMESH_CREATE_GID (1u << 3)    /* @gid is given */
#define TMESH_CREATE_NOPIN (1u << 4)  /* pinning handles are refused: EPERM */

struct tmesh_create {
	__u32 size;
	__u32 flags;
	__aligned_u64 bytes;
	__s32 node;
	__u32 mode;
	__u32 gid;
	__u32 hold_ms;
	char label[TMESH_LABEL_MAX + 1];
	__s32 fd;	  /* out */
	__u32 pad;	  /* 0 */
	__aligned_u64 id; /* out */
};
#define TMESH_CREATE _IO(TMESH_IOC_MAGIC, 0x01)

/*
 * TMESH_CREATE_MEMFD (device): a region over the pages of a memfd.
 *
 * @memfd must be sealed against shrinking (F_SEAL_SHRINK), else EINVAL. @bytes may be 0 for the
 * whole file, and must not exceed it. The handle can write only if the descriptor can and the memfd
 * is not sealed against writing (F_SEAL_WRITE, F_SEAL_FUTURE_WRITE). After such a seal, new
 * writable mappings and exports give EPERM. The pages are pinned and charged to the region's
 * limits.
 *
 * The rights of handles, and a revocation, do not restrict holders of the memfd itself. TMESH_SEAL
 * seals the memfd too: it adds F_SEAL_WRITE. It gives EBUSY if that fails, and while another region
 * of the memfd could write. fcntl() cannot add that seal while the region lives.
 *
 * Mappings of the handle are mappings of the memfd. They outlive the region, TMESH_HOLDERS does not
 * count them, and their protection never changes.
 *
 * EOPNOTSUPP for a memfd of huge pages (MFD_HUGETLB). EACCES for a descriptor that cannot read.
 * EDQUOT for more than 1,024 regions of one memfd. Half of these are for the memfd's owner. Another
 * user must leave as many of the others free as it has.
 *
 * @flags: TMESH_CREATE_GID, TMESH_CREATE_NOPIN.
 */
struct tmesh_create_memfd {
	__u32 size;
	__u32 flags;
	__aligned_u64 bytes;
	__s32 memfd;
	__u32 mode;
	__u32 gid;
	__u32 hold_ms;
	char label[TMESH_LABEL_MAX + 1];
	__s32 fd;	  /* out */
	__u32 rights;	  /* out: TMESH_RIGHT_* of the handle */
	__aligned_u64 id; /* out */
};
#define TMESH_CREATE_MEMFD _IO(TMESH_IOC_MAGIC, 0x02)

/*
 * TMESH_OPEN (device): redeem a token for a new handle.
 *
 * The caller must be in the IPC namespace in which the region was created, and its owner, group and
 * mode must admit the caller. Otherwise ENOENT, as for a token that does not exist. Rights beyond
 * those of the token or of the mode give EACCES. Only the owner gets MANAGE, whatever the token's
 * rights are.
 */
struct tmesh_open {
	__u32 size;
	__u32 flags;  /* 0 */
	__u32 rights; /* in: wanted */
	__s32 fd;     /* out */
	__u8 token[TMESH_TOKEN_BYTES];
	__aligned_u64 id;	   /* out */
	__aligned_u64 bytes;	   /* out: length as asked at create */
	__aligned_u64 alloc_bytes; /* out: length in whole pages, what can be mapped */
	__u32 state;		   /* out: TMESH_STATE_* */
	__u32 desc_bytes;	   /* out: length of the description */
};
#define TMESH_OPEN _IO(TMESH_IOC_MAGIC, 0x03)

/*
 * TMESH_DERIVE (handle): another handle on the same region with the same or fewer rights. To send a
 * process fewer rights over a socket, derive a handle and send that one: a handle keeps its rights
 * when it is sent.
 *
 * With TMESH_DERIVE_PIN the handle is a pinning one: the region must be sealed
 * (else EINVAL), and it cannot be revoked while the handle lives. On a region of
 * another user its bytes are charged to the caller, for each such handle.
 */
#define TMESH_DERIVE_PIN (1u << 0)

struct tmesh_derive {
	__u32 size;
	__u32 flags;
	__u32 rights; /* in: wanted, EACCES when not a subset */
	__s32 fd;     /* out */
};
#define TMESH_DERIVE _IO(TMESH_IOC_MAGIC, 0x04)

/*
 * TMESH_TOKEN (handle): the token that names this region with these rights.
 *
 * Another call gives the same token. The token dies with the region, or by TMESH_RENEW. Rights must
 * be a subset of the handle's (EACCES). A handle with a lease gives none (EPERM).
 */
struct tmesh_token {
	__u32 size;
	__u32 flags; /* 0 */
	__u32 rights;
	__u32 pad;		       /* 0 */
	__u8 token[TMESH_TOKEN_BYTES]; /* out */
};
#define TMESH_TOKEN _IO(TMESH_IOC_MAGIC, 0x05)

/*
 * TMESH_INFO (device, handle): describe a region.
 *
 * On a handle @id must be 0, for the handle's region. On the device @id names a region. ENOENT
 * unless the caller may open it or has CAP_SYS_ADMIN, as for TMESH_LIST.
 *
 * TMESH_INFO_PINS counts @pinned_bytes. It looks at every page, and finds bad pages too. Without it
 * @pinned_bytes is known only for a revoked region, and else 0.
 */
#define TMESH_INFO_PINS (1u << 31)

struct tmesh_info {
	__u32 size;
	__u32 flags;		   /* in: TMESH_INFO_PINS; out: TMESH_CREATE_* as created */
	__aligned_u64 id;	   /* in, out */
	__aligned_u64 bytes;	   /* length as asked */
	__aligned_u64 alloc_bytes; /* length in whole pages */
	__aligned_u64 huge_bytes;  /* bytes of it in 2 MiB folios */
	__aligned_u64 created_ns;  /* CLOCK_MONOTONIC */
	__u32 backing;		   /* TMESH_BACKING_* */
	__u32 state;		   /* TMESH_STATE_* */
	__u32 rights;		   /* of this handle; 0 on the device */
	__u32 pinning;		   /* 1 when this handle is a pinning one */
	__u32 uid;		   /* owner, as the caller's user namespace sees it */
	__u32 gid;
	__u32 mode;
	__s32 node; /* asked for, or -1 */
	__u32 handles;
	__u32 pinning_handles;
	__u32 exports;	   /* dma-bufs alive */
	__u32 attachments; /* devices attached to them */
	__u32 desc_bytes;
	__u32 hold_ms;
	char label[TMESH_LABEL_MAX + 1];
	__aligned_u64 lease_ns;	     /* of this handle; 0: none */
	__aligned_u64 lease_left_ns; /* it lapses no earlier than this without a touch */
	__aligned_u64 fence_value;   /* the value that the producer signalled last */
	__aligned_u64 pinned_bytes;  /* in folios that devices or the kernel have pinned */
	__aligned_u64 cgroup_id;     /* the memory control group charged; 0: unknown */
	__u32 policy;		     /* of this handle: TMESH_POLICY_* */
	__u32 gathers;		     /* views that show parts of it */
	__u32 fence_state;	     /* TMESH_FENCE_* */
	__u32 pad;
	__aligned_u64 kept;  /* id of the name that keeps it, see TMESH_KEEP; 0: none */
	__aligned_u64 opens; /* how often one of its tokens was redeemed */
};
#define TMESH_INFO _IO(TMESH_IOC_MAGIC, 0x06)

/*
 * TMESH_LIST (device): the regions that the caller may open, in order of id. All regions for
 * CAP_SYS_ADMIN in the initial user namespace.
 *
 * @cursor       in: list regions with an id greater than this; out: the last id
 *               written
 * @entries      in: array of struct tmesh_info, each written to @entry_bytes
 * @entry_bytes  in: stride of the array: at least the first published size and a multiple of 8
 *               (else EINVAL), at most 4096 (else E2BIG). Ignored if @count is 0
 * @count        in: room; out: entries written
 * @more         out: 1 if there may be regions after @cursor
 */
struct tmesh_list {
	__u32 size;
	__u32 flags; /* 0 */
	__aligned_u64 cursor;
	__aligned_u64 entries;
	__u32 entry_bytes;
	__u32 count;
	__u32 more;
	__u32 pad; /* 0 */
};
#define TMESH_LIST _IO(TMESH_IOC_MAGIC, 0x07)

/*
 * TMESH_HOLDERS (device, handle): list the holders of a region. For its owner and CAP_SYS_ADMIN,
 * else EPERM. On the device ENOENT for a region that TMESH_LIST does not show.
 *
 * @id is as for TMESH_INFO, the array as for TMESH_LIST. @count returns the number of entries
 * written, @total the number of holders.
 *
 * During the call its caller is charged for a list of more than 128 entries. EDQUOT if a limit of
 * bytes is reached. A @count of up to 128 needs nothing.
 */
#define TMESH_HOLDER_HANDLE 1
#define TMESH_HOLDER_PINNING 2
#define TMESH_HOLDER_EXPORT 3
#define TMESH_HOLDER_GATHER 4 /* a gather view, @view */
#define TMESH_HOLDER_DEVICE 5 /* a device attached to the export listed before it */

#define TMESH_HOLDER_FLAG_LAPSED (1u << 0)   /* its lease has lapsed */
#define TMESH_HOLDER_FLAG_PRODUCER (1u << 1) /* it signals the region's fence */
#define TMESH_HOLDER_FLAG_FILE (1u << 2)     /* an open file of the file system "tmesh" */

#define TMESH_DEVICE_LEN 32

struct tmesh_holder {
	__u32 size;
	__u32 kind; /* TMESH_HOLDER_* */
	__u32 pid;  /* process that opened it, in the caller's PID namespace; else 0 */
	__u32 uid;
	__u32 rights;	   /* TMESH_RIGHT_* */
	__u32 mappings;	   /* memory mappings of this handle or export */
	__u32 attachments; /* devices attached to this export */
	__u32 pad;
	__aligned_u64 since_ns; /* CLOCK_MONOTONIC */
	__aligned_u64 offset;	/* of an export */
	__aligned_u64 bytes;	/* of an export; of a handle, the region's */
	char comm[TMESH_COMM_LEN];
	__aligned_u64 lease_ns;	     /* 0: none */
	__aligned_u64 lease_left_ns; /* as in struct tmesh_info; 0 when lapsed */
	__aligned_u64 view;	     /* id of a gather view's region */
	__u32 mapped;		     /* of a device: it has memory mapped for DMA */
	__u32 flags;		     /* TMESH_HOLDER_FLAG_* */
	char device[TMESH_DEVICE_LEN];
};

struct tmesh_holders {
	__u32 size;
	__u32 flags; /* 0 */
	__aligned_u64 id;
	__aligned_u64 entries;
	__u32 entry_bytes;
	__u32 count;
	__u32 total;
	__u32 pad; /* 0 */
};
#define TMESH_HOLDERS _IO(TMESH_IOC_MAGIC, 0x08)

/*
 * TMESH_SEAL (handle, needs MANAGE): forbid all writes for good, by CPUs and by devices.
 *
 * EBUSY while a writer may exist: a writable mapping of a handle or export, a writable export or
 * view, or a page that a driver may have pinned. Over a memfd this includes all pages of the file.
 * EBUSY also if the file has other pages than the region, because a hole was punched. Nothing is
 * changed then. The seal also freezes the description. Sealing a sealed region succeeds.
 */
struct tmesh_seal {
	__u32 size;
	__u32 flags; /* 0 */
};
#define TMESH_SEAL _IO(TMESH_IOC_MAGIC, 0x09)

/*
 * TMESH_EXPORT (handle): the region, or a slice of it, as a dma-buf.
 *
 * @offset, @bytes are whole pages; @bytes 0 means to the end. Without TMESH_EXPORT_WRITE the
 * dma-buf refuses every writable mapping, by CPUs and by devices. With it the handle needs WRITE
 * (EACCES), and the region must not be sealed (EPERM). The dma-buf holds the region, not the
 * handle.
 */
#define TMESH_EXPORT_WRITE (1u << 0)

struct tmesh_export {
	__u32 size;
	__u32 flags;
	__aligned_u64 offset;
	__aligned_u64 bytes;
	__s32 fd;  /* out */
	__u32 pad; /* 0 */
};
#define TMESH_EXPORT _IO(TMESH_IOC_MAGIC, 0x0a)

/*
 * TMESH_DESC_SET (handle, needs MANAGE), TMESH_DESC_GET (handle; device with @id): a text about the
 * contents, which the library writes and tools show. The kernel does not interpret it. A program
 * that prints it must escape it. TMESH_DESC_SET gives EPERM once the region is sealed.
 *
 * @data, @bytes  set: the text, at most TMESH_DESC_MAX; get: room in, length out
 *                (the text is cut when the room is smaller than the length)
 */
struct tmesh_desc {
	__u32 size;
	__u32 flags;	  /* 0 */
	__aligned_u64 id; /* get on the device; else 0 */
	__aligned_u64 data;
	__u32 bytes;
	__u32 pad; /* 0 */
};
#define TMESH_DESC_SET _IO(TMESH_IOC_MAGIC, 0x0b)
#define TMESH_DESC_GET _IO(TMESH_IOC_MAGIC, 0x0c)

/*
 * TMESH_REVOKE (handle, needs MANAGE; device with @id): take the region away from all holders. On
 * the device only the region's owner may call it. So an owner without a handle can still take back
 * memory that others hold at its cost. EPERM for other users that may see the region, ENOENT for
 * those that may not. ENOENT also for a kept region that the kernel is ending for its memory.
 *
 * It removes all mappings of all handles and exports; TMESH_POLICY decides what a later touch does.
 * It notifies importers that have a move callback, revokes gather views of the region, and
 * invalidates its tokens. Later calls on the region give ESTALE. The exceptions are CAPS, INFO,
 * HOLDERS, POLICY, close(), and REVOKE with TMESH_REVOKE_WAIT. Pages that a device or the kernel
 * has pinned stay until their pins end. Until then they are charged and shown. Regions over a memfd
 * cannot be revoked, nor can imports that were mapped (EOPNOTSUPP): those mappings belong to other
 * files.
 *
 * EBUSY while a pinning handle exists; nothing overrides that. @entries then lists the pinning
 * holders (array as for TMESH_HOLDERS), and nothing has changed.
 *
 * Only a caller that TMESH_HOLDERS admits gets entries; others get @total alone. If a limit of
 * bytes is reached, @entries lists at most 128 holders.
 *
 * The call waits for work that importers had queued, up to a second in all and until a signal. The
 * region is revoked all the same.
 *
 * With TMESH_REVOKE_WAIT it waits until the memory is free, at most @timeout_ns. ETIMEDOUT if
 * something still pins it, EINTR if a signal came. The region is revoked all the same. Call it
 * again to wait longer.
 *
 * If it returns 0, ETIMEDOUT or EINTR, the last fields show how much memory is still pinned.
 * @entries then lists the exports with devices attached, the devices, and the views through which
 * devices use the memory.
 */
#define TMESH_REVOKE_WAIT (1u << 0)

struct tmesh_revoke {
	__u32 size;
	__u32 flags;
	__aligned_u64 entries;
	__u32 entry_bytes;
	__u32 count;		    /* in: room; out: entries written */
	__u32 total;		    /* out: entries there are */
	__u32 pad;		    /* 0 */
	__aligned_u64 timeout_ns;   /* with TMESH_REVOKE_WAIT; else 0 */
	__aligned_u64 pinned_bytes; /* out: in folios that are pinned or mapped for DMA */
	__u32 exports;		    /* out: dma-bufs alive */
	__u32 attachments;	    /* out: devices attached to them */
	__aligned_u64 id;	    /* on the device; else 0 */
};
#define TMESH_REVOKE _IO(TMESH_IOC_MAGIC, 0x0d)

/*
 * TMESH_POLICY (handle): set the effect of a touch of this handle's mappings after its lease has
 * lapsed or the region was revoked. Derived handles do not inherit the policy.
 *
 * TMESH_POLICY_ZERO: the touch finds zeroed memory, private to this handle and charged to the user
 * that touches it. SIGBUS if a limit is reached, and without this flag. A holder with this flag
 * must check the lease's state, or TMESH_INFO, before it relies on data that it has read.
 */
#define TMESH_POLICY_ZERO (1u << 0)

struct tmesh_policy {
	__u32 size;
	__u32 flags; /* in: TMESH_POLICY_*, all of them */
};
#define TMESH_POLICY _IO(TMESH_IOC_MAGIC, 0x0e)

/*
 * TMESH_LEASE (handle): put a lease on this handle, or get a file for the lease that it has.
 *
 * When a lease lapses, its handle's mappings are gone for good. Calls on the handle then give
 * ESTALE, except CAPS, INFO, HOLDERS, POLICY and close(). Derived handles and exports made through
 * it share the lease and end with it. A handle with a lease gives no tokens and no pinning handles
 * (EPERM), so the lease cannot be avoided.
 *
 * A lease lapses when it has not been touched for its period. The kernel looks four times in a
 * period, so a lease lapses after 1 to 1.25 periods and some ticks of the timer. With very many
 * leases (30,000 of 5 s, say) it looks less often, and a lease lapses after 1 to 2 periods.
 *
 * To touch a lease, increment @touched of struct tmesh_lease_touch; this is not a system call. Any
 * process that has the lease file @fd may map it. Its first page (PROT_READ | PROT_WRITE, offset 0)
 * is that structure. Its second page (PROT_READ) is struct tmesh_lease_state. The kernel writes
 * @state before it takes anything away. A reader uses the data, then loads @state with acquire
 * semantics. Unless it is LIVE, the reader must discard the data. poll() on the lease file reports
 * POLLHUP once @state is not LIVE. The file may be closed once it is mapped.
 *
 * @period_ns  in: 0 for 5 s, else 10 ms to 1 h; out: the period
 * @pidfd      in: with TMESH_LEASE_PROCESS: the lease also ends with that process. With @period_ns
 *             0 it ends only with the process, and all answers have period_ns 0. Else must be 0
 * @fd         out: the lease file
 *
 * TMESH_LEASE_GET returns a file for an existing lease: ENODATA if the handle has none. The other
 * fields must be 0. EBUSY if the handle has a lease already. EINVAL on a pinning handle. EOPNOTSUPP
 * if the module cannot take the handle's mappings away: for regions over a memfd, and for imports
 * that were mapped. ESRCH if the process has ended. EDQUOT also if 4,096 leases of the caller's
 * effective uid end with that process already.
 */
#define TMESH_LEASE_PROCESS (1u << 0)
#define TMESH_LEASE_GET (1u << 1)

#define TMESH_LEASE_DEFAULT_NS 5000000000ull
#define TMESH_LEASE_MIN_NS 10000000ull
#define TMESH_LEASE_MAX_NS 3600000000000ull

struct tmesh_lease {
	__u32 size;
	__u32 flags;
	__aligned_u64 period_ns;
	__s32 pidfd;
	__s32 fd; /* out */
};
#define TMESH_LEASE _IO(TMESH_IOC_MAGIC, 0x0f)

struct tmesh_lease_touch {
	__aligned_u64 touched;
};

#define TMESH_LEASE_LIVE 1
#define TMESH_LEASE_LAPSED 2
#define TMESH_LEASE_REVOKED 3

struct tmesh_lease_state {
	__u32 state; /* TMESH_LEASE_* */
	__u32 pad;
	__aligned_u64 period_ns;
};

/*
 * TMESH_CREATE_USER (device): a region over memory of the calling process. The memory stays pinned
 * as long as the region lives. It is charged to the region's limits, and to RLIMIT_MEMLOCK for the
 * process and for its real user.
 *
 * @address, @bytes  in: whole pages
 * @rights           in: READ or READ | WRITE. The memory is pinned for writing, and can be exported
 *                   for writing, only with WRITE. The handle has these rights and MANAGE
 * @reason           out, with EFAULT, EOPNOTSUPP or ENOMEM: TMESH_PIN_*
 * @bad_address      out: the first page that could not be pinned
 *
 * Neither handles nor exports of it can be mapped (EOPNOTSUPP). It cannot be sealed (EOPNOTSUPP),
 * because the process itself can always write. Devices can attach to its exports. It cannot be part
 * of a gather view.
 *
 * @flags: TMESH_CREATE_GID.
 */
#define TMESH_PIN_HOLE 1     /* EFAULT: no readable mapping there */
#define TMESH_PIN_READONLY 2 /* EFAULT: WRITE was asked for and the mapping is read-only */
#define TMESH_PIN_DEVICE 3   /* EOPNOTSUPP: memory of a device, or without struct pages */
#define TMESH_PIN_FILE 4     /* EOPNOTSUPP: pages of a file that cannot be pinned for long */
#define TMESH_PIN_MEMLOCK 5  /* ENOMEM: RLIMIT_MEMLOCK */
#define TMESH_PIN_SECRET 6   /* EOPNOTSUPP: no memory for others, such as memfd_secret() */

struct tmesh_create_user {
	__u32 size;
	__u32 flags;
	__aligned_u64 address;
	__aligned_u64 bytes;
	__u32 rights;
	__u32 mode;
	__u32 gid;
	__u32 hold_ms;
	char label[TMESH_LABEL_MAX + 1];
	__s32 fd;		   /* out */
	__u32 reason;		   /* out */
	__aligned_u64 bad_address; /* out */
	__aligned_u64 id;	   /* out */
};
#define TMESH_CREATE_USER _IO(TMESH_IOC_MAGIC, 0x10)

/*
 * TMESH_IMPORT (device): a region around a foreign dma-buf or a character device's file.
 *
 * A dma-buf of another exporter becomes a region of TMESH_BACKING_DMABUF. An export of it attaches
 * the importer's device to the original and shares its reservation, so that fences pass in both
 * directions. A mapping of the handle is a mapping of the original and must begin at offset 0 (else
 * EOPNOTSUPP), because some exporters ignore the offset. A writable export of a part cannot be
 * mapped (EOPNOTSUPP). The handle has the rights of the descriptor (EACCES if it cannot be read)
 * and MANAGE. The region cannot be sealed (EOPNOTSUPP).
 *
 * A character device's file, such as a CUDA memory export, becomes a region of
 * TMESH_BACKING_OPAQUE. Files of tmesh are refused. The region can be held, handed over, leased and
 * listed, but not mapped, exported or sealed (EOPNOTSUPP). TMESH_OPAQUE gives a holder a descriptor
 * of the file. Its first handle has all rights, whatever the file's mode.
 *
 * The module never looks at the contents. A device gets EIO if the exporter maps less for it than
 * the dma-buf's length.
 *
 * @source     in: the descriptor. EOPNOTSUPP for any other kind of file, ELOOP for an export of
 *             tmesh
 * @bytes      in: for an opaque file its length, for display only; else 0; out: the length
 * @backing    out: TMESH_BACKING_*
 * @rights     out: of the handle
 *
 * An import is charged as a region, not by its bytes, because the exporter owns the memory.
 * @flags: TMESH_CREATE_GID.
 */
struct tmesh_import {
	__u32 size;
	__u32 flags;
	__aligned_u64 bytes;
	__s32 source;
	__u32 mode;
	__u32 gid;
	__u32 hold_ms;
	char label[TMESH_LABEL_MAX + 1];
	__s32 fd;	  /* out */
	__u32 rights;	  /* out */
	__u32 backing;	  /* out */
	__u32 pad;	  /* 0 */
	__aligned_u64 id; /* out */
};
#define TMESH_IMPORT _IO(TMESH_IOC_MAGIC, 0x11)

/*
 * TMESH_OPAQUE (handle, needs WRITE): a new descriptor of the file of an opaque region. A lease or
 * a revocation does not take the descriptor away; it only ends calls on the handle. EOPNOTSUPP on
 * other regions.
 */
struct tmesh_opaque {
	__u32 size;
	__u32 flags; /* 0 */
	__s32 fd;    /* out */
	__u32 pad;   /* 0 */
};
#define TMESH_OPAQUE _IO(TMESH_IOC_MAGIC, 0x12)

/*
 * TMESH_GATHER (device): a view: a region that shows parts of other regions one after the other.
 *
 * @extents  in: array of @count struct tmesh_extent, at most TMESH_GATHER_MAX. Extents are whole
 *           pages inside their regions (EINVAL). A page may come more than once if the view cannot
 *           write (else EINVAL). Regions must be of TMESH_BACKING_PAGES (EOPNOTSUPP), and not views
 *           themselves (ELOOP)
 * @rights   in: READ or READ | WRITE. Every handle must have these rights (EACCES). With WRITE no
 *           region may be sealed (EPERM)
 *
 * The view holds its sources, and TMESH_HOLDERS of a source lists it. A writable view counts as a
 * writer of its sources. A view is revoked when a source is revoked, and when the lease of a handle
 * that it was made through lapses. Its bytes are not charged again, but its list of pages is.
 * During the call the caller is charged for the extents too. The view cannot be sealed or have
 * pinning handles (EOPNOTSUPP). EDQUOT if a source would have more than TMESH_GATHER_VIEWS views.
 * Half of these are for the source's owner. Another user must leave as many of the others free as
 * it has. If n extents repeat pages, mmap() gives ENOMEM once the view has 2 * TMESH_GATHER_MAX /
 * (n + 1) mappings.
 *
 * @flags: TMESH_CREATE_GID.
 */
#define TMESH_GATHER_MAX (1u << 20)
#define TMESH_GATHER_VIEWS 1024

struct tmesh_extent {
	__s32 handle;
	__u32 pad; /* 0 */
	__aligned_u64 offset;
	__aligned_u64 bytes;
};

struct tmesh_gather {
	__u32 size;
	__u32 flags;
	__aligned_u64 extents;
	__u32 count;
	__u32 rights;
	__u32 mode;
	__u32 gid;
	__u32 hold_ms;
	__s32 fd; /* out */
	char label[TMESH_LABEL_MAX + 1];
	__aligned_u64 bytes; /* out: of the view */
	__aligned_u64 id;    /* out */
};
#define TMESH_GATHER _IO(TMESH_IOC_MAGIC, 0x13)

/*
 * TMESH_SIGNAL (handle, needs WRITE), TMESH_WAIT (handle): raise a region's fence, or wait for it.
 * The fence is a number that begins at 0 and only grows. A producer raises it to tell other
 * processes how far it is. The kernel and devices never wait for it; their own fences are in the
 * exports' reservations.
 *
 * The first handle that signals is the producer until it is closed or its lease lapses. Meanwhile
 * other handles get EBUSY. A @value not greater than the last gives EINVAL.
 *
 * TMESH_WAIT returns 0 once the fence has reached @value. ETIMEDOUT after @timeout_ns (0: at once;
 * negative: never). EOWNERDEAD if the fence has not reached it and the producer is gone. EINTR if a
 * signal came. The value reached is written in all these cases.
 */
#define TMESH_FENCE_IDLE 0     /* no signal yet */
#define TMESH_FENCE_PRODUCER 1 /* there is a producer */
#define TMESH_FENCE_DEAD 2     /* its producer is gone */

struct tmesh_signal {
	__u32 size;
	__u32 flags; /* 0 */
	__aligned_u64 value;
};
#define TMESH_SIGNAL _IO(TMESH_IOC_MAGIC, 0x14)

struct tmesh_wait {
	__u32 size;
	__u32 flags;	     /* 0 */
	__aligned_u64 value; /* in: to wait for; out: reached */
	__s64 timeout_ns;
};
#define TMESH_WAIT _IO(TMESH_IOC_MAGIC, 0x15)

/*
 * TMESH_KEEP (device): keep regions together under a name, so that they outlive all processes.
 *
 * A name belongs to the caller's effective uid in the caller's IPC namespace. Other users may have
 * the same name. The name and its regions end together, with the first of these events:
 *
 *   - TMESH_KEPT_DROP
 *   - its lifetime is over
 *   - one of the regions is revoked
 *   - the last process leaves the IPC namespace
 *   - the module is unloaded
 *   - memory is short, and the name has no holders
 *
 * A region is held while it has a handle, mapping, export or view. A mapping of a region over a
 * memfd is the memfd's and does not hold the region. When the machine is short of memory, the
 * kernel ends the unheld name that was used longest ago. TMESH_CREATE does so in a memory control
 * group that is full, among the regions charged to that group. Names with a held region are not
 * ended for memory. Nor are names with pages that a device or the kernel has pinned, or with a
 * memfd that a process has mapped. An open descriptor of a memfd keeps its pages too, but does not
 * prevent the end of the name. If a name ends while a region is held, the holder keeps the region.
 *
 * @name         in: 1 to TMESH_LABEL_MAX bytes, zero-terminated, no control characters
 * @handles      in: array of @count descriptors (__s32) of handles with MANAGE (EACCES). The caller
 *               must own the regions (EPERM), and each region may come once (EINVAL). A region must
 *               be sealed or opaque (EINVAL); the driver's file of an opaque region stays open.
 *               EBUSY if a region is kept under another name
 * @count        in: 1 to TMESH_KEEP_MAX
 * @mode, @gid   in: permission to open the regions by name, as in TMESH_CREATE. The modes of the
 *               regions apply to tokens only
 * @lifetime_ns  in: time after which the name ends; 0: never
 * @id           out: never used again while the module is loaded
 *
 * EEXIST if the name is taken. With TMESH_KEEP_REPLACE the new regions replace the old ones in one
 * step, and a region may be in both sets. The handles stay open.
 *
 * The regions stay charged to their owner and their memory control group. Kept bytes and names have
 * limits of their own and are charged in addition. Opaque regions count as 0 bytes.
 *
 * A name may have files, which the file system "tmesh" shows as UID/NAME/PATH to programs that
 * @mode admits for reading.
 *
 * @files        in: array of @file_count entries, in the order of their paths (EINVAL)
 * @file_count   in: their number, at most TMESH_FILES_MAX (E2BIG). 0: none
 * @file_bytes   in: bytes from one entry to the next. Unknown bytes must be 0 (E2BIG)
 * @paths        in: the paths in the same order, each with a zero behind it
 * @path_bytes   in: length of @paths
 *
 * Paths are ordered byte by byte, with a slash before all other bytes. A path is relative and has 1
 * to TMESH_PATH_MAX bytes. Each component has 1 to 255 bytes, and none is "." or ".." (EINVAL). Two
 * files of one path, and a file that is the folder of another one, give EEXIST.
 *
 * A file has @bytes bytes from @offset on of the region number @region, which must be memory of
 * TMESH_CREATE (EOPNOTSUPP). The offset is a multiple of the size of a page. From the file's end to
 * the end of that page the region has zeros (EINVAL). The name must not begin with a dot or have a
 * slash. @mode has no bits but 0644, else EINVAL; 0004 admits all users to the files alone.
 * Kept bytes include the table of files.
 */
#define TMESH_FILES_MAX 65536
#define TMESH_PATH_MAX 1023

struct tmesh_file {
	__aligned_u64 offset;
	__aligned_u64 bytes;
	__s64 mtime_ns; /* time of the last change, CLOCK_REALTIME */
	__u32 region;
	__u32 path; /* where its path begins in @paths */
};

#define TMESH_KEEP_REPLACE (1u << 0)
#define TMESH_KEEP_GID (1u << 3) /* @gid is given */

#define TMESH_KEEP_MAX 1024

struct tmesh_keep {
	__u32 size;
	__u32 flags;
	char name[TMESH_LABEL_MAX + 1];
	__aligned_u64 handles;
	__aligned_u64 lifetime_ns;
	__u32 count;
	__u32 mode;
	__u32 gid;
	__u32 pad;	  /* 0 */
	__aligned_u64 id; /* out */
	/* From here on: files. */
	__aligned_u64 files;
	__aligned_u64 paths;
	__aligned_u64 path_bytes;
	__u32 file_count;
	__u32 file_bytes;
};
#define TMESH_KEEP _IO(TMESH_IOC_MAGIC, 0x16)

/*
 * TMESH_KEPT_OPEN (device): open handles on the regions of a name, in the order of TMESH_KEEP: on
 * all, or with TMESH_KEPT_PART on some.
 *
 * @uid      in: with TMESH_KEPT_UID: owner of the name, in the caller's user namespace. Else must
 *           be 0, and the name is the caller's own
 * @fds      in: array for the descriptors (__s32)
 * @count    in: its length; out: number of regions. If the array is too short, nothing is opened:
 *           ENOSPC, and @count is written
 * @rights   in: rights of all handles, READ among them. WRITE needs the mode's write bit, and has
 *           an effect only on opaque regions. Only the owner gets MANAGE. Else EACCES
 * @id       out: the id of TMESH_KEEP
 * @first    in: with TMESH_KEPT_PART: number of the first region to open; else must be 0
 * @total    out: number of regions of the name
 *
 * With TMESH_KEPT_PART the call opens up to @count regions from @first on, and @count then is the
 * number of opened ones. It opens fewer at the end of the name, and none behind that.
 */
#define TMESH_KEPT_UID (1u << 1)  /* @uid is given */
#define TMESH_KEPT_PART (1u << 3) /* @first is given */

struct tmesh_kept_open {
	__u32 size;
	__u32 flags;
	char name[TMESH_LABEL_MAX + 1];
	__aligned_u64 fds;
	__u32 count;
	__u32 rights;
	__u32 uid;
	__u32 pad;	  /* 0 */
	__aligned_u64 id; /* out */
	__u32 first;
	__u32 total; /* out */
};
#define TMESH_KEPT_OPEN _IO(TMESH_IOC_MAGIC, 0x17)

/*
 * TMESH_KEPT_LIST (device): the names that the caller may open, in order of id. All names for
 * CAP_SYS_ADMIN in the initial user namespace. The fields are as in struct tmesh_list, the entries
 * are struct tmesh_kept. To find the regions of a name, compare @kept of struct tmesh_info in
 * TMESH_LIST.
 */
struct tmesh_kept {
	__u32 size;
	__u32 count; /* regions */
	__aligned_u64 id;
	char name[TMESH_LABEL_MAX + 1];
	__aligned_u64 bytes;	  /* memory of all regions, in whole pages */
	__aligned_u64 kept_ns;	  /* when it was kept, CLOCK_MONOTONIC */
	__aligned_u64 used_ns;	  /* when it was held last; while it is held: now */
	__aligned_u64 expires_ns; /* 0: never */
	__u32 uid;		  /* as the caller's user namespace sees it */
	__u32 gid;
	__u32 mode;
	__u32 held;		 /* regions of it that are held */
	__u32 handles;		 /* on all of its regions */
	__u32 pinning_handles;	 /* of these */
	__aligned_u64 cgroup_id; /* memory control group of the first region */
};

struct tmesh_kept_list {
	__u32 size;
	__u32 flags; /* 0 */
	__aligned_u64 cursor;
	__aligned_u64 entries;
	__u32 entry_bytes;
	__u32 count;
	__u32 more;
	__u32 pad; /* 0 */
};
#define TMESH_KEPT_LIST _IO(TMESH_IOC_MAGIC, 0x18)

/*
 * TMESH_KEPT_DROP (device): end a name. Its regions without a holder are gone when the call
 * returns. If memory reclaim is looking at them, they are gone when that look ends.
 *
 * @name  in: a name of the caller, or all zero with TMESH_KEPT_ID
 * @id    in: with TMESH_KEPT_ID: id of the name; else 0. EPERM for another user's name, unless the
 *        caller has CAP_SYS_ADMIN. ENOENT for a name that TMESH_KEPT_LIST does not show to the
 *        caller
 */
#define TMESH_KEPT_ID (1u << 0) /* @id is given, and no name */

struct tmesh_kept_drop {
	__u32 size;
	__u32 flags;
	char name[TMESH_LABEL_MAX + 1];
	__aligned_u64 id;
};
#define TMESH_KEPT_DROP _IO(TMESH_IOC_MAGIC, 0x19)

/*
 * TMESH_RENEW (handle, needs WRITE and MANAGE): check whether the region's memory can be reused.
 *
 * The region's tokens die with 0 and with EBUSY; TMESH_TOKEN gives new ones. Another error changes
 * nothing. 0 means that only this handle gives access to the memory: the region has no other
 * handle, lapsed or not, no export and no view. It is not kept, and no device or kernel code has a
 * page of it pinned. A mapping keeps its handle open, and so does a message in flight that carries
 * a descriptor of it. A process that shares this very handle (by dup(), fork() or SCM_RIGHTS) is
 * not distinguished from the caller. Contents, description, fence and id stay.
 *
 * EBUSY if there is another holder, or pages are in use for a moment. EPERM if it is sealed.
 * EOPNOTSUPP unless it is of TMESH_BACKING_PAGES.
 */
struct tmesh_renew {
	__u32 size;
	__u32 flags; /* 0 */
};
#define TMESH_RENEW _IO(TMESH_IOC_MAGIC, 0x1a)

/*
 * TMESH_KEPT_FILES (device): read the files of a name, or describe an open file.
 *
 * @uid         in: with TMESH_KEPT_UID: owner of the name, as in TMESH_KEPT_OPEN, which admits the
 *              same callers
 * @files       in: array for the files, in the order of their paths
 * @file_count  in: its length; out: number of files
 * @file_bytes  in: bytes from one entry to the next
 * @paths       in: room for the paths, each with a zero behind it
 * @path_bytes  in: length of that room; out: length of the paths
 * @id          out: the id of TMESH_KEEP
 *
 * If there is not enough room, nothing is read: ENOSPC, and both lengths and the id are written.
 * ENODATA if the name has no files.
 *
 * With TMESH_KEPT_FD, @fd is an open file of the file system "tmesh". @name and @uid are results
 * then, and @files is room for the one file. The call writes no path. ENODATA if @fd is another
 * file, ENOENT if the name of the file is gone.
 */
#define TMESH_KEPT_FD (1u << 2) /* @fd is given */

struct tmesh_kept_files {
	__u32 size;
	__u32 flags;
	char name[TMESH_LABEL_MAX + 1];
	__aligned_u64 files;
	__aligned_u64 paths;
	__aligned_u64 path_bytes;
	__u32 file_count;
	__u32 file_bytes;
	__u32 uid;
	__s32 fd;	  /* 0 without TMESH_KEPT_FD */
	__aligned_u64 id; /* out */
};
#define TMESH_KEPT_FILES _IO(TMESH_IOC_MAGIC, 0x1b)

/* Type of the file system "tmesh" in statfs(2) */
#define TMESH_FS_MAGIC 0x746d7368

#endif /* _UAPI_LINUX_TMESH_H */
