// SPDX-License-Identifier: MIT
/* Graphs: building, inference, refusals, and the forms to and fro. */
#include <tmesh/graph.h>

#include "comma.h"

#define MUTATIONS 4000

static const char text[] = "graph g  # a name\n"
			   "x = input : float32[2,64]\n"
			   "pos = input : int32[2]\n"
			   "rows = input : int64[2]\n"
			   "past = input cache=reuse : float16[16,64]\n"
			   "table = weight quant=Q8_0 : float32[10,64]\n"
			   "w = weight : float16[64,64]\n"
			   "s = weight : float32[64]\n"
			   "f = weight : float32[8]\n"
			   "e = get_rows(table, pos)\n"
			   "a = add(x, e)\n"
			   "n = rms_norm(a, s) eps=1e-5 : float32[2,64]\n"
			   "l = layer_norm(n, s, s) eps=0.5\n"
			   "m = matmul(l, w) cache=stream\n"
			   "r3 = reshape(m) : float32[2,4,16]\n"
			   "q = rope(r3, pos, f) base=10000 halves=true\n"
			   "present = set_rows(past, m, rows)\n"
			   "k = reshape(present) : float16[16,4,16]\n"
			   "at = attention(q, k, k, pos)\n"
			   "t = transpose(at) axes=1,0,2\n"
			   "c = concat(t, t) axis=2\n"
			   "si = silu(c)\n"
			   "ge = gelu(si)\n"
			   "mu = mul(ge, si)\n"
			   "kb = reshape(present) : float16[4,4,4,16]\n"
			   "tb = input : int32[2,3]\n"
			   "pg = attention(q, kb, kb, pos, tb, tb)\n"
			   "p2 = set_rows(present, m, rows)\n"
			   "la = input : float16[4,64]\n"
			   "lb = input : float32[64,4]\n"
			   "one = input : float32[1]\n"
			   "lo = lora(m, w, la, lb, one)\n"
			   "y = softmax(mu) scale=0.25\n"
			   "output y = y\n"
			   "output present = present\n";

static struct tmesh_graph *parse(const char *from)
{
	struct tmesh_graph *graph;

	assert_ok(tmesh_graph_parse(from, strlen(from), &graph, err));
	return graph;
}

static struct tmesh_graph_node node(const struct tmesh_graph *graph, const char *name)
{
	struct tmesh_graph_node out = {.size = sizeof(out)};
	uint32_t index;

	assert_ok(tmesh_graph_find(graph, name, &index, err));
	assert_ok(tmesh_graph_node(graph, index, &out, err));
	return out;
}

static void assert_shape(const struct tmesh_graph *graph, const char *name, enum tmesh_dtype dtype,
			 int32_t ndim, const int64_t *shape)
{
	struct tmesh_graph_node is = node(graph, name);

	assert_int_equal(is.dtype, dtype);
	assert_int_equal(is.ndim, ndim);
	assert_memory_equal(is.shape, shape, sizeof(*shape) * (size_t)ndim);
}

/* Every operator, and what it is inferred to be. */
UNIT(test_infer)
{
	struct tmesh_graph *graph = parse(text);
	const char *name;
	uint32_t at;

	assert_string_equal(tmesh_graph_name(graph), "g");
	assert_int_equal(tmesh_graph_nodes(graph), 32);
	assert_shape(graph, "pg", TMESH_FLOAT32, 3, (int64_t[]){2, 4, 16});
	assert_shape(graph, "p2", TMESH_FLOAT16, 2, (int64_t[]){16, 64});
	assert_shape(graph, "lo", TMESH_FLOAT32, 2, (int64_t[]){2, 64});
	assert_shape(graph, "e", TMESH_FLOAT32, 2, (int64_t[]){2, 64});
	assert_shape(graph, "l", TMESH_FLOAT32, 2, (int64_t[]){2, 64});
	assert_shape(graph, "m", TMESH_FLOAT32, 2, (int64_t[]){2, 64});
	assert_shape(graph, "q", TMESH_FLOAT32, 3, (int64_t[]){2, 4, 16});
	assert_shape(graph, "present", TMESH_FLOAT16, 2, (int64_t[]){16, 64});
	assert_shape(graph, "at", TMESH_FLOAT32, 3, (int64_t[]){2, 4, 16});
	assert_shape(graph, "t", TMESH_FLOAT32, 3, (int64_t[]){4, 2, 16});
	assert_shape(graph, "y", TMESH_FLOAT32, 3, (int64_t[]){4, 2, 32});
	assert_int_equal(node(graph, "past").cache, TMESH_GRAPH_CACHE_REUSE);
	assert_string_equal(node(graph, "table").quant, "Q8_0");
	assert_int_equal(node(graph, "q").dims, 16);
	assert_float_equal(node(graph, "y").scale, 0.25, 0);
	assert_int_equal(tmesh_graph_outputs(graph), 2);
	assert_ok(tmesh_graph_output(graph, 1, &at, &name, err));
	assert_string_equal(name, "present");
	assert_refused(tmesh_graph_output(graph, 2, &at, NULL, err), -EINVAL, "no output 2");
	assert_refused(tmesh_graph_find(graph, "z", &at, err), -ENOENT, "no node \"z\"");
	tmesh_graph_unref(graph);
}

