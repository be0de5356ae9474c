// SPDX-License-Identifier: MIT
/* Opening files of graphs on the engine "fake": which are refused, their weights, and the sessions
 * that stay open for them. */
#include "plain_graph.h"

UNIT_SET_UP(test_graph_refusals)
{
	struct fixture *fix = *state;
	struct tmesh_engine_graph *graph = NULL;
	struct tmesh_engine_graph_opts opts = {.size = sizeof(opts), .flags = 2};
	char pipe[128];

	assert_refused(tmesh_engine_graph_open(fix->context, "/nowhere/graph", NULL, &graph, err),
		       -ENOENT, "/nowhere");
	assert_refused(tmesh_engine_graph_open(fix->context, folder, NULL, &graph, err), -EINVAL,
		       "is not a regular file");
	snprintf(pipe, sizeof(pipe), "%s/pipe", folder);
	assert_int_equal(mkfifo(pipe, 0600), 0);
	assert_refused(tmesh_engine_graph_open(fix->context, pipe, NULL, &graph, err), -EINVAL,
		       "is not a regular file");
	unlink(pipe);
	assert_refused(tmesh_engine_graph_open(fix->context, NULL, NULL, &graph, err), -EINVAL,
		       "path");
	assert_refused(
		tmesh_engine_graph_open(fix->context, file("broken", "broken"), NULL, &graph, err),
		-EPROTO, "");
	assert_refused(
		tmesh_engine_graph_open(fix->context, file("slow", "slow"), NULL, &graph, err),
		-ESTALE, "changed");
	assert_refused(
		tmesh_engine_graph_open(fix->context, file("graph", "plain"), &opts, &graph, err),
		-EINVAL, "no other flag");
	opts.flags = 0;
	opts.weight_count = SIZE_MAX;
	assert_refused(
		tmesh_engine_graph_open(fix->context, file("graph", "plain"), &opts, &graph, err),
		-EINVAL, "weights");
	assert_null(graph);
	assert_int_equal(stats(fix).sessions, 1);
}

UNIT_SET_UP(test_weights)
{
	struct fixture *fix = *state;
	const struct tmesh_region_opts unsealed = {.size = sizeof(unsealed),
						   .flags = TMESH_REGION_UNSEALED};
	const float data[8] = {0};
	struct tmesh_engine_weight weights[2] = {{.name = "w"}, {.name = "w"}};
	struct tmesh_engine_graph_opts opts = {
		.size = sizeof(opts), .weights = weights, .weight_count = 1};
	struct tmesh_engine_graph *graph = NULL, *same;
	struct tmesh_tensor *open, *sealed, *columns;
	const char *path = file("graph", "plain");
	struct tmesh_layout layout;

	assert_ok(
		tmesh_tensor_put(fix->ctx, TMESH_FLOAT32, 2, shape_x, data, &unsealed, &open, err));
	assert_ok(tmesh_tensor_put(fix->ctx, TMESH_FLOAT32, 2, shape_x, data, NULL, &sealed, err));
	layout = *tmesh_tensor_layout(sealed);
	layout.shape[1] = layout.strides[1] = 2;
	assert_ok(tmesh_tensor_view(sealed, &layout, &columns, err));
	assert_refused(tmesh_engine_graph_open(fix->context, path, &opts, &graph, err), -EINVAL,
		       "no tensor");
	weights[0].tensor = open;
	assert_refused(tmesh_engine_graph_open(fix->context, path, &opts, &graph, err), -EINVAL,
		       "not sealed");
	weights[0].tensor = columns;
	assert_refused(tmesh_engine_graph_open(fix->context, path, &opts, &graph, err), -EINVAL,
		       "strides");
	weights[0].tensor = weights[1].tensor = sealed;
	opts.weight_count = 2;
	assert_refused(tmesh_engine_graph_open(fix->context, path, &opts, &graph, err), -EINVAL,
		       "twice");
	opts.weight_count = 1;
	assert_null(graph);
	/* They are part of what the session is. */
	assert_ok(tmesh_engine_graph_open(fix->context, path, &opts, &graph, err));
	assert_int_equal(stats(fix).sessions, 2);
	assert_ok(tmesh_engine_graph_open(fix->context, path, &opts, &same, err));
	assert_int_equal(stats(fix).sessions, 2);
	assert_int_equal(stats(fix).session_hits, 1);
	tmesh_engine_graph_unref(graph);
	tmesh_engine_graph_unref(same);
	tmesh_tensor_unref(open);
	tmesh_tensor_unref(sealed);
	tmesh_tensor_unref(columns);
}

