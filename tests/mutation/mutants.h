/* SPDX-License-Identifier: GPL-2.0-only */
/* What guards of the module are put behind, in a copy of its sources: one build has every mutant.
 */
#ifndef TMESH_MUTANTS_H
#define TMESH_MUTANTS_H

#include <linux/compiler.h>
#include <linux/types.h>

#define TMESH_MUTANTS 4096

/* The guard that is out now; 0 is none. */
extern unsigned int tmesh_mutant;
/* Guards that were true since somebody asked: only who makes a guard true can miss it. */
extern u8 tmesh_mutants_met[TMESH_MUTANTS];

/* A guard that is out is evaluated, and false. */
#define TMESH_GUARD(number, ...)                                  \
	({                                                        \
		bool met_ = (__VA_ARGS__);                        \
                                                                  \
		if (met_)                                         \
			WRITE_ONCE(tmesh_mutants_met[number], 1); \
		met_ &&READ_ONCE(tmesh_mutant) != (number);       \
	})

#endif
