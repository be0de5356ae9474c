// SPDX-License-Identifier: MIT
/* On failure, out-parameters of libtmesh-engine keep their values, as tests/unit/test_outputs.c
 * shows for libtmesh. Graphs run on the engine "fake". */
#include <tmesh/engine.h>
#include <tmesh/graph.h>
#include <tmesh/placement.h>

#include "outputs.h"
#include "unit.h"

#define RW (TMESH_READ | TMESH_WRITE)
#define FLAGS (TMESH_ENGINE_READABLE | TMESH_ENGINE_WRITABLE)
static const int64_t shape_x[] = {2, 4}, shape_b[] = {4};
static char folder[] = "/tmp/tmesh-outputs-XXXXXX";
static struct tmesh_ctx *ctx;
static struct tmesh_graph *graph;
static struct tmesh_engine_context *context;

/* Write a graph's file. The caller removes it. */
static const char *graph_file(const char *mode)
{
	static char path[96];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, mode);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(mode, file);
	fclose(file);
	return path;
}

static struct tmesh_engine_tensor *device_tensor(int32_t ndim, const int64_t *shape)
{
	struct tmesh_engine_tensor *made;

	assert_ok(
		tmesh_engine_tensor_create(context, TMESH_FLOAT32, ndim, shape, FLAGS, &made, err));
	return made;
}

UNIT(test_contexts)
{
	const struct tmesh_engine_cancellable_opts wrong = {0};

	FAILS(tmesh_engine_context_create, -EOPNOTSUPP, ctx, "none", NULL, OUT, err);
	FAILS(tmesh_engine_connect, -ENOENT, ctx, "nobody", NULL, OUT, err);
	FAILS(tmesh_engine_cancellable_create, -EINVAL, &wrong, OUT, err);
	FAILS(tmesh_engine_stats, -EINVAL, context, &(struct tmesh_engine_stats){0}, err);
	FAILS(tmesh_engine_graph_open, -ENOENT, context, "/nonexistent", NULL, OUT, err);
	FAILS(tmesh_engine_graph_open, -EPROTO, context, graph_file("broken"), NULL, OUT, err);
	unlink(graph_file("broken"));
}

UNIT(test_tensors)
{
	struct tmesh_engine_tensor *own = device_tensor(1, shape_b), *wrapped, *gone;
	struct tmesh_tensor *memory;

	assert_ok(tmesh_tensor_create(ctx, TMESH_FLOAT32, 1, shape_b, NULL, &memory, err));
	assert_ok(tmesh_engine_tensor_wrap(context, memory, RW, TMESH_ENGINE_EXPORTABLE, &wrapped,
					   err));
	gone = device_tensor(1, shape_b);
	tmesh_engine_tensor_destroy(gone);
	FAILS(tmesh_engine_tensor_create, -EINVAL, context, TMESH_FLOAT32, 1, shape_b, 1u << 9, OUT,
	      err);
	FAILS(tmesh_engine_tensor_wrap, -EINVAL, context, memory, 0, 0, OUT, err);
	FAILS(tmesh_engine_tensor_read, -EINVAL, own, OUT, 1, err);
	FAILS(tmesh_engine_tensor_read, -EACCES, wrapped, OUT, 16, err);
	FAILS(tmesh_engine_tensor_export, -EACCES, own, OUT, err);
	FAILS(tmesh_engine_tensor_ref_encode, -EACCES, own, TMESH_READ, out.text, TMESH_REF_SIZE,
	      err);
	FAILS(tmesh_engine_tensor_ref_encode, -ENOSPC, wrapped, TMESH_READ, out.text, 8, err);
	FAILS(tmesh_engine_tensor_info, -EBADF, gone, OUT, err);
	tmesh_engine_tensor_unref(gone);
	tmesh_engine_tensor_unref(wrapped);
	tmesh_engine_tensor_unref(own);
	tmesh_tensor_unref(memory);
}

