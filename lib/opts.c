// SPDX-License-Identifier: MIT
/* What comes in from callers, checked; and the small tools that many files need. */
#include "internal.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

int tmesh_read_sized(void *dst, size_t dst_bytes, const void *src, struct tmesh_error *err)
{
	const uint8_t *from = src;
	size_t size;

	memset(dst, 0, dst_bytes);
	if (!src)
		return 0;
	memcpy(&size, src, sizeof(size));
	if (size < sizeof(size) || size > 4096)
		return tmesh_fail(err, -EINVAL,
				  "the structure's size is %zu; set it to sizeof the structure",
				  size);
	for (size_t i = dst_bytes; i < size; i++)
		if (from[i])
			return tmesh_fail(err, -EINVAL,
					  "the structure sets members that this version of "
					  "libtmesh does not know");
	memcpy(dst, src, size < dst_bytes ? size : dst_bytes);
	return 0;
}

int tmesh_write_sized(void *dst, const void *src, size_t src_bytes, struct tmesh_error *err)
{
	size_t size;

	if (!dst)
		return tmesh_fail(err, -EINVAL, "no structure to write to");
	memcpy(&size, dst, sizeof(size));
	if (size < sizeof(size))
		return tmesh_fail(err, -EINVAL,
				  "the structure's size is %zu; set it to sizeof the structure",
				  size);
	if (size > src_bytes) {
		memset((uint8_t *)dst + src_bytes, 0, size - src_bytes);
		size = src_bytes;
	}
	/* The caller's own size stays: it says how much is there. */
	memcpy((uint8_t *)dst + sizeof(size), (const uint8_t *)src + sizeof(size),
	       size - sizeof(size));
	return 0;
}

int tmesh_check_rights(uint32_t rights, struct tmesh_error *err)
{
	if (rights & ~(uint32_t)TMESH_RIGHTS_ALL)
		return tmesh_fail(err, -EINVAL, "unknown rights 0x%x", rights);
	if (!(rights & TMESH_READ))
		return tmesh_fail(err, -EINVAL, "rights 0x%x lack READ, which is part of every set",
				  rights);
	return 0;
}

/* Bytes of the UTF-8 sequence at @s, 0 when it is none. */
static unsigned int utf8_bytes(const uint8_t *s)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	unsigned int count = s[0] < 0x80	     ? 1
			     : (s[0] & 0xe0) == 0xc0 ? 2
			     : (s[0] & 0xf0) == 0xe0 ? 3
			     : (s[0] & 0xf8) == 0xf0 ? 4
						     : 0;
	uint32_t code;

	if (count < 2)
		return count;
	code = s[0] & (0x7fu >> count);
	for (unsigned int i = 1; i < count; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (s[i] & 0x3f);
	}
	if (code < least[count] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
		return 0;
	/* C1 controls are controls too. */
	return code < 0xa0 ? 0 : count;
}

static int check_label(const char *label, struct tmesh_error *err)
{
	size_t bytes = strnlen(label, TMESH_LABEL_LEN + 1);

	if (bytes > TMESH_LABEL_LEN)
		return tmesh_fail(err, -EINVAL, "the label is longer than %d bytes",
				  TMESH_LABEL_LEN);
	for (size_t i = 0; i < bytes;) {
		unsigned int count = utf8_bytes((const uint8_t *)label + i);

		if (count == 0 || (unsigned char)label[i] < 0x20 || label[i] == 0x7f)
			return tmesh_fail(err, -EINVAL,
					  "the label is not UTF-8 without control characters "
					  "(byte %zu)",
					  i);
		i += count;
	}
	return 0;
}

#define REGION_FLAGS                                                                \
	((uint32_t)(TMESH_REGION_HUGE | TMESH_REGION_TRY_HUGE | TMESH_REGION_NODE | \
		    TMESH_REGION_GID | TMESH_REGION_NO_PIN | TMESH_REGION_UNINITIALIZED))

