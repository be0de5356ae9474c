/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_ERROR_H
#define TMESH_COMMON_ERROR_H

#include "public.h"

/* Fill @err (may be NULL) and return @code, a negative errno. */
int tmesh_fail(struct tmesh_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4), cold));
/* The same for the system call @what that left @code in errno. */
int tmesh_fail_errno(struct tmesh_error *err, const char *what) __attribute__((cold));

#endif /* TMESH_COMMON_ERROR_H */
