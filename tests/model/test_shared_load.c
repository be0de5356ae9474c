// SPDX-License-Identifier: MIT
/*
 * One shared load with real processes: many that load at once read once. Readers are killed at any
 * time, and each survivor has the bytes. TMESH_TEST_LENGTH=full, or ROUNDS, for more.
 */
#include "unit.h"

#include "files/model_internal.h"

#define TENSORS 16
#define BYTES ((size_t)4 << 20)
#define PROCESSES 6

static char folder[64];
static char model_path[96];

/* The reports of a round's processes. */
static struct shared {
	atomic_uint_fast64_t read, done;
	atomic_uint ready, good, holders;
	_Atomic uint64_t region[PROCESSES];
	atomic_bool leave;
} * shared;

static int make_model(void **state)
{
	struct tmesh_model_item items[TENSORS];
	struct tmesh_ctx *ctx;
	uint8_t *data = malloc(BYTES);
	char names[TENSORS][8];
	int rc;

	strcpy(folder, "/tmp/tmesh-load-XXXXXX");
	if (!mkdtemp(folder) || tmesh_ctx_open(NULL, &ctx, NULL))
		return -1;
	for (int i = 0; i < TENSORS; i++) {
		int64_t shape = (int64_t)BYTES - i * 3;

		for (size_t k = 0; k < BYTES; k++)
			data[k] = (uint8_t)(k / 4096 * 31 + (size_t)i);
		snprintf(names[i], sizeof(names[i]), "t%d", i);
		items[i].name = names[i];
		if (tmesh_tensor_put(ctx, TMESH_UINT8, 1, &shape, data, NULL, &items[i].tensor,
				     NULL))
			return -1;
	}
	snprintf(model_path, sizeof(model_path), "%s/m.safetensors", folder);
	rc = tmesh_model_save(model_path, items, TENSORS, NULL, NULL);
	for (int i = 0; i < TENSORS; i++)
		tmesh_tensor_unref(items[i].tensor);
	tmesh_ctx_unref(ctx);
	free(data);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	return rc;
}

static int remove_model(void **state)
{
	char command[96];

	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command);
}

static bool is_whole(const struct tmesh_model *model)
{
	for (int i = 0; i < TENSORS; i++) {
		struct tmesh_tensor *tensor;
		void *data;

		if (tmesh_model_tensor_open(model, (size_t)i, &tensor, NULL) ||
		    tmesh_tensor_data(tensor, TMESH_READ, &data, NULL))
			return false;
		for (size_t k = 0; k < BYTES - (size_t)i * 3; k += 512) {
			if (((uint8_t *)data)[k] != (uint8_t)(k / 4096 * 31 + (size_t)i))
				return false;
		}
		tmesh_tensor_unref(tensor);
	}
	return true;
}

static int slowly(void *data, const struct tmesh_model_progress *progress)
{
	/* So that the others come while it reads. */
	usleep(progress->waiting ? 500 : 20000);
	return 0;
}

_Noreturn static void load_and_tell(unsigned int number)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .progress = slowly};
	struct tmesh_model_report report = {.size = sizeof(report)};
	struct tmesh_model *model;
	struct tmesh_ctx *ctx;
	struct tmesh_error err;

	if (tmesh_ctx_open(NULL, &ctx, NULL))
		unit_leave(1);
	/* These sleep while another reads, and are quick when they read. */
	if (number % 2)
		opts.progress = NULL;
	if (tmesh_model_load(ctx, model_path, &opts, &model, &err)) {
		fprintf(stderr, "# process %u: %s\n", number, err.message);
		unit_leave(1);
	}
	if (tmesh_model_report(model, &report, NULL) || !is_whole(model) ||
	    !tmesh_region_is_sealed(tmesh_model_region(model)))
		unit_leave(2);
	atomic_fetch_add(&shared->read, report.bytes_read);
	atomic_store(&shared->region[number], tmesh_region_id(tmesh_model_region(model)));
	atomic_fetch_add(&shared->good, 1);
	while (!atomic_load(&shared->leave))
		usleep(1000);
	tmesh_model_unref(model);
	tmesh_ctx_unref(ctx);
	unit_leave(0);
}

