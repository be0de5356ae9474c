// SPDX-License-Identifier: MIT
/*
 * Costs: measured with a clock that is a fake, kept in a file and read with distrust, and given to
 * placement. Machines are folders; the engines are fakes that read no graphs, so what engines take
 * stands in a file of the test's.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <tmesh/costs.h>

#include "unit.h"

static char root[64], path[4096];
static struct tmesh_ctx *ctx;
static struct tmesh_devices *devices;

/* A disk that fails: what of the calls that write a file does, with which error, and how many bytes
 * there is room for. */
static struct {
	enum {
		NOTHING,
		WRITE,
		FSYNC,
		RENAME,
		PIECES
	} call;
	int code;
	size_t room;
} disk;

/* In the places of the C library's. */
ssize_t write(int file, const void *data, size_t bytes)
{
	if (disk.call == PIECES)
		disk.room = disk.room ? 0 : 10;
	if (disk.call == WRITE || disk.call == PIECES) {
		if (!disk.room) {
			errno = disk.code;
			return -1;
		}
		bytes = bytes < disk.room ? bytes : disk.room;
		disk.room -= disk.call == WRITE ? bytes : 0;
	}
	return syscall(SYS_write, file, data, bytes);
}

int fsync(int file)
{
	errno = disk.code;
	return disk.call == FSYNC ? -1 : (int)syscall(SYS_fsync, file);
}

int rename(const char *from, const char *to)
{
	errno = disk.code;
	return disk.call == RENAME ? -1 : renameat(AT_FDCWD, from, AT_FDCWD, to);
}

