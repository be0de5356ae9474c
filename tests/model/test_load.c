// SPDX-License-Identifier: MIT
/* Loading and saving: bytes, places, methods, cancellation, files that change, disks that fail. */
#include "unit.h"

#include <sys/sendfile.h>

#include "common/room.h"
#include "files/model_internal.h"

#define COUNT 40

static char folder[64];
static char model_path[96];
static struct tmesh_ctx *ctx;
static struct tmesh_tensor *tensors[COUNT];
static struct tmesh_model_item items[COUNT];

static void *bytes_of(struct tmesh_tensor *tensor)
{
	void *data;

	assert_ok(tmesh_tensor_data(tensor, TMESH_READ, &data, err));
	return data;
}

/* Tensors of many sizes, among them none, odd ones and one of 3 MiB. */
static int make_model(void **state)
{
	static char names[COUNT][16];

	strcpy(folder, "/tmp/tmesh-load-XXXXXX");
	if (!mkdtemp(folder) || tmesh_ctx_open(NULL, &ctx, NULL))
		return -1;
	for (int i = 0; i < COUNT; i++) {
		int64_t shape[2] = {i % 7, i == 5 ? 1 << 20 : i * 13 + 1};
		enum tmesh_dtype dtype = i % 3 ? TMESH_FLOAT32 : TMESH_INT8;
		uint64_t bytes = (uint64_t)(shape[0] * shape[1]) * (dtype == TMESH_INT8 ? 1 : 4);
		uint8_t *data = malloc(bytes + 1);

		if (i == 5)
			shape[0] = 3, dtype = TMESH_INT8, bytes = 3 << 20,
			data = realloc(data, bytes);
		for (uint64_t k = 0; k < bytes; k++)
			data[k] = (uint8_t)(k * 7 + (uint64_t)i);
		if (tmesh_tensor_put(ctx, dtype, 2, shape, data, NULL, &tensors[i], NULL))
			return -1;
		free(data);
		snprintf(names[i], sizeof(names[i]), "layer.%d", i);
		items[i] = (struct tmesh_model_item){names[i], tensors[i]};
	}
	snprintf(model_path, sizeof(model_path), "%s/m.safetensors", folder);
	return tmesh_model_save(model_path, items, COUNT, NULL, NULL);
}

static int remove_model(void **state)
{
	char command[96];

	for (int i = 0; i < COUNT; i++)
		tmesh_tensor_unref(tensors[i]);
	tmesh_ctx_unref(ctx);
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command);
}

/* Every tensor is there, in its place, sealed, and as it was put. */
static void check_model(struct tmesh_model *model)
{
	assert_int_equal(tmesh_model_tensors(model), COUNT);
	assert_true(tmesh_region_is_sealed(tmesh_model_region(model)));
	assert_false(tmesh_region_rights(tmesh_model_region(model)) & TMESH_WRITE);
	for (int i = 0; i < COUNT; i++) {
		struct tmesh_tensor *tensor;
		size_t index;

		assert_ok(tmesh_model_find(model, items[i].name, &index, err));
		assert_ok(tmesh_model_tensor_open(model, index, &tensor, err));
		assert_int_equal(tmesh_tensor_layout(tensor)->offset % TMESH_ALIGN, 0);
		assert_int_equal(tmesh_tensor_layout(tensor)->dtype,
				 tmesh_tensor_layout(tensors[i])->dtype);
		assert_int_equal(tmesh_tensor_bytes(tensor), tmesh_tensor_bytes(tensors[i]));
		if (tmesh_tensor_bytes(tensor))
			assert_memory_equal(bytes_of(tensor), bytes_of(tensors[i]),
					    tmesh_tensor_bytes(tensor));
		tmesh_tensor_unref(tensor);
	}
}

static unsigned int files_in(const char *path)
{
	DIR *dir = opendir(path);
	unsigned int count = 0;
	struct dirent *entry;

	while ((entry = readdir(dir)))
		count += entry->d_name[0] != '.' || strlen(entry->d_name) > 2;
	closedir(dir);
	return count;
}