static void start(pid_t *pids)
{
	memset(shared, 0, sizeof(*shared));
	for (unsigned int i = 0; i < PROCESSES; i++) {
		pids[i] = fork();
		if (!pids[i])
			load_and_tell(i);
	}
}

static uint64_t model_bytes(void)
{
	return TENSORS * BYTES - 3 * TENSORS * (TENSORS - 1) / 2;
}

UNIT(test_one_read)
{
	pid_t pids[PROCESSES];
	int status;

	start(pids);
	while (atomic_load(&shared->good) < PROCESSES) {
		usleep(2000);
		assert_int_equal(waitpid(-1, &status, WNOHANG), 0);
	}
	assert_int_equal(atomic_load(&shared->read), model_bytes());
	for (int i = 1; i < PROCESSES; i++)
		assert_int_equal(shared->region[i], shared->region[0]);
	assert_int_equal(unit_runtime_files(".shared"), 1);
	atomic_store(&shared->leave, true);
	for (int i = 0; i < PROCESSES; i++) {
		waitpid(pids[i], &status, 0);
		assert_int_equal(status, 0);
	}
	assert_int_equal(unit_runtime_files(".shared"), 0);
}

/* A forked child that drops what it has inherited ends no process's presence. */
UNIT(test_forked)
{
	struct tmesh_model *model;
	struct tmesh_ctx *ctx = new_ctx();
	pid_t child;

	assert_ok(tmesh_model_load(ctx, model_path, NULL, &model, err));
	child = fork();
	if (!child) {
		tmesh_model_unref(model);
		unit_leave(0);
	}
	join_child(child);
	assert_int_equal(unit_runtime_files(".shared"), 1);
	tmesh_model_unref(model);
	assert_int_equal(unit_runtime_files(".shared"), 0);
	tmesh_ctx_unref(ctx);
}

static int count(const char *length, int few, int many)
{
	const char *rounds = getenv("ROUNDS");

	return rounds ? atoi(rounds) : length && !strcmp(length, "full") ? many : few;
}

/* Some are killed while they read or wait; the rest have the model. If a process still held a
 * region that was begun, the next reader does not start it anew. */
UNIT(test_killed)
{
	int rounds = count(getenv("TMESH_TEST_LENGTH"), unit_on_kernel() ? 5 : 12, 300);

	srand(7);
	for (int round = 0; round < rounds; round++) {
		unsigned int killed = 0, victims = 1 + (unsigned int)rand() % (PROCESSES - 1);
		pid_t pids[PROCESSES];
		int status;

		start(pids);
		for (unsigned int i = 0; i < victims; i++) {
			usleep((useconds_t)(rand() % 30000));
			killed += !kill(pids[i], SIGKILL);
		}
		for (unsigned int i = 0; i < victims; i++)
			waitpid(pids[i], &status, 0);
		while (atomic_load(&shared->good) < PROCESSES - killed) {
			int gone;

			usleep(1000);
			gone = waitpid(-1, &status, WNOHANG);
			if (gone > 0)
				fail_msg("round %d: a process ended with %d", round, status);
			/* One of the killed may have been counted before it died. */
		}
		atomic_store(&shared->leave, true);
		for (unsigned int i = victims; i < PROCESSES; i++) {
			waitpid(pids[i], &status, 0);
			assert_int_equal(status, 0);
		}
		assert_true(unit_runtime_files(".shared") <= 1);
	}
	/* The next to load anything takes away what the killed have left. */
	{
		struct tmesh_model *model;
		struct tmesh_ctx *ctx;

		assert_ok(tmesh_ctx_open(NULL, &ctx, err));
		assert_ok(tmesh_model_load(ctx, model_path, NULL, &model, err));
		tmesh_model_unref(model);
		tmesh_ctx_unref(ctx);
		assert_int_equal(unit_runtime_files(".shared"), 0);
	}
}

_Noreturn static int die_half(void *data, const struct tmesh_model_progress *progress)
{
	atomic_store(&shared->done, progress->bytes_done);
	atomic_store(&shared->ready, 1);
	/* Until it is killed. */
	for (;;)
		pause();
}

