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
 *   handle   one holder's right to one region, returned as a file descriptor by the
 *            calls that make regions (TMESH_CREATE, TMESH_CREATE_MEMFD, TMESH_CREATE_USER,
 *            TMESH_IMPORT, TMESH_GATHER), TMESH_OPEN and TMESH_DERIVE
 *
 * Extension rules
 *
 *   - Every structure begins with its own size in bytes as the caller knows it,
 *     then with a word of flags.
 *   - A structure shorter than the first published one gives EINVAL; a longer one
 *     is accepted when all bytes the kernel does not know are zero, else E2BIG.
 *     A shorter-than-current one is read as if padded with zeros, and only as many
 *     bytes as the caller named are written back.
 *   - Unknown flags and unknown rights give EOPNOTSUPP. Padding and fields named
 *     "out" must be zero on the way in where they say so, else EINVAL.
 *   - Structures only grow at the end; a new meaning gets a new number.
 *   - All times are CLOCK_MONOTONIC nanoseconds, as the caller's time namespace has
 *     them. All descriptors are made with O_CLOEXEC. Pointers are carried in __aligned_u64.
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
 *   EDQUOT      one of tmesh's limits would be passed: bytes, regions, handles, pins, kept
 *               bytes or kept names of this user, of this IPC namespace, or of all users
 *               together. TMESH_CAPS shows limits and use; root raises the limits in
 *               /proc/sys/dev/tmesh/. Nothing was allocated.
 *   ENOMEM      the system, or the caller's memory control group, has no memory
 *   ENOENT      a token that is dead, foreign or guessed, an unknown id, or a name that is not
 *               kept or not for the caller: the answers are the same on purpose
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

#define TMESH_LABEL_MAX 63	 /* bytes, without the terminating zero */
#define TMESH_DESC_MAX 4096	 /* bytes of a region's description */
#define TMESH_TOKEN_BYTES 16	 /* a token's random bits */
#define TMESH_LINGER_MAX_MS 1000 /* longest linger that may be asked for */
#define TMESH_COMM_LEN 16

/*
 * Rights of a handle or a token. They only ever shrink: a handle derived from
 * another, or a token asked of one, has a subset of its rights. READ is always
 * part of the set, and asking for a set without it gives EINVAL.
 *
 * A handle is mapped with mmap(MAP_SHARED), executable mappings, those of exports too, give EPERM,
 * and making one executable EACCES. A mapping through a
 * handle without WRITE never becomes writable (EACCES). Once the region is sealed writable mappings
 * give EPERM, and making an older mapping writable gives EACCES. A mapping counts as a writer from
 * when it first may write until it is unmapped, even where mprotect() took that away again:
 * mmap(MAP_FIXED) of the same place without PROT_WRITE turns it into a reader.
 *
 * A sealed region is mapped with mmap(MAP_PRIVATE) too, PROT_WRITE whatever the handle's rights
 * are: a page that is written to is copied first, and the copy is the process's own, charged to
 * it like any memory of it. What was written stays when the region is revoked or the lease
 * lapses; other pages go as in any mapping. Before the seal, and for exports, EINVAL.
 *
 * poll() of a handle says
 *   POLLHUP            the region was revoked
 *   POLLHUP | POLLERR  this handle's lease has lapsed
 *   POLLOUT            nobody else holds the region: no other handle, export or view whose
 *                      lease has not lapsed, no device is attached to it, it is not kept
 *   POLLPRI            a page of it has an uncorrectable memory error
 */
#define TMESH_RIGHT_READ (1u << 0)   /* map, export read-only */
#define TMESH_RIGHT_WRITE (1u << 1)  /* map writable, export writable, until sealed */
#define TMESH_RIGHT_MANAGE (1u << 2) /* seal, describe, revoke */

/* Where a region's memory comes from. */
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
 * A region is POISONED once somebody came upon a page of it that the kernel has marked as bad: by a
 * touch, by a device that maps an export, or by TMESH_INFO_PINS, which looks at every page. To
 * touch such a page raises SIGBUS with BUS_MCEERR_AR and its address; calls that the kernel makes
 * with it give EFAULT, or EHWPOISON as an importer's mapping of an export does. Pages beside it
 * stay good. By the time that the state is set each mapping of the page has been taken away, and
 * pages beside it are mapped anew when they are touched. What a device has mapped it keeps.
 */

