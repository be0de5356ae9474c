// SPDX-License-Identifier: MIT
/* Arguments that create and put share: a tensor's dtype and shape, its tokens, its holder. */
#include <ctype.h>

#include "tensor_args.h"

/* Parse "3,4", or "[3, 4]" as Python and JSON write it; "[]" has no dimensions. */
static bool read_shape(const char *at, int64_t *shape, int32_t *ndim)
{
	bool brackets = *at == '[';
	char *end;

	*ndim = 0;
	at += brackets;
	if (brackets && !strcmp(at, "]"))
		return true;
	for (;;) {
		if (*ndim == TMESH_MAX_DIMS || !isdigit((unsigned char)*at))
			return false;
		errno = 0;
		shape[(*ndim)++] = strtoll(at, &end, 10);
		if (errno)
			return false;
		at = end;
		if (*at != ',')
			break;
		at += 1 + strspn(at + 1, " ");
	}
	return !strcmp(at, brackets ? "]" : "");
}

static void parse_shape(const struct verb *verb, const char *text, struct tensor_args *args)
{
	if (!read_shape(text, args->shape, &args->ndim))
		usage_error(verb, "\"%s\" is not a shape (3,4: at most %d dimensions)", text,
			    TMESH_MAX_DIMS);
	args->has_shape = true;
}

bool tensor_option(const struct verb *verb, struct tensor_args *args, int key, const char *value)
{
	switch (key) {
	case 'd':
		args->dtype = tmesh_dtype_from_name(value);
		if (args->dtype == TMESH_DTYPE_INVALID)
			usage_error(verb, "\"%s\" is not a dtype", value);
		break;
	case 's':
		parse_shape(verb, value, args);
		break;
	case 'l':
		args->label = value;
		break;
	case 'U':
		args->seal = false;
		break;
	case 'w':
		args->token_rights |= TMESH_WRITE;
		break;
	case 'm':
		args->token_rights |= TMESH_WRITE | TMESH_MANAGE;
		break;
	case 'b':
		args->backend = backend_option(verb, value);
		break;
	case 'j':
		args->json = true;
		break;
	case 'B':
		args->hold.background = true;
		break;
	case 'f':
		args->hold.seconds = seconds_option(verb, value);
		break;
	case 'H':
		args->hold.opened =
			number_option(verb, value, "a number of seconds up to 3600", 1, 3600);
		args->hold.background = true;
		break;
	default:
		return false;
	}
	return true;
}

void tensor_check(const struct verb *verb, const struct tensor_args *args)
{
	if (args->seal && args->token_rights != TMESH_READ)
		usage_error(verb, "a sealed region has only readers: --writable-token and "
				  "--manage-token need --unsealed");
	if (args->hold.opened && (args->hold.command || args->hold.seconds))
		usage_error(verb, "--hold says how long: it excludes --for and a command");
	if (args->hold.opened && args->token_rights != TMESH_READ)
		usage_error(verb, "--hold is of one token: it excludes --writable-token and "
				  "--manage-token");
	hold_check(verb, &args->hold, args->json);
}

int tensor_bytes(const struct tensor_args *args, uint64_t *bytes)
{
	struct tmesh_layout layout;
	struct tmesh_error err;

	if (tmesh_layout_contiguous(&layout, args->dtype, args->ndim, args->shape, &err) ||
	    tmesh_layout_check(&layout, INT64_MAX, bytes, &err))
		return complain("the shape", &err);
	return STATUS_OK;
}

int tensor_new(const struct tensor_args *args, struct tmesh_ctx **ctx, struct tmesh_tensor **tensor)
{
	struct tmesh_region_opts opts = {
		.size = sizeof(opts),
		.flags = TMESH_REGION_TRY_HUGE,
		.label = args->label,
	};
	struct tmesh_error err;
	int status;

	status = open_ctx_exit_wait(args->backend, args->hold.opened, ctx);
	if (status)
		return status;
	if (tmesh_tensor_create(*ctx, args->dtype, args->ndim, args->shape, &opts, tensor, &err)) {
		tmesh_ctx_unref(*ctx);
		return complain("creating", &err);
	}
	return STATUS_OK;
}

struct names {
	char ref[TMESH_REF_SIZE];
	char token[TMESH_TOKEN_SIZE];
	char shared[TMESH_TOKEN_SIZE]; /* a token with more rights, if requested */
};