static int note(void *data, const struct tmesh_model_progress *progress)
{
	if (progress->waiting)
		atomic_store(&shared->holders, 1);
	return 0;
}

/* The reader is killed when half is there, while another waits: only the rest is read again. */
UNIT(test_goes_on)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .progress = note};
	struct tmesh_model_report report = {.size = sizeof(report)};
	struct tmesh_model *model;
	struct tmesh_ctx *ctx;
	pid_t reader, killer;
	int status;

	memset(shared, 0, sizeof(*shared));
	reader = fork();
	if (!reader) {
		opts.progress = die_half;
		if (!tmesh_ctx_open(NULL, &ctx, NULL))
			tmesh_model_load(ctx, model_path, &opts, &model, NULL);
		unit_leave(1);
	}
	while (!atomic_load(&shared->ready))
		usleep(500);
	killer = fork();
	if (!killer) {
		while (!atomic_load(&shared->holders))
			usleep(500);
		usleep(20000);
		kill(reader, SIGKILL);
		unit_leave(0);
	}
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_model_load(ctx, model_path, &opts, &model, err));
	assert_ok(tmesh_model_report(model, &report, err));
	assert_true(is_whole(model));
	assert_true(shared->done > 0);
	assert_int_equal(report.bytes_read, model_bytes() - shared->done);
	tmesh_model_unref(model);
	tmesh_ctx_unref(ctx);
	assert_int_equal(unit_runtime_files(".shared"), 0);
	waitpid(reader, &status, 0);
	waitpid(killer, &status, 0);
}

static bool sleeps(pid_t pid)
{
	char path[64], text[32] = "";
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/syscall", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0)
		text[0] = '\0';
	if (fd >= 0)
		close(fd);
	return text[0] >= '0' && text[0] <= '9' && atol(text) == SYS_clock_nanosleep;
}

static int tire(void *data, const struct tmesh_model_progress *progress)
{
	int *calls = data;

	return progress->waiting && ++*calls > 100;
}

struct forked {
	int ends[2], there[2];
	pid_t child;
};

/* Forks when it reads, and is killed: the child says that it is there, with its fork handlers
 * behind it, and lives on until the pipe ends. */
static int fork_and_die(void *data, const struct tmesh_model_progress *progress)
{
	const struct forked *pipes = data;
	char byte = 1;

	if (fork())
		kill(getpid(), SIGKILL);
	close(pipes->ends[1]);
	if (write(pipes->there[1], &byte, 1) != 1)
		unit_leave(1);
	unit_leave(read(pipes->ends[0], &byte, 1) ? 1 : 0);
	return 0;
}

/* A reader is killed that has forked meanwhile: its child does not read, and keeps no process
 * waiting.
 */
UNIT(test_forked_reader)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts)};
	struct tmesh_model *model;
	struct forked pipes;
	struct tmesh_ctx *ctx;
	int calls = 0, status;
	pid_t reader;
	char byte;

	assert_int_equal(pipe(pipes.ends) | pipe(pipes.there), 0);
	reader = fork();
	if (!reader) {
		opts.progress = fork_and_die;
		opts.progress_data = &pipes;
		if (!tmesh_ctx_open(NULL, &ctx, NULL))
			tmesh_model_load(ctx, model_path, &opts, &model, NULL);
		unit_leave(1);
	}
	assert_int_equal(waitpid(reader, &status, 0), reader);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	assert_int_equal(read(pipes.there[0], &byte, 1), 1);
	opts.progress = tire;
	opts.progress_data = &calls;
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_model_load(ctx, model_path, &opts, &model, err));
	assert_true(is_whole(model));
	tmesh_model_unref(model);
	tmesh_ctx_unref(ctx);
	assert_int_equal(unit_runtime_files(".shared"), 0);
	for (int i = 0; i < 2; i++) {
		close(pipes.ends[i]);
		close(pipes.there[i]);
	}
}

