/* SPDX-License-Identifier: MIT */
/*
 * The connection to a worker process: packets of docs/reference/worker.md, and the process at the
 * other end.
 *
 * The process that connected owns the connection. It receives a message when there is something to
 * read, and its end closes the connection. Nothing here waits, except for a busy look that the
 * caller asks for. An operation that cannot be done now gives eagain. Then {select, socket,
 * undefined, ready_input | ready_output} says when to try again.
 */
#include "nif.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/fd_passing.h"
#include "common/file_size.h"
#include "common/foreign.h"

#define PACKET_BYTES 65536
#define MESSAGE_BYTES (16u << 20)
#define SPIN_MAX_US 100u
#define BODY_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

struct worker_socket {
	pthread_mutex_t lock; /* guards the next members; not held over enif_select(STOP) */
	int fd;		      /* -1: closed */
	int process;	      /* pidfd of the worker; -1: it is not visible here */
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

/* Close the socket. No call selects on the descriptor any more. */
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

/* Return the open socket of a term, locked, or NULL with @err filled. */
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

/* Check that the process at the other end is this user's. Return: 0 or an error. */
static int look_at_peer(int fd, int *process, struct tmesh_error *err)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);
	struct pollfd alive = {.fd = fd};

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length))
		return refuse(err, -errno, "the user of the worker's socket cannot be checked: %m");
	if (peer.uid != geteuid())
		return refuse(err, -EACCES, "a process of user %u listens in the worker's place",
			      peer.uid);
	*process = (int)syscall(SYS_pidfd_open, peer.pid, 0);
	/* If it is alive now, the pidfd is the worker's, not that of a later process with its
	 * number. */
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

	if (!enif_inspect_binary(env, argv[0], &name))
		return make_refusal(env, -EINVAL, "a socket's name is a binary");
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
	ssize_t sent = tmesh_fds_send(fd, data, size, &body, body >= 0, MSG_DONTWAIT);

	if (sent >= 0)
		return 0;
	return refuse(err, (int)sent, "the worker takes no message: %s", strerror((int)-sent));
}

