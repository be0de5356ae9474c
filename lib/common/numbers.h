/* SPDX-License-Identifier: MIT */
/* Numbers have a point in what is read and written, whatever locale a program has set. */
#ifndef TMESH_LIB_COMMON_NUMBERS_H
#define TMESH_LIB_COMMON_NUMBERS_H

#include <locale.h>

/* For the calling thread. Return: for tmesh_numbers_end(), or NULL: no memory. */
static inline locale_t tmesh_numbers_begin(void)
{
	locale_t plain = newlocale(LC_NUMERIC_MASK, "C", NULL);

	return plain ? uselocale(plain) : NULL;
}

/* @before: NULL does nothing. */
static inline void tmesh_numbers_end(locale_t before)
{
	if (before)
		freelocale(uselocale(before));
}

#endif /* TMESH_LIB_COMMON_NUMBERS_H */
