// SPDX-License-Identifier: MIT
/*
 * Huge pages of memfds in a guest, as root. The program switches shmem_enabled to each setting. It
 * tests control groups, fragmented memory, other users, and operations of the kernel on pages.
 * Control groups measure the peak memory of each operation of tmesh.
 */
#include <fcntl.h>
#include <signal.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <tmesh/model.h>

#include "memfd.h"
#include "tensor_internal.h"
#include "unit.h"

#define MIB ((size_t)1 << 20)
#define SETTING "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
#define GROUPS "/sys/fs/cgroup"
#define GROUP GROUPS "/tmesh-huge"

static bool say(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool said = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return said;
}

static unsigned long number(const char *path, const char *name)
{
	unsigned long value = 0;
	char line[256], word[64];
	FILE *file = fopen(path, "re");

	while (file && fgets(line, sizeof(line), file)) {
		if (!name && sscanf(line, "%lu", &value) == 1)
			break;
		if (name && sscanf(line, "%63s %lu", word, &value) == 2 && !strcmp(word, name))
			break;
		value = 0;
	}
	if (file)
		fclose(file);
	return value;
}

/* Run @main in a child. Return the child's wait status, which is 0 if all checks passed. */
static int in_child(void (*main)(void *), void *data)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		alarm(600);
		main(data);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	if (WIFSIGNALED(status))
		fprintf(stderr, "# the child was ended by signal %d\n", WTERMSIG(status));
	return status;
}

static struct tmesh_ctx *context(void)
{
	struct tmesh_ctx_opts opts = {.size = sizeof(opts),
				      .backend = TMESH_BACKEND_MEMFD,
				      .region_pool_bytes = TMESH_NO_REGION_POOL};
	struct tmesh_ctx *ctx;

	CHECK(!tmesh_ctx_open(&opts, &ctx, NULL));
	return ctx;
}

static struct tmesh_stats stats_of(struct tmesh_ctx *ctx)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	CHECK(!tmesh_stats(ctx, &stats));
	return stats;
}

static unsigned char *source;
#define SOURCE (48 * MIB)

static struct tmesh_tensor *put(struct tmesh_ctx *ctx, size_t bytes, uint32_t flags)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = flags};
	const int64_t shape[] = {(int64_t)bytes};
	struct tmesh_tensor *tensor;
	struct tmesh_error err;

	if (tmesh_tensor_put(ctx, TMESH_UINT8, 1, shape, source, &opts, &tensor, &err)) {
		fprintf(stderr, "# put: %s\n", err.message);
		_exit(1);
	}
	return tensor;
}

static bool is_source(struct tmesh_tensor *tensor, size_t bytes)
{
	void *data;

	return !tmesh_tensor_data(tensor, TMESH_READ, &data, NULL) && !memcmp(data, source, bytes);
}

/* Return how much of a tensor is in huge pages, by a new mapping. */
static uint64_t huge_of(struct tmesh_tensor *tensor)
{
	int fd = tmesh_reopen(tmesh_tensor_region(tensor)->ctx,
			      tmesh_region_fd(tmesh_tensor_region(tensor)), O_RDONLY, NULL);
	uint64_t huge = tmesh_huge_bytes(fd, tmesh_tensor_region(tensor)->alloc);

	close(fd);
	return huge;
}

static void use_setting(void *data)
{
	bool huge = strcmp(data, "deny") != 0;
	struct tmesh_ctx *ctx = context();
	struct tmesh_tensor *tensor = put(ctx, 16 * MIB, 0);
	struct tmesh_region_info info = {.size = sizeof(info)};
	const struct tmesh_cap *caps;
	size_t count, at = 0;

	CHECK(huge_of(tensor) == (huge ? 16 * MIB : 0));
	CHECK(stats_of(ctx).huge_bytes == (huge ? 16 * MIB : 0));
	CHECK(stats_of(ctx).huge_given_up == 0);
	CHECK(is_source(tensor, 16 * MIB));
	CHECK(!tmesh_region_info(tmesh_tensor_region(tensor), &info, NULL));
	CHECK(info.huge_bytes == (huge ? 16 * MIB : 0));
	CHECK(!tmesh_caps(ctx, &caps, &count));
	while (strcmp(caps[at].name, "huge-pages"))
		at++;
	CHECK(caps[at].level == (huge ? TMESH_CAP_ENFORCED : TMESH_CAP_NO));
}

