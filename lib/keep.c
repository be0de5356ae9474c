// SPDX-License-Identifier: MIT
/* Kept regions: the rules that both backends share. */
#include "keep_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bundle_internal.h"
#include "common/utf8.h"
#include "paths.h"

int tmesh_kept_check_name(const char *name, struct tmesh_error *err)
{
	size_t bytes = name ? strnlen(name, TMESH_KEPT_NAME_LEN + 1) : 0;

	if (bytes == 0)
		return tmesh_fail(err, -EINVAL, "the name is empty: give kept memory a name");
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
	if (!out->file_count)
		return tmesh_check_mode(out->mode, err);
	if (out->mode != 0600 && out->mode != 0640 && out->mode != 0644)
		return tmesh_fail(err, -EINVAL, "mode 0%o: kept files have 0600, 0640 or 0644",
				  out->mode);
	return out->files
		       ? 0
		       : tmesh_fail(err, -EINVAL, "%zu files, and files is NULL", out->file_count);
}

/* Make the table of the options' files; NULL if there are none. */
static int make_paths(const char *name, struct tmesh_region *const *regions, size_t count,
		      const struct tmesh_keep_opts *opts, struct tmesh_paths **out,
		      struct tmesh_error *err)
{
	uint64_t *bytes;
	size_t length;
	int rc;

	*out = NULL;
	if (!opts->file_count)
		return 0;
	if (!tmesh_paths_may_begin(name))
		return tmesh_fail(
			err, -EINVAL,
			"the name \"%s\" has a slash or begins with a dot: files are kept "
			"under a name that a path can have",
			name);
	bytes = calloc(count, sizeof(*bytes));
	if (!bytes)
		return tmesh_fail(err, -ENOMEM, "no memory for a table of paths");
	for (size_t i = 0; i < count; i++)
		bytes[i] = tmesh_region_bytes(regions[i]);
	rc = tmesh_paths_build(opts->files, opts->file_count, bytes, (uint32_t)count, out, &length,
			       err);
	free(bytes);
	return rc;
}

static int check_region(struct tmesh_ctx *ctx, struct tmesh_region *region, size_t i,
			struct tmesh_error *err)
{
	/* A process that may read a memfd can hold it for any time anyway, so keeping needs no
	 * more. */
	bool memfd = ctx->ops->backend == TMESH_BACKEND_MEMFD;
	int rc = tmesh_region_may(region, memfd ? TMESH_READ : TMESH_MANAGE, "keep", err);

	if (rc)
		return rc;
	if (region->ctx != ctx)
		return tmesh_fail(err, -EINVAL, "region %zu is of another context", i);
	/* The module itself knows which of its regions are opaque. */
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
	struct tmesh_paths *paths = NULL;
	int rc = TMESH_NEED(err, ctx);

	if (!rc && count)
		rc = TMESH_NEED(err, regions);
	if (!rc)
		rc = tmesh_kept_check_name(name, err);
	if (!rc)
		rc = read_opts(opts, &o, err);
	if (!rc && (count == 0 || count > TMESH_KEPT_MAX_REGIONS))
		rc = tmesh_fail(err, -EINVAL, "a name keeps 1 to %d regions, not %zu",
				TMESH_KEPT_MAX_REGIONS, count);
	if (!rc)
		rc = tmesh_ctx_enter(ctx, err);
	for (size_t i = 0; !rc && i < count; i++)
		rc = check_region(ctx, regions[i], i, err);
	if (!rc)
		rc = make_paths(name, regions, count, &o, &paths, err);
	if (!rc)
		rc = ctx->ops->keep->keep(ctx, name, regions, (uint32_t)count, &o, paths, err);
	free(paths);
	return rc;
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
		rc = tmesh_kept_check_name(name, err);
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
	rc = tmesh_bundle_adopt(ctx, regions[0], regions + 1, count - 1, out, err);
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
	int rc = tmesh_kept_check_name(name, err);
	struct tmesh_ctx *files;

	if (!rc)
		rc = tmesh_ctx_enter(ctx, err);
	if (rc)
		return rc;
	rc = ctx->ops->keep->drop(ctx, name, err);
	/* A context of memfds of this user may have kept it. */
	if (rc == -ENOENT && ctx->ops->backend != TMESH_BACKEND_MEMFD &&
	    !tmesh_ctx_memfd(ctx, &files, NULL))
		rc = files->ops->keep->drop(files, name, err);
	return rc;
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
