/* SPDX-License-Identifier: MIT */
/*
 * Declarations that the benches in C share. A bench takes its samples itself, all its variants in
 * turn within one loop, and prints every series in the end.
 */
#ifndef TMESH_BENCH_HARNESS_H
#define TMESH_BENCH_HARNESS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>
#include <tmesh/tmesh.h>

#define MIB (1ull << 20)

/* The two ends of a hand-over run on different CPUs, if the machine has two. */
enum {
	CPU_PRODUCER = 0,
	CPU_CONSUMER = 1
};

#define SERIES_MAX 4096

struct series {
	const char *name;
	const char *skipped; /* why there are no samples, NULL if there are */
	size_t n;
	uint64_t ns[SERIES_MAX];
};

uint64_t now_ns(void);
void series_add(struct series *series, uint64_t ns);

/* Print a line of JSON, for readers that do the statistics themselves. */
void series_print(const char *topic, const struct series *series);

/* Rounds before the first that counts: memory is warm from its third use on. */
int warm_up(int rounds);

/* The topics of tmesh-bench: run all ways of one in turn, @rounds times. */
void bench_handover(int rounds);
void bench_channel(int rounds);
void bench_put(int rounds);

/* Let the other end fall asleep and the caches settle before a cold sample. */
void settle(void);

/* Return how many CPUs this process may use. pin_to: stay on one of them, from 0, going round. */
int cpus(void);
void pin_to(int cpu);
/* Make room for @needed descriptors, or die. */
void raise_fd_limit(rlim_t needed);

/* Print why a bench cannot go on, and exit with 1. */
void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...);
/* Check a system call: return @result, or die if it is -1. */
long need(long result, const char *what);
/* Check a library call: die on a negative @result. */
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
/* Send and receive whole messages on a socket; die on failure. recv_message returns false at its
 * end. */
void send_message(int socket, const void *data, size_t bytes);
_Bool recv_message(int socket, void *data, size_t bytes);
/* The same with one descriptor and a byte beside it. */
void send_fd(int socket, int fd);
int recv_fd(int socket);

/* Map @bytes of @fd, read the first byte and compare it with @expected. */
void *map_and_read(int fd, size_t bytes, uint8_t expected);

/* A context on bench_backend, with a pool of @region_pool_bytes. */
extern enum tmesh_backend bench_backend;
struct tmesh_ctx *context(uint64_t region_pool_bytes);

#endif /* TMESH_BENCH_HARNESS_H */
