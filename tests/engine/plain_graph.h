/* SPDX-License-Identifier: MIT */
/* A graph of the engine "fake" (fake_engine.c), y = x + b, with its device tensors. */
#ifndef TMESH_TEST_PLAIN_GRAPH_H
#define TMESH_TEST_PLAIN_GRAPH_H

#include <tmesh/engine.h>

#include "unit.h"

#define FLAGS (TMESH_ENGINE_READABLE | TMESH_ENGINE_WRITABLE | TMESH_ENGINE_EXPORTABLE)

static const int64_t shape_x[] = {2, 4}, shape_b[] = {4};
static char folder[] = "/tmp/tmesh-engine-XXXXXX";

struct fixture {
	struct tmesh_ctx *ctx;
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph;
	struct tmesh_engine_tensor *x, *b, *y;
	struct tmesh_engine_value inputs[2], outputs[1];
};

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
	const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[4] = {10, 20, 30, 40};

	assert_ok(tmesh_ctx_open(NULL, &fix->ctx, err));
	assert_ok(tmesh_engine_context_create(fix->ctx, "fake", NULL, &fix->context, err));
	assert_ok(tmesh_engine_graph_open(fix->context, file("graph", "plain"), NULL, &fix->graph,
					  err));
	assert_ok(tmesh_engine_tensor_create(fix->context, TMESH_FLOAT32, 2, shape_x, FLAGS,
					     &fix->x, err));
	assert_ok(tmesh_engine_tensor_create(fix->context, TMESH_FLOAT32, 1, shape_b, FLAGS,
					     &fix->b, err));
	assert_ok(tmesh_engine_tensor_create(fix->context, TMESH_FLOAT32, 2, shape_x, FLAGS,
					     &fix->y, err));
	assert_ok(tmesh_engine_tensor_write(fix->x, x, sizeof(x), err));
	assert_ok(tmesh_engine_tensor_write(fix->b, b, sizeof(b), err));
	fix->inputs[0] = (struct tmesh_engine_value){.name = "x", .tensor = fix->x};
	fix->inputs[1] = (struct tmesh_engine_value){.name = "b", .tensor = fix->b};
	fix->outputs[0] = (struct tmesh_engine_value){.name = "y", .tensor = fix->y};
	*state = fix;
	return 0;
}

static inline int teardown(void **state)
{
	struct fixture *fix = *state;

	tmesh_engine_tensor_unref(fix->x);
	tmesh_engine_tensor_unref(fix->b);
	tmesh_engine_tensor_unref(fix->y);
	tmesh_engine_graph_unref(fix->graph);
	tmesh_engine_context_unref(fix->context);
	tmesh_ctx_unref(fix->ctx);
	free(fix);
	return 0;
}

static inline int dispatch(struct fixture *fix, struct tmesh_error *err)
{
	return tmesh_engine_dispatch(fix->graph, fix->inputs, 2, fix->outputs, 1, err);
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

static inline void assert_y(struct fixture *fix)
{
	float y[8];

	assert_ok(tmesh_engine_tensor_read(fix->y, y, sizeof(y), err));
	for (int i = 0; i < 8; i++)
		assert_true(y[i] == (float)(i + 1 + 10 * (i % 4 + 1)));
}

#endif /* TMESH_TEST_PLAIN_GRAPH_H */
