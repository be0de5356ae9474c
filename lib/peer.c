// SPDX-License-Identifier: MIT
/*
 * Peers: the producers whose tokens this context has opened. A link in the runtime directory leads
 * to the producer's index. A token is opened by looking it up there, opening /proc/PID/fd/N and
 * checking the file. If that fails, the producer's server is asked by socket. Its answer brings the
 * index, and the number of its process here, for the next time.
 */
#include "common/foreign.h"
#include "memfd.h"
#include "watch.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PEERS 32
/* A connection may be dropped under us when its server has many; a dead server refuses. */
#define TRIES 8
/* An entry that has changed meanwhile is read again: during a look at its holders, a keeper shows
 * another descriptor and then the first one again. */
#define LOOKS 2

/* Guarded by ctx->lock. */
struct tmesh_peer {
	struct tmesh_peer *next; /* most recently asked first */
	uint8_t name[16];
	int conn;  /* -1: none, or a thread is asking by it */
	pid_t pid; /* of the process at its other end; 0: not known */
	int proc;  /* /proc/PID/fd, -1 until needed */
	int pidfd; /* opened with it, or -1 */
	bool kept; /* ptrace_scope: it gives no duplicates */
	int index; /* descriptor of an index not mapped yet, or -1 */
	uint64_t index_number;
	struct tmesh_index_view view;
};

static void peer_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Return the giver; tokens are this user's: check_peer(). */
static tmesh_giver giver_of(pid_t pid)
{
	return tmesh_giver_of(geteuid(), pid);
}

/* Close a descriptor from the peer's table, which may be of any file by now. */
static void given_close(int *fd, pid_t pid)
{
	if (*fd >= 0)
		tmesh_foreign_close(*fd, giver_of(pid));
	*fd = -1;
}

static void peer_free(struct tmesh_peer *peer)
{
	peer_close(&peer->conn);
	peer_close(&peer->proc);
	peer_close(&peer->pidfd);
	given_close(&peer->index, peer->pid);
	tmesh_index_view_close(&peer->view);
	free(peer);
}

static struct tmesh_peer **peer_find(struct tmesh_ctx *ctx, const uint8_t *name)
{
	struct tmesh_peer **at = &ctx->memfd.peers;

	while (*at && memcmp((*at)->name, name, sizeof((*at)->name)))
		at = &(*at)->next;
	return at;
}

/* Return the peer of that name, or make one. If there are many, the peer that was not asked for
 * longest is dropped. NULL if memory is short: asking works all the same. */
static struct tmesh_peer *peer_get(struct tmesh_ctx *ctx, const uint8_t *name)
{
	struct tmesh_peer **at = peer_find(ctx, name), *peer = *at;

	if (peer) {
		*at = peer->next;
	} else {
		peer = calloc(1, sizeof(*peer));
		if (!peer)
			return NULL;
		memcpy(peer->name, name, sizeof(peer->name));
		peer->conn = peer->proc = peer->pidfd = peer->index = -1;
	}
	peer->next = ctx->memfd.peers;
	ctx->memfd.peers = peer;
	at = &ctx->memfd.peers;
	for (int i = 0; i < PEERS && *at; i++)
		at = &(*at)->next;
	if (*at) {
		peer_free(*at);
		*at = NULL;
	}
	return peer;
}

static void peer_forget(struct tmesh_ctx *ctx, const uint8_t *name)
{
	struct tmesh_peer **at = peer_find(ctx, name);
	struct tmesh_peer *peer = *at;

	if (!peer)
		return;
	*at = peer->next;
	peer_free(peer);
}

void tmesh_peers_drop(struct tmesh_ctx *ctx)
{
	while (ctx->memfd.peers) {
		struct tmesh_peer *peer = ctx->memfd.peers;

		ctx->memfd.peers = peer->next;
		peer_free(peer);
	}
}

/* Return whether the producer has ended, or cannot be observed, by the result of polling its
 * connection and its pidfd. A closed connection proves nothing: a server with many clients closes
 * some. */
static bool peer_gone(struct tmesh_peer *peer, const struct pollfd polled[2])
{
	if (polled[0].revents)
		peer_close(&peer->conn);
	if (peer->pidfd >= 0)
		return polled[1].revents;
	return peer->proc >= 0 ? faccessat(peer->proc, "../stat", F_OK, 0) : peer->conn < 0;
}

