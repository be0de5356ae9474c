// SPDX-License-Identifier: MIT
#include "clock.h"

#include <time.h>

uint64_t tmesh_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
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
