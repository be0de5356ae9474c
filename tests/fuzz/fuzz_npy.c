// SPDX-License-Identifier: MIT
/* Headers of .npy files: an accepted header describes a tensor, and is written back unchanged. */
#include <stdlib.h>
#include <string.h>

#include "../../tools/npy.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t header[NPY_MAX];
	struct npy npy, again;
	const char *why;
	uint8_t *exact;
	size_t length;

	if (size < NPY_PREFIX)
		return 0;
	length = npy_length(data, &why);
	if (!length || length > size)
		return 0;
	/* A copy of its own, so that a read past the end is seen. */
	exact = malloc(length);
	memcpy(exact, data, length);
	if (npy_parse(exact, length, &npy, &why)) {
		if (npy.ndim < 0 || npy.ndim > TMESH_MAX_DIMS)
			abort();
		for (int32_t i = 0; i < npy.ndim; i++)
			if (npy.shape[i] < 0)
				abort();
		length = npy_format(header, &npy);
		if (length % NPY_ALIGN || npy_length(header, &why) != length ||
		    !npy_parse(header, length, &again, &why) || memcmp(&npy, &again, sizeof(npy)))
			abort();
	}
	free(exact);
	return 0;
}
