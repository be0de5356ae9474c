// SPDX-License-Identifier: MIT
/*
 * A stand-in for a build of ONNX Runtime with the CUDA execution provider: the functions of its
 * table that the engine "onnx" calls. Its one model is y = x + b, x[2, 4] and b[4] of float32,
 * whatever the file has. As on a GPU a run is queued: it has happened when its outputs were waited
 * for. Memory is the driver's stand-in's, which is the host's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnx/ort_api.h"
#include "standin_onnxruntime.h"

#define ROWS 2
#define COLUMNS 4
#define NAMES 3
#define TABLE 512

struct ort_status {
	int code;
	char message[96];
};

struct ort_memory_info {
	char name[16];
	int id;
};

struct ort_value {
	struct ort_memory_info memory;
	void *data;
	size_t bytes;
};

#define WEIGHTS 4

struct ort_session_options {
	int device; /* -1: the CPU */
	int severity, level;
	ort_log_function *log;
	void *log_data;
	const char *names[WEIGHTS];
	struct ort_value weights[WEIGHTS];
	int weight_count;
};

struct ort_session {
	int device;
};

struct ort_cuda_options {
	int device;
};

struct ort_io_binding {
	const struct ort_session *session;
	struct ort_value of[NAMES];
	bool queued;
};

static const char *const names[NAMES] = {"x", "b", "y"};
static struct ort_standin told = {.appended = -1};
static char nothing;

ort_standin_fn ort_standin;

struct ort_standin *ort_standin(void)
{
	return &told;
}

static struct ort_status *refuse(int code, const char *message)
{
	struct ort_status *status = malloc(sizeof(*status));

	status->code = code;
	snprintf(status->message, sizeof(status->message), "%s", message);
	told.live++;
	return status;
}

/* Where the test wants it, and nothing is made. */
static struct ort_status *enter(const char *symbol)
{
	if (!told.fails || strcmp(told.fails, symbol) != 0)
		return NULL;
	told.fails = NULL;
	return refuse(ORT_CODE_INVALID_ARGUMENT, symbol);
}

static void *make(size_t bytes)
{
	told.live++;
	return calloc(1, bytes);
}

static void end(void *object)
{
	if (!object)
		abort();
	told.live--;
	free(object);
}

#define ENTER(symbol)                                   \
	do {                                            \
		struct ort_status *why = enter(symbol); \
		if (why)                                \
			return why;                     \
	} while (0)

static int error_code(const struct ort_status *status)
{
	return status->code;
}

static const char *error_message(const struct ort_status *status)
{
	return status->message;
}

static struct ort_status *create_env(int level, const char *id, struct ort_env **out)
{
	ENTER("CreateEnv");
	*out = make(1);
	return NULL;
}

static struct ort_status *providers(char ***out, int *count)
{
	static char *all[] = {"CUDAExecutionProvider", "CPUExecutionProvider"};

	ENTER("GetAvailableProviders");
	*out = told.without ? all + 1 : all;
	*count = told.without ? 1 : 2;
	told.live++;
	return NULL;
}

static struct ort_status *release_providers(char **all, int count)
{
	told.live--;
	return NULL;
}

static struct ort_status *create_options(struct ort_session_options **out)
{
	ENTER("CreateSessionOptions");
	*out = make(sizeof(**out));
	(*out)->device = -1;
	(*out)->level = 99;
	(*out)->severity = ORT_LOG_FATAL;
	return NULL;
}

static struct ort_status *log_severity(struct ort_session_options *options, int severity)
{
	options->severity = severity;
	return NULL;
}

static struct ort_status *optimize(struct ort_session_options *options, int level)
{
	options->level = level;
	return NULL;
}

static struct ort_status *log_function(struct ort_session_options *options, ort_log_function *log,
				       void *data)
{
	ENTER("SetUserLoggingFunction");
	options->log = log;
	options->log_data = data;
	return NULL;
}

static struct ort_status *add_initializer(struct ort_session_options *options, const char *name,
					  const struct ort_value *value)
{
	ENTER("AddInitializer");
	options->names[options->weight_count] = name;
	options->weights[options->weight_count++] = *value;
	return NULL;
}

static struct ort_status *run_log_severity(struct ort_run_options *options, int severity)
{
	return NULL;
}

static struct ort_status *threads(struct ort_session_options *options, int count)
{
	return NULL;
}

static struct ort_status *config(struct ort_session_options *options, const char *key,
				 const char *value)
{
	return NULL;
}

static struct ort_status *create_cuda(struct ort_cuda_options **out)
{
	ENTER("CreateCUDAProviderOptions");
	*out = make(sizeof(**out));
	(*out)->device = -1;
	return NULL;
}

static struct ort_status *update_cuda(struct ort_cuda_options *options, const char *const *keys,
				      const char *const *values, size_t count)
{
	ENTER("UpdateCUDAProviderOptions");
	if (count != 1 || strcmp(keys[0], "device_id") != 0)
		return refuse(ORT_CODE_INVALID_ARGUMENT, "the stand-in knows device_id alone");
	options->device = atoi(values[0]);
	return NULL;
}

