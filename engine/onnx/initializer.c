// SPDX-License-Identifier: MIT
/*
 * The initializers of a model's file. ONNX Runtime accepts any replacement of one. It reports
 * neither an unknown name nor a wrong type, and its kernels trust both. So this file reads the
 * initializers' names, types and shapes from the model: a protobuf message (onnx.proto of
 * https://github.com/onnx/onnx, encoding https://protobuf.dev/programming-guides/encoding/). It
 * skips everything else and trusts nothing.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnx_internal.h"

enum {
	MODEL_GRAPH = 7,
	GRAPH_INITIALIZER = 5,
	TENSOR_DIMS = 1,
	TENSOR_TYPE = 2,
	TENSOR_NAME = 8,
};

/* Encodings of a field. */
enum {
	VARINT = 0,
	FIXED64 = 1,
	BYTES = 2,
	FIXED32 = 5
};

/* A part of the file, up to @end. */
struct reader {
	FILE *file;
	off_t at;
	off_t end;
};

struct field {
	uint64_t number;
	int wire;
	uint64_t value; /* VARINT: the value. BYTES: the number of bytes that follow */
};

struct initializer {
	char *name; /* NULL: none, or too long for any weight */
	uint64_t type;
	int64_t dims[TMESH_MAX_DIMS];
	size_t ndim; /* may exceed the room */
};

static int broken(struct tmesh_error *err)
{
	return tmesh_fail(err, -EPROTO, "the file is not an ONNX model, or is cut short");
}

static int read_varint(struct reader *reader, uint64_t *out, struct tmesh_error *err)
{
	uint64_t value = 0;

	for (int shift = 0; shift < 64 && reader->at < reader->end; shift += 7) {
		int byte = getc(reader->file);

		if (byte == EOF)
			break;
		reader->at++;
		value |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80)) {
			*out = value;
			return 0;
		}
	}
	return broken(err);
}

static int skip(struct reader *reader, uint64_t bytes, struct tmesh_error *err)
{
	if (bytes > (uint64_t)(reader->end - reader->at) ||
	    fseeko(reader->file, reader->at + (off_t)bytes, SEEK_SET))
		return broken(err);
	reader->at += (off_t)bytes;
	return 0;
}

/* Read the next field. The value of a fixed-size field is skipped. */
static int read_field(struct reader *reader, struct field *field, struct tmesh_error *err)
{
	uint64_t tag;
	int rc = read_varint(reader, &tag, err);

	if (rc)
		return rc;
	field->number = tag >> 3;
	field->wire = (int)(tag & 7);
	field->value = 0;
	switch (field->wire) {
	case VARINT:
		return read_varint(reader, &field->value, err);
	case BYTES:
		rc = read_varint(reader, &field->value, err);
		if (!rc && field->value > (uint64_t)(reader->end - reader->at))
			rc = broken(err);
		return rc;
	case FIXED64:
		return skip(reader, 8, err);
	case FIXED32:
		return skip(reader, 4, err);
	default:
		return broken(err);
	}
}

static void add_dim(struct initializer *found, uint64_t dim)
{
	if (found->ndim < TMESH_MAX_DIMS)
		found->dims[found->ndim] = (int64_t)dim;
	found->ndim++;
}

static int read_name(struct reader *reader, uint64_t bytes, struct initializer *found,
		     struct tmesh_error *err)
{
	free(found->name);
	found->name = NULL;
	if (bytes > PATH_MAX)
		return skip(reader, bytes, err);
	found->name = calloc(1, bytes + 1);
	if (!found->name)
		return tmesh_fail(err, -ENOMEM, "no memory for a name");
	if (fread(found->name, 1, bytes, reader->file) != bytes)
		return broken(err);
	reader->at += (off_t)bytes;
	return 0;
}

/* Read dimensions, which come one by one or several in one field. */
static int read_dims(struct reader *reader, const struct field *field, struct initializer *found,
		     struct tmesh_error *err)
{
	struct reader inner = {reader->file, reader->at, reader->at + (off_t)field->value};
	uint64_t dim;
	int rc = 0;

