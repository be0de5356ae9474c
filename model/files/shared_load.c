// SPDX-License-Identifier: MIT
/*
 * Shared loads: processes of one user that load the same files read them once.
 *
 * The processes share a file of the runtime directory, named after the files' identity. It has
 * single-byte OFD locks, which end with the process:
 *
 *  0     reader: exclusive while reading; shared for a moment by processes that waited for its end
 *  1     presence: shared by processes that wait or hold the model; exclusive to remove the file
 *  2     joining: shared between looking for a token and giving one
 *  16+i  owner of entry i
 *
 * The record at the file's begin names the region that is filled and counts the bytes read. The
 * holder of lock 0 writes it. An entry has a token for that region, from one of the processes that
 * hold it. The table of the model's only file follows the entries (table_pack.c), so that its JSON
 * is read once. The file stays when its last process ends if the region is kept.
 *
 * All access is by pread() and pwrite(): a damaged or cut file causes no signal. A region counts
 * only if it has the model's size and either is sealed or is being filled by the holder of lock 0.
 * The directory is this user's alone. Another process of the user could lie about its progress;
 * nothing protects against that, as nothing protects against its ptrace().
 *
 * tests/sim/sim_shared_load.py simulates this protocol; its steps have the names of the functions
 * here.
 */
#include "common/file_size.h"
#include "model_internal.h"

#include "../shared/runtime_files.h"
#include "../shared/host.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x31746c666d746d74ull /* "tmtmflt1" */
#define ENTRIES 64
#define ENTRIES_AT 4096
#define ENTRY_ROOM 128
#define TABLE_AT (ENTRIES_AT + ENTRIES * ENTRY_ROOM)
#define WAIT_NS 4000000 /* between two looks at the reader */
/* A reader that was stopped for so long (SIGSTOP, a debugger) is waited for no more. */
#define STOPPED_NS UINT64_C(10000000000)
#define SWEEP_MAX 64
/* Wait so long for a process that removes a file. That takes a moment, unless it is stopped. */
#define REMOVAL_NS UINT64_C(10000000000)

enum {
	LOCK_READER = 0,
	LOCK_PRESENT = 1,
	LOCK_JOINING = 2,
	LOCK_ENTRY = 16
};
enum {
	STATE_EMPTY = 0,
	STATE_READING = 1,
	STATE_DONE = 2
};

struct record {
	uint64_t magic;
	uint64_t state;
	uint64_t region; /* id */
	uint64_t bytes;
	uint64_t done;
	uint64_t kept;	  /* id of the region that is kept, whose table lies here; 0: none */
	uint64_t backend; /* of the region; 0: of an earlier version, which did not say */
	struct process_id reader; /* not in the files of an earlier version */
};
#define RECORD_LEAST ((ssize_t)offsetof(struct record, reader))

struct entry {
	uint64_t region;
	char token[TMESH_TOKEN_SIZE];
};

struct shared_load {
	int dir;
	struct model_fd file; /* with the locks: a forked child has none of them */
	int entry;	      /* -1: none is free */
	char name[SHARED_LOAD_NAME_ROOM];
	uint64_t stopped_ns; /* since when the reader is seen stopped; 0: it is not */
	bool given_up;	     /* it was for too long, or no record can be written: load alone */
};

