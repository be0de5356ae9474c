// SPDX-License-Identifier: MIT
/* Kept regions on memfd: a kept region comes back when all its holders are gone, and within the
 * limit. */
#include <sched.h>

#include "kept.h"

/* A process that says by a pipe when it has done @work, and is killed then. */
static void killed_after(void (*work)(struct tmesh_ctx *ctx))
{
	int ends[2], status;
	char byte;
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (!pid) {
		struct tmesh_ctx *ctx;

		if (tmesh_ctx_open(NULL, &ctx, NULL))
			unit_leave(1);
		work(ctx);
		if (write(ends[1], "x", 1) != 1)
			unit_leave(1);
		pause();
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], &byte, 1), 1);
	close(ends[0]);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
}

UNIT_SET_UP(test_refused)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts), .flags = 8};
	char longer[TMESH_KEPT_NAME_LEN + 2] = "";
	struct tmesh_region *region, *reader, *none[1], **regions = NULL;
	struct tmesh_bundle *bundle = NULL;
	unsigned int before;
	struct tmesh_ctx *other;
	size_t count = 0;

	assert_ok(tmesh_region_create(*state, 4096, NULL, &region, err));
	assert_refused(tmesh_keep(*state, "a", &region, 1, NULL, err), -EINVAL, "not sealed");
	assert_ok(tmesh_region_seal(region, err));
	assert_refused(tmesh_keep(*state, "a", &region, 1, &opts, err), -EINVAL, "flags");
	opts.flags = 0;
	opts.size = 3;
	assert_refused(tmesh_keep(*state, "a", &region, 1, &opts, err), -EINVAL, "size");
	opts.size = sizeof(opts);
	opts.mode = 0777;
	assert_refused(tmesh_keep(*state, "a", &region, 1, &opts, err), -EINVAL, "mode");
	opts.mode = 0640;
	assert_refused(tmesh_keep(*state, "a", &region, 1, &opts, err), -EOPNOTSUPP, "module");
	opts.mode = 0600;
	opts.flags = TMESH_KEEPING_GID;
	assert_refused(tmesh_keep(*state, "a", &region, 1, &opts, err), -EOPNOTSUPP, "group");
	assert_refused(tmesh_keep(*state, NULL, &region, 1, NULL, err), -EINVAL, "name");
	memset(longer, 'a', TMESH_KEPT_NAME_LEN + 1);
	assert_refused(tmesh_keep(*state, longer, &region, 1, NULL, err), -EINVAL, "longer");
	assert_refused(
		tmesh_kept_open(*state, longer, TMESH_KEPT_OWN, TMESH_READ, &regions, &count, err),
		-EINVAL, "longer");
	assert_refused(tmesh_keep(*state, "a\nb", &region, 1, NULL, err), -EINVAL, "control");
	assert_refused(tmesh_keep(*state, "a", none, 0, NULL, err), -EINVAL, "1 to");
	assert_refused(tmesh_keep(*state, "a", none, TMESH_KEPT_MAX_REGIONS + 1, NULL, err),
		       -EINVAL, "1 to");
	assert_ok(tmesh_region_derive(region, TMESH_READ, &reader, err));
	assert_ok(tmesh_keep(*state, "a", &reader, 1, NULL, err));
	assert_ok(tmesh_kept_drop(*state, "a", err));
	assert_refused(
		tmesh_keep(*state, "a", (struct tmesh_region *[]){region, region}, 2, NULL, err),
		-EINVAL, "region 1");
	assert_ok(tmesh_ctx_open(NULL, &other, err));
	assert_refused(tmesh_keep(other, "a", &region, 1, NULL, err), -EINVAL, "another context");
	tmesh_ctx_unref(other);
	assert_false(is_kept(*state, "a"));
	assert_ok(tmesh_keep(*state, "a", &region, 1, NULL, err));
	assert_refused(tmesh_kept_open(*state, "a", TMESH_KEPT_OWN, TMESH_READ | TMESH_WRITE,
				       &regions, &count, err),
		       -EACCES, "rights");
	assert_refused(tmesh_kept_open(*state, "a", TMESH_KEPT_OWN, 0, &regions, &count, err),
		       -EINVAL, "READ");
	assert_refused(
		tmesh_kept_open(*state, "a", geteuid() + 1, TMESH_READ, &regions, &count, err),
		-EOPNOTSUPP, "TMESH_KEPT_OWN names your own");
	assert_null(regions);
	assert_refused(tmesh_kept_open_bundle(*state, "b", TMESH_KEPT_OWN, &bundle, err), -ENOENT,
		       "");
	/* A region is no bundle, and what was opened to see that is let go of. */
	before = unit_open_fds();
	assert_refused(tmesh_kept_open_bundle(*state, "a", TMESH_KEPT_OWN, &bundle, err), -EPROTO,
		       "bundle");
	assert_int_equal(unit_open_fds(), before);
	assert_null(bundle);
	/* This user, by name. */
	assert_ok(tmesh_kept_open(*state, "a", geteuid(), TMESH_READ, &regions, &count, err));
	assert_int_equal(count, 1);
	tmesh_region_unref(regions[0]);
	free(regions);
	tmesh_region_unref(reader);
	tmesh_region_unref(region);
}

