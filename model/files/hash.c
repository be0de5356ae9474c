// SPDX-License-Identifier: MIT
/* Checksums by xxHash's XXH3 of 128 bits, compiled in. They find damage and change. They need not
 * resist forgery: an attacker that can write the checksum can write the file. */
#include "model_internal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

void model_hash(const void *data, size_t bytes, uint64_t hash[2])
{
	XXH128_hash_t value = XXH3_128bits(data, bytes);

	hash[0] = value.high64;
	hash[1] = value.low64;
}
