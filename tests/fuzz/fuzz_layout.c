// SPDX-License-Identifier: MIT
/* Any layout over a region of any size: refused, or every element really inside. */
#include <stdlib.h>
#include <string.h>

#include "bounds.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_error err = {0};
	struct tmesh_layout layout;
	uint64_t region_bytes, extent;
	__int128 low, high;
	int rc;

	if (size < sizeof(layout) + sizeof(region_bytes))
		return 0;
	memcpy(&layout, data, sizeof(layout));
	memcpy(&region_bytes, data + sizeof(layout), sizeof(region_bytes));

	rc = tmesh_layout_check(&layout, region_bytes, &extent, &err);
	if (rc) {
		if (rc != err.code || !err.message[0])
			abort();
		return 0;
	}
	if (!fuzz_bounds(&layout, &low, &high) || layout.offset + low < 0 ||
	    layout.offset + high > region_bytes)
		abort();
	if (tmesh_layout_is_contiguous(&layout) && extent != (uint64_t)high)
		abort();
	return 0;
}
