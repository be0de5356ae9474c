// SPDX-License-Identifier: MIT
/*
 * The host's thread and lock. The state is the process's, because fork() handlers have no argument.
 * A child has none of the threads. It closes its copies of all sockets at once: they end with the
 * parent, and peers learn of its death.
 */
#include "host.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER; /* of entering and leaving; before lock */
static bool handlers_set;				 /* under door */
static unsigned int users;				 /* under door */
static pthread_t thread;				 /* under door */
static int epoll = -1, stop = -1;			 /* under lock */
static struct model_fd *kept;				 /* under lock */
static atomic_uint life;

uint32_t model_life(void)
{
	return atomic_load_explicit(&life, memory_order_relaxed);
}

int model_check_life(uint32_t of, struct tmesh_error *err)
{
	return of == model_life() ? 0
				  : tmesh_fail(err, -EPERM,
					       "the handle was inherited through fork(): open one "
					       "in this process");
}

void model_host_lock(void)
{
	pthread_mutex_lock(&lock);
}

void model_host_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

static void prepare(void)
{
	pthread_mutex_lock(&door);
	pthread_mutex_lock(&lock);
}

static void parent(void)
{
	pthread_mutex_unlock(&lock);
	pthread_mutex_unlock(&door);
}

static void child(void)
{
	atomic_fetch_add(&life, 1);
	for (struct model_fd *own = kept; own; own = own->next) {
		close(own->fd);
		own->fd = -1;
	}
	kept = NULL;
	if (epoll >= 0)
		close(epoll);
	if (stop >= 0)
		close(stop);
	epoll = stop = -1;
	users = 0;
	parent();
}

void model_fd_keep(struct model_fd *own, int fd)
{
	own->fd = fd;
	own->next = kept;
	own->at = &kept;
	if (kept)
		kept->at = &own->next;
	kept = own;
}

void model_fd_close(struct model_fd *own)
{
	if (own->fd < 0)
		return;
	*own->at = own->next;
	if (own->next)
		own->next->at = own->at;
	close(own->fd);
	own->fd = -1;
}

int model_source_add(struct model_source *source, int fd, struct tmesh_error *err)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = source};

	model_fd_keep(&source->own, fd);
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) {
		int rc = tmesh_fail_errno(err, "watching a socket");

		model_fd_close(&source->own);
		return rc;
	}
	return 0;
}

/* Remove a source. The thread takes one event at a time, so none is left that names it. */
void model_source_remove(struct model_source *source)
{
	if (source->own.fd < 0)
		return;
	epoll_ctl(epoll, EPOLL_CTL_DEL, source->own.fd, NULL);
	model_fd_close(&source->own);
}

/* Wait for events; finding a source and calling it are one step under the lock. */
static void *host_run(void *data)
{
	int wait = *(int *)data;

	pthread_setname_np(pthread_self(), "tmesh-pages");
	for (;;) {
		struct pollfd any = {.fd = wait, .events = POLLIN};
		struct epoll_event event;

		/* Wait until anything is ready. The lock is taken to find out which. Without the
		 * lock, epoll_wait() would not do, because it moves each source that it returns to
		 * the end of its list. If two sources are always ready, the same one would then
		 * come again and again. */
		if (poll(&any, 1, -1) < 0)
			continue;
		model_host_lock();
		if (epoll_wait(wait, &event, 1, 0) == 1) {
			struct model_source *source = event.data.ptr;

			if (!source) {
				model_host_unlock();
				return NULL;
			}
			source->ready(source);
		}
		model_host_unlock();
	}
}

/* Start the thread, with all signals blocked: they are the application's. */
static int start(struct tmesh_error *err)
{
	struct epoll_event event = {.events = EPOLLIN};
	sigset_t all, old;
	int rc = 0;

	epoll = epoll_create1(EPOLL_CLOEXEC);
	stop = eventfd(0, EFD_CLOEXEC);
	if (epoll < 0 || stop < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, stop, &event))
		rc = tmesh_fail_errno(err, "cannot serve slots, logs and pages");
	if (!rc) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		rc = -pthread_create(&thread, NULL, host_run, &epoll);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
		if (rc)
			tmesh_fail(err, rc,
				   "cannot start the thread that serves slots, logs and "
				   "pages");
	}
	if (!rc)
		return 0;
	if (epoll >= 0)
		close(epoll);
	if (stop >= 0)
		close(stop);
	epoll = stop = -1;
	return rc;
}

static int set_handlers(struct tmesh_error *err)
{
	int rc = handlers_set ? 0 : -pthread_atfork(prepare, parent, child);

	handlers_set = rc == 0;
	return rc ? tmesh_fail(err, rc, "no memory to watch for fork()") : 0;
}

int model_host_ready(struct tmesh_error *err)
{
	int rc;

	pthread_mutex_lock(&door);
	rc = set_handlers(err);
	pthread_mutex_unlock(&door);
	return rc;
}

int model_host_enter(struct tmesh_error *err)
{
	int rc;

	pthread_mutex_lock(&door);
	rc = set_handlers(err);
	if (!rc && !users)
		rc = start(err);
	if (!rc)
		users++;
	pthread_mutex_unlock(&door);
	return rc;
}

void model_host_leave(void)
{
	const uint64_t one = 1;

	pthread_mutex_lock(&door);
	if (--users == 0) {
		/* An empty eventfd takes it at once. */
		if (write(stop, &one, sizeof(one)) == sizeof(one))
			pthread_join(thread, NULL);
		close(epoll);
		close(stop);
		epoll = stop = -1;
	}
	pthread_mutex_unlock(&door);
}
