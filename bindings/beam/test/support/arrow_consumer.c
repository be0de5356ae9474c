/* SPDX-License-Identifier: MIT */
/*
 * Native code that takes an ArrowArrayStream, for the tests of Tmesh.Arrow.stream_pointer/1. It
 * walks everything in the stream by Arrow's C Stream Interface, and releases it in the requested
 * order and thread.
 */
#include <erl_nif.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/arrow_abi.h"

struct job {
	struct ArrowArrayStream stream;
	char text[8192]; /* what there was */
	int64_t sum;	 /* of columns of int64 */
	bool orphans;	 /* children are moved out, and outlive their parents */
};

static void describe(struct job *job, const struct ArrowSchema *schema)
{
	size_t used = strlen(job->text);

	snprintf(job->text + used, sizeof(job->text) - used, "%s=%s%s", schema->name,
		 schema->format, schema->n_children ? "(" : " ");
	for (int64_t i = 0; i < schema->n_children; i++)
		describe(job, schema->children[i]);
	if (schema->dictionary)
		describe(job, schema->dictionary);
	if (schema->n_children)
		strncat(job->text, ") ", sizeof(job->text) - strlen(job->text) - 1);
}

static void add(struct job *job, const struct ArrowSchema *schema, const struct ArrowArray *array)
{
	const uint8_t *valid = array->n_buffers ? array->buffers[0] : NULL;

	for (int64_t i = 0; !strcmp(schema->format, "l") && i < array->length; i++)
		if (!valid || valid[i / 8] >> (i % 8) & 1)
			job->sum += ((const int64_t *)array->buffers[1])[i];
	for (int64_t i = 0; i < array->n_children; i++)
		add(job, schema->children[i], array->children[i]);
}

static void take(struct job *job, const struct ArrowSchema *schema, struct ArrowArray *array)
{
	struct ArrowArray child;

	if (!job->orphans) {
		add(job, schema, array);
		array->release(array);
		return;
	}
	for (int64_t i = 0; i < schema->n_children; i++) {
		if (!array->release)
			break;
		child = *array->children[i];
		array->children[i]->release = NULL;
		if (i + 1 == schema->n_children)
			array->release(array);
		add(job, schema->children[i], &child);
		child.release(&child);
	}
	if (array->release)
		array->release(array);
}

static void *run(void *data)
{
	struct job *job = data;
	struct ArrowSchema schema;
	struct ArrowArray array;

	if (job->stream.get_schema(&job->stream, &schema))
		return NULL;
	describe(job, &schema);
	while (!job->stream.get_next(&job->stream, &array) && array.release)
		take(job, &schema, &array);
	job->stream.release(&job->stream);
	schema.release(&schema);
	return NULL;
}

/* consume(address, children_outlive_parents, in_a_thread_of_its_own) -> {schema, sum} */
static ERL_NIF_TERM consume(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
	ERL_NIF_TERM yes = enif_make_atom(env, "true"), text;
	static struct job job;
	ErlNifUInt64 address;
	pthread_t thread;

	if (!enif_get_uint64(env, argv[0], &address))
		return enif_make_badarg(env);
	/* To take a stream is to copy its structure and to mark the old one as released. */
	job = (struct job){.stream = *(struct ArrowArrayStream *)address,
			   .orphans = enif_is_identical(argv[1], yes)};
	((struct ArrowArrayStream *)address)->release = NULL;
	if (enif_is_identical(argv[2], yes)) {
		if (pthread_create(&thread, NULL, run, &job))
			return enif_make_badarg(env);
		pthread_join(thread, NULL);
	} else {
		run(&job);
	}
	memcpy(enif_make_new_binary(env, strlen(job.text), &text), job.text, strlen(job.text));
	return enif_make_tuple2(env, text, enif_make_int64(env, job.sum));
}

static ErlNifFunc functions[] = {{"consume", 3, consume, 0}};

ERL_NIF_INIT(Elixir.Tmesh.ArrowConsumer, functions, NULL, NULL, NULL, NULL)
