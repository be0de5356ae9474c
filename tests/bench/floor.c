// SPDX-License-Identifier: MIT
/*
 * The floor beside benches that cannot call memcpy() themselves: for each line on stdin, copy
 * 100 MB between memory touched before and print the nanoseconds.
 */
#include "harness.h"

#include <inttypes.h>

#define BYTES 100000000

int main(void)
{
	uint8_t *source = malloc(BYTES), *target = malloc(BYTES);
	char line[16];

	if (!source || !target)
		die("no memory");
	memset(source, 1, BYTES);
	memset(target, 2, BYTES);
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t start = now_ns();

		memcpy(target, source, BYTES);
		/* Another thread might read it, as far as the compiler knows. */
		__asm__ volatile("" : : "r"(target) : "memory");
		printf("%" PRIu64 "\n", now_ns() - start);
		fflush(stdout);
	}
	return 0;
}