static struct ort_status *append_cuda(struct ort_session_options *options,
				      const struct ort_cuda_options *cuda)
{
	ENTER("SessionOptionsAppendExecutionProvider_CUDA_V2");
	options->device = told.appended = cuda->device;
	return NULL;
}

static struct ort_status *create_memory(const char *name, int allocator, int id, int type,
					struct ort_memory_info **out)
{
	ENTER("CreateMemoryInfo");
	*out = make(sizeof(**out));
	snprintf((*out)->name, sizeof((*out)->name), "%s", name);
	(*out)->id = id;
	return NULL;
}

static struct ort_status *create_cpu_memory(int allocator, int type, struct ort_memory_info **out)
{
	ENTER("CreateCpuMemoryInfo");
	*out = make(sizeof(**out));
	snprintf((*out)->name, sizeof((*out)->name), "Cpu");
	return NULL;
}

static struct ort_status *default_allocator(struct ort_allocator **out)
{
	*out = (struct ort_allocator *)&nothing;
	return NULL;
}

static struct ort_status *free_text(struct ort_allocator *allocator, void *text)
{
	end(text);
	return NULL;
}

static bool is_name(const char *name, const char *wanted)
{
	return wanted && !strcmp(name, wanted);
}

/* As ONNX Runtime does: a weight is used, or the log has why not. */
static void use_weight(const struct ort_session_options *options, int i)
{
	const char *name = options->names[i],
		   *before = "Using user supplied initializer with name (", *after = ").";
	bool on_host = is_name(name, told.on_host);
	char line[128];

	if (is_name(name, told.folded) && options->level != ORT_OPTIMIZE_NOTHING) {
		before = "Removing initializer '";
		after = "'. It is no longer used by any node.";
	} else if (on_host != !strcmp(options->weights[i].memory.name, "Cpu")) {
		before = "Cannot use user supplied initializer with name: (";
		after = ") because it lies elsewhere";
	} else {
		told.weights++;
	}
	if (on_host)
		told.first = *(const float *)options->weights[i].data;
	snprintf(line, sizeof(line), "%s%s%s", before, name, after);
	if (options->log && options->severity <= ORT_LOG_INFO && !told.says_nothing)
		options->log(options->log_data, ORT_LOG_INFO, "", "", "", line);
}

static struct ort_status *create_session(const struct ort_env *env, const char *path,
					 const struct ort_session_options *options,
					 struct ort_session **out)
{
	ENTER("CreateSession");
	*out = make(sizeof(**out));
	(*out)->device = options->device;
	told.sessions++;
	told.weights = 0;
	for (int i = 0; i < options->weight_count; i++)
		use_weight(options, i);
	return NULL;
}

static struct ort_status *input_count(const struct ort_session *session, size_t *count)
{
	*count = NAMES - 1;
	return NULL;
}

static struct ort_status *output_count(const struct ort_session *session, size_t *count)
{
	*count = 1;
	return NULL;
}

static struct ort_status *name_of(size_t index, char **out)
{
	*out = make(2);
	(*out)[0] = names[index][0];
	return NULL;
}

static struct ort_status *input_name(const struct ort_session *session, size_t index,
				     struct ort_allocator *allocator, char **out)
{
	return name_of(index, out);
}

static struct ort_status *output_name(const struct ort_session *session, size_t index,
				      struct ort_allocator *allocator, char **out)
{
	return name_of(NAMES - 1 + index, out);
}

/* A type, and the objects that it is cast to: the operand's place in @names. */
static struct ort_status *input_type(const struct ort_session *session, size_t index,
				     struct ort_type_info **out)
{
	size_t *made = make(sizeof(*made));

	*made = index;
	*out = (struct ort_type_info *)made;
	return NULL;
}

static struct ort_status *output_type(const struct ort_session *session, size_t index,
				      struct ort_type_info **out)
{
	return input_type(session, NAMES - 1 + index, out);
}

static struct ort_status *onnx_type(const struct ort_type_info *type, int *out)
{
	*out = ORT_TYPE_TENSOR;
	return NULL;
}

static struct ort_status *cast_tensor(const struct ort_type_info *type,
				      const struct ort_tensor_info **out)
{
	*out = (const struct ort_tensor_info *)type;
	return NULL;
}

static struct ort_status *element_type(const struct ort_tensor_info *info, int *out)
{
	*out = ORT_ELEMENT_FLOAT;
	return NULL;
}

static struct ort_status *count_dims(const struct ort_tensor_info *info, size_t *out)
{
	*out = *(const size_t *)info == 1 ? 1 : 2;
	return NULL;
}

static struct ort_status *dims(const struct ort_tensor_info *info, int64_t *out, size_t count)
{
	if (count > 1)
		*out++ = ROWS;
	*out = COLUMNS;
	return NULL;
}

static struct ort_status *dim_names(const struct ort_tensor_info *info, const char **out,
				    size_t count)
{
	return NULL;
}

static struct ort_status *create_run(struct ort_run_options **out)
{
	*out = make(1);
	return NULL;
}