static void test_settings(void **state)
{
	const char *const settings[] = {"never", "advise", "within_size", "always", "deny"};

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		print_message("# %s\n", settings[i]);
		assert_true(say(SETTING, settings[i]));
		assert_int_equal(in_child(use_setting, (void *)settings[i]), 0);
	}
	assert_true(say(SETTING, "never"));
}

/* doctor says in one line that there are no huge pages of shared memory, and what to do. */
static void count_lines(void *data)
{
	const char *tmeshctl = getenv("TMESH_TMESHCTL"), *word = data;
	unsigned int lines = 0;
	char line[1024], command[256];
	FILE *said;

	setenv("TMESH_BACKEND", "memfd", 1);
	if (strstr(word, "PR_SET"))
		CHECK(!prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	snprintf(command, sizeof(command), "%s doctor", tmeshctl ? tmeshctl : "build/tmeshctl");
	said = popen(command, "r");
	CHECK(said);
	while (fgets(line, sizeof(line), said)) {
		if (strstr(line, word)) {
			CHECK(strstr(line, "huge-pages") && strstr(line, " no "));
			lines++;
		}
	}
	pclose(said);
	CHECK(lines == 1);
}

static void test_doctor(void **state)
{
	assert_true(say(SETTING, "deny"));
	assert_int_equal(in_child(count_lines, "are denied"), 0);
	assert_true(say(SETTING, "never"));
	assert_int_equal(in_child(count_lines, "PR_SET_THP_DISABLE"), 0);
}

static void switched_off(void *data)
{
	struct tmesh_tensor *tensor;
	struct tmesh_ctx *ctx;

	CHECK(!prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	ctx = context();
	tensor = put(ctx, 16 * MIB, 0);
	CHECK(stats_of(ctx).huge_bytes == 0);
	CHECK(is_source(tensor, 16 * MIB));
}

static void test_switched_off(void **state)
{
	assert_int_equal(in_child(switched_off, NULL), 0);
}

/* Control groups. */

static bool group_make(const char *most)
{
	rmdir(GROUP);
	say(GROUPS "/cgroup.subtree_control", "+memory");
	return !mkdir(GROUP, 0755) && say(GROUP "/memory.max", most);
}

static void group_enter(void)
{
	CHECK(say(GROUP "/cgroup.procs", "0"));
}

/*
 * Ask for 60 of 64 MiB: whole huge pages would take all 64, and the process needs some memory
 * itself.
 */
static void fill_group(void *data)
{
	struct tmesh_tensor *tensors[4];
	struct tmesh_ctx *ctx;

	group_enter();
	ctx = context();
	for (size_t i = 0; i < 4; i++)
		tensors[i] = put(ctx, 15 * MIB, 0);
	for (size_t i = 0; i < 4; i++)
		CHECK(is_source(tensors[i], 15 * MIB));
	CHECK(stats_of(ctx).huge_bytes >= 48 * MIB);
	CHECK(stats_of(ctx).huge_given_up == 1);
	CHECK(number(GROUP "/memory.events", "oom") == 0);
	CHECK(number(GROUP "/memory.events", "oom_kill") == 0);
}

static void test_group(void **state)
{
	assert_true(group_make("64M"));
	assert_int_equal(in_child(fill_group, NULL), 0);
	rmdir(GROUP);
}

/*
 * The most memory that an operation on 32 MiB may add: an eighth more than that, and the memory of
 * a process and its page tables.
 */
#define PEAK (32 * MIB)
#define PEAK_MOST (PEAK + PEAK / 8 + 6 * MIB)

static char lent[TMESH_TOKEN_SIZE]; /* a tensor of the parent, which is charged for it */
static char model_path[] = "/tmp/tmesh-huge.safetensors";

static void peak_put(struct tmesh_ctx *ctx)
{
	CHECK(is_source(put(ctx, PEAK, 0), PEAK));
}

static void peak_zeros(struct tmesh_ctx *ctx)
{
	struct tmesh_region *region;
	void *addr;

	CHECK(!tmesh_region_create(ctx, PEAK, NULL, &region, NULL));
	CHECK(!tmesh_region_map(region, TMESH_READ | TMESH_WRITE, &addr, NULL));
	memcpy(addr, source, PEAK);
	CHECK(!tmesh_region_seal(region, NULL));
}

static void peak_arena(struct tmesh_ctx *ctx)
{
	struct tmesh_region_opts opts = {.size = sizeof(opts)};
	const int64_t shape[] = {4 * MIB};
	struct tmesh_tensor *tensor;

	CHECK(!tmesh_arena_create(ctx, PEAK, NULL, &opts.arena, NULL));
	for (size_t i = 0; i < PEAK; i += 4 * MIB)
		CHECK(!tmesh_tensor_put(ctx, TMESH_UINT8, 1, shape, source + i, &opts, &tensor,
					NULL));
}

static void peak_strided(struct tmesh_ctx *ctx)
{
	const struct tmesh_layout layout = {
		.dtype = TMESH_FLOAT32, .ndim = 2, .shape = {8192, 1024}, .strides = {1, 8192}};
	struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_UNINITIALIZED};
	struct tmesh_region *region;

	CHECK(!tmesh_region_create(ctx, PEAK, &opts, &region, NULL));
	CHECK(!tmesh_region_pack(region, 0, source, &layout, PEAK, NULL));
	CHECK(!tmesh_region_seal(region, NULL));
}

static void load_by(struct tmesh_ctx *ctx, enum tmesh_model_method method)
{
	struct tmesh_model_load_opts opts = {
		.size = sizeof(opts), .flags = TMESH_MODEL_ALONE, .method = method};
	struct tmesh_model_report report = {.size = sizeof(report)};
	struct tmesh_model *model;
	struct tmesh_error err;

	if (tmesh_model_load(ctx, model_path, &opts, &model, &err)) {
		fprintf(stderr, "# load: %s\n", err.message);
		_exit(1);
	}
	CHECK(!tmesh_model_report(model, &report, NULL));
	CHECK(report.huge_bytes == PEAK);
}

static void peak_read(struct tmesh_ctx *ctx)
{
	load_by(ctx, TMESH_MODEL_READ);
}

static void peak_splice(struct tmesh_ctx *ctx)
{
	load_by(ctx, TMESH_MODEL_SPLICE);
}

static void peak_uring(struct tmesh_ctx *ctx)
{
	load_by(ctx, TMESH_MODEL_URING);
}

/* A write to each huge page of a private view copies 4 KiB of it. */
static void little_private(struct tmesh_ctx *ctx)
{
	struct tmesh_region *region, *view;
	unsigned char *bytes;

	CHECK(!tmesh_region_open(ctx, lent, TMESH_READ, &region, NULL));
	CHECK(!tmesh_region_private(region, &view, NULL));
	CHECK(!tmesh_region_map(view, TMESH_READ | TMESH_WRITE, (void **)&bytes, NULL));
	CHECK(!memcmp(bytes, source, PEAK));
	for (size_t i = 0; i < PEAK; i += 2 * MIB)
		bytes[i + MIB] ^= 1;
	CHECK(bytes[MIB + 4096] == source[MIB + 4096]);
}

struct peak {
	const char *name;
	void (*way)(struct tmesh_ctx *ctx);
	size_t most;
};

static void go_way(void *data)
{
	const struct peak *peak = data;

	group_enter();
	peak->way(context());
}

static bool write_model(void)
{
	const char head[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[33554432],\"data_offsets\":[0,"
			    "33554432]}}      ";
	uint64_t bytes = (sizeof(head) - 1) / 8 * 8;
	FILE *file = fopen(model_path, "we");

	return file && fwrite(&bytes, 8, 1, file) == 1 && fwrite(head, bytes, 1, file) == 1 &&
	       fwrite(source, PEAK, 1, file) == 1 && !fclose(file);
}

static void test_peaks(void **state)
{
	static const struct peak peaks[] = {
		{"put", peak_put, PEAK_MOST},
		{"zeros", peak_zeros, PEAK_MOST},
		{"arena", peak_arena, PEAK_MOST},
		{"strided import", peak_strided, PEAK_MOST},
		{"load, read", peak_read, PEAK_MOST},
		{"load, splice", peak_splice, PEAK_MOST},
		{"load, io_uring", peak_uring, PEAK_MOST},
		{"private view", little_private, 4 * MIB},
	};

	assert_true(write_model());
	assert_ok(tmesh_region_token(tmesh_tensor_region(put(context(), PEAK, 0)), TMESH_READ, lent,
				     err));
	for (size_t i = 0; i < sizeof(peaks) / sizeof(peaks[0]); i++) {
		unsigned long peak;

		assert_true(group_make("max"));
		assert_int_equal(in_child(go_way, (void *)&peaks[i]), 0);
		peak = number(GROUP "/memory.peak", NULL);
		print_message("# %s of 32 MiB: %lu KiB at most\n", peaks[i].name, peak >> 10);
		assert_in_range(peak, 1, peaks[i].most);
		rmdir(GROUP);
	}
	unlink(model_path);
}

/* Users. */

static void as_user(void *data)
{
	struct tmesh_tensor *tensor;
	struct tmesh_ctx *ctx;
	pid_t pid = fork();
	uid_t uid = pid ? 1000 : 1001;
	int status = 0;

	CHECK(!setgid(uid) && !setuid(uid));
	ctx = context();
	tensor = put(ctx, 16 * MIB, 0);
	CHECK(stats_of(ctx).huge_bytes == 16 * MIB);
	CHECK(huge_of(tensor) == 16 * MIB);
	CHECK(is_source(tensor, 16 * MIB));
	CHECK(!pid || (waitpid(pid, &status, 0) == pid && !status));
}

static void test_users(void **state)
{
	assert_int_equal(in_child(as_user, NULL), 0);
}

/* Operations of the kernel on pages. */

static sigjmp_buf out;

static void on_bus(int signo)
{
	siglongjmp(out, 1);
}

/* One page of 4 KiB is lost, and nothing else of its huge page. Reading by a call is an error. */
static void test_poison(void **state)
{
	struct tmesh_tensor *tensor = put(context(), 4 * MIB, 0);
	volatile bool lost = false;
	unsigned char byte;
	unsigned char *bytes;
	void *data;

	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &data, err));
	bytes = data;
	assert_int_equal(huge_of(tensor), 4 * MIB);
	assert_int_equal(bytes[MIB], source[MIB]);
	if (madvise(bytes + MIB, 4096, 100 /* MADV_HWPOISON */)) {
		print_message("# this kernel poisons nothing on request: %s\n", strerror(errno));
		skip();
	}
	signal(SIGBUS, on_bus);
	if (!sigsetjmp(out, 1))
		assert_int_equal(*(volatile unsigned char *)(bytes + MIB), source[MIB]);
	else
		lost = true;
	signal(SIGBUS, SIG_DFL);
	assert_true(lost);
	assert_memory_equal(bytes, source, MIB);
	assert_memory_equal(bytes + MIB + 4096, source + MIB + 4096, 3 * MIB - 4096);
	assert_true(tmesh_region_read(tmesh_tensor_region(tensor), MIB, &byte, 1, NULL) < 0);
	assert_int_equal(huge_of(tensor), 2 * MIB);
	tmesh_tensor_unref(tensor);
}

