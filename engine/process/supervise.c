// SPDX-License-Identifier: MIT
/*
 * The supervisor listens, so that clients which come while an engine starts can wait. It starts the
 * engine's process, ends it if its work is late, and starts the next one. It runs no engine and has
 * no thread. It waits only in poll(): neither for the engine's start nor for readers of its
 * messages.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/file_size.h"
#include "lateness.h"
#include "process.h"

#define MS_NS UINT64_C(1000000)
/* A start reads the engine's library, which may be large and on a slow disk. */
#define START_NS (60000 * MS_NS)
/* So many processes that die soon after their start, without an answer, are replaced at once. After
 * that each wait is twice as long as the one before. */
#define AT_ONCE 8
#define SOON_NS (1000 * MS_NS)
#define FIRST_WAIT_NS (10 * MS_NS)
#define LONGEST_WAIT_NS (250 * MS_NS)

/* How often and how long it waits for the process's end before its own. */
#define END_TRIES 50
#define END_MS 100

/* The most messages of the engine in a row, because the supervisor has other work too. */
#define MESSAGES 16

enum phase {
	RUNS,
	STARTS, /* a process exists but does not accept connections yet */
	RESTS,	/* no process until own->next */
};

struct supervisor {
	const struct options *options;
	struct place place;
	struct shared shared;
	struct lateness lateness;
	int signals;
	int ready; /* of a starting process, or -1 */
	int wake;  /* of a process, or -1 */
	int broker;
	pid_t pid;
	enum phase phase;
	bool served;	     /* a process has accepted connections once */
	bool late;	     /* the process was ended for being late */
	bool deaf;	     /* a process has shut the listener down */
	uint64_t began;	     /* when the process or the rest began */
	uint64_t next;	     /* when a rest ends */
	unsigned int deaths; /* deaths in quick succession */
	uint64_t calls;	     /* answered before this process began, by the status */
	uint32_t restarts;
	struct ready why;    /* of the last start; status 0: it did not fail */
	struct ready failed; /* sent by the starting process, which then ends */
	bool ends;	     /* a signal asked for that */
};

/* Where messages go. With --with-input a program reads them from the standard output. */
static int words_to = STDERR_FILENO;

/* Print a message. Drop it if the output is a stopped terminal or a full pipe, which must not stop
 * the supervisor. */
__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...)
{
	struct pollfd at = {.fd = words_to, .events = POLLOUT};
	char text[512] = "tmesh-engine: ";
	size_t length = strlen(text);
	va_list list;

	va_start(list, format);
	vsnprintf(text + length, sizeof(text) - length - 1, format, list);
	va_end(list);
	length = strlen(text);
	text[length++] = '\n';
	if (poll(&at, 1, 0) > 0 && (at.revents & POLLOUT) &&
	    tmesh_write(words_to, text, length) < 0)
		errno = 0;
}

/* Clean the text of an engine's process, which terminals and clients will get. */
static void clean(struct ready *words)
{
	words->why[sizeof(words->why) - 1] = '\0';
	for (char *at = words->why; *at; at++)
		if ((unsigned char)*at < ' ' || *at == 0x7f)
			*at = '?';
}

static int complain(const char *what)
{
	tell("%s: %s", what, strerror(errno));
	return 1;
}

static int unconfinable(const char *why)
{
	tell("%s; --unconfined serves the engine as it is", why);
	return EXIT_UNCONFINED;
}

static int watch_signals(struct supervisor *own)
{
	static const int from_terminals[] = {SIGINT, SIGHUP};
	struct sigaction before;
	sigset_t all;

	sigemptyset(&all);
	sigaddset(&all, SIGCHLD);
	sigaddset(&all, SIGTERM);
	/* SIGCONT: the supervisor was stopped, and the engine's process with it. */
	sigaddset(&all, SIGCONT);
	/* signalfd reports ignored signals too. So leave those out that nohup, or a shell for a
	 * background job, has ignored. */
	for (size_t i = 0; i < sizeof(from_terminals) / sizeof(from_terminals[0]); i++)
		if (!sigaction(from_terminals[i], NULL, &before) && before.sa_handler != SIG_IGN)
			sigaddset(&all, from_terminals[i]);
	if (sigprocmask(SIG_BLOCK, &all, NULL))
		return complain("blocking signals");
	signal(SIGPIPE, SIG_IGN);
	/* A program that ignores it passes that on. The kernel then reports no child's end. */
	signal(SIGCHLD, SIG_DFL);
	own->signals = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
	return own->signals < 0 ? complain("a descriptor for signals") : 0;
}

