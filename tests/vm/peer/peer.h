/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * /dev/peer: a driver that exports and imports dma-bufs as those of GPUs do, so that what
 * passes through tmesh can be looked at.
 */
#ifndef TMESH_TEST_PEER_H
#define TMESH_TEST_PEER_H

#include <linux/ioctl.h>
#include <linux/types.h>

/*
 * PEER_EXPORT: memory on a card, without struct pages. Its k-th part begins at DMA address
 * (k + 1) << 32 and has k % 5 + 1 pages. Returns the descriptor.
 */
#define PEER_PAGES 64
#define PEER_MOVES (1 << 0)   /* dynamic: importers get a notice before it moves, or pin it */
#define PEER_REFUSES (1 << 1) /* no device attaches: ENXIO */
#define PEER_MAPS_NOT (1 << 2) /* no device maps: ENXIO */
#define PEER_MAPS_HALF (1 << 3) /* devices get the first half of it */
#define PEER_NOT_WHOLE (1 << 4) /* it is no whole pages */
#define PEER_WRITE_ONLY (1 << 5) /* its descriptor cannot read */
#define PEER_EXPORT _IO('P', 1)

/* PEER_MOVE: tells the importers of the dma-buf in the argument that it moves. */
#define PEER_MOVE _IO('P', 2)

/* PEER_IMPORT: attaches and maps, until the file is closed or this is called again. */
#define PEER_TOLD (1 << 0)    /* as a dynamic importer */
#define PEER_WRITES (1 << 1)  /* in both directions, else to the device */
#define PEER_LETS_GO (1 << 2) /* unmaps at a notice */
#define PEER_WAITS (1 << 3)   /* does not map until it is asked to: PEER_MAP */

struct peer_part {
	__u64 address;
	__u64 bytes;
};

struct peer_import {
	__s32 dmabuf;
	__u32 flags;
	__u32 count; /* out: the first PEER_PAGES parts */
	__u32 pad;
	struct peer_part parts[PEER_PAGES];
};
#define PEER_IMPORT _IO('P', 3)

/* PEER_TOLD_TIMES: the number of notices to the importer; PEER_PINS: pins of all exports. */
#define PEER_TOLD_TIMES _IO('P', 4)
#define PEER_PINS _IO('P', 5)

/* PEER_MAP, PEER_UNMAP: the attachment; PEER_MAPPED: is it mapped? */
#define PEER_MAP _IO('P', 6)
#define PEER_UNMAP _IO('P', 7)
#define PEER_MAPPED _IO('P', 8)

/* PEER_LOOK: the first byte of the dma-buf in the argument, by the kernel's own mapping of it. */
#define PEER_LOOK _IO('P', 9)

/*
 * PEER_PLAIN: takes the marks of a mapping without a file off the mapping at the address in the
 * argument, as if the kernel did not look at them. PEER_SPECIAL puts them back. EOPNOTSUPP before 6.7.
 */
#define PEER_PLAIN _IO('P', 10)
#define PEER_SPECIAL _IO('P', 11)

/*
 * PEER_COUNT: takes so many references on the page at the address in the argument that there may be
 * no more; PEER_UNCOUNT drops them.
 */
#define PEER_COUNT _IO('P', 12)
#define PEER_UNCOUNT _IO('P', 13)

/*
 * PEER_HOLD: takes the reservation of the dma-buf in the argument and returns when PEER_LET is called
 * on the same file, or the caller is killed. PEER_HELD: is it taken?
 */
#define PEER_HOLD _IO('P', 14)
#define PEER_LET _IO('P', 15)
#define PEER_HELD _IO('P', 16)

/*
 * PEER_TAKE_NAME: registers a file system "tmesh", so that no other can have the name. PEER_GIVE_NAME
 * gives the name up.
 */
#define PEER_TAKE_NAME _IO('P', 17)
#define PEER_GIVE_NAME _IO('P', 18)

/*
 * PEER_REFUSE_DEVICE: to register a misc device "tmesh" takes a while and gives ENOMEM, until
 * PEER_ALLOW_DEVICE. A mount that is refused meanwhile drops the file system "tmesh" later.
 * PEER_ALLOW_DEVICE returns how often. EOPNOTSUPP without kprobes.
 */
#define PEER_REFUSE_DEVICE _IO('P', 19)
#define PEER_ALLOW_DEVICE _IO('P', 20)

/*
 * PEER_LOCK: locks the page at the address in the argument until PEER_UNLOCK or the close of the file.
 * A page fault that leaves its mapping to the kernel does that too. One page of each file.
 */
#define PEER_LOCK _IO('P', 21)
#define PEER_UNLOCK _IO('P', 22)

/* mmap() of the file shows what was attached, by its exporter's means. */

#endif
