// SPDX-License-Identifier: MIT
/*
 * Seeing memfd regions: /proc shows which processes have which memfds open or mapped, as far
 * as one may look at them. A region is its inode; what it is called stands in the link's
 * name, and in the trailer, which is read once per inode.
 */
#include "common/foreign.h"
#include "memfd.h"
#include "memfd_proc.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Identify the memory by its name and, if a descriptor can be read, by its trailer. */
static bool identify(const struct sight *sight, struct tmesh_region_info *info)
{
	struct tmesh_memfd_name name;
	int fd;

	memset(info, 0, sizeof(*info));
	if (!tmesh_memfd_name_parse(sight->name, &name))
		return false;
	info->size = sizeof(*info);
	info->backend = TMESH_BACKEND_MEMFD;
	info->node = -1;
	info->id = name.id;
	info->bytes = name.bytes;
	info->alloc_bytes = name.bytes;
	memcpy(info->label, name.label, sizeof(info->label));
	if (sight->fd < 0)
		return true;
	fd = tmesh_proc_open(sight->dir, sight->fd);
	if (fd >= 0) {
		/* The name stays valid for anything that the trailer does not have. */
		tmesh_memfd_describe(fd, tmesh_memfd_is_hugetlb(fd) ? TMESH_KIND_HUGETLB : 0, info);
		if (!info->huge_bytes)
			info->huge_bytes = tmesh_huge_bytes(fd, info->alloc_bytes);
		close(fd);
	} else {
		tmesh_proc_note(sight);
	}
	return true;
}

/* All regions: infos by inode, found again by a linear probe of a growing table. */
struct catalogue {
	struct tmesh_region_info *infos;
	struct {
		uint64_t dev, ino;
		size_t holder; /* from 1: the first in the process that was seen last */
	} * files;
	size_t count;
	size_t room;
	uint32_t *table; /* index + 1 of infos, by inode */
	size_t buckets;
	pid_t keeper; /* what it has is kept; 0: none runs */
};

static uint32_t *catalogue_bucket(const struct catalogue *all, uint64_t dev, uint64_t ino)
{
	size_t i = (size_t)tmesh_memfd_foreign_id(dev, ino) & (all->buckets - 1);

	while (all->table[i] && (all->files[all->table[i] - 1].ino != ino ||
				 all->files[all->table[i] - 1].dev != dev))
		i = (i + 1) & (all->buckets - 1);
	return &all->table[i];
}

static int catalogue_grow(struct catalogue *all)
{
	size_t room = all->room ? all->room * 2 : 64;
	void *infos = realloc(all->infos, room * sizeof(*all->infos));
	void *files, *table;

	if (!infos)
		return -ENOMEM;
	all->infos = infos;
	files = realloc(all->files, room * sizeof(*all->files));
	if (!files)
		return -ENOMEM;
	all->files = files;
	table = calloc(room * 2, sizeof(*all->table));
	if (!table)
		return -ENOMEM;
	free(all->table);
	all->table = table;
	all->buckets = room * 2;
	all->room = room;
	for (size_t i = 0; i < all->count; i++)
		*catalogue_bucket(all, all->files[i].dev, all->files[i].ino) = (uint32_t)i + 1;
	return 0;
}

/* Return its place in the catalogue, from 1; 0: it is no region; or a negative errno. */
static int64_t catalogue_find(struct catalogue *all, const struct sight *sight)
{
	uint32_t *bucket;

	if (strncmp(sight->name, "tmesh:", 6))
		return 0;
	if (all->count == all->room && catalogue_grow(all))
		return -ENOMEM;
	bucket = catalogue_bucket(all, sight->dev, sight->ino);
	if (!*bucket) {
		if (!identify(sight, &all->infos[all->count]))
			return 0;
		all->files[all->count].dev = sight->dev;
		all->files[all->count].ino = sight->ino;
		all->files[all->count].holder = 0;
		*bucket = (uint32_t)++all->count;
	}
	return *bucket;
}

