/* SPDX-License-Identifier: MIT */
/*
 * libtmesh-model: files of tensors, read once into regions that processes share. See tmesh/tmesh.h
 * for the conventions of all calls; link with -ltmesh-model. Since 0.1.
 *
 * Formats:
 *
 *   safetensors   one file, or several with their index (model.safetensors.index.json).
 *                 Rules: "Format" in the README of https://github.com/huggingface/safetensors
 *   GGUF          version 3, little-endian, one file or a split one (NAME-00001-of-00003.gguf).
 *                 Rules: docs/gguf.md of https://github.com/ggml-org/ggml
 *
 * Files are read strictly: what breaks a published rule is refused with -EPROTO. docs/models.md
 * lists where this is stricter than the formats' own readers, and why.
 */
#ifndef TMESH_MODEL_H
#define TMESH_MODEL_H

#include <tmesh/keep.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tmesh_model;

enum tmesh_model_format {
	TMESH_MODEL_SAFETENSORS = 1,
	TMESH_MODEL_GGUF = 2,
};
/* "safetensors" or "gguf". */
const char *tmesh_model_format_name(enum tmesh_model_format format);

/*
 * What the files of @path say that they hold: headers are read, tensors are not. @path is a
 * safetensors or GGUF file, an index (its name ends in .json), the first file of a split GGUF, or a
 * folder with model.safetensors or model.safetensors.index.json in it.
 *
 * Return: 0; -EPROTO (malformed: the message says what and, of several files, in which);
 * -EOPNOTSUPP (another version; more than TMESH_MAX_DIMS dimensions); -ENOENT, -EACCES, -EIO and
 * the like, of the files; -ENOMEM.
 */
int tmesh_model_describe(const char *path, struct tmesh_model **out, struct tmesh_error *err);

/*
 * The same of a file's first @bytes that the caller has in memory, of a file of @file_bytes in all.
 * No I/O. What is needed is copied.
 * Return: as tmesh_model_describe(); -EAGAIN with @need: that many bytes, more than @bytes, are needed.
 */
int tmesh_model_parse(const void *header, size_t bytes, uint64_t file_bytes,
		      struct tmesh_model **out, uint64_t *need, struct tmesh_error *err);

struct tmesh_model *tmesh_model_ref(struct tmesh_model *model);
/* Tensors that were made of it stay. */
void tmesh_model_unref(struct tmesh_model *model);

enum tmesh_model_format tmesh_model_format(const struct tmesh_model *model);

/* A tensor. Strings live as long as the model. */
struct tmesh_model_tensor {
	size_t size;	  /* in: sizeof(struct tmesh_model_tensor) */
	const char *name; /* UTF-8 */
	const char *type; /* as the file spells it: "BF16", "Q4_K" */
	/* TMESH_DTYPE_INVALID: a type of blocks, or one that tmesh has not: the tensor's bytes are
	 * kept as they are */
	enum tmesh_dtype dtype;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS]; /* elements, last dimension fastest, also of GGUF */
	uint32_t block_elements;       /* 1 where each element stands for itself */
	uint32_t block_bytes;
	uint64_t bytes;
	uint32_t file;	      /* index of its file */
	uint64_t file_offset; /* of its first byte, from the file's first */
};
size_t tmesh_model_tensors(const struct tmesh_model *model);
/* By index: in the order of the files, and in each by the place of the bytes. -EINVAL: no such one. */
int tmesh_model_tensor(const struct tmesh_model *model, size_t index, struct tmesh_model_tensor *out,
		       struct tmesh_error *err);
/* By name. -ENOENT: there is none. */
int tmesh_model_find(const struct tmesh_model *model, const char *name, size_t *index,
		     struct tmesh_error *err);

/* The files, in their order: path as it is opened, and length. */
size_t tmesh_model_files(const struct tmesh_model *model);
const char *tmesh_model_file(const struct tmesh_model *model, size_t index, uint64_t *bytes);

