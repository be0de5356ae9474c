// SPDX-License-Identifier: MIT
/* Finding the user's keeper, and starting one. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keeper.h"

#define PROGRAM "tmesh-keeper"
/* A process that lost the race to start a keeper waits until the other's listens. */
#define START_NS UINT64_C(3000000000)
#ifndef LONGEST_START_NS /* shorter in a test */
#define LONGEST_START_NS UINT64_C(30000000000)
#endif

void tmesh_keeper_name(uint64_t dev, uint64_t ino, uint8_t name[16])
{
	memcpy(name, &dev, sizeof(dev));
	memcpy(name + sizeof(dev), &ino, sizeof(ino));
}

void tmesh_keeper_key(const char *kept, uint8_t key[TMESH_SECRET_BYTES])
{
	for (uint64_t half = 0; half < 2; half++) {
		const uint64_t seed[2] = {TMESH_MAGIC_KEEP, half};
		uint64_t sum = tmesh_siphash(seed, kept, strlen(kept));

		memcpy(key + half * sizeof(sum), &sum, sizeof(sum));
	}
}

/* Return: a connection, or a negative errno (-EAGAIN: more have come than it has room for). */
static int try_connect(const struct tmesh_ctx *ctx)
{
	/* As long as the names of producers' sockets, because the same call connects. */
	static const char name[33] = TMESH_KEEPER_SOCKET;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct ucred peer;
	socklen_t size = sizeof(peer);
	int rc;

	if (fd < 0)
		return -errno;
	/* Do not wait: the queue of a keeper that is stopped may be full. */
	rc = tmesh_rundir_connect(ctx, fd, name);
	if (!rc && fcntl(fd, F_SETFL, 0))
		rc = -errno;
	if (!rc && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		rc = -errno;
	if (!rc && peer.uid != ctx->uid)
		rc = -EACCES;
	if (!rc)
		return fd;
	close(fd);
	return rc;
}

/* Look for the program beside @file: in a build folder, or from lib/ or bin/ of an installed tree
 * in its libexec/. */
static bool beside(char *path, size_t size, const char *file)
{
	static const char *const places[] = {"", "/../libexec"};
	const char *slash = strrchr(file, '/');

	for (size_t i = 0; slash && i < sizeof(places) / sizeof(*places); i++) {
		if ((size_t)snprintf(path, size, "%.*s%s/" PROGRAM, (int)(slash - file), file,
				     places[i]) < size &&
		    access(path, X_OK) == 0)
			return true;
	}
	return false;
}

/* Where packages and `make install` put it. */
static const char *const installed[] = {
	TMESH_KEEPER_PATH,
	"/usr/libexec/" PROGRAM,
	"/usr/local/libexec/" PROGRAM,
};

/* Find the program: by the environment, beside this library or program, or in the installed places.
 * Never search PATH: a library starts no program that it finds by chance. */
static const char *find_program(const struct tmesh_ctx *ctx, char *path, size_t size)
{
	char exe[4096];
	Dl_info own;
	ssize_t got;

	if (ctx->keeper)
		return ctx->keeper;
	if (dladdr((void *)find_program, &own) && own.dli_fname && *own.dli_fname == '/' &&
	    beside(path, size, own.dli_fname))
		return path;
	got = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	if (got > 0) {
		exe[got] = '\0';
		if (beside(path, size, exe))
			return path;
	}
	for (size_t i = 0; i < sizeof(installed) / sizeof(installed[0]); i++)
		if (access(installed[i], X_OK) == 0)
			return installed[i];
	return TMESH_KEEPER_PATH;
}

/* The variables that the keeper needs. All others, such as NOTIFY_SOCKET, LD_PRELOAD or secrets,
 * are for this process alone, and the keeper outlives it. */
static const char *const passed_on[] = {
	"TMESH_KEEPER_BYTES", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS",
};
#define PASSED_ON (sizeof(passed_on) / sizeof(passed_on[0]))

static void choose_environment(char *chosen[PASSED_ON + 1])
{
	size_t count = 0;

	for (char **entry = environ; entry && *entry; entry++) {
		size_t length = strcspn(*entry, "=");

		for (size_t i = 0; i < PASSED_ON && count < PASSED_ON; i++)
			if (strlen(passed_on[i]) == length &&
			    !strncmp(*entry, passed_on[i], length))
				chosen[count++] = *entry;
	}
	chosen[count] = NULL;
}

/* Start the program. The child gets no signal that we block or ignore, and only the variables that
 * it needs. It closes our descriptors itself (inherited.c): the call that would do it here needs
 * glibc 2.34. */
static int spawn(const char *program, const char *dir, int words, pid_t *pid)
{
	char *argv[] = {PROGRAM, "--daemon", (char *)dir, NULL}, *chosen[PASSED_ON + 1];
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int rc;

	rc = posix_spawn_file_actions_init(&actions);
	if (rc)
		return rc;
	rc = posix_spawnattr_init(&attr);
	if (rc) {
		posix_spawn_file_actions_destroy(&actions);
		return rc;
	}
	choose_environment(chosen);
	sigemptyset(&none);
	sigfillset(&all);
	rc = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	if (!rc)
		rc = posix_spawn_file_actions_adddup2(&actions, words, 1);
	if (!rc)
		rc = posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
						POSIX_SPAWN_SETSID);
	if (!rc)
		rc = posix_spawn(pid, program, &actions, &attr, argv, chosen);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return rc;
}

