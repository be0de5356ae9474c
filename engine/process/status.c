// SPDX-License-Identifier: MIT
/* What the engine tells of itself, in memory that whoever is allowed to may read as a file. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/clock.h"
#include "process.h"

int status_map(int fd, struct engine_status **out)
{
	struct engine_status *status;
	int rc = posix_fallocate(fd, 0, sizeof(*status));

	if (rc) {
		errno = rc;
		return -1;
	}
	status = mmap(NULL, sizeof(*status), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (status == MAP_FAILED)
		return -1;
	memset((void *)status, 0, sizeof(*status));
	status->started_ns = tmesh_now_ns();
	*out = status;
	return 0;
}

void status_deadline(struct engine_status *status, uint64_t deadline)
{
	atomic_store_explicit(&status->deadline_ns, deadline, memory_order_relaxed);
}

void status_began(struct engine_status *status)
{
	atomic_store_explicit(&status->since_ns, tmesh_now_ns(), memory_order_relaxed);
}

static void add(_Atomic uint64_t *number, uint64_t more)
{
	/* One process at a time writes, by one thread. */
	atomic_store_explicit(number, atomic_load_explicit(number, memory_order_relaxed) + more,
			      memory_order_relaxed);
}

void status_ended(struct engine_status *status, int code, bool step, uint64_t tokens)
{
	uint64_t second = tmesh_now_ns() / 1000000000;
	struct engine_status_second *now = &status->recent[second % ENGINE_STATUS_SECONDS];

	add(code ? &status->failed_calls : &status->calls, 1);
	atomic_store_explicit(&status->since_ns, 0, memory_order_relaxed);
	if (code || !step)
		return;
	add(&status->steps, 1);
	add(&status->tokens, tokens);
	if (now->second != second)
		*now = (struct engine_status_second){.second = second};
	now->steps++;
	now->tokens += tokens;
}

void status_buried(struct engine_status *status)
{
	if (status->since_ns)
		status_ended(status, -EPIPE, false, 0);
	status->clients = status->waiting = 0;
}
