// SPDX-License-Identifier: MIT
/*
 * The supervisor: listens, so that clients who come while an engine starts wait and are not
 * refused; starts the engine's process, ends it when a call is late, and starts the next when it
 * has died. It runs no engine and has no thread: nothing of a client's reaches it.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "process.h"

/* How often a process that works is looked at, and how long after its deadline a call may still
 * end. */
#define LOOK_MS 10
#define LATE_NS UINT64_C(10000000)

struct supervisor {
	const struct options *options;
	int dir, lock, listener, signals;
	struct watch *watch;
	struct engine_status *status;
	pid_t pid;
	bool late; /* it was ended for that */
	char socket[sizeof(WIRE_SOCKET) + WIRE_NAME_LEN];
};

/* Why it does not start; with --with-input a program waits for that on the standard output. */
static FILE *words;

static int refuse(const char *why)
{
	fprintf(words, "tmesh-engine: %s\n", why);
	return -1;
}

static int complain(const char *what)
{
	fprintf(words, "tmesh-engine: %s: %s\n", what, strerror(errno));
	return -1;
}

/* The lock is this process's alone: whoever asks about it is told its number. It goes with the
 * process that has it, so one that was taken may be on a file that has just gone. */
static int take_lock(struct supervisor *own, const char *name)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	struct stat st;
	int fd;

	for (;; close(fd)) {
		fd = openat(own->dir, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (fd < 0)
			return complain(name);
		if (fcntl(fd, F_SETLK, &lock) || fstat(fd, &st))
			break;
		if (st.st_nlink) {
			own->lock = fd;
			return 0;
		}
	}
	if (errno != EAGAIN && errno != EACCES)
		return complain(name);
	fprintf(words, "tmesh-engine: an engine is served as \"%s\" already\n", own->options->name);
	return -1;
}

/* The name is this supervisor's as long as it lives: what an older one left there is nobody's. */
static int take_name(struct supervisor *own)
{
	char name[sizeof(own->socket) + sizeof(ENGINE_STATUS_SUFFIX)];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct tmesh_error err;
	struct tmesh_ctx *ctx;
	int rc = tmesh_ctx_open(NULL, &ctx, &err);

	if (!rc) {
		rc = tmesh_ctx_runtime_dir(ctx, &own->dir, &err);
		tmesh_ctx_unref(ctx);
	}
	if (rc)
		return refuse(err.message);
	snprintf(own->socket, sizeof(own->socket), WIRE_SOCKET "%s", own->options->name);
	snprintf(name, sizeof(name), "%s" ENGINE_STATUS_SUFFIX, own->socket);
	rc = take_lock(own, name);
	if (rc)
		return rc;
	if (status_map(own->lock, &own->status))
		return complain(name);
	unlinkat(own->dir, own->socket, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", own->dir,
		 own->socket);
	own->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (own->listener < 0 ||
	    bind(own->listener, (struct sockaddr *)&address, sizeof(address)) ||
	    listen(own->listener, 128))
		return complain("the engine's socket");
	return 0;
}