/* The text that is written is read again; JSON and DOT have what it has. */
UNIT(test_forms)
{
	struct tmesh_graph *graph = parse(text), *again;
	char *json = tmesh_graph_to_json(graph), *plain = tmesh_graph_to_text(graph);
	char *dot = tmesh_graph_to_dot(graph), *back;

	again = parse(plain);
	back = tmesh_graph_to_text(again);
	assert_string_equal(back, plain);
	free(back);
	back = tmesh_graph_to_json(again);
	assert_string_equal(back, json);
	free(back);
	tmesh_graph_unref(again);
	assert_non_null(strstr(dot, "label=\"m\\nmatmul\\nw\\nfloat32[2,64]\""));
	assert_null(strstr(dot, "weight"));
	free(dot);
	free(plain);
	free(json);
	tmesh_graph_unref(graph);
}

/* Nodes come in any order; a chain as deep as a file may be needs no stack. */
UNIT(test_order)
{
	size_t bytes;
	char *deep = NULL;
	FILE *to = open_memstream(&deep, &bytes);
	struct tmesh_graph *graph;

	fprintf(to, "graph deep\n");
	for (int i = 60000; i; i--)
		fprintf(to, "n%d = silu(n%d)\n", i, i - 1);
	fprintf(to, "n0 = input : float32[1]\noutput y = n60000\n");
	fclose(to);
	graph = parse(deep);
	assert_int_equal(tmesh_graph_nodes(graph), 60001);
	assert_string_equal(node(graph, "n60000").name, "n60000");
	tmesh_graph_unref(graph);
	free(deep);
}

/* In place of a line of @text, which has @name on its left. */
static char *replaced(const char *name, const char *line)
{
	char key[80], *out = malloc(sizeof(text) + 4096);
	const char *at, *end;

	snprintf(key, sizeof(key), "\n%s = ", name);
	at = strstr(text, key);
	assert_non_null(at);
	end = strchr(at + 1, '\n');
	sprintf(out, "%.*s\n%s%s", (int)(at - text), text, line, end);
	return out;
}

