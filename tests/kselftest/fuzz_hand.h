/* SPDX-License-Identifier: MIT */
/* What a process of the fuzzer has in hand, for the files that make its calls. */
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
/* What is opened while a hand is busy has a number from here on, so it can be closed at once. */
#define FIRST_FILE 32

struct fuzz_hand {
	int dev, null, regions, udmabuf, heap, vgem, pidfd;
	int sw_sync;
	int files[FILES]; /* a ring of what was opened last */
	unsigned int opened;
	unsigned char *arena;
	__u32 gems[GEMS];
	unsigned int imported;
	bool alone; /* a buffer was made that devices must not share */
	__u64 ids[REMEMBERED];
	__u8 tokens[REMEMBERED][TMESH_TOKEN_BYTES];
	unsigned int created, named;
	unsigned char *words;  /* the structure of a call */
	unsigned char *array;  /* what a structure points to */
	unsigned char *locked; /* a page that cannot be written */
	const struct fuzz_input *input;
	int at, last;
	unsigned long calls;
};

/* A number at which mistakes live. */
__u64 fuzz_edge(unsigned char b);
/* A file: what was opened last for 0, else one opened before, the device, or a wrong one. */
int fuzz_file_of(const struct fuzz_hand *h, unsigned char b);
void fuzz_keep_file(struct fuzz_hand *h, int fd);
/* A page in the arena, where all mappings are. */
unsigned char *fuzz_address(struct fuzz_hand *h, unsigned char window, unsigned char page);
void fuzz_release_gems(struct fuzz_hand *h);

/* Calls beside the module's own; run() returns what the call did. */
struct fuzz_system {
	const char *name;
	long (*run)(struct fuzz_hand *h, const struct fuzz_call *c);
};

extern const struct fuzz_system fuzz_system[];
extern const int fuzz_system_ops;

#endif
