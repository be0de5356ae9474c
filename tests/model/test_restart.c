// SPDX-License-Identifier: MIT
/*
 * A model of 300 tensors after all processes that had it are killed, and its file removed: the next
 * one has the same bytes by its name alone. Ten processes with one model have one copy in memory,
 * and nothing of their own. TMESH_TEST_LENGTH=full takes 1 GB, where the machine has room for it.
 */
#include "unit.h"

#include <inttypes.h>
#include <tmesh/keep.h>

#include "files/model_internal.h"

#define TENSORS 300
#define REPLICAS 10
#define NAME "restart-test"
#define NEEDED (UINT64_C(8) << 30)

static char path[64];
static size_t words; /* of a tensor */

static uint64_t word_at(size_t tensor, size_t at)
{
	return (tensor + 1) * UINT64_C(0x9e3779b97f4a7c15) + at;
}

static void put(int fd, const void *data, size_t bytes)
{
	assert_int_equal(write(fd, data, bytes), bytes);
}

static int make_model(void **state)
{
	const char *length = getenv("TMESH_TEST_LENGTH");
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	bool full = length && !strcmp(length, "full") && memory >= NEEDED;
	char *json = malloc(TENSORS * 128 + 2), *end = json;
	uint64_t bytes, *data;
	int fd;

	words = full ? 1000000000 / 8 / TENSORS : 2000;
	data = malloc(8 * words);
	strcpy(path, "/tmp/tmesh-restart-XXXXXX");
	fd = mkstemp(path);
	assert_true(fd >= 0 && json && data);
	for (size_t i = 0; i < TENSORS; i++)
		end += sprintf(end,
			       "%c\"layer.%03zu\":{\"dtype\":\"U64\",\"shape\":[%zu],\"data_"
			       "offsets\":[%zu,%zu]}",
			       i ? ',' : '{', i, words, 8 * words * i, 8 * words * (i + 1));
	*end++ = '}';
	bytes = (uint64_t)(end - json);
	put(fd, &bytes, 8);
	put(fd, json, bytes);
	for (size_t i = 0; i < TENSORS; i++) {
		for (size_t at = 0; at < words; at++)
			data[at] = word_at(i, at);
		put(fd, data, 8 * words);
	}
	close(fd);
	free(data);
	free(json);
	return 0;
}

static int remove_model(void **state)
{
	unlink(path);
	return 0;
}

static bool is_right(struct tmesh_tensor *tensor, size_t number)
{
	uint64_t wrong = 0;
	void *data;

	if (tmesh_tensor_bytes(tensor) != 8 * words ||
	    tmesh_tensor_data(tensor, TMESH_READ, &data, NULL))
		return false;
	for (size_t at = 0; at < words; at++)
		wrong |= ((const uint64_t *)data)[at] ^ word_at(number, at);
	return !wrong;
}

static bool bundle_is_right(struct tmesh_bundle *bundle)
{
	if (tmesh_bundle_count(bundle) != TENSORS)
		return false;
	for (size_t i = 0; i < TENSORS; i++) {
		struct tmesh_tensor *tensor;
		char name[16];
		bool right;
		size_t at;

		snprintf(name, sizeof(name), "layer.%03zu", i);
		if (tmesh_bundle_find(bundle, name, &at, NULL) ||
		    tmesh_bundle_tensor(bundle, at, &tensor, NULL))
			return false;
		right = is_right(tensor, i);
		tmesh_tensor_unref(tensor);
		if (!right)
			return false;
	}
	return true;
}

/* A test that fails leaves no process behind. */
static void die_with(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		unit_leave(1);
}

/* In a process group that is killed: one loads and keeps, others have the model too. */
static void serve(int told)
{
	struct tmesh_model *model;
	struct tmesh_bundle *bundle;
	struct tmesh_ctx *ctx;
	pid_t loader = getpid();

	for (int i = 0; i < 3; i++) {
		if (fork())
			continue;
		die_with(loader);
		if (tmesh_ctx_open(NULL, &ctx, NULL) ||
		    tmesh_model_load(ctx, path, NULL, &model, NULL) || write(told, "h", 1) != 1)
			unit_leave(1);
		pause();
	}
	if (tmesh_ctx_open(NULL, &ctx, NULL) || tmesh_model_load(ctx, path, NULL, &model, NULL) ||
	    tmesh_model_bundle(ctx, model, &bundle, NULL) ||
	    tmesh_keep_bundle(ctx, NAME, bundle, NULL, NULL) || write(told, "k", 1) != 1)
		unit_leave(1);
	pause();
}

/* Read the fields of smaps for the mappings in [@from, @to), in KiB. */
struct share {
	uint64_t pss, anonymous, found;
};

