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

#endif /* TMESH_NIF_ENGINE_OBJECT_H */