UNIT(test_methods)
{
	static const enum tmesh_model_method methods[] = {TMESH_MODEL_AUTO, TMESH_MODEL_SPLICE,
							  TMESH_MODEL_URING, TMESH_MODEL_DIRECT,
							  TMESH_MODEL_READ};
	uint8_t first[16];

	for (size_t i = 0; i < 5; i++) {
		struct tmesh_model_load_opts opts = {
			.size = sizeof(opts), .flags = TMESH_MODEL_HASH, .method = methods[i]};
		struct tmesh_model_report report = {.size = sizeof(report)};
		struct tmesh_error why = {0};
		struct tmesh_model *model;
		int rc = tmesh_model_load(ctx, model_path, &opts, &model, &why);

		if (rc == -EOPNOTSUPP && methods[i] != TMESH_MODEL_AUTO) {
			print_message("# %s: %s\n", tmesh_model_method_name(methods[i]),
				      why.message);
			continue;
		}
		if (rc)
			fail_msg("%s", why.message);
		check_model(model);
		assert_ok(tmesh_model_report(model, &report, err));
		assert_int_equal(report.shared, true);
		assert_true(report.method == methods[i] || !methods[i]);
		assert_true(report.reason[0] && report.file_system[0]);
		assert_int_equal(report.bytes_copied,
				 report.method == TMESH_MODEL_DIRECT ? report.bytes_read : 0);
		if (!i)
			memcpy(first, report.hash, 16);
		assert_memory_equal(first, report.hash, 16);
		tmesh_model_unref(model);
		assert_int_equal(unit_runtime_files(".shared"), 0);
	}
}

UNIT(test_bundle)
{
	struct tmesh_bundle *bundle, *again;
	struct tmesh_model *model;
	char *ref;
	size_t i;

	assert_ok(tmesh_model_load(ctx, model_path, NULL, &model, err));
	assert_ok(tmesh_model_bundle(ctx, model, &bundle, err));
	ref = malloc(tmesh_bundle_ref_size(bundle));
	assert_ok(tmesh_bundle_ref_encode(bundle, TMESH_READ, ref, tmesh_bundle_ref_size(bundle),
					  err));
	assert_ok(tmesh_bundle_open(ctx, ref, strlen(ref), TMESH_READ, &again, err));
	tmesh_model_unref(model);
	assert_int_equal(tmesh_bundle_count(again), COUNT);
	assert_string_equal(tmesh_bundle_metadata(again, NULL), "{}");
	assert_ok(tmesh_bundle_find(again, "layer.5", &i, err));
	for (int k = 0; k < COUNT; k++) {
		struct tmesh_tensor *tensor;

		assert_ok(tmesh_bundle_find(again, items[k].name, &i, err));
		assert_ok(tmesh_bundle_tensor(again, i, &tensor, err));
		if (tmesh_tensor_bytes(tensor))
			assert_memory_equal(bytes_of(tensor), bytes_of(tensors[k]),
					    tmesh_tensor_bytes(tensor));
		tmesh_tensor_unref(tensor);
	}
	free(ref);
	tmesh_bundle_unref(bundle);
	tmesh_bundle_unref(again);
}

UNIT(test_second)
{
	struct tmesh_model_load_opts alone = {.size = sizeof(alone), .flags = TMESH_MODEL_ALONE};
	struct tmesh_model_report report = {.size = sizeof(report)};
	struct tmesh_model *one, *two, *three;
	struct tmesh_tensor *tensor;

	assert_ok(tmesh_model_load(ctx, model_path, NULL, &one, err));
	assert_ok(tmesh_model_load(ctx, model_path, NULL, &two, err));
	assert_ok(tmesh_model_report(two, &report, err));
	assert_int_equal(report.bytes_read, 0);
	assert_int_equal(tmesh_region_id(tmesh_model_region(one)),
			 tmesh_region_id(tmesh_model_region(two)));
	/* The first may go: the second's token opens the third. */
	tmesh_model_unref(one);
	assert_ok(tmesh_model_load(ctx, model_path, NULL, &three, err));
	assert_ok(tmesh_model_report(three, &report, err));
	assert_int_equal(report.bytes_read, 0);
	tmesh_model_unref(two);
	assert_int_equal(unit_runtime_files(".shared"), 1);
	/* A tensor outlives its model. */
	assert_ok(tmesh_model_tensor_open(three, 0, &tensor, err));
	tmesh_model_unref(three);
	assert_int_equal(unit_runtime_files(".shared"), 0);
	if (tmesh_tensor_bytes(tensor))
		assert_non_null(bytes_of(tensor));
	tmesh_tensor_unref(tensor);
	assert_ok(tmesh_model_load(ctx, model_path, &alone, &one, err));
	assert_ok(tmesh_model_report(one, &report, err));
	assert_false(report.shared);
	assert_int_equal(unit_runtime_files(".shared"), 0);
	check_model(one);
	tmesh_model_unref(one);
}

