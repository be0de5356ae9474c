// SPDX-License-Identifier: MIT
/* The keeper's lent openings: others duplicate one, and no holder is overlooked. */
#include "closes.h"
#include "keeper/shown.c"
#include "keeper/table.c"
#include "kept.h"

/* One opening has one offset, whichever processes have copies of it. */
static bool share(const struct tmesh_region *a, const struct tmesh_region *b)
{
	off_t before = lseek(b->fd, 0, SEEK_CUR), there;

	assert_int_equal(lseek(a->fd, before + 1, SEEK_SET), before + 1);
	there = lseek(b->fd, 0, SEEK_CUR);
	assert_int_equal(lseek(a->fd, before, SEEK_SET), before);
	return there == before + 1;
}

static bool is_lent(struct tmesh_ctx *ctx, const char *name)
{
	struct tmesh_region *one = open_one(ctx, name), *two = open_one(ctx, name);
	bool lent = share(one, two);

	tmesh_region_unref(one);
	tmesh_region_unref(two);
	return lent;
}

/* A seccomp filter, as containers have, or ptrace_scope may forbid it: clients open anew then. */
static bool may_duplicate(struct tmesh_ctx *ctx)
{
	int pidfd = (int)syscall(SYS_pidfd_open, keeper_pid(ctx), 0);
	int fd = (int)syscall(SYS_pidfd_getfd, pidfd, 0, 0);

	close(pidfd);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

#define assert_lent(ctx, name) assert_int_equal(is_lent(ctx, name), may_duplicate(ctx))

static uint32_t held(struct tmesh_ctx *ctx, const char *name)
{
	struct tmesh_kept_info *infos;
	uint32_t held = UINT32_MAX;
	size_t count;

	assert_ok(tmesh_kept_list(ctx, &infos, &count, err));
	while (count--)
		if (!strcmp(infos[count].name, name))
			held = infos[count].held;
	free(infos);
	return held;
}

/* A look through /proc holds each file for a moment. */
static void expect_let_go(struct tmesh_ctx *ctx, const char *name)
{
	while (held(ctx, name))
		usleep(1000);
}

UNIT_SET_UP(test_lent)
{
	struct tmesh_region *early, *late;
	struct timespec used;
	struct stat st;
	void *mapping;

	keep_new(*state, "one", 4096, 1);
	assert_lent(*state, "one");
	expect_let_go(*state, "one");
	early = open_one(*state, "one");
	assert_int_equal(held(*state, "one"), 1);
	/* A region lent before that look is lent no more, and held all the same. */
	late = open_one(*state, "one");
	assert_false(share(early, late));
	tmesh_region_unref(late);
	assert_int_equal(held(*state, "one"), 1);
	assert_lent(*state, "one");
	check_fill(early, 1);
	/* A mapping alone. */
	mapping = mmap(NULL, 4096, PROT_READ, MAP_SHARED, early->fd, 0);
	assert_true(mapping != MAP_FAILED);
	tmesh_region_unref(early);
	assert_int_equal(held(*state, "one"), 1);
	munmap(mapping, 4096);
	expect_let_go(*state, "one");
	/* A mapping is no use that the kernel notes: the kernel would show a use to the last tick.
	 */
	late = open_one(*state, "one");
	assert_int_equal(fstat(late->fd, &st), 0);
	used = st.st_atim;
	check_fill(late, 1);
	assert_int_equal(fstat(late->fd, &st), 0);
	assert_int_equal(used.tv_sec, st.st_atim.tv_sec);
	assert_int_equal(used.tv_nsec, st.st_atim.tv_nsec);
	tmesh_region_unref(late);
}

/* To look at all regions, and at what lies behind their memory, is no use either. */
UNIT_SET_UP(test_seen)
{
	struct tmesh_region_info *infos;
	struct tmesh_region *region;
	struct stat before, after;
	size_t count;

	keep_new(*state, "one", 4096, 1);
	region = open_one(*state, "one");
	assert_int_equal(fstat(region->fd, &before), 0);
	assert_ok(tmesh_list(*state, &infos, &count, err));
	free(infos);
	assert_int_equal(fstat(region->fd, &after), 0);
	assert_int_equal(before.st_atim.tv_sec, after.st_atim.tv_sec);
	assert_int_equal(before.st_atim.tv_nsec, after.st_atim.tv_nsec);
	tmesh_region_unref(region);
}

/* A lent region makes no second holder of the keeper, and no second handle. */
UNIT_SET_UP(test_holders)
{
	struct tmesh_holder_info *holders;
	struct tmesh_region_info *infos;
	struct tmesh_region *region;
	struct tmesh_region_info info = {.size = sizeof(info)};
	size_t count, all, of_keeper = 0, handles;
	pid_t keeper;

	keep_new(*state, "one", 4096, 1);
	assert_lent(*state, "one");
	region = open_one(*state, "one");
	assert_ok(tmesh_region_info(region, &info, err));
	assert_ok(tmesh_holders(*state, info.id, &holders, &count, err));
	keeper = keeper_pid(*state);
	for (size_t i = 0; i < count; i++)
		of_keeper += holders[i].pid == keeper;
	assert_int_equal(of_keeper, 1);
	assert_int_equal(unit_own_holders(holders, count), 1);
	free(holders);
	/* Until no other process is looking at it. */
	do {
		assert_ok(tmesh_list(*state, &infos, &all, err));
		for (count = 0; infos[count].id != info.id; count++)
			assert_true(count + 1 < all);
		assert_true(infos[count].kept);
		assert_true(infos[count].handles >= 2);
		handles = infos[count].handles;
		free(infos);
	} while (handles > 2);
	tmesh_region_unref(region);
}

/* As in its own process: what it starts has no more descriptors. */
static void start_keeper_with(unsigned int files)
{
	struct rlimit limit = {files, files};
	struct tmesh_ctx *ctx;
	pid_t pid = fork();

	if (!pid) {
		/* CAP_SYS_RESOURCE: the keeper of root would raise the limit again. */
		prctl(PR_CAPBSET_DROP, 24);
		if (tmesh_ctx_open(NULL, &ctx, NULL) || setrlimit(RLIMIT_NOFILE, &limit))
			unit_leave(1);
		keep_new(ctx, "0", 4096, 0);
		tmesh_ctx_unref(ctx);
		unit_leave(0);
	}
	join_child(pid);
}

/* Descriptors of regions; its clients' sockets come and go. */
static unsigned int files_of(pid_t pid)
{
	unsigned int count = 0;
	struct dirent *entry;
	char path[32], link[32];
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	while ((entry = readdir(dir)))
		count += readlinkat(dirfd(dir), entry->d_name, link, sizeof(link)) > 14 &&
			 !memcmp(link, "/memfd:tmesh:", 13);
	closedir(dir);
	return count;
}

/* Those that were kept last, and no more than the keeper has descriptors for. */
UNIT_SET_UP(test_most)
{
	enum {
		FILES = 600,
		FOR_ALL = FILES - 256,
		LENT = FOR_ALL / 8,
		KEPT = FOR_ALL - LENT,
	};
	struct tmesh_keeper_info info = {.size = sizeof(info)};
	struct tmesh_region *last;
	unsigned int files;
	char name[16];
	pid_t keeper;

	start_keeper_with(FILES);
	keeper = keeper_pid(*state);
	for (int i = 1; i < LENT; i++) {
		snprintf(name, sizeof(name), "%d", i);
		keep_new(*state, name, 1, 0);
	}
	assert_lent(*state, "0");
	files = files_of(keeper);
	/* One for what is kept, and none for what is lent. */
	keep_new(*state, "more", 1, 0);
	assert_int_equal(files_of(keeper), files + 1);
	assert_false(is_lent(*state, "0"));
	assert_lent(*state, "1");
	assert_lent(*state, "more");
	/* A dropped region is not lent, and the next look lends another. */
	assert_ok(tmesh_kept_drop(*state, "more", err));
	assert_int_equal(files_of(keeper), files - 1);
	assert_true(held(*state, "0") < 2);
	assert_int_equal(files_of(keeper), files);
	assert_lent(*state, "0");
	for (int i = LENT; i < KEPT; i++) {
		snprintf(name, sizeof(name), "%d", i);
		keep_new(*state, name, 1, 0);
	}
	assert_true(is_kept(*state, "0"));
	/* Nothing goes for another one's descriptor. */
	last = sealed(*state, 1, 0);
	assert_refused(tmesh_keep(*state, "last", &last, 1, NULL, err), -EMFILE, "RLIMIT_NOFILE");
	assert_true(is_kept(*state, "0"));
	assert_ok(tmesh_kept_drop(*state, "1", err));
	assert_ok(tmesh_keep(*state, "last", &last, 1, NULL, err));
	tmesh_region_unref(last);
	/* A look at what is kept lends it again. */
	held(*state, "0");
	assert_ok(tmesh_keeper_info(*state, &info, err));
	assert_int_equal(info.names, KEPT);
	assert_int_equal(files_of(keeper), KEPT + LENT);
	assert_lent(*state, "last");
}

static void make_anew(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;

	while ((entry = readdir(dir)))
		unlinkat(dirfd(dir), entry->d_name, 0);
	closedir(dir);
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(mkdir(path, 0700), 0);
}

static void kill_and_wait(pid_t pid)
{
	struct pollfd poller = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};

	assert_int_equal(kill(pid, SIGTERM), 0);
	assert_int_equal(poll(&poller, 1, 600000), 1);
	close(poller.fd);
}

