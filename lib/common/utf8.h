/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_UTF8_H
#define TMESH_COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Return how many of the first of @bytes bytes at @text are UTF-8 without zeros and, unless
 * @controls, without control characters; @bytes if all are.
 */
size_t tmesh_utf8_span(const char *text, size_t bytes, bool controls);

/* Return the length without a character that the end of the @bytes bytes at @text has cut. */
size_t tmesh_utf8_cut(const char *text, size_t bytes);

#endif /* TMESH_COMMON_UTF8_H */