UNIT_SET_UP(test_list)
{
	struct tmesh_keep_opts opts = {.size = sizeof(opts), .lifetime_ns = UINT64_MAX / 4};
	struct tmesh_kept_info *infos = NULL;
	struct tmesh_region *region;
	size_t count = 1;

	/* Without a keeper nothing is kept, and asking starts none. */
	assert_ok(tmesh_kept_list(*state, &infos, &count, err));
	assert_int_equal(count, 0);
	free(infos);
	assert_int_equal(keeper_pid(*state), 0);

	keep_unseen(*state, "first", MIB, 1);
	/* The keeper does not see the maker of memory that was made elsewhere. */
	region = sealed(*state, 4096, 2);
	assert_ok(tmesh_keep(*state, "second", &region, 1, &opts, err));
	assert_ok(tmesh_kept_list(*state, &infos, &count, err));
	assert_int_equal(count, 2);
	assert_string_equal(infos[0].name, "first");
	assert_string_equal(infos[1].name, "second");
	assert_int_equal(infos[0].held, 0);
	assert_int_equal(infos[1].held, 1);
	assert_true(infos[0].bytes >= MIB && infos[0].bytes < MIB + 65536);
	assert_int_equal(infos[0].expires_ns, 0);
	assert_true(infos[1].expires_ns > infos[1].kept_ns);
	assert_true(infos[0].id < infos[1].id);
	assert_int_equal(infos[0].count, 1);
	free(infos);
	infos = NULL;
	assert_refused(tmesh_kept_list_sized(*state, 0, &infos, &count, err), -EINVAL, "");
	assert_null(infos);
	/* A mapping holds as much as a descriptor. */
	tmesh_region_unref(region);
	region = open_one(*state, "first");
	check_fill(region, 1);
	do {
		free(infos);
		assert_ok(tmesh_kept_list(*state, &infos, &count, err));
		assert_int_equal(infos[0].held, 1);
	} while (infos[1].held); /* a search for regions holds it for a moment */
	free(infos);
	tmesh_region_unref(region);
}

