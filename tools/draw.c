// SPDX-License-Identifier: MIT
/*
 * tmeshctl draw: a drawing of regions and their holders, by Graphviz.
 */
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include "tmeshctl.h"

static const struct option_entry options[] = {
	{"svg", 's', NULL, "an SVG, by dot(1) of Graphviz; without it print dot's input"},
	OPTION_BACKEND,
	{NULL},
};

/* Write a quoted string of DOT. Bytes that could control a terminal are escaped. */
static void put_text(FILE *to, const char *text)
{
	char *safe = escaped(text);

	for (const char *at = safe; *at; at++) {
		if (*at == '"' || *at == '\\')
			fputc('\\', to);
		fputc(*at, to);
	}
	free(safe);
}

static void put_region(FILE *to, const struct tmesh_region_info *info)
{
	char *contents = contents_text(info->description);
	char size[16];

	fprintf(to, "\tr%016" PRIx64 " [shape=box, style=%s, label=\"", info->id,
		info->revoked  ? "dotted"
		: info->sealed ? "bold"
			       : "solid");
	put_text(to, info->label[0] ? info->label : "-");
	fprintf(to, "\\n%016" PRIx64 "\\n%s", info->id, human_bytes(info->bytes, size));
	if (*contents) {
		fputs("\\n", to);
		put_text(to, contents);
	}
	fputs("\"];\n", to);
	free(contents);
}

static const char *edge_style(const struct tmesh_holder_info *holder)
{
	if (holder->lapsed)
		return "dotted";
	return holder->kind == TMESH_HOLDER_IS_PINNING ? "bold" : "solid";
}

/* Draw one holder. A device is attached to the export that precedes it in the list. */
static void put_holder(FILE *to, const struct tmesh_region_info *info,
		       const struct tmesh_holder_info *holder, size_t number, size_t export)
{
	char rights[4];

	switch (holder->kind) {
	case TMESH_HOLDER_IS_GATHER:
		fprintf(to, "\tr%016" PRIx64 " -> r%016" PRIx64 " [label=\"view\"];\n",
			holder->view, info->id);
		return;
	case TMESH_HOLDER_IS_DEVICE:
		fprintf(to, "\td%016" PRIx64 "_%zu [shape=hexagon, label=\"", info->id, number);
		put_text(to, holder->device);
		fprintf(to, "\"];\n\td%016" PRIx64 "_%zu -> e%016" PRIx64 "_%zu [style=%s];\n",
			info->id, number, info->id, export, holder->mapped ? "bold" : "dashed");
		return;
	default:
		break;
	}
	fprintf(to, "\tp%d [label=\"", (int)holder->pid);
	put_text(to, holder->command);
	fprintf(to, "\\n%d\"];\n", (int)holder->pid);
	rights_text(holder->rights, rights);
	if (holder->kind == TMESH_HOLDER_IS_EXPORT) {
		fprintf(to,
			"\te%016" PRIx64 "_%zu [shape=component, label=\"dma-buf\"];\n"
			"\tp%d -> e%016" PRIx64 "_%zu;\n"
			"\te%016" PRIx64 "_%zu -> r%016" PRIx64 " [label=\"%s\"];\n",
			info->id, number, (int)holder->pid, info->id, number, info->id, number,
			info->id, rights);
		return;
	}
	fprintf(to, "\tp%d -> r%016" PRIx64 " [label=\"%s\", style=%s];\n", (int)holder->pid,
		info->id, rights, edge_style(holder));
}

static int put_all(struct tmesh_ctx *ctx, void *data)
{
	struct tmesh_holder_info *holders;
	struct tmesh_region_info *infos;
	size_t count, held, export = 0;
	struct tmesh_error err;
	FILE *to = data;
	int rc;

	if (tmesh_list(ctx, &infos, &count, &err))
		return complain("listing regions", &err);
	for (size_t i = 0; i < count; i++) {
		put_region(to, &infos[i]);
		rc = tmesh_holders(ctx, infos[i].id, &holders, &held, &err);
		/* The region may be gone by now, or the user may not see its holders. */
		if (rc == -ENOENT || rc == -EPERM)
			continue;
		if (rc) {
			free(infos);
			return complain("asking for holders", &err);
		}
		for (size_t j = 0; j < held; j++) {
			if (holders[j].kind == TMESH_HOLDER_IS_EXPORT)
				export = j;
			put_holder(to, &infos[i], &holders[j], j, export);
		}
		free(holders);
	}
	free(infos);
	return STATUS_OK;
}

static int write_dot(FILE *to, enum tmesh_backend backend)
{
	int status;

	fputs("digraph tmesh {\n\trankdir=LR;\n\tnode [fontname=\"sans-serif\"];\n", to);
	status = for_backends(backend, put_all, to);
	fputs("}\n", to);
	return status;
}

/* Run dot, which reads from our pipe and writes to our standard output. */
static int write_svg(enum tmesh_backend backend)
{
	char *const command[] = {"dot", "-Tsvg", NULL};
	posix_spawn_file_actions_t actions;
	int ends[2], status, rc, ended;
	pid_t pid;
	FILE *to;

	if (pipe(ends))
		return complain_errno("a pipe to dot");
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
	posix_spawn_file_actions_addclose(&actions, ends[0]);
	posix_spawn_file_actions_addclose(&actions, ends[1]);
	rc = posix_spawnp(&pid, command[0], &actions, NULL, command, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[0]);
	if (rc) {
		close(ends[1]);
		errno = rc;
		return complain_errno("dot (install graphviz, or leave --svg out)");
	}
	signal(SIGPIPE, SIG_IGN);
	to = fdopen(ends[1], "w");
	if (!to)
		abort();
	status = write_dot(to, backend);
	if (fclose(to) && !status)
		status = complain_errno("writing to dot");
	if (waitpid(pid, &ended, 0) != pid || !WIFEXITED(ended) || WEXITSTATUS(ended))
		status = STATUS_FAILED;
	return status;
}

static int run_verb_draw(const struct verb *verb, int argc, char **argv)
{
	enum tmesh_backend backend = TMESH_BACKEND_AUTO;
	bool svg = false;
	int key;

	while ((key = verb_option(verb, argc, argv)) != -1) {
		if (key == 's')
			svg = true;
		else
			backend = backend_option(verb, optarg);
	}
	verb_expect_words(verb, argc, 0, 0);
	return svg ? write_svg(backend) : write_dot(stdout, backend);
}

const struct verb verb_draw = {"draw", "", "draw the holders of regions (DOT, SVG)", options,
			       run_verb_draw};
