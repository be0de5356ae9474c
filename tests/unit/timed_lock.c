// SPDX-License-Identifier: MIT
/*
 * Linked with what the thread sanitizer checks: the one of GCC 12 does not know
 * pthread_mutex_clocklock(), and takes what is done under such a lock for a race. Here it is made
 * of a call that the sanitizer knows.
 */
#include <errno.h>
#include <pthread.h>
#include <time.h>

int pthread_mutex_clocklock(pthread_mutex_t *lock, clockid_t clock, const struct timespec *until)
{
	const struct timespec moment = {.tv_nsec = 100000};
	struct timespec now;

	while (pthread_mutex_trylock(lock)) {
		clock_gettime(clock, &now);
		if (now.tv_sec > until->tv_sec ||
		    (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec))
			return ETIMEDOUT;
		nanosleep(&moment, NULL);
	}
	return 0;
}
