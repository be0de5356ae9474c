/* SPDX-License-Identifier: MIT */
/*
 * The hand of a process of the fuzzer, for the files that make its calls.
 */
#ifndef TMESH_KSELFTEST_FUZZ_HAND_H
#define TMESH_KSELFTEST_FUZZ_HAND_H

#include "fuzz.h"

#define FILES 16
#define WINDOWS 6
#define WINDOW (3 * HUGE)
#define GEMS 4
#define REMEMBERED 4
#define STRUCT_ROOM 4096
#define ARRAY_ROOM (64 * KB)
/* Files opened by an input have numbers from here on, so that one call can close them all. */
#define FIRST_FILE 32

struct fuzz_hand {
	int dev, null, regions, udmabuf, heap, vgem, pidfd;
	int sw_sync;
	int files[FILES]; /* a ring of the files opened last */
	unsigned int opened;
	unsigned char *arena;
	__u32 gems[GEMS];
	unsigned int imported;
	bool alone; /* a buffer was made that devices must not share */
	__u64 ids[REMEMBERED];
	__u8 tokens[REMEMBERED][TMESH_TOKEN_BYTES];
	unsigned int created, named;
	unsigned char *words;  /* the structure of a call */
	unsigned char *array;  /* the target of a structure's pointers */
	unsigned char *locked; /* a page that cannot be written */
	const struct fuzz_input *input;
	int at, last;
	unsigned long calls;
};

/* Choose a number at an edge. */
__u64 fuzz_edge(unsigned char b);
/* Choose a file: the last one opened for 0, else an earlier one, the device, or a wrong one. */
int fuzz_file_of(const struct fuzz_hand *h, unsigned char b);
void fuzz_keep_file(struct fuzz_hand *h, int fd);
/* Return the address of a page in the arena, which has all mappings. */
unsigned char *fuzz_address(struct fuzz_hand *h, unsigned char window, unsigned char page);
void fuzz_release_gems(struct fuzz_hand *h);

/* The calls other than the module's own. @run returns the result of the call. */
struct fuzz_system {
	const char *name;
	long (*run)(struct fuzz_hand *h, const struct fuzz_call *c);
};

extern const struct fuzz_system fuzz_system[];
extern const int fuzz_system_ops;

#endif
