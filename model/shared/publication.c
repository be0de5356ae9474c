// SPDX-License-Identifier: MIT
/* Publications and their subscriptions. */
#include "common/file_size.h"
#include "publication.h"

#include "common/foreign.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUBSCRIBERS_MAX 1024
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define VERSION 2
#define WATCH 'W'
#define DONE 'D'
#define ASK 0x45304d54u	   /* "TM0E" */
#define ANSWER 0x58304d54u /* "TM0X" */

struct welcome {
	uint32_t kind;
	uint32_t version;
	uint64_t bytes;
};

/* The one message of a reader that is longer than a byte. */
struct ask {
	uint32_t what;
	uint32_t number; /* of this reader's asks; the answer has it too */
};

struct reply {
	struct ask ask;
	struct model_answer answer;
};

struct model_subscriber {
	struct model_source source;
	struct model_publication *publication;
	struct model_subscriber *next;
	struct model_subscriber **at;
	bool watches;
	bool answer_pending; /* an answer, which had no room, or was not to be had */
	uint32_t number;     /* of the last ask */
	void *pin;
};

static void unpin(struct model_subscriber *subscriber)
{
	if (subscriber->pin)
		subscriber->publication->done(subscriber->pin);
	subscriber->pin = NULL;
}

static void subscriber_end(struct model_subscriber *subscriber)
{
	unpin(subscriber);
	model_source_remove(&subscriber->source);
	*subscriber->at = subscriber->next;
	if (subscriber->next)
		subscriber->next->at = subscriber->at;
	subscriber->publication->count--;
	free(subscriber);
}

/* Answer with the newest, each time. Unread notifications may leave no room. Then the next
 * notification is the answer, and until it comes nothing overtakes the reader. */
static void answer(struct model_subscriber *subscriber)
{
	struct reply reply = {.ask = {ANSWER, subscriber->number}};
	int fd = -1, rc;

	unpin(subscriber);
	rc = subscriber->publication->asked(subscriber->publication, &reply.answer, &fd,
					    &subscriber->pin);
	if (!rc)
		rc = model_socket_send(subscriber->source.own.fd, &reply, sizeof(reply), fd);
	if (fd >= 0)
		close(fd);
	subscriber->answer_pending = rc != 0;
	if (rc)
		unpin(subscriber);
}

static void notify(struct model_subscriber *subscriber)
{
	if (subscriber->watches)
		model_socket_send(subscriber->source.own.fd, "", 1, -1);
}

/* Receive a reader's message: it wants notifications, asks, or is done with an answer. */
static void receive_word(struct model_source *source)
{
	struct model_subscriber *subscriber = (struct model_subscriber *)source;
	union {
		char byte;
		struct ask ask;
	} word = {0};
	ssize_t got = model_socket_recv(source->own.fd, &word, sizeof(word), NULL);

	if (got == -EAGAIN)
		return;
	if (got == 1 && word.byte == WATCH) {
		subscriber->watches = true;
		notify(subscriber); /* the first look is due */
	} else if (got == 1 && word.byte == DONE) {
		subscriber->answer_pending = false;
		unpin(subscriber);
		notify(subscriber); /* it has read the notification while it waited */
	} else if (got == sizeof(word.ask) && word.ask.what == ASK &&
		   subscriber->publication->asked) {
		subscriber->number = word.ask.number;
		answer(subscriber);
	} else {
		subscriber_end(subscriber);
	}
}

static void accepted(struct model_listener *listener, int socket)
{
	struct model_publication *publication = (struct model_publication *)listener;
	struct welcome welcome = {publication->kind, VERSION, publication->bytes};
	struct model_subscriber *subscriber =
		publication->count < SUBSCRIBERS_MAX ? calloc(1, sizeof(*subscriber)) : NULL;
	int small = 1;

	if (!subscriber) {
		close(socket);
		return;
	}
	/* Unread notifications fill only a few messages' room, and stay readable. */
	setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	subscriber->publication = publication;
	subscriber->source.ready = receive_word;
	if (model_socket_send(socket, &welcome, sizeof(welcome), publication->fd)) {
		close(socket);
		free(subscriber);
		return;
	}
	if (model_source_add(&subscriber->source, socket, NULL)) {
		free(subscriber);
		return;
	}
	subscriber->next = publication->subscribers;
	subscriber->at = &publication->subscribers;
	if (subscriber->next)
		subscriber->next->at = &subscriber->next;
	publication->subscribers = subscriber;
	publication->count++;
}

