// SPDX-License-Identifier: MIT
/* The link to an engine's process. It is made, used for one call at a time, and made again. */
#include "remote.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/engine_status.h"

/* The time for an engine to accept a link: it may be starting and reading its library. */
#define LINK_NS UINT64_C(30000000000)
/* The supervisor ends a process that is late. If it is this much later, the supervisor is dead
 * too. */
#define LATE_NS UINT64_C(1000000000)
/* The interval of tries to connect while a supervisor has no listener. */
#define LISTEN_MS 5
/* An engine answers short steps within a few microseconds; sleeping would take longer. */
#define SPIN_NS UINT64_C(200000)

uint64_t remote_deadline(const struct remote *remote)
{
	return remote && remote->timeout_ns ? tmesh_now_ns() + remote->timeout_ns : 0;
}

/* Wake a cancelled call from any of its waits: for its turn, for a link, or in a channel. Another
 * call that this wakes goes on waiting. */
static void wake(void *data)
{
	struct remote *remote = data;
	const uint64_t one = 1;

	pthread_mutex_lock(&remote->turns.lock);
	turns_wake(&remote->turns);
	if (remote->requests)
		tmesh_channel_wake(remote->requests);
	if (remote->replies)
		tmesh_channel_wake(remote->replies);
	if (write(remote->notifier, &one, sizeof(one)) < 0)
		errno = 0; /* its counter is full, so it is readable already */
	pthread_mutex_unlock(&remote->turns.lock);
}

int remote_enter(struct remote *remote, struct cancel_hook *hook, struct tmesh_error *err)
{
	return turn_enter(&remote->turns, hook, wake, remote, "calls of this context", err);
}

void remote_leave(struct remote *remote, struct cancel_hook *hook)
{
	bool room;

	cancel_hook_end(hook);
	do {
		room = remote_say_words(remote);
		pthread_mutex_lock(&remote->turns.lock);
		/* Another thread may have queued a word meanwhile and left it to this turn. */
		if (!room || !remote->words)
			break;
		pthread_mutex_unlock(&remote->turns.lock);
	} while (true);
	turn_leave(&remote->turns);
	pthread_mutex_unlock(&remote->turns.lock);
}

static int not_served(const struct remote *remote, int code, const char *why,
		      struct tmesh_error *err)
{
	return tmesh_fail(err, code,
			  "no engine is served as \"%s\" in this runtime directory%s%s: "
			  "tmesh-engine serves one",
			  remote->name, *why ? ", " : "", why);
}

/* Return whether a supervisor lives. It holds a lock on a file before its first listener and
 * between two of them. */
static bool is_supervised(const struct remote *remote)
{
	char name[sizeof(ENGINE_STATUS_PREFIX ENGINE_STATUS_SUFFIX) + WIRE_NAME_LEN];
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	bool held;
	int fd;

	snprintf(name, sizeof(name), ENGINE_STATUS_PREFIX "%s" ENGINE_STATUS_SUFFIX, remote->name);
	/* Any kind of file may have this name: O_NONBLOCK keeps the open from waiting. */
	fd = openat(remote->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return false;
	held = !fcntl(fd, F_GETLK, &lock) && lock.l_type != F_UNLCK;
	close(fd);
	return held;
}

/* Connect. If the engine's backlog is full, connect() waits in slices and checks for cancellation.
 * If a supervisor has no listener at the moment, try again until it has one. Return: 0, or a
 * negative errno; -ETIMEDOUT, -ECANCELED. */
static int connect_by(const struct remote *remote, int fd, const struct sockaddr_un *address,
		      uint64_t deadline)
{
	const struct timeval slice = {.tv_usec = CANCEL_LOOK_NS / 1000};

	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof(slice)))
		return -errno;
	while (connect(fd, (const struct sockaddr *)address, sizeof(*address))) {
		int code = errno;

		if ((code == ENOENT || code == ECONNREFUSED) && is_supervised(remote))
			code = poll(NULL, 0, LISTEN_MS) ? EINTR : EAGAIN;
		if (code != EAGAIN && code != EINTR)
			return -code;
		if (code == EINTR)
			cancel_interrupted();
		if (cancel_check(NULL))
			return -ECANCELED;
		if (tmesh_now_ns() >= deadline)
			return -ETIMEDOUT;
	}
	return 0;
}

static int late(const struct remote *remote, struct tmesh_error *err)
{
	return tmesh_fail(err, -ETIMEDOUT,
			  "the engine \"%s\" accepted no connection before the deadline: "
			  "tmesh-engine is stopped, or does not answer",
			  remote->name);
}

