/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_POPULATE_H
#define TMESH_COMMON_POPULATE_H

#include <stdint.h>

/*
 * Take the pages of a mapping now, as madvise() with @advice, MADV_POPULATE_READ or _WRITE, but in
 * pieces. During one call the kernel holds the process's lock on its mappings. A thread that maps
 * memory waits for it, and each thread that touches a new page waits behind that.
 *
 * Return: 0, or a negative errno; some pages may be there then.
 */
int tmesh_populate(void *start, uint64_t bytes, int advice);

#endif /* TMESH_COMMON_POPULATE_H */
