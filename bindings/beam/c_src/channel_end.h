/* SPDX-License-Identifier: MIT */
/* One end of a channel, as the files of channels have it. */
#ifndef TMESH_NIF_CHANNEL_END_H
#define TMESH_NIF_CHANNEL_END_H

#include "nif.h"

struct channel_end {
	struct channel_end *next, *previous; /* in the ring of open ends */
	atomic_uint state;
	atomic_uint_fast64_t passed; /* bytes of tensors that may be its user's garbage */
	struct tmesh_channel *channel;
	bool selected; /* the emulator polls its descriptor */
	bool waits;    /* the present user waits after its call */
	bool watched;  /* the present user had a watch before its call */
	_Atomic ERL_NIF_TERM waiter;
	ErlNifEnv *env;	  /* of @ref */
	ERL_NIF_TERM ref; /* a part of the waiter's message; @whole: all of it */
	bool whole;
	uint64_t spin_max;	 /* 0: none */
	uint64_t spin_ns;	 /* the present length of a busy look */
	struct context *context; /* its limits apply */
	struct garbage *garbage;
};

/* The resource of a channel's term. */
struct channel {
	struct channel_end *end;
};

/* Make an end without a channel yet, or NULL with @err filled. */
struct channel_end *channel_end_new(struct context *context, const struct tmesh_channel_opts *opts,
				    struct tmesh_error *err);
/* Make the term of an end, which stays open until it is closed or this process ends. */
ERL_NIF_TERM channel_end_term(ErlNifEnv *env, struct channel_end *end);
/* Return the open end of a term, which the caller puts back, or NULL with @err filled. If another
 * call looks at the end for a moment, wait on a dirty scheduler; on a normal one the error is
 * -EINPROGRESS. */
struct channel_end *channel_end_get(ErlNifEnv *env, ERL_NIF_TERM term, struct tmesh_error *err);
/* Return the result of a NIF that got no end: make the call again on a dirty scheduler if it has to
 * wait, else the error. */
ERL_NIF_TERM channel_end_refused(ErlNifEnv *env, const struct tmesh_error *err, const char *name,
				 ERL_NIF_TERM (*nif)(ErlNifEnv *, int, const ERL_NIF_TERM[]),
				 int argc, const ERL_NIF_TERM argv[]);
void channel_end_put(ErlNifEnv *env, struct channel_end *end);
/* Take an end for a moment if no call works with it. A call that wants it meanwhile waits, and is
 * not refused. */
bool channel_end_look(struct channel_end *end);
void channel_end_looked(ErlNifEnv *env, struct channel_end *end);
bool channel_end_is_closed(const struct channel_end *end);
void channel_end_close(ErlNifEnv *env, struct channel_end *end);

#endif /* TMESH_NIF_CHANNEL_END_H */