static int make_memory(struct model_publication *publication, const char *label,
		       struct tmesh_error *err)
{
	publication->fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (publication->fd < 0)
		return tmesh_fail_errno(err, "making the memory of a slot or of page tables");
	if (fchmod(publication->fd, 0600) ||
	    tmesh_ftruncate(publication->fd, (off_t)publication->bytes))
		return tmesh_fail_errno(
			err, "setting the size of the memory of a slot or of page tables");
	publication->addr = mmap(NULL, publication->bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
				 publication->fd, 0);
	if (publication->addr == MAP_FAILED) {
		publication->addr = NULL;
		return tmesh_fail_errno(err, "mapping the memory of a slot or of page tables");
	}
	/* A forked child is no writer. */
	madvise(publication->addr, publication->bytes, MADV_DONTFORK);
	if (fcntl(publication->fd, F_ADD_SEALS, SEALS))
		return tmesh_fail_errno(err, "sealing the memory of a slot or of page tables");
	return 0;
}

static void free_memory(struct model_publication *publication)
{
	if (publication->addr && publication->life == model_life())
		munmap(publication->addr, publication->bytes);
	if (publication->fd >= 0)
		close(publication->fd);
}

int model_publication_create(struct model_publication *publication, struct tmesh_ctx *ctx,
			     uint32_t kind, const char *label, size_t bytes,
			     struct tmesh_error *err)
{
	int rc;

	*publication = (struct model_publication){.kind = kind, .bytes = bytes, .fd = -1};
	publication->life = model_life();
	publication->listener.accepted = accepted;
	rc = make_memory(publication, label, err);
	if (!rc)
		rc = model_listener_open(&publication->listener, ctx, label, err);
	if (rc)
		free_memory(publication);
	return rc;
}

void model_publication_close(struct model_publication *publication)
{
	/* In a forked child the sockets are closed, and the thread was never its own. */
	if (publication->life == model_life()) {
		model_host_lock();
		model_listener_shut(&publication->listener);
		while (publication->subscribers)
			subscriber_end(publication->subscribers);
		model_host_unlock();
		model_listener_close(&publication->listener);
	} else {
		while (publication->subscribers) {
			struct model_subscriber *subscriber = publication->subscribers;

			publication->subscribers = subscriber->next;
			unpin(subscriber);
			free(subscriber);
		}
		tmesh_region_unref(publication->listener.region);
		tmesh_ctx_unref(publication->listener.memfd_ctx);
	}
	free_memory(publication);
}

int model_publication_token(struct model_publication *publication, char *token,
			    struct tmesh_error *err)
{
	return model_listener_token(&publication->listener, token, err);
}

void model_publication_notify(struct model_publication *publication)
{
	model_host_lock();
	for (struct model_subscriber *subscriber = publication->subscribers; subscriber;
	     subscriber = subscriber->next)
		if (subscriber->answer_pending)
			answer(subscriber);
		else
			notify(subscriber);
	model_host_unlock();
}

/* Map the publication's memory: it must be sealed, this user's, and as long as the welcome has it.
 */
static int adopt(struct model_subscription *subscription, int fd, const struct welcome *welcome,
		 struct tmesh_error *err)
{
	struct stat stat;
	int seals = tmesh_foreign_seals(fd);

	if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &stat) || stat.st_uid != geteuid() ||
	    welcome->bytes > SIZE_MAX || (uint64_t)stat.st_size != welcome->bytes)
		return tmesh_fail(err, -EPROTO,
				  "the token's owner handed over memory that is not sealed, "
				  "not this user's or not of %llu bytes: take no tokens from it",
				  (unsigned long long)welcome->bytes);
	subscription->bytes = welcome->bytes;
	subscription->addr = mmap(NULL, subscription->bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (subscription->addr == MAP_FAILED) {
		subscription->addr = NULL;
		return tmesh_fail_errno(err, "mapping the memory of a slot or of page tables");
	}
	return 0;
}

static int be_welcomed(struct model_subscription *subscription, int socket, uint32_t kind,
		       size_t least, struct tmesh_error *err)
{
	struct welcome welcome = {0};
	ssize_t got;
	int fd, rc;

	if (model_socket_wait(socket, POLLIN, tmesh_now_ns() + MODEL_WAIT_NS))
		return tmesh_fail(err, -ETIMEDOUT, "the token's owner does not answer");
	got = model_socket_recv(socket, &welcome, sizeof(welcome), &fd);
	if (got == 0)
		return tmesh_fail(err, -EBUSY,
				  "the token's owner accepts no further process: it has as many as "
				  "it can have, or no descriptor is left; try again later");
	if (fd == -EMFILE) {
		errno = EMFILE;
		return tmesh_foreign_fail_errno(err, "taking what the token's owner shares",
						tmesh_giver_at(socket));
	}
	if (got != sizeof(welcome) || fd < 0 || welcome.kind != kind ||
	    welcome.version != VERSION || welcome.bytes < least)
		rc = model_refuse_token(err);
	else
		rc = adopt(subscription, fd, &welcome, err);
	if (fd >= 0)
		close(fd);
	return rc;
}

