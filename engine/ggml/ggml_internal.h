/* SPDX-License-Identifier: MIT */
/* Declarations that the files of tmesh-engine-ggml share. */
#ifndef TMESH_ENGINE_GGML_INTERNAL_H
#define TMESH_ENGINE_GGML_INTERNAL_H

#include <stdatomic.h>

#include "ggml_api.h"
#include "graph_internal.h"
#include "plugin.h"

/* Alignments of addresses: ggml's requirement for a buffer's beginning, and malloc()'s. */
#define GGML_WEIGHT_ALIGN 32
#define GGML_ALIGN 16
/* Bytes after a weight on a GPU. Kernels read rows of blocks up to a multiple of 512 elements. */
#define GGML_BEHIND 1024
#define GGML_DIMS 4
/* Older versions require a mask's number of queries to be a multiple of this. */
#define GGML_MASK_PAD 64

struct ggml_engine {
	struct ggml_api api;
	uint32_t threads;
	/* A buffer of all memory of the process. Tensors' addresses in it were checked before. */
	struct ggml_backend_buffer *memory;
	/* The offset of the address in a tensor of ggml; 0: not found. */
	size_t address_at;
	struct ggml_backend_device *gpu; /* NULL: on the CPU */
	/* A small buffer on the GPU. Tensors in memory of other owners are attributed to it, by the
	 * word at @buffer_at. */
	struct ggml_backend_buffer *on_gpu;
	size_t buffer_at;
};

struct ggml_session {
	struct tmesh_graph *graph;
	struct ggml_context *context; /* of the weights */
	struct ggml_tensor **weights; /* by node; NULL: no weight */
};

/* A mask of positions against rows, filled before each run. */
struct ggml_mask {
	uint32_t positions; /* a node */
	int64_t rows;
	int64_t sequences;
	uint16_t *data; /* of float16 */
	struct ggml_tensor *tensor;
};

/* Memory for the rows of gathers of one shape. A gather writes after the attention before it has
 * read the previous rows. */
struct ggml_room {
	uint32_t side; /* the index of the attention's input */
	int64_t blocks, block_rows;
	size_t row_bytes;
	char *data;
	int64_t *filled; /* by block: rows after these are zeros */
};

/* The rows that block tables name, in their order. This is a custom node in ggml's graph. */
struct ggml_gather {
	const struct ggml_lowered *lowered;
	uint32_t positions, tables; /* nodes */
	int64_t sequences;
	struct ggml_room *room;
	struct ggml_tensor *from, *to;
};

/* The same rows on a GPU, where custom nodes do not run: the numbers of the rows, filled before
 * each run. */
struct ggml_pick {
	uint32_t positions, tables; /* nodes */
	int64_t sequences, blocks, block_rows;
	int32_t *data;
	struct ggml_tensor *rows;
};

/* Integers of an input. Each run copies and checks them once, so that later changes have no
 * effect. */
struct ggml_index {
	const void *from;	   /* the caller's memory */
	struct ggml_tensor *there; /* the same on a GPU */
	void *own;
	int64_t count;
	int64_t below;	 /* each is at least 0 and below this */
	const char *why; /* the node that requires it; NULL: none */
};

struct ggml_out {
	uint32_t node;
	struct ggml_tensor *value;
	void *own; /* memory of the engine; NULL: the caller gave memory */
};

/* A graph of ggml on given memory. */
struct ggml_lowered {
	const struct ggml_engine *engine;
	const struct ggml_session *session;
	struct ggml_backend *backend;
	struct ggml_context *context;
	struct ggml_cgraph *graph;
	struct ggml_gallocr *allocator;
	struct ggml_tensor **values; /* by node */
	struct ggml_index *indices;  /* by node; used for inputs of integers */
	struct ggml_mask *masks;
	size_t mask_count;
	struct ggml_gather *gathers;
	size_t gather_count;
	struct ggml_room *rooms;
	size_t room_count;
	struct ggml_pick *picks;
	size_t pick_count;
	struct ggml_tensor
		*attended;	  /* the last one's value that reads a room; NULL: none so far */
	struct ggml_out *outputs; /* in the order of the binding */
	atomic_bool cancelled;
};

/* Return the input whose rows a set_rows replaces. */
uint32_t ggml_past(const struct tmesh_graph *graph, uint32_t node);

/* ggml.c: place a tensor at @data, in memory of the caller or the engine. */
int ggml_place(const struct ggml_engine *engine, struct ggml_tensor *tensor, void *data,
	       const char *name, struct tmesh_error *err);

/* gpu.c */
int ggml_gpu_open(struct ggml_engine *engine, int32_t device, struct tmesh_error *err);
void ggml_gpu_place(const struct ggml_engine *engine, struct ggml_tensor *tensor, void *data);
/* Copy integers, masks and numbers of rows to the GPU. The copies are complete on return. */
void ggml_gpu_send(const struct ggml_lowered *lowered);

/* library.c */
int ggml_library(const char *path, struct ggml_api *api, struct tmesh_error *err);

/* types.c: check that this ggml's table of types has the weight's blocks. Return 0; -EOPNOTSUPP. */
int ggml_check_quant(const struct ggml_engine *engine, const struct tmesh_graph_node *node,
		     struct tmesh_error *err);

/* session.c */
int ggml_session_open(void *engine, const struct plugin_session_opts *opts,
		      struct plugin_session *session, struct tmesh_error *err);
void ggml_session_close(void *engine, struct plugin_session *session);

/* lower.c: make ggml's nodes, without memory. @fail names the node that this ggml cannot run. */
struct ggml_tensor *ggml_tensor_of(const struct ggml_engine *engine, struct ggml_context *context,
				   const struct tmesh_graph_node *node);
int ggml_lowered_open(struct ggml_lowered *lowered, const struct ggml_engine *engine,
		      const struct ggml_session *session, struct tmesh_error *err);
void ggml_lowered_close(struct ggml_lowered *lowered);

/* bind.c */
int ggml_bind(void *engine, struct plugin_session *session, const struct plugin_array *inputs,
	      size_t input_count, const struct plugin_array *outputs, size_t output_count,
	      void **binding, struct tmesh_error *err);
int ggml_run(void *binding, struct tmesh_error *err);
/* Called by ggml; @data is a struct ggml_gather. */
void ggml_gather(struct ggml_tensor *to, int task, int tasks, void *data);
void ggml_cancel(void *binding, bool on);
int ggml_result(void *binding, size_t output, struct plugin_result *result,
		struct tmesh_error *err);
void ggml_release(void *engine, void *handle);
void ggml_unbind(void *binding);
int ggml_rebind(void *binding, const struct plugin_array *inputs, const size_t *changed,
		size_t count, struct tmesh_error *err);

#endif /* TMESH_ENGINE_GGML_INTERNAL_H */
