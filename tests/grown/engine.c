// SPDX-License-Identifier: MIT
/*
 * Compiled with the headers of one version, run with a libtmesh-engine of a later one: program.c.
 * The engine is a fake (tests/engine/fake_engine.c), a plug-in of the earlier version.
 */
#include "edge.h"

#include <sys/stat.h>
#include <tmesh/placement.h>
#include <tmesh/engine.h>
#include <tmesh/graph.h>

#define FLAGS (TMESH_ENGINE_READABLE | TMESH_ENGINE_WRITABLE | TMESH_ENGINE_EXPORTABLE)

static const char *tmeshctl_devices;
static char folder[] = "/tmp/tmesh-grown-XXXXXX";
static const int64_t shape[] = {2, 4}, row[] = {4};

static void put(const char *name, const char *text)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	for (char *at = path + strlen(folder) + 1; (at = strchr(at, '/')); *at++ = '/') {
		*at = '\0';
		mkdir(path, 0700);
	}
	file = fopen(path, "we");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static struct tmesh_engine_context *engine(struct tmesh_ctx *ctx)
{
	struct tmesh_engine_context_opts *opts = OPTIONS(tmesh_engine_context_opts);
	struct tmesh_engine_context *made;

	opts->device_type = TMESH_DEVICE_CPU;
	opts->threads = 1;
	assert_ok(tmesh_engine_context_create(ctx, "fake", opts, &made, err));
	return made;
}

static struct tmesh_engine_tensor *device_tensor(struct tmesh_engine_context *context, int32_t ndim,
						 const int64_t *dims, const float *data)
{
	struct tmesh_engine_tensor *made;

	assert_ok(
		tmesh_engine_tensor_create(context, TMESH_FLOAT32, ndim, dims, FLAGS, &made, err));
	if (data)
		assert_ok(tmesh_engine_tensor_write(made, data, (ndim == 2 ? 8 : 4) * sizeof(float),
						    err));
	return made;
}

static void run(struct tmesh_engine_context *context, struct tmesh_engine_graph *graph)
{
	static const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[4] = {10, 20, 30, 40};
	struct tmesh_engine_cancellable_opts *opts = OPTIONS(tmesh_engine_cancellable_opts);
	struct tmesh_engine_value inputs[] = {
		{.name = "x", .tensor = device_tensor(context, 2, shape, x)},
		{.name = "b", .tensor = device_tensor(context, 1, row, b)},
	};
	struct tmesh_engine_value y = {.name = "y",
				       .tensor = device_tensor(context, 2, shape, NULL)};
	struct tmesh_engine_tensor_info *info = SIZED(tmesh_engine_tensor_info);
	struct tmesh_engine_cancellable *cancellable;
	float got[8];

	assert_ok(tmesh_engine_cancellable_create(opts, &cancellable, err));
	assert_ok(tmesh_engine_dispatch_cancellable(graph, inputs, 2, &y, 1, cancellable, err));
	assert_ok(tmesh_engine_tensor_read(y.tensor, got, sizeof(got), err));
	assert_true(got[7] == 48);
	assert_ok(tmesh_engine_tensor_info(y.tensor, info, err));
	assert_int_equal(info->bytes, sizeof(got));
	assert_string_equal(info->backend, "fake");
	tmesh_engine_cancellable_unref(cancellable);
	tmesh_engine_tensor_unref(inputs[0].tensor);
	tmesh_engine_tensor_unref(inputs[1].tensor);
	tmesh_engine_tensor_unref(y.tensor);
}

static void test_dispatch(void **state)
{
	struct tmesh_engine_context *context = engine(*state);
	struct tmesh_engine_graph_opts *opts = OPTIONS(tmesh_engine_graph_opts);
	struct tmesh_engine_operand *operand = SIZED(tmesh_engine_operand);
	struct tmesh_engine_stats *stats = SIZED(tmesh_engine_stats);
	struct tmesh_engine_graph *graph;
	char path[64];

	put("plain", "plain");
	snprintf(path, sizeof(path), "%s/plain", folder);
	assert_ok(tmesh_engine_graph_open(context, path, opts, &graph, err));
	assert_ok(tmesh_engine_graph_input(graph, 0, operand, err));
	assert_string_equal(operand->name, "x");
	assert_int_equal(operand->shape[0], -1);
	assert_null(operand->dims[TMESH_MAX_DIMS - 1]);
	run(context, graph);
	assert_ok(tmesh_engine_stats(context, stats, err));
	assert_int_equal(stats->sessions, 1);
	assert_int_equal(stats->dispatches, 1);
	tmesh_engine_graph_unref(graph);
	tmesh_engine_context_unref(context);
	unlink(path);
}

/* No server answers; by then the call has read its structure. */
static void test_connect(void **state)
{
	struct tmesh_engine_connect_opts *opts = OPTIONS(tmesh_engine_connect_opts);
	struct tmesh_engine_context *context;

	assert_int_equal(tmesh_engine_connect(*state, "nobody", opts, &context, NULL), -ENOENT);
}

static struct tmesh_graph *sum(void)
{
	struct tmesh_graph *graph;
	uint32_t index;

