// SPDX-License-Identifier: MIT
/* Bundles of strangers: refs, indexes, regions and messages that lie, or are damaged. */
#include "bundles.h"
#include "wire.h"

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

UNIT(test_bad_refs)
{
	struct tmesh_bundle *bundle = made(*state), *other = made(*state), *none = NULL;
	char *text = ref_of(bundle), *theirs = ref_of(other), id[32], token[128], big[128];
	char many[2 * TMESH_BUNDLE_MAX_REGIONS + 64];
	struct tmesh_tensor *tensor;
	size_t count;

	snprintf(id, sizeof(id), "%016llx",
		 (unsigned long long)tmesh_region_id(tmesh_bundle_index(other)));
	BAD_REF("\"kind\":\"bundle\"", "\"kind\":\"tensor\"", -EPROTO, "kind");
	BAD_REF("\"kind\":\"bundle\"", "\"dtype\":\"int8\"", -EPROTO, "tmesh_ref_decode");
	BAD_REF("\"v\":1", "\"v\":2", -EPROTO, "version");
	BAD_REF("\"id\"", "\"i\"", -EPROTO, "has no \"id\"");
	BAD_REF("\"tensors\"", "\"t\"", -EPROTO, "has no \"tensors\"");
	BAD_REF("\"tensors\":4", "\"tensors\":5", -EPROTO, "names 5");
	BAD_REF("\"byte_size\":", "\"byte_size\":1", -EPROTO, "bytes");
	BAD_REF("\"regions\":[", "\"regions\":[1,", -EPROTO, "not an object");
	BAD_REF("\"regions\":[", "\"regions\":[{\"id\":\"0\"},", -EPROTO, "16");
	BAD_REF("\"regions\":[", "\"regions\":[{\"id\":\"0123456789abcdef\"},", -EPROTO,
		"not a token");
	BAD_REF("\"regions\":[", "\"regions\":0,\"r\":[", -EPROTO, "list");
	BAD_REF("\"token\":\"", "\"t\":\"", -EPROTO, "does not open it");
	BAD_REF("\"id\":\"", "\"id\":\"0", -EPROTO, "16");
	BAD_REF("{", "", -EPROTO, "not JSON");
	BAD_REF("{", "[{", -EPROTO, "not JSON");
	assert_refused(tmesh_bundle_open(*state, "[]", 2, TMESH_READ, &none, err), -EPROTO,
		       "is a JSON object");
	strcpy(many, "\"regions\":[0");
	while (strlen(many) < sizeof("\"regions\":[0") - 1 + 2 * TMESH_BUNDLE_MAX_REGIONS)
		strcat(many, ",0");
	BAD_REF("\"regions\":[{", strcat(many, ",{"), -EPROTO, "at most");
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

/* An index that a process may still write to is refused. */
UNIT(test_unsealed_index)
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

/* A sealed region of @bytes that begins as the head says. */
static struct tmesh_region *sealed_head(struct tmesh_ctx *ctx, const struct tmesh_bundle_head *head,
					size_t bytes)
{
	struct tmesh_region *region = new_region(ctx, bytes);

	assert_ok(tmesh_region_write(region, 0, head, bytes < sizeof(*head) ? bytes : sizeof(*head),
				     err));
	assert_ok(tmesh_region_seal(region, err));
	return region;
}

/* If a region cannot be an index, its head alone is read. */
UNIT(test_no_index)
{
	struct tmesh_bundle_head head = {.magic = TMESH_MAGIC_BUNDLE, .bytes = sizeof(head) - 1};
	struct tmesh_bundle *none = NULL;
	struct tmesh_region *region;

	region = sealed_head(*state, &head, sizeof(head) - 1);
	assert_refused(tmesh_bundle_from_regions(*state, region, NULL, 0, &none, err), -EPROTO,
		       "too short");
	tmesh_region_unref(region);
	region = sealed_head(*state, &head, 4096);
	assert_refused(tmesh_bundle_from_regions(*state, region, NULL, 0, &none, err), -EPROTO,
		       "the region is not a bundle's index");
	tmesh_region_unref(region);
	head.bytes = 1 << 20;
	region = sealed_head(*state, &head, 4096);
	assert_refused(tmesh_bundle_from_regions(*state, region, NULL, 0, &none, err), -EPROTO,
		       "the region is not a bundle's index");
	tmesh_region_unref(region);
	head.bytes = 4096;
	head.magic = TMESH_MAGIC_REGION;
	region = sealed_head(*state, &head, 4096);
	assert_refused(tmesh_bundle_from_regions(*state, region, NULL, 0, &none, err), -EPROTO,
		       "the region is not a bundle's index");
	tmesh_region_unref(region);
	/* The module has no memory that is not there. */
	if (unit_on_kernel())
		return;
	head.magic = TMESH_MAGIC_BUNDLE;
	head.bytes = TMESH_BUNDLE_MAX_INDEX + 1;
	region = sealed_head(*state, &head, head.bytes);
	assert_refused(tmesh_bundle_from_regions(*state, region, NULL, 0, &none, err), -EPROTO,
		       "the region is not a bundle's index");
	tmesh_region_unref(region);
}

/* Every byte of an index, changed in turn, gives an error or a bundle that is whole. */
UNIT(test_damaged_index)
{
	struct tmesh_bundle *bundle = made(*state);
	size_t bytes = bundle->view.head->bytes, refused = 0;
	uint64_t sizes[] = {tmesh_region_bytes(bundle->regions[0])};
	uint8_t *copy = malloc(bytes);
	struct tmesh_bundle_view view;
	struct tmesh_error error;

	for (size_t at = 0; at < bytes; at++) {
		static const uint8_t flips[] = {0x01, 0x80, 0xff};

		for (size_t f = 0; f < sizeof(flips); f++) {
			memcpy(copy, bundle->data, bytes);
			copy[at] ^= flips[f];
			if (tmesh_bundle_index_check(copy, bytes, sizes, 1, &view, &error)) {
				assert_int_equal(error.code, -EPROTO);
				refused++;
			}
		}
	}
	for (size_t cut = 0; cut < bytes; cut++) {
		memcpy(copy, bundle->data, cut);
		assert_int_equal(tmesh_bundle_index_check(copy, cut, sizes, 1, &view, &error),
				 -EPROTO);
	}
	assert_in_range(refused, bytes, 3 * bytes);
	/* Whole, but for what the index says of its length. */
	memcpy(copy, bundle->data, bytes);
	assert_refused(tmesh_bundle_index_check(copy, bytes - 1, sizes, 1, &view, err), -EPROTO,
		       "length");
	assert_refused(tmesh_bundle_index_check(copy, sizeof(struct tmesh_bundle_head) - 1, sizes,
						1, &view, err),
		       -EPROTO, "too short");
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

/* Each case is there for one check. */
UNIT(test_damage_by_name)
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
	for (int i = 0; i < 3; i++)
		DAMAGE(head->pad[i] = 1, "does not know");
	DAMAGE(regions[0]++, "data region 0 has");
	DAMAGE(rows[1].name++, "tensor 1");
	DAMAGE(rows[1].name_bytes = UINT32_MAX, "tensor 1");
	DAMAGE(rows[1].type_bytes = UINT32_MAX, "tensor 1");
	DAMAGE(text[0] = '\n', "tensor 0");
	DAMAGE(text[2] = '\0', "tensor 0");
	/* The place after the name, and after the type, which is "". */
	DAMAGE(text[8] = 'x', "tensor 0");
	DAMAGE(text[9] = 'x', "tensor 0");
	DAMAGE(text[rows[3].name + sizeof("blocks")] = '\x01', "tensor 3");
	/* A type that goes on into the metadata. */
	DAMAGE((text[head->text_bytes - 1] = 'x', metadata[0] = '\0', rows[3].type_bytes++),
	       "tensor 3");
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

/* An index of one tensor, of that name and type, in a region of one byte. */
static uint8_t *index_of(const char *name, const char *type, size_t *bytes)
{
	struct tmesh_bundle_entry entry = {.name = name, .type = type};
	void *data;

	entry.layout = layout_of(TMESH_INT8, 0, NULL);
	assert_ok(tmesh_bundle_index_write(&entry, (uint32_t[]){0}, 1, (uint64_t[]){1}, 1, "", 0,
					   &data, bytes, err));
	return data;
}

/* The byte between name and type moves: one of them is then longer than any may be. */
UNIT(test_long_names)
{
	for (int i = 0; i < 2; i++) {
		char longest[TMESH_BUNDLE_MAX_NAME + 1];
		struct tmesh_bundle_view view;
		struct tmesh_bundle_row *row;
		uint32_t *order;
		size_t bytes;
		uint8_t *data;
		char *text;

		memset(longest, 'n', TMESH_BUNDLE_MAX_NAME);
		longest[TMESH_BUNDLE_MAX_NAME] = '\0';
		data = index_of(i ? "long" : longest, i ? longest : "type", &bytes);
		assert_ok(tmesh_bundle_index_check(data, bytes, (uint64_t[]){1}, 1, &view, err));
		row = (struct tmesh_bundle_row *)view.rows;
		order = (uint32_t *)view.order;
		text = (char *)view.text;
		/* An order of an odd number of names has room left. */
		order[1] = 1;
		assert_refused(
			tmesh_bundle_index_check(data, bytes, (uint64_t[]){1}, 1, &view, err),
			-EPROTO, "does not know");
		order[1] = 0;
		text[row->name_bytes] = 'x';
		row->name_bytes += i ? -1u : 1;
		row->type_bytes -= i ? -1u : 1;
		text[row->name_bytes] = '\0';
		assert_refused(
			tmesh_bundle_index_check(data, bytes, (uint64_t[]){1}, 1, &view, err),
			-EPROTO, "tensor 0");
		free(data);
	}
}

/* Handles of one file that claim the same id and two lengths: each tensor is measured by its own.
 */
UNIT(test_two_lengths)
{
	struct tmesh_wire_region wire = {
		.magic = TMESH_MAGIC_REGION,
		.version = TMESH_WIRE_VERSION,
		.backend = TMESH_BACKEND_MEMFD,
		.rights = TMESH_READ,
		.kind = TMESH_KIND_FOREIGN,
		.id = 1,
	};
	struct tmesh_bundle_opts opts = {.size = sizeof(opts), .flags = TMESH_BUNDLE_UNSEALED};
	struct tmesh_bundle_entry entries[2] = {{.name = "a"}, {.name = "b"}};
	int ends[2], fd = memfd_create("two", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct tmesh_bundle *bundle;
	size_t count;

	if (unit_on_kernel())
		skip();
	assert_int_equal(ftruncate(fd, 8192), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	for (uint32_t i = 0; i < 2; i++) {
		wire.bytes = 4096 * (i + 1);
		assert_int_equal(tmesh_wire_send(ends[0], &wire, sizeof(wire), &fd, 1, 0), 0);
		assert_ok(tmesh_region_recv(*state, ends[1], &entries[i].region, err));
		entries[i].layout = layout_of(TMESH_INT8, 1, (int64_t[]){(int64_t)wire.bytes});
	}
	assert_ok(tmesh_bundle_create(*state, entries, 2, &opts, &bundle, err));
	tmesh_bundle_regions(bundle, &count);
	assert_int_equal(count, 2);
	tmesh_bundle_unref(bundle);
	for (int i = 0; i < 2; i++) {
		tmesh_region_unref(entries[i].region);
		close(ends[i]);
	}
	close(fd);
}

/* A refused list of regions leaves none of them open, and half a head is refused. */
UNIT(test_bad_parts)
{
	struct tmesh_bundle *bundle = made(*state), *empty, *none = NULL;
	struct tmesh_wire_bundle head = {
		.magic = TMESH_MAGIC_BUNDLE,
		.version = TMESH_WIRE_VERSION,
		.backend = tmesh_ctx_backend(*state),
		.regions = 1,
	};
	unsigned int before;
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	assert_ok(tmesh_bundle_create(*state, NULL, 0, NULL, &empty, err));
	before = unit_open_fds();
	/* A shorter region than the index says. */
	assert_int_equal(send(ends[0], &head, sizeof(head), 0), sizeof(head));
	assert_ok(tmesh_region_send(bundle->index, ends[0], TMESH_READ, err));
	assert_ok(tmesh_region_send(empty->index, ends[0], TMESH_READ, err));
	assert_refused(tmesh_bundle_recv(*state, ends[1], &none, err), -EPROTO, "data region 0");
	assert_int_equal(unit_open_fds(), before);
	assert_int_equal(send(ends[0], "hello", 5, 0), 5);
	assert_refused(tmesh_bundle_recv(*state, ends[1], &none, err), -EPROTO, "was expected");
	assert_null(none);
	close(ends[0]);
	close(ends[1]);
	tmesh_bundle_unref(empty);
	tmesh_bundle_unref(bundle);
}

/* Heads that lie. */
UNIT(test_bad_heads)
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

UNIT_MAIN("tests", unit_ctx_setup, unit_ctx_teardown)