static int share(struct supervisor *own)
{
	struct watch *watch = mmap(NULL, sizeof(*watch), PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (watch == MAP_FAILED)
		return complain("memory that is shared with the engine's process");
	own->shared = (struct shared){.watch = watch,
				      .status = own->place.status,
				      .wake = -1,
				      .broker = -1,
				      .folder = own->place.folder};
	return 0;
}

/* Become the engine's process: drop the supervisor's own descriptors and signals. */
static _Noreturn void become(struct supervisor *own, pid_t parent, int ready, int wake, int broker)
{
	int kept[] = {own->place.listener, own->place.folder, ready, wake, broker};
	sigset_t none;

	/* End with the supervisor, because no one would watch this process. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(0);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* Only the supervisor reacts to a terminal's interrupt. */
	signal(SIGINT, SIG_IGN);
	/* Libraries write to the standard error, which may be a file that cannot grow. */
	signal(SIGXFSZ, SIG_IGN);
	if (shed_terminal() || shed_descriptors(kept, sizeof(kept) / sizeof(*kept)))
		_exit(1);
	own->shared.wake = wake;
	own->shared.broker = broker;
	serve(own->options, own->place.listener, ready, &own->shared);
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Take the messages that woke the supervisor. The engine may send more at any time. */
static void take_wakes(struct supervisor *own)
{
	uint64_t message;
	ssize_t got = 1;

	for (int i = 0; got > 0 && i < MESSAGES; i++)
		got = recv(own->wake, &message, sizeof(message), MSG_DONTWAIT);
	/* The engine has closed its end, and poll() would report that for ever. */
	if (!got || (got < 0 && errno != EAGAIN && errno != EINTR))
		close_fd(&own->wake);
}

/* The supervisor's end and the engine's of what a process has for itself. */
struct ends {
	int ready[2], wake[2], broker[2];
};

static void close_ends(struct ends *ends, int side)
{
	close_fd(&ends->ready[side]);
	close_fd(&ends->wake[side]);
	close_fd(&ends->broker[side]);
}

static int make_ends(struct ends *ends)
{
	const int type = SOCK_SEQPACKET | SOCK_CLOEXEC;
	int rc = 0;

	*ends = (struct ends){{-1, -1}, {-1, -1}, {-1, -1}};
	if (pipe2(ends->ready, O_CLOEXEC | O_NONBLOCK) ||
	    socketpair(AF_UNIX, type | SOCK_NONBLOCK, 0, ends->wake) ||
	    socketpair(AF_UNIX, type, 0, ends->broker))
		rc = -errno;
	if (rc) {
		close_ends(ends, 0);
		close_ends(ends, 1);
	}
	return rc;
}

/* Start a process with its own pipe and sockets. */
static int fork_engine(struct supervisor *own)
{
	pid_t parent = getpid();
	struct ends ends;
	int rc = make_ends(&ends);

	if (rc)
		return rc;
	memset((void *)own->shared.watch, 0, sizeof(*own->shared.watch));
	own->pid = fork();
	if (!own->pid)
		become(own, parent, ends.ready[1], ends.wake[1], ends.broker[1]);
	rc = own->pid < 0 ? -errno : 0;
	close_ends(&ends, 1);
	if (!rc) {
		own->ready = ends.ready[0];
		own->wake = ends.wake[0];
		own->broker = ends.broker[0];
		return 0;
	}
	own->pid = 0;
	close_ends(&ends, 0);
	return rc;
}

/* Rest without a process, longer after more deaths. */
static void rest(struct supervisor *own)
{
	unsigned int more = own->deaths > AT_ONCE ? own->deaths - AT_ONCE - 1 : 0;
	uint64_t wait = more < 10 ? FIRST_WAIT_NS << more : LONGEST_WAIT_NS;

	if (wait > LONGEST_WAIT_NS)
		wait = LONGEST_WAIT_NS;
	own->phase = RESTS;
	own->began = tmesh_now_ns();
	own->next = own->began + (own->deaths > AT_ONCE ? wait : 0);
}

/* Refuse the waiting clients, because no process could be started for them. */
static void refuse_all(const struct supervisor *own)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);
	char message[252];
	int fd;

	snprintf(message, sizeof(message), "the engine cannot be started: %.200s", own->why.why);
	for (int i = 0; i < BACKLOG; i++) {
		fd = accept4(own->place.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0)
			return;
		if (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid == geteuid())
			client_refuse(fd, own->why.code < 0 ? own->why.code : -EIO, message);
		else
			client_refuse(fd, -EACCES, "the engine is another user's");
	}
}

/* Handle a process that could not start or died while it started. Return the exit status; 0: go
 * on. */
