// SPDX-License-Identifier: MIT
/* Bundles: an index in a region of its own, and the data regions that it lists. */
#include "bundle_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void tmesh_bundle_drop(struct tmesh_region **regions, size_t count)
{
	for (size_t i = 0; i < count; i++)
		tmesh_region_unref(regions[i]);
}

/* Allocate an array, never NULL for a count of 0, as malloc() may return. */
static void *array(size_t count, size_t bytes)
{
	return calloc(count ? count : 1, bytes);
}

/* Make a bundle. On success it owns @data and the references. */
static int bundle_new(struct tmesh_ctx *ctx, struct tmesh_region *index,
		      struct tmesh_region *const *regions, size_t count, void *data, size_t bytes,
		      struct tmesh_bundle **out, struct tmesh_error *err)
{
	struct tmesh_bundle *bundle = calloc(1, sizeof(*bundle));
	uint64_t *sizes = array(count, sizeof(*sizes));
	struct tmesh_region **own = array(count, sizeof(struct tmesh_region *));
	int rc = -ENOMEM;

	if (!bundle || !sizes || !own) {
		tmesh_fail(err, rc, "no memory for a bundle");
		goto failed;
	}
	for (size_t i = 0; i < count; i++) {
		own[i] = regions[i];
		sizes[i] = tmesh_region_bytes(regions[i]);
	}
	rc = tmesh_bundle_index_check(data, bytes, sizes, count, &bundle->view, err);
	if (rc)
		goto failed;
	free(sizes);
	atomic_init(&bundle->refs, 1);
	bundle->ctx = ctx;
	bundle->index = index;
	bundle->regions = own;
	bundle->count = count;
	bundle->data = data;
	*out = bundle;
	return 0;

failed:
	free(own);
	free(sizes);
	free(bundle);
	return rc;
}

struct tmesh_bundle *tmesh_bundle_ref(struct tmesh_bundle *bundle)
{
	atomic_fetch_add_explicit(&bundle->refs, 1, memory_order_relaxed);
	return bundle;
}

void tmesh_bundle_unref(struct tmesh_bundle *bundle)
{
	if (!bundle || atomic_fetch_sub_explicit(&bundle->refs, 1, memory_order_acq_rel) != 1)
		return;
	tmesh_bundle_drop(bundle->regions, bundle->count);
	tmesh_region_unref(bundle->index);
	free(bundle->regions);
	free(bundle->data);
	free(bundle);
}

/* From regions that one has. */

/* Copy the index before it is checked, so that no other process can take it away meanwhile. Reading
 * it costs two calls and no mapping. */
static int read_index(struct tmesh_region *index, void **data, size_t *bytes,
		      struct tmesh_error *err)
{
	const struct tmesh_backend_ops *ops = index->ctx->ops;
	struct tmesh_bundle_head head;
	int rc;

	if (!tmesh_region_is_sealed(index))
		return tmesh_fail(err, -EPROTO, "not a bundle's index: the region is not sealed");
	if (index->bytes < sizeof(head))
		return tmesh_fail(err, -EPROTO, "not a bundle's index: the region is too short");
	rc = ops->read(index, 0, &head, sizeof(head), err);
	if (rc)
		return rc;
	if (head.magic != TMESH_MAGIC_BUNDLE || head.bytes < sizeof(head) ||
	    head.bytes > index->bytes || head.bytes > TMESH_BUNDLE_MAX_INDEX)
		return tmesh_fail(err, -EPROTO, "the region is not a bundle's index");
	*data = malloc(head.bytes);
	if (!*data)
		return tmesh_fail(err, -ENOMEM,
				  "no memory for a bundle's index of %" PRIu64 " bytes",
				  head.bytes);
	*bytes = head.bytes;
	rc = ops->read(index, 0, *data, head.bytes, err);
	if (rc)
		free(*data);
	return rc;
}

int tmesh_bundle_adopt(struct tmesh_ctx *ctx, struct tmesh_region *index,
		       struct tmesh_region **regions, size_t count, struct tmesh_bundle **out,
		       struct tmesh_error *err)
{
	void *data = NULL;
	size_t bytes = 0;
	int rc = read_index(index, &data, &bytes, err);