#define TMESH_IOC_MAGIC 0xE7

/*
 * TMESH_CAPS (device, handle): what this module can do, limits and use.
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
#define TMESH_FEATURE_PRIVATE (1ull << 12) /* mmap(MAP_PRIVATE) of what is sealed */
#define TMESH_FEATURE_RENEW (1ull << 13)   /* TMESH_RENEW */

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
};
#define TMESH_CAPS _IO(TMESH_IOC_MAGIC, 0x00)

/*
 * TMESH_CREATE (device): a new region of zeroed pages and its first handle.
 *
 * @bytes      in: length wanted, at least 1; the memory is rounded up to whole
 *             pages (to 2 MiB with TMESH_CREATE_HUGE), the length is kept as asked
 * @node       in: NUMA node, used only with TMESH_CREATE_NODE (else must be 0)
 * @mode       in: who may redeem a token of this region, as permission bits:
 *             0400 0200 for the owner, 0040 0020 for @gid; others are EINVAL;
 *             0 means 0600
 * @gid        in: group of the region in the caller's user namespace, used only
 *             with TMESH_CREATE_GID (else must be 0, and the group is the
 *             caller's); EPERM when the caller is not in it
 * @linger_ms  in: after the last handle and export are gone keep the region this
 *             long, so that a token already sent (if one was ever asked for) can still
 *             be redeemed; at most TMESH_LINGER_MAX_MS; stays charged, and ends at once
 *             when the user's last open /dev/tmesh goes
 * @label      in: a name for people, zero-terminated, no control characters
 * @fd         out: the handle, with all rights
 * @id         out: never used again while the module is loaded, not a secret
 *
 * Memory is committed here: EDQUOT or ENOMEM come now, never a SIGBUS later.
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
	__u32 linger_ms;
	char label[TMESH_LABEL_MAX + 1];
	__s32 fd;	  /* out */
	__u32 pad;	  /* 0 */
	__aligned_u64 id; /* out */
};
#define TMESH_CREATE _IO(TMESH_IOC_MAGIC, 0x01)

/*
 * TMESH_CREATE_MEMFD (device): a region over the pages of a memfd.
 *
 * @memfd must be sealed against shrinking (F_SEAL_SHRINK), else EINVAL: pages that
 * can go away under a reader are no region. @bytes may be 0 for the whole file, and
 * may not pass its end. The handle can write only when the descriptor can and the
 * memfd is not sealed against writing (F_SEAL_WRITE, F_SEAL_FUTURE_WRITE); once its holder has
 * sealed it so there are no new writable mappings and exports (EPERM). The pages are pinned and
 * charged to the region's limits. Anyone who holds the memfd itself still has it: read-only handles
 * and revocation bind the handles of the region, not the holders of the memfd; a
 * sealed region is one whose memfd is sealed too (TMESH_SEAL adds F_SEAL_WRITE and
 * gives EBUSY where that fails, and while another region of the memfd could write; fcntl()
 * itself cannot while the region lives).
 * Mappings of the handle are mappings of the memfd: they outlive the region, are not
 * counted for TMESH_HOLDERS, and keep for good the protection they were made with.
 * EOPNOTSUPP for a memfd of huge pages (MFD_HUGETLB), EACCES for a descriptor that
 * cannot read, EDQUOT for more than 1,024 regions of one memfd.
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
	__u32 linger_ms;
	char label[TMESH_LABEL_MAX + 1];
	__s32 fd;	  /* out */
	__u32 rights;	  /* out: TMESH_RIGHT_* of the handle */
	__aligned_u64 id; /* out */
};
#define TMESH_CREATE_MEMFD _IO(TMESH_IOC_MAGIC, 0x02)

