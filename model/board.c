// SPDX-License-Identifier: MIT
/* Boards and their readers. */
#include "board.h"

#include "common/foreign.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define WATCHERS_MAX 1024
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define VERSION 2
#define WATCH 'W'
#define DONE 'D'
#define ASK 0x51304d54u	   /* "TM0Q" */
#define ANSWER 0x52304d54u /* "TM0R" */

struct welcome {
	uint32_t kind;
	uint32_t version;
	uint64_t bytes;
};

/* What is longer than a word of one byte. */
struct ask {
	uint32_t what;
	uint32_t number; /* of this reader's asks; the answer has it too */
};

struct reply {
	struct ask ask;
	struct model_answer answer;
};

struct model_watcher {
	struct model_source source;
	struct model_board *board;
	struct model_watcher *next;
	struct model_watcher **at;
	bool watches;
	bool owed;	 /* an answer, which had no room, or was not to be had */
	uint32_t number; /* of the last ask */
	void *pin;
};

static void unpin(struct model_watcher *watcher)
{
	if (watcher->pin)
		watcher->board->done(watcher->pin);
	watcher->pin = NULL;
}

static void watcher_end(struct model_watcher *watcher)
{
	unpin(watcher);
	model_source_remove(&watcher->source);
	*watcher->at = watcher->next;
	if (watcher->next)
		watcher->next->at = watcher->at;
	watcher->board->count--;
	free(watcher);
}

/* The newest, each time. Bells that nobody has emptied may leave no room: the next bell is then the
 * answer, and before there is one, nothing overtakes the reader. */
static void answer(struct model_watcher *watcher)
{
	struct reply reply = {.ask = {ANSWER, watcher->number}};
	int fd = -1, rc;

	unpin(watcher);
	rc = watcher->board->asked(watcher->board, &reply.answer, &fd, &watcher->pin);
	if (!rc)
		rc = model_meet_send(watcher->source.own.fd, &reply, sizeof(reply), fd);
	if (fd >= 0)
		close(fd);
	watcher->owed = rc != 0;
	if (rc)
		unpin(watcher);
}

static void ring(struct model_watcher *watcher)
{
	if (watcher->watches)
		model_meet_send(watcher->source.own.fd, "", 1, -1);
}

/* A reader may say that it wants to be told, ask, and be done. */
static void said(struct model_source *source)
{
	struct model_watcher *watcher = (struct model_watcher *)source;
	union {
		char byte;
		struct ask ask;
	} word = {0};
	ssize_t got = model_meet_recv(source->own.fd, &word, sizeof(word), NULL);

	if (got == -EAGAIN)
		return;
	if (got == 1 && word.byte == WATCH) {
		watcher->watches = true;
		ring(watcher); /* the first look is due */
	} else if (got == 1 && word.byte == DONE) {
		watcher->owed = false;
		unpin(watcher);
		ring(watcher); /* it has emptied the bell while it waited */
	} else if (got == sizeof(word.ask) && word.ask.what == ASK && watcher->board->asked) {
		watcher->number = word.ask.number;
		answer(watcher);
	} else {
		watcher_end(watcher);
	}
}

static void joined(struct model_meet *meet, int socket)
{
	struct model_board *board = (struct model_board *)meet;
	struct welcome welcome = {board->kind, VERSION, board->bytes};
	struct model_watcher *watcher =
		board->count < WATCHERS_MAX ? calloc(1, sizeof(*watcher)) : NULL;
	int small = 1;

	if (!watcher) {
		close(socket);
		return;
	}
	/* A bell that nobody empties holds a few messages, and rings all the same. */
	setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	watcher->board = board;
	watcher->source.ready = said;
	if (model_meet_send(socket, &welcome, sizeof(welcome), board->fd)) {
		close(socket);
		free(watcher);
		return;
	}
	if (model_source_add(&watcher->source, socket, NULL)) {
		free(watcher);
		return;
	}
	watcher->next = board->watchers;
	watcher->at = &board->watchers;
	if (watcher->next)
		watcher->next->at = &watcher->next;
	board->watchers = watcher;
	board->count++;
}

