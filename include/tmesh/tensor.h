/* SPDX-License-Identifier: MIT */
/*
 * Tensor: dtype, shape, strides and byte offset over a region; its ref; DLPack.
 * See tmesh/tmesh.h for the conventions of all calls. Since 0.1.
 * Maturity: stable.
 *
 * A tensor's layout never changes once it exists. Elements lie at
 *
 *     address = region + offset + sum(index[i] * strides[i]) * element size
 *
 * with strides in elements (as DLPack and PyTorch count them; NumPy counts bytes).
 * Strides may be negative or zero; every element must lie inside the region.
 * Tensors made here start at multiples of TMESH_ALIGN.
 */
#ifndef TMESH_TENSOR_H
#define TMESH_TENSOR_H

#include <tmesh/region.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TMESH_MAX_DIMS 8
#define TMESH_ALIGN 256

struct tmesh_tensor;

/* Names as in refs, e.g. "float32". Types of 4 bits are packed, low nibble first, and only
 * contiguous tensors of a whole number of bytes can have them. A bool is a byte, 0 or 1, which
 * nothing here looks at. */
enum tmesh_dtype {
	TMESH_DTYPE_INVALID = 0,
	TMESH_BOOL = 1,
	TMESH_INT8 = 2,
	TMESH_INT16 = 3,
	TMESH_INT32 = 4,
	TMESH_INT64 = 5,
	TMESH_UINT8 = 6,
	TMESH_UINT16 = 7,
	TMESH_UINT32 = 8,
	TMESH_UINT64 = 9,
	TMESH_FLOAT16 = 10,
	TMESH_FLOAT32 = 11,
	TMESH_FLOAT64 = 12,
	TMESH_BFLOAT16 = 13,
	TMESH_FLOAT8_E4M3FN = 14,
	TMESH_FLOAT8_E5M2 = 15,
	TMESH_COMPLEX64 = 16,
	TMESH_COMPLEX128 = 17,
	TMESH_INT4 = 18,
	TMESH_UINT4 = 19,
	TMESH_FLOAT4_E2M1FN = 20,
};

/* Bits of one element, 0 for an unknown type; its name, NULL for an unknown one; the type
 * of a name, TMESH_DTYPE_INVALID for an unknown one. */
unsigned int tmesh_dtype_bits(enum tmesh_dtype dtype);
const char *tmesh_dtype_name(enum tmesh_dtype dtype);
enum tmesh_dtype tmesh_dtype_from_name(const char *name);

enum tmesh_device_type {
	TMESH_DEVICE_CPU = 0,
	TMESH_DEVICE_CUDA = 1,
};

/* A tensor's layout. Plain data, copied by every call. */
struct tmesh_layout {
	enum tmesh_dtype dtype;
	int32_t ndim; /* 0 (a scalar) to TMESH_MAX_DIMS */
	int64_t shape[TMESH_MAX_DIMS];
	int64_t strides[TMESH_MAX_DIMS]; /* elements */
	uint64_t offset;		 /* bytes from the start of the region */
	enum tmesh_device_type device_type;
	int32_t device_id;
};

/*
 * Fill @layout as contiguous (C order) at offset 0 on the CPU.
 * Return: 0; -EINVAL (dtype, ndim, negative shape), -EOVERFLOW.
 */
int tmesh_layout_contiguous(struct tmesh_layout *layout, enum tmesh_dtype dtype, int32_t ndim,
			    const int64_t *shape, struct tmesh_error *err);

/*
 * Check that every element lies inside @region_bytes. @extent may be NULL; it receives
 * the bytes of the elements themselves (count times element size).
 * Return: 0; -EINVAL (dtype, ndim, shape, out of range, sub-byte strides), -EOVERFLOW.
 */
int tmesh_layout_check(const struct tmesh_layout *layout, uint64_t region_bytes, uint64_t *extent,
		       struct tmesh_error *err);
bool tmesh_layout_is_contiguous(const struct tmesh_layout *layout);

/*
 * Make a contiguous tensor of zeros in a region of its own, which is made with @opts as by
 * tmesh_region_create(), or in the arena that @opts name (tmesh/arena.h). A tensor without elements
 * is allowed and has a region of one page. A region of its own is described by the tensor's ref
 * without a token, which tmesh_list() and tmeshctl show.
 */
