// SPDX-License-Identifier: MIT
/* Any text as the index of a sharded model: refused with a reason, or names of files
 * in its folder. */
#include <stdlib.h>
#include <string.h>

#include "files/model_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct opening opening = {0};
	struct tmesh_error err = {0};
	struct shard_index index;
	int rc = shard_index_parse(&opening, (const char *)data, size, &index, &err);

	if (rc && (rc != -EPROTO || err.code != rc || !err.message[0]))
		abort();
	for (size_t i = 0; !rc && i < index.file_count; i++) {
		if (strchr(index.files[i], '/') || !strcmp(index.files[i], ".."))
			abort();
	}
	shard_index_free(&index);
	return 0;
}
