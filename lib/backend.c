// SPDX-License-Identifier: MIT
/* The choice between the module and memfds: by the context's option, by TMESH_BACKEND, or the
 * module where it can be opened. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

const char *tmesh_backend_name(enum tmesh_backend backend)
{
	switch (backend) {
	case TMESH_BACKEND_AUTO:
		return "auto";
	case TMESH_BACKEND_KERNEL:
		return "kernel";
	case TMESH_BACKEND_MEMFD:
		return "memfd";
	}
	return NULL;
}

int tmesh_backend_wanted(enum tmesh_backend option, enum tmesh_backend *out,
			 struct tmesh_error *err)
{
	const char *name;

	*out = option;
	if (option == TMESH_BACKEND_KERNEL || option == TMESH_BACKEND_MEMFD)
		return 0;
	if (option != TMESH_BACKEND_AUTO)
		return tmesh_fail(err, -EINVAL, "unknown backend %d", (int)option);
	name = secure_getenv("TMESH_BACKEND");
	if (!name || !*name)
		return 0;
	if (!strcmp(name, "kernel"))
		*out = TMESH_BACKEND_KERNEL;
	else if (!strcmp(name, "memfd"))
		*out = TMESH_BACKEND_MEMFD;
	else
		return tmesh_fail(err, -EINVAL,
				  "TMESH_BACKEND is \"%.32s\"; kernel and memfd are known", name);
	return 0;
}

int tmesh_backend_open(struct tmesh_ctx *ctx, enum tmesh_backend wanted, struct tmesh_error *err)
{
	struct tmesh_error why;
	int rc;

	if (wanted != TMESH_BACKEND_MEMFD) {
		ctx->ops = &tmesh_kernel_ops;
		rc = ctx->ops->open(ctx, wanted == TMESH_BACKEND_KERNEL ? err : &why);
		if (rc == 0 && wanted == TMESH_BACKEND_AUTO)
			tmesh_log(ctx, TMESH_LOG_INFO, "taking the kernel backend");
		if (rc == 0 || wanted == TMESH_BACKEND_KERNEL)
			return rc;
		tmesh_log(ctx, rc == -ENOENT ? TMESH_LOG_INFO : TMESH_LOG_WARN,
			  "taking the memfd backend: %s", why.message);
	}
	ctx->ops = &tmesh_memfd_ops;
	return ctx->ops->open(ctx, err);
}

enum tmesh_backend tmesh_ctx_backend(const struct tmesh_ctx *ctx)
{
	return ctx->ops->backend;
}