static int not_started(struct supervisor *own, const struct ready *why)
{
	close_fd(&own->ready);
	if (why->status == EXIT_UNCONFINED)
		unconfinable(why->why);
	else if (!own->why.status || strcmp(own->why.why, why->why) != 0)
		tell("%s", why->why);
	own->why = *why;
	own->why.status = why->status == EXIT_UNCONFINED ? EXIT_UNCONFINED : 1;
	if (!own->served)
		return own->why.status;
	/* Try again later. New clients wait for the outcome of that. */
	refuse_all(own);
	if (own->deaths < AT_ONCE)
		own->deaths = AT_ONCE;
	own->deaths++;
	rest(own);
	return 0;
}

static int start(struct supervisor *own)
{
	struct ready why = {.status = 1};
	struct tmesh_error err;
	int rc;

	if (own->deaf && place_listen(&own->place, &err)) {
		why.code = -EIO;
		snprintf(why.why, sizeof(why.why), "%.*s", (int)sizeof(why.why) - 1, err.message);
		return not_started(own, &why);
	}
	own->deaf = false;
	place_sweep(&own->place);
	own->late = false;
	own->failed.status = 0;
	own->lateness.stopped = 0;
	own->calls = own->place.status->calls;
	own->began = tmesh_now_ns();
	rc = fork_engine(own);
	if (rc) {
		why.code = rc;
		snprintf(why.why, sizeof(why.why), "starting the engine's process: %s",
			 strerror(-rc));
		return not_started(own, &why);
	}
	own->phase = STARTS;
	return 0;
}

static void hear_ready(struct supervisor *own)
{
	struct ready words;
	ssize_t got = read(own->ready, &words, sizeof(words));

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	close_fd(&own->ready);
	if (got == sizeof(words))
		clean(&words);
	/* bury() handles the process's end. */
	if (got != sizeof(words) || words.status) {
		if (got == sizeof(words))
			own->failed = words;
		if (own->pid > 0)
			kill(own->pid, SIGKILL);
		return;
	}
	own->why.status = 0;
	own->phase = RUNS;
	lateness_begin(&own->lateness, own->began);
	own->place.status->pid = (uint32_t)own->pid;
	own->place.status->magic = ENGINE_STATUS_MAGIC;
	if (own->served)
		return;
	own->served = true;
	tmesh_dprintf(STDOUT_FILENO, "ready %s\n", own->options->name);
	words_to = STDERR_FILENO;
}

static void tell_death(const struct supervisor *own, pid_t pid, int how)
{
	if (own->deaf)
		tell("process %d shut down the socket on which clients connect; a new one starts",
		     pid);
	else if (own->late)
		tell("process %d was ended: a call, or something else, was later than its "
		     "deadline; a new one starts",
		     pid);
	else if (WIFSIGNALED(how))
		tell("process %d died of signal %d; a new one starts", pid, WTERMSIG(how));
	else
		tell("process %d exited with %d; a new one starts", pid, WEXITSTATUS(how));
}

/* Handle the end of the process. Return the exit status; 0: go on. */
static int bury(struct supervisor *own)
{
	struct ready died = {.status = 1, .code = -EIO};
	bool useful = own->place.status->calls != own->calls;
	pid_t pid = own->pid;
	int how;

	if (pid <= 0 || waitpid(pid, &how, WNOHANG) != pid)
		return 0;
	/* From here on the number may belong to another process. */
	own->pid = 0;
	/* It may have sent the reason. */
	if (own->ready >= 0)
		hear_ready(own);
	close_fd(&own->wake);
	close_fd(&own->broker);
	/* The listener is a file that the process shared. */
	fcntl(own->place.listener, F_SETFL, O_RDWR | O_NONBLOCK);
	own->deaf |= place_is_deaf(&own->place);
	if (own->phase == RUNS)
		tell_death(own, pid, how);
	if (own->phase == STARTS) {
		strcpy(died.why, own->late ? "the engine did not start in time"
					   : "the engine died while it started");
		return not_started(own, own->failed.status ? &own->failed : &died);
	}
	own->deaths = useful || tmesh_now_ns() - own->began > SOON_NS ? 0 : own->deaths + 1;
	own->restarts++;
	status_buried(own->place.status, own->restarts);
	rest(own);
	return 0;
}

/* End a process that has shut the listener down. start() makes another listener for the next one.
 */
static void end_deaf(struct supervisor *own)
{
	own->deaf = true;
	if (own->pid > 0)
		kill(own->pid, SIGKILL);
}

static void hear_signals(struct supervisor *own)
{
	struct signalfd_siginfo info;

	while (read(own->signals, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGCONT)
			lateness_continue(&own->lateness, tmesh_now_ns());
		else
			own->ends |= info.ssi_signo != SIGCHLD;
	}
}

/* Check again after a look at signals: perhaps the supervisor itself was stopped. */
static bool is_late(struct supervisor *own, uint64_t now, uint64_t *until)
{
	if (!lateness_check(&own->lateness, own->shared.watch, now, until))
		return false;
	hear_signals(own);
	return lateness_check(&own->lateness, own->shared.watch, now, until);
}

