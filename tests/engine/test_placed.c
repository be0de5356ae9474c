// SPDX-License-Identifier: MIT
/*
 * Graphs in parts: how they are split, which are refused, and one part's run. They use the engine
 * "fake", which takes any file for a graph of its own operands x, b and y. Several parts with ggml:
 * bindings/beam/test/graph_test.exs.
 */
#include <tmesh/placement.h>

#include "placed_internal.h"
#include "unit.h"

#define OTHERS 64

static char folder[] = "/tmp/tmesh-placed-XXXXXX";

static struct tmesh_graph *parsed(const char *text)
{
	struct tmesh_graph *graph;

	assert_ok(tmesh_graph_parse(text, strlen(text), &graph, err));
	return graph;
}

static void assert_part(const struct tmesh_graph_partitions *parts, size_t index, uint32_t at,
			const char *text)
{
	const struct tmesh_graph *graph;
	uint32_t place;
	char *got;

	assert_ok(tmesh_graph_partition(parts, index, &place, &graph, err));
	assert_int_equal(place, at);
	got = tmesh_graph_to_text(graph);
	assert_string_equal(got, text);
	free(got);
}

UNIT(test_split)
{
	/* x, w, a, v, b, c, d */
	struct tmesh_graph *graph =
		parsed("graph g\n"
		       "x = input : float32[2,4]\n"
		       "w = weight : float32[4,4]\n"
		       "a = matmul(x, w)\n"
		       "v = reshape(a) : float32[8]\n"
		       "b = silu(v)\n"
		       "c = gelu(x)\n"
		       "d = silu(v)\n"
		       "output b = b\noutput v = v\noutput c = c\noutput d = d\n");
	const uint32_t here[] = {9, 9, 0, 9, 1, 0, 0}, nowhere[] = {0, 0, 0, 0, 2, 0, 0};
	struct tmesh_graph_partitions *parts;
	const struct tmesh_graph *part;
	uint32_t place;

	assert_refused(tmesh_graph_split(graph, nowhere, 2, &parts, err), -EINVAL,
		       "node \"b\" is at place 2, and there are 2");
	assert_ok(tmesh_graph_split(graph, here, 2, &parts, err));
	tmesh_graph_unref(graph);
	tmesh_graph_partitions_unref(tmesh_graph_partitions_ref(parts));
	assert_int_equal(tmesh_graph_partitions_count(parts), 2);
	/* c moves ahead into the first part, and each part has the view for itself. */
	assert_part(parts, 0, 0,
		    "graph g\n"
		    "x = input : float32[2,4]\n"
		    "w = weight : float32[4,4]\n"
		    "a = matmul(x, w) : float32[2,4]\n"
		    "v = reshape(a) : float32[8]\n"
		    "c = gelu(x) : float32[2,4]\n"
		    "d = silu(v) : float32[8]\n"
		    "output a = a\noutput v = v\noutput c = c\noutput d = d\n");
	assert_part(parts, 1, 1,
		    "graph g\n"
		    "a = input : float32[2,4]\n"
		    "v = reshape(a) : float32[8]\n"
		    "b = silu(v) : float32[8]\n"
		    "output b = b\n");
	assert_refused(tmesh_graph_partition(parts, 2, &place, &part, err), -EINVAL, "no part 2");
	tmesh_graph_partitions_unref(parts);
}

UNIT(test_pasts)
{
	const char *text = "graph g\n"
			   "past = input : float32[4,4]\n"
			   "x = input : float32[1,4]\n"
			   "r = input : int64[1]\n"
			   "a = set_rows(past, x, r)\n"
			   "b = set_rows(a, x, r)\n"
			   "y = silu(b)\n"
			   "output b = b\noutput y = y\n";
	const uint32_t at[] = {0, 0, 0, 0, 1, 0, 0};
	struct tmesh_graph_partitions *parts;
	struct tmesh_graph *graph = parsed(text);
	char twice[512];

	assert_ok(tmesh_graph_split(graph, at, 2, &parts, err));
	assert_int_equal(tmesh_graph_partitions_count(parts), 3);
	tmesh_graph_partitions_unref(parts);
	tmesh_graph_unref(graph);
	snprintf(twice, sizeof(twice), "%sz = gelu(a)\noutput z = z\n", text);
	graph = parsed(twice);
	assert_refused(tmesh_graph_split(graph, at, 2, &parts, err), -EINVAL,
		       "\"a\", whose rows \"b\" replaces, is read by \"z\"");
	tmesh_graph_unref(graph);
}

