/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_PAGE_H
#define TMESH_COMMON_PAGE_H

#include <stdint.h>
#include <unistd.h>

static inline uint64_t tmesh_page_bytes(void)
{
	return (uint64_t)getpagesize();
}

#endif /* TMESH_COMMON_PAGE_H */
