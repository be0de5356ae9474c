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
 * An input is a short sequence of calls. A call is a few bytes: its number, one that chooses its
 * file, and one for each argument. Zero always chooses a sensible value, so that most inputs make
 * progress.
 */
#ifndef TMESH_KSELFTEST_FUZZ_H
#define TMESH_KSELFTEST_FUZZ_H

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

/* Calls. Each process has a hand: files and mappings, which it drops between inputs. */
struct fuzz_hand;

int fuzz_ops(void);
const char *fuzz_op_name(int op);

/*
 * Make a hand for this process, after it has changed its user. @root gets devices to import with.
 */
struct fuzz_hand *fuzz_hand(bool root);
/* Run an input. Print each call and its result to @tell unless that is NULL. */
void fuzz_run(struct fuzz_hand *h, const struct fuzz_input *in, FILE *tell);
/* Close and unmap everything in a hand. */
void fuzz_lay_down(struct fuzz_hand *h);
/* Return the number of calls made so far, without those of children. */
unsigned long fuzz_calls(const struct fuzz_hand *h);

/* Mount the file system for the inputs' paths, as root, or take it away. */
void fuzz_mount(void);
void fuzz_unmount(void);

/* Inputs */

/* Parse an input from a line of text. Return false if it is none. */
bool fuzz_parse(struct fuzz_input *in, const char *text);
void fuzz_print(const struct fuzz_input *in, char text[FUZZ_TEXT]);
void fuzz_random_input(struct fuzz_input *in, unsigned int *seed);
void fuzz_drop(struct fuzz_input *in, int at);
/* Mutate an input; calls may be taken from @other. */
void fuzz_mutate(struct fuzz_input *in, const struct fuzz_input *other, unsigned int *seed);

/* Coverage, which all workers of a test share. */
#define FUZZ_PAIRS (1 << 16)

struct fuzz_cover;

/* Set up as root before workers are forked. Return NULL without KCOV. */
struct fuzz_cover *fuzz_cover(void);
/* Record the coverage of this process in the module from now on, without its children. */
void fuzz_cover_attach(struct fuzz_cover *c);
void fuzz_cover_begin(struct fuzz_cover *c);
/* End a run. Return the pairs of places that it was the first to reach. */
int fuzz_cover_end(struct fuzz_cover *c, unsigned short fresh[FUZZ_PAIRS]);
/* Test whether that run reached all of these pairs. */
bool fuzz_cover_has(const struct fuzz_cover *c, const unsigned short *pairs, int count);
/* Forget the pairs that were reached, but not the places. */
void fuzz_cover_forget(struct fuzz_cover *c);
/* Write the places that were reached, as offsets in .text. Return their number. */
int fuzz_cover_save(const struct fuzz_cover *c, FILE *to);

#endif
