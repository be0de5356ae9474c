/* SPDX-License-Identifier: GPL-2.0-only */
/* The switches of the module's guards, in a copy of its sources: one build has every mutant. */
#ifndef TMESH_MUTANTS_H
#define TMESH_MUTANTS_H

#include <linux/bits.h>
#include <linux/compiler.h>
#include <linux/types.h>

#define TMESH_MUTANTS 4096

/* The guard that is out now; 0 is none. */
extern unsigned int tmesh_mutant;
/* Whether it is inverted, not taken out. */
extern bool tmesh_mutant_inverted;
/* The values of guards since the last reset: bit 0 is false, bit 1 true. Only a case that makes a
 * guard true can miss it; only a case that evaluates it can see it inverted. */
extern u8 tmesh_mutants_met[TMESH_MUTANTS];

/* A guard that is out is evaluated, and false. */
#define TMESH_GUARD(number, ...)                                             \
	({                                                                   \
		bool met_ = (__VA_ARGS__);                                   \
		u8 *seen_ = &tmesh_mutants_met[number];                      \
                                                                             \
		if (!(READ_ONCE(*seen_) & BIT(met_)))                        \
			WRITE_ONCE(*seen_, READ_ONCE(*seen_) | BIT(met_));   \
		if (READ_ONCE(tmesh_mutant) == (number))                     \
			met_ = READ_ONCE(tmesh_mutant_inverted) ? !met_ : 0; \
		met_;                                                        \
	})

#endif