/* Wait at most @ms until @fd is readable or at its end. */
static bool is_readable(int fd, int ms)
{
	struct pollfd poller = {.fd = fd, .events = POLLIN};

	return poll(&poller, 1, ms) > 0;
}

/* Read the first line that the program says. */
static void read_words(int fd, char *text, size_t size)
{
	ssize_t got = read(fd, text, size - 1);

	text[got > 0 ? got : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
}

/* Wait for the program's end, and read its words. The pipe may have no end while the program has:
 * a child that another thread forked holds it open. Return: waitpid()'s result; 0: the program
 * has not ended by the deadline, and is killed. */
static pid_t wait_end(pid_t pid, int words, char *text, size_t size, int *status)
{
	uint64_t deadline = tmesh_now_ns() + LONGEST_START_NS;
	bool done = false;
	pid_t ended;

	while ((ended = waitpid(pid, status, WNOHANG)) == 0 && tmesh_now_ns() < deadline) {
		if (done)
			usleep(1000);
		else if ((done = is_readable(words, 1)))
			read_words(words, text, size);
	}
	if (ended == 0) {
		kill(pid, SIGKILL);
		while (waitpid(pid, status, 0) < 0 && errno == EINTR)
			;
	}
	if (!done && is_readable(words, 0))
		read_words(words, text, size);
	return ended;
}

/* Wait until the program ends: its child listens, or the pipe has the reason why not. */
static int wait_for(pid_t pid, int words, const char *program, struct tmesh_error *err)
{
	char text[128] = "";
	int status = 0;
	pid_t ended = wait_end(pid, words, text, sizeof(text), &status);

	if (ended == 0)
		return tmesh_fail(err, -ETIMEDOUT,
				  "the keeper %.80s did not start within %d s: it was killed",
				  program, (int)(LONGEST_START_NS / 1000000000));
	/* If the program has already reaped this child, the socket shows whether the keeper runs.
	 */
	if (ended < 0 || status == 0)
		return 0;
	return tmesh_fail(err, -ENOENT, "the keeper %.80s could not start%s%s", program,
			  *text ? ": " : "", text);
}

static int start(struct tmesh_ctx *ctx, struct tmesh_error *err)
{
	char dir[4096], path[4096];
	const char *program = find_program(ctx, path, sizeof(path));
	int words[2], rc, checked;
	pid_t pid;

	if (*program != '/')
		return tmesh_fail(err, -EINVAL,
				  "cannot start a keeper: TMESH_KEEPER is \"%.100s\"; set it to an "
				  "absolute path",
				  program);
	pthread_mutex_lock(&ctx->lock);
	rc = tmesh_rundir_open(ctx, &checked, err);
	pthread_mutex_unlock(&ctx->lock);
	if (!rc)
		rc = tmesh_rundir_path(ctx, dir, sizeof(dir), err);
	if (rc)
		return rc;
	if (pipe2(words, O_CLOEXEC))
		return tmesh_fail_errno(err, "making a pipe to hear from a new keeper");
	rc = spawn(program, dir, words[1], &pid);
	close(words[1]);
	if (rc)
		rc = tmesh_fail(err, rc == ENOENT ? -ENOENT : -rc,
				"no keeper runs, and %.100s cannot be started (errno %d): install "
				"tmesh-tools (Debian), or run make keeper install-keeper; "
				"TMESH_KEEPER names another place",
				program, rc);
	else
		rc = wait_for(pid, words[0], program, err);
	close(words[0]);
	return rc;
}

/* Return whether a keeper runs, or is between two lives while systemd has its descriptors. */
static bool has_keeper(const struct tmesh_ctx *ctx)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	char dir[4096], path[4096 + sizeof("/" TMESH_KEEPER_LOCK)];
	struct tmesh_error err;
	struct stat st;
	bool held;
	int fd;

	if (tmesh_rundir_path(ctx, dir, sizeof(dir), &err))
		return false;
	snprintf(path, sizeof(path), "%s/" TMESH_KEEPER_LOCK, dir);
	fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return false;
	held = !fstat(fd, &st) && st.st_uid == ctx->uid && !fcntl(fd, F_OFD_GETLK, &lock) &&
	       lock.l_type != F_UNLCK;
	close(fd);
	return held;
}