/* Take or release a lock. -EAGAIN: another process has it. */
static int lock(const struct shared_load *shared, int type, int byte)
{
	struct flock range = {
		.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

	if (!fcntl(shared->file.fd, F_OFD_SETLK, &range))
		return 0;
	return errno == EACCES ? -EAGAIN : -errno;
}

static void nap(void)
{
	struct timespec time = {0, WAIT_NS};

	nanosleep(&time, NULL);
}

static int write_record(const struct shared_load *shared, const struct record *record,
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

/* Read the record. One that cannot be read, or is of another model, counts as empty. */
static void read_record(const struct shared_load *shared, const struct tmesh_model *model,
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

/* Store the table for processes that come later. If that fails, they read the header themselves. */
static void shared_load_remember(const struct shared_load *shared, const struct tmesh_model *model)
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

/* Return the shared load's name, without its ending. */
static void kept_name(const struct shared_load *shared, char name[TMESH_KEPT_NAME_LEN + 1])
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
	kept_name(shared, name);
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
	if (!lock(&other, F_WRLCK, LOCK_PRESENT) && is_named(&other) &&
	    !(stays(&other, &backend) &&
	      ((backend && backend != (uint64_t)tmesh_ctx_backend(sweep->kept.ctx)) ||
	       is_kept(&sweep->kept, &other))))
		unlinkat(other.dir, other.name, 0);
	close_file(&other);
}

static void sweep(struct tmesh_ctx *ctx, const struct shared_load *shared)
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

/* Open the shared load's file, and mark this process as present. */
static int shared_load_open(const struct load *load, struct shared_load **out,
			    struct tmesh_error *err)
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
		rc = lock(shared, F_RDLCK, LOCK_PRESENT);
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
			nap();
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
		lock(shared, F_UNLCK, LOCK_PRESENT);
		if (!lock(shared, F_WRLCK, LOCK_PRESENT) && is_named(shared) &&
		    !stays(shared, NULL))
			unlinkat(shared->dir, shared->name, 0);
	}
	close_file(shared);
	close(shared->dir);
	free(shared);
}

/* Store a token of this process's own for processes that come later. If no entry is free, they have
 * to use another one's token. */
static void shared_load_publish(struct shared_load *shared, struct tmesh_region *region,
				uint32_t rights)
{
	struct entry entry = {.region = tmesh_region_id(region)};

	for (int i = 0; shared->entry < 0 && i < ENTRIES; i++) {
		if (!lock(shared, F_WRLCK, LOCK_ENTRY + i))
			shared->entry = i;
	}
	if (shared->entry < 0 || tmesh_region_token(region, rights, entry.token, NULL))
		return;
	if (tmesh_pwrite(shared->file.fd, &entry, sizeof(entry),
			 ENTRIES_AT + shared->entry * ENTRY_ROOM) != (ssize_t)sizeof(entry))
		return;
}

/* Return whether the entry's token is dead: a memfd's ends with its process, the module's does not.
 */
static bool has_ended(struct load *load, const struct shared_load *shared, int entry)
{
	struct flock range = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_ENTRY + entry, .l_len = 1};

	return tmesh_ctx_backend(load->ctx) == TMESH_BACKEND_MEMFD &&
	       !fcntl(shared->file.fd, F_OFD_GETLK, &range) && range.l_type == F_UNLCK;
}

static struct tmesh_region *open_entry(struct load *load, const struct entry *entry,
				       const struct record *record)
{
	/* A process that may have to go on reading needs to write; a finished model is only read.
	 */
	uint32_t rights = record->state == STATE_READING ? TMESH_READ | TMESH_WRITE | TMESH_MANAGE
							 : TMESH_READ | TMESH_MANAGE;
	struct tmesh_region *region;

	/* A region that was found kept has no right to manage. */
	if (tmesh_region_open(load->ctx, entry->token, rights, &region, NULL) &&
	    tmesh_region_open(load->ctx, entry->token, TMESH_READ, &region, NULL))
		return NULL;
	if (tmesh_region_bytes(region) == record->bytes &&
	    tmesh_region_id(region) == record->region)
		return region;
	tmesh_region_unref(region);
	return NULL;
}

/* Open the region of the record by any valid token. The caller holds the joining lock until its own
 * token is stored: shared_load_publish(). */
