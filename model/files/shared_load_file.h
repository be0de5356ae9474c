/* SPDX-License-Identifier: MIT */
/*
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
 */
#ifndef TMESH_SHARED_LOAD_FILE_H
#define TMESH_SHARED_LOAD_FILE_H

#include "../shared/host.h"
#include "model_internal.h"

#define MAGIC 0x31746c666d746d74ull /* "tmtmflt1" */
#define ENTRIES 64
#define ENTRIES_AT 4096
#define ENTRY_ROOM 128

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
int shared_load_lock(const struct shared_load *shared, int type, int byte);
/* Sleep between two looks at the reader. */
void shared_load_nap(void);
int shared_load_write_record(const struct shared_load *shared, const struct record *record,
			     struct tmesh_error *err);
/* Read the record. One that cannot be read, or is of another model, counts as empty. */
void shared_load_read_record(const struct shared_load *shared, const struct tmesh_model *model,
			     struct record *record);
/* Store the table for processes that come later. If that fails, they read the header themselves. */
void shared_load_remember(const struct shared_load *shared, const struct tmesh_model *model);
/* Return the shared load's name, without its ending. */
void shared_load_kept_name(const struct shared_load *shared, char name[TMESH_KEPT_NAME_LEN + 1]);
/* Open the shared load's file, and mark this process as present. */
int shared_load_open(const struct load *load, struct shared_load **out, struct tmesh_error *err);
/* Remove the files of shared loads that no process needs any more. */
void shared_load_sweep(struct tmesh_ctx *ctx, const struct shared_load *shared);

#endif /* TMESH_SHARED_LOAD_FILE_H */
