/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_RANDOM_H
#define TMESH_COMMON_RANDOM_H

#include "public.h"

/* Fill in up to 256 random bytes, for secrets too. */
int tmesh_random(void *bytes, size_t count, struct tmesh_error *err);

#endif /* TMESH_COMMON_RANDOM_H */
