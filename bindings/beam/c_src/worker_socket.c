/* SPDX-License-Identifier: MIT */
/*
 * The connection to a worker process: packets of docs/worker.md, and the process behind it.
 *
 * It belongs to the process that connected: that one is told when there is something to read, and
 * with its end the connection ends. Nothing here waits, but for a busy look that is asked for: what
 * cannot be done now gives eagain, and {select, socket, undefined, ready_input | ready_output} says
 * when to try again.
 */
#include "nif.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/foreign.h"

#define PACKET_BYTES 65536
#define MESSAGE_BYTES (16u << 20)
#define SPIN_MAX_US 100u
#define BODY_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

struct worker_socket {
	pthread_mutex_t lock; /* guards what follows; not held over enif_select(STOP) */
	int fd;		      /* -1: closed */
	int process;	      /* pidfd of the worker; -1: it cannot be seen from here */
	int body;	      /* memfd of a message that is being read; -1: none */
	size_t body_bytes;
};

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void close_all(struct worker_socket *sock)
{
	pthread_mutex_lock(&sock->lock);
	close_fd(&sock->fd);
	close_fd(&sock->process);
	close_fd(&sock->body);
	pthread_mutex_unlock(&sock->lock);
}

void worker_socket_dtor(ErlNifEnv *env, void *object)
{
	struct worker_socket *sock = object;

	close_all(sock);
	pthread_mutex_destroy(&sock->lock);
}

/* Nobody selects on the descriptor any more. */
void worker_socket_stop(ErlNifEnv *env, void *object, ErlNifEvent event, int is_direct_call)
{
	close_all(object);
}

static void stop(ErlNifEnv *env, struct worker_socket *sock)
{
	int fd;

	pthread_mutex_lock(&sock->lock);
	fd = sock->fd;
	pthread_mutex_unlock(&sock->lock);
	if (fd >= 0)
		enif_select(env, fd, ERL_NIF_SELECT_STOP, sock, NULL, atoms.undefined);
}

void worker_socket_down(ErlNifEnv *env, void *object, ErlNifPid *pid, ErlNifMonitor *monitor)
{
	stop(env, object);
}

/* The open socket of a term, locked, or NULL with @err filled. */
static struct worker_socket *get_socket(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_error *err)
{
	struct worker_socket *sock;

	if (!enif_get_resource(env, term, worker_socket_type, (void **)&sock)) {
		refuse(err, -EINVAL, "not the socket of a worker");
		return NULL;
	}
	pthread_mutex_lock(&sock->lock);
	if (sock->fd >= 0)
		return sock;
	pthread_mutex_unlock(&sock->lock);
	refuse(err, -EBADF, "the worker's socket is closed");
	return NULL;
}

static int connect_to(const ErlNifBinary *name, struct tmesh_error *err)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name->size);
	int fd;

	if (!name->size || name->size >= sizeof(addr.sun_path))
		return refuse(err, -EINVAL, "a socket's name has 1 to %zu bytes",
			      sizeof(addr.sun_path) - 1);
	memcpy(addr.sun_path + 1, name->data, name->size);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return refuse(err, -errno, "no socket for a worker: %m");
	if (!connect(fd, (struct sockaddr *)&addr, length))
		return fd;
	refuse(err, -errno, "the worker cannot be connected to: %m");
	close(fd);
	return err->code;
}

/* The process at the other end, which must be this user's. Return: 0 or an error. */
static int look_at_peer(int fd, int *process, struct tmesh_error *err)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);
	struct pollfd alive = {.fd = fd};

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length))
		return refuse(err, -errno, "nobody knows who listens for a worker: %m");
	if (peer.uid != geteuid())
		return refuse(err, -EACCES, "a process of user %u listens in the worker's place",
			      peer.uid);
	*process = (int)syscall(SYS_pidfd_open, peer.pid, 0);
	/* Alive after that, it is the worker's and not a later process's of the same number. */
	if (poll(&alive, 1, 0) < 0 || alive.revents & (POLLHUP | POLLERR)) {
		close_fd(process);
		return refuse(err, -EPIPE, "the worker has ended");
	}
	return 0;
}

/* worker_connect(name) -> {ok, socket}, to a name in the abstract namespace */
NIF(worker_connect)
{
	struct worker_socket *sock;
	struct tmesh_error err;
	ErlNifBinary name;
	ErlNifPid self;
	ERL_NIF_TERM term;
	int process = -1;
	int fd;

	if (!enif_inspect_binary(env, argv[0], &name)) {
		refuse(&err, -EINVAL, "a socket's name is a binary");
		return make_error(env, &err);
	}
	fd = connect_to(&name, &err);
	if (fd < 0)
		return make_error(env, &err);
	if (look_at_peer(fd, &process, &err)) {
		close(fd);
		return make_error(env, &err);
	}
	sock = enif_alloc_resource(worker_socket_type, sizeof(*sock));
	*sock = (struct worker_socket){.fd = fd, .process = process, .body = -1};
	pthread_mutex_init(&sock->lock, NULL);
	enif_self(env, &self);
	enif_monitor_process(env, sock, &self, NULL);
	term = make_ok(env, enif_make_resource(env, sock));
	enif_release_resource(sock);
	return term;
}

