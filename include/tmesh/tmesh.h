/* SPDX-License-Identifier: MIT */
/*
 * libtmesh: tensors in memory that processes, languages and devices share.
 * Maturity: stable.
 *
 * Conventions of the whole library
 *
 *   - Functions return 0 or a negative errno. A `struct tmesh_error *` may be NULL. On failure it
 *     is filled with the same code and with a sentence that names the fault and the remedy. On
 *     failure, out-parameters are untouched. A call that makes or opens an object has then changed
 *     nothing; each other call documents its possible effects.
 *   - A pointer may be NULL where its call allows it. Other calls refuse NULL with -EINVAL, and the
 *     message names the parameter. This holds for calls that return an error, of the headers below,
 *     tmesh/model.h and tmesh/slot.h. _unref, _free and _close take NULL everywhere.
 *
 *   - Objects are opaque and counted: `_ref` adds a reference and returns its
 *     argument, `_unref` drops one (NULL is fine) and may be called from any thread.
 *   - Option structures begin with their size; NULL means the defaults. Members
 *     added later read as zero for callers compiled earlier. Structures that are filled in begin
 *     with theirs too. Elements of arrays that the library gives have their caller's size, which
 *     inline functions pass to a function `_sized`.
 *
 *   - Other structures never change; a later version adds a structure beside one. They are plain
 *     values (tmesh_error, tmesh_layout, tmesh_ref, tmesh_message) or elements of callers' arrays:
 *
 *     tmesh_bundle_entry, tmesh_gather_extent, tmesh_kept_file, tmesh_model_item,
 *     tmesh_devices_library, tmesh_engine_weight, tmesh_engine_value, tmesh_page_victim,
 *     tmesh_placement_place, tmesh_placement_link.
 *
 *   - Sizes and offsets are in bytes, strides in elements, times in nanoseconds of
 *     CLOCK_MONOTONIC. A timeout is int64_t; negative: no limit. As a parameter, 0: do not
 *     wait. In options, 0: the default that is named there.
 *
 *   - Objects may be used from several threads at once unless a function says
 *     otherwise. The library never writes to stdout and never exits. It writes to stderr when the
 *     process ends and memory that it holds for others is lost (tmesh/hold.h). In a context without
 *     `log` it also does so when a closed channel had messages that no process received.
 *
 * Errors that mean the same everywhere
 *
 *   -EINVAL      an argument is out of its range
 *   -EOVERFLOW   sizes, offsets or strides overflow 64 bits
 *   -EACCES      the handle or token does not have that right, or no permission on the device
 *   -EPERM       sealed memory, or a handle inherited through fork()
 *   -EBADF       the program has closed the region's descriptor
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
 * No call is for a signal handler: a handler that has to end the process calls _exit(). Do not
 * cancel a thread by pthread_cancel() while it may be in a call and has cancellation enabled. It
 * would leave locks behind, and other threads would wait for ever. Call tmesh_channel_wake() to end
 * the wait of another thread.
 *
 * After fork() the child can still read through the mappings that it inherited. The
 * first call of the child on an inherited context makes that context the child's own.
 * Inherited regions can be mapped for reading, asked for info and unreferenced, and
 * tmesh_region_derive() makes the child's own handle of them; all other calls on them give
 * -EPERM. The child never answers for the parent's tokens.
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
#include <tmesh/hold.h>
#include <tmesh/import.h>
#include <tmesh/lease.h>
#include <tmesh/region.h>
#include <tmesh/inspect.h>
#include <tmesh/tensor.h>

#endif /* TMESH_TMESH_H */
