// SPDX-License-Identifier: MIT
/*
 * The running call, and a second thread that ends it if its client cancels it on the socket or has
 * gone. The working thread reads no socket meanwhile.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/fd_passing.h"
#include "common/foreign.h"
#include "process.h"

#define EVENTS 16
/* The interval of counting waiting clients while there is work, and the most counts without any. */
#define COUNT_MS 100
#define COUNTS 10
/* The pause between two looks: it limits the cost of a client that cancels without end. */
#define PAUSE_US 500

struct calls {
	pthread_mutex_t lock;
	int epoll;
	int notifier; /* an eventfd that wakes the second thread from an unlimited sleep */
	bool asleep;
	const struct shared *shared;
	uint64_t limit_ns;
	struct caller *callers;
	uint64_t serial;
	/* The running call; NULL: none. */
	struct caller *running;
	struct call *call;
	struct tmesh_engine_cancellable *cancellable;
};

int calls_add(struct calls *calls, struct caller *caller, int socket, const struct wire_page *page)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};
	int rc;

	pthread_mutex_lock(&calls->lock);
	*caller = (struct caller){.next = calls->callers,
				  .serial = ++calls->serial,
				  .asked = &page->asked,
				  .socket = socket};
	event.data.u64 = caller->serial;
	rc = epoll_ctl(calls->epoll, EPOLL_CTL_ADD, socket, &event) ? -errno : 0;
	if (!rc)
		calls->callers = caller;
	else
		caller->serial = 0;
	pthread_mutex_unlock(&calls->lock);
	return rc;
}

void calls_remove(struct calls *calls, struct caller *caller)
{
	struct caller **at = &calls->callers;

	if (!caller->serial)
		return;
	pthread_mutex_lock(&calls->lock);
	epoll_ctl(calls->epoll, EPOLL_CTL_DEL, caller->socket, NULL);
	while (*at != caller)
		at = &(*at)->next;
	*at = caller->next;
	while (caller->kept_count)
		close(caller->kept[--caller->kept_count]);
	pthread_mutex_unlock(&calls->lock);
}

/* Set the times by which the work that begins must end; 0: none. Called with the lock. */
static void watch_until(struct calls *calls, uint64_t deadline, uint64_t until)
{
	struct watch *watch = calls->shared->watch;

	atomic_store(&watch->deadline, deadline);
	atomic_store(&watch->until, until);
	atomic_fetch_add(&watch->beat, 1);
}

/* Start the time of the call. Called with the lock. */
static void watch_call(struct calls *calls)
{
	uint64_t now = tmesh_now_ns(), deadline = now + calls->limit_ns;
	/* A client's deadline that has passed does not end the process: the call is refused
	 * instead. */
	uint64_t until = calls->call->until > now ? calls->call->until : 0;

	watch_until(calls, deadline, until);
	status_deadline(calls->shared->status, until && until < deadline ? until : deadline);
}

int calls_begin(struct calls *calls, struct caller *caller, struct call *call,
		struct tmesh_error *err)
{
	const uint64_t one = 1;
	int rc = 0;

	pthread_mutex_lock(&calls->lock);
	if (!calls->cancellable)
		rc = tmesh_engine_cancellable_create(NULL, &calls->cancellable, err);
	if (!rc && caller->cancelled >= call->number)
		rc = tmesh_fail(err, -ECANCELED, "the call was cancelled before it ran");
	if (!rc) {
		calls->running = caller;
		calls->call = call;
		call->cancellable = calls->cancellable;
		watch_call(calls);
		status_began(calls->shared->status);
		if (calls->asleep && write(calls->notifier, &one, sizeof(one)) == sizeof(one))
			calls->asleep = false;
	}
	pthread_mutex_unlock(&calls->lock);
	return rc;
}

void calls_wait(struct calls *calls, uint64_t ns)
{
	pthread_mutex_lock(&calls->lock);
	watch_until(calls, tmesh_now_ns() + calls->limit_ns + ns, 0);
	status_deadline(calls->shared->status, UINT64_MAX);
	pthread_mutex_unlock(&calls->lock);
}