UNIT_SET_UP(test_limit)
{
	struct tmesh_region *big, *held;
	struct tmesh_keeper_info info = {.size = sizeof(info)};

	setenv("TMESH_KEEPER_BYTES", "3400000", 1);
	keep_unseen(*state, "one", MIB, 1);
	keep_unseen(*state, "two", MIB, 2);
	keep_unseen(*state, "three", MIB, 3);
	assert_ok(tmesh_keeper_info(*state, &info, err));
	assert_int_equal(info.max_bytes, 3400000);
	assert_int_equal(info.names, 3);
	/* Used last, so the next is the oldest. */
	check_kept(*state, "one", 1);
	keep_unseen(*state, "four", MIB, 4);
	assert_true(is_kept(*state, "one"));
	assert_false(is_kept(*state, "two"));
	/* A held region stays, however old. */
	held = open_one(*state, "three");
	check_kept(*state, "one", 1);
	check_kept(*state, "four", 4);
	keep_unseen(*state, "five", MIB, 5);
	assert_true(is_kept(*state, "three"));
	assert_false(is_kept(*state, "one"));
	/* Too much with what is held: refused, and nothing has gone. */
	big = unseen(*state, 3 * MIB, 6);
	assert_refused(tmesh_keep(*state, "big", &big, 1, NULL, err), -EDQUOT, "3400000");
	assert_true(is_kept(*state, "three"));
	assert_true(is_kept(*state, "four"));
	assert_true(is_kept(*state, "five"));
	tmesh_region_unref(held);
	assert_ok(tmesh_keep(*state, "big", &big, 1, NULL, err));
	assert_false(is_kept(*state, "three"));
	assert_false(is_kept(*state, "four"));
	tmesh_region_unref(big);
	/* More than the limit itself. */
	big = unseen(*state, 4 * MIB, 6);
	assert_refused(tmesh_keep(*state, "bigger", &big, 1, NULL, err), -EDQUOT, "limit");
	assert_true(is_kept(*state, "big"));
	tmesh_region_unref(big);
}

static uint64_t opened_without_wake(struct tmesh_ctx *ctx)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	assert_int_equal(tmesh_stats(ctx, &stats), 0);
	return stats.opens_without_wake;
}

/* A region kept by itself is opened without its keeper, which is stopped meanwhile: the newest of a
 * name, until it is dropped. */
UNIT_SET_UP(test_without_wake)
{
	struct tmesh_keep_opts replace = {.size = sizeof(replace), .flags = TMESH_KEEPING_REPLACE};
	struct tmesh_region *region = sealed(*state, 4096, 2), *other;
	uint64_t before = opened_without_wake(*state);
	char name[16];
	pid_t keeper;

	keep_new(*state, "one", 4096, 1);
	assert_ok(tmesh_keep(*state, "one", &region, 1, &replace, err));
	tmesh_region_unref(region);
	/* More than the first table has room for. */
	for (int i = 0; i < 300; i++) {
		snprintf(name, sizeof(name), "%d", i);
		keep_new(*state, name, 1, (uint8_t)i);
	}
	keeper = keeper_pid(*state);
	assert_int_equal(kill(keeper, SIGSTOP), 0);
	check_kept(*state, "one", 2);
	check_kept(*state, "299", 299 & 255);
	assert_int_equal(opened_without_wake(*state), before + 2);
	assert_int_equal(kill(keeper, SIGCONT), 0);
	assert_ok(tmesh_kept_drop(*state, "one", err));
	assert_refused(tmesh_kept_drop(*state, "one", err), -ENOENT, "nothing is kept");
	assert_false(is_kept(*state, "one"));
	/* Two regions under a name are asked for. */
	region = sealed(*state, 4096, 3);
	other = sealed(*state, 4096, 4);
	assert_ok(
		tmesh_keep(*state, "one", (struct tmesh_region *[]){region, other}, 2, NULL, err));
	assert_true(is_kept(*state, "one"));
	assert_int_equal(opened_without_wake(*state), before + 2);
	tmesh_region_unref(region);
	tmesh_region_unref(other);
}

/* The keeper is killed: holders keep their memory, the rest is gone, and a new one starts. */
UNIT_SET_UP(test_keeper_killed)
{
	struct tmesh_region *region;

	keep_new(*state, "held", 4096, 1);
	keep_new(*state, "not held", 4096, 2);
	region = open_one(*state, "held");
	end_keeper(*state, SIGKILL);
	check_fill(region, 1);
	assert_false(is_kept(*state, "held"));
	assert_false(is_kept(*state, "not held"));
	keep_new(*state, "again", 4096, 3);
	check_kept(*state, "again", 3);
	tmesh_region_unref(region);
}

