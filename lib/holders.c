// SPDX-License-Identifier: MIT
/* Lists of regions and of their holders, with structures of their callers' sizes, and the words for
 * their members (tests/vocabulary.md). */
#include "internal.h"

#include <stdlib.h>

int tmesh_list_sized(struct tmesh_ctx *ctx, size_t info_bytes, struct tmesh_region_info **infos,
		     size_t *count, struct tmesh_error *err)
{
	struct tmesh_region_info *all = NULL;
	size_t found;
	int rc = TMESH_NEED(err, infos, count);

	if (!rc)
		rc = tmesh_ctx_enter(ctx, err);
	if (!rc)
		rc = ctx->ops->list(ctx, &all, &found, err);
	if (!rc)
		rc = tmesh_resize_elements((void **)&all, found, sizeof(*all), info_bytes, true,
					   err);
	if (rc) {
		free(all);
		return rc;
	}
	*infos = all;
	*count = found;
	return 0;
}

int tmesh_holders_sized(struct tmesh_ctx *ctx, uint64_t id, size_t holder_bytes,
			struct tmesh_holder_info **holders, size_t *count, struct tmesh_error *err)
{
	struct tmesh_holder_info *all = NULL;
	size_t found;
	int rc = TMESH_NEED(err, holders, count);

	if (!rc)
		rc = tmesh_ctx_enter(ctx, err);
	if (!rc)
		rc = ctx->ops->holders(ctx, id, &all, &found, err);
	if (!rc)
		rc = tmesh_resize_elements((void **)&all, found, sizeof(*all), holder_bytes, false,
					   err);
	if (rc) {
		free(all);
		return rc;
	}
	*holders = all;
	*count = found;
	return 0;
}

const char *tmesh_backing_name(enum tmesh_backing backing)
{
	switch (backing) {
	case TMESH_BACKED_BY_MEMFD_BACKEND:
	case TMESH_BACKED_BY_MEMFD:
		return "memfd";
	case TMESH_BACKED_BY_PAGES:
		return "pages";
	case TMESH_BACKED_BY_USER:
		return "user";
	case TMESH_BACKED_BY_DMABUF:
		return "dmabuf";
	case TMESH_BACKED_BY_OPAQUE:
		return "descriptor";
	case TMESH_BACKED_BY_GATHER:
		return "view";
	}
	return "unknown";
}

const char *tmesh_holder_kind_name(enum tmesh_holder_kind kind)
{
	switch (kind) {
	case TMESH_HOLDER_IS_HANDLE:
		return "handle";
	case TMESH_HOLDER_IS_PINNING:
		return "pinning";
	case TMESH_HOLDER_IS_EXPORT:
		return "export";
	case TMESH_HOLDER_IS_MAPPING:
		return "mapping";
	case TMESH_HOLDER_IS_GATHER:
		return "view";
	case TMESH_HOLDER_IS_DEVICE:
		return "device";
	}
	return "unknown";
}