/* Make a sealed memfd with the message. Return: the descriptor, or an error. */
static int make_body(const ErlNifBinary *text, struct tmesh_error *err)
{
	int fd = memfd_create("worker-message", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	size_t done = 0;

	if (fd < 0)
		return refuse(err, -errno, "no memory file for a message: %m");
	while (done < text->size) {
		ssize_t n = tmesh_write(fd, text->data + done, text->size - done);

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

/* Send a message. @body: the descriptor of make_body() for a long message, else -1. */
static int send_message(int fd, const ErlNifBinary *text, int body, struct tmesh_error *err)
{
	char packet[64];

	if (body < 0)
		return send_packet(fd, text->data, text->size, -1, err);
	snprintf(packet, sizeof(packet), "{\"v\":1,\"body\":%zu}", text->size);
	return send_packet(fd, packet, strlen(packet), body, err);
}

static NIF(worker_send_now)
{
	struct worker_socket *sock;
	struct tmesh_error err;
	ErlNifBinary text;
	ERL_NIF_TERM term;
	int body = -1, rc;

	if (!enif_inspect_binary(env, argv[1], &text) || !text.size)
		return make_refusal(env, -EINVAL, "a message is a binary that is not empty");
	if (text.size > MESSAGE_BYTES)
		return make_refusal(env, -EDQUOT, "a message of %zu bytes is longer than %u",
				    text.size, MESSAGE_BYTES);
	/* Copy megabytes without the lock, which other calls take on normal schedulers. */
	if (text.size > PACKET_BYTES) {
		body = make_body(&text, &err);
		if (body < 0)
			return make_error(env, &err);
	}
	sock = get_socket(env, argv[0], &err);
	if (!sock) {
		close_fd(&body);
		return make_error(env, &err);
	}
	rc = send_message(sock->fd, &text, body, &err);
	if (!rc)
		term = atoms.ok;
	else if (rc == -EAGAIN)
		term = again(env, sock, ERL_NIF_SELECT_WRITE);
	else
		term = make_error(env, &err);
	pthread_mutex_unlock(&sock->lock);
	close_fd(&body);
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

/* Return the size in {"v":1,"body":N}, as Python and this file write it; 0 for anything else. */
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
		close(body);
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
	size_t size;
	ssize_t n;
	int body;

	sock = get_socket(env, argv[0], &err);
	if (!sock)
		return make_error(env, &err);
	body = sock->body;
	size = sock->body_bytes;
	sock->body = -1;
	pthread_mutex_unlock(&sock->lock);
	bytes = enif_make_new_binary(env, size, &term);
	n = pread(body, bytes, size, 0);
	close_fd(&body);
	if (n == (ssize_t)size)
		return make_ok(env, term);
	return make_refusal(env, -EPROTO, "a worker's message cannot be read");
}

/* Receive one packet. Return: its length; 0 at the end; or an error. */
static ssize_t receive_packet(int fd, char packet[PACKET_BYTES], int *body, struct tmesh_error *err)
{
	struct tmesh_fds taken = {.fds = body, .room = 1};
	ssize_t n = tmesh_fds_recv(fd, packet, PACKET_BYTES, &taken, MSG_DONTWAIT);

	if (n == -ECONNRESET)
		return 0;
	if (n < 0)
		return refuse(err, (int)n, "a worker's socket: %s", strerror((int)-n));
	if (taken.problem || taken.cut) {
		if (taken.count)
			close(*body);
		*body = -1;
		return refuse(
			err, -EPROTO,
			taken.problem == -EMFILE
				? "a worker's packet has a descriptor for which the VM has no room"
				: "a worker's packet is too long, has too many descriptors, or "
				  "one that is no sealed memfd");
	}
	return n;
}

/* Look until there is something to read, for at most @us. */
static void socket_look(int fd, unsigned int us)
{
	ErlNifTime end = enif_monotonic_time(ERL_NIF_NSEC) + us * 1000;
	struct pollfd readable = {.fd = fd, .events = POLLIN};

	while (!poll(&readable, 1, 0) && enif_monotonic_time(ERL_NIF_NSEC) < end)
		;
}

/* Do as receive_packet(), after a busy look. Stop the emulator's poll meanwhile: a message of the
 * worker would wake a thread of it, which would push this thread off its CPU. */
static ssize_t look_for_packet(ErlNifEnv *env, struct worker_socket *sock, unsigned int us,
			       char packet[PACKET_BYTES], int *body, struct tmesh_error *err)
{
	ssize_t n;

	again(env, sock, ERL_NIF_SELECT_READ | ERL_NIF_SELECT_CANCEL);
	socket_look(sock->fd, us);
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

	if (!enif_get_uint(env, argv[1], &spin_us) || spin_us > SPIN_MAX_US)
		return make_refusal(env, -EINVAL, "a busy look takes 0 to %u us", SPIN_MAX_US);
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

/* worker_kill(socket) -> ok. Ends exactly this process: a pidfd, not a number, names it. */
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

/* Return whether the command line of process @pid has @name. */
static bool was_called_with(int pid, const ErlNifBinary *name)
{
	char path[32], text[16384];
	ssize_t bytes;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/cmdline", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	bytes = read(fd, text, sizeof(text));
	close(fd);
	return bytes > 0 && memmem(text, (size_t)bytes, name->data, name->size);
}

/*
 * worker_kill_unready(pid, name) -> ok. Ends a worker without a socket yet, whose command line has
 * its unique @name: by now the number may be another process's.
 */
NIF(worker_kill_unready)
{
	ErlNifBinary name;
	int pid, process;

	if (!enif_get_int(env, argv[0], &pid) || pid <= 0 ||
	    !enif_inspect_binary(env, argv[1], &name) || !name.size)
		return make_refusal(env, -EINVAL, "a worker has a process's number and a name");
	process = (int)syscall(SYS_pidfd_open, pid, 0);
	if (process >= 0 && was_called_with(pid, &name))
		syscall(SYS_pidfd_send_signal, process, SIGKILL, NULL, 0);
	close_fd(&process);
	return atoms.ok;
}

/* worker_close(socket) -> ok */
NIF(worker_close)
{
	struct worker_socket *sock;

	if (enif_get_resource(env, argv[0], worker_socket_type, (void **)&sock))
		stop(env, sock);
	return atoms.ok;
}
