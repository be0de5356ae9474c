// SPDX-License-Identifier: MIT
/*
 * Which files a model has, and their headers. A header is read, never mapped: a file that shrinks
 * meanwhile is a short read and not a signal.
 */
#include "model_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_READ 65536u
#define INDEX_READ ((size_t)64 << 20)
/* As bytes of a header: opening a file, and finding a name. */
#define FILE_WORK 4096
#define NAME_WORK 128

/* Put the file's name before the error's message. */
static int in_file(struct tmesh_error *err, int rc, const struct model_file *file)
{
	struct tmesh_error inner;
	char quoted[MODEL_QUOTE];

	if (!err)
		return rc;
	inner = *err;
	return tmesh_fail(err, rc, "%s: %.*s", model_quote(quoted, file->name),
			  (int)sizeof(inner.message) - MODEL_QUOTE, inner.message);
}

static int file_errno(struct tmesh_error *err, const struct model_file *file, const char *what)
{
	int code = errno;
	char quoted[MODEL_QUOTE], text[96];

	return tmesh_fail(err, -code, "%s %s: %s", what, model_quote(quoted, file->path),
			  strerror_r(code, text, sizeof(text)));
}

/* Read all of [at, at + bytes). -EPROTO: the file ends early; or -EIO and the like. */
static int read_at(const struct model_file *file, uint8_t *to, uint64_t at, uint64_t bytes,
		   struct tmesh_error *err)
{
	while (bytes) {
		ssize_t got = pread(file->fd, to, bytes, (off_t)at);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return file_errno(err, file, "reading");
		if (!got)
			return tmesh_fail(err, -EPROTO,
					  "the file ends at byte %llu while it is read",
					  (unsigned long long)at);
		to += got;
		at += (uint64_t)got;
		bytes -= (uint64_t)got;
	}
	return 0;
}

static void remember(struct model_file *file, const struct stat *st)
{
	file->bytes = (uint64_t)st->st_size;
	file->dev = st->st_dev;
	file->ino = st->st_ino;
	file->linked = st->st_nlink;
	file->mtime_ns = st->st_mtim.tv_sec * 1000000000ll + st->st_mtim.tv_nsec;
	file->ctime_ns = st->st_ctim.tv_sec * 1000000000ll + st->st_ctim.tv_nsec;
}

/* Open the file @name in the folder that is the first @folder_bytes of @folder. */
static int open_file(struct model_file *file, const char *folder, size_t folder_bytes,
		     const char *name, struct tmesh_error *err)
{
	struct stat st;

	if (asprintf(&file->path, "%.*s%s", (int)folder_bytes, folder, name) < 0) {
		file->path = NULL;
		return tmesh_fail(err, -ENOMEM, "no memory for a path");
	}
	file->name = strrchr(file->path, '/');
	file->name = file->name ? file->name + 1 : file->path;
	/* A pipe of that name must not hold us up. */
	file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (file->fd < 0)
		return file_errno(err, file, "opening");
	if (fstat(file->fd, &st))
		return file_errno(err, file, "looking at");
	if (!S_ISREG(st.st_mode)) {
		char quoted[MODEL_QUOTE];

		return tmesh_fail(err, S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL,
				  "%s is not a regular file", model_quote(quoted, file->path));
	}
	remember(file, &st);
	return 0;
}

/* Count a file that was opened. */
static int file_found(struct opening *opening, const struct model_file *file,
		      struct tmesh_error *err)
{
	opening->bytes += file->bytes;
	return opening_go_on(opening, FILE_WORK, err);
}

static int read_header(struct opening *opening, struct model_file *file, struct tmesh_error *err)
{
	uint64_t need = file->bytes < FIRST_READ ? file->bytes : FIRST_READ, have = 0;
	uint8_t *data = NULL;
	int rc;

	do {
		uint8_t *larger = realloc(data, need ? need : 1);

		if (!larger) {
			rc = tmesh_fail(err, -ENOMEM, "no memory for a header of %llu bytes",
					(unsigned long long)need);
			break;
		}
		data = larger;
		rc = read_at(file, data + have, have, need - have, err);
		if (rc)
			break;
		have = need;
		if (opening->ctx && shared_load_recall(opening->ctx, file, data, have)) {
			free(data);
			return 0;
		}
		rc = table_parse(opening, data, have, file->bytes, &file->table, &need, err);
	} while (rc == -EAGAIN);
	if (!rc)
		model_hash(data, need, file->header_hash);
	free(data);
	return rc ? in_file(err, rc, file) : 0;
}

static int read_whole(struct model_file *file, char **text, struct tmesh_error *err)
{
	int rc;

	if (file->bytes > INDEX_READ)
		return tmesh_fail(err, -EPROTO, "the index has %llu bytes; %zu are the most",
				  (unsigned long long)file->bytes, INDEX_READ);
	*text = malloc(file->bytes + 1);
	if (!*text)
		return tmesh_fail(err, -ENOMEM, "no memory for the index");
	rc = read_at(file, (uint8_t *)*text, 0, file->bytes, err);
	return rc ? in_file(err, rc, file) : 0;
}

