// SPDX-License-Identifier: MIT
/*
 * The variables that a context's later calls need. They are read once, when the context is made.
 * getenv() in each call would race with a setenv() of another thread. Two calls of one context
 * could see two directories.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

#define MOUNT "/run/tmesh"

/* Return the variable's text; NULL if it is unset or empty. */
static const char *variable(const char *name)
{
	const char *text = secure_getenv(name);

	return text && *text ? text : NULL;
}

/* Choose the runtime directory, which may be relative. The user's number is left out, because the
 * process may change its user later. */
static char *choose_runtime_dir(const char *given, bool *of_user)
{
	const char *dir = given ? given : variable("TMESH_RUNTIME_DIR");
	char *text;

	*of_user = false;
	if (dir && *dir)
		return strdup(dir);
	dir = variable("XDG_RUNTIME_DIR");
	if (dir)
		return asprintf(&text, "%s/tmesh", dir) < 0 ? NULL : text;
	*of_user = true;
	dir = variable("TMPDIR");
	return strdup(dir ? dir : "/tmp");
}

/* Make the path absolute, so that the process may change its working directory. */
static int make_absolute(char **path, struct tmesh_error *err)
{
	char *here, *text;
	int length;

	if (**path == '/')
		return 0;
	here = getcwd(NULL, 0);
	if (!here)
		return tmesh_fail_errno(err,
					"the working directory, which the runtime directory is "
					"relative to");
	length = asprintf(&text, "%s/%s", here, *path);
	free(here);
	if (length < 0)
		return tmesh_fail(err, -ENOMEM, "no memory for a context");
	free(*path);
	*path = text;
	return 0;
}

int tmesh_environment_read(struct tmesh_ctx *ctx, const char *runtime_dir, struct tmesh_error *err)
{
	const char *mount = variable("TMESH_MOUNT"), *keeper = variable("TMESH_KEEPER");

	ctx->runtime_dir = choose_runtime_dir(runtime_dir, &ctx->runtime_dir_of_user);
	ctx->mount = strdup(mount ? mount : MOUNT);
	ctx->keeper = keeper ? strdup(keeper) : NULL;
	if (!ctx->runtime_dir || !ctx->mount || (keeper && !ctx->keeper))
		return tmesh_fail(err, -ENOMEM, "no memory for a context");
	return make_absolute(&ctx->runtime_dir, err);
}

int tmesh_environment_copy(struct tmesh_ctx *ctx, const struct tmesh_ctx *from,
			   struct tmesh_error *err)
{
	ctx->runtime_dir = strdup(from->runtime_dir);
	ctx->runtime_dir_of_user = from->runtime_dir_of_user;
	ctx->mount = strdup(from->mount);
	ctx->keeper = from->keeper ? strdup(from->keeper) : NULL;
	if (!ctx->runtime_dir || !ctx->mount || (from->keeper && !ctx->keeper))
		return tmesh_fail(err, -ENOMEM, "no memory for a context");
	return 0;
}

void tmesh_environment_free(struct tmesh_ctx *ctx)
{
	free(ctx->runtime_dir);
	free(ctx->mount);
	free(ctx->keeper);
}
