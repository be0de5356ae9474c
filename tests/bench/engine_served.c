// SPDX-License-Identifier: MIT
/*
 * What a process for an engine costs: the same graph on the same tensors, bound once, here and by
 * tmesh-engine. One run, alternating, medians. And how long after its engine's death a call fails.
 *
 *     engine_served FOLDER    with dynamic.onnx and weights.onnx of tests/engine/models.py
 *
 * TMESH_ENGINE_PROGRAM names tmesh-engine.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tmesh/engine.h>
#include <unistd.h>

#define ROUNDS 51
#define OPERANDS 8
#define DEATHS 21

static struct tmesh_error err;

#define DO(call)                                                             \
	do {                                                                 \
		if (call) {                                                  \
			fprintf(stderr, "engine_served: %s\n", err.message); \
			exit(1);                                             \
		}                                                            \
	} while (0)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Ends with this process, by its standard input. */
static void serve(const char *folder)
{
	char command[1024], line[64];
	int in[2], out[2];

	snprintf(command, sizeof(command), "exec %s --with-input --models=%s bench",
		 getenv("TMESH_ENGINE_PROGRAM"), folder);
	if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
		exit(1);
	if (!fork()) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		execl("/bin/sh", "sh", "-c", command, NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	if (read(out[0], line, sizeof(line)) < 5 || strncmp(line, "ready", 5)) {
		fprintf(stderr, "engine_served: tmesh-engine did not start\n");
		exit(1);
	}
}

static void value(struct tmesh_engine_context *context, struct tmesh_engine_operand *operand,
		  struct tmesh_engine_value *out)
{
	for (int32_t n = 0; n < operand->ndim; n++)
		if (operand->shape[n] < 0)
			operand->shape[n] = 1;
	out->name = operand->name;
	DO(tmesh_engine_tensor_create(context, operand->dtype, operand->ndim, operand->shape, 0,
				      &out->tensor, &err));
}

static struct tmesh_engine_binding *bind(struct tmesh_engine_context *context, const char *path)
{
	struct tmesh_engine_value inputs[OPERANDS] = {0}, outputs[OPERANDS] = {0};
	struct tmesh_engine_operand operand = {.size = sizeof(operand)};
	struct tmesh_engine_binding *binding;
	struct tmesh_engine_graph *graph;

	DO(tmesh_engine_graph_open(context, path, NULL, &graph, &err));
	for (size_t i = 0; i < tmesh_engine_graph_inputs(graph); i++) {
		DO(tmesh_engine_graph_input(graph, i, &operand, &err));
		value(context, &operand, &inputs[i]);
	}
	for (size_t i = 0; i < tmesh_engine_graph_outputs(graph); i++) {
		DO(tmesh_engine_graph_output(graph, i, &operand, &err));
		value(context, &operand, &outputs[i]);
	}
	DO(tmesh_engine_bind(graph, inputs, tmesh_engine_graph_inputs(graph), outputs,
			     tmesh_engine_graph_outputs(graph), &binding, &err));
	return binding;
}

static double call(struct tmesh_engine_binding *binding, int calls)
{
	double start = now();

	for (int i = 0; i < calls; i++)
		DO(tmesh_engine_binding_dispatch(binding, &err));
	return (now() - start) / calls;
}

static void measure(struct tmesh_engine_context **contexts, const char *folder, const char *model,
		    int calls)
{
	struct tmesh_engine_binding *bindings[2];
	static double us[2][ROUNDS];
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", folder, model);
	for (int i = 0; i < 2; i++)
		bindings[i] = bind(contexts[i], path);
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < 2; i++)
			us[i][round] = call(bindings[i], calls);
	for (int i = 0; i < 2; i++) {
		qsort(us[i], ROUNDS, sizeof(double), compare);
		tmesh_engine_binding_unref(bindings[i]);
	}
	printf("%-14s in process %8.1f us, by process %8.1f us a run: %.2f times, %.1f us added\n",
	       model, us[0][ROUNDS / 2], us[1][ROUNDS / 2], us[1][ROUNDS / 2] / us[0][ROUNDS / 2],
	       us[1][ROUNDS / 2] - us[0][ROUNDS / 2]);
}

static _Atomic double killed_at;

static void *kill_it(void *data)
{
	pid_t pid = (pid_t)tmesh_engine_context_pid(data);

	usleep(50000);
	killed_at = now();
	kill(pid, SIGKILL);
	return NULL;
}

/* Of a call that was running, until it fails; and from there to the result of the next one. */
static void deaths(struct tmesh_engine_context *context, const char *folder)
{
	double failed[DEATHS], back[DEATHS];
	struct tmesh_engine_binding *binding;
	char path[512];
	pthread_t thread;

	snprintf(path, sizeof(path), "%s/weights.onnx", folder);
	binding = bind(context, path);
	for (int i = 0; i < DEATHS;) {
		uint32_t pid;
		int rc;

		call(binding, 1);
		pid = tmesh_engine_context_pid(context);
		pthread_create(&thread, NULL, kill_it, context);
		do
			rc = tmesh_engine_binding_dispatch(binding, &err);
		while (!rc && tmesh_engine_context_pid(context) == pid);
		pthread_join(thread, NULL);
		if (!rc) /* between two calls: none failed */
			continue;
		failed[i] = now() - killed_at;
		call(binding, 1);
		back[i++] = now() - killed_at;
	}
	qsort(failed, DEATHS, sizeof(double), compare);
	qsort(back, DEATHS, sizeof(double), compare);
	printf("from a SIGKILL of the engine to its call's error %.1f ms (at most %.1f), to the "
	       "next "
	       "result %.1f ms\n",
	       failed[DEATHS / 2] / 1e3, failed[DEATHS - 1] / 1e3, back[DEATHS / 2] / 1e3);
	tmesh_engine_binding_unref(binding);
}

int main(int argc, char **argv)
{
	struct tmesh_engine_context *contexts[2];
	struct tmesh_ctx *ctx;

	if (argc != 2) {
		fprintf(stderr, "usage: engine_served FOLDER\n");
		return 2;
	}
	serve(argv[1]);
	DO(tmesh_ctx_open(NULL, &ctx, &err));
	DO(tmesh_engine_context_create(ctx, "onnx", NULL, &contexts[0], &err));
	DO(tmesh_engine_connect(ctx, "bench", NULL, &contexts[1], &err));
	measure(contexts, argv[1], "dynamic.onnx", 500);
	measure(contexts, argv[1], "weights.onnx", 20);
	deaths(contexts[1], argv[1]);
	return 0;
}
