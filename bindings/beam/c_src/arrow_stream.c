/* SPDX-License-Identifier: MIT */
/*
 * A table as an ArrowArrayStream (Arrow's C Stream Interface), for native code in this VM such as
 * Explorer's and ADBC's.
 *
 * The buffers are the binaries of Tmesh.Arrow. An environment of the stream keeps them until the
 * consumer has released the stream and every array and schema of it. Children count too, since a
 * consumer may move one out of its parent.
 *
 * A consumer may release in any thread, also where no destructor of a binary can run. So the
 * janitor frees the environment, and is woken at once.
 */
#include "common/arrow_abi.h"
#include "nif.h"

#define MAX_DEPTH 128

struct table {
	ErlNifEnv *env;
	ERL_NIF_TERM schema; /* {format, name, flags, children, dictionary or nil} */
	ERL_NIF_TERM
	batches; /* those not yet given, each {length, nulls, buffers, children, ...} */
	struct garbage *garbage;
	atomic_uint users;
};

static void drop_table(void *object)
{
	struct table *table = object;

	enif_free_env(table->env);
	free(table);
}

static struct table *table_get(struct table *table)
{
	atomic_fetch_add(&table->users, 1);
	return table;
}

static void table_put(struct table *table)
{
	if (atomic_fetch_sub(&table->users, 1) == 1)
		garbage_leave_anywhere(table->garbage, table);
}

/* Schemas. Each schema owns what its pointers refer to. */

static void schema_release(struct ArrowSchema *self)
{
	struct table *table = self->private_data;

	for (int64_t i = 0; i < self->n_children; i++) {
		if (self->children[i] && self->children[i]->release)
			self->children[i]->release(self->children[i]);
		free(self->children[i]);
	}
	if (self->dictionary && self->dictionary->release)
		self->dictionary->release(self->dictionary);
	free(self->dictionary);
	free(self->children);
	free((char *)self->format);
	free((char *)self->name);
	self->release = NULL;
	table_put(table);
}

static char *copy_text(ErlNifEnv *env, ERL_NIF_TERM term)
{
	ErlNifBinary binary;

	if (!enif_inspect_binary(env, term, &binary))
		return NULL;
	return strndup((const char *)binary.data, binary.size);
}

static bool is_nil(ErlNifEnv *env, ERL_NIF_TERM term)
{
	return enif_is_identical(term, atoms.nil);
}

/* On failure @out is empty. */
static int schema_build(struct table *table, ERL_NIF_TERM term, int depth, struct ArrowSchema *out)
{
	const ERL_NIF_TERM *part;
	ERL_NIF_TERM list, head;
	ErlNifSInt64 flags;
	unsigned int count;
	int arity, rc = 0;

	if (depth > MAX_DEPTH || !enif_get_tuple(table->env, term, &arity, &part) || arity != 5 ||
	    !enif_get_int64(table->env, part[2], &flags) ||
	    !enif_get_list_length(table->env, part[3], &count))
		return EINVAL;
	*out = (struct ArrowSchema){
		.format = copy_text(table->env, part[0]),
		.name = copy_text(table->env, part[1]),
		.flags = flags,
		.children = calloc(count + 1, sizeof(struct ArrowSchema *)),
		.release = schema_release,
		.private_data = table_get(table),
	};
	if (!out->format || !out->name || !out->children)
		rc = ENOMEM;
	list = part[3];
	while (!rc && enif_get_list_cell(table->env, list, &head, &list)) {
		struct ArrowSchema *child = calloc(1, sizeof(*child));

		rc = child ? schema_build(table, head, depth + 1, child) : ENOMEM;
		out->children[out->n_children++] = child;
	}
	if (!rc && !is_nil(table->env, part[4])) {
		out->dictionary = calloc(1, sizeof(*out->dictionary));
		rc = out->dictionary ? schema_build(table, part[4], depth + 1, out->dictionary)
				     : ENOMEM;
	}
	if (rc)
		schema_release(out);
	return rc;
}

/* Arrays. */

static void array_release(struct ArrowArray *self)
{
	struct table *table = self->private_data;

	for (int64_t i = 0; i < self->n_children; i++) {
		if (self->children[i] && self->children[i]->release)
			self->children[i]->release(self->children[i]);
		free(self->children[i]);
	}
	if (self->dictionary && self->dictionary->release)
		self->dictionary->release(self->dictionary);
	free(self->dictionary);
	free(self->children);
	free(self->buffers);
	self->release = NULL;
	table_put(table);
}

static int get_buffers(struct table *table, ERL_NIF_TERM list, struct ArrowArray *out)
{
	/* The target of an empty buffer's pointer, for consumers that do not expect NULL. */
	static const int64_t nothing[2];
	ErlNifBinary binary;
	ERL_NIF_TERM head;

	while (enif_get_list_cell(table->env, list, &head, &list)) {
		if (!enif_inspect_binary(table->env, head, &binary))
			return EINVAL;
		/* No bitmap: nothing is null. */
		if (binary.size)
			out->buffers[out->n_buffers] = binary.data;
		else
			out->buffers[out->n_buffers] = out->n_buffers ? nothing : NULL;
		out->n_buffers++;
	}
	return 0;
}