static bool shared_load_find(struct load *load, struct shared_load *shared,
			     const struct record *record)
{
	union {
		struct entry entry;
		uint8_t room[ENTRY_ROOM];
	} entries[ENTRIES];
	struct tmesh_region *region = NULL;
	ssize_t got;

	if (load->region && tmesh_region_id(load->region) == record->region)
		return true;
	got = pread(shared->file.fd, entries, sizeof(entries), ENTRIES_AT);
	for (int i = 0; !region && i * ENTRY_ROOM + (int)sizeof(struct entry) <= got; i++) {
		const struct entry *entry = &entries[i].entry;

		if (entry->region == record->region &&
		    memchr(entry->token, 0, sizeof(entry->token)) && !has_ended(load, shared, i))
			region = open_entry(load, entry, record);
	}
	if (!region)
		return false;
	tmesh_region_unref(load->region);
	load->region = region;
	return true;
}

/* Find the region as shared_load_find() does, and store a token while it is being filled.
 * shared_load_give() does that for a finished one. */
static bool shared_load_join(struct load *load, struct shared_load *shared,
			     const struct record *record)
{
	struct tmesh_region *before = load->region;
	bool found;

	if (lock(shared, F_RDLCK, LOCK_JOINING))
		return false;
	found = shared_load_find(load, shared, record);
	if (found && load->region != before && record->state == STATE_READING)
		shared_load_publish(shared, load->region, tmesh_region_rights(load->region));
	lock(shared, F_UNLCK, LOCK_JOINING);
	return found;
}

/* Read from the record's position to the end; the reader's lock is held. */
static int shared_load_fill(struct load *load, struct shared_load *shared, struct record *record,
			    struct tmesh_error *err)
{
	int rc;

	process_self(&record->reader);
	rc = write_record(shared, record, err);
	if (rc) {
		/* The file system may be full, for example. Others cannot learn of the region, so
		 * load alone. */
		shared->given_up = true;
		return rc;
	}
	load->done = record->done;
	load->model->shared = shared;
	rc = load_read(load, err);
	load->model->shared = NULL;
	shared_load_progress(shared, load->done);
	if (rc && rc != -ESTALE)
		return rc;
	if (!rc)
		rc = load_verify(load, err);
	if (rc) {
		/* The region may have bytes of two versions of a file. */
		*record = (struct record){.magic = MAGIC, .bytes = record->bytes};
		write_record(shared, record, NULL);
		return rc;
	}
	rc = tmesh_region_seal(load->region, err);
	if (rc)
		return rc;
	record->done = load->model->run_bytes;
	record->state = STATE_DONE;
	/* If this fails, the next process to take the lock finds a region that is sealed. */
	write_record(shared, record, NULL);
	return 0;
}

/* Open the region kept under @name. -EEXIST: it is not this model. */
static int open_kept(const struct load *load, const char *name, struct tmesh_region **out,
		     struct tmesh_error *err)
{
	struct tmesh_region **regions;
	size_t count;
	bool good;
	int rc =
		tmesh_kept_open(load->ctx, name, TMESH_KEPT_OWN, TMESH_READ, &regions, &count, err);

	if (rc)
		return rc;
	good = count == 1 && tmesh_region_bytes(regions[0]) == load->model->region_bytes &&
	       tmesh_region_is_sealed(regions[0]);
	if (good)
		*out = tmesh_region_ref(regions[0]);
	for (size_t i = 0; i < count; i++)
		tmesh_region_unref(regions[i]);
	free(regions);
	return good ? 0
		    : tmesh_fail(
			      err, -EEXIST,
			      "what is kept as \"%s\" is not this model, whose name it has: drop "
			      "it",
			      name);
}

/* Open the region that was kept under this identity, if it is this model. */
static bool shared_load_find_kept(struct load *load, const struct shared_load *shared)
{
	char name[TMESH_KEPT_NAME_LEN + 1];
	struct tmesh_region *region;

	kept_name(shared, name);
	if (open_kept(load, name, &region, NULL))
		return false;
	tmesh_region_unref(load->region);
	load->region = region;
	snprintf(load->model->report.kept, sizeof(load->model->report.kept), "%s", name);
	load_say(load, "it was kept");
	return true;
}

