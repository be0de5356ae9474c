/* SPDX-License-Identifier: MIT */
/*
 * The DLPack ABI as far as this library speaks it: the managed tensor of versions 0.x and
 * the versioned one of 1.x. Private: users bring their own dlpack.h, if any.
 */
#ifndef TMESH_DLPACK_ABI_H
#define TMESH_DLPACK_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define DLPACK_MAJOR 1
#define DLPACK_MINOR 1 /* the first with the codes of 8-bit and 4-bit floats */

enum dl_device_type {
	DL_DEVICE_CPU = 1,
	DL_DEVICE_CUDA = 2,
};

enum dl_type_code {
	DL_INT = 0,
	DL_UINT = 1,
	DL_FLOAT = 2,
	DL_BFLOAT = 4,
	DL_COMPLEX = 5,
	DL_BOOL = 6,
	DL_FLOAT8_E4M3FN = 10,
	DL_FLOAT8_E5M2 = 12,
	DL_FLOAT4_E2M1FN = 17,
};

struct dl_device {
	int32_t type;
	int32_t id;
};

struct dl_data_type {
	uint8_t code;
	uint8_t bits;
	uint16_t lanes;
};

struct dl_tensor {
	void *data;
	struct dl_device device;
	int32_t ndim;
	struct dl_data_type dtype;
	int64_t *shape;
	int64_t *strides; /* elements; NULL, before 1.2 only: contiguous */
	uint64_t byte_offset;
};

struct DLManagedTensor {
	struct dl_tensor dl_tensor;
	void *manager_ctx;
	void (*deleter)(struct DLManagedTensor *self);
};

#define DL_FLAG_READ_ONLY (1u << 0)
#define DL_FLAG_IS_COPIED (1u << 1)
#define DL_FLAG_SUBBYTE_PADDED (1u << 2)

struct dl_version {
	uint32_t major;
	uint32_t minor;
};

/* Everything up to and including the flags is the same in all versions to come. */
struct DLManagedTensorVersioned {
	struct dl_version version;
	void *manager_ctx;
	void (*deleter)(struct DLManagedTensorVersioned *self);
	uint64_t flags;
	struct dl_tensor dl_tensor;
};

/*
 * The exchange of version 1.3: functions for C that stand in a capsule of this name on the type
 * of a tensor, as __dlpack_c_exchange_api__. All but the first are called with the GIL, and
 * return 0, or -1 with an exception set.
 */
#define DL_EXCHANGE_MINOR 3
#define DL_EXCHANGE_CAPSULE "dlpack_exchange_api"

struct dl_exchange {
	struct dl_version version;
	struct dl_exchange *previous; /* of an older major version */
	int (*allocate)(struct dl_tensor *prototype, struct DLManagedTensorVersioned **out,
			void *error_ctx,
			void (*set_error)(void *error_ctx, const char *kind, const char *message));
	int (*from_object)(void *object, struct DLManagedTensorVersioned **out);
	int (*to_object)(struct DLManagedTensorVersioned *managed, void **object);
	int (*peek)(void *object, struct dl_tensor *out); /* nothing is owned */
	int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
};

static_assert(sizeof(void *) != 8 ||
		      (sizeof(struct dl_tensor) == 48 && sizeof(struct DLManagedTensor) == 64 &&
		       sizeof(struct DLManagedTensorVersioned) == 80 &&
		       sizeof(struct dl_exchange) == 56 && offsetof(struct dl_tensor, dtype) == 20),
	      "not the published ABI");

#endif /* TMESH_DLPACK_ABI_H */
