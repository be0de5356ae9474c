/* SPDX-License-Identifier: MIT */
/* Declarations that pages.c and sequence.c share. */
#ifndef TMESH_BINDING_PAGING_H
#define TMESH_BINDING_PAGING_H

#include "binding.h"

#include <tmesh/pages.h>

#define HASH_BYTES (2 * sizeof(uint64_t))

struct pages {
	PyObject_HEAD struct tmesh_pages *pages; /* NULL once closed */
};

/* sequence.c: take over @seq, a sequence of @pages */
PyObject *sequence_new(struct state *st, struct tmesh_pages *pages, struct tmesh_seq *seq);

#endif /* TMESH_BINDING_PAGING_H */
