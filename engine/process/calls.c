// SPDX-License-Identifier: MIT
/*
 * What runs, for a second thread to end it: when its client calls it off, by a word on its socket,
 * or has gone. The thread that works reads no socket meanwhile.
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
#include "common/foreign.h"
#include "process.h"

#define EVENTS 16
/* How often who waits is counted while there is something to do, and how often in vain. */
#define COUNT_MS 100
#define COUNTS 10
/* Between two looks: a client that says cancel without end costs no more than this. */
#define PAUSE_US 500

struct calls {
	pthread_mutex_t lock;
	int epoll;
	int bell; /* an eventfd, rung for the second thread when it sleeps without limit */
	bool asleep;
	struct watch *watch;
	struct caller *callers;
	uint64_t serial;
	/* The call that runs: NULL, none does. */
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

/* With the lock. From here on the call has so long. */
static void watch_call(struct calls *calls)
{
	const struct call *call = calls->call;
	uint64_t now = tmesh_now_ns(), deadline = now + call->limit_ns;

	/* One that has passed ends nobody: the call is refused. */
	if (call->until > now && call->until < deadline)
		deadline = call->until;
	atomic_store(&calls->watch->deadline, deadline);
	status_deadline(calls->watch->status, deadline);
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
		status_began(calls->watch->status);
		if (calls->asleep && write(calls->bell, &one, sizeof(one)) == sizeof(one))
			calls->asleep = false;
	}
	pthread_mutex_unlock(&calls->lock);
	return rc;
}

void calls_wait(struct calls *calls)
{
	pthread_mutex_lock(&calls->lock);
	atomic_store(&calls->watch->deadline, 0);
	status_deadline(calls->watch->status, UINT64_MAX);
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
	atomic_store(&calls->watch->deadline, 0);
	status_ended(calls->watch->status, code, calls->call->stops, calls->call->tokens);
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
	pthread_mutex_unlock(&calls->lock);
}

/* With the lock. The calls of @caller up to @number are called off. */
static void call_off(struct calls *calls, struct caller *caller, uint64_t number)
{
	uint64_t until = tmesh_now_ns() + WIRE_STOP_NS;

	if (number > caller->cancelled)
		caller->cancelled = number;
	if (calls->running != caller || calls->call->number > caller->cancelled ||
	    !calls->call->stops || tmesh_engine_cancelled(calls->cancellable))
		return;
	tmesh_engine_cancel(calls->cancellable);
	/* It ends, or its process does. */
	if (until < atomic_load(&calls->watch->deadline))
		atomic_store(&calls->watch->deadline, until);
}

/* With the lock. One more descriptor to keep. Return: whether it is one whose end can be seen
 * without a question to who serves it, and there is room for it. */
static bool keep(struct caller *caller, int fd)
{
	struct tmesh_foreign_file file;
	uint32_t left = 0;

	if (!tmesh_foreign_look(fd, "", &file) || !(S_ISSOCK(file.type) || S_ISFIFO(file.type)))
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

/* A message, and a descriptor with it, or -1. Others that it has are closed. */
static ssize_t receive(int socket, struct wire_cancel *words, int *fd)
{
	struct iovec vector = {.iov_base = words, .iov_len = sizeof(*words)};
	union {
		char room[CMSG_SPACE(4 * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr message = {.msg_iov = &vector,
				 .msg_iovlen = 1,
				 .msg_control = control.room,
				 .msg_controllen =
					 tmesh_foreign_room_at(socket) ? sizeof(control.room) : 0};
	ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);

	*fd = -1;
	for (struct cmsghdr *head = got < 0 ? NULL : CMSG_FIRSTHDR(&message); head;
	     head = CMSG_NXTHDR(&message, head)) {
		size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		for (size_t i = 0; head->cmsg_type == SCM_RIGHTS && i < count; i++) {
			int came;

			memcpy(&came, CMSG_DATA(head) + i * sizeof(int), sizeof(came));
			if (*fd < 0)
				*fd = came;
			else
				tmesh_foreign_close(came, tmesh_giver_at(socket));
		}
	}
	return got;
}

/* With the lock. Who has gone, or says what is none of ours, has no more calls; the other thread
 * sees the socket's end and drops it. */
static void hear(struct calls *calls, struct caller *caller, uint32_t events)
{
	struct wire_cancel words = {0};
	ssize_t got = 0;
	int fd = -1;
	bool ours;

	/* What it said before it went stays unread, and open until its socket is closed. */
	if (!(events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)))
		got = receive(caller->socket, &words, &fd);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	ours = got == sizeof(words) && words.magic == WIRE_MAGIC;
	if (ours && words.what == WIRE_KEEP && fd >= 0 && keep(caller, fd))
		return;
	if (fd >= 0)
		tmesh_foreign_close(fd, tmesh_giver_at(caller->socket));
	if (ours && !words.what) {
		words.what = calls->running != caller && words.number > caller->ended
				     ? WIRE_NEVER_BEGINS
				     : WIRE_HAS_BEGUN;
		call_off(calls, caller, words.number);
		/* One that does not take the answer waits longer. */
		if (send(caller->socket, &words, sizeof(words), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			errno = 0;
		return;
	}
	call_off(calls, caller, UINT64_MAX);
	epoll_ctl(calls->epoll, EPOLL_CTL_DEL, caller->socket, NULL);
	shutdown(caller->socket, SHUT_RDWR);
}

/* With the lock. Who waits, for those who look. Return: in how many ms again, -1: when a call
 * begins. */
static int count_waiting(struct calls *calls, int *vain)
{
	uint32_t waiting = 0;

	for (struct caller *caller = calls->callers; caller; caller = caller->next)
		waiting += atomic_load(caller->asked) > atomic_load(&caller->seen);
	calls->watch->status->waiting = waiting;
	*vain = waiting || calls->running ? 0 : *vain + 1;
	calls->asleep = *vain > COUNTS;
	return calls->asleep ? -1 : COUNT_MS;
}

static void *listen_for_words(void *data)
{
	struct epoll_event events[EVENTS];
	struct calls *calls = data;
	int timeout = COUNT_MS, vain = 0;
	uint64_t rung;

	for (;;) {
		int count = epoll_wait(calls->epoll, events, EVENTS, timeout);

		pthread_mutex_lock(&calls->lock);
		for (int i = 0; i < count; i++) {
			struct caller *caller = calls->callers;

			if (!events[i].data.u64 && read(calls->bell, &rung, sizeof(rung)) > 0)
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

int calls_new(struct watch *watch, struct calls **out, struct tmesh_error *err)
{
	struct calls *calls = calloc(1, sizeof(*calls));
	struct epoll_event event = {.events = EPOLLIN}; /* of no caller */
	pthread_t thread;
	int rc;

	if (!calls)
		return tmesh_fail(err, -ENOMEM, "no memory for what runs");
	calls->watch = watch;
	pthread_mutex_init(&calls->lock, NULL);
	calls->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (calls->epoll < 0)
		return tmesh_fail_errno(err, "what listens to the engine's clients");
	calls->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (calls->bell < 0 || epoll_ctl(calls->epoll, EPOLL_CTL_ADD, calls->bell, &event))
		return tmesh_fail_errno(err, "what wakes the engine's listener");
	rc = pthread_create(&thread, NULL, listen_for_words, calls);
	if (rc)
		return tmesh_fail(err, -rc, "no thread: %s", strerror(rc));
	pthread_detach(thread);
	*out = calls;
	return 0;
}