static int catalogue_see(struct catalogue *all, const struct sight *sight, bool counts)
{
	struct tmesh_region_info *info;
	int64_t at = catalogue_find(all, sight);

	if (at <= 0)
		return (int)at;
	info = &all->infos[at - 1];
	/* A region that a keeper lends is not another handle of the keeper's. */
	info->handles += counts && !(info->kept && sight->pid == all->keeper);
	info->kept |= sight->pid == all->keeper;
	return 0;
}

static int list_fd(void *data, const struct sight *sight)
{
	return catalogue_see(data, sight, true);
}

static int list_map(void *data, const struct sight *sight)
{
	return catalogue_see(data, sight, false);
}

static int by_id(const void *a, const void *b)
{
	const struct tmesh_region_info *one = a, *two = b;

	return one->id < two->id ? -1 : one->id > two->id;
}

int tmesh_proc_list(struct tmesh_ctx *ctx, struct tmesh_region_info **infos, size_t *count,
		    struct tmesh_error *err)
{
	struct tmesh_keeper_info keeper = {.size = sizeof(keeper)};
	struct catalogue all = {0};
	struct tmesh_error why;
	int rc = tmesh_keeper_info(ctx, &keeper, &why);

	/* If the keeper does not answer, list the rest. */
	if (rc)
		tmesh_log(ctx, TMESH_LOG_WARN, "which regions are kept is not known: %s",
			  why.message);
	all.keeper = keeper.pid;
	rc = tmesh_proc_walk(list_fd, list_map, &all, err);

	free(all.files);
	free(all.table);
	if (rc) {
		free(all.infos);
		return rc;
	}
	if (all.count)
		qsort(all.infos, all.count, sizeof(*all.infos), by_id);
	*infos = all.infos;
	*count = all.count;
	return 0;
}

/* A search for the holders of one region. A process with a descriptor and mappings is listed once.
 */
struct search {
	uint64_t id;
	bool found;
	uint64_t dev, ino; /* of the region, once found */
	struct tmesh_holder_info *holders;
	size_t count, room;
};

static void read_command(const struct sight *sight, char command[16])
{
	char path[32];
	ssize_t got = 0;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)sight->pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		got = read(fd, command, 15);
		close(fd);
	} else {
		tmesh_proc_note(sight);
	}
	command[got > 0 ? got : 0] = '\0';
	command[strcspn(command, "\n")] = '\0';
}

/* Return the rights of another process's descriptor, by the mode it was opened with. */
static uint32_t read_rights(const struct sight *sight)
{
	char path[64], line[64];
	unsigned int flags = O_RDONLY;
	FILE *info;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", (int)sight->pid, sight->fd);
	info = fopen(path, "re");
	if (!info)
		tmesh_proc_note(sight);
	while (info && fgets(line, sizeof(line), info))
		if (sscanf(line, "flags: %o", &flags) == 1)
			break;
	if (info)
		fclose(info);
	return (flags & O_ACCMODE) == O_RDONLY ? TMESH_READ : TMESH_READ | TMESH_WRITE;
}

/*
 * A search for writers. A region with a token for reading has a read-only descriptor in its
 * producer, which opens the file anew to write (memfd_fd.c). The producer's index of tokens shows
 * that.
 */
struct writes {
	const struct sight *sight;
	bool found;
};

static int writes_by_index(void *data, const struct sight *index)
{
	struct writes *writes = data;
	const struct sight *sight = writes->sight;
	struct tmesh_index_view view;
	int fd;

	if (strncmp(index->name, TMESH_INDEX_NAME, strlen(TMESH_INDEX_NAME)))
		return 0;
	fd = tmesh_proc_open(index->dir, index->fd);
	if (fd >= 0 && tmesh_index_view_open(&view, fd) == 0) {
		writes->found = tmesh_index_view_writes(&view, sight->fd, sight->dev, sight->ino);
		tmesh_index_view_close(&view);
	}
	if (fd >= 0)
		close(fd);
	else
		tmesh_proc_note(sight);
	return writes->found;
}

