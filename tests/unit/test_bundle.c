// SPDX-License-Identifier: MIT
/* Bundles: what is put in comes out by ref, socket and regions; everything else is refused. */
#include <sys/socket.h>
#include <sys/wait.h>

#include "bundle_internal.h"
#include "unit.h"

#define RW (TMESH_READ | TMESH_WRITE)

static struct tmesh_layout layout_of(enum tmesh_dtype dtype, int32_t ndim, const int64_t *shape)
{
	struct tmesh_layout layout;

	assert_ok(tmesh_layout_contiguous(&layout, dtype, ndim, shape, err));
	return layout;
}

/* Three tensors and a block-quantised one in one region, each filled with its number. */
#define TENSORS 4
static struct tmesh_region *filled(struct tmesh_ctx *ctx, struct tmesh_bundle_entry *entries)
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

static struct tmesh_bundle *made(struct tmesh_ctx *ctx)
{
	struct tmesh_bundle_entry entries[TENSORS];
	struct tmesh_region *region = filled(ctx, entries);
	struct tmesh_bundle_opts opts = {
		.size = sizeof(opts),
		.label = "model",
		.metadata = "{\"format\":\"pt\"}",
		.metadata_bytes = strlen("{\"format\":\"pt\"}"),
	};
	struct tmesh_bundle *bundle;

	assert_ok(tmesh_bundle_create(ctx, entries, TENSORS, &opts, &bundle, err));
	tmesh_region_unref(region);
	return bundle;
}

/* All that made() put in. */
static void check_all(struct tmesh_bundle *bundle)
{
	struct tmesh_bundle_entry entry;
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
	assert_true(tmesh_region_is_sealed(tmesh_bundle_index(bundle)));
}

static void test_create(void **state)
{
	unsigned int fds = unit_open_fds();
	struct tmesh_bundle *bundle = made(*state);
	struct tmesh_tensor *tensor;
	void *data;

	check_all(bundle);
	assert_ok(tmesh_bundle_tensor(bundle, 1, &tensor, err));
	tmesh_bundle_unref(tmesh_bundle_ref(bundle));
	tmesh_bundle_unref(bundle);
	/* It outlives the bundle. */
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &data, err));
	assert_int_equal(*(uint8_t *)data, 2);
	assert_refused(tmesh_tensor_data(tensor, RW, &data, err), -EPERM, "sealed");
	tmesh_tensor_unref(tensor);
	assert_in_range(unit_open_fds(), 0, fds + 1); /* the context's own */
}

static void test_empty(void **state)
{
	struct tmesh_bundle *bundle, *again;
	char text[1024];
	size_t count;

	assert_ok(tmesh_bundle_create(*state, NULL, 0, NULL, &bundle, err));
	assert_int_equal(tmesh_bundle_count(bundle), 0);
	assert_string_equal(tmesh_bundle_metadata(bundle, NULL), "");
	tmesh_bundle_regions(bundle, &count);
	assert_int_equal(count, 0);
	assert_ok(tmesh_bundle_ref_encode(bundle, TMESH_READ, text, sizeof(text), err));
	assert_ok(tmesh_bundle_open(*state, text, strlen(text), TMESH_READ, &again, err));
	assert_int_equal(tmesh_bundle_count(again), 0);
	tmesh_bundle_unref(again);
	tmesh_bundle_unref(bundle);
}

/* Tensors that overlap, and two handles of one region, stay in one region. */
static void test_shared_storage(void **state)
{
	struct tmesh_tensor *tensor, *view, *again;
	struct tmesh_region *other;
	struct tmesh_layout layout;
	struct tmesh_bundle *bundle;
	struct tmesh_bundle_entry entries[3] = {{.name = "whole"}, {.name = "row"}, {.name = "r"}};
	size_t count;

	assert_ok(
		tmesh_tensor_create(*state, TMESH_INT32, 2, (int64_t[]){4, 4}, NULL, &tensor, err));
	layout = *tmesh_tensor_layout(tensor);
	layout.offset = 16;
	layout.shape[0] = 1;
	assert_ok(tmesh_tensor_view(tensor, &layout, &view, err));
	assert_ok(tmesh_region_derive(tmesh_tensor_region(tensor), TMESH_READ, &other, err));
	entries[0].region = other; /* the weakest handle first */
	entries[0].layout = *tmesh_tensor_layout(tensor);
	entries[1].tensor = view;
	entries[2].tensor = tensor;
	assert_ok(tmesh_bundle_create(*state, entries, 3, NULL, &bundle, err));
	tmesh_bundle_regions(bundle, &count);
	assert_int_equal(count, 1);
	assert_int_equal(tmesh_bundle_bytes(bundle), 64 + 16 + 64);
	assert_ok(tmesh_bundle_tensor(bundle, 1, &again, err));
	assert_int_equal(tmesh_tensor_layout(again)->offset, 16);
	tmesh_tensor_unref(again);
	tmesh_bundle_unref(bundle);
	tmesh_region_unref(other);
	tmesh_tensor_unref(view);
	tmesh_tensor_unref(tensor);
}

