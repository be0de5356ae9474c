/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_UTF8_H
#define TMESH_COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/*
 * How many of the @bytes bytes at @text, from the first on, are UTF-8 without zeros and, unless
 * @controls, without control characters: @bytes when all are.
 */
size_t tmesh_utf8_span(const char *text, size_t bytes, bool controls);

#endif /* TMESH_COMMON_UTF8_H */
