// SPDX-License-Identifier: MIT
/*
 * The watcher: a thread that starts with the first memory that another process may take back. It
 * touches leases of registered regions, takes away here what was taken back there, and uses
 * memory again that other processes held until now.
 */
#include "internal.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define SLOW_NS 10000000u
#define TOUCHES 4 /* in each period of a lease */

static __thread bool ended; /* this very thread was the last to hold the object */

static bool host(const struct tmesh_cuda_memory *memory)
{
	return memory->kind == TMESH_CUDA_HOST || memory->kind == TMESH_CUDA_STAGED;
}

static bool watched(const struct tmesh_cuda_memory *memory)
{
	if (memory->state == LINGERING)
		return true;
	return memory->state == LIVE && memory->region &&
	       (host(memory) || memory->kind == TMESH_CUDA_IMPORTED);
}

/* Milliseconds to sleep at most. */
static int wait_of(const struct tmesh_cuda_memory *memory)
{
	uint64_t ns = memory->lease_ns / TOUCHES;

	if (memory->state == LINGERING)
		ns = memory->slow ? SLOW_NS : 0;
	return ns ? (int)(ns / 1000000 ? ns / 1000000 : 1) : -1;
}

static void wait_for(struct tmesh_cuda_memory *memory, struct pollfd *poller)
{
	uint32_t event = memory->state == LINGERING ? TMESH_EVENT_ALONE : TMESH_EVENT_TAKEN;
	int fd;

	poller->events = 0;
	poller->revents = 0;
	fd = tmesh_region_poll_fd(memory->region, event, &poller->events, NULL);
	/* An orphan's descriptor would wake for ever, and says nothing any more. */
	if (fd >= 0 && (tmesh_region_events(memory->region) & TMESH_EVENT_ORPHANED))
		fd = -1;
	poller->fd = memory->slow ? -1 : fd;
}

/* What to wait for, under the lock. Without memory for it: only for a moment. */
static struct pollfd *collect(struct tmesh_cuda *cuda, nfds_t *count, int *timeout)
{
	struct pollfd *pollers;
	nfds_t room = 1;

	for (struct tmesh_cuda_memory *memory = cuda->memory; memory; memory = memory->next)
		room += watched(memory);
	pollers = calloc(room, sizeof(*pollers));
	*count = 0;
	*timeout = pollers ? -1 : 10;
	if (!pollers)
		return NULL;
	pollers[(*count)++] = (struct pollfd){.fd = cuda->wake, .events = POLLIN};
	for (struct tmesh_cuda_memory *memory = cuda->memory; memory; memory = memory->next) {
		int wait = watched(memory) ? wait_of(memory) : -1;

		if (wait >= 0 && (*timeout < 0 || wait < *timeout))
			*timeout = wait;
		if (watched(memory))
			wait_for(memory, &pollers[(*count)++]);
	}
	return pollers;
}

static bool is_taken(struct tmesh_cuda_memory *memory)
{
	if (tmesh_region_events(memory->region) & TMESH_EVENT_TAKEN)
		return true;
	if (!memory->lease_ns)
		return false;
	/* A region in use by a GPU is in use; imported memory is used when its owner says so. */
	return (host(memory) ? tmesh_lease_touch(memory->region)
			     : tmesh_lease_state(memory->region) != TMESH_LEASE_IS_LIVE) != 0;
}

/* One piece of memory to act on, marked so that nobody else does. */
static struct tmesh_cuda_memory *next_due(struct tmesh_cuda *cuda)
{
	struct tmesh_cuda_memory *memory;

	pthread_mutex_lock(&cuda->lock);
	for (memory = cuda->memory; memory; memory = memory->next) {
		if (memory->state == LINGERING &&
		    (tmesh_region_events(memory->region) & TMESH_EVENT_ALONE))
			break;
		if (memory->state != LINGERING && watched(memory) && is_taken(memory) &&
		    memory_get(memory)) {
			memory->state = TAKING;
			break;
		}
	}
	pthread_mutex_unlock(&cuda->lock);
	return memory;
}

static void take(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda *cuda = memory->cuda;

	cuda_log(cuda, TMESH_LOG_INFO, "%llu bytes on GPU %d were taken back",
		 (unsigned long long)memory->bytes, memory->device);
	cuda_synchronize(cuda, memory->device, NULL);
	if (memory->resident >= 0 && memory->resident != memory->device)
		cuda_synchronize(cuda, memory->resident, NULL);
	if (host(memory))
		host_end(memory);
	else
		import_take(memory);
	pthread_mutex_lock(&cuda->lock);
	memory->state = TAKEN;
	cuda->devices[memory->device].stats.taken++;
	pthread_mutex_unlock(&cuda->lock);
	tmesh_cuda_memory_unref(memory);
}

static void act(struct tmesh_cuda *cuda)
{
	struct tmesh_cuda_memory *memory;

	while (!ended && (memory = next_due(cuda)) != NULL) {
		if (memory->state == TAKING)
			take(memory);
		else if (share_settle(memory))
			memory_end(memory);
		else
			return; /* somebody came at the last moment: later */
	}
}

static void *run(void *data)
{
	struct tmesh_cuda *cuda = data;
	struct pollfd *pollers;
	uint64_t wakes;
	nfds_t count;
	int timeout;

	while (!ended) {
		pthread_mutex_lock(&cuda->lock);
		if (cuda->stop) {
			pthread_mutex_unlock(&cuda->lock);
			break;
		}
		pollers = collect(cuda, &count, &timeout);
		pthread_mutex_unlock(&cuda->lock);
		poll(pollers, count, timeout);
		if (pollers && (pollers[0].revents & POLLIN) &&
		    read(cuda->wake, &wakes, sizeof(wakes)) < 0)
			cuda_log(cuda, TMESH_LOG_ERROR, "the watcher cannot be woken");
		free(pollers);
		act(cuda);
	}
	return NULL;
}

/* Signals are the application's: none is to be handled on this thread. */
static int start_thread(struct tmesh_cuda *cuda, struct tmesh_error *err)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&cuda->watcher, NULL, run, cuda);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc ? cuda_fail(err, -rc, "cannot start the thread that watches leases") : 0;
}

int watch_start(struct tmesh_cuda *cuda, struct tmesh_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&cuda->lock);
	if (!cuda->watching) {
		if (cuda->wake < 0)
			cuda->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		rc = cuda->wake < 0 ? cuda_fail(err, -errno, "eventfd") : start_thread(cuda, err);
		cuda->watching = !rc;
	}
	pthread_mutex_unlock(&cuda->lock);
	return rc;
}

void watch_again(struct tmesh_cuda *cuda)
{
	const uint64_t one = 1;

	/* A full counter wakes as well. */
	if (cuda->wake >= 0 && write(cuda->wake, &one, sizeof(one)) < 0)
		return;
}

void watch_stop(struct tmesh_cuda *cuda)
{
	if (!cuda->watching)
		return;
	if (pthread_equal(cuda->watcher, pthread_self())) {
		ended = true;
		pthread_detach(cuda->watcher);
		return;
	}
	pthread_mutex_lock(&cuda->lock);
	cuda->stop = true;
	pthread_mutex_unlock(&cuda->lock);
	watch_again(cuda);
	pthread_join(cuda->watcher, NULL);
}