static void test_unsealed(void **state)
{
	struct tmesh_bundle_opts opts = {.size = sizeof(opts), .flags = TMESH_BUNDLE_UNSEALED};
	struct tmesh_bundle_entry entry = {.name = "t"};
	struct tmesh_bundle *bundle, *there;
	struct tmesh_tensor *tensor, *t;
	char text[1024];
	int32_t *data;

	assert_ok(tmesh_tensor_create(*state, TMESH_INT32, 1, (int64_t[]){4}, NULL, &tensor, err));
	entry.tensor = tensor;
	assert_ok(tmesh_bundle_create(*state, &entry, 1, &opts, &bundle, err));
	assert_false(tmesh_region_is_sealed(tmesh_tensor_region(tensor)));
	assert_ok(tmesh_bundle_ref_encode(bundle, RW, text, sizeof(text), err));
	assert_ok(tmesh_bundle_open(*state, text, strlen(text), RW, &there, err));
	assert_ok(tmesh_bundle_tensor(there, 0, &t, err));
	assert_ok(tmesh_tensor_data(t, RW, (void **)&data, err));
	data[3] = 77;
	tmesh_tensor_unref(t);
	tmesh_bundle_unref(there);
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, (void **)&data, err));
	assert_int_equal(data[3], 77);
	tmesh_bundle_unref(bundle);
	tmesh_tensor_unref(tensor);
}

/* What cannot be sealed fails with the tensor's name, and leaves the others as they were. */
static void test_seal_refused(void **state)
{
	struct tmesh_bundle_entry entries[2] = {{.name = "mine"}, {.name = "theirs"}};
	struct tmesh_tensor *mine, *theirs;
	struct tmesh_region *weak;
	struct tmesh_bundle *bundle = NULL;

	assert_ok(tmesh_tensor_create(*state, TMESH_INT8, 1, (int64_t[]){4}, NULL, &mine, err));
	assert_ok(tmesh_tensor_create(*state, TMESH_INT8, 1, (int64_t[]){4}, NULL, &theirs, err));
	assert_ok(tmesh_region_derive(tmesh_tensor_region(theirs), RW, &weak, err));
	entries[0].tensor = mine;
	entries[1].region = weak;
	entries[1].layout = *tmesh_tensor_layout(theirs);
	assert_refused(tmesh_bundle_create(*state, entries, 2, NULL, &bundle, err), -EACCES,
		       "theirs");
	assert_null(bundle);
	assert_false(tmesh_region_is_sealed(tmesh_tensor_region(mine)));
	tmesh_region_unref(weak);
	tmesh_tensor_unref(mine);
	tmesh_tensor_unref(theirs);
}

static void test_seal_busy(void **state)
{
	struct tmesh_bundle_entry entry = {.name = "written"};
	struct tmesh_tensor *tensor;
	struct tmesh_region *writer;
	struct tmesh_bundle *bundle = NULL;
	void *addr;

	assert_ok(tmesh_tensor_create(*state, TMESH_INT8, 1, (int64_t[]){4}, NULL, &tensor, err));
	assert_ok(tmesh_region_derive(tmesh_tensor_region(tensor), RW, &writer, err));
	assert_ok(tmesh_region_map(writer, RW, &addr, err));
	entry.tensor = tensor;
	assert_refused(tmesh_bundle_create(*state, &entry, 1, NULL, &bundle, err), -EBUSY,
		       "written");
	assert_null(bundle);
	tmesh_region_unref(writer);
	assert_ok(tmesh_bundle_create(*state, &entry, 1, NULL, &bundle, err));
	tmesh_bundle_unref(bundle);
	tmesh_tensor_unref(tensor);
}

#define BAD_ENTRY(change, code, word)                                                             \
	do {                                                                                      \
		struct tmesh_bundle_entry bad[TENSORS];                                           \
		struct tmesh_bundle *none = NULL;                                                 \
                                                                                                  \
		memcpy(bad, entries, sizeof(bad));                                                \
		change;                                                                           \
		assert_refused(tmesh_bundle_create(*state, bad, TENSORS, NULL, &none, err), code, \
			       word);                                                             \
		assert_null(none);                                                                \
	} while (0)

