// SPDX-License-Identifier: MIT
/*
 * Write tensors to safetensors files, out of their mappings. A file is written without a name
 * (O_TMPFILE), so that a killed writer leaves nothing. It is named by a rename once it is on the
 * disk. On a file system without O_TMPFILE the file has another name until then.
 */
#include "common/file_size.h"
#include "model_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE ((uint64_t)8 << 20)
#define SHARDS_MAX 99999

struct item {
	const char *name;
	struct tmesh_tensor *tensor;
	const uint8_t *data;
	uint64_t bytes;
	unsigned int bits;
	size_t order;
	uint32_t shard;
};

struct shard {
	int fd;
	char *name;	 /* to be */
	char *temporary; /* NULL: it has none yet */
	bool named;
};

struct save {
	const struct tmesh_model_save_opts *opts;
	struct item *items;
	size_t count;
	uint64_t total, done, told;
	int dir;
	char *stem; /* the name without ".safetensors" */
	struct shard *shards;
	size_t shard_count;
};

static int by_width(const void *left, const void *right)
{
	const struct item *a = left, *b = right;

	if (a->bits != b->bits)
		return a->bits > b->bits ? -1 : 1;
	return a->order < b->order ? -1 : 1;
}

static int by_name(const void *left, const void *right)
{
	return strcmp((*(const struct item *const *)left)->name,
		      (*(const struct item *const *)right)->name);
}

static bool is_name(const char *name)
{
	if (!name || !model_is_utf8((const uint8_t *)name, strlen(name)))
		return false;
	for (const char *at = name; *at; at++) {
		if ((unsigned char)*at < 0x20 || *at == 0x7f)
			return false;
	}
	return *name && strcmp(name, "__metadata__") != 0;
}

static int check_item(const struct tmesh_model_item *from, struct item *item,
		      struct tmesh_error *err)
{
	const struct tmesh_layout *layout;
	char quoted[MODEL_QUOTE];
	void *data = NULL;
	int rc;

	if (!is_name(from->name))
		return tmesh_fail(err, -EINVAL,
				  "a name is empty, \"__metadata__\", or not UTF-8 without control "
				  "characters");
	model_quote(quoted, from->name);
	if (!from->tensor)
		return tmesh_fail(err, -EINVAL, "\"%s\" has no tensor", quoted);
	layout = tmesh_tensor_layout(from->tensor);
	if (layout->device_type != TMESH_DEVICE_CPU || !model_type_word(layout->dtype))
		return tmesh_fail(err, -EOPNOTSUPP, "\"%s\": safetensors has no tensors of %s%s",
				  quoted, tmesh_dtype_name(layout->dtype),
				  layout->device_type ? " on a device" : "");
	if (!tmesh_layout_is_contiguous(layout))
		return tmesh_fail(err, -EINVAL, "\"%s\" is not contiguous; make a copy that is",
				  quoted);
	item->name = from->name;
	item->bits = tmesh_dtype_bits(layout->dtype);
	item->bytes = tmesh_tensor_bytes(from->tensor);
	rc = item->bytes ? tmesh_tensor_data(from->tensor, TMESH_READ, &data, err) : 0;
	if (rc)
		return rc;
	item->tensor = from->tensor;
	item->data = data;
	return 0;
}

static int check_items(struct save *save, const struct tmesh_model_item *items, size_t count,
		       struct tmesh_error *err)
{
	const struct item **sorted = calloc(count + 1, sizeof(*sorted));
	char quoted[MODEL_QUOTE];
	int rc = 0;

	save->items = calloc(count + 1, sizeof(*save->items));
	if (!sorted || !save->items)
		rc = tmesh_fail(err, -ENOMEM, "no memory for %zu tensors", count);
	save->count = count;
	for (size_t i = 0; i < count && !rc; i++) {
		rc = check_item(&items[i], &save->items[i], err);
		save->items[i].order = i;
		save->total += save->items[i].bytes;
		sorted[i] = &save->items[i];
	}
	if (!rc)
		qsort(sorted, count, sizeof(*sorted), by_name);
	for (size_t i = 1; i < count && !rc; i++) {
		if (!strcmp(sorted[i]->name, sorted[i - 1]->name))
			rc = tmesh_fail(err, -EINVAL, "two tensors have the name \"%s\"",
					model_quote(quoted, sorted[i]->name));
	}
	free(sorted);
	if (!rc)
		qsort(save->items, count, sizeof(*save->items), by_width);
	return rc;
}

