/* SPDX-License-Identifier: MIT */
/* The switches of libtmesh's guards, in a copy of its sources: one build has every mutant. */
#ifndef TMESH_MUTATION_SWITCHES_H
#define TMESH_MUTATION_SWITCHES_H

#include <stdbool.h>

#define TMESH_MUTANTS 4096

/* The guard that is out now; 0 is none. */
extern unsigned int tmesh_mutant;
/* Whether it is inverted, not taken out. */
extern bool tmesh_mutant_inverted;
/* The values of guards in all processes of a program: bit 0 is false, bit 1 true. */
extern unsigned char *tmesh_mutants_met;

/* A guard that is out is evaluated, and false. */
static inline bool tmesh_guard(unsigned int number, bool met)
{
	unsigned char seen = __atomic_load_n(&tmesh_mutants_met[number], __ATOMIC_RELAXED);

	if (!(seen & (1 << met)))
		__atomic_fetch_or(&tmesh_mutants_met[number], 1 << met, __ATOMIC_RELAXED);
	if (tmesh_mutant == number)
		return tmesh_mutant_inverted && !met;
	return met;
}
#define TMESH_GUARD(number, ...) tmesh_guard(number, (__VA_ARGS__))

#endif