/* "a" reads its own rows twice, which another node does not. */
UNIT(test_own_rows)
{
	const uint32_t at[] = {0, 0, 0, 0};
	struct tmesh_graph *graph = parsed("graph g\n"
					   "x = input : float32[4,4]\n"
					   "r = input : int64[4]\n"
					   "a = set_rows(x, x, r)\n"
					   "output a = a\n");
	struct tmesh_graph_partitions *parts;

	assert_ok(tmesh_graph_split(graph, at, 1, &parts, err));
	tmesh_graph_partitions_unref(parts);
	tmesh_graph_unref(graph);
}

/* A chain whose nodes are at two places in turn. */
static struct tmesh_graph *chain(uint32_t count, uint32_t *at)
{
	size_t room = 64 + (size_t)count * 32, used;
	char *text = malloc(room);
	struct tmesh_graph *graph;

	assert_non_null(text);
	used = (size_t)snprintf(text, room, "graph g\nn0 = input : float32[4]\n");
	for (uint32_t i = 1; i <= count; i++) {
		used += (size_t)snprintf(text + used, room - used, "n%u = silu(n%u)\n", i, i - 1);
		at[i] = i % 2;
	}
	snprintf(text + used, room - used, "output o = n%u\n", count);
	graph = parsed(text);
	free(text);
	return graph;
}

UNIT(test_many_partitions)
{
	uint32_t at[TMESH_GRAPH_MAX_PARTITIONS + 2] = {0};
	struct tmesh_graph *graph = chain(TMESH_GRAPH_MAX_PARTITIONS, at);
	struct tmesh_graph_partitions *parts;

	assert_ok(tmesh_graph_split(graph, at, 2, &parts, err));
	assert_int_equal(tmesh_graph_partitions_count(parts), TMESH_GRAPH_MAX_PARTITIONS);
	tmesh_graph_partitions_unref(parts);
	tmesh_graph_unref(graph);
	graph = chain(TMESH_GRAPH_MAX_PARTITIONS + 1, at);
	assert_refused(tmesh_graph_split(graph, at, 2, &parts, err), -E2BIG,
		       "more than 1024 partitions");
	tmesh_graph_unref(graph);
}

static int files(void)
{
	DIR *dir = opendir(folder);
	int count = 0;

	while (readdir(dir))
		count++;
	closedir(dir);
	return count - 2;
}

static struct tmesh_tensor *tensor(struct tmesh_ctx *ctx, int32_t ndim, const int64_t *shape)
{
	struct tmesh_tensor *made;

	assert_ok(tmesh_tensor_create(ctx, TMESH_FLOAT32, ndim, shape, NULL, &made, err));
	return made;
}

