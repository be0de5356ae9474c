// SPDX-License-Identifier: MIT
/*
 * The watcher: a thread that starts with the first memory that another process may take back. It
 * touches the leases of registered regions, and unmaps memory here that its producer has taken
 * back. It reuses memory once no other process holds it.
 */
#include "internal.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define SLOW_NS 10000000u
#define TOUCHES 4 /* in each period of a lease */

static __thread bool ended; /* this very thread was the last to hold the object */

static bool host(const struct tmesh_cuda_memory *memory)
{
	return memory->kind == TMESH_CUDA_HOST || memory->kind == TMESH_CUDA_STAGED;
}

static bool watched(const struct tmesh_cuda_memory *memory)
{
	if (memory->state == PENDING_FREE || memory->state == WAITING)
		return true;
	return memory->state == LIVE && memory->region &&
	       (host(memory) || memory->kind == TMESH_CUDA_IMPORTED);
}

/* Return how many milliseconds to sleep at most; -1: for ever. Under the lock. */
static int wait_of(struct tmesh_cuda *cuda)
{
	uint64_t least = cuda->ending ? SLOW_NS : UINT64_MAX;

	for (struct tmesh_cuda_memory *memory = cuda->memory; memory; memory = memory->next) {
		uint64_t ns = memory->state == PENDING_FREE ? 0 : memory->lease_ns / TOUCHES;

		if (memory->slow || memory->state == WAITING)
			ns = SLOW_NS;
		if (ns && ns < least && watched(memory))
			least = ns;
	}
	if (least == UINT64_MAX)
		return -1;
	return least < 1000000 ? 1 : (int)(least / 1000000);
}

/* Watch by epoll. poll() would keep files that are closed meanwhile, and other processes would not
 * see the release. */
void watch_add(struct tmesh_cuda_memory *memory)
{
	uint32_t what = memory->state == PENDING_FREE ? TMESH_EVENT_ALONE : TMESH_EVENT_TAKEN;
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
	/* An orphan's descriptor reports nothing more, but is ready for ever. */
	if (events & TMESH_EVENT_ORPHANED)
		watch_remove(memory);
	if (!memory->lease_ns)
		return false;
	/* A GPU uses a registered region all the time; imported memory is used when its owner
	 * renews it. */
	return (host(memory) ? tmesh_lease_touch(memory->region)
			     : tmesh_lease_state(memory->region) != TMESH_LEASE_IS_LIVE) != 0;
}

/* Return one piece of memory to act on, marked so that no other thread takes it. */
static struct tmesh_cuda_memory *next_due(struct tmesh_cuda *cuda)
{
	struct tmesh_cuda_memory *memory;

	pthread_mutex_lock(&cuda->lock);
	for (memory = cuda->memory; memory; memory = memory->next) {
		if (memory->round == cuda->round)
			continue;
		if (memory->state == WAITING) {
			/* Kernels may use it still. */
			if (memory->lease_ns && host(memory))
				tmesh_lease_touch(memory->region);
			break;
		}
		if (memory->state == PENDING_FREE &&
		    (tmesh_region_events(memory->region) & TMESH_EVENT_ALONE))
			break;
		if (memory->state == PENDING_FREE || !watched(memory) || !is_taken(memory))
			continue;
		/* The copying thread wakes the watcher when it is done. */
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

/* Put memory off whose device cannot be waited for now, because it may be using it. */
static void later(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda *cuda = memory->cuda;

	pthread_mutex_lock(&cuda->lock);
	memory->round = cuda->round;
	if (memory->state == TAKING) {
		memory->state = LIVE;
		memory->slow = true;
	}
	pthread_mutex_unlock(&cuda->lock);
}

static bool wait_for_devices(const struct tmesh_cuda_memory *memory)
{
	if (cuda_synchronize(memory->cuda, memory->device))
		return false;
	return memory->resident < 0 || memory->resident == memory->device ||
	       !cuda_synchronize(memory->cuda, memory->resident);
}

static void take(struct tmesh_cuda_memory *memory)
{
	struct tmesh_cuda *cuda = memory->cuda;

	if (!wait_for_devices(memory)) {
		later(memory);
		tmesh_cuda_memory_unref(memory);
		return;
	}
	cuda_log(cuda, TMESH_LOG_INFO, "%llu bytes on GPU %d were taken back",
		 (unsigned long long)memory->bytes, memory->device);
	if (host(memory))
		host_end(memory);
	else
		import_release(memory);
	pthread_mutex_lock(&cuda->lock);
	memory->state = TAKEN;
	cuda->devices[memory->device].stats.taken++;
	pthread_mutex_unlock(&cuda->lock);
	tmesh_cuda_memory_unref(memory);
}

static void act(struct tmesh_cuda *cuda)
{
	struct tmesh_cuda_memory *memory;

	cuda->round++;
	registrations_end(cuda);
	while (!ended && (memory = next_due(cuda)) != NULL) {
		if (memory->state == TAKING)
			take(memory);
		else if (memory->state == PENDING_FREE && share_settle(memory))
			memory_end(memory);
		else if (memory->state == PENDING_FREE)
			return; /* another process came at the last moment: later */
		else if (!memory_give_back(memory))
			later(memory);
	}
}

static void *watcher_run(void *data)
{
	struct tmesh_cuda *cuda = data;
	struct epoll_event event;
	uint64_t wakes;
	int timeout;

	/* If the driver refuses this, calls that a capture forbids are tried again later. */
	cuda_relax(cuda, NULL);
	while (!ended) {
		pthread_mutex_lock(&cuda->lock);
		timeout = wait_of(cuda);
		if (cuda->stop) {
			pthread_mutex_unlock(&cuda->lock);
			break;
		}
		pthread_mutex_unlock(&cuda->lock);
		/* The event does not matter: act() looks at all memory. */
		epoll_wait(cuda->epoll, &event, 1, timeout);
		if (read(cuda->wake, &wakes, sizeof(wakes)) < 0 && errno != EAGAIN)
			cuda_log(cuda, TMESH_LOG_ERROR, "the watcher cannot be woken");
		act(cuda);
	}
	return NULL;
}

/* Start the thread, with all signals blocked: they are the application's. */
static int start_thread(struct tmesh_cuda *cuda, struct tmesh_error *err)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&cuda->watcher, NULL, watcher_run, cuda);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc ? tmesh_fail(err, -rc, "cannot start the thread that watches leases") : 0;
}

/* Make the descriptor by which the thread is woken. A user has a number of watches at most
 * (/proc/sys/fs/epoll/max_user_watches). */
static int make_wake(int epoll)
{
	struct epoll_event event = {.events = EPOLLIN};
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), code;

	if (fd < 0 || !epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
		return fd;
	code = errno;
	close(fd);
	errno = code;
	return -1;
}

int watch_start(struct tmesh_cuda *cuda, struct tmesh_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&cuda->lock);
	if (cuda->epoll < 0)
		cuda->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (cuda->epoll >= 0 && cuda->wake < 0)
		cuda->wake = make_wake(cuda->epoll);
	if (cuda->wake < 0)
		rc = tmesh_fail_errno(err, "cannot watch leases: a descriptor");
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