static bool is_sealed(const struct sight *sight)
{
	bool sealed = false;
	int fd = tmesh_proc_open(sight->dir, sight->fd);

	if (fd >= 0) {
		sealed = fcntl(fd, F_GET_SEALS) & F_SEAL_WRITE;
		close(fd);
	} else {
		tmesh_proc_note(sight);
	}
	return sealed;
}

static uint32_t rights_of(const struct sight *sight)
{
	struct writes writes = {.sight = sight};
	uint32_t rights = read_rights(sight);

	if (rights == TMESH_READ && !is_sealed(sight) &&
	    tmesh_proc_walk_fds(sight->pid, writes_by_index, &writes, sight->lack) < 0)
		tmesh_proc_note(sight);
	return writes.found ? rights | TMESH_WRITE : rights;
}

static uid_t read_uid(pid_t pid)
{
	char path[32];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	return stat(path, &st) ? (uid_t)-1 : st.st_uid;
}

static bool is_wanted(struct search *search, const struct sight *sight)
{
	struct tmesh_region_info *info;

	if (search->found)
		return sight->dev == search->dev && sight->ino == search->ino;
	info = malloc(sizeof(*info));
	if (!info) {
		*sight->lack = ENOMEM;
		return false;
	}
	search->found = identify(sight, info)
				? info->id == search->id
				: tmesh_memfd_foreign_id(sight->dev, sight->ino) == search->id;
	free(info);
	search->dev = sight->dev;
	search->ino = sight->ino;
	return search->found;
}

static struct tmesh_holder_info *holder_add(struct search *search, const struct sight *sight)
{
	size_t room = search->room ? 2 * search->room : 16;
	struct tmesh_holder_info *holder = search->holders;

	if (search->count == search->room) {
		holder = realloc(search->holders, room * sizeof(*holder));
		if (!holder)
			return NULL;
		search->holders = holder;
		search->room = room;
	}
	holder += search->count++;
	memset(holder, 0, sizeof(*holder));
	holder->pid = sight->pid;
	holder->region = search->id;
	if (search->count > 1 && holder[-1].pid == sight->pid) {
		holder->uid = holder[-1].uid;
		memcpy(holder->command, holder[-1].command, sizeof(holder->command));
	} else {
		holder->uid = read_uid(sight->pid);
		read_command(sight, holder->command);
	}
	return holder;
}

/* Return whether it is another opening that a keeper lends, which is no second holder. */
static bool is_lent(const struct search *search, const struct tmesh_holder_info *holder)
{
	return search->count > 1 && !strcmp(holder->command, "tmesh-keeper") &&
	       holder[-1].pid == holder->pid && holder[-1].rights == holder->rights;
}

static int holder_fd(void *data, const struct sight *sight)
{
	struct search *search = data;
	struct tmesh_holder_info *holder;

	if (!is_wanted(search, sight))
		return 0;
	holder = holder_add(search, sight);
	if (!holder)
		return -ENOMEM;
	holder->kind = TMESH_HOLDER_IS_HANDLE;
	holder->rights = rights_of(sight);
	if (is_lent(search, holder))
		search->count--;
	return 0;
}

static int holder_map(void *data, const struct sight *sight)
{
	struct search *search = data;
	struct tmesh_holder_info *holder = NULL;

	if (!is_wanted(search, sight))
		return 0;
	for (size_t i = search->count; i > 0 && search->holders[i - 1].pid == sight->pid; i--)
		holder = &search->holders[i - 1];
	if (!holder) {
		holder = holder_add(search, sight);
		if (!holder)
			return -ENOMEM;
		holder->kind = TMESH_HOLDER_IS_MAPPING;
		holder->rights = TMESH_READ;
	}
	holder->mappings++;
	if (sight->writable)
		holder->rights |= TMESH_WRITE;
	return 0;
}

