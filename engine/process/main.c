// SPDX-License-Identifier: MIT
/* tmesh-engine: serve one engine, in a process that may crash, to the processes of one user. */
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/standard.h"
#include "engine_internal.h"
#include "process.h"

static const char help[] =
	"usage: tmesh-engine [options] [NAME]\n"
	"\n"
	"Serve an engine as NAME (default: the engine's own name) to this user's processes, until "
	"told to end.\n"
	"\n"
	"  -e, --engine=ENGINE   which: onnx (the default), or another plug-in's name\n"
	"      --library=FILE    the engine's own library\n"
	"  -m, --models=FOLDER   models may be read below it; may be given several times\n"
	"  -t, --threads=N       of one run (default 1)\n"
	"  -c, --clients=N       at a time, at most (default 64)\n"
	"      --sessions=N      sessions without a graph that stay open, at most (default 8)\n"
	"  -l, --limit=SECONDS   of one call, beyond which the engine is ended and started anew "
	"(default 60)\n"
	"      --patience=SECONDS  with a client that is asked for its memory, for each region "
	"(default 0.5)\n"
	"      --unconfined      let the engine open every file of this user and make every system "
	"call\n"
	"      --with-input      end when the standard input ends\n"
	"      --check           say whether engines can be confined here, and end\n"
	"  -h, --help\n"
	"      --version\n"
	"\n"
	"Clients: tmesh_engine_connect(), tmesh.engine.connect(). It prints \"ready NAME\" once it "
	"serves.\n";

static int usage(const char *what)
{
	fprintf(stderr, "tmesh-engine: %s; see tmesh-engine --help\n", what);
	return 2;
}

struct other {
	const char *name;
	bool found;
};

static void compare(const char *name, void *data)
{
	struct other *other = data;

	other->found |= !strcmp(name, other->name);
}

/* Return whether @name is an engine's. */
static bool is_engine(const char *name)
{
	struct other other = {.name = name};

	engine_plugin_names(compare, &other);
	return other.found;
}

static bool number(const char *text, double most, double *out)
{
	char *end;

	*out = strtod(text, &end);
	return end != text && !*end && *out > 0 && *out <= most;
}

static bool whole(const char *text, double most, uint32_t *out)
{
	double value;

	if (!number(text, most, &value) || value != (double)(uint32_t)value)
		return false;
	*out = (uint32_t)value;
	return true;
}

enum {
	LIBRARY = 256,
	SESSIONS,
	PATIENCE,
	UNCONFINED,
	WITH_INPUT,
	CHECK,
	VERSION
};

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{"engine", required_argument, NULL, 'e'},
		{"library", required_argument, NULL, LIBRARY},
		{"models", required_argument, NULL, 'm'},
		{"threads", required_argument, NULL, 't'},
		{"clients", required_argument, NULL, 'c'},
		{"sessions", required_argument, NULL, SESSIONS},
		{"limit", required_argument, NULL, 'l'},
		{"patience", required_argument, NULL, PATIENCE},
		{"unconfined", no_argument, NULL, UNCONFINED},
		{"with-input", no_argument, NULL, WITH_INPUT},
		{"check", no_argument, NULL, CHECK},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, VERSION},
		{0},
	};
	struct options options = {.threads = 1, .clients = 64};
	/* On a busy machine an honest client may take a tenth of a second. */
	double seconds = 60, patience = 0.5;
	int key;

	while ((key = getopt_long(argc, argv, "e:m:t:c:l:h", longs, NULL)) != -1) {
		switch (key) {
		case 'e':
			options.backend = optarg;
			break;
		case LIBRARY:
			options.library = optarg;
			break;
		case 'm':
			if (options.folder_count == MAX_FOLDERS)
				return usage("at most 64 folders of models");
			options.folders[options.folder_count++] = optarg;
			break;
		case 't':
			if (!whole(optarg, 1024, &options.threads))
				return usage("--threads takes 1 to 1024");
			break;
		case 'c':
			if (!whole(optarg, 1024, &options.clients))
				return usage("--clients takes 1 to 1024");
			break;
		case SESSIONS:
			if (!whole(optarg, 4096, &options.sessions))
				return usage("--sessions takes 1 to 4096");
			break;
		case 'l':
			if (!number(optarg, 1e6, &seconds))
				return usage("--limit takes seconds, at most 1000000");
			break;
		case PATIENCE:
			if (!number(optarg, 1e6, &patience))
				return usage("--patience takes seconds, at most 1000000");
			break;
		case UNCONFINED:
			options.unconfined = true;
			break;
		case WITH_INPUT:
			options.with_input = true;
			break;
		case CHECK:
			return check();
		case 'h':
			fputs(help, stdout);
			return tmesh_end_output("tmesh-engine");
		case VERSION:
			printf("tmesh-engine %s\n", tmesh_version());
			return tmesh_end_output("tmesh-engine");
		default:
			return 2;
		}
	}
	if (argc - optind > 1)
		return usage("one name at most");
	if (!options.backend && optind < argc && is_engine(argv[optind]) &&
	    strcmp(argv[optind], "onnx") != 0) {
		fprintf(stderr,
			"tmesh-engine: \"%s\" is an engine, and the default of --engine is onnx: "
			"give --engine=%s too\n",
			argv[optind], argv[optind]);
		return 2;
	}
	if (!options.backend)
		options.backend = "onnx";
	options.limit_ns = (uint64_t)(seconds * 1e9);
	options.patience_ns = (uint64_t)(patience * 1e9);
	options.name = optind < argc ? argv[optind] : options.backend;
	if (!wire_is_name(options.name))
		return usage("a name is of 1 to 32 small letters, digits and hyphens");
	return supervise(&options);
}