static int shared_load_keep(struct load *load, const struct shared_load *shared,
			    struct tmesh_error *err)
{
	struct tmesh_model_report *report = &load->model->report;
	char name[TMESH_KEPT_NAME_LEN + 1];
	struct tmesh_region *region;
	int rc;

	if (!(load->opts.flags & TMESH_MODEL_KEEP) || report->kept[0])
		return 0;
	kept_name(shared, name);
	rc = tmesh_keep(load->ctx, name, &load->region, 1, NULL, err);
	/* Another process has kept it, or it was joined through a process that found it kept. So it
	 * is kept already, or this process has no right to keep it. */
	if (rc == -EEXIST ||
	    (rc == -EACCES && !(tmesh_region_rights(load->region) & TMESH_MANAGE))) {
		rc = open_kept(load, name, &region, err);
		if (!rc)
			tmesh_region_unref(region);
	}
	if (!rc)
		snprintf(report->kept, sizeof(report->kept), "%s", name);
	return rc;
}

static int shared_load_begin(struct load *load, struct shared_load *shared, struct record *record,
			     struct tmesh_error *err)
{
	struct tmesh_region *region;
	int rc;

	if (shared_load_find_kept(load, shared)) {
		const struct record kept = {
			.magic = MAGIC,
			.state = STATE_DONE,
			.region = tmesh_region_id(load->region),
			.bytes = load->model->region_bytes,
			.done = load->model->run_bytes,
			.kept = record->kept,
			.backend = tmesh_ctx_backend(load->ctx),
			.reader = record->reader,
		};
		bool said = !memcmp(&kept, record, sizeof(kept));

		*record = kept;
		/* Without it others find by themselves that it is kept. */
		if (!said)
			write_record(shared, record, NULL);
		return 0;
	}
	sweep(load->ctx, shared);
	rc = load_region(load, &region, err);
	if (rc)
		return rc;
	tmesh_region_unref(load->region);
	load->region = region;
	shared_load_publish(shared, region, TMESH_READ | TMESH_WRITE | TMESH_MANAGE);
	*record = (struct record){
		.magic = MAGIC,
		.state = STATE_READING,
		.region = tmesh_region_id(region),
		.bytes = load->model->region_bytes,
		.backend = tmesh_ctx_backend(load->ctx),
	};
	return shared_load_fill(load, shared, record, err);
}

/* Do the reader's part; its lock is held. 0: the model is there; -EAGAIN: look again; or an error.
 */
static int shared_load_turn(struct load *load, struct shared_load *shared, struct tmesh_error *err)
{
	struct record record;
	bool there;

	read_record(shared, load->model, &record);
	there = record.state != STATE_EMPTY && shared_load_join(load, shared, &record);
	if (record.state != STATE_EMPTY && !there) {
		if (lock(shared, F_WRLCK, LOCK_JOINING))
			return -EAGAIN;
		lock(shared, F_UNLCK, LOCK_JOINING);
		/* A process that was joining has stored its token by now, or is dead. */
		there = shared_load_join(load, shared, &record);
	}
	if (!there)
		return shared_load_begin(load, shared, &record, err);
	if (record.state == STATE_READING) {
		if (!tmesh_region_is_sealed(load->region))
			return shared_load_fill(load, shared, &record, err);
		/* Killed between the seal and the record. Nothing is sealed that is not whole. */
		record.state = STATE_DONE;
		write_record(shared, &record, NULL);
		return 0;
	}
	if (!tmesh_region_is_sealed(load->region))
		return shared_load_begin(load, shared, &record, err);
	return 0;
}

/* Make the finished region the model's, and store a token of it for the next process. Between the
 * two steps there may be no token, so the caller holds the reader's lock or the joining lock. */
static int shared_load_give(struct load *load, struct shared_load *shared, struct tmesh_error *err)
{
	int rc = load_finish(load, err);

	if (!rc)
		shared_load_publish(shared, load->region, tmesh_region_rights(load->region));
	return rc;
}

