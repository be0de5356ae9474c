/* SPDX-License-Identifier: MIT */
/*
 * Bundle: named tensors under one ref: a model's weights, an adapter, a batch. One open and one
 * hand-over for all of them. See tmesh/tmesh.h for the conventions of all calls. Since 0.1.
 * Maturity: stable.
 *
 * A bundle is an index region and data regions. The index has each tensor's name, layout and data
 * region. If its elements have a type that is no dtype, the index also has that type's name and the
 * shape in such elements. It also holds metadata: UTF-8 text, usually JSON, kept as given. Tensors
 * keep their order, and tensors that share memory go on sharing it.
 *
 * A bundle never changes once it exists, and its index is always sealed. Its data regions are
 * sealed too unless TMESH_BUNDLE_UNSEALED says otherwise. An index is never trusted: all of it is
 * checked, against the data regions as they are, before a bundle exists.
 *
 * A model's loader does this:
 *
 *     struct tmesh_bundle_entry entries[] = {{.name = "weight", .layout = {...}}, ...};
 *
 *     tmesh_bundle_plan(entries, count, 0, &bytes, &err);       offsets, and the bytes of all
 *     tmesh_region_create(ctx, bytes, &opts, &region, &err);
 *     tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &memory, &err);
 *     ... fill memory + entries[i].layout.offset; set entries[i].region = region ...
 *     tmesh_region_unmap(region, TMESH_READ | TMESH_WRITE);
 *     tmesh_bundle_create(ctx, entries, count, &bundle_opts, &bundle, &err);       seals
 */
#ifndef TMESH_BUNDLE_H
#define TMESH_BUNDLE_H

#include <tmesh/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_bundle;

#define TMESH_BUNDLE_MAX_TENSORS (1u << 20)
/* Data regions. Each costs a descriptor wherever the bundle is open. */
#define TMESH_BUNDLE_MAX_REGIONS 1024
/* Bytes of a name or of a type's name, of the metadata, and of the longest bundle ref. */
#define TMESH_BUNDLE_MAX_NAME 4096
#define TMESH_BUNDLE_MAX_METADATA (256u << 20)
#define TMESH_BUNDLE_MAX_REF (160u << 10)

/*
 * One tensor of a bundle. To make a bundle set @name and either @tensor or @region and @layout;
 * everything else may stay zero.
 */
struct tmesh_bundle_entry {
	const char *name; /* UTF-8 without control characters; no two tensors have the same */
	struct tmesh_tensor *tensor; /* its region and layout are taken; read back: NULL */
	struct tmesh_region *region;
	struct tmesh_layout layout;
	/*
	 * For elements that no dtype describes, such as blocks of quantised weights. @layout has
	 * their bytes (dtype uint8), @type their type's name ("q4_0"), and @type_shape the number
	 * of such elements. NULL and 0: the dtype is the type.
	 */
	const char *type;
	int32_t type_ndim;
	int64_t type_shape[TMESH_MAX_DIMS];
	uint64_t reserved[4]; /* 0 */
};

/*
 * Give contiguous places to @count entries, of which only layout.dtype, .ndim and .shape are set.
 * They follow each other from byte @start of a region, each at a multiple of TMESH_ALIGN. Fills
 * strides and offset; @bytes becomes the end of the last one, at least 1.
 * Return: 0; -EINVAL, -EOVERFLOW as tmesh_layout_contiguous().
 */
int tmesh_bundle_plan(struct tmesh_bundle_entry *entries, size_t count, uint64_t start,
		      uint64_t *bytes, struct tmesh_error *err);

enum tmesh_bundle_flags {
	TMESH_BUNDLE_UNSEALED = 1 << 0, /* leave the data regions as they are */
	TMESH_BUNDLE_GID = 1 << 1,	/* opts->gid is given */
};

struct tmesh_bundle_opts {
	size_t size;	      /* sizeof(struct tmesh_bundle_opts) */
	uint32_t flags;	      /* enum tmesh_bundle_flags */
	uint32_t mode;	      /* of the index region, as in tmesh_region_opts: give it what the data
			       * regions have */
	gid_t gid;	      /* group of the index region */
	const char *label;    /* of the index region */
	const char *metadata; /* UTF-8 without zero bytes; NULL: none */
	size_t metadata_bytes;
};

/*
 * Make a bundle of @count tensors (0 is fine) in the order given; no element is copied. The data
 * regions are those of the entries, each once however many tensors it has. The bundle holds
 * references of its own on them. The entries and the memory they point to are the caller's again.
 *
 * Sealing needs MANAGE on each region that is not sealed yet, and no writer on it. The call changes
 * the caller's own writable mappings as tmesh_region_seal() does.
 *
 * Return: 0; -EINVAL (an entry, which the message names; a name twice; limits; opts), -EOPNOTSUPP
 * (a tensor on a device). If sealing fails: -EACCES, -EBUSY; the message names the tensor, and
 * regions sealed before it stay sealed. Also -EDQUOT, -ENOMEM, -EMFILE, as tmesh_region_create().
 */
