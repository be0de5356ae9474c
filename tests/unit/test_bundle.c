// SPDX-License-Identifier: MIT
/* Bundles: the parts of a bundle come out by ref, socket and regions; everything else is refused.
 */
#include "bundles.h"

UNIT(test_create)
{
	unsigned int fds = unit_open_fds();
	struct tmesh_bundle *bundle = made(*state);
	struct tmesh_tensor *tensor;
	void *data;

	check_all(bundle);
	assert_ok(tmesh_bundle_tensor(bundle, 1, &tensor, err));
	tmesh_bundle_unref(tmesh_bundle_ref(bundle));
	tmesh_bundle_unref(NULL);
	tmesh_bundle_unref(bundle);
	/* It outlives the bundle. */
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &data, err));
	assert_int_equal(*(uint8_t *)data, 2);
	assert_refused(tmesh_tensor_data(tensor, RW, &data, err), -EPERM, "sealed");
	tmesh_tensor_unref(tensor);
	assert_in_range(unit_open_fds(), 0, fds + 1); /* the context's own */
}

/* Tensors that overlap, and two handles of one region, stay in one region. */
UNIT(test_shared_storage)
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

/* A failed seal names the tensor, and leaves the others as they were. */
UNIT(test_seal_refused)
{
	struct tmesh_bundle_entry entries[2] = {{.name = "mine"}, {.name = "theirs"}};
	struct tmesh_tensor *mine, *theirs;
	struct tmesh_region *weak;
	struct tmesh_bundle *bundle = NULL;
	void *page;

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
	/* Another handle writes to it. */
	if (!unit_on_kernel()) {
		page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
			    tmesh_region_fd(tmesh_tensor_region(theirs)), 0);
		assert_true(page != MAP_FAILED);
		entries[1].region = tmesh_tensor_region(theirs);
		assert_refused(tmesh_bundle_create(*state, entries, 2, NULL, &bundle, err), -EBUSY,
			       "tensor \"theirs\": ");
		assert_null(bundle);
		munmap(page, 4096);
	}
	tmesh_region_unref(weak);
	tmesh_tensor_unref(mine);
	tmesh_tensor_unref(theirs);
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

UNIT(test_bad_entries)
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

UNIT(test_bad_opts)
{
	struct tmesh_bundle_opts opts = {.size = sizeof(opts), .flags = 1u << 9};
	struct tmesh_bundle *none = NULL;

	assert_refused(tmesh_bundle_create(*state, NULL, 0, &opts, &none, err), -EINVAL, "0x200");
	opts.size = 1;
	assert_refused(tmesh_bundle_create(*state, NULL, 0, &opts, &none, err), -EINVAL, "size");
	opts.size = sizeof(opts);
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

UNIT(test_plan)
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
	/* So far off that the end would wrap around. */
	entries[0].layout = layout_of(TMESH_INT8, 1, (int64_t[]){4096});
	assert_refused(tmesh_bundle_plan(entries, 1, UINT64_MAX - 1023, &bytes, err), -EOVERFLOW,
		       "2^63");
	entries[0].layout.ndim = 9;
	assert_refused(tmesh_bundle_plan(entries, 2, 0, &bytes, err), -EINVAL, "dimensions");
}

