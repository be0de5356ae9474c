// SPDX-License-Identifier: MIT
/*
 * Mutated graphs in an engine "ggml" of a process of its own (TMESH_GGML). Each is refused or runs,
 * on random numbers, also for rows and positions, and none costs the process.
 */
#include "served.h"

#define MUTANTS 500
#define MUTANTS_FULL 4000
#define MOST_BYTES (1 << 20)

static const char base[] = "graph m\n"
			   "x = input : float32[2,8]\n"
			   "w = input : float32[16,8]\n"
			   "past = input cache=reuse : float32[8,16]\n"
			   "rows = input : int64[2]\n"
			   "at = input : int32[2]\n"
			   "h = matmul(x, w)\n"
			   "n = rms_norm(h) eps=1e-05\n"
			   "s = silu(n)\n"
			   "m = mul(s, h)\n"
			   "present = set_rows(past, m, rows)\n"
			   "got = get_rows(w, at)\n"
			   "q = reshape(m) : float32[2,2,8]\n"
			   "turned = rope(q, at) dims=8\n"
			   "k = reshape(present) : float32[8,2,8]\n"
			   "seen = attention(turned, k, k, at)\n"
			   "t = transpose(seen) axes=1,0,2\n"
			   "p = softmax(got)\n"
			   "output y = t\n"
			   "output z = p\n"
			   "output next = present\n";

/* Words that stand for each other: other operators, values and types in their place. */
static const char *const words[] = {"(h",  "(n",  "(s",	  "(m",	  "(w",	   "(x",    ", h)", ", m",
				    ", w", ", x", "silu", "gelu", "int32", "int64", "mul",  "add"};

static void mutate(char *text, size_t room, unsigned int *seed)
{
	for (int n = rand_r(seed) % 3; n >= 0; n--) {
		const char *from = words[(size_t)rand_r(seed) % (sizeof(words) / sizeof(*words))];
		const char *to = words[(size_t)rand_r(seed) % (sizeof(words) / sizeof(*words))];
		size_t bytes = strlen(text), at = (size_t)rand_r(seed) % bytes;
		char digit = (char)('1' + rand_r(seed) % 9), *found;

		switch (rand_r(seed) % 8) {
		case 0: /* any byte */
			text[at] = (char)(' ' + rand_r(seed) % 95);
			break;
		case 1: /* one digit */
			while (text[at] < '0' || text[at] > '9')
				at = (at + 1) % bytes;
			text[at] = digit;
			break;
		case 2: /* one number, wherever it stands */
		case 3:
			while (text[at] < '0' || text[at] > '9')
				at = (at + 1) % bytes;
			for (char old = text[at], *c = text; *c; c++)
				if (*c == old)
					*c = digit;
			break;
		default:
			found = strstr(text + at, from);
			if (!found || bytes + strlen(to) >= room)
				break;
			memmove(found + strlen(to), found + strlen(from),
				strlen(found + strlen(from)) + 1);
			memcpy(found, to, strlen(to));
		}
	}
}

/* Memory for an operand; false: it wants more than is given here. */
static bool give(struct tmesh_engine_value *value, const struct tmesh_engine_operand *operand,
		 bool wild, unsigned int *seed)
{
	uint64_t bytes = tmesh_dtype_bits(operand->dtype) / 8;
	unsigned char *data;

	*value = (struct tmesh_engine_value){
		.name = operand->name, .dtype = operand->dtype, .ndim = operand->ndim};
	for (int32_t n = 0; n < operand->ndim; n++) {
		value->shape[n] = operand->shape[n] < 0 ? 2 : operand->shape[n];
		if (__builtin_mul_overflow(bytes, (uint64_t)value->shape[n], &bytes) ||
		    bytes > MOST_BYTES)
			return false;
	}
	data = aligned_alloc(64, (bytes + 64) / 64 * 64);
	assert_non_null(data);
	/* Rows and positions that are there, mostly. */
	memset(data, 0, bytes);
	for (uint64_t i = 0; i < bytes; i += tmesh_dtype_bits(operand->dtype) / 8)
		data[i] = (unsigned char)(rand_r(seed) % (wild ? 256 : 2));
	for (uint64_t i = 0; wild && i < bytes; i++)
		data[i] = rand_r(seed) % 9 ? data[i] : (unsigned char)rand_r(seed);
	value->data = data;
	return true;
}