static void close_engine_ctx(struct remote *remote)
{
	tmesh_ctx_unref(remote->engine_ctx);
	remote->engine_ctx = NULL;
	if (remote->dir >= 0)
		close(remote->dir);
	remote->dir = -1;
}

/* The runtime directory may differ from that of the last link. */
static int open_engine_ctx(struct remote *remote, struct tmesh_error *err)
{
	char path[sizeof("/proc/self/fd//" WIRE_SOCKET WIRE_FOLDER) + 11 + WIRE_NAME_LEN];
	const struct tmesh_ctx_opts opts = {.size = sizeof(opts),
					    .backend = tmesh_ctx_backend(remote->ctx),
					    .runtime_dir = path};
	int rc;

	close_engine_ctx(remote);
	rc = tmesh_ctx_runtime_dir(remote->ctx, &remote->dir, err);
	if (rc)
		return rc;
	snprintf(path, sizeof(path), "/proc/self/fd/%d/" WIRE_SOCKET "%s" WIRE_FOLDER, remote->dir,
		 remote->name);
	return tmesh_ctx_open(&opts, &remote->engine_ctx, err);
}

static int connect_socket(struct remote *remote, uint64_t deadline, int *out,
			  struct tmesh_error *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred peer;
	socklen_t size = sizeof(peer);
	int fd, rc = open_engine_ctx(remote, err);

	if (rc)
		return rc;
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/" WIRE_SOCKET "%s",
		 remote->dir, remote->name);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return tmesh_fail_errno(err, "a socket to the engine");
	rc = connect_by(remote, fd, &address, deadline);
	if (!rc && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		rc = -errno;
	if (!rc && peer.uid != geteuid())
		rc = -EACCES;
	if (!rc) {
		*out = fd;
		return 0;
	}
	close(fd);
	if (rc == -ENOENT || rc == -ECONNREFUSED)
		return not_served(remote, -ENOENT, rc == -ENOENT ? "" : "where one was", err);
	if (rc == -ECANCELED)
		return cancel_check(err);
	if (rc == -ETIMEDOUT)
		return late(remote, err);
	if (rc == -EACCES)
		return tmesh_fail(err, rc,
				  "the engine \"%s\" is another user's, and serves that one alone: "
				  "start tmesh-engine as this user",
				  remote->name);
	errno = -rc;
	return tmesh_fail_errno(err, "connecting to the engine");
}

/* Wait for the engine's first message. */
static int wait_for_words(struct remote *remote, uint64_t deadline, struct tmesh_error *err)
{
	struct pollfd fds[] = {{.fd = remote->socket, .events = POLLIN},
			       {.fd = remote->notifier, .events = POLLIN}};
	uint64_t signals;
	int rc;

	for (;;) {
		rc = cancel_check(err);
		if (rc)
			return rc;
		rc = poll(fds, 2, tmesh_poll_ms(deadline));
		if (!rc)
			return late(remote, err);
		if (rc < 0 && errno != EINTR)
			return tmesh_fail_errno(err, "waiting for the engine");
		if (rc < 0)
			cancel_interrupted();
		else if (fds[0].revents)
			return 0;
		/* This also drains signals for a call that is over. */
		else if (read(remote->notifier, &signals, sizeof(signals)) < 0)
			errno = 0;
	}
}

/* Receive the first message of the process that accepted the connection. */
static int welcome(struct remote *remote, uint64_t deadline, struct wire_welcome *words,
		   struct tmesh_error *err)
{
	ssize_t got;
	int rc = wait_for_words(remote, deadline, err);

	if (rc)
		return rc;
	do
		got = recv(remote->socket, words, sizeof(*words), 0);
	while (got < 0 && errno == EINTR);
	if (got <= 0)
		return REMOTE_AGAIN; /* it died before its first message */
	words->backend[sizeof(words->backend) - 1] = words->version[sizeof(words->version) - 1] =
		words->message[sizeof(words->message) - 1] = '\0';
	if (got != sizeof(*words) || words->magic != WIRE_MAGIC ||
	    !memchr(words->requests, 0, TMESH_TOKEN_SIZE) ||
	    !memchr(words->replies, 0, TMESH_TOKEN_SIZE) ||
	    !memchr(words->page, 0, TMESH_TOKEN_SIZE))
		return tmesh_fail(err, -EPROTO,
				  "\"%s\" is not served by this version of tmesh: start "
				  "tmesh-engine from the same release",
				  remote->name);
	if (words->code)
		return tmesh_fail(err,
				  words->code < 0 && words->code > -4096 ? words->code : -EPROTO,
				  "%s", words->message);
	return 0;
}