/*
 * TMESH_OPEN (device): redeem a token for a handle of one's own.
 *
 * The caller must be in the IPC namespace the region was created in and be
 * admitted by its owner, group and mode; otherwise ENOENT, as for a token that
 * never was. Rights beyond those of the token or of the mode give EACCES; MANAGE is
 * the owner's alone, whatever the token says.
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
 * TMESH_DERIVE (handle): another handle on the same region with the same or fewer
 * rights. A handle passed over a socket as it is remains the same handle with the
 * same rights: derive first, then send.
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
 * Asking again gives the same token. It dies with the region, or by TMESH_RENEW. Rights must be a
 * subset of the handle's (EACCES). A handle with a lease gives none (EPERM).
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
 * TMESH_INFO: what a region is.
 *
 * On a handle, @id must be 0 and means the handle's region. On the device, @id
 * names a region, of which one learns only what TMESH_LIST would show: ENOENT
 * unless one may open it, or has CAP_SYS_ADMIN.
 *
 * With TMESH_INFO_PINS @pinned_bytes is counted, which looks at every page, also whether it is
 * bad; else it is known only for a revoked region, and 0.
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
	__u32 linger_ms;
	char label[TMESH_LABEL_MAX + 1];
	__aligned_u64 lease_ns;	     /* of this handle; 0: none */
	__aligned_u64 lease_left_ns; /* it lapses no earlier than this without a touch */
	__aligned_u64 fence_value;   /* what the producer has signalled last */
	__aligned_u64 pinned_bytes;  /* in folios that devices or the kernel have pinned */
	__aligned_u64 cgroup_id;     /* whose memory control group is charged; 0: unknown */
	__u32 policy;		     /* of this handle: TMESH_POLICY_* */
	__u32 gathers;		     /* views that show parts of it */
	__u32 fence_state;	     /* TMESH_FENCE_* */
	__u32 pad;
	__aligned_u64 kept;  /* id of what keeps it, see TMESH_KEEP; 0: nothing does */
	__aligned_u64 opens; /* how often one of its tokens was redeemed */
};
#define TMESH_INFO _IO(TMESH_IOC_MAGIC, 0x06)

/*
 * TMESH_LIST (device): regions one may open, in order of id, or all of this module
 * for CAP_SYS_ADMIN (in the initial user namespace).
 *
 * @cursor       in: list regions with an id greater than this; out: the last id
 *               written
 * @entries      in: array of struct tmesh_info, each written to @entry_bytes
 * @entry_bytes  in: stride of the array, at least the first published size, a multiple
 *               of 8 (else EINVAL), at most 4096 (else E2BIG); not looked at when @count
 *               is 0
 * @count        in: room; out: entries written
 * @more         out: 1 when there may be regions after @cursor
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
 * TMESH_HOLDERS: who holds a region. For its owner and CAP_SYS_ADMIN, else EPERM;
 * on the device, ENOENT for a region one could not list.
 *
 * @id as for TMESH_INFO; the array as for TMESH_LIST.  @count returns how many
 * were written, @total how many there are.
 */
#define TMESH_HOLDER_HANDLE 1
#define TMESH_HOLDER_PINNING 2
#define TMESH_HOLDER_EXPORT 3
#define TMESH_HOLDER_GATHER 4 /* a gather view, @view */
#define TMESH_HOLDER_DEVICE 5 /* a device attached to the export that stands before it */

#define TMESH_HOLDER_FLAG_LAPSED (1u << 0)   /* its lease has lapsed */
#define TMESH_HOLDER_FLAG_PRODUCER (1u << 1) /* it signals the region's fence */

#define TMESH_DEVICE_LEN 32