/* Check that the index and the files agree on the place of each tensor. */
static int check_index(struct opening *opening, struct tmesh_model *model,
		       const struct shard_index *index, struct tmesh_error *err)
{
	char quoted[MODEL_QUOTE], file[MODEL_QUOTE];
	const char *name;
	json_t *value;
	int rc;

	for (size_t i = 0; i < model->entry_count; i++) {
		const struct model_entry *entry = &model->entries[i];
		const char *there = model->files[entry->file].name;
		const char *said =
			json_string_value(json_object_get(index->map, entry->tensor->name));

		rc = opening_go_on(opening, NAME_WORK, err);
		if (rc)
			return rc;
		if (!said && opening->lenient)
			model->lapses |= LAPSE_UNNAMED;
		else if (!said || strcmp(said, there))
			return tmesh_fail(
				err, -EPROTO, "%s has the tensor \"%s\", which the index %s",
				model_quote(file, there), model_quote(quoted, entry->tensor->name),
				said ? "puts elsewhere" : "does not name");
	}
	json_object_foreach(index->map, name, value) {
		size_t at;

		rc = opening_go_on(opening, NAME_WORK, err);
		if (rc)
			return rc;
		if (tmesh_model_find(model, name, &at, NULL))
			return tmesh_fail(err, -EPROTO,
					  "the index puts \"%s\" into %s, which lacks it",
					  model_quote(quoted, name),
					  model_quote(file, json_string_value(value)));
	}
	return 0;
}

static int open_index(struct opening *opening, const char *path, struct tmesh_model **out,
		      struct tmesh_error *err)
{
	struct model_file file = {.fd = -1};
	struct shard_index index = {0};
	struct tmesh_model *model = NULL;
	char *text = NULL;
	size_t folder;
	int rc;

	opening->ctx = NULL; /* processes give each other the header of a single file alone */
	rc = open_file(&file, path, strlen(path), "", err);
	if (!rc)
		rc = file_found(opening, &file, err);
	if (!rc)
		rc = read_whole(&file, &text, err);
	if (!rc) {
		rc = shard_index_parse(opening, text, file.bytes, &index, err);
		if (rc)
			in_file(err, rc, &file);
	}
	if (!rc) {
		model = model_new(index.file_count);
		rc = model ? 0 : tmesh_fail(err, -ENOMEM, "no memory for the model");
	}
	folder = file.path ? (size_t)(file.name - file.path) : 0;
	for (size_t i = 0; !rc && i < index.file_count; i++) {
		rc = open_file(&model->files[i], path, folder, index.files[i], err);
		if (!rc)
			rc = file_found(opening, &model->files[i], err);
		if (!rc)
			rc = read_header(opening, &model->files[i], err);
		if (!rc && model->files[i].table->format != TMESH_MODEL_SAFETENSORS)
			rc = in_file(err, tmesh_fail(err, -EPROTO, "it is not a safetensors file"),
				     &model->files[i]);
	}
	if (!rc)
		rc = model_join(model, err);
	if (!rc)
		rc = check_index(opening, model, &index, err);
	shard_index_free(&index);
	free(text);
	free(file.path);
	if (file.fd >= 0)
		close(file.fd);
	if (rc)
		tmesh_model_unref(model);
	else
		*out = model;
	return rc;
}

/* Return where "00001" begins in NAME-00001-of-00003.gguf; 0: @name does not end so. */
static size_t split_place(const char *name, long long count)
{
	char end[32];
	size_t length = strlen(name);
	int bytes = snprintf(end, sizeof(end), "-%05d-of-%05lld.gguf", 1, count);

	if (length <= (size_t)bytes || strcmp(name + length - (size_t)bytes, end))
		return 0;
	return length - (size_t)bytes + 1;
}

/* Check that the file at @index of a split GGUF has that number. */
static int check_split(const struct model_file *file, const struct table *first, size_t index,
		       struct tmesh_error *err)
{
	const struct table *table = file->table;

	if (table->format != TMESH_MODEL_GGUF || table->split_no != (int64_t)index ||
	    table->split_count != first->split_count ||
	    table->split_tensors != first->split_tensors)
		return in_file(err,
			       tmesh_fail(err, -EPROTO,
					  "its split.no, split.count or split.tensors.count is not "
					  "that of file %zu of %lld",
					  index + 1, (long long)first->split_count),
			       file);
	return 0;
}