/* The fake's x, b and y: in any graph, y is x + b. */
UNIT(test_run)
{
	const int64_t shape[] = {2, 4};
	struct tmesh_graph *graph = parsed("graph plain\n"
					   "x = input : float32[2,4]\n"
					   "b = input : float32[4]\n"
					   "y = add(x, b)\n"
					   "output y = y\n");
	const uint32_t at[] = {0, 0, 0};
	struct tmesh_engine_cancellable *cancellable;
	struct tmesh_engine_context *context;
	struct tmesh_placed_binding *binding;
	struct tmesh_placed_opts opts = {.size = sizeof(opts), .context_count = 1, .at = at};
	struct tmesh_engine_stats stats = {.size = sizeof(stats)};
	struct tmesh_placed *placed;
	struct tmesh_tensor *x, *b, *y;
	struct rlimit before;
	struct tmesh_ctx *ctx = new_ctx();
	float *data;
	int rc;

	assert_ok(tmesh_engine_context_create(ctx, "fake", NULL, &context, err));
	opts.contexts = &context;
	assert_refused(tmesh_placed_create(graph, &opts, &placed, err), -EINVAL, "folder");
	opts.folder = "/nonexistent";
	assert_refused(tmesh_placed_create(graph, &opts, &placed, err), -ENOENT, "/nonexistent");
	opts.folder = folder;
	/* A disk that takes nothing: an error, and no file. */
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &before);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, before.rlim_max}), 0);
	rc = tmesh_placed_create(graph, &opts, &placed, NULL);
	setrlimit(RLIMIT_FSIZE, &before);
	assert_int_equal(rc, -EFBIG);
	assert_int_equal(files(), 0);
	assert_ok(tmesh_placed_create(graph, &opts, &placed, err));
	assert_int_equal(tmesh_graph_partitions_count(tmesh_placed_partitions(placed)), 1);
	assert_int_equal(files(), 1);
	x = tensor(ctx, 2, shape);
	b = tensor(ctx, 1, &shape[1]);
	y = tensor(ctx, 2, shape);
	assert_ok(tmesh_tensor_data(x, TMESH_READ | TMESH_WRITE, (void **)&data, err));
	data[5] = 3;
	assert_ok(tmesh_tensor_data(b, TMESH_READ | TMESH_WRITE, (void **)&data, err));
	data[1] = 4;

	struct tmesh_placed_value inputs[] = {{"x", x}, {"b", b}, {"b", b}}, output = {"y", y};

	assert_refused(tmesh_placed_bind(placed, ctx, inputs, 1, &output, 1, &binding, err),
		       -EINVAL, "input \"b\" was not given");
	assert_refused(tmesh_placed_bind(placed, ctx, inputs, 3, &output, 1, &binding, err),
		       -EINVAL, "input \"b\" was given twice");
	inputs[1].name = "y";
	assert_refused(tmesh_placed_bind(placed, ctx, inputs, 2, &output, 1, &binding, err),
		       -ENOENT, "no input \"y\"");
	inputs[1].name = "b";
	output.name = "x";
	assert_refused(tmesh_placed_bind(placed, ctx, inputs, 2, &output, 1, &binding, err),
		       -ENOENT, "no output \"x\"");
	output.name = "y";
	assert_ok(tmesh_placed_bind(placed, ctx, inputs, 2, &output, 1, &binding, err));
	tmesh_placed_unref(placed);
	tmesh_placed_binding_unref(tmesh_placed_binding_ref(binding));
	assert_ok(tmesh_placed_dispatch(binding, NULL, err));
	assert_ok(tmesh_tensor_data(y, TMESH_READ, (void **)&data, err));
	assert_true(data[5] == 7 && data[1] == 4 && data[0] == 0);
	assert_ok(tmesh_engine_cancellable_create(NULL, &cancellable, err));
	tmesh_engine_cancel(cancellable);
	assert_refused(tmesh_placed_dispatch(binding, cancellable, err), -ECANCELED, "before");
	tmesh_engine_cancellable_unref(cancellable);
	tmesh_tensor_unref(x);
	tmesh_tensor_unref(b);
	tmesh_tensor_unref(y);
	assert_int_equal(files(), 1);
	tmesh_placed_binding_unref(binding);
	assert_int_equal(files(), 0);
	/* No process can open that file again: its session has not stayed. */
	assert_ok(tmesh_engine_stats(context, &stats, err));
	assert_int_equal(stats.sessions_opened, 1);
	assert_int_equal(stats.sessions, 0);
	assert_int_equal(stats.sessions_evicted, 0);
	tmesh_engine_context_unref(context);
	tmesh_graph_unref(graph);
	tmesh_ctx_unref(ctx);
}

/* While a call changes a graph, and waits for an engine meanwhile, another call can be called off.
 * The last reference of a binding ends without a wait. */
