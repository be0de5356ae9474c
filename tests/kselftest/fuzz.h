/* SPDX-License-Identifier: MIT */
/*
 * The parts of the fuzzer.
 *
 *	fuzz_calls.c	the module's calls, and how bytes become their arguments
 *	fuzz_system.c	all other calls
 *	fuzz_input.c	inputs: as text, at random, changed a little
 *	fuzz_cover.c	which code a run of an input reached, by KCOV
 *	fuzz.c		the tests
 *
 * An input is a short sequence of calls, which are bytes: a number that names the call, one
 * that chooses the file it is made on, and one for each argument. Zero always stands for
 * something that makes sense, so most inputs get somewhere.
 */
#ifndef TMESH_KSELFTEST_FUZZ_H
#define TMESH_KSELFTEST_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "t.h"

#define FUZZ_ARGS 14
#define FUZZ_CALLS 24  /* at most, in one input */
#define FUZZ_TEXT 2048 /* more than the longest text of an input */

struct fuzz_call {
	unsigned char op, fd, arg[FUZZ_ARGS];
};

struct fuzz_input {
	int count;
	struct fuzz_call calls[FUZZ_CALLS];
};

/* Calls. A process is a hand that holds files and mappings, and lays them down in between. */
struct fuzz_hand;

int fuzz_ops(void);
const char *fuzz_op_name(int op);

/* A hand for this process, which may have changed its user; @root gets devices to import with. */
struct fuzz_hand *fuzz_hand(bool root);
/* Runs an input, and tells of each call and what it gave if there is somewhere to tell it. */
void fuzz_run(struct fuzz_hand *h, const struct fuzz_input *in, FILE *tell);
/* Closes and unmaps all that was made. */
void fuzz_lay_down(struct fuzz_hand *h);
/* Calls that were made so far, those of children not included. */
unsigned long fuzz_calls(const struct fuzz_hand *h);

/* Inputs */

/* From its text, which ends at a line's end; false if that is none. */
bool fuzz_parse(struct fuzz_input *in, const char *text);
void fuzz_print(const struct fuzz_input *in, char text[FUZZ_TEXT]);
void fuzz_random_input(struct fuzz_input *in, unsigned int *seed);
void fuzz_drop(struct fuzz_input *in, int at);
/* Changes an input; @other is one to take calls from. */
void fuzz_mutate(struct fuzz_input *in, const struct fuzz_input *other, unsigned int *seed);

/* Coverage, which all workers of a test share. */
#define FUZZ_PAIRS (1 << 16)

struct fuzz_cover;

/* Made by root, before workers are forked; NULL where there is no KCOV. */
struct fuzz_cover *fuzz_cover(void);
/* From now on what this process does in the module is recorded; what it forks is not. */
void fuzz_cover_attach(struct fuzz_cover *c);
void fuzz_cover_begin(struct fuzz_cover *c);
/* The pairs of places that the run since the beginning was the first of all to reach. */
int fuzz_cover_end(struct fuzz_cover *c, unsigned short fresh[FUZZ_PAIRS]);
/* Whether that run reached all of these. */
bool fuzz_cover_has(const struct fuzz_cover *c, const unsigned short *pairs, int count);
/* Which pairs were reached is forgotten; which places, is not. */
void fuzz_cover_forget(struct fuzz_cover *c);
/* Writes the places that were reached, as offsets in .text, and returns how many they are. */
int fuzz_cover_save(const struct fuzz_cover *c, FILE *to);

#endif