static int stop(void *data, const struct tmesh_model_progress *progress)
{
	assert_true(progress->bytes_done <= progress->bytes_total);
	return 1;
}

static int change(void *data, const struct tmesh_model_progress *progress)
{
	const char *how = data;
	char other[112];
	struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
	int fd;

	if (!strcmp(how, "touch"))
		return utimensat(AT_FDCWD, model_path, now, 0);
	if (!strcmp(how, "grow")) {
		fd = open(model_path, O_WRONLY | O_APPEND);
		assert_int_equal(write(fd, "x", 1), 1);
		return close(fd);
	}
	/* A slow load asks again after a tenth of a second. */
	if (access(model_path, F_OK))
		return 0;
	snprintf(other, sizeof(other), "%s.old", model_path);
	return rename(model_path, other) || link(other, model_path) || unlink(other) ||
	       unlink(model_path);
}

UNIT(test_refused)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .progress = stop};
	struct tmesh_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
	static const char *const hows[] = {"touch", "grow", "remove"};
	struct tmesh_region *first;
	struct tmesh_model *model;
	unsigned int fds;

	/* The first memory that comes back to the pool starts the thread that looks there. */
	assert_ok(tmesh_region_create(ctx, 1, NULL, &first, err));
	tmesh_region_unref(first);
	tmesh_ctx_trim(ctx);
	fds = unit_open_fds();
	assert_int_equal(tmesh_stats(ctx, &before), 0);
	assert_refused(tmesh_model_load(ctx, model_path, &opts, &model, err), -ECANCELED,
		       "cancelled");
	opts.flags = TMESH_MODEL_ALONE;
	assert_refused(tmesh_model_load(ctx, model_path, &opts, &model, err), -ECANCELED,
		       "cancelled");
	opts.progress = change;
	for (int i = 0; i < 3; i++) {
		opts.flags = i % 2 ? TMESH_MODEL_ALONE : 0;
		opts.progress_data = (void *)hows[i];
		assert_refused(tmesh_model_load(ctx, model_path, &opts, &model, err), -ESTALE,
			       i == 2 ? "removed" : "changed");
		unlink(model_path);
		assert_ok(tmesh_model_save(model_path, items, COUNT, NULL, err));
	}
	opts = (struct tmesh_model_load_opts){.size = sizeof(opts), .flags = 64};
	assert_refused(tmesh_model_load(ctx, model_path, &opts, &model, err), -EINVAL, "0x40");
	opts = (struct tmesh_model_load_opts){.size = sizeof(opts), .method = 99};
	assert_refused(tmesh_model_load(ctx, model_path, &opts, &model, err), -EINVAL, "99");
	assert_int_equal(tmesh_stats(ctx, &after), 0);
	assert_int_equal(before.regions_live, after.regions_live);
	assert_int_equal(unit_runtime_files(".shared"), 0);
	tmesh_ctx_trim(ctx);
	/* A file that a thread had not closed yet when it was counted is gone now. */
	assert_true(unit_open_fds() <= fds);
}