/* Return: what the run gave. */
static int run_once(struct tmesh_engine_graph *graph, bool wild, unsigned int *seed)
{
	size_t in = tmesh_engine_graph_inputs(graph), out = tmesh_engine_graph_outputs(graph);
	struct tmesh_engine_value inputs[16] = {0}, outputs[16] = {0};
	bool given = in <= 16 && out <= 16;
	int rc = -E2BIG;

	for (size_t i = 0; given && i < in + out; i++) {
		struct tmesh_engine_operand operand = {.size = sizeof(operand)};

		if (i < in)
			assert_ok(tmesh_engine_graph_input(graph, i, &operand, err));
		else
			assert_ok(tmesh_engine_graph_output(graph, i - in, &operand, err));
		given = give(i < in ? &inputs[i] : &outputs[i - in], &operand, wild, seed);
		/* The cache's next state lies on the cache. */
		for (size_t j = 0; given && i >= in && !strcmp(operand.name, "next") && j < in; j++)
			if (!strcmp(inputs[j].name, "past")) {
				free(outputs[i - in].data);
				outputs[i - in].data = inputs[j].data;
				outputs[i - in].in_place = "past";
			}
	}
	if (given)
		rc = tmesh_engine_dispatch(graph, inputs, in, outputs, out, NULL);
	for (size_t i = 0; i < 16; i++) {
		free(inputs[i].data);
		if (!outputs[i].in_place)
			free(outputs[i].data);
	}
	return rc;
}

UNIT(test_mutants)
{
	bool full = getenv("TMESH_TEST_LENGTH") && !strcmp(getenv("TMESH_TEST_LENGTH"), "full");
	int count = full ? MUTANTS_FULL : MUTANTS, opened = 0, ran = 0;
	struct tmesh_engine_context *context;
	struct tmesh_engine_graph *graph;
	struct tmesh_ctx *ctx = new_ctx();
	unsigned int seed = 5;
	uint32_t pid;

	assert_ok(tmesh_engine_connect(ctx, "unit", NULL, &context, err));
	pid = tmesh_engine_context_pid(context);
	for (int i = 0; i <= count; i++) {
		char text[2 * sizeof(base)];
		int rc;

		memcpy(text, base, sizeof(base));
		/* The last one is as it should be. */
		if (i < count)
			mutate(text, sizeof(text), &seed);
		rc = tmesh_engine_graph_open(context, file("mutant", text), NULL, &graph, NULL);
		assert_int_not_equal(rc, -EPIPE);
		assert_true(!rc || i < count);
		if (rc)
			continue;
		opened++;
		rc = run_once(graph, i < count && rand_r(&seed) % 4 == 0, &seed);
		tmesh_engine_graph_unref(graph);
		if (rc == -EPIPE)
			fail_msg("the engine died of\n%s", text);
		ran += !rc;
		assert_true(!rc || i < count);
		assert_int_equal(tmesh_engine_context_pid(context), pid);
	}
	printf("# of %d mutants %d were opened, and %d ran\n", count, opened - 1, ran);
	assert_in_range(opened, 2, count);
	assert_in_range(ran, 2, count);
	tmesh_engine_context_unref(context);
	tmesh_ctx_unref(ctx);
}

static int serve_ggml(void **state)
{
	char models[64], line[256];
	char *argv[] = {(char *)"tmesh-engine",
			(char *)"--engine=ggml",
			(char *)"--limit=600",
			(char *)"--with-input",
			(char *)"--patience=600",
			(char *)"--models",
			models,
			(char *)"unit",
			NULL};

	snprintf(models, sizeof(models), "%s/models", folder);
	supervisor = run_program(argv, &input, line, sizeof(line));
	return strcmp(line, "ready unit\n");
}

int main(void)
{
	const char *library = getenv("TMESH_GGML");
	int failed;

	if (!library || access(library, R_OK))
		return UNIT_SKIP_ALL("no ggml: the package libggml-python");
	if (make_folder())
		return 1;
	failed = UNIT_RUN("mutants", serve_ggml, unserve);
	return remove_folder() || failed;
}