void tmesh_peers_sweep(struct tmesh_ctx *ctx)
{
	struct pollfd polls[PEERS][2];
	struct tmesh_peer **at;
	nfds_t count = 0;

	for (struct tmesh_peer *peer = ctx->memfd.peers; peer; peer = peer->next, count++) {
		polls[count][0] = (struct pollfd){.fd = peer->conn};
		polls[count][1] = (struct pollfd){.fd = peer->pidfd, .events = POLLIN};
	}
	if (poll(polls[0], 2 * count, 0) < 0)
		return;
	at = &ctx->memfd.peers;
	for (nfds_t i = 0; i < count; i++) {
		struct tmesh_peer *peer = *at;

		if (peer_gone(peer, polls[i])) {
			*at = peer->next;
			peer_free(peer);
		} else {
			at = &peer->next;
		}
	}
}

/* Opening without waking the producer: by its index, with a check at every step. If anything does
 * not fit, that is no error, and the producer is asked instead. */

static void index_forget(struct tmesh_peer *peer)
{
	tmesh_index_view_close(&peer->view);
	given_close(&peer->index, peer->pid);
	peer->index_number = 0;
}

static void proc_close(struct tmesh_peer *peer)
{
	peer_close(&peer->proc);
	peer_close(&peer->pidfd);
}

/* Open /proc/PID/fd and a pidfd. The process may end, and another one get its number, before the
 * caller has seen that the process behind peer->proc lives. Then both descriptors are of the other.
 */
static bool proc_open(struct tmesh_peer *peer, pid_t pid)
{
	char path[32];

	proc_close(peer);
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	peer->proc = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (peer->proc < 0)
		return false;
	peer->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	peer->kept = false;
	return true;
}

