/* SPDX-License-Identifier: MIT */
/* Calls that may wait for ever for another process, and that no signal but SIGKILL ends. */
#ifndef TMESH_COMMON_IN_TIME_H
#define TMESH_COMMON_IN_TIME_H

#include <stdint.h>

/* No call begins while so many threads of this process go on after their time. */
#define TMESH_LATE_MOST 8

/*
 * Call @call(@data) in a thread of its own, and wait for its end for at most @ns. A call that
 * takes longer goes on, and its thread ends with it. @data is the caller's again if this returns
 * 0. Else @drop(@data) is called, at once or when @call has returned. A child that is forked
 * meanwhile has no such thread: there the data stays until its end.
 *
 * Return: 0; -ETIMEDOUT (also at once, while TMESH_LATE_MOST calls go on after their time);
 * -EAGAIN, -ENOMEM (no thread).
 */
int tmesh_in_time(void (*call)(void *data), void (*drop)(void *data), void *data, uint64_t ns);

#endif /* TMESH_COMMON_IN_TIME_H */
