/* SPDX-License-Identifier: MIT */
/* Who keeps regions, for each backend; keep.c has checked what does not depend on it. */
#ifndef TMESH_KEEP_INTERNAL_H
#define TMESH_KEEP_INTERNAL_H

#include "internal.h"

struct tmesh_keep_ops {
	int (*keep)(struct tmesh_ctx *ctx, const char *name, struct tmesh_region *const *regions,
		    uint32_t count, const struct tmesh_keep_opts *opts, struct tmesh_error *err);
	/* An array as tmesh_kept_open() gives it. */
	int (*open)(struct tmesh_ctx *ctx, const char *name, uid_t uid, uint32_t rights,
		    struct tmesh_region ***regions, size_t *count, struct tmesh_error *err);
	int (*list)(struct tmesh_ctx *ctx, struct tmesh_kept_info **infos, size_t *count,
		    struct tmesh_error *err);
	int (*drop)(struct tmesh_ctx *ctx, const char *name, struct tmesh_error *err);
	int (*info)(struct tmesh_ctx *ctx, struct tmesh_keeper_info *info, struct tmesh_error *err);
};

extern const struct tmesh_keep_ops tmesh_memfd_keep_ops;
extern const struct tmesh_keep_ops tmesh_kernel_keep_ops;

#endif /* TMESH_KEEP_INTERNAL_H */
