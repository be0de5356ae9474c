/* SPDX-License-Identifier: MIT */
/*
 * libtmesh-model: files of tensors, read once into regions that processes share. See tmesh/tmesh.h
 * for the conventions of all calls; link with -ltmesh-model. Since 0.1.
 * Maturity: stable.
 *
 * Formats:
 *
 *   safetensors   one file, or several with their index (model.safetensors.index.json).
 *                 Rules: "Format" in the README of https://github.com/huggingface/safetensors
 *   GGUF          version 3, little-endian, one file or a split one (NAME-00001-of-00003.gguf).
 *                 Rules: docs/gguf.md of https://github.com/ggml-org/ggml
 *
 * Files are read strictly: a file that breaks a published rule is refused with -EPROTO.
 * docs/reference/models.md lists where this is stricter than the formats' own readers, and why.
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

struct tmesh_model_progress {
	size_t size;
	uint64_t bytes_done;
	uint64_t bytes_total;
	bool waiting; /* another process is reading the file */
};
/* The thread that loads calls it at least once every 64 MiB, and while another process reads. It
 * also calls it after each read of more than 0.1 s; such reads are of 8 MiB at most. While long
 * headers are read, it calls it about once every MiB of them: bytes_done is 0, and bytes_total the
 * size of the files that are open. No lock is held: it may call this library, but does not load the
 * same files. It may fork(): the child calls exec() or _exit() at once, because it has copies of
 * the load's descriptors. Return: 0 to continue; any other value ends the call with -ECANCELED. */
typedef int (*tmesh_model_progress_fn)(void *data, const struct tmesh_model_progress *progress);

struct tmesh_model_describe_opts {
	size_t size; /* sizeof(struct tmesh_model_describe_opts) */
	tmesh_model_progress_fn progress;
	void *progress_data;
};

/*
 * Describe the model in the files of @path. Only headers are read, no tensors. @path is a
 * safetensors or GGUF file, an index (its name ends in .json), the first file of a split GGUF, or a
 * folder. A folder contains model.safetensors or model.safetensors.index.json.
 *
 * Return: 0 and a reference in @out; -ENOMEM. For the contents: -EPROTO (malformed: the message
 * names the fault and, if there are several files, the file); -EOPNOTSUPP (another version; more
 * than TMESH_MAX_DIMS dimensions). For the files: -ENOENT, -EACCES, -EIO and other errors of
 * reading. -EINVAL (opts); -ECANCELED. After an error nothing is left.
 */
int tmesh_model_describe(const char *path, const struct tmesh_model_describe_opts *opts,
			 struct tmesh_model **out, struct tmesh_error *err);

/*
 * Describe a model from the first @bytes of its file, which the caller has in memory. The whole
 * file has @file_bytes. There is no I/O. @header may be freed after the call.
 *
 * Return: as tmesh_model_describe(); -EAGAIN: the header is longer than @bytes, and @need says how
 * many bytes are needed.
 */
int tmesh_model_parse(const void *header, size_t bytes, uint64_t file_bytes,
		      struct tmesh_model **out, uint64_t *need, struct tmesh_error *err);

struct tmesh_model *tmesh_model_ref(struct tmesh_model *model);
/* Tensors and bundles that were made from the model stay valid. */
void tmesh_model_unref(struct tmesh_model *model);

enum tmesh_model_format tmesh_model_format(const struct tmesh_model *model);

/* A tensor. Strings live as long as the model. */
struct tmesh_model_tensor {
	size_t size;	  /* in: sizeof(struct tmesh_model_tensor) */
	const char *name; /* UTF-8 */
	const char *type; /* as the file spells it: "BF16", "Q4_K" */
	/* TMESH_DTYPE_INVALID: a type of blocks, or a type that tmesh does not have. The tensor's
	 * bytes are kept as they are. */
	enum tmesh_dtype dtype;
	int32_t ndim;
	int64_t shape[TMESH_MAX_DIMS]; /* elements; the last dimension is fastest, for GGUF too */
	uint32_t block_elements;       /* 1: not a type of blocks */
	uint32_t block_bytes;
	uint64_t bytes;
	uint32_t file;	      /* index of its file */
	uint64_t file_offset; /* of its first byte, in bytes from the start of the file */
};
/* How many tensors there are. */
size_t tmesh_model_tensors(const struct tmesh_model *model);
/* Tensor number @index: in the order of the files, and within a file in the order of the bytes.
 * Return: 0; -EINVAL (no such index). */
int tmesh_model_tensor(const struct tmesh_model *model, size_t index,
		       struct tmesh_model_tensor *out, struct tmesh_error *err);
/* The index of a tensor by its name. Return: 0; -ENOENT (no tensor has that name). */
int tmesh_model_find(const struct tmesh_model *model, const char *name, size_t *index,
		     struct tmesh_error *err);