static int make_memory(struct model_board *board, const char *label, struct tmesh_error *err)
{
	board->fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (board->fd < 0)
		return tmesh_fail_errno(err, "making the memory of a slot or of page tables");
	if (fchmod(board->fd, 0600) || ftruncate(board->fd, (off_t)board->bytes))
		return tmesh_fail_errno(
			err, "setting the size of the memory of a slot or of page tables");
	board->addr = mmap(NULL, board->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, board->fd, 0);
	if (board->addr == MAP_FAILED) {
		board->addr = NULL;
		return tmesh_fail_errno(err, "mapping the memory of a slot or of page tables");
	}
	/* A forked child is no writer. */
	madvise(board->addr, board->bytes, MADV_DONTFORK);
	if (fcntl(board->fd, F_ADD_SEALS, SEALS))
		return tmesh_fail_errno(err, "sealing the memory of a slot or of page tables");
	return 0;
}

static void free_memory(struct model_board *board)
{
	if (board->addr && board->life == model_life())
		munmap(board->addr, board->bytes);
	if (board->fd >= 0)
		close(board->fd);
}

int model_board_create(struct model_board *board, struct tmesh_ctx *ctx, uint32_t kind,
		       const char *label, size_t bytes, struct tmesh_error *err)
{
	int rc;

	*board = (struct model_board){.kind = kind, .bytes = bytes, .fd = -1};
	board->life = model_life();
	board->meet.joined = joined;
	rc = make_memory(board, label, err);
	if (!rc)
		rc = model_meet_open(&board->meet, ctx, label, err);
	if (rc)
		free_memory(board);
	return rc;
}

void model_board_close(struct model_board *board)
{
	/* In a forked child the sockets are closed, and the thread was never its own. */
	if (board->life == model_life()) {
		model_host_lock();
		model_meet_shut(&board->meet);
		while (board->watchers)
			watcher_end(board->watchers);
		model_host_unlock();
		model_meet_close(&board->meet);
	} else {
		while (board->watchers) {
			struct model_watcher *watcher = board->watchers;

			board->watchers = watcher->next;
			unpin(watcher);
			free(watcher);
		}
		tmesh_region_unref(board->meet.card);
		tmesh_ctx_unref(board->meet.home);
	}
	free_memory(board);
}

int model_board_token(struct model_board *board, char *token, struct tmesh_error *err)
{
	return model_meet_token(&board->meet, token, err);
}

void model_board_ring(struct model_board *board)
{
	model_host_lock();
	for (struct model_watcher *watcher = board->watchers; watcher; watcher = watcher->next)
		if (watcher->owed)
			answer(watcher);
		else
			ring(watcher);
	model_host_unlock();
}

/* What was handed over has the length that it says, no writer but its owner, and is this user's. */
static int adopt(struct model_view *view, int fd, const struct welcome *welcome,
		 struct tmesh_error *err)
{
	struct stat stat;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &stat) || stat.st_uid != geteuid() ||
	    welcome->bytes > SIZE_MAX || (uint64_t)stat.st_size != welcome->bytes)
		return tmesh_fail(err, -EPROTO,
				  "the token's owner handed over memory that is not sealed, "
				  "not this user's or not of %llu bytes: take no tokens from it",
				  (unsigned long long)welcome->bytes);
	view->bytes = welcome->bytes;
	view->addr = mmap(NULL, view->bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (view->addr == MAP_FAILED) {
		view->addr = NULL;
		return tmesh_fail_errno(err, "mapping the memory of a slot or of page tables");
	}
	return 0;
}

static int be_welcomed(struct model_view *view, int socket, uint32_t kind, size_t least,
		       struct tmesh_error *err)
{
	struct welcome welcome = {0};
	ssize_t got;
	int fd, rc;

	if (model_meet_wait(socket, POLLIN, tmesh_now_ns() + MODEL_WAIT_NS))
		return tmesh_fail(err, -ETIMEDOUT, "the token's owner does not answer");
	got = model_meet_recv(socket, &welcome, sizeof(welcome), &fd);
	if (got == 0)
		return tmesh_fail(err, -EBUSY,
				  "the token's owner takes nobody in: it has as many as it can "
				  "have, or no descriptor is left");
	if (fd == -EMFILE) {
		errno = EMFILE;
		return tmesh_foreign_fail_errno(err, "taking what the token's owner shares",
						tmesh_giver_at(socket));
	}
	if (got != sizeof(welcome) || fd < 0 || welcome.kind != kind ||
	    welcome.version != VERSION || welcome.bytes < least)
		rc = model_meet_refuse(err);
	else
		rc = adopt(view, fd, &welcome, err);
	if (fd >= 0)
		tmesh_foreign_close(fd, tmesh_giver_at(socket));
	return rc;
}

