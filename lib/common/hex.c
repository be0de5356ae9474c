// SPDX-License-Identifier: MIT
#include "hex.h"

void tmesh_hex(char *text, const uint8_t *bytes, size_t count)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < count; i++) {
		*text++ = digits[bytes[i] >> 4];
		*text++ = digits[bytes[i] & 15];
	}
	*text = '\0';
}

/* Convert a digit without branches, so that its timing reveals nothing of a key. */
static int digit(char c)
{
	unsigned int number = (unsigned char)c - (unsigned int)'0';
	unsigned int letter = (unsigned char)c - (unsigned int)'a';
	int value = letter < 6 ? (int)letter + 10 : -1;

	return number < 10 ? (int)number : value;
}

bool tmesh_unhex(uint8_t *bytes, const char *text, size_t count)
{
	for (size_t i = 0; i < count; i++, text += 2) {
		int high = digit(text[0]);
		int low = digit(text[1]);

		if ((high | low) < 0)
			return false;
		bytes[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}