static int check_metadata(const char *const *metadata, struct tmesh_error *err)
{
	char quoted[MODEL_QUOTE];

	for (const char *const *at = metadata; at && *at; at++) {
		bool is_key = (at - metadata) % 2 == 0;

		if (!model_is_utf8((const uint8_t *)*at, strlen(*at)))
			return tmesh_fail(err, -EINVAL, "a text of the metadata is not UTF-8");
		if (is_key && !at[1])
			return tmesh_fail(err, -EINVAL,
					  "the metadata has the key \"%s\" without a value",
					  model_quote(quoted, *at));
	}
	return 0;
}

/* Make the header of one shard, with spaces at its end so that the data begins at a multiple of
 * TMESH_ALIGN. */
static uint8_t *make_header(const struct save *save, uint32_t shard, uint64_t *bytes)
{
	json_t *root = json_object(), *metadata = json_object();
	uint64_t at = 0, length;
	uint8_t *header = NULL;
	char *text;
	int rc = 0;

	for (const char *const *pair = save->opts->metadata; pair && pair[0]; pair += 2)
		rc |= json_object_set_new(metadata, pair[0], json_string(pair[1]));
	if (json_object_size(metadata))
		rc |= json_object_set(root, "__metadata__", metadata);
	json_decref(metadata);
	if (rc) {
		json_decref(root);
		return NULL;
	}
	for (size_t i = 0; i < save->count; i++) {
		const struct item *item = &save->items[i];
		const struct tmesh_layout *layout;
		json_t *shape;

		if (item->shard != shard)
			continue;
		layout = tmesh_tensor_layout(item->tensor);
		shape = json_array();
		for (int32_t k = 0; k < layout->ndim; k++)
			json_array_append_new(shape, json_integer(layout->shape[k]));
		if (json_object_set_new(root, item->name,
					json_pack("{s:s, s:o, s:[I, I]}", "dtype",
						  model_type_word(layout->dtype), "shape", shape,
						  "data_offsets", (json_int_t)at,
						  (json_int_t)(at + item->bytes)))) {
			json_decref(root);
			return NULL;
		}
		at += item->bytes;
	}
	text = json_dumps(root, JSON_COMPACT);
	json_decref(root);
	if (!text)
		return NULL;
	length = strlen(text);
	*bytes = (8 + length + TMESH_ALIGN - 1) / TMESH_ALIGN * TMESH_ALIGN;
	header = malloc(*bytes);
	if (header) {
		memset(header, ' ', *bytes);
		memcpy(header + 8, text, length);
		for (int i = 0; i < 8; i++)
			header[i] = (uint8_t)((*bytes - 8) >> (8 * i));
	}
	free(text);
	return header;
}

static int write_all(struct save *save, int fd, const uint8_t *data, uint64_t bytes, bool counts,
		     struct tmesh_error *err)
{
	while (bytes) {
		ssize_t put = tmesh_write(fd, data, bytes < PIECE ? bytes : PIECE);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return tmesh_fail_errno(err, "writing the file");
		data += put;
		bytes -= (uint64_t)put;
		if (!counts)
			continue;
		save->done += (uint64_t)put;
		if (save->opts->progress) {
			struct tmesh_model_progress progress = {
				.size = sizeof(progress),
				.bytes_done = save->done,
				.bytes_total = save->total,
			};

			if (save->opts->progress(save->opts->progress_data, &progress))
				return tmesh_fail(err, -ECANCELED, "the saving was cancelled");
		}
	}
	return 0;
}

/* Make a unique name in the file's own folder. */
static char *temporary_name(const char *name, struct tmesh_error *err)
{
	uint8_t random[8];
	char hex[17], *text;

	if (tmesh_random(random, sizeof(random), err))
		return NULL;
	tmesh_hex(hex, random, sizeof(random));
	hex[16] = '\0';
	if (asprintf(&text, ".%.200s.%s", name, hex) < 0) {
		tmesh_fail(err, -ENOMEM, "no memory for a name");
		return NULL;
	}
	return text;
}