	if (field->wire == VARINT)
		add_dim(found, field->value);
	while (!rc && field->wire == BYTES && inner.at < inner.end) {
		rc = read_varint(&inner, &dim, err);
		if (!rc)
			add_dim(found, dim);
	}
	if (field->wire == BYTES)
		reader->at = inner.at;
	return rc;
}

static int read_initializer(struct reader *reader, uint64_t bytes, struct initializer *found,
			    struct tmesh_error *err)
{
	struct reader inner = {reader->file, reader->at, reader->at + (off_t)bytes};
	int rc = 0;

	while (!rc && inner.at < inner.end) {
		struct field field;

		rc = read_field(&inner, &field, err);
		if (rc)
			break;
		if (field.number == TENSOR_DIMS)
			rc = read_dims(&inner, &field, found, err);
		else if (field.number == TENSOR_NAME && field.wire == BYTES)
			rc = read_name(&inner, field.value, found, err);
		else if (field.wire == BYTES)
			rc = skip(&inner, field.value, err);
		if (field.number == TENSOR_TYPE && field.wire == VARINT)
			found->type = field.value;
	}
	reader->at = inner.at;
	return rc;
}

/* Check that the given weight of this name, if any, has the initializer's type and shape. */
static int compare(const struct initializer *found, const struct plugin_array *weights,
		   size_t count, bool *seen, struct tmesh_error *err)
{
	for (size_t i = 0; found->name && i < count; i++) {
		const struct plugin_array *weight = &weights[i];

		if (strcmp(found->name, weight->name))
			continue;
		seen[i] = true;
		if (found->type == (uint64_t)onnx_element(weight->dtype) &&
		    found->ndim == (size_t)weight->ndim &&
		    !memcmp(found->dims, weight->shape, found->ndim * sizeof(*found->dims)))
			continue;
		return tmesh_fail(
			err, -EINVAL,
			"weight \"%.100s\": the graph's weight has another dtype or shape",
			weight->name);
	}
	return 0;
}

static int read_graph(struct reader *reader, uint64_t bytes, const struct plugin_array *weights,
		      size_t count, bool *seen, struct tmesh_error *err)
{
	struct reader inner = {reader->file, reader->at, reader->at + (off_t)bytes};
	int rc = 0;

	while (!rc && inner.at < inner.end) {
		struct initializer found = {0};
		struct field field;

		rc = read_field(&inner, &field, err);
		if (rc || field.wire != BYTES)
			continue;
		if (field.number == GRAPH_INITIALIZER) {
			rc = read_initializer(&inner, field.value, &found, err);
			if (!rc)
				rc = compare(&found, weights, count, seen, err);
			free(found.name);
		} else {
			rc = skip(&inner, field.value, err);
		}
	}
	reader->at = inner.at;
	return rc;
}

static int read_model(FILE *file, const struct plugin_array *weights, size_t count, bool *seen,
		      struct tmesh_error *err)
{
	struct reader reader = {.file = file};
	int rc = 0;

	if (fseeko(file, 0, SEEK_END) || (reader.end = ftello(file)) < 0 ||
	    fseeko(file, 0, SEEK_SET))
		return tmesh_fail_errno(err, "the model's file");
	while (!rc && reader.at < reader.end) {
		struct field field;

		rc = read_field(&reader, &field, err);
		if (rc || field.wire != BYTES)
			continue;
		if (field.number == MODEL_GRAPH)
			rc = read_graph(&reader, field.value, weights, count, seen, err);
		else
			rc = skip(&reader, field.value, err);
	}
	return rc;
}

int onnx_check_weights(const char *path, const struct plugin_array *weights, size_t count,
		       struct tmesh_error *err)
{
	bool *seen = calloc(count + 1, sizeof(*seen));
	FILE *file = fopen(path, "re");
	int rc;

	if (!file)
		rc = tmesh_fail_errno(err, path);
	else if (!seen)
		rc = tmesh_fail(err, -ENOMEM, "no memory for %zu weights", count);
	else
		rc = read_model(file, weights, count, seen, err);
	for (size_t i = 0; !rc && i < count; i++)
		if (!seen[i])
			rc = tmesh_fail(err, -ENOENT,
					"weight \"%.100s\": the graph has no such initializer",
					weights[i].name);
	if (file)
		fclose(file);
	free(seen);
	return rc;
}