int tmesh_tensor_create(struct tmesh_ctx *ctx, enum tmesh_dtype dtype, int32_t ndim,
			const int64_t *shape, const struct tmesh_region_opts *opts,
			struct tmesh_tensor **out, struct tmesh_error *err);

/*
 * Make a tensor as above, filled from @data, which is contiguous and as long as the tensor. @data
 * may be NULL if there are no elements. The one copy is counted. Then the region is sealed, unless
 * @opts say UNSEALED. A tensor in an arena is never sealed, because the arena will put other
 * tensors beside it.
 */
int tmesh_tensor_put(struct tmesh_ctx *ctx, enum tmesh_dtype dtype, int32_t ndim,
		     const int64_t *shape, const void *data, const struct tmesh_region_opts *opts,
		     struct tmesh_tensor **out, struct tmesh_error *err);

/* Make a tensor over an existing region; the tensor takes its own reference on it. Errors as
 * tmesh_layout_check(); -EOPNOTSUPP (a layout on a device). -EPROTO: on memfd the region stands for
 * a descriptor, as that of a slot's token does; on the module the first mapping fails instead. */
int tmesh_tensor_wrap(struct tmesh_region *region, const struct tmesh_layout *layout,
		      struct tmesh_tensor **out, struct tmesh_error *err);

/* Make a tensor with another layout over the same region; @layout->offset counts from the region's
 * start. */
int tmesh_tensor_view(struct tmesh_tensor *tensor, const struct tmesh_layout *layout,
		      struct tmesh_tensor **out, struct tmesh_error *err);

struct tmesh_tensor *tmesh_tensor_ref(struct tmesh_tensor *tensor);
void tmesh_tensor_unref(struct tmesh_tensor *tensor);
/* As tmesh_tensor_unref(), for threads that must not wait: no system call and no lock.
 * Return: 0; -EAGAIN: memory would be unmapped or given back, and nothing was done. */
int tmesh_tensor_try_unref(struct tmesh_tensor *tensor);

/* The tensor's region and layout. They belong to the tensor and are valid as long as it exists. */
struct tmesh_region *tmesh_tensor_region(const struct tmesh_tensor *tensor);
const struct tmesh_layout *tmesh_tensor_layout(const struct tmesh_tensor *tensor);
/* Bytes of its elements: count times element size, without gaps. */
uint64_t tmesh_tensor_bytes(const struct tmesh_tensor *tensor);

/*
 * Address of the element with all indices 0, mapped for @rights; it stays mapped until the
 * tensor's last reference goes. Errors as tmesh_region_map().
 */
int tmesh_tensor_data(struct tmesh_tensor *tensor, uint32_t rights, void **data,
		      struct tmesh_error *err);

/*
 * Copy the elements to @data, which has @bytes bytes: exactly tmesh_tensor_bytes(). They are in C
 * order without gaps, whatever the strides are. One copy, which is counted. Nothing is mapped:
 * if the memory is taken away meanwhile, the call fails and no signal is sent. After an error
 * the contents of @data are unspecified.
 *
 * Return: 0; -EINVAL (another number of bytes), -ENOMEM; errors as tmesh_region_read().
 */
int tmesh_tensor_read(struct tmesh_tensor *tensor, void *data, uint64_t bytes,
		      struct tmesh_error *err);

/*
 * Ref: a tensor's description with a token, as a JSON object (UTF-8, one line):
 *
 *   {"v":1,"id":"0123456789abcdef","token":"tm1k-...","offset":0,"byte_size":4096,
 *    "shape":[32,32],"dtype":"float32","strides":[32,1],"device":"cpu"}
 *
 * byte_size is tmesh_tensor_bytes(); strides are in elements; device is "cpu" or "cuda:N".
 */
struct tmesh_ref {
	uint64_t id;
	char token[TMESH_TOKEN_SIZE]; /* "" when there is none */
	uint64_t byte_size;
	struct tmesh_layout layout;
};

/* Longest ref text with its terminating zero. */
#define TMESH_REF_SIZE 768

/*
 * Write the tensor's ref, with a token for @rights (usually TMESH_READ), to
 * @text of @size bytes. It is good while the tensor exists. If a function returns the ref and drops
 * the tensor, use tmesh_tensor_ref_hold(). Errors as tmesh_region_token(); -ENOSPC when @size is
 * too small. -EPERM: @rights have WRITE and the region is sealed, so that no open could give it.
 * tmesh_ref_encode() gives -EINVAL for refs that tmesh_ref_decode() would refuse.
 */
