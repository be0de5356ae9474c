// SPDX-License-Identifier: MIT
/*
 * Any bytes as a file: refused with a reason, or a table in which no tensor leaves the file or
 * overlaps another. Also as the beginning of a longer file: a caller that gives the requested bytes
 * comes to an end. The programs safetensors and gguf are both this; each has its own corpus.
 */
#include <stdlib.h>
#include <string.h>

#include "files/model_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct tmesh_model *model, uint64_t file_bytes)
{
	uint64_t end = 0;
	char *text;

	for (size_t i = 0; i < tmesh_model_tensors(model); i++) {
		struct tmesh_model_tensor tensor = {.size = sizeof(tensor)};
		size_t found;

		if (tmesh_model_tensor(model, i, &tensor, NULL) || !tensor.name || !tensor.type ||
		    tensor.file_offset < end || tensor.file_offset > file_bytes ||
		    tensor.bytes > file_bytes - tensor.file_offset)
			abort();
		end = tensor.file_offset + tensor.bytes;
		if (tmesh_model_find(model, tensor.name, &found, NULL) || found != i)
			abort();
	}
	if (tmesh_model_metadata_json(model, 16, &text, NULL))
		abort();
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_error err = {0};
	struct tmesh_model *model;
	uint64_t need = 0, have = 0;
	int rc;

	/* By pieces, as a file is read. */
	do {
		uint8_t *piece = malloc(have ? have : 1);

		memcpy(piece, data, have);
		rc = tmesh_model_parse(piece, have, size, &model, &need, &err);
		free(piece);
		if (rc == -EAGAIN && (need <= have || need > size))
			abort();
		have = need;
	} while (rc == -EAGAIN);
	if (rc) {
		if ((rc != -EPROTO && rc != -EOPNOTSUPP) || err.code != rc || !err.message[0])
			abort();
		return 0;
	}
	check(model, size);
	tmesh_model_unref(model);
	return 0;
}
