/* SPDX-License-Identifier: MIT */
/* Declarations that the files of engines share. */
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
		TENSOR
	} kind;
	void *object;
	struct context *context; /* its limits apply */
	struct garbage *garbage;
};

/* Return {ok, term}. Take @object over, also on failure. */
ERL_NIF_TERM make_engine(ErlNifEnv *env, struct context *context, enum engine_kind kind,
			 void *object);
/* Return false with @err filled if @term is no engine object of that kind. */
bool get_engine(ErlNifEnv *env, ERL_NIF_TERM term, enum engine_kind kind, struct engine **engine,
		struct tmesh_error *err);

#define NAME_SIZE 512
#define MAX_VALUES 65536

/* An item of a list: {name, handle} or {name, handle, in_place | nil}. For inputs and outputs of
 * graphs a device tensor may replace the handle. */
struct named {
	char name[NAME_SIZE], in_place[NAME_SIZE];
	struct tmesh_tensor *tensor;	    /* with a reference, or NULL and */
	struct tmesh_engine_tensor *device; /* with a reference */
};
/* Items other than tensors that a list may hold. */
enum named_takes {
	TENSORS,
	DEVICES_TOO,
	NIL_TOO
};
/* Read a list of items. The caller frees it with free_named(). NULL: @err is filled. */
struct named *get_named(ErlNifEnv *env, ERL_NIF_TERM list, enum named_takes takes,
			unsigned int *count, struct tmesh_error *err);
void free_named(struct named *named, unsigned int count);

#endif /* TMESH_NIF_ENGINE_OBJECT_H */
