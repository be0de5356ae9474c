/* SPDX-License-Identifier: MIT */
/* Races: threads that work on a region while something happens to it. */
#ifndef TMESH_KSELFTEST_RACE_H
#define TMESH_KSELFTEST_RACE_H

#include "t.h"

#define RACE_BYTES (4 * MB)
#define RACE_THREADS 3
#define RW (PROT_READ | PROT_WRITE)

/* The subject of a round. Threads work on it until @stop is set. */
struct subject {
	int handle, dev, vgem;
	__u8 token[TMESH_TOKEN_BYTES];
	unsigned char *mapping;
	bool stop;
	unsigned int seed;
};

bool stopped(const struct subject *s);
/* Return a seed that no other thread has. */
unsigned int own_seed(struct subject *s);
void start(struct subject *s, void *(*const work[])(void *), pthread_t *threads, int n);
void stop(struct subject *s, pthread_t *threads, int n);
void pause_a_little(unsigned int *seed);

/* Make mappings, protect and split them. */
void *map(void *subject);
/* Export, map the dma-buf, and let a device use it. */
void *export(void *subject);

#endif
