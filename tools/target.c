// SPDX-License-Identifier: MIT
/* Contexts, and the region that the user named by id, token or ref. */
#include "tmeshctl.h"

static void log_line(void *data, enum tmesh_log_level level, const char *message)
{
	struct tmesh_error err;

	if (level > TMESH_LOG_WARN)
		return;
	snprintf(err.message, sizeof(err.message), "%s", message);
	complain(level == TMESH_LOG_WARN ? "warning" : "error", &err);
}

int open_ctx_exit_wait(enum tmesh_backend backend, uint64_t seconds, struct tmesh_ctx **ctx)
{
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.backend = backend,
		.log = log_line,
		.exit_wait_ns = seconds * 1000000000u,
	};
	struct tmesh_error err;

	if (tmesh_ctx_open(&opts, ctx, &err))
		return complain("opening a context", &err);
	return STATUS_OK;
}

int open_ctx(enum tmesh_backend backend, struct tmesh_ctx **ctx)
{
	return open_ctx_exit_wait(backend, 0, ctx);
}

json_int_t bundle_tensors(const char *text)
{
	json_int_t tensors = -1;
	const char *kind = "";
	json_t *value = json_loads(text, 0, NULL);

	if (json_unpack(value, "{s:s, s:I}", "kind", &kind, "tensors", &tensors) ||
	    strcmp(kind, "bundle") || tensors < 0)
		tensors = -1;
	json_decref(value);
	return tensors;
}

/* Fewer digits would often match several regions. */
#define LEAST_DIGITS 4

static bool is_id(const char *text)
{
	size_t digits = strspn(text, "0123456789abcdefABCDEF");

	return !text[digits] && digits >= LEAST_DIGITS && digits <= 16;
}

void parse_target(const struct verb *verb, const char *text, struct target *target)
{
	struct tmesh_error err;

	memset(target, 0, sizeof(*target));
	target->digits = 16;
	if (text[0] == '{') {
		int rc = tmesh_ref_decode(text, strlen(text), &target->ref, &err);

		if (rc && bundle_tensors(text) >= 0)
			usage_error(verb,
				    "this is the ref of a bundle, and %s takes one region: name "
				    "it by its id or token, which the ref has under \"regions\"",
				    verb->name);
		if (rc)
			usage_error(verb, "%s", err.message);
		target->has_ref = true;
		target->id = target->ref.id;
		memcpy(target->token, target->ref.token, sizeof(target->token));
		return;
	}
	if (!strncmp(text, "tm1", 3) && strlen(text) < sizeof(target->token)) {
		strcpy(target->token, text);
		return;
	}
	if (is_id(text)) {
		target->id = strtoull(text, NULL, 16);
		target->digits = (unsigned int)strlen(text);
		return;
	}
	usage_error(
		verb,
		"\"%s\" is not an id (16 hex digits, or the first %d or more), a token or a ref",
		text, LEAST_DIGITS);
}

/* A token's beginning names its backend. */
static enum tmesh_backend backend_of(const char *token)
{
	if (!strncmp(token, "tm1k-", 5))
		return TMESH_BACKEND_KERNEL;
	if (!strncmp(token, "tm1m-", 5))
		return TMESH_BACKEND_MEMFD;
	return TMESH_BACKEND_AUTO;
}

int open_target(const struct target *target, uint32_t rights, struct tmesh_ctx **ctx,
		struct tmesh_region **region)
{
	struct tmesh_error err;
	int status;

	status = open_ctx(backend_of(target->token), ctx);
	if (status)
		return status;
	if (tmesh_region_open(*ctx, target->token, rights, region, &err)) {
		tmesh_ctx_unref(*ctx);
		return complain("opening the token", &err);
	}
	return STATUS_OK;
}

static int id_of_token(const struct target *target, uint64_t *id)
{
	struct tmesh_region_info info = {.size = sizeof(info)};
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;
	struct tmesh_error err;
	int status;

	status = open_target(target, TMESH_READ, &ctx, &region);
	if (status)
		return status;
	if (tmesh_region_info(region, &info, &err))
		status = complain("asking about the region", &err);
	*id = info.id;
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
	return status;
}

struct search {
	uint64_t id; /* only its first @digits count */
	unsigned int digits;
	size_t found;
	struct tmesh_ctx *ctx; /* the context where the first match was found */
	struct tmesh_region_info *info;
};

static int target_look(struct tmesh_ctx *ctx, void *data)
{
	struct tmesh_region_info *infos;
	struct search *search = data;
	struct tmesh_error err;
	size_t count;

	if (tmesh_list(ctx, &infos, &count, &err))
		return complain("listing regions", &err);
	for (size_t i = 0; i < count; i++) {
		if (infos[i].id >> 4 * (16 - search->digits) != search->id || search->found++)
			continue;
		*search->info = infos[i];
		search->ctx = tmesh_ctx_ref(ctx);
	}
	free(infos);
	return STATUS_OK;
}

int find_target(const struct target *target, struct tmesh_ctx **ctx, struct tmesh_region_info *info)
{
	struct search search = {.id = target->id, .digits = target->digits, .info = info};
	int status = STATUS_OK;

	/* Close the tool's own handle again first, so that it is not counted. */
	if (target->token[0])
		status = id_of_token(target, &search.id);
	if (!status)
		status = for_backends(backend_of(target->token), target_look, &search);
	if (!status && !search.found) {
		fprintf(stderr, "tmeshctl: there is no region %0*" PRIx64 "%s that you may see\n",
			(int)search.digits, search.id, search.digits < 16 ? "..." : "");
		status = STATUS_FAILED;
	}
	if (!status && search.found > 1 && search.digits < 16) {
		fprintf(stderr,
			"tmeshctl: %zu regions have an id that begins with %0*" PRIx64
			": give more digits\n",
			search.found, (int)search.digits, search.id);
		status = STATUS_FAILED;
	}
	if (status) {
		tmesh_ctx_unref(search.ctx);
		return status;
	}
	*ctx = search.ctx;
	return STATUS_OK;
}

int for_backends(enum tmesh_backend only, int (*each)(struct tmesh_ctx *ctx, void *data),
		 void *data)
{
	static const enum tmesh_backend all[] = {TMESH_BACKEND_KERNEL, TMESH_BACKEND_MEMFD};
	const char *chosen = getenv("TMESH_BACKEND");
	struct tmesh_ctx *ctx;
	int status = STATUS_OK;

	/* If the user chose a backend, by option or environment, report that it is missing. */
	if (only != TMESH_BACKEND_AUTO || (chosen && *chosen)) {
		status = open_ctx(only, &ctx);
		if (!status) {
			status = each(ctx, data);
			tmesh_ctx_unref(ctx);
		}
		return status;
	}
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && !status; i++) {
		struct tmesh_ctx_opts opts = {
			.size = sizeof(opts),
			.backend = all[i],
			.log = log_line,
		};

		if (tmesh_ctx_open(&opts, &ctx, NULL))
			continue;
		status = each(ctx, data);
		tmesh_ctx_unref(ctx);
	}
	return status;
}
