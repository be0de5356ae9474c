// SPDX-License-Identifier: MIT
/*
 * The cost that libtmesh-engine adds to ONNX Runtime's own calls, both measured in turn. The graph
 * is one Add of 4 floats, so that the call alone counts. Each sample is the mean of CALLS.
 *
 *     engine MODEL    tests/engine/models.py's dynamic.onnx
 */
#include <tmesh/engine.h>

#include "harness.h"
#include "onnx/onnx_internal.h"

#define ROUNDS 101
#define CALLS 2000

static struct tmesh_error err;

#define DO(call)                                                      \
	do {                                                          \
		if (call) {                                           \
			fprintf(stderr, "engine: %s\n", err.message); \
			exit(1);                                      \
		}                                                     \
	} while (0)
#define ORT(call)                                                                    \
	do {                                                                         \
		if (call) {                                                          \
			fprintf(stderr, "engine: ONNX Runtime failed: " #call "\n"); \
			exit(1);                                                     \
		}                                                                    \
	} while (0)

static const int64_t shape[] = {1, 4};
static const char *const names[] = {"a", "b", "sum"};

/* ONNX Runtime without us. */
static struct ort_api ort;
static struct ort_session *session;
static struct ort_io_binding *own;
static struct ort_value *values[3];

/* With us. */
static struct tmesh_engine_graph *graph;
static struct tmesh_engine_value inputs[2], output;
static struct tmesh_engine_binding *binding;

static void own_prebound(void)
{
	ORT(ort.run_binding(session, NULL, own));
}

static void own_named(void)
{
	struct ort_io_binding *io;

	ORT(ort.create_binding(session, &io));
	ORT(ort.bind_input(io, names[0], values[0]));
	ORT(ort.bind_input(io, names[1], values[1]));
	ORT(ort.bind_output(io, names[2], values[2]));
	ORT(ort.run_binding(session, NULL, io));
	ort.release_binding(io);
}

static void ours_prebound(void)
{
	DO(tmesh_engine_binding_dispatch(binding, &err));
}

static void ours_named(void)
{
	DO(tmesh_engine_dispatch(graph, inputs, 2, &output, 1, &err));
}

static void set_up(const char *model)
{
	struct ort_session_options *options;
	struct tmesh_engine_context *context;
	struct ort_memory_info *memory;
	struct tmesh_ctx *ctx;
	struct ort_env *env;
	const char *version;

	DO(tmesh_ctx_open(NULL, &ctx, &err));
	DO(tmesh_engine_context_create(ctx, "onnx", NULL, &context, &err));
	DO(tmesh_engine_graph_open(context, model, NULL, &graph, &err));
	DO(onnx_library(NULL, &ort, &version, &err));
	ORT(ort.create_env(ORT_LOG_FATAL, "bench", &env));
	ORT(ort.create_options(&options));
	ORT(ort.intra_threads(options, 1));
	ORT(ort.inter_threads(options, 1));
	ORT(ort.config(options, "session.disable_prepacking", "1"));
	ORT(ort.create_session(env, model, options, &session));
	ORT(ort.create_cpu_memory(ORT_DEVICE_ALLOCATOR, ORT_MEMORY_DEFAULT, &memory));
	ORT(ort.create_binding(session, &own));
	for (int i = 0; i < 3; i++) {
		struct tmesh_engine_value *value = i < 2 ? &inputs[i] : &output;
		struct tmesh_engine_tensor_info info = {.size = sizeof(info)};

		value->name = names[i];
		DO(tmesh_engine_tensor_create(context, TMESH_FLOAT32, 2, shape, 0, &value->tensor,
					      &err));
		DO(tmesh_engine_tensor_info(value->tensor, &info, &err));
		ORT(ort.create_value(memory, (void *)info.address, info.bytes, shape, 2,
				     ORT_ELEMENT_FLOAT, &values[i]));
		ORT((i < 2 ? ort.bind_input : ort.bind_output)(own, names[i], values[i]));
	}
	DO(tmesh_engine_bind(graph, inputs, 2, &output, 1, &binding, &err));
	printf("# ONNX Runtime %s\n", version);
}

int main(int argc, char **argv)
{
	static struct series series[] = {{.name = "onnxruntime-bound"},
					 {.name = "bound"},
					 {.name = "onnxruntime-named"},
					 {.name = "named"}};
	static void (*const ways[])(void) = {own_prebound, ours_prebound, own_named, ours_named};

	if (argc != 2) {
		fprintf(stderr, "usage: engine MODEL\n");
		return 2;
	}
	set_up(argv[1]);
	for (int round = 0; round < ROUNDS; round++)
		for (int way = 0; way < 4; way++) {
			uint64_t start = now_ns();

			for (int i = 0; i < CALLS; i++)
				ways[way]();
			series_add(&series[way], (now_ns() - start) / CALLS);
		}
	for (int way = 0; way < 4; way++)
		series_print("engine", &series[way]);
	return 0;
}
