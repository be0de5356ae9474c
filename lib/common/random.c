// SPDX-License-Identifier: MIT
#include "random.h"

#include <errno.h>
#include <sys/random.h>

#include "error.h"

int tmesh_random(void *bytes, size_t count, struct tmesh_error *err)
{
	ssize_t got;

	do
		got = getrandom(bytes, count, 0);
	while (got < 0 && errno == EINTR);
	/* Requests of up to 256 bytes are never cut short. */
	return got == (ssize_t)count ? 0 : tmesh_fail_errno(err, "reading random bytes");
}
