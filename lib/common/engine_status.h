/* SPDX-License-Identifier: MIT */
/*
 * The status of tmesh-engine, for tmeshctl top. The supervisor holds a lock (F_SETLK) on the file
 * engine-NAME.lock of the runtime directory as long as it lives, so the kernel names its process.
 * The file has a struct engine_status_place: the number of the supervisor's descriptor of the
 * status. That is a memfd of sealed size with a struct engine_status, which the engine writes. A
 * reader asks no process.
 */
#ifndef TMESH_COMMON_ENGINE_STATUS_H
#define TMESH_COMMON_ENGINE_STATUS_H

#include <stdatomic.h>
#include <stdint.h>

#define ENGINE_STATUS_MAGIC UINT32_C(0x32534554) /* "TES2" */
#define ENGINE_STATUS_PREFIX "engine-"
#define ENGINE_STATUS_SUFFIX ".lock"
#define ENGINE_STATUS_SECONDS 8

struct engine_status_place {
	uint32_t magic;
	uint32_t fd; /* /proc/PID/fd/ of the supervisor has it */
};

struct engine_status {
	_Atomic uint32_t magic; /* written last */
	_Atomic uint32_t pid;	/* of the process that has the engine; 0: it starts */
	char backend[33];
	char version[63];
	uint64_t started_ns; /* CLOCK_MONOTONIC, of the supervisor */
	_Atomic uint32_t restarts;
	_Atomic uint32_t clients;
	_Atomic uint32_t waiting; /* of them, whose next call waits for its turn */
	uint32_t reserved;
	_Atomic uint64_t calls;	       /* that were done */
	_Atomic uint64_t failed_calls; /* that had an error, or ended with their process */
	_Atomic uint64_t steps;	       /* runs of a graph that were done */
	_Atomic uint64_t tokens;       /* that these took in */
	_Atomic uint64_t since_ns;     /* when the call that runs began; 0: none does */
	_Atomic uint64_t deadline_ns;  /* its last moment */
	/* A second of CLOCK_MONOTONIC each: the place is the second modulo their number. */
	struct engine_status_second {
		uint64_t second, steps, tokens;
	} recent[ENGINE_STATUS_SECONDS];
};

#endif /* TMESH_COMMON_ENGINE_STATUS_H */