	if (rc)
		return rc;
	rc = bundle_new(ctx, index, regions, count, data, bytes, out, err);
	if (rc)
		free(data);
	return rc;
}

int tmesh_bundle_from_regions(struct tmesh_ctx *ctx, struct tmesh_region *index,
			      struct tmesh_region *const *regions, size_t count,
			      struct tmesh_bundle **out, struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, ctx, index, out);

	if (!rc && count)
		rc = TMESH_NEED(err, regions);
	if (rc)
		return rc;
	if (count > TMESH_BUNDLE_MAX_REGIONS)
		return tmesh_fail(err, -EINVAL, "a bundle has at most %d data regions, not %zu",
				  TMESH_BUNDLE_MAX_REGIONS, count);
	for (size_t i = 0; !rc && i <= count; i++) {
		struct tmesh_region *region = i < count ? regions[i] : index;

		rc = tmesh_region_may(region, TMESH_READ, "make a bundle", err);
		if (!rc && region->ctx != ctx)
			rc = tmesh_fail(err, -EINVAL,
					"a bundle's regions are of one context, the one given");
	}
	if (!rc)
		rc = tmesh_bundle_adopt(ctx, index, (struct tmesh_region **)regions, count, out,
					err);
	if (rc)
		return rc;
	tmesh_region_ref(index);
	for (size_t i = 0; i < count; i++)
		tmesh_region_ref(regions[i]);
	return 0;
}

/* Making. */

/* Place a layout behind byte *@end, and move that to the end of the layout. */
static int plan_one(struct tmesh_layout *layout, uint64_t *end, struct tmesh_error *err)
{
	uint64_t extent, at;
	int rc = tmesh_layout_contiguous(layout, layout->dtype, layout->ndim, layout->shape, err);

	if (!rc)
		rc = tmesh_layout_check(layout, INT64_MAX, &extent, err);
	if (rc)
		return rc;
	if (__builtin_add_overflow(*end, TMESH_ALIGN - 1, &at))
		return tmesh_fail(err, -EOVERFLOW, "the tensors have more than 2^64 bytes");
	layout->offset = at & ~(uint64_t)(TMESH_ALIGN - 1);
	if (__builtin_add_overflow(layout->offset, extent, end) || *end > INT64_MAX)
		return tmesh_fail(err, -EOVERFLOW, "the tensors have more than 2^63 bytes");
	return 0;
}

int tmesh_bundle_plan(struct tmesh_bundle_entry *entries, size_t count, uint64_t start,
		      uint64_t *bytes, struct tmesh_error *err)
{
	uint64_t end = start, again = start;
	int rc = TMESH_NEED(err, bytes);

	if (!rc && count)
		rc = TMESH_NEED(err, entries);
	/* Nothing is written before all entries are known to fit. */
	for (size_t i = 0; !rc && i < count; i++) {
		struct tmesh_layout layout = entries[i].layout;

		rc = plan_one(&layout, &end, err);
	}
	if (rc)
		return rc;
	for (size_t i = 0; i < count; i++)
		plan_one(&entries[i].layout, &again, NULL);
	*bytes = end ? end : 1;
	return 0;
}

/* A bundle that is being made. */
struct draft {
	struct tmesh_bundle_entry *entries; /* with region and layout, whatever the caller gave */
	uint32_t *places;		    /* which of the regions each lies in */
	struct tmesh_region **regions;	    /* the caller's references */
	uint64_t *sizes;
	size_t count; /* of regions */
};

static void draft_end(struct draft *draft)
{
	free(draft->entries);
	free(draft->places);
	free(draft->regions);
	free(draft->sizes);
}

static int draft_begin(struct draft *draft, size_t count, struct tmesh_error *err)
{
	size_t most = count < TMESH_BUNDLE_MAX_REGIONS ? count : TMESH_BUNDLE_MAX_REGIONS;

	draft->entries = array(count, sizeof(*draft->entries));
	draft->places = array(count, sizeof(*draft->places));
	draft->regions = array(most, sizeof(struct tmesh_region *));
	draft->sizes = array(most, sizeof(*draft->sizes));
	if (draft->entries && draft->places && draft->regions && draft->sizes)
		return 0;
	draft_end(draft);
	return tmesh_fail(err, -ENOMEM, "no memory for a bundle of %zu tensors", count);
}

