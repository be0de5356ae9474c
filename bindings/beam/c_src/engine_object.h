/* SPDX-License-Identifier: MIT */
/* What the files of engines share. */
#ifndef TMESH_NIF_ENGINE_OBJECT_H
#define TMESH_NIF_ENGINE_OBJECT_H

#include "nif.h"

#include <tmesh/engine.h>

struct engine {
	enum engine_kind {
		CONTEXT,
		GRAPH,
		BINDING,
		CANCELLABLE,
		PLACED,
		PLACED_BINDING,
		PLACES,
		TENSOR,
		COSTS
	} kind;
	void *object;
	struct context *context; /* whose limits apply */
	struct garbage *garbage;
};

/* {ok, term}; takes @object over, also on failure. */
ERL_NIF_TERM make_engine(ErlNifEnv *env, struct context *context, enum engine_kind kind,
			 void *object);
/* False with @err filled: it is none of that kind. */
bool get_engine(ErlNifEnv *env, ERL_NIF_TERM term, enum engine_kind kind, struct engine **engine,
		struct tmesh_error *err);

#define NAME_SIZE 512
#define MAX_VALUES 65536

/* What lists name: {name, handle} or {name, handle, in_place | nil}; for graphs' inputs and outputs
 * a device tensor may stand for the handle. */
struct named {
	char name[NAME_SIZE], in_place[NAME_SIZE];
	struct tmesh_tensor *tensor;	    /* with a reference, or NULL and */
	struct tmesh_engine_tensor *device; /* with a reference */
};
/* Beside tensors. */
enum named_takes {
	TENSORS,
	DEVICES_TOO,
	NIL_TOO
};
/* To be freed by free_named(); NULL with @err filled. */
struct named *get_named(ErlNifEnv *env, ERL_NIF_TERM list, enum named_takes takes,
			unsigned int *count, struct tmesh_error *err);
void free_named(struct named *named, unsigned int count);

#endif /* TMESH_NIF_ENGINE_OBJECT_H */
