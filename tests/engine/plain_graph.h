/* SPDX-License-Identifier: MIT */
/* A graph of the engine "fake" (fake_engine.c), y = x + b, with its device tensors. */
#ifndef TMESH_TEST_PLAIN_GRAPH_H
#define TMESH_TEST_PLAIN_GRAPH_H

#include "fixture.h"

static char folder[] = "/tmp/tmesh-engine-XXXXXX";

static const char *file(const char *name, const char *text)
{
	static char path[96];
	FILE *out;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	out = fopen(path, "w");
	assert_non_null(out);
	fputs(text, out);
	fclose(out);
	return path;
}

static inline struct tmesh_engine_stats stats(struct fixture *fix)
{
	struct tmesh_engine_stats out = {.size = sizeof(out)};

	assert_ok(tmesh_engine_stats(fix->context, &out, err));
	return out;
}

static inline int setup(void **state)
{
	struct fixture *fix = calloc(1, sizeof(*fix));

	assert_ok(tmesh_ctx_open(NULL, &fix->ctx, err));
	assert_ok(tmesh_engine_context_create(fix->ctx, "fake", NULL, &fix->context, err));
	assert_ok(tmesh_engine_graph_open(fix->context, file("graph", "plain"), NULL, &fix->graph,
					  err));
	fill_tensors(fix);
	*state = fix;
	return 0;
}

static inline int teardown(void **state)
{
	leave(*state);
	free(*state);
	return 0;
}

/* The graph was not run, and the binding is refused as the dispatch is. */
#define assert_not_run(fix, code, word)                                                          \
	do {                                                                                     \
		uint64_t before_ = stats(fix).dispatches;                                        \
		struct tmesh_engine_binding *binding_ = NULL;                                    \
                                                                                                 \
		assert_refused(dispatch(fix, err), code, word);                                  \
		assert_refused(tmesh_engine_bind((fix)->graph, (fix)->inputs, 2, (fix)->outputs, \
						 1, &binding_, err),                             \
			       code, word);                                                      \
		assert_null(binding_);                                                           \
		assert_int_equal(stats(fix).dispatches, before_);                                \
	} while (0)

#endif /* TMESH_TEST_PLAIN_GRAPH_H */
