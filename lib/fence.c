// SPDX-License-Identifier: MIT
/* Fences: only the module notices that a producer is gone. */
#include "internal.h"

static int check(struct tmesh_region *region, uint32_t rights, const char *what,
		 struct tmesh_error *err)
{
	int rc = tmesh_region_may(region, rights, what, err);

	if (!rc && !region->ctx->ops->wait)
		rc = tmesh_fail(err, -EOPNOTSUPP,
				"%s: fences need the tmesh module: on memfd a producer's end could "
				"not be reported",
				what);
	return rc;
}

int tmesh_fence_signal(struct tmesh_region *region, uint64_t value, struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, region);

	if (!rc)
		rc = check(region, TMESH_WRITE, "signal", err);
	if (!rc)
		rc = region->ctx->ops->signal(region, value, err);
	/* The number never goes back: no other region's. */
	if (!rc)
		tmesh_region_set_shared(region);
	return rc;
}

int tmesh_fence_wait(struct tmesh_region *region, uint64_t value, int64_t timeout_ns,
		     uint64_t *reached, struct tmesh_error *err)
{
	uint64_t ignored;
	int rc = TMESH_NEED(err, region);

	if (!rc)
		rc = check(region, TMESH_READ, "waiting for a fence", err);
	return rc ? rc
		  : region->ctx->ops->wait(region, value, timeout_ns, reached ? reached : &ignored,
					   err);
}
