// SPDX-License-Identifier: MIT
/*
 * Graphs as text, a line for each node; "#" begins a comment:
 *
 *   graph g
 *   x = input : float32[1,4]
 *   w = weight quant=Q8_0 : float32[8,32]
 *   h = rms_norm(x) eps=1e-05 : float32[1,4]
 *   output y = h
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/numbers.h"
#include "graph_internal.h"

#define LINE 2048
#define BLANKS " \t\r"

struct line {
	size_t number;
	char text[LINE];
	char *at;
	struct tmesh_error *err;
};

static int wrong(const struct line *line, const char *what)
{
	return tmesh_fail(line->err, -EPROTO, "line %zu: %s", line->number, what);
}

/* Return the next word, up to a blank or one of "()=,:", which stays in the line. NULL: there is
 * none. */
static const char *word(struct line *line)
{
	size_t length;
	char *start;

	line->at += strspn(line->at, BLANKS);
	length = strcspn(line->at, BLANKS "()=,:");
	start = line->at;
	line->at += length;
	return length ? strndup(start, length) : NULL;
}

static bool line_skip_mark(struct line *line, char mark)
{
	line->at += strspn(line->at, BLANKS);
	if (*line->at != mark)
		return false;
	line->at++;
	return true;
}

static bool at_end(struct line *line)
{
	line->at += strspn(line->at, BLANKS);
	return !*line->at;
}