/*
 * Memory of two regions with the same contents stays in huge pages: KSM does not merge shared
 * memory.
 */
static void test_ksm(void **state)
{
	struct tmesh_tensor *tensors[] = {put(context(), 8 * MIB, 0), put(context(), 8 * MIB, 0)};
	void *data[2];

	if (!say("/sys/kernel/mm/ksm/run", "1")) {
		print_message("# this kernel has no KSM\n");
		skip();
	}
	say("/sys/kernel/mm/ksm/pages_to_scan", "100000");
	for (int i = 0; i < 2; i++) {
		assert_ok(tmesh_tensor_data(tensors[i], TMESH_READ, &data[i], err));
		madvise(data[i], 8 * MIB, MADV_MERGEABLE);
	}
	for (int i = 0; i < 50 && number("/sys/kernel/mm/ksm/full_scans", NULL) < 2; i++)
		usleep(100000);
	say("/sys/kernel/mm/ksm/run", "2");
	for (int i = 0; i < 2; i++) {
		assert_memory_equal(data[i], source, 8 * MIB);
		assert_int_equal(huge_of(tensors[i]), 8 * MIB);
		tmesh_tensor_unref(tensors[i]);
	}
}

/* Memory requested from a node is allocated there in huge pages, and not migrated. */
static void test_node(void **state)
{
	struct tmesh_region_opts opts = {
		.size = sizeof(opts), .flags = TMESH_REGION_NODE, .node = 1};
	const int64_t shape[] = {8 * MIB};
	struct tmesh_tensor *tensor;
	int nodes[4];
	void *pages[4], *data;

	if (access("/sys/devices/system/node/node1", F_OK)) {
		print_message("# the machine has one node\n");
		skip();
	}
	assert_ok(tmesh_tensor_put(context(), TMESH_UINT8, 1, shape, source, &opts, &tensor, err));
	assert_int_equal(huge_of(tensor), 8 * MIB);
	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &data, err));
	assert_memory_equal(data, source, 8 * MIB);
	for (size_t i = 0; i < 4; i++)
		pages[i] = (char *)data + i * 2 * MIB;
	assert_int_equal(syscall(SYS_move_pages, 0, 4, pages, NULL, nodes, 0), 0);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(nodes[i], 1);
	tmesh_tensor_unref(tensor);
}