struct tmesh_holder {
	__u32 size;
	__u32 kind; /* TMESH_HOLDER_* */
	__u32 pid;  /* who opened it, in the caller's PID namespace; 0 outside it */
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
 * TMESH_SEAL (handle, needs MANAGE): nobody writes any more, neither CPU nor device.
 *
 * EBUSY while anything could still write: a writable mapping of any handle or
 * export, a writable export, a device attached for writing, or a page that a
 * driver may have pinned for I/O; over a memfd, any page of the file, and where the
 * file has other pages than the region (a hole was punched). Nothing is changed then.
 * The description is frozen too. Sealing a sealed region succeeds.
 */
struct tmesh_seal {
	__u32 size;
	__u32 flags; /* 0 */
};
#define TMESH_SEAL _IO(TMESH_IOC_MAGIC, 0x09)

/*
 * TMESH_EXPORT (handle): the region, or a slice of it, as a dma-buf.
 *
 * @offset, @bytes are whole pages; @bytes 0 means to the end. Without
 * TMESH_EXPORT_WRITE the dma-buf refuses every writable mapping, of CPUs and of
 * devices; with it the handle needs WRITE (EACCES) and the region must not be sealed
 * (EPERM). The dma-buf holds the region, not the handle.
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
 * TMESH_DESC_SET (handle, needs MANAGE), TMESH_DESC_GET (handle; device with @id):
 * an opaque text about the contents that the library writes and that tools show.
 * Whoever prints it escapes it; no access is ever decided by it. EPERM once sealed.
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
 * TMESH_REVOKE (handle, needs MANAGE): take the region back from everybody.
 *
 * All mappings of all handles and exports are removed (what a later touch does is each
 * handle's policy), importers that can be told are told, gather views of it are revoked with
 * it, every later call on the region but CAPS, INFO, HOLDERS, POLICY, REVOKE with
 * TMESH_REVOKE_WAIT and closing gives ESTALE, and its tokens die. Memory that a device or the
 * kernel has pinned stays theirs until they let go, page by page; until then it is charged and
 * shown. Regions over a memfd cannot be revoked, nor can imports that were mapped (EOPNOTSUPP):
 * those mappings belong to other files.
 *
 * EBUSY while a pinning handle exists, which nothing overrides; @entries then names
 * the pinning holders (array as for TMESH_HOLDERS), and nothing has changed.
 *
 * The call waits for what importers had queued, up to a second in all and until a
 * signal; the region is revoked all the same.
 *
 * With TMESH_REVOKE_WAIT it waits until the memory is really free, at most @timeout_ns:
 * ETIMEDOUT when something still pins it, EINTR when a signal came, and the region is revoked
 * all the same. The call may be made again to wait on.
 *
 * Whenever it returns 0, ETIMEDOUT or EINTR, the last fields say what still pins memory,
 * and @entries names the exports with devices attached, the devices, and the views by way of
 * which devices have it.
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
};
#define TMESH_REVOKE _IO(TMESH_IOC_MAGIC, 0x0d)

/*
 * TMESH_POLICY (handle): what a touch of this handle's mappings does once its lease has lapsed
 * or the region was revoked. A handle derived from it begins without.
 *
 * TMESH_POLICY_ZERO: memory of zeros, private to this handle, charged to the user who touches
 * it; where a limit is reached, and without this flag, SIGBUS. The holder looks at the lease's
 * state, or at TMESH_INFO, before it believes what it read.
 */
#define TMESH_POLICY_ZERO (1u << 0)

struct tmesh_policy {
	__u32 size;
	__u32 flags; /* in: TMESH_POLICY_*, all of them */
};
#define TMESH_POLICY _IO(TMESH_IOC_MAGIC, 0x0e)

/*
 * TMESH_LEASE (handle): put a lease on this handle, or get hold of the one it has.
 *
 * Once a lease has lapsed its handle's mappings are gone for good, calls on it give ESTALE
 * (but CAPS, INFO, HOLDERS, POLICY and closing), and what was made through it, derived handles and
 * exports, ends with it, because they share the lease. It cannot be shed: a handle that has one
 * gives no tokens and no pinning handles (EPERM). A lease lapses when nobody has touched it for
 * its period; the kernel looks every quarter of that, so it lapses after 1 to 1.25 periods and
 * some ticks of its timer. Where it has very many to look at (30,000 of 5 s, say), it looks less
 * often, and a lease lapses after 1 to 2 periods.
 *
 * A touch is an increment of @touched of struct tmesh_lease_touch, no system call. The lease file
 * @fd is mapped by anybody who was given it: its first page (PROT_READ | PROT_WRITE, offset 0)
 * is that structure, its second (PROT_READ) struct tmesh_lease_state, which says that the
 * lease has lapsed, or the region was revoked, before anything is taken away. A reader uses
 * the data, then loads @state with acquire semantics: unless it is LIVE, what was read is to be
 * thrown away. poll() on the lease file says POLLHUP once it is not LIVE. The file may be closed
 * when it is mapped.
 *
 * @period_ns  in: 0 for 5 s, else 10 ms to 1 h; out: what it is
 * @pidfd      in: with TMESH_LEASE_PROCESS; the lease ends with that process too, and with
 *             @period_ns 0 only then (period_ns is then 0 in all answers); else must be 0
 * @fd         out: the lease file
 *
 * With TMESH_LEASE_GET nothing is made: ENODATA when the handle has no lease; other fields are 0.
 * EBUSY when the handle has one already. EINVAL on a pinning handle. EOPNOTSUPP where the
 * handle's mappings are not the module's to take away: regions over a memfd, imports that
 * were mapped. ESRCH when the process has ended.
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
 * TMESH_CREATE_USER (device): a region over memory of the caller's, which stays pinned as long
 * as the region lives, charged to the region's limits and to RLIMIT_MEMLOCK of the process.
 *
 * @address, @bytes  in: whole pages
 * @rights           in: READ or READ | WRITE; only memory pinned for writing is exported so.
 *                   The handle has them and MANAGE
 * @reason           out, with EFAULT, EOPNOTSUPP or ENOMEM: TMESH_PIN_*; why
 * @bad_address      out: and from which page on
 *
 * Neither handles nor exports of it can be mapped (EOPNOTSUPP), and it cannot be sealed
 * (EOPNOTSUPP), since the process itself can always write. Devices attach to exports as to
 * those of any region; there are no gather views of it.
 *
 * @flags: TMESH_CREATE_GID.
 */
#define TMESH_PIN_HOLE 1     /* EFAULT: nothing is mapped there that could be read */
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
	__u32 linger_ms;
	char label[TMESH_LABEL_MAX + 1];
	__s32 fd;		   /* out */
	__u32 reason;		   /* out */
	__aligned_u64 bad_address; /* out */
	__aligned_u64 id;	   /* out */
};
#define TMESH_CREATE_USER _IO(TMESH_IOC_MAGIC, 0x10)