static void test_bad_entries(void **state)
{
	struct tmesh_bundle_entry entries[TENSORS];
	struct tmesh_region *region = filled(*state, entries);
	char longest[TMESH_BUNDLE_MAX_NAME + 2];
	struct tmesh_tensor *tensor;
	struct tmesh_ctx *other;

	memset(longest, 'n', sizeof(longest));
	longest[TMESH_BUNDLE_MAX_NAME + 1] = '\0';
	assert_ok(tmesh_tensor_wrap(region, &entries[0].layout, &tensor, err));
	assert_ok(tmesh_ctx_open(NULL, &other, err));

	BAD_ENTRY(bad[1].name = NULL, -EINVAL, "1 has no name");
	BAD_ENTRY(bad[1].name = "b.weight", -EINVAL, "are called \"b.weight\"");
	BAD_ENTRY(bad[1].name = "two\nlines", -EINVAL, "control");
	BAD_ENTRY(bad[1].name = "\xff", -EINVAL, "UTF-8");
	BAD_ENTRY(bad[1].name = longest, -EINVAL, "longer");
	BAD_ENTRY(bad[1].type = "\x01", -EINVAL, "type");
	BAD_ENTRY(bad[1].type_ndim = 1, -EINVAL, "type_shape");
	BAD_ENTRY(bad[3].type_ndim = 9, -EINVAL, "type_shape");
	BAD_ENTRY(bad[3].type_ndim = -1, -EINVAL, "type_shape");
	BAD_ENTRY(bad[3].type_shape[0] = -1, -EINVAL, "type_shape");
	BAD_ENTRY((bad[3].type_ndim = 2, bad[3].type_shape[0] = bad[3].type_shape[1] = INT64_MAX),
		  -EINVAL, "type_shape");
	BAD_ENTRY(bad[2].reserved[3] = 1, -EINVAL, "does not know");
	BAD_ENTRY(bad[2].region = NULL, -EINVAL, "no memory");
	BAD_ENTRY(bad[2].tensor = tensor, -EINVAL, "one of them");
	BAD_ENTRY(bad[2].layout.offset = UINT64_MAX, -EOVERFLOW, "größe");
	BAD_ENTRY(bad[2].layout.shape[0] = 1 << 20, -EINVAL, "größe");
	BAD_ENTRY(bad[2].layout.dtype = 99, -EINVAL, "dtype");
	BAD_ENTRY(bad[2].layout.device_type = TMESH_DEVICE_CUDA, -EOPNOTSUPP, "device");
	/* Elements that share their bytes may be more than there are numbers. */
	for (int i = 0; i < 2; i++) {
		entries[i].layout.shape[0] = INT64_MAX / 8;
		entries[i].layout.shape[1] = 1;
		entries[i].layout.strides[0] = 0;
		entries[i].layout.dtype = TMESH_FLOAT64;
	}
	BAD_ENTRY((void)bad, -EOVERFLOW, "2^63");
	{
		struct tmesh_bundle *none = NULL;

		assert_refused(tmesh_bundle_create(other, entries, 1, NULL, &none, err), -EINVAL,
			       "another context");
		assert_refused(tmesh_bundle_create(*state, entries, TMESH_BUNDLE_MAX_TENSORS + 1,
						   NULL, &none, err),
			       -EINVAL, "at most");
	}
	assert_false(tmesh_region_is_sealed(region));
	tmesh_ctx_unref(other);
	tmesh_tensor_unref(tensor);
	tmesh_region_unref(region);
}

static void test_bad_opts(void **state)
{
	struct tmesh_bundle_opts opts = {.size = sizeof(opts), .flags = 1u << 9};
	struct tmesh_bundle *none = NULL;

	assert_refused(tmesh_bundle_create(*state, NULL, 0, &opts, &none, err), -EINVAL, "0x200");
	opts.flags = 0;
	opts.metadata_bytes = 3;
	assert_refused(tmesh_bundle_create(*state, NULL, 0, &opts, &none, err), -EINVAL,
		       "metadata is not");
	opts.metadata = "a\0b";
	assert_refused(tmesh_bundle_create(*state, NULL, 0, &opts, &none, err), -EINVAL, "zero");
	opts.metadata_bytes = (size_t)TMESH_BUNDLE_MAX_METADATA + 1;
	assert_refused(tmesh_bundle_create(*state, NULL, 0, &opts, &none, err), -EINVAL, "at most");
	opts.metadata = NULL;
	opts.metadata_bytes = 0;
	opts.label = "\n";
	assert_refused(tmesh_bundle_create(*state, NULL, 0, &opts, &none, err), -EINVAL, "label");
}

