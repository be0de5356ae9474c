/* SPDX-License-Identifier: MIT */
#ifndef TMESH_COMMON_CLOCK_H
#define TMESH_COMMON_CLOCK_H

#include <stdint.h>

uint64_t tmesh_now_ns(void); /* CLOCK_MONOTONIC */
/* Return the milliseconds until @deadline for poll(), rounded up; 0 if it has passed. */
int tmesh_poll_ms(uint64_t deadline);

#endif /* TMESH_COMMON_CLOCK_H */
