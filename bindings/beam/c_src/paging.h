/* SPDX-License-Identifier: MIT */
/* What page_pool.c and sequence.c share. */
#ifndef TMESH_BEAM_PAGING_H
#define TMESH_BEAM_PAGING_H

#include "nif.h"

#include <tmesh/pages.h>

#define HASH_BYTES (2 * sizeof(uint64_t))

/* sequence.c: {ok, {term, id}} of a sequence of @pages, which the term takes over, also on
 * failure. */
ERL_NIF_TERM make_sequence(ErlNifEnv *env, struct context *context, struct tmesh_pages *pages,
			   struct tmesh_seq *seq);
/* page_pool.c: the caller's reference on the part that a term has, or NULL with @err filled. */
struct tmesh_pages *get_pages(ErlNifEnv *env, ERL_NIF_TERM term, struct context **context,
			      struct tmesh_error *err);
/* Hashes that lie one behind the other in a binary, to be freed by enif_free(); or NULL with @err
 * filled. */
uint64_t (*get_hashes(ErlNifEnv *env, ERL_NIF_TERM term, uint32_t *count,
		      struct tmesh_error *err))[2];

#endif /* TMESH_BEAM_PAGING_H */
