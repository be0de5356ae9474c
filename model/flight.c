// SPDX-License-Identifier: MIT
/*
 * One flight: processes of one user that load the same files read them once.
 *
 * They meet in a file of the runtime directory, named after the files' identity. Its locks (OFD
 * locks, which end with the process) are single bytes:
 *
 *   0     who reads, exclusive; shared for a moment by those who have waited for its end
 *   1     who is there, shared: waits or holds the model; exclusive by the last, who removes it
 *   2     who is between looking for a token and giving one, shared
 *   16+i  whose slot i is
 *
 * The record at the file's begin says which region is filled, and how far; it is written by who
 * holds lock 0. A slot has a token for that region by one of those who hold it. Behind the slots is
 * what the header of the model's only file says (table_pack.c), so that JSON is read once: the
 * file stays when its last process goes and the region is kept. All is
 * read and written by pread() and pwrite(), so that a file that is damaged or cut is no signal; a
 * region counts only when it has the model's size and is sealed, or is filled by who holds the
 * lock. The directory is this user's alone: against a process of the same user that lies about how
 * far it has read there is no help, as there is none against its ptrace(). tests/sim/sim_flight.py
 * plays this protocol; its steps have the names of the functions here.
 */
#include "model_internal.h"

#include "around.h"
#include "host.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x31746c666d746d74ull /* "tmtmflt1" */
#define SLOTS 64
#define SLOTS_AT 4096
#define SLOT_ROOM 128
#define TABLE_AT (SLOTS_AT + SLOTS * SLOT_ROOM)
#define WAIT_NS 4000000 /* between two looks at who reads */
/* A reader that was stopped for so long (SIGSTOP, a debugger) is waited for no more. */
#define STOPPED_NS UINT64_C(10000000000)
#define SWEEP_MAX 64
/* For one that removes a file: that takes a moment, unless it is stopped. */
#define REMOVAL_NS UINT64_C(10000000000)

