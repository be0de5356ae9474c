// SPDX-License-Identifier: MIT
/* On failure, out-parameters of libtmesh-cuda keep their values, as tests/unit/test_outputs.c shows
 * for libtmesh. */
#include "cuda_unit.h"

#include "../unit/outputs.h"

#define LARGE ((uint64_t)1 << 50)
#define TEXT "{\"v\": 1"

static int no(void *data, uint64_t done, uint64_t bytes)
{
	return 1;
}

STANDIN(test_devices)
{
	const struct tmesh_cuda_opts nowhere = {.size = sizeof(nowhere), .library = "/nonexistent"};
	struct bed *bed = *state;

	FAILS(tmesh_cuda_open, -ENODEV, bed->ctx, &nowhere, OUT, err);
	/* Without a context there is none for the whole process. */
	setenv("TMESH_BACKEND", "none", 1);
	FAILS(tmesh_cuda_default, -EINVAL, OUT, err);
	setenv("TMESH_BACKEND", "memfd", 1);
	FAILS(tmesh_cuda_device_info, -ENODEV, bed->cuda, 99, OUT, err);
	FAILS(tmesh_cuda_caps, -ENODEV, bed->cuda, 99, OUT, err);
	FAILS(tmesh_cuda_stats, -ENODEV, bed->cuda, 99, OUT);
}

STANDIN(test_memory)
{
	const struct tmesh_cuda_register_opts cancels = {
		.size = sizeof(cancels), .rights = RW, .progress = no};
	struct tmesh_layout bytes = bytes_layout(5000), outside = bytes_layout(9999999);
	struct tmesh_cuda_memory *memory;
	struct tmesh_region *region;
	struct bed *bed = *state;

	assert_ok(tmesh_region_create(bed->ctx, 5000, NULL, &region, err));
	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 5000, 0, &memory, err));
	FAILS(tmesh_cuda_register, -ENODEV, bed->cuda, region, 99, RW, 0, OUT, err);
	FAILS(tmesh_cuda_register_with, -ECANCELED, bed->cuda, region, &cancels, OUT, err);
	FAILS(tmesh_cuda_alloc, -ENOMEM, bed->cuda, 0, LARGE, 0, OUT, err);
	FAILS(tmesh_cuda_alloc_on, -ENODEV, bed->cuda, 99, 5000, 0, NULL, OUT, err);
	FAILS(tmesh_cuda_slice, -EINVAL, memory, 4999, 5000, NULL, NULL, OUT, err);
	FAILS(tmesh_cuda_find, -ENOENT, bed->cuda, 1, OUT, &other.u64, err);
	FAILS(tmesh_cuda_read, -EINVAL, memory, 4999, OUT, 5000, err);
	FAILS(tmesh_cuda_info, -EINVAL, memory, &(struct tmesh_cuda_info){0}, err);
	FAILS(tmesh_cuda_import, -EPROTO, bed->cuda, region, NULL, OUT, err);
	FAILS(tmesh_cuda_to_dlpack, -EINVAL, memory, &outside, OUT, err);
	FAILS(tmesh_cuda_to_dlpack_versioned, -EOPNOTSUPP, memory, &bytes, 0, OUT, err);
	FAILS(tmesh_cuda_export_dmabuf, -EINVAL, memory, 4096, 1 << 30, OUT, err);
	FAILS(tmesh_cuda_import_fd, -EBADF, bed->cuda, 0, TMESH_CUDA_OPAQUE_FD, -1, 5000, OUT, err);
	tmesh_cuda_memory_unref(memory);
	tmesh_region_unref(region);
}

STANDIN(test_sharing)
{
	struct tmesh_layout bytes = bytes_layout(5000);
	struct tmesh_cuda_memory *memory;
	char text[TMESH_REF_SIZE];
	struct bed *bed = *state;

	assert_ok(tmesh_cuda_alloc(bed->cuda, 0, 5000, 0, &memory, err));
	standin_fail("cuMemExportToShareableHandle", 304, 0);
	FAILS(tmesh_cuda_region, -EIO, memory, OUT, err);
	FAILS(tmesh_cuda_share, -ENOSPC, memory, &bytes, NULL, out.text, 8, err);
	FAILS(tmesh_cuda_share_ipc, -EINVAL, bed->cuda, 1, &bytes, NULL, out.text, 4096, OTHER,
	      err);
	FAILS(tmesh_cuda_share_ipc, -ENOSPC, bed->cuda, tmesh_cuda_pointer(memory), &bytes, NULL,
	      out.text, 8, OTHER, err);
	FAILS(tmesh_cuda_open_ref, -EPROTO, bed->cuda, TEXT, strlen(TEXT), NULL, NULL, OUT, OTHER,
	      err);
	assert_ok(tmesh_cuda_share(memory, &bytes, NULL, text, sizeof(text), err));
	tmesh_cuda_memory_unref(memory);
	FAILS(tmesh_cuda_open_ref, -ENOENT, bed->cuda, text, strlen(text), NULL, NULL, OUT, OTHER,
	      err);
	FAILS(tmesh_cuda_kept_open, -ENOENT, bed->cuda, "none", getuid(), NULL, OUT, OTHER, err);
}

UNIT_MAIN("cuda outputs", NULL, NULL)