/* Make a ref and a token that hold the memory. */
static int name_held(struct tmesh_tensor *tensor, uint64_t seconds, struct names *names)
{
	struct tmesh_error err;
	struct tmesh_ref ref;

	if (tmesh_tensor_ref_hold(tensor, TMESH_READ, seconds * 1000000000u, names->ref,
				  sizeof(names->ref), &err) ||
	    tmesh_ref_decode(names->ref, strlen(names->ref), &ref, &err))
		return complain("holding the region", &err);
	memcpy(names->token, ref.token, sizeof(names->token));
	names->shared[0] = '\0';
	return STATUS_OK;
}

static int name_tensor(struct tmesh_tensor *tensor, uint32_t rights, struct names *names)
{
	struct tmesh_region *region = tmesh_tensor_region(tensor);
	struct tmesh_error err;

	if (tmesh_tensor_ref_encode(tensor, TMESH_READ, names->ref, sizeof(names->ref), &err) ||
	    tmesh_region_token(region, TMESH_READ, names->token, &err))
		return complain("naming the region", &err);
	names->shared[0] = '\0';
	if (rights != TMESH_READ && tmesh_region_token(region, rights, names->shared, &err))
		return complain("naming the region", &err);
	return STATUS_OK;
}

static int print_names(const struct tensor_args *args, const struct names *names, uint64_t id)
{
	const char *title = args->token_rights & TMESH_MANAGE ? "manage_token" : "writable_token";
	json_t *value;

	if (!args->json) {
		printf("id              %016" PRIx64 "\ntoken           %s\n", id, names->token);
		if (names->shared[0])
			printf("%-15s %s\n", title, names->shared);
		printf("ref             %s\npid             %d\n", names->ref, (int)getpid());
		return STATUS_OK;
	}
	value = json_pack("{s:o, s:s, s:o, s:i}", "id", json_id(id), "token", names->token, "ref",
			  json_loads(names->ref, 0, NULL), "pid", (int)getpid());
	if (names->shared[0])
		json_object_set_new(value, title, json_string(names->shared));
	return print_json(value);
}

static int hold_named(struct tensor_args *args, struct tmesh_tensor *tensor)
{
	char ref[TMESH_REF_SIZE + 16], token[TMESH_TOKEN_SIZE + 16];
	char *variables[] = {ref, token, NULL};
	struct names names;
	struct tmesh_ref parsed;
	int status;

	if (args->hold.opened) {
		status = name_held(tensor, args->hold.opened, &names);
	} else {
		hold_signals();
		status = name_tensor(tensor, args->token_rights, &names);
	}
	if (status)
		return status;
	tmesh_ref_decode(names.ref, strlen(names.ref), &parsed, NULL);
	snprintf(ref, sizeof(ref), "TMESH_REF=%s", names.ref);
	snprintf(token, sizeof(token), "TMESH_TOKEN=%s",
		 names.shared[0] ? names.shared : names.token);
	if (!args->hold.command)
		status = print_names(args, &names, parsed.id);
	return status ? status : hold_until_end(&args->hold, variables);
}

/*
 * Replace the handle by one without a mapping: a writable mapping would keep other processes from
 * sealing.
 */
static int drop_mapping(struct tmesh_tensor **tensor, struct tmesh_error *err)
{
	uint32_t rights = TMESH_READ | TMESH_WRITE | TMESH_MANAGE;
	struct tmesh_region *held;
	struct tmesh_tensor *kept;
	int rc;

	rc = tmesh_region_derive(tmesh_tensor_region(*tensor), rights, &held, err);
	if (rc)
		return rc;
	rc = tmesh_tensor_wrap(held, tmesh_tensor_layout(*tensor), &kept, err);
	tmesh_region_unref(held);
	if (rc)
		return rc;
	tmesh_tensor_unref(*tensor);
	*tensor = kept;
	return 0;
}

int tensor_hold(struct tensor_args *args, struct tmesh_tensor *tensor)
{
	struct tmesh_error err;
	int status;

	if (args->seal && tmesh_region_seal(tmesh_tensor_region(tensor), &err))
		status = complain("sealing", &err);
	else if (!args->seal && drop_mapping(&tensor, &err))
		status = complain("deriving a handle", &err);
	else
		status = hold_named(args, tensor);
	tmesh_tensor_unref(tensor);
	return status;
}
