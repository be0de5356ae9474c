// SPDX-License-Identifier: MIT
/* The table of one file: find its format, and check the rules of both formats. */
#include "model_internal.h"

#include <string.h>

static int by_name(const void *left, const void *right)
{
	return strcmp((*(const struct table_tensor *const *)left)->name,
		      (*(const struct table_tensor *const *)right)->name);
}

static bool is_name(const char *name)
{
	size_t length = strlen(name);

	for (size_t i = 0; i < length; i++) {
		const uint8_t *at = (const uint8_t *)name + i;

		/* C0, DEL, and C1, which UTF-8 begins with 0xc2. */
		if (at[0] < 0x20 || at[0] == 0x7f || (at[0] == 0xc2 && at[1] < 0xa0))
			return false;
	}
	return length && length <= TMESH_BUNDLE_MAX_NAME;
}

/* Check names. JSON's keys were checked when they were read, but GGUF's tensors are a list. */
int table_check_names(const struct table *table, struct tmesh_error *err)
{
	const struct table_tensor **sorted = calloc(table->tensor_count + 1, sizeof(*sorted));
	char quoted[MODEL_QUOTE];
	int rc = 0;

	if (!sorted)
		return tmesh_fail(err, -ENOMEM, "no memory for the tensors' names");
	for (size_t i = 0; i < table->tensor_count && !rc; i++) {
		sorted[i] = &table->tensors[i];
		/* A bundle refuses such names; report them before anything is read. */
		if (!is_name(sorted[i]->name))
			rc = tmesh_fail(
				err, -EPROTO,
				"the name \"%s\" is empty, has control characters or more than "
				"%d bytes",
				model_quote(quoted, sorted[i]->name), TMESH_BUNDLE_MAX_NAME);
	}
	if (rc) {
		free(sorted);
		return rc;
	}
	qsort(sorted, table->tensor_count, sizeof(*sorted), by_name);
	for (size_t i = 1; i < table->tensor_count && !rc; i++) {
		if (!strcmp(sorted[i]->name, sorted[i - 1]->name))
			rc = tmesh_fail(err, -EPROTO, "the tensor \"%s\" is there twice",
					model_quote(quoted, sorted[i]->name));
	}
	free(sorted);
	return rc;
}

int table_parse(struct opening *opening, const uint8_t *data, size_t bytes, uint64_t file_bytes,
		struct table **out, uint64_t *need, struct tmesh_error *err)
{
	struct table *table;
	int rc;

	if (bytes > file_bytes)
		return tmesh_fail(err, -EINVAL, "more bytes are given than the file has");
	/* A safetensors file that begins so would have a header of 1.2 GB. */
	*need = 4;
	if (bytes < 4 && file_bytes >= 4)
		return -EAGAIN;
	table = calloc(1, sizeof(*table));
	if (!table)
		return tmesh_fail(err, -ENOMEM, "no memory for the file's table");
	table->lenient = opening->lenient;
	table->split_no = table->split_count = table->split_tensors = -1;
	if (bytes >= 4 && !memcmp(data, "GGUF", 4))
		rc = table_parse_gguf(table, opening, data, bytes, file_bytes, need, err);
	else
		rc = table_parse_safetensors(table, opening, data, bytes, file_bytes, need, err);
	if (!rc)
		rc = table_check_names(table, err);
	if (rc) {
		table_free(table);
		return rc;
	}
	*out = table;
	return 0;
}

void table_free(struct table *table)
{
	if (!table)
		return;
	json_decref(table->root);
	free(table->tensors);
	free(table->values);
	free(table->copy);
	free(table->names);
	free(table);
}