static void test_plan(void **state)
{
	struct tmesh_bundle_entry entries[2] = {{.name = "a"}, {.name = "b"}};
	uint64_t bytes;

	assert_ok(tmesh_bundle_plan(entries, 0, 0, &bytes, err));
	assert_int_equal(bytes, 1);
	entries[0].layout = layout_of(TMESH_INT8, 1, (int64_t[]){3});
	entries[1].layout = layout_of(TMESH_INT8, 1, (int64_t[]){5});
	assert_ok(tmesh_bundle_plan(entries, 2, 10, &bytes, err));
	assert_int_equal(entries[0].layout.offset, 256);
	assert_int_equal(entries[1].layout.offset, 512);
	assert_int_equal(bytes, 517);
	assert_refused(tmesh_bundle_plan(entries, 2, UINT64_MAX - 3, &bytes, err), -EOVERFLOW,
		       "2^64");
	assert_refused(tmesh_bundle_plan(entries, 2, INT64_MAX - 300, &bytes, err), -EOVERFLOW,
		       "2^63");
	entries[0].layout.ndim = 9;
	assert_refused(tmesh_bundle_plan(entries, 2, 0, &bytes, err), -EINVAL, "dimensions");
}

static char *ref_of(struct tmesh_bundle *bundle)
{
	size_t size = tmesh_bundle_ref_size(bundle);
	char *text = malloc(size);

	assert_ok(tmesh_bundle_ref_encode(bundle, TMESH_READ, text, size, err));
	return text;
}

static void test_ref(void **state)
{
	struct tmesh_bundle *bundle = made(*state), *again = NULL;
	char *text = ref_of(bundle), room[64];
	struct tmesh_ref ref;
	struct tmesh_ctx *other;

	assert_ok(tmesh_ctx_open(NULL, &other, err));
	assert_ok(tmesh_bundle_open(other, text, strlen(text), TMESH_READ, &again, err));
	check_all(again);
	tmesh_bundle_unref(again);
	assert_refused(tmesh_bundle_open(other, text, strlen(text), RW, &again, err), -EACCES,
		       "rights");
	assert_refused(tmesh_bundle_ref_encode(bundle, TMESH_READ, room, sizeof(room), err),
		       -ENOSPC, "room");
	/* The other call is named. */
	assert_refused(tmesh_ref_decode(text, strlen(text), &ref, err), -EPROTO,
		       "tmesh_bundle_open");
	tmesh_ctx_unref(other);
	tmesh_bundle_unref(bundle);
	assert_refused(tmesh_bundle_open(*state, text, strlen(text), TMESH_READ, &again, err),
		       -ENOENT, "");
	free(text);
}

/* As many as there can be: the ref is longer than any tensor's, and is read. */
static void test_many_regions(void **state)
{
	static struct tmesh_bundle_entry entries[TMESH_BUNDLE_MAX_REGIONS + 1];
	static char names[TMESH_BUNDLE_MAX_REGIONS + 1][8];
	struct tmesh_tensor *tensors[TMESH_BUNDLE_MAX_REGIONS + 1];
	size_t count = 120;
	struct tmesh_bundle *bundle, *again;
	struct tmesh_ref ref;
	char *text;

	for (size_t i = 0; i < count; i++) {
		assert_ok(
			tmesh_tensor_put(*state, TMESH_INT64, 0, NULL, &i, NULL, &tensors[i], err));
		snprintf(names[i], sizeof(names[i]), "t%zu", i);
		entries[i] = (struct tmesh_bundle_entry){.name = names[i], .tensor = tensors[i]};
	}
	assert_ok(tmesh_bundle_create(*state, entries, count, NULL, &bundle, err));
	text = ref_of(bundle);
	assert_in_range(strlen(text), TMESH_REF_SIZE, TMESH_BUNDLE_MAX_REF);
	assert_refused(tmesh_ref_decode(text, strlen(text), &ref, err), -EPROTO,
		       "tmesh_bundle_open");
	assert_ok(tmesh_bundle_open(*state, text, strlen(text), TMESH_READ, &again, err));
	for (size_t i = 0; i < count; i++) {
		struct tmesh_tensor *tensor;
		int64_t *data;

		assert_ok(tmesh_bundle_tensor(again, i, &tensor, err));
		assert_ok(tmesh_tensor_data(tensor, TMESH_READ, (void **)&data, err));
		assert_int_equal(*data, i);
		tmesh_tensor_unref(tensor);
		tmesh_tensor_unref(tensors[i]);
	}
	tmesh_bundle_unref(again);
	tmesh_bundle_unref(bundle);
	free(text);
}

