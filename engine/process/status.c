// SPDX-License-Identifier: MIT
/* The engine's status, in memory that processes of its user can read as a file. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/file_size.h"
#include "process.h"

int status_new(int *fd, struct engine_status **out, struct tmesh_error *err)
{
	struct engine_status *status = MAP_FAILED;
	int file = memfd_create("tmesh-engine-status", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	/* Seal the size, so that no holder can shorten the file under a reader. */
	if (file >= 0 && !tmesh_ftruncate(file, sizeof(*status)) &&
	    !fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		status = mmap(NULL, sizeof(*status), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (status == MAP_FAILED) {
		tmesh_fail_errno(err, "memory for the engine's status");
		if (file >= 0)
			close(file);
		return -1;
	}
	status->started_ns = tmesh_now_ns();
	*fd = file;
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
	/* No atomic addition is needed: one thread of one process writes. */
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

void status_buried(struct engine_status *status, uint32_t restarts)
{
	status->pid = 0;
	status->restarts = restarts;
	if (status->since_ns)
		status_ended(status, -EPIPE, false, 0);
	status->clients = status->waiting = 0;
}
