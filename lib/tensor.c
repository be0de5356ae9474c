// SPDX-License-Identifier: MIT
/* Tensors: a layout over a region. Neither changes once another thread can see the tensor, so no
 * lock is needed. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "tensor_internal.h"

static uint64_t next_serial(void)
{
	static atomic_uint_fast64_t last;

	return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

static uint32_t map_rights(bool writable)
{
	return writable ? TMESH_READ | TMESH_WRITE : TMESH_READ;
}

/* Make a tensor; the caller's reference on @region is its own, also on failure. */
static int tensor_over(struct tmesh_region *region, const struct tmesh_layout *layout,
		       struct tmesh_tensor **out, struct tmesh_error *err)
{
	struct tmesh_tensor *tensor;
	uint64_t bytes;
	int rc;

	rc = tmesh_layout_check(layout, tmesh_region_bytes(region), &bytes, err);
	if (!rc && layout->device_type != TMESH_DEVICE_CPU)
		rc = tmesh_fail(err, -EOPNOTSUPP,
				"the layout is on a device, but regions are host memory");
	/* For the module's regions, only mapping shows it. */
	if (!rc && region->kind & TMESH_KIND_OPAQUE)
		rc = tmesh_fail(err, -EPROTO,
				"the region stands for a descriptor and has no memory for a "
				"tensor: " TMESH_OTHER_TOKENS);
	if (rc)
		goto drop;

	tensor = calloc(1, sizeof(*tensor));
	if (!tensor) {
		rc = tmesh_fail(err, -ENOMEM, "no memory for a tensor");
		goto drop;
	}
	atomic_init(&tensor->refs, 1);
	tensor->region = region;
	tensor->layout = *layout;
	tensor->bytes = bytes;
	tensor->serial = next_serial();
	*out = tensor;
	return 0;

drop:
	tmesh_region_unref(region);
	return rc;
}

/* Find the layout of a new tensor of this type and shape, and the bytes that it needs. */
static int plan(enum tmesh_dtype dtype, int32_t ndim, const int64_t *shape,
		struct tmesh_layout *layout, uint64_t *bytes, struct tmesh_error *err)
{
	int rc = tmesh_layout_contiguous(layout, dtype, ndim, shape, err);

	return rc ? rc : tmesh_layout_check(layout, INT64_MAX, bytes, err);
}

/* Describe the tensor for lists of regions. It is done at once, because a region that is sealed
 * later through another handle can no longer be described. */
static int describe(const struct tmesh_tensor *tensor, struct tmesh_error *err)
{
	struct tmesh_ref ref = {
		.id = tmesh_region_id(tensor->region),
		.byte_size = tensor->bytes,
		.layout = tensor->layout,
	};
	char text[TMESH_REF_SIZE];
	int rc = tmesh_ref_encode(&ref, text, sizeof(text), err);

	return rc ? rc : tmesh_region_set_description(tensor->region, text, err);
}

static int create(struct tmesh_ctx *ctx, const struct tmesh_layout *layout, uint64_t bytes,
		  const struct tmesh_region_opts *opts, struct tmesh_tensor **out,
		  struct tmesh_error *err)
{
	struct tmesh_region *region;
	struct tmesh_tensor *tensor;
	int rc;

	if (opts->arena && !tmesh_arena_is_large(opts->arena, bytes)) {
		struct tmesh_layout placed = *layout;

		rc = tmesh_arena_place(opts->arena, ctx, bytes, &region, &placed.offset, err);
		return rc ? rc : tensor_over(region, &placed, out, err);
	}
	if (opts->arena)
		opts = tmesh_arena_opts(opts->arena);
	/* There is no region of no bytes. */
	rc = tmesh_region_create(ctx, bytes ? bytes : 1, opts, &region, err);
	if (!rc)
		rc = tensor_over(region, layout, &tensor, err);
	if (rc)
		return rc;
	rc = describe(tensor, err);
	if (rc) {
		tmesh_tensor_unref(tensor);
		return rc;
	}
	*out = tensor;
	return 0;
}

int tmesh_tensor_create(struct tmesh_ctx *ctx, enum tmesh_dtype dtype, int32_t ndim,
			const int64_t *shape, const struct tmesh_region_opts *opts,
			struct tmesh_tensor **out, struct tmesh_error *err)
{
	struct tmesh_region_opts o;
	struct tmesh_layout layout;
	uint64_t bytes;
	int rc = TMESH_NEED(err, ctx, out);

