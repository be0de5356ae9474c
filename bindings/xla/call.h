/* SPDX-License-Identifier: MIT */
/* Declarations that the files of libtmesh-xla share. */
#ifndef TMESH_XLA_CALL_H
#define TMESH_XLA_CALL_H

#include <errno.h>
#include <stdbool.h>

#pragma GCC visibility push(default)
#include <tmesh/tmesh.h>
#include <tmesh/xla.h>
#pragma GCC visibility pop

#include "common/clock.h"
#include "common/error.h"
#include "ffi_abi.h"

/* dtype.c: return libtmesh's dtype for an XLA type, TMESH_DTYPE_INVALID if channels do not carry
 * it; return its name, or "unknown". */
enum tmesh_dtype xla_dtype(int number);
const char *xla_dtype_name(int number);

/* A call's request, checked by frame.c. */
struct request {
	char channel[TMESH_XLA_NAME_MAX + 1];
	int64_t timeout_ns;
	bool seal;
	const uint32_t *sequence; /* NULL: none */
	uint32_t *next;		  /* receives the next number; may be the same place */
	struct ffi_buffer *const *tensors;
	int64_t count;
};

/* Read and check a call's frame, with every tensor's dimensions. Return: 0; -EINVAL, -EOPNOTSUPP (a
 * dtype), -EOVERFLOW. */
int xla_request(const struct ffi_frame *frame, enum tmesh_channel_role role,
		struct request *request, struct tmesh_error *err);

struct bound;

/* bound.c: a call's turn at one end of a channel. One thread has the turn at a time. */
struct turn {
	struct bound *bound;
	unsigned int cancels; /* the member's count when the call began */
	uint64_t deadline;
	/* Valid during the turn. */
	struct tmesh_ctx *ctx;
	struct tmesh_channel *channel;
	struct tmesh_arena *arena; /* for small tensors */
};

/* Return: 0; -ENOENT (nothing is bound to @name), -EBADF (it is bound for the other direction),
 * -ETIMEDOUT, -ECANCELED. */
int xla_turn_begin(struct turn *turn, const char *name, enum tmesh_channel_role role,
		   int64_t timeout_ns, struct tmesh_error *err);
void xla_turn_end(struct turn *turn);

/* Repeat @act, which waits at most @timeout_ns, until it succeeds, the turn's time is over or the
 * call is cancelled. Return: as @act; -ECANCELED, also after a signal. */
int xla_turn_wait(struct turn *turn,
		  int (*act)(struct turn *turn, void *data, int64_t timeout_ns,
			     struct tmesh_error *err),
		  void *data, struct tmesh_error *err);

#endif /* TMESH_XLA_CALL_H */
