/* SPDX-License-Identifier: MIT */
/*
 * Slot: a place whose value is a bundle that is replaced in one step: an adapter, a model's newest
 * weights. Part of libtmesh-model. See tmesh/tmesh.h for the conventions of all calls,
 * docs/reference/slots.md for how it works. Since 0.1.
 * Maturity: stable.
 *
 * One process publishes, any number read. Each value has a generation, 1 and upwards. A reader
 * never writes to shared memory. It maps the slot's page read-only and holds a generation by
 * handles of its own on the bundle's regions, which the kernel counts. So a killed reader holds
 * nothing, and an old generation is free with its last reader. While nothing new was published, a
 * read looks at one word.
 *
 *     tmesh_slot_open(ctx, token, &reader, &err);
 *     for (each request) {
 *             tmesh_slot_read(reader, &value, &err);
 *             tmesh_slot_value_ref(value);               held until the request's end
 *             ... tmesh_slot_value_bundle(value) ...
 *             tmesh_slot_value_unref(value);
 *     }
 */
#ifndef TMESH_SLOT_H
#define TMESH_SLOT_H

#include <tmesh/bundle.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TMESH_SLOT_NAME_LEN 63

struct tmesh_slot;
struct tmesh_slot_reader;
struct tmesh_slot_value;

struct tmesh_slot_opts {
	size_t size;	   /* sizeof(struct tmesh_slot_opts) */
	const char *label; /* a name for people, as of a region; NULL: "slot" */
	uint32_t max_ref;  /* bytes of the longest bundle ref (tmesh_bundle_ref_size()), at most
			    * TMESH_BUNDLE_MAX_REF; 0: 16 KiB, for about 130 regions */
	uint32_t reserved; /* 0 */
	const char *name;  /* by which readers of this user find it: 1 to TMESH_SLOT_NAME_LEN bytes
			    * of UTF-8 without control characters; it is the default of @label.
			    * NULL: none, only the token leads here */
};

/*
 * Make an empty slot. This process is its publisher until the last reference is dropped.
 *
 * A name is this slot's as long as the slot is there. It is free again when the slot has ended or
 * its process has died, in whatever way. Names are one for each user and runtime directory
 * (tmesh_ctx_runtime_dir()), on both backends; names of kept regions are others.
 *
 * Return: 0; -EINVAL, -ENOSPC, -ENOMEM, -EMFILE. For a name: -EEXIST (a living process publishes a
 * slot under it), -EACCES (something else is in its place: the message says what to remove),
 * -ETIMEDOUT (another process is taking the name, and is stopped). For a name also errors as
 * tmesh_ctx_runtime_dir().
 */
int tmesh_slot_create(struct tmesh_ctx *ctx, const struct tmesh_slot_opts *opts,
		      struct tmesh_slot **out, struct tmesh_error *err);
struct tmesh_slot *tmesh_slot_ref(struct tmesh_slot *slot);
/* The last reference ends the slot. Readers keep the values that they hold; tmesh_slot_changed()
 * reports the end to them with -EPIPE. */
void tmesh_slot_unref(struct tmesh_slot *slot);
/* Write the slot's token, TMESH_TOKEN_SIZE bytes. Processes of the same user that have it may read.
 * Errors as tmesh_region_token(). */
int tmesh_slot_token(struct tmesh_slot *slot, char *token, struct tmesh_error *err);

/*
 * Make @bundle the slot's value; NULL empties the slot. A reader sees either the previous value or
 * this one, never a mixture, also if this process is killed during the call. The slot takes its own
 * reference on @bundle and drops that on the previous value. Readers get the right to read.
 * @generation may be NULL.
 *
 * Return: 0; -EINVAL (the ref is longer than max_ref); -EPERM (inherited); errors as
 * tmesh_bundle_ref_encode(). After an error the slot has the previous value.
 */
int tmesh_slot_publish(struct tmesh_slot *slot, struct tmesh_bundle *bundle, uint64_t *generation,
		       struct tmesh_error *err);
/* The generation of the newest value; 0: nothing was published yet. */
uint64_t tmesh_slot_generation(const struct tmesh_slot *slot);

/*
 * Open a slot for reading. Only one thread at a time may use a reader, so each thread opens its
 * own. Any thread may use and drop values. Return: 0; -ENOENT (no such slot, or its publisher is
 * gone), -EPROTO (another token), -EBUSY (1,024 readers), -ETIMEDOUT, -ENOMEM, -EMFILE.
 */
int tmesh_slot_open(struct tmesh_ctx *ctx, const char *token, struct tmesh_slot_reader **out,
		    struct tmesh_error *err);
/*
 * The same of the slot that has this name now; a reader stays with its slot when the name becomes
 * another's. Return: as tmesh_slot_open(), -ENOENT also when no slot has the name; -EINVAL (that is
 * no name), -EACCES (in its place is something else); errors as tmesh_ctx_runtime_dir().
 */
int tmesh_slot_open_named(struct tmesh_ctx *ctx, const char *name, struct tmesh_slot_reader **out,
			  struct tmesh_error *err);
/* Values on which the caller has references stay valid. */
void tmesh_slot_close(struct tmesh_slot_reader *reader);

/*
 * Get the newest value. It belongs to the reader and is valid until the next _read or _close; take
 * a reference to keep it longer. If nothing new was published, the call reads one word in memory,
 * without a system call, a lock or a wait. The first read after a publication opens the new bundle;
 * this is cheap if a value with the same bundle still has references. It tries a fixed number of
 * times; a reader that was overtaken each time asks the publisher, which keeps for it what it
 * answers. So no read is overtaken without an end.
 *
 * Return: 0; -ENOENT (the slot is empty); -EPIPE (there is a newer value, but its publisher
 * is gone and the value with it); -EPROTO (a damaged slot); -EPERM (inherited). -ETIMEDOUT: the
 * value is replaced faster than it can be opened, and the publisher's thread has not answered for
 * two seconds, as without a free descriptor. Also errors as tmesh_bundle_open(). After an error the
 * value that was read before stays valid.
 */
int tmesh_slot_read(struct tmesh_slot_reader *reader, struct tmesh_slot_value **value,
		    struct tmesh_error *err);

struct tmesh_slot_value *tmesh_slot_value_ref(struct tmesh_slot_value *value);
void tmesh_slot_value_unref(struct tmesh_slot_value *value);
uint64_t tmesh_slot_value_generation(const struct tmesh_slot_value *value);
/* The value's bundle. It belongs to the value and is valid as long as that is. */
struct tmesh_bundle *tmesh_slot_value_bundle(const struct tmesh_slot_value *value);

/*
 * A descriptor for poll(), which still belongs to the library. When it is readable, call
 * tmesh_slot_changed(), which arms it again. It is readable at once after the first call, and
 * remains readable when the publisher is gone. Return: the descriptor; -EPERM (inherited).
 */
int tmesh_slot_poll_fd(struct tmesh_slot_reader *reader, struct tmesh_error *err);
/* Return: 1 when there is a value newer than the one read last; 0 when there is none. -EPIPE: there
 * is none, and the publisher is gone; -EPERM (inherited). */
int tmesh_slot_changed(struct tmesh_slot_reader *reader);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_SLOT_H */
