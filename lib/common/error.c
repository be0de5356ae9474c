// SPDX-License-Identifier: MIT
/* Errors for the caller. */
#include "error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "utf8.h"

int tmesh_fail(struct tmesh_error *err, int code, const char *fmt, ...)
{
	va_list args;
	int length;

	if (!err)
		return code;
	err->code = code;
	va_start(args, fmt);
	length = vsnprintf(err->message, sizeof(err->message), fmt, args);
	va_end(args);
	/* Messages go into JSON and other languages' texts, which take whole characters. */
	if (length >= (int)sizeof(err->message))
		err->message[tmesh_utf8_cut(err->message, sizeof(err->message) - 1)] = '\0';
	return code;
}

int tmesh_needed(struct tmesh_error *err, const char *names, size_t i)
{
	while (i--)
		names = strchr(names, ',') + strlen(", ");
	return tmesh_fail(err, -EINVAL,
			  "%.*s is NULL, and the call needs it: has the call that gives it failed?",
			  (int)strcspn(names, ","), names);
}

int tmesh_fail_errno(struct tmesh_error *err, const char *what)
{
	int code = errno;
	char text[96];

	if (code == EMFILE)
		return tmesh_fail(
			err, -code,
			"%s: this process has no descriptor left: release what is not needed, put "
			"small tensors into an arena, or raise RLIMIT_NOFILE (ulimit -n)",
			what);
	if (code == ENFILE)
		return tmesh_fail(
			err, -code,
			"%s: this machine has no descriptor left for any process; root raises "
			"their number by sysctl fs.file-max",
			what);
	if (code == EFBIG)
		return tmesh_fail(err, -code,
				  "%s: it would be larger than this process may make files and "
				  "shared memory (RLIMIT_FSIZE, ulimit -f)",
				  what);
	return tmesh_fail(err, -code, "%s: %s", what, strerror_r(code, text, sizeof(text)));
}