	if (rc)
		return rc;
	rc = plan(dtype, ndim, shape, &layout, &bytes, err);
	if (!rc)
		rc = tmesh_read_tensor_opts(opts, &o, err);
	return rc ? rc : create(ctx, &layout, bytes, &o, out, err);
}

int tmesh_tensor_put(struct tmesh_ctx *ctx, enum tmesh_dtype dtype, int32_t ndim,
		     const int64_t *shape, const void *data, const struct tmesh_region_opts *opts,
		     struct tmesh_tensor **out, struct tmesh_error *err)
{
	struct tmesh_region_opts overwrite;
	struct tmesh_tensor *tensor;
	struct tmesh_layout layout;
	uint64_t bytes;
	bool again, seal;
	int rc = TMESH_NEED(err, ctx, out);

	if (!rc)
		rc = plan(dtype, ndim, shape, &layout, &bytes, err);
	if (!rc && bytes && !data)
		rc = tmesh_fail(err, -EINVAL,
				"data is NULL, and a tensor of %" PRIu64
				" bytes is put: tmesh_tensor_create() makes one of zeros",
				bytes);
	if (!rc)
		rc = tmesh_read_tensor_opts(opts, &overwrite, err);
	if (rc)
		return rc;
	seal = tmesh_opts_seal(&overwrite);
	if (bytes && !overwrite.arena)
		overwrite.flags |= TMESH_REGION_UNINITIALIZED;

	do {
		rc = create(ctx, &layout, bytes, &overwrite, &tensor, err);
		if (rc)
			return rc;
		if (bytes)
			rc = tmesh_region_write(tensor->region, tensor->layout.offset, data, bytes,
						err);
		if (!rc && seal)
			rc = tmesh_region_seal(tensor->region, err);
		if (!rc) {
			*out = tensor;
			return 0;
		}
		/* Another process has taken back or sealed a region that has other tensors too. */
		again = (rc == -ESTALE || rc == -EPERM) && overwrite.arena && tensor->layout.offset;
		if (again)
			tmesh_arena_leave(overwrite.arena, tensor->region);
		tmesh_tensor_unref(tensor);
	} while (again);
	return rc;
}

int tmesh_tensor_wrap(struct tmesh_region *region, const struct tmesh_layout *layout,
		      struct tmesh_tensor **out, struct tmesh_error *err)
{
	if (TMESH_NEED(err, region, layout, out))
		return -EINVAL;
	return tensor_over(tmesh_region_ref(region), layout, out, err);
}

int tmesh_tensor_view(struct tmesh_tensor *tensor, const struct tmesh_layout *layout,
		      struct tmesh_tensor **out, struct tmesh_error *err)
{
	if (TMESH_NEED(err, tensor, layout, out))
		return -EINVAL;
	return tmesh_tensor_wrap(tensor->region, layout, out, err);
}

struct tmesh_tensor *tmesh_tensor_ref(struct tmesh_tensor *tensor)
{
	atomic_fetch_add_explicit(&tensor->refs, 1, memory_order_relaxed);
	return tensor;
}

static void leave_region(struct tmesh_tensor *tensor)
{
	for (int writable = 0; writable < 2; writable++) {
		if (tensor->mapped[writable])
			tmesh_region_unmap(tensor->region, map_rights(writable));
		tensor->mapped[writable] = false;
	}
	tmesh_region_unref(tensor->region);
}

void tmesh_tensor_unref(struct tmesh_tensor *tensor)
{
	if (!tensor || atomic_fetch_sub_explicit(&tensor->refs, 1, memory_order_acq_rel) != 1)
		return;
	leave_region(tensor);
	free(tensor);
}

int tmesh_tensor_try_unref(struct tmesh_tensor *tensor)
{
	if (!tensor || tmesh_drop_one(&tensor->refs))
		return 0;
	/* The last reference is the caller's alone, so that it stays the last. */
	if (tensor->mapped[0] || tensor->mapped[1] || !tmesh_drop_one(&tensor->region->refs))
		return -EAGAIN;
	free(tensor);
	return 0;
}

bool tmesh_tensor_reuse(struct tmesh_tensor *tensor, struct tmesh_region *region,
			const struct tmesh_layout *layout, uint64_t bytes)
{
	if (!tmesh_tensor_alone(tensor))
		return false;
	if (tensor->region != region) {
		leave_region(tensor);
		tensor->region = tmesh_region_ref(region);
	}
	tensor->layout = *layout;
	tensor->bytes = bytes;
	tensor->serial = next_serial();
	return true;
}

