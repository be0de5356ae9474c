/* SPDX-License-Identifier: MIT */
/* Declarations that the verbs of tmeshctl share. */
#ifndef TMESHCTL_H
#define TMESHCTL_H

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
	int key;	  /* verb_option() returns it; if printable, it is the short option too */
	const char *arg;  /* the option's argument; NULL: none */
	const char *help;
};

enum {
	KEY_LONG = 256
}; /* first key of options without a short form */

struct verb {
	const char *name;
	const char *args; /* synopsis of the words after the options */
	const char *help; /* one line */
	const struct option_entry *options;
	int (*run)(const struct verb *verb, int argc, char **argv);
};

extern const struct verb verb_doctor, verb_ls, verb_show, verb_holders, verb_create, verb_put,
	verb_get, verb_export, verb_import, verb_seal, verb_lease, verb_revoke, verb_keep,
	verb_kept, verb_drop, verb_top, verb_draw, verb_metrics, verb_mount, verb_umount;

/* Return the next option's key, -1 after the last. Answer --help, and end on an unknown option. */
int verb_option(const struct verb *verb, int argc, char **argv);
/* Run a program of one verb. Its messages begin with "tmeshctl VERB". */
int verb_main(const struct verb *verb, int argc, char **argv);
_Noreturn void usage_error(const struct verb *verb, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Cut off and return the words after "--"; NULL if there are none. To be called before the
 * options. */
char **split_command(const struct verb *verb, int *argc, char **argv);
/* End with a usage error unless @least to @most words follow the options. */
void verb_expect_words(const struct verb *verb, int argc, int least, int most);
/* Parse a number of bytes, with K, M, G or T for powers of 1024. End if it is malformed. */
uint64_t bytes_option(const struct verb *verb, const char *text);
/* Parse "OFFSET:BYTES". Either may be missing: 0, and 0 for "to the end". */
void range_option(const struct verb *verb, const char *text, uint64_t *offset, uint64_t *bytes);
uint64_t seconds_option(const struct verb *verb, const char *text);
/* Parse any other number; @what is "a process id" or the like. */
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

/* Let this process wait for its children, and fill closed standard descriptors. A program that
 * ignores SIGCHLD passes that on, and then the kernel reports no child's end. */
void begin_program(void);

/* main.c: return the folder of this program with a slash at its end, "" if it is unknown. */
void own_folder(char *folder, size_t size);

/* text.c: output for people and for programs. Text that other users may have written is escaped:
 * labels, descriptions, names of processes. */

/* Return @text without bytes that could control a terminal. The caller frees it. */
char *escaped(const char *text);
/* Print @text for a quoted string of DOT or OpenMetrics: escaped, also backslash and quote. */
void put_quoted(const char *text);
/* Print "tmeshctl: @what: message" on stderr. Return STATUS_FAILED. */
int complain(const char *what, const struct tmesh_error *err);
int complain_errno(const char *what);
/* Flush stdout now and report a failure. main() does so at the end. */
int flush_answer(void);
/* Write a size such as "4.0 KiB"; @text has 16 bytes. */
const char *human_bytes(uint64_t bytes, char *text);
/* Write rights such as "rwm". */
const char *rights_text(uint32_t rights, char *text);
/* Return a JSON string of any bytes. Bytes that are not UTF-8 are escaped. */
json_t *json_text(const char *text);
json_t *json_id(uint64_t id);
/* Print @value with a newline, and nothing that steers a terminal, and release it. */
int print_json(json_t *value);

/* Left-aligned columns of text. */
struct table {
	unsigned int columns;
	size_t cells;
	char **cell;
};
/* Add a cell. @text is copied and escaped. */
void table_add(struct table *table, const char *text);
void table_addf(struct table *table, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Print the table and empty it. */
void table_print(struct table *table);

/* target.c: contexts, and the region that the user names. */

int open_ctx(enum tmesh_backend backend, struct tmesh_ctx **ctx);
/* Open a context whose exit wait has @seconds at most; 0: the library's default. */
int open_ctx_exit_wait(enum tmesh_backend backend, uint64_t seconds, struct tmesh_ctx **ctx);

/* An id of 16 hex digits or its first ones, a token, or a ref. */
struct target {
	uint64_t id;		      /* of an id or a ref; only its first @digits count */
	unsigned int digits;	      /* fewer than 16 for the beginning of an id */
	char token[TMESH_TOKEN_SIZE]; /* of a token or a ref, else "" */
	bool has_ref;
	struct tmesh_ref ref;
};
/* Return the number of tensors in a bundle, by its ref or its index's description; -1: no
 * bundle. */
json_int_t bundle_tensors(const char *text);
/* Parse @text; end with a usage error if it is none of these. */
void parse_target(const struct verb *verb, const char *text, struct target *target);
/* Open a region by token or ref (not by id), with a context for its backend. */
int open_target(const struct target *target, uint32_t rights, struct tmesh_ctx **ctx,
		struct tmesh_region **region);
/* Find the region that @target names, opening its token if it is one, and a context that lists
 * it. */
int find_target(const struct target *target, struct tmesh_ctx **ctx,
		struct tmesh_region_info *info);
/* Call @each for every backend that works here, or for @only. */
int for_backends(enum tmesh_backend only, int (*each)(struct tmesh_ctx *ctx, void *data),
		 void *data);

/* info.c: regions and tensors, described. */
const char *info_state(const struct tmesh_region_info *info); /* a word */
json_t *info_json(const struct tmesh_region_info *info);
/* Return "float32 [2, 3]" from a description, or the description itself. The caller frees it. */
char *contents_text(const char *description);

/* hold.c: memory lives while a process holds it. */

struct hold {
	bool background;
	uint64_t seconds; /* 0: until a signal */
	uint64_t opened;  /* not 0: until a process has opened it, at most so many seconds */
	char **command;	  /* NULL: none */
	int ready;	  /* background: report here to the waiting parent; else -1 */
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
/* End with a usage error if a command comes with options that it excludes. */
void hold_check(const struct verb *verb, const struct hold *hold, bool json);
/* Begin holding, before a context is opened. With --background the caller goes on as the holder,
 * and the process that the user started waits for hold_until_end(). */
int hold_begin(struct hold *hold);
/* Block the signals that end a holder, so that they end the holding in order and not the tool. Call
 * this before any name is printed. The library's threads block all signals. */
void hold_signals(void);
/* Hold until the end, which the options define. @variables are "NAME=value" for the command. */
int hold_until_end(struct hold *hold, char *const *variables);
/* Start a command that inherits @fd (or -1) and wait for it; after hold_signals(). */
int run_command(char **command, char *const *variables, int fd);

/* progress.c: progress on stderr, only on a terminal and only for slow work. */

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
