/* SPDX-License-Identifier: MIT */
/*
 * What the C benches share. A bench takes its samples itself, all its variants in turn within
 * one loop, and prints every series as a line of JSON; run.py does the statistics.
 */
#ifndef TMESH_BENCH_HARNESS_H
#define TMESH_BENCH_HARNESS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <tmesh/tmesh.h>

#define MIB (1ull << 20)

/* The two ends of a hand-over stand on different CPUs, where the machine has two. */
enum {
	CPU_PRODUCER = 0,
	CPU_CONSUMER = 1
};

struct series {
	const char *name;
	size_t n;
	uint64_t ns[4096];
};

uint64_t now_ns(void);
void series_add(struct series *series, uint64_t ns);
void series_print(const char *topic, const struct series *series);
void series_skip(const char *topic, const char *name, const char *reason);

/* Let the other end fall asleep and the caches settle before a cold sample. */
void settle(void);

void pin_to(int cpu);
/* Make room for @needed descriptors, or die. */
void raise_fd_limit(rlim_t needed);

/* A bench that cannot go on says why and ends with 1. */
void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...);
/* For system calls: @result as it is, unless it is -1. */
long need(long result, const char *what);
/* For library calls: die on a negative @result. */
void must(int result, const struct tmesh_error *err);

/* Another process, at the other end of a SEQPACKET socket. */
struct process {
	pid_t pid;
	int socket;
};

/* Run @main on CPU_CONSUMER in a new process, which dies with its parent. */
struct process process_start(void (*main)(int socket));
/* Close the socket, by which the process sees the end, and wait for its exit with 0. */
void process_end(struct process *process);

/* A SEQPACKET socket of the Unix domain. */
int unix_socket(void);
/* Whole messages on a socket; they die on failure. recv_message returns false at its end. */
void send_message(int socket, const void *data, size_t bytes);
_Bool recv_message(int socket, void *data, size_t bytes);
/* The same with one descriptor and a byte beside it. */
void send_fd(int socket, int fd);
int recv_fd(int socket);

/* Map @bytes of @fd, read the first byte and compare it with @expected. */
void *map_and_read(int fd, size_t bytes, uint8_t expected);

/* A context on the backend of the environment, with a pool of @pool_bytes. */
struct tmesh_ctx *context(uint64_t pool_bytes);

#endif /* TMESH_BENCH_HARNESS_H */
