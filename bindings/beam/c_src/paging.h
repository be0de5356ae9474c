/* SPDX-License-Identifier: MIT */
/* Declarations that page_pool.c and sequence.c share. */
#ifndef TMESH_BEAM_PAGING_H
#define TMESH_BEAM_PAGING_H

#include "nif.h"

#include <tmesh/pages.h>

#define HASH_BYTES (2 * sizeof(uint64_t))

/* sequence.c: return {ok, {term, id}} of a sequence of @pages. The term takes @seq over, also on
 * failure. */
ERL_NIF_TERM make_sequence(ErlNifEnv *env, struct context *context, struct tmesh_pages *pages,
			   struct tmesh_seq *seq);
/* page_pool.c: return the caller's reference on the part of a term, or NULL with @err filled. */
struct tmesh_pages *get_pages(ErlNifEnv *env, ERL_NIF_TERM term, struct context **context,
			      struct tmesh_error *err);
/* Read the consecutive hashes in a binary. The caller frees them with enif_free(). NULL: @err is
 * filled. */
uint64_t (*get_hashes(ErlNifEnv *env, ERL_NIF_TERM term, uint32_t *count,
		      struct tmesh_error *err))[2];

#endif /* TMESH_BEAM_PAGING_H */
