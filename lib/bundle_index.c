// SPDX-License-Identifier: MIT
/* Write and read a bundle's index; bundle_index.h has its form. An index that is read may come from
 * any process. */
#include "bundle_index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "layout.h"

#define HEAD_BYTES sizeof(struct tmesh_bundle_head)

/* Return whether the text is UTF-8 without zeros and, unless @controls, without control characters.
 */
static bool is_text(const char *text, size_t bytes, bool controls)
{
	return tmesh_utf8_span(text, bytes, controls) == bytes;
}

static uint64_t order_bytes(uint64_t tensors)
{
	return (tensors * sizeof(uint32_t) + 7) & ~(uint64_t)7;
}

/* Return the length of the parts before the text; the counts are within their limits. */
static uint64_t fixed_bytes(uint64_t tensors, uint64_t regions)
{
	return HEAD_BYTES + regions * sizeof(uint64_t) + tensors * sizeof(struct tmesh_bundle_row) +
	       order_bytes(tensors);
}

/* Fill in @view for an index whose head has been checked. */
static void find_parts(const void *data, struct tmesh_bundle_view *view)
{
	const struct tmesh_bundle_head *head = data;

	view->head = head;
	view->regions = (const uint64_t *)((const uint8_t *)data + HEAD_BYTES);
	view->rows = (const struct tmesh_bundle_row *)(view->regions + head->regions);
	view->order = (const uint32_t *)(view->rows + head->tensors);
	view->text = (const char *)view->order + order_bytes(head->tensors);
	view->metadata = view->text + head->text_bytes;
}

void tmesh_bundle_row_layout(const struct tmesh_bundle_row *row, struct tmesh_layout *layout)
{
	memset(layout, 0, sizeof(*layout));
	layout->dtype = (enum tmesh_dtype)row->dtype;
	layout->ndim = (int32_t)row->ndim;
	layout->offset = row->offset;
	memcpy(layout->shape, row->shape, sizeof(layout->shape));
	memcpy(layout->strides, row->strides, sizeof(layout->strides));
}

/* Check the shape of a type that is no dtype. */
static int check_type(const char *type, int64_t ndim, const int64_t *shape)
{
	int64_t count = 1;

	if (ndim < 0 || ndim > TMESH_MAX_DIMS || (!type && ndim))
		return -EINVAL;
	for (int64_t i = 0; i < ndim; i++)
		if (shape[i] < 0 || __builtin_mul_overflow(count, shape[i], &count))
			return -EINVAL;
	return 0;
}

/* Reading. */

static int damaged(struct tmesh_error *err, const char *what)
{
	return tmesh_fail(err, -EPROTO, "not a bundle's index, or a damaged one: %s", what);
}

static int check_head(const void *data, size_t bytes, size_t regions, struct tmesh_error *err)
{
	const struct tmesh_bundle_head *head = data;
	uint64_t need;

	if (bytes < HEAD_BYTES)
		return damaged(err, "it is too short");
	if (head->magic != TMESH_MAGIC_BUNDLE)
		return damaged(err, "it does not begin as one");
	if (head->version != TMESH_BUNDLE_VERSION)
		return tmesh_fail(err, -EPROTO,
				  "a bundle of version %" PRIu32 "; this library reads version %d",
				  head->version, TMESH_BUNDLE_VERSION);
	if (head->tensors > TMESH_BUNDLE_MAX_TENSORS || head->regions > TMESH_BUNDLE_MAX_REGIONS ||
	    head->text_bytes > TMESH_BUNDLE_MAX_INDEX ||
	    head->metadata_bytes > TMESH_BUNDLE_MAX_METADATA)
		return damaged(err, "its counts are beyond the limits");
	need = fixed_bytes(head->tensors, head->regions) + head->text_bytes + head->metadata_bytes +
	       1;
	if (need != head->bytes || head->bytes != bytes)
		return damaged(err, "its length is not what its counts make");
	if (head->pad[0] || head->pad[1] || head->pad[2])
		return damaged(err, "it says what this library does not know");
	if (head->regions != regions)
		return tmesh_fail(err, -EPROTO, "the bundle has %" PRIu32 " data regions, not %zu",
				  head->regions, regions);
	return 0;
}