static struct share look(const void *from, uint64_t bytes)
{
	FILE *file = fopen("/proc/self/smaps", "re");
	struct share share = {0};
	uint64_t low, high, kib;
	bool inside = false;
	char line[512];

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &low, &high) == 2) {
			inside = low < (uintptr_t)from + bytes && high > (uintptr_t)from;
			share.found += inside;
		} else if (inside && sscanf(line, "Pss: %" SCNu64, &kib) == 1) {
			share.pss += kib;
		} else if (inside && sscanf(line, "Anonymous: %" SCNu64, &kib) == 1) {
			share.anonymous += kib;
		}
	}
	if (file)
		fclose(file);
	return share;
}

/* Loads, reads all of it as a forward pass does, and looks when all have. */
static void replica(int ready, int go, int result, int end)
{
	struct tmesh_tensor *tensor;
	struct tmesh_model *model;
	struct tmesh_ctx *ctx;
	struct share share;
	void *memory;
	char word;

	if (tmesh_ctx_open(NULL, &ctx, NULL) || tmesh_model_load(ctx, path, NULL, &model, NULL) ||
	    tmesh_region_map(tmesh_model_region(model), TMESH_READ, &memory, NULL))
		unit_leave(1);
	for (size_t i = 0; i < TENSORS; i++)
		if (tmesh_model_tensor_open(model, i, &tensor, NULL) || !is_right(tensor, i))
			unit_leave(2);
	if (write(ready, "r", 1) != 1 || read(go, &word, 1) != 0)
		unit_leave(3);
	share = look(memory, tmesh_region_bytes(tmesh_model_region(model)));
	if (write(result, &share, sizeof(share)) != sizeof(share) || read(end, &word, 1) != 0)
		unit_leave(4);
	unit_leave(0);
}

UNIT(test_replicas)
{
	uint64_t pss = 0, all = 8 * words * TENSORS / 1024;
	int ready[2], go[2], result[2], end[2], status;
	struct share share;
	char word;

	assert_int_equal(pipe2(ready, O_CLOEXEC) | pipe2(go, O_CLOEXEC) | pipe2(result, O_CLOEXEC) |
				 pipe2(end, O_CLOEXEC),
			 0);
	for (int i = 0; i < REPLICAS; i++) {
		if (fork())
			continue;
		close(go[1]);
		close(end[1]);
		replica(ready[1], go[0], result[1], end[0]);
	}
	close(ready[1]);
	close(result[1]);
	for (int i = 0; i < REPLICAS; i++)
		assert_int_equal(read(ready[0], &word, 1), 1);
	close(go[1]);
	for (int i = 0; i < REPLICAS; i++) {
		assert_int_equal(read(result[0], &share, sizeof(share)), sizeof(share));
		assert_int_equal(share.anonymous, 0);
		assert_true(share.found > 0);
		pss += share.pss;
	}
	close(end[1]);
	for (int i = 0; i < REPLICAS; i++) {
		assert_true(wait(&status) > 0);
		assert_int_equal(status, 0);
	}
	/* One copy: all of its pages, and no page twice. */
	assert_in_range(pss, all - all / 50, all + all / 50 + REPLICAS * 64);
	close(ready[0]);
	close(go[0]);
	close(result[0]);
	close(end[0]);
}

/* It removes the file, so that it comes last. */
UNIT(test_restart)
{
	struct tmesh_bundle *bundle;
	struct tmesh_ctx *ctx;
	int told[2], status;
	pid_t pid, test = getpid();
	char word;

	assert_int_equal(pipe2(told, O_CLOEXEC), 0);
	pid = fork();
	if (!pid) {
		die_with(test);
		setpgid(0, 0);
		close(told[0]);
		serve(told[1]);
	}
	close(told[1]);
	for (int i = 0; i < 4; i++)
		assert_int_equal(read(told[0], &word, 1), 1);
	assert_int_equal(kill(-pid, SIGKILL), 0);
	waitpid(pid, &status, 0);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	/* All of them are dead: each had this end. */
	assert_int_equal(read(told[0], &word, 1), 0);
	close(told[0]);
	assert_int_equal(unlink(path), 0);

	assert_ok(tmesh_ctx_open(NULL, &ctx, err));
	assert_ok(tmesh_kept_open_bundle(ctx, NAME, TMESH_KEPT_OWN, &bundle, err));
	assert_true(bundle_is_right(bundle));
	tmesh_bundle_unref(bundle);
	assert_ok(tmesh_kept_drop(ctx, NAME, err));
	tmesh_ctx_unref(ctx);
}

UNIT_MAIN("model restart", make_model, remove_model)