/* The keeper is that of the directory to which the path leads now, also where another one lives. */
UNIT_SET_UP(test_directories)
{
	char first[] = "/tmp/tmesh-lent-XXXXXX", second[] = "/tmp/tmesh-lent-XXXXXX";
	struct tmesh_ctx_opts opts = {.size = sizeof(opts), .runtime_dir = first};
	char away[sizeof(first) + 5];
	struct tmesh_ctx *ctx;
	pid_t keepers[4];

	assert_non_null(mkdtemp(first));
	assert_non_null(mkdtemp(second));
	snprintf(away, sizeof(away), "%s-away", first);
	assert_ok(tmesh_ctx_open(&opts, &ctx, err));
	keep_new(ctx, "one", 4096, 1);
	check_kept(ctx, "one", 1);
	keepers[0] = keeper_pid(ctx);
	assert_int_equal(rename(first, away), 0);
	assert_int_equal(rename(second, first), 0);
	assert_false(is_kept(ctx, "one"));
	keep_new(ctx, "one", 4096, 2);
	check_kept(ctx, "one", 2);
	keepers[1] = keeper_pid(ctx);
	assert_int_equal(rename(first, second), 0);
	assert_int_equal(rename(away, first), 0);
	check_kept(ctx, "one", 1);
	make_anew(first);
	assert_false(is_kept(ctx, "one"));
	keep_new(ctx, "one", 4096, 3);
	check_kept(ctx, "one", 3);
	keepers[2] = keeper_pid(ctx);
	/* Its keeper lives on where it is now, and another one comes to the path. */
	assert_int_equal(rename(first, away), 0);
	assert_int_equal(mkdir(first, 0700), 0);
	assert_false(is_kept(ctx, "one"));
	keep_new(ctx, "one", 4096, 4);
	check_kept(ctx, "one", 4);
	keepers[3] = keeper_pid(ctx);
	for (int i = 0; i < 4; i++)
		kill_and_wait(keepers[i]);
	tmesh_ctx_unref(ctx);
	make_anew(first);
	make_anew(second);
	make_anew(away);
	rmdir(first);
	rmdir(second);
	rmdir(away);
}