/* Two targets of a link of /proc: a sealed memfd, as the keeper has it, and a file of O_TMPFILE. */
static int nameless(bool memfd)
{
	int from = open(model_path, O_RDONLY), to;
	struct stat st;

	to = memfd ? memfd_create("model", MFD_ALLOW_SEALING)
		   : open(folder, O_TMPFILE | O_RDWR, 0600);
	assert_true(from >= 0 && to >= 0);
	assert_int_equal(fstat(from, &st), 0);
	for (off_t at = 0; at < st.st_size;)
		assert_true(sendfile(to, from, &at, (size_t)st.st_size) > 0);
	if (memfd)
		assert_int_equal(fcntl(to, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW),
				 0);
	close(from);
	return to;
}

static int shorten(void *data, const struct tmesh_model_progress *progress)
{
	return ftruncate(*(int *)data, 16384);
}

UNIT(test_nameless)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts)};
	struct tmesh_model *one, *two;
	char path[64];

	for (int i = 0; i < 2; i++) {
		int fd = nameless(i);

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		opts.flags = TMESH_MODEL_ALONE;
		assert_ok(tmesh_model_load(ctx, path, NULL, &one, err));
		assert_ok(tmesh_model_load(ctx, path, NULL, &two, err));
		assert_int_equal(tmesh_region_id(tmesh_model_region(one)),
				 tmesh_region_id(tmesh_model_region(two)));
		check_model(two);
		tmesh_model_unref(two);
		tmesh_model_unref(one);
		assert_ok(tmesh_model_load(ctx, path, &opts, &one, err));
		check_model(one);
		tmesh_model_unref(one);
		if (!i) {
			opts.progress = shorten;
			opts.progress_data = &fd;
			assert_refused(tmesh_model_load(ctx, path, &opts, &one, err), -ESTALE, "");
			opts.progress = NULL;
		}
		close(fd);
	}
}

/* Files of a machine that is made up (ld --wrap); NULL: this one. */
static const char *machine;
void __real_tmesh_room(const char *root, struct tmesh_room *out);
void __wrap_tmesh_room(const char *root, struct tmesh_room *out);

void __wrap_tmesh_room(const char *root, struct tmesh_room *out)
{
	__real_tmesh_room(machine ? machine : root, out);
}

