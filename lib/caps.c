// SPDX-License-Identifier: MIT
/* Capabilities: the promises of this machine and backend, each with its reason. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define REASON_SIZE 240

/* The array that callers see, with the texts behind it in one allocation. */
struct cap_table {
	struct tmesh_cap caps[CAPS];
	char reasons[CAPS][REASON_SIZE];
};

static const char *const names[CAPS] = {
	[CAP_ZERO_COPY] = "zero-copy",
	[CAP_CRASH_CLEANUP] = "crash-cleanup",
	[CAP_READ_ONLY] = "read-only",
	[CAP_SEAL] = "seal",
	[CAP_SEAL_DEVICES] = "seal-devices",
	[CAP_REVOKE] = "revoke",
	[CAP_PIN] = "pin",
	[CAP_HOLDERS] = "holders",
	[CAP_DMABUF_EXPORT] = "dmabuf-export",
	[CAP_DMABUF_EXPORT_SEALED] = "dmabuf-export-sealed",
	[CAP_HUGE_PAGES] = "huge-pages",
	[CAP_NUMA] = "numa",
	[CAP_QUOTA] = "quota",
	[CAP_DIRECT_IO] = "direct-io",
	[CAP_OPEN_WITHOUT_WAKE] = "open-without-wake",
	[CAP_LEASE] = "lease",
	[CAP_USER_MEMORY] = "user-memory",
	[CAP_IMPORT] = "import",
	[CAP_GATHER] = "gather",
	[CAP_FENCE] = "fence",
};

void tmesh_cap_set(struct tmesh_ctx *ctx, enum tmesh_cap_index cap, enum tmesh_cap_level level,
		   const char *fmt, ...)
{
	struct cap_table *table = (struct cap_table *)ctx->caps;
	va_list args;

	va_start(args, fmt);
	vsnprintf(table->reasons[cap], REASON_SIZE, fmt, args);
	va_end(args);
	table->caps[cap].level = level;
}

int tmesh_caps(struct tmesh_ctx *ctx, const struct tmesh_cap **caps, size_t *count)
{
	int rc = tmesh_ctx_enter(ctx, NULL);

	if (rc)
		return rc;
	pthread_mutex_lock(&ctx->lock);
	if (!ctx->caps) {
		struct cap_table *table = calloc(1, sizeof(*table));

		if (table) {
			for (int i = 0; i < CAPS; i++) {
				table->caps[i].name = names[i];
				table->caps[i].reason = table->reasons[i];
			}
			ctx->caps = table->caps;
			ctx->ops->caps(ctx);
		}
	}
	if (ctx->caps) {
		*caps = ctx->caps;
		*count = CAPS;
	} else {
		rc = -ENOMEM;
	}
	pthread_mutex_unlock(&ctx->lock);
	return rc;
}