UNIT(test_dispatch)
{
	const char *path = graph_file("fails");
	struct tmesh_engine_graph *fails;
	struct tmesh_engine_tensor *x = device_tensor(2, shape_x), *b = device_tensor(1, shape_b);
	struct tmesh_engine_value inputs[] = {{.name = "x", .tensor = x},
					      {.name = "b", .tensor = b}};
	/* Memory that is left to the engine. */
	struct tmesh_engine_value left[] = {{.name = "y"}};
	struct tmesh_engine_cancellable *cancelled;

	assert_ok(tmesh_engine_graph_open(context, path, NULL, &fails, err));
	unlink(path);
	assert_ok(tmesh_engine_cancellable_create(NULL, &cancelled, err));
	tmesh_engine_cancel(cancelled);
	FAILS(tmesh_engine_graph_input, -EINVAL, fails, 9, OUT, err);
	FAILS(tmesh_engine_graph_output, -EINVAL, fails, 9, OUT, err);
	FAILS(tmesh_engine_bind, -EINVAL, fails, inputs, 2, left, 1, OUT, err);
	FAILS(tmesh_engine_dispatch, -EIO, fails, inputs, 2, left, 1, err);
	assert_null(left[0].tensor);
	FAILS(tmesh_engine_dispatch_cancellable, -ECANCELED, fails, inputs, 2, left, 1, cancelled,
	      err);
	assert_null(left[0].tensor);
	tmesh_engine_cancellable_unref(cancelled);
	tmesh_engine_tensor_unref(b);
	tmesh_engine_tensor_unref(x);
	tmesh_engine_graph_unref(fails);
}

UNIT(test_graphs)
{
	const struct tmesh_graph_node nothing = {
		.size = sizeof(nothing), .name = "z", .op = TMESH_GRAPH_SILU};
	struct tmesh_graph *made;

	assert_ok(tmesh_graph_create("g", &made, err));
	FAILS(tmesh_graph_create, -EINVAL, "no name!", OUT, err);
	FAILS(tmesh_graph_add, -EINVAL, made, &nothing, OUT, err);
	FAILS(tmesh_graph_node, -EINVAL, graph, 99, OUT, err);
	FAILS(tmesh_graph_output, -EINVAL, graph, 99, OUT, OTHER, err);
	FAILS(tmesh_graph_find, -ENOENT, graph, "none", OUT, err);
	FAILS(tmesh_graph_parse, -EPROTO, "graph g\nx = silu(x)\n", 19, OUT, err);
	FAILS(tmesh_graph_read, -ENOENT, "/nonexistent", OUT, err);
	tmesh_graph_unref(made);
}

UNIT(test_devices)
{
	const struct tmesh_devices_opts empty = {.size = sizeof(empty), .root = "/nonexistent"};
	struct tmesh_devices *devices;

	assert_ok(tmesh_devices_find(NULL, &devices, err));
	FAILS(tmesh_devices_find, -EIO, &empty, OUT, err);
	FAILS(tmesh_devices_device, -EINVAL, devices, 999, OUT, err);
	FAILS(tmesh_devices_engine, -EINVAL, devices, 999, OUT, err);
	tmesh_devices_unref(devices);
}

UNIT(test_placement)
{
	const struct tmesh_placement_place silu = {
		.operators = 1u << TMESH_GRAPH_SILU, .flops = 1e9, .bandwidth = 1e9};
	const struct tmesh_placement_place all = {.flops = 1e9, .bandwidth = 1e9};
	const struct tmesh_placement_link link = {.bandwidth = 1e9};
	struct tmesh_placement_opts opts = {
		.size = sizeof(opts), .places = &silu, .place_count = 1, .links = &link};

	FAILS(tmesh_placement_find, -EOPNOTSUPP, graph, &opts, OUT, OTHER, err);
	opts.places = &all;
	/* A place was found, and the caller's structure has no size. */
	FAILS(tmesh_placement_find, -EINVAL, graph, &opts, OUT, &(struct tmesh_placement){0}, err);
}

static int setup(void **state)
{
	const char *text = "graph plain\n"
			   "x = input : float32[2,4]\n"
			   "b = input cache=reuse : float32[4]\n"
			   "y = add(x, b)\n"
			   "output y = y\n";

	return !mkdtemp(folder) || tmesh_ctx_open(NULL, &ctx, NULL) ||
	       tmesh_engine_context_create(ctx, "fake", NULL, &context, NULL) ||
	       tmesh_graph_parse(text, strlen(text), &graph, NULL);
}

static int teardown(void **state)
{
	tmesh_graph_unref(graph);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(ctx);
	return rmdir(folder);
}

UNIT_MAIN("engine outputs", setup, teardown)
