/* SPDX-License-Identifier: MIT */
/*
 * Declarations that the files of libtmesh-model share; the library exports none of them.
 *
 * A table is the content of one file's header; reading it does no I/O. A model is one table for
 * each of its files, in one order. Once loaded, it has the region with the tensors' bytes.
 */
#ifndef TMESH_MODEL_INTERNAL_H
#define TMESH_MODEL_INTERNAL_H

#include <errno.h>
#include <jansson.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/error.h"
#include "common/sized.h"
#include "common/hex.h"
#include "common/clock.h"
#include "common/page.h"
#include "common/random.h"

#pragma GCC visibility push(default)
#include <tmesh/model.h>
#pragma GCC visibility pop

/* One tensor as its file describes it. */
struct table_tensor {
	const char *name;
	const struct model_type *type;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS];
	uint64_t bytes;
	uint64_t file_offset; /* from the file's first byte */
};

/* A value of a file's metadata. @data points into the table. */
struct table_value {
	const char *key;
	uint32_t type, item;
	uint64_t count;
	const uint8_t *data;
	uint64_t bytes;
};

struct table {
	enum tmesh_model_format format;
	bool lenient;		      /* allow files that others refuse */
	unsigned int lapses;	      /* LAPSE_*: what was wrong in this one */
	struct table_tensor *tensors; /* in the order of their bytes in the file */
	size_t tensor_count;
	struct table_value *values; /* in the order of the file */
	size_t value_count;
	uint64_t header_bytes; /* before the first tensor, padding included */
	json_t *root;	       /* safetensors: the names point into it */
	uint8_t *copy;	       /* GGUF: the header, which the values point into */
	char *names;	       /* GGUF: names and keys, each with its zero */
	/* GGUF, split: -1 where the file does not say */
	int64_t split_no, split_count, split_tensors;
};

#define LAPSE_VERSION (1u << 0) /* GGUF of version 2 */
#define LAPSE_BEHIND (1u << 1)	/* bytes behind the last tensor */
#define LAPSE_UNNAMED (1u << 2) /* tensors that the index does not name */

/* types.c */

struct model_type {
	const char *name; /* as the format spells it */
	enum tmesh_dtype dtype;
	uint32_t block_elements;
	uint32_t block_bytes;
};
const struct model_type *model_type_safetensors(const char *name);
const struct model_type *model_type_gguf(uint32_t number);
/* Return the number of a type, or the type of a number, which only this version knows. */
const struct model_type *model_type_safetensors_at(uint32_t number);
uint32_t model_type_safetensors_number(const struct model_type *type);
/* Return the name of @dtype in the safetensors format, NULL if it has none. */
const char *model_type_word(enum tmesh_dtype dtype);
/* Compute a tensor's bytes. False: they overflow. @even: whole blocks. */
bool model_type_bytes(const struct model_type *type, int32_t ndim, const int64_t *shape,
		      uint64_t *bytes, bool *even);

/* ask.c: headers of hundreds of megabytes are read for seconds, so the caller can cancel that too.
 */

/* How a model's headers are read. */
struct opening {
	struct tmesh_ctx *ctx; /* look whether another process has read them; NULL: do not */
	bool lenient;	       /* allow files that others refuse */
	tmesh_model_progress_fn progress;
	void *progress_data;
	uint64_t bytes; /* of the files opened so far */
	uint64_t work;	/* since the caller was asked last */
	bool cancelled;
};
/* Count work of about @bytes of a header. After each MODEL_ASK_WORK ask the caller whether to go
 * on. -ECANCELED. */
#define MODEL_ASK_WORK ((uint64_t)1 << 20)
int opening_go_on(struct opening *opening, uint64_t bytes, struct tmesh_error *err);
/* Parse JSON without repeated keys. NULL: it is malformed, and @err names the byte after @before;
 * or -ECANCELED. */
json_t *opening_json(struct opening *opening, const char *text, size_t bytes, const char *what,
		     int before, struct tmesh_error *err);

/* safetensors.c, gguf.c */

#define MODEL_SAFETENSORS_HEADER_MAX 100000000u
#define MODEL_GGUF_HEADER_MAX (1u << 30)

/*
 * Read the header of a file of @file_bytes whose first @bytes are at @data.
 * Return: 0; -EAGAIN with @need: call again with that many bytes; -EPROTO, -EOPNOTSUPP, -ENOMEM.
 */
int table_parse(struct opening *opening, const uint8_t *data, size_t bytes, uint64_t file_bytes,
		struct table **out, uint64_t *need, struct tmesh_error *err);
int table_parse_safetensors(struct table *table, struct opening *opening, const uint8_t *data,
			    size_t bytes, uint64_t file_bytes, uint64_t *need,
			    struct tmesh_error *err);
