// SPDX-License-Identifier: MIT
/*
 * The cache of sessions, with files on a file system that does not answer: a stat() that waits, on
 * the engine "fake".
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <tmesh/engine.h>

#include "unit.h"

static const int64_t shape_x[] = {2, 4}, shape_b[] = {4};
static char folder[] = "/tmp/tmesh-sessions-XXXXXX";
static atomic_bool dead; /* the file system of the file "dead" */
static sem_t asked, answered;

/* In the place of the C library's. */
int stat(const char *restrict path, struct stat *restrict out)
{
	if (atomic_load(&dead) && strstr(path, "/dead")) {
		sem_post(&asked);
		while (sem_wait(&answered))
			;
	}
	return fstatat(AT_FDCWD, path, out, 0);
}

static const char *path_of(const char *name)
{
	static char path[96];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static const char *file(const char *name)
{
	FILE *out = fopen(path_of(name), "w");

	assert_non_null(out);
	fputs("plain", out);
	fclose(out);
	return path_of(name);
}

static struct tmesh_engine_stats stats(struct tmesh_engine_context *context)
{
	struct tmesh_engine_stats out = {.size = sizeof(out)};

	assert_ok(tmesh_engine_stats(context, &out, err));
	return out;
}

static struct tmesh_engine_graph *open_graph(struct tmesh_engine_context *context, const char *path)
{
	struct tmesh_engine_graph *graph;

	assert_ok(tmesh_engine_graph_open(context, path, NULL, &graph, err));
	return graph;
}

struct looker {
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph; /* that it opens, or, when there is one, closes */
	char path[96];
};

static void *look(void *data)
{
	struct looker *own = data;

	if (own->graph)
		tmesh_engine_graph_unref(own->graph);
	else if (tmesh_engine_graph_open(own->context, own->path, NULL, &own->graph, NULL))
		return own;
	return NULL;
}

/* All that others do while somebody looks at the dead file: nobody waits for it. */
static void others_go_on(struct tmesh_ctx *ctx, struct tmesh_engine_context *context,
			 struct tmesh_engine_graph *graph)
{
	struct tmesh_engine_value inputs[2] = {{.name = "x"}, {.name = "b"}};
	struct tmesh_engine_value outputs[1] = {{.name = "y"}};
	struct tmesh_engine_binding *binding;
	struct tmesh_engine_graph *other;

	assert_ok(tmesh_engine_tensor_create(context, TMESH_FLOAT32, 2, shape_x, 0,
					     &inputs[0].tensor, err));
	assert_ok(tmesh_engine_tensor_create(context, TMESH_FLOAT32, 1, shape_b, 0,
					     &inputs[1].tensor, err));
	assert_ok(tmesh_engine_tensor_create(context, TMESH_FLOAT32, 2, shape_x, 0,
					     &outputs[0].tensor, err));
	assert_ok(tmesh_engine_dispatch(graph, inputs, 2, outputs, 1, err));
	assert_ok(tmesh_engine_bind(graph, inputs, 2, outputs, 1, &binding, err));
	assert_ok(tmesh_engine_binding_dispatch(binding, err));
	tmesh_engine_binding_unref(binding);
	/* One that is not open, and is gone when it is closed. */
	other = open_graph(context, file("other"));
	unlink(path_of("other"));
	tmesh_engine_graph_unref(other);
	tmesh_engine_tensor_unref(inputs[0].tensor);
	tmesh_engine_tensor_unref(inputs[1].tensor);
	tmesh_engine_tensor_unref(outputs[0].tensor);
}

/* @closes: who looks closes a graph; else it opens one. */
static void test_dead(bool closes)
{
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph;
	struct tmesh_ctx *ctx;
	struct looker own;
	pthread_t thread;
	void *failed;

	assert_int_equal(sem_init(&asked, 0, 0), 0);
	assert_int_equal(sem_init(&answered, 0, 0), 0);
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_engine_context_create(ctx, "fake", NULL, &context, err));
	graph = open_graph(context, file("graph"));
	own = (struct looker){.context = context};
	strcpy(own.path, file("new"));
	if (closes)
		own.graph = open_graph(context, own.path);
	tmesh_engine_graph_unref(open_graph(context, file("dead")));
	assert_int_equal(stats(context).sessions, closes ? 3 : 2);

	atomic_store(&dead, true);
	assert_int_equal(pthread_create(&thread, NULL, look, &own), 0);
	while (sem_wait(&asked))
		;
	others_go_on(ctx, context, graph);
	/* The file system answers: the file is gone, as is the other, which nobody looked at. */
	atomic_store(&dead, false);
	unlink(path_of("dead"));
	sem_post(&answered);
	pthread_join(thread, &failed);
	assert_null(failed);
	assert_int_equal(stats(context).sessions, 2);
	assert_int_equal(stats(context).sessions_evicted, 0);
	if (!closes)
		tmesh_engine_graph_unref(own.graph);
	tmesh_engine_graph_unref(graph);
	assert_int_equal(stats(context).sessions, 2);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(ctx);
	sem_destroy(&asked);
	sem_destroy(&answered);
}

static void test_dead_open(void **state)
{
	test_dead(false);
}

static void test_dead_close(void **state)
{
	test_dead(true);
}

/* Who looked finds what another has opened meanwhile, and opens no second one. */
static void test_opened_meanwhile(void **state)
{
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph;
	struct tmesh_ctx *ctx;
	struct looker own;
	pthread_t thread;
	void *failed;

	assert_int_equal(sem_init(&asked, 0, 0), 0);
	assert_int_equal(sem_init(&answered, 0, 0), 0);
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_engine_context_create(ctx, "fake", NULL, &context, err));
	own = (struct looker){.context = context};
	strcpy(own.path, file("new"));
	tmesh_engine_graph_unref(open_graph(context, file("dead")));
	atomic_store(&dead, true);
	assert_int_equal(pthread_create(&thread, NULL, look, &own), 0);
	while (sem_wait(&asked))
		;
	graph = open_graph(context, own.path);
	atomic_store(&dead, false);
	sem_post(&answered);
	pthread_join(thread, &failed);
	assert_null(failed);
	assert_int_equal(stats(context).sessions, 2);
	assert_int_equal(stats(context).sessions_opened, 2);
	assert_int_equal(stats(context).session_hits, 1);
	tmesh_engine_graph_unref(own.graph);
	tmesh_engine_graph_unref(graph);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(ctx);
	sem_destroy(&asked);
	sem_destroy(&answered);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dead_open),
		cmocka_unit_test(test_dead_close),
		cmocka_unit_test(test_opened_meanwhile),
	};
	char command[64];
	int failed;

	if (!mkdtemp(folder))
		return 1;
	failed = cmocka_run_group_tests_name("sessions", tests, NULL, NULL);
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command) || failed;
}