UNIT_SET_UP(test_sessions)
{
	struct fixture *fix = *state;
	struct tmesh_engine_context_opts opts = {.size = sizeof(opts), .sessions = 2};
	struct tmesh_engine_graph_opts packed = {.size = sizeof(packed),
						 .flags = TMESH_ENGINE_PREPACK};
	struct tmesh_engine_context *plain = fix->context;
	struct tmesh_engine_graph *graphs[4], *again;
	char name[8];

	assert_ok(tmesh_engine_context_create(fix->ctx, "fake", &opts, &fix->context, err));
	for (int i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "%d", i);
		assert_ok(tmesh_engine_graph_open(fix->context, file(name, "plain"), NULL,
						  &graphs[i], err));
	}
	/* None of those in use is closed. */
	assert_int_equal(stats(fix).sessions, 4);
	assert_int_equal(stats(fix).sessions_opened, 4);
	for (int i = 0; i < 4; i++)
		tmesh_engine_graph_unref(graphs[i]);
	assert_int_equal(stats(fix).sessions, 2);
	assert_int_equal(stats(fix).sessions_evicted, 2);
	/* 2 and 3 are the two that were used last. 2 is used, so 3 goes for another. */
	{
		char path[96];

		snprintf(path, sizeof(path), "%s/2", folder);
		assert_ok(tmesh_engine_graph_open(fix->context, path, NULL, &again, err));
		assert_int_equal(stats(fix).session_hits, 1);
		tmesh_engine_graph_unref(again);
		assert_ok(tmesh_engine_graph_open(fix->context, path, &packed, &again, err));
		tmesh_engine_graph_unref(again);
		assert_int_equal(stats(fix).sessions_opened, 5);
		assert_int_equal(stats(fix).sessions_evicted, 3);
		assert_ok(tmesh_engine_graph_open(fix->context, path, NULL, &again, err));
		assert_int_equal(stats(fix).session_hits, 2);
		tmesh_engine_graph_unref(again);
	}
	/* A file that was written anew is another model. */
	assert_ok(
		tmesh_engine_graph_open(fix->context, file("2", "plain again"), NULL, &again, err));
	assert_int_equal(stats(fix).sessions_opened, 6);
	tmesh_engine_graph_unref(again);
	/* Those whose file is gone or another one. */
	assert_int_equal(stats(fix).sessions, 1);
	assert_int_equal(stats(fix).sessions_evicted, 3);
	assert_ok(tmesh_engine_graph_open(fix->context, file("3", "plain"), NULL, &again, err));
	assert_int_equal(unlink(file("3", "plain")), 0);
	tmesh_engine_graph_unref(again);
	assert_int_equal(stats(fix).sessions, 1);
	assert_int_equal(unlink(file("2", "plain")), 0);
	assert_ok(tmesh_engine_graph_open(fix->context, file("4", "plain"), NULL, &again, err));
	assert_int_equal(stats(fix).sessions, 1);
	tmesh_engine_graph_unref(again);
	tmesh_engine_context_unref(fix->context);
	fix->context = plain;
}

int main(void)
{
	char command[64];
	int failed;

	assert_non_null(mkdtemp(folder));
	failed = UNIT_RUN("tests", NULL, NULL);
	snprintf(command, sizeof(command), "rm -r %s", folder);
	return system(command) || failed;
}