/* Keep in a context that was opened with this keeper. */
static void refuse_keeper(const char *keeper, int code, const char *word)
{
	struct tmesh_region *region;
	struct tmesh_ctx *ctx;

	setenv("TMESH_KEEPER", keeper, 1);
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	region = sealed(ctx, 4096, 1);
	assert_refused(tmesh_keep(ctx, "a", &region, 1, NULL, err), code, word);
	tmesh_region_unref(region);
	tmesh_ctx_unref(ctx);
}

UNIT_SET_UP(test_not_started)
{
	struct tmesh_region *region = sealed(*state, 4096, 1);
	char *keeper = strdup(getenv("TMESH_KEEPER")), command[80];

	refuse_keeper("/nowhere/tmesh-keeper", -ENOENT, "TMESH_KEEPER");
	/* One that runs and is no keeper. */
	refuse_keeper("true", -EINVAL, "absolute path");
	refuse_keeper("/bin/false", -ENOENT, "could not start");
	/* One that reports its start, and does not listen: the message is the command to try. */
	snprintf(command, sizeof(command), "/bin/true %.60s", unit_runtime_dir());
	refuse_keeper("/bin/true", -ENOENT, command);
	/* An older context goes on with the keeper that it was opened with. */
	assert_ok(tmesh_keep(*state, "a", &region, 1, NULL, err));
	setenv("TMESH_KEEPER", keeper, 1);
	free(keeper);
	tmesh_region_unref(region);
}

/* A keeper inherits nothing of the process that happened to start it. */
UNIT_SET_UP(test_started_clean)
{
	int fd = open("/dev/zero", O_RDONLY); /* programs that are started have it, too */
	char path[64], target[64] = "", errors[64] = "";

	keep_new(*state, "a", 4096, 1);
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", keeper_pid(*state), fd);
	if (readlink(path, target, sizeof(target) - 1) > 0)
		assert_null(strstr(target, "zero"));
	snprintf(path, sizeof(path), "/proc/%d/fd/2", keeper_pid(*state));
	assert_true(readlink(path, errors, sizeof(errors) - 1) > 0);
	assert_string_equal(errors, "/dev/null");
	close(fd);
}

/* The process that starts the keeper, with little of everything. */
static void keep_poorly(struct tmesh_ctx *ctx)
{
	const struct rlimit few = {64, 64};
	const rlim_t page = 4096;
	struct rlimit limit;
	cpu_set_t one;

	setenv("SECRET", "of the first client", 1);
	setenv("NOTIFY_SOCKET", "/nowhere", 1);
	setenv("TMESH_KEEPER_BYTES", "1000000000", 1);
	/* So that root cannot raise hard limits either. */
	prctl(PR_CAPBSET_DROP, 24 /* CAP_SYS_RESOURCE, a word of ours too */);
	setrlimit(RLIMIT_NOFILE, &few);
	getrlimit(RLIMIT_CPU, &limit);
	limit.rlim_cur = 3600;
	setrlimit(RLIMIT_CPU, &limit);
	getrlimit(RLIMIT_FSIZE, &limit);
	limit.rlim_cur = 1000 * page;
	setrlimit(RLIMIT_FSIZE, &limit);
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	sched_setaffinity(0, sizeof(one), &one);
	if (nice(7) < 0)
		unit_leave(1);
	keep_new(ctx, "first", 4096, 1);
}

static uint64_t first_number(const char *path, const char *line_start)
{
	FILE *file = fopen(path, "r");
	char line[256];
	unsigned long long number = 0;

	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, line_start, strlen(line_start)))
			number = strncmp(line + strlen(line_start), " unl", 4) &&
						 sscanf(line + strlen(line_start), "%llu",
							&number) == 1
					 ? number
					 : UINT64_MAX;
	fclose(file);
	return number;
}