/* Check a row's name and type. @cursor: where its name begins in the text. */
static int check_row_text(const struct tmesh_bundle_view *view, const struct tmesh_bundle_row *row,
			  uint64_t *cursor)
{
	uint64_t left = view->head->text_bytes - *cursor;
	uint64_t need = (uint64_t)row->name_bytes + 1 + row->type_bytes + 1;
	const char *name = view->text + *cursor;
	const char *type = name + row->name_bytes + 1;

	if (row->name != *cursor || row->name_bytes > TMESH_BUNDLE_MAX_NAME ||
	    row->type_bytes > TMESH_BUNDLE_MAX_NAME || need > left)
		return -EPROTO;
	if (name[row->name_bytes] || type[row->type_bytes] ||
	    !is_text(name, row->name_bytes, false) || !is_text(type, row->type_bytes, false))
		return -EPROTO;
	*cursor += need;
	return 0;
}

static bool is_zero(const int64_t *numbers, uint32_t from)
{
	for (uint32_t i = from; i < TMESH_MAX_DIMS; i++)
		if (numbers[i])
			return false;
	return true;
}

static int check_row(const struct tmesh_bundle_row *row, const char *name,
		     const uint64_t *region_bytes, size_t regions, uint64_t *extent,
		     struct tmesh_error *err)
{
	struct tmesh_layout layout;
	struct tmesh_error why;

	/* The checks of the layout and of the type refuse bad values of ndim, dtype and type_ndim.
	 */
	if (row->region >= regions || row->pad || !is_zero(row->shape, row->ndim) ||
	    !is_zero(row->strides, row->ndim) || !is_zero(row->type_shape, row->type_ndim) ||
	    check_type(row->type_bytes ? "" : NULL, row->type_ndim, row->type_shape))
		return tmesh_fail(err, -EPROTO, "the bundle's tensor \"%.64s\" is damaged", name);
	tmesh_bundle_row_layout(row, &layout);
	if (tmesh_layout_check(&layout, region_bytes[row->region], extent, &why))
		return tmesh_fail(err, -EPROTO, "the bundle's tensor \"%.64s\": %s", name,
				  why.message);
	return 0;
}

/* Check that the names rise strictly: then no name and no number is there twice. */
static int check_order(const struct tmesh_bundle_view *view, struct tmesh_error *err)
{
	uint32_t tensors = view->head->tensors;
	const char *last = NULL;

	for (uint32_t i = 0; i < tensors; i++) {
		const char *name;

		if (view->order[i] >= tensors)
			return damaged(err, "its order names tensors that are not there");
		name = view->text + view->rows[view->order[i]].name;
		if (last && strcmp(last, name) >= 0)
			return damaged(err, "its names are not in order, or one is there twice");
		last = name;
	}
	if ((tensors & 1) && view->order[tensors])
		return damaged(err, "it says what this library does not know");
	return 0;
}

int tmesh_bundle_index_check(const void *data, size_t bytes, const uint64_t *region_bytes,
			     size_t regions, struct tmesh_bundle_view *view,
			     struct tmesh_error *err)
{
	struct tmesh_bundle_view v = {0};
	uint64_t cursor = 0;
	int rc = check_head(data, bytes, regions, err);

