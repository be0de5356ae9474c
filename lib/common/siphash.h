/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_SIPHASH_H
#define TMESH_COMMON_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t tmesh_siphash(const uint64_t key[2], const void *data, size_t bytes);

#endif /* TMESH_COMMON_SIPHASH_H */
