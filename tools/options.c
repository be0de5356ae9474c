// SPDX-License-Identifier: MIT
/* Options of verbs: one table drives both the parser and --help. */
#include <ctype.h>
#include <signal.h>
#include <stdarg.h>

#include "common/standard.h"
#include "tmeshctl.h"

#define OPTIONS_MAX 24

static void verb_help(const struct verb *verb, FILE *to)
{
	fprintf(to, "usage: tmeshctl %s [OPTION...]%s%s\n\n%s\n\noptions:\n", verb->name,
		verb->args[0] ? " " : "", verb->args, verb->help);
	for (const struct option_entry *entry = verb->options; entry->name; entry++) {
		char left[64];

		snprintf(left, sizeof(left), "--%s%s%s", entry->name, entry->arg ? " " : "",
			 entry->arg ? entry->arg : "");
		if (entry->key < KEY_LONG)
			fprintf(to, "  -%c, %-24s %s\n", entry->key, left, entry->help);
		else
			fprintf(to, "      %-24s %s\n", left, entry->help);
	}
	fprintf(to, "  -h, %-24s %s\n", "--help", "print this");
}

int verb_option(const struct verb *verb, int argc, char **argv)
{
	struct option longs[OPTIONS_MAX + 2] = {0};
	char shorts[2 * OPTIONS_MAX + 2] = "h";
	size_t count = 0;
	char *end = shorts + strlen(shorts);
	int key;

	for (const struct option_entry *entry = verb->options; entry->name; entry++) {
		longs[count++] = (struct option){
			.name = entry->name,
			.has_arg = entry->arg ? required_argument : no_argument,
			.val = entry->key,
		};
		if (entry->key >= KEY_LONG)
			continue;
		*end++ = (char)entry->key;
		if (entry->arg)
			*end++ = ':';
	}
	longs[count] = (struct option){.name = "help", .val = 'h'};

	key = getopt_long(argc, argv, shorts, longs, NULL);
	if (key == 'h') {
		verb_help(verb, stdout);
		exit(flush_answer());
	}
	if (key == '?') {
		fprintf(stderr, "see tmeshctl %s --help\n", verb->name);
		exit(STATUS_USAGE);
	}
	return key;
}

void usage_error(const struct verb *verb, const char *fmt, ...)
{
	char text[256];
	char *safe;
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	safe = escaped(text);
	fprintf(stderr, "tmeshctl %s: %s; see tmeshctl %s --help\n", verb->name, safe, verb->name);
	free(safe);
	exit(STATUS_USAGE);
}

char **split_command(const struct verb *verb, int *argc, char **argv)
{
	for (int i = 1; i < *argc; i++) {
		if (strcmp(argv[i], "--"))
			continue;
		if (i + 1 == *argc)
			usage_error(verb, "no command follows --");
		argv[i] = NULL;
		*argc = i;
		return argv + i + 1;
	}
	return NULL;
}

void verb_expect_words(const struct verb *verb, int argc, int least, int most)
{
	int count = argc - optind;

	if (count < least)
		usage_error(verb, "something is missing: %s", verb->args);
	if (count > most)
		usage_error(verb, "more words than wanted");
}

/* Parse the decimal number at @text; @rest is the text after it. */
static bool number(const char *text, uint64_t *value, const char **rest)
{
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return false;
	errno = 0;
	*value = strtoull(text, &end, 10);
	*rest = end;
	return !errno;
}

static bool parse_bytes(const char *text, uint64_t *value)
{
	static const char units[] = "KMGT";
	const char *rest, *unit;
	int shift = 0;

	if (!number(text, value, &rest))
		return false;
	unit = *rest ? strchr(units, toupper((unsigned char)*rest)) : NULL;
	if (unit) {
		shift = 10 * (int)(unit - units + 1);
		rest++;
		if (!strcmp(rest, "iB"))
			rest += 2;
	}
	return !*rest && !__builtin_mul_overflow(*value, (uint64_t)1 << shift, value);
}

uint64_t bytes_option(const struct verb *verb, const char *text)
{
	uint64_t value;

	if (!parse_bytes(text, &value))
		usage_error(verb, "\"%s\" is not a number of bytes (4096, 64K, 2G)", text);
	return value;
}

void range_option(const struct verb *verb, const char *text, uint64_t *offset, uint64_t *bytes)
{
	const char *colon = strchr(text, ':');
	char *first;

	if (!colon)
		usage_error(verb, "\"%s\" is not a range (OFFSET:BYTES)", text);
	first = strndup(text, (size_t)(colon - text));
	*offset = first && *first ? bytes_option(verb, first) : 0;
	*bytes = colon[1] ? bytes_option(verb, colon + 1) : 0;
	free(first);
}

uint64_t seconds_option(const struct verb *verb, const char *text)
{
	const char *rest;
	uint64_t value;

	if (!number(text, &value, &rest) || *rest || !value || value > 365 * 86400)
		usage_error(verb,
			    "\"%s\" is not a whole number of seconds, from 1 to those of a year",
			    text);
	return value;
}

uint64_t number_option(const struct verb *verb, const char *text, const char *what, uint64_t least,
		       uint64_t most)
{
	const char *rest;
	uint64_t value;

	if (!number(text, &value, &rest) || *rest || value < least || value > most)
		usage_error(verb, "\"%s\" is not %s", text, what);
	return value;
}

enum tmesh_backend backend_option(const struct verb *verb, const char *text)
{
	if (!strcmp(text, tmesh_backend_name(TMESH_BACKEND_KERNEL)))
		return TMESH_BACKEND_KERNEL;
	if (!strcmp(text, tmesh_backend_name(TMESH_BACKEND_MEMFD)))
		return TMESH_BACKEND_MEMFD;
	usage_error(verb, "\"%s\" is not a backend: kernel or memfd", text);
}

void begin_program(void)
{
	signal(SIGCHLD, SIG_DFL);
	tmesh_fill_standard();
}

int verb_main(const struct verb *verb, int argc, char **argv)
{
	char title[32];
	int status;

	begin_program();
	snprintf(title, sizeof(title), "tmeshctl %s", verb->name);
	if (!argc) {
		verb_help(verb, stderr);
		return STATUS_USAGE;
	}
	argv[0] = title;
	status = verb->run(verb, argc, argv);
	return status ? status : flush_answer();
}
