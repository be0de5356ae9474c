// SPDX-License-Identifier: MIT
/* Output for people (escaped, in columns) and for programs (JSON). */
#include <stdarg.h>

#include "tmeshctl.h"

/* Decode the UTF-8 sequence at @s. Return its length; 0 if it is malformed. */
static unsigned int utf8(const unsigned char *s, uint32_t *code)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	unsigned int count;

	if (s[0] < 0x80) {
		*code = s[0];
		return 1;
	}
	count = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
	if (s[0] < 0xc0 || s[0] >= 0xf8)
		return 0;
	*code = s[0] & (0x7fu >> count);
	for (unsigned int i = 1; i < count; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		*code = *code << 6 | (s[i] & 0x3f);
	}
	if (*code < least[count] || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000))
		return 0;
	return count;
}

/* Return whether @code is a control character or changes the direction of text. */
static bool steers(uint32_t code)
{
	return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x200e || code == 0x200f ||
	       (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

char *escaped(const char *text)
{
	const unsigned char *from = (const unsigned char *)text;
	char *whole = malloc(4 * strlen(text) + 1);
	char *to = whole;

	if (!whole)
		abort();
	while (*from) {
		uint32_t code;
		unsigned int count = utf8(from, &code);

		if (count && !steers(code)) {
			memcpy(to, from, count);
			to += count;
			from += count;
			continue;
		}
		for (unsigned int i = 0; i < (count ? count : 1); i++)
			to += sprintf(to, "\\x%02x", *from++);
	}
	*to = '\0';
	return whole;
}

void put_quoted(const char *text)
{
	char *safe = escaped(text);

	for (const char *at = safe; *at; at++) {
		if (*at == '"' || *at == '\\')
			putchar('\\');
		putchar(*at);
	}
	free(safe);
}

int complain(const char *what, const struct tmesh_error *err)
{
	char *subject = escaped(what);
	char *message = escaped(err->message);

	fprintf(stderr, "tmeshctl: %s: %s\n", subject, message);
	free(subject);
	free(message);
	return STATUS_FAILED;
}

int complain_errno(const char *what)
{
	struct tmesh_error err = {.code = -errno};

	snprintf(err.message, sizeof(err.message), "%s", strerror(errno));
	return complain(what, &err);
}

int flush_answer(void)
{
	if (!fflush(stdout)) {
		if (!ferror(stdout))
			return STATUS_OK;
		errno = EIO; /* an earlier write failed, and its errno is lost */
	}
	return complain_errno("writing the answer");
}

const char *human_bytes(uint64_t bytes, char *text)
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double value = (double)bytes;
	unsigned int unit = 0;

	if (bytes < 1024) {
		snprintf(text, 16, "%" PRIu64 " B", bytes);
		return text;
	}
	for (value /= 1024; value >= 1023.95; unit++)
		value /= 1024;
	snprintf(text, 16, "%.1f %s", value, units[unit]);
	return text;
}

const char *rights_text(uint32_t rights, char *text)
{
	char *to = text;

	if (rights & TMESH_READ)
		*to++ = 'r';
	if (rights & TMESH_WRITE)
		*to++ = 'w';
	if (rights & TMESH_MANAGE)
		*to++ = 'm';
	if (to == text)
		*to++ = '-';
	*to = '\0';
	return text;
}

json_t *json_text(const char *text)
{
	json_t *value = json_string(text);
	char *safe;

	if (value)
		return value;
	safe = escaped(text);
	value = json_string(safe);
	free(safe);
	return value;
}

json_t *json_id(uint64_t id)
{
	return json_sprintf("%016" PRIx64, id);
}

/* Print JSON with escapes for the characters that steer a terminal: those from DEL on, which JSON
 * allows within strings. */
static void put_json(const char *text)
{
	const unsigned char *at = (const unsigned char *)text;

	while (*at) {
		uint32_t code;
		unsigned int count = utf8(at, &code);

		if (count && code >= 0x7f && steers(code)) {
			printf("\\u%04" PRIx32, code);
			at += count;
		} else {
			putchar(*at++);
		}
	}
}

int print_json(json_t *value)
{
	char *text = value ? json_dumps(value, JSON_INDENT(2)) : NULL;

	json_decref(value);
	if (!text) {
		errno = ENOMEM;
		return complain_errno("writing JSON");
	}
	put_json(text);
	putchar('\n');
	free(text);
	return STATUS_OK;
}

void table_add(struct table *table, const char *text)
{
	char **cell = realloc(table->cell, sizeof(*cell) * (table->cells + 1));

	if (!cell)
		abort();
	table->cell = cell;
	table->cell[table->cells++] = escaped(text);
}

void table_addf(struct table *table, const char *fmt, ...)
{
	char text[512];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	table_add(table, text);
}

/* Return the columns that @text takes on a terminal, roughly: one for each code point. */
static size_t width(const char *text)
{
	size_t count = 0;

	for (; *text; text++)
		count += (*text & 0xc0) != 0x80;
	return count;
}

void table_print(struct table *table)
{
	size_t widest[16] = {0};

	for (size_t i = 0; i < table->cells; i++) {
		size_t *column = &widest[i % table->columns];

		if (*column < width(table->cell[i]))
			*column = width(table->cell[i]);
	}
	for (size_t row = 0; row < table->cells; row += table->columns) {
		char **cell = table->cell + row;
		unsigned int last = table->columns - 1;

		while (last && !*cell[last])
			last--;
		for (unsigned int i = 0; i < last; i++)
			printf("%s%*s", cell[i], (int)(widest[i] - width(cell[i]) + 2), "");
		printf("%s\n", cell[last]);
	}
	for (size_t i = 0; i < table->cells; i++)
		free(table->cell[i]);
	free(table->cell);
	table->cell = NULL;
	table->cells = 0;
}
