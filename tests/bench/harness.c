// SPDX-License-Identifier: MIT
#include "harness.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void series_add(struct series *series, uint64_t ns)
{
	if (series->n == sizeof(series->ns) / sizeof(series->ns[0]))
		die("%s: too many samples", series->name);
	series->ns[series->n++] = ns;
}

void series_print(const char *topic, const struct series *series)
{
	printf("{\"topic\":\"%s\",\"name\":\"%s\",", topic, series->name);
	if (series->skipped) {
		printf("\"skip\":\"%s\"}\n", series->skipped);
		return;
	}
	printf("\"ns\":[");
	for (size_t i = 0; i < series->n; i++)
		printf("%s%" PRIu64, i ? "," : "", series->ns[i]);
	printf("]}\n");
}

int warm_up(int rounds)
{
	return 3 + rounds / 20;
}

void settle(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
}

/* The CPUs of the beginning: pinning leaves one. */
static const cpu_set_t *allowed(void)
{
	static cpu_set_t set;

	if (!CPU_COUNT(&set))
		need(sched_getaffinity(0, sizeof(set), &set), "sched_getaffinity");
	return &set;
}

int cpus(void)
{
	return CPU_COUNT(allowed());
}

void pin_to(int cpu)
{
	cpu_set_t set;
	int number = 0;

	for (int left = cpu % cpus(); !CPU_ISSET(number, allowed()) || left--; number++)
		;
	CPU_ZERO(&set);
	CPU_SET(number, &set);
	need(sched_setaffinity(0, sizeof(set), &set), "sched_setaffinity");
}

void raise_fd_limit(rlim_t needed)
{
	struct rlimit limit;

	need(getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
	if (limit.rlim_cur >= needed)
		return;
	limit.rlim_cur = needed;
	if (limit.rlim_max < needed)
		limit.rlim_max = needed;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		die("needs %ju descriptors, and the hard limit is lower", (uintmax_t)needed);
}

void die(const char *format, ...)
{
	va_list args;

	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

long need(long result, const char *what)
{
	if (result == -1)
		die("%s: %s", what, strerror(errno));
	return result;
}

void must(int result, const struct tmesh_error *err)
{
	if (result < 0)
		die("%s", err->message);
}

struct process process_start(void (*main)(int socket))
{
	struct process process;
	int ends[2];

	need(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), "socketpair");
	fflush(stdout);
	process.pid = (pid_t)need(fork(), "fork");
	if (process.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		pin_to(CPU_CONSUMER);
		main(ends[1]);
		exit(0);
	}
	close(ends[1]);
	process.socket = ends[0];
	return process;
}

void process_end(struct process *process)
{
	int status;

	close(process->socket);
	need(waitpid(process->pid, &status, 0), "waitpid");
	if (status != 0)
		die("the other process ended with status %#x", (unsigned int)status);
}

int unix_socket(void)
{
	return (int)need(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), "socket");
}

void send_message(int socket, const void *data, size_t bytes)
{
	need(send(socket, data, bytes, MSG_NOSIGNAL), "send");
}

_Bool recv_message(int socket, void *data, size_t bytes)
{
	ssize_t got = need(recv(socket, data, bytes, 0), "recv");

	if (got != 0 && (size_t)got != bytes)
		die("a message of %zd bytes instead of %zu", got, bytes);
	return got != 0;
}

union rights {
	char space[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

void send_fd(int socket, int fd)
{
	char byte = 0;
	struct iovec iov = {&byte, 1};
	union rights rights = {0};
	struct msghdr message = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = rights.space,
		.msg_controllen = sizeof(rights.space),
	};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	need(sendmsg(socket, &message, MSG_NOSIGNAL), "sendmsg");
}

int recv_fd(int socket)
{
	char byte;
	int fd;
	struct iovec iov = {&byte, 1};
	union rights rights;
	struct msghdr message = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = rights.space,
		.msg_controllen = sizeof(rights.space),
	};
	struct cmsghdr *header;

	need(recvmsg(socket, &message, MSG_CMSG_CLOEXEC), "recvmsg");
	header = CMSG_FIRSTHDR(&message);
	if (!header || header->cmsg_type != SCM_RIGHTS)
		die("no descriptor came");
	memcpy(&fd, CMSG_DATA(header), sizeof(fd));
	return fd;
}

void *map_and_read(int fd, size_t bytes, uint8_t expected)
{
	volatile uint8_t *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);

	if (memory == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	if (memory[0] != expected)
		die("read %u instead of %u", memory[0], expected);
	return (void *)memory;
}

enum tmesh_backend bench_backend = TMESH_BACKEND_AUTO;

struct tmesh_ctx *context(uint64_t region_pool_bytes)
{
	struct tmesh_ctx_opts opts = {
		.size = sizeof(opts),
		.backend = bench_backend,
		.region_pool_bytes = region_pool_bytes,
	};
	struct tmesh_error err;
	struct tmesh_ctx *ctx;

	must(tmesh_ctx_open(&opts, &ctx, &err), &err);
	return ctx;
}
