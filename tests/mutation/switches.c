// SPDX-License-Identifier: MIT
/*
 * The switches of guards of libtmesh, in each test program and in the keeper.
 *
 * Environment
 *	TMESH_MUTANT	the number of the guard that is out, and "i" where it is inverted
 *	TMESH_MET	a file of TMESH_MUTANTS bytes: the values of guards
 *	TMESH_CASE	the name of the one test to run
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "switches.h"

/* The keeper has no tests. */
#pragma weak cmocka_set_test_filter

static unsigned char nobody_asks[TMESH_MUTANTS];

unsigned int tmesh_mutant;
bool tmesh_mutant_inverted;
unsigned char *tmesh_mutants_met = nobody_asks;

__attribute__((constructor)) static void begin(void)
{
	const char *mutant = getenv("TMESH_MUTANT"), *met = getenv("TMESH_MET");
	const char *only = getenv("TMESH_CASE");
	int fd = met ? open(met, O_RDWR | O_CLOEXEC) : -1;

	if (fd >= 0) {
		void *file = mmap(NULL, TMESH_MUTANTS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		if (file != MAP_FAILED)
			tmesh_mutants_met = file;
		close(fd);
	}
	if (mutant) {
		tmesh_mutant = (unsigned int)atoi(mutant);
		tmesh_mutant_inverted = strchr(mutant, 'i');
	}
	if (only && cmocka_set_test_filter)
		cmocka_set_test_filter(only);
}