static int open_new(const struct save *save, struct shard *shard, struct tmesh_error *err)
{
	shard->fd = openat(save->dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
	if (shard->fd >= 0)
		return 0;
	if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)
		return tmesh_fail_errno(err, "making the file");
	shard->temporary = temporary_name(shard->name, err);
	if (!shard->temporary)
		return err && err->code ? err->code : -ENOMEM;
	shard->fd =
		openat(save->dir, shard->temporary, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
	if (shard->fd >= 0)
		return 0;
	free(shard->temporary);
	shard->temporary = NULL;
	return tmesh_fail_errno(err, "making the file");
}

/* Reserve the room first: a full disk is reported before anything is written. */
static int reserve(int fd, uint64_t bytes, struct tmesh_error *err)
{
	if (!bytes || !tmesh_fallocate(fd, (off_t)bytes) || errno == EOPNOTSUPP || errno == ENOSYS)
		return 0;
	return tmesh_fail_errno(err, "room for the file");
}

static int write_shard(struct save *save, uint32_t number, struct tmesh_error *err)
{
	struct shard *shard = &save->shards[number];
	uint64_t header_bytes = 0, bytes;
	uint8_t *header = make_header(save, number, &header_bytes);
	int rc;

	if (!header)
		return tmesh_fail(err, -ENOMEM, "no memory for the header");
	bytes = header_bytes;
	for (size_t i = 0; i < save->count; i++)
		bytes += save->items[i].shard == number ? save->items[i].bytes : 0;
	rc = header_bytes - 8 > MODEL_SAFETENSORS_HEADER_MAX
		     ? tmesh_fail(err, -EINVAL, "the header would have more than %u bytes",
				  MODEL_SAFETENSORS_HEADER_MAX)
		     : open_new(save, shard, err);
	if (!rc)
		rc = reserve(shard->fd, bytes, err);
	if (!rc)
		rc = write_all(save, shard->fd, header, header_bytes, false, err);
	free(header);
	for (size_t i = 0; i < save->count && !rc; i++) {
		if (save->items[i].shard == number)
			rc = write_all(save, shard->fd, save->items[i].data, save->items[i].bytes,
				       true, err);
	}
	if (!rc && fsync(shard->fd))
		rc = tmesh_fail_errno(err, "syncing the file");
	return rc;
}

static int write_index(struct save *save, struct shard *shard, struct tmesh_error *err)
{
	json_t *map = json_object(), *root;
	char *text = NULL;
	int rc = 0;

	for (size_t i = 0; i < save->count; i++)
		rc |= json_object_set_new(map, save->items[i].name,
					  json_string(save->shards[save->items[i].shard].name));
	root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)save->total,
			 "weight_map", map);
	if (root && !rc)
		text = json_dumps(root, JSON_INDENT(2));
	json_decref(root);
	if (!text)
		return tmesh_fail(err, -ENOMEM, "no memory for the index");
	rc = open_new(save, shard, err);
	if (!rc)
		rc = write_all(save, shard->fd, (const uint8_t *)text, strlen(text), false, err);
	if (!rc && fsync(shard->fd))
		rc = tmesh_fail_errno(err, "syncing the index");
	free(text);
	return rc;
}

/* Give the shard its name, and replace any file that has it. */
static int name_shard(const struct save *save, struct shard *shard, struct tmesh_error *err)
{
	char path[64];

	if (!shard->temporary) {
		char *temporary = temporary_name(shard->name, err);

		if (!temporary)
			return err && err->code ? err->code : -ENOMEM;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", shard->fd);
		if (linkat(AT_FDCWD, path, save->dir, temporary, AT_SYMLINK_FOLLOW)) {
			free(temporary);
			return tmesh_fail_errno(err, "giving the file a name");
		}
		shard->temporary = temporary;
	}
	if (renameat(save->dir, shard->temporary, save->dir, shard->name))
		return tmesh_fail_errno(err, "giving the file its name");
	shard->named = true;
	return 0;
}

/* Assign tensors to shards: a new one begins when this one would exceed its limit. */
static int plan_shards(struct save *save, const char *name, struct tmesh_error *err)
{
	uint64_t most = save->opts->max_shard_bytes, bytes = 0;
	uint32_t shard = 0;

	for (size_t i = 0; i < save->count; i++) {
		if (most && bytes && (bytes > most || save->items[i].bytes > most - bytes)) {
			bytes = 0;
			if (++shard >= SHARDS_MAX)
				return tmesh_fail(err, -EINVAL, "more than %d shards", SHARDS_MAX);
		}
		save->items[i].shard = shard;
		bytes += save->items[i].bytes;
	}
	save->shard_count = shard + 1u;
	/* One more for the index. */
	save->shards = calloc(save->shard_count + 1, sizeof(*save->shards));
	if (!save->shards)
		return tmesh_fail(err, -ENOMEM, "no memory for the shards");
	for (size_t i = 0; i <= save->shard_count; i++)
		save->shards[i].fd = -1;
	for (size_t i = 0; i < save->shard_count; i++) {
		int length =
			save->shard_count == 1
				? asprintf(&save->shards[i].name, "%s", name)
				: asprintf(&save->shards[i].name, "%s-%05zu-of-%05zu.safetensors",
					   save->stem, i + 1, save->shard_count);

		if (length < 0) {
			save->shards[i].name = NULL;
			return tmesh_fail(err, -ENOMEM, "no memory for a name");
		}
	}
	if (asprintf(&save->shards[save->shard_count].name, "%s.safetensors.index.json",
		     save->stem) < 0) {
		save->shards[save->shard_count].name = NULL;
		return tmesh_fail(err, -ENOMEM, "no memory for a name");
	}
	return 0;
}

