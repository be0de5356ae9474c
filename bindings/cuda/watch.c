// SPDX-License-Identifier: MIT
/*
 * The watcher: a thread that starts with the first memory that another process may take back. It
 * touches leases of registered regions, takes away here what was taken back there, and uses
 * memory again that other processes held until now.
 */
#include "internal.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
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

/* Milliseconds to sleep at most; -1: for ever. Under the lock. */
static int wait_of(struct tmesh_cuda *cuda)
{
	uint64_t least = UINT64_MAX;

	for (struct tmesh_cuda_memory *memory = cuda->memory; memory; memory = memory->next) {
		uint64_t ns = memory->state == LINGERING ? 0 : memory->lease_ns / TOUCHES;

		if (memory->slow)
			ns = SLOW_NS;
		if (ns && ns < least && watched(memory))
			least = ns;
	}
	if (least == UINT64_MAX)
		return -1;
	return least < 1000000 ? 1 : (int)(least / 1000000);
}

/* Not poll(): that would keep what is closed meanwhile, and others would not see it let go. */
void watch_add(struct tmesh_cuda_memory *memory)
{
	uint32_t what = memory->state == LINGERING ? TMESH_EVENT_ALONE : TMESH_EVENT_TAKEN;
	struct epoll_event event = {0};
	short wait;
	int fd = tmesh_region_poll_fd(memory->region, what, &wait, NULL);

	if (fd >= 0) {
		/* The numbers of both are the same. */
		event.events = (uint32_t)wait;
		if (epoll_ctl(memory->cuda->epoll, EPOLL_CTL_ADD, fd, &event))
			memory->slow = true;
		else
			memory->watch = fd;
	}
}

void watch_remove(struct tmesh_cuda_memory *memory)
{
	if (memory->watch < 0)
		return;
	epoll_ctl(memory->cuda->epoll, EPOLL_CTL_DEL, memory->watch, NULL);
	memory->watch = -1;
}

static bool is_taken(struct tmesh_cuda_memory *memory)
{
	uint32_t events = tmesh_region_events(memory->region);

	if (events & TMESH_EVENT_TAKEN)
		return true;
	/* An orphan's descriptor would wake for ever, and says nothing any more. */
	if (events & TMESH_EVENT_ORPHANED)
		watch_remove(memory);
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
		if (memory->state == LINGERING || !watched(memory) || !is_taken(memory))
			continue;
		/* Who copies wakes us when it is done. */
		if (memory->copies) {
			watch_remove(memory);
		} else if (memory_get(memory)) {
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
	cuda_synchronize(cuda, memory->device);
	if (memory->resident >= 0 && memory->resident != memory->device)
		cuda_synchronize(cuda, memory->resident);
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
	struct epoll_event event;
	uint64_t wakes;
	int timeout;

	while (!ended) {
		pthread_mutex_lock(&cuda->lock);
		timeout = wait_of(cuda);
		if (cuda->stop) {
			pthread_mutex_unlock(&cuda->lock);
			break;
		}
		pthread_mutex_unlock(&cuda->lock);
		/* Whatever it was: all are looked at. */
		epoll_wait(cuda->epoll, &event, 1, timeout);
		if (read(cuda->wake, &wakes, sizeof(wakes)) < 0 && errno != EAGAIN)
			cuda_log(cuda, TMESH_LOG_ERROR, "the watcher cannot be woken");
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
	return rc ? tmesh_fail(err, -rc, "cannot start the thread that watches leases") : 0;
}

int watch_start(struct tmesh_cuda *cuda, struct tmesh_error *err)
{
	struct epoll_event event = {.events = EPOLLIN};
	int rc = 0;

	pthread_mutex_lock(&cuda->lock);
	if (cuda->epoll < 0)
		cuda->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (cuda->epoll >= 0 && cuda->wake < 0) {
		cuda->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (cuda->wake >= 0)
			epoll_ctl(cuda->epoll, EPOLL_CTL_ADD, cuda->wake, &event);
	}
	if (cuda->wake < 0)
		rc = tmesh_fail(err, -errno, "cannot watch leases: no descriptor");
	else if (!cuda->watching)
		rc = start_thread(cuda, err);
	if (!rc)
		cuda->watching = true;
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
