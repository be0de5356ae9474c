// SPDX-License-Identifier: MIT
/* Loading and saving: bytes, places, methods, cancellation, files that change, disks that fail. */
#include "unit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "model_internal.h"

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

static unsigned int flights(void)
{
	DIR *dir = opendir(getenv("TMESH_RUNTIME_DIR"));
	unsigned int count = 0;
	struct dirent *entry;

	while ((entry = readdir(dir)))
		count += strstr(entry->d_name, ".flight") != NULL;
	closedir(dir);
	return count;
}

static void test_methods(void **state)
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
		assert_int_equal(flights(), 0);
	}
}

static void test_bundle(void **state)
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

static void test_second(void **state)
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
	assert_int_equal(flights(), 1);
	/* A tensor outlives its model. */
	assert_ok(tmesh_model_tensor_open(three, 0, &tensor, err));
	tmesh_model_unref(three);
	assert_int_equal(flights(), 0);
	if (tmesh_tensor_bytes(tensor))
		assert_non_null(bytes_of(tensor));
	tmesh_tensor_unref(tensor);
	assert_ok(tmesh_model_load(ctx, model_path, &alone, &one, err));
	assert_ok(tmesh_model_report(one, &report, err));
	assert_false(report.shared);
	assert_int_equal(flights(), 0);
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
	snprintf(other, sizeof(other), "%s.old", model_path);
	return rename(model_path, other) || link(other, model_path) || unlink(other) ||
	       unlink(model_path);
}

static void test_refused(void **state)
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
	assert_int_equal(flights(), 0);
	tmesh_ctx_trim(ctx);
	/* What a thread had not closed yet when it was counted is gone now. */
	assert_true(unit_open_fds() <= fds);
}

static void test_no_flight(void **state)
{
	struct tmesh_model_report report = {.size = sizeof(report)};
	struct tmesh_model *model;
	const char *dir = getenv("TMESH_RUNTIME_DIR");

	assert_int_equal(chmod(dir, 0755), 0);
	assert_ok(tmesh_model_load(ctx, model_path, NULL, &model, err));
	assert_int_equal(chmod(dir, 0700), 0);
	assert_ok(tmesh_model_report(model, &report, err));
	assert_false(report.shared);
	assert_non_null(strstr(report.reason, "alone: "));
	check_model(model);
	tmesh_model_unref(model);
}

/* Others cannot be told on a full file system: the model is loaded all the same, but not kept. */
static void test_full_runtime_dir(void **state)
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

static void test_save(void **state)
{
	static const char *const metadata[] = {"format", "pt", NULL};
	static const char *const wrong[] = {"format", "pt", "a", "\xff", NULL};
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
	opts.metadata = wrong;
	assert_refused(tmesh_model_save(path, items, 1, &opts, err), -EINVAL, "not UTF-8");
	opts.metadata = NULL;
	assert_refused(tmesh_model_save("", items, 1, NULL, err), -EINVAL, "no name");
	assert_refused(tmesh_model_save("/nonexistent/x", items, 1, NULL, err), -ENOENT, "folder");
	opts.progress = stop;
	assert_refused(tmesh_model_save(path, items, COUNT, &opts, err), -ECANCELED, "cancelled");
	/* What is no file stays what it is. */
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_refused(tmesh_model_save(path, items, 1, NULL, err), -EEXIST, "no regular file");
	assert_int_equal(lstat(path, &st), 0);
	assert_true(S_ISFIFO(st.st_mode));
	unlink(path);
	assert_int_equal(files_in(folder), before);
}

/* A file system without room: nothing is left, and what was there stays. */
static void test_full(void **state)
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
	if (rc == -ENOSPC && files_in(path) == 1 && !tmesh_model_describe(command, &model, NULL)) {
		assert_int_equal(tmesh_model_tensors(model), 3);
		tmesh_model_unref(model);
	} else {
		rc = rc == -ENOSPC ? -1 : rc;
	}
	snprintf(command, sizeof(command), "umount %s", path);
	assert_int_equal(system(command), 0);
	assert_int_equal(rc, -ENOSPC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_methods),	  cmocka_unit_test(test_second),
		cmocka_unit_test(test_bundle),	  cmocka_unit_test(test_refused),
		cmocka_unit_test(test_no_flight), cmocka_unit_test(test_full_runtime_dir),
		cmocka_unit_test(test_save),	  cmocka_unit_test(test_full),
	};

	return cmocka_run_group_tests_name("model load", tests, make_model, remove_model);
}