/* Check the name: a rename would replace a device or a pipe by a file. */
static int check_name(const struct save *save, const char *name, struct tmesh_error *err)
{
	struct stat st;

	if (fstatat(save->dir, name, &st, AT_SYMLINK_NOFOLLOW) || S_ISREG(st.st_mode) ||
	    S_ISLNK(st.st_mode))
		return 0;
	return tmesh_fail(err, -EEXIST,
			  "%.200s is there, and is no regular file: a model is saved by putting "
			  "a file in the place of what has its name",
			  name);
}

/*
 * Remove the old index if a shard replaces an old one. Between two renames the old index would lead
 * to shards of both models, so it is removed first. A program that stops there leaves no index, and
 * no model.
 */
static int drop_index(const struct save *save, struct tmesh_error *err)
{
	const char *index = save->shards[save->shard_count].name;
	bool replaces = false;
	struct stat st;

	for (size_t i = 0; i < save->shard_count; i++)
		if (!fstatat(save->dir, save->shards[i].name, &st, AT_SYMLINK_NOFOLLOW))
			replaces = true;
	if (save->shard_count == 1 || !replaces)
		return 0;
	if (unlinkat(save->dir, index, 0) && errno != ENOENT)
		return tmesh_fail_errno(err, "removing the old index");
	return fsync(save->dir) ? tmesh_fail_errno(err, "syncing the folder") : 0;
}

static int save_all(struct save *save, struct tmesh_error *err)
{
	size_t files = save->shard_count + (save->shard_count > 1);
	int rc = 0;

	for (size_t i = 0; i < files && !rc; i++)
		rc = check_name(save, save->shards[i].name, err);
	for (size_t i = 0; i < save->shard_count && !rc; i++)
		rc = write_shard(save, (uint32_t)i, err);
	if (!rc && save->shard_count > 1)
		rc = write_index(save, &save->shards[save->shard_count], err);
	if (!rc)
		rc = drop_index(save, err);
	for (size_t i = 0; i < files && !rc; i++)
		rc = name_shard(save, &save->shards[i], err);
	if (!rc && fsync(save->dir))
		rc = tmesh_fail_errno(err, "syncing the folder");
	return rc;
}

static void save_end(struct save *save)
{
	for (size_t i = 0; save->shards && i <= save->shard_count; i++) {
		struct shard *shard = &save->shards[i];

		if (shard->fd >= 0)
			close(shard->fd);
		if (shard->temporary && !shard->named)
			unlinkat(save->dir, shard->temporary, 0);
		free(shard->temporary);
		free(shard->name);
	}
	free(save->shards);
	free(save->items);
	free(save->stem);
	if (save->dir >= 0)
		close(save->dir);
}

int tmesh_model_save(const char *path, const struct tmesh_model_item *items, size_t count,
		     const struct tmesh_model_save_opts *opts, struct tmesh_error *err)
{
	static const char ending[] = ".safetensors";
	struct tmesh_model_save_opts own;
	struct save save = {.opts = &own, .dir = -1};
	const char *name;
	char *folder = NULL;
	size_t length;
	int rc = tmesh_read_sized(&own, sizeof(own), opts, err);

	if (rc)
		return rc;
	if (!path || !*path || path[strlen(path) - 1] == '/')
		return tmesh_fail(err, -EINVAL, "no name of a file is given");
	if (count && TMESH_NEED(err, items))
		return -EINVAL;
	name = strrchr(path, '/');
	name = name ? name + 1 : path;
	length = strlen(name);
	if (length > strlen(ending) && !strcmp(name + length - strlen(ending), ending))
		length -= strlen(ending);
	else if (own.max_shard_bytes)
		return tmesh_fail(err, -EINVAL, "the name of a sharded model ends in %s", ending);
	save.stem = strndup(name, length);
	folder = name == path ? strdup(".") : strndup(path, (size_t)(name - path));
	if (!save.stem || !folder)
		rc = tmesh_fail(err, -ENOMEM, "no memory for a name");
	if (!rc)
		rc = check_metadata(own.metadata, err);
	if (!rc)
		rc = check_items(&save, items, count, err);
	if (!rc)
		rc = plan_shards(&save, name, err);
	if (!rc) {
		save.dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (save.dir < 0)
			rc = tmesh_fail_errno(err, "opening the folder");
	}
	free(folder);
	if (!rc)
		rc = save_all(&save, err);
	save_end(&save);
	return rc;
}
