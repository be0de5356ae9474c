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
 *   - A pointer may be NULL where its call says so. A call of the headers below, of tmesh/model.h
 *     or tmesh/slot.h that needs it and gives an error refuses NULL with -EINVAL, and the message
 *     names the parameter. _unref, _free and _close take NULL everywhere.
 *   - Objects are opaque and counted: `_ref` adds a reference and returns its
 *     argument, `_unref` drops one (NULL is fine) and may be called from any thread.
 *   - Option structures begin with their size; NULL means the defaults. Members
 *     added later read as zero for callers compiled earlier. Structures that are filled in begin
 *     with theirs too, and elements of arrays that the library gives have their caller's, which
 *     inline functions pass to a function `_sized`. Other structures never change, because they
 *     are plain values (tmesh_error, tmesh_layout, tmesh_ref, tmesh_message) or elements of
 *     callers' arrays: tmesh_bundle_entry, tmesh_gather_extent, tmesh_model_item,
 *     tmesh_costs_served, tmesh_costs_rate, tmesh_costs_place, tmesh_devices_library,
 *     tmesh_engine_weight, tmesh_engine_value, tmesh_page_victim, tmesh_placed_value,
 *     tmesh_places_place, tmesh_placement_device, tmesh_placement_link, tmesh_placement_node.
 *     What a version to come has to say of one goes into a structure beside it.
 *   - Sizes and offsets are in bytes, strides in elements, times in nanoseconds of
 *     CLOCK_MONOTONIC.
 *   - Objects may be used from several threads at once unless a function says
 *     otherwise. The library never writes to stdout and never exits; to stderr it writes when
 *     the process ends and memory that it holds for others is lost (tmesh/hold.h), and, in a
 *     context without `log`, when a channel was closed and nobody came for what it had sent.
 *
 * Errors that mean the same everywhere
 *
 *   -EINVAL      an argument is out of its range
 *   -EOVERFLOW   sizes, offsets or strides overflow 64 bits
 *   -EACCES      the handle or token does not have that right, or no permission on the device
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
 * No call is for a signal handler: a handler that has to end the process calls _exit(). A thread
 * that may be in a call is not to be cancelled by pthread_cancel() while cancellation is enabled:
 * it would leave locks behind, for which the other threads wait for ever. tmesh_channel_wake() ends
 * the wait of another thread.
 *
 * After fork() the child can still read through the mappings that it inherited. The
 * first call of the child on an inherited context makes that context the child's own.
 * Inherited regions can be mapped for reading, asked for info and unreferenced; all
 * other calls on them give -EPERM. The child never answers for the parent's tokens.
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
#include <tmesh/see.h>
#include <tmesh/tensor.h>

#endif /* TMESH_TMESH_H */
