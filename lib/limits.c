// SPDX-License-Identifier: MIT
/* Limits: what the module grants each user and all together, and what is in use. */
#include <linux/tmesh.h>
#include <sys/ioctl.h>

#include "internal.h"

int tmesh_limits(struct tmesh_ctx *ctx, struct tmesh_limits *limits, struct tmesh_error *err)
{
	struct tmesh_caps_query query = {.size = sizeof(query)};
	int rc = TMESH_NEED(err, ctx, limits);

	if (!rc)
		rc = tmesh_ctx_enter(ctx, err);
	if (rc)
		return rc;
	if (tmesh_ctx_backend(ctx) != TMESH_BACKEND_KERNEL)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "limits: the kernel does not count memfds per user; only a "
				  "context's max_bytes and memory control groups limit them");
	if (ioctl(ctx->kernel.device, TMESH_CAPS, &query))
		return tmesh_fail_errno(err, "asking the module for its limits");
	return tmesh_write_sized(limits,
				 &(struct tmesh_limits){
					 .max_bytes_per_uid = query.max_bytes_per_uid,
					 .max_regions_per_uid = query.max_regions_per_uid,
					 .max_bytes = query.max_bytes,
					 .max_regions = query.max_regions,
					 .used_bytes = query.used_bytes,
					 .used_regions = query.used_regions,
					 .max_handles_per_uid = query.max_handles_per_uid,
					 .max_pins_per_uid = query.max_pins_per_uid,
					 .used_handles = query.used_handles,
					 .used_pins = query.used_pins,
					 .max_bytes_per_ipc_ns = query.max_bytes_per_ipc_ns,
					 .max_regions_per_ipc_ns = query.max_regions_per_ipc_ns,
					 .max_handles_per_ipc_ns = query.max_handles_per_ipc_ns,
					 .max_pins_per_ipc_ns = query.max_pins_per_ipc_ns,
					 .used_bytes_ipc_ns = query.used_bytes_ipc_ns,
					 .used_regions_ipc_ns = query.used_regions_ipc_ns,
					 .used_handles_ipc_ns = query.used_handles_ipc_ns,
					 .used_pins_ipc_ns = query.used_pins_ipc_ns,
					 .max_handles = query.max_handles,
					 .max_pins = query.max_pins,
				 },
				 sizeof(struct tmesh_limits), err);
}
