/* SPDX-License-Identifier: MIT */
/*
 * libtmesh: tensors in memory that processes, languages and devices share.
 *
 * Conventions of the whole library
 *
 *   - Functions return 0 or a negative errno. Where a `struct tmesh_error *` is
 *     taken it may be NULL; on failure it is filled with the same code and with a
 *     sentence that says what was wrong and what to do. On failure, out-parameters
 *     are untouched and nothing has changed.
 *   - Objects are opaque and counted: `_ref` adds a reference and returns its
 *     argument, `_unref` drops one (NULL is fine) and may be called from any thread.
 *   - Option structures begin with their size; NULL means the defaults. Members
 *     added later read as zero for callers compiled earlier.
 *   - Sizes and offsets are in bytes, strides in elements, times in nanoseconds of
 *     CLOCK_MONOTONIC.
 *   - Objects may be used from several threads at once unless a function says
 *     otherwise. The library never writes to stdout or stderr and never exits.
 *
 * Errors that mean the same everywhere
 *
 *   -EINVAL      an argument is out of its range
 *   -EOVERFLOW   sizes, offsets or strides overflow 64 bits
 *   -EACCES      the handle or token has not that right, or no permission on the device
 *   -EPERM       sealed memory, or a handle inherited through fork()
 *   -ENOENT      the token is dead, foreign or guessed
 *   -ESTALE      the region was revoked, or the lease of the handle has lapsed
 *   -EBUSY       a writer prevents the seal; a pinning handle prevents the revocation
 *   -EDQUOT      a limit of tmesh would be passed
 *   -ENOMEM      no memory
 *   -EPROTO      a malformed ref, token or message
 *   -EOPNOTSUPP  this backend or machine cannot do it; tmesh_caps() says why
 *   -ETIMEDOUT   a peer did not answer in time
 *   -EMFILE      no free descriptor
 *
 * After fork() the child may go on reading through mappings it inherited. Its first
 * call on an inherited context gives that context a life of its own; inherited
 * regions give -EPERM for everything but mapping for reading, info and unref; the
 * child never answers for its parent.
 */
#ifndef TMESH_TMESH_H
#define TMESH_TMESH_H

#include <tmesh/arena.h>
#include <tmesh/bundle.h>
#include <tmesh/channel.h>
#include <tmesh/context.h>
#include <tmesh/event.h>
#include <tmesh/fence.h>
#include <tmesh/keep.h>
#include <tmesh/gather.h>
#include <tmesh/import.h>
#include <tmesh/lease.h>
#include <tmesh/region.h>
#include <tmesh/see.h>
#include <tmesh/tensor.h>

#endif /* TMESH_TMESH_H */
