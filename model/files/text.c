// SPDX-License-Identifier: MIT
/* Names that strangers wrote. */
#include "model_internal.h"

#include <string.h>

const char *model_quote(char quoted[MODEL_QUOTE], const char *text)
{
	size_t i;

	for (i = 0; text[i] && i < MODEL_QUOTE - 4; i++)
		quoted[i] = text[i] < 0x20 || text[i] > 0x7e ? '?' : text[i];
	strcpy(quoted + i, text[i] ? "..." : "");
	return quoted;
}

bool model_is_utf8(const uint8_t *text, size_t bytes)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};

	for (size_t i = 0; i < bytes;) {
		unsigned int count = text[i] < 0x80		? 1
				     : (text[i] & 0xe0) == 0xc0 ? 2
				     : (text[i] & 0xf0) == 0xe0 ? 3
				     : (text[i] & 0xf8) == 0xf0 ? 4
								: 0;
		uint32_t code;

		if (!count || count > bytes - i)
			return false;
		if (count == 1) {
			i++;
			continue;
		}
		code = text[i] & (0x7fu >> count);
		for (unsigned int k = 1; k < count; k++) {
			if ((text[i + k] & 0xc0) != 0x80)
				return false;
			code = code << 6 | (text[i + k] & 0x3f);
		}
		if (code < least[count] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
			return false;
		i += count;
	}
	return true;
}

int model_check_begin(const struct table_tensor *tensor, uint64_t at, struct tmesh_error *err)
{
	char quoted[MODEL_QUOTE];

	if (tensor->file_offset == at)
		return 0;
	return tmesh_fail(err, -EPROTO, "the tensor \"%s\" begins at %llu of the data; %s",
			  model_quote(quoted, tensor->name),
			  (unsigned long long)tensor->file_offset,
			  tensor->file_offset < at ? "it overlaps the one before it"
						   : "there is a hole before it");
}
