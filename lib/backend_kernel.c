// SPDX-License-Identifier: MIT
/* The kernel backend: regions of tmesh.ko, by its ioctls. */
#include "internal.h"

static int kernel_open(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	return tmesh_fail(err, -ENOENT, "there is no /dev/tmesh");
}

const struct tmesh_backend_ops tmesh_kernel_ops = {
	.backend = TMESH_BACKEND_KERNEL,
	.open = kernel_open,
};
