// SPDX-License-Identifier: MIT
/* Regions around memory made elsewhere, and views: the rules that both backends share. */
#include "internal.h"

#include <string.h>

#define GATHER_MAX ((size_t)1 << 20)

/* Make a region object for @opts, of which only some apply. */
static int source_begin(struct tmesh_ctx *ctx, const void *op, const char *what, uint32_t rights,
			const struct tmesh_region_opts *opts, struct tmesh_region **out,
			struct tmesh_error *err)
{
	struct tmesh_region_opts o;
	int rc = tmesh_read_region_opts(opts, &o, err);

	if (rc)
		return rc;
	if (o.flags & ~(uint32_t)TMESH_REGION_GID)
		return tmesh_fail(err, -EINVAL, "%s takes only the flag GID", what);
	if (!op)
		return tmesh_fail(err, -EOPNOTSUPP, "%s needs the tmesh module", what);
	rc = tmesh_region_begin(ctx, &o, out, err);
	if (!rc)
		(*out)->rights = rights;
	return rc;
}

static int check_read_write(uint32_t rights, const char *what, struct tmesh_error *err)
{
	if (rights != TMESH_READ && rights != (TMESH_READ | TMESH_WRITE))
		return tmesh_fail(
			err, -EINVAL,
			"%s: rights 0x%x are neither TMESH_READ nor TMESH_READ | TMESH_WRITE", what,
			rights);
	return 0;
}

int tmesh_region_from_user(struct tmesh_ctx *ctx, void *addr, uint64_t bytes, uint32_t rights,
			   const struct tmesh_region_opts *opts, struct tmesh_region **out,
			   struct tmesh_error *err)
{
	uint64_t page = tmesh_page_bytes(), last;
	struct tmesh_region *region;
	int rc = TMESH_NEED(err, ctx, addr, out);

	if (!rc)
		rc = check_read_write(rights, "pinning memory", err);
	if (rc)
		return rc;
	if (!bytes || bytes % page || (uintptr_t)addr % page)
		return tmesh_fail(err, -EINVAL,
				  "%llu bytes at %p are not whole pages of %llu bytes",
				  (unsigned long long)bytes, addr, (unsigned long long)page);
	if (__builtin_add_overflow((uint64_t)(uintptr_t)addr, bytes - 1, &last))
		return tmesh_fail(err, -EINVAL, "%llu bytes at %p are beyond all memory",
				  (unsigned long long)bytes, addr);
	rc = source_begin(ctx, ctx->ops->from_user, "pinning memory", rights, opts, &region, err);
	if (rc)
		return rc;
	return tmesh_region_opened(region, ctx->ops->from_user(region, addr, bytes, err), out);
}

int tmesh_region_from_dmabuf(struct tmesh_ctx *ctx, int fd, const struct tmesh_region_opts *opts,
			     struct tmesh_region **out, struct tmesh_error *err)
{
	struct tmesh_region *region;
	int rc = TMESH_NEED(err, ctx, out);

	if (!rc)
		rc = source_begin(ctx, ctx->ops->from_dmabuf, "importing a dma-buf", 0, opts,
				  &region, err);
	if (rc)
		return rc;
	return tmesh_region_opened(region, ctx->ops->from_dmabuf(region, fd, err), out);
}

int tmesh_region_from_fd(struct tmesh_ctx *ctx, int fd, uint64_t bytes,
			 const struct tmesh_region_opts *opts, struct tmesh_region **out,
			 struct tmesh_error *err)
{
	struct tmesh_region *region;
	int rc = TMESH_NEED(err, ctx, out);

	if (rc)
		return rc;
	if (!bytes)
		return tmesh_fail(err, -EINVAL, "say how many bytes the descriptor stands for");
	if (bytes > TMESH_BYTES_MAX)
		return tmesh_fail(err, -EOVERFLOW, "%llu bytes are more than a region has",
				  (unsigned long long)bytes);
	rc = source_begin(ctx, ctx->ops->from_fd, "keeping a descriptor", 0, opts, &region, err);
	if (rc)
		return rc;
	return tmesh_region_opened(region, ctx->ops->from_fd(region, fd, bytes, err), out);
}

int tmesh_region_opaque_fd(struct tmesh_region *region, int *fd, struct tmesh_error *err)
{
	int rc = TMESH_NEED(err, region, fd);

	if (!rc)
		rc = tmesh_region_may(region, TMESH_WRITE, "asking for the descriptor", err);
	return rc ? rc : region->ctx->ops->opaque_fd(region, fd, err);
}

int tmesh_region_gather(struct tmesh_ctx *ctx, const struct tmesh_gather_extent *extents,
			size_t count, uint32_t rights, const struct tmesh_region_opts *opts,
			struct tmesh_region **out, struct tmesh_error *err)
{
	struct tmesh_region *region;
	int rc = TMESH_NEED(err, ctx, extents, out);

	if (!rc)
		rc = check_read_write(rights, "gather", err);
	if (rc)
		return rc;
	if (!count || count > GATHER_MAX)
		return tmesh_fail(err, -EINVAL, "gather: %zu parts; a view has 1 to %zu", count,
				  GATHER_MAX);
	for (size_t i = 0; i < count && !rc; i++) {
		rc = TMESH_NEED(err, extents[i].region);
		if (rc)
			return rc;
		if (extents[i].region->ctx->ops != ctx->ops)
			rc = tmesh_fail(err, -EINVAL, "gather: part %zu is of another backend", i);
		else
			rc = tmesh_region_may(extents[i].region, rights, "gather", err);
	}
	if (!rc)
		rc = source_begin(ctx, ctx->ops->gather, "gather", rights, opts, &region, err);
	if (rc)
		return rc;
	rc = tmesh_region_opened(region, ctx->ops->gather(region, extents, count, err), out);
	for (size_t i = 0; i < count && !rc; i++)
		tmesh_region_set_shared(extents[i].region);
	return rc;
}