/*
 * TMESH_IMPORT (device): a region around what somebody else made.
 *
 * A dma-buf of another exporter becomes a region of TMESH_BACKING_DMABUF: exports of it attach
 * the importer's own device to the original and share its reservation, so that fences pass
 * through in both directions; a mapping of the handle is one of the original, from offset 0 on
 * only (EOPNOTSUPP else: not every exporter heeds offsets); a writable export of a part is not
 * mapped at all (EOPNOTSUPP). Rights are those of the descriptor (EACCES when it cannot be read),
 * and MANAGE. It cannot be sealed (EOPNOTSUPP).
 *
 * A character device's file other than one of tmesh, such as a CUDA memory export, becomes one
 * of TMESH_BACKING_OPAQUE: it is held, handed over, leased and listed; it is mapped, exported
 * and sealed by nobody (EOPNOTSUPP), and TMESH_OPAQUE gives the descriptor back to a holder. Its
 * first handle has all rights, whatever the file's mode.
 *
 * The module looks at no byte of either. EIO when an exporter maps less for a device than the
 * dma-buf's length.
 *
 * @source     in: the descriptor; EOPNOTSUPP for any other kind of file, ELOOP for an export of
 *             tmesh's own
 * @bytes      in: of an opaque one, its length as its owner knows it, for display; else 0;
 *             out: the length
 * @backing    out: TMESH_BACKING_*
 * @rights     out: of the handle
 *
 * Imports are charged as regions, not by their bytes: the memory is its exporter's.
 * @flags: TMESH_CREATE_GID.
 */
struct tmesh_import {
	__u32 size;
	__u32 flags;
	__aligned_u64 bytes;
	__s32 source;
	__u32 mode;
	__u32 gid;
	__u32 linger_ms;
	char label[TMESH_LABEL_MAX + 1];
	__s32 fd;	  /* out */
	__u32 rights;	  /* out */
	__u32 backing;	  /* out */
	__u32 pad;	  /* 0 */
	__aligned_u64 id; /* out */
};
#define TMESH_IMPORT _IO(TMESH_IOC_MAGIC, 0x11)