/* How many files there are, and the path and length of one. NULL: no such index. The path lives as
 * long as the model; @bytes may be NULL. */
size_t tmesh_model_files(const struct tmesh_model *model);
const char *tmesh_model_file(const struct tmesh_model *model, size_t index, uint64_t *bytes);

/* Types of metadata, numbered as in GGUF. safetensors has only STRING. */
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

/* One metadata value. If several safetensors files have the key, the first file's value counts.
 * Pointers live as long as the model. */
struct tmesh_model_value {
	size_t size; /* in: sizeof(struct tmesh_model_value) */
	const char *key;
	enum tmesh_model_type type;
	enum tmesh_model_type item; /* of an array's elements */
	uint64_t count;		    /* elements of an array, else 1 */
	/* Strings have no terminating zero, and in GGUF are not always UTF-8. Numbers are
	 * little-endian and not aligned. In an array of strings the length of each, a u64, comes
	 * before its bytes. */
	const void *data;
	uint64_t bytes;
};
/* How many values there are, and value number @index. Return: 0; -EINVAL (no such index). */
size_t tmesh_model_values(const struct tmesh_model *model);
int tmesh_model_value(const struct tmesh_model *model, size_t index, struct tmesh_model_value *out,
		      struct tmesh_error *err);

/*
 * All metadata as one JSON object. Bytes of a string that are not UTF-8 become U+FFFD. Numbers that
 * JSON does not have (NaN, infinity) become null. An array of more than @most elements (0: no
 * limit) is cut there and ends with null. The caller releases @text with free().
 *
 * Return: 0; -ENOMEM.
 */
int tmesh_model_metadata_json(const struct tmesh_model *model, uint64_t most, char **text,
			      struct tmesh_error *err);

/* How a file's bytes come into the region. The report says which method was used, and why. */
enum tmesh_model_method {
	TMESH_MODEL_AUTO = 0,
	TMESH_MODEL_SPLICE = 1, /* page cache to memfd in the kernel, one copy (only on memfd) */
	TMESH_MODEL_URING = 2,	/* buffered io_uring into the region's mapping */
	TMESH_MODEL_DIRECT = 3, /* O_DIRECT by io_uring, past the page cache, through buffers */
	TMESH_MODEL_READ = 4,	/* pread() of large pieces into the mapping */
};
/* "splice", "io_uring", "direct" or "read"; NULL for no such method. */
const char *tmesh_model_method_name(enum tmesh_model_method method);

enum tmesh_model_load_flags {
	TMESH_MODEL_ALONE = 1 << 0, /* do not share the region with other processes */
	TMESH_MODEL_HASH = 1 << 1,  /* compute a checksum of the region's bytes */
	/* Keep the region (tmesh/keep.h) under a name made from the files' identity. A process that
	 * loads the same files later gets the region without reading, even if all others are gone.
	 * If the region cannot be kept, the load fails as tmesh_keep() does. Not with ALONE. */
	TMESH_MODEL_KEEP = 1 << 2,
	/* Take files that are refused otherwise, and name in the report's reason what was wrong:
	 * GGUF of version 2, bytes behind the last tensor, tensors that an index does not name. */
	TMESH_MODEL_LENIENT = 1 << 3,
};

struct tmesh_model_load_opts {
	size_t size; /* sizeof(struct tmesh_model_load_opts) */
	uint32_t flags;
	enum tmesh_model_method method; /* AUTO: the best for this file, measured if it is large */
	tmesh_model_progress_fn progress;
	void *progress_data;
	const char *label; /* of the region; NULL: the file's name, cut if it is too long */
};

/*
 * Load the tensors of all files of @path into one sealed region. Each tensor begins at a multiple
 * of TMESH_ALIGN. Huge pages are used where they are free at once. Processes of one user share one
 * region if they load the same files at the same time, or while a process holds the model. One
 * process reads the files, the others wait. The same files have the same device, inode, size,
 * mtime, ctime and header. When the reader dies, another process continues. If sharing is not
 * possible, the report has the reason, and the region is the caller's own.
 *
 * A path of tmeshfs(5) or tmesh-mount leads to a kept file. Its region is the model's, without a
 * copy, and each tensor begins where it does in the file. A model of several kept files has the
 * region of each. With ALONE, a @method, or tensors that are not aligned to their type there, the
 * files are read, and the report has the reason.
 *
 * Return: 0 and a reference in @out; errors as tmesh_model_describe() and tmesh_region_create().
 * For the files: -ESTALE (one changed, shrank or vanished during the read; kept files were
 * replaced while they were opened). For the options:
 * -EINVAL, -EOPNOTSUPP (@method does not work here). Also -ECANCELED, and only with KEEP
 * -ETIMEDOUT: a process that was stopped for ten seconds blocks the load; the message names the
 * step. After an error nothing is left.
 */
