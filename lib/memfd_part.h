/* SPDX-License-Identifier: MIT */
/* The parts of a context and a region (internal.h) that the memfd backend uses. */
#ifndef TMESH_MEMFD_PART_H
#define TMESH_MEMFD_PART_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct tmesh_memfd_ctx {
	atomic_uint_fast64_t memory; /* bytes this machine has, 0 until needed */

	/* Guarded by the context's lock */
	int dir; /* the runtime directory, -1 until needed */
	uint64_t dir_dev, dir_ino;
	atomic_int proc; /* /proc/self/fd of this process, -1 until needed */
	struct tmesh_server *server;
	struct tmesh_peer *peers;

	struct tmesh_region *opaque; /* its regions that stand for a descriptor */
};

struct tmesh_memfd_region {
	uint64_t dev;	 /* the file's */
	uint64_t ino;	 /* 0: module */
	bool reopens;	 /* the context's user may open its file anew for writing */
	int device;	 /* opaque: the descriptor it stands for, or -1 */
	int revoke_pipe; /* opaque: one end of the pipe, or -1 */
	bool revoke_pipe_made;
	struct tmesh_region *opaque_next; /* in the context's list; under ctx->lock */
	atomic_bool taken_back;		  /* by its maker: taken back */
	bool align_huge;		  /* its length is a multiple of 2 MiB, for huge pages */
	bool collapses;			  /* huge pages are made by MADV_COLLAPSE alone */
	atomic_bool huge_no_more;	  /* huge pages could not be had */
	atomic_bool prepared;		  /* by tmesh_memfd_prepare() */
	_Atomic uint64_t huge;		  /* bytes for which it took huge pages */
	_Atomic uint64_t *huge_map;	  /* align_huge: a bit for each 2 MiB of them */
	_Atomic uint64_t taken;		  /* bytes from the first that have their pages */
	void *guard;			  /* keeps others from file leases, or NULL: memfd_fd.c */
	atomic_bool reads_only;		  /* fd cannot write, whatever the rights: memfd_fd.c */
	bool fd_stays;			  /* never make it so */
	struct {
		bool given;
		uint8_t secret[TMESH_SECRET_BYTES];
	} tokens[4]; /* one per set of rights; under ctx->lock */
};

#endif /* TMESH_MEMFD_PART_H */