/* The keeper does not have the limits and the environment of its first client. */
UNIT_SET_UP(test_first_client)
{
	char path[64], environment[4096] = "", name[16];
	cpu_set_t usual, its;
	struct rlimit limit;
	int fd, rc = 0, kept = 0;
	ssize_t got;
	pid_t keeper;

	killed_after(keep_poorly);
	keeper = keeper_pid(*state);
	snprintf(path, sizeof(path), "/proc/%d/environ", (int)keeper);
	fd = open(path, O_RDONLY);
	got = read(fd, environment, sizeof(environment) - 1);
	close(fd);
	assert_null(memmem(environment, (size_t)got, "SECRET", 6));
	assert_null(memmem(environment, (size_t)got, "NOTIFY_SOCKET", 13));
	assert_non_null(memmem(environment, (size_t)got, "TMESH_KEEPER_BYTES=1000000000", 29));
	snprintf(path, sizeof(path), "/proc/%d/limits", (int)keeper);
	getrlimit(RLIMIT_FSIZE, &limit);
	assert_true(first_number(path, "Max file size") == limit.rlim_max);
	getrlimit(RLIMIT_CPU, &limit);
	assert_true(first_number(path, "Max cpu time") == limit.rlim_max);
	if (geteuid() == 0)
		assert_int_equal(getpriority(PRIO_PROCESS, (id_t)keeper), 0);
	sched_getaffinity(0, sizeof(usual), &usual);
	sched_getaffinity(keeper, sizeof(its), &its);
	assert_int_equal(CPU_COUNT(&its), CPU_COUNT(&usual));
	/* It may open few descriptors all the same. The groups that it keeps stay, and more are
	 * refused. */
	for (; !rc; kept += !rc) {
		struct tmesh_region *region = sealed(*state, 4096, 2);

		assert_true(kept < 64);
		snprintf(name, sizeof(name), "n%d", kept);
		rc = tmesh_keep(*state, name, &region, 1, NULL, NULL);
		tmesh_region_unref(region);
	}
	assert_int_equal(rc, -EMFILE);
	check_kept(*state, "first", 1);
	while (kept--) {
		snprintf(name, sizeof(name), "n%d", kept);
		check_kept(*state, name, 2);
	}
}

/* Another process may have the socket in the directory: the library speaks to this user's keeper
 * alone. */
UNIT_SET_UP(test_others_keeper)
{
	struct tmesh_ctx *ctx = *state;
	struct tmesh_region **regions = NULL;
	size_t count;

	keep_new(ctx, "a", 4096, 1);
	ctx->uid++;
	assert_refused(tmesh_kept_open(ctx, "a", TMESH_KEPT_OWN, TMESH_READ, &regions, &count, err),
		       -EACCES, "not this user's; set TMESH_RUNTIME_DIR");
	ctx->uid--;
	check_kept(ctx, "a", 1);
}

/* A descriptor that only its driver understands: here a pipe's. */
static void keep_opaque(struct tmesh_ctx *ctx)
{
	struct tmesh_region *region;
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	assert_int_equal(write(ends[1], "gpu", 3), 3);
	assert_ok(tmesh_region_from_fd(ctx, ends[0], MIB, NULL, &region, err));
	assert_ok(tmesh_keep(ctx, "opaque", &region, 1, NULL, err));
	tmesh_region_unref(region);
	close(ends[0]);
	close(ends[1]);
}

UNIT_SET_UP(test_opaque)
{
	struct tmesh_region **regions;
	size_t count;
	char text[4] = "";
	int fd;

	killed_after(keep_opaque);
	assert_ok(tmesh_kept_open(*state, "opaque", TMESH_KEPT_OWN, TMESH_READ | TMESH_WRITE,
				  &regions, &count, err));
	assert_int_equal(tmesh_region_bytes(regions[0]), MIB);
	assert_ok(tmesh_region_opaque_fd(regions[0], &fd, err));
	assert_int_equal(read(fd, text, 3), 3);
	assert_string_equal(text, "gpu");
	close(fd);
	tmesh_region_unref(regions[0]);
	free(regions);
}