static char *replaced(const char *text, const char *what, const char *by)
{
	const char *at = strstr(text, what);
	char *made_ = malloc(strlen(text) + strlen(by) + 1);

	assert_non_null(at);
	sprintf(made_, "%.*s%s%s", (int)(at - text), text, by, at + strlen(what));
	return made_;
}

#define BAD_REF(what, by, code, word)                                                              \
	do {                                                                                       \
		struct tmesh_bundle *out = NULL;                                                   \
		char *bad = replaced(text, what, by);                                              \
                                                                                                   \
		assert_refused(tmesh_bundle_open(*state, bad, strlen(bad), TMESH_READ, &out, err), \
			       code, word);                                                        \
		assert_null(out);                                                                  \
		free(bad);                                                                         \
	} while (0)

static void test_bad_refs(void **state)
{
	struct tmesh_bundle *bundle = made(*state), *other = made(*state), *none = NULL;
	char *text = ref_of(bundle), *theirs = ref_of(other), id[32], token[128], big[128];
	struct tmesh_tensor *tensor;
	size_t count;

	snprintf(id, sizeof(id), "%016llx",
		 (unsigned long long)tmesh_region_id(tmesh_bundle_index(other)));
	BAD_REF("\"kind\":\"bundle\"", "\"kind\":\"tensor\"", -EPROTO, "kind");
	BAD_REF("\"kind\":\"bundle\"", "\"dtype\":\"int8\"", -EPROTO, "tmesh_ref_decode");
	BAD_REF("\"v\":1", "\"v\":2", -EPROTO, "version");
	BAD_REF("\"tensors\":4", "\"tensors\":5", -EPROTO, "names 5");
	BAD_REF("\"byte_size\":", "\"byte_size\":1", -EPROTO, "bytes");
	BAD_REF("\"regions\":[", "\"regions\":[1,", -EPROTO, "not an object");
	BAD_REF("\"regions\":[", "\"regions\":[{\"id\":\"0\"},", -EPROTO, "16");
	BAD_REF("\"regions\":[", "\"regions\":[{\"id\":\"0123456789abcdef\"},", -EPROTO,
		"not a token");
	BAD_REF("\"regions\":[", "\"regions\":0,\"r\":[", -EPROTO, "list");
	BAD_REF("\"token\":\"", "\"t\":\"", -EPROTO, "does not open it");
	BAD_REF("\"id\":\"", "\"id\":\"0", -EPROTO, "16");
	BAD_REF("{", "", -EPROTO, "JSON");
	BAD_REF("{", "[{", -EPROTO, "JSON");
	/* The index of another bundle, and its id with this one's token. */
	snprintf(token, sizeof(token), "%.*s", 16, strstr(text, "\"id\":\"") + 6);
	BAD_REF(token, id, -EPROTO, "its token of");
	assert_refused(
		tmesh_bundle_open(*state, text, TMESH_BUNDLE_MAX_REF + 1, TMESH_READ, &none, err),
		-EPROTO, "at most");
	assert_refused(tmesh_bundle_open(*state, text, strlen(text), 0, &none, err), -EINVAL,
		       "READ");
	/* A region of the bundle's where its index should be, and nothing where data should. */
	assert_refused(tmesh_bundle_from_regions(*state, tmesh_bundle_regions(bundle, &count)[0],
						 NULL, 0, &none, err),
		       -EPROTO, "not a bundle's index");
	assert_refused(
		tmesh_bundle_from_regions(*state, tmesh_bundle_index(bundle), NULL, 0, &none, err),
		-EPROTO, "1 data regions, not 0");
	/* Data regions that are too small. */
	assert_ok(tmesh_tensor_create(*state, TMESH_INT8, 1, (int64_t[]){4}, NULL, &tensor, err));
	assert_refused(
		tmesh_bundle_from_regions(*state, tmesh_bundle_index(bundle),
					  (struct tmesh_region *[]){tmesh_tensor_region(tensor)}, 1,
					  &none, err),
		-EPROTO, "has 4 bytes");
	/* A tensor's ref. */
	assert_ok(tmesh_tensor_ref_encode(tensor, TMESH_READ, text, TMESH_REF_SIZE, err));
	assert_refused(tmesh_bundle_open(*state, text, strlen(text), TMESH_READ, &none, err),
		       -EPROTO, "tmesh_tensor_open");
	tmesh_tensor_unref(tensor);
	snprintf(big, sizeof(big), "{\"v\":1,\"kind\":\"bundle\"}");
	assert_refused(tmesh_bundle_open(*state, big, strlen(big), TMESH_READ, &none, err), -EPROTO,
		       "id");
	free(text);
	free(theirs);
	tmesh_bundle_unref(bundle);
	tmesh_bundle_unref(other);
}