static ERL_NIF_TERM again(ErlNifEnv *env, struct worker_socket *sock, enum ErlNifSelectFlags flags)
{
	enif_select(env, sock->fd, flags, sock, NULL, atoms.undefined);
	return atoms.eagain;
}

/* Send one packet, with @body unless it is -1. */
static int send_packet(int fd, const void *data, size_t size, int body, struct tmesh_error *err)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec iov = {.iov_base = (void *)data, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (body >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &body, sizeof(int));
	}
	if (sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
		return 0;
	return refuse(err, -errno, "the worker takes no message: %m");
}

/* A sealed memfd with the message. Return: the descriptor, or an error. */
static int make_body(const ErlNifBinary *text, struct tmesh_error *err)
{
	int fd = memfd_create("worker-message", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	size_t done = 0;

	if (fd < 0)
		return refuse(err, -errno, "no memory file for a message: %m");
	while (done < text->size) {
		ssize_t n = write(fd, text->data + done, text->size - done);

		if (n < 0 && errno != EINTR)
			goto fail;
		done += n > 0 ? (size_t)n : 0;
	}
	if (!fcntl(fd, F_ADD_SEALS, BODY_SEALS))
		return fd;
fail:
	refuse(err, -errno, "no memory file for a message: %m");
	close(fd);
	return err->code;
}

static int send_message(int fd, const ErlNifBinary *text, struct tmesh_error *err)
{
	char packet[64];
	int body, rc;

	if (text->size <= PACKET_BYTES)
		return send_packet(fd, text->data, text->size, -1, err);
	body = make_body(text, err);
	if (body < 0)
		return body;
	snprintf(packet, sizeof(packet), "{\"v\":1,\"body\":%zu}", text->size);
	rc = send_packet(fd, packet, strlen(packet), body, err);
	close(body);
	return rc;
}

static NIF(worker_send_now)
{
	struct worker_socket *sock;
	struct tmesh_error err;
	ErlNifBinary text;
	ERL_NIF_TERM term;
	int rc;

	if (!enif_inspect_binary(env, argv[1], &text) || !text.size) {
		refuse(&err, -EINVAL, "a message is a binary that is not empty");
		return make_error(env, &err);
	}
	if (text.size > MESSAGE_BYTES) {
		refuse(&err, -EDQUOT, "a message of %zu bytes is longer than %u", text.size,
		       MESSAGE_BYTES);
		return make_error(env, &err);
	}
	sock = get_socket(env, argv[0], &err);
	if (!sock)
		return make_error(env, &err);
	rc = send_message(sock->fd, &text, &err);
	if (!rc)
		term = atoms.ok;
	else if (rc == -EAGAIN)
		term = again(env, sock, ERL_NIF_SELECT_WRITE);
	else
		term = make_error(env, &err);
	pthread_mutex_unlock(&sock->lock);
	return term;
}

/* worker_send(socket, text) -> ok | eagain */
NIF(worker_send)
{
	ErlNifBinary text;

	if (enif_inspect_binary(env, argv[1], &text) && text.size > PACKET_BYTES)
		return enif_schedule_nif(env, "worker_send", ERL_NIF_DIRTY_JOB_IO_BOUND,
					 worker_send_now, argc, argv);
	return worker_send_now(env, argc, argv);
}

/* The size in {"v":1,"body":N}, as Python and this file write it; 0 for anything else. */
static size_t body_size(const char *packet, size_t size)
{
	unsigned int bytes;
	char text[64];
	int end = 0;

	if (size >= sizeof(text))
		return 0;
	memcpy(text, packet, size);
	text[size] = 0;
	if (sscanf(text, "{\"v\":1,\"body\":%9u}%n", &bytes, &end) != 1 || (size_t)end != size ||
	    bytes > MESSAGE_BYTES)
		return 0;
	return bytes;
}

/* Keep a message's file for read_body(). Only a memfd has seals, so reading it cannot hang. */
static int keep_body(struct worker_socket *sock, int body, const char *packet, size_t size,
		     struct tmesh_error *err)
{
	size_t bytes = body_size(packet, size);
	int seals = fcntl(body, F_GET_SEALS);
	struct stat st;

	if (!bytes || seals < 0 || (seals & BODY_SEALS) != BODY_SEALS || fstat(body, &st) ||
	    (uint64_t)st.st_size != bytes) {
		tmesh_foreign_close(body, tmesh_giver_at(sock->fd));
		return refuse(err, -EPROTO,
			      "a worker's message comes with a descriptor that is no "
			      "sealed memfd of the size it names");
	}
	close_fd(&sock->body);
	sock->body = body;
	sock->body_bytes = bytes;
	return 0;
}

static NIF(read_body)
{
	struct worker_socket *sock;
	struct tmesh_error err;
	unsigned char *bytes;
	ERL_NIF_TERM term;
	ssize_t n;

	sock = get_socket(env, argv[0], &err);
	if (!sock)
		return make_error(env, &err);
	bytes = enif_make_new_binary(env, sock->body_bytes, &term);
	n = pread(sock->body, bytes, sock->body_bytes, 0);
	if (n == (ssize_t)sock->body_bytes)
		term = make_ok(env, term);
	else {
		refuse(&err, -EPROTO, "a worker's message cannot be read");
		term = make_error(env, &err);
	}
	close_fd(&sock->body);
	pthread_mutex_unlock(&sock->lock);
	return term;
}

/* Take descriptors out of a message: at most one is the caller's, others are closed.
 * Return: how many came. */
static int take_files(int sock, struct msghdr *msg, int *file)
{
	int count = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t bytes = c->cmsg_len - CMSG_LEN(0);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < bytes / sizeof(int); i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (count++)
				tmesh_foreign_close(fd, tmesh_giver_at(sock));
			else
				*file = fd;
		}
	}
	return count;
}