static int check_region_opts(struct tmesh_region_opts *out, struct tmesh_error *err)
{
	if (out->flags & ~REGION_FLAGS)
		return tmesh_fail(err, -EINVAL, "unknown region flags 0x%x",
				  out->flags & ~REGION_FLAGS);
	if ((out->flags & TMESH_REGION_HUGE) && (out->flags & TMESH_REGION_TRY_HUGE))
		return tmesh_fail(err, -EINVAL, "HUGE and TRY_HUGE exclude each other");
	if (!(out->flags & TMESH_REGION_NODE))
		out->node = -1;
	else if (out->node < 0 || out->node >= 1024)
		return tmesh_fail(err, -EINVAL, "there is no NUMA node %d", out->node);
	if (!(out->flags & TMESH_REGION_GID))
		out->gid = 0;
	if (out->mode == 0)
		out->mode = 0600;
	if ((out->mode & ~0660u) || !(out->mode & 0400))
		return tmesh_fail(err, -EINVAL,
				  "mode 0%o is not made of 0400, 0200, 0040 and 0020 with 0400",
				  out->mode);
	if (out->linger_ms > 1000)
		return tmesh_fail(err, -EINVAL, "linger_ms is %u; 1000 is the most",
				  out->linger_ms);
	if (!out->label)
		out->label = "";
	return check_label(out->label, err);
}

int tmesh_read_region_opts(const struct tmesh_region_opts *opts, struct tmesh_region_opts *out,
			   struct tmesh_error *err)
{
	int rc = tmesh_read_sized(out, sizeof(*out), opts, err);

	if (!rc && out->arena)
		rc = tmesh_fail(err, -EINVAL, "an arena holds tensors, not regions");
	out->size = sizeof(*out);
	return rc ? rc : check_region_opts(out, err);
}

int tmesh_read_tensor_opts(const struct tmesh_region_opts *opts, struct tmesh_region_opts *out,
			   struct tmesh_error *err)
{
	int rc = tmesh_read_sized(out, sizeof(*out), opts, err);

	if (rc)
		return rc;
	out->size = sizeof(*out);
	if (!out->arena)
		return check_region_opts(out, err);
	if (out->flags || out->mode || out->gid || out->node || out->linger_ms || out->label)
		return tmesh_fail(err, -EINVAL,
				  "a tensor in an arena has what the arena was made with: give no "
				  "flags, mode, gid, node, linger_ms or label beside it");
	return 0;
}

uint64_t tmesh_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t tmesh_page_bytes(void)
{
	return (uint64_t)getpagesize();
}

int tmesh_poll_ms(uint64_t deadline)
{
	uint64_t now = tmesh_now_ns();
	uint64_t ms;

	if (now >= deadline)
		return 0;
	ms = (deadline - now + 999999) / 1000000;
	return ms > 1000000000 ? 1000000000 : (int)ms;
}

void tmesh_fd_name(char name[TMESH_FD_NAME], int number)
{
	char digits[TMESH_FD_NAME];
	int count = 0;

	do
		digits[count++] = (char)('0' + number % 10);
	while ((number /= 10) && count < TMESH_FD_NAME - 1);
	while (count)
		*name++ = digits[--count];
	*name = '\0';
}

void tmesh_hex(char *text, const uint8_t *bytes, size_t count)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < count; i++) {
		*text++ = digits[bytes[i] >> 4];
		*text++ = digits[bytes[i] & 15];
	}
	*text = '\0';
}

/* Without branches, as digits of a key are not to be predicted. */
static int digit(char c)
{
	unsigned int number = (unsigned char)c - (unsigned int)'0';
	unsigned int letter = (unsigned char)c - (unsigned int)'a';
	int value = letter < 6 ? (int)letter + 10 : -1;

	return number < 10 ? (int)number : value;
}

bool tmesh_unhex(uint8_t *bytes, const char *text, size_t count)
{
	for (size_t i = 0; i < count; i++, text += 2) {
		int high = digit(text[0]);
		int low = digit(text[1]);

		if ((high | low) < 0)
			return false;
		bytes[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}

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

/* SipHash-2-4 (Aumasson and Bernstein). Both ends are on one machine: native byte order. */
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

int tmesh_random(void *bytes, size_t count, struct tmesh_error *err)
{
	ssize_t got;

	do
		got = getrandom(bytes, count, 0);
	while (got < 0 && errno == EINTR);
	/* Requests of up to 256 bytes are never cut short. */
	return got == (ssize_t)count ? 0 : tmesh_fail_errno(err, "getrandom");
}