static void test_from_regions(void **state)
{
	struct tmesh_bundle *bundle = made(*state), *again, *none = NULL;
	struct tmesh_region *const *regions;
	struct tmesh_ctx *other;
	size_t count;

	regions = tmesh_bundle_regions(bundle, &count);
	assert_ok(tmesh_ctx_open(NULL, &other, err));
	assert_refused(tmesh_bundle_from_regions(other, tmesh_bundle_index(bundle), regions, count,
						 &none, err),
		       -EINVAL, "context");
	assert_refused(tmesh_bundle_from_regions(*state, tmesh_bundle_index(bundle), regions,
						 TMESH_BUNDLE_MAX_REGIONS + 1, &none, err),
		       -EINVAL, "at most");
	tmesh_ctx_unref(other);
	assert_ok(tmesh_bundle_from_regions(*state, tmesh_bundle_index(bundle), regions, count,
					    &again, err));
	tmesh_bundle_unref(bundle);
	check_all(again);
	tmesh_bundle_unref(again);
}

/* An index that anybody may still write to is nobody's. */
static void test_unsealed_index(void **state)
{
	struct tmesh_bundle *bundle, *none = NULL;
	struct tmesh_region *copy;
	struct tmesh_bundle_head head;
	size_t bytes;

	assert_ok(tmesh_bundle_create(*state, NULL, 0, NULL, &bundle, err));
	bytes = tmesh_region_bytes(bundle->index);
	assert_ok(tmesh_region_create(*state, bytes, NULL, &copy, err));
	assert_ok(tmesh_region_write(copy, 0, bundle->data, bytes, err));
	assert_refused(tmesh_bundle_from_regions(*state, copy, NULL, 0, &none, err), -EPROTO,
		       "not sealed");
	/* Nor is one that is longer than its region. */
	memcpy(&head, bundle->data, sizeof(head));
	head.bytes++;
	assert_ok(tmesh_region_write(copy, 0, &head, sizeof(head), err));
	assert_ok(tmesh_region_seal(copy, err));
	assert_refused(tmesh_bundle_from_regions(*state, copy, NULL, 0, &none, err), -EPROTO,
		       "not a bundle's index");
	tmesh_region_unref(copy);
	tmesh_bundle_unref(bundle);
}

/* Every byte of an index, changed in turn, gives an error or a bundle that is whole. */
static void test_damaged_index(void **state)
{
	struct tmesh_bundle *bundle = made(*state);
	size_t bytes = bundle->view.head->bytes, refused = 0;
	uint64_t sizes[] = {tmesh_region_bytes(bundle->regions[0])};
	uint8_t *copy = malloc(bytes);
	struct tmesh_bundle_view view;
	struct tmesh_error error, *err = &error;

	for (size_t at = 0; at < bytes; at++) {
		static const uint8_t flips[] = {0x01, 0x80, 0xff};

		for (size_t f = 0; f < sizeof(flips); f++) {
			memcpy(copy, bundle->data, bytes);
			copy[at] ^= flips[f];
			if (tmesh_bundle_index_check(copy, bytes, sizes, 1, &view, err)) {
				assert_int_equal(err->code, -EPROTO);
				refused++;
			}
		}
	}
	for (size_t cut = 0; cut < bytes; cut++) {
		memcpy(copy, bundle->data, cut);
		assert_int_equal(tmesh_bundle_index_check(copy, cut, sizes, 1, &view, err),
				 -EPROTO);
	}
	assert_in_range(refused, bytes, 3 * bytes);
	free(copy);
	tmesh_bundle_unref(bundle);
}

#define DAMAGE(change, word)                                                                \
	do {                                                                                \
		memcpy(copy, bundle->data, bytes);                                          \
		change;                                                                     \
		assert_refused(tmesh_bundle_index_check(copy, bytes, sizes, 1, &view, err), \
			       -EPROTO, word);                                              \
	} while (0)