int tmesh_model_load(struct tmesh_ctx *ctx, const char *path,
		     const struct tmesh_model_load_opts *opts, struct tmesh_model **out,
		     struct tmesh_error *err);

/* How a model was loaded. */
struct tmesh_model_report {
	size_t size;		/* in: sizeof(struct tmesh_model_report) */
	uint64_t bytes;		/* of the region; of all, in place */
	uint64_t bytes_read;	/* by this process; other processes have read the rest */
	uint64_t bytes_copied;	/* bytes that were copied once more, from buffers (DIRECT) */
	uint64_t tensors_moved; /* tensors whose offset in the file is no multiple of TMESH_ALIGN */
	uint64_t huge_bytes;	/* in huge pages, as far as this process knows (memfd: what it has
				 * read itself) */
	uint64_t ns;
	enum tmesh_model_method method; /* AUTO: nothing was read here */
	bool shared;			/* other processes share the region or can join */
	uint64_t direct_rate;		/* bytes/s, measured to choose, here or
					 * within the last hour on the same file
					 * system (the reason says so); 0: not */
	uint64_t buffered_rate;
	/* With TMESH_MODEL_HASH: XXH3 of 128 bits of the region's bytes. Several kept files: of the
	 * checksums of their regions. */
	uint8_t hash[16];
	char file_system[16];		    /* of the first file: "ext4", "nfs", "0x..." */
	char reason[192];		    /* why this method, and why the region is not shared */
	char kept[TMESH_KEPT_NAME_LEN + 1]; /* the name; "": not kept, as far as this load knows */
};
/* Return: 0; -EINVAL (the model was not loaded). */
int tmesh_model_report(const struct tmesh_model *model, struct tmesh_model_report *out,
		       struct tmesh_error *err);

/* The region with the tensors; if several kept files were loaded in place, that of the first file.
 * It belongs to the model: take a reference to keep it longer. NULL: the model was not loaded. */
struct tmesh_region *tmesh_model_region(const struct tmesh_model *model);

/*
 * A tensor of a loaded model. The caller owns the reference, and the tensor may outlive the model.
 * If tmesh does not have the type, the tensor shows the bytes: as uint8, where the last dimension
 * is the bytes of a row of blocks.
 *
 * Return: 0; -EINVAL (no such tensor; not loaded), -ENOMEM.
 */
int tmesh_model_tensor_open(const struct tmesh_model *model, size_t index,
			    struct tmesh_tensor **out, struct tmesh_error *err);

/*
 * All tensors of a loaded model as one bundle, in the model's order, with the metadata as JSON: one
 * ref, one open, one hand-over. The bundle may outlive the model. A tensor whose type tmesh does
 * not have is bytes in the bundle too, with the name of the type and the shape in elements.
 *
 * Return: 0; -EINVAL (not loaded; more tensors than a bundle has, or more than
 * TMESH_BUNDLE_MAX_METADATA bytes of metadata), and as tmesh_bundle_create().
 */
int tmesh_model_bundle(struct tmesh_ctx *ctx, const struct tmesh_model *model,
		       struct tmesh_bundle **out, struct tmesh_error *err);

/* A tensor to be saved: contiguous, in memory. */
struct tmesh_model_item {
	const char *name; /* UTF-8 without control characters */
	struct tmesh_tensor *tensor;
};

struct tmesh_model_save_opts {
	size_t size; /* sizeof(struct tmesh_model_save_opts) */
	/* 0: one file. Else @path NAME.safetensors gives NAME-00001-of-00003.safetensors ... and
	 * NAME.safetensors.index.json. A shard has at least one tensor, however large. */
	uint64_t max_shard_bytes;
	const char *const *metadata; /* key, value, key, value ..., NULL; UTF-8. NULL: none */
	tmesh_model_progress_fn progress;
	void *progress_data;
};

/*
 * Write tensors to a safetensors file, straight from their regions. Tensors with the largest
 * elements come first, otherwise the order is that of @items. A file appears whole or not at all:
 * it is written without a name, synced and then renamed. An index appears last. A sharded model
 * that is saved over another one has no index between its first shard and its last.
 *
 * Return: 0. For the arguments: -EINVAL (a name that appears twice, is not UTF-8, or is
 * "__metadata__"; a tensor that is not contiguous; opts). -EINVAL too for metadata that is not
 * UTF-8 or has a key without a value. -EOPNOTSUPP (a type that safetensors does not have). For the
 * path: -EEXIST (a folder, a device or a pipe has the name; a symbolic link is replaced, not
 * followed). Also -ENOSPC, -EIO, -ECANCELED and other errors of writing. After an error no file was
 * made or replaced; only if the last step of several files fails, some of them may have been.
 */
int tmesh_model_save(const char *path, const struct tmesh_model_item *items, size_t count,
		     const struct tmesh_model_save_opts *opts, struct tmesh_error *err);

#ifdef __cplusplus
}
#endif

#endif /* TMESH_MODEL_H */