	if (rc)
		return rc;
	find_parts(data, &v);
	for (size_t i = 0; i < regions; i++)
		if (v.regions[i] > region_bytes[i])
			return tmesh_fail(err, -EPROTO,
					  "the bundle's data region %zu has %" PRIu64
					  " bytes, not %" PRIu64,
					  i, region_bytes[i], v.regions[i]);
	for (uint32_t i = 0; i < v.head->tensors; i++) {
		const struct tmesh_bundle_row *row = &v.rows[i];
		uint64_t extent;

		if (check_row_text(&v, row, &cursor))
			return tmesh_fail(err, -EPROTO,
					  "the name or type of the bundle's tensor %" PRIu32
					  " is damaged",
					  i);
		rc = check_row(row, v.text + row->name, v.regions, regions, &extent, err);
		if (rc)
			return rc;
		/* Views of the same bytes may add up to more than there are in the world; neither
		 * number is more than 2^63. */
		v.elements += extent;
		if (v.elements > INT64_MAX)
			return damaged(err, "its tensors have more than 2^63 bytes");
	}
	if (cursor != v.head->text_bytes)
		return damaged(err, "there is text that belongs to no tensor");
	rc = check_order(&v, err);
	if (rc)
		return rc;
	if (v.metadata[v.head->metadata_bytes] ||
	    !is_text(v.metadata, v.head->metadata_bytes, true))
		return damaged(err, "its metadata is not UTF-8");
	*view = v;
	return 0;
}

/* Writing. */

static int check_name(const char *name, size_t i, const char *what, struct tmesh_error *err)
{
	size_t bytes = strnlen(name, TMESH_BUNDLE_MAX_NAME + 1);

	if (bytes > TMESH_BUNDLE_MAX_NAME)
		return tmesh_fail(err, -EINVAL,
				  "the %s of the bundle's tensor %zu is longer than %d bytes", what,
				  i, TMESH_BUNDLE_MAX_NAME);
	if (!is_text(name, bytes, false))
		return tmesh_fail(err, -EINVAL,
				  "the %s of the bundle's tensor %zu is not UTF-8 without control "
				  "characters",
				  what, i);
	return 0;
}

static int check_entry(const struct tmesh_bundle_entry *entry, size_t i, uint64_t region_bytes,
		       uint64_t *elements, struct tmesh_error *err)
{
	struct tmesh_error why;
	uint64_t extent;
	int rc;

	if (!entry->name)
		return tmesh_fail(err, -EINVAL, "the bundle's tensor %zu has no name", i);
	rc = check_name(entry->name, i, "name", err);
	if (!rc && entry->type)
		rc = check_name(entry->type, i, "type", err);
	if (rc)
		return rc;
	for (size_t k = 0; k < sizeof(entry->reserved) / sizeof(entry->reserved[0]); k++)
		if (entry->reserved[k])
			return tmesh_fail(
				err, -EINVAL,
				"the bundle's tensor \"%.64s\" sets members that this version "
				"of libtmesh does not know",
				entry->name);
	if (entry->layout.device_type != TMESH_DEVICE_CPU)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "the bundle's tensor \"%.64s\" is on a device: a bundle holds "
				  "host memory",
				  entry->name);
	if (check_type(entry->type && *entry->type ? entry->type : NULL, entry->type_ndim,
		       entry->type_shape))
		return tmesh_fail(err, -EINVAL,
				  "the bundle's tensor \"%.64s\" has a type_shape that no tensor "
				  "can have",
				  entry->name);
	rc = tmesh_layout_check(&entry->layout, region_bytes, &extent, &why);
	if (rc)
		return tmesh_fail(err, rc, "the bundle's tensor \"%.64s\": %s", entry->name,
				  why.message);
	*elements += extent; /* neither is more than 2^63 */
	if (*elements > INT64_MAX)
		return tmesh_fail(err, -EOVERFLOW,
				  "the bundle's tensors have more than 2^63 bytes");
	return 0;
}

static size_t text_of(const char *text)
{
	return text ? strlen(text) : 0;
}

static void write_row(struct tmesh_bundle_row *row, const struct tmesh_bundle_entry *entry,
		      uint32_t place, char *text, uint64_t *cursor)
{
	const struct tmesh_layout *layout = &entry->layout;
	size_t dims = (size_t)layout->ndim * sizeof(int64_t);

	row->name = (uint32_t)*cursor;
	row->name_bytes = (uint32_t)strlen(entry->name);
	row->type_bytes = (uint32_t)text_of(entry->type);
	row->region = place;
	row->dtype = (uint32_t)layout->dtype;
	row->ndim = (uint32_t)layout->ndim;
	row->type_ndim = (uint32_t)entry->type_ndim;
	row->offset = layout->offset;
	memcpy(row->shape, layout->shape, dims);
	memcpy(row->strides, layout->strides, dims);
	memcpy(row->type_shape, entry->type_shape, (size_t)entry->type_ndim * sizeof(int64_t));
	memcpy(text + *cursor, entry->name, row->name_bytes);
	*cursor += row->name_bytes + 1;
	if (row->type_bytes)
		memcpy(text + *cursor, entry->type, row->type_bytes);
	*cursor += row->type_bytes + 1;
}

