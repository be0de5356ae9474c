/* SPDX-License-Identifier: MIT */
/* Shared by the tests of bundles: a filled bundle, and the check of its contents. */
#ifndef TMESH_UNIT_BUNDLES_H
#define TMESH_UNIT_BUNDLES_H

#include "bundle_internal.h"
#include "unit.h"

#define RW (TMESH_READ | TMESH_WRITE)

static inline struct tmesh_layout layout_of(enum tmesh_dtype dtype, int32_t ndim,
					    const int64_t *shape)
{
	struct tmesh_layout layout;

	assert_ok(tmesh_layout_contiguous(&layout, dtype, ndim, shape, err));
	return layout;
}

/* Three tensors and a block-quantised one in one region, each filled with its number. */
#define TENSORS 4
static inline struct tmesh_region *filled(struct tmesh_ctx *ctx, struct tmesh_bundle_entry *entries)
{
	static const char *const names[TENSORS] = {"b.weight", "a.bias", "größe", "blocks"};
	struct tmesh_region *region;
	uint64_t bytes;
	uint8_t *memory;

	memset(entries, 0, TENSORS * sizeof(*entries));
	for (int i = 0; i < TENSORS; i++) {
		entries[i].name = names[i];
		entries[i].layout = layout_of(i == 3 ? TMESH_UINT8 : TMESH_FLOAT32, 2,
					      (int64_t[]){3, 5 * (i + 1)});
	}
	entries[3].type = "q4_0";
	entries[3].type_ndim = 1;
	entries[3].type_shape[0] = 96;
	assert_ok(tmesh_bundle_plan(entries, TENSORS, 0, &bytes, err));
	assert_ok(tmesh_region_create(ctx, bytes, NULL, &region, err));
	assert_ok(tmesh_region_map(region, RW, (void **)&memory, err));
	for (int i = 0; i < TENSORS; i++) {
		uint64_t extent;

		assert_int_equal(entries[i].layout.offset % TMESH_ALIGN, 0);
		assert_ok(tmesh_layout_check(&entries[i].layout, bytes, &extent, err));
		memset(memory + entries[i].layout.offset, i + 1, extent);
		entries[i].region = region;
	}
	tmesh_region_unmap(region, RW);
	return region;
}

static inline struct tmesh_bundle *made_so(struct tmesh_ctx *ctx, uint32_t flags)
{
	struct tmesh_bundle_entry entries[TENSORS];
	struct tmesh_region *region = filled(ctx, entries);
	struct tmesh_bundle_opts opts = {
		.size = sizeof(opts),
		.flags = flags,
		.label = "model",
		.metadata = "{\"format\":\"pt\"}",
		.metadata_bytes = strlen("{\"format\":\"pt\"}"),
	};
	struct tmesh_bundle *bundle;

	assert_ok(tmesh_bundle_create(ctx, entries, TENSORS, &opts, &bundle, err));
	tmesh_region_unref(region);
	return bundle;
}

static inline struct tmesh_bundle *made(struct tmesh_ctx *ctx)
{
	return made_so(ctx, 0);
}

/* All that made() put in. */
static inline void check_all(struct tmesh_bundle *bundle)
{
	struct tmesh_bundle_entry entry;
	struct tmesh_tensor *none;
	size_t bytes, i;

	assert_int_equal(tmesh_bundle_count(bundle), TENSORS);
	assert_int_equal(tmesh_bundle_bytes(bundle), 3 * 5 * 4 * (1 + 2 + 3) + 3 * 20);
	assert_string_equal(tmesh_bundle_name(bundle, 0), "b.weight");
	assert_string_equal(tmesh_bundle_name(bundle, 2), "größe");
	assert_null(tmesh_bundle_name(bundle, TENSORS));
	assert_string_equal(tmesh_bundle_metadata(bundle, &bytes), "{\"format\":\"pt\"}");
	assert_int_equal(bytes, strlen("{\"format\":\"pt\"}"));
	for (int n = 0; n < TENSORS; n++) {
		struct tmesh_tensor *tensor;
		uint8_t *data;

		assert_ok(tmesh_bundle_find(bundle, tmesh_bundle_name(bundle, n), &i, err));
		assert_int_equal(i, n);
		assert_ok(tmesh_bundle_tensor(bundle, i, &tensor, err));
		assert_ok(tmesh_tensor_data(tensor, TMESH_READ, (void **)&data, err));
		assert_int_equal(data[0], n + 1);
		assert_int_equal(data[tmesh_tensor_bytes(tensor) - 1], n + 1);
		assert_true(tmesh_region_is_sealed(tmesh_tensor_region(tensor)));
		tmesh_tensor_unref(tensor);
	}
	assert_ok(tmesh_bundle_entry(bundle, 3, &entry, err));
	assert_string_equal(entry.type, "q4_0");
	assert_int_equal(entry.type_ndim, 1);
	assert_int_equal(entry.type_shape[0], 96);
	assert_int_equal(entry.layout.shape[1], 20);
	assert_ok(tmesh_bundle_entry(bundle, 0, &entry, err));
	assert_null(entry.type);
	assert_refused(tmesh_bundle_find(bundle, "nothing", &i, err), -ENOENT, "nothing");
	assert_refused(tmesh_bundle_entry(bundle, TENSORS, &entry, err), -EINVAL, "no number");
	assert_refused(tmesh_bundle_tensor(bundle, TENSORS, &none, err), -EINVAL, "no number");
	assert_true(tmesh_region_is_sealed(tmesh_bundle_index(bundle)));
}

static inline char *ref_of(struct tmesh_bundle *bundle)
{
	size_t size = tmesh_bundle_ref_size(bundle);
	char *text = malloc(size);

	assert_ok(tmesh_bundle_ref_encode(bundle, TMESH_READ, text, size, err));
	return text;
}

#endif /* TMESH_UNIT_BUNDLES_H */
