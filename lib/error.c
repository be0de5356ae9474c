// SPDX-License-Identifier: MIT
/* Errors for the caller, and the log. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int tmesh_fail(struct tmesh_error *err, int code, const char *fmt, ...)
{
	va_list args;

	if (!err)
		return code;
	err->code = code;
	va_start(args, fmt);
	vsnprintf(err->message, sizeof(err->message), fmt, args);
	va_end(args);
	return code;
}

int tmesh_fail_errno(struct tmesh_error *err, const char *what)
{
	int code = errno;
	char text[96];

	return tmesh_fail(err, -code, "%s: %s", what, strerror_r(code, text, sizeof(text)));
}

void tmesh_log(const struct tmesh_ctx *ctx, enum tmesh_log_level level, const char *fmt, ...)
{
	char message[512];
	va_list args;

	if (!ctx->log)
		return;
	va_start(args, fmt);
	vsnprintf(message, sizeof(message), fmt, args);
	va_end(args);
	ctx->log(ctx->log_data, level, message);
}