struct tmesh_region *tmesh_tensor_region(const struct tmesh_tensor *tensor)
{
	return tensor->region;
}

const struct tmesh_layout *tmesh_tensor_layout(const struct tmesh_tensor *tensor)
{
	return &tensor->layout;
}

uint64_t tmesh_tensor_bytes(const struct tmesh_tensor *tensor)
{
	return tensor->bytes;
}

int tmesh_tensor_data(struct tmesh_tensor *tensor, uint32_t rights, void **data,
		      struct tmesh_error *err)
{
	bool writable = rights & TMESH_WRITE;
	void *base;
	int rc = TMESH_NEED(err, tensor, data);

	if (rc)
		return rc;
	/* Asked every time: the region may have been sealed or revoked meanwhile. */
	rc = tmesh_region_map(tensor->region, rights, &base, err);
	if (rc)
		return rc;
	if (atomic_exchange(&tensor->mapped[writable], true))
		tmesh_region_unmap(tensor->region, map_rights(writable));
	*data = (char *)base + tensor->layout.offset;
	return 0;
}

static struct tmesh_ref ref_of(const struct tmesh_tensor *tensor)
{
	return (struct tmesh_ref){
		.id = tmesh_region_id(tensor->region),
		.byte_size = tensor->bytes,
		.layout = tensor->layout,
	};
}

int tmesh_tensor_ref_encode(struct tmesh_tensor *tensor, uint32_t rights, char *text, size_t size,
			    struct tmesh_error *err)
{
	struct tmesh_ref ref;
	int rc = TMESH_NEED(err, tensor, text);

	if (!rc)
		rc = tmesh_check_rights(rights, err);
	if (!rc)
		rc = tmesh_refuse_sealed_gift(tensor->region, rights, "ref", err);
	if (rc)
		return rc;
	ref = ref_of(tensor);
	rc = tmesh_region_token(tensor->region, rights, ref.token, err);
	return rc ? rc : tmesh_ref_encode(&ref, text, size, err);
}

/* Encode the ref once before holding, so that a ref that does not fit holds nothing. All tokens of
 * a backend are equally long. */
int tmesh_tensor_ref_hold(struct tmesh_tensor *tensor, uint32_t rights, uint64_t ns, char *text,
			  size_t size, struct tmesh_error *err)
{
	char trial[TMESH_REF_SIZE];
	struct tmesh_ref ref;
	int rc = TMESH_NEED(err, tensor, text);

	if (!rc)
		rc = tmesh_tensor_ref_encode(tensor, rights, trial,
					     size < sizeof(trial) ? size : sizeof(trial), err);
	if (rc)
		return rc;
	ref = ref_of(tensor);
	rc = tmesh_region_hold(tensor->region, rights, ns, ref.token, err);
	return rc ? rc : tmesh_ref_encode(&ref, text, size, err);
}

/* Check that the token's region is the ref's. */
static int check_region(const struct tmesh_region *region, const struct tmesh_ref *ref,
			struct tmesh_error *err)
{
	struct tmesh_error why;
	uint64_t bytes;

	if (tmesh_region_id(region) != ref->id)
		return tmesh_fail(err, -EPROTO,
				  "the ref is of region %016" PRIx64 ", its token of %016" PRIx64,
				  ref->id, tmesh_region_id(region));
	if (tmesh_layout_check(&ref->layout, tmesh_region_bytes(region), &bytes, &why))
		return tmesh_fail(err, -EPROTO, "the ref does not fit its region: %s", why.message);
	if (bytes != ref->byte_size)
		return tmesh_fail(err, -EPROTO,
				  "byte_size is %" PRIu64 ", but shape and dtype make %" PRIu64,
				  ref->byte_size, bytes);
	return 0;
}

int tmesh_tensor_open(struct tmesh_ctx *ctx, const struct tmesh_ref *ref, uint32_t rights,
		      struct tmesh_tensor **out, struct tmesh_error *err)
{
	struct tmesh_region *region;
	int rc = TMESH_NEED(err, ctx, ref, out);

	if (!rc && !ref->token[0])
		rc = tmesh_fail(err, -EPROTO,
				"the ref has no token: it describes a tensor and opens none");
	if (rc)
		return rc;
	rc = tmesh_region_open(ctx, ref->token, rights, &region, err);
	if (rc)
		return rc;
	rc = check_region(region, ref, err);
	if (!rc)
		rc = tmesh_refuse_sealed(region, rights, err);
	if (rc) {
		tmesh_region_unref(region);
		return rc;
	}
	return tensor_over(region, &ref->layout, out, err);
}
