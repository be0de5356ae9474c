/* SPDX-License-Identifier: MIT */
/* What the verbs of tmeshctl share. */
#ifndef TMESHCTL_H
#define TMESHCTL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>
#include <tmesh/tmesh.h>

enum status {
	STATUS_OK = 0,
	STATUS_FAILED = 1,
	STATUS_USAGE = 2,
};

/* options.c: one table per verb drives both getopt and --help. */

struct option_entry {
	const char *name; /* without dashes; NULL ends the table */
	int key;	  /* what verb_option() returns; a printable one is the short option too */
	const char *arg;  /* what the option takes, NULL for nothing */
	const char *help;
};

enum {
	KEY_LONG = 256
}; /* first key of options without a short form */

struct verb {
	const char *name;
	const char *args; /* synopsis of what follows the options */
	const char *help; /* one line */
	const struct option_entry *options;
	int (*run)(const struct verb *verb, int argc, char **argv);
};

extern const struct verb verb_doctor, verb_ls, verb_show, verb_holders, verb_create, verb_put,
	verb_get, verb_export, verb_import, verb_seal, verb_lease, verb_revoke, verb_keep,
	verb_kept, verb_drop, verb_stats, verb_top, verb_graph, verb_metrics;

/* The next option's key, -1 after the last. Answers --help and ends on unknown options. */
int verb_option(const struct verb *verb, int argc, char **argv);
void verb_help(const struct verb *verb, FILE *to);
_Noreturn void usage_error(const struct verb *verb, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* The words after "--", cut off from the rest; NULL when there are none. Before the options. */
char **split_command(const struct verb *verb, int *argc, char **argv);
/* Between @least and @most words must follow the options; ends otherwise. */
void verb_expect_words(const struct verb *verb, int argc, int least, int most);
/* A number of bytes, with K, M, G or T for powers of 1024; ends when it is none. */
uint64_t bytes_option(const struct verb *verb, const char *text);
/* "OFFSET:BYTES", either may be missing: 0, and 0 for "to the end". */
void range_option(const struct verb *verb, const char *text, uint64_t *offset, uint64_t *bytes);
uint64_t seconds_option(const struct verb *verb, const char *text);
/* Any other number; @what is "a process id" or the like. */
uint64_t number_option(const struct verb *verb, const char *text, const char *what, uint64_t least,
		       uint64_t most);
enum tmesh_backend backend_option(const struct verb *verb, const char *text);

#define OPTION_JSON                             \
	{                                       \
		"json", 'j', NULL, "print JSON" \
	}
#define OPTION_BACKEND                                                   \
	{                                                                \
		"backend", 'b', "kernel|memfd",                          \
			"only this backend (default: TMESH_BACKEND, or " \
			"what works)"                                    \
	}

/* main.c: the folder of this program with a slash behind it, "" where it cannot be told. */
void own_folder(char *folder, size_t size);
/* Become tmeshctl-@word, beside this program or in PATH, with the words from @argv[2] on. Returns
 * when that cannot be: ENOENT, there is none; else it was said. */
int run_program(const char *word, char **argv);

/* text.c: output for people and for programs. Everything that others may have written is
 * escaped: labels, descriptions, names of processes. */

/* @text without anything that could steer a terminal; the caller frees it. */
char *escaped(const char *text);
/* "tmeshctl: @what: message" on stderr, and STATUS_FAILED. */
int complain(const char *what, const struct tmesh_error *err);
int complain_errno(const char *what);
/* What was printed gets out now, or it is said that it cannot; main() sees to it at the end. */
int flush_answer(void);
/* "4.0 KiB"; @text has 16 bytes. */
const char *human_bytes(uint64_t bytes, char *text);
/* "rwm" */
const char *rights_text(uint32_t rights, char *text);
/* A JSON string of any bytes: what is not UTF-8 is escaped. */
json_t *json_text(const char *text);
json_t *json_id(uint64_t id);
/* Print with a newline and release. */
int print_json(json_t *value);

/* Left-aligned columns of text. */
struct table {
	unsigned int columns;
	size_t cells;
	char **cell;
};
/* Takes over nothing; @text is escaped. */
void table_add(struct table *table, const char *text);
void table_addf(struct table *table, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Print and empty it. */
void table_print(struct table *table);

/* target.c: contexts and what the user named. */

int open_ctx(enum tmesh_backend backend, struct tmesh_ctx **ctx);
/* exit() waits so long at most for what is held to be opened; 0: as the library does. */
int open_ctx_linger(enum tmesh_backend backend, uint64_t seconds, struct tmesh_ctx **ctx);

/* An id of 16 hex digits or its first ones, a token, or a ref. */
struct target {
	uint64_t id;		      /* of an id or a ref; its first @digits alone */
	unsigned int digits;	      /* 16 but for the beginning of an id */
	char token[TMESH_TOKEN_SIZE]; /* of a token or a ref, else "" */
	bool has_ref;
	struct tmesh_ref ref;
};
/* How many tensors a bundle has, by its ref or its index's description; -1: of no bundle. */
json_int_t bundle_tensors(const char *text);
/* Ends with a usage error when @text is none of them. */
void parse_target(const struct verb *verb, const char *text, struct target *target);
/* A region by token or ref (not by id), with a context for its backend. */
int open_target(const struct target *target, uint32_t rights, struct tmesh_ctx **ctx,
		struct tmesh_region **region);
/* The id that @target names, which a token is opened for, and a context that lists it. */
int find_target(const struct target *target, struct tmesh_ctx **ctx,
		struct tmesh_region_info *info);
/* Call @each for every backend that works here, or for @only. */
int for_backends(enum tmesh_backend only, int (*each)(struct tmesh_ctx *ctx, void *data),
		 void *data);

/* info.c: regions and tensors, described. */
const char *info_state(const struct tmesh_region_info *info); /* a word */
json_t *info_json(const struct tmesh_region_info *info);
/* "float32 [2, 3]" from a description, or the description itself. The caller frees it. */
char *contents_text(const char *description);

/* hold.c: memory lives while somebody holds it. */

struct hold {
	bool background;
	uint64_t seconds; /* 0: until told */
	uint64_t opened;  /* not 0: until somebody has opened it, at most so many seconds */
	char **command;	  /* NULL: none */
	int ready;	  /* background: tell the waiting parent here; else -1 */
};
#define HOLD_INIT           \
	{                   \
		.ready = -1 \
	}
#define HOLD_OPTIONS                                                                         \
	{"background", 'B', NULL, "leave a holder behind and return"},                       \
	{                                                                                    \
		"for", 'f', "SECONDS", "hold for so long (default: until SIGINT or SIGTERM)" \
	}
/* To be called before a context is opened: with --background the caller goes on as the
 * holder, while the process that the user started waits for hold_until_end(). */
int hold_begin(struct hold *hold);
/* From now on, before anybody is told what is held, signals end the holding and not the tool. The
 * library's threads take none. */
void hold_signals(void);
/* Returns when it is time to let go. @variables are "NAME=value" for the command. */
int hold_until_end(struct hold *hold, char *const *variables);
/* Start a command that inherits @fd (or -1) and wait for it; after hold_signals(). */
int run_command(char **command, char *const *variables, int fd);

/* progress.c: on stderr, only on a terminal, only when it takes a while. */

struct progress {
	const char *what;
	uint64_t total; /* 0: unknown */
	uint64_t began_ns, shown_ns;
	bool terminal, shown;
};
void progress_begin(struct progress *progress, const char *what, uint64_t total);
void progress_update(struct progress *progress, uint64_t done);
void progress_end(struct progress *progress);

#endif /* TMESHCTL_H */