/* Forks once, and goes on: the child lives until the pipe ends. */
static int fork_and_go_on(void *data, const struct tmesh_model_progress *progress)
{
	struct forked *pipes = data;
	char byte;

	if (pipes->child)
		return 0;
	pipes->child = fork();
	if (pipes->child)
		return 0;
	close(pipes->ends[1]);
	unit_leave(read(pipes->ends[0], &byte, 1) ? 1 : 0);
	return 0;
}

/* A child that is forked while a region is filled by a mapping has none that prevents the seal. */
static void forks_meanwhile(uint32_t flags)
{
	struct forked pipes = {0};
	struct tmesh_model_load_opts opts = {
		.size = sizeof(opts),
		.flags = flags,
		.method = TMESH_MODEL_READ,
		.progress = fork_and_go_on,
		.progress_data = &pipes,
	};
	struct tmesh_model *model;
	struct tmesh_ctx *ctx;

	assert_int_equal(pipe(pipes.ends), 0);
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_model_load(ctx, model_path, &opts, &model, err));
	assert_true(pipes.child > 0);
	assert_true(is_whole(model));
	close(pipes.ends[1]);
	join_child(pipes.child);
	close(pipes.ends[0]);
	tmesh_model_unref(model);
	tmesh_ctx_unref(ctx);
}

UNIT(test_forks_meanwhile)
{
	forks_meanwhile(0);
	forks_meanwhile(TMESH_MODEL_ALONE);
}

/* Memory filled through a mapping is there in a child that is forked later. */
UNIT(test_forked_later)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .method = TMESH_MODEL_READ};
	struct tmesh_model *model;
	struct tmesh_ctx *ctx = new_ctx();
	void *data;
	pid_t pid;

	assert_ok(tmesh_model_load(ctx, model_path, &opts, &model, err));
	assert_ok(tmesh_region_map(tmesh_model_region(model), TMESH_READ, &data, err));
	pid = fork();
	if (!pid)
		unit_leave(*(volatile uint8_t *)data * 0);
	join_child(pid);
	tmesh_region_unmap(tmesh_model_region(model), TMESH_READ);
	tmesh_model_unref(model);
	tmesh_ctx_unref(ctx);
}

/* A load without a callback sleeps while another reads, too, and goes on when that one is killed.
 */
UNIT(test_sleeps)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .progress = die_half};
	struct tmesh_model_report report = {.size = sizeof(report)};
	struct tmesh_model *model;
	struct tmesh_ctx *ctx;
	pid_t reader, waiter;
	int status, looks = 0;

	memset(shared, 0, sizeof(*shared));
	reader = fork();
	if (!reader) {
		if (!tmesh_ctx_open(NULL, &ctx, NULL))
			tmesh_model_load(ctx, model_path, &opts, &model, NULL);
		unit_leave(1);
	}
	while (!atomic_load(&shared->ready))
		usleep(500);
	waiter = fork();
	if (!waiter) {
		if (tmesh_ctx_open(NULL, &ctx, NULL) ||
		    tmesh_model_load(ctx, model_path, NULL, &model, NULL) ||
		    tmesh_model_report(model, &report, NULL) || !is_whole(model))
			unit_leave(1);
		unit_leave(report.bytes_read == model_bytes() - shared->done ? 0 : 2);
	}
	while (!sleeps(waiter) && looks++ < 60000)
		usleep(1000);
	assert_true(looks < 60000);
	kill(reader, SIGKILL);
	waitpid(reader, &status, 0);
	join_child(waiter);
}

/* The library's clock, of which a test lets seconds pass (ld --wrap). A test stops the clock if
 * real time would count. */
static atomic_uint_fast64_t passed, standing;
uint64_t __real_tmesh_now_ns(void);
uint64_t __wrap_tmesh_now_ns(void);

uint64_t __wrap_tmesh_now_ns(void)
{
	uint64_t at = atomic_load(&standing);

	return (at ? at : __real_tmesh_now_ns()) + atomic_load(&passed);
}

static void pass(uint64_t seconds)
{
	atomic_fetch_add(&passed, seconds * 1000000000);
}

static int pass_while_waiting(void *data, const struct tmesh_model_progress *progress)
{
	if (progress->waiting)
		pass(1);
	return 0;
}