/* Add the other files that the first one counts. */
static int open_splits(struct opening *opening, struct tmesh_model *model, struct tmesh_error *err)
{
	const struct table *first = model->files[0].table;
	const char *path = model->files[0].path;
	struct model_file *files;
	size_t place, count = (size_t)first->split_count;
	int rc = 0;

	if (first->split_no != 0)
		return tmesh_fail(err, -EINVAL,
				  "this is file %lld of a split model; name its first (split.no 0)",
				  (long long)first->split_no + 1);
	place = split_place(path, first->split_count);
	if (!place)
		return tmesh_fail(err, -EPROTO,
				  "the first file of a model split in %lld is not called "
				  "NAME-00001-of-%05lld.gguf",
				  (long long)first->split_count, (long long)first->split_count);
	opening->ctx = NULL;
	files = realloc(model->files, count * sizeof(*files));
	if (!files)
		return tmesh_fail(err, -ENOMEM, "no memory for the model's files");
	model->files = files;
	for (size_t i = 1; i < count && !rc; i++) {
		char end[64];

		memset(&files[i], 0, sizeof(files[i]));
		files[i].fd = -1;
		model->file_count = i + 1;
		snprintf(end, sizeof(end), "%05zu-of-%05zu.gguf", i + 1, count);
		rc = open_file(&files[i], files[0].path, place, end, err);
		if (!rc)
			rc = file_found(opening, &files[i], err);
		if (!rc)
			rc = read_header(opening, &files[i], err);
		if (!rc)
			rc = check_split(&files[i], first, i, err);
	}
	return rc;
}

static int open_single(struct opening *opening, const char *path, struct tmesh_model **out,
		       struct tmesh_error *err)
{
	struct tmesh_model *model = model_new(1);
	const struct table *table;
	int rc;

	if (!model)
		return tmesh_fail(err, -ENOMEM, "no memory for the model");
	rc = open_file(&model->files[0], path, strlen(path), "", err);
	if (!rc)
		rc = file_found(opening, &model->files[0], err);
	if (!rc)
		rc = read_header(opening, &model->files[0], err);
	table = model->files[0].table;
	if (!rc && table->split_count >= 0 && (table->split_no < 0 || table->split_tensors < 0))
		rc = tmesh_fail(err, -EPROTO,
				"the file has split.count, but no split.no or split.tensors.count");
	if (!rc && table->split_count > 1)
		rc = open_splits(opening, model, err);
	if (!rc)
		rc = model_join(model, err);
	table = model->files[0].table;
	if (!rc && table->split_count >= 0 && (size_t)table->split_tensors != model->entry_count)
		rc = tmesh_fail(err, -EPROTO,
				"the files have %zu tensors, split.tensors.count is %lld",
				model->entry_count, (long long)table->split_tensors);
	if (rc) {
		tmesh_model_unref(model);
		return rc;
	}
	*out = model;
	return 0;
}

static int open_folder(struct opening *opening, const char *path, struct tmesh_model **out,
		       struct tmesh_error *err)
{
	static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
	char quoted[MODEL_QUOTE], text[96];
	struct stat st;

	for (size_t i = 0; i < 2; i++) {
		char *inside;
		int rc;

		if (asprintf(&inside, "%s/%s", path, names[i]) < 0)
			return tmesh_fail(err, -ENOMEM, "no memory for a path");
		/* A dangling link exists: opening it reports the missing file. */
		rc = lstat(inside, &st) ? -errno : 0;
		if (!rc)
			rc = i ? open_index(opening, inside, out, err)
			       : open_single(opening, inside, out, err);
		else if (rc != -ENOENT)
			tmesh_fail(err, rc, "looking for %s: %s", model_quote(quoted, inside),
				   strerror_r(-rc, text, sizeof(text)));
		else
			rc = 1;
		free(inside);
		if (rc <= 0)
			return rc;
	}
	return tmesh_fail(err, -ENOENT, "the folder %s has neither %s nor %s; name a file",
			  model_quote(quoted, path), names[0], names[1]);
}

int model_open(struct opening *opening, const char *path, struct tmesh_model **out,
	       struct tmesh_error *err)
{
	size_t length;
	struct stat st;

	if (!path || !*path)
		return tmesh_fail(err, -EINVAL, "no path is given");
	length = strlen(path);
	if (!stat(path, &st) && S_ISDIR(st.st_mode))
		return open_folder(opening, path, out, err);
	if (length > 5 && !strcmp(path + length - 5, ".json"))
		return open_index(opening, path, out, err);
	return open_single(opening, path, out, err);
}

int tmesh_model_describe(const char *path, const struct tmesh_model_describe_opts *opts,
			 struct tmesh_model **out, struct tmesh_error *err)
{
	struct tmesh_model_describe_opts own;
	struct opening opening = {0};
	struct tmesh_model *model;
	int rc = TMESH_NEED(err, out);

	if (!rc)
		rc = tmesh_read_sized(&own, sizeof(own), opts, err);
	if (rc)
		return rc;
	opening.progress = own.progress;
	opening.progress_data = own.progress_data;
	rc = model_open(&opening, path, &model, err);
	if (rc)
		return rc;
	model_close_files(model);
	*out = model;
	return 0;
}
