// SPDX-License-Identifier: MIT
#include "room.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MOUNT_PATH 256
#define PATH (2 * TMESH_ROOM_PATH + MOUNT_PATH + 64)
/* A line of mountinfo that is longer is not one of a control group. */
#define LINE 1024
/* Version 1 stands for "no limit" by the largest number of whole pages. */
#define NO_LIMIT (INT64_MAX - (1 << 20))

/* One version's files, and where its groups with a memory controller are mounted. */
struct version {
	const char *limit, *used, *swap_limit, *swap_used;
	const char *cached[4]; /* of memory.stat; those that begin with '-' are subtracted */
	bool swap_with_memory; /* the swap files count memory, too */
};

static const struct version first = {
	"memory.limit_in_bytes",	 "memory.usage_in_bytes",
	"memory.memsw.limit_in_bytes",	 "memory.memsw.usage_in_bytes",
	{"total_cache", "-total_shmem"}, true,
};

static const struct version second = {
	"memory.max",
	"memory.current",
	"memory.swap.max",
	"memory.swap.current",
	{"file", "-shmem", "slab_reclaimable"},
	false,
};

struct tree {
	const struct version *version;
	char root[TMESH_ROOM_PATH]; /* the group that is mounted */
	char mount[MOUNT_PATH];	    /* where; "": nowhere */
};

static uint64_t plus(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
	return a == UINT64_MAX ? a : a > b ? a - b : 0;
}

/* Return the number in a group's file; UINT64_MAX: "max", or there is none. */
static uint64_t number_of(const char *folder, const char *name)
{
	uint64_t value = UINT64_MAX;
	char path[PATH];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "re");
	if (!file)
		return value;
	if (fscanf(file, "%" SCNu64, &value) != 1 || value >= NO_LIMIT)
		value = UINT64_MAX;
	fclose(file);
	return value;
}

/* Add up those of @names, in lines of a word and a number, and subtract those with a '-'. */
static uint64_t sum_of(const char *path, const char *const *names)
{
	uint64_t value, more = 0, less = 0;
	char name[64];
	FILE *file = fopen(path, "re");

	while (file && fscanf(file, "%63s %" SCNu64 "%*[^\n]", name, &value) == 2) {
		for (size_t i = 0; names[i]; i++) {
			if (!strcmp(names[i], name))
				more += value;
			else if (*names[i] == '-' && !strcmp(names[i] + 1, name))
				less += value;
		}
	}
	if (file)
		fclose(file);
	return minus(more, less);
}

static uint64_t machine(const char *root, const char *one, const char *two)
{
	const char *const names[] = {one, two, NULL};
	char path[PATH];

	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	return sum_of(path, names) * 1024;
}

/* Return how much of a group's memory may be swapped out yet, by its limits. */
static uint64_t swap_of(const char *folder, const struct version *version, uint64_t limit)
{
	uint64_t most = number_of(folder, version->swap_limit);
	uint64_t used = number_of(folder, version->swap_used);

	if (most == UINT64_MAX)
		return most;
	if (used == UINT64_MAX)
		used = 0;
	if (!version->swap_with_memory)
		return minus(most, used);
	return minus(minus(most, limit), minus(used, number_of(folder, version->used)));
}

static void look_at(const char *root, const struct tree *tree, const char *group,
		    struct tmesh_room *out)
{
	const struct version *version = tree->version;
	char folder[PATH - 64], path[PATH];
	uint64_t limit, swap, used, free;

	snprintf(folder, sizeof(folder), "%s%s%s", root, tree->mount, group);
	limit = number_of(folder, version->limit);
	if (limit == UINT64_MAX)
		return;
	if (limit < out->largest)
		out->largest = limit;
	snprintf(path, sizeof(path), "%s/memory.stat", folder);
	used = minus(number_of(folder, version->used), sum_of(path, version->cached));
	if (used == UINT64_MAX)
		return;
	swap = swap_of(folder, version, limit);
	free = machine(root, "SwapFree:", NULL);
	free = plus(minus(limit, used), swap < free ? swap : free);
	if (free >= out->bytes)
		return;
	out->bytes = free;
	out->limit = limit;
	out->file = version->limit;
	snprintf(out->group, sizeof(out->group), "%s", *group ? group : "/");
}

/* Return whether @word is in @list, which commas separate. */
static bool has_word(const char *list, const char *word)
{
	size_t length = strlen(word);

	for (const char *at = list; (at = strstr(at, word)); at += length)
		if ((at == list || at[-1] == ',') && (!at[length] || at[length] == ','))
			return true;
	return false;
}

/* Take a line of mountinfo if it is of the version's groups with a memory controller. */
static void read_mount(const char *line, struct tree *one, struct tree *two)
{
	char root[TMESH_ROOM_PATH], mount[MOUNT_PATH], type[32], more[TMESH_ROOM_PATH];
	const char *rest = strstr(line, " - ");
	struct tree *tree = NULL;

	if (!rest || sscanf(line, "%*s %*s %*s %255s %255s", root, mount) != 2 ||
	    sscanf(rest + 3, "%31s %*s %255s", type, more) != 2)
		return;
	if (!strcmp(type, "cgroup2"))
		tree = two;
	else if (!strcmp(type, "cgroup") && has_word(more, "memory"))
		tree = one;
	if (!tree || *tree->mount)
		return;
	strcpy(tree->root, root);
	strcpy(tree->mount, mount);
}

static void find_mounts(const char *root, struct tree *one, struct tree *two)
{
	char line[LINE], path[PATH];
	FILE *file;

	snprintf(path, sizeof(path), "%s/proc/self/mountinfo", root);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		read_mount(line, one, two);
	if (file)
		fclose(file);
}

/* Return the group's path below the mounted tree. A container may see its group as the root of the
 * tree although /proc has the whole path. */
static char *below_root(const struct tree *tree, char *group)
{
	size_t length = strlen(tree->root);

	if (length > 1 && !strncmp(group, tree->root, length) &&
	    (!group[length] || group[length] == '/'))
		return group + length;
	return group;
}

static void look_up(const char *root, const struct tree *tree, char *group, struct tmesh_room *out)
{
	char *end;

	if (!*tree->mount)
		return;
	group = below_root(tree, group);
	while ((end = strrchr(group, '/'))) {
		if (end[1])
			look_at(root, tree, group, out);
		*end = '\0';
	}
	/* The uppermost that is seen: in a namespace it has a limit, too. */
	look_at(root, tree, "", out);
}

void tmesh_room(const char *root, struct tmesh_room *out)
{
	struct tree one = {.version = &first}, two = {.version = &second};
	uint64_t all = machine(root, "MemTotal:", "SwapTotal:");
	uint64_t memory = machine(root, "MemTotal:", NULL);
	char line[LINE], path[PATH], *group;
	FILE *file;

	*out = (struct tmesh_room){.bytes = all ? all : UINT64_MAX,
				   .limit = all,
				   .largest = memory ? memory : UINT64_MAX};
	find_mounts(root, &one, &two);
	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	file = fopen(path, "re");
	/* "NUMBER:CONTROLLERS:GROUP"; those of version 2 are not named. */
	while (file && fgets(line, sizeof(line), file)) {
		char *controllers = strchr(line, ':');

		line[strcspn(line, "\n")] = '\0';
		group = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!group || strlen(group) > TMESH_ROOM_PATH)
			continue;
		*group++ = '\0';
		controllers++;
		if (!*controllers)
			look_up(root, &two, group, out);
		else if (has_word(controllers, "memory"))
			look_up(root, &one, group, out);
	}
	if (file)
		fclose(file);
}
