// SPDX-License-Identifier: MIT
/* Kept regions: the rules that both backends share. */
#include "keep_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bundle_internal.h"
#include "common/utf8.h"

static int check_name(const char *name, struct tmesh_error *err)
{
	size_t bytes = name ? strnlen(name, TMESH_KEPT_NAME_LEN + 1) : 0;

	if (bytes == 0)
		return tmesh_fail(err, -EINVAL, "the name is empty: what is kept needs one");
	if (bytes > TMESH_KEPT_NAME_LEN)
		return tmesh_fail(err, -EINVAL, "the name is longer than %d bytes",
				  TMESH_KEPT_NAME_LEN);
	if (tmesh_utf8_span(name, bytes, false) != bytes)
		return tmesh_fail(err, -EINVAL, "the name is not UTF-8 without control characters");
	return 0;
}

static int read_opts(const struct tmesh_keep_opts *opts, struct tmesh_keep_opts *out,
		     struct tmesh_error *err)
{
	int rc = tmesh_read_sized(out, sizeof(*out), opts, err);

	if (rc)
		return rc;
	if (out->flags & ~(uint32_t)(TMESH_KEEPING_REPLACE | TMESH_KEEPING_GID))
		return tmesh_fail(err, -EINVAL, "unknown flags 0x%x", out->flags);
	if (out->mode == 0)
		out->mode = 0600;
	return tmesh_check_mode(out->mode, err);
}

static int check_region(struct tmesh_ctx *ctx, struct tmesh_region *region, size_t i,
			struct tmesh_error *err)
{
	/* Whoever may read a memfd may hold it as long as they like: keeping gives no more. */
	bool memfd = ctx->ops->backend == TMESH_BACKEND_MEMFD;
	int rc = tmesh_region_may(region, memfd ? TMESH_READ : TMESH_MANAGE, "keep", err);

	if (rc)
		return rc;
	if (region->ctx != ctx)
		return tmesh_fail(err, -EINVAL, "region %zu is of another context", i);
	/* The module knows of its own which are opaque. */
	if (memfd && !(region->kind & TMESH_KIND_OPAQUE) && !tmesh_region_is_sealed(region))
		return tmesh_fail(err, -EINVAL,
				  "region %zu, with the id %016" PRIx64 ", is not sealed: only "
				  "sealed memory is kept, so seal it first",
				  i, tmesh_region_id(region));
	return 0;
}

int tmesh_keep(struct tmesh_ctx *ctx, const char *name, struct tmesh_region *const *regions,
	       size_t count, const struct tmesh_keep_opts *opts, struct tmesh_error *err)
{
	struct tmesh_keep_opts o;
	int rc = TMESH_NEED(err, ctx);

	if (!rc && count)
		rc = TMESH_NEED(err, regions);
	if (!rc)
		rc = check_name(name, err);
	if (!rc)
		rc = read_opts(opts, &o, err);
	if (!rc && (count == 0 || count > TMESH_KEPT_MAX_REGIONS))
		rc = tmesh_fail(err, -EINVAL, "a name keeps 1 to %d regions, not %zu",
				TMESH_KEPT_MAX_REGIONS, count);
	if (!rc)
		rc = tmesh_ctx_enter(ctx, err);
	for (size_t i = 0; !rc && i < count; i++)
		rc = check_region(ctx, regions[i], i, err);
	return rc ? rc : ctx->ops->keep->keep(ctx, name, regions, (uint32_t)count, &o, err);
}

int tmesh_keep_bundle(struct tmesh_ctx *ctx, const char *name, struct tmesh_bundle *bundle,
		      const struct tmesh_keep_opts *opts, struct tmesh_error *err)
{
	struct tmesh_region **regions;
	int rc = TMESH_NEED(err, ctx, bundle);

	if (rc)
		return rc;
	regions = calloc(bundle->count + 1, sizeof(struct tmesh_region *));
	if (!regions)
		return tmesh_fail(err, -ENOMEM, "no memory to keep a bundle");
	regions[0] = bundle->index;
	for (size_t i = 0; i < bundle->count; i++)
		regions[i + 1] = bundle->regions[i];
	rc = tmesh_keep(ctx, name, regions, bundle->count + 1, opts, err);
	free(regions);
	return rc;
}

int tmesh_kept_open(struct tmesh_ctx *ctx, const char *name, uid_t uid, uint32_t rights,
		    struct tmesh_region ***regions, size_t *count, struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, ctx, regions, count);

	if (!rc)
		rc = check_name(name, err);
	if (!rc)
		rc = tmesh_check_rights(rights, err);
	if (!rc)
		rc = tmesh_ctx_enter(ctx, err);
	return rc ? rc : ctx->ops->keep->open(ctx, name, uid, rights, regions, count, err);
}

int tmesh_kept_open_bundle(struct tmesh_ctx *ctx, const char *name, uid_t uid,
			   struct tmesh_bundle **out, struct tmesh_error *err)
{
	struct tmesh_region **regions;
	size_t count;
	int rc = TMESH_NEED(err, out);

	if (!rc)
		rc = tmesh_kept_open(ctx, name, uid, TMESH_READ, &regions, &count, err);
	if (rc)
		return rc;
	rc = tmesh_bundle_take(ctx, regions[0], regions + 1, count - 1, out, err);
	if (rc)
		tmesh_bundle_drop(regions, count);
	free(regions);
	return rc;
}

int tmesh_kept_list_sized(struct tmesh_ctx *ctx, size_t info_bytes, struct tmesh_kept_info **infos,
			  size_t *count, struct tmesh_error *err)
{
	struct tmesh_kept_info *all = NULL;
	size_t found;
	int rc = TMESH_NEED(err, infos, count);

	if (!rc)
		rc = tmesh_ctx_enter(ctx, err);
	if (!rc)
		rc = ctx->ops->keep->list(ctx, &all, &found, err);
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

int tmesh_kept_drop(struct tmesh_ctx *ctx, const char *name, struct tmesh_error *err)
{
	int rc = check_name(name, err);

	if (!rc)
		rc = tmesh_ctx_enter(ctx, err);
	return rc ? rc : ctx->ops->keep->drop(ctx, name, err);
}

int tmesh_keeper_info(struct tmesh_ctx *ctx, struct tmesh_keeper_info *info,
		      struct tmesh_error *err)
{
	struct tmesh_keeper_info all = {.size = sizeof(all)};
	int rc = TMESH_NEED(err, info);

	if (!rc)
		rc = tmesh_ctx_enter(ctx, err);
	if (!rc)
		rc = ctx->ops->keep->info(ctx, &all, err);
	return rc ? rc : tmesh_write_sized(info, &all, sizeof(all), err);
}