/* It has no memory of the machine's: giving it up would make no room for what has. */
UNIT_SET_UP(test_opaque_stays)
{
	setenv("TMESH_KEEPER_BYTES", "1400000", 1);
	keep_opaque(*state);
	keep_unseen(*state, "one", MIB, 1);
	keep_unseen(*state, "two", MIB, 2);
	assert_false(is_kept(*state, "one"));
	assert_true(is_kept(*state, "opaque"));
	assert_true(is_kept(*state, "two"));
}

/* A name that many want: one has it; with REPLACE the last has it; whole in either case. */
#define RACERS 8
static void race(struct tmesh_ctx *parent, bool replace, int *won)
{
	pid_t pids[RACERS];

	*won = 0;
	for (int i = 0; i < RACERS; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			struct tmesh_keep_opts opts = {
				.size = sizeof(opts),
				.flags = replace ? TMESH_KEEPING_REPLACE : 0,
			};
			struct tmesh_region *pair[2];
			struct tmesh_ctx *ctx;
			int rc = tmesh_ctx_open(NULL, &ctx, NULL);

			if (rc)
				unit_leave(9);
			pair[0] = sealed(ctx, 4096, (uint8_t)(i + 1));
			pair[1] = sealed(ctx, 4096, (uint8_t)(i + 1));
			for (int k = 0; !rc && k < (replace ? 20 : 1); k++)
				rc = tmesh_keep(ctx, "raced", pair, 2, &opts, NULL);
			unit_leave(rc == 0 ? 0 : rc == -EEXIST ? 1 : 2);
		}
	}
	for (int i = 0; i < RACERS; i++) {
		int status;

		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
		*won += WEXITSTATUS(status) == 0;
	}
}

UNIT_SET_UP(test_race)
{
	struct tmesh_region **regions;
	uint8_t first, second;
	size_t count;
	int won;

	/* The keeper was not started yet: that is raced too. */
	for (int replace = 0; replace < 2; replace++) {
		race(*state, replace, &won);
		assert_int_equal(won, replace ? RACERS : 1);
		assert_ok(tmesh_kept_open(*state, "raced", TMESH_KEPT_OWN, TMESH_READ, &regions,
					  &count, err));
		assert_int_equal(count, 2);
		assert_ok(tmesh_region_read(regions[0], 0, &first, 1, err));
		assert_ok(tmesh_region_read(regions[1], 4095, &second, 1, err));
		assert_int_equal(first, second);
		tmesh_region_unref(regions[0]);
		tmesh_region_unref(regions[1]);
		free(regions);
	}
}

/* As many regions as there can be under one name. */
UNIT_SET_UP(test_many)
{
	enum {
		MANY = 300
	};
	struct tmesh_region *regions[MANY], **got;
	unsigned int fds;
	size_t count;

	for (int i = 0; i < MANY; i++)
		regions[i] = sealed(*state, 1, (uint8_t)i);
	assert_ok(tmesh_keep(*state, "many", regions, MANY, NULL, err));
	for (int i = 0; i < MANY; i++)
		tmesh_region_unref(regions[i]);
	/* A context keeps its state of a keeper that it has opened a region of. */
	assert_true(is_kept(*state, "many"));
	fds = unit_open_fds();
	assert_ok(tmesh_kept_open(*state, "many", TMESH_KEPT_OWN, TMESH_READ, &got, &count, err));
	assert_int_equal(count, MANY);
	for (int i = 0; i < MANY; i++) {
		check_fill(got[i], (uint8_t)i);
		tmesh_region_unref(got[i]);
	}
	free(got);
	assert_int_equal(unit_open_fds(), fds);
}

UNIT_MAIN("tests", unit_memfd_setup, NULL)
