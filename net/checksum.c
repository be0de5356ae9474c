// SPDX-License-Identifier: MIT
/*
 * Checksums by xxHash's XXH3 (128 bits), compiled into this library. It is as fast as memory, so a
 * fetch is not slower for it. It detects damage, not forgery: an attacker who can change the bytes
 * on their way can also read them, because the transport is not encrypted.
 */
#include <errno.h>
#include <string.h>

#include "common/hex.h"
#include "net_internal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

struct net_sum {
	XXH3_state_t state;
};

int net_sum_begin(struct net_sum **out, struct tmesh_error *err)
{
	struct net_sum *sum = aligned_alloc(_Alignof(struct net_sum), sizeof(*sum));

	if (!sum)
		return tmesh_fail(err, -ENOMEM, "no memory for a checksum");
	XXH3_128bits_reset(&sum->state);
	*out = sum;
	return 0;
}

void net_sum_add(struct net_sum *sum, const void *data, size_t bytes)
{
	XXH3_128bits_update(&sum->state, data, bytes);
}

void net_sum_end(struct net_sum *sum, char text[TMESH_NET_CHECKSUM_SIZE])
{
	XXH128_canonical_t bytes;

	XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(&sum->state));
	if (text)
		tmesh_hex(text, bytes.digest, sizeof(bytes.digest));
	free(sum);
}

int net_sum_check(const char *come, const char *offered, struct tmesh_error *err)
{
	if (!strcmp(come, offered))
		return 0;
	return tmesh_fail(err, -EPROTO,
			  "fetch: the bytes have the checksum %s, and not %s: they were damaged, "
			  "or are of another region",
			  come, offered);
}
