/* SPDX-License-Identifier: MIT */
/* For tests of what only the module does. */
#ifndef TMESH_ON_MODULE_H
#define TMESH_ON_MODULE_H

#include "unit.h"

#define MS UINT64_C(1000000)
#define RW (TMESH_READ | TMESH_WRITE)
#define PAGE 4096u

static inline uint8_t *map_of(struct tmesh_region *region, uint32_t rights)
{
	return map_region(region, rights);
}

#endif /* TMESH_ON_MODULE_H */
