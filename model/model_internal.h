/* SPDX-License-Identifier: MIT */
/*
 * What the files of libtmesh-model share. Nothing here is seen outside the library.
 *
 * A table is what the header of one file says; reading it does no I/O. A model is one table for
 * each of its files, in one order, and, once loaded, the region with the tensors' bytes.
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

/* What a file knows about itself. @data points into the table. */
struct table_value {
	const char *key;
	uint32_t type, item;
	uint64_t count;
	const uint8_t *data;
	uint64_t bytes;
};

struct table {
	enum tmesh_model_format format;
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

/* types.c */

struct model_type {
	const char *name; /* as the format spells it */
	enum tmesh_dtype dtype;
	uint32_t block_elements;
	uint32_t block_bytes;
};
const struct model_type *model_type_safetensors(const char *name);
const struct model_type *model_type_gguf(uint32_t number);
/* The type of a number, which this version alone knows, and the number of a type. */
const struct model_type *model_type_safetensors_at(uint32_t number);
uint32_t model_type_safetensors_number(const struct model_type *type);
/* How the safetensors format spells @dtype, NULL where it has no word for it. */
const char *model_type_word(enum tmesh_dtype dtype);
/* Bytes of a tensor, checked. False: they overflow. @even: whole blocks. */
bool model_type_bytes(const struct model_type *type, int32_t ndim, const int64_t *shape,
		      uint64_t *bytes, bool *even);

/* safetensors.c, gguf.c */

#define MODEL_SAFETENSORS_HEADER_MAX 100000000u
#define MODEL_GGUF_HEADER_MAX (1u << 30)

/*
 * Read the header of a file of @file_bytes whose first @bytes are at @data.
 * Return: 0; -EAGAIN with @need: call again with that many bytes; -EPROTO, -EOPNOTSUPP, -ENOMEM.
 */
int table_parse(const uint8_t *data, size_t bytes, uint64_t file_bytes, struct table **out,
		uint64_t *need, struct tmesh_error *err);
int table_parse_safetensors(struct table *table, const uint8_t *data, size_t bytes,
			    uint64_t file_bytes, uint64_t *need, struct tmesh_error *err);
int table_parse_gguf(struct table *table, const uint8_t *data, size_t bytes, uint64_t file_bytes,
		     uint64_t *need, struct tmesh_error *err);
void table_free(struct table *table);
/* Names that a bundle can have too, each there once. */
int table_check_names(const struct table *table, struct tmesh_error *err);
/* What the first bytes of a safetensors file say of its header; 0: it is none, or these are too
 * few. */
uint64_t safetensors_header_bytes(const uint8_t *data, size_t bytes);
/* tensor->bytes by its type and shape. */
int safetensors_tensor_bytes(struct table_tensor *tensor, struct tmesh_error *err);
/* Puts the tensors in order; from then on their offsets count from the file's first byte. */
int safetensors_check_offsets(struct table *table, uint64_t data_bytes, struct tmesh_error *err);

/* table_pack.c: a safetensors file's table as bytes, for the next process that loads it. */

#define TABLE_PACK_MAX ((size_t)16 << 20)
#define TABLE_PACK_HEAD 40
/* To be released with free(). NULL: it is of another format, too long, or there is no memory. */
uint8_t *table_pack(const struct table *table, size_t *bytes);
/* How many bytes it has by what its first TABLE_PACK_HEAD say; 0: it is none. */
size_t table_packed_bytes(const void *start, size_t bytes);
/* Takes @all, which malloc() gave. NULL: it is damaged, or not of a file with such lengths. */
struct table *table_unpack(uint8_t *all, size_t bytes, uint64_t header_bytes, uint64_t file_bytes);

/* index.c */

/* The files of a sharded safetensors model, each once and sorted, and what lies in which. */
struct shard_index {
	json_t *root;
	json_t *map; /* name: file */
	const char **files;
	size_t file_count;
};
int shard_index_parse(const char *text, size_t bytes, struct shard_index *index,
		      struct tmesh_error *err);
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
	int64_t mtime_ns, ctime_ns;
	uint64_t header_hash[2];
	bool recalled; /* the table is another process's */
};

struct tmesh_model {
	atomic_uint refs;
	enum tmesh_model_format format;
	struct model_file *files;
	size_t file_count;
	/* of all files, in order */
	struct model_entry {
		const struct table_tensor *tensor;
		uint32_t file;
		uint64_t offset; /* loaded: from the region's first byte */
	} * entries;
	size_t entry_count;
	uint32_t *sorted; /* the entries' indices by name */
	const struct table_value **values;
	size_t value_count;
	/* loaded */
	struct model_run *runs;
	size_t run_count;
	uint64_t run_bytes;    /* of all */
	uint64_t region_bytes; /* of what is asked of tmesh_region_create() */
	struct tmesh_region *region;
	struct flight *flight;
	struct tmesh_model_report report;
	char label[TMESH_LABEL_LEN + 1];
};

/* Bytes that lie in the region as they do in the file, so that they are read as one. */
struct model_run {
	uint32_t file;
	uint64_t file_offset;
	uint64_t offset; /* in the region */
	uint64_t bytes;
	uint64_t begin; /* how many bytes the runs before it have */
};

