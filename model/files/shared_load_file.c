// SPDX-License-Identifier: MIT
/* The file of a shared load in the runtime directory: opening and removing it, its locks, its
 * record, and its table. */
#include "shared_load_file.h"

#include "../shared/runtime_files.h"
#include "common/file_size.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TABLE_AT (ENTRIES_AT + ENTRIES * ENTRY_ROOM)
#define WAIT_NS 4000000 /* between two looks at the reader */
#define SWEEP_MAX 64
/* Wait so long for a process that removes a file. That takes a moment, unless it is stopped. */
#define REMOVAL_NS UINT64_C(10000000000)

int shared_load_lock(const struct shared_load *shared, int type, int byte)
{
	struct flock range = {
		.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

	if (!fcntl(shared->file.fd, F_OFD_SETLK, &range))
		return 0;
	return errno == EACCES ? -EAGAIN : -errno;
}

void shared_load_nap(void)
{
	struct timespec time = {0, WAIT_NS};

	nanosleep(&time, NULL);
}

int shared_load_write_record(const struct shared_load *shared, const struct record *record,
			     struct tmesh_error *err)
{
	ssize_t done = tmesh_pwrite(shared->file.fd, record, sizeof(*record), 0);
	char what[SHARED_LOAD_NAME_ROOM + 40];

	if (done == (ssize_t)sizeof(*record))
		return 0;
	if (done >= 0)
		errno = ENOSPC;
	snprintf(what, sizeof(what), "writing %s in the runtime directory", shared->name);
	return tmesh_fail_errno(err, what);
}

void shared_load_read_record(const struct shared_load *shared, const struct tmesh_model *model,
			     struct record *record)
{
	*record = (struct record){0};
	if (pread(shared->file.fd, record, sizeof(*record), 0) < RECORD_LEAST ||
	    record->magic != MAGIC || record->state > STATE_DONE ||
	    record->bytes != model->region_bytes || record->done > model->run_bytes)
		*record = (struct record){.magic = MAGIC, .bytes = model->region_bytes};
}

void shared_load_progress(struct shared_load *shared, uint64_t done)
{
	/* A process that takes over begins there. If the write fails, it reads some bytes twice. */
	if (tmesh_pwrite(shared->file.fd, &done, sizeof(done), offsetof(struct record, done)) < 0)
		return;
}

/* Read the table of the model's only file. No lock is needed: all writers write the same table, and
 * the checksum shows a table that is written in part. */
static struct table *read_table(int fd, uint64_t header_bytes, uint64_t file_bytes)
{
	uint8_t head[TABLE_PACK_HEAD], *all;
	size_t bytes;

	if (pread(fd, head, sizeof(head), TABLE_AT) != (ssize_t)sizeof(head))
		return NULL;
	bytes = table_packed_bytes(head, sizeof(head));
	all = bytes ? malloc(bytes) : NULL;
	if (!all)
		return NULL;
	if (pread(fd, all, bytes, TABLE_AT) != (ssize_t)bytes) {
		free(all);
		return NULL;
	}
	return table_unpack(all, bytes, header_bytes, file_bytes);
}

bool shared_load_recall(struct tmesh_ctx *ctx, struct model_file *file, const uint8_t *data,
			size_t bytes)
{
	uint64_t header = safetensors_header_bytes(data, bytes);
	char name[SHARED_LOAD_NAME_ROOM];
	int dir, fd;

	if (!header || header > bytes || header > file->bytes)
		return false;
	model_hash(data, header, file->header_hash);
	shared_load_name(ctx, file, 1, name);
	if (!name[0] || tmesh_ctx_runtime_dir(ctx, &dir, NULL))
		return false;
	fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	close(dir);
	if (fd < 0)
		return false;
	if (model_is_ours(fd))
		file->table = read_table(fd, header, file->bytes);
	close(fd);
	file->recalled = file->table != NULL;
	return file->recalled;
}

void shared_load_remember(const struct shared_load *shared, const struct tmesh_model *model)
{
	uint64_t kept = tmesh_region_id(model->region), said = 0;
	bool there = model->file_count == 1 && model->files[0].recalled;
	size_t bytes;
	uint8_t *all;

	if (model->file_count == 1 && !there) {
		all = table_pack(model->files[0].table, &bytes);
		there = all &&
			tmesh_pwrite(shared->file.fd, all, bytes, TABLE_AT) == (ssize_t)bytes;
		if (all && !there)
			tmesh_pwrite(shared->file.fd, "", 1, TABLE_AT);
		free(all);
	}
	if (!there || !model->report.kept[0])
		return;
	if (pread(shared->file.fd, &said, sizeof(said), offsetof(struct record, kept)) !=
		    (ssize_t)sizeof(said) ||
	    said == kept)
		return;
	/* If this fails, the next process has to read a header. */
	if (tmesh_pwrite(shared->file.fd, &kept, sizeof(kept), offsetof(struct record, kept)) < 0)
		return;
}

/* Return whether the file is of use after its last process: its region is kept. @backend: the
 * region's. */
static bool stays(const struct shared_load *shared, uint64_t *backend)
{
	struct record record = {0};

	if (pread(shared->file.fd, &record, sizeof(record), 0) < RECORD_LEAST ||
	    record.magic != MAGIC || record.state != STATE_DONE || !record.kept ||
	    record.kept != record.region)
		return false;
	if (backend)
		*backend = record.backend;
	return true;
}

/* Return whether the file of that name is still the one that was opened. */
static bool is_named(const struct shared_load *shared)
{
	struct stat here, there;

	return !fstat(shared->file.fd, &here) && !fstatat(shared->dir, shared->name, &there, 0) &&
	       here.st_ino == there.st_ino && here.st_dev == there.st_dev;
}

void shared_load_kept_name(const struct shared_load *shared, char name[TMESH_KEPT_NAME_LEN + 1])
{
	snprintf(name, TMESH_KEPT_NAME_LEN + 1, "%.*s", (int)strcspn(shared->name, "."),
		 shared->name);
}

/* The list of kept regions, fetched when it is first needed. */
struct kept_list {
	struct tmesh_ctx *ctx;
	struct tmesh_kept_info *infos;
	size_t count;
	bool asked, known;
};

/* Return whether the region of a shared load is kept; its name is that of the file. If the list
 * cannot be had, assume that it is. */
static bool is_kept(struct kept_list *kept, const struct shared_load *shared)
{
	char name[TMESH_KEPT_NAME_LEN + 1];

	if (!kept->asked)
		kept->known = !tmesh_kept_list(kept->ctx, &kept->infos, &kept->count, NULL);
	kept->asked = true;
	shared_load_kept_name(shared, name);
	for (size_t i = 0; i < kept->count; i++) {
		if (kept->infos[i].uid == geteuid() && !strcmp(kept->infos[i].name, name))
			return true;
	}
	return !kept->known;
}

/* Open the file with the host's lock held, so that fork() knows of the descriptor. Otherwise a
 * child could inherit the locks, and they would not end with this process. */
static int open_file(struct shared_load *shared, int flags)
{
	int fd;

	model_host_lock();
	fd = openat(shared->dir, shared->name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (fd >= 0)
		model_fd_keep(&shared->file, fd);
	model_host_unlock();
	return fd < 0 ? -1 : 0;
}

static void close_file(struct shared_load *shared)
{
	model_host_lock();
	model_fd_close(&shared->file);
	model_host_unlock();
}

struct sweep {
	const struct shared_load *own;
	struct kept_list kept;
};

/* Remove the file of another shared load if no process is present and its region is not kept. A
 * region that the other backend keeps is left to that backend's processes. */
static void sweep_one(void *data, const char *name)
{
	struct sweep *sweep = data;
	struct shared_load other = {.dir = sweep->own->dir, .file.fd = -1};
	size_t length = strlen(name);
	uint64_t backend;

	if (length < 7 || length >= SHARED_LOAD_NAME_ROOM || strcmp(name + length - 7, ".shared") ||
	    !strcmp(name, sweep->own->name))
		return;
	strcpy(other.name, name);
	if (open_file(&other, O_RDWR))
		return;
	if (!shared_load_lock(&other, F_WRLCK, LOCK_PRESENT) && is_named(&other) &&
	    !(stays(&other, &backend) &&
	      ((backend && backend != (uint64_t)tmesh_ctx_backend(sweep->kept.ctx)) ||
	       is_kept(&sweep->kept, &other))))
		unlinkat(other.dir, other.name, 0);
	close_file(&other);
}

void shared_load_sweep(struct tmesh_ctx *ctx, const struct shared_load *shared)
{
	struct sweep sweep = {.own = shared, .kept.ctx = ctx};

	model_runtime_files_walk(shared->dir, "model-", SWEEP_MAX, sweep_one, &sweep);
	free(sweep.kept.infos);
}

#define NO_MEMORY "no memory to load a model together with other processes"

static int fail_open(const struct shared_load *shared, struct tmesh_error *err)
{
	char what[SHARED_LOAD_NAME_ROOM + 40];

	snprintf(what, sizeof(what), "opening %s in the runtime directory", shared->name);
	return tmesh_fail_errno(err, what);
}

int shared_load_open(const struct load *load, struct shared_load **out, struct tmesh_error *err)
{
	struct shared_load *shared = calloc(1, sizeof(*shared));
	uint64_t deadline = tmesh_now_ns() + REMOVAL_NS;
	int rc;

	if (!shared)
		return tmesh_fail(err, -ENOMEM, NO_MEMORY);
	shared->file.fd = shared->dir = shared->entry = -1;
	shared_load_name(load->ctx, load->model->files, load->model->file_count, shared->name);
	rc = shared->name[0] ? model_host_ready(err) : tmesh_fail(err, -ENOMEM, NO_MEMORY);
	if (!rc)
		rc = tmesh_ctx_runtime_dir(load->ctx, &shared->dir, err);
	while (!rc) {
		if (open_file(shared, O_RDWR | O_CREAT)) {
			rc = fail_open(shared, err);
			break;
		}
		if (!model_is_ours(shared->file.fd)) {
			rc = tmesh_fail(
				err, -EACCES,
				"the file %.64s in the runtime directory is not this user's "
				"alone; remove it and load the model again",
				shared->name);
			break;
		}
		rc = shared_load_lock(shared, F_RDLCK, LOCK_PRESENT);
		if (!rc && is_named(shared))
			break;
		/* It is being removed, or was. */
		close_file(shared);
		if (rc && rc != -EAGAIN) {
			rc = tmesh_fail(err, rc, "locking in the runtime directory: %s",
					strerror(-rc));
			break;
		}
		if (rc && tmesh_now_ns() > deadline) {
			rc = tmesh_fail(
				err, -ETIMEDOUT,
				"a process has stopped while it removed %.64s in the runtime "
				"directory: let it go on, or end it",
				shared->name);
			break;
		}
		if (rc)
			shared_load_nap();
		rc = load_tell((struct load *)load, 0, true, err);
	}
	if (rc) {
		close_file(shared);
		if (shared->dir >= 0)
			close(shared->dir);
		free(shared);
		return rc;
	}
	*out = shared;
	return 0;
}

void shared_load_leave(struct shared_load *shared)
{
	if (!shared)
		return;
	/* Remove the file with its last process, unless a kept model's next process needs it. This
	 * process's presence ends first. Otherwise each of two processes that leave at once would
	 * take the other for one that stays. In a forked child the file is closed. */
	if (shared->file.fd >= 0) {
		shared_load_lock(shared, F_UNLCK, LOCK_PRESENT);
		if (!shared_load_lock(shared, F_WRLCK, LOCK_PRESENT) && is_named(shared) &&
		    !stays(shared, NULL))
			unlinkat(shared->dir, shared->name, 0);
	}
	close_file(shared);
	close(shared->dir);
	free(shared);
}
