// SPDX-License-Identifier: MIT
/*
 * A later libtmesh-cuda: its memory is of a kind that no binding of today knows. The rest of it,
 * where this call has another name, is linked to it.
 */
#pragma GCC visibility push(default)
#include <tmesh/cuda.h>
#pragma GCC visibility pop

int tmesh_cuda_info_today(struct tmesh_cuda_memory *memory, struct tmesh_cuda_info *info,
			  struct tmesh_error *err);

int tmesh_cuda_info(struct tmesh_cuda_memory *memory, struct tmesh_cuda_info *info,
		    struct tmesh_error *err)
{
	int rc = tmesh_cuda_info_today(memory, info, err);

	if (!rc)
		info->kind = (enum tmesh_cuda_kind)0x1000000;
	return rc;
}
