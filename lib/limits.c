// SPDX-License-Identifier: MIT
/* Limits: what the module grants each user and all together, and what is in use. */
#include <linux/tmesh.h>
#include <sys/ioctl.h>

#include "internal.h"

int tmesh_limits(struct tmesh_ctx *ctx, struct tmesh_limits *limits, struct tmesh_error *err)
{
	struct tmesh_caps_query query = {.size = sizeof(query)};
	int rc;

	rc = tmesh_ctx_enter(ctx, err);
	if (rc)
		return rc;
	if (tmesh_ctx_backend(ctx) != TMESH_BACKEND_KERNEL)
		return tmesh_fail(err, -EOPNOTSUPP,
				  "nobody counts memfds per user: only a context's max_bytes and "
				  "memory control groups limit them");
	if (ioctl(ctx->device, TMESH_CAPS, &query))
		return tmesh_fail_errno(err, "asking the module for its limits");
	return tmesh_write_sized(limits,
				 &(struct tmesh_limits){
					 .max_bytes_per_uid = query.max_bytes_per_uid,
					 .max_regions_per_uid = query.max_regions_per_uid,
					 .max_bytes = query.max_bytes,
					 .max_regions = query.max_regions,
					 .used_bytes = query.used_bytes,
					 .used_regions = query.used_regions,
				 },
				 sizeof(struct tmesh_limits), err);
}