int calls_go_on(struct calls *calls, struct tmesh_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&calls->lock);
	watch_call(calls);
	if (calls->call->until && calls->call->until <= tmesh_now_ns())
		rc = tmesh_fail(err, -ETIMEDOUT,
				"the deadline had passed when the call's memory was open");
	pthread_mutex_unlock(&calls->lock);
	return rc;
}

void calls_ran(struct calls *calls, int code)
{
	pthread_mutex_lock(&calls->lock);
	watch_until(calls, tmesh_now_ns() + calls->limit_ns, 0);
	status_ended(calls->shared->status, code, calls->call->stops, calls->call->tokens);
	pthread_mutex_unlock(&calls->lock);
}

void calls_end(struct calls *calls)
{
	pthread_mutex_lock(&calls->lock);
	calls->running->ended = calls->call->number;
	calls->running = NULL;
	if (calls->cancellable && tmesh_engine_cancelled(calls->cancellable)) {
		tmesh_engine_cancellable_unref(calls->cancellable);
		calls->cancellable = NULL;
	}
	watch_until(calls, 0, 0);
	pthread_mutex_unlock(&calls->lock);
}

void calls_busy(struct calls *calls)
{
	pthread_mutex_lock(&calls->lock);
	watch_until(calls, tmesh_now_ns() + calls->limit_ns, 0);
	pthread_mutex_unlock(&calls->lock);
}

void calls_idle(struct calls *calls)
{
	pthread_mutex_lock(&calls->lock);
	watch_until(calls, 0, 0);
	pthread_mutex_unlock(&calls->lock);
}

void calls_sleep(struct calls *calls)
{
	atomic_store(&calls->shared->watch->asleep, WATCH_ASLEEP);
}

void calls_wake(struct calls *calls)
{
	const uint64_t one = 1;

	atomic_store(&calls->shared->watch->asleep, 0);
	atomic_fetch_add(&calls->shared->watch->beat, 1);
	/* Wake the supervisor, which now looks often. A full notifier is signalled already. */
	if (write(calls->shared->wake, &one, sizeof(one)) < 0 && errno != EAGAIN)
		_exit(1);
}

/* Cancel the calls of @caller up to @number. Called with the lock. */
static void call_off(struct calls *calls, struct caller *caller, uint64_t number)
{
	uint64_t until = tmesh_now_ns() + WIRE_STOP_NS;

	if (number > caller->cancelled)
		caller->cancelled = number;
	if (calls->running != caller || calls->call->number > caller->cancelled ||
	    !calls->call->stops || tmesh_engine_cancelled(calls->cancellable))
		return;
	tmesh_engine_cancel(calls->cancellable);
	/* If the run does not end by then, the supervisor ends the process. */
	if (!atomic_load(&calls->shared->watch->until) ||
	    until < atomic_load(&calls->shared->watch->until))
		atomic_store(&calls->shared->watch->until, until);
}

/* Keep one more lifeline, with the lock. Return false if there is no room for it. Also refuse files
 * other than Unix sockets and pipes, whose servers might have to be asked for their state. */
static bool keep_lifeline(struct caller *caller, int fd)
{
	struct tmesh_foreign_file file;
	uint32_t left = 0;

	if (!tmesh_foreign_is_unix_socket(fd) &&
	    !(tmesh_foreign_look(fd, "", &file) && S_ISFIFO(file.type)))
		return false;
	for (uint32_t i = 0; i < caller->kept_count; i++) {
		if (wire_hung_up(caller->kept[i]))
			close(caller->kept[i]);
		else
			caller->kept[left++] = caller->kept[i];
	}
	caller->kept_count = left;
	if (left == WIRE_KEPT)
		return false;
	caller->kept[caller->kept_count++] = fd;
	return true;
}

/* Receive a message and its descriptor, or -1. Further descriptors are closed. */
static ssize_t receive(int socket, struct wire_cancel *words, int *fd)
{
	struct tmesh_fds taken = {.fds = fd, .room = 1};
	ssize_t got =
		tmesh_fds_recv(socket, words, sizeof(*words), &taken, MSG_DONTWAIT | MSG_TRUNC);

	if (!taken.count)
		*fd = -1;
	return got;
}

