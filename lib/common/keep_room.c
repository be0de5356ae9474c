// SPDX-License-Identifier: MIT
#include "keep_room.h"

#include <errno.h>
#include <inttypes.h>

#include "error.h"

int tmesh_keep_room(const struct tmesh_keeper_info *info, enum tmesh_backend backend,
		    uint64_t bytes, struct tmesh_error *err)
{
	if (!info->max_bytes || bytes <= info->max_bytes)
		return 0;
	return tmesh_fail(err, -EDQUOT,
			  "cannot keep %" PRIu64 " bytes: the limit of this user is %" PRIu64
			  " (%s)",
			  bytes, info->max_bytes,
			  backend == TMESH_BACKEND_KERNEL ? "root raises it in /proc/sys/dev/tmesh/"
							  : "TMESH_KEEPER_BYTES of the keeper");
}