static bool read_number(const char *text, int64_t most, int64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoll(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end && !errno && *out <= most;
}

static bool read_float(const char *text, float *out)
{
	char *end;

	/* strtof() would also take hexadecimal, "nan" and "inf". */
	*out = strtof(text, &end);
	return *text && strspn(text, "0123456789.+-eE") == strlen(text) && !*end && isfinite(*out);
}

/* Read a list such as "0,2,1". */
static bool read_list(struct line *line, int64_t most, int64_t *out, int32_t *count)
{
	bool good = true;

	for (*count = 0; good && *count < TMESH_MAX_DIMS; (*count)++) {
		size_t length = strspn(line->at, "0123456789");
		char digits[24] = "";

		if (length < sizeof(digits))
			memcpy(digits, line->at, length);
		good = read_number(digits, most, &out[*count]);
		line->at += length;
		if (!line_skip_mark(line, ',')) {
			(*count)++;
			return good;
		}
	}
	return false;
}

/* Read a type such as "float32[1,4]" or "float32[]". */
static int read_type(struct line *line, struct tmesh_graph_node *node)
{
	size_t length;
	char name[16] = "";

	line->at += strspn(line->at, BLANKS);
	length = strcspn(line->at, "[");
	if (length < sizeof(name))
		memcpy(name, line->at, length);
	line->at += length;
	node->dtype = graph_dtype(name);
	if (!node->dtype || !line_skip_mark(line, '['))
		return wrong(line, "a type is as float32[1,4]");
	if (line_skip_mark(line, ']'))
		return 0;
	if (!read_list(line, GRAPH_MAX_ELEMENTS, node->shape, &node->ndim) ||
	    !line_skip_mark(line, ']'))
		return wrong(line, "a type is as float32[1,4]");
	return 0;
}

static int read_value(struct line *line, const char *key, struct tmesh_graph_node *node)
{
	int64_t number = 0, list[TMESH_MAX_DIMS] = {0};
	int32_t count;
	const char *text;
	bool good;

	if (!strcmp(key, "axes")) {
		good = read_list(line, TMESH_MAX_DIMS - 1, list, &count);
		for (int i = 0; good && i < count; i++)
			node->axes[i] = (int32_t)list[i];
		return good ? 0 : wrong(line, "axes are as axes=1,0");
	}
	text = word(line);
	if (!text)
		return wrong(line, "a value is missing after \"=\"");
	good = false;
	if (!strcmp(key, "eps")) {
		good = read_float(text, &node->eps);
	} else if (!strcmp(key, "scale")) {
		good = read_float(text, &node->scale);
	} else if (!strcmp(key, "base")) {
		good = read_float(text, &node->base);
	} else if (!strcmp(key, "dims")) {
		good = read_number(text, UINT32_MAX, &number);
		node->dims = (uint32_t)number;
	} else if (!strcmp(key, "axis")) {
		good = read_number(text, TMESH_MAX_DIMS - 1, &number);
		node->axis = (int32_t)number;
	} else if (!strcmp(key, "halves")) {
		node->halves = !strcmp(text, "true");
		good = node->halves || !strcmp(text, "false");
	} else if (!strcmp(key, "quant")) {
		node->quant = graph_quant(text) ? graph_quant(text)->name : NULL;
		good = node->quant;
	} else if (!strcmp(key, "cache")) {
		good = graph_cache(text) >= 0;
		node->cache = good ? (enum tmesh_graph_cache)graph_cache(text) : 0;
	}
	free((char *)text);
	return good ? 0 : wrong(line, "no such attribute, or not such a value");
}

static int read_inputs(struct line *line, struct draft_node *draft)
{
	if (!line_skip_mark(line, '('))
		return 0;
	do {
		if (draft->node.input_count == TMESH_GRAPH_MAX_INPUTS)
			return wrong(line, "too many inputs");
		draft->inputs[draft->node.input_count] = (char *)word(line);
		if (!draft->inputs[draft->node.input_count])
			return wrong(line, "an input's name is missing");
		draft->node.input_count++;
	} while (line_skip_mark(line, ','));
	return line_skip_mark(line, ')') ? 0 : wrong(line, "\")\" is missing");
}

static int read_node(struct line *line, struct draft_node *draft)
{
	const char *op = word(line);
	int rc;

	draft->node.op = tmesh_graph_op_from_name(op);
	if (!draft->node.op)
		rc = tmesh_fail(line->err, -EPROTO, "line %zu: there is no operator \"%.32s\"",
				line->number, op ?: "");
	else
		rc = read_inputs(line, draft);
	free((char *)op);
	while (!rc && !at_end(line)) {
		const char *key = NULL;

		if (line_skip_mark(line, ':')) {
			rc = read_type(line, &draft->node);
			return rc || at_end(line) ? rc : wrong(line, "more than a node");
		}
		key = word(line);
		rc = key && line_skip_mark(line, '=') ? read_value(line, key, &draft->node)
						      : wrong(line, "attributes are as eps=1e-05");
		free((char *)key);
	}
	return rc;
}

static int read_output(struct line *line, struct draft *draft)
{
	const char *name = word(line), *node = NULL;
	int rc;

	if (name && line_skip_mark(line, '='))
		node = word(line);
	rc = node && at_end(line) ? draft_add_output(draft, name, node, line->err)
				  : wrong(line, "an output is as \"output y = h\"");
	free((char *)name);
	free((char *)node);
	return rc;
}

static int read_line(struct line *line, struct draft *draft)
{
	struct draft_node *node;
	const char *first;
	int rc = 0;

	line->text[strcspn(line->text, "#")] = '\0';
	line->at = line->text;
	if (at_end(line))
		return 0;
	first = word(line);
	if (!first)
		return wrong(line, "a name is missing");
	if (!draft->name) {
		draft->name = strcmp(first, "graph") ? NULL : (char *)word(line);
		rc = draft->name && at_end(line)
			     ? 0
			     : wrong(line, "a graph begins with \"graph NAME\"");
	} else if (line_skip_mark(line, '=')) {
		node = draft_add(draft, line->err);
		if (!node) {
			free((char *)first);
			return line->err->code;
		}
		node->node.name = first;
		return read_node(line, node);
	} else {
		rc = strcmp(first, "output") ? wrong(line, "a node is as \"h = matmul(x, w)\"")
					     : read_output(line, draft);
	}
	free((char *)first);
	return rc;
}

static int read_lines(const char *text, size_t bytes, struct draft *draft, struct tmesh_error *err)
{
	struct line line = {.err = err};
	int rc = 0;

	for (size_t at = 0; !rc && at < bytes;) {
		const char *end = memchr(text + at, '\n', bytes - at);
		size_t length = end ? (size_t)(end - text) - at : bytes - at;

		line.number++;
		if (length >= LINE || memchr(text + at, '\0', length))
			return wrong(&line,
				     "this is not a graph: a line is too long, or has a NUL");
		memcpy(line.text, text + at, length);
		line.text[length] = '\0';
		rc = read_line(&line, draft);
		at += length + 1;
	}
	if (!rc && !draft->name)
		rc = tmesh_fail(err, -EPROTO, "this is not a graph: the text is empty");
	return rc;
}

int graph_read_text(const char *text, size_t bytes, struct draft *draft, struct tmesh_error *err)
{
	locale_t before = tmesh_numbers_begin();
	int rc = before ? read_lines(text, bytes, draft, err)
			: tmesh_fail(err, -ENOMEM, "no memory for a graph");

	tmesh_numbers_end(before);
	return rc;
}

static void write_node(FILE *to, const struct tmesh_graph *graph,
		       const struct tmesh_graph_node *node)
{
	uint32_t attrs = graph_op(node->op)->attrs;
	char shape[GRAPH_SHAPE_TEXT];

	fprintf(to, "%s = %s", node->name, graph_op(node->op)->name);
	for (uint32_t i = 0; i < node->input_count; i++)
		fprintf(to, "%s%s%s", i ? ", " : "(", graph->nodes[node->inputs[i]].name,
			i + 1 == node->input_count ? ")" : "");
	if (attrs & ATTR_EPS)
		fprintf(to, " eps=%.9g", (double)node->eps);
	if (attrs & ATTR_SCALE)
		fprintf(to, " scale=%.9g", (double)node->scale);
	if (attrs & ATTR_BASE)
		fprintf(to, " base=%.9g", (double)node->base);
	if (attrs & ATTR_DIMS)
		fprintf(to, " dims=%u", node->dims);
	if (attrs & ATTR_HALVES)
		fprintf(to, " halves=%s", node->halves ? "true" : "false");
	if (attrs & ATTR_AXIS)
		fprintf(to, " axis=%d", node->axis);
	for (int i = 0; attrs & ATTR_AXES && i < node->ndim; i++)
		fprintf(to, "%s%d", i ? "," : " axes=", node->axes[i]);
	if (node->quant)
		fprintf(to, " quant=%s", node->quant);
	if (node->cache)
		fprintf(to, " cache=%s", graph_cache_name(node->cache));
	fprintf(to, " : %s%s\n", graph_dtype_name(node->dtype), graph_shape_text(node, shape));
}

/* Draw a node as DOT: each result with its operator and the weights that it reads. Names need no
 * escapes. */
static void draw_node(FILE *to, const struct tmesh_graph *graph, uint32_t index)
{
	const struct tmesh_graph_node *node = &graph->nodes[index];
	char shape[GRAPH_SHAPE_TEXT];

	if (node->op == TMESH_GRAPH_WEIGHT)
		return;
	fprintf(to, "\tn%u [shape=%s, label=\"%s\\n%s", index,
		node->op == TMESH_GRAPH_INPUT ? "ellipse" : "box", node->name,
		graph_op(node->op)->name);
	for (uint32_t i = 0; i < node->input_count; i++)
		if (graph->nodes[node->inputs[i]].op == TMESH_GRAPH_WEIGHT)
			fprintf(to, "\\n%s", graph->nodes[node->inputs[i]].name);
	fprintf(to, "\\n%s%s\"];\n", graph_dtype_name(node->dtype), graph_shape_text(node, shape));
	for (uint32_t i = 0; i < node->input_count; i++)
		if (graph->nodes[node->inputs[i]].op != TMESH_GRAPH_WEIGHT)
			fprintf(to, "\tn%u -> n%u;\n", node->inputs[i], index);
}

static char *written(FILE *to, char **text)
{
	bool failed;

	if (!to)
		return NULL;
	failed = ferror(to);
	if (!fclose(to) && !failed)
		return *text;
	free(*text);
	return NULL;
}

char *tmesh_graph_to_text(const struct tmesh_graph *graph)
{
	size_t bytes;
	char *text = NULL;
	locale_t before = tmesh_numbers_begin();
	FILE *to = before ? open_memstream(&text, &bytes) : NULL;

	if (to)
		fprintf(to, "graph %s\n", graph->name);
	for (size_t i = 0; to && i < graph->node_count; i++)
		write_node(to, graph, &graph->nodes[i]);
	for (size_t i = 0; to && i < graph->output_count; i++)
		fprintf(to, "output %s = %s\n", graph->outputs[i].name,
			graph->nodes[graph->outputs[i].node].name);
	tmesh_numbers_end(before);
	return written(to, &text);
}

char *tmesh_graph_to_dot(const struct tmesh_graph *graph)
{
	size_t bytes;
	char *text = NULL;
	FILE *to = open_memstream(&text, &bytes);

	if (to)
		fprintf(to, "digraph \"%s\" {\n", graph->name);
	for (uint32_t i = 0; to && i < graph->node_count; i++)
		draw_node(to, graph, i);
	for (size_t i = 0; to && i < graph->output_count; i++)
		fprintf(to, "\to%zu [shape=ellipse, style=bold, label=\"%s\"];\n\tn%u -> o%zu;\n",
			i, graph->outputs[i].name, graph->outputs[i].node, i);
	if (to)
		fputs("}\n", to);
	return written(to, &text);
}
