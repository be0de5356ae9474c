/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_ERROR_H
#define TMESH_COMMON_ERROR_H

#include "public.h"

/* Fill @err (may be NULL) and return @code, a negative errno. */
int tmesh_fail(struct tmesh_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4), cold));
/*
 * Return 0 if none of the given pointers is NULL, else -EINVAL with the first of them named in
 * @err. The name is the expression here, which must be the one in the call's header. Check before
 * any use.
 */
#define TMESH_NEED(err, ...)                                              \
	tmesh_need(err, #__VA_ARGS__, (const void *const[]){__VA_ARGS__}, \
		   sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *))
int tmesh_needed(struct tmesh_error *err, const char *names, size_t i) __attribute__((cold));
static inline int tmesh_need(struct tmesh_error *err, const char *names,
			     const void *const *pointers, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (__builtin_expect(!pointers[i], 0))
			return tmesh_needed(err, names, i);
	return 0;
}
/* Fill @err for the system call @what that left @code in errno. */
int tmesh_fail_errno(struct tmesh_error *err, const char *what) __attribute__((cold));

#endif /* TMESH_COMMON_ERROR_H */