	assert_ok(tmesh_graph_create("plain", &graph, err));
	for (uint32_t i = 0; i < 3; i++) {
		struct tmesh_graph_node *node = OPTIONS(tmesh_graph_node);

		node->name = i == 0 ? "x" : i == 1 ? "b" : "y";
		node->op = tmesh_graph_op_from_name(i < 2 ? "input" : "add");
		node->dtype = i < 2 ? TMESH_FLOAT32 : 0;
		node->ndim = i == 0 ? 2 : i == 1 ? 1 : 0;
		memcpy(node->shape, i == 0 ? shape : row, (size_t)node->ndim * sizeof(*shape));
		node->input_count = i < 2 ? 0 : 2;
		node->inputs[1] = i < 2 ? 0 : 1;
		assert_ok(tmesh_graph_add(graph, node, &index, err));
		assert_int_equal(index, i);
	}
	assert_ok(tmesh_graph_add_output(graph, "y", 2, err));
	return graph;
}

static void test_graph(void **state)
{
	struct tmesh_graph_node *node = SIZED(tmesh_graph_node);
	struct tmesh_graph *graph = sum();

	assert_ok(tmesh_graph_node(graph, 2, node, err));
	assert_string_equal(node->name, "y");
	assert_int_equal(node->ndim, 2);
	assert_int_equal(node->cache, TMESH_GRAPH_CACHE_NONE);
	tmesh_graph_unref(graph);
}

static void test_placement(void **state)
{
	static const char text[] = "graph g\nx = input : float32[4]\ny = silu(x)\noutput y = y\n";
	static const struct tmesh_placement_place place = {
		.node = 0.5, .flops = 1, .bandwidth = 16};
	static const struct tmesh_placement_link link = {.bandwidth = 1};
	struct tmesh_placement_opts *opts = OPTIONS(tmesh_placement_opts);
	struct tmesh_placement *out = SIZED(tmesh_placement);
	struct tmesh_graph *graph;
	uint32_t at[2] = {7, 7};

	opts->places = &place;
	opts->place_count = 1;
	opts->links = &link;
	assert_ok(tmesh_graph_parse(text, strlen(text), &graph, err));
	assert_ok(tmesh_placement_find(graph, opts, at, out, err));
	assert_int_equal(at[0], TMESH_PLACEMENT_NOWHERE);
	assert_int_equal(at[1], 0);
	assert_true(out->seconds == 2.5);
	assert_int_equal(out->bytes_moved, 0);
	tmesh_graph_unref(graph);
}

static struct tmesh_devices *devices(void)
{
	struct tmesh_devices_opts *opts = OPTIONS(tmesh_devices_opts);
	struct tmesh_devices *found;

	put("proc/cpuinfo", "model name\t: Made up 3000\n");
	put("proc/meminfo", "MemTotal:  4096000 kB\nMemAvailable:  2048000 kB\n");
	put("sys/devices/system/cpu/online", "0-1\n");
	opts->root = folder;
	assert_ok(tmesh_devices_find(opts, &found, err));
	return found;
}

static void test_devices(void **state)
{
	struct tmesh_devices_device *device = SIZED(tmesh_devices_device);
	struct tmesh_devices_engine *engine = SIZED(tmesh_devices_engine);
	struct tmesh_devices *found = devices();

	assert_ok(tmesh_devices_device(found, 0, device, err));
	assert_string_equal(device->id, "cpu:0");
	assert_string_equal(device->name, "Made up 3000");
	assert_int_equal(device->processors, 2);
	assert_true(tmesh_devices_engines(found) > 0);
	assert_ok(tmesh_devices_engine(found, 0, engine, err));
	assert_true(strlen(engine->name) > 0);
	assert_int_equal(engine->operators[TMESH_DEVICES_OPERATORS - 1], 0);
	tmesh_devices_unref(found);
}

static void test_wrong_sizes(void **state)
{
	static const size_t wrong[] = {0, 4, 1 << 20, SIZE_MAX};
	struct tmesh_engine_context *context = engine(*state), *none = NULL;
	struct tmesh_engine_context_opts opts = {0};
	struct tmesh_engine_stats stats = {0};

	for (int i = 0; i < 4; i++) {
		stats.size = opts.size = wrong[i];
		assert_int_equal(tmesh_engine_stats(context, &stats, NULL), -EINVAL);
		assert_int_equal(tmesh_engine_context_create(*state, "fake", &opts, &none, NULL),
				 -EINVAL);
	}
	assert_null(none);
	tmesh_engine_context_unref(context);
}

static void test_tmeshctl(void **state)
{
	const char *text = output_of("%s --json", tmeshctl_devices);

	if (!strstr(text, "\"cpu:0\""))
		fail_msg("tmeshctl devices says: %s", text);
}

static int make_folder(void **state)
{
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_dispatch),  TEST(test_connect), TEST(test_graph),
		TEST(test_placement), TEST(test_devices), TEST(test_wrong_sizes),
		TEST(test_tmeshctl),
	};

	if (argc != 2)
		return 2;
	tmeshctl_devices = argv[1];
	return cmocka_run_group_tests_name("grown engine", tests, make_folder, remove_folder);
}
