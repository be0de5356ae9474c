// SPDX-License-Identifier: MIT
/* tmeshctl: see and use tmesh regions from a shell. A table of verbs; each has its file. */
#include <string.h>

#include "tmeshctl.h"

static const struct verb *const verbs[] = {
	&verb_doctor, &verb_ls,	    &verb_show,	 &verb_holders, &verb_top,    &verb_graph,
	&verb_create, &verb_put,    &verb_get,	 &verb_export,	&verb_import, &verb_seal,
	&verb_lease,  &verb_revoke, &verb_stats, &verb_metrics, &verb_bench,
};

#define VERBS (sizeof(verbs) / sizeof(verbs[0]))

static void help(FILE *to)
{
	fprintf(to, "usage: tmeshctl VERB [OPTION...] [ARGUMENT...]\n"
		    "       tmeshctl VERB --help\n"
		    "       tmeshctl --help | --version\n"
		    "\n"
		    "Shared, refcounted memory regions for tensors.\n"
		    "\n"
		    "verbs:\n");
	for (size_t i = 0; i < VERBS; i++)
		fprintf(to, "  %-9s %s\n", verbs[i]->name, verbs[i]->help);
}

int main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : NULL;
	char title[32];
	int status;

	if (!word) {
		help(stderr);
		return STATUS_USAGE;
	}
	if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
		help(stdout);
		return flush_answer();
	}
	if (!strcmp(word, "--version")) {
		printf("tmeshctl %s\n", tmesh_version());
		return flush_answer();
	}
	for (size_t i = 0; i < VERBS; i++) {
		if (strcmp(word, verbs[i]->name))
			continue;
		/* getopt begins its messages with this. */
		snprintf(title, sizeof(title), "tmeshctl %s", word);
		argv[1] = title;
		status = verbs[i]->run(verbs[i], argc - 1, argv + 1);
		return status ? status : flush_answer();
	}
	fprintf(stderr, "tmeshctl: no such verb; see tmeshctl --help\n");
	return STATUS_USAGE;
}