/* A client finds the oldest group of a table of its own after the look, and sees no more before it.
 */
struct late {
	const char *name;
	int fd; /* -1: it comes with the next group of that name that is to go */
	unsigned int shown, hidden;
};

static void show(void *data, struct group *group, bool shown)
{
	struct late *late = data;

	late->shown += shown;
	late->hidden += !shown;
	if (!shown && late->fd < 0 && !strcmp(group->name, late->name))
		late->fd = group_reopen(group->items[0].fds[0], 0);
}

/* Sealed memory that no other process has. */
static struct group *one_group(const char *name)
{
	struct tmesh_wire_region wire = {
		.magic = TMESH_MAGIC_REGION,
		.version = TMESH_WIRE_VERSION,
		.backend = TMESH_BACKEND_MEMFD,
		.rights = TMESH_READ,
		.kind = TMESH_KIND_FOREIGN,
		.bytes = 4096,
	};
	char padded[TMESH_KEPT_NAME_LEN + 1] = "";
	struct group *group;
	int fd = memfd_create("lent", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), 0);
	strcpy(padded, name);
	group = group_new(padded, 1);
	assert_non_null(group);
	assert_int_equal(group_add(group, &wire, &fd, 1, false), 0);
	return group;
}

static int add(struct table *table, const char *name)
{
	uint64_t need;

	return table_keep(table, one_group(name), 0, false, tmesh_now_ns(), &need);
}