/* Return whether two handles are of one region. An id from another process proves nothing, so the
 * files are compared. */
static bool same_memory(const struct tmesh_region *a, const struct tmesh_region *b)
{
	struct stat sa, sb;

	if (a == b)
		return true;
	if (a->id != b->id || a->bytes != b->bytes)
		return false;
	if (a->ctx->ops->backend == TMESH_BACKEND_KERNEL)
		return true;
	return fstat(a->fd, &sa) == 0 && fstat(b->fd, &sb) == 0 && sa.st_dev == sb.st_dev &&
	       sa.st_ino == sb.st_ino;
}

static unsigned int rights_count(const struct tmesh_region *region)
{
	return (unsigned int)__builtin_popcount(region->rights);
}

/* Return the region's number in the bundle. If it has two handles, the one with more rights stays.
 */
static int place_of(struct draft *draft, struct tmesh_region *region, uint32_t last,
		    uint32_t *place, struct tmesh_error *err)
{
	size_t i;

	/* Most tensors are in the same region as the one before them. */
	if (draft->count && draft->regions[last] == region) {
		*place = last;
		return 0;
	}
	for (i = 0; i < draft->count; i++)
		if (same_memory(draft->regions[i], region))
			break;
	if (i == TMESH_BUNDLE_MAX_REGIONS)
		return tmesh_fail(err, -EINVAL,
				  "the bundle's tensors lie in more than %d regions: put them into "
				  "fewer, tmesh_bundle_plan() helps",
				  TMESH_BUNDLE_MAX_REGIONS);
	if (i == draft->count) {
		draft->regions[i] = region;
		draft->sizes[i] = region->bytes;
		draft->count++;
	} else if (rights_count(region) > rights_count(draft->regions[i])) {
		draft->regions[i] = region;
	}
	*place = (uint32_t)i;
	return 0;
}

static int draft_entry(struct draft *draft, struct tmesh_ctx *ctx, size_t i,
		       struct tmesh_error *err)
{
	struct tmesh_bundle_entry *entry = &draft->entries[i];
	int rc;

	if (entry->tensor) {
		if (entry->region)
			return tmesh_fail(err, -EINVAL,
					  "the bundle's tensor %zu has a tensor and a region: give "
					  "one of them",
					  i);
		entry->region = tmesh_tensor_region(entry->tensor);
		entry->layout = *tmesh_tensor_layout(entry->tensor);
	}
	if (!entry->region)
		return tmesh_fail(err, -EINVAL, "the bundle's tensor %zu has no memory", i);
	if (entry->region->ctx != ctx)
		return tmesh_fail(err, -EINVAL,
				  "the bundle's tensor %zu is of another context than the one "
				  "given",
				  i);
	rc = tmesh_region_may(entry->region, TMESH_READ, "make a bundle", err);
	return rc ? rc
		  : place_of(draft, entry->region, i ? draft->places[i - 1] : 0, &draft->places[i],
			     err);
}

/* Return the first tensor in a region, to name it in a message. */
static const char *tensor_in(const struct draft *draft, size_t region)
{
	size_t i = 0;

	while (draft->places[i] != region)
		i++;
	return draft->entries[i].name;
}

/* Check every right first, so that a missing one fails before anything is sealed. */
static int may_seal(const struct draft *draft, struct tmesh_error *err)
{
	for (size_t i = 0; i < draft->count; i++) {
		struct tmesh_region *region = draft->regions[i];

		if (!tmesh_region_is_sealed(region) && !(region->rights & TMESH_MANAGE))
			return tmesh_fail(
				err, -EACCES,
				"the region of the bundle's tensor \"%.64s\" is not "
				"sealed, and this handle does not have the right to seal it",
				tensor_in(draft, i));
	}
	return 0;
}

static int seal_all(const struct draft *draft, struct tmesh_error *err)
{
	struct tmesh_error why;

	for (size_t i = 0; i < draft->count; i++) {
		int rc;

		if (tmesh_region_is_sealed(draft->regions[i]))
			continue;
		rc = tmesh_region_seal(draft->regions[i], &why);
		if (rc)
			return tmesh_fail(err, rc, "the bundle's tensor \"%.64s\": %s",
					  tensor_in(draft, i), why.message);
	}
	return 0;
}