/* Take the region of a finished record without waiting for another process. -EAGAIN: it is not
 * finished, or cannot be opened. */
static int shared_load_open_finished(struct load *load, struct shared_load *shared,
				     const struct record *record, struct tmesh_error *err)
{
	int rc = -EAGAIN;

	if (lock(shared, F_RDLCK, LOCK_JOINING))
		return -EAGAIN;
	if (shared_load_find(load, shared, record) && tmesh_region_is_sealed(load->region))
		rc = shared_load_give(load, shared, err);
	lock(shared, F_UNLCK, LOCK_JOINING);
	return rc;
}

/* Wait while another process reads. Return: -EAGAIN: look again in a while; -ECANCELED; -ETIMEDOUT.
 */
static int shared_load_watch(struct load *load, struct shared_load *shared,
			     const struct record *record, struct tmesh_error *err)
{
	int rc;

	/* To hold it, should the reader die. */
	if (record->state == STATE_READING)
		shared_load_join(load, shared, record);
	rc = load_tell(load, record->done, true, err);
	if (rc)
		return rc;
	if (!process_is_stopped(&record->reader))
		shared->stopped_ns = 0;
	else if (!shared->stopped_ns)
		shared->stopped_ns = tmesh_now_ns();
	else
		shared->given_up = tmesh_now_ns() - shared->stopped_ns > STOPPED_NS;
	return shared->given_up ? tmesh_fail(err, -ETIMEDOUT,
					     "process %u, which reads it for all, is stopped: let "
					     "it go on, or end it",
					     record->reader.pid)
				: -EAGAIN;
}

static int shared_load_wait(struct load *load, struct shared_load *shared, struct tmesh_error *err)
{
	struct record record;
	int rc;

	for (;;) {
		read_record(shared, load->model, &record);
		rc = record.state == STATE_DONE
			     ? shared_load_open_finished(load, shared, &record, err)
			     : -EAGAIN;
		if (rc != -EAGAIN)
			return rc;
		rc = lock(shared, F_WRLCK, LOCK_READER);
		if (!rc) {
			rc = shared_load_turn(load, shared, err);
			if (!rc)
				rc = shared_load_give(load, shared, err);
			lock(shared, F_UNLCK, LOCK_READER);
			if (rc != -EAGAIN)
				return rc;
		} else if (rc != -EAGAIN) {
			return tmesh_fail(err, rc, "locking in the runtime directory: %s",
					  strerror(-rc));
		} else {
			rc = shared_load_watch(load, shared, &record, err);
			if (rc != -EAGAIN)
				return rc;
		}
		nap();
	}
}

int shared_load_run(struct load *load, struct tmesh_error *err)
{
	struct shared_load *shared = NULL;
	struct tmesh_error why = {0};
	int rc = shared_load_open(load, &shared, &why);
	bool alone = rc && rc != -ECANCELED;

	if (!rc) {
		rc = shared_load_wait(load, shared, &why);
		alone = shared->given_up;
		if (!rc)
			rc = shared_load_keep(load, shared, &why);
		if (rc) {
			if (!load->model->region)
				tmesh_region_unref(load->region);
			load->region = NULL;
			shared_load_leave(shared);
		}
	}
	/* A kept region has the shared load's name, so that TMESH_MODEL_KEEP cannot load alone. */
	if (alone && !(load->opts.flags & TMESH_MODEL_KEEP)) {
		load_say(load, "alone: %.120s; ", why.message);
		return load_alone(load, err);
	}
	if (rc) {
		if (err)
			*err = why;
		return rc;
	}
	shared_load_remember(shared, load->model);
	load->model->shared = shared;
	load->model->report.shared = true;
	if (!load->model->report.method && !load->model->report.reason[0])
		snprintf(load->model->report.reason, sizeof(load->model->report.reason),
			 "this process or another has read it");
	return 0;
}
