// SPDX-License-Identifier: MIT
/*
 * Holding. Memory lives only while a process holds it. So a verb that makes memory stays, or leaves
 * a process behind that holds it.
 */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "tmeshctl.h"

static bool is_ignored(int number)
{
	struct sigaction action;

	return !sigaction(number, NULL, &action) && action.sa_handler == SIG_IGN;
}

/* Set the signals that end a holder. sigwait receives ignored signals too, so leave those out that
 * nohup ignored, or a shell for a background job. SIGTERM always ends a holder. */
static void end_signals(sigset_t *signals)
{
	static const int from_terminals[] = {SIGINT, SIGHUP};

	sigemptyset(signals);
	sigaddset(signals, SIGTERM);
	for (size_t i = 0; i < sizeof(from_terminals) / sizeof(from_terminals[0]); i++)
		if (!is_ignored(from_terminals[i]))
			sigaddset(signals, from_terminals[i]);
}

/* Wait in the process that the user started, and end with the status of the holder's start. */
_Noreturn static void await_holder(int ready, pid_t holder)
{
	unsigned char status;
	ssize_t got;
	int ended;

	do
		got = read(ready, &status, 1);
	while (got < 0 && errno == EINTR);
	if (got == 1)
		_exit(status);
	/* The holder ended before it held anything, and has reported why. */
	if (waitpid(holder, &ended, 0) == holder && WIFEXITED(ended))
		_exit(WEXITSTATUS(ended) ? WEXITSTATUS(ended) : STATUS_FAILED);
	_exit(STATUS_FAILED);
}

void hold_signals(void)
{
	sigset_t signals;

	end_signals(&signals);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, NULL);
}

void hold_check(const struct verb *verb, const struct hold *hold, bool json)
{
	if (hold->command && hold->background)
		usage_error(verb, "a command is held for as long as it runs: it excludes "
				  "--background");
	if (hold->command && (json || hold->seconds))
		usage_error(verb, "with a command, --json and --for have no meaning");
}

int hold_begin(struct hold *hold)
{
	int ready[2];
	pid_t holder;

	if (!hold->background)
		return STATUS_OK;

	if (pipe2(ready, O_CLOEXEC))
		return complain_errno("a pipe from the background process");
	fflush(NULL);
	holder = fork();
	if (holder < 0)
		return complain_errno("starting a background process");
	if (holder) {
		close(ready[1]);
		await_holder(ready[0], holder);
	}
	close(ready[0]);
	hold->ready = ready[1];
	setsid();
	/* Until it holds memory, the holder dies with its parent. */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	return STATUS_OK;
}

/* Leave the user's terminal, pipes and working directory, which would stay busy. */
static int detach(struct hold *hold)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	unsigned char status = STATUS_OK;

	if (null < 0 || chdir("/"))
		return complain_errno("detaching");
	for (int fd = 0; fd <= 2; fd++)
		dup2(null, fd);
	close(null);
	prctl(PR_SET_PDEATHSIG, 0);
	if (write(hold->ready, &status, 1) != 1)
		return STATUS_FAILED;
	close(hold->ready);
	return STATUS_OK;
}

int run_command(char **command, char *const *variables, int fd)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t signals, none;
	siginfo_t told;
	pid_t pid;
	int status, rc;

	for (; *variables; variables++)
		putenv(*variables);
	sigemptyset(&none);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
	posix_spawn_file_actions_init(&actions);
	/* dup2() of a descriptor onto itself clears close-on-exec in the child alone. */
	if (fd >= 0)
		posix_spawn_file_actions_adddup2(&actions, fd, fd);

	rc = posix_spawnp(&pid, command[0], &actions, &attributes, command, environ);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attributes);
	if (rc) {
		errno = rc;
		return complain_errno(command[0]);
	}
	/* Forward the signals that end a holder to the command, whose end then ends the holder. A
	 * terminal has sent its signal (SI_KERNEL) to the command already. */
	end_signals(&signals);
	sigaddset(&signals, SIGCHLD);
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (sigwaitinfo(&signals, &told) > 0 && told.si_signo != SIGCHLD &&
		    told.si_code != SI_KERNEL)
			kill(pid, told.si_signo);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Return the time left, to the nanosecond: whole seconds would end up to one second early. */
static struct timespec left_until(struct timespec end)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	end.tv_sec -= now.tv_sec;
	end.tv_nsec -= now.tv_nsec;
	if (end.tv_nsec < 0) {
		end.tv_nsec += 1000000000;
		end.tv_sec--;
	}
	return end.tv_sec < 0 ? (struct timespec){0} : end;
}

int hold_until_end(struct hold *hold, char *const *variables)
{
	struct timespec end, left;
	int status, got;
	sigset_t signals;

	if (hold->command)
		return run_command(hold->command, variables, -1);
	status = flush_answer();
	if (!status && hold->background)
		status = detach(hold);
	/* With --hold the ref itself holds the memory, and exit() waits for it. */
	if (status || hold->opened)
		return status;
	end_signals(&signals);
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += (time_t)hold->seconds;
	/* Completions of io_uring can interrupt the wait too. */
	do {
		left = left_until(end);
		got = sigtimedwait(&signals, NULL, hold->seconds ? &left : NULL);
	} while (got < 0 && errno == EINTR);
	return STATUS_OK;
}