/*
 * TMESH_OPAQUE (handle, needs WRITE): a descriptor of the file that an opaque region stands
 * for. Who has it has it for good: a lease or a revocation ends only what is asked of the handle.
 * EOPNOTSUPP on other regions.
 */
struct tmesh_opaque {
	__u32 size;
	__u32 flags; /* 0 */
	__s32 fd;    /* out */
	__u32 pad;   /* 0 */
};
#define TMESH_OPAQUE _IO(TMESH_IOC_MAGIC, 0x12)

/*
 * TMESH_GATHER (device): parts of regions, one behind the other, as a region of its own.
 *
 * @extents  in: array of @count struct tmesh_extent, at most TMESH_GATHER_MAX; whole pages
 *           (EINVAL), inside their regions (EINVAL); the same pages may come more than once
 *           as long as the view cannot write (EINVAL else). Regions must be of
 *           TMESH_BACKING_PAGES (EOPNOTSUPP), and no views themselves (ELOOP)
 * @rights   in: READ, or READ | WRITE, of which every handle must have all (EACCES) and every
 *           region allow it (EPERM when sealed)
 *
 * The view holds its sources, which show it as a holder; a writable one counts as a writer when
 * they are sealed; it goes when one of them is revoked, and when the lease of one of the handles
 * lapses through which it was made. It is not charged again by its bytes. It cannot be sealed or
 * held by pinning handles (EOPNOTSUPP). EDQUOT when one source would have more than
 * TMESH_GATHER_VIEWS views.
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
	__u32 linger_ms;
	__s32 fd; /* out */
	char label[TMESH_LABEL_MAX + 1];
	__aligned_u64 bytes; /* out: of the view */
	__aligned_u64 id;    /* out */
};
#define TMESH_GATHER _IO(TMESH_IOC_MAGIC, 0x13)

/*
 * TMESH_SIGNAL (handle, needs WRITE), TMESH_WAIT (handle): a region's fence, a number that
 * only grows, from 0. It tells other processes how far a producer is; it never holds up the
 * kernel or a device, whose own fences go through the exports' reservations.
 *
 * The first handle that signals is the producer until it is closed or lapses: EBUSY for others
 * meanwhile. A @value not greater than the last gives EINVAL.
 *
 * TMESH_WAIT returns once the fence has reached @value; ETIMEDOUT after @timeout_ns (0: at once;
 * negative: none); EOWNERDEAD when it has not been reached and the producer is gone; EINTR when
 * a signal came. The value reached is written in all these cases.
 */
#define TMESH_FENCE_IDLE 0     /* nobody has signalled yet */
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
 * TMESH_KEEP (device): let regions outlive every process, together, under a name.
 *
 * A name belongs to the caller's effective uid in the caller's IPC namespace; names of other
 * users do not get in its way. What it keeps stays until TMESH_KEPT_DROP, until its time is
 * over, until one of the regions is revoked, until the last process has left the IPC namespace,
 * until the module is unloaded, or until the machine needs memory: of what nobody holds, the
 * kernel takes back what was used longest ago, a name and all of its regions together. So does
 * TMESH_CREATE in a memory control group that is full, of what that group is charged for. A
 * region is held while there is a handle, mapping, export or view of it; what is held, or has
 * pages that a device or the kernel has pinned, is not taken back for memory. Where the name
 * goes while somebody holds a region, that holder has it as before.
 *
 * @name         in: 1 to TMESH_LABEL_MAX bytes, zero-terminated, no control characters
 * @handles      in: array of @count descriptors (__s32) of handles with MANAGE (EACCES) on
 *               regions of the caller's own (EPERM), each region once (EINVAL). A region must
 *               be sealed (EINVAL), or opaque, whose driver's file then stays open. EBUSY where
 *               a region is kept under another name
 * @count        in: 1 to TMESH_KEEP_MAX
 * @mode, @gid   in: who may open it by name, as in TMESH_CREATE. The regions' own modes, which
 *               tokens ask, do not matter
 * @lifetime_ns  in: drop it when this time is over; 0: never
 * @id           out: never used again while the module is loaded
 *
 * EEXIST when the name is taken; with TMESH_KEEP_REPLACE the old regions leave and the new ones
 * take their place in one step, and regions may be in both. The handles stay as they are.
 *
 * The regions stay charged to their owner and to the memory control group that they are charged to;
 * bytes and names count again against limits of their own, those of opaque regions as none.
 */
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
};
#define TMESH_KEEP _IO(TMESH_IOC_MAGIC, 0x16)