static int by_name(const void *a, const void *b, void *entries)
{
	const struct tmesh_bundle_entry *all = entries;

	return strcmp(all[*(const uint32_t *)a].name, all[*(const uint32_t *)b].name);
}

static int sort_names(uint32_t *order, const struct tmesh_bundle_entry *entries, size_t count,
		      struct tmesh_error *err)
{
	for (size_t i = 0; i < count; i++)
		order[i] = (uint32_t)i;
	if (count)
		qsort_r(order, count, sizeof(*order), by_name, (void *)entries);
	for (size_t i = 1; i < count; i++)
		if (!strcmp(entries[order[i - 1]].name, entries[order[i]].name))
			return tmesh_fail(err, -EINVAL,
					  "two tensors of the bundle are called \"%.64s\"",
					  entries[order[i]].name);
	return 0;
}

int tmesh_bundle_index_write(const struct tmesh_bundle_entry *entries, const uint32_t *places,
			     size_t count, const uint64_t *region_bytes, size_t regions,
			     const char *metadata, size_t metadata_bytes, void **data,
			     size_t *bytes, struct tmesh_error *err)
{
	struct tmesh_bundle_head head = {
		.magic = TMESH_MAGIC_BUNDLE,
		.version = TMESH_BUNDLE_VERSION,
		.tensors = (uint32_t)count,
		.regions = (uint32_t)regions,
		.metadata_bytes = metadata_bytes,
	};
	uint64_t cursor = 0, elements = 0;
	uint8_t *made;
	uint8_t *to;
	int rc;

	if (metadata_bytes > TMESH_BUNDLE_MAX_METADATA)
		return tmesh_fail(err, -EINVAL, "a bundle's metadata has at most %u bytes, not %zu",
				  TMESH_BUNDLE_MAX_METADATA, metadata_bytes);
	if (!is_text(metadata, metadata_bytes, true))
		return tmesh_fail(err, -EINVAL,
				  "a bundle's metadata is UTF-8 text without zero bytes");
	for (size_t i = 0; i < count; i++) {
		rc = check_entry(&entries[i], i, region_bytes[places[i]], &elements, err);
		if (rc)
			return rc;
		head.text_bytes += strlen(entries[i].name) + 1 + text_of(entries[i].type) + 1;
	}
	head.bytes = fixed_bytes(count, regions) + head.text_bytes + metadata_bytes + 1;
	if (head.bytes > TMESH_BUNDLE_MAX_INDEX)
		return tmesh_fail(err, -EINVAL,
				  "the bundle's names and metadata make an index of %" PRIu64
				  " bytes; %u are the most",
				  head.bytes, TMESH_BUNDLE_MAX_INDEX);

	made = calloc(1, head.bytes);
	if (!made)
		return tmesh_fail(err, -ENOMEM, "no memory for a bundle's index");
	memcpy(made, &head, sizeof(head));
	to = made + HEAD_BYTES;
	memcpy(to, region_bytes, regions * sizeof(*region_bytes));
	to += regions * sizeof(*region_bytes);
	for (size_t i = 0; i < count; i++)
		write_row((struct tmesh_bundle_row *)to + i, &entries[i], places[i],
			  (char *)made + fixed_bytes(count, regions), &cursor);
	to += count * sizeof(struct tmesh_bundle_row);
	rc = sort_names((uint32_t *)to, entries, count, err);
	if (rc) {
		free(made);
		return rc;
	}
	if (metadata_bytes)
		memcpy(made + head.bytes - metadata_bytes - 1, metadata, metadata_bytes);
	*data = made;
	*bytes = head.bytes;
	return 0;
}