int model_view_open(struct model_view *view, struct tmesh_ctx *ctx, const char *token,
		    uint32_t kind, size_t least, struct tmesh_error *err)
{
	int socket;
	int rc = model_host_ready(err);

	if (rc)
		return rc;
	*view = (struct model_view){.life = model_life(), .socket.fd = -1};
	rc = model_meet_join(ctx, token, &socket, err);
	if (!rc) {
		rc = be_welcomed(view, socket, kind, least, err);
		if (rc) {
			close(socket);
		} else {
			model_host_lock();
			model_fd_keep(&view->socket, socket);
			model_host_unlock();
		}
	}
	return rc;
}

void model_view_close(struct model_view *view)
{
	munmap((void *)view->addr, view->bytes);
	if (view->life != model_life())
		return;
	model_host_lock();
	model_fd_close(&view->socket);
	model_host_unlock();
}

int model_view_watch(struct model_view *view, struct tmesh_error *err)
{
	const char byte = WATCH;
	int rc = model_check_life(view->life, err);

	if (rc)
		return rc;
	if (!view->watches) {
		rc = model_meet_send(view->socket.fd, &byte, 1, -1);
		/* Of an owner that is gone the descriptor says so. */
		if (rc && rc != -EPIPE && rc != -ECONNRESET)
			return tmesh_fail(
				err, rc,
				"the owner cannot be asked to wake this process (errno %d); "
				"look from time to time, or open the token again",
				-rc);
		view->watches = true;
	}
	return view->socket.fd;
}

/* An owner that does not read leaves no room to say that one is done. What was answered it keeps
 * until it is told: at the latest when this reader looks for something newer. */
void model_view_settle(struct model_view *view)
{
	const char byte = DONE;

	if (view->unsaid)
		view->unsaid = model_meet_send(view->socket.fd, &byte, 1, -1) == -EAGAIN;
}

void model_view_drain(struct model_view *view)
{
	char byte;
	ssize_t got;

	model_view_settle(view);
	do
		got = model_meet_recv(view->socket.fd, &byte, 1, NULL);
	while (got > 0);
	view->gone |= got == 0;
}

bool model_view_is_over(struct model_view *view, int ms)
{
	uint64_t deadline = tmesh_now_ns() + (uint64_t)ms * 1000000;

	model_view_settle(view);
	if (!view->gone && model_meet_wait(view->socket.fd, POLLRDHUP, deadline) == 0)
		view->gone = true;
	return view->gone;
}

void model_view_ask(struct model_view *view)
{
	const struct ask ask = {ASK, ++view->asks};

	/* What is asked next ends what was answered before. */
	view->unsaid = false;
	/* Of an owner that is gone no answer comes either. */
	model_meet_send(view->socket.fd, &ask, sizeof(ask), -1);
}

bool model_view_answer(struct model_view *view, int ms, struct model_answer *answer, int *fd)
{
	bool answered = false;
	struct reply reply;
	ssize_t got;
	int came;

	model_meet_wait(view->socket.fd, POLLIN, tmesh_now_ns() + (uint64_t)ms * 1000000);
	while ((got = model_meet_recv(view->socket.fd, &reply, sizeof(reply), &came)) > 0) {
		if (got == sizeof(reply) && reply.ask.what == ANSWER &&
		    reply.ask.number == view->asks) {
			if (answered && *fd >= 0)
				tmesh_foreign_close(*fd, tmesh_giver_at(view->socket.fd));
			answered = true;
			*answer = reply.answer;
			*fd = came;
		} else if (came >= 0) {
			tmesh_foreign_close(came, tmesh_giver_at(view->socket.fd));
		}
	}
	view->gone |= got == 0;
	return answered;
}

void model_view_done(struct model_view *view)
{
	view->unsaid = true;
	model_view_settle(view);
}