UNIT(test_refused)
{
	static const struct {
		const char *name, *line, *word;
	} cases[] = {
		{"a", "a = add(x, y)", "a cycle"},
		{"a", "a = add(x, a)", "a cycle"},
		{"a", "a = add(x, nobody)", "no node \"nobody\""},
		{"a", "a = sub(x, e)", "no operator \"sub\""},
		{"a", "x = add(x, e)", "two nodes \"x\""},
		{"a", "a = add(x)", "takes 2 to 2 inputs, not 1"},
		{"a", "a = add(x, e) eps=1", "add has no attribute eps"},
		{"a", "a = add(x, e) scale=1", "add has no attribute scale"},
		{"a", "a = add(x, e) base=1", "add has no attribute base"},
		{"a", "a = add(x, e) dims=1", "add has no attribute dims"},
		{"a", "a = add(x, e) halves=true", "add has no attribute halves"},
		{"a", "a = add(x, e) axis=1", "add has no attribute axis"},
		{"a", "a = add(x, e) axes=1,0", "add has no attribute axes"},
		{"a", "a = add(x, e) quant=Q8_0", "add has no attribute quant"},
		{"a", "a = add(x, e) colour=red", "no such attribute"},
		{"a", "a = add(x, e) cache=often", "not such a value"},
		{"a", "a = add(x, e) : float32[2,32]", "its description says float32[2,32]"},
		{"a", "a = add(x, e) : float16[2,64]", "its description says float16[2,64]"},
		{"a", "a = add(x, s) : float32[2,64] more", "more than a node"},
		{"a", "a = add(x, s", "\")\" is missing"},
		{"a", "a = add(x, f)", "dimensions of the second"},
		{"a", "a = add(x, past)", "two of float32"},
		{"a", "a! = add(x, e)", "a node's name is"},
		{"x", "x = input : float32[2,-1]", "a type is as"},
		{"x", "x = input : float32[2,0]", "at least 1 is needed"},
		{"x", "x = input : float64[2,64]", "a type is as"},
		{"x", "x = input : float32[16777216,16777216,2]", "2^48"},
		{"x", "x = input : float32[281474976710656,281474976710656]", "2^48"},
		{"x", "x = input : float32[281474976710657]", "a type is as"},
		{"x", "x = input : float32[99999999999999999999]", "a type is as"},
		{"x", "x = input : float32[1,1,1,1,1,1,1,1,1]", "a type is as"},
		{"x", "x = input", "its dtype is"},
		{"x", "x = input quant=Q8_0 : float32[2,64]", "input has no attribute quant"},
		{"table", "table = weight quant=Q9 : float32[10,64]", "not such a value"},
		{"table", "table = weight quant=Q8_0 : float32[10,63]", "a whole number"},
		{"table", "table = weight quant=Q8_0 : float16[10,64]", "blocks are of float32"},
		{"e", "e = get_rows(table, rows)", "rows int32[T]"},
		{"n", "n = rms_norm(a, f) eps=1", "scale and bias"},
		{"n", "n = rms_norm(a, s) eps=-1", "eps is a number"},
		{"n", "n = rms_norm(a, s) eps=1e39", "not such a value"},
		{"n", "n = rms_norm(a, s) eps=nan", "not such a value"},
		{"n", "n = rms_norm(pos) eps=1", "x[..., D] of float32"},
		{"m", "m = matmul(l, f)", "b[..., N, K]"},
		{"m", "m = matmul(past, w)", "a[..., T, K]"},
		{"r3", "r3 = reshape(m) : float32[2,4,15]", "as many elements"},
		{"q", "q = rope(r3, rows)", "positions int32[T]"},
		{"q", "q = rope(r3, pos) dims=3", "dims is even"},
		{"q", "q = rope(r3, pos) dims=18", "dims is even"},
		{"q", "q = rope(r3, pos, s)", "factors"},
		{"q", "q = rope(r3, pos) base=-1", "base is above 0"},
		{"present", "present = set_rows(m, m, rows)", "an input past"},
		{"present", "present = set_rows(past, m, pos)", "rows int64[T]"},
		{"at", "at = attention(q, k, r3, pos)", "k and v[C, G, D]"},
		{"at", "at = attention(q, k, k, rows)", "positions int32[T]"},
		{"t", "t = transpose(at) axes=1,1,2", "each dimension once"},
		{"t", "t = transpose(at) axes=1,0,3", "each dimension once"},
		{"t", "t = transpose(at) axes=1,0,2,3", "more dimensions than x"},
		{"t", "t = transpose(at) axes=,", "axes are as"},
		{"c", "c = concat(t, m) axis=0", "number of dimensions"},
		{"c", "c = concat(t, at) axis=2", "dimensions but axis"},
		{"c", "c = concat(t, t) axis=3", "axis is a dimension"},
		{"c", "c = concat(t,t,t,t,t,t,t,t,t) axis=2", "too many inputs"},
		{"pg", "pg = attention(q, k, k, pos, tb)", "k and v[P, B, G, D]"},
		{"pg", "pg = attention(q, kb, kb, rows, tb)", "positions int32[T]"},
		{"pg", "pg = attention(q, kb, kb, pos, rows)", "int32[S, M]"},
		{"pg", "pg = attention(q, kb, kb, pos, tb, pos)", "int32[S, M]"},
		{"tb", "tb = input : int32[3,2]", "T a multiple of S"},
		{"tb", "tb = input : int32[2,100000000000000]", "more than 2^48"},
		{"p2", "p2 = set_rows(m, m, rows)", "an input past"},
		{"lo", "lo = lora(m, w, lb, lb)", "a[R, K] and b[N, R]"},
		{"lo", "lo = lora(m, w, la, la)", "a[R, K] and b[N, R]"},
		{"lo", "lo = lora(m, s, la, lb)", "w[N, K]"},
		{"lo", "lo = lora(past, w, la, lb)", "x[..., T, K] of float32"},
		{"lo", "lo = lora(m, w, la, lb, s)", "float32[1]"},
		{"lo", "lo = lora(m, w, la)", "4 to 5 inputs"},
		{"y", "output z = nobody", "no node \"nobody\""},
		{"y", "y = silu(m)\noutput present = m", "two outputs \"present\""},
		{"y", "y = silu(m)\noutput w = w", "computes nothing"},
		{"y", "y = silu(m)\noutput z m", "an output is as"},
		{"y", "y", "a node is as"},
	};
	struct tmesh_graph *graph;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *bad = replaced(cases[i].name, cases[i].line);

		assert_refused(tmesh_graph_parse(bad, strlen(bad), &graph, err), -EPROTO,
			       cases[i].word);
		free(bad);
	}
	assert_refused(tmesh_graph_parse("", 0, &graph, err), -EPROTO, "the text is empty");
	assert_refused(tmesh_graph_parse("{}", 2, &graph, err), -EPROTO, "begins with");
	assert_refused(tmesh_graph_parse("grape g", 7, &graph, err), -EPROTO, "begins with");
	assert_refused(tmesh_graph_parse("graph g\n\0", 9, &graph, err), -EPROTO, "NUL");
	assert_refused(tmesh_graph_parse("graph g", (16 << 20) + 1, &graph, err), -E2BIG, "16 MiB");
}

