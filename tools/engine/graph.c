// SPDX-License-Identifier: MIT
/* tmeshctl graph FILE: show a graph for engines as text, JSON or a drawing. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <tmesh/graph.h>

#include "../tmeshctl.h"

static const struct option_entry options[] = {
	{"dot", 'd', NULL, "a drawing: input for dot(1) of Graphviz"},
	OPTION_JSON,
	{NULL},
};

/* Recognise a model file by its beginning: it may be larger than any graph. */
static bool is_gguf(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	char magic[4] = "";
	bool is;

	is = fd >= 0 && read(fd, magic, sizeof(magic)) == sizeof(magic) &&
	     !memcmp(magic, "GGUF", sizeof(magic));
	if (fd >= 0)
		close(fd);
	return is;
}

static int run_verb_graph(const struct verb *verb, int argc, char **argv)
{
	char *(*write)(const struct tmesh_graph *graph) = tmesh_graph_to_text;
	struct tmesh_graph *graph;
	struct tmesh_error err;
	char *text;
	int key;

	while ((key = verb_option(verb, argc, argv)) >= 0)
		write = key == 'd' ? tmesh_graph_to_dot : tmesh_graph_to_json;
	verb_expect_words(verb, argc, 1, 1);
	if (is_gguf(argv[argc - 1])) {
		err.code = -EOPNOTSUPP;
		strcpy(err.message, "this is a GGUF model, which has no graph in it: in Python "
				    "tmesh.graphs.of_model() makes one, and its save() the file");
		return complain(argv[argc - 1], &err);
	}
	if (tmesh_graph_read(argv[argc - 1], &graph, &err))
		return complain(argv[argc - 1], &err);
	text = write(graph);
	tmesh_graph_unref(graph);
	if (!text) {
		errno = ENOMEM;
		return complain_errno(argv[argc - 1]);
	}
	fputs(text, stdout);
	if (*text && text[strlen(text) - 1] != '\n')
		putchar('\n');
	free(text);
	return STATUS_OK;
}

static const struct verb verb_graph_file = {
	.name = "graph",
	.args = "FILE",
	.help = "print a graph for engines as text, JSON or a drawing (DOT)",
	.options = options,
	.run = run_verb_graph,
};

int main(int argc, char **argv)
{
	return verb_main(&verb_graph_file, argc, argv);
}
