// SPDX-License-Identifier: MIT
/* tmeshctl draw: a drawing of regions and their holders, as input for Graphviz. */
#include "tmeshctl.h"

static const struct option_entry options[] = {OPTION_BACKEND, {NULL}};

static void put_region(const struct tmesh_region_info *info)
{
	char *contents = contents_text(info->description);
	char size[16];

	printf("\tr%016" PRIx64 " [shape=box, style=%s, label=\"", info->id,
	       info->revoked  ? "dotted"
	       : info->sealed ? "bold"
			      : "solid");
	put_quoted(info->label[0] ? info->label : "-");
	printf("\\n%016" PRIx64 "\\n%s", info->id, human_bytes(info->bytes, size));
	if (*contents) {
		fputs("\\n", stdout);
		put_quoted(contents);
	}
	fputs("\"];\n", stdout);
	free(contents);
}

static const char *edge_style(const struct tmesh_holder_info *holder)
{
	if (holder->lapsed)
		return "dotted";
	return holder->kind == TMESH_HOLDER_IS_PINNING ? "bold" : "solid";
}

/* Draw one holder. A device is attached to the export that precedes it in the list. */
static void put_holder(const struct tmesh_region_info *info, const struct tmesh_holder_info *holder,
		       size_t number, size_t export)
{
	char rights[4];

	switch (holder->kind) {
	case TMESH_HOLDER_IS_GATHER:
		printf("\tr%016" PRIx64 " -> r%016" PRIx64 " [label=\"view\"];\n", holder->view,
		       info->id);
		return;
	case TMESH_HOLDER_IS_DEVICE:
		printf("\td%016" PRIx64 "_%zu [shape=hexagon, label=\"", info->id, number);
		put_quoted(holder->device);
		printf("\"];\n\td%016" PRIx64 "_%zu -> e%016" PRIx64 "_%zu [style=%s];\n", info->id,
		       number, info->id, export, holder->mapped ? "bold" : "dashed");
		return;
	default:
		break;
	}
	printf("\tp%d [label=\"", (int)holder->pid);
	put_quoted(holder->command);
	printf("\\n%d\"];\n", (int)holder->pid);
	rights_text(holder->rights, rights);
	if (holder->kind == TMESH_HOLDER_IS_EXPORT) {
		printf("\te%016" PRIx64 "_%zu [shape=component, label=\"dma-buf\"];\n"
		       "\tp%d -> e%016" PRIx64 "_%zu;\n"
		       "\te%016" PRIx64 "_%zu -> r%016" PRIx64 " [label=\"%s\"];\n",
		       info->id, number, (int)holder->pid, info->id, number, info->id, number,
		       info->id, rights);
		return;
	}
	printf("\tp%d -> r%016" PRIx64 " [label=\"%s\", style=%s];\n", (int)holder->pid, info->id,
	       rights, edge_style(holder));
}

static int put_all(struct tmesh_ctx *ctx, void *data)
{
	struct tmesh_holder_info *holders;
	struct tmesh_region_info *infos;
	size_t count, held, export = 0;
	struct tmesh_error err;
	int rc;

	if (tmesh_list(ctx, &infos, &count, &err))
		return complain("listing regions", &err);
	for (size_t i = 0; i < count; i++) {
		put_region(&infos[i]);
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
			put_holder(&infos[i], &holders[j], j, export);
		}
		free(holders);
	}
	free(infos);
	return STATUS_OK;
}

static int run_verb_draw(const struct verb *verb, int argc, char **argv)
{
	enum tmesh_backend backend = TMESH_BACKEND_AUTO;
	int status;

	while (verb_option(verb, argc, argv) != -1)
		backend = backend_option(verb, optarg);
	verb_expect_words(verb, argc, 0, 0);
	puts("digraph tmesh {\n\trankdir=LR;\n\tnode [fontname=\"sans-serif\"];");
	status = for_backends(backend, put_all, NULL);
	puts("}");
	return status;
}

const struct verb verb_draw = {"draw", "", "draw the holders of regions (DOT)", options,
			       run_verb_draw};