static int stop(void *data, const struct tmesh_model_progress *progress)
{
	if (!atomic_exchange(&shared->ready, 1))
		raise(SIGSTOP);
	return 0;
}

/* Whether a load that waits for a stopped reader ends as it should. */
static bool gives_up(struct tmesh_ctx *ctx, uint32_t flags, pid_t reader)
{
	struct tmesh_model_load_opts opts = {
		.size = sizeof(opts), .flags = flags, .progress = pass_while_waiting};
	struct tmesh_model_report report = {.size = sizeof(report)};
	char said[32];
	struct tmesh_model *model;
	struct tmesh_error err;
	int rc = tmesh_model_load(ctx, model_path, &opts, &model, &err);
	bool good;

	snprintf(said, sizeof(said), "process %d, ", (int)reader);
	if (flags & TMESH_MODEL_KEEP)
		return rc == -ETIMEDOUT && strstr(err.message, said);
	if (rc)
		return false;
	good = !tmesh_model_report(model, &report, NULL) && is_whole(model) && !report.shared &&
	       report.bytes_read == model_bytes() && strstr(report.reason, "alone: ") &&
	       strstr(report.reason, said);
	tmesh_model_unref(model);
	return good;
}

/* A reader that was stopped is waited for ten seconds. Then each process reads for itself and
 * reports it, or fails if it is to keep the model under the shared load's name. Nothing is taken
 * from the reader. */
UNIT(test_stopped)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .progress = stop};
	struct tmesh_model_report report = {.size = sizeof(report)};
	struct tmesh_model *model;
	struct tmesh_ctx *ctx;
	pid_t reader, keeper;
	int status;

	memset(shared, 0, sizeof(*shared));
	reader = fork();
	if (!reader) {
		if (tmesh_ctx_open(NULL, &ctx, NULL) ||
		    tmesh_model_load(ctx, model_path, &opts, &model, NULL) ||
		    tmesh_model_report(model, &report, NULL) || !is_whole(model))
			unit_leave(1);
		unit_leave(report.bytes_read == model_bytes() && report.shared ? 0 : 2);
	}
	assert_int_equal(waitpid(reader, &status, WUNTRACED), reader);
	assert_true(WIFSTOPPED(status));
	keeper = fork();
	if (!keeper)
		unit_leave(!tmesh_ctx_open(NULL, &ctx, NULL) &&
					   gives_up(ctx, TMESH_MODEL_KEEP, reader)
				   ? 0
				   : 1);
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_true(gives_up(ctx, 0, reader));
	tmesh_ctx_unref(ctx);
	join_child(keeper);
	kill(reader, SIGCONT);
	join_child(reader);
}

static int stop_twice(void *data, const struct tmesh_model_progress *progress)
{
	if (atomic_exchange(&shared->ready, 1))
		return 0;
	raise(SIGSTOP);
	while (!atomic_load(&shared->leave))
		usleep(1000);
	raise(SIGSTOP);
	return 0;
}

struct watch {
	pid_t reader;
	int looks;
};

/* The reader is stopped for nine seconds, goes on, and is stopped for nine seconds and two. */
static int watch(void *data, const struct tmesh_model_progress *progress)
{
	struct watch *w = data;
	int status;

	if (!progress->waiting)
		return 0;
	switch (w->looks++) {
	case 2:
		kill(w->reader, SIGCONT);
		return waitpid(w->reader, &status, WCONTINUED) != w->reader;
	case 3:
		atomic_store(&shared->leave, true);
		return waitpid(w->reader, &status, WUNTRACED) != w->reader;
	case 1:
	case 4:
		pass(9);
		return 0;
	case 5:
		pass(2);
		return 0;
	default:
		return w->looks > 1;
	}
}

