// SPDX-License-Identifier: MIT
/* Graphs to measure with: as text of tmesh/graph.h, and as ONNX models, which are protobuf. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "costs_internal.h"

#define CHAIN 64 /* elements */

static bool chain_text(FILE *file, uint32_t nodes)
{
	fprintf(file, "graph chain\nx = input : float32[1,%d]\nn0 = add(x, x)\n", CHAIN);
	for (uint32_t i = 1; i < nodes; i++)
		fprintf(file, "n%u = add(n%u, x)\n", i, i - 1);
	return fprintf(file, "output y = n%u\n", nodes - 1) > 0;
}

static bool matmul_text(FILE *file, const struct tmesh_costs_rate *sizes)
{
	return fprintf(file,
		       "graph product\nx = input : float32[%u,%u]\nw = input : float32[%u,%u]\n"
		       "h = matmul(x, w)\noutput y = h\n",
		       sizes->rows, sizes->inner, sizes->columns, sizes->inner) > 0;
}

static void varint(FILE *file, uint64_t value)
{
	for (; value > 127; value >>= 7)
		fputc((int)(value & 127) | 128, file);
	fputc((int)value, file);
}

static void number(FILE *file, uint32_t field, uint64_t value)
{
	varint(file, field << 3);
	varint(file, value);
}

static void bytes(FILE *file, uint32_t field, const void *data, size_t count)
{
	varint(file, field << 3 | 2);
	varint(file, count);
	fwrite(data, 1, count, file);
}

static void text(FILE *file, uint32_t field, const char *value)
{
	bytes(file, field, value, strlen(value));
}

/* A message inside of another: written by @fill, then as a field of @file. */
struct inside {
	FILE *file;
	char *data;
	size_t count;
};

static bool begin(struct inside *inside)
{
	inside->data = NULL;
	inside->file = open_memstream(&inside->data, &inside->count);
	return inside->file;
}

static void end(struct inside *inside, FILE *file, uint32_t field)
{
	fclose(inside->file);
	if (inside->data)
		bytes(file, field, inside->data, inside->count);
	free(inside->data);
}

/* ValueInfoProto: a tensor of float32. */
static bool operand(FILE *graph, uint32_t field, const char *name, uint32_t rows, uint32_t columns)
{
	struct inside value, type, tensor, shape, dim;
	const uint32_t dims[] = {rows, columns};

	if (!begin(&value))
		return false;
	text(value.file, 1, name);
	if (begin(&type)) {
		if (begin(&tensor)) {
			number(tensor.file, 1, 1);
			if (begin(&shape)) {
				for (int i = 0; i < 2; i++) {
					if (!begin(&dim))
						continue;
					number(dim.file, 1, dims[i]);
					end(&dim, shape.file, 1);
				}
				end(&shape, tensor.file, 2);
			}
			end(&tensor, type.file, 1);
		}
		end(&type, value.file, 2);
	}
	end(&value, graph, field);
	return true;
}

static bool node(FILE *graph, const char *op, const char *a, const char *b, const char *out)
{
	struct inside node;

	if (!begin(&node))
		return false;
	text(node.file, 1, a);
	text(node.file, 1, b);
	text(node.file, 2, out);
	text(node.file, 4, op);
	end(&node, graph, 1);
	return true;
}

static bool model(FILE *file, struct inside *graph)
{
	struct inside opset;

	text(graph->file, 2, "graph");
	number(file, 1, 8); /* ir_version */
	end(graph, file, 7);
	if (!begin(&opset))
		return false;
	text(opset.file, 1, "");
	number(opset.file, 2, 13);
	end(&opset, file, 8);
	return true;
}

static bool chain_onnx(FILE *file, uint32_t nodes)
{
	struct inside graph;
	char before[16] = "x", name[16];
	bool good = begin(&graph);

	if (!good)
		return false;
	for (uint32_t i = 0; i < nodes; i++) {
		snprintf(name, sizeof(name), i + 1 < nodes ? "n%u" : "y", i);
		good &= node(graph.file, "Add", before, "x", name);
		strcpy(before, name);
	}
	good &= operand(graph.file, 11, "x", 1, CHAIN);
	good &= operand(graph.file, 12, "y", 1, CHAIN);
	return model(file, &graph) && good;
}

static bool matmul_onnx(FILE *file, const struct tmesh_costs_rate *sizes)
{
	struct inside graph;
	bool good = begin(&graph);

	if (!good)
		return false;
	good &= node(graph.file, "MatMul", "x", "w", "y");
	good &= operand(graph.file, 11, "x", sizes->rows, sizes->inner);
	good &= operand(graph.file, 11, "w", sizes->inner, sizes->columns);
	good &= operand(graph.file, 12, "y", sizes->rows, sizes->columns);
	return model(file, &graph) && good;
}

static bool finish(struct costs_model *model, FILE *file, bool good)
{
	good &= !ferror(file);
	good &= !fclose(file);
	if (good && model->data)
		return true;
	free(model->data);
	return false;
}

bool costs_chain(struct costs_model *model, const char *reads, uint32_t nodes)
{
	FILE *file = open_memstream(&model->data, &model->bytes);

	return file &&
	       finish(model, file,
		      strcmp(reads, "onnx") ? chain_text(file, nodes) : chain_onnx(file, nodes));
}

bool costs_matmul(struct costs_model *model, const char *reads,
		  const struct tmesh_costs_rate *sizes)
{
	FILE *file = open_memstream(&model->data, &model->bytes);

	return file &&
	       finish(model, file,
		      strcmp(reads, "onnx") ? matmul_text(file, sizes) : matmul_onnx(file, sizes));
}