/* Handle a client's message, with the lock. If the client has gone, or sends an unknown message,
 * cancel all its calls; the working thread sees the socket's end and drops it. */
static void hear(struct calls *calls, struct caller *caller, uint32_t events)
{
	struct wire_cancel words = {0};
	ssize_t got = 0;
	int fd = -1;
	bool ours;

	/* Do not read messages from before a hang-up: unread descriptors stay open until the socket
	 * closes. */
	if (!(events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)))
		got = receive(caller->socket, &words, &fd);
	if (got == -EAGAIN)
		return;
	ours = got == sizeof(words) && words.magic == WIRE_MAGIC;
	if (ours && words.what == WIRE_LIFELINE && fd >= 0 && keep_lifeline(caller, fd))
		return;
	if (fd >= 0)
		close(fd);
	if (ours && !words.what) {
		words.what = calls->running != caller && words.number > caller->ended
				     ? WIRE_NEVER_BEGINS
				     : WIRE_HAS_BEGUN;
		call_off(calls, caller, words.number);
		/* A client that does not take the answer waits longer. */
		if (send(caller->socket, &words, sizeof(words), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			errno = 0;
		return;
	}
	call_off(calls, caller, UINT64_MAX);
	epoll_ctl(calls->epoll, EPOLL_CTL_DEL, caller->socket, NULL);
	shutdown(caller->socket, SHUT_RDWR);
}

/* Count the waiting clients for the status, with the lock. Return the ms until the next count; -1:
 * when a call begins. */
static int count_waiting(struct calls *calls, int *vain)
{
	uint32_t waiting = 0;

	for (struct caller *caller = calls->callers; caller; caller = caller->next)
		waiting += atomic_load(caller->asked) > atomic_load(&caller->seen);
	calls->shared->status->waiting = waiting;
	*vain = waiting || calls->running ? 0 : *vain + 1;
	calls->asleep = *vain > COUNTS;
	return calls->asleep ? -1 : COUNT_MS;
}

static void *listen_for_words(void *data)
{
	struct epoll_event events[EVENTS];
	struct calls *calls = data;
	int timeout = COUNT_MS, vain = 0;
	uint64_t signals;

	for (;;) {
		int count = epoll_wait(calls->epoll, events, EVENTS, timeout);

		pthread_mutex_lock(&calls->lock);
		for (int i = 0; i < count; i++) {
			struct caller *caller = calls->callers;

			if (!events[i].data.u64 &&
			    read(calls->notifier, &signals, sizeof(signals)) > 0)
				vain = 0;
			while (caller && caller->serial != events[i].data.u64)
				caller = caller->next;
			if (caller)
				hear(calls, caller, events[i].events);
		}
		timeout = count_waiting(calls, &vain);
		pthread_mutex_unlock(&calls->lock);
		usleep(PAUSE_US);
	}
	return NULL;
}

int calls_new(const struct shared *shared, uint64_t limit_ns, struct calls **out,
	      struct tmesh_error *err)
{
	struct calls *calls = calloc(1, sizeof(*calls));
	struct epoll_event event = {.events = EPOLLIN}; /* 0 stands for no caller */
	pthread_t thread;
	int rc;

	if (!calls)
		return tmesh_fail(err, -ENOMEM, "no memory for running calls");
	calls->shared = shared;
	calls->limit_ns = limit_ns;
	pthread_mutex_init(&calls->lock, NULL);
	calls->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (calls->epoll < 0)
		return tmesh_fail_errno(err, "making a descriptor that listens to clients");
	calls->notifier = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (calls->notifier < 0 || epoll_ctl(calls->epoll, EPOLL_CTL_ADD, calls->notifier, &event))
		return tmesh_fail_errno(err,
					"making a descriptor that wakes the engine's listener");
	rc = pthread_create(&thread, NULL, listen_for_words, calls);
	if (rc)
		return tmesh_fail(err, -rc, "no thread: %s", strerror(rc));
	pthread_detach(thread);
	*out = calls;
	return 0;
}