/* Open /proc by the connection: as long as it stands, the process number of its peer is valid. */
static bool proc_by_connection(struct tmesh_ctx *ctx, struct tmesh_peer *peer)
{
	char byte;

	if (peer->proc >= 0)
		return true;
	if (peer->pid <= 0 || peer->conn < 0)
		return false;
	if (proc_open(peer, peer->pid) && recv(peer->conn, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
	    errno == EAGAIN) {
		tmesh_watch_peer(ctx, peer->pidfd);
		return true;
	}
	proc_close(peer);
	return false;
}

static bool index_map(struct tmesh_peer *peer, int fd)
{
	if (tmesh_index_view_open(&peer->view, fd))
		return false;
	if (tmesh_index_view_names(&peer->view, peer->name))
		return true;
	tmesh_index_view_close(&peer->view);
	return false;
}

/* Return whether /proc has the name of an index for the descriptor. */
static bool called_index(int dir, const char *name)
{
	static const char index[] = "/memfd:" TMESH_INDEX_NAME " (deleted)";
	char text[sizeof(index)];
	ssize_t length = readlinkat(dir, name, text, sizeof(text));

	return length == sizeof(index) - 1 && memcmp(text, index, (size_t)length) == 0;
}

/*
 * Open the index of a process. It may be any process, even this one. Opening a device may start it,
 * and closing a file ends this process's locks on it. So the file is opened only after its name in
 * /proc shows an index. The name is checked again once the file can no longer change.
 */
static int index_open(struct tmesh_ctx *ctx, int dir, int index)
{
	char number[TMESH_FD_NAME], path[32];
	struct tmesh_foreign_file file;
	int at, fd = -1;

	tmesh_fd_name(number, index);
	if (!called_index(dir, number))
		return -1;
	at = tmesh_proc_at(dir, index, &file);
	if (at < 0)
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", at);
	if (called_index(AT_FDCWD, path))
		fd = tmesh_reopen(ctx, at, O_RDONLY | O_NONBLOCK, NULL);
	close(at);
	return fd;
}

/* Find the index by the link, without trusting it: if the index there does not have the producer's
 * name, the link led to another process. */
static bool index_by_link(struct tmesh_ctx *ctx, struct tmesh_peer *peer)
{
	char name[33];
	int index, fd = -1;
	pid_t pid;
	bool good;

	tmesh_hex(name, peer->name, sizeof(peer->name));
	if (!tmesh_rundir_follow(ctx, name, &pid, &index))
		return false;
	if (proc_open(peer, pid))
		fd = index_open(ctx, peer->proc, index);
	good = fd >= 0 && index_map(peer, fd);
	given_close(&fd, pid);
	if (!good) {
		proc_close(peer);
		return false;
	}
	peer->index_number = peer->view.head->number;
	tmesh_watch_peer(ctx, peer->pidfd);
	return true;
}

/* Take the index that came with an answer and was not looked at yet. */
static bool index_by_answer(struct tmesh_peer *peer)
{
	bool good = peer->index >= 0 && index_map(peer, peer->index);

	given_close(&peer->index, peer->pid);
	return good;
}

static bool index_ready(struct tmesh_ctx *ctx, struct tmesh_peer *peer)
{
	/* A confined process sees no other's descriptors. */
	if (ctx->connect)
		return false;
	if (peer->view.head && tmesh_index_view_closed(&peer->view))
		index_forget(peer);
	if (peer->view.head || index_by_answer(peer))
		return proc_by_connection(ctx, peer);
	return index_by_link(ctx, peer);
}

static bool is_hit(const struct tmesh_foreign_file *file, const struct tmesh_index_hit *hit)
{
	return tmesh_is_memory(file) && file->dev == hit->dev && file->ino == hit->ino;
}

/* Get a descriptor of the producer's. Duplicate it if that gives just the rights asked for and the
 * system allows it (ptrace_scope). Otherwise open the file anew through /proc. A file that is not
 * the entry's is not opened. */
static int open_fd_of(struct tmesh_ctx *ctx, struct tmesh_peer *peer,
		      const struct tmesh_index_hit *hit, uint32_t rights, int flags)
{
	bool writes = rights != TMESH_READ;
	char number[TMESH_FD_NAME];
	struct tmesh_foreign_file file;
	int at, fd = -1;

	if (writes != hit->read_only && peer->pidfd >= 0 && !peer->kept &&
	    tmesh_foreign_room(giver_of(peer->pid))) {
		tmesh_fd_name(number, hit->fd);
		if (!tmesh_foreign_look(peer->proc, number, &file) || !is_hit(&file, hit))
			return -1;
		fd = (int)syscall(SYS_pidfd_getfd, peer->pidfd, hit->fd, 0);
		/* A token for reading that was given after this one has lowered the descriptor. */
		if (fd >= 0 && (!writes || (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR))
			return fd;
		peer->kept = fd < 0 && (errno == EPERM || errno == ENOSYS);
		given_close(&fd, peer->pid);
	}
	at = tmesh_proc_at(peer->proc, hit->fd, &file);
	if (at >= 0 && is_hit(&file, hit))
		fd = tmesh_reopen(ctx, at, (writes ? O_RDWR : O_RDONLY) | flags, NULL);
	peer_close(&at);
	return fd;
}

/*
 * Open the entry's file. If the entry is still there after the open, it was valid then, because an
 * entry is removed before its descriptor is closed. The comparison of files covers a producer that
 * has executed another program or closed a descriptor that was not its own.
 */
static bool open_hit(struct tmesh_peer *peer, struct tmesh_region *region,
		     struct tmesh_index_hit *hit, uint32_t rights, int flags)
{
	int fd = open_fd_of(region->ctx, peer, hit, rights, flags);

	hit->region.rights = rights;
	if (fd >= 0 && region->ctx->ops->adopt(region, &fd, &hit->region, NULL) == 0 &&
	    region->memfd.dev == hit->dev && region->memfd.ino == hit->ino &&
	    tmesh_index_hit_holds(hit) && !tmesh_index_view_closed(&peer->view))
		return true;
	given_close(&fd, peer->pid);
	region->fd = -1;
	return false;
}

static bool open_without_wake(struct tmesh_peer *peer, struct tmesh_region *region,
			      const uint8_t *secret, uint32_t rights, int flags)
{
	struct tmesh_index_hit hit;

	for (int i = 0; i < LOOKS; i++) {
		if (!index_ready(region->ctx, peer) ||
		    !tmesh_index_view_find(&peer->view, secret, &hit) ||
		    (rights & ~hit.region.rights) || hit.fd < 0 ||
		    (hit.region.kind & TMESH_KIND_OPAQUE))
			return false;
		if (open_hit(peer, region, &hit, rights, flags))
			return true;
		if (tmesh_index_hit_holds(&hit))
			break;
	}
	/* Perhaps it is the wrong process. The answer by socket comes from the right one. */
	proc_close(peer);
	index_forget(peer);
	return false;
}

/* Asking the producer. */

struct answer {
	struct tmesh_wire_reply reply;
	int fds[TMESH_WIRE_FDS]; /* the region's, then the index's if there is one */
	unsigned int own;	 /* as many are the region's */
	int index;
};

static int producer_gone(struct tmesh_error *err)
{
	return tmesh_fail(err, -ENOENT,
			  "no such region: its producer has released it or is gone, or the token "
			  "is another user's; kept memory outlives its process");
}

/* Report that the producer answered, but has released the region: a hold would have helped. */
static int producer_let_go(struct tmesh_error *err)
{
	return tmesh_fail(err, -ENOENT,
			  "no such region: its producer lives and has released it, or the token is "
			  "wrong; a ref that holds (hold) outlives its tensor");
}

/* Report that the producer was not found. It may live, with its socket in another directory. */
static int producer_not_here(const struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	char path[PATH_MAX], *whole;
	int rc = tmesh_rundir_path(ctx, path, sizeof(path), err);

	if (rc)
		return rc;
	whole = realpath(path, NULL);
	rc = tmesh_fail(err, -ENOENT,
			"no such region: its producer has released it, is gone or another user's, "
			"or its runtime directory (TMESH_RUNTIME_DIR, XDG_RUNTIME_DIR) is not "
			"%.100s, where it was looked for",
			whole ? whole : path);
	free(whole);
	return rc;
}

/* Check that the process at the other end has this user. Its PID is 0 in another PID namespace. */
static int check_peer(int conn, pid_t *pid, struct tmesh_error *err)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	if (getsockopt(conn, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		return tmesh_fail_errno(err, "asking which user answers for the token");
	if (peer.uid != geteuid())
		return producer_gone(err);
	*pid = peer.pid;
	return 0;
}

/* Return: 0, or a negative errno of socket() or connect(). */
static int connect_once(struct tmesh_ctx *ctx, const char *name, uint64_t deadline, int *out)
{
	int rc, fd;

	if (ctx->connect)
		return ctx->connect(ctx->connect_data, name, deadline, out);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	rc = tmesh_rundir_connect(ctx, fd, name);
	if (rc)
		close(fd);
	else
		*out = fd;
	return rc;
}

static int connect_to(struct tmesh_ctx *ctx, const char *name, uint64_t deadline, int *out,
		      pid_t *pid, struct tmesh_error *err)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	int fd = -1, rc;

	/* -EAGAIN: more have come than the listener has room for. */
	while ((rc = connect_once(ctx, name, deadline, &fd)) == -EAGAIN &&
	       tmesh_now_ns() < deadline)
		nanosleep(&pause, NULL);
	switch (rc) {
	case 0:
		rc = check_peer(fd, pid, err);
		break;
	case -EAGAIN:
		rc = tmesh_fail(err, -ETIMEDOUT, "the token's producer does not answer");
		break;
	case -ENOENT:
	case -EACCES:
		rc = producer_not_here(ctx, err);
		break;
	case -ECONNREFUSED:
		rc = producer_gone(err);
		break;
	default:
		errno = -rc;
		rc = tmesh_fail_errno(err, "connect to the token's producer");
	}
	if (!rc)
		*out = fd;
	else if (fd >= 0)
		close(fd);
	return rc;
}

static int receive(int conn, pid_t pid, const struct tmesh_wire_request *request, uint64_t deadline,
		   struct answer *answer)
{
	const struct tmesh_wire_reply *reply = &answer->reply;
	int count = tmesh_wire_recv(conn, &answer->reply, sizeof(answer->reply), answer->fds,
				    TMESH_WIRE_FDS, deadline);

	answer->index = -1;
	if (count < 0)
		return count;
	answer->own = reply->status ? 0 : 1 + tmesh_opaque_count(&reply->region);
	if (reply->magic == TMESH_MAGIC_REPLY && reply->version == TMESH_WIRE_VERSION &&
	    (reply->status == 0
		     ? (unsigned int)count == answer->own + (reply->index != request->index)
		     : count == 0 && reply->status < 0 && reply->status > -4096)) {
		if ((unsigned int)count > answer->own)
			answer->index = answer->fds[answer->own];
		return 0;
	}
	for (int i = 0; i < count; i++)
		close(answer->fds[i]);
	return reply->magic == TMESH_MAGIC_REPLY && reply->version != TMESH_WIRE_VERSION
		       ? -EPROTONOSUPPORT
		       : -EPROTO;
}

static int ask_error(int rc, pid_t pid, struct tmesh_error *err)
{
	switch (rc) {
	case -EPIPE:
		return producer_gone(err);
	case -ETIMEDOUT:
		return tmesh_fail(err, rc,
				  "the token's producer does not answer; it may be stopped");
	case -EPROTONOSUPPORT:
		return tmesh_fail(err, -EPROTO,
				  "the token's producer is of another release of tmesh, which "
				  "speaks another protocol: install one release in both");
	case -EPROTO:
		return tmesh_fail(err, rc, "the token's producer gave a malformed answer");
	default:
		errno = -rc;
		return tmesh_foreign_fail_errno(err, "asking the token's producer", giver_of(pid));
	}
}

void tmesh_question_drop(struct tmesh_question *question)
{
	peer_close(&question->conn);
}

/*
 * Ask by @question's connection, which may have been asked by before, or by a new one. On success
 * the connection is good to be kept. -EAGAIN, without a message: the question's time is over before
 * the producer's.
 */
static int peer_ask(struct tmesh_ctx *ctx, const struct tmesh_token_fields *token,
		    struct tmesh_question *question, bool asked,
		    const struct tmesh_wire_request *request, struct answer *answer,
		    struct tmesh_error *err)
{
	uint64_t until =
		question->until < question->deadline ? question->until : question->deadline;
	bool brief = until < question->deadline;
	char name[33];
	int rc = -EPIPE;

	tmesh_hex(name, token->name, sizeof(token->name));
	for (int i = 0; i < TRIES && rc == -EPIPE; i++) {
		if (question->conn < 0) {
			rc = connect_to(ctx, name, until, &question->conn, &question->pid, err);
			if (rc)
				return rc == -ETIMEDOUT && brief ? -EAGAIN : rc;
			asked = false;
		}
		rc = asked ? 0
			   : tmesh_wire_send(question->conn, request, sizeof(*request), NULL, 0,
					     MSG_DONTWAIT);
		asked = true;
		if (!rc)
			rc = receive(question->conn, question->pid, request, until, answer);
		if (rc == -ETIMEDOUT && brief)
			return -EAGAIN;
		if (rc)
			tmesh_question_drop(question);
	}
	return rc ? ask_error(rc, question->pid, err) : 0;
}

/* Keep the answer's parts for later opens. Mapping the index waits until the second one. */
static void learn(struct tmesh_ctx *ctx, const struct tmesh_token_fields *token, pid_t pid,
		  int *conn, struct answer *answer)
{
	struct tmesh_peer *peer = peer_get(ctx, token->name);

	if (!peer)
		return;
	if (peer->conn < 0) {
		peer->conn = *conn;
		*conn = -1;
		tmesh_watch_peer(ctx, peer->conn);
	}
	peer->pid = pid;
	if (answer->index >= 0) {
		index_forget(peer);
		peer->index_number = answer->reply.index;
		/* A confined process has no use for it: index_ready(). */
		if (!ctx->connect) {
			peer->index = answer->index;
			answer->index = -1;
		}
	}
}

static int refusal(int status, uint32_t rights, struct tmesh_error *err)
{
	switch (status) {
	case -ENOENT:
		return producer_let_go(err);
	case -EACCES:
		return tmesh_fail_rights(err, "the token", rights);
	case -EPERM:
		if (rights & TMESH_WRITE)
			return tmesh_fail(
				err, status,
				"open: the region is sealed, and no process can write to it any "
				"more; open it for reading");
		/* fallthrough */
	default:
		errno = -status;
		return tmesh_fail_errno(err, "the token's producer could not serve it");
	}
}

static int open_asking(struct tmesh_region *region, const struct tmesh_token_fields *token,
		       struct tmesh_question *question, bool asked, struct tmesh_error *err)
{
	struct tmesh_ctx *ctx = region->ctx;
	struct tmesh_wire_request request = {
		.magic = TMESH_MAGIC_REQUEST,
		.version = TMESH_WIRE_VERSION,
		.rights = question->rights,
		.index = question->index,
	};
	struct answer answer;
	pid_t pid;
	int rc;

	memcpy(request.secret, question->secret, sizeof(request.secret));
	rc = peer_ask(ctx, token, question, asked, &request, &answer, err);
	if (rc == -ENOENT) {
		pthread_mutex_lock(&ctx->lock);
		peer_forget(ctx, token->name);
		pthread_mutex_unlock(&ctx->lock);
	}
	if (rc)
		return rc;
	pid = question->pid;
	pthread_mutex_lock(&ctx->lock);
	learn(ctx, token, pid, &question->conn, &answer);
	pthread_mutex_unlock(&ctx->lock);
	tmesh_question_drop(question);
	rc = answer.reply.status ? refusal(answer.reply.status, question->rights, err)
				 : ctx->ops->adopt(region, answer.fds, &answer.reply.region, err);
	peer_close(&answer.index);
	return rc;
}

int tmesh_peer_connect(struct tmesh_ctx *ctx, const uint8_t *name, uint64_t deadline, int *out,
		       struct tmesh_error *err)
{
	char text[33];
	pid_t ignored;

	tmesh_hex(text, name, 16);
	return connect_to(ctx, text, deadline, out, &ignored, err);
}

/* Return the peer of that name. It may be about to take a dead peer's place, so ended peers are
 * dropped first if the name is not that of the last question. */
static struct tmesh_peer *peer_asked(struct tmesh_ctx *ctx, const uint8_t *name)
{
	if (ctx->memfd.peers &&
	    memcmp(ctx->memfd.peers->name, name, sizeof(ctx->memfd.peers->name)))
		tmesh_peers_sweep(ctx);
	return peer_get(ctx, name);
}

/* Take a region. The file is this user's, so its time of access may be set. */
bool tmesh_peer_open_region(struct tmesh_region *region, const uint8_t *name, const uint8_t *secret,
			    uint32_t rights)
{
	struct tmesh_ctx *ctx = region->ctx;
	struct tmesh_peer *peer;
	bool found;

	pthread_mutex_lock(&ctx->lock);
	peer = peer_asked(ctx, name);
	found = peer && open_without_wake(peer, region, secret, rights, O_NONBLOCK | O_NOATIME);
	/* Nothing leads there: another's place is not taken for that. */
	if (peer && peer->proc < 0)
		peer_forget(ctx, name);
	pthread_mutex_unlock(&ctx->lock);
	if (found)
		tmesh_count(ctx, COUNT_WITHOUT_WAKE, 1);
	return found;
}

static bool is_asked(const struct tmesh_question *question, const struct tmesh_token_fields *token,
		     uint32_t rights)
{
	return question->conn >= 0 && question->rights == rights &&
	       !memcmp(question->secret, token->secret, sizeof(question->secret));
}

int tmesh_peer_open(struct tmesh_region *region, const struct tmesh_token_fields *token,
		    uint32_t rights, struct tmesh_error *err)
{
	struct tmesh_question once = TMESH_NO_QUESTION;
	struct tmesh_question *question = region->question ? region->question : &once;
	struct tmesh_ctx *ctx = region->ctx;
	bool asked = is_asked(question, token, rights), found = false;
	struct tmesh_peer *peer;

	if (!asked) {
		tmesh_question_drop(question);
		question->rights = rights;
		question->deadline = tmesh_now_ns() + ctx->timeout_ns;
		question->index = 0;
		question->pid = 0;
		memcpy(question->secret, token->secret, sizeof(question->secret));
	}
	pthread_mutex_lock(&ctx->lock);
	peer = peer_asked(ctx, token->name);
	if (peer)
		found = open_without_wake(peer, region, token->secret, rights, O_NONBLOCK);
	if (peer && !found && !asked) {
		question->conn = peer->conn;
		question->pid = peer->pid;
		question->index = peer->index_number;
		peer->conn = -1;
	}
	pthread_mutex_unlock(&ctx->lock);
	if (!found)
		return open_asking(region, token, question, asked, err);
	tmesh_question_drop(question);
	tmesh_count(ctx, COUNT_WITHOUT_WAKE, 1);
	return 0;
}