int table_parse_gguf(struct table *table, struct opening *opening, const uint8_t *data,
		     size_t bytes, uint64_t file_bytes, uint64_t *need, struct tmesh_error *err);
void table_free(struct table *table);
/* Check that names are unique and that a bundle can have them. */
int table_check_names(const struct table *table, struct tmesh_error *err);
/* Return the length of a safetensors file's header, by the file's first bytes. 0: it is no such
 * file, or these are too few bytes. */
uint64_t safetensors_header_bytes(const uint8_t *data, size_t bytes);
/* Fill in tensor->bytes by its type and shape. */
int safetensors_tensor_bytes(struct table_tensor *tensor, struct tmesh_error *err);
/* Put the tensors in order; from then on their offsets count from the file's first byte. */
int safetensors_check_offsets(struct table *table, uint64_t data_bytes, struct tmesh_error *err);

/* table_pack.c: a safetensors file's table as bytes, for the next process that loads it. */

#define TABLE_PACK_MAX ((size_t)16 << 20)
#define TABLE_PACK_HEAD 40
/* Free the result with free(). NULL: the table has another format or is too long, or memory is
 * short. */
uint8_t *table_pack(const struct table *table, size_t *bytes);
/* Return the length of a packed table by its first TABLE_PACK_HEAD bytes; 0: it is none. */
size_t table_packed_bytes(const void *start, size_t bytes);
/* Unpack a table; @all, from malloc(), is the table's from here on. NULL: it is damaged, or of a
 * file with other lengths. */
struct table *table_unpack(uint8_t *all, size_t bytes, uint64_t header_bytes, uint64_t file_bytes);

/* metadata.c: as tmesh_model_metadata_json(); -EINVAL: the text has more than @limit bytes. */
int model_metadata_text(const struct tmesh_model *model, uint64_t most, size_t limit, char **out,
			struct tmesh_error *err);

/* shards.c */

/* The files of a sharded safetensors model, each once and sorted, and the file of each tensor. */
struct shard_index {
	json_t *root;
	json_t *map; /* name: file */
	const char **files;
	size_t file_count;
};
int shard_index_parse(struct opening *opening, const char *text, size_t bytes,
		      struct shard_index *index, struct tmesh_error *err);
void shard_index_free(struct shard_index *index);

/* files.c */

/* One file of a model, still open while it is loaded. */
struct model_file {
	char *path;
	char *name; /* its last part; points into path */
	int fd;	    /* -1: closed */
	struct table *table;
	uint64_t bytes;
	/* what it was when its header was read */
	uint64_t dev, ino;
	bool linked; /* memfds and O_TMPFILE's files never are */
	int64_t mtime_ns, ctime_ns;
	uint64_t header_hash[2];
	bool recalled;		     /* the table is another process's */
	struct tmesh_region *region; /* loaded in place: the file's own; NULL: the model's */
};

struct tmesh_model {
	atomic_uint refs;
	enum tmesh_model_format format;
	struct model_file *files;
	size_t file_count;
	unsigned int lapses; /* of all files and of the index */
	/* of all files, in order */
	struct model_entry {
		const struct table_tensor *tensor;
		uint32_t file;
		uint64_t offset; /* loaded: from the first byte of model_region_of() */
	} * entries;
	size_t entry_count;
	uint32_t *sorted; /* the entries' indices by name */
	const struct table_value **values;
	size_t value_count;
	/* loaded */
	struct model_run *runs;
	size_t run_count;
	uint64_t run_bytes;    /* of all */
	uint64_t region_bytes; /* as tmesh_region_create() gets it */
	struct tmesh_region *region;
	struct shared_load *shared;
	struct tmesh_model_report report;
	char label[TMESH_LABEL_LEN + 1];
};

/* Bytes that are contiguous both in the file and in the region, and are read as one. */
struct model_run {
	uint32_t file;
	uint64_t file_offset;
	uint64_t offset; /* in the region */
	uint64_t bytes;
	uint64_t begin; /* how many bytes the runs before it have */
};

/* in_place.c: load the model's files if all are kept, and tell whether that was @done. -ESTALE: a
 * file was replaced meanwhile. */
struct load;
int load_in_place(struct load *load, bool *done, struct tmesh_error *err);

/* plan.c: choose a place for each tensor. The same files get the same places in every process. */
int model_plan(struct tmesh_model *model, struct tmesh_error *err);

/* read.c */

