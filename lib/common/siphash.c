// SPDX-License-Identifier: MIT
/* SipHash-2-4 (Aumasson and Bernstein). Both ends are on one machine: native byte order. */
#include "siphash.h"

#include <string.h>

static uint64_t rotate(uint64_t x, int bits)
{
	return x << bits | x >> (64 - bits);
}

static void sip_round(uint64_t v[4])
{
	v[0] += v[1];
	v[2] += v[3];
	v[1] = rotate(v[1], 13) ^ v[0];
	v[3] = rotate(v[3], 16) ^ v[2];
	v[0] = rotate(v[0], 32);
	v[2] += v[1];
	v[0] += v[3];
	v[1] = rotate(v[1], 17) ^ v[2];
	v[3] = rotate(v[3], 21) ^ v[0];
	v[2] = rotate(v[2], 32);
}

uint64_t tmesh_siphash(const uint64_t key[2], const void *data, size_t bytes)
{
	uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du,
			 key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u};
	const uint8_t *from = data;
	uint64_t word;
	size_t left = bytes;

	for (; left >= sizeof(word); left -= sizeof(word), from += sizeof(word)) {
		memcpy(&word, from, sizeof(word));
		v[3] ^= word;
		sip_round(v);
		sip_round(v);
		v[0] ^= word;
	}
	word = 0;
	memcpy(&word, from, left);
	word |= (uint64_t)bytes << 56;
	v[3] ^= word;
	sip_round(v);
	sip_round(v);
	v[0] ^= word;
	v[2] ^= 0xff;
	for (int i = 0; i < 4; i++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}