static int open_page(struct remote *remote, const char *token, struct tmesh_error *err)
{
	const int64_t bytes = sizeof(struct wire_page);
	struct tmesh_layout layout;
	struct tmesh_region *region;
	void *data;
	int rc = tmesh_layout_contiguous(&layout, TMESH_UINT8, 1, &bytes, err);

	if (!rc)
		rc = tmesh_region_open(remote->engine_ctx, token, TMESH_READ | TMESH_WRITE, &region,
				       err);
	if (rc)
		return rc;
	rc = tmesh_tensor_wrap(region, &layout, &remote->page_tensor, err);
	tmesh_region_unref(region);
	if (!rc)
		rc = tmesh_tensor_data(remote->page_tensor, TMESH_READ | TMESH_WRITE, &data, err);
	if (!rc)
		remote->page = data;
	return rc;
}

static int join(struct remote *remote, const struct wire_welcome *words, struct tmesh_error *err)
{
	struct tmesh_channel_opts opts = {.size = sizeof(opts), .spin_ns = SPIN_NS};
	struct tmesh_channel *requests = NULL, *replies = NULL;
	int rc = tmesh_channel_open(remote->engine_ctx, words->requests, TMESH_CHANNEL_SEND, &opts,
				    &requests, err);

	if (!rc)
		rc = tmesh_channel_open(remote->engine_ctx, words->replies, TMESH_CHANNEL_RECV,
					&opts, &replies, err);
	pthread_mutex_lock(&remote->turns.lock);
	remote->requests = requests;
	remote->replies = replies;
	pthread_mutex_unlock(&remote->turns.lock);
	if (!rc)
		rc = open_page(remote, words->page, err);
	/* The engine died meanwhile, and no request was sent to it. */
	if (rc == -ENOENT || rc == -EPIPE || rc == -ETIMEDOUT)
		rc = REMOTE_AGAIN;
	if (rc)
		return rc;
	remote->pid = words->pid;
	remote->generation++;
	remote->number = remote->answered = 0;
	/* Callers hold these strings, so they stay those of the first process. */
	if (remote->generation == 1) {
		strcpy(remote->backend, words->backend);
		strcpy(remote->version, words->version);
	}
	return 0;
}

int remote_link(struct remote *remote, struct tmesh_error *err)
{
	uint64_t until = tmesh_now_ns() + LINK_NS, deadline = deadline_get();
	struct wire_welcome words;
	int rc;

	if (remote->socket >= 0)
		return 0;
	if (deadline && deadline < until)
		until = deadline;
	do {
		rc = connect_socket(remote, until, &remote->socket, err);
		if (!rc)
			rc = welcome(remote, until, &words, err);
		if (!rc)
			rc = join(remote, &words, err);
		if (!rc)
			rc = remote_tell_kept(remote, err);
		if (rc)
			remote_unlink(remote);
	} while (rc == REMOTE_AGAIN && tmesh_now_ns() < until);
	if (rc == REMOTE_AGAIN)
		rc = tmesh_fail(err, -ETIMEDOUT, "the engine \"%s\" died whenever it was asked",
				remote->name);
	/* There was an engine before: the other end is gone. */
	if (rc == -ENOENT && remote->generation)
		rc = not_served(remote, -EPIPE, "any more", err);
	return rc;
}

void remote_unlink(struct remote *remote)
{
	struct tmesh_channel *requests, *replies;

	if (remote->socket >= 0)
		close(remote->socket);
	remote->socket = -1;
	pthread_mutex_lock(&remote->turns.lock);
	requests = remote->requests;
	replies = remote->replies;
	remote->requests = remote->replies = NULL;
	pthread_mutex_unlock(&remote->turns.lock);
	if (requests)
		tmesh_channel_unref(requests);
	if (replies)
		tmesh_channel_unref(replies);
	if (remote->page_tensor)
		tmesh_tensor_unref(remote->page_tensor);
	remote->page_tensor = NULL;
	remote->page = NULL;
}

struct wire remote_text(struct remote *remote)
{
	return (struct wire){.text = remote->page->text, .bytes = WIRE_TEXT};
}

/* A request that is under way. */
struct request {
	uint32_t op;
	uint64_t number;
	uint64_t deadline;
	uint64_t until; /* without an answer by then the engine is dead; 0: never */
	bool cancelled; /* the call was cancelled, and the engine knows */
	bool hung_up;	/* the socket has ended: only the channel can still have the reply */
};

