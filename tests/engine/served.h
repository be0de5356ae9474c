/* SPDX-License-Identifier: MIT */
/*
 * tmesh-engine (TMESH_ENGINE_PROGRAM) with the engine "fake", served as "unit", and a client of it:
 * for the tests of engines in processes of their own.
 */
#ifndef TMESH_TEST_SERVED_H
#define TMESH_TEST_SERVED_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tmesh/engine.h>

#include "unit.h"

#define FLAGS (TMESH_ENGINE_READABLE | TMESH_ENGINE_WRITABLE | TMESH_ENGINE_EXPORTABLE)
#define CLIENTS 4
#define MS UINT64_C(1000000)

static const int64_t shape_x[] = {2, 4}, shape_b[] = {4};
static char folder[] = "/tmp/tmesh-served-XXXXXX";
static pid_t supervisor;
static int input = -1;
static const char *served_limit = "--limit=0.5";

static inline const char *file(const char *name, const char *text)
{
	static char path[128];
	FILE *out;

	snprintf(path, sizeof(path), "%s/models/%s", folder, name);
	out = fopen(path, "w");
	assert_non_null(out);
	fputs(text, out);
	fclose(out);
	return path;
}

/* tmesh-engine with these arguments, up to a NULL; its first line is in @line. */
static inline pid_t run_program(char *const *argv, int *stdin_end, char *line, size_t size)
{
	int out[2], in[2];
	ssize_t got;
	pid_t pid;

	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	pid = fork();
	if (!pid) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		execv(getenv("TMESH_ENGINE_PROGRAM"), argv);
		_exit(127);
	}
	close(out[1]);
	close(in[0]);
	got = read(out[0], line, size - 1);
	line[got > 0 ? got : 0] = '\0';
	close(out[0]);
	*stdin_end = in[1];
	return pid;
}

static inline void end_program(pid_t pid, int stdin_end)
{
	int status;

	close(stdin_end);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline int serve(void **state)
{
	char models[64], line[64];
	char *argv[] = {(char *)"tmesh-engine",
			(char *)"--engine=fake",
			(char *)"--clients=4",
			(char *)served_limit,
			(char *)"--with-input",
			(char *)"--models",
			models,
			(char *)"unit",
			NULL};

	snprintf(models, sizeof(models), "%s/models", folder);
	supervisor = run_program(argv, &input, line, sizeof(line));
	return strcmp(line, "ready unit\n");
}

static inline int unserve(void **state)
{
	end_program(supervisor, input);
	return 0;
}

struct fixture {
	struct tmesh_ctx *ctx;
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph;
	struct tmesh_engine_tensor *x, *b, *y;
	struct tmesh_engine_value inputs[2], outputs[1];
};

/* With a context, graph and tensors of it. */
static inline void fill(struct fixture *fix)
{
	const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[4] = {10, 20, 30, 40};

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
}

static inline void join(struct fixture *fix, uint64_t timeout_ns)
{
	const struct tmesh_engine_connect_opts opts = {.size = sizeof(opts),
						       .timeout_ns = timeout_ns};

	assert_ok(tmesh_ctx_open(NULL, &fix->ctx, err));
	assert_ok(tmesh_engine_connect(fix->ctx, "unit", &opts, &fix->context, err));
	fill(fix);
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

static inline int setup(void **state)
{
	*state = calloc(1, sizeof(struct fixture));
	join(*state, 0);
	return 0;
}

static inline int teardown(void **state)
{
	leave(*state);
	free(*state);
	return 0;
}

static inline int dispatch(struct fixture *fix, struct tmesh_error *err)
{
	return tmesh_engine_dispatch(fix->graph, fix->inputs, 2, fix->outputs, 1, err);
}

static inline int dispatch_of(struct fixture *fix, const char *mode, struct tmesh_error *error)
{
	struct tmesh_engine_graph *graph;
	int rc;

	assert_ok(tmesh_engine_graph_open(fix->context, file(mode, mode), NULL, &graph, err));
	rc = tmesh_engine_dispatch(graph, fix->inputs, 2, fix->outputs, 1, error);
	tmesh_engine_graph_unref(graph);
	return rc;
}

static inline void assert_y(struct fixture *fix)
{
	float y[8];

	assert_ok(tmesh_engine_tensor_read(fix->y, y, sizeof(y), err));
	for (int i = 0; i < 8; i++)
		assert_true(y[i] == (float)(i + 1 + 10 * (i % 4 + 1)));
	memset(y, 0, sizeof(y));
	assert_ok(tmesh_engine_tensor_write(fix->y, y, sizeof(y), err));
}

static inline void assert_works(struct fixture *fix)
{
	assert_ok(dispatch(fix, err));
	assert_y(fix);
}

/* In main(), around the groups. */
static inline int make_folder(void)
{
	char path[64];

	if (!mkdtemp(folder))
		return 1;
	snprintf(path, sizeof(path), "%s/models", folder);
	return mkdir(path, 0700);
}

static inline int remove_folder(void)
{
	char path[64];

	snprintf(path, sizeof(path), "rm -rf %s", folder);
	return system(path);
}

#endif /* TMESH_TEST_SERVED_H */