/* A program has fewer contexts. */
#define INDEXES 16

/* The holders of all regions, by one look at each process. */
struct everyone {
	struct catalogue all;
	struct search search;
	/* The indexes of tokens of one process, mapped while its descriptors are looked at. */
	pid_t indexed;
	struct tmesh_index_view views[INDEXES];
	unsigned int view_count;
};

static void forget_indexes(struct everyone *everyone)
{
	while (everyone->view_count)
		tmesh_index_view_close(&everyone->views[--everyone->view_count]);
	everyone->indexed = 0;
}

static int keep_index(void *data, const struct sight *index)
{
	struct everyone *everyone = data;
	int fd;

	if (strncmp(index->name, TMESH_INDEX_NAME, strlen(TMESH_INDEX_NAME)))
		return 0;
	fd = tmesh_proc_open(index->dir, index->fd);
	if (fd < 0) {
		tmesh_proc_note(index);
		return 0;
	}
	if (tmesh_index_view_open(&everyone->views[everyone->view_count], fd) == 0)
		everyone->view_count++;
	close(fd);
	return everyone->view_count == INDEXES;
}

/* Return the rights as rights_of(), with one look for the indexes of a process. */
static uint32_t rights_among(struct everyone *everyone, const struct sight *sight)
{
	uint32_t rights = read_rights(sight);

	if (rights != TMESH_READ || is_sealed(sight))
		return rights;
	if (everyone->indexed != sight->pid) {
		forget_indexes(everyone);
		everyone->indexed = sight->pid;
		if (tmesh_proc_walk_fds(sight->pid, keep_index, everyone, sight->lack) < 0)
			tmesh_proc_note(sight);
	}
	for (unsigned int i = 0; i < everyone->view_count; i++)
		if (tmesh_index_view_writes(&everyone->views[i], sight->fd, sight->dev, sight->ino))
			return rights | TMESH_WRITE;
	return rights;
}

/* Return the first holder of the region at @at in the process seen last, if that is @pid; or NULL.
 */
static struct tmesh_holder_info *holder_before(struct everyone *everyone, int64_t at, pid_t pid)
{
	size_t last = everyone->all.files[at - 1].holder;
	struct tmesh_holder_info *holder = last ? &everyone->search.holders[last - 1] : NULL;

	return holder && holder->pid == pid ? holder : NULL;
}

static struct tmesh_holder_info *holder_of(struct everyone *everyone, const struct sight *sight,
					   int64_t at)
{
	struct tmesh_holder_info *holder = holder_add(&everyone->search, sight);

	if (holder)
		holder->region = everyone->all.infos[at - 1].id;
	return holder;
}

static int everyone_fd(void *data, const struct sight *sight)
{
	struct everyone *everyone = data;
	int64_t at = catalogue_find(&everyone->all, sight);
	struct tmesh_holder_info *holder, *before;

	if (at <= 0)
		return (int)at;
	holder = holder_of(everyone, sight, at);
	if (!holder)
		return -ENOMEM;
	holder->kind = TMESH_HOLDER_IS_HANDLE;
	holder->rights = rights_among(everyone, sight);
	before = holder_before(everyone, at, sight->pid);
	/* As is_lent(). */
	if (before && !strcmp(holder->command, "tmesh-keeper") && before->rights == holder->rights)
		everyone->search.count--;
	else if (!before)
		everyone->all.files[at - 1].holder = everyone->search.count;
	return 0;
}

static int everyone_map(void *data, const struct sight *sight)
{
	struct everyone *everyone = data;
	int64_t at = catalogue_find(&everyone->all, sight);
	struct tmesh_holder_info *holder;

	if (at <= 0)
		return (int)at;
	holder = holder_before(everyone, at, sight->pid);
	if (!holder) {
		holder = holder_of(everyone, sight, at);
		if (!holder)
			return -ENOMEM;
		holder->kind = TMESH_HOLDER_IS_MAPPING;
		holder->rights = TMESH_READ;
		everyone->all.files[at - 1].holder = everyone->search.count;
	}
	holder->mappings++;
	if (sight->writable)
		holder->rights |= TMESH_WRITE;
	return 0;
}

