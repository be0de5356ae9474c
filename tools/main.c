// SPDX-License-Identifier: MIT
/* tmeshctl: see and use tmesh regions from a shell. A table of verbs; each has its file. */
#include <dirent.h>

#include "tmeshctl.h"

static const struct verb *const verbs[] = {
	&verb_doctor, &verb_ls,	    &verb_show,	 &verb_holders, &verb_top,
	&verb_draw,   &verb_create, &verb_put,	 &verb_get,	&verb_export,
	&verb_import, &verb_seal,   &verb_lease, &verb_revoke,	&verb_keep,
	&verb_kept,   &verb_drop,   &verb_mount, &verb_umount,	&verb_metrics,
};

#define VERBS (sizeof(verbs) / sizeof(verbs[0]))

/*
 * Verbs of other packages are programs tmeshctl-VERB, beside this one or in PATH. A verb has only
 * small letters, so that it cannot name a program in another folder.
 */
#define VERB_MAX 32

static bool is_verb(const char *word)
{
	size_t length = strspn(word, "abcdefghijklmnopqrstuvwxyz");

	return length && length < VERB_MAX && !word[length];
}

void own_folder(char *folder, size_t size)
{
	ssize_t got = readlink("/proc/self/exe", folder, size - 1);
	char *slash;

	folder[got > 0 ? got : 0] = '\0';
	slash = strrchr(folder, '/');
	if (slash)
		slash[1] = '\0';
}

static int by_name(const struct dirent **left, const struct dirent **right)
{
	return strcmp((*left)->d_name, (*right)->d_name);
}

/* Return whether this program has the verb. A program tmeshctl-VERB of that name never runs. */
static bool is_own(const char *word)
{
	for (size_t i = 0; i < VERBS; i++)
		if (!strcmp(word, verbs[i]->name))
			return true;
	return false;
}

static int is_program(const struct dirent *entry)
{
	return !strncmp(entry->d_name, "tmeshctl-", 9) && is_verb(entry->d_name + 9) &&
	       !is_own(entry->d_name + 9);
}

static void help_programs(FILE *to)
{
	struct dirent **entries;
	char folder[4096];
	int count;

	own_folder(folder, sizeof(folder));
	count = scandir(folder, &entries, is_program, by_name);
	if (count > 0)
		fprintf(to, "\nverbs of other packages (tmeshctl VERB --help):\n");
	for (int i = 0; i < count; i++) {
		fprintf(to, "  %-9s %s\n", entries[i]->d_name + 9, entries[i]->d_name);
		free(entries[i]);
	}
	if (count >= 0)
		free(entries);
}

/* Become tmeshctl-@word, beside this program or in PATH, with the words from @argv[2] on. Return
 * -ENOENT if there is no such program. Return another error after reporting it. */
static int run_program(const char *word, char **argv)
{
	char path[4096 + 16 + VERB_MAX], folder[4096];

	own_folder(folder, sizeof(folder));
	snprintf(path, sizeof(path), "%stmeshctl-%s", folder, word);
	argv[1] = path;
	errno = ENOENT;
	/* A path without a folder is one of the working directory. */
	if (*folder)
		execv(path, argv + 1);
	if (errno == ENOENT) {
		snprintf(path, sizeof(path), "tmeshctl-%s", word);
		execvp(path, argv + 1);
	}
	if (errno == ENOENT)
		return -ENOENT;
	complain_errno(path);
	return -EACCES;
}

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
	help_programs(to);
}

int main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : NULL;
	char title[32];
	int status;

	begin_program();
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
	if (is_verb(word)) {
		if (run_program(word, argv) == -ENOENT)
			fprintf(stderr,
				"tmeshctl: no such verb: there is no program tmeshctl-%s; "
				"see tmeshctl --help\n",
				word);
		return STATUS_USAGE;
	}
	fprintf(stderr, "tmeshctl: no such verb; see tmeshctl --help\n");
	return STATUS_USAGE;
}