/*
 * Fragmented memory: lock all but about 32 MiB, then free pieces between pages that stay and cannot
 * be moved.
 */

#define KEPT_EVERY (256u << 10)
#define SCATTERED (384 * MIB)

static void *locked(size_t bytes, int advice)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	madvise(at, bytes, advice);
	CHECK(!mlock(at, bytes));
	return at;
}

static void in_scattered(void *data)
{
	size_t free_bytes = number("/proc/meminfo", "MemAvailable:") << 10;
	struct tmesh_tensor *tensors[6];
	struct tmesh_ctx *ctx = context();
	char *small;

	CHECK(free_bytes > SCATTERED + 64 * MIB);
	locked((free_bytes - SCATTERED - 32 * MIB) & -(2 * MIB), MADV_HUGEPAGE);
	small = locked(SCATTERED, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < SCATTERED; i += KEPT_EVERY)
		CHECK(!munmap(small + i + 4096, KEPT_EVERY - 4096));
	for (size_t i = 0; i < 6; i++)
		tensors[i] = put(ctx, SOURCE, 0);
	CHECK(stats_of(ctx).huge_given_up >= 1);
	for (size_t i = 0; i < 6; i++)
		CHECK(is_source(tensors[i], SOURCE));
	/* A request that requires huge pages is refused. */
	{
		struct tmesh_region_opts opts = {.size = sizeof(opts), .flags = TMESH_REGION_HUGE};
		struct tmesh_region *region;
		struct tmesh_error err;

		CHECK(tmesh_region_create(ctx, SOURCE, &opts, &region, &err) == -ENOMEM);
		CHECK(strstr(err.message, "2 MiB"));
	}
}