enum {
	LOCK_READER = 0,
	LOCK_PRESENT = 1,
	LOCK_JOINING = 2,
	LOCK_SLOT = 16
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

struct slot {
	uint64_t region;
	char token[TMESH_TOKEN_SIZE];
};

struct flight {
	int dir;
	struct model_fd file; /* with the locks: a forked child has none of them */
	int slot;	      /* -1: none is free */
	char name[FLIGHT_NAME_ROOM];
	uint64_t stopped_ns; /* since when the reader is seen stopped; 0: it is not */
	bool given_up;	     /* it was for too long, or no record can be written: load alone */
};

/* -EAGAIN: another has it. */
static int lock(const struct flight *flight, int type, int byte)
{
	struct flock range = {
		.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

	if (!fcntl(flight->file.fd, F_OFD_SETLK, &range))
		return 0;
	return errno == EACCES ? -EAGAIN : -errno;
}

static void nap(void)
{
	struct timespec time = {0, WAIT_NS};

	nanosleep(&time, NULL);
}

static int write_record(const struct flight *flight, const struct record *record,
			struct tmesh_error *err)
{
	ssize_t done = pwrite(flight->file.fd, record, sizeof(*record), 0);
	char what[FLIGHT_NAME_ROOM + 40];

	if (done == (ssize_t)sizeof(*record))
		return 0;
	if (done >= 0)
		errno = ENOSPC;
	snprintf(what, sizeof(what), "writing %s in the runtime directory", flight->name);
	return tmesh_fail_errno(err, what);
}

/* What cannot be read, or is not ours, is empty. */
static void read_record(const struct flight *flight, const struct tmesh_model *model,
			struct record *record)
{
	*record = (struct record){0};
	if (pread(flight->file.fd, record, sizeof(*record), 0) < RECORD_LEAST ||
	    record->magic != MAGIC || record->state > STATE_DONE ||
	    record->bytes != model->region_bytes || record->done > model->run_bytes)
		*record = (struct record){.magic = MAGIC, .bytes = model->region_bytes};
}

void flight_progress(struct flight *flight, uint64_t done)
{
	/* Who takes over begins there. Missing it costs a few bytes that are read twice. */
	if (pwrite(flight->file.fd, &done, sizeof(done), offsetof(struct record, done)) < 0)
		return;
}

/* Needs no lock: all who write a table there write the same, and what was written in part has not
 * the checksum that it says. */
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

bool flight_recall(struct tmesh_ctx *ctx, struct model_file *file, const uint8_t *data,
		   size_t bytes)
{
	uint64_t header = safetensors_header_bytes(data, bytes);
	char name[FLIGHT_NAME_ROOM];
	int dir, fd;

	if (!header || header > bytes || header > file->bytes)
		return false;
	model_hash(data, header, file->header_hash);
	flight_name(ctx, file, 1, name);
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

/* For those who come later. Who cannot write it costs them the time to read
 * the header themselves. */
static void flight_remember(const struct flight *flight, const struct tmesh_model *model)
{
	uint64_t kept = tmesh_region_id(model->region), said = 0;
	bool there = model->file_count == 1 && model->files[0].recalled;
	size_t bytes;
	uint8_t *all;

	if (model->file_count == 1 && !there) {
		all = table_pack(model->files[0].table, &bytes);
		there = all && pwrite(flight->file.fd, all, bytes, TABLE_AT) == (ssize_t)bytes;
		if (all && !there)
			pwrite(flight->file.fd, "", 1, TABLE_AT);
		free(all);
	}
	if (!there || !model->report.kept[0])
		return;
	if (pread(flight->file.fd, &said, sizeof(said), offsetof(struct record, kept)) !=
		    (ssize_t)sizeof(said) ||
	    said == kept)
		return;
	/* Missing it costs who starts next a header to read. */
	if (pwrite(flight->file.fd, &kept, sizeof(kept), offsetof(struct record, kept)) < 0)
		return;
}

/* What is in a file whose last process has gone is of use to the next. @backend: what keeps it. */
static bool stays(const struct flight *flight, uint64_t *backend)
{
	struct record record = {0};

	if (pread(flight->file.fd, &record, sizeof(record), 0) < RECORD_LEAST ||
	    record.magic != MAGIC || record.state != STATE_DONE || !record.kept ||
	    record.kept != record.region)
		return false;
	if (backend)
		*backend = record.backend;
	return true;
}

/* The file of that name is still the one that was opened. */
static bool is_named(const struct flight *flight)
{
	struct stat here, there;

	return !fstat(flight->file.fd, &here) && !fstatat(flight->dir, flight->name, &there, 0) &&
	       here.st_ino == there.st_ino && here.st_dev == there.st_dev;
}

/* The flight's name, without its ending. */
static void kept_name(const struct flight *flight, char name[TMESH_KEPT_NAME_LEN + 1])
{
	snprintf(name, TMESH_KEPT_NAME_LEN + 1, "%.*s", (int)strcspn(flight->name, "."),
		 flight->name);
}

/* What is kept, asked for when it matters. */
struct kept_list {
	struct tmesh_ctx *ctx;
	struct tmesh_kept_info *infos;
	size_t count;
	bool asked, known;
};

/* A flight's file is named after what it keeps. Unless it is known that nobody keeps it, it is. */
static bool is_kept(struct kept_list *kept, const struct flight *flight)
{
	char name[TMESH_KEPT_NAME_LEN + 1];

	if (!kept->asked)
		kept->known = !tmesh_kept_list(kept->ctx, &kept->infos, &kept->count, NULL);
	kept->asked = true;
	kept_name(flight, name);
	for (size_t i = 0; i < kept->count; i++) {
		if (kept->infos[i].uid == geteuid() && !strcmp(kept->infos[i].name, name))
			return true;
	}
	return !kept->known;
}

/* With the host's lock, so that no child inherits a lock that is not told of it: a lock that a
 * child has too would not end with this process. */
static int open_file(struct flight *flight, int flags)
{
	int fd;

	model_host_lock();
	fd = openat(flight->dir, flight->name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (fd >= 0)
		model_fd_keep(&flight->file, fd);
	model_host_unlock();
	return fd < 0 ? -1 : 0;
}

static void close_file(struct flight *flight)
{
	model_host_lock();
	model_fd_close(&flight->file);
	model_host_unlock();
}

struct sweep {
	const struct flight *own;
	struct kept_list kept;
};

/* A file of another flight in which nobody is any more: of processes that were killed, and of a
 * model that is no longer kept. What the other backend keeps its processes know. */
static void sweep_one(void *data, const char *name)
{
	struct sweep *sweep = data;
	struct flight other = {.dir = sweep->own->dir, .file.fd = -1};
	size_t length = strlen(name);
	uint64_t backend;

	if (length < 7 || length >= FLIGHT_NAME_ROOM || strcmp(name + length - 7, ".flight") ||
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

static void sweep(struct tmesh_ctx *ctx, const struct flight *flight)
{
	struct sweep sweep = {.own = flight, .kept.ctx = ctx};

	model_look_around(flight->dir, "model-", SWEEP_MAX, sweep_one, &sweep);
	free(sweep.kept.infos);
}

#define NO_MEMORY "no memory to load a model together with other processes"

static int fail_open(const struct flight *flight, struct tmesh_error *err)
{
	char what[FLIGHT_NAME_ROOM + 40];

	snprintf(what, sizeof(what), "opening %s in the runtime directory", flight->name);
	return tmesh_fail_errno(err, what);
}

/* The flight's file, with presence. */
static int flight_open(const struct load *load, struct flight **out, struct tmesh_error *err)
{
	struct flight *flight = calloc(1, sizeof(*flight));
	uint64_t deadline = tmesh_now_ns() + REMOVAL_NS;
	int rc;

	if (!flight)
		return tmesh_fail(err, -ENOMEM, NO_MEMORY);
	flight->file.fd = flight->dir = flight->slot = -1;
	flight_name(load->ctx, load->model->files, load->model->file_count, flight->name);
	rc = flight->name[0] ? model_host_ready(err) : tmesh_fail(err, -ENOMEM, NO_MEMORY);
	if (!rc)
		rc = tmesh_ctx_runtime_dir(load->ctx, &flight->dir, err);
	while (!rc) {
		if (open_file(flight, O_RDWR | O_CREAT)) {
			rc = fail_open(flight, err);
			break;
		}
		if (!model_is_ours(flight->file.fd)) {
			rc = tmesh_fail(
				err, -EACCES,
				"the file %.64s in the runtime directory is not this user's "
				"alone; remove it and load the model again",
				flight->name);
			break;
		}
		rc = lock(flight, F_RDLCK, LOCK_PRESENT);
		if (!rc && is_named(flight))
			break;
		/* It is being removed, or was. */
		close_file(flight);
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
				flight->name);
			break;
		}
		if (rc)
			nap();
		rc = load_tell((struct load *)load, 0, true, err);
	}
	if (rc) {
		close_file(flight);
		if (flight->dir >= 0)
			close(flight->dir);
		free(flight);
		return rc;
	}
	*out = flight;
	return 0;
}

void flight_leave(struct flight *flight)
{
	if (!flight)
		return;
	/* The last one removes the file, but for what a kept model's next process wants of it.
	 * One's own presence ends first: of two that leave at once and are both still present, each
	 * would take the other for one who stays. In a forked child the file is closed. */
	if (flight->file.fd >= 0) {
		lock(flight, F_UNLCK, LOCK_PRESENT);
		if (!lock(flight, F_WRLCK, LOCK_PRESENT) && is_named(flight) &&
		    !stays(flight, NULL))
			unlinkat(flight->dir, flight->name, 0);
	}
	close_file(flight);
	close(flight->dir);
	free(flight);
}

/* A token of one's own, for those who come later. Without a free slot others have
 * to give theirs. */
static void flight_publish(struct flight *flight, struct tmesh_region *region, uint32_t rights)
{
	struct slot slot = {.region = tmesh_region_id(region)};

	for (int i = 0; flight->slot < 0 && i < SLOTS; i++) {
		if (!lock(flight, F_WRLCK, LOCK_SLOT + i))
			flight->slot = i;
	}
	if (flight->slot < 0 || tmesh_region_token(region, rights, slot.token, NULL))
		return;
	if (pwrite(flight->file.fd, &slot, sizeof(slot), SLOTS_AT + flight->slot * SLOT_ROOM) !=
	    (ssize_t)sizeof(slot))
		return;
}

/* A memfd's token is answered by its own process. The module's outlive theirs. */
static bool has_ended(struct load *load, const struct flight *flight, int slot)
{
	struct flock range = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_SLOT + slot, .l_len = 1};

	return tmesh_ctx_backend(load->ctx) == TMESH_BACKEND_MEMFD &&
	       !fcntl(flight->file.fd, F_OFD_GETLK, &range) && range.l_type == F_UNLCK;
}

static struct tmesh_region *open_slot(struct load *load, const struct slot *slot,
				      const struct record *record)
{
	/* Whoever may have to go on writes; the finished one is opened as its token allows. */
	uint32_t rights = record->state == STATE_READING ? TMESH_READ | TMESH_WRITE | TMESH_MANAGE
							 : TMESH_READ | TMESH_MANAGE;
	struct tmesh_region *region;

	/* One that was found kept has no right to manage. */
	if (tmesh_region_open(load->ctx, slot->token, rights, &region, NULL) &&
	    tmesh_region_open(load->ctx, slot->token, TMESH_READ, &region, NULL))
		return NULL;
	if (tmesh_region_bytes(region) == record->bytes &&
	    tmesh_region_id(region) == record->region)
		return region;
	tmesh_region_unref(region);
	return NULL;
}

/* Open the region of the record by any token that is good. The joining lock is held until one's
 * own token is there: flight_publish(). */
static bool flight_find(struct load *load, struct flight *flight, const struct record *record)
{
	union {
		struct slot slot;
		uint8_t room[SLOT_ROOM];
	} slots[SLOTS];
	struct tmesh_region *region = NULL;
	ssize_t got;

	if (load->region && tmesh_region_id(load->region) == record->region)
		return true;
	got = pread(flight->file.fd, slots, sizeof(slots), SLOTS_AT);
	for (int i = 0; !region && i * SLOT_ROOM + (int)sizeof(struct slot) <= got; i++) {
		const struct slot *slot = &slots[i].slot;

		if (slot->region == record->region && memchr(slot->token, 0, sizeof(slot->token)) &&
		    !has_ended(load, flight, i))
			region = open_slot(load, slot, record);
	}
	if (!region)
		return false;
	tmesh_region_unref(load->region);
	load->region = region;
	return true;
}

/* The same, and give a token as long as it is filled: of the finished one flight_give() does. */
static bool flight_join(struct load *load, struct flight *flight, const struct record *record)
{
	struct tmesh_region *before = load->region;
	bool found;

	if (lock(flight, F_RDLCK, LOCK_JOINING))
		return false;
	found = flight_find(load, flight, record);
	if (found && load->region != before && record->state == STATE_READING)
		flight_publish(flight, load->region, tmesh_region_rights(load->region));
	lock(flight, F_UNLCK, LOCK_JOINING);
	return found;
}

/* Read from where the record says on; the reader's lock is held. */
static int flight_fill(struct load *load, struct flight *flight, struct record *record,
		       struct tmesh_error *err)
{
	int rc;

	process_self(&record->reader);
	rc = write_record(flight, record, err);
	if (rc) {
		/* As on a full file system. What others cannot be told is read for oneself. */
		flight->given_up = true;
		return rc;
	}
	load->done = record->done;
	load->model->flight = flight;
	rc = load_read(load, err);
	load->model->flight = NULL;
	flight_progress(flight, load->done);
	if (rc && rc != -ESTALE)
		return rc;
	if (!rc)
		rc = load_verify(load, err);
	if (rc) {
		/* What is there may be of two versions. */
		*record = (struct record){.magic = MAGIC, .bytes = record->bytes};
		write_record(flight, record, NULL);
		return rc;
	}
	rc = tmesh_region_seal(load->region, err);
	if (rc)
		return rc;
	record->done = load->model->run_bytes;
	record->state = STATE_DONE;
	/* Without it others find what one finds who takes over now: a region that is sealed. */
	write_record(flight, record, NULL);
	return 0;
}

/* What is kept under @name. -EEXIST: it is not what it should be. */
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

/* What was kept under this identity, if it is what it should be. */
static bool flight_find_kept(struct load *load, const struct flight *flight)
{
	char name[TMESH_KEPT_NAME_LEN + 1];
	struct tmesh_region *region;

	kept_name(flight, name);
	if (open_kept(load, name, &region, NULL))
		return false;
	tmesh_region_unref(load->region);
	load->region = region;
	snprintf(load->model->report.kept, sizeof(load->model->report.kept), "%s", name);
	load_say(load, "it was kept");
	return true;
}

static int flight_keep(struct load *load, const struct flight *flight, struct tmesh_error *err)
{
	struct tmesh_model_report *report = &load->model->report;
	char name[TMESH_KEPT_NAME_LEN + 1];
	struct tmesh_region *region;
	int rc;

	if (!(load->opts.flags & TMESH_MODEL_KEEP) || report->kept[0])
		return 0;
	kept_name(flight, name);
	rc = tmesh_keep(load->ctx, name, &load->region, 1, NULL, err);
	/* Another has kept it; or it was joined through one who found it kept: it is kept still, or
	 * cannot be by us. */
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

static int flight_begin(struct load *load, struct flight *flight, struct record *record,
			struct tmesh_error *err)
{
	struct tmesh_region *region;
	int rc;

	if (flight_find_kept(load, flight)) {
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
			write_record(flight, record, NULL);
		return 0;
	}
	sweep(load->ctx, flight);
	rc = load_region(load, &region, err);
	if (rc)
		return rc;
	tmesh_region_unref(load->region);
	load->region = region;
	flight_publish(flight, region, TMESH_READ | TMESH_WRITE | TMESH_MANAGE);
	*record = (struct record){
		.magic = MAGIC,
		.state = STATE_READING,
		.region = tmesh_region_id(region),
		.bytes = load->model->region_bytes,
		.backend = tmesh_ctx_backend(load->ctx),
	};
	return flight_fill(load, flight, record, err);
}

/* With the reader's lock. Return: 0: the model is there; -EAGAIN: look again; or
 * what went wrong. */
static int flight_turn(struct load *load, struct flight *flight, struct tmesh_error *err)
{
	struct record record;
	bool there;

	read_record(flight, load->model, &record);
	there = record.state != STATE_EMPTY && flight_join(load, flight, &record);
	if (record.state != STATE_EMPTY && !there) {
		if (lock(flight, F_WRLCK, LOCK_JOINING))
			return -EAGAIN;
		lock(flight, F_UNLCK, LOCK_JOINING);
		/* Whoever was joining has given its token by now, or is dead. */
		there = flight_join(load, flight, &record);
	}
	if (!there)
		return flight_begin(load, flight, &record, err);
	if (record.state == STATE_READING) {
		if (!tmesh_region_is_sealed(load->region))
			return flight_fill(load, flight, &record, err);
		/* Killed between the seal and the record. Nothing is sealed that is not whole. */
		record.state = STATE_DONE;
		write_record(flight, &record, NULL);
		return 0;
	}
	if (!tmesh_region_is_sealed(load->region))
		return flight_begin(load, flight, &record, err);
	return 0;
}

/* The region is whole: it becomes the model's, and a token of it is there for the next. Between the
 * two one's token may be none, so the reader's lock is held, or the joining lock. */
static int flight_give(struct load *load, struct flight *flight, struct tmesh_error *err)
{
	int rc = load_finish(load, err);

	if (!rc)
		flight_publish(flight, load->region, tmesh_region_rights(load->region));
	return rc;
}

/* The record says that it is whole: nobody need wait for another. -EAGAIN: it is not, or it is not
 * to be had so. */
static int flight_take(struct load *load, struct flight *flight, const struct record *record,
		       struct tmesh_error *err)
{
	int rc = -EAGAIN;

	if (lock(flight, F_RDLCK, LOCK_JOINING))
		return -EAGAIN;
	if (flight_find(load, flight, record) && tmesh_region_is_sealed(load->region))
		rc = flight_give(load, flight, err);
	lock(flight, F_UNLCK, LOCK_JOINING);
	return rc;
}

/* Another reads. Return: -EAGAIN: look again in a while; -ECANCELED; -ETIMEDOUT. */
static int flight_watch(struct load *load, struct flight *flight, const struct record *record,
			struct tmesh_error *err)
{
	int rc;

	/* To hold it, should the reader die. */
	if (record->state == STATE_READING)
		flight_join(load, flight, record);
	rc = load_tell(load, record->done, true, err);
	if (rc)
		return rc;
	if (!process_is_stopped(&record->reader))
		flight->stopped_ns = 0;
	else if (!flight->stopped_ns)
		flight->stopped_ns = tmesh_now_ns();
	else
		flight->given_up = tmesh_now_ns() - flight->stopped_ns > STOPPED_NS;
	return flight->given_up ? tmesh_fail(err, -ETIMEDOUT,
					     "process %u, which reads it for all, is stopped: let "
					     "it go on, or end it",
					     record->reader.pid)
				: -EAGAIN;
}

static int flight_wait(struct load *load, struct flight *flight, struct tmesh_error *err)
{
	struct record record;
	int rc;

	for (;;) {
		read_record(flight, load->model, &record);
		rc = record.state == STATE_DONE ? flight_take(load, flight, &record, err) : -EAGAIN;
		if (rc != -EAGAIN)
			return rc;
		rc = lock(flight, F_WRLCK, LOCK_READER);
		if (!rc) {
			rc = flight_turn(load, flight, err);
			if (!rc)
				rc = flight_give(load, flight, err);
			lock(flight, F_UNLCK, LOCK_READER);
			if (rc != -EAGAIN)
				return rc;
		} else if (rc != -EAGAIN) {
			return tmesh_fail(err, rc, "locking in the runtime directory: %s",
					  strerror(-rc));
		} else {
			rc = flight_watch(load, flight, &record, err);
			if (rc != -EAGAIN)
				return rc;
		}
		nap();
	}
}

int flight_load(struct load *load, struct tmesh_error *err)
{
	struct flight *flight = NULL;
	struct tmesh_error why = {0};
	int rc = flight_open(load, &flight, &why);
	bool alone = rc && rc != -ECANCELED;

	if (!rc) {
		rc = flight_wait(load, flight, &why);
		alone = flight->given_up;
		if (!rc)
			rc = flight_keep(load, flight, &why);
		if (rc) {
			if (!load->model->region)
				tmesh_region_unref(load->region);
			load->region = NULL;
			flight_leave(flight);
		}
	}
	/* What is kept is kept under the flight's name. */
	if (alone && !(load->opts.flags & TMESH_MODEL_KEEP)) {
		load_say(load, "alone: %.120s; ", why.message);
		return load_alone(load, err);
	}
	if (rc) {
		if (err)
			*err = why;
		return rc;
	}
	flight_remember(flight, load->model);
	load->model->flight = flight;
	load->model->report.shared = true;
	if (!load->model->report.method && !load->model->report.reason[0])
		snprintf(load->model->report.reason, sizeof(load->model->report.reason),
			 "this process or another has read it");
	return 0;
}