/* What a check each is there for. */
static void test_damage_by_name(void **state)
{
	struct tmesh_bundle *bundle = made(*state);
	size_t bytes = bundle->view.head->bytes;
	uint64_t sizes[] = {tmesh_region_bytes(bundle->regions[0])};
	uint8_t *copy = malloc(bytes);
	struct tmesh_bundle_head *head = (void *)copy;
	uint64_t *regions = (void *)(head + 1);
	struct tmesh_bundle_row *rows = (void *)(regions + 1);
	uint32_t *order = (void *)(rows + TENSORS);
	char *text = (char *)(order + TENSORS);
	char *metadata = text + bundle->view.head->text_bytes;
	struct tmesh_bundle_view view;

	DAMAGE(head->magic = 0, "begin");
	DAMAGE(head->version = 2, "version 2");
	DAMAGE(head->tensors = TMESH_BUNDLE_MAX_TENSORS + 1, "limits");
	DAMAGE(head->tensors = 3, "length");
	DAMAGE(head->regions = TMESH_BUNDLE_MAX_REGIONS + 1, "limits");
	DAMAGE((head->regions = 2, head->text_bytes -= 8), "2 data regions");
	DAMAGE(head->text_bytes = UINT64_MAX, "limits");
	DAMAGE(head->metadata_bytes = UINT64_MAX, "limits");
	DAMAGE(head->pad[2] = 1, "does not know");
	DAMAGE(regions[0]++, "data region 0 has");
	DAMAGE(rows[1].name++, "tensor 1");
	DAMAGE(rows[1].name_bytes = UINT32_MAX, "tensor 1");
	DAMAGE(rows[1].type_bytes = UINT32_MAX, "tensor 1");
	DAMAGE(text[0] = '\n', "tensor 0");
	DAMAGE(text[2] = '\0', "tensor 0");
	DAMAGE(rows[0].region = 1, "b.weight");
	DAMAGE(rows[0].pad = 1, "b.weight");
	DAMAGE(rows[0].ndim = 9, "b.weight");
	DAMAGE(rows[0].ndim = UINT32_MAX, "b.weight");
	DAMAGE(rows[0].dtype = 0, "dtype");
	DAMAGE(rows[0].dtype = UINT32_MAX, "b.weight");
	DAMAGE(rows[0].shape[2] = 1, "b.weight");
	DAMAGE(rows[0].strides[7] = 1, "b.weight");
	DAMAGE(rows[0].type_shape[0] = 1, "b.weight");
	DAMAGE(rows[0].type_ndim = 1, "b.weight");
	DAMAGE(rows[3].type_ndim = 9, "blocks");
	DAMAGE(rows[3].type_shape[0] = -5, "blocks");
	DAMAGE(rows[0].offset = UINT64_MAX, "b.weight");
	DAMAGE(rows[0].offset = sizes[0], "b.weight");
	DAMAGE(rows[0].shape[0] = 1 << 20, "b.weight");
	DAMAGE(order[0] = TENSORS, "order");
	DAMAGE(order[0] = order[1], "twice");
	DAMAGE((order[0] ^= order[1], order[1] ^= order[0], order[0] ^= order[1]), "order");
	DAMAGE(metadata[0] = '\xff', "metadata");
	DAMAGE(metadata[3] = '\0', "metadata");
	DAMAGE(metadata[bundle->view.head->metadata_bytes] = 'x', "metadata");
	DAMAGE((head->text_bytes++, head->metadata_bytes--), "text that belongs to no tensor");
	DAMAGE(({
		       for (int i = 0; i < 3; i++) {
			       rows[i].shape[0] = INT64_MAX / 4;
			       rows[i].shape[1] = 1;
			       rows[i].strides[0] = 0;
		       }
	       }),
	       "2^63");
	free(copy);
	tmesh_bundle_unref(bundle);
}