static int watch_signals(struct supervisor *own)
{
	static const int from_terminals[] = {SIGINT, SIGHUP};
	struct sigaction before;
	sigset_t all;

	sigemptyset(&all);
	sigaddset(&all, SIGCHLD);
	sigaddset(&all, SIGTERM);
	/* A descriptor tells of ignored ones, too: what nohup, or a shell for what it starts in the
	 * background, has ignored ends it no more than it ends the program that has started it. */
	for (size_t i = 0; i < sizeof(from_terminals) / sizeof(from_terminals[0]); i++)
		if (!sigaction(from_terminals[i], NULL, &before) && before.sa_handler != SIG_IGN)
			sigaddset(&all, from_terminals[i]);
	if (sigprocmask(SIG_BLOCK, &all, NULL))
		return complain("blocking signals");
	signal(SIGPIPE, SIG_IGN);
	own->signals = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
	if (own->signals < 0)
		return complain("a descriptor for signals");
	own->watch = mmap(NULL, sizeof(*own->watch), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (own->watch == MAP_FAILED)
		return complain("memory that is shared with the engine's process");
	own->watch->status = own->status;
	own->watch->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return own->watch->bell < 0 ? complain("what the engine wakes its supervisor by") : 0;
}

/* In the engine's process: what is the supervisor's alone goes. */
static _Noreturn void become(struct supervisor *own, pid_t parent, int ready)
{
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	sigset_t none;

	/* With the supervisor it ends, too: nobody would watch it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(0);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* A terminal's interrupt is the supervisor's. */
	signal(SIGINT, SIG_IGN);
	dup2(null, STDIN_FILENO);
	close(null);
	close(own->signals);
	close(own->lock);
	close(own->dir);
	serve(own->options, own->listener, ready, own->watch);
}

/* Return: 0 once it takes connections. */
static int start(struct supervisor *own)
{
	pid_t parent = getpid();
	char why[256];
	ssize_t got;
	int ready[2];

	own->watch->deadline = 0;
	own->late = false;
	if (pipe2(ready, O_CLOEXEC))
		return complain("a pipe from the engine's process");
	own->pid = fork();
	if (own->pid < 0)
		return complain("starting the engine's process");
	if (!own->pid) {
		close(ready[0]);
		become(own, parent, ready[1]);
	}
	close(ready[1]);
	do
		got = read(ready[0], why, sizeof(why) - 1);
	while (got < 0 && errno == EINTR);
	close(ready[0]);
	if (got == 1 && !*why) {
		own->status->pid = (uint32_t)own->pid;
		own->status->magic = ENGINE_STATUS_MAGIC;
		return 0;
	}
	why[got > 0 ? got : 0] = '\0';
	waitpid(own->pid, NULL, 0);
	own->pid = 0;
	return refuse(got > 0 ? why : "the engine died while it started");
}

/* Return: whether it has died; the next one runs then, or @status says why none does. */
static bool bury(struct supervisor *own, int *status)
{
	int how;

	if (waitpid(own->pid, &how, WNOHANG) != own->pid)
		return false;
	if (own->late)
		fprintf(stderr,
			"tmesh-engine: process %d was ended: a call was later than its deadline; a "
			"new one starts\n",
			own->pid);
	else if (WIFSIGNALED(how))
		fprintf(stderr, "tmesh-engine: process %d died of signal %d; a new one starts\n",
			own->pid, WTERMSIG(how));
	else
		fprintf(stderr, "tmesh-engine: process %d exited with %d; a new one starts\n",
			own->pid, WEXITSTATUS(how));
	own->status->pid = 0;
	own->status->restarts++;
	status_buried(own->status);
	*status = start(own) ? 1 : 0;
	return true;
}

/* Return: for how long nothing has to be looked at, in ms. */
static int check_deadline(struct supervisor *own)
{
	uint64_t deadline = atomic_load(&own->watch->deadline);

	if (deadline && !own->late && tmesh_now_ns() >= deadline + LATE_NS) {
		own->late = true;
		kill(own->pid, SIGKILL);
	}
	return LOOK_MS;
}

static bool told_to_end(const struct supervisor *own)
{
	struct signalfd_siginfo info;
	bool end = false;

	while (read(own->signals, &info, sizeof(info)) == sizeof(info))
		end |= info.ssi_signo != SIGCHLD;
	return end;
}

/* Standard input: whoever has the other end is gone when it ends. */
static bool input_ended(void)
{
	char text[256];
	ssize_t got = read(STDIN_FILENO, text, sizeof(text));

	return !got || (got < 0 && errno != EINTR && errno != EAGAIN);
}

static int watch_over(struct supervisor *own)
{
	struct pollfd fds[] = {
		{.fd = own->signals, .events = POLLIN},
		{.fd = own->watch->bell, .events = POLLIN},
		{.fd = own->options->with_input ? STDIN_FILENO : -1, .events = POLLIN},
	};
	int timeout = -1, quiet = 0, status = 0;
	uint64_t rung;

	for (;;) {
		if (poll(fds, 3, timeout) < 0 && errno != EINTR)
			return complain("waiting for the engine's process"), 1;
		if (fds[0].revents && told_to_end(own))
			return 0;
		if (fds[2].revents && input_ended())
			return 0;
		if (bury(own, &status) && status)
			return status;
		/* The bell rings when it wakes; it is looked at until it has long done nothing. */
		if (read(own->watch->bell, &rung, sizeof(rung)) == sizeof(rung) ||
		    atomic_load(&own->watch->deadline))
			quiet = 0;
		else
			quiet++;
		timeout = check_deadline(own);
		if (quiet > 100)
			timeout = -1;
	}
}

/* Nothing stays of it; of one that is killed the next of its name takes what is there. */
static void give_name(struct supervisor *own)
{
	char name[sizeof(own->socket) + sizeof(ENGINE_STATUS_SUFFIX)];

	if (own->lock < 0)
		return;
	snprintf(name, sizeof(name), "%s" ENGINE_STATUS_SUFFIX, own->socket);
	unlinkat(own->dir, own->socket, 0);
	unlinkat(own->dir, name, 0);
}

int supervise(const struct options *options)
{
	struct supervisor own = {.options = options, .dir = -1, .lock = -1};
	int status = 1;

	words = options->with_input ? stdout : stderr;
	if (!take_name(&own) && !watch_signals(&own) && !start(&own)) {
		printf("ready %s\n", options->name);
		fflush(stdout);
		words = stderr;
		status = watch_over(&own);
	}
	if (own.pid > 0) {
		kill(own.pid, SIGKILL);
		waitpid(own.pid, NULL, 0);
	}
	give_name(&own);
	return status;
}
