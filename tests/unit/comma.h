/* SPDX-License-Identifier: MIT */
/* A locale that writes numbers with a comma, made by localedef(1), since none may be installed. */
#ifndef TMESH_UNIT_COMMA_H
#define TMESH_UNIT_COMMA_H

#include <locale.h>

#include "unit.h"

/* This program speaks it from now on, until comma_end(). */
static inline void comma_begin(void)
{
	char command[1024], folder[512];
	const char *dir = unit_runtime_dir();

	snprintf(folder, sizeof(folder), "%s/locales", dir);
	assert_true(mkdir(folder, 0700) == 0 || errno == EEXIST);
	/* A character map of its own, since there may be none either; of what that lacks it
	 * complains, makes the locale all the same, and says 1. */
	snprintf(
		command, sizeof(command),
		"cd %s && printf '<code_set_name> A\\nCHARMAP\\n<A> /x41 A\\nEND CHARMAP\\n' "
		">characters && "
		"printf 'LC_NUMERIC\\ndecimal_point \",\"\\nthousands_sep \"\"\\n"
		"grouping -1\\nEND LC_NUMERIC\\n' >numbers && "
		"{ localedef -c -f ./characters -i ./numbers ./comma 2>/dev/null; test $? -le 1; }",
		folder);
	assert_int_equal(system(command), 0);
	setenv("LOCPATH", folder, 1);
	assert_non_null(setlocale(LC_NUMERIC, "comma"));
	assert_true(strtod("0,5", NULL) == 0.5);
}

static inline void comma_end(void)
{
	setlocale(LC_NUMERIC, "C");
	unsetenv("LOCPATH");
}

#endif /* TMESH_UNIT_COMMA_H */
