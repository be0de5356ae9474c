// SPDX-License-Identifier: MIT
/*
 * The cost of an engine in a process of its own: the same graph on the same tensors, bound once,
 * here and by tmesh-engine, in turn. After the engine's death: the time until a call fails, and
 * until the next result. And the time until the first result of an engine that is started.
 *
 *     engine_served FOLDER    with dynamic.onnx and weights.onnx of tests/engine/models.py
 *
 * TMESH_ENGINE_PROGRAM names tmesh-engine.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <tmesh/engine.h>

#include "harness.h"

#define ROUNDS 51
#define OPERANDS 8
#define DEATHS 21
#define LOG "build/bench/engine_served.log"

static struct tmesh_error err;

#define DO(call)                                                             \
	do {                                                                 \
		if (call) {                                                  \
			fprintf(stderr, "engine_served: %s\n", err.message); \
			exit(1);                                             \
		}                                                            \
	} while (0)

/* Return a descriptor: the program ends when it is closed. */
static int serve(const char *folder, const char *name)
{
	char command[1024], line[64];
	int in[2], out[2];

	snprintf(command, sizeof(command), "exec %s --with-input --models=%s %s 2>" LOG,
		 getenv("TMESH_ENGINE_PROGRAM"), folder, name);
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
		fprintf(stderr,
			"engine_served: tmesh-engine did not start; " LOG " has its reason\n");
		exit(1);
	}
	close(out[0]);
	return in[1];
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

static struct tmesh_engine_binding *bind_graph(struct tmesh_engine_context *context,
					       const char *path)
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

static uint64_t call(struct tmesh_engine_binding *binding, int calls)
{
	uint64_t start = now_ns();

	for (int i = 0; i < calls; i++)
		DO(tmesh_engine_binding_dispatch(binding, &err));
	return (now_ns() - start) / (uint64_t)calls;
}

static void measure(struct tmesh_engine_context **contexts, const char *folder, const char *model,
		    int calls, const char *here, const char *there)
{
	static struct series series[2];
	struct tmesh_engine_binding *bindings[2];
	char path[512];

	series[0] = (struct series){.name = here};
	series[1] = (struct series){.name = there};
	snprintf(path, sizeof(path), "%s/%s", folder, model);
	for (int i = 0; i < 2; i++)
		bindings[i] = bind_graph(contexts[i], path);
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < 2; i++)
			series_add(&series[i], call(bindings[i], calls));
	for (int i = 0; i < 2; i++) {
		tmesh_engine_binding_unref(bindings[i]);
		series_print("engine", &series[i]);
	}
}

/* The time to the first result of a process that is started for it. */
static void cold(struct tmesh_ctx *ctx, const char *folder)
{
	static struct series series = {.name = "cold-start"};
	char path[512];

	snprintf(path, sizeof(path), "%s/weights.onnx", folder);
	for (int i = 0; i < DEATHS; i++) {
		uint64_t start = now_ns();
		int ends = serve(folder, "cold");
		struct tmesh_engine_context *context;
		struct tmesh_engine_binding *binding;

		DO(tmesh_engine_connect(ctx, "cold", NULL, &context, &err));
		binding = bind_graph(context, path);
		call(binding, 1);
		series_add(&series, now_ns() - start);
		tmesh_engine_binding_unref(binding);
		tmesh_engine_context_unref(context);
		close(ends);
		wait(NULL);
	}
	series_print("engine", &series);
}

static _Atomic uint64_t killed_at;

static void *kill_it(void *data)
{
	pid_t pid = (pid_t)tmesh_engine_context_pid(data);

	usleep(50000);
	killed_at = now_ns();
	kill(pid, SIGKILL);
	return NULL;
}

/* The time from the engine's death until the running call fails; and from there to the result of
 * the next one. */
static void deaths(struct tmesh_engine_context *context, const char *folder)
{
	static struct series failed = {.name = "death"}, back = {.name = "restart"};
	struct tmesh_engine_binding *binding;
	char path[512];
	pthread_t thread;

	snprintf(path, sizeof(path), "%s/weights.onnx", folder);
	binding = bind_graph(context, path);
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
		series_add(&failed, now_ns() - killed_at);
		call(binding, 1);
		series_add(&back, now_ns() - killed_at);
		i++;
	}
	series_print("engine", &failed);
	series_print("engine", &back);
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
	serve(argv[1], "bench");
	DO(tmesh_ctx_open(NULL, &ctx, &err));
	DO(tmesh_engine_context_create(ctx, "onnx", NULL, &contexts[0], &err));
	DO(tmesh_engine_connect(ctx, "bench", NULL, &contexts[1], &err));
	measure(contexts, argv[1], "dynamic.onnx", 500, "short", "short-by-process");
	measure(contexts, argv[1], "weights.onnx", 20, "long", "long-by-process");
	deaths(contexts[1], argv[1]);
	cold(ctx, argv[1]);
	return 0;
}