static void put(const char *folder, const char *name, const char *text)
{
	char whole[256];
	FILE *file;

	snprintf(whole, sizeof(whole), "%s%s", folder, name);
	for (char *at = whole + strlen(folder) + 1; (at = strchr(at, '/')); *at++ = '/') {
		*at = '\0';
		mkdir(whole, 0700);
	}
	file = fopen(whole, "we");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void find(struct tmesh_devices **out)
{
	struct tmesh_devices_opts opts = {.size = sizeof(opts), .root = root};

	assert_ok(tmesh_devices_find(&opts, out, err));
}

static int make(void **state)
{
	strcpy(root, "/tmp/tmesh-costs-XXXXXX");
	if (!mkdtemp(root))
		return -1;
	setenv("XDG_CACHE_HOME", root, 1);
	put(root, "/proc/cpuinfo", "model name\t: Made up 3000\n");
	put(root, "/proc/meminfo", "MemTotal:  4096000 kB\nMemAvailable:  2048000 kB\n");
	put(root, "/sys/devices/system/cpu/online", "0-1\n");
	find(&devices);
	assert_ok(tmesh_costs_path(devices, path, sizeof(path), err));
	return tmesh_ctx_open(NULL, &ctx, NULL);
}

static int remove_all(void **state)
{
	char command[128];

	tmesh_devices_unref(devices);
	tmesh_ctx_unref(ctx);
	snprintf(command, sizeof(command), "rm -rf %s", root);
	return system(command);
}

/* A millisecond goes by between two looks. */
static uint64_t tick(void *data)
{
	return *(uint64_t *)data += 1000000;
}

static struct tmesh_costs *measure(void)
{
	uint64_t clock = 0;
	struct tmesh_costs_opts opts = {.size = sizeof(opts),
					.bytes = 1 << 20,
					.samples = 3,
					.now_ns = tick,
					.data = &clock};
	struct tmesh_costs *costs;

	assert_ok(tmesh_costs_measure(ctx, devices, &opts, &costs, err));
	/* Bandwidth and latency, four times each with the one that warms up. */
	assert_int_equal(clock, 16 * 1000000);
	return costs;
}

static bool near(double a, double b)
{
	return a > b * 0.999999 && a < b * 1.000001;
}

static void test_measured(void **state)
{
	struct tmesh_costs_engine engine = {.size = sizeof(engine)};
	struct tmesh_costs *costs = measure();
	struct tmesh_placement_link link;

	assert_ok(tmesh_costs_link(costs, 0, 0, &link, err));
	assert_true(near(link.bandwidth, (1 << 20) / 1e-3));
	assert_true(near(link.latency, 1e-3 / 64));
	assert_refused(tmesh_costs_link(costs, 0, 1, &link, err), -EINVAL, "no device 1 of 1");
	for (size_t i = 0; i < tmesh_devices_engines(devices); i++) {
		assert_ok(tmesh_costs_engine(costs, i, &engine, err));
		assert_true(engine.launch == 0);
		assert_string_not_equal(engine.reason, "");
	}
	assert_refused(tmesh_costs_engine(costs, 4, &engine, err), -EINVAL, "no engine 4 of 4");
	assert_ptr_equal(tmesh_costs_ref(costs), costs);
	tmesh_costs_unref(costs);
	tmesh_costs_unref(costs);
	tmesh_costs_unref(NULL);
}

/* The real clock: numbers that can be. */
static void test_real_clock(void **state)
{
	struct tmesh_costs_opts opts = {.size = sizeof(opts), .bytes = 1 << 20, .samples = 1};
	struct tmesh_placement_link link;
	struct tmesh_costs *costs;

	assert_ok(tmesh_costs_measure(ctx, devices, &opts, &costs, err));
	assert_ok(tmesh_costs_link(costs, 0, 0, &link, err));
	assert_true(link.bandwidth > 0 && link.latency > 0);
	tmesh_costs_unref(costs);
}

/* Two nodes that are one: each link is measured, and the thread is where it was. */
static void test_nodes(void **state)
{
	struct tmesh_placement_link link;
	struct tmesh_costs_opts opts = {.size = sizeof(opts), .bytes = 4096, .samples = 1};
	struct tmesh_devices *nodes;
	struct tmesh_costs *costs;
	cpu_set_t before, after;
	char list[32];
	int cpu = 0;

	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	while (!CPU_ISSET(cpu, &before))
		cpu++;
	snprintf(list, sizeof(list), "%d\n", cpu);
	put(root, "/sys/devices/system/node/online", "0-2\n");
	for (int i = 0; i < 3; i++) {
		char name[64];

		snprintf(name, sizeof(name), "/sys/devices/system/node/node%d/meminfo", i);
		put(root, name, "Node MemTotal: 1000 kB\nNode MemFree: 900 kB\n");
		snprintf(name, sizeof(name), "/sys/devices/system/node/node%d/cpulist", i);
		/* The last one has a processor that there is not. */
		put(root, name, i < 2 ? list : "1023\n");
	}
	find(&nodes);
	assert_ok(tmesh_costs_measure(ctx, nodes, &opts, &costs, err));
	for (size_t i = 0; i < 9; i++) {
		assert_ok(tmesh_costs_link(costs, i / 3, i % 3, &link, err));
		assert_int_equal(link.bandwidth > 0, i / 3 < 2 && i % 3 < 2);
	}
	assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
	assert_true(CPU_EQUAL(&before, &after));
	assert_ok(tmesh_costs_write(costs, NULL, err));
	tmesh_costs_unref(costs);
	assert_ok(tmesh_costs_read(nodes, NULL, &costs, err));
	assert_ok(tmesh_costs_link(costs, 2, 0, &link, err));
	assert_true(link.bandwidth == 0);
	tmesh_costs_unref(costs);
	tmesh_devices_unref(nodes);
}

static void test_opts(void **state)
{
	struct tmesh_costs_served served = {.engine = "fake", .name = "x"};
	struct tmesh_costs_opts opts = {.size = sizeof(opts), .samples = 1002};
	struct tmesh_costs *costs;

	assert_refused(tmesh_costs_measure(ctx, devices, &opts, &costs, err), -EINVAL,
		       "at most 1001");
	opts = (struct tmesh_costs_opts){.size = sizeof(opts), .bytes = 1};
	assert_refused(tmesh_costs_measure(ctx, devices, &opts, &costs, err), -EINVAL, "4 KiB");
	opts.bytes = 1ull << 40;
	assert_refused(tmesh_costs_measure(ctx, devices, &opts, &costs, err), -ENOSPC,
		       "cpu:0, which has 2097152000");
	opts = (struct tmesh_costs_opts){.size = sizeof(opts), .served_count = 1};
	assert_refused(tmesh_costs_measure(ctx, devices, &opts, &costs, err), -EINVAL,
		       "no list of them");
	opts.served = &served;
	assert_refused(tmesh_costs_measure(ctx, devices, &opts, &costs, err), -EINVAL,
		       "served engine 0 has no engine");
}

static char *slurp(void)
{
	char *text = calloc(1, 1 << 16);
	FILE *file = fopen(path, "re");

	assert_non_null(file);
	assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
	fclose(file);
	return text;
}

static void spit(const char *text, size_t bytes)
{
	FILE *file = fopen(path, "we");

	assert_non_null(file);
	fwrite(text, 1, bytes, file);
	fclose(file);
}

static void test_round_trip(void **state)
{
	struct tmesh_costs *costs = measure(), *again, *costs_cut;
	struct tmesh_placement_link one, two;
	struct stat told;
	char *text;

	assert_refused(tmesh_costs_read(devices, NULL, &again, err), -ENOENT,
		       "nothing was measured on this machine: measure with: tmeshctl");
	assert_ok(tmesh_costs_write(costs, NULL, err));
	assert_int_equal(stat(path, &told), 0);
	assert_int_equal(told.st_mode & 07777, 0600);
	/* Again, in the place of what is there. */
	assert_ok(tmesh_costs_write(costs, NULL, err));
	assert_ok(tmesh_costs_read(devices, NULL, &again, err));
	assert_ok(tmesh_costs_link(costs, 0, 0, &one, err));
	assert_ok(tmesh_costs_link(again, 0, 0, &two, err));
	assert_true(one.bandwidth == two.bandwidth && one.latency == two.latency);
	text = tmesh_costs_to_json(again);
	assert_non_null(strstr(text, "\"samples\": 3"));
	tmesh_costs_unref(again);
	assert_ok(tmesh_costs_parse(devices, text, strlen(text), &again, err));
	assert_ok(tmesh_costs_link(again, 0, 0, &two, err));
	assert_true(one.bandwidth == two.bandwidth);
	assert_refused(tmesh_costs_parse(devices, text, 20, &costs_cut, err), -EPROTO,
		       "costs: line");
	free(text);
	tmesh_costs_unref(again);
	/* Nothing half written stays, and what is there stays when it cannot be written. */
	snprintf(path, sizeof(path), "%s/none/costs", root);
	assert_refused(tmesh_costs_write(costs, path, err), -ENOENT, "/none/costs: No such");
	tmesh_costs_unref(costs);
}

static void test_where(void **state)
{
	char home[4096];

	assert_non_null(strstr(path, "/tmesh/costs-"));
	assert_int_equal(strncmp(path, root, strlen(root)), 0);
	assert_refused(tmesh_costs_path(devices, home, 20, err), -ERANGE, "too long");
	setenv("XDG_CACHE_HOME", "relative", 1);
	setenv("HOME", root, 1);
	assert_ok(tmesh_costs_path(devices, home, sizeof(home), err));
	assert_non_null(strstr(home, "/.cache/tmesh/costs-"));
	unsetenv("HOME");
	assert_refused(tmesh_costs_path(devices, home, sizeof(home), err), -ENOENT,
		       "neither XDG_CACHE_HOME nor HOME");
}

static void refused(int code, const char *words)
{
	struct tmesh_costs *costs;

	assert_refused(tmesh_costs_read(devices, NULL, &costs, err), code, words);
	assert_refused(tmesh_costs_read(devices, NULL, &costs, err), code,
		       "tmeshctl devices --measure");
}

/* @from replaced by @to, once. */
static void changed(const char *text, const char *from, const char *to, int code, const char *words)
{
	const char *at = strstr(text, from);
	char *other = malloc(strlen(text) + strlen(to) + 1);

	assert_non_null(at);
	sprintf(other, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
	spit(other, strlen(other));
	free(other);
	refused(code, words);
}

static void test_files(void **state)
{
	struct tmesh_costs *costs = measure();
	char link[4200], *text;

	assert_ok(tmesh_costs_write(costs, NULL, err));
	tmesh_costs_unref(costs);
	text = slurp();
	chmod(path, 0620);
	refused(-EPERM, "others may write it (mode 0620)");
	chmod(path, 0602);
	refused(-EPERM, "others may write it");
	chmod(path, 0600);
	if (!geteuid()) {
		assert_int_equal(chown(path, 1, 1), 0);
		refused(-EPERM, "no file of this user's");
		unlink(path);
	}
	changed(text, "\"tmesh_costs\": 1", "\"tmesh_costs\": 2", -EPROTO, "form 2");
	changed(text, "\"tmesh_costs\": 1", "\"tmesh_costs\": 1, \"more\": 1", -EPROTO, "more");
	changed(text, "\"tmesh_costs\": 1", "\"tmesh_costs\": 1, \"tmesh_costs\": 1", -EPROTO,
		"duplicate");
	changed(text, "\"kernel\": \"Linux", "\"kernel\": \"Linus", -ESTALE, "its kernel: \"Linus");
	changed(text, "Made up 3000", "Made up 3001", -ESTALE, "its devices: ");
	changed(text, "\"a fake\"", "\"a newer fake\"", -ESTALE, "its engines: ");
	changed(text, "\"kernel\"", "\"karnel\"", -ESTALE, "its kernel: missing");
	changed(text, "\"samples\": 3", "\"samples\": 0", -EPROTO, "how it was measured");
	changed(text, "\"samples\": 3", "\"samples\": \"\\u001b\"", -EPROTO, "");
	changed(text, "\"to\": \"cpu:0\"", "\"to\": \"cpu:1\"", -EPROTO, "link 0 is not where");
	changed(text, "\"bandwidth\": ", "\"bandwidth\": -", -EPROTO, "cannot be");
	changed(text, "\"bandwidth\": ", "\"bandwidth\": 1e99, \"x\": ", -EPROTO, "link 0: ");
	changed(text, "\"latency\": ", "\"latency\": 1e999", -EPROTO, "line ");
	changed(text, "\"links\": [", "\"links\": [{}, ", -EPROTO, "not as many devices and links");
	changed(text, "\"engines\": {}", "\"engines\": {\"none\": {}}", -EPROTO,
		"engines that this machine has not");
	changed(text, "\"engines\": {}", "\"engines\": {\"fake\": {}}", -EPROTO,
		"engine \"fake\": ");
	changed(text, "\"engines\": {}", "\"engines\": []", -EPROTO, "engines that");
	changed(text, "\"memory_free\": {", "\"memory_free\": [], \"x\": {", -EPROTO, "x");
	assert_int_equal(truncate(path, (1 << 20) + 1), 0);
	refused(-EPROTO, "more than 1048576 bytes");
	unlink(path);
	snprintf(link, sizeof(link), "%s.other", path);
	assert_int_equal(symlink(link, path), 0);
	refused(-EPERM, "a symbolic link");
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	refused(-EPERM, "no file of this user's");
	free(text);
}

/* Of the folder that costs are in. */
static unsigned int files(void)
{
	char folder[4096];
	unsigned int count = 0;
	DIR *dir;

	snprintf(folder, sizeof(folder), "%s/tmesh", root);
	dir = opendir(folder);
	assert_non_null(dir);
	for (struct dirent *entry; (entry = readdir(dir));)
		count += entry->d_name[0] != '.';
	closedir(dir);
	return count;
}

/* What cannot be written: the error says so, what was there stays, and nothing else is there. */
static void unwritten(const struct tmesh_costs *costs, int code, const char *words,
		      unsigned int before)
{
	assert_refused(tmesh_costs_write(costs, NULL, err), code, words);
	disk.call = NOTHING;
	assert_int_equal(files(), before);
	if (before) {
		uid_t user = geteuid();
		char *text;

		assert_int_equal(seteuid(getuid()), 0);
		text = slurp();
		assert_string_equal(text, "as it was");
		free(text);
		assert_int_equal(seteuid(user), 0);
	}
}

static void test_full_disk(void **state)
{
	static const int codes[] = {ENOSPC, EDQUOT, EIO, EROFS};
	struct tmesh_costs *costs = measure(), *again;

	assert_ok(tmesh_costs_write(costs, NULL, err));
	unlink(path);
	for (unsigned int before = 0; before < 2; before++) {
		for (size_t i = 0; i < 3 * sizeof(codes) / sizeof(*codes); i++) {
			char words[4200];

			disk.call = WRITE + i % 3;
			disk.code = codes[i / 3];
			disk.room = 100 * (i / 3);
			snprintf(words, sizeof(words), "%s: %s", path, strerror(disk.code));
			unwritten(costs, -disk.code, words, before);
		}
		spit("as it was", 9);
		chmod(path, 0600);
	}
	refused(-EPROTO, "line 1");
	/* In pieces, with signals between them. */
	disk.call = PIECES;
	disk.code = EINTR;
	assert_ok(tmesh_costs_write(costs, NULL, err));
	disk.call = NOTHING;
	assert_ok(tmesh_costs_read(devices, NULL, &again, err));
	tmesh_costs_unref(again);
	spit("", 0);
	refused(-EPROTO, "line 1");
	tmesh_costs_unref(costs);
}

/* Folders that are no folders, that cannot be made, or that another user has. */
static void test_folders(void **state)
{
	struct tmesh_costs *costs = measure();
	char folder[4096];
	uid_t user = geteuid() ?: 65534;

	put(root, "/file", "");
	snprintf(folder, sizeof(folder), "%s/file", root);
	setenv("XDG_CACHE_HOME", folder, 1);
	assert_refused(tmesh_costs_write(costs, NULL, err), -ENOTDIR,
		       "/file/tmesh cannot be made: Not a directory");
	setenv("XDG_CACHE_HOME", root, 1);
	assert_ok(tmesh_costs_write(costs, NULL, err));
	spit("as it was", 9);
	/* Root may do all of this: it is another user's then. */
	snprintf(folder, sizeof(folder), "%s/tmesh", root);
	assert_int_equal(chmod(folder, 0555), 0);
	assert_int_equal(chmod(root, 0555), 0);
	assert_int_equal(seteuid(user), 0);
	unwritten(costs, -EACCES, "Permission denied", 1);
	snprintf(folder, sizeof(folder), "%s/none", root);
	setenv("XDG_CACHE_HOME", folder, 1);
	assert_refused(tmesh_costs_write(costs, NULL, err), -EACCES,
		       "/none cannot be made: Permission denied");
	setenv("XDG_CACHE_HOME", root, 1);
	if (!getuid()) {
		/* Others may write to the folder, and not in the place of a file that is another's.
		 */
		assert_int_equal(seteuid(0), 0);
		snprintf(folder, sizeof(folder), "%s/tmesh", root);
		assert_int_equal(chmod(folder, 01777), 0);
		assert_int_equal(chmod(path, 0644), 0);
		assert_int_equal(seteuid(user), 0);
		unwritten(costs, -EPERM, "Operation not permitted", 1);
		refused(-EPERM, "no file of this user's");
		assert_int_equal(seteuid(0), 0);
		assert_int_equal(chmod(path, 0600), 0);
		assert_int_equal(seteuid(user), 0);
		refused(-EACCES, "Permission denied");
		assert_int_equal(seteuid(0), 0);
	}
	assert_int_equal(chmod(root, 0700), 0);
	snprintf(folder, sizeof(folder), "%s/tmesh", root);
	assert_int_equal(chmod(folder, 0700), 0);
	tmesh_costs_unref(costs);
}

/* Any byte changed, any end: refused, or read with numbers that can be. */
static void test_mutated(void **state)
{
	struct tmesh_costs *costs = measure();
	uint32_t random = 1;
	char *text, *other;
	int taken = 0;
	size_t bytes;

	assert_ok(tmesh_costs_write(costs, NULL, err));
	tmesh_costs_unref(costs);
	text = slurp();
	bytes = strlen(text);
	other = malloc(bytes);
	for (int i = 0; i < 2000; i++) {
		struct tmesh_placement_link link;
		struct tmesh_error why;
		int rc;

		memcpy(other, text, bytes);
		for (int n = 0; n < 1 + i % 3; n++) {
			random = random * 1664525 + 1013904223;
			other[random % bytes] = (char)(random >> 16);
		}
		spit(other, i % 5 ? bytes : random % bytes);
		rc = tmesh_costs_read(devices, NULL, &costs, &why);
		if (rc) {
			assert_true(rc == -EPROTO || rc == -ESTALE);
			continue;
		}
		taken++;
		assert_ok(tmesh_costs_link(costs, 0, 0, &link, err));
		assert_true(link.bandwidth >= 0 && link.bandwidth <= 1e18);
		assert_true(link.latency >= 0 && link.latency <= 1e6);
		tmesh_costs_unref(costs);
	}
	/* A digit may be another one. */
	assert_true(taken < 1000);
	free(text);
	free(other);
}

/* A machine with the same processors and more memory. */
static void test_other_machine(void **state)
{
	struct tmesh_costs *costs = measure();

	assert_ok(tmesh_costs_write(costs, NULL, err));
	tmesh_costs_unref(costs);
	tmesh_devices_unref(devices);
	put(root, "/proc/meminfo", "MemTotal:  8192000 kB\nMemAvailable:  2048000 kB\n");
	find(&devices);
	refused(-ESTALE, "its devices: ");
	/* Free memory is of the moment. */
	tmesh_devices_unref(devices);
	put(root, "/proc/meminfo", "MemTotal:  4096000 kB\nMemAvailable:  1048000 kB\n");
	find(&devices);
	assert_ok(tmesh_costs_read(devices, NULL, &costs, err));
	tmesh_costs_unref(costs);
}

static void test_place(void **state)
{
	static const char engine[] =
		"\"engines\": {\"fake\": {\"launch\": 1e-6, \"launch_served\": %s, \"node\": 0,"
		" \"matmul\": [{\"rows\": 1, \"columns\": 2, \"inner\": 2, \"flops\": 1e9},"
		" {\"rows\": %d, \"columns\": 2, \"inner\": 2, \"flops\": 2e9},"
		" {\"rows\": 9, \"columns\": 2, \"inner\": 2, \"flops\": 3e9}]}}";
	static const char graph_text[] =
		"graph g\nx = input : float32[1,64]\n"
		"w = weight : float32[64,64]\nh = matmul(x, w)\n"
		"r = reshape(h) : float32[64,1]\ns = silu(r)\noutput y = s\n";
	struct tmesh_costs_place places[] = {{.engine = "fake"},
					     {.engine = "fake", .served = true}};
	struct tmesh_costs *costs = measure();
	struct tmesh_graph *graph;
	char *text, with[2048];
	uint32_t at[8];

	assert_ok(tmesh_graph_parse(graph_text, strlen(graph_text), &graph, err));
	assert_ok(tmesh_costs_write(costs, NULL, err));
	text = slurp();
	assert_refused(tmesh_costs_find(costs, graph, places, 1, NULL, at, NULL, err), -EOPNOTSUPP,
		       "engine \"fake\" has no costs");
	assert_refused(tmesh_costs_find(costs, graph, places, 0, NULL, at, NULL, err), -EINVAL,
		       "1 to 64 places");
	tmesh_costs_unref(costs);
	/* Rates are by rows, fewest first. */
	snprintf(with, sizeof(with), engine, "null", 1);
	changed(text, "\"engines\": {}", with, -EPROTO, "rate 1 of engine \"fake\" cannot be");
	snprintf(with, sizeof(with), engine, "0", 4);
	changed(text, "\"engines\": {}", with, -EPROTO, "its times cannot be");
	snprintf(with, sizeof(with), engine, "null", 4);
	{
		char *at_engines = strstr(text, "\"engines\": {}"), whole[1 << 14];

		snprintf(whole, sizeof(whole), "%.*s%s%s", (int)(at_engines - text), text, with,
			 at_engines + strlen("\"engines\": {}"));
		spit(whole, strlen(whole));
	}
	assert_ok(tmesh_costs_read(devices, NULL, &costs, err));
	places[0].engine = "none";
	assert_refused(tmesh_costs_find(costs, graph, places, 1, NULL, at, NULL, err), -EINVAL,
		       "no engine \"none\"");
	places[0].engine = "fake";
	places[0].device = 1;
	assert_refused(tmesh_costs_find(costs, graph, places, 1, NULL, at, NULL, err), -EINVAL,
		       "no device 1 of 1");
	places[0].device = 0;
	assert_refused(tmesh_costs_find(costs, graph, places, 2, NULL, at, NULL, err), -EOPNOTSUPP,
		       "not measured by process");
	/* The fake reads no graphs of ours. */
	assert_refused(tmesh_costs_find(costs, graph, places, 1, NULL, at, NULL, err), -EOPNOTSUPP,
		       "no device runs node 0 \"h\"");
	tmesh_costs_unref(costs);
	tmesh_graph_unref(graph);
	free(text);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make, remove_all)
	const struct CMUnitTest tests[] = {
		TEST(test_measured), TEST(test_real_clock),    TEST(test_nodes),
		TEST(test_opts),     TEST(test_round_trip),    TEST(test_where),
		TEST(test_files),    TEST(test_other_machine), TEST(test_mutated),
		TEST(test_place),    TEST(test_full_disk),     TEST(test_folders),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