UNIT(test_found_late)
{
	struct late late = {.name = "one", .fd = -1};
	struct table table = {.limit = 2 * 4096, .max_fds = 100, .shows = show, .data = &late};

	assert_int_equal(add(&table, "one"), 0);
	assert_int_equal(add(&table, "two"), 0);
	assert_int_equal(late.hidden, 0);
	assert_int_equal(add(&table, "three"), 0);
	assert_non_null(table_find(&table, "one"));
	assert_null(table_find(&table, "two"));
	assert_int_equal(late.shown, 1);
	assert_int_equal(late.hidden, 2);
	/* The same where memory is short, until no process has it. */
	assert_true(table_evict(&table, tmesh_now_ns()));
	assert_null(table_find(&table, "three"));
	assert_false(table_evict(&table, tmesh_now_ns()));
	close(late.fd);
	late.fd = -1;
	assert_false(table_evict(&table, tmesh_now_ns()));
	assert_non_null(table_find(&table, "one"));
	assert_int_equal(late.shown, 2);
	close(late.fd);
	late.name = "nobody";
	assert_true(table_evict(&table, tmesh_now_ns()));
	assert_null(table.groups);
}

static bool find(const struct shown *shown, const char *name, struct tmesh_index_hit *hit)
{
	struct tmesh_index_view view = {0};
	uint8_t key[TMESH_SECRET_BYTES];
	bool found;

	tmesh_keeper_key(name, key);
	assert_int_equal(tmesh_index_view_open(&view, tmesh_index_fd(shown->index)), 0);
	found = tmesh_index_view_find(&view, key, hit);
	tmesh_index_view_close(&view);
	return found;
}

/* While the keeper looks, clients see its own descriptor, to be opened anew; and nothing once a
 * group goes. */