int tmesh_bundle_create(struct tmesh_ctx *ctx, const struct tmesh_bundle_entry *entries,
			size_t count, const struct tmesh_bundle_opts *opts,
			struct tmesh_bundle **out, struct tmesh_error *err);

/*
 * A bundle of an index region and data regions that the caller has, in the order in which
 * tmesh_bundle_regions() gave them; takes references of its own. For programs that carry bundles
 * by other ways than refs and sockets: the index is also valid with copies of the data regions.
 *
 * Return: 0; -EPROTO (not an index, or it does not fit these regions: the message says where),
 * -EINVAL (regions of another context, or inherited), -ESTALE, -ENOMEM.
 */
int tmesh_bundle_from_regions(struct tmesh_ctx *ctx, struct tmesh_region *index,
			      struct tmesh_region *const *regions, size_t count,
			      struct tmesh_bundle **out, struct tmesh_error *err);

struct tmesh_bundle *tmesh_bundle_ref(struct tmesh_bundle *bundle);
/* Tensors taken from it stay. */
void tmesh_bundle_unref(struct tmesh_bundle *bundle);

size_t tmesh_bundle_count(const struct tmesh_bundle *bundle);
/* The sum of tmesh_tensor_bytes() of all. */
uint64_t tmesh_bundle_bytes(const struct tmesh_bundle *bundle);
/* The name of tensor @i, from 0, in the order given; NULL beyond the last. Lives with the bundle.
 */
const char *tmesh_bundle_name(const struct tmesh_bundle *bundle, size_t i);
/* Return: 0 and the number of the tensor with that name; -ENOENT. */
int tmesh_bundle_find(const struct tmesh_bundle *bundle, const char *name, size_t *i,
		      struct tmesh_error *err);
/* All that is known of tensor @i; region and texts are the bundle's. Return: 0; -EINVAL (@i). */
int tmesh_bundle_entry(const struct tmesh_bundle *bundle, size_t i,
		       struct tmesh_bundle_entry *entry, struct tmesh_error *err);
/* Tensor @i: a new reference, the caller's, which may outlive the bundle. Made at each call,
 * without a system call. Return: 0; -EINVAL (@i), -ENOMEM. */
int tmesh_bundle_tensor(struct tmesh_bundle *bundle, size_t i, struct tmesh_tensor **out,
			struct tmesh_error *err);
/* The metadata with a zero behind it, "" when there is none; @bytes may be NULL. */
const char *tmesh_bundle_metadata(const struct tmesh_bundle *bundle, size_t *bytes);
/* The data regions and the index region: they live with the bundle. */
struct tmesh_region *const *tmesh_bundle_regions(const struct tmesh_bundle *bundle, size_t *count);
struct tmesh_region *tmesh_bundle_index(const struct tmesh_bundle *bundle);

/*
 * Bundle ref: one line of JSON with the tokens of all regions:
 *
 *   {"v":1,"kind":"bundle","id":"...","token":"tm1k-...","tensors":300,"byte_size":1048576,
 *    "regions":[{"id":"...","token":"tm1k-..."}]}
 *
 * id and token are the index region's. The text has about 120 bytes a region.
 */

/* Bytes that are always enough for the bundle's ref and its terminating zero. */
size_t tmesh_bundle_ref_size(const struct tmesh_bundle *bundle);
/* @rights are those of the tokens: TMESH_READ, with MANAGE for a receiver that keeps the bundle
 * (tmesh/keep.h). The index's token never gives WRITE. Errors as tmesh_region_token(); -EPERM when
 * @rights have WRITE and a data region is sealed; -ENOSPC when @size is too small. */
int tmesh_bundle_ref_encode(struct tmesh_bundle *bundle, uint32_t rights, char *text, size_t size,
			    struct tmesh_error *err);
/*
 * Open the bundle that a ref of @bytes bytes describes (no terminating zero needed), with @rights
 * on its data regions. A tensor's ref is refused, and the message names the call that opens it;
 * tmesh_ref_decode() does the same with a bundle's ref.
 * Return: 0; errors as tmesh_region_open(). For the ref: -EPROTO (not a bundle ref, a damaged
 * index, or tokens of other regions than the index names); -EPERM when @rights have WRITE and a
 * data region is sealed by now.
 */
int tmesh_bundle_open(struct tmesh_ctx *ctx, const char *text, size_t bytes, uint32_t rights,
		      struct tmesh_bundle **out, struct tmesh_error *err);

/*
 * Hand over by a connected Unix socket (stream or seqpacket): a head, then each region as
 * tmesh_region_send() sends it, the index first. Each message waits at most the context's timeout,
 * and a socket takes a few hundred at once: the peer has to receive meanwhile. A failure in the
 * middle leaves a part in the socket, which is then of no use but to be closed.
 * Return: as tmesh_region_send() and tmesh_region_recv(); _recv also -EPROTO as
 * tmesh_bundle_from_regions().
 */
int tmesh_bundle_send(struct tmesh_bundle *bundle, int socket, uint32_t rights,
		      struct tmesh_error *err);
int tmesh_bundle_recv(struct tmesh_ctx *ctx, int socket, struct tmesh_bundle **out,
		      struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_BUNDLE_H */
