// SPDX-License-Identifier: MIT
/* Names for people, which terminals show: no controls, no broken UTF-8. */
#include "label.h"

#include <errno.h>
#include <string.h>

#include "error.h"

/* Bytes of the UTF-8 sequence at @s, 0 when it is none. */
static unsigned int utf8_bytes(const uint8_t *s)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	unsigned int count = s[0] < 0x80	     ? 1
			     : (s[0] & 0xe0) == 0xc0 ? 2
			     : (s[0] & 0xf0) == 0xe0 ? 3
			     : (s[0] & 0xf8) == 0xf0 ? 4
						     : 0;
	uint32_t code;

	if (count < 2)
		return count;
	code = s[0] & (0x7fu >> count);
	for (unsigned int i = 1; i < count; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (s[i] & 0x3f);
	}
	if (code < least[count] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
		return 0;
	/* C1 controls are controls too. */
	return code < 0xa0 ? 0 : count;
}

int tmesh_check_label(const char *label, struct tmesh_error *err)
{
	size_t bytes = strnlen(label, TMESH_LABEL_LEN + 1);

	if (bytes > TMESH_LABEL_LEN)
		return tmesh_fail(err, -EINVAL, "the label is longer than %d bytes",
				  TMESH_LABEL_LEN);
	for (size_t i = 0; i < bytes;) {
		unsigned int count = utf8_bytes((const uint8_t *)label + i);

		if (count == 0 || (unsigned char)label[i] < 0x20 || label[i] == 0x7f)
			return tmesh_fail(err, -EINVAL,
					  "the label is not UTF-8 without control characters "
					  "(byte %zu)",
					  i);
		i += count;
	}
	return 0;
}