/* Describe the index region for lists of regions. */
static int describe(struct tmesh_region *index, size_t tensors, uint64_t elements,
		    struct tmesh_error *err)
{
	char text[192];

	snprintf(text, sizeof(text),
		 "{\"v\":1,\"kind\":\"bundle\",\"id\":\"%016" PRIx64
		 "\",\"tensors\":%zu,\"byte_size\":%" PRIu64 "}",
		 index->id, tensors, elements);
	return tmesh_region_set_description(index, text, err);
}

static int make_index(struct tmesh_ctx *ctx, const void *data, size_t bytes,
		      const struct tmesh_bundle_opts *opts, struct tmesh_region **out,
		      struct tmesh_error *err)
{
	struct tmesh_region_opts region_opts = {
		.size = sizeof(region_opts),
		.flags = opts->flags & TMESH_BUNDLE_GID ? TMESH_REGION_GID : 0,
		.mode = opts->mode,
		.gid = opts->gid,
		.label = opts->label,
	};
	struct tmesh_region *index;
	int rc = tmesh_region_create(ctx, bytes, &region_opts, &index, err);

	if (rc)
		return rc;
	/* The index is no tensor, so it does not count as a copy. */
	rc = tmesh_region_fill(index, 0, data, bytes, err);
	if (rc) {
		tmesh_region_unref(index);
		return rc;
	}
	*out = index;
	return 0;
}

static int bundle_of(struct tmesh_ctx *ctx, const struct draft *draft, void *data, size_t bytes,
		     const struct tmesh_bundle_opts *opts, struct tmesh_bundle **out,
		     struct tmesh_error *err)
{
	struct tmesh_bundle *bundle;
	struct tmesh_region *index;
	int rc = make_index(ctx, data, bytes, opts, &index, err);

	if (rc)
		return rc;
	rc = bundle_new(ctx, index, draft->regions, draft->count, data, bytes, &bundle, err);
	if (rc) {
		tmesh_region_unref(index);
		return rc;
	}
	for (size_t i = 0; i < draft->count; i++)
		tmesh_region_ref(draft->regions[i]);
	rc = describe(index, bundle->view.head->tensors, bundle->view.elements, err);
	if (!rc)
		rc = tmesh_region_seal(index, err);
	if (!rc && !(opts->flags & TMESH_BUNDLE_UNSEALED))
		rc = seal_all(draft, err);
	if (rc) {
		bundle->data = NULL;
		tmesh_bundle_unref(bundle);
		return rc;
	}
	*out = bundle;
	return 0;
}

static int read_opts(const struct tmesh_bundle_opts *opts, struct tmesh_bundle_opts *out,
		     struct tmesh_error *err)
{
	int rc = tmesh_read_sized(out, sizeof(*out), opts, err);

	if (rc)
		return rc;
	if (out->flags & ~(uint32_t)(TMESH_BUNDLE_UNSEALED | TMESH_BUNDLE_GID))
		return tmesh_fail(err, -EINVAL, "unknown bundle flags 0x%x", out->flags);
	if (!out->metadata && out->metadata_bytes)
		return tmesh_fail(err, -EINVAL, "metadata_bytes is given, metadata is not");
	return 0;
}

int tmesh_bundle_create(struct tmesh_ctx *ctx, const struct tmesh_bundle_entry *entries,
			size_t count, const struct tmesh_bundle_opts *opts,
			struct tmesh_bundle **out, struct tmesh_error *err)
{
	struct tmesh_bundle_opts o;
	struct draft draft = {0};
	void *data = NULL;
	size_t bytes;
	int rc = TMESH_NEED(err, ctx, out);