static int by_region(const void *a, const void *b)
{
	const struct tmesh_holder_info *one = a, *two = b;

	if (one->region != two->region)
		return one->region < two->region ? -1 : 1;
	return (one->offset > two->offset) - (one->offset < two->offset);
}

static int holders_of_all(struct tmesh_holder_info **holders, size_t *count,
			  struct tmesh_error *err)
{
	struct everyone everyone = {.all = {.count = 0}};
	int rc = tmesh_proc_walk(everyone_fd, everyone_map, &everyone, err);

	forget_indexes(&everyone);
	free(everyone.all.infos);
	free(everyone.all.files);
	free(everyone.all.table);
	if (rc) {
		free(everyone.search.holders);
		return rc;
	}
	/* Those of a region stay as they were seen: a memfd's holder has no offset of its own. */
	for (size_t i = 0; i < everyone.search.count; i++)
		everyone.search.holders[i].offset = i;
	if (everyone.search.count)
		qsort(everyone.search.holders, everyone.search.count,
		      sizeof(*everyone.search.holders), by_region);
	for (size_t i = 0; i < everyone.search.count; i++)
		everyone.search.holders[i].offset = 0;
	*holders = everyone.search.holders;
	*count = everyone.search.count;
	return 0;
}

int tmesh_proc_holders(struct tmesh_ctx *ctx, uint64_t id, struct tmesh_holder_info **holders,
		       size_t *count, struct tmesh_error *err)
{
	struct search search = {.id = id};
	int rc = id ? tmesh_proc_walk(holder_fd, holder_map, &search, err) : 0;

	if (!id)
		return holders_of_all(holders, count, err);

	if (!rc && !search.count)
		rc = tmesh_fail(err, -ENOENT,
				"no process that this user may see holds region %016llx",
				(unsigned long long)id);
	if (rc) {
		free(search.holders);
		return rc;
	}
	*holders = search.holders;
	*count = search.count;
	return 0;
}

pid_t tmesh_proc_leaser(int fd)
{
	FILE *locks = fopen("/proc/locks", "re");
	char line[256];
	struct stat st;
	pid_t found = 0;

	if (!locks)
		return 0;
	while (!fstat(fd, &st) && !found && fgets(line, sizeof(line), locks)) {
		unsigned int major, minor;
		unsigned long ino;
		int pid;

		if (sscanf(line, "%*s LEASE %*s %*s %d %x:%x:%lu", &pid, &major, &minor, &ino) ==
			    4 &&
		    makedev(major, minor) == st.st_dev && ino == st.st_ino)
			found = pid;
	}
	fclose(locks);
	return found;
}

struct writers {
	uint64_t dev, ino;
	char *text;
	size_t size;
	pid_t last;
};

static int no_fd(void *data, const struct sight *sight)
{
	return 0;
}

static int writer_map(void *data, const struct sight *sight)
{
	struct writers *writers = data;
	size_t used = strlen(writers->text);
	char command[16];

	if (!sight->writable || sight->dev != writers->dev || sight->ino != writers->ino ||
	    sight->pid == writers->last)
		return 0;
	writers->last = sight->pid;
	read_command(sight, command);
	snprintf(writers->text + used, writers->size - used, "%s%d (%s)", used ? ", " : "",
		 (int)sight->pid, *command ? command : "?");
	return 0;
}

void tmesh_proc_writers(int fd, char *text, size_t size)
{
	struct writers writers = {.text = text, .size = size};
	struct stat st;

	*text = '\0';
	if (fstat(fd, &st))
		return;
	writers.dev = st.st_dev;
	writers.ino = st.st_ino;
	/* Processes that cannot be inspected are not named. */
	tmesh_proc_walk(no_fd, writer_map, &writers, NULL);
}