static void test_scattered(void **state)
{
	if (!say("/proc/sys/vm/compact_unevictable_allowed", "0")) {
		print_message("# this kernel moves locked pages\n");
		skip();
	}
	assert_int_equal(in_child(in_scattered, NULL), 0);
	say("/proc/sys/vm/compact_unevictable_allowed", "1");
	/* When there is room again, huge pages are used again. */
	say("/proc/sys/vm/compact_memory", "1");
	assert_int_equal(in_child(use_setting, "never"), 0);
}

/*
 * A balloon. By the virtual machine's monitor the host takes memory from the guest and gives it
 * back.
 */

#define MACHINE_MIB 3072
#define TAKEN_MIB 2304

static unsigned long total_mib(void)
{
	return number("/proc/meminfo", "MemTotal:") >> 10;
}

/* Leave @mib of the machine to the guest. Wait until the guest's memory changes and stays. */
static void balloon(const char *monitor, int mib)
{
	unsigned long first = total_mib(), before, now = first;
	int fd = open(monitor, O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0 && dprintf(fd, "\nballoon %d\n", mib) > 0);
	do {
		before = now;
		sleep(2);
		now = total_mib();
	} while (now == first || now != before);
	close(fd);
	print_message("# the balloon leaves %d MiB: MemTotal %lu MiB, before %lu MiB\n", mib, now,
		      first);
}