	if (!rc)
		rc = read_opts(opts, &o, err);
	if (!rc && count)
		rc = TMESH_NEED(err, entries);
	if (!rc && count > TMESH_BUNDLE_MAX_TENSORS)
		rc = tmesh_fail(err, -EINVAL, "a bundle has at most %u tensors, not %zu",
				TMESH_BUNDLE_MAX_TENSORS, count);
	if (!rc)
		rc = draft_begin(&draft, count, err);
	if (rc)
		return rc;
	if (count)
		memcpy(draft.entries, entries, count * sizeof(*entries));
	for (size_t i = 0; !rc && i < count; i++)
		rc = draft_entry(&draft, ctx, i, err);
	if (!rc)
		rc = tmesh_bundle_index_write(draft.entries, draft.places, count, draft.sizes,
					      draft.count, o.metadata, o.metadata_bytes, &data,
					      &bytes, err);
	if (!rc && !(o.flags & TMESH_BUNDLE_UNSEALED))
		rc = may_seal(&draft, err);
	if (!rc)
		rc = bundle_of(ctx, &draft, data, bytes, &o, out, err);
	if (rc)
		free(data);
	draft_end(&draft);
	return rc;
}

/* Looking. */

size_t tmesh_bundle_count(const struct tmesh_bundle *bundle)
{
	return bundle->view.head->tensors;
}

uint64_t tmesh_bundle_bytes(const struct tmesh_bundle *bundle)
{
	return bundle->view.elements;
}

const char *tmesh_bundle_name(const struct tmesh_bundle *bundle, size_t i)
{
	if (i >= bundle->view.head->tensors)
		return NULL;
	return bundle->view.text + bundle->view.rows[i].name;
}

int tmesh_bundle_find(const struct tmesh_bundle *bundle, const char *name, size_t *i,
		      struct tmesh_error *err)
{
	size_t low = 0, high;

	if (TMESH_NEED(err, bundle, name, i))
		return -EINVAL;
	high = bundle->view.head->tensors;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		uint32_t number = bundle->view.order[middle];
		int side = strcmp(name, tmesh_bundle_name(bundle, number));

		if (!side) {
			*i = number;
			return 0;
		}
		if (side < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return tmesh_fail(err, -ENOENT, "the bundle has no tensor \"%.128s\"", name);
}

static const struct tmesh_bundle_row *row_of(const struct tmesh_bundle *bundle, size_t i,
					     struct tmesh_error *err)
{
	if (i < bundle->view.head->tensors)
		return &bundle->view.rows[i];
	tmesh_fail(err, -EINVAL, "the bundle has %" PRIu32 " tensors; there is no number %zu",
		   bundle->view.head->tensors, i);
	return NULL;
}

int tmesh_bundle_entry(const struct tmesh_bundle *bundle, size_t i,
		       struct tmesh_bundle_entry *entry, struct tmesh_error *err)
{
	const struct tmesh_bundle_row *row;

	if (TMESH_NEED(err, bundle, entry))
		return -EINVAL;
	row = row_of(bundle, i, err);
	if (!row)
		return -EINVAL;
	memset(entry, 0, sizeof(*entry));
	entry->name = bundle->view.text + row->name;
	entry->region = bundle->regions[row->region];
	tmesh_bundle_row_layout(row, &entry->layout);
	if (row->type_bytes)
		entry->type = entry->name + row->name_bytes + 1;
	entry->type_ndim = (int32_t)row->type_ndim;
	memcpy(entry->type_shape, row->type_shape, sizeof(entry->type_shape));
	return 0;
}

int tmesh_bundle_tensor(struct tmesh_bundle *bundle, size_t i, struct tmesh_tensor **out,
			struct tmesh_error *err)
{
	const struct tmesh_bundle_row *row;
	struct tmesh_layout layout;

	if (TMESH_NEED(err, bundle, out))
		return -EINVAL;
	row = row_of(bundle, i, err);
	if (!row)
		return -EINVAL;
	tmesh_bundle_row_layout(row, &layout);
	return tmesh_tensor_wrap(bundle->regions[row->region], &layout, out, err);
}

const char *tmesh_bundle_metadata(const struct tmesh_bundle *bundle, size_t *bytes)
{
	if (bytes)
		*bytes = bundle->view.head->metadata_bytes;
	return bundle->view.metadata;
}

struct tmesh_region *const *tmesh_bundle_regions(const struct tmesh_bundle *bundle, size_t *count)
{
	*count = bundle->count;
	return bundle->regions;
}

struct tmesh_region *tmesh_bundle_index(const struct tmesh_bundle *bundle)
{
	return bundle->index;
}