/* The length of each stop counts: not how often, and not since when it reads. */
UNIT(test_stopped_at_times)
{
	struct watch w = {.looks = 0};
	struct tmesh_model_load_opts opts = {
		.size = sizeof(opts), .progress = watch, .progress_data = &w};
	struct tmesh_model *model;
	struct tmesh_ctx *ctx;
	int status;

	memset(shared, 0, sizeof(*shared));
	w.reader = fork();
	if (!w.reader) {
		opts.progress = stop_twice;
		unit_leave(!tmesh_ctx_open(NULL, &ctx, NULL) &&
					   !tmesh_model_load(ctx, model_path, &opts, &model, NULL)
				   ? 0
				   : 1);
	}
	assert_int_equal(waitpid(w.reader, &status, WUNTRACED), w.reader);
	assert_true(WIFSTOPPED(status));
	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	atomic_store(&standing, __real_tmesh_now_ns());
	assert_ok(tmesh_model_load(ctx, model_path, &opts, &model, err));
	atomic_store(&standing, 0);
	assert_int_equal(w.looks, 6);
	assert_true(is_whole(model));
	tmesh_model_unref(model);
	tmesh_ctx_unref(ctx);
	kill(w.reader, SIGCONT);
	join_child(w.reader);
}

/* All take at once from the part that is read and held: none has to wait for the reader's lock. */
UNIT(test_takes)
{
	int calls = 0, fd = -1;
	struct tmesh_model_load_opts opts = {
		.size = sizeof(opts), .progress = tire, .progress_data = &calls};
	struct flock reader = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
	struct tmesh_model *one, *two;
	struct tmesh_ctx *ctx = new_ctx();
	struct dirent *entry;
	DIR *dir;

	assert_ok(tmesh_model_load(ctx, model_path, NULL, &one, err));
	dir = opendir(unit_runtime_dir());
	while (fd < 0 && (entry = readdir(dir))) {
		if (strstr(entry->d_name, ".shared"))
			fd = openat(dirfd(dir), entry->d_name, O_RDWR | O_CLOEXEC);
	}
	closedir(dir);
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &reader), 0);
	assert_ok(tmesh_model_load(ctx, model_path, &opts, &two, err));
	assert_true(is_whole(two));
	close(fd);
	tmesh_model_unref(one);
	tmesh_model_unref(two);
	tmesh_ctx_unref(ctx);
	assert_int_equal(unit_runtime_files(".shared"), 0);
}

/* The model is whole, whatever another process of this user leaves in the shared load's file. */
UNIT(test_damaged)
{
	/* The file is the same on every backend. */
	const int rounds = count(getenv("TMESH_TEST_LENGTH"), unit_on_kernel() ? 10 : 40, 1000);

	srand(11);
	for (int round = 0; round < rounds; round++) {
		struct tmesh_model *one, *two;
		struct tmesh_ctx *ctx;
		struct dirent *entry;
		char path[160] = "";
		uint8_t noise[64];
		DIR *dir;
		int fd;

		assert_ok(tmesh_ctx_open(NULL, &ctx, err));
		assert_ok(tmesh_model_load(ctx, model_path, NULL, &one, err));
		dir = opendir(unit_runtime_dir());
		while ((entry = readdir(dir))) {
			if (strstr(entry->d_name, ".shared"))
				snprintf(path, sizeof(path), "%s/%.64s", unit_runtime_dir(),
					 entry->d_name);
		}
		closedir(dir);
		fd = open(path, O_RDWR | O_CLOEXEC);
		assert_true(fd >= 0);
		for (size_t i = 0; i < sizeof(noise); i++)
			noise[i] = (uint8_t)rand();
		assert_true(pwrite(fd, noise, 1 + (size_t)rand() % sizeof(noise),
				   (const int[]){rand() % 48, 4096 + rand() % 96,
						 12288 + rand() % 1500}[rand() % 3]) > 0);
		if (rand() % 4 == 0)
			assert_int_equal(ftruncate(fd, rand() % 5000), 0);
		close(fd);
		assert_ok(tmesh_model_load(ctx, model_path, NULL, &two, err));
		assert_true(is_whole(two));
		tmesh_model_unref(one);
		tmesh_model_unref(two);
		tmesh_ctx_unref(ctx);
		assert_int_equal(unit_runtime_files(".shared"), 0);
	}
}

UNIT_MAIN("model shared load", make_model, remove_model)
