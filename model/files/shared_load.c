// SPDX-License-Identifier: MIT
/*
 * Shared loads: processes of one user that load the same files read them once.
 *
 * The processes share a file of the runtime directory, by whose locks they take turns and in whose
 * entries they leave tokens: shared_load_file.h.
 *
 * All access is by pread() and pwrite(): a damaged or cut file causes no signal. A region counts
 * only if it has the model's size and either is sealed or is being filled by the holder of lock 0.
 * The directory is this user's alone. Another process of the user could lie about its progress;
 * nothing protects against that, as nothing protects against its ptrace().
 *
 * tests/sim/sim_shared_load.py simulates this protocol; its steps have the names of the functions
 * here.
 */
#include "shared_load_file.h"

#include "common/file_size.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* A reader that was stopped for so long (SIGSTOP, a debugger) is waited for no more. */
#define STOPPED_NS UINT64_C(10000000000)

/* Store a token of this process's own for processes that come later. If no entry is free, they have
 * to use another one's token. */
static void shared_load_publish(struct shared_load *shared, struct tmesh_region *region,
				uint32_t rights)
{
	struct entry entry = {.region = tmesh_region_id(region)};

	for (int i = 0; shared->entry < 0 && i < ENTRIES; i++) {
		if (!shared_load_lock(shared, F_WRLCK, LOCK_ENTRY + i))
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

	if (shared_load_lock(shared, F_RDLCK, LOCK_JOINING))
		return false;
	found = shared_load_find(load, shared, record);
	if (found && load->region != before && record->state == STATE_READING)
		shared_load_publish(shared, load->region, tmesh_region_rights(load->region));
	shared_load_lock(shared, F_UNLCK, LOCK_JOINING);
	return found;
}

/* Read from the record's position to the end; the reader's lock is held. */
static int shared_load_fill(struct load *load, struct shared_load *shared, struct record *record,
			    struct tmesh_error *err)
{
	int rc;

	process_self(&record->reader);
	rc = shared_load_write_record(shared, record, err);
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
		shared_load_write_record(shared, record, NULL);
		return rc;
	}
	rc = tmesh_region_seal(load->region, err);
	if (rc)
		return rc;
	record->done = load->model->run_bytes;
	record->state = STATE_DONE;
	/* If this fails, the next process to take the lock finds a region that is sealed. */
	shared_load_write_record(shared, record, NULL);
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
		    : tmesh_fail(err, -EEXIST,
				 "cannot keep the model: other memory is kept under its name "
				 "\"%s\"; drop that",
				 name);
}

/* Open the region that was kept under this identity, if it is this model. */
static bool shared_load_find_kept(struct load *load, const struct shared_load *shared)
{
	char name[TMESH_KEPT_NAME_LEN + 1];
	struct tmesh_region *region;

	shared_load_kept_name(shared, name);
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
	shared_load_kept_name(shared, name);
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
			shared_load_write_record(shared, record, NULL);
		return 0;
	}
	shared_load_sweep(load->ctx, shared);
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

	shared_load_read_record(shared, load->model, &record);
	there = record.state != STATE_EMPTY && shared_load_join(load, shared, &record);
	if (record.state != STATE_EMPTY && !there) {
		if (shared_load_lock(shared, F_WRLCK, LOCK_JOINING))
			return -EAGAIN;
		shared_load_lock(shared, F_UNLCK, LOCK_JOINING);
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
		shared_load_write_record(shared, &record, NULL);
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

	if (shared_load_lock(shared, F_RDLCK, LOCK_JOINING))
		return -EAGAIN;
	if (shared_load_find(load, shared, record) && tmesh_region_is_sealed(load->region))
		rc = shared_load_give(load, shared, err);
	shared_load_lock(shared, F_UNLCK, LOCK_JOINING);
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
		shared_load_read_record(shared, load->model, &record);
		rc = record.state == STATE_DONE
			     ? shared_load_open_finished(load, shared, &record, err)
			     : -EAGAIN;
		if (rc != -EAGAIN)
			return rc;
		rc = shared_load_lock(shared, F_WRLCK, LOCK_READER);
		if (!rc) {
			rc = shared_load_turn(load, shared, err);
			if (!rc)
				rc = shared_load_give(load, shared, err);
			shared_load_lock(shared, F_UNLCK, LOCK_READER);
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
		shared_load_nap();
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