static void end_late(struct supervisor *own)
{
	own->late = true;
	kill(own->pid, SIGKILL);
}

/* Do what is due. Return the ms until the next check. */
static int check_time(struct supervisor *own, int *status)
{
	uint64_t now = tmesh_now_ns(), until;
	uint64_t longest = own->options->limit_ns > START_NS ? own->options->limit_ns : START_NS;

	switch (own->phase) {
	case RUNS:
		if (own->late)
			return -1;
		if (!is_late(own, now, &until))
			break;
		end_late(own);
		return -1;
	case STARTS:
		until = own->began + longest + own->lateness.stopped;
		if (own->late)
			return -1;
		if (now < until)
			break;
		end_late(own);
		return -1;
	default:
		until = own->next;
		if (now < until)
			break;
		*status = start(own);
		return 0;
	}
	if (own->lateness.asks) {
		const uint64_t one = 1;

		own->lateness.asks = false;
		if (own->wake >= 0)
			send(own->wake, &one, sizeof(one), MSG_DONTWAIT | MSG_NOSIGNAL);
	}
	return tmesh_poll_ms(until);
}

/* Return whether the standard input has ended: then the program at its other end is gone. */
static bool input_ended(void)
{
	char text[256];
	ssize_t got = read(STDIN_FILENO, text, sizeof(text));

	return !got || (got < 0 && errno != EINTR && errno != EAGAIN);
}

static int watch_over(struct supervisor *own)
{
	int status = start(own);

	while (!status) {
		struct pollfd fds[] = {
			{.fd = own->signals, .events = POLLIN},
			{.fd = own->options->with_input ? STDIN_FILENO : -1, .events = POLLIN},
			{.fd = own->wake, .events = POLLIN},
			{.fd = own->ready, .events = POLLIN},
			{.fd = own->phase == RUNS ? own->broker : -1, .events = POLLIN},
			{.fd = own->deaf ? -1 : own->place.listener, .events = POLLRDHUP},
		};
		int timeout = check_time(own, &status);

		if (status)
			break;
		lateness_look(&own->lateness, tmesh_now_ns());
		if (poll(fds, sizeof(fds) / sizeof(*fds), timeout) < 0 && errno != EINTR)
			return complain("waiting for the engine's process");
		hear_signals(own);
		if (own->ends || (fds[1].revents && input_ended()))
			return 0;
		if (fds[2].revents)
			take_wakes(own);
		if (fds[3].revents)
			hear_ready(own);
		if (fds[4].revents && !broker_serve(own->broker, own->place.dir))
			close_fd(&own->broker);
		if (fds[5].revents)
			end_deaf(own);
		status = bury(own);
	}
	return status;
}

/* End the process, but wait only so long: the kernel may be unable to end it, for example while it
 * waits for a network file system. */
static void supervisor_end(const struct supervisor *own)
{
	struct pollfd at = {.fd = own->signals, .events = POLLIN};
	struct signalfd_siginfo info;

	kill(own->pid, SIGKILL);
	for (int i = 0; i < END_TRIES && waitpid(own->pid, NULL, WNOHANG) != own->pid; i++) {
		poll(&at, 1, END_MS);
		while (read(own->signals, &info, sizeof(info)) > 0)
			;
	}
}

static uint64_t longest_of(const struct options *options)
{
	uint64_t memory;

	/* A client gives one region after the other, and then the call runs. */
	if (__builtin_mul_overflow(options->patience_ns, serve_regions(options), &memory) ||
	    memory > UINT64_MAX / 4)
		memory = UINT64_MAX / 4;
	return memory + options->limit_ns;
}

int supervise(const struct options *options)
{
	struct supervisor own = {.options = options,
				 .place = PLACE_NONE,
				 .signals = -1,
				 .ready = -1,
				 .wake = -1,
				 .broker = -1};
	struct tmesh_error err;
	int status;

	words_to = options->with_input ? STDOUT_FILENO : STDERR_FILENO;
	own.lateness.longest = longest_of(options);
	status = fill_standard() ? complain("opening /dev/null as a standard descriptor") : 0;
	if (!status && shed_descriptors(NULL, 0))
		status = complain("closing inherited descriptors");
	if (!status && !options->unconfined && access("/proc/self/task", X_OK))
		status = unconfinable("there is no /proc: whether Landlock binds all threads "
				      "cannot be seen");
	if (!options->unconfined)
		shed_environment();
	if (!status && place_claim(&own.place, options->name, &err)) {
		tell("%s", err.message);
		status = 1;
	}
	if (!status)
		status = watch_signals(&own);
	if (!status)
		status = share(&own);
	if (!status)
		status = watch_over(&own);
	if (own.pid > 0)
		supervisor_end(&own);
	place_leave(&own.place);
	return status;
}
