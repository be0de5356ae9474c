/* SPDX-License-Identifier: MIT */
/*
 * An io_uring. Its registered buffers are pages pinned for writing, which it writes to later.
 */
#ifndef TMESH_KSELFTEST_RING_H
#define TMESH_KSELFTEST_RING_H

#include <linux/io_uring.h>

#include "t.h"

struct ring {
	int fd;
	unsigned int *sq_tail, *sq_array, *cq_head, *cq_tail;
	unsigned int sq_mask, cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
};

/* Open an empty ring, or skip the test. */
static inline struct ring ring_open(void)
{
	struct io_uring_params p = {0};
	struct ring r = {.fd = syscall(SYS_io_uring_setup, 4, &p)};
	size_t bytes = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	unsigned char *rings;

	if (r.fd < 0)
		t_skip("io_uring_setup: %s", strerror(errno));
	REQUIRE(p.features & IORING_FEAT_SINGLE_MMAP);
	rings = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, IORING_OFF_SQ_RING);
	r.sqes = mmap(NULL, p.sq_entries * sizeof(*r.sqes), PROT_READ | PROT_WRITE, MAP_SHARED,
		      r.fd, IORING_OFF_SQES);
	REQUIRE(rings != MAP_FAILED && (void *)r.sqes != MAP_FAILED);
	r.sq_tail = (unsigned int *)(rings + p.sq_off.tail);
	r.sq_array = (unsigned int *)(rings + p.sq_off.array);
	r.sq_mask = *(unsigned int *)(rings + p.sq_off.ring_mask);
	r.cq_head = (unsigned int *)(rings + p.cq_off.head);
	r.cq_tail = (unsigned int *)(rings + p.cq_off.tail);
	r.cq_mask = *(unsigned int *)(rings + p.cq_off.ring_mask);
	r.cqes = (struct io_uring_cqe *)(rings + p.cq_off.cqes);
	return r;
}

/* Pin memory until ring_unpin(). It may be unmapped meanwhile. */
static inline int ring_pin(struct ring *r, void *at, size_t bytes)
{
	struct iovec io = {at, bytes};

	return syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_BUFFERS, &io, 1);
}

/* Unpin the memory. The kernel drops its references with a delay. */
static inline int ring_unpin(struct ring *r)
{
	return syscall(SYS_io_uring_register, r->fd, IORING_UNREGISTER_BUFFERS, NULL, 0);
}

/* Submit a request, which runs asynchronously. */
static inline void ring_submit(struct ring *r, struct io_uring_sqe sqe)
{
	unsigned int tail = *r->sq_tail;

	r->sqes[tail & r->sq_mask] = sqe;
	r->sq_array[tail & r->sq_mask] = tail & r->sq_mask;
	__atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
	REQUIRE(syscall(SYS_io_uring_enter, r->fd, 1, 0, 0, NULL, 0) == 1);
}

/* Count the completions that were not waited for. */
static inline unsigned int ring_ended(const struct ring *r)
{
	return __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) - *r->cq_head;
}

/* Wait for the oldest completion and return its result. */
static inline int ring_wait(struct ring *r)
{
	unsigned int head = *r->cq_head;
	int res;

	while (!ring_ended(r))
		syscall(SYS_io_uring_enter, r->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
	res = r->cqes[head & r->cq_mask].res;
	__atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
	return res;
}

/* Read from a file into pinned memory, at the address at which it was pinned. */
static inline int ring_read(struct ring *r, int fd, void *at, unsigned int bytes)
{
	ring_submit(r, (struct io_uring_sqe){
			       .opcode = IORING_OP_READ_FIXED,
			       .fd = fd,
			       .addr = (__u64)(unsigned long)at,
			       .len = bytes,
		       });
	return ring_wait(r);
}

#endif