static int array_build(struct table *table, ERL_NIF_TERM term, int depth, struct ArrowArray *out)
{
	const ERL_NIF_TERM *part;
	unsigned int buffers, count;
	ErlNifSInt64 length, nulls;
	ERL_NIF_TERM list, head;
	int arity, rc;

	if (depth > MAX_DEPTH || !enif_get_tuple(table->env, term, &arity, &part) || arity != 5 ||
	    !enif_get_int64(table->env, part[0], &length) ||
	    !enif_get_int64(table->env, part[1], &nulls) ||
	    !enif_get_list_length(table->env, part[2], &buffers) ||
	    !enif_get_list_length(table->env, part[3], &count))
		return EINVAL;
	*out = (struct ArrowArray){
		.length = length,
		.null_count = nulls,
		.buffers = calloc(buffers + 1, sizeof(void *)),
		.children = calloc(count + 1, sizeof(struct ArrowArray *)),
		.release = array_release,
		.private_data = table_get(table),
	};
	rc = out->buffers && out->children ? get_buffers(table, part[2], out) : ENOMEM;
	list = part[3];
	while (!rc && enif_get_list_cell(table->env, list, &head, &list)) {
		struct ArrowArray *child = calloc(1, sizeof(*child));

		rc = child ? array_build(table, head, depth + 1, child) : ENOMEM;
		out->children[out->n_children++] = child;
	}
	if (!rc && !is_nil(table->env, part[4])) {
		out->dictionary = calloc(1, sizeof(*out->dictionary));
		rc = out->dictionary ? array_build(table, part[4], depth + 1, out->dictionary)
				     : ENOMEM;
	}
	if (rc)
		array_release(out);
	return rc;
}

/* The stream. */

static int get_schema(struct ArrowArrayStream *self, struct ArrowSchema *out)
{
	struct table *table = self->private_data;

	return schema_build(table, table->schema, 0, out);
}

static int get_next(struct ArrowArrayStream *self, struct ArrowArray *out)
{
	struct table *table = self->private_data;
	ERL_NIF_TERM head, rest;
	int rc;

	if (!enif_get_list_cell(table->env, table->batches, &head, &rest)) {
		*out = (struct ArrowArray){0};
		return 0;
	}
	rc = array_build(table, head, 0, out);
	if (!rc)
		table->batches = rest;
	return rc;
}

static const char *get_last_error(struct ArrowArrayStream *self)
{
	return NULL;
}

static void stream_release(struct ArrowArrayStream *self)
{
	self->release = NULL;
	table_put(self->private_data);
}

/* Release the stream if its consumer did not. */
void arrow_stream_dtor(ErlNifEnv *env, void *object)
{
	struct ArrowArrayStream *stream = object;

	if (stream->release)
		stream->release(stream);
}

/* Build the schema and every batch once, so that a mistake is reported now. */
static int check(struct table *table)
{
	ERL_NIF_TERM list = table->batches, head;
	struct ArrowSchema schema;
	struct ArrowArray array;
	unsigned int count;
	int rc;

	if (!enif_get_list_length(table->env, list, &count))
		return EINVAL;
	rc = schema_build(table, table->schema, 0, &schema);
	if (rc)
		return rc;
	schema_release(&schema);
	while (enif_get_list_cell(table->env, list, &head, &list)) {
		rc = array_build(table, head, 0, &array);
		if (rc)
			return rc;
		array_release(&array);
	}
	return 0;
}

static struct table *table_new(ERL_NIF_TERM schema, ERL_NIF_TERM batches)
{
	struct table *table = calloc(1, sizeof(*table));

	if (!table)
		return NULL;
	table->garbage = garbage_alloc(drop_table);
	table->env = enif_alloc_env();
	if (!table->garbage || !table->env) {
		garbage_free(table->garbage);
		if (table->env)
			enif_free_env(table->env);
		free(table);
		return NULL;
	}
	table->users = 1;
	table->schema = enif_make_copy(table->env, schema);
	table->batches = enif_make_copy(table->env, batches);
	return table;
}

/* arrow_stream(schema, batches) -> {ok, {address, resource}} */
NIF(arrow_stream)
{
	struct table *table = table_new(argv[0], argv[1]);
	struct ArrowArrayStream *stream;
	ERL_NIF_TERM term;
	int rc;

	rc = table ? check(table) : ENOMEM;
	if (rc) {
		if (table)
			table_put(table);
		return make_refusal(env, -rc,
				    rc == ENOMEM ? "no memory for a stream"
						 : "no table, or one nested too deep for a stream");
	}
	stream = enif_alloc_resource(arrow_stream_type, sizeof(*stream));
	*stream = (struct ArrowArrayStream){
		.get_schema = get_schema,
		.get_next = get_next,
		.get_last_error = get_last_error,
		.release = stream_release,
		.private_data = table,
	};
	term = enif_make_resource(env, stream);
	enif_release_resource(stream);
	return make_ok(env, enif_make_tuple2(env, enif_make_uint64(env, (uintptr_t)stream), term));
}
