// SPDX-License-Identifier: MIT
/*
 * Each file of the fuzzers' corpus is loaded: whole, cut, and with a byte changed. A load refuses
 * each file that the reader refuses, with the same error, which names the file. Nothing is left of
 * it, nor kept. fuzz_header.c shows the same in memory; here it is the file system and the region.
 */
#include "unit.h"

#include <tmesh/keep.h>

#include "files/model_internal.h"

#define NAME "corpus-file"

static char folder[64], path[96];
static struct tmesh_ctx *ctx;
static unsigned int loaded, refused;

static unsigned int shared_loads(void)
{
	DIR *dir = opendir(unit_runtime_dir());
	unsigned int count = 0;
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		count += strstr(entry->d_name, ".shared") != NULL;
	if (dir)
		closedir(dir);
	return count;
}

static size_t kept(void)
{
	struct tmesh_kept_info *infos = NULL;
	size_t count = 0, ours = 0;

	assert_ok(tmesh_kept_list(ctx, &infos, &count, err));
	for (size_t i = 0; i < count; i++)
		ours += !strncmp(infos[i].name, "model-", 6);
	free(infos);
	return ours;
}

static uint64_t live(void)
{
	struct tmesh_stats stats = {.size = sizeof(stats)};

	assert_int_equal(tmesh_stats(ctx, &stats), 0);
	return stats.regions_live;
}

static void write_file(const uint8_t *data, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, bytes), bytes);
	close(fd);
}

static void load(const uint8_t *data, size_t bytes)
{
	struct tmesh_model_load_opts opts = {.size = sizeof(opts)};
	struct tmesh_model *model = NULL;
	struct tmesh_error why;
	uint64_t need, before = live();
	int wanted = tmesh_model_parse(data, bytes, bytes, &model, &need, NULL), rc;

	if (!wanted)
		tmesh_model_unref(model);
	write_file(data, bytes);
	/* By turns for all who load it, for itself, and to be kept. */
	opts.flags = (const uint32_t[]){0, TMESH_MODEL_ALONE,
					wanted ? TMESH_MODEL_KEEP : 0}[(loaded + refused) % 3];
	rc = tmesh_model_load(ctx, path, &opts, &model, &why);
	if (!rc)
		tmesh_model_unref(model);
	if (rc != wanted || (rc && (why.code != rc || !strstr(why.message, NAME))))
		fail_msg("%zu bytes: %d, not %d: %s", bytes, rc, wanted, rc ? why.message : "");
	assert_int_equal(live(), before);
	loaded += !rc;
	refused += !!rc;
}

UNIT(test_corpus)
{
	static const char *const folders[] = {"tests/fuzz/corpus/safetensors",
					      "tests/fuzz/corpus/gguf"};
	unsigned int files = 0, fds = 0;

	for (int i = 0; i < 2; i++) {
		DIR *dir = opendir(folders[i]);
		struct dirent *entry;

		assert_non_null(dir);
		while ((entry = readdir(dir))) {
			static uint8_t data[65536];
			int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);
			ssize_t bytes = read(fd, data, sizeof(data));

			close(fd);
			if (bytes <= 0)
				continue;
			/* Descriptors and memory that the first loads leave for good. */
			for (int turn = 0; turn < 3; turn++)
				load(data, (size_t)bytes);
			tmesh_ctx_trim(ctx);
			fds = files++ ? fds : unit_open_fds();
			for (size_t cut = 0; cut < (size_t)bytes; cut += cut < 32 ? 1 : 13)
				load(data, cut);
			for (size_t at = 0; at < (size_t)bytes; at += at < 32 ? 1 : 7) {
				data[at] ^= (uint8_t)(1u << at % 8);
				load(data, (size_t)bytes);
				data[at] ^= (uint8_t)(1u << at % 8);
			}
		}
		closedir(dir);
	}
	tmesh_ctx_trim(ctx);
	assert_true(unit_open_fds() <= fds);
	assert_int_equal(shared_loads(), 0);
	assert_int_equal(kept(), 0);
	assert_true(files >= 10 && loaded > files && refused > 100 * files / 2);
	print_message("%u files: %u loaded, %u refused\n", files, loaded, refused);
}

static int make_folder(void **state)
{
	strcpy(folder, "/tmp/tmesh-corpus-XXXXXX");
	if (!mkdtemp(folder))
		return -1;
	snprintf(path, sizeof(path), "%s/" NAME, folder);
	return tmesh_ctx_open(NULL, &ctx, NULL);
}

static int remove_folder(void **state)
{
	tmesh_ctx_unref(ctx);
	unlink(path);
	return rmdir(folder);
}

UNIT_MAIN("model corpus", make_folder, remove_folder)
