/* SPDX-License-Identifier: MIT */
/* A fixture of the engine "fake" (fake_engine.c): the graph y = x + b, with its device tensors. */
#ifndef TMESH_TEST_FIXTURE_H
#define TMESH_TEST_FIXTURE_H

#include <tmesh/engine.h>

#include "unit.h"

#define FLAGS (TMESH_ENGINE_READABLE | TMESH_ENGINE_WRITABLE | TMESH_ENGINE_EXPORTABLE)

static const int64_t shape_x[] = {2, 4}, shape_b[] = {4};

struct fixture {
	struct tmesh_ctx *ctx;
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph;
	struct tmesh_engine_tensor *x, *b, *y;
	struct tmesh_engine_value inputs[2], outputs[1];
};

static inline void fill_tensors(struct fixture *fix)
{
	const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[4] = {10, 20, 30, 40};

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
}

static inline void leave(struct fixture *fix)
{
	tmesh_engine_tensor_unref(fix->x);
	tmesh_engine_tensor_unref(fix->b);
	tmesh_engine_tensor_unref(fix->y);
	tmesh_engine_graph_unref(fix->graph);
	tmesh_engine_context_unref(fix->context);
	tmesh_ctx_unref(fix->ctx);
}

static inline int dispatch(struct fixture *fix, struct tmesh_error *err)
{
	return tmesh_engine_dispatch(fix->graph, fix->inputs, 2, fix->outputs, 1, err);
}

static inline void expect_sum(struct fixture *fix)
{
	float y[8];

	assert_ok(tmesh_engine_tensor_read(fix->y, y, sizeof(y), err));
	for (int i = 0; i < 8; i++)
		assert_true(y[i] == (float)(i + 1 + 10 * (i % 4 + 1)));
}

#endif /* TMESH_TEST_FIXTURE_H */
