/* SPDX-License-Identifier: MIT */
/* Races: threads that work on a region while something happens to it. */
#ifndef TMESH_KSELFTEST_RACE_H
#define TMESH_KSELFTEST_RACE_H

#include <pthread.h>

#include "t.h"

#define RACE_BYTES (4 * MB)
#define RACE_THREADS 3
#define RW (PROT_READ | PROT_WRITE)

/* One round's subject, which threads work on until told to stop. */
struct subject {
	int handle, dev, vgem;
	__u8 token[TMESH_TOKEN_BYTES];
	unsigned char *mapping;
	bool stop;
	unsigned int seed;
};

bool stopped(const struct subject *s);
/* A seed for a thread, other than that of all others. */
unsigned int own_seed(struct subject *s);
void start(struct subject *s, void *(*const work[])(void *), pthread_t *threads, int n);
void stop(struct subject *s, pthread_t *threads, int n);
void pause_a_little(unsigned int *seed);

/* Makes mappings of its own, protects and splits them. */
void *map(void *subject);
/* Exports, maps the dma-buf, lets a device have it. */
void *export(void *subject);

#endif