/* Types of metadata, numbered as GGUF does. safetensors has STRING alone. */
enum tmesh_model_type {
	TMESH_MODEL_UINT8 = 0,
	TMESH_MODEL_INT8 = 1,
	TMESH_MODEL_UINT16 = 2,
	TMESH_MODEL_INT16 = 3,
	TMESH_MODEL_UINT32 = 4,
	TMESH_MODEL_INT32 = 5,
	TMESH_MODEL_FLOAT32 = 6,
	TMESH_MODEL_BOOL = 7,
	TMESH_MODEL_STRING = 8,
	TMESH_MODEL_ARRAY = 9,
	TMESH_MODEL_UINT64 = 10,
	TMESH_MODEL_INT64 = 11,
	TMESH_MODEL_FLOAT64 = 12,
};

/* A piece of metadata; of several safetensors files, that of the first that has the key. */
struct tmesh_model_value {
	size_t size; /* in: sizeof(struct tmesh_model_value) */
	const char *key;
	enum tmesh_model_type type;
	enum tmesh_model_type item; /* of an array's elements */
	uint64_t count;		    /* elements of an array, else 1 */
	/* A string's bytes (no zero behind them, and in GGUF not always UTF-8). Numbers are
	 * little-endian and not aligned. An array of strings: each has its length, u64, before it. */
	const void *data;
	uint64_t bytes;
};
size_t tmesh_model_values(const struct tmesh_model *model);
int tmesh_model_value(const struct tmesh_model *model, size_t index, struct tmesh_model_value *out,
		      struct tmesh_error *err);

/*
 * All metadata as one JSON object; what is not UTF-8 in a string becomes U+FFFD, a number that JSON has
 * not (NaN, infinity) null. Arrays longer than @most (0: no limit) end there, with null behind.
 * @text is the caller's, to be released with free().
 */
int tmesh_model_metadata_json(const struct tmesh_model *model, uint64_t most, char **text,
			      struct tmesh_error *err);

/* How a file's bytes come into the region. The result says which it was, and why. */
enum tmesh_model_method {
	TMESH_MODEL_AUTO = 0,
	TMESH_MODEL_SPLICE = 1, /* page cache to memfd within the kernel, one copy (memfd alone) */
	TMESH_MODEL_URING = 2,	/* buffered io_uring into the region's mapping */
	TMESH_MODEL_DIRECT = 3, /* O_DIRECT by io_uring, past the page cache, through buffers */
	TMESH_MODEL_READ = 4,	/* pread() of large pieces into the mapping */
};
/* "splice", "io_uring", "direct" or "read"; NULL for no such method. */
const char *tmesh_model_method_name(enum tmesh_model_method method);

struct tmesh_model_progress {
	size_t size;
	uint64_t bytes_done;
	uint64_t bytes_total;
	bool waiting; /* another process reads */
};
/* Called at least at each 64 MiB and while another process reads, by the loading thread.
 * Return: 0 to go on; else the loading ends with -ECANCELED. */
typedef int (*tmesh_model_progress_fn)(void *data, const struct tmesh_model_progress *progress);

enum tmesh_model_load_flags {
	TMESH_MODEL_ALONE = 1 << 0, /* neither join others that load the file nor let them join */
	TMESH_MODEL_HASH = 1 << 1,  /* tell the content's checksum */
	/* Keep the region (tmesh/keep.h) under a name made of the files' identity: a process that
	 * loads the same files later gets it without reading, even if all others are gone. If the
	 * region cannot be kept the loading fails, as tmesh_keep(). Not with ALONE. */
	TMESH_MODEL_KEEP = 1 << 2,
};

struct tmesh_model_load_opts {
	size_t size; /* sizeof(struct tmesh_model_load_opts) */
	uint32_t flags;
	enum tmesh_model_method method; /* AUTO: what is found to be best for this file now */
	tmesh_model_progress_fn progress;
	void *progress_data;
	const char *label; /* of the region; NULL: the file's name as far as it fits */
};

/*
 * The tensors of all files of @path in one sealed region, each at a multiple of TMESH_ALIGN, huge pages
 * where they can be had at once. Processes of one user that load the same files (device, inode,
 * size, mtime, ctime and header of each) at the same time, or while a process holds the model, share
 * one region that is read once. When the reader dies, another process continues. If sharing is not
 * possible the report says why and the region is the caller's own.
 *
 * Return: 0 and a reference in @out; as tmesh_model_describe(); -ESTALE: a file changed, shrank or vanished while it was read; -EIO and
 * the like; -ECANCELED; -EINVAL (opts); -EOPNOTSUPP (@method cannot be had here); as
 * tmesh_region_create(). Nothing is left then.
 */
