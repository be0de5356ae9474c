// SPDX-License-Identifier: MIT
#include "utf8.h"

#include <stdint.h>

/* Return the length of the sequence at @s, of which @left bytes are there; 0 if it is none. */
static size_t sequence_bytes(const uint8_t *s, size_t left, uint32_t *code)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t count = s[0] < 0x80	       ? 1
		       : (s[0] & 0xe0) == 0xc0 ? 2
		       : (s[0] & 0xf0) == 0xe0 ? 3
		       : (s[0] & 0xf8) == 0xf0 ? 4
					       : 0;

	*code = s[0];
	if (count < 2)
		return count;
	if (count > left)
		return 0;
	*code = s[0] & (0x7fu >> count);
	for (size_t i = 1; i < count; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		*code = *code << 6 | (s[i] & 0x3f);
	}
	if (*code < least[count] || *code > 0x10ffff || (*code >= 0xd800 && *code <= 0xdfff))
		return 0;
	return count;
}

size_t tmesh_utf8_span(const char *text, size_t bytes, bool controls)
{
	const uint8_t *s = (const uint8_t *)text;
	uint32_t least = controls ? 0x01 : 0x20;
	size_t i = 0;

	while (i < bytes) {
		uint32_t code;
		size_t count;

		if (s[i] < 0x7f && s[i] >= least) {
			i++;
			continue;
		}
		count = sequence_bytes(s + i, bytes - i, &code);
		/* C1 controls are controls too. */
		if (!count || code < least || (!controls && code >= 0x7f && code < 0xa0))
			break;
		i += count;
	}
	return i;
}

size_t tmesh_utf8_cut(const char *text, size_t bytes)
{
	const uint8_t *s = (const uint8_t *)text;
	size_t lead = bytes;
	uint32_t code;

	while (lead && bytes - lead < 4) {
		lead--;
		if ((s[lead] & 0xc0) != 0x80)
			return s[lead] < 0xc0 || sequence_bytes(s + lead, bytes - lead, &code)
				       ? bytes
				       : lead;
	}
	return bytes;
}