int tmesh_tensor_ref_encode(struct tmesh_tensor *tensor, uint32_t rights, char *text, size_t size,
			    struct tmesh_error *err);
int tmesh_ref_encode(const struct tmesh_ref *ref, char *text, size_t size, struct tmesh_error *err);

/*
 * Read a ref of @bytes bytes: strlen() of its text, without a terminating zero. The text must be
 * one JSON object with these members of these types. -EPROTO: any other text, duplicates, numbers
 * out of range, a byte_size that contradicts shape and dtype, or more than TMESH_REF_SIZE bytes.
 * Unknown members are allowed, and token may be missing, as it is in descriptions.
 */
int tmesh_ref_decode(const char *text, size_t bytes, struct tmesh_ref *ref,
		     struct tmesh_error *err);

/*
 * Make a ref of members that are no JSON text any more, such as a dict's. The call checks each
 * member, and all of them together. Strings end with a zero; NULL, or a list that is NULL:
 * there is no such member. Only token may be missing. Nothing is kept.
 */
struct tmesh_ref_members {
	size_t size;
	uint64_t v;
	const char *id, *token, *dtype, *device;
	uint64_t offset, byte_size;
	const int64_t *shape, *strides;
	size_t shape_count, strides_count;
};

int tmesh_ref_from_members(const struct tmesh_ref_members *members, struct tmesh_ref *ref,
			   struct tmesh_error *err);

/*
 * Open the tensor a ref describes. Errors as tmesh_region_open(). -EPROTO: the ref's numbers do not
 * fit the region the token names, or it has no token. -EPERM: @rights have WRITE and the region is
 * sealed by now.
 */
int tmesh_tensor_open(struct tmesh_ctx *ctx, const struct tmesh_ref *ref, uint32_t rights,
		      struct tmesh_tensor **out, struct tmesh_error *err);

/*
 * DLPack. The structures are those of dlpack.h (versions 0.x: DLManagedTensor, 1.x:
 * DLManagedTensorVersioned), which is not needed to use this header.
 *
 * Out: the managed tensor holds a reference on @tensor until its deleter runs, and its
 * data is mapped for @rights. Member byte_offset is 0, and strides are always given. Member data
 * points at the first element. It is not NULL if there are no elements, because some consumers
 * never give such a tensor back.
 * The versioned form carries READ_ONLY when @rights lack TMESH_WRITE. The unversioned form has no
 * such flag: it is then refused with -EACCES unless TMESH_DLPACK_ALLOW_READONLY is set. Set it only
 * for a consumer that is known not to write.
 * Pass in @max_major the highest major version the consumer knows (as max_version of
 * __dlpack__). The versioned form needs at least 1, else -EOPNOTSUPP.
 */
struct DLManagedTensor;
struct DLManagedTensorVersioned;

#define TMESH_DLPACK_ALLOW_READONLY (1u << 0)

int tmesh_tensor_to_dlpack(struct tmesh_tensor *tensor, uint32_t rights, uint32_t flags,
			   struct DLManagedTensor **out, struct tmesh_error *err);
int tmesh_tensor_to_dlpack_versioned(struct tmesh_tensor *tensor, uint32_t rights,
				     uint32_t max_major, struct DLManagedTensorVersioned **out,
				     struct tmesh_error *err);

/*
 * In: make a tensor of a DLPack tensor's elements.
 *
 * A managed tensor that this library made in this process is recognised by its deleter. For it the
 * call gives another reference on its tensor, without a copy, for any @ctx and @opts. Other
 * CPU memory is copied into a region once (counted), which is sealed as by tmesh_tensor_put(). The
 * caller still owns @managed in every case.
 *
 * Return: 0; -EOPNOTSUPP (device, dtype or lanes; a newer major version; 4-bit elements padded
 * to bytes), -EINVAL, -EOVERFLOW, and as tmesh_tensor_put().
 */
int tmesh_tensor_from_dlpack(struct tmesh_ctx *ctx, const struct DLManagedTensor *managed,
			     const struct tmesh_region_opts *opts, struct tmesh_tensor **out,
			     struct tmesh_error *err);
int tmesh_tensor_from_dlpack_versioned(struct tmesh_ctx *ctx,
				       const struct DLManagedTensorVersioned *managed,
				       const struct tmesh_region_opts *opts,
				       struct tmesh_tensor **out, struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_TENSOR_H */
