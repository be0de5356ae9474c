/* SPDX-License-Identifier: MIT */
/*
 * A bundle's index in its region. All numbers are in the machine's own byte order: a magic that
 * reads backwards comes from another machine.
 *
 *  head
 *  uint64_t          bytes of each data region
 *  tmesh_bundle_row  of each tensor, in the bundle's order
 *  uint32_t          numbers of the tensors, sorted by name; zeros up to a multiple of 8 bytes
 *  text              name and type of each tensor, in order, each with a zero behind it
 *  metadata          with a zero behind it
 *
 * Each part, and each text, begins where the one before it ends. A bundle has only one index, so
 * reading it costs no more than the bytes that were sent.
 */
#ifndef TMESH_BUNDLE_INDEX_H
#define TMESH_BUNDLE_INDEX_H

#include "wire.h"

/* It begins with TMESH_MAGIC_BUNDLE. */
#define TMESH_BUNDLE_VERSION 1
/* The longest index: a process that opens a bundle copies it. */
#define TMESH_BUNDLE_MAX_INDEX (512u << 20)

struct tmesh_bundle_head {
	uint32_t magic;
	uint32_t version;
	uint64_t bytes; /* of the whole index */
	uint32_t tensors;
	uint32_t regions;
	uint64_t text_bytes;
	uint64_t metadata_bytes; /* without its zero */
	uint64_t pad[3];
};

struct tmesh_bundle_row {
	uint32_t name; /* from the start of the text */
	uint32_t name_bytes;
	uint32_t type_bytes; /* its text follows the name's zero; 0: none */
	uint32_t region;
	uint32_t dtype;
	uint32_t ndim;
	uint32_t type_ndim;
	uint32_t pad;
	uint64_t offset;
	int64_t shape[TMESH_MAX_DIMS];
	int64_t strides[TMESH_MAX_DIMS];
	int64_t type_shape[TMESH_MAX_DIMS];
};

_Static_assert(sizeof(struct tmesh_bundle_head) == 64, "index format");
_Static_assert(sizeof(struct tmesh_bundle_row) == 232, "index format");

/* The places of a checked index's parts. */
struct tmesh_bundle_view {
	const struct tmesh_bundle_head *head;
	const uint64_t *regions;
	const struct tmesh_bundle_row *rows;
	const uint32_t *order;
	const char *text;
	const char *metadata;
	uint64_t elements; /* bytes of all tensors' elements */
};

/*
 * Check @bytes bytes at @data, which are aligned to 8 and stay as they are, against data regions of
 * so many bytes each. Return: 0 and @view; -EPROTO.
 */
int tmesh_bundle_index_check(const void *data, size_t bytes, const uint64_t *region_bytes,
			     size_t regions, struct tmesh_bundle_view *view,
			     struct tmesh_error *err);

/* Return the layout of tensor @i from its row. */
void tmesh_bundle_row_layout(const struct tmesh_bundle_row *row, struct tmesh_layout *layout);

/*
 * Write an index of @entries whose layouts are in region number @places[i], of @region_bytes.
 * Return: 0 and @data, to be released with free(); -EINVAL, -EOVERFLOW, -EOPNOTSUPP, -ENOMEM.
 */
int tmesh_bundle_index_write(const struct tmesh_bundle_entry *entries, const uint32_t *places,
			     size_t count, const uint64_t *region_bytes, size_t regions,
			     const char *metadata, size_t metadata_bytes, void **data,
			     size_t *bytes, struct tmesh_error *err);

#endif /* TMESH_BUNDLE_INDEX_H */