/* By calls: an error leaves the graph as it was. */
UNIT(test_build)
{
	struct tmesh_graph_node x = {.size = sizeof(x),
				     .name = "x",
				     .op = TMESH_GRAPH_INPUT,
				     .dtype = TMESH_FLOAT32,
				     .ndim = 1,
				     .shape = {4}};
	struct tmesh_graph_node y = {.size = sizeof(y),
				     .name = "y",
				     .op = TMESH_GRAPH_SILU,
				     .input_count = 1,
				     .inputs = {0}};
	struct tmesh_graph *graph;
	uint32_t at;

	assert_refused(tmesh_graph_create("a b", &graph, err), -EINVAL, "name");
	assert_ok(tmesh_graph_create("g", &graph, err));
	assert_refused(tmesh_graph_add(graph, &y, &at, err), -EINVAL, "no node 0");
	assert_ok(tmesh_graph_add(graph, &x, &at, err));
	assert_refused(tmesh_graph_add(graph, &x, &at, err), -EINVAL, "two nodes");
	y.reserved = 1;
	assert_refused(tmesh_graph_add(graph, &y, &at, err), -EINVAL, "reserved");
	y.reserved = 0;
	assert_refused(tmesh_graph_add_output(graph, "x", 0, err), -EINVAL, "computes nothing");
	assert_refused(tmesh_graph_add_output(graph, "x", 1, err), -EINVAL, "no node 1");
	y.op = 99;
	assert_refused(tmesh_graph_add(graph, &y, &at, err), -EINVAL, "no such operator");
	y.op = TMESH_GRAPH_SILU;
	y.input_count = 9;
	assert_refused(tmesh_graph_add(graph, &y, &at, err), -EINVAL, "not 9");
	y.input_count = 1;
	y.cache = 7;
	assert_refused(tmesh_graph_add(graph, &y, &at, err), -EINVAL, "cache");
	y.cache = 0;
	x.name = "wide";
	x.ndim = TMESH_MAX_DIMS + 1;
	assert_refused(tmesh_graph_add(graph, &x, &at, err), -EINVAL, "at most 8 dimensions");
	assert_ok(tmesh_graph_add(graph, &y, &at, err));
	assert_int_equal(at, 1);
	assert_refused(tmesh_graph_add_output(graph, "a b", 1, err), -EINVAL, "name");
	assert_ok(tmesh_graph_add_output(graph, "y", at, err));
	assert_int_equal(tmesh_graph_nodes(graph), 2);
	tmesh_graph_unref(tmesh_graph_ref(graph));
	tmesh_graph_unref(graph);
}

/* A file that is no graph is refused, without waiting. */
UNIT(test_read)
{
	char path[] = "/tmp/tmesh-graph-XXXXXX";
	int fd = mkstemp(path);
	struct tmesh_graph *graph;

	assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
	assert_ok(tmesh_graph_read(path, &graph, err));
	tmesh_graph_unref(graph);
	assert_int_equal(ftruncate(fd, (16 << 20) + 1), 0);
	assert_refused(tmesh_graph_read(path, &graph, err), -E2BIG, "16 MiB");
	assert_refused(tmesh_graph_read("/dev/zero", &graph, err), -E2BIG, "is not a regular file");
	close(fd);
	unlink(path);
	assert_refused(tmesh_graph_read(path, &graph, err), -ENOENT, path);
}

/* Numbers are written with a point where the program's language has a comma. */
UNIT(test_language)
{
	struct tmesh_graph *graph;
	char *plain;

	comma_begin();
	graph = parse(text);
	plain = tmesh_graph_to_text(graph);
	assert_non_null(strstr(plain, "scale=0.25"));
	comma_end();
	free(plain);
	tmesh_graph_unref(graph);
}

UNIT(test_mutations)
{
	struct tmesh_graph *graph;
	unsigned int seed = 20261123;
	int accepted = 0;

	for (int i = 0; i < MUTATIONS; i++) {
		char *bad = strdup(text);
		size_t bytes = strlen(bad);
		struct tmesh_error err;

		for (int n = rand_r(&seed) % 3; n >= 0; n--)
			bad[(size_t)rand_r(&seed) % bytes] = (char)rand_r(&seed);
		if (!tmesh_graph_parse(bad, bytes, &graph, &err)) {
			accepted++;
			tmesh_graph_unref(graph);
		} else {
			assert_int_equal(err.code, -EPROTO);
		}
		free(bad);
	}
	assert_in_range(accepted, 1, MUTATIONS - 1);
}

UNIT_MAIN("tests", NULL, NULL)