UNIT(test_waits)
{
	const int64_t shape[] = {2, 4};
	struct tmesh_graph *graph = parsed("graph plain\n"
					   "x = input : float32[2,4]\n"
					   "b = input : float32[4]\n"
					   "y = add(x, b)\n"
					   "output y = y\n");
	const uint32_t at[] = {0, 0, 0};
	struct tmesh_engine_context *context;
	struct tmesh_placed_opts opts = {.size = sizeof(opts),
					 .context_count = 1,
					 .contexts = &context,
					 .at = at,
					 .folder = folder};
	struct tmesh_placed_binding *bindings[3], *more;
	struct tmesh_engine_cancellable *cancellable;
	struct tmesh_tensor *x, *b, *y;
	struct tmesh_placed *placed;
	struct tmesh_ctx *ctx = new_ctx();

	assert_ok(tmesh_engine_context_create(ctx, "fake", NULL, &context, err));
	assert_ok(tmesh_placed_create(graph, &opts, &placed, err));
	x = tensor(ctx, 2, shape);
	b = tensor(ctx, 1, &shape[1]);
	y = tensor(ctx, 2, shape);

	const struct tmesh_placed_value inputs[] = {{"x", x}, {"b", b}}, output = {"y", y};

	for (size_t i = 0; i < 3; i++)
		assert_ok(tmesh_placed_bind(placed, ctx, inputs, 2, &output, 1, &bindings[i], err));
	assert_ok(placed_begin(placed, false, err));
	tmesh_placed_binding_unref(bindings[0]);
	tmesh_placed_binding_unref(bindings[2]);
	assert_ok(tmesh_engine_cancellable_create(NULL, &cancellable, err));
	tmesh_engine_cancel(cancellable);
	assert_null(tmesh_engine_cancellable_enter(cancellable));
	assert_refused(tmesh_placed_move(placed, at, err), -ECANCELED, "before it ran");
	assert_refused(tmesh_placed_bind(placed, ctx, inputs, 2, &output, 1, &more, err),
		       -ECANCELED, "before it ran");
	assert_ptr_equal(tmesh_engine_cancellable_enter(NULL), cancellable);
	tmesh_engine_cancellable_unref(cancellable);
	placed_end(placed);
	assert_ptr_equal(placed->bindings, bindings[1]);
	assert_null(bindings[1]->next);
	assert_ok(tmesh_placed_dispatch(bindings[1], NULL, err));
	tmesh_placed_unref(placed);
	tmesh_placed_binding_unref(bindings[1]);
	assert_int_equal(files(), 0);
	tmesh_tensor_unref(x);
	tmesh_tensor_unref(b);
	tmesh_tensor_unref(y);
	tmesh_engine_context_unref(context);
	tmesh_graph_unref(graph);
	tmesh_ctx_unref(ctx);
}

/* Files of a process with the same number, in another PID namespace or killed: they stay, and are
 * in no other's way. */
UNIT(test_others_files)
{
	struct tmesh_graph *graph = parsed("graph plain\n"
					   "x = input : float32[2,4]\n"
					   "b = input : float32[4]\n"
					   "y = add(x, b)\n"
					   "output y = y\n");
	const uint32_t at[] = {0, 0, 0};
	struct tmesh_placed_opts opts = {
		.size = sizeof(opts), .context_count = 1, .at = at, .folder = folder};
	struct tmesh_engine_context *context;
	struct tmesh_placed *placed;
	struct tmesh_ctx *ctx;
	char path[128];

	for (int i = 0; i < OTHERS; i++) {
		snprintf(path, sizeof(path), "%s/placed-%d-%d.graph", folder, (int)getpid(), i);
		assert_int_equal(close(open(path, O_WRONLY | O_CREAT | O_EXCL, 0600)), 0);
	}
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_engine_context_create(ctx, "fake", NULL, &context, err));
	opts.contexts = &context;
	assert_ok(tmesh_placed_create(graph, &opts, &placed, err));
	assert_int_equal(files(), OTHERS + 1);
	tmesh_placed_unref(placed);
	for (int i = 0; i < OTHERS; i++) {
		snprintf(path, sizeof(path), "%s/placed-%d-%d.graph", folder, (int)getpid(), i);
		assert_int_equal(unlink(path), 0);
	}
	assert_int_equal(files(), 0);
	tmesh_engine_context_unref(context);
	tmesh_graph_unref(graph);
	tmesh_ctx_unref(ctx);
}

int main(void)
{
	int failed;

	if (!mkdtemp(folder))
		return 1;
	failed = UNIT_RUN("placed", NULL, NULL);
	return rmdir(folder) || failed;
}
