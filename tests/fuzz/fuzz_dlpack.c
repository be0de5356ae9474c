// SPDX-License-Identifier: MIT
/*
 * Any DLPack tensor over 4 KiB: refused, or copied element by element by its own layout.
 *
 * A producer that lies about its memory cannot be caught, so a tensor that is possible but
 * leaves the buffer is not offered.
 */
#include <stdlib.h>
#include <string.h>

#include "bounds.h"
#include "common/dlpack_abi.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
	struct dl_data_type dtype;
	int32_t ndim;
	int32_t device;
	uint32_t major;
	uint32_t flags;
	uint32_t no_strides;
	uint64_t byte_offset;
	int64_t shape[TMESH_MAX_DIMS];
	int64_t strides[TMESH_MAX_DIMS];
};

static uint8_t buffer[4096];

static struct tmesh_ctx *context(void)
{
	static struct tmesh_ctx *ctx;
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.backend = TMESH_BACKEND_MEMFD,
		.max_bytes = 1 << 20, /* broadcasts may ask for much */
	};

	if (!ctx) {
		for (size_t i = 0; i < sizeof(buffer); i++)
			buffer[i] = (uint8_t)(i * 7 + i / 256);
		if (tmesh_ctx_open(&opts, &ctx, NULL))
			abort();
	}
	return ctx;
}

static enum tmesh_dtype any_dtype_of(unsigned int bits)
{
	for (int i = 1; i <= TMESH_FLOAT4_E2M1FN; i++) {
		if (tmesh_dtype_bits((enum tmesh_dtype)i) == bits)
			return (enum tmesh_dtype)i;
	}
	return TMESH_DTYPE_INVALID;
}

/* Return whether the elements lie inside the buffer, or the tensor has to be refused anyway. */
static bool harmless(const struct input *in, struct tmesh_layout *layout)
{
	__int128 low, high;

	*layout = (struct tmesh_layout){
		.dtype = any_dtype_of(in->dtype.bits),
		.ndim = in->ndim,
	};
	memcpy(layout->shape, in->shape, sizeof(layout->shape));
	memcpy(layout->strides, in->strides, sizeof(layout->strides));
	if (in->no_strides &&
	    tmesh_layout_contiguous(layout, layout->dtype, in->ndim, in->shape, NULL))
		return true;
	if (!fuzz_bounds(layout, &low, &high) || low < INT64_MIN || high > INT64_MAX)
		return true;
	return in->byte_offset + low >= 0 && in->byte_offset + high <= sizeof(buffer);
}

static void compare(struct tmesh_tensor *tensor, const struct input *in,
		    const struct tmesh_layout *layout)
{
	const struct tmesh_layout *got = tmesh_tensor_layout(tensor);
	size_t element = tmesh_dtype_bits(got->dtype) / 8;
	int64_t index[TMESH_MAX_DIMS] = {0};
	const uint8_t *to;
	void *data;
	int i;

	if (tmesh_tensor_data(tensor, TMESH_READ, &data, NULL))
		abort();
	if (!element || !tmesh_tensor_bytes(tensor)) {
		if (memcmp(data, buffer + in->byte_offset, tmesh_tensor_bytes(tensor)))
			abort();
		return;
	}
	to = data;
	do {
		int64_t at = 0;

		for (i = 0; i < layout->ndim; i++)
			at += index[i] * layout->strides[i];
		if (memcmp(to, buffer + in->byte_offset + at * (int64_t)element, element))
			abort();
		to += element;
		for (i = layout->ndim - 1; i >= 0 && ++index[i] == layout->shape[i]; i--)
			index[i] = 0;
	} while (i >= 0);
	if (to != (uint8_t *)data + tmesh_tensor_bytes(tensor))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_ctx *ctx = context();
	struct DLManagedTensorVersioned managed;
	struct tmesh_error err = {0};
	struct tmesh_tensor *tensor;
	struct tmesh_layout layout;
	struct input in;
	int rc;

	if (size < sizeof(in))
		return 0;
	memcpy(&in, data, sizeof(in));
	if (!harmless(&in, &layout))
		return 0;
	managed = (struct DLManagedTensorVersioned){
		.version = {in.major, 0},
		.flags = in.flags,
		.dl_tensor = {.data = buffer,
			      .device = {.type = in.device},
			      .ndim = in.ndim,
			      .dtype = in.dtype,
			      .shape = in.shape,
			      .strides = in.no_strides ? NULL : in.strides,
			      .byte_offset = in.byte_offset},
	};
	rc = tmesh_tensor_from_dlpack_versioned(ctx, &managed, NULL, &tensor, &err);
	if (rc) {
		if (rc != err.code || !err.message[0])
			abort();
		return 0;
	}
	compare(tensor, &in, &layout);
	tmesh_tensor_unref(tensor);
	return 0;
}