int model_subscription_open(struct model_subscription *subscription, struct tmesh_ctx *ctx,
			    const char *token, uint32_t kind, size_t least, struct tmesh_error *err)
{
	int socket;
	int rc = model_host_ready(err);

	if (rc)
		return rc;
	*subscription = (struct model_subscription){.life = model_life(), .socket.fd = -1};
	rc = model_connect(ctx, token, &socket, err);
	if (!rc) {
		rc = be_welcomed(subscription, socket, kind, least, err);
		if (rc) {
			close(socket);
		} else {
			model_host_lock();
			model_fd_keep(&subscription->socket, socket);
			model_host_unlock();
		}
	}
	return rc;
}

void model_subscription_close(struct model_subscription *subscription)
{
	munmap((void *)subscription->addr, subscription->bytes);
	if (subscription->life != model_life())
		return;
	model_host_lock();
	model_fd_close(&subscription->socket);
	model_host_unlock();
}

int model_subscription_poll_fd(struct model_subscription *subscription, struct tmesh_error *err)
{
	const char byte = WATCH;
	int rc = model_check_life(subscription->life, err);

	if (rc)
		return rc;
	if (!subscription->watches) {
		rc = model_socket_send(subscription->socket.fd, &byte, 1, -1);
		/* If the owner is gone, the descriptor shows it. */
		if (rc && rc != -EPIPE && rc != -ECONNRESET)
			return tmesh_fail(
				err, rc,
				"the owner cannot be asked to wake this process (errno %d); "
				"look from time to time, or open the token again",
				-rc);
		subscription->watches = true;
	}
	return subscription->socket.fd;
}

/* Tell the owner that the reader is done, if its socket had no room before. An owner that does not
 * read keeps its answer until then. The next look for something newer tries again. */
void model_subscription_settle(struct model_subscription *subscription)
{
	const char byte = DONE;

	if (subscription->done_pending)
		subscription->done_pending =
			model_socket_send(subscription->socket.fd, &byte, 1, -1) == -EAGAIN;
}

void model_subscription_drain(struct model_subscription *subscription)
{
	ssize_t got = 1;
	char byte;

	model_subscription_settle(subscription);
	for (unsigned int i = 0; i < MODEL_NOTIFICATIONS && got > 0; i++)
		got = model_socket_recv(subscription->socket.fd, &byte, 1, NULL);
	subscription->gone |= got == 0;
}

void model_subscription_notify_again(struct model_subscription *subscription)
{
	const char byte = WATCH;

	/* A failure needs no report. If the owner is gone, the descriptor is readable. */
	if (subscription->watches)
		model_socket_send(subscription->socket.fd, &byte, 1, -1);
}

bool model_subscription_ended(struct model_subscription *subscription, int ms)
{
	uint64_t deadline = tmesh_now_ns() + (uint64_t)ms * 1000000;

	model_subscription_settle(subscription);
	if (!subscription->gone &&
	    model_socket_wait(subscription->socket.fd, POLLRDHUP, deadline) == 0)
		subscription->gone = true;
	return subscription->gone;
}

void model_subscription_ask(struct model_subscription *subscription)
{
	const struct ask ask = {ASK, ++subscription->asks};

	/* A new question ends the answer before. */
	subscription->done_pending = false;
	/* A failure needs no report: an owner that is gone sends no answer either. */
	model_socket_send(subscription->socket.fd, &ask, sizeof(ask), -1);
}

bool model_subscription_answer(struct model_subscription *subscription, int ms,
			       struct model_answer *answer, int *fd)
{
	bool answered = false;
	struct reply reply;
	ssize_t got = 1;
	int came;

	model_socket_wait(subscription->socket.fd, POLLIN, tmesh_now_ns() + (uint64_t)ms * 1000000);
	for (unsigned int i = 0; i < MODEL_NOTIFICATIONS && got > 0; i++) {
		got = model_socket_recv(subscription->socket.fd, &reply, sizeof(reply), &came);
		if (got == sizeof(reply) && reply.ask.what == ANSWER &&
		    reply.ask.number == subscription->asks) {
			if (answered && *fd >= 0)
				close(*fd);
			answered = true;
			*answer = reply.answer;
			*fd = came;
		} else if (came >= 0) {
			close(came);
		}
	}
	subscription->gone |= got == 0;
	return answered;
}

void model_subscription_done(struct model_subscription *subscription)
{
	subscription->done_pending = true;
	model_subscription_settle(subscription);
}
