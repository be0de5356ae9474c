/* SPDX-License-Identifier: MIT */
/* Numbers are read and written with a decimal point, whatever locale a program has set. */
#ifndef TMESH_LIB_COMMON_NUMBERS_H
#define TMESH_LIB_COMMON_NUMBERS_H

#include <locale.h>

/* Use the decimal point in the calling thread. Return the locale for tmesh_numbers_end(); NULL: no
 * memory. */
static inline locale_t tmesh_numbers_begin(void)
{
	locale_t plain = newlocale(LC_NUMERIC_MASK, "C", NULL);

	return plain ? uselocale(plain) : NULL;
}

/* Restore the locale; NULL does nothing. */
static inline void tmesh_numbers_end(locale_t before)
{
	if (before)
		freelocale(uselocale(before));
}

#endif /* TMESH_LIB_COMMON_NUMBERS_H */
