// SPDX-License-Identifier: MIT
/* Any text: refused, or a ref that survives being written and read again. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tmesh_error err = {0};
	char text[TMESH_REF_SIZE];
	struct tmesh_ref ref, again;

	if (tmesh_ref_decode((const char *)data, size, &ref, &err)) {
		if (err.code != -EPROTO || !err.message[0])
			abort();
		return 0;
	}
	if (tmesh_ref_encode(&ref, text, sizeof(text), NULL) ||
	    tmesh_ref_decode(text, strlen(text), &again, NULL) || memcmp(&ref, &again, sizeof(ref)))
		abort();
	return 0;
}