/* plan.c: a place for each tensor; the same for the same files, whoever asks. */
int model_plan(struct tmesh_model *model, struct tmesh_error *err);

/* read.c */

/* A loading in progress. "Done" counts the runs' bytes in their order. */
struct load {
	struct tmesh_ctx *ctx;
	struct tmesh_model *model;
	struct tmesh_model_load_opts opts;
	struct tmesh_region *region;
	uint64_t done;
	uint64_t told, told_ns; /* when progress was told: of done, and the time */
	bool populate;		/* make huge pages before they are written to */
	bool cold; /* most of it is not in the page cache, and the file system is a local one */
	struct ahead *ahead;
};
/* Choose how, and read from load->done to the end. */
int load_read(struct load *load, struct tmesh_error *err);
/* Everything before load->done is in the region. -ECANCELED. */
int load_tell(struct load *load, uint64_t done, bool waiting, struct tmesh_error *err);
/* One piece of at most @most bytes that begins at @done and ends before @end. */
struct piece {
	const struct model_run *run;
	uint64_t file_offset, offset, bytes;
};
struct piece load_piece_at(const struct tmesh_model *model, uint64_t done, uint64_t end,
			   uint64_t most);
/* Adds to the report's reason. */
void load_say(struct load *load, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The files are still what they were when their headers were read. */
int load_verify(const struct load *load, struct tmesh_error *err);

/* file_system.c: how a file's file system is called, and whether its reads are journeys. */
bool file_system_is_remote(int fd, char name[16]);

/* ahead.c: brings the files into the page cache, from load->done on, while the load goes on.
 * NULL: it cannot be had, and the load is slower. It ends before load_read() does. */
struct ahead *ahead_start(const struct load *load);
void ahead_tell(struct ahead *ahead, uint64_t done);
void ahead_stop(struct load *load);

/* rates.c: what was measured within the last hour on the first file's file system, in bytes/s. */
bool rates_recall(const struct load *load, uint64_t *direct, uint64_t *buffered, uint64_t *age_ns);
void rates_remember(const struct load *load, uint64_t direct, uint64_t buffered);
/* By a whole load, which tells more than the first part of one. */
void rates_correct(const struct load *load, bool direct, uint64_t rate);

/* identity.c */

/* The flight's file, after the identity of the model's files; "": no memory. */
#define FLIGHT_NAME_ROOM 64
void flight_name(struct tmesh_ctx *ctx, const struct model_file *files, size_t count,
		 char name[FLIGHT_NAME_ROOM]);
/* A file of the runtime directory that this user alone can write or read. */
bool model_is_ours(int fd);
struct process_id {
	uint32_t pid; /* 0: none */
	uint32_t space;
};
void process_self(struct process_id *id);
/* By a signal or a debugger. False where that cannot be seen: in another PID namespace. */
bool process_is_stopped(const struct process_id *id);

/* flight.c: those that load the same files at once read them once. */

struct flight;
/* Fills load->model->region, by reading or by waiting. */
int flight_load(struct load *load, struct tmesh_error *err);
/* To be told by the reader now and then. */
void flight_progress(struct flight *flight, uint64_t done);
void flight_leave(struct flight *flight);
/* The table of the only file of a model, whose first @bytes are at @data, as a process of its
 * flight has left it. False: it has not, or these are not its whole header. */
bool flight_recall(struct tmesh_ctx *ctx, struct model_file *file, const uint8_t *data,
		   size_t bytes);
#define MODEL_HUGE_BYTES ((uint64_t)2 << 20)

/* load.c: whether huge pages would leave no more than an eighth of load->model's region unused. */
bool load_huge(const struct load *load);
/* load.c: a region for load->model. */
int load_region(struct load *load, struct tmesh_region **out, struct tmesh_error *err);
/* load.c: load->region is whole and sealed: make it the model's, with no right to write. */
int load_finish(struct load *load, struct tmesh_error *err);
/* load.c: a region of one's own, which nobody joins, read and sealed. */
int load_alone(struct load *load, struct tmesh_error *err);

/* Open and read the headers of all files of @path; they stay open. @ctx: look whether another
 * process has read them; NULL: do not. */
int model_open(struct tmesh_ctx *ctx, const char *path, struct tmesh_model **out,
	       struct tmesh_error *err);
void model_close_files(struct tmesh_model *model);
/* model.c: make the list of all tensors of @model's files. */
int model_join(struct tmesh_model *model, struct tmesh_error *err);
struct tmesh_model *model_new(size_t files);

/* hash.c */
void model_hash(const void *data, size_t bytes, uint64_t hash[2]);

/* text.c */

/* @text, clipped and without what could steer a terminal, for a message. */
#define MODEL_QUOTE 72
const char *model_quote(char quoted[MODEL_QUOTE], const char *text);
/* Every byte belongs to one tensor: it begins at @at, where the one before it ends. */
int model_check_begin(const struct table_tensor *tensor, uint64_t at, struct tmesh_error *err);
bool model_is_utf8(const uint8_t *text, size_t bytes);

#endif /* TMESH_MODEL_INTERNAL_H */