static void say(const char *path, const char *text)
{
	char whole[256];
	FILE *file;

	snprintf(whole, sizeof(whole), "%s/%s", machine, path);
	file = fopen(whole, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

/* A model without room in a control group is refused before a byte is read: the kernel would kill
 * the loader. */
UNIT(test_room)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts), .flags = TMESH_MODEL_ALONE};
	struct tmesh_model *model;
	struct tmesh_room room;
	char path[96];
	char make[256];

	if (tmesh_ctx_backend(ctx) != TMESH_BACKEND_MEMFD)
		skip();
	snprintf(path, sizeof(path), "%s/machine", folder);
	machine = path;
	snprintf(make, sizeof(make), "mkdir -p %s/proc/self %s/sys/fs/cgroup/pod/app", path, path);
	assert_int_equal(system(make), 0);
	tmesh_room(machine, &room);
	assert_true(room.bytes == UINT64_MAX);
	say("proc/meminfo",
	    "MemTotal:  1000 kB\nMemFree: 5 kB\nSwapTotal: 24 kB\nSwapFree: 8 kB\n");
	say("proc/self/cgroup", "9:name=systemd:/\n0::/pod/app\n");
	say("proc/self/mountinfo",
	    "30 23 0:26 / /sys rw,nosuid - sysfs sysfs rw\n"
	    "31 30 0:27 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n");
	tmesh_room(machine, &room);
	assert_int_equal(room.bytes, 1024 * 1024);
	assert_string_equal(room.group, "");
	assert_refused(tmesh_model_load(ctx, model_path, &opts, &model, err), -ENOMEM,
		       "this machine, with its swap space, has room for 1 MiB");
	say("proc/meminfo", "MemTotal:  900000 kB\nSwapTotal: 2048 kB\nSwapFree: 1024 kB\n");
	say("sys/fs/cgroup/pod/app/memory.max", "max\n");
	say("sys/fs/cgroup/pod/memory.max", "8388608\n");
	say("sys/fs/cgroup/pod/memory.current", "7340032\n");
	say("sys/fs/cgroup/pod/memory.stat", "anon 1048576\nfile 4194304\nshmem 1048576\n");
	tmesh_room(machine, &room);
	/* 8 MiB, less 7 but for 3 of page cache, and 1 MiB of swap space. */
	assert_int_equal(room.bytes, (8 - 7 + 3 + 1) << 20);
	assert_string_equal(room.group, "/pod");
	assert_ok(tmesh_model_load(ctx, model_path, &opts, &model, err));
	tmesh_model_unref(model);
	say("sys/fs/cgroup/pod/memory.swap.max", "0\n");
	say("sys/fs/cgroup/pod/memory.stat", "anon 6291456\nfile 1048576\nshmem 1048576\n");
	for (int i = 0; i < 2; i++) {
		opts.flags = i ? TMESH_MODEL_ALONE : 0;
		assert_refused(tmesh_model_load(ctx, model_path, &opts, &model, err), -ENOMEM,
			       "the control group /pod (memory.max 8 MiB) has room for 1 MiB");
	}
	/* In a namespace the uppermost group has a limit, too. */
	say("sys/fs/cgroup/pod/memory.max", "max\n");
	say("sys/fs/cgroup/memory.max", "4096\n");
	say("sys/fs/cgroup/memory.current", "8192\n");
	tmesh_room(machine, &room);
	assert_int_equal(room.bytes, 1024 * 1024);
	assert_int_equal(room.largest, 4096);
	assert_string_equal(room.group, "/");
	/* Version 1, mounted as a container sees it: from its own group on. */
	say("proc/self/cgroup", "3:cpu,memory:/pod/app/job\n0::/\n");
	say("proc/self/mountinfo", "32 31 0:30 /pod/app /sys/fs/cgroup/v1 rw - cgroup cgroup "
				   "rw,cpu,memory\n");
	snprintf(make, sizeof(make), "mkdir -p %s/sys/fs/cgroup/v1/job", path);
	assert_int_equal(system(make), 0);
	say("sys/fs/cgroup/v1/memory.limit_in_bytes", "9223372036854771712\n");
	say("sys/fs/cgroup/v1/job/memory.limit_in_bytes", "8388608\n");
	say("sys/fs/cgroup/v1/job/memory.usage_in_bytes", "7340032\n");
	say("sys/fs/cgroup/v1/job/memory.stat",
	    "cache 0\ntotal_cache 4194304\ntotal_shmem 1048576\n");
	tmesh_room(machine, &room);
	assert_int_equal(room.bytes, (8 - 7 + 3 + 1) << 20);
	/* Memory and swap space together: 1 MiB more, of which half is used. */
	say("sys/fs/cgroup/v1/job/memory.memsw.limit_in_bytes", "9437184\n");
	say("sys/fs/cgroup/v1/job/memory.memsw.usage_in_bytes", "7864320\n");
	tmesh_room(machine, &room);
	assert_int_equal(room.bytes, ((8 - 7 + 3) << 20) + (1 << 19));
	say("sys/fs/cgroup/v1/job/memory.stat", "total_cache 1048576\ntotal_shmem 1048576\n");
	assert_refused(tmesh_model_load(ctx, model_path, &opts, &model, err), -ENOMEM,
		       "the control group /job (memory.limit_in_bytes 8 MiB) has room for 1 MiB");
	machine = NULL;
	assert_ok(tmesh_model_load(ctx, model_path, &opts, &model, err));
	tmesh_model_unref(model);
	assert_int_equal(unit_runtime_files(".shared"), 0);
}

UNIT(test_no_flight)
{
	struct tmesh_model_report report = {.size = sizeof(report)};
	struct tmesh_model *model;
	const char *dir = unit_runtime_dir();

	assert_int_equal(chmod(dir, 0755), 0);
	assert_ok(tmesh_model_load(ctx, model_path, NULL, &model, err));
	assert_int_equal(chmod(dir, 0700), 0);
	assert_ok(tmesh_model_report(model, &report, err));
	assert_false(report.shared);
	assert_non_null(strstr(report.reason, "alone: "));
	check_model(model);
	tmesh_model_unref(model);
}