int tmesh_model_load(struct tmesh_ctx *ctx, const char *path,
		     const struct tmesh_model_load_opts *opts, struct tmesh_model **out,
		     struct tmesh_error *err);

/* How a model was loaded. */
struct tmesh_model_report {
	size_t size; /* in: sizeof(struct tmesh_model_report) */
	uint64_t bytes;		/* of the region */
	uint64_t bytes_read;	/* by this process, from the files; less than all: others read */
	uint64_t bytes_copied;	/* of those once more, out of buffers (DIRECT) */
	uint64_t tensors_moved; /* their place in the file is not at a multiple of TMESH_ALIGN */
	uint64_t huge_bytes;
	uint64_t ns;
	enum tmesh_model_method method; /* AUTO: nothing was read here */
	bool shared;			/* with other processes, now or later */
	uint64_t direct_rate;		/* measured for the choice, bytes/s; 0: not measured */
	uint64_t buffered_rate;
	uint8_t hash[16];   /* XXH3 of 128 bits of the region's bytes, with TMESH_MODEL_HASH */
	char file_system[16]; /* where the first file lies: "ext4", "nfs", "0x..." */
	char reason[192];     /* why this method, and, of one that is not shared, why not */
	char kept[TMESH_KEPT_NAME_LEN + 1]; /* "": not asked for here, and not found kept */
};
/* -EINVAL: the model was not loaded. */
int tmesh_model_report(const struct tmesh_model *model, struct tmesh_model_report *out,
		       struct tmesh_error *err);

/* The region with the tensors, as long as the model lives; NULL: the model was not loaded. */
struct tmesh_region *tmesh_model_region(const struct tmesh_model *model);

/*
 * A tensor of a loaded model: a new reference, the caller's, which may outlive the model. One whose type
 * is no dtype has its bytes: uint8, the last dimension the bytes of a row of blocks.
 * Return: 0; -EINVAL (no such tensor; not loaded), -ENOMEM.
 */
int tmesh_model_tensor_open(const struct tmesh_model *model, size_t index, struct tmesh_tensor **out,
			    struct tmesh_error *err);

/*
 * All tensors of a loaded model as one bundle in the model's order, with its metadata as JSON: one ref,
 * one open, one hand-over. It may outlive the model. Tensors whose type is no dtype are bytes there
 * too, with the type's name and the shape in its elements.
 * Return: 0; -EINVAL (not loaded; more tensors than a bundle has), and as tmesh_bundle_create().
 */
int tmesh_model_bundle(struct tmesh_ctx *ctx, const struct tmesh_model *model,
		       struct tmesh_bundle **out, struct tmesh_error *err);

/* A tensor to be saved: contiguous, in memory. */
struct tmesh_model_item {
	const char *name; /* UTF-8 without control characters */
	struct tmesh_tensor *tensor;
};

struct tmesh_model_save_opts {
	size_t size;		  /* sizeof(struct tmesh_model_save_opts) */
	uint64_t max_shard_bytes; /* 0: one file. Else NAME-00001-of-00003.safetensors ... and
				   * NAME.safetensors.index.json for a @path of NAME.safetensors */
	const char *const *metadata; /* key, value, key, value ..., NULL: none */
	tmesh_model_progress_fn progress;
	void *progress_data;
};

/*
 * Write tensors as safetensors, out of their regions without a copy, largest elements first, else in
 * the order given. Each file appears whole or not at all: it is written without a name, synced, named.
 * An index comes last. A shard has at least one tensor.
 * Return: 0; -EINVAL (a name twice, not UTF-8 or "__metadata__"; not contiguous; opts), -EOPNOTSUPP (a
 * type that safetensors has not), -ENOSPC, -EIO, -ECANCELED and the like: no file was made or replaced,
 * but of several files some may have been when the last steps fail.
 */
int tmesh_model_save(const char *path, const struct tmesh_model_item *items, size_t count,
		     const struct tmesh_model_save_opts *opts, struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_MODEL_H */