UNIT(test_ref)
{
	struct tmesh_bundle *bundle = made(*state), *again = NULL;
	char *text = ref_of(bundle), room[64];
	struct tmesh_ref ref;
	struct tmesh_ctx *other = new_ctx();

	assert_ok(tmesh_bundle_open(other, text, strlen(text), TMESH_READ, &again, err));
	check_all(again);
	tmesh_bundle_unref(again);
	/* No token would give it: memfds know. The module sees the token alone. */
	assert_refused(tmesh_bundle_open(other, text, strlen(text), RW, &again, err),
		       unit_on_kernel() ? -EACCES : -EPERM, "no process can write to it");
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
UNIT(test_many_regions)
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

UNIT(test_from_regions)
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

/* More regions than there may be; none of these is ever touched. */
UNIT(test_too_many_regions)
{
	enum {
		COUNT = TMESH_BUNDLE_MAX_REGIONS + 1
	};
	struct tmesh_bundle_entry *entries = calloc(COUNT, sizeof(*entries));
	struct tmesh_region *regions = calloc(COUNT, sizeof(*regions)), *real;
	char(*names)[8] = calloc(COUNT, sizeof(*names));
	struct tmesh_bundle *none = NULL;

	assert_ok(tmesh_region_create(*state, 16, NULL, &real, err));
	for (uint32_t i = 0; i < COUNT; i++) {
		memcpy(&regions[i], real, sizeof(*real));
		regions[i].id += i;
		snprintf(names[i], sizeof(names[i]), "t%u", i);
		entries[i].name = names[i];
		entries[i].region = &regions[i];
		entries[i].layout = layout_of(TMESH_INT8, 0, NULL);
	}
	assert_refused(tmesh_bundle_create(*state, entries, COUNT, NULL, &none, err), -EINVAL,
		       "more than 1024 regions");
	tmesh_region_unref(real);
	free(entries);
	free(regions);
	free(names);
}

/* More rights than a handle has go neither into a ref nor to a peer, who gets no part of it. */
UNIT(test_rights_shrink)
{
	const uint32_t wanted[] = {RW, TMESH_READ | TMESH_MANAGE};
	struct tmesh_bundle *bundles[3] = {made_so(*state, TMESH_BUNDLE_UNSEALED), made(*state)};
	struct tmesh_bundle *weak, *again;
	int ends[2];

	assert_ok(tmesh_bundle_create(*state, NULL, 0, NULL, &bundles[2], err));
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	for (int i = 0; i < 3; i++) {
		/* The index of the one without data is all that can say no. */
		struct tmesh_bundle *bundle = bundles[i];
		uint32_t rights = wanted[i ? 1 : 0];
		char *text = ref_of(bundle);

		assert_ok(tmesh_bundle_open(*state, text, strlen(text), TMESH_READ, &weak, err));
		assert_refused(tmesh_bundle_ref_encode(weak, rights, text,
						       tmesh_bundle_ref_size(weak), err),
			       -EACCES, "");
		assert_refused(tmesh_bundle_open(*state, text, strlen(text), 0, &again, err),
			       -EINVAL, "READ");
		assert_refused(tmesh_bundle_send(weak, ends[0], rights, err), -EACCES, "send");
		assert_int_equal(recv(ends[1], text, 1, MSG_DONTWAIT), -1);
		assert_int_equal(errno, EAGAIN);
		tmesh_bundle_unref(weak);
		tmesh_bundle_unref(bundle);
		free(text);
	}
	close(ends[0]);
	close(ends[1]);
}

UNIT(test_socket)
{
	struct tmesh_bundle *bundle = made(*state), *again = NULL;
	struct tmesh_region *region = NULL;
	static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
	struct tmesh_ctx *other = new_ctx();
	int ends[2];

	for (int i = 0; i < 2; i++) {
		assert_int_equal(socketpair(AF_UNIX, types[i] | SOCK_CLOEXEC, 0, ends), 0);
		/* Nothing has been sent of what cannot be as it is wanted. */
		assert_refused(tmesh_bundle_send(bundle, ends[0], RW, err), -EPERM,
			       "could not write");
		assert_ok(tmesh_bundle_send(bundle, ends[0], TMESH_READ, err));
		assert_ok(tmesh_bundle_recv(other, ends[1], &again, err));
		check_all(again);
		tmesh_bundle_unref(again);
		/* The error of a wrong call names the right one. */
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
	assert_refused(tmesh_bundle_send(bundle, ends[0], TMESH_READ, err), -EPIPE,
		       "the other end of the socket is closed");
	assert_refused(tmesh_bundle_recv(other, ends[0], &again, err), -EPIPE,
		       "the other end of the socket is closed");
	close(ends[0]);
	assert_int_equal(pipe(ends), 0);
	assert_refused(tmesh_bundle_send(bundle, ends[1], TMESH_READ, err), -ENOTSOCK, "ocket");
	assert_refused(tmesh_bundle_recv(other, ends[0], &again, err), -ENOTSOCK, "ocket");
	assert_refused(tmesh_bundle_recv(other, -1, &again, err), -EBADF, "not an open socket");
	close(ends[0]);
	close(ends[1]);
	tmesh_ctx_unref(other);
	tmesh_bundle_unref(bundle);
}

UNIT(test_listed)
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

UNIT_MAIN("tests", unit_ctx_setup, unit_ctx_teardown)
