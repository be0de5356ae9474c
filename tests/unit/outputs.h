/* SPDX-License-Identifier: MIT */
/* Calls that have to fail, and leave all results as they were. tests/outputs.py reads their names.
 */
#ifndef TMESH_UNIT_OUTPUTS_H
#define TMESH_UNIT_OUTPUTS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Everything that a call could write. */
static union {
	uint8_t bytes[1 << 16];
	void *pointer;
	uint64_t u64;
	uint32_t u32;
	int number;
	short wait;
	size_t size;
	char text[4096];
} out, other, third;

static inline void outputs_fill(void)
{
	memset(&out, 0xa5, sizeof(out));
	memset(&other, 0xa5, sizeof(other));
	memset(&third, 0xa5, sizeof(third));
}

static inline bool outputs_are_full(const void *bytes, size_t size)
{
	const uint8_t *at = bytes;

	return at[0] == 0xa5 && !memcmp(at, at + 1, size - 1);
}

/* Run a call that has to fail, of whose results nothing is to be seen. */
#define FAILS(name, expected, ...)                                                                 \
	do {                                                                                       \
		struct tmesh_error err_ = {0}, *err = &err_;                                       \
		int rc;                                                                            \
                                                                                                   \
		outputs_fill();                                                                    \
		rc = name(__VA_ARGS__);                                                            \
		if (rc != (expected) || (err->code && err->code != rc))                            \
			fail_msg("%s(%s): %d, and \"%s\"", #name, #__VA_ARGS__, rc, err->message); \
		if (!outputs_are_full(&out, sizeof(out)) ||                                        \
		    !outputs_are_full(&other, sizeof(other)) ||                                    \
		    !outputs_are_full(&third, sizeof(third)))                                      \
			fail_msg("%s(%s) has written a result", #name, #__VA_ARGS__);              \
	} while (0)

#define OUT (void *)&out
#define OTHER (void *)&other
#define THIRD (void *)&third

#endif /* TMESH_UNIT_OUTPUTS_H */