/* Return the error of a call whose engine is gone. */
static int died(struct remote *remote, const struct request *request, struct tmesh_error *err)
{
	bool begun = atomic_load(&remote->page->begun) >= request->number;
	bool late = request->deadline && tmesh_now_ns() >= request->deadline;
	uint32_t pid = remote->pid;

	remote_unlink(remote);
	if (!begun && !late)
		return REMOTE_AGAIN;
	if (request->cancelled)
		return tmesh_fail(
			err, -ECANCELED,
			"the call was cancelled, and its engine, process %u, ended by that; "
			"outputs may be half written",
			pid);
	if (late)
		return tmesh_fail(
			err, -ETIMEDOUT,
			"the call did not end by its deadline, and its engine, process %u, "
			"was ended",
			pid);
	return tmesh_fail(err, -EPIPE,
			  "the engine, process %u, died in this call; outputs may be half written, "
			  "and the next call gets a new process",
			  pid);
}

static int64_t left(uint64_t deadline)
{
	uint64_t now = tmesh_now_ns();

	if (!deadline)
		return -1;
	return deadline > now ? (int64_t)(deadline - now) : 0;
}

/* Tell the engine that the call is cancelled. From now on, wait only as long as it may take to
 * stop. */
static void tell_cancelled(struct remote *remote, struct request *request)
{
	const struct wire_cancel words = {.magic = WIRE_MAGIC, .number = request->number};
	uint64_t until = tmesh_now_ns() + WIRE_STOP_NS + LATE_NS;

	request->cancelled = true;
	if (!request->until || until < request->until)
		request->until = until;
	/* An engine that cannot take this message is dead; @until shows it. */
	if (send(remote->socket, &words, sizeof(words), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		errno = 0;
}

/* Wait after a cancellation. Return: 0, look for the reply; -ECANCELED, no reply is needed;
 * -ETIMEDOUT. */
static int await_cancelled(struct remote *remote, struct request *request, struct tmesh_error *err)
{
	struct pollfd fds[] = {
		{.fd = tmesh_channel_poll_fd(remote->replies, NULL), .events = POLLIN},
		{.fd = request->hung_up ? -1 : remote->socket, .events = POLLIN}};
	struct wire_cancel words = {0};
	ssize_t got;
	int rc = poll(fds, 2, tmesh_poll_ms(request->until));

	if (!rc)
		return -ETIMEDOUT;
	if (rc < 0 || !fds[1].revents)
		return 0;
	got = recv(remote->socket, &words, sizeof(words), MSG_DONTWAIT);
	request->hung_up = !got || (got < 0 && errno != EAGAIN && errno != EINTR);
	if (got != sizeof(words) || words.number != request->number)
		return 0;
	/* A call that writes to no tensor need not be waited for: drop the link, and the engine
	 * drops everything that belongs to it. */
	if (words.what == WIRE_HAS_BEGUN && request->op != WIRE_RUN)
		remote_unlink(remote);
	else if (words.what != WIRE_NEVER_BEGINS)
		return 0;
	return tmesh_fail(err, -ECANCELED, "the call was cancelled before it ran");
}

static int no_answer(struct remote *remote, const struct request *request, struct tmesh_error *err)
{
	bool late = request->deadline && tmesh_now_ns() >= request->deadline;
	uint32_t pid = remote->pid;

	remote_unlink(remote);
	return tmesh_fail(err, request->cancelled && !late ? -ECANCELED : -ETIMEDOUT,
			  "the engine, process %u, does not answer; if it goes on "
			  "some time, it may still write to the outputs",
			  pid);
}

static bool is_over(const struct request *request)
{
	return request->until && tmesh_now_ns() >= request->until;
}

static int malformed(struct remote *remote, struct tmesh_error *err)
{
	remote_unlink(remote);
	return tmesh_fail(err, -EPROTO,
			  "the engine's process sent a malformed reply: start it anew, from the "
			  "same release as this library");
}

/* Wait for the reply to @request. Skip replies to abandoned calls. Their numbers rise, so no engine
 * can send them without end. */
static int await(struct remote *remote, struct request *request, struct wire_reply *reply,
		 struct tmesh_error *err)
{
	struct tmesh_message message;
	int rc;

	for (;;) {
		if (!request->cancelled && cancel_check(NULL))
			tell_cancelled(remote, request);
		if (!request->cancelled)
			rc = tmesh_channel_recv(remote->replies, &message, left(request->until),
						err);
		else
			rc = tmesh_channel_try_recv(remote->replies, &message, err);
		if (rc == -EAGAIN) {
			rc = await_cancelled(remote, request, err);
			if (rc == -ECANCELED)
				return rc;
			/* Its socket or its messages may wake this call again and again. */
			if (!rc && is_over(request))
				rc = -ETIMEDOUT;
			if (!rc)
				continue;
		}
		if (rc == -EINTR)
			cancel_interrupted();
		/* The loop handles a cancellation above. It may also have been meant for an earlier
		 * call. */
		if (rc == -EINTR || rc == -ECANCELED)
			continue;
		if (rc == -ETIMEDOUT)
			return no_answer(remote, request, err);
		if (rc == -EPIPE)
			return died(remote, request, err);
		if (!rc && message.tensor)
			tmesh_tensor_unref(message.tensor);
		if (rc || message.tensor || message.bytes != sizeof(*reply))
			return malformed(remote, err);
		memcpy(reply, message.data, sizeof(*reply));
		if (reply->number <= remote->answered || reply->number > request->number)
			return malformed(remote, err);
		remote->answered = reply->number;
		if (reply->number == request->number)
			return 0;
	}
}

int remote_call(struct remote *remote, uint32_t op, uint32_t id, const struct wire *text,
		uint32_t *made, struct wire *answer, struct tmesh_error *err)
{
	uint64_t deadline = deadline_get();
	struct request request = {
		.op = op,
		.number = ++remote->number,
		.deadline = deadline,
		.until = deadline ? deadline + LATE_NS : 0,
	};
	struct wire_request words = {
		.op = op,
		.id = id,
		.number = request.number,
		.deadline = deadline,
		.bytes = text ? (uint32_t)text->at : 0,
	};
	struct tmesh_message message = {.bytes = sizeof(words)};
	struct wire_reply reply = {0};
	int rc;

	memcpy(message.data, &words, sizeof(words));
	atomic_store_explicit(&remote->page->asked, request.number, memory_order_relaxed);
	do {
		rc = cancel_check(err);
		if (rc)
			return rc;
		rc = tmesh_channel_send(remote->requests, &message, left(deadline), err);
		if (rc == -EINTR)
			cancel_interrupted();
	} while (rc == -EINTR || rc == -ECANCELED);
	if (rc == -EPIPE)
		return died(remote, &request, err);
	if (!rc)
		rc = await(remote, &request, &reply, err);
	if (rc)
		return rc;
	if (reply.bytes > WIRE_TEXT)
		return malformed(remote, err);
	if (reply.code)
		return tmesh_fail(err, reply.code < 0 && reply.code > -4096 ? reply.code : -EPROTO,
				  "%.*s", (int)(reply.bytes < 251 ? reply.bytes : 251),
				  remote->page->text);
	if (made)
		*made = reply.id;
	if (answer)
		*answer = (struct wire){.text = remote->page->text, .bytes = reply.bytes};
	return 0;
}

int remote_new(struct tmesh_ctx *ctx, const char *name, uint64_t timeout_ns, struct remote **out,
	       struct tmesh_error *err)
{
	struct remote *remote;
	uint64_t before;
	int rc;

	if (!wire_is_name(name))
		return tmesh_fail(err, -EINVAL,
				  "an engine is served under a name of 1 to %d small letters, "
				  "digits and hyphens",
				  WIRE_NAME_LEN);
	remote = calloc(1, sizeof(*remote));
	if (!remote)
		return tmesh_fail(err, -ENOMEM, "no memory for a link to an engine");
	strcpy(remote->name, name);
	remote->timeout_ns = timeout_ns;
	remote->socket = remote->dir = -1;
	remote->notifier = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (remote->notifier < 0) {
		free(remote);
		return tmesh_fail_errno(err, "making a descriptor that ends waits for the engine");
	}
	remote->ctx = tmesh_ctx_ref(ctx);
	turns_init(&remote->turns);
	before = deadline_enter(remote_deadline(remote));
	rc = remote_link(remote, err);
	deadline_enter(before);
	if (rc)
		remote_free(remote);
	else
		*out = remote;
	return rc;
}

void remote_free(struct remote *remote)
{
	remote_unlink(remote);
	for (size_t i = 0; i < remote->kept_count; i++)
		tmesh_region_unref(remote->kept[i]);
	remote_words_free(remote);
	close_engine_ctx(remote);
	tmesh_ctx_unref(remote->ctx);
	turns_destroy(&remote->turns);
	close(remote->notifier);
	free(remote);
}