UNIT_SET_UP(test_shown)
{
	struct group *old = one_group("one"), *new = one_group("one");
	char hex[33], link[48], target[64];
	struct tmesh_index_hit hit;
	struct shown shown;
	struct stat st;
	int dir;

	assert_ok(tmesh_ctx_runtime_dir(*state, &dir, err));
	/* A keeper of this directory was killed while it made its link. */
	assert_int_equal(fstat(dir, &st), 0);
	tmesh_keeper_name(st.st_dev, st.st_ino, shown.name);
	tmesh_hex(hex, shown.name, sizeof(shown.name));
	snprintf(link, sizeof(link), "%s.new", hex);
	assert_int_equal(symlinkat("/proc/1/fd/1", dir, link), 0);
	shown_begin(&shown, dir, 1);
	snprintf(link, sizeof(link), "%s.index", hex);
	assert_true(readlinkat(dir, link, target, sizeof(target)) > 0);
	shown_add(&shown, old);
	assert_true(find(&shown, "one", &hit) && hit.fd == old->items[0].fds[0] && !hit.read_only);
	shown_lend(&shown, old, 1);
	assert_true(find(&shown, "one", &hit) && hit.fd == old->items[0].lent && hit.read_only);
	shown_lend(&shown, old, 1);
	assert_int_equal(old->items[0].lent, hit.fd);
	shown_reclaim(&shown, old);
	assert_int_equal(old->items[0].lent, -1);
	assert_true(find(&shown, "one", &hit) && hit.fd == old->items[0].fds[0] && !hit.read_only);
	shown_lend(&shown, old, 1);
	/* Another one has taken the name. */
	shown_add(&shown, new);
	shown_remove(&shown, old, true);
	assert_int_equal(old->items[0].lent, -1);
	assert_true(find(&shown, "one", &hit) && hit.fd == new->items[0].fds[0]);
	/* None where there is room for none. */
	shown.most = 0;
	shown_lend(&shown, new, 1);
	assert_true(find(&shown, "one", &hit) && !hit.read_only);
	shown_remove(&shown, new, false);
	assert_false(find(&shown, "one", &hit));
	/* A region that is not shown is not lent. */
	shown.most = 1;
	shown_lend(&shown, new, 1);
	assert_int_equal(new->items[0].lent, -1);
	shown_end(&shown);
	/* Without an index nothing is lent, and nothing is to be taken back. */
	shown_lend(&shown, new, 1);
	shown_reclaim(&shown, new);
	close(dir);
	group_free(old);
	group_free(new);
}

/* A client that opens this memory anew closes the way there before it looks at the entry again: so
 * often the keeper changes that then. */
static struct {
	struct shown shown;
	struct group *group;
	uint8_t key[TMESH_SECRET_BYTES];
	int left, changes;
} meanwhile;

static void change(int fd)
{
	const struct item *item = &meanwhile.group->items[0];
	struct stat st;

	if (!meanwhile.left || !(fcntl(fd, F_GETFL) & O_PATH) || fstat(fd, &st) ||
	    st.st_ino != item->ino)
		return;
	meanwhile.left--;
	meanwhile.changes++;
	tmesh_index_set_fd(meanwhile.shown.index, meanwhile.key, item->fds[0], false);
}

static bool taken(struct tmesh_ctx *ctx, int changes)
{
	struct tmesh_region *region = tmesh_region_new(ctx, NULL), *opened;
	bool found;

	assert_non_null(region);
	meanwhile.left = changes;
	meanwhile.changes = 0;
	found = tmesh_peer_open_region(region, meanwhile.shown.name, meanwhile.key, TMESH_READ);
	meanwhile.left = 0;
	assert_int_equal(tmesh_region_opened(region, found ? 0 : -ENOENT, &opened),
			 found ? 0 : -ENOENT);
	if (found)
		tmesh_region_unref(opened);
	return found;
}

/* An entry that changed while its file was opened is looked at once more; then the keeper is asked.
 */
UNIT_SET_UP(test_changed)
{
	int dir;

	assert_ok(tmesh_ctx_runtime_dir(*state, &dir, err));
	meanwhile.group = one_group("one");
	tmesh_keeper_key("one", meanwhile.key);
	shown_begin(&meanwhile.shown, dir, 1);
	shown_add(&meanwhile.shown, meanwhile.group);
	unit_before_close = change;
	assert_true(taken(*state, 0));
	assert_true(taken(*state, 1));
	assert_int_equal(meanwhile.changes, 1);
	assert_false(taken(*state, 10));
	assert_int_equal(meanwhile.changes, 2);
	assert_true(taken(*state, 0));
	unit_before_close = NULL;
	shown_end(&meanwhile.shown);
	close(dir);
	group_free(meanwhile.group);
}

UNIT_MAIN("tests", unit_memfd_setup, NULL)
