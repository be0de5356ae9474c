// SPDX-License-Identifier: MIT
/*
 * Copying tensors.
 *
 * A large copy by memcpy() evicts everything else from the caches. It also reads every line of the
 * destination only to overwrite it, and its end evicts its beginning before a reader comes.
 *
 * Non-temporal stores do neither. On a Zen 4 with 32 MiB of L3 they need 0.65 of memcpy()'s time
 * for 16 MiB and more, break even at 8 MiB and lose below. Registers of 64 bytes are no faster than
 * those of 32.
 */
#include <string.h>

#include "internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define STREAM_FROM ((size_t)8 << 20)
#define LINE 64

/* Copy past the caches. @dst is aligned to a line, and @n a multiple of one. */
__attribute__((target("avx2"))) static void stream_avx2(char *dst, const char *src, size_t n)
{
	for (; n; n -= LINE, dst += LINE, src += LINE) {
		__m256i a = _mm256_loadu_si256((const __m256i *)src);
		__m256i b = _mm256_loadu_si256((const __m256i *)(src + 32));

		_mm256_stream_si256((__m256i *)dst, a);
		_mm256_stream_si256((__m256i *)(dst + 32), b);
	}
}

static void stream_sse2(char *dst, const char *src, size_t n)
{
	for (; n; n -= LINE, dst += LINE, src += LINE) {
		__m128i a = _mm_loadu_si128((const __m128i *)src);
		__m128i b = _mm_loadu_si128((const __m128i *)(src + 16));
		__m128i c = _mm_loadu_si128((const __m128i *)(src + 32));
		__m128i d = _mm_loadu_si128((const __m128i *)(src + 48));

		_mm_stream_si128((__m128i *)dst, a);
		_mm_stream_si128((__m128i *)(dst + 16), b);
		_mm_stream_si128((__m128i *)(dst + 32), c);
		_mm_stream_si128((__m128i *)(dst + 48), d);
	}
}

void tmesh_copy(void *dst, const void *src, size_t n)
{
	size_t head = -(uintptr_t)dst % LINE;
	size_t body = (n - head) / LINE * LINE;
	char *to = dst;
	const char *from = src;

	if (n < STREAM_FROM) {
		memcpy(dst, src, n);
		return;
	}

	memcpy(to, from, head);
	if (__builtin_cpu_supports("avx2"))
		stream_avx2(to + head, from + head, body);
	else
		stream_sse2(to + head, from + head, body);
	/* Such stores are weakly ordered: a reader that an ordinary store signals must see them. */
	_mm_sfence();
	memcpy(to + head + body, from + head + body, n - head - body);
}

#else

void tmesh_copy(void *dst, const void *src, size_t n)
{
	memcpy(dst, src, n);
}

#endif