/* A loading in progress. "Done" counts the runs' bytes in their order. */
struct load {
	struct tmesh_ctx *ctx;
	struct tmesh_model *model;
	struct tmesh_model_load_opts opts;
	struct tmesh_region *region;
	uint64_t done;
	uint64_t told, told_ns; /* done and the time at the last report of progress */
	bool populate;		/* make huge pages before they are written to */
	uint64_t populated;	/* how far that is done */
	bool cold; /* most of it is not in the page cache, and the file system is a local one */
	struct ahead *ahead;
};
/* Choose how, and read from load->done to the end. */
int load_read(struct load *load, struct tmesh_error *err);
/* Report that everything before load->done is in the region. -ECANCELED. */
int load_tell(struct load *load, uint64_t done, bool waiting, struct tmesh_error *err);
/* One piece of at most @most bytes that begins at @done and ends before @end. */
struct piece {
	const struct model_run *run;
	uint64_t file_offset, offset, bytes;
};
struct piece load_piece_at(const struct tmesh_model *model, uint64_t done, uint64_t end,
			   uint64_t most);
/* Add to the report's reason. */
void load_say(struct load *load, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Check that the files have not changed since their headers were read. */
int load_verify(const struct load *load, struct tmesh_error *err);

/* file_system.c: find the name of a file's file system, and whether it is remote. */
bool file_system_is_remote(int fd, char name[16]);

/* read_ahead.c: bring the files into the page cache from load->done on, beside the load. It ends
 * before load_read() does. NULL: that is not possible, and the load is slower. */
struct ahead *ahead_start(const struct load *load);
void ahead_tell(struct ahead *ahead, uint64_t done);
void ahead_stop(struct load *load);

/* rates.c: find the rates of the first file's file system in bytes/s, measured within the last
 * hour. */
bool rates_recall(const struct load *load, uint64_t *direct, uint64_t *buffered, uint64_t *age_ns);
void rates_remember(const struct load *load, uint64_t direct, uint64_t buffered);
/* Correct a rate by that of a whole load, which is more exact than that of a part. */
void rates_correct(const struct load *load, bool direct, uint64_t rate);

/* file_identity.c */

/* Make the name of the shared load's file from the identity of the model's files; "": no memory. */
#define SHARED_LOAD_NAME_ROOM 64
void shared_load_name(struct tmesh_ctx *ctx, const struct model_file *files, size_t count,
		      char name[SHARED_LOAD_NAME_ROOM]);
/* Return whether this user alone can write and read a file of the runtime directory. */
bool model_is_ours(int fd);
struct process_id {
	uint32_t pid; /* 0: none */
	uint32_t space;
};
void process_self(struct process_id *id);
/* Return whether a signal or a debugger has stopped the process. False if it is in another PID
 * namespace, where that cannot be seen. */
bool process_is_stopped(const struct process_id *id);

/* shared_load.c, shared_load_file.c: those that load the same files at once read them once. */

struct shared_load;
/* Fill load->model->region, by reading or by waiting. */
int shared_load_run(struct load *load, struct tmesh_error *err);
/* Record the reader's progress, so that a process that takes over can go on from there. */
void shared_load_progress(struct shared_load *shared, uint64_t done);
void shared_load_leave(struct shared_load *shared);
/* Return the table that a process of the shared load left for the model's only file, whose first
 * @bytes are at @data. False: there is none, or these bytes are not the whole header. */
bool shared_load_recall(struct tmesh_ctx *ctx, struct model_file *file, const uint8_t *data,
			size_t bytes);
#define MODEL_HUGE_BYTES ((uint64_t)2 << 20)

/* load.c: return whether huge pages would leave at most an eighth of load->model's region unused.
 */
bool load_huge(const struct load *load);
/* load.c: make a region for load->model. */
int load_region(struct load *load, struct tmesh_region **out, struct tmesh_error *err);
/* load.c: make load->region, which is whole and sealed, the model's, without the right to write. */
int load_finish(struct load *load, struct tmesh_error *err);
/* load.c: read and seal a region of this process's own, which no other process joins. */
int load_alone(struct load *load, struct tmesh_error *err);

/* Open and read the headers of all files of @path; they stay open. */
int model_open(struct opening *opening, const char *path, struct tmesh_model **out,
	       struct tmesh_error *err);
void model_close_files(struct tmesh_model *model);
/* model.c: report more tensors than a bundle can have. */
int model_too_many(uint64_t tensors, struct tmesh_error *err);
/* model.c: make the list of all tensors of @model's files. */
int model_join(struct tmesh_model *model, struct tmesh_error *err);
struct tmesh_model *model_new(size_t files);

/* hash.c */
void model_hash(const void *data, size_t bytes, uint64_t hash[2]);

/* text.c */

/* Return @text for a message, clipped and without characters that could control a terminal. */
#define MODEL_QUOTE 72
const char *model_quote(char quoted[MODEL_QUOTE], const char *text);
/* Check that the tensor begins at @at, where the one before it ends: every byte belongs to one
 * tensor. */
int model_check_begin(const struct table_tensor *tensor, uint64_t at, struct tmesh_error *err);
bool model_is_utf8(const uint8_t *text, size_t bytes);

#endif /* TMESH_MODEL_INTERNAL_H */