static int connect_error(const struct tmesh_ctx *ctx, int rc, struct tmesh_error *err)
{
	char dir[4096], path[4096];
	int failed = tmesh_rundir_path(ctx, dir, sizeof(dir), err);

	if (failed)
		return failed;
	switch (rc) {
	case -ENOENT:
	case -ECONNREFUSED:
		return tmesh_fail(err, -ENOENT,
				  "no keeper runs in the runtime directory; this starts one, or "
				  "says why not: %.80s %.80s",
				  find_program(ctx, path, sizeof(path)), dir);
	case -EACCES:
		return tmesh_fail(err, rc,
				  "the keeper in the runtime directory %.64s is not this user's; "
				  "set TMESH_RUNTIME_DIR to a directory of this user's",
				  dir);
	default:
		errno = -rc;
		return tmesh_fail_errno(err, "connecting to the keeper");
	}
}

static int does_not_answer(struct tmesh_error *err)
{
	return tmesh_fail(
		err, -ETIMEDOUT,
		"this user's keeper does not answer; if systemd has stopped it: systemctl "
		"--user start tmesh-keeper");
}

int tmesh_keeper_connect(struct tmesh_ctx *ctx, bool may_start, int *out, struct tmesh_error *err)
{
	uint64_t deadline = tmesh_now_ns() + START_NS;
	bool started = false;

	for (;;) {
		int fd = try_connect(ctx);

		if (fd >= 0) {
			*out = fd;
			return 0;
		}
		if (fd == -EAGAIN) {
			if (tmesh_now_ns() >= deadline)
				return does_not_answer(err);
			usleep(2000);
			continue;
		}
		if ((fd != -ENOENT && fd != -ECONNREFUSED) || (!may_start && !has_keeper(ctx)))
			return connect_error(ctx, fd, err);
		if (tmesh_now_ns() >= deadline)
			return has_keeper(ctx) ? does_not_answer(err) : connect_error(ctx, fd, err);
		if (may_start && !started) {
			int rc = start(ctx, err);

			if (rc)
				return rc;
			/* Tried again at once; then another's may be about to listen. */
			started = true;
			continue;
		}
		usleep(2000);
		/* Perhaps that one was just ending. */
		started = deadline - tmesh_now_ns() > START_NS / 2;
	}
}