static struct ort_status *terminate(struct ort_run_options *options)
{
	return NULL;
}

static struct ort_status *create_value(const struct ort_memory_info *memory, void *data,
				       size_t bytes, const int64_t *shape, size_t ndim, int element,
				       struct ort_value **out)
{
	ENTER("CreateTensorWithDataAsOrtValue");
	*out = make(sizeof(**out));
	**out = (struct ort_value){.memory = *memory, .data = data, .bytes = bytes};
	return NULL;
}

static struct ort_status *value_data(struct ort_value *value, void **out)
{
	*out = value->data;
	return NULL;
}

static struct ort_status *value_type(const struct ort_value *value, struct ort_tensor_info **out)
{
	struct ort_type_info *type;

	input_type(NULL, value->bytes == COLUMNS * sizeof(float) ? 1 : 0, &type);
	*out = (struct ort_tensor_info *)type;
	return NULL;
}

static struct ort_status *create_binding(struct ort_session *session, struct ort_io_binding **out)
{
	ENTER("CreateIoBinding");
	*out = make(sizeof(**out));
	(*out)->session = session;
	return NULL;
}

static struct ort_status *bind_one(struct ort_io_binding *binding, const char *name,
				   const struct ort_value *value)
{
	size_t i = 0;

	while (strcmp(names[i], name) != 0)
		i++;
	binding->of[i] = *value;
	told.elsewhere += strcmp(value->memory.name, "Cuda") != 0 ||
			  value->memory.id != binding->session->device;
	return NULL;
}

static struct ort_status *bind_input(struct ort_io_binding *binding, const char *name,
				     const struct ort_value *value)
{
	ENTER("BindInput");
	return bind_one(binding, name, value);
}

static struct ort_status *bind_output(struct ort_io_binding *binding, const char *name,
				      const struct ort_value *value)
{
	ENTER("BindOutput");
	return bind_one(binding, name, value);
}

static struct ort_status *run_binding(struct ort_session *session,
				      const struct ort_run_options *options,
				      const struct ort_io_binding *binding)
{
	ENTER("RunWithBinding");
	((struct ort_io_binding *)binding)->queued = true;
	return NULL;
}

static struct ort_status *wait_outputs(struct ort_io_binding *binding)
{
	const float *x = binding->of[0].data, *b = binding->of[1].data;
	float *y = binding->of[2].data;

	ENTER("SynchronizeBoundOutputs");
	told.waits++;
	for (int i = 0; binding->queued && i < ROWS * COLUMNS; i++)
		y[i] = x[i] + b[i % COLUMNS];
	binding->queued = false;
	return NULL;
}

static struct ort_status *bound_outputs(const struct ort_io_binding *binding,
					struct ort_allocator *allocator, struct ort_value ***out,
					size_t *count)
{
	ENTER("GetBoundOutputValues");
	*count = 1;
	*out = make(sizeof(**out));
	**out = make(sizeof(***out));
	***out = binding->of[NAMES - 1];
	return NULL;
}

static const void *const *get_api(uint32_t version)
{
	static const void *table[TABLE];

#define PUT(place, function) table[place] = (const void *)(function)
	/* The table has no function that these tests never call. */
	PUT(1, error_code);
	PUT(2, error_message);
	PUT(3, create_env);
	PUT(7, create_session);
	PUT(10, create_options);
	PUT(22, log_severity);
	PUT(23, optimize);
	PUT(24, threads);
	PUT(25, threads);
	PUT(30, input_count);
	PUT(31, output_count);
	PUT(33, input_type);
	PUT(34, output_type);
	PUT(36, input_name);
	PUT(37, output_name);
	PUT(39, create_run);
	PUT(41, run_log_severity);
	PUT(46, terminate);
	PUT(47, terminate);
	PUT(49, create_value);
	PUT(51, value_data);
	PUT(55, cast_tensor);
	PUT(56, onnx_type);
	PUT(60, element_type);
	PUT(61, count_dims);
	PUT(62, dims);
	PUT(63, dim_names);
	PUT(65, value_type);
	PUT(68, create_memory);
	PUT(69, create_cpu_memory);
	PUT(76, free_text);
	PUT(78, default_allocator);
	for (int place = 92; place <= 100; place++)
		PUT(place, end);
	PUT(125, providers);
	PUT(126, release_providers);
	PUT(130, config);
	PUT(133, run_binding);
	PUT(134, create_binding);
	PUT(135, end);
	PUT(136, bind_input);
	PUT(137, bind_output);
	PUT(140, bound_outputs);
	PUT(150, add_initializer);
	PUT(203, wait_outputs);
	PUT(204, append_cuda);
	PUT(205, create_cuda);
	PUT(206, update_cuda);
	PUT(208, end);
	PUT(266, log_function);
	return table;
}

static const char *version(void)
{
	return "stand-in";
}

const struct ort_api_base *OrtGetApiBase(void);

const struct ort_api_base *OrtGetApiBase(void)
{
	static const struct ort_api_base base = {get_api, version};

	return &base;
}
