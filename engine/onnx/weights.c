// SPDX-License-Identifier: MIT
/*
 * Give weights to ONNX Runtime, and check that it uses them. It takes the bytes of the model's file
 * in place of a weight in two cases, and reports that in its log alone:
 *
 *  - An optimization computes with the weight: the folding of constants, the fusion of a
 *    convolution with what follows it.
 *  - The weight lies on a GPU and its kernel reads it on the host, or the other way round.
 *
 * So the log has to name each weight as used. Otherwise the session is made again, without
 * optimizations or with the weight in the other memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "onnx_internal.h"

/* A session is made again at most so often: each time with another plan. */
#define ATTEMPTS 4

enum {
	SILENT = 0,
	USED,
	REFUSED,
	REMOVED
};

struct onnx_weight {
	const struct plugin_array *array;
	struct ort_value *value;
	_Atomic int state; /* as the log has it */
	bool on_host;	   /* on a GPU's engine: its kernel reads it on the host */
};

struct onnx_weights {
	struct onnx_weight *all;
	size_t count;
	atomic_bool listens;
	bool plain; /* without optimizations */
	int attempts;
};

int onnx_weights_make(const struct plugin_session_opts *opts, struct onnx_weights **out,
		      struct tmesh_error *err)
{
	struct onnx_weights *weights = calloc(1, sizeof(*weights));

	if (weights)
		weights->all = calloc(opts->weight_count + 1, sizeof(*weights->all));
	if (!weights || !weights->all) {
		free(weights);
		return tmesh_fail(err, -ENOMEM, "no memory for %zu weights", opts->weight_count);
	}
	weights->count = opts->weight_count;
	for (size_t i = 0; i < weights->count; i++)
		weights->all[i].array = &opts->weights[i];
	*out = weights;
	return 0;
}

static void release_values(const struct onnx_engine *engine, struct onnx_weights *weights)
{
	for (size_t i = 0; i < weights->count; i++) {
		if (weights->all[i].value)
			engine->ort.release_value(weights->all[i].value);
		weights->all[i].value = NULL;
	}
}

void onnx_weights_free(const struct onnx_engine *engine, struct onnx_weights *weights)
{
	if (!weights)
		return;
	release_values(engine, weights);
	free(weights->all);
	free(weights);
}

static void note(struct onnx_weights *weights, const char *text, const char *after, int state)
{
	for (size_t i = 0; i < weights->count; i++) {
		const char *name = weights->all[i].array->name;
		size_t length = strlen(name);

		if (!strncmp(text, name, length) && !strncmp(text + length, after, strlen(after))) {
			atomic_store(&weights->all[i].state, state);
			return;
		}
	}
}

/* Read a line of the session's log. */
static void hear(void *data, int severity, const char *category, const char *id, const char *where,
		 const char *message)
{
	static const struct {
		const char *before, *after;
		int state;
	} lines[] = {
		{"Using user supplied initializer with name (", ")", USED},
		{"Cannot use user supplied initializer with name: (", ") ", REFUSED},
		{"Removing initializer '", "'", REMOVED},
	};
	struct onnx_weights *weights = data;

	if (!message || !atomic_load(&weights->listens))
		return;
	for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
		size_t length = strlen(lines[i].before);

		if (!strncmp(message, lines[i].before, length))
			note(weights, message + length, lines[i].after, lines[i].state);
	}
}

static int add_weight(const struct onnx_engine *engine, struct ort_session_options *options,
		      struct onnx_weight *weight, struct tmesh_error *err)
{
	struct plugin_array array = *weight->array;
	const struct ort_memory_info *memory = engine->memory;
	int rc;

	if (weight->on_host) {
		memory = engine->host_memory;
		array.data = array.host;
	}
	rc = onnx_value(engine, memory, &array, &weight->value, err);
	if (!rc)
		rc = onnx_check(engine,
				engine->ort.add_initializer(options, array.name, weight->value),
				array.name, err);
	return rc;
}

int onnx_weights_add(const struct onnx_engine *engine, struct ort_session_options *options,
		     struct onnx_weights *weights, struct tmesh_error *err)
{
	int rc = 0;

	if (!weights->count)
		return 0;
	release_values(engine, weights);
	weights->attempts++;
	for (size_t i = 0; i < weights->count; i++)
		atomic_store(&weights->all[i].state, SILENT);
	atomic_store(&weights->listens, true);
	rc = onnx_check(engine, engine->ort.log_function(options, hear, weights), "options", err);
	if (!rc)
		rc = onnx_check(engine, engine->ort.log_severity(options, ORT_LOG_INFO), "options",
				err);
	if (!rc && weights->plain)
		rc = onnx_check(engine, engine->ort.optimize(options, ORT_OPTIMIZE_NOTHING),
				"options", err);
	for (size_t i = 0; !rc && i < weights->count; i++)
		rc = add_weight(engine, options, &weights->all[i], err);
	return rc;
}

static int fail_unused(const struct onnx_weight *weight, struct tmesh_error *err)
{
	return tmesh_fail(err, -EOPNOTSUPP,
			  "weight \"%.100s\": ONNX Runtime does not use it and takes the file's "
			  "bytes; write the weight into the model's file",
			  weight->array->name);
}

int onnx_weights_check(const struct onnx_engine *engine, struct onnx_weights *weights, bool *again,
		       struct tmesh_error *err)
{
	bool plain = weights->plain;

	*again = false;
	atomic_store(&weights->listens, false);
	for (size_t i = 0; i < weights->count; i++) {
		struct onnx_weight *weight = &weights->all[i];
		int state = atomic_load(&weight->state);

		/* Without optimizations ONNX Runtime removes weights that no operator reads. */
		if (state == USED || (state == REMOVED && plain))
			continue;
		if (weights->attempts == ATTEMPTS || (state == SILENT && plain) ||
		    (state == REFUSED && !engine->on_gpu))
			return fail_unused(weight, err);
		if (state == REFUSED)
			weight->on_host = !weight->on_host;
		else
			weights->plain = true;
		*again = true;
	}
	return 0;
}
