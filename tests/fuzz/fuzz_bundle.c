// SPDX-License-Identifier: MIT
/* A bundle's index with arbitrary bytes: an accepted index can be read. */
#include <stdlib.h>
#include <string.h>

#include "bundle_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The first byte says how many data regions there are, the rest is the index. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint64_t regions[4] = {4096, 1 << 20, UINT64_MAX, 1};
	struct tmesh_bundle_view view;
	uint8_t *copy;

	if (!size)
		return 0;
	/* Copy to a buffer of exactly this length, so that a read past its end is seen. */
	copy = malloc(size);
	memcpy(copy, data + 1, size - 1);
	if (tmesh_bundle_index_check(copy, size - 1, regions, data[0] % 5, &view, NULL) == 0) {
		size_t sum = strlen(view.metadata);

		for (uint32_t i = 0; i < view.head->tensors; i++) {
			const struct tmesh_bundle_row *row = &view.rows[view.order[i]];
			struct tmesh_layout layout;

			tmesh_bundle_row_layout(row, &layout);
			sum += strlen(view.text + row->name);
			if (row->region >= view.head->regions ||
			    tmesh_layout_check(&layout, regions[row->region], NULL, NULL))
				abort();
		}
		if (sum > size)
			abort();
	}
	free(copy);
	return 0;
}