static void test_socket(void **state)
{
	struct tmesh_bundle *bundle = made(*state), *again = NULL;
	struct tmesh_region *region = NULL;
	static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
	struct tmesh_ctx *other;
	int ends[2];

	assert_ok(tmesh_ctx_open(NULL, &other, err));
	for (int i = 0; i < 2; i++) {
		assert_int_equal(socketpair(AF_UNIX, types[i] | SOCK_CLOEXEC, 0, ends), 0);
		assert_ok(tmesh_bundle_send(bundle, ends[0], TMESH_READ, err));
		assert_ok(tmesh_bundle_recv(other, ends[1], &again, err));
		check_all(again);
		tmesh_bundle_unref(again);
		/* Who takes the wrong call is told the right one. */
		assert_ok(tmesh_bundle_send(bundle, ends[0], TMESH_READ, err));
		assert_refused(tmesh_region_recv(other, ends[1], &region, err), -EPROTO,
			       "tmesh_bundle_recv");
		assert_refused(tmesh_bundle_recv(other, ends[1], &again, err), -EPROTO,
			       "tmesh_region_recv");
		close(ends[0]);
		close(ends[1]);
	}
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	close(ends[1]);
	assert_refused(tmesh_bundle_send(bundle, ends[0], TMESH_READ, err), -EPIPE, "nobody");
	assert_refused(tmesh_bundle_recv(other, ends[0], &again, err), -EPIPE, "nobody");
	close(ends[0]);
	assert_int_equal(pipe(ends), 0);
	assert_refused(tmesh_bundle_send(bundle, ends[1], TMESH_READ, err), -ENOTSOCK, "ocket");
	close(ends[0]);
	close(ends[1]);
	tmesh_ctx_unref(other);
	tmesh_bundle_unref(bundle);
}

/* Heads that lie. */
static void test_bad_heads(void **state)
{
	const struct tmesh_wire_bundle good = {
		.magic = TMESH_MAGIC_BUNDLE,
		.version = TMESH_WIRE_VERSION,
		.backend = tmesh_ctx_backend(*state),
	};
	struct tmesh_wire_bundle heads[] = {good, good, good, good, good};
	struct tmesh_bundle *none = NULL;
	int ends[2];

	heads[0].magic = 1;
	heads[1].version++;
	heads[2].regions = TMESH_BUNDLE_MAX_REGIONS + 1;
	heads[3].pad[5] = 1;
	heads[4].backend ^= 3;
	for (size_t i = 0; i < 5; i++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
		assert_int_equal(write(ends[0], &heads[i], sizeof(heads[i])), sizeof(heads[i]));
		assert_refused(tmesh_bundle_recv(*state, ends[1], &none, err),
			       i == 4 ? -EOPNOTSUPP : -EPROTO, "bundle");
		close(ends[0]);
		close(ends[1]);
	}
}

/* Another process, which has nothing but the text. */
static void test_process(void **state)
{
	struct tmesh_bundle *bundle = made(*state);
	char *text = ref_of(bundle);
	int status;
	pid_t pid = fork();

	if (!pid) {
		struct tmesh_bundle *again;
		struct tmesh_ctx *ctx;

		if (tmesh_ctx_open(NULL, &ctx, NULL) ||
		    tmesh_bundle_open(ctx, text, strlen(text), TMESH_READ, &again, NULL))
			unit_leave(1);
		check_all(again);
		/* What was inherited is not given on. */
		unit_leave(tmesh_bundle_ref_encode(bundle, TMESH_READ, text, 1024, NULL) != -EPERM);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	free(text);
	tmesh_bundle_unref(bundle);
}

static void test_listed(void **state)
{
	struct tmesh_bundle *bundle = made(*state);
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_ref ref;

	assert_ok(tmesh_region_info(tmesh_bundle_index(bundle), &info, err));
	assert_string_equal(info.label, "model");
	assert_non_null(strstr(info.description, "\"kind\":\"bundle\""));
	assert_non_null(strstr(info.description, "\"tensors\":4"));
	assert_null(strstr(info.description, "token"));
	assert_refused(tmesh_ref_decode(info.description, strlen(info.description), &ref, err),
		       -EPROTO, "bundle");
	tmesh_bundle_unref(bundle);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_create),	       cmocka_unit_test(test_empty),
		cmocka_unit_test(test_shared_storage), cmocka_unit_test(test_unsealed),
		cmocka_unit_test(test_seal_refused),   cmocka_unit_test(test_seal_busy),
		cmocka_unit_test(test_bad_entries),    cmocka_unit_test(test_bad_opts),
		cmocka_unit_test(test_plan),	       cmocka_unit_test(test_ref),
		cmocka_unit_test(test_many_regions),   cmocka_unit_test(test_bad_refs),
		cmocka_unit_test(test_from_regions),   cmocka_unit_test(test_unsealed_index),
		cmocka_unit_test(test_damaged_index),  cmocka_unit_test(test_damage_by_name),
		cmocka_unit_test(test_socket),	       cmocka_unit_test(test_bad_heads),
		cmocka_unit_test(test_process),	       cmocka_unit_test(test_listed),
	};

	return cmocka_run_group_tests(tests, unit_ctx_setup, unit_ctx_teardown);
}