/* One packet. Return: its length; 0 at the end; or an error. */
static ssize_t receive_packet(int fd, char packet[PACKET_BYTES], int *body, struct tmesh_error *err)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {.iov_base = packet, .iov_len = PACKET_BYTES};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &control,
			     .msg_controllen = tmesh_foreign_room_at(fd) ? sizeof(control) : 0};
	ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	int count;

	if (n < 0)
		return errno == ECONNRESET ? 0 : refuse(err, -errno, "a worker's socket: %m");
	count = take_files(fd, &msg, body);
	if (count > 1 || msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		if (count)
			tmesh_foreign_close(*body, tmesh_giver_at(fd));
		*body = -1;
		return refuse(err, -EPROTO,
			      "a worker's packet is too long or has too many descriptors");
	}
	return n;
}

/* Look until there is something to read, for at most @us. */
static void look(int fd, unsigned int us)
{
	ErlNifTime end = enif_monotonic_time(ERL_NIF_NSEC) + us * 1000;
	struct pollfd readable = {.fd = fd, .events = POLLIN};

	while (!poll(&readable, 1, 0) && enif_monotonic_time(ERL_NIF_NSEC) < end)
		;
}

/* As receive_packet(), after a busy look. The emulator is not to look meanwhile: the worker would
 * wake a thread of it, which would drive this one off its CPU. */
static ssize_t look_for_packet(ErlNifEnv *env, struct worker_socket *sock, unsigned int us,
			       char packet[PACKET_BYTES], int *body, struct tmesh_error *err)
{
	ssize_t n;

	again(env, sock, ERL_NIF_SELECT_READ | ERL_NIF_SELECT_CANCEL);
	look(sock->fd, us);
	n = receive_packet(sock->fd, packet, body, err);
	again(env, sock, ERL_NIF_SELECT_READ);
	return n;
}

/* worker_recv(socket, spin_us) -> {ok, text} | eagain | closed */
NIF(worker_recv)
{
	struct worker_socket *sock;
	struct tmesh_error err;
	char packet[PACKET_BYTES];
	unsigned int spin_us;
	ERL_NIF_TERM term;
	int body = -1;
	ssize_t n;

	if (!enif_get_uint(env, argv[1], &spin_us) || spin_us > SPIN_MAX_US) {
		refuse(&err, -EINVAL, "a busy look takes 0 to %u us", SPIN_MAX_US);
		return make_error(env, &err);
	}
	sock = get_socket(env, argv[0], &err);
	if (!sock)
		return make_error(env, &err);
	if (spin_us)
		n = look_for_packet(env, sock, spin_us, packet, &body, &err);
	else
		n = receive_packet(sock->fd, packet, &body, &err);
	if (n == -EAGAIN || n == -EINTR)
		term = again(env, sock, ERL_NIF_SELECT_READ);
	else if (n < 0 || (body >= 0 && keep_body(sock, body, packet, (size_t)n, &err)))
		term = make_error(env, &err);
	else if (body >= 0)
		term = enif_schedule_nif(env, "worker_recv", ERL_NIF_DIRTY_JOB_IO_BOUND, read_body,
					 argc, argv);
	else if (!n)
		term = enif_make_atom(env, "closed");
	else {
		memcpy(enif_make_new_binary(env, (size_t)n, &term), packet, (size_t)n);
		term = make_ok(env, term);
	}
	pthread_mutex_unlock(&sock->lock);
	return term;
}

/* worker_kill(socket) -> ok. Ends the process, and only that: its number is not looked at. */
NIF(worker_kill)
{
	struct worker_socket *sock;
	struct tmesh_error err;
	ERL_NIF_TERM term;

	sock = get_socket(env, argv[0], &err);
	if (!sock)
		return make_error(env, &err);
	if (!syscall(SYS_pidfd_send_signal, sock->process, SIGKILL, NULL, 0) || errno == ESRCH)
		term = atoms.ok;
	else {
		refuse(&err, -errno, "the worker cannot be killed: %m");
		term = make_error(env, &err);
	}
	pthread_mutex_unlock(&sock->lock);
	return term;
}

/* worker_close(socket) -> ok */
NIF(worker_close)
{
	struct worker_socket *sock;

	if (enif_get_resource(env, argv[0], worker_socket_type, (void **)&sock))
		stop(env, sock);
	return atoms.ok;
}
