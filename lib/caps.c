// SPDX-License-Identifier: MIT
/* Capabilities: the promises of this machine and backend, each with its reason. */
#include "internal.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REASON_SIZE 240

/* The array that callers see, and its texts, in one allocation. */
struct cap_table {
	struct tmesh_cap caps[CAPS];
	char reasons[CAPS][REASON_SIZE];
};

struct tmesh_caps_copy {
	struct tmesh_caps_copy *next;
	size_t cap_bytes;
	_Alignas(max_align_t) uint8_t caps[];
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

static void caps_find(struct tmesh_ctx *ctx)
{
	struct cap_table *table = calloc(1, sizeof(*table));

	if (!table)
		return;
	for (int i = 0; i < CAPS; i++) {
		table->caps[i].name = names[i];
		table->caps[i].reason = table->reasons[i];
	}
	ctx->caps = table->caps;
	ctx->ops->caps(ctx);
}

/* Return a copy for callers that were compiled with another size; one for each size. */
static const struct tmesh_cap *resized(struct tmesh_ctx *ctx, size_t cap_bytes)
{
	struct tmesh_caps_copy *copy = ctx->caps_copies;
	size_t both = cap_bytes < sizeof(struct tmesh_cap) ? cap_bytes : sizeof(struct tmesh_cap);

	while (copy && copy->cap_bytes != cap_bytes)
		copy = copy->next;
	if (!copy) {
		copy = calloc(1, sizeof(*copy) + CAPS * cap_bytes);
		if (!copy)
			return NULL;
		copy->cap_bytes = cap_bytes;
		for (int i = 0; i < CAPS; i++)
			memcpy(copy->caps + (size_t)i * cap_bytes, &ctx->caps[i], both);
		copy->next = ctx->caps_copies;
		ctx->caps_copies = copy;
	}
	return (const struct tmesh_cap *)copy->caps;
}

int tmesh_caps_sized(struct tmesh_ctx *ctx, size_t cap_bytes, const struct tmesh_cap **caps,
		     size_t *count)
{
	const struct tmesh_cap *found = NULL;
	int rc = TMESH_NEED(NULL, caps, count);

	if (!rc)
		rc = tmesh_ctx_enter(ctx, NULL);
	if (!rc)
		rc = tmesh_check_element(sizeof(**caps), cap_bytes, NULL);
	if (rc)
		return rc;
	pthread_mutex_lock(&ctx->lock);
	if (!ctx->caps)
		caps_find(ctx);
	if (ctx->caps)
		found = cap_bytes == sizeof(*found) ? ctx->caps : resized(ctx, cap_bytes);
	pthread_mutex_unlock(&ctx->lock);
	if (!found)
		return -ENOMEM;
	*caps = found;
	*count = CAPS;
	return 0;
}

void tmesh_caps_free(struct tmesh_ctx *ctx)
{
	while (ctx->caps_copies) {
		struct tmesh_caps_copy *copy = ctx->caps_copies;

		ctx->caps_copies = copy->next;
		free(copy);
	}
	free(ctx->caps);
}
