/* SPDX-License-Identifier: MIT */
#include "internal.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

/* Refuse a descriptor if only the spare ones are left. The system gives the lowest free number. If
 * that is one of the last below the limit, or there is none, the rest is for the program. */
int tmesh_spare_files(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	struct rlimit limit;
	rlim_t spare;
	int next;

	if (!ctx->spare_files || getrlimit(RLIMIT_NOFILE, &limit) ||
	    limit.rlim_cur == RLIM_INFINITY)
		return 0;
	spare = ctx->spare_files < limit.rlim_cur / 4 ? ctx->spare_files : limit.rlim_cur / 4;
	next = eventfd(0, EFD_CLOEXEC);
	if (next < 0)
		return tmesh_fail_errno(err, "looking for a free descriptor");
	close(next);
	if ((rlim_t)next < limit.rlim_cur - spare)
		return 0;
	return tmesh_fail(err, -EMFILE,
			  "the last %llu descriptors of %llu (RLIMIT_NOFILE) are left to the "
			  "process's files and sockets",
			  (unsigned long long)spare, (unsigned long long)limit.rlim_cur);
}