/*
 * TMESH_KEPT_OPEN (device): handles on all regions that are kept under a name, in the order in
 * which they were given to TMESH_KEEP.
 *
 * @uid      in: whose name, as the caller's user namespace sees it, with TMESH_KEPT_UID; else 0,
 *           and the caller's own is meant
 * @fds      in: where the descriptors (__s32) go
 * @count    in: room there; out: how many there are. ENOSPC, with @count written, where the room
 *           is too small, and nothing is opened
 * @rights   in: of all handles; READ is part of them. WRITE, which only an opaque region heeds,
 *           needs the mode's write bit, MANAGE is the owner's alone; EACCES else
 * @id       out: as TMESH_KEEP gave it
 */
#define TMESH_KEPT_UID (1u << 1) /* @uid is given */

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
};
#define TMESH_KEPT_OPEN _IO(TMESH_IOC_MAGIC, 0x17)

/*
 * TMESH_KEPT_LIST (device): names that one may open, in order of id, or all of this module for
 * CAP_SYS_ADMIN (in the initial user namespace). Fields as in struct tmesh_list; the entries
 * are struct tmesh_kept. Which regions they are TMESH_LIST tells: @kept of struct tmesh_info.
 */
struct tmesh_kept {
	__u32 size;
	__u32 count; /* regions */
	__aligned_u64 id;
	char name[TMESH_LABEL_MAX + 1];
	__aligned_u64 bytes;	  /* memory of all regions, in whole pages */
	__aligned_u64 kept_ns;	  /* when it was kept, CLOCK_MONOTONIC */
	__aligned_u64 used_ns;	  /* when it was held last; while somebody does: now */
	__aligned_u64 expires_ns; /* 0: never */
	__u32 uid;		  /* as the caller's user namespace sees it */
	__u32 gid;
	__u32 mode;
	__u32 held;		 /* regions of it that somebody holds */
	__u32 handles;		 /* on all of its regions */
	__u32 pinning_handles;	 /* of these */
	__aligned_u64 cgroup_id; /* whose memory control group the first region is charged to */
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
 * TMESH_KEPT_DROP (device): give a name up. Regions of it that nobody holds are gone when the
 * call returns.
 *
 * @name  in: of the caller's own, or all zero with TMESH_KEPT_ID
 * @id    in: what is meant, with TMESH_KEPT_ID; else 0. EPERM when it is another user's, unless the
 *        caller has CAP_SYS_ADMIN; ENOENT when the caller would not see it in TMESH_KEPT_LIST
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
 * TMESH_RENEW (handle, needs WRITE and MANAGE): may its memory be used for something else?
 *
 * The region's tokens die, whatever the answer; TMESH_TOKEN gives new ones. 0 says that nobody
 * else has any of the memory, nor can get it but by what is given out from now on: there is no
 * other handle, lapsed or not, no export and no view of the region, it is not kept, and no device
 * and no kernel has a page of it pinned. Mappings and descriptors in messages under way are
 * handles that are there. Who shares this very handle (by dup(), fork(), or because it was sent as
 * it is) is not told apart from the caller. Contents, description, fence and id stay.
 *
 * EBUSY when somebody has it, or pages are in use for a moment; EPERM when it is sealed;
 * EOPNOTSUPP unless it is of TMESH_BACKING_PAGES.
 */
struct tmesh_renew {
	__u32 size;
	__u32 flags; /* 0 */
};
#define TMESH_RENEW _IO(TMESH_IOC_MAGIC, 0x1a)

#endif /* _UAPI_LINUX_TMESH_H */