static void under_balloon(void *monitor)
{
	struct tmesh_ctx *ctx = context();
	struct tmesh_tensor *before = put(ctx, 16 * MIB, 0), *after;
	size_t half;

	CHECK(huge_of(before) == 16 * MIB);
	balloon(monitor, MACHINE_MIB - TAKEN_MIB);
	CHECK(is_source(before, 16 * MIB) && huge_of(before) == 16 * MIB);
	/* New memory is found in huge pages or in small ones, and nothing fails. */
	half = number("/proc/meminfo", "MemAvailable:") / 2 << 10;
	for (size_t bytes = 0; bytes + SOURCE <= half; bytes += SOURCE) {
		after = put(ctx, SOURCE, 0);
		CHECK(is_source(after, SOURCE));
	}
	print_message("# beside the balloon %zu MiB were put, %llu MiB of them in huge pages\n",
		      half / SOURCE * SOURCE / MIB,
		      (unsigned long long)(stats_of(ctx).huge_bytes / MIB - 16));
	balloon(monitor, MACHINE_MIB);
	use_setting("never");
}

static void test_balloon(void **state)
{
	char *monitor = getenv("TMESH_MONITOR");

	if (!monitor) {
		print_message("# no balloon: only the suite `huge` has a monitor\n");
		skip();
	}
	assert_int_equal(in_child(under_balloon, monitor), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_settings),     cmocka_unit_test(test_doctor),
		cmocka_unit_test(test_switched_off), cmocka_unit_test(test_group),
		cmocka_unit_test(test_peaks),	     cmocka_unit_test(test_users),
		cmocka_unit_test(test_poison),	     cmocka_unit_test(test_ksm),
		cmocka_unit_test(test_node),	     cmocka_unit_test(test_scattered),
		cmocka_unit_test(test_balloon),
	};
	char before[128] = "";
	int fd, failed;

	if (!getenv("TMESH_SWITCHES_HUGE"))
		return UNIT_SKIP(tests, "it switches the machine's settings: only in a guest");
	setenv("TMESH_BACKEND", "memfd", 1);
	source = malloc(SOURCE);
	for (size_t i = 0; i < SOURCE; i += 8)
		*(uint64_t *)(source + i) = i * 0x9e3779b97f4a7c15u;
	fd = open(SETTING, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, before, sizeof(before) - 1) <= 0 || !strchr(before, '['))
		return UNIT_SKIP(tests, "this kernel has no huge pages of shared memory");
	close(fd);
	say(SETTING, "never");
	failed = cmocka_run_group_tests_name("huge pages in a guest", tests, NULL, NULL);
	say(SETTING, strtok(strchr(before, '[') + 1, "]"));
	return failed;
}