/* A full file system has no room for the announcement to others: the model is loaded all the same,
 * but not kept. */
UNIT(test_full_runtime_dir)
{
	const struct tmesh_model_load_opts keep = {.size = sizeof(keep), .flags = TMESH_MODEL_KEEP};
	struct tmesh_model_report report = {.size = sizeof(report)};
	struct tmesh_ctx_opts opts = {.size = sizeof(opts)};
	struct tmesh_error why = {0};
	struct tmesh_ctx *other = NULL;
	struct tmesh_model *model;
	char path[128], command[400];
	int rc, kept = 0;

	snprintf(path, sizeof(path), "%s/run", folder);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(command, sizeof(command),
		 "mount -t tmpfs -o size=16k,mode=700 tmpfs %s 2>/dev/null && "
		 "{ dd if=/dev/zero of=%s/full 2>/dev/null; true; }",
		 path, path);
	if (system(command)) {
		print_message("# a small file system cannot be mounted here\n");
		skip();
	}
	opts.runtime_dir = path;
	rc = tmesh_ctx_open(&opts, &other, NULL);
	if (!rc) {
		kept = tmesh_model_load(other, model_path, &keep, &model, &why);
		rc = tmesh_model_load(other, model_path, NULL, &model, NULL);
	}
	if (!rc) {
		tmesh_model_report(model, &report, NULL);
		check_model(model);
		tmesh_model_unref(model);
	}
	tmesh_ctx_unref(other);
	snprintf(command, sizeof(command), "umount %s", path);
	assert_int_equal(system(command), 0);
	assert_int_equal(kept, -ENOSPC);
	assert_non_null(strstr(why.message, "writing model-"));
	assert_int_equal(rc, 0);
	assert_false(report.shared);
	assert_non_null(strstr(report.reason, "alone: writing model-"));
	assert_non_null(strstr(report.reason, "No space left"));
}

static int renames_left = -1; /* then the disk fails; -1: it does not */

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	if (renames_left == 0) {
		errno = EIO;
		return -1;
	}
	renames_left -= renames_left > 0;
	return (int)syscall(SYS_renameat, from_dir, from, to_dir, to);
}

/* A save over another model that stops between two shards leaves nothing that can be loaded. */
UNIT(test_save_stopped)
{
	const struct tmesh_model_save_opts opts = {.size = sizeof(opts),
						   .max_shard_bytes = 1 << 16};
	struct tmesh_model *model;
	char path[128], index[160];
	unsigned int before;

	snprintf(path, sizeof(path), "%s/again.safetensors", folder);
	snprintf(index, sizeof(index), "%s.index.json", path);
	assert_ok(tmesh_model_save(path, items, COUNT, &opts, err));
	before = files_in(folder);
	for (int named = 0; named < 3; named++) {
		renames_left = named;
		assert_refused(tmesh_model_save(path, items, COUNT, &opts, err), -EIO, "name");
		renames_left = -1;
		assert_refused(tmesh_model_describe(index, NULL, &model, err), -ENOENT, "opening");
		assert_int_equal(files_in(folder), before - 1);
	}
	assert_ok(tmesh_model_save(path, items, COUNT, &opts, err));
	assert_ok(tmesh_model_load(ctx, index, NULL, &model, err));
	check_model(model);
	tmesh_model_unref(model);
}

