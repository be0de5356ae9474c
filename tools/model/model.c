// SPDX-License-Identifier: MIT
/* tmeshctl model: show the header of a file of tensors. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "model_args.h"

/* Longer arrays of metadata, such as vocabularies, appear only in --json. */
#define ITEMS_SHOWN 8

static const struct option_entry options[] = {
	OPTION_JSON,
	{NULL},
};

/* Shorten a long text, between two characters of UTF-8. */
static void cut(char *text)
{
	char *end = text + 197;

	if (strlen(text) <= 200)
		return;
	while ((*end & 0xc0) == 0x80)
		end--;
	strcpy(end, "...");
}

static void print_metadata(const struct tmesh_model *model)
{
	char *text;
	const char *key;
	json_t *all, *value;

	if (tmesh_model_metadata_json(model, ITEMS_SHOWN, &text, NULL))
		return;
	all = json_loads(text, JSON_ALLOW_NUL, NULL);
	free(text);
	json_object_foreach(all, key, value) {
		char *written = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
		char *name = escaped(key), *safe = written ? escaped(written) : NULL;

		if (safe)
			cut(safe);
		printf("%-31s %s\n", name, safe ? safe : "?");
		free(name);
		free(safe);
		free(written);
	}
	json_decref(all);
}

static void print_tensors(const struct tmesh_model *model)
{
	struct table table = {.columns = 4};
	uint64_t total = 0;
	char size[16];

	table_add(&table, "NAME");
	table_add(&table, "TYPE");
	table_add(&table, "SHAPE");
	table_add(&table, "SIZE");
	for (size_t i = 0; i < tmesh_model_tensors(model); i++) {
		struct tmesh_model_tensor tensor = {.size = sizeof(tensor)};
		char shape[TMESH_MAX_DIMS * 24] = "[";
		size_t at = 1;

		if (tmesh_model_tensor(model, i, &tensor, NULL))
			continue;
		for (int32_t k = 0; k < tensor.ndim; k++)
			at += (size_t)snprintf(shape + at, sizeof(shape) - at, "%s%" PRId64,
					       k ? ", " : "", tensor.shape[k]);
		snprintf(shape + at, sizeof(shape) - at, "]");
		table_add(&table, tensor.name);
		table_add(&table, tensor.type);
		table_add(&table, shape);
		table_add(&table, human_bytes(tensor.bytes, size));
		total += tensor.bytes;
	}
	table_print(&table);
	printf("%zu tensors, %s, %s, %zu file%s\n", tmesh_model_tensors(model),
	       human_bytes(total, size), tmesh_model_format_name(tmesh_model_format(model)),
	       tmesh_model_files(model), tmesh_model_files(model) == 1 ? "" : "s");
}

static int run_verb_model(const struct verb *verb, int argc, char **argv)
{
	struct tmesh_model *model;
	struct tmesh_error err;
	bool json = false;
	int key, status = STATUS_OK;

	while ((key = verb_option(verb, argc, argv)) >= 0)
		json |= key == 'j';
	verb_expect_words(verb, argc, 1, 1);
	if (tmesh_model_describe(argv[argc - 1], NULL, &model, &err))
		return complain(argv[argc - 1], &err);
	if (json) {
		status = print_json(model_json(model));
	} else {
		print_metadata(model);
		print_tensors(model);
	}
	tmesh_model_unref(model);
	return status;
}

static const struct verb verb_model = {
	.name = "model",
	.args = "PATH",
	.help = "Show what a safetensors or GGUF file holds, without its tensors' bytes.",
	.options = options,
	.run = run_verb_model,
};

int main(int argc, char **argv)
{
	return verb_main(&verb_model, argc, argv);
}