UNIT(test_save)
{
	static const char *const metadata[] = {"format", "pt", NULL};
	static const char *const wrong[] = {"format", "pt", "a", "\xff", NULL};
	static const char *const odd[] = {"format", "pt", "step", NULL, "a", "b", NULL};
	struct tmesh_model_save_opts opts = {
		.size = sizeof(opts), .max_shard_bytes = 1 << 16, .metadata = metadata};
	struct tmesh_model_item bad[2] = {items[0], items[0]};
	struct tmesh_layout layout = *tmesh_tensor_layout(tensors[9]);
	struct tmesh_model *model;
	char path[128], *text;
	unsigned int before;
	struct stat st;

	snprintf(path, sizeof(path), "%s/s.safetensors", folder);
	assert_ok(tmesh_model_save(path, items, COUNT, &opts, err));
	strcat(path, ".index.json");
	assert_ok(tmesh_model_load(ctx, path, NULL, &model, err));
	assert_true(tmesh_model_files(model) > 2);
	check_model(model);
	assert_ok(tmesh_model_metadata_json(model, 0, &text, err));
	assert_string_equal(text, "{\"format\":\"pt\"}");
	free(text);
	tmesh_model_unref(model);
	before = files_in(folder);

	snprintf(path, sizeof(path), "%s/bad.safetensors", folder);
	assert_refused(tmesh_model_save(path, bad, 2, NULL, err), -EINVAL, "two tensors");
	bad[0].name = "__metadata__";
	assert_refused(tmesh_model_save(path, bad, 1, NULL, err), -EINVAL, "__metadata__");
	bad[0].name = "\xff";
	assert_refused(tmesh_model_save(path, bad, 1, NULL, err), -EINVAL, "UTF-8");
	bad[0].name = "v";
	bad[0].tensor = NULL;
	assert_refused(tmesh_model_save(path, bad, 1, NULL, err), -EINVAL, "no tensor");
	layout.shape[1]--;
	assert_ok(tmesh_tensor_view(tensors[9], &layout, &bad[0].tensor, err));
	assert_refused(tmesh_model_save(path, bad, 1, NULL, err), -EINVAL, "not contiguous");
	tmesh_tensor_unref(bad[0].tensor);
	opts.metadata = odd;
	assert_refused(tmesh_model_save(path, items, 1, &opts, err), -EINVAL, "\"step\"");
	opts.metadata = wrong;
	assert_refused(tmesh_model_save(path, items, 1, &opts, err), -EINVAL, "not UTF-8");
	opts.metadata = NULL;
	assert_refused(tmesh_model_save("", items, 1, NULL, err), -EINVAL, "no name");
	assert_refused(tmesh_model_save("/nonexistent/x", items, 1, NULL, err), -ENOENT, "folder");
	opts.progress = stop;
	assert_refused(tmesh_model_save(path, items, COUNT, &opts, err), -ECANCELED, "cancelled");
	/* A path that is no file stays what it is. */
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_refused(tmesh_model_save(path, items, 1, NULL, err), -EEXIST, "no regular file");
	assert_int_equal(lstat(path, &st), 0);
	assert_true(S_ISFIFO(st.st_mode));
	unlink(path);
	assert_int_equal(files_in(folder), before);
}

/* A file system without room: nothing is left, and what was there stays. */
UNIT(test_full)
{
	char command[192], path[128];
	struct tmesh_model *model;
	int rc;

	snprintf(path, sizeof(path), "%s/small", folder);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(command, sizeof(command), "mount -t tmpfs -o size=1m tmpfs %s 2>/dev/null", path);
	if (system(command)) {
		print_message("# a small file system cannot be mounted here\n");
		skip();
	}
	strcat(path, "/m.safetensors");
	rc = tmesh_model_save(path, items, 3, NULL, NULL);
	if (!rc)
		rc = tmesh_model_save(path, items, COUNT, NULL, NULL);
	path[strlen(path) - strlen("/m.safetensors")] = '\0';
	snprintf(command, sizeof(command), "%s/m.safetensors", path);
	if (rc == -ENOSPC && files_in(path) == 1 &&
	    !tmesh_model_describe(command, NULL, &model, NULL)) {
		assert_int_equal(tmesh_model_tensors(model), 3);
		tmesh_model_unref(model);
	} else {
		rc = rc == -ENOSPC ? -1 : rc;
	}
	snprintf(command, sizeof(command), "umount %s", path);
	assert_int_equal(system(command), 0);
	assert_int_equal(rc, -ENOSPC);
}

UNIT_MAIN("model load", make_model, remove_model)
